//! A tier in a process that runs out of descriptors. Alone in its process, whose limit it changes.
#![allow(clippy::disallowed_methods, reason = "tests wait with bounds")]

mod common;

use common::{Node, NodeOptions};
use p2pkv::protocol::error::ErrorKind;

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn limit_descriptors(most: usize) {
    let limit = libc::rlimit { rlim_cur: most as u64, rlim_max: 4096 };
    // SAFETY: a valid rlimit; it only concerns this test's own process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}

#[test]
fn with_any_number_of_descriptors_a_tier_is_made_whole_or_refused() {
    let before = open_descriptors();
    let mut made = 0;
    for spare in 0..64 {
        limit_descriptors(before + spare);
        match Node::try_new(NodeOptions::default()) {
            Ok(node) => {
                made += 1;
                drop(node);
            }
            Err(error) => assert_eq!(error.kind, ErrorKind::OutOfResources, "{spare} to spare: {error}"),
        }
        limit_descriptors(4096);
        assert_eq!(open_descriptors(), before, "{spare} to spare");
    }
    assert!(made > 0, "no limit was enough");
}
