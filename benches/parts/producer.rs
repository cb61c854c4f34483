//! Matching: what a peer asks for against what was published and stored here.

use criterion::{BenchmarkGroup, Throughput};
use p2pkv::protocol::ids::{BlockIndex, JobId, RequestId, TransferId};
use p2pkv::protocol::job::UnpublishState;
use p2pkv::protocol::manager::RequestTimeouts;
use p2pkv::protocol::message::Message;
use p2pkv::protocol::params::{ProducerRole, Roles};

use crate::keys::{Keys, MANY, blocks, shuffled};
use crate::measure::{Bench, Per, time};
use crate::messages::{connect_of_p2pkv, end_of_id, fetch, id, lookup};
use crate::node::{Asked, NOW, Node, PUBLISHED, Windows};

/// Of a long prompt.
const LOOKED_UP: usize = 4096;

type Group<'a> = BenchmarkGroup<'a, Per>;

pub fn measure(bench: &mut Bench) {
    let mut group = bench.benchmark_group("producer");
    let mut case = Published::new();
    group.throughput(Throughput::Elements(LOOKED_UP as u64));
    lookups(&mut group, &mut case);
    group.throughput(Throughput::Elements(MANY as u64));
    fetches(&mut group, &mut case);
    drop(case);
    let mut case = Storing::new();
    stores(&mut group, &mut case);
    late_stores(&mut group, &mut case);
    late_publication(&mut group, &mut Storing::new());
    group.finish();
}

/// A core with a large directory.
struct Published {
    node: Node,
    keys: Keys,
    windows: Windows,
    /// Of all published keys.
    shuffled: Vec<usize>,
    shuffled_window: Vec<usize>,
    destinations: Vec<u64>,
}

impl Published {
    fn new() -> Published {
        let keys = Keys::new(PUBLISHED, 1);
        Published {
            node: Node::publishing(connect_of_p2pkv(), &keys),
            keys,
            windows: Windows::default(),
            shuffled: shuffled(PUBLISHED),
            shuffled_window: shuffled(MANY),
            destinations: (0..MANY as u64).collect(),
        }
    }

    fn in_order(&mut self) -> Vec<usize> {
        self.windows.next().collect()
    }

    /// Neighbours, in another order.
    fn out_of_order(&mut self) -> Vec<usize> {
        let window = self.windows.next();
        self.shuffled_window.iter().map(|position| window.start + position).collect()
    }

    /// From anywhere.
    fn scattered(&mut self) -> Vec<usize> {
        self.shuffled[self.windows.next()].to_vec()
    }

    fn fetch_of(&self, positions: &[usize]) -> Message {
        fetch(self.keys.pick(positions), self.destinations.clone())
    }

    fn lookup_of(&self, positions: &[usize]) -> Message {
        lookup(self.keys.pick(&positions[..LOOKED_UP]))
    }

    /// Takes everything out and publishes it anew, as a cache that is full does: the keys come into slots that others have
    /// left.
    fn replace_all(&mut self) {
        let mut states = vec![UnpublishState::NotFound; MANY];
        for _ in 0..PUBLISHED / MANY {
            let window = self.windows.next();
            let keys = self.keys.part(window.clone());
            assert!(self.node.manager.unpublish(keys, &mut states).unwrap());
            self.node.manager.publish(NOW, keys, &blocks(window)).unwrap();
        }
    }
}

fn lookups(group: &mut Group<'_>, case: &mut Published) {
    let answered = |case: &mut Published, asked: Asked| {
        asked.was_sent("lookup_resp");
        case.node.hear(end_of_id());
    };
    for (name, order) in
        [("lookup, in order", Published::in_order as Order), ("lookup, scattered", Published::scattered)]
    {
        group.bench_function(name, |bencher| {
            let message = |case: &mut Published| {
                let positions = order(case);
                case.lookup_of(&positions)
            };
            let hear = |case: &mut Published, message| case.node.hear(message);
            bencher.iter_custom(|turns| time(turns, case, message, hear, answered));
        });
    }
    group.bench_function("fetch of looked-up keys", |bencher| {
        let looked_up = |case: &mut Published| {
            let positions = case.in_order();
            let message = case.lookup_of(&positions);
            case.node.hear(message).was_sent("lookup_resp");
            fetch(case.keys.pick(&positions[..LOOKED_UP]), case.destinations[..LOOKED_UP].to_vec())
        };
        let hear = |case: &mut Published, message| case.node.hear(message);
        bencher.iter_custom(|turns| time(turns, case, looked_up, hear, end_of_round::<LOOKED_UP>));
    });
}

/// Which keys are asked for, and in which order.
type Order = fn(&mut Published) -> Vec<usize>;

fn end_of_round<const BLOCKS: usize>(case: &mut Published, asked: Asked) {
    case.node.transfer_done(asked.one_write_of(BLOCKS)).was_sent("transfer_done");
}

fn fetches(group: &mut Group<'_>, case: &mut Published) {
    one_fetch(group, case, "fetch, in order", Published::in_order);
    one_fetch(group, case, "fetch, shuffled", Published::out_of_order);
    one_fetch(group, case, "fetch, scattered", Published::scattered);
    group.bench_function("transfer done", |bencher| {
        let fetched = |case: &mut Published| {
            let positions = case.in_order();
            let message = case.fetch_of(&positions);
            case.node.hear(message).one_write_of(MANY)
        };
        let done = |case: &mut Published, transfer| case.node.transfer_done(transfer);
        let settled = |_: &mut Published, asked: Asked| asked.was_sent("transfer_done");
        bencher.iter_custom(|turns| time(turns, case, fetched, done, settled));
    });
    case.replace_all();
    one_fetch(group, case, "fetch, in order, of a full cache", Published::in_order);
}

