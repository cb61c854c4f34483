//! What sessions and roles share while one input is handled: the time, the rules, and where outputs go.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use foldhash::quality::FixedState;
use hashbrown::HashMap;

use super::block_set::BlockSet;
use super::config::CoreConfig;
use super::directory::Directory;
use super::ids::{JobId, KvRequestId, LoadToken, RoundSeq, ServeId, SessionId, TransferId};
use super::job::{JobFlags, JobKind, JobResult, Outcome, Stats};
use super::keys::{KeyBatch, KeysView};
use super::message::Message;
use super::mutation::{self, Mutation};
use super::output::Output;
use super::steps::Busy;
use super::timer::{Timers, Timestamp};
use super::wanted::Wanted;

/// What a deadline is for. The order among equal times is the order here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimerKey {
    AbortAck(SessionId, KvRequestId, RoundSeq),
    /// A finished or reaped id is forgotten.
    EndedId(KvRequestId),
    FaultDrain(SessionId),
    Handshake(SessionId),
    Load(SessionId, KvRequestId, RoundSeq),
    Lookup(SessionId, KvRequestId),
    /// Parked stores of this id that nobody fetched.
    ParkedId(KvRequestId),
    Redial(SessionId),
    /// A round of the producer role: stores or pins grew too old, or a transfer is stuck.
    Round(SessionId, KvRequestId, RoundSeq),
    Serve(ServeId),
}

/// Of the keys of one message; enough for some 27,000 of vLLM's.
const MOST_SPARE_BYTES: usize = 1 << 20;

/// Why something ended, and what that means for the jobs it takes along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    pub outcome: Outcome,
    pub detail: String,
}

impl Cause {
    pub fn new(outcome: Outcome, detail: impl Into<String>) -> Self {
        Cause { outcome, detail: detail.into() }
    }
}

/// An open job and where its result will come from.
#[derive(Clone, Copy, Debug)]
pub struct OpenJob {
    pub kind: JobKind,
    pub submitted: Timestamp,
}

/// One round of one `kv_request_id` with one peer.
pub type RoundName = (SessionId, KvRequestId, RoundSeq);

/// Serving contexts that the engine has to be asked about, or told the end of.
#[derive(Debug, Default)]
pub struct ServeQueue {
    /// Whether the engine answers lookups at all.
    pub engine_serves: bool,
    /// Not yet shown to the engine, or with keys it did not settle.
    pub unsettled: BTreeMap<ServeId, RoundName>,
    /// Opened toward the engine and over.
    pub to_close: Vec<ServeId>,
    /// A lookup came in since the engine was last asked.
    pub has_news: bool,
}

impl ServeQueue {
    pub fn close(&mut self, serve: ServeId) {
        self.to_close.push(serve);
    }
}

/// Everything of the core that is not one session's own.
#[derive(Debug)]
pub struct Context {
    pub now: Timestamp,
    pub config: Arc<CoreConfig>,
    pub directory: Directory,
    pub jobs: HashMap<JobId, OpenJob, FixedState>,
    pub loads: HashMap<LoadToken, RoundName, FixedState>,
    pub outputs: VecDeque<Output>,
    /// Messages of the roles, on their way through their sessions.
    pub said: VecDeque<(SessionId, Message)>,
    /// Rounds that stores supply and that are over, and whether all was moved.
    pub ended_rounds: Vec<(SessionId, KvRequestId, bool)>,
    /// Loads whose fetch is at a peer that writes unfenced.
    pub exposed_loads: usize,
    /// Destinations of open loads.
    pub loading: BlockSet,
    /// Sessions that may be over now.
    pub touched: Vec<SessionId>,
    pub serve: ServeQueue,
    pub stats: Stats,
    pub timers: Timers<TimerKey>,
    pub transfers: HashMap<TransferId, RoundName, FixedState>,
    pub wanted: Wanted,
    /// Sessions with more to do than one input may.
    pub busy: Busy,
    /// Without a key; its memory is used for the next message's.
    spare_keys: KeyBatch,
    last_load: u64,
    last_serve: u64,
    last_transfer: u64,
}

