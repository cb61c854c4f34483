//! The producer, in a process of its own.

use std::time::{Duration, Instant};

use p2pkv::protocol::ids::JobId;
use p2pkv::protocol::keys::KeysView;
use p2pkv::tier::RequestOptions;

use crate::child::Child;
use crate::node::{KEY_LEN, Node, content, cpu_time, push_key};
use crate::sample::Samples;
use crate::shape::Shape;

const ROLE: &str = "--producer";
/// What `statm` counts in, on x86-64 and most others.
const PAGE: usize = 4096;
const TELL_CPU_TIME: &str = "cpu";
const TELL_WAY: &str = "way";
const TELL_RESIDENT_BYTES: &str = "resident";
const TELL_POLL_TIME: &str = "poll";
/// With two numbers after it: stores, and blocks of each.
const PARK: &str = "park";

const POLLS: usize = 2000;

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
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            [TELL_CPU_TIME] => println!("{}", cpu_time().as_nanos()),
            [TELL_WAY] => println!("{}", way_to_the_consumer(&node)),
            [TELL_RESIDENT_BYTES] => println!("{}", resident_bytes()),
            [TELL_POLL_TIME] => println!("{}", poll_time(&node)),
            [PARK, stores, blocks] => {
                park(&node, stores.parse().unwrap(), blocks.parse().unwrap());
                println!("parked");
            }
            _ => panic!("unknown command {line:?}"),
        }
    }
}

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let resident: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
    resident * PAGE
}

/// Median nanoseconds of one that finds nothing.
fn poll_time(node: &Node) -> f64 {
    let mut results = Vec::with_capacity(1);
    let times = (0..POLLS).map(|_| {
        let begin = Instant::now();
        node.tier.poll_finished(&mut results, 1).unwrap();
        begin.elapsed().as_nanos() as f64
    });
    times.collect::<Samples>().median()
}

/// Stores that nobody fetches, each of a request of its own and with keys of its own.
fn park(node: &Node, stores: usize, blocks: usize) {
    for store in 0..stores {
        let params = format!(r#"{{"remote_decoder":{{"kv_request_id":"parked-{store}"}}}}"#);
        let options = RequestOptions { kv_transfer_params_json: params, ..RequestOptions::default() };
        let request = node.tier.request_new(&options).unwrap();
        let mut keys = Vec::new();
        (0..blocks).for_each(|block| push_key(1 << 32 | store << 16 | block, &mut keys));
        let indexes: Vec<u32> = (0..blocks as u32).collect();
        let keys = KeysView::new(&keys, KEY_LEN).unwrap();
        node.tier.submit_store(request, JobId(store as u64), keys, &indexes).unwrap();
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

    pub fn resident_bytes(&mut self) -> f64 {
        self.process.ask(TELL_RESIDENT_BYTES).parse().unwrap()
    }

    /// Nanoseconds of a poll for results that finds none.
    pub fn poll_time(&mut self) -> f64 {
        self.process.ask(TELL_POLL_TIME).parse().unwrap()
    }

    pub fn park(&mut self, stores: usize, blocks: usize) {
        assert_eq!(self.process.ask(&format!("{PARK} {stores} {blocks}")), "parked");
    }

    /// That what is measured is what was meant.
    pub fn check_way(&mut self, shape: Shape) {
        let answer = self.process.ask(TELL_WAY);
        let (transport, detail) = answer.split_once(": ").unwrap_or_default();
        assert!(shape.way.is_described_by(transport, detail), "expected {}, got {answer:?}", shape.way);
    }
}
