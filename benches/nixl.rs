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

const ROUNDS: usize = 7;

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

/// From `submit_load` to its result, blocks stored before; the best round.
fn through_the_library(block_len: usize, blocks: &[(usize, usize)]) -> Duration {
    let count = u32::try_from(blocks.len()).unwrap();
    let (mut producer, consumer) = (node(count, block_len), node(count, block_len));
    for block in 0..blocks.len() {
        producer.fill(block, block as u64);
    }
    let named = keys(0..u64::from(count));
    let sources: Vec<u32> = (0..count).collect();
    let destinations: Vec<u32> = blocks.iter().map(|(_, target)| *target as u32).collect();
    let mut best = Duration::MAX;
    for round in 0..=ROUNDS {
        let id = format!("r{round}");
        let (serves, pulls) = (producer.producer(&id), consumer.pd_consumer(&id, &producer));
        producer.store(serves, 1, &named, &sources);
        let begin = Instant::now();
        consumer.load(pulls, 2, &named, &destinations);
        let result = consumer.result();
        assert_eq!(result.outcome, Outcome::Done, "{result:?}");
        // The first sets the connection up.
        if round > 0 {
            best = best.min(begin.elapsed());
        }
        assert_eq!(producer.result().outcome, Outcome::Done);
        consumer.tier.request_finish(pulls).unwrap();
        producer.tier.request_finish(serves).unwrap();
    }
    assert!(blocks.iter().all(|(source, target)| consumer.holds(*target, *source as u64)));
    best
}

/// From the first request to a ready session; the best of a few.
fn handshake(num_blocks: u32) -> Duration {
    let once = || {
        let (producer, consumer) = (node(num_blocks, 64), node(num_blocks, 64));
        let begin = Instant::now();
        let request = consumer.pd_consumer("h", &producer);
        eventually("a ready session", || {
            consumer.tier.peers().unwrap().iter().any(|peer| peer.state == PeerState::Ready)
        });
        let took = begin.elapsed();
        consumer.tier.request_finish(request).unwrap();
        took
    };
    (0..5).map(|_| once()).min().unwrap()
}

fn main() {
    let probe = Node::try_new(NodeOptions { transport: TransportChoice::Nixl, ..NodeOptions::default() });
    if let Err(error) = probe {
        println!("not measured: {error}");
        return;
    }
    for (block_len, count) in [(1 << 20, 64), (64 << 10, 1024), (16 << 10, 8192)] {
        let blocks = scattered(count);
        let bare = bare::best(block_len, &blocks, ROUNDS);
        let ours = through_the_library(block_len, &blocks);
        let speed = |time: Duration| (block_len * blocks.len()) as f64 / time.as_secs_f64() / 1e9;
        println!(
            "{count} x {} KiB: bare {:.2} GB/s, library {:.2} GB/s, ratio {:.2}",
            block_len >> 10,
            speed(bare),
            speed(ours),
            speed(ours) / speed(bare)
        );
    }
    let (small, large) = (handshake(1000), handshake(1_000_000));
    println!(
        "handshake: {small:?} with 1,000 blocks, {large:?} with 1,000,000: ratio {:.2}",
        large.as_secs_f64() / small.as_secs_f64()
    );
}
