//! What the engines know: which jobs are open, and how each may end given what was done to the two tiers it is between.
//! Where nothing was done to them, every outcome follows from what the engines did.

use std::collections::BTreeMap;
use std::time::Duration;

use p2pkv::protocol::ids::{JobId, KvRequestId};
use p2pkv::protocol::job::{JobResult, LookupState, Outcome, PeerState};
use p2pkv::protocol::timer::Timestamp;

use crate::clock::{millis, secs};
use crate::coverage::Seen;
use crate::engine::{Pull, id_text};
use crate::plan::Speech;
use crate::region::content_of;
use crate::report::Invariant;
use crate::tier::tier_named;
use crate::world::World;

#[derive(Debug)]
pub enum Job {
    Load(Load),
    Store(Store),
}

#[derive(Clone, Debug)]
pub struct Load {
    pub party: usize,
    pub pull: Pull,
    pub keys: Vec<u8>,
    pub blocks: Vec<u32>,
    pub submitted: Timestamp,
    pub timeout: Duration,
    /// So long that the pins of its lookup may be gone.
    pub looked_up_long_ago: bool,
    pub is_sent: bool,
    /// When its request ended.
    pub finished: Option<Timestamp>,
}

impl Load {
    fn has_key_twice(&self) -> bool {
        self.keys.iter().any(|key| self.keys.iter().filter(|other| *other == key).count() > 1)
    }
}

#[derive(Clone, Debug)]
pub struct Store {
    /// `None`: it holds the hits of a lookup.
    pub id: Option<u32>,
    pub blocks: Vec<u32>,
    pub submitted: Timestamp,
}

/// One `kv_request_id` and what both sides have done with it.
#[derive(Debug)]
pub struct IdStory {
    pub producer: usize,
    pub consumer: usize,
    producers: u32,
    consumers: u32,
    loads: u32,
    finished: Option<Timestamp>,
    stored: BTreeMap<u8, u32>,
    stored_at: Timestamp,
    fetched: Option<Timestamp>,
    changed: Timestamp,
    /// A store was given up for its age.
    is_stale: bool,
}

/// Longer than anything takes between two tiers that nothing is done to.
const PROMPT: Duration = millis(1_500);

impl IdStory {
    pub fn new(producer: usize, consumer: usize) -> IdStory {
        IdStory {
            producer,
            consumer,
            producers: 0,
            consumers: 0,
            loads: 0,
            finished: None,
            stored: BTreeMap::new(),
            stored_at: Timestamp::ZERO,
            fetched: None,
            changed: Timestamp::ZERO,
            is_stale: false,
        }
    }

    /// More than one request on a side has used it, or more than one load: who is served depends on who was faster.
    fn is_shared(&self) -> bool {
        self.producers > 1 || self.consumers > 1 || self.loads > 1
    }
}

/// A consumer that gave up in the middle of a load, and what it heard of it afterwards.
#[derive(Debug)]
pub struct Finishing {
    peer: usize,
    id: KvRequestId,
    replies: String,
}

impl World {
    // ---- what engines do ----

    pub fn note_begun(&mut self, serves: Option<u32>, pulls: Option<Pull>) {
        let now = self.clock.now;
        let mut reused = false;
        if let Some(story) = serves.and_then(|id| self.ids.get_mut(&id)) {
            story.producers += 1;
            story.changed = now;
            reused |= story.producers > 1;
        }
        if let Some(story) = pulls.and_then(|pull| self.ids.get_mut(&pull.id)) {
            story.consumers += 1;
            reused |= story.consumers > 1;
        }
        self.saw_if(reused, Seen::IdUsedAgain);
    }

