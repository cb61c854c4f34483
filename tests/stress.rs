//! Everything at once on live tiers for some seconds: random calls from many threads in both progress modes, while one
//! tier is ended and begun anew at its port again and again. What must hold whatever happens is checked all the time.
//!
//! `P2PKV_STRESS_SECONDS` and `P2PKV_STRESS_SEED` change how long and which run; `P2PKV_STRESS_BOUND_MS` the longest that
//! a call may take, for slow machines and sanitizers.
#![allow(clippy::disallowed_methods, reason = "tests wait with bounds")]

mod common;

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use common::{KEY_LEN, eventually, keys, pattern};
use p2pkv::data::Region;
use p2pkv::protocol::config::{Limits, Timeouts};
use p2pkv::protocol::error::ErrorKind;
use p2pkv::protocol::ids::{BlockIndex, JobId, RequestId, ServeId};
use p2pkv::protocol::job::{JobResult, LookupState, Outcome, UnpublishState};
use p2pkv::protocol::keys::KeysView;
use p2pkv::tier::{ProgressMode, RequestOptions, ServeOps, ServeThread, Tier, TierConfig, TransportChoice};

const BLOCK_LEN: usize = 4096;
const WORKERS: usize = 12;
/// Of each worker, on each node: some to publish and store, some to load into.
const SOURCES: u32 = 4;
const DESTINATIONS: u32 = 4;
/// The engine that answers lookups has these keys in blocks that never change.
const SERVED: u64 = 1_000_000;
const SERVED_BLOCKS: u32 = 8;
const BLOCKS: u32 = WORKERS as u32 * (SOURCES + DESTINATIONS) + SERVED_BLOCKS;
/// Few keys, so that workers meet.
const TAGS: u64 = 24;
const CANARY: u64 = 0xCA11_AB1E;
/// A job that takes longer than this has been lost.
const PATIENCE: Duration = Duration::from_secs(20);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

// ---- how long calls take ----

