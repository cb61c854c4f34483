//! The live tier: owns the core and the transports, one lock, the progress thread, the results.
//!
//! One lock guards the core and the sending half of the control plane; it is held for one input at a time and never
//! across a wait, a callback or the decoding of a message.

#[cfg_attr(p2pkv_shuttle, path = "model/clock.rs")]
mod clock;
mod core;
mod lock;
mod metrics;
#[cfg(p2pkv_shuttle)]
mod model;
mod os_error;
mod planes;
#[cfg_attr(p2pkv_shuttle, path = "model/poller.rs")]
mod poller;
mod progress;
mod results;
mod serve;
mod start;
mod sync;

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::control::ControlReceiver;
use crate::data::Region;
use crate::data::same_host::RegionFile;
use crate::protocol::config::{Limits, Timeouts};
use crate::protocol::error::{Error, ErrorKind, Result};
use crate::protocol::ids::{BlockIndex, JobId, PeerId, RequestId, ServeId};
use crate::protocol::job::{JobResult, LookupState, OffloadPolicy, Outcome, Stats, UnpublishState};
use crate::protocol::keys::KeysView;
pub use crate::protocol::manager::PeerSummary;
use crate::protocol::manager::{Manager, RequestTimeouts, ServeMode};
use crate::protocol::params;
use crate::protocol::timer::Timestamp;

use self::clock::Clock;
use self::core::Core;
use self::lock::{Guard, Lock};
use self::poller::Poller;
use self::progress::LONGEST_SLEEP;
use self::results::ResultQueue;
use self::serve::Serving;
use self::sync::{AtomicBool, AtomicU64, Condvar, JoinHandle, Mutex};

pub(crate) use self::lock::{is_held as holds_lock, once_unlocked};

/// Who advances the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressMode {
    /// A thread of the tier's own.
    Thread,
    /// Whoever calls [`Tier::poll_finished`] or [`Tier::wait_finished`].
    Caller,
}

/// Which data transports may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportChoice {
    Auto,
    Tcp,
    Nixl,
}

/// Everything a tier is made from. Zero-like values have been replaced by defaults before.
#[derive(Clone, Debug)]
pub struct TierConfig {
    pub host: String,
    pub advertised_host: Option<String>,
    /// 0 = any free port.
    pub port: u16,
    pub data_port: u16,
    pub tcp_streams: usize,
    pub tcp_congestion: Option<String>,
    /// NIXL plug-ins to use.
    pub nixl_backends: Vec<String>,
    /// Threads of NIXL's own that share a large transfer. 0 = none.
    pub nixl_threads: usize,
    pub region: Region,
    /// What the region is a mapping of, if peers on this host may map it.
    pub region_file: Option<RegionFile>,
    /// Whether peers on this host are to copy from memory to memory.
    pub same_host: bool,
    /// 16 hex digits or empty.
    pub config_fingerprint: String,
    pub hash_seed: String,
    pub transport: TransportChoice,
    pub progress: ProgressMode,
    /// How long the progress thread looks for news before it sleeps.
    pub spin: Duration,
    pub max_peers: usize,
    pub limits: Limits,
    pub timeouts: Timeouts,
}

/// What one request may ask for beyond its roles.
#[derive(Clone, Debug, Default)]
pub struct RequestOptions {
    pub kv_transfer_params_json: String,
    /// `None` = the tier's.
    pub load_timeout: Option<Duration>,
    pub lookup_timeout: Option<Duration>,
    pub store_timeout: Option<Duration>,
}

/// What an engine answers to peers' lookups. Called without any lock of the tier held.
pub trait ServeOps: Send + Sync {
    fn new_request(&self, serve: ServeId, kv_request_id: &str, peer: &str);
    /// `states` has one entry for each key, set to `Miss` before the call.
    fn lookup(&self, serve: ServeId, keys: KeysView<'_>, states: &mut [LookupState]);
    /// Pins the blocks of keys that were hits. `None` in `blocks` = cannot be served after all. `None` as the
    /// result: nothing was pinned, all are misses.
    fn create_store_job(
        &self,
        serve: ServeId,
        keys: KeysView<'_>,
        blocks: &mut [Option<BlockIndex>],
    ) -> Option<JobId>;
    fn request_finished(&self, serve: ServeId);
}

/// On which thread [`ServeOps`] are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeThread {
    /// The one that calls [`Tier::serve`].
    Caller,
    Progress,
}