impl Context {
    #[must_use]
    pub fn new(config: Arc<CoreConfig>) -> Self {
        let hasher = || FixedState::with_seed(config.table_seed);
        Context {
            now: Timestamp::ZERO,
            directory: Directory::new(hasher()),
            jobs: HashMap::with_hasher(hasher()),
            loads: HashMap::with_hasher(hasher()),
            outputs: VecDeque::new(),
            said: VecDeque::new(),
            ended_rounds: Vec::new(),
            exposed_loads: 0,
            loading: BlockSet::default(),
            touched: Vec::new(),
            serve: ServeQueue::default(),
            stats: Stats::default(),
            timers: Timers::default(),
            transfers: HashMap::with_hasher(hasher()),
            wanted: Wanted::new(hasher()),
            busy: Busy::default(),
            spare_keys: KeyBatch::new(),
            last_load: 0,
            last_serve: 0,
            last_transfer: 0,
            config,
        }
    }

    #[must_use]
    pub fn hasher(&self) -> FixedState {
        FixedState::with_seed(self.config.table_seed)
    }

    pub fn new_load_token(&mut self) -> LoadToken {
        self.last_load += 1;
        if mutation::is(Mutation::CountsAcrossTiers) {
            self.last_load = mutation::count();
        }
        LoadToken(self.last_load)
    }

    pub fn new_serve_id(&mut self) -> ServeId {
        self.last_serve += 1;
        ServeId(self.last_serve)
    }

    pub fn new_transfer_id(&mut self) -> TransferId {
        self.last_transfer += 1;
        TransferId(self.last_transfer)
    }

    /// Keys of the engine for a message, in memory that an earlier one has left.
    pub fn batch(&mut self, keys: KeysView<'_>) -> KeyBatch {
        let mut batch = std::mem::take(&mut self.spare_keys);
        batch.append(keys);
        batch
    }

    /// Keeps the memory of a message's keys that has been sent, unless it is much.
    pub fn keep_memory(&mut self, mut keys: KeyBatch) {
        if (self.spare_keys.capacity() + 1..=MOST_SPARE_BYTES).contains(&keys.capacity()) {
            keys.clear();
            self.spare_keys = keys;
        }
    }

    /// Gives a message to its session, which sends it or keeps it until it may.
    pub fn say(&mut self, session: SessionId, message: Message) {
        self.said.push_back((session, message));
    }

    pub fn emit(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    pub fn open_job(&mut self, job: JobId, kind: JobKind) {
        self.jobs.insert(job, OpenJob { kind, submitted: self.now });
    }

    /// The one result of a job. A job that is not open has had it.
    pub fn finish_job(&mut self, job: JobId, cause: &Cause, bytes: u64, flags: JobFlags) {
        let Some(open) = self.jobs.remove(&job) else { return };
        if cause.outcome == Outcome::Done {
            self.stats.jobs_done += 1;
        } else {
            self.stats.jobs_failed += 1;
        }
        if open.kind == JobKind::Load {
            self.stats.bytes_in += bytes;
        }
        let result = JobResult {
            job,
            kind: open.kind,
            outcome: cause.outcome,
            flags,
            bytes,
            elapsed: self.now.since(open.submitted),
            detail: cause.detail.clone(),
        };
        if mutation::is(Mutation::ReportsTwice) {
            self.emit(Output::Finished(result.clone()));
        }
        self.emit(Output::Finished(result));
    }

    /// No job, transfer, pin, waiter or question is left.
    #[must_use]
    pub fn is_quiescent(&self) -> bool {
        self.jobs.is_empty()
            && self.loads.is_empty()
            && self.transfers.is_empty()
            && self.wanted.is_empty()
            && self.busy.is_empty()
            && self.loading.is_empty()
            && self.directory.pinned() == 0
            && self.serve.unsettled.is_empty()
            && self.serve.to_close.is_empty()
    }
}
