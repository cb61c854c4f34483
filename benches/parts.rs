//! The parts of the library that have work for each key or each block, one at a time: what a change to one of them costs
//! or saves. Between whole processes, and beside others: `compare.rs`.
//!
//! `cargo bench --bench parts` takes about a minute; words after `--` choose by name, as in `-- codec` or `-- "fetch of"`.
//! Below each time stands what that is for each key, or block. criterion keeps the last run in `target/criterion` and tells
//! the difference to it. `-- --profile-time 10 NAME` runs one part for a profiler.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock and waits")]

#[path = "parts/codec.rs"]
mod codec;
#[path = "parts/consumer.rs"]
mod consumer;
#[path = "parts/directory.rs"]
mod directory;
#[path = "parts/keys.rs"]
mod keys;
#[path = "parts/measure.rs"]
mod measure;
#[path = "compare/memory.rs"]
mod memory;
#[path = "parts/messages.rs"]
mod messages;
#[path = "parts/node.rs"]
mod node;
#[path = "parts/plane.rs"]
mod plane;
#[path = "parts/producer.rs"]
mod producer;

use criterion::{criterion_group, criterion_main};

use measure::Per;

criterion_group! {
    name = per_key;
    config = Per::KEY.criterion();
    targets = codec::measure, directory::measure, producer::measure, consumer::measure
}

criterion_group! {
    name = per_block;
    config = Per::BLOCK.criterion();
    targets = plane::measure
}

criterion_main!(per_key, per_block);
