//! Many engine threads on one tier, while peers come and go, results are collected, lookups are served and the tier is
//! ended: in orders that shuttle chooses. Each execution checks that nobody waits for ever, that each accepted job has
//! exactly one result, and that nothing is accepted once the tier has ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner, thread};

use super::net::{Inbox, NUM_BLOCKS, Net, OURS, PEERS, config, key, peer_name};
use crate::protocol::error::{ErrorKind, Result};
use crate::protocol::ids::{BlockIndex, JobId, RequestId, ServeId};
use crate::protocol::job::{JobResult, LookupState, Outcome, UnpublishState};
use crate::protocol::keys::KeysView;
use crate::tier::start::{Parts, assemble};
use crate::tier::sync::{AtomicU64, Mutex, Ordering};
use crate::tier::{ProgressMode, RequestOptions, ServeOps, ServeThread, Tier};

/// Jobs that ended well, over all executions: there must be some.
static DONE: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// Accepted and ended jobs, by how often.
#[derive(Default)]
struct Books {
    accepted: Mutex<BTreeMap<JobId, usize>>,
    ended: Mutex<BTreeMap<JobId, usize>>,
}

impl Books {
    fn accept(&self, job: JobId) {
        *self.accepted.lock().unwrap().entry(job).or_default() += 1;
    }

    fn end(&self, results: &[JobResult]) {
        let mut ended = self.ended.lock().unwrap();
        results.iter().for_each(|result| *ended.entry(result.job).or_default() += 1);
        let done = results.iter().filter(|result| result.outcome == Outcome::Done).count();
        DONE.fetch_add(done, Ordering::Relaxed);
    }
}

struct Engine {
    tier: Tier,
    net: Net,
    books: Arc<Books>,
}

/// Answers HIT, pins the block of that number, and counts its jobs from far up.
struct Ops {
    books: Arc<Books>,
    jobs: AtomicU64,
}

impl ServeOps for Ops {
    fn new_request(&self, _: ServeId, _: &str, _: &str) {}

    fn lookup(&self, _: ServeId, _: KeysView<'_>, states: &mut [LookupState]) {
        states.fill(if thread_rng().gen_bool(0.3) { LookupState::Pending } else { LookupState::Hit });
    }

    fn create_store_job(
        &self,
        _: ServeId,
        keys: KeysView<'_>,
        blocks: &mut [Option<BlockIndex>],
    ) -> Option<JobId> {
        blocks.iter_mut().zip(keys.iter()).for_each(|(block, key)| *block = Some(BlockIndex(key[0].into())));
        let job = JobId(1 << 32 | self.jobs.fetch_add(1, Ordering::SeqCst));
        self.books.accept(job);
        Some(job)
    }

    fn request_finished(&self, _: ServeId) {}
}

impl Engine {
    fn start(mode: ProgressMode, serve: ServeThread) -> Arc<Engine> {
        let net = Net::new();
        let tier = assemble(Parts {
            core: config(OURS, 1),
            mode,
            spin: std::time::Duration::ZERO,
            sender: Box::new(net.clone()),
            receiver: Box::new(Inbox { net: net.clone(), last: Default::default() }),
            transports: vec![Box::new(net.clone())],
        })
        .unwrap();
        let books = Arc::new(Books::default());
        let ops = Ops { books: Arc::clone(&books), jobs: AtomicU64::new(0) };
        tier.set_serve_ops(Some(Arc::new(ops)), serve).unwrap();
        Arc::new(Engine { tier, net, books })
    }

    fn request(&self, json: String) -> Result<RequestId> {
        let options = RequestOptions { kv_transfer_params_json: json, ..RequestOptions::default() };
        self.tier.request_new(&options)
    }