/// `free` waits so long for transfers and loads to end by themselves.
const DRAIN: Duration = Duration::from_secs(3);

/// And so long, after all sessions were ended, for their last messages to leave.
const FAREWELL: Duration = Duration::from_millis(500);

/// A running tier. Every method may be called from any thread.
pub struct Tier {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    local_id: PeerId,
    limits: Limits,
    mode: ProgressMode,
    spin: Duration,
    clock: Clock,
    core: Lock<Core>,
    /// Something may have changed that a waiter with the core's lock waits for.
    changed: Condvar,
    /// `None` once the tier has ended.
    receiver: Lock<Option<Box<dyn ControlReceiver>>>,
    results: ResultQueue,
    poller: Poller,
    serving: Mutex<Option<Serving>>,
    /// Held while the engine is asked: its callbacks are never called twice at a time.
    serve_turn: Lock<()>,
    /// When whoever makes progress wakes by itself. Written under the core's lock.
    sleeps_until: AtomicU64,
    /// The engine left lookups open, to be asked about again.
    serves_again: AtomicBool,
    /// Messages that were taken in since the inbox was empty, or deadlines were judged.
    taken: AtomicU64,
    /// Messages that the receiver has dropped, as far as they were counted.
    dropped: AtomicU64,
    closing: AtomicBool,
    stop: AtomicBool,
    broken: AtomicBool,
}

impl Shared {
    fn check(&self) -> Result<()> {
        if self.broken.load(Ordering::Acquire) {
            return Err(poisoned());
        }
        if self.closing.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::ShutDown, format!("tier {} is being freed", self.local_id)));
        }
        Ok(())
    }

    /// One engine call: the core's answer, and what follows from it carried out.
    fn call<T>(&self, call: impl FnOnce(&mut Manager, Timestamp) -> Result<T>) -> Result<T> {
        self.check()?;
        let _alarm = Alarm(self);
        let mut core = self.core.lock().map_err(|_| poisoned())?;
        let now = self.clock.now();
        let answer = call(&mut core.manager, now);
        core.execute(now);
        self.leave(core);
        answer
    }

    /// Hands results to the engine, lets the lock go, and wakes the sleeper if something is due before it wakes anyway.
    fn leave(&self, mut core: Guard<'_, Core>) {
        // What others are told, they are told before the lock is open: a job is at any time open in the core or in the
        // queue, and no older state of affairs overwrites a newer one.
        self.results.push(core.finished.drain(..));
        self.results.set_serve_news(core.manager.has_serve_news() && self.serves_on(ServeThread::Caller));
        let deadline = core.next_deadline().map_or(u64::MAX, Timestamp::as_nanos);
        let before = self.sleeps_until.swap(deadline, Ordering::AcqRel);
        // The set tells of each arrival once; of a deadline that has passed it has perhaps told.
        let is_new = deadline != before || Timestamp::from_nanos(deadline) <= self.clock.now();
        if self.mode == ProgressMode::Caller && is_new {
            let deadline = Timestamp::from_nanos(deadline);
            let is_set = deadline.as_nanos() < u64::MAX;
            self.poller.set_deadline(is_set.then(|| deadline.since(self.clock.now())));
        }
        drop(core);
        let earlier = deadline < before && Timestamp::from_nanos(deadline) < self.clock.now() + LONGEST_SLEEP;
        if self.mode == ProgressMode::Thread && earlier {
            self.poller.wake();
        }
    }

    /// Waits until `done`, at most until `deadline`; makes the progress itself where no thread does. False if time ran out.
    fn wait_until(&self, deadline: Option<Timestamp>, mut done: impl FnMut(&Core) -> bool) -> Result<bool> {
        loop {
            if self.mode == ProgressMode::Caller {
                self.progress();
            }
            let core = self.core.lock().map_err(|_| poisoned())?;
            if done(&core) {
                return Ok(true);
            }
            if self.broken.load(Ordering::Acquire) {
                return Err(poisoned());
            }
            let left = match deadline.map(|deadline| self.clock.left(deadline)) {
                None => LOOK_AGAIN,
                Some(Some(left)) => left.min(LOOK_AGAIN),
                Some(None) => return Ok(false),
            };
            match self.mode {
                ProgressMode::Thread => core.wait(&self.changed, left),
                ProgressMode::Caller => {
                    drop(core);
                    self.sleep(Some(left));
                }
            }
        }
    }

    /// Ends the transports: from here on nothing reads or writes the region or holds a port, whoever still holds the
    /// tier. Every job that is open yet gets its result.
    fn close_transports(&self) {
        drop(self.receiver.lock_even_if_poisoned().take());
        let transports = self.core.lock_even_if_poisoned().take_transports();
        drop(transports);
        if let Ok(mut core) = self.core.lock() {
            core.end_all(self.clock.now());
            self.leave(core);
        }
        self.end_waits();
    }

    /// Nobody waits for results any more.
    fn end_waits(&self) {
        self.results.close();
        self.changed.notify_all();
        self.poller.wake();
    }

    fn break_down(&self) {
        self.broken.store(true, Ordering::Release);
        self.end_waits();
    }
}