fn one_fetch(group: &mut Group<'_>, case: &mut Published, name: &str, order: Order) {
    group.bench_function(name, |bencher| {
        let message = |case: &mut Published| {
            let positions = order(case);
            case.fetch_of(&positions)
        };
        let hear = |case: &mut Published, message| case.node.hear(message);
        bencher.iter_custom(|turns| time(turns, case, message, hear, end_of_round::<MANY>));
    });
}

/// A core whose engine stores for one request.
struct Storing {
    node: Node,
    keys: Keys,
    blocks: Vec<BlockIndex>,
    positions: Vec<usize>,
    destinations: Vec<u64>,
}

const STORE: JobId = JobId(1);

impl Storing {
    fn new() -> Storing {
        Storing {
            node: Node::joined(connect_of_p2pkv()),
            keys: Keys::new(MANY, 1),
            blocks: blocks(0..MANY),
            positions: (0..MANY).collect(),
            destinations: (0..MANY as u64).collect(),
        }
    }

    fn request(&mut self) -> RequestId {
        let roles = Roles { consumer: None, producer: Some(ProducerRole::Serves(id())) };
        self.node.manager.request_new(NOW, roles, RequestTimeouts::default()).unwrap()
    }

    fn store(&mut self, request: RequestId) -> Asked {
        self.node.manager.submit_store(NOW, request, STORE, self.keys.all(), &self.blocks).unwrap();
        self.node.carry_out()
    }

    fn fetch(&self) -> Message {
        fetch(self.keys.pick(&self.positions), self.destinations.clone())
    }

    /// Everything is moved, and the request over.
    fn end(&mut self, request: RequestId, asked: &Asked) {
        let ended = self.node.transfer_done(asked.one_write_of(MANY));
        ended.was_sent("transfer_done");
        ended.is_done();
        self.node.manager.request_finish(NOW, request).unwrap();
    }
}

fn stores(group: &mut Group<'_>, case: &mut Storing) {
    group.bench_function("store, parked", |bencher| {
        let store = |case: &mut Storing, request| {
            case.store(request);
            request
        };
        let end = |case: &mut Storing, request| {
            let asked = case.node.hear(case.fetch());
            case.end(request, &asked);
        };
        bencher.iter_custom(|turns| time(turns, case, Storing::request, store, end));
    });
    group.bench_function("fetch of a parked store", |bencher| {
        let parked = |case: &mut Storing| {
            let request = case.request();
            case.store(request);
            (request, case.fetch())
        };
        let hear = |case: &mut Storing, (request, message)| (request, case.node.hear(message));
        let end = |case: &mut Storing, (request, asked)| case.end(request, &asked);
        bencher.iter_custom(|turns| time(turns, case, parked, hear, end));
    });
}

/// The peer asks before the blocks are there.
fn late_stores(group: &mut Group<'_>, case: &mut Storing) {
    group.bench_function("fetch that has to wait", |bencher| {
        let request = |case: &mut Storing| (case.request(), case.fetch());
        let hear = |case: &mut Storing, (request, message)| {
            case.node.hear(message);
            request
        };
        let end = |case: &mut Storing, request| {
            let asked = case.store(request);
            case.end(request, &asked);
        };
        bencher.iter_custom(|turns| time(turns, case, request, hear, end));
    });
    group.bench_function("store that a fetch waits for", |bencher| {
        let waiting = |case: &mut Storing| {
            let request = case.request();
            case.node.hear(case.fetch());
            request
        };
        let store = |case: &mut Storing, request| (request, case.store(request));
        let end = |case: &mut Storing, (request, asked)| case.end(request, &asked);
        bencher.iter_custom(|turns| time(turns, case, waiting, store, end));
    });
}

/// As above, and no request of the engine's is open.
fn late_publication(group: &mut Group<'_>, case: &mut Storing) {
    group.bench_function("publish what a fetch waits for", |bencher| {
        let publish = |case: &mut Storing, ()| case.publish();
        let end = |case: &mut Storing, asked: Asked| {
            let last = case.end_all(&asked.writes);
            case.take_back(&last);
        };
        bencher.iter_custom(|turns| time(turns, case, Storing::wait, publish, end));
    });
    group.bench_function("transfers of what was published late", |bencher| {
        let published = |case: &mut Storing| {
            case.wait();
            case.publish().writes
        };
        let done = |case: &mut Storing, writes: Vec<TransferId>| case.end_all(&writes);
        let end = |case: &mut Storing, last: Asked| case.take_back(&last);
        bencher.iter_custom(|turns| time(turns, case, published, done, end));
    });
}

impl Storing {
    fn wait(&mut self) {
        self.node.hear(self.fetch());
    }

    fn publish(&mut self) -> Asked {
        self.node.manager.publish(NOW, self.keys.all(), &self.blocks).unwrap();
        let asked = self.node.carry_out();
        assert_eq!(asked.blocks, MANY);
        asked
    }

    /// However many there are.
    fn end_all(&mut self, writes: &[TransferId]) -> Asked {
        writes.iter().fold(Asked::default(), |_, transfer| self.node.transfer_done(*transfer))
    }

    fn take_back(&mut self, last: &Asked) {
        last.was_sent("transfer_done");
        let mut states = vec![UnpublishState::NotFound; MANY];
        assert!(self.node.manager.unpublish(self.keys.all(), &mut states).unwrap());
    }
}
