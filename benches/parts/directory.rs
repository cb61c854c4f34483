//! Blocks made findable and taken back, by the engine's calls.

use criterion::Throughput;
use p2pkv::protocol::ids::BlockIndex;
use p2pkv::protocol::job::UnpublishState;

use crate::keys::{Keys, MANY, blocks};
use crate::measure::{Bench, time};
use crate::messages::connect_of_p2pkv;
use crate::node::{NOW, Node, PUBLISHED, Windows};

struct Case {
    node: Node,
    /// Published, all the time but for those that are being measured.
    old: Keys,
    new: Keys,
    new_blocks: Vec<BlockIndex>,
    windows: Windows,
    states: Vec<UnpublishState>,
}

pub fn measure(bench: &mut Bench) {
    let old = Keys::new(PUBLISHED, 1);
    let mut case = Case {
        node: Node::publishing(connect_of_p2pkv(), &old),
        old,
        new: Keys::new(MANY, 2),
        new_blocks: blocks(PUBLISHED..PUBLISHED + MANY),
        windows: Windows::default(),
        states: vec![UnpublishState::NotFound; MANY],
    };
    let mut group = bench.benchmark_group("directory");
    group.throughput(Throughput::Elements(MANY as u64));
    group.bench_function("publish", |bencher| {
        bencher.iter_custom(|turns| {
            time(turns, &mut case, |_| (), |case, ()| case.publish_new(), |case, ()| case.unpublish_new())
        });
    });
    group.bench_function("unpublish", |bencher| {
        bencher.iter_custom(|turns| {
            let window = |case: &mut Case| case.windows.next();
            time(
                turns,
                &mut case,
                window,
                |case, window| {
                    let out = case.node.manager.unpublish(case.old.part(window.clone()), &mut case.states);
                    assert!(out.unwrap());
                    window
                },
                |case, window| {
                    let (keys, blocks) = (case.old.part(window.clone()), blocks(window));
                    case.node.manager.publish(NOW, keys, &blocks).unwrap();
                },
            )
        });
    });
    group.finish();
}

impl Case {
    fn publish_new(&mut self) {
        self.node.manager.publish(NOW, self.new.all(), &self.new_blocks).unwrap();
    }

    fn unpublish_new(&mut self) {
        assert!(self.node.manager.unpublish(self.new.all(), &mut self.states).unwrap());
    }
}