#[derive(Default)]
struct Clocked(Mutex<BTreeMap<&'static str, (u64, Duration)>>);

impl Clocked {
    fn call<T>(&self, name: &'static str, call: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let answer = call();
        let took = began.elapsed();
        let mut table = self.0.lock().unwrap();
        let entry = table.entry(name).or_default();
        entry.0 += 1;
        entry.1 = entry.1.max(took);
        answer
    }
}

// ---- one tier, its memory and its jobs ----

struct Node {
    tier: Arc<Tier>,
    /// Leaked: nothing here may depend on when it goes.
    base: *mut u8,
    jobs: Mutex<Jobs>,
    ended: Condvar,
}

// SAFETY: each block belongs to one worker, or to the library between a call and its result.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

#[derive(Default)]
struct Jobs {
    open: HashSet<u64>,
    results: BTreeMap<u64, JobResult>,
}

impl Node {
    fn new(port: u16, progress: ProgressMode) -> Node {
        let bytes = BLOCKS as usize * BLOCK_LEN;
        let base = Box::leak(vec![0u8; bytes].into_boxed_slice()).as_mut_ptr();
        // SAFETY: leaked.
        let region = unsafe { Region::new(base, BLOCKS, BLOCK_LEN) }.unwrap();
        let tier = Tier::new(TierConfig {
            host: "127.0.0.1".to_owned(),
            advertised_host: None,
            port,
            data_port: 0,
            tcp_streams: 2,
            tcp_congestion: None,
            nixl_backends: Vec::new(),
            nixl_threads: 0,
            region,
            region_file: None,
            same_host: true,
            config_fingerprint: String::new(),
            hash_seed: "seed".to_owned(),
            transport: TransportChoice::Tcp,
            progress,
            spin: Duration::ZERO,
            max_peers: 16,
            limits: Limits::default(),
            timeouts: short_timeouts(),
        })
        .unwrap();
        let node = Node { tier, base, jobs: Mutex::default(), ended: Condvar::new() };
        for block in 0..SERVED_BLOCKS {
            node.fill(served_block(block), SERVED + u64::from(block));
        }
        node
    }

    fn block(&self, block: u32) -> *mut u8 {
        assert!(block < BLOCKS);
        self.base.wrapping_add(block as usize * BLOCK_LEN)
    }

    fn fill(&self, block: u32, tag: u64) {
        // SAFETY: the caller owns the block now, see `Node`.
        pattern(tag, unsafe { std::slice::from_raw_parts_mut(self.block(block), BLOCK_LEN) });
    }

    fn holds(&self, block: u32, tag: u64) -> bool {
        let mut expected = [0; BLOCK_LEN];
        pattern(tag, &mut expected);
        // SAFETY: as in `fill`.
        unsafe { std::slice::from_raw_parts(self.block(block), BLOCK_LEN) == expected }
    }

    /// Before the call: its result may come before the call returns.
    fn open(&self, job: u64) {
        assert!(self.jobs.lock().unwrap().open.insert(job));
    }

    fn refused(&self, job: u64) {
        assert!(self.jobs.lock().unwrap().open.remove(&job), "a refused job {job} had a result");
    }

    fn take_result(&self, result: JobResult) {
        let mut jobs = self.jobs.lock().unwrap();
        assert!(jobs.open.remove(&result.job.0), "a second result, or one of no job: {result:?}");
        jobs.results.insert(result.job.0, result);
        drop(jobs);
        self.ended.notify_all();
    }

    fn result_of(&self, job: u64) -> JobResult {
        let limit = Instant::now() + PATIENCE;
        let mut jobs = self.jobs.lock().unwrap();
        loop {
            if let Some(result) = jobs.results.remove(&job) {
                return result;
            }
            let left = limit.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "job {job} has no result within {PATIENCE:?}");
            jobs = self.ended.wait_timeout(jobs, left).unwrap().0;
        }
    }

    /// Until the tier has ended and all results are here.
    fn collect(&self) {
        let mut results = Vec::new();
        loop {
            let outcome = self.tier.wait_finished(&mut results, 7, Some(Duration::from_millis(200)));
            results.drain(..).for_each(|result| self.take_result(result));
            match outcome {
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::ShutDown, "{error}");
                    // Those that came with the end itself.
                    while self.tier.poll_finished(&mut results, 64).is_ok() {
                        results.drain(..).for_each(|result| self.take_result(result));
                    }
                    if !self.tier.has_pending_work() {
                        return;
                    }
                }
            }
        }
    }
}

fn short_timeouts() -> Timeouts {
    let millis = Duration::from_millis;
    Timeouts {
        handshake: millis(4000),
        redial: millis(500),
        lookup: millis(3000),
        load: millis(3000),
        abort_ack: millis(1000),
        store: millis(2000),
        unbound_store: millis(2000),
        serve: millis(1000),
        lookup_pin: millis(2000),
        fault_drain: millis(2000),
        backoff_max: millis(200),
        ..Timeouts::default()
    }
}

fn served_block(number: u32) -> u32 {
    WORKERS as u32 * (SOURCES + DESTINATIONS) + number
}

// ---- the engine that answers lookups ----

struct Engine {
    node: Mutex<std::sync::Weak<Node>>,
    next_job: AtomicU64,
    contexts: Mutex<HashSet<u64>>,
}

impl Engine {
    fn new() -> Arc<Engine> {
        Arc::new(Engine {
            node: Mutex::default(),
            next_job: AtomicU64::new(1 << 40),
            contexts: Mutex::default(),
        })
    }

    fn served(key: &[u8]) -> Option<u32> {
        (0..SERVED_BLOCKS).find(|block| keys([SERVED + u64::from(*block)]) == key)
    }
}

