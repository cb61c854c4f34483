//! A bug of the library under each callback: the tier is poisoned and can be freed, the process and its peers carry on.
#![allow(clippy::disallowed_methods, reason = "tests wait with bounds")]

mod common;

use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use common::{BOUND, Node, NodeOptions, eventually, keys};
use p2pkv::protocol::error::ErrorKind;
use p2pkv::protocol::ids::{BlockIndex, JobId, ServeId};
use p2pkv::protocol::job::LookupState;
use p2pkv::protocol::keys::KeysView;
use p2pkv::tier::{ServeOps, ServeThread};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    NewRequest,
    Lookup,
    CreateStoreJob,
    RequestFinished,
}

const PLACES: [Place; 4] = [Place::NewRequest, Place::Lookup, Place::CreateStoreJob, Place::RequestFinished];

struct Broken {
    at: Place,
    /// To every lookup.
    answer: LookupState,
    asked: AtomicBool,
    /// Somebody has come to that place.
    reached: AtomicBool,
}

impl Broken {
    fn at(at: Place) -> Arc<Broken> {
        Broken::answering(at, LookupState::Hit)
    }

    fn answering(at: Place, answer: LookupState) -> Arc<Broken> {
        Arc::new(Broken { at, answer, asked: AtomicBool::new(false), reached: AtomicBool::new(false) })
    }

    fn come(&self, to: Place) {
        if to == self.at {
            self.reached.store(true, Ordering::SeqCst);
            panic!("broken at {to:?}");
        }
    }
}

impl ServeOps for Broken {
    fn new_request(&self, _: ServeId, _: &str, _: &str) {
        self.come(Place::NewRequest);
    }

    fn lookup(&self, _: ServeId, _: KeysView<'_>, states: &mut [LookupState]) {
        self.come(Place::Lookup);
        states.fill(self.answer);
        self.asked.store(true, Ordering::SeqCst);
    }

    fn create_store_job(
        &self,
        serve: ServeId,
        _: KeysView<'_>,
        blocks: &mut [Option<BlockIndex>],
    ) -> Option<JobId> {
        self.come(Place::CreateStoreJob);
        blocks.fill(Some(BlockIndex(0)));
        Some(JobId(serve.0))
    }

    fn request_finished(&self, _: ServeId) {
        self.come(Place::RequestFinished);
    }
}

fn ask(consumer: &Node, producer: &Node) {
    // The id is the consumer's name for this producer: each is asked once.
    let request = consumer.symmetric(producer.tier.local_id().as_str(), producer);
    let asked = keys([1]);
    let mut states = [LookupState::Retry];
    consumer.tier.lookup(request, KeysView::new(&asked, common::KEY_LEN).unwrap(), &mut states).unwrap();
    consumer.tier.flush_lookups().unwrap();
}

#[test]
fn a_panic_under_a_callback_on_the_progress_thread_poisons_the_tier_and_ends_its_waits() {
    let consumer = Node::new(NodeOptions::default());
    for place in PLACES {
        let producer = Node::new(NodeOptions::default());
        let ops = Broken::at(place);
        producer.tier.set_serve_ops(Some(Arc::<Broken>::clone(&ops)), ServeThread::Progress).unwrap();
        let tier = Arc::clone(&producer.tier);
        let waiter = std::thread::spawn(move || tier.wait_finished(&mut Vec::new(), 1, None));
        ask(&consumer, &producer);
        eventually("the place is reached", || ops.reached.load(Ordering::SeqCst));
        eventually("a wait without limit ends", || waiter.is_finished());
        eventually("the tier is poisoned", || {
            producer.tier.stats().is_err_and(|error| error.kind == ErrorKind::Poisoned)
        });
        assert!(consumer.tier.stats().is_ok(), "the peer carries on");
        let start = Instant::now();
        let _ = catch_unwind(AssertUnwindSafe(|| producer.tier.shut_down()));
        assert!(start.elapsed() < BOUND);
        drop(producer);
    }
}

#[test]
fn a_panic_under_a_callback_on_the_engines_thread_comes_out_of_that_call_alone() {
    let consumer = Node::new(NodeOptions::default());
    for place in PLACES {
        let producer = Node::new(NodeOptions::default());
        let ops = Broken::at(place);
        producer.tier.set_serve_ops(Some(Arc::<Broken>::clone(&ops)), ServeThread::Caller).unwrap();
        ask(&consumer, &producer);
        eventually("a call panics, for the guard around it to catch", || {
            catch_unwind(AssertUnwindSafe(|| producer.tier.serve())).is_err()
        });
        assert!(ops.reached.load(Ordering::SeqCst), "{place:?}");
        assert!(consumer.tier.stats().is_ok(), "the peer carries on");
        let _ = catch_unwind(AssertUnwindSafe(|| producer.tier.shut_down()));
    }
}

#[test]
fn a_panic_while_a_tier_ends_still_closes_its_sockets_and_lets_go_of_the_region() {
    let consumer = Node::new(NodeOptions::default());
    let producer = Node::new(NodeOptions::default());
    let ops = Broken::answering(Place::RequestFinished, LookupState::Pending);
    producer.tier.set_serve_ops(Some(Arc::<Broken>::clone(&ops)), ServeThread::Caller).unwrap();
    ask(&consumer, &producer);
    eventually("the engine is asked and leaves it open", || {
        producer.tier.serve().unwrap();
        ops.asked.load(Ordering::SeqCst)
    });
    let port = producer.tier.local_id().port();
    let ended = catch_unwind(AssertUnwindSafe(|| producer.tier.shut_down()));
    assert!(ended.is_err(), "the panic comes out, for the guard to catch");
    // The tier itself is still held, as it is by requests that are not finished.
    assert!(TcpListener::bind(("127.0.0.1", port)).is_ok(), "port {port} is still taken");
}
