//! The producer, in a process of its own.

use std::time::Duration;

use p2pkv::protocol::keys::KeysView;

use crate::child::Child;
use crate::node::{KEY_LEN, Node, content, cpu_time, push_key};
use crate::shape::Shape;

const ROLE: &str = "--producer";
const TELL_CPU_TIME: &str = "cpu";
const TELL_WAY: &str = "way";

/// The shape, if the arguments are those of a producer.
pub fn asked_for(arguments: &[String]) -> Option<Shape> {
    let [role, block_len, blocks, way] = arguments else { return None };
    (role == ROLE).then(|| Shape::from_arguments(block_len, blocks, way))
}

/// Publishes every block and serves until the standard input ends.
pub fn serve(shape: Shape) {
    let node = Node::new(shape, content);
    let mut keys = Vec::new();
    (0..shape.blocks).for_each(|block| push_key(block, &mut keys));
    let blocks: Vec<u32> = (0..shape.blocks as u32).collect();
    node.tier.publish(KeysView::new(&keys, KEY_LEN).unwrap(), &blocks).unwrap();
    println!("{}", node.tier.local_id());
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        match line.as_str() {
            TELL_CPU_TIME => println!("{}", cpu_time().as_nanos()),
            TELL_WAY => println!("{}", way_to_the_consumer(&node)),
            _ => panic!("unknown command {line:?}"),
        }
    }
}

/// `transport: why`
fn way_to_the_consumer(node: &Node) -> String {
    let peers = node.tier.peers().unwrap();
    let told = peers.first().map(|peer| format!("{}: {}", peer.transport, peer.detail));
    told.unwrap_or_default()
}

pub struct Producer {
    process: Child,
    id: String,
}

impl Producer {
    pub fn start(shape: Shape) -> Producer {
        let arguments: Vec<String> = std::iter::once(ROLE.to_owned()).chain(shape.arguments()).collect();
        let mut process = Child::of_this_program(&arguments);
        let id = process.answer();
        Producer { process, id }
    }

    /// `host:port` of its control socket.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn cpu_time(&mut self) -> Duration {
        Duration::from_nanos(self.process.ask(TELL_CPU_TIME).parse().unwrap())
    }

    /// That what is measured is what was meant.
    pub fn check_way(&mut self, shape: Shape) {
        let answer = self.process.ask(TELL_WAY);
        let (transport, detail) = answer.split_once(": ").unwrap_or_default();
        assert!(shape.way.is_described_by(transport, detail), "expected {}, got {answer:?}", shape.way);
    }
}