impl ServeOps for Engine {
    fn new_request(&self, serve: ServeId, _: &str, _: &str) {
        assert!(self.contexts.lock().unwrap().insert(serve.0), "opened twice");
    }

    fn lookup(&self, serve: ServeId, keys: KeysView<'_>, states: &mut [LookupState]) {
        assert!(self.contexts.lock().unwrap().contains(&serve.0), "asked about a context that is not open");
        for (key, state) in keys.iter().zip(states) {
            *state = match Engine::served(key) {
                Some(_)
                    if serve.0.is_multiple_of(3)
                        && !self.next_job.load(Ordering::Relaxed).is_multiple_of(4) =>
                {
                    self.next_job.fetch_add(1, Ordering::Relaxed);
                    LookupState::Pending
                }
                Some(_) => LookupState::Hit,
                None => LookupState::Miss,
            };
        }
    }

    fn create_store_job(
        &self,
        _: ServeId,
        keys: KeysView<'_>,
        blocks: &mut [Option<BlockIndex>],
    ) -> Option<JobId> {
        let node = self.node.lock().unwrap().upgrade()?;
        for (key, block) in keys.iter().zip(blocks) {
            *block = Engine::served(key).map(|number| BlockIndex(served_block(number)));
        }
        let job = self.next_job.fetch_add(1, Ordering::Relaxed);
        node.open(job);
        Some(JobId(job))
    }

    fn request_finished(&self, serve: ServeId) {
        assert!(self.contexts.lock().unwrap().remove(&serve.0), "closed twice, or never opened");
    }
}

// ---- the world ----

struct World {
    nodes: Vec<RwLock<Arc<Node>>>,
    stop: AtomicBool,
    calls: Clocked,
    next: AtomicU64,
    outcomes: Mutex<BTreeMap<String, u64>>,
}

impl World {
    fn node(&self, index: usize) -> Arc<Node> {
        Arc::clone(&self.nodes[index].read().unwrap())
    }

    fn count(&self, what: impl Into<String>) {
        *self.outcomes.lock().unwrap().entry(what.into()).or_default() += 1;
    }
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % limit
    }
}

struct Worker<'w> {
    world: &'w World,
    number: usize,
    rng: Rng,
    /// By node: tags of this worker's source blocks that are published now, and on which life of the node.
    published: Vec<(Arc<Node>, Vec<Option<u64>>)>,
    /// Destinations that were reported: nobody but us may have written into them.
    quiet: Vec<(Arc<Node>, u32)>,
}