/// Tells the other threads of a panic in this one's call, since that leaves the core half done.
struct Alarm<'a>(&'a Shared);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.break_down();
        }
    }
}

/// The last thing that the end of a tier does, on every way out of it.
struct CloseTransports<'a>(&'a Shared);

impl Drop for CloseTransports<'_> {
    fn drop(&mut self) {
        self.0.close_transports();
    }
}

/// Waiters look again so often even if nobody tells them to: the change may have come between the look and the wait, or
/// the thread that made the progress for all may have left.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

fn poisoned() -> Error {
    Error::new(ErrorKind::Poisoned, "a panic was caught in this tier earlier; only freeing it is left")
}

impl Tier {
    /// Binds both planes and begins to answer peers.
    ///
    /// # Errors
    /// The address cannot be bound, the transport is not available, or the operating system refused something.
    pub fn new(config: TierConfig) -> Result<Arc<Tier>> {
        start::tier(config).map(Arc::new)
    }

    /// Ends the tier: no new work, a bounded drain, then force; about 4 s at most. Jobs that are still open end with
    /// `SHUT_DOWN` in the result queue, which can still be polled; every other call gives `ShutDown` from now on. When this
    /// returns, nothing touches the region any more and the ports are free. A second call does nothing.
    ///
    /// Not from a [`ServeOps`] call.
    pub fn shut_down(&self) {
        let shared = &self.shared;
        if shared.closing.swap(true, Ordering::AcqRel) {
            return;
        }
        if serve::is_in_callback() {
            // Nothing may be waited for here that waits for this callback: the tier ends behind it, and lets its region and
            // ports go when its thread does.
            log::error!(
                "tier {}: ended from one of its serve ops; its jobs end without results",
                shared.local_id
            );
            shared.stop.store(true, Ordering::Release);
            return shared.end_waits();
        }
        // Also when something here panics: whoever holds the tier still, no socket and no region stays in use.
        let _close = CloseTransports(shared);
        let quiet = |core: &Core| !core.manager.has_transfers_or_loads();
        let drained = shared.wait_until(shared.clock.deadline(Some(DRAIN)), quiet);
        if matches!(drained, Ok(false)) {
            log::warn!(
                "tier {}: transfers or loads are still under way after {DRAIN:?}, ending them",
                shared.local_id
            );
        }
        if let Ok(mut core) = shared.core.lock() {
            let now = shared.clock.now();
            core.manager.shut_down(now);
            core.execute(now);
            shared.leave(core);
        }
        let gone = |core: &Core| core.manager.sessions_open() == 0 && core.open_connections() == 0;
        // Whatever has not left by then is closed with the sockets.
        let _ = shared.wait_until(shared.clock.deadline(Some(FAREWELL)), gone);
        shared.stop.store(true, Ordering::Release);
        shared.poller.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the thread was caught and logged by itself.
            let _ = thread.join();
        }
        let serving = shared.serving().take();
        shared.close_contexts(serving.as_ref());
    }

    /// Waits until no transfer is under way and no load is open; nothing is aborted. False if `timeout` came first
    /// (`None` = no limit).
    pub fn drain(&self, timeout: Option<Duration>) -> Result<bool> {
        serve::refuse_in_callback("to wait until the tier is quiet")?;
        self.shared.check()?;
        self.shared
            .wait_until(self.shared.clock.deadline(timeout), |core| !core.manager.has_transfers_or_loads())
    }

    /// With a progress thread: readable while results are queued, or while peers' lookups wait for [`Tier::serve`].
    /// In caller mode: readable also when [`Tier::poll_finished`] has anything to do.
    #[must_use]
    pub fn event_fd(&self) -> RawFd {
        match self.shared.mode {
            ProgressMode::Thread => self.shared.results.fd(),
            ProgressMode::Caller => self.shared.poller.fd(),
        }
    }

    #[must_use]
    pub fn local_id(&self) -> &PeerId {
        &self.shared.local_id
    }

    /// A panic was caught in the tier's own threads.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.shared.broken.load(Ordering::Acquire) || self.shared.core.is_poisoned()
    }

    #[must_use]
    pub fn has_pending_work(&self) -> bool {
        let open = self.shared.core.lock().is_ok_and(|core| core.manager.has_pending_work());
        open || self.shared.results.len() > 0
    }

    pub fn request_new(&self, options: &RequestOptions) -> Result<RequestId> {
        self.shared.check()?;
        let roles = params::parse(&options.kv_transfer_params_json, self.shared.limits.id_len)?;
        let timeouts = RequestTimeouts {
            load: options.load_timeout,
            lookup: options.lookup_timeout,
            store: options.store_timeout,
        };
        self.shared.call(|manager, now| manager.request_new(now, roles, timeouts))
    }

    /// Deadlines of the jobs that are submitted from now on; `None` = the tier's.
    pub fn set_job_timeouts(
        &self,
        request: RequestId,
        load: Option<Duration>,
        store: Option<Duration>,
    ) -> Result<()> {
        self.shared.call(|manager, _| manager.set_job_timeouts(request, load, store))
    }

    pub fn offload_policy(&self, request: RequestId) -> Result<OffloadPolicy> {
        self.shared.call(|manager, _| manager.offload_policy(request))
    }

    /// Why the request's lookups are misses and its loads fail: outcome and text. `None` while its peer is usable, or
    /// if it has none.
    pub fn request_failure(&self, request: RequestId) -> Result<Option<(Outcome, String)>> {
        let failure = self.shared.call(|manager, _| manager.request_failure(request))?;
        Ok(failure.map(|cause| (cause.outcome, cause.detail)))
    }

    pub fn request_finish(&self, request: RequestId) -> Result<()> {
        self.shared.call(|manager, now| manager.request_finish(now, request))
    }

    /// What is known of each key at the request's peer; unknown keys are registered for the next flush.
    pub fn lookup(&self, request: RequestId, keys: KeysView<'_>, states: &mut [LookupState]) -> Result<()> {
        self.shared.call(|manager, now| manager.lookup(now, request, keys, states))
    }

    pub fn flush_lookups(&self) -> Result<()> {
        self.shared.call(|manager, now| manager.flush_lookups(now))
    }

    /// Flushes, then waits until no lookup of the request is open. False if `timeout` came first.
    pub fn wait_lookups(&self, request: RequestId, timeout: Option<Duration>) -> Result<bool> {
        serve::refuse_in_callback("to wait for lookups")?;
        self.flush_lookups()?;
        self.shared.call(|manager, _| manager.has_open_lookups(request))?;
        let answered = |core: &Core| !core.manager.has_open_lookups(request).unwrap_or(false);
        self.shared.wait_until(self.shared.clock.deadline(timeout), answered)
    }

    pub fn submit_load(
        &self,
        request: RequestId,
        job: JobId,
        keys: KeysView<'_>,
        blocks: &[u32],
    ) -> Result<()> {
        let blocks = indexes(blocks);
        self.shared.call(|manager, now| manager.submit_load(now, request, job, keys, &blocks))
    }

    pub fn submit_store(
        &self,
        request: RequestId,
        job: JobId,
        keys: KeysView<'_>,
        blocks: &[u32],
    ) -> Result<()> {
        let blocks = indexes(blocks);
        self.shared.call(|manager, now| manager.submit_store(now, request, job, keys, &blocks))
    }

    /// Appends up to `capacity` results to `out`. In caller mode this is what makes progress.
    pub fn poll_finished(&self, out: &mut Vec<JobResult>, capacity: usize) -> Result<()> {
        let shared = &self.shared;
        let usable = shared.check();
        if usable.is_ok() && shared.mode == ProgressMode::Caller {
            // Takes the news out of the set; what they are about is looked at next.
            shared.poller.wait(Some(Duration::ZERO));
            shared.progress();
        }
        // Results outlive the tier's end.
        if self.take_results(out, capacity) { Ok(()) } else { usable }
    }

    /// As [`Tier::poll_finished`], but waits for the first result. False if `timeout` came first (`None` = no limit).
    pub fn wait_finished(
        &self,
        out: &mut Vec<JobResult>,
        capacity: usize,
        timeout: Option<Duration>,
    ) -> Result<bool> {
        serve::refuse_in_callback("to wait for results")?;
        let shared = &self.shared;
        if self.take_results(out, capacity) {
            return Ok(true);
        }
        shared.check()?;
        let deadline = shared.clock.deadline(timeout);
        let mut arrived = false;
        match shared.mode {
            ProgressMode::Thread => arrived = shared.results.wait(&shared.clock, deadline, out, capacity),
            ProgressMode::Caller => {
                shared.wait_until(deadline, |_| {
                    arrived = self.take_results(out, capacity);
                    arrived || shared.results.is_closed()
                })?;
            }
        }
        if !arrived {
            shared.check()?;
        }
        Ok(arrived)
    }

    /// False if there is none.
    fn take_results(&self, out: &mut Vec<JobResult>, capacity: usize) -> bool {
        let shared = &self.shared;
        let any = shared.results.take(out, capacity);
        if any && shared.mode == ProgressMode::Caller && shared.results.len() > 0 {
            // The set tells of each arrival once; what is left has to be told of again.
            shared.poller.wake();
        }
        any
    }

    pub fn publish(&self, keys: KeysView<'_>, blocks: &[u32]) -> Result<()> {
        let blocks = indexes(blocks);
        self.shared.call(|manager, now| manager.publish(now, keys, &blocks))
    }

    /// All of the keys are taken out, or none: then one of them is pinned, `states` says which, and `false` is returned.
    pub fn unpublish(&self, keys: KeysView<'_>, states: &mut [UnpublishState]) -> Result<bool> {
        self.shared.call(|manager, _| manager.unpublish(keys, states))
    }

    /// Calls the engine's [`ServeOps`] on this thread for every lookup that waits for it. Does nothing where the ops
    /// belong to the progress thread.
    pub fn serve(&self) -> Result<()> {
        self.shared.check()?;
        if self.shared.serves_on(ServeThread::Caller) {
            self.shared.serve();
        }
        self.shared.check()
    }

    /// Who answers lookups that the block directory cannot; `None` = they are misses. Waits for a call of the ops of before
    /// that is running; what they have left open becomes a miss, and they hear of the end of each context.
    pub fn set_serve_ops(&self, ops: Option<Arc<dyn ServeOps>>, thread: ServeThread) -> Result<()> {
        serve::refuse_in_callback("to set serve ops")?;
        let shared = &self.shared;
        let set_mode = |mode| {
            shared.call(|manager, now| {
                manager.set_serve_mode(now, mode);
                Ok(())
            })
        };
        let turn = shared.serve_turn.lock_even_if_poisoned();
        // Also between two ops: those that come have not heard of the contexts of those that go.
        set_mode(ServeMode::DirectoryOnly)?;
        while shared.call(|manager, _| Ok(manager.is_settling()))? {
            shared.core.give_way();
            shared.call(|manager, now| {
                manager.handle_timeout(now);
                Ok(())
            })?;
        }
        let mode = if ops.is_some() { ServeMode::Engine } else { ServeMode::DirectoryOnly };
        let serving = ops.map(|ops| Serving { ops, thread });
        let before = std::mem::replace(&mut *shared.serving(), serving);
        if let Some(before) = &before {
            shared.tell_closed(&*before.ops);
        }
        let outcome = set_mode(mode);
        drop(turn);
        outcome
    }

    pub fn peers(&self) -> Result<Vec<PeerSummary>> {
        self.shared.call(|manager, now| Ok(manager.peers(now)))
    }

    pub fn stats(&self) -> Result<Stats> {
        let stats = self.shared.call(|manager, _| Ok(manager.stats()))?;
        Ok(Stats { results_queued: self.shared.results.len() as u64, ..stats })
    }

    /// What `stats` and `peers` tell, as OpenMetrics text.
    pub fn metrics_text(&self) -> Result<String> {
        let (stats, peers) = (self.stats()?, self.peers()?);
        metrics::text(self.shared.local_id.as_str(), stats, peers)
            .map_err(|error| Error::new(ErrorKind::Os, format!("metrics cannot be written: {error}")))
    }
}

impl Drop for Tier {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn indexes(blocks: &[u32]) -> Vec<BlockIndex> {
    blocks.iter().copied().map(BlockIndex).collect()
}
