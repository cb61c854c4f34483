//! What threads can do to each other inside one tier: each of these once lost, delayed or hung something.
#![allow(clippy::disallowed_methods, reason = "tests wait with bounds")]

mod common;

use std::collections::HashSet;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use common::{BOUND, KEY_LEN, Node, NodeOptions, eventually, keys};
use p2pkv::capi::*;
use p2pkv::protocol::error::ErrorKind;
use p2pkv::protocol::ids::{BlockIndex, JobId, RequestId, ServeId};
use p2pkv::protocol::job::{LookupState, Outcome};
use p2pkv::protocol::keys::KeysView;
use p2pkv::tier::{ProgressMode, ServeOps, ServeThread, Tier};

fn node() -> Node {
    Node::new(NodeOptions::default())
}

fn caller_node() -> Node {
    Node::new(NodeOptions { progress: ProgressMode::Caller, ..NodeOptions::default() })
}

/// Runs what may hang, a bounded time.
fn within<T: Send + 'static>(bound: Duration, what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = mpsc::channel();
    thread::spawn(move || done.send(act()));
    ended.recv_timeout(bound).unwrap_or_else(|error| panic!("{what}: not within {bound:?} ({error})"))
}

// ---- log callbacks ----

static LOGGING_TIER: AtomicPtr<p2p_tier> = AtomicPtr::new(std::ptr::null_mut());
static CALLS_FROM_LOG: AtomicU32 = AtomicU32::new(0);

unsafe extern "C-unwind" fn ask_the_tier(_: *mut c_void, _: u32, _: *const c_char, _: *const c_char) {
    let tier = LOGGING_TIER.load(Ordering::SeqCst);
    let mut stats =
        p2p_tier_statistics { struct_size: size_of::<p2p_tier_statistics>(), ..Default::default() };
    // SAFETY: NULL or a live tier.
    if !tier.is_null() && unsafe { p2p_tier_stats(tier, &mut stats) } == p2p_status::OK {
        CALLS_FROM_LOG.fetch_add(1, Ordering::SeqCst);
    }
}

fn text(text: &'static str) -> p2p_str {
    p2p_str { data: text.as_ptr().cast(), len: text.len() }
}

#[test]
fn a_log_callback_may_call_the_tier_that_speaks() {
    let other =
        Node::new(NodeOptions { fingerprint: "0123456789abcdef".to_owned(), ..NodeOptions::default() });
    let memory = Box::leak(vec![0u8; 64 * 4096].into_boxed_slice());
    let (host, fingerprint) = ("127.0.0.1", "fedcba9876543210");
    let mut tier = std::ptr::null_mut();
    // SAFETY: locals, leaked memory, static texts.
    unsafe {
        let mut config = std::mem::MaybeUninit::<p2p_tier_config>::uninit();
        p2p_tier_config_init(config.as_mut_ptr(), size_of::<p2p_tier_config>());
        let mut config = config.assume_init();
        config.base_addr = memory.as_mut_ptr().cast();
        config.num_blocks = 64;
        config.block_len = 4096;
        config.host = text(host);
        config.config_fingerprint = text(fingerprint);
        assert_eq!(p2p_tier_new(&config, &mut tier), p2p_status::OK);
        let level = p2p_log_level::INFO as u32;
        let set = p2p_log_set_callback(level, Some(ask_the_tier), std::ptr::null_mut(), None);
        assert_eq!(set, p2p_status::OK);
        LOGGING_TIER.store(tier, Ordering::SeqCst);
        let mut id = [0u8; 264];
        let mut len = 0;
        assert_eq!(p2p_tier_local_id(tier, id.as_mut_ptr().cast(), id.len(), &mut len), p2p_status::OK);
        let port: u16 = std::str::from_utf8(&id[..len]).unwrap().rsplit(':').next().unwrap().parse().unwrap();
        // The refusal is logged with the lock held, on the other's thread and on this tier's.
        let request = other.request(&format!(
            r#"{{"remote_kv_source":{{"kv_request_id":"r","remote_host":"127.0.0.1","remote_port":{port}}}}}"#
        ));
        eventually("the tier's own words led to a call on it", || CALLS_FROM_LOG.load(Ordering::SeqCst) > 0);
        eventually("the request hears of it", || other.tier.request_failure(request).unwrap().is_some());
        p2p_log_set_callback(0, None, std::ptr::null_mut(), None);
        LOGGING_TIER.store(std::ptr::null_mut(), Ordering::SeqCst);
        p2p_tier_free(tier);
    }
}