    /// One of the engine's threads: a request from its beginning to its end. Errors are those of a tier that ends.
    fn work(&self, number: usize) -> Result<()> {
        let (peer, job) = (peer_name(number % PEERS), JobId(number as u64));
        let (host, port) = peer.rsplit_once(':').unwrap();
        let source =
            format!(r#"{{"kv_request_id":"id-{number}","remote_host":"{host}","remote_port":{port}}}"#);
        let (bytes, block) = (key(number as u8 % 8), [number as u32 % NUM_BLOCKS]);
        let keys = KeysView::new(&bytes, 4).unwrap();
        match number % 4 {
            0 => {
                let request = self.request(format!(r#"{{"remote_kv_source":{source}}}"#))?;
                let mut states = [LookupState::Miss];
                for _ in 0..thread_rng().gen_range(1..6) {
                    self.tier.lookup(request, keys, &mut states)?;
                    self.tier.flush_lookups()?;
                    thread::yield_now();
                }
                self.submit(job, self.tier.submit_load(request, job, keys, &block))?;
                self.tier.request_finish(request)
            }
            1 => {
                let request = self.request(format!(r#"{{"remote_prefiller":{source}}}"#))?;
                self.submit(job, self.tier.submit_load(request, job, keys, &block))?;
                self.tier.wait_lookups(request, Some(Duration::from_millis(50)))?;
                self.tier.request_finish(request)
            }
            2 => {
                let params = format!(r#"{{"remote_decoder":{{"kv_request_id":"id-{number}"}}}}"#);
                let request = self.request(params)?;
                self.submit(job, self.tier.submit_store(request, job, keys, &block))?;
                self.tier.request_finish(request)
            }
            _ => {
                // Of its own: a key is published at one block at a time.
                let bytes = key(number as u8 + 8);
                let keys = KeysView::new(&bytes, 4).unwrap();
                self.tier.publish(keys, &block)?;
                self.tier.peers()?;
                self.tier.unpublish(keys, &mut [UnpublishState::NotFound])?;
                self.tier.serve()?;
                self.tier.stats().map(drop)
            }
        }
    }

    fn submit(&self, job: JobId, answer: Result<()>) -> Result<()> {
        match answer {
            Ok(()) => {
                self.books.accept(job);
                self.give_time(job);
            }
            // The peer was restarted in between.
            Err(error) if error.kind == ErrorKind::NotAHit => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Some turns for the job to end by itself, or not enough.
    fn give_time(&self, job: JobId) {
        for _ in 0..thread_rng().gen_range(0..300) {
            if self.books.ended.lock().unwrap().contains_key(&job) {
                return;
            }
            thread::yield_now();
        }
    }

    /// Until the tier has ended.
    fn collect(&self) {
        let mut results = Vec::new();
        while self.tier.wait_finished(&mut results, 4, None).is_ok() {
            self.books.end(&results);
            results.clear();
        }
    }

    fn check_rest(&self) {
        let mut results = Vec::new();
        while self.tier.poll_finished(&mut results, 4).is_ok() {
            self.books.end(&results);
            results.clear();
        }
        let accepted = self.books.accepted.lock().unwrap().clone();
        assert!(accepted.values().all(|count| *count == 1));
        assert_eq!(accepted, *self.books.ended.lock().unwrap(), "accepted jobs, and results");
        assert_eq!(self.net.armed(), 0, "blocks are left open to peers");
        assert_eq!(self.request(String::new()).unwrap_err().kind, ErrorKind::ShutDown);
    }
}

fn run_engine(threads: usize, mode: ProgressMode, serve: ServeThread) {
    let engine = Engine::start(mode, serve);
    let mut running = Vec::new();
    let mut spawn = |body: Box<dyn FnOnce(&Engine) + Send>| {
        let engine = Arc::clone(&engine);
        running.push(thread::spawn(move || body(&engine)));
    };
    for number in 0..threads {
        spawn(Box::new(move |engine| {
            if let Err(error) = engine.work(number) {
                assert_eq!(error.kind, ErrorKind::ShutDown, "{error}");
            }
        }));
    }
    spawn(Box::new(Engine::collect));
    spawn(Box::new(|engine| {
        for step in 0..8 {
            engine.net.pull(step % PEERS, &format!("theirs-{}", step % 2));
            thread::yield_now();
            if thread_rng().gen_range(0..6) == 0 {
                engine.net.restart(step % PEERS);
            }
        }
    }));
    for _ in 0..thread_rng().gen_range(0..2000) {
        thread::yield_now();
    }
    engine.tier.shut_down();
    running.into_iter().for_each(|thread| thread.join().unwrap());
    engine.check_rest();
}

/// `P2PKV_SHUTTLE_ITERATIONS` executions of each kind, as many as fit `P2PKV_SHUTTLE_SECONDS`.
fn explore(threads: usize, mode: ProgressMode, serve: ServeThread) {
    let number = |name: &str, default: usize| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let iterations = number("P2PKV_SHUTTLE_ITERATIONS", 1000);
    let mut config = Config::new();
    config.max_steps = MaxSteps::FailAfter(2_000_000);
    config.max_time = Some(Duration::from_secs(number("P2PKV_SHUTTLE_SECONDS", 60) as u64));
    config.stack_size = 0x20000;
    let schedulers: [Box<dyn Scheduler + Send>; 2] =
        [Box::new(RandomScheduler::new(iterations / 2)), Box::new(PctScheduler::new(3, iterations / 2))];
    let mut total = 0;
    for scheduler in schedulers {
        let done = Runner::new(scheduler, config.clone()).run(move || run_engine(threads, mode, serve));
        let well = DONE.swap(0, Ordering::Relaxed);
        println!("{threads} threads, {mode:?}: {done} executions, {well} jobs done");
        total += well;
    }
    assert!(total > iterations, "hardly any job ends well: nothing is tested");
}

#[test]
fn a_tier_with_a_thread_of_its_own_keeps_its_books_in_any_order() {
    explore(6, ProgressMode::Thread, ServeThread::Progress);
}

#[test]
fn a_tier_that_its_callers_drive_keeps_its_books_in_any_order() {
    explore(6, ProgressMode::Caller, ServeThread::Caller);
}

#[test]
fn thirty_two_engine_threads_keep_its_books_in_any_order() {
    explore(32, ProgressMode::Thread, ServeThread::Caller);
}