    pub fn note_load(&mut self, tier: usize, load: &Load) {
        let others = self.tiers[tier].loads().filter(|(_, other)| other.pull.id == load.pull.id).count();
        self.saw_if(others > 0, Seen::RoundsOverlap);
        self.saw_if(load.has_key_twice(), Seen::KeyLoadedTwice);
        let now = self.clock.now;
        let Some(story) = self.ids.get_mut(&load.pull.id) else { return };
        story.loads += u32::from(!load.pull.symmetric);
        let stored_first = !story.stored.is_empty();
        if !load.pull.symmetric && story.fetched.is_none() {
            story.fetched = Some(now);
            self.saw_if(stored_first, Seen::StoreBeforeFetch);
        }
    }

    pub fn note_store(&mut self, id: u32, keys: &[u8]) {
        let now = self.clock.now;
        let Some(story) = self.ids.get_mut(&id) else { return };
        let (mut twice, after_fetch) = (false, story.fetched.is_some());
        for key in keys {
            let times = story.stored.entry(*key).or_default();
            *times += 1;
            twice |= *times > 1;
        }
        (story.changed, story.stored_at) = (now, now);
        self.saw_if(twice, Seen::KeyStoredTwice);
        self.saw_if(after_fetch, Seen::FetchBeforeStore);
    }

    pub fn note_finished(&mut self, party: usize, tier: usize, pulls: Option<Pull>, serves: Option<u32>) {
        let now = self.clock.now;
        if let Some(story) = serves.and_then(|id| self.ids.get_mut(&id)) {
            story.finished = Some(now);
            story.changed = now;
        }
        let Some(pull) = pulls else { return };
        let mut is_live = false;
        for job in self.tiers[tier].jobs.values_mut() {
            if let Job::Load(load) = job
                && load.party == party
            {
                load.finished = Some(now);
                is_live |= load.is_sent;
            }
        }
        if is_live {
            self.report.saw(Seen::FinishMidLoad);
            let id = KvRequestId::new(&id_text(pull.id));
            self.tiers[tier].finishing.push(Finishing { peer: pull.from, id, replies: String::new() });
        }
    }

    /// A poll must not put off the end of a lookup that nobody answers.
    pub fn note_poll(&mut self, party: usize, states: &[LookupState]) {
        let now = self.clock.now;
        let settled = states.iter().filter(|state| **state != LookupState::Retry).count();
        let found = &mut self.parties[party];
        if settled > found.settled {
            (found.settled, found.progress) = (settled, now);
        }
        let (tier, progress) = (found.life.tier, found.progress);
        let Some(pull) = found.pulls else { return };
        self.note(&[40, party as u64, settled as u64], || format!("party {party} polls: {states:?}"));
        if settled == states.len() {
            return;
        }
        let link = self.tiers[tier].sessions.values().find(|link| link.peer == pull.from);
        let since = link.map_or(progress, |link| progress.max(link.acknowledged.unwrap_or(link.opened)));
        let timeout = self.parties[party].timeouts.lookup.unwrap_or(secs(30));
        let bound = if self.plan.is_clean(tier, pull.from) { secs(15) } else { timeout + secs(1) };
        // A lookup that cannot leave yet waits for the handshake, or its deadline.
        let is_prompt = now.since(since) <= bound || !self.is_ready(tier, pull.from);
        self.report.check(is_prompt, Invariant::NoNeedlessWait, || {
            format!("tier {tier}: party {party} has waited for a lookup since {since:?}, it is {now:?}")
        });
    }

    fn is_ready(&self, tier: usize, peer: usize) -> bool {
        let found = &self.tiers[tier];
        let mut peers = found.manager.peers(self.clock.now + found.skew).into_iter();
        peers.all(|summary| {
            tier_named(summary.peer.as_str()) != Some(peer) || summary.state == PeerState::Ready
        })
    }

    // ---- what comes after a finish ----

    pub fn note_reply(&mut self, from: usize, to: usize, id: &KvRequestId, letter: char) {
        let meant = self.tiers[to].finishing.iter_mut().find(|open| open.peer == from && open.id == *id);
        if let Some(open) = meant {
            open.replies.push(letter);
        }
    }