// ---- results ----

/// A store that nobody can ask for ends at once.
fn instant_job(tier: &Tier, request: RequestId, job: u64) {
    tier.submit_store(request, JobId(job), KeysView::new(&keys([job]), KEY_LEN).unwrap(), &[0]).unwrap();
}

#[test]
fn of_two_waiters_each_that_returns_has_a_result() {
    for node in [node(), caller_node()] {
        let request = node.request("{}");
        let tier = &node.tier;
        let taken = Mutex::new(HashSet::new());
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut results = Vec::new();
                    while taken.lock().unwrap().len() < 500 {
                        let arrived =
                            tier.wait_finished(&mut results, 1, Some(Duration::from_millis(20))).unwrap();
                        assert_eq!(arrived, !results.is_empty());
                        let mut taken = taken.lock().unwrap();
                        results.drain(..).for_each(|result| assert!(taken.insert(result.job)));
                    }
                });
            }
            (0..500).for_each(|job| instant_job(tier, request, job));
        });
    }
}

#[test]
fn what_was_drained_can_be_polled() {
    let (mut producer, consumer) = (node(), node());
    producer.fill(0, 1);
    producer.tier.publish(KeysView::new(&keys([1]), KEY_LEN).unwrap(), &[0]).unwrap();
    for job in 0..200 {
        let request = consumer.symmetric(&format!("r{job}"), &producer);
        assert_eq!(consumer.look_up(request, &keys([1])), [LookupState::Hit]);
        consumer.load(request, job, &keys([1]), &[0]);
        assert!(consumer.tier.drain(Some(BOUND)).unwrap());
        let mut results = Vec::new();
        consumer.tier.poll_finished(&mut results, 8).unwrap();
        assert_eq!(results.len(), 1, "drained, but the result of job {job} was not there");
        consumer.tier.request_finish(request).unwrap();
    }
}

#[test]
fn every_open_job_has_a_result_after_the_end() {
    let (producer, consumer) = (node(), node());
    let serve = producer.producer("nobody-comes");
    producer.store(serve, 1, &keys([1]), &[0]);
    let pull = consumer.pd_consumer("nothing-comes", &producer);
    consumer.load(pull, 2, &keys([2]), &[0]);
    for (tier, job) in [(Arc::clone(&consumer.tier), 2), (Arc::clone(&producer.tier), 1)] {
        within(BOUND, "the end", move || {
            tier.shut_down();
            let mut results = Vec::new();
            tier.poll_finished(&mut results, 8).unwrap();
            assert_eq!(results.len(), 1);
            assert_eq!((results[0].job, results[0].outcome), (JobId(job), Outcome::ShutDown), "{results:?}");
            let error = tier.poll_finished(&mut results, 8).unwrap_err();
            assert_eq!(error.kind, ErrorKind::ShutDown);
        });
    }
}

// ---- waiting ----

#[test]
fn the_end_of_a_tier_ends_every_wait() {
    for node in [node(), caller_node()] {
        let tier = Arc::clone(&node.tier);
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let tier = Arc::clone(&tier);
                thread::spawn(move || {
                    tier.wait_finished(&mut Vec::new(), 1, None).map_err(|error| error.kind)
                })
            })
            .collect();
        // Some of them wait by now, or will find it ended: both must return.
        thread::sleep(Duration::from_millis(50));
        within(BOUND, "shut_down", move || tier.shut_down());
        for waiter in waiters {
            let outcome = within(BOUND, "wait_finished without limit", move || waiter.join().unwrap());
            assert_eq!(outcome, Err(ErrorKind::ShutDown));
        }
    }
}

#[test]
fn in_caller_mode_one_waiter_is_not_left_alone_when_the_other_goes() {
    let (mut producer, consumer) = (node(), caller_node());
    producer.fill(0, 1);
    producer.tier.publish(KeysView::new(&keys([1]), KEY_LEN).unwrap(), &[0]).unwrap();
    let tier = &consumer.tier;
    let done = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        // Comes and goes, and makes the progress while it is there.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                tier.drain(Some(Duration::from_micros(300))).unwrap();
            }
        });
        let mut slowest = Duration::ZERO;
        for job in 0..100 {
            let request = consumer.symmetric(&format!("r{job}"), &producer);
            let began = Instant::now();
            assert_eq!(consumer.look_up(request, &keys([1])), [LookupState::Hit]);
            consumer.load(request, job, &keys([1]), &[0]);
            assert_eq!(consumer.result().outcome, Outcome::Done);
            slowest = slowest.max(began.elapsed());
            tier.request_finish(request).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        println!("slowest pull {slowest:?}");
        assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    });
}

