//! A tier with nothing to do sleeps. Alone in its process, whose threads it watches.
#![allow(clippy::disallowed_methods, reason = "tests wait with bounds")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{BOUND, KEY_LEN, Node, NodeOptions, eventually, keys};
use p2pkv::protocol::config::Timeouts;
use p2pkv::protocol::ids::{BlockIndex, JobId, ServeId};
use p2pkv::protocol::job::LookupState;
use p2pkv::protocol::keys::KeysView;
use p2pkv::tier::{ServeOps, ServeThread};

/// An engine that never makes up its mind.
struct Undecided;

impl ServeOps for Undecided {
    fn new_request(&self, _: ServeId, _: &str, _: &str) {}

    fn lookup(&self, _: ServeId, _: KeysView<'_>, states: &mut [LookupState]) {
        states.fill(LookupState::Pending);
    }

    fn create_store_job(&self, _: ServeId, _: KeysView<'_>, _: &mut [Option<BlockIndex>]) -> Option<JobId> {
        None
    }

    fn request_finished(&self, _: ServeId) {}
}

/// How often threads of this process went to sleep, this one aside.
fn sleeps() -> u64 {
    // SAFETY: gettid has no precondition.
    let own = unsafe { libc::gettid() }.to_string();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(Result::unwrap);
    let count = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let line =
            status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|count| count.parse::<u64>().ok()).unwrap_or(0)
    };
    tasks.filter(|task| task.file_name() != *own.as_str()).map(count).sum()
}

fn assert_sleeping(what: &str) {
    let before = sleeps();
    std::thread::sleep(Duration::from_secs(1));
    let woken = sleeps() - before;
    assert!(woken < 50, "{what}: its threads woke up {woken} times within a second");
}

#[test]
fn a_tier_without_work_sleeps_also_after_lookups_that_its_engine_never_answered() {
    let quick = Timeouts { serve: Duration::from_millis(100), ..Timeouts::default() };
    let producer = Node::new(NodeOptions { timeouts: quick, ..NodeOptions::default() });
    let consumer = Node::new(NodeOptions::default());
    assert_sleeping("no peer");
    producer.tier.set_serve_ops(Some(Arc::new(Undecided)), ServeThread::Caller).unwrap();
    let request = consumer.symmetric("r", &producer);
    let mut states = [LookupState::Miss];
    consumer.tier.lookup(request, KeysView::new(&keys([77]), KEY_LEN).unwrap(), &mut states).unwrap();
    consumer.tier.flush_lookups().unwrap();
    eventually("the lookup is there", || producer.tier.has_pending_work());
    producer.tier.serve().unwrap();
    assert!(consumer.tier.wait_lookups(request, Some(BOUND)).unwrap());
    // The engine is not told of anything any more, and does not come again.
    assert_sleeping("a lookup ran out of time");
    consumer.tier.request_finish(request).unwrap();
}