    /// The session with `peer` is over, or the run.
    pub fn conclude_finishing(&mut self, tier: usize, peer: Option<usize>, at_death: bool) {
        let is_meant = |open: &Finishing| peer.is_none_or(|peer| open.peer == peer);
        let (over, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.tiers[tier].finishing).into_iter().partition(is_meant);
        self.tiers[tier].finishing = left;
        for open in over {
            self.report.saw(match open.replies.as_bytes() {
                [] if at_death => Seen::FinishThenDisconnect,
                [] => Seen::FinishThenNeither,
                [b'd', ..] => Seen::FinishThenDoneThenAck,
                _ => Seen::FinishThenAck,
            });
        }
    }

    // ---- results ----

    pub fn on_result(&mut self, tier: usize, result: &JobResult) {
        let job = result.job;
        self.note(&[41, job.0, result.outcome as u64], || {
            format!("tier {tier}: job {job} ends {:?} {:?}: {}", result.outcome, result.flags, result.detail)
        });
        match self.tiers[tier].jobs.remove(&job) {
            Some(Job::Load(load)) => self.on_load_result(tier, &load, result),
            Some(Job::Store(store)) => self.on_store_result(tier, &store, result),
            None => self.report.violate(Invariant::OneResult, || {
                format!("tier {tier}: job {job} has a result and is not open: {result:?}")
            }),
        }
    }

    fn on_load_result(&mut self, tier: usize, load: &Load, result: &JobResult) {
        let from = load.pull.from;
        if result.outcome == Outcome::Done {
            self.check_bytes(tier, load, result.job);
        }
        self.check_load_outcome(tier, load, result);
        self.count_load(tier, from, result);
        let refused_late = load.looked_up_long_ago && result.outcome == Outcome::NotSupplied;
        self.saw_if(refused_late, Seen::LateLoadRefused);
        for block in &load.blocks {
            if result.flags.may_still_be_written {
                self.tiers[tier].region.quarantine(*block);
            } else {
                self.tiers[tier].region.let_go(*block);
            }
        }
    }

    /// Every block has what the producer had under the key, unless the producer lied about having written.
    fn check_bytes(&mut self, tier: usize, load: &Load, job: JobId) {
        if self.plan.is_hostile(tier, load.pull.from) {
            return;
        }
        for (key, block) in load.keys.iter().zip(&load.blocks) {
            let (is, wanted) = (self.tiers[tier].region.read(*block), content_of(load.pull.from, *key));
            self.report.check(is == wanted, Invariant::RightBytes, || {
                format!(
                    "tier {tier}: load {job} is done; block {block} has {is:x} for key {key}, not {wanted:x}"
                )
            });
        }
    }

    fn check_load_outcome(&mut self, tier: usize, load: &Load, result: &JobResult) {
        let from = load.pull.from;
        let flagged = result.flags.may_still_be_written;
        let is_undisturbed = self.plan.is_clean(tier, from) && !self.shutting_down;
        let needless = flagged && (result.outcome == Outcome::Done || is_undisturbed);
        let allowed = self.allows(tier, load, result.outcome) && !needless && !result.flags.may_still_be_read;
        // Where others are ill, it is their illness that has spread.
        let invariant = if self.plan.is_calm() { Invariant::RightOutcome } else { Invariant::Isolation };
        self.report.check(allowed, invariant, || {
            format!("tier {tier}: load {load:?} ends {result:?}; its id: {:?}", self.ids.get(&load.pull.id))
        });
    }

    fn allows(&self, tier: usize, load: &Load, outcome: Outcome) -> bool {
        let from = load.pull.from;
        let age = self.clock.now.since(load.submitted);
        match outcome {
            Outcome::Done => true,
            Outcome::Aborted => load.finished.is_some(),
            Outcome::Incompatible => {
                let is_twice = self.plan.speech(tier, from) != Speech::P2pkv && load.has_key_twice();
                is_twice || self.plan.is_hostile(tier, from)
            }
            Outcome::NotFetched => false,
            Outcome::ShutDown => self.shutting_down,
            Outcome::TimedOut if age < load.timeout => false,
            Outcome::NotSupplied | Outcome::TimedOut if self.is_strict(tier, load) => {
                self.may_miss(load, outcome)
            }
            Outcome::NotSupplied | Outcome::TimedOut => true,
            Outcome::NoPeer | Outcome::PeerLost | Outcome::TransportFailed => !self.plan.is_clean(tier, from),
        }
    }