#[test]
fn an_ended_tier_frees_its_ports_whoever_still_holds_it() {
    let old = node();
    let _request = old.producer("alive");
    let handle = Arc::clone(&old.tier);
    let port = handle.local_id().port();
    old.tier.shut_down();
    let new = Node::try_new(NodeOptions { port, ..NodeOptions::default() });
    assert!(new.is_ok(), "{:?}", new.err());
    assert_eq!(handle.stats().unwrap_err().kind, ErrorKind::ShutDown);
}

// ---- bursts ----

#[test]
fn a_burst_of_lookups_and_their_answers_does_not_end_the_session() {
    let (mut producer, consumer) = (node(), node());
    producer.fill(0, 1);
    producer.tier.publish(KeysView::new(&keys([1]), KEY_LEN).unwrap(), &[0]).unwrap();
    let first = consumer.symmetric("first", &producer);
    assert_eq!(consumer.look_up(first, &keys([1])), [LookupState::Hit]);
    let requests: Vec<RequestId> =
        (0..5000).map(|number| consumer.symmetric(&format!("r{number}"), &producer)).collect();
    let (key, mut states) = (keys([1]), [LookupState::Retry]);
    let view = KeysView::new(&key, KEY_LEN).unwrap();
    requests.iter().for_each(|request| consumer.tier.lookup(*request, view, &mut states).unwrap());
    consumer.tier.flush_lookups().unwrap();
    for request in &requests {
        assert!(consumer.tier.wait_lookups(*request, Some(BOUND)).unwrap());
        consumer.tier.lookup(*request, view, &mut states).unwrap();
        let why = || consumer.tier.request_failure(*request);
        assert_eq!(states, [LookupState::Hit], "{:?}", why());
    }
    requests.into_iter().chain([first]).for_each(|request| consumer.tier.request_finish(request).unwrap());
}

// ---- serve ops ----

#[derive(Default)]
struct Heard {
    opened: HashSet<ServeId>,
    closed: HashSet<ServeId>,
    asked: u32,
    threads: HashSet<ThreadId>,
}

/// Leaves every key open, and remembers what it was told.
#[derive(Default)]
struct Undecided(Mutex<Heard>);

impl ServeOps for Undecided {
    fn new_request(&self, serve: ServeId, _: &str, _: &str) {
        assert!(self.0.lock().unwrap().opened.insert(serve));
    }

    fn lookup(&self, serve: ServeId, _: KeysView<'_>, states: &mut [LookupState]) {
        let mut heard = self.0.lock().unwrap();
        assert!(heard.opened.contains(&serve), "asked about a context of other ops");
        heard.asked += 1;
        heard.threads.insert(thread::current().id());
        states.fill(LookupState::Pending);
    }

    fn create_store_job(&self, _: ServeId, _: KeysView<'_>, _: &mut [Option<BlockIndex>]) -> Option<JobId> {
        None
    }

    fn request_finished(&self, serve: ServeId) {
        let mut heard = self.0.lock().unwrap();
        assert!(heard.opened.contains(&serve), "the end of a context of other ops");
        assert!(heard.closed.insert(serve), "closed twice");
    }
}

fn ask(consumer: &Node, producer: &Node, id: &str) -> RequestId {
    let request = consumer.symmetric(id, producer);
    let mut states = [LookupState::Miss];
    consumer.tier.lookup(request, KeysView::new(&keys([77]), KEY_LEN).unwrap(), &mut states).unwrap();
    consumer.tier.flush_lookups().unwrap();
    request
}

