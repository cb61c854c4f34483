//! A tier over NIXL beside bare NIXL with the same descriptors, and what a peer costs by the size of its region.
//!
//! `cargo bench --bench nixl`, with NIXL where the library looks for it. Prints one line for each measurement.

#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]

#[path = "bare/nixl.rs"]
mod bare;
#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{Node, NodeOptions, eventually, keys};
use p2pkv::protocol::job::{Outcome, PeerState};
use p2pkv::tier::TransportChoice;

const ROUNDS: usize = 31;
const HANDSHAKES: usize = 11;

fn node(num_blocks: u32, block_len: usize) -> Node {
    Node::new(NodeOptions {
        num_blocks,
        block_len,
        transport: TransportChoice::Nixl,
        ..NodeOptions::default()
    })
}

/// Sources in order, destinations in another: neighbours are never neighbours on both sides.
fn scattered(count: u32) -> Vec<(usize, usize)> {
    (0..count).map(|block| (block as usize, (block * 5 % count) as usize)).collect()
}

/// Two tiers of one process: a producer that has stored before each load, and a consumer.
struct Library {
    producer: Node,
    consumer: Node,
    blocks: Vec<(usize, usize)>,
    named: Vec<u8>,
    rounds: usize,
}

impl Library {
    fn new(block_len: usize, blocks: &[(usize, usize)]) -> Self {
        let count = u32::try_from(blocks.len()).unwrap();
        let (mut producer, consumer) = (node(count, block_len), node(count, block_len));
        for block in 0..blocks.len() {
            producer.fill(block, block as u64);
        }
        let named = keys(0..u64::from(count));
        Library { producer, consumer, blocks: blocks.to_vec(), named, rounds: 0 }
    }

    /// From `submit_load` to its result.
    fn round(&mut self) -> Duration {
        let sources: Vec<u32> = self.blocks.iter().map(|(source, _)| *source as u32).collect();
        let targets: Vec<u32> = self.blocks.iter().map(|(_, target)| *target as u32).collect();
        let id = format!("r{}", self.rounds);
        self.rounds += 1;
        let (serves, pulls) = (self.producer.producer(&id), self.consumer.pd_consumer(&id, &self.producer));
        self.producer.store(serves, 1, &self.named, &sources);
        let begin = Instant::now();
        self.consumer.load(pulls, 2, &self.named, &targets);
        let result = self.consumer.result();
        let took = begin.elapsed();
        assert_eq!(result.outcome, Outcome::Done, "{result:?}");
        assert_eq!(self.producer.result().outcome, Outcome::Done);
        self.consumer.tier.request_finish(pulls).unwrap();
        self.producer.tier.request_finish(serves).unwrap();
        took
    }

    fn check(&self) {
        let right = |(source, target): &(usize, usize)| self.consumer.holds(*target, *source as u64);
        assert!(self.blocks.iter().all(right), "the library moved wrong bytes");
    }
}

/// A round of each in turn, so that both meet the same machine.
fn compare(block_len: usize, count: u32) {
    let blocks = scattered(count);
    let (mut bare, mut library) = (bare::Bare::new(block_len, &blocks), Library::new(block_len, &blocks));
    // The first of each sets the connection up.
    bare.round();
    library.round();
    let times: Vec<(Duration, Duration)> = (0..ROUNDS).map(|_| (bare.round(), library.round())).collect();
    bare.check();
    library.check();
    let speed = |time: &Duration| (block_len * blocks.len()) as f64 / time.as_secs_f64() / 1e9;
    let bare = Quartiles::of(times.iter().map(|(bare, _)| speed(bare)));
    let ours = Quartiles::of(times.iter().map(|(_, ours)| speed(ours)));
    println!(
        "{count} x {} KiB: bare {bare} GB/s, library {ours} GB/s, ratio of the medians {:.2}",
        block_len >> 10,
        ours.median / bare.median
    );
}

/// Of one measurement: the median, and between what half of all values lie.
struct Quartiles {
    median: f64,
    low: f64,
    high: f64,
}

impl Quartiles {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |part: usize| values[(values.len() - 1) * part / 4];
        Quartiles { median: at(2), low: at(1), high: at(3) }
    }
}

impl std::fmt::Display for Quartiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2} to {:.2})", self.median, self.low, self.high)
    }
}

/// From the first request to a ready session.
fn handshake(num_blocks: u32) -> Duration {
    let (producer, consumer) = (node(num_blocks, 64), node(num_blocks, 64));
    let begin = Instant::now();
    let request = consumer.pd_consumer("h", &producer);
    eventually("a ready session", || {
        consumer.tier.peers().unwrap().iter().any(|peer| peer.state == PeerState::Ready)
    });
    let took = begin.elapsed();
    consumer.tier.request_finish(request).unwrap();
    took
}

fn main() {
    let probe = Node::try_new(NodeOptions { transport: TransportChoice::Nixl, ..NodeOptions::default() });
    if let Err(error) = probe {
        println!("not measured: {error}");
        return;
    }
    println!("medians of {ROUNDS} rounds of each in turn (and quartiles)");
    for (block_len, count) in [(1 << 20, 64), (64 << 10, 1024), (16 << 10, 8192)] {
        compare(block_len, count);
    }
    let times: Vec<(Duration, Duration)> =
        (0..HANDSHAKES).map(|_| (handshake(1000), handshake(1_000_000))).collect();
    let millis = |time: &Duration| time.as_secs_f64() * 1e3;
    let small = Quartiles::of(times.iter().map(|(small, _)| millis(small)));
    let large = Quartiles::of(times.iter().map(|(_, large)| millis(large)));
    println!(
        "handshake: {small} ms with 1,000 blocks, {large} ms with 1,000,000, ratio of the medians {:.2}",
        large.median / small.median
    );
}
