//! Every input that fuzzing kept, on the stable toolchain: what was found once stays found.

#![allow(clippy::disallowed_methods)] // tests wait on conditions, with real time as the bound

#[path = "../fuzz/bodies/capi.rs"]
mod capi;
#[path = "../fuzz/bodies/codec.rs"]
mod codec;
#[path = "../fuzz/bodies/frames.rs"]
mod frames;
#[path = "../fuzz/bodies/params.rs"]
mod params;
#[path = "../fuzz/bodies/script.rs"]
mod script;
#[path = "../fuzz/bodies/session.rs"]
mod session;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

fn replay(target: &str, run: fn(&[u8])) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut inputs: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    inputs.sort();
    assert!(inputs.len() > 10, "{} has only {} inputs", folder.display(), inputs.len());
    for input in inputs {
        let bytes = fs::read(&input).unwrap();
        if catch_unwind(AssertUnwindSafe(|| run(&bytes))).is_err() {
            panic!("{} fails; alone: cargo +nightly fuzz run {target} {}", input.display(), input.display());
        }
    }
}

#[test]
fn bytes_from_a_peer_decode_within_the_limits_or_are_refused() {
    replay("codec", codec::run);
}

#[test]
fn kv_transfer_params_and_configurations_are_understood_or_refused() {
    replay("params", params::run);
}

#[test]
fn any_order_of_operations_keeps_the_invariants() {
    replay("session", session::run);
}

#[test]
fn only_armed_blocks_are_written() {
    replay("frames", frames::run);
}

#[test]
fn any_order_of_c_calls_gives_each_job_one_result() {
    replay("capi", capi::run);
}