#[test]
fn serve_ops_that_are_replaced_hear_the_end_of_what_they_opened_and_the_next_hear_nothing_of_it() {
    let (producer, consumer) = (node(), node());
    for thread in [ServeThread::Progress, ServeThread::Caller] {
        let (first, second) = (Arc::new(Undecided::default()), Arc::new(Undecided::default()));
        let set = |ops: &Arc<Undecided>| {
            let ops: Arc<dyn ServeOps> = Arc::<Undecided>::clone(ops);
            producer.tier.set_serve_ops(Some(ops), thread).unwrap();
        };
        set(&first);
        let request = ask(&consumer, &producer, &format!("{thread:?}"));
        eventually("the first ops are asked", || {
            producer.tier.serve().unwrap();
            first.0.lock().unwrap().asked > 0
        });
        set(&second);
        {
            let heard = first.0.lock().unwrap();
            assert_eq!(heard.opened, heard.closed);
        }
        assert!(consumer.tier.wait_lookups(request, Some(BOUND)).unwrap());
        producer.tier.serve().unwrap();
        assert_eq!(second.0.lock().unwrap().opened.len(), 0);
        consumer.tier.request_finish(request).unwrap();
        producer.tier.set_serve_ops(None, thread).unwrap();
    }
}

#[test]
fn serve_leaves_ops_of_the_progress_thread_to_that() {
    let (producer, consumer) = (node(), node());
    let ops = Arc::new(Undecided::default());
    let shared: Arc<dyn ServeOps> = Arc::<Undecided>::clone(&ops);
    producer.tier.set_serve_ops(Some(shared), ServeThread::Progress).unwrap();
    let request = ask(&consumer, &producer, "r");
    let limit = Instant::now() + Duration::from_millis(300);
    while Instant::now() < limit {
        producer.tier.serve().unwrap();
    }
    let heard = ops.0.lock().unwrap();
    assert!(heard.asked > 0 && !heard.threads.contains(&thread::current().id()));
    drop(heard);
    consumer.tier.request_finish(request).unwrap();
}

/// What an engine may not do, and must not hang or crash the host.
struct Hostile(Mutex<Option<Arc<Tier>>>, AtomicU32);

impl ServeOps for Hostile {
    fn new_request(&self, _: ServeId, _: &str, _: &str) {}

    fn lookup(&self, _: ServeId, _: KeysView<'_>, _: &mut [LookupState]) {
        self.1.fetch_add(1, Ordering::SeqCst);
        match self.0.lock().unwrap().take() {
            Some(tier) => tier.shut_down(),
            None => panic!("an engine's bug"),
        }
    }

    fn create_store_job(&self, _: ServeId, _: KeysView<'_>, _: &mut [Option<BlockIndex>]) -> Option<JobId> {
        None
    }

    fn request_finished(&self, _: ServeId) {}
}

#[test]
fn a_tier_that_is_ended_from_its_own_callback_ends() {
    let (producer, consumer) = (node(), node());
    let ops = Arc::new(Hostile(Mutex::new(Some(Arc::clone(&producer.tier))), AtomicU32::new(0)));
    let shared: Arc<dyn ServeOps> = Arc::<Hostile>::clone(&ops);
    producer.tier.set_serve_ops(Some(shared), ServeThread::Progress).unwrap();
    let request = ask(&consumer, &producer, "r");
    eventually("it was asked", || ops.1.load(Ordering::SeqCst) > 0);
    let tier = Arc::clone(&producer.tier);
    let outcome = within(BOUND, "wait_finished without limit", move || {
        tier.wait_finished(&mut Vec::new(), 1, None).map_err(|error| error.kind)
    });
    assert_eq!(outcome, Err(ErrorKind::ShutDown));
    let port = producer.tier.local_id().port();
    within(BOUND, "the end of the handle", move || drop(producer.tier));
    eventually("its thread ended and let the port go", || {
        Node::try_new(NodeOptions { port, ..NodeOptions::default() }).is_ok()
    });
    consumer.tier.request_finish(request).unwrap();
}

#[test]
fn a_panic_on_the_progress_thread_ends_every_wait_and_the_tier_can_be_freed() {
    let (producer, consumer) = (node(), node());
    let ops: Arc<dyn ServeOps> = Arc::new(Hostile(Mutex::new(None), AtomicU32::new(0)));
    producer.tier.set_serve_ops(Some(ops), ServeThread::Progress).unwrap();
    let request = ask(&consumer, &producer, "r");
    let tier = Arc::clone(&producer.tier);
    let outcome = within(BOUND, "wait_finished without limit", move || {
        tier.wait_finished(&mut Vec::new(), 1, None).map_err(|error| error.kind)
    });
    assert_eq!(outcome, Err(ErrorKind::Poisoned));
    assert!(producer.tier.is_poisoned());
    within(BOUND, "the end of the handle", move || drop(producer.tier));
    consumer.tier.request_finish(request).unwrap();
}