    /// Whether the load's outcome is known from what the engines did.
    fn is_strict(&self, tier: usize, load: &Load) -> bool {
        let story = self.ids.get(&load.pull.id);
        self.plan.is_clean(tier, load.pull.from)
            && story.is_some_and(|story| !story.is_shared() && !story.is_stale)
    }

    fn may_miss(&self, load: &Load, outcome: Outcome) -> bool {
        if load.pull.symmetric {
            return load.looked_up_long_ago && outcome == Outcome::NotSupplied;
        }
        let story = &self.ids[&load.pull.id];
        let is_supplied = self.is_supplied(load, PROMPT);
        match outcome {
            Outcome::NotSupplied => story.finished.is_some() && !is_supplied,
            _ => !is_supplied || self.clock.now.since(story.stored_at) < PROMPT,
        }
    }

    /// Whether the producer has all of the keys, and has had them for so long.
    fn is_supplied(&self, load: &Load, long: Duration) -> bool {
        let Some(story) = self.ids.get(&load.pull.id) else { return false };
        let producer = &self.tiers[load.pull.from];
        let published_long = self.clock.now.since(producer.changed) >= long;
        load.keys.iter().all(|key| {
            story.stored.contains_key(key) || (published_long && producer.published.contains_key(key))
        })
    }

    fn count_load(&mut self, tier: usize, from: usize, result: &JobResult) {
        let seen = match result.outcome {
            Outcome::Aborted => Seen::LoadAborted,
            Outcome::Done => Seen::LoadDone,
            Outcome::Incompatible => Seen::LoadIncompatible,
            Outcome::NoPeer => Seen::LoadNoPeer,
            Outcome::NotFetched | Outcome::NotSupplied => Seen::LoadNotSupplied,
            Outcome::PeerLost => Seen::LoadPeerLost,
            Outcome::ShutDown => Seen::LoadShutDown,
            Outcome::TimedOut => Seen::LoadTimedOut,
            Outcome::TransportFailed => Seen::LoadTransportFailed,
        };
        self.report.saw(seen);
        self.saw_if(result.flags.may_still_be_written, Seen::MayStillBeWritten);
        if result.outcome == Outcome::Done {
            match self.plan.speech(tier, from) {
                Speech::Legacy => self.report.saw(Seen::LoadDoneLegacy),
                Speech::Vllm => self.report.saw(Seen::LoadDoneVllm),
                Speech::P2pkv => {}
            }
            let unfenced = self.tiers[tier].is_unfenced(from);
            self.saw_if(unfenced, Seen::LoadDoneUnfenced);
        }
        let by_name = result.outcome == Outcome::Done && self.plan.calls_by_name(tier, from);
        self.saw_if(by_name, Seen::CalledByAnotherName);
        let no_room = result.detail.contains("peers are connected already");
        self.saw_if(no_room, Seen::NoRoomForPeer);
        let backs_off = result.detail.contains("the next attempt is allowed");
        self.saw_if(backs_off, Seen::BackOff);
        let restarted = result.detail.contains("the peer restarted");
        self.saw_if(restarted, Seen::PeerRestartNoticed);
    }