impl Worker<'_> {
    fn source(&self, slot: u32) -> u32 {
        self.number as u32 * (SOURCES + DESTINATIONS) + slot
    }

    fn destination(&self, slot: u32) -> u32 {
        self.source(SOURCES + slot)
    }

    fn run(&mut self) {
        while !self.world.stop.load(Ordering::Relaxed) {
            match self.rng.below(10) {
                0..=2 => self.publish_or_not(),
                3..=6 => self.pull(),
                7 | 8 => self.prefill_decode(),
                _ => self.look_around(),
            }
            self.check_quiet();
        }
        for index in 0..self.published.len() {
            (0..SOURCES as usize).for_each(|slot| self.unpublish(index, slot));
        }
        self.check_quiet();
    }

    fn check_quiet(&mut self) {
        for (node, block) in self.quiet.drain(..) {
            assert!(node.holds(block, CANARY), "a write landed in block {block} after its load was reported");
        }
    }

    /// Forgets what was published on an earlier life of the node.
    fn present(&mut self, index: usize) -> Arc<Node> {
        let node = self.world.node(index);
        if !Arc::ptr_eq(&self.published[index].0, &node) {
            self.published[index] = (Arc::clone(&node), vec![None; SOURCES as usize]);
        }
        node
    }

    fn publish_or_not(&mut self) {
        let index = self.rng.below(self.published.len() as u64) as usize;
        let slot = self.rng.below(u64::from(SOURCES)) as usize;
        let node = self.present(index);
        if self.published[index].1[slot].is_some() {
            return self.unpublish(index, slot);
        }
        let tag = self.rng.below(TAGS);
        let block = self.source(slot as u32);
        node.fill(block, tag);
        let key = keys([tag]);
        let done = self
            .world
            .calls
            .call("publish", || node.tier.publish(KeysView::new(&key, KEY_LEN).unwrap(), &[block]));
        match done {
            Ok(()) => self.published[index].1[slot] = Some(tag),
            Err(error) => {
                assert!(matches!(error.kind, ErrorKind::AlreadyExists | ErrorKind::ShutDown), "{error}");
            }
        }
    }

    fn unpublish(&mut self, index: usize, slot: usize) {
        let (node, tags) = &self.published[index];
        let Some(tag) = tags[slot] else { return };
        let key = keys([tag]);
        let mut states = [UnpublishState::NotFound];
        let limit = Instant::now() + PATIENCE;
        loop {
            let done = self.world.calls.call("unpublish", || {
                node.tier.unpublish(KeysView::new(&key, KEY_LEN).unwrap(), &mut states)
            });
            match done {
                Ok(true) => {
                    // Not pinned, so nobody reads it any more: a pull that gets these bytes is caught.
                    node.fill(self.source(slot as u32), CANARY ^ 1);
                    break;
                }
                Ok(false) => {
                    assert!(Instant::now() < limit, "pinned for {PATIENCE:?}");
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) => {
                    // It is still published, and served until the tier has ended.
                    return assert_eq!(error.kind, ErrorKind::ShutDown, "{error}");
                }
            }
        }
        self.published[index].1[slot] = None;
    }

    fn two_nodes(&mut self) -> (Arc<Node>, Arc<Node>) {
        let count = self.published.len() as u64;
        let home = self.rng.below(count);
        let other = (home + 1 + self.rng.below(count - 1)) % count;
        (self.present(home as usize), self.present(other as usize))
    }

    fn id(&self) -> String {
        format!("r{}", self.world.next.fetch_add(1, Ordering::Relaxed))
    }

    fn request(&self, node: &Node, params: String) -> Option<RequestId> {
        let options = RequestOptions { kv_transfer_params_json: params, ..RequestOptions::default() };
        match self.world.calls.call("request_new", || node.tier.request_new(&options)) {
            Ok(request) => Some(request),
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::ShutDown, "{error}");
                None
            }
        }
    }

    fn finish(&self, node: &Node, request: RequestId) {
        if let Err(error) = self.world.calls.call("request_finish", || node.tier.request_finish(request)) {
            // It may have been finished early.
            assert!(matches!(error.kind, ErrorKind::ShutDown | ErrorKind::NotFound), "{error}");
        }
    }

    fn job(&self) -> u64 {
        self.world.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Looks keys up, loads the hits, checks what arrived.
    fn pull(&mut self) {
        let (home, other) = self.two_nodes();
        let Some(request) = self.request(&home, source("remote_kv_source", &self.id(), &other)) else {
            return;
        };
        let asked: Vec<u64> = (0..6)
            .map(|_| match self.rng.below(4) {
                0 => SERVED + self.rng.below(u64::from(SERVED_BLOCKS)),
                _ => self.rng.below(TAGS),
            })
            .collect::<HashSet<_>>()
            .into_iter()
            .collect();
        let hits = self.hits(&home, request, &asked);
        let tags: Vec<u64> = hits.into_iter().take(DESTINATIONS as usize).collect();
        if !tags.is_empty() && self.rng.below(8) > 0 {
            self.load(&home, request, &tags);
        }
        self.finish(&home, request);
    }

    fn hits(&mut self, home: &Node, request: RequestId, asked: &[u64]) -> Vec<u64> {
        let packed = keys(asked.iter().copied());
        let view = KeysView::new(&packed, KEY_LEN).unwrap();
        let mut states = vec![LookupState::Retry; asked.len()];
        let look = |states: &mut [LookupState]| {
            self.world.calls.call("lookup", || home.tier.lookup(request, view, states))
        };
        if look(&mut states).is_err() || home.tier.wait_lookups(request, Some(PATIENCE)).is_err() {
            return Vec::new();
        }
        if look(&mut states).is_err() {
            return Vec::new();
        }
        assert!(!states.contains(&LookupState::Retry), "not answered within {PATIENCE:?}: {states:?}");
        self.world.count(if states.contains(&LookupState::Hit) {
            "looked up: hits"
        } else {
            "looked up: none"
        });
        let hit = |(tag, state): (&u64, &LookupState)| (*state == LookupState::Hit).then_some(*tag);
        asked.iter().zip(&states).filter_map(hit).collect()
    }

    fn load(&mut self, home: &Arc<Node>, request: RequestId, tags: &[u64]) {
        let blocks: Vec<u32> = (0..tags.len() as u32).map(|slot| self.destination(slot)).collect();
        blocks.iter().for_each(|block| home.fill(*block, CANARY));
        let (job, packed) = (self.job(), keys(tags.iter().copied()));
        home.open(job);
        let submitted = self.world.calls.call("submit_load", || {
            home.tier.submit_load(request, JobId(job), KeysView::new(&packed, KEY_LEN).unwrap(), &blocks)
        });
        if let Err(error) = submitted {
            home.refused(job);
            assert!(matches!(error.kind, ErrorKind::ShutDown | ErrorKind::NotAHit), "{error}");
            return;
        }
        if self.rng.below(6) == 0 {
            self.finish(home, request);
        }
        self.check_load(home, job, tags, &blocks);
    }

    fn check_load(&mut self, home: &Arc<Node>, job: u64, tags: &[u64], blocks: &[u32]) {
        let result = home.result_of(job);
        self.world.count(format!("load: {}", result.outcome.name()));
        assert_eq!(result.flags, p2pkv::protocol::job::JobFlags::default(), "{result:?}");
        for (tag, block) in tags.iter().zip(blocks) {
            if result.outcome == Outcome::Done {
                let found = || {
                    let known = (0..TAGS).chain([CANARY, CANARY ^ 1]);
                    known.chain(tags.iter().copied()).find(|tag| home.holds(*block, *tag))
                };
                assert!(
                    home.holds(*block, *tag),
                    "block {block} has the bytes of {:?}, not those of key {tag}: {result:?}",
                    found()
                );
            }
            home.fill(*block, CANARY);
            self.quiet.push((Arc::clone(home), *block));
        }
    }

    /// Both sides of one PD request, with everything that an engine may do in between.
    fn prefill_decode(&mut self) {
        let (decoder, prefiller) = self.two_nodes();
        let id = self.id();
        let Some(serve) =
            self.request(&prefiller, format!(r#"{{"remote_decoder":{{"kv_request_id":"{id}"}}}}"#))
        else {
            return;
        };
        let Some(pull) = self.request(&decoder, source("remote_prefiller", &id, &prefiller)) else {
            return self.finish(&prefiller, serve);
        };
        let index = (0..self.published.len())
            .find(|index| Arc::ptr_eq(&self.published[*index].0, &prefiller))
            .unwrap();
        let free: Vec<u32> =
            (0..SOURCES).filter(|slot| self.published[index].1[*slot as usize].is_none()).collect();
        // Keys that no directory has.
        let tags: Vec<u64> = free.iter().map(|_| (1 << 32) + self.job()).collect();
        let sources: Vec<u32> = free.iter().map(|slot| self.source(*slot)).collect();
        if tags.is_empty() {
            self.finish(&decoder, pull);
            return self.finish(&prefiller, serve);
        }
        sources.iter().zip(&tags).for_each(|(block, tag)| prefiller.fill(*block, *tag));
        let store_first = self.rng.below(2) == 0;
        let skip_store = self.rng.below(6) == 0;
        let mut store = None;
        if store_first && !skip_store {
            store = self.store(&prefiller, serve, &tags, &sources);
        }
        let blocks: Vec<u32> = (0..tags.len() as u32).map(|slot| self.destination(slot)).collect();
        blocks.iter().for_each(|block| decoder.fill(*block, CANARY));
        let (job, packed) = (self.job(), keys(tags.iter().copied()));
        decoder.open(job);
        let submitted = self.world.calls.call("submit_load", || {
            decoder.tier.submit_load(pull, JobId(job), KeysView::new(&packed, KEY_LEN).unwrap(), &blocks)
        });
        let loading = submitted.map_err(|_| decoder.refused(job)).is_ok();
        if self.rng.below(6) == 0 {
            self.finish(&decoder, pull);
        }
        if !store_first && !skip_store {
            store = self.store(&prefiller, serve, &tags, &sources);
        }
        self.finish(&prefiller, serve);
        if loading {
            self.check_load(&decoder, job, &tags, &blocks);
        }
        if let Some(store) = store {
            let result = prefiller.result_of(store);
            self.world.count(format!("store: {}", result.outcome.name()));
            // Reported, so not read any more.
            sources.iter().for_each(|block| prefiller.fill(*block, CANARY ^ 1));
        }
        self.finish(&decoder, pull);
    }

    fn store(&self, node: &Node, request: RequestId, tags: &[u64], blocks: &[u32]) -> Option<u64> {
        let (job, packed) = (self.job(), keys(tags.iter().copied()));
        node.open(job);
        let submitted = self.world.calls.call("submit_store", || {
            node.tier.submit_store(request, JobId(job), KeysView::new(&packed, KEY_LEN).unwrap(), blocks)
        });
        submitted.map_err(|_| node.refused(job)).ok().map(|()| job)
    }

    fn look_around(&mut self) {
        let node = self.two_nodes().0;
        let calls = &self.world.calls;
        let _ = calls.call("stats", || node.tier.stats());
        let _ = calls.call("peers", || node.tier.peers());
        let _ = calls.call("flush_lookups", || node.tier.flush_lookups());
        calls.call("has_pending_work", || node.tier.has_pending_work());
    }
}

fn source(role: &str, id: &str, of: &Node) -> String {
    let peer = of.tier.local_id();
    format!(
        r#"{{"{role}":{{"kv_request_id":"{id}","remote_host":"{}","remote_port":{}}}}}"#,
        peer.host(),
        peer.port()
    )
}

/// Serves, and ends and begins the last node again and again.
fn run_engines(world: &World, engine: &Engine) {
    while !world.stop.load(Ordering::Relaxed) {
        world.calls.call("serve", || world.node(0).tier.serve().unwrap());
        thread::sleep(Duration::from_millis(1));
    }
    // Until every peer's lookup is answered.
    let node = world.node(0);
    eventually("all contexts are closed", || {
        node.tier.serve().unwrap();
        engine.contexts.lock().unwrap().is_empty()
    });
}

fn run_deaths<'scope, 'env>(scope: &'scope thread::Scope<'scope, 'env>, world: &'scope World) {
    let last = world.nodes.len() - 1;
    while !world.stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(1200));
        let old = world.node(last);
        old.tier.shut_down();
        let new = Arc::new(Node::new(old.tier.local_id().port(), ProgressMode::Thread));
        *world.nodes[last].write().unwrap() = Arc::clone(&new);
        world.count("deaths");
        scope.spawn(move || new.collect());
        eventually("every job of the ended tier has its result", || old.jobs.lock().unwrap().open.is_empty());
    }
}

fn quiet(node: &Node) -> bool {
    let stats = node.tier.stats().unwrap();
    let levels = [
        stats.requests,
        stats.loads_live,
        stats.stores_live,
        stats.stores_parked,
        stats.keys_published,
        stats.blocks_pinned,
        stats.results_queued,
    ];
    levels == [0; 7] && node.jobs.lock().unwrap().open.is_empty() && !node.tier.has_pending_work()
}

/// The first check that fails, or panic of the library, on whichever thread, ends the run.
fn fail_at_once() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::exit(101);
    }));
}

fn count_entries(directory: &str) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

#[test]
fn everything_at_once_keeps_every_promise() {
    fail_at_once();
    let (fds, threads) = (count_entries("/proc/self/fd"), count_entries("/proc/self/task"));
    let modes = [ProgressMode::Thread, ProgressMode::Caller, ProgressMode::Thread];
    let nodes: Vec<_> = modes.map(|mode| RwLock::new(Arc::new(Node::new(0, mode)))).into();
    let world = World {
        nodes,
        stop: AtomicBool::new(false),
        calls: Clocked::default(),
        next: AtomicU64::new(1),
        outcomes: Mutex::default(),
    };
    let engines = [Engine::new(), Engine::new()];
    for (index, thread) in [ServeThread::Caller, ServeThread::Progress].into_iter().enumerate() {
        let node = world.node(index);
        *engines[index].node.lock().unwrap() = Arc::downgrade(&node);
        let ops: Arc<dyn ServeOps> = Arc::<Engine>::clone(&engines[index]);
        node.tier.set_serve_ops(Some(ops), thread).unwrap();
    }
    run(&world, &engines);
    judge(&world);
    drop((world, engines));
    eventually("descriptors and threads are as before", || {
        (count_entries("/proc/self/fd"), count_entries("/proc/self/task")) == (fds, threads)
    });
}