    fn on_store_result(&mut self, tier: usize, store: &Store, result: &JobResult) {
        let job = result.job;
        let seen = match result.outcome {
            Outcome::Done => Seen::StoreDone,
            Outcome::NotFetched => Seen::StoreNotFetched,
            Outcome::Aborted => Seen::StoreAborted,
            Outcome::TimedOut => Seen::StoreTimedOut,
            Outcome::TransportFailed => Seen::StoreTransportFailed,
            Outcome::ShutDown => Seen::StoreShutDown,
            _ => Seen::StorePeerLost,
        };
        self.report.saw(seen);
        self.saw_if(result.flags.may_still_be_read, Seen::MayStillBeRead);
        if let Some(story) = store.id.and_then(|id| self.ids.get_mut(&id)) {
            story.is_stale |= matches!(result.outcome, Outcome::NotFetched | Outcome::TimedOut);
        }
        self.check_store_outcome(tier, store, result);
        for block in &store.blocks {
            if result.flags.may_still_be_read {
                self.tiers[tier].region.quarantine(*block);
                continue;
            }
            let is_read = self.is_read(tier, *block, false);
            self.report.check(!is_read, Invariant::PinsHeld, || {
                format!("tier {tier}: store {job} is reported while a transfer reads its block {block}")
            });
            self.tiers[tier].region.let_go(*block);
        }
    }

    fn check_store_outcome(&mut self, tier: usize, store: &Store, result: &JobResult) {
        let story = store.id.and_then(|id| self.ids.get(&id));
        let clean = match story {
            Some(story) => !story.is_shared() && self.plan.is_clean(tier, story.consumer),
            None => false,
        };
        let allowed = match result.outcome {
            // One store that is too old ends its round, and the others with it.
            Outcome::Done | Outcome::NotFetched | Outcome::Aborted | Outcome::TimedOut => true,
            Outcome::ShutDown => self.shutting_down,
            Outcome::Incompatible | Outcome::NoPeer | Outcome::PeerLost | Outcome::TransportFailed => !clean,
            Outcome::NotSupplied => false,
        };
        let needless = clean && !self.shutting_down && result.flags.may_still_be_read;
        let invariant = if self.plan.is_calm() { Invariant::RightOutcome } else { Invariant::Isolation };
        self.report.check(allowed && !needless && !result.flags.may_still_be_written, invariant, || {
            format!("tier {tier}: store {store:?} ends {result:?}")
        });
    }

    // ---- waiting ----

    /// Nothing waits that need not (invariant 6), and nothing waits for ever (invariant 1).
    pub fn audit(&mut self) {
        let now = self.clock.now;
        for tier in 0..self.tiers.len() {
            if !self.tiers[tier].up {
                continue;
            }
            let mut late = None;
            for (job, open) in &self.tiers[tier].jobs {
                match open {
                    Job::Load(load) => {
                        let age = now.since(load.submitted);
                        if age > load.timeout + secs(12) {
                            late = Some((Invariant::OneResult, *job, "has no result after its deadlines"));
                        } else if age > PROMPT && self.waits_for_nothing(tier, load) {
                            late = Some((Invariant::NoNeedlessWait, *job, "waits for nothing"));
                        }
                    }
                    Job::Store(store) if now.since(store.submitted) > secs(160) => {
                        late = Some((Invariant::OneResult, *job, "has no result after its deadlines"));
                    }
                    Job::Store(_) => {}
                }
            }
            if let Some((invariant, job, what)) = late {
                let job = format!("{job}: {:?}", self.tiers[tier].jobs.get(&job));
                self.report.violate(invariant, || format!("tier {tier}: job {job} {what}"));
            }
        }
    }

    fn waits_for_nothing(&self, tier: usize, load: &Load) -> bool {
        if !self.is_strict(tier, load) {
            return false;
        }
        let now = self.clock.now;
        if let Some(finished) = load.finished {
            return now.since(finished) > PROMPT;
        }
        if load.pull.symmetric {
            return true;
        }
        let story = &self.ids[&load.pull.id];
        let ended = match story.finished {
            // Ended ids are forgotten after a while; then the fetch waits for a request still to come.
            Some(at) => load.submitted.since(at) < secs(59) && now.since(at) > PROMPT,
            None => false,
        };
        let supplied = now.since(story.changed) > PROMPT && self.is_supplied(load, PROMPT);
        ended || supplied
    }
}