fn run(world: &World, engines: &[Arc<Engine>]) {
    let seed = setting("P2PKV_STRESS_SEED", 0x5EED);
    let count = world.nodes.len();
    thread::scope(|scope| {
        for index in 0..count {
            let node = world.node(index);
            scope.spawn(move || node.collect());
        }
        // Two that wait for the same results, in both modes.
        for index in 0..2 {
            let node = world.node(index);
            scope.spawn(move || node.collect());
        }
        scope.spawn(|| run_engines(world, &engines[0]));
        let deaths = scope.spawn(move || run_deaths(scope, world));
        let workers: Vec<_> = (0..WORKERS)
            .map(|number| {
                let rng = Rng((seed + number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
                let lives = |index| (world.node(index), vec![None; SOURCES as usize]);
                let published = (0..count).map(lives).collect();
                scope.spawn(move || Worker { world, number, rng, published, quiet: Vec::new() }.run())
            })
            .collect();
        thread::sleep(Duration::from_secs(setting("P2PKV_STRESS_SECONDS", 8)));
        world.stop.store(true, Ordering::Relaxed);
        for worker in workers.into_iter().chain([deaths]) {
            worker.join().unwrap();
        }
        for index in 0..count {
            let node = world.node(index);
            eventually("nothing is left in the tables", || quiet(&node));
        }
        for engine in engines {
            eventually("every context is closed", || engine.contexts.lock().unwrap().is_empty());
        }
        (0..count).for_each(|index| world.node(index).tier.shut_down());
    });
}

fn judge(world: &World) {
    println!("outcomes: {:#?}", world.outcomes.lock().unwrap());
    let calls = world.calls.0.lock().unwrap();
    println!("calls, how many and the longest: {calls:#?}");
    let bound = Duration::from_millis(setting("P2PKV_STRESS_BOUND_MS", 250));
    for (name, (_, longest)) in calls.iter() {
        assert!(*longest < bound, "{name} took {longest:?}, more than {bound:?}");
    }
    for outcome in ["load: DONE", "store: DONE", "deaths"] {
        assert!(world.outcomes.lock().unwrap().contains_key(outcome), "nothing came of it: {outcome}");
    }
}
