//! The consumer role toward one peer: lookups and loads.
//!
//! ```text
//!           submit                       fetch may be sent
//!   (none) ───────► Queued ──────────────────────────────► Fetching
//!                     │ abort, death                 abort │    │ transfer_done, death
//!                     ▼                                    ▼    ▼
//!                  result          abort_ack, time ◄── Aborting Closing
//!                                        │                 └─┬──┘
//!                                        ▼   fence closed    ▼
//!                                      (gone) ◄────────── result
//! ```
//!
//! A load's job is reported once nothing can write into its blocks any more: when the data plane has closed its fence,
//! or, where it cannot, when the peer has answered or has been silent for `abort_ack` (then with a flag). An aborted
//! load that was reported stays known until its `abort_ack`, so that its round is not used again meanwhile.
//!
//! Where the data plane knows that all blocks are in, the load is reported at once and leaves its name in `landed` until
//! the peer's `transfer_done`: a `fetch` of the same name must not reach the peer before it knows so too.

mod death;
mod landed;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use super::context::{Cause, Context, TimerKey};
use super::ids::{BlockIndex, JobId, KvRequestId, LoadToken, RoundSeq, SessionId};
use super::job::{JobFlags, LookupState, Outcome};
use super::key_table::KeyTable;
use super::keys::{KeyBatch, KeysView};
use super::message::{AbortFetch, Fetch, Lookup, LookupResp, Message};
use super::mutation::{self, Mutation};
use super::output::Output;
use super::timer::Timestamp;

use landed::LandedLoads;

#[derive(Debug)]
pub struct ClientRole {
    session: SessionId,
    requests: BTreeMap<KvRequestId, ConsumerRequest>,
    /// Those that the session's death has not ended yet: found by nobody, and open all the same.
    doomed: BTreeMap<KvRequestId, ConsumerRequest>,
    /// The peer is legacy: every lookup is a miss.
    never_answered: bool,
    /// Ids with keys that the next flush has to send.
    unflushed: Vec<KvRequestId>,
    landed: LandedLoads,
    loads_live: usize,
    bytes_in: u64,
}

/// One `kv_request_id` that is pulled from this peer.
#[derive(Debug)]
struct ConsumerRequest {
    round: RoundSeq,
    /// The keys looked up in this round; those from `unsent` on since the last flush.
    asked: KeyTable,
    unsent: usize,
    /// What is known of each of `asked`.
    probes: Vec<Probe>,
    /// Lookups that were sent and are not answered, oldest first: an answer names no round, only its keys.
    awaiting: VecDeque<SentLookup>,
    /// Its own time for each lookup, after which that is a miss and the peer none the worse. `None`: the peer has the tier's
    /// time for its next answer, and is given up otherwise.
    own_timeout: Option<Duration>,
    lookup_deadline: Option<Timestamp>,
    /// Lookups ended by their own deadline.
    gave_up: bool,
    /// The peer may hold pins of a lookup that no fetch has closed.
    peer_lookup_open: bool,
    loads: BTreeMap<RoundSeq, Load>,
    /// The engine has finished the request; only unfinished loads keep it here.
    finished: bool,
}

#[derive(Debug)]
struct SentLookup {
    /// Which of `asked`.
    keys: Range<usize>,
    at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    Asked,
    Hit,
    Miss,
}

#[derive(Debug)]
struct Load {
    job: JobId,
    token: LoadToken,
    blocks: Vec<BlockIndex>,
    /// Its fetch is at a peer that writes unfenced: counted in the context.
    exposed: bool,
    /// Its fetch closes a lookup of the peer's, once it is sent.
    closes_lookup: bool,
    state: LoadState,
    deadline: Timestamp,
}

/// See the diagram at the top.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LoadState {
    /// The fetch waits for the session to be ready.
    Queued,
    Fetching,
    /// `abort_fetch` was sent. `cause`: the result still to be given; `None` once it was.
    Aborting {
        cause: Option<Cause>,
    },
    /// The outcome is known; the fence is closing.
    Closing {
        cause: Cause,
    },
}

/// What a new load is made of. The caller has checked it.
#[derive(Debug)]
pub struct NewLoad<'a> {
    pub kv_request_id: &'a KvRequestId,
    pub job: JobId,
    pub keys: KeysView<'a>,
    pub blocks: Vec<BlockIndex>,
    pub timeout: Duration,
}

impl ClientRole {
    #[must_use]
    pub fn new(session: SessionId) -> Self {
        ClientRole {
            session,
            requests: BTreeMap::new(),
            doomed: BTreeMap::new(),
            never_answered: false,
            unflushed: Vec::new(),
            landed: LandedLoads::new(session),
            loads_live: 0,
            bytes_in: 0,
        }
    }

    /// Loads whose job is still open.
    #[must_use]
    pub fn loads_live(&self) -> usize {
        self.loads_live
    }

    #[must_use]
    pub fn bytes_in(&self) -> u64 {
        self.bytes_in
    }

    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.doomed.is_empty()
    }

    /// Whether the id is in use here, and not only until its turn to end comes.
    #[must_use]
    pub fn uses(&self, id: &KvRequestId, fenced: bool) -> bool {
        self.requests.contains_key(id) || self.doomed.get(id).is_some_and(|request| request.outlives(fenced))
    }

    /// The load under a token, as the session needs it when the fetch is about to leave: its blocks, to be armed.
    /// `None` if it is over; its name may be another load's by now.
    pub fn start_fetching(
        &mut self,
        cx: &mut Context,
        id: &KvRequestId,
        round: RoundSeq,
        token: Option<u64>,
        fenced: bool,
    ) -> Option<(LoadToken, Vec<BlockIndex>)> {
        let load = self.queued(id, round, token)?;
        load.state = LoadState::Fetching;
        load.exposed = !fenced;
        cx.exposed_loads += usize::from(load.exposed);
        Some((load.token, load.blocks.clone()))
    }

    fn queued(&mut self, id: &KvRequestId, round: RoundSeq, token: Option<u64>) -> Option<&mut Load> {
        let load = self.load_mut(id, round)?;
        (load.state == LoadState::Queued && Some(load.token.0) == token).then_some(load)
    }

    /// Whether another load of the id has its fetch at the peer: a legacy peer takes one at a time.
    #[must_use]
    pub fn has_load_in_flight(&self, id: &KvRequestId) -> bool {
        self.requests
            .get(id)
            .is_some_and(|request| request.loads.values().any(|load| load.state != LoadState::Queued))
    }

    /// Whether a key of the id was looked up and not answered.
    #[must_use]
    pub fn has_open_lookups(&self, id: &KvRequestId) -> bool {
        self.requests.get(id).is_some_and(|request| !request.awaiting.is_empty() || request.has_unsent())
    }

    /// Whether a load of the id is open.
    #[must_use]
    pub fn has_live_load(&self, id: &KvRequestId) -> bool {
        self.requests.get(id).is_some_and(|request| !request.loads.is_empty())
    }

    /// Whether the id has used a round, for the rule that a PD request loads once.
    #[must_use]
    pub fn has_loaded(&self, id: &KvRequestId) -> bool {
        self.requests.get(id).is_some_and(|request| request.round != RoundSeq::FIRST)
    }

    /// Looks keys up: what is known is answered, what is new is registered for the next flush.
    pub fn lookup(
        &mut self,
        cx: &Context,
        id: &KvRequestId,
        own_timeout: Option<Duration>,
        keys: KeysView<'_>,
        states: &mut [LookupState],
    ) {
        if self.never_answered {
            return;
        }
        let request = self.request(cx, id);
        request.own_timeout = own_timeout;
        if mutation::is(Mutation::PollExtends) && request.lookup_deadline.is_some() {
            request.lookup_deadline = Some(cx.now + own_timeout.unwrap_or(cx.config.timeouts.lookup));
        }
        let nothing_unsent = !request.has_unsent();
        if request.probes.is_empty() {
            request.asked.reserve(keys.len(), keys.as_bytes().len());
        }
        for (key, state) in keys.iter().zip(states) {
            *state = request.look_up(key);
        }
        if nothing_unsent && request.has_unsent() {
            self.unflushed.push(id.clone());
        }
    }

    fn request(&mut self, cx: &Context, id: &KvRequestId) -> &mut ConsumerRequest {
        self.requests.entry(id.clone()).or_insert_with(|| ConsumerRequest {
            round: RoundSeq::FIRST,
            asked: KeyTable::new(cx.hasher()),
            unsent: 0,
            probes: Vec::new(),
            awaiting: VecDeque::new(),
            own_timeout: None,
            lookup_deadline: None,
            gave_up: false,
            peer_lookup_open: false,
            loads: BTreeMap::new(),
            finished: false,
        })
    }

    /// One `lookup` for each request with new keys (more where a message would get too large).
    pub fn flush_lookups(&mut self, cx: &mut Context, ready: bool) {
        for id in std::mem::take(&mut self.unflushed) {
            let Some(request) = self.requests.get_mut(&id) else { continue };
            if !request.has_unsent() {
                continue;
            }
            for keys in split_to_messages(request.asked.keys().part(request.unsent..request.probes.len()), cx)
            {
                let sent = request.unsent + keys.len();
                request.awaiting.push_back(SentLookup { keys: request.unsent..sent, at: cx.now });
                request.unsent = sent;
                let lookup = Lookup { kv_request_id: id.clone(), keys, round_seq: request.round };
                cx.say(self.session, Message::Lookup(lookup));
                cx.stats.lookups_sent += 1;
            }
            request.peer_lookup_open = true;
            if (ready || request.own_timeout.is_some()) && request.lookup_deadline.is_none() {
                request.arm_lookup_deadline(cx, self.session, &id);
            }
        }
    }

    /// The session became ready: what was flushed before counts its time from now, unless it has a time of its own.
    pub fn on_ready(&mut self, cx: &mut Context) {
        for (id, request) in &mut self.requests {
            if !request.awaiting.is_empty() {
                request.arm_lookup_deadline(cx, self.session, id);
            }
        }
    }

    /// The peer turned out to be legacy: it answers no lookups.
    pub fn all_probes_miss(&mut self, cx: &mut Context) {
        self.never_answered = true;
        self.unflushed.clear();
        for (id, request) in &mut self.requests {
            request.probes.fill(Probe::Miss);
            request.forget_lookups(cx, self.session, id);
            request.peer_lookup_open = false;
        }
    }

    /// Whether all keys are confirmed hits of the current round; the position of the first that is not otherwise.
    #[must_use]
    pub fn first_unconfirmed(&self, id: &KvRequestId, keys: KeysView<'_>) -> Option<usize> {
        let Some(request) = self.requests.get(id) else { return (!keys.is_empty()).then_some(0) };
        keys.iter().position(|key| request.probe(key) != Some(Probe::Hit))
    }

    /// Opens a load: its `fetch` closes the round, the next one begins.
    pub fn load(&mut self, cx: &mut Context, new: NewLoad<'_>) {
        let token = cx.new_load_token();
        let session = self.session;
        let deadline = cx.now + new.timeout;
        let request = self.request(cx, new.kv_request_id);
        let round = request.round;
        request.round = round.next();
        let closes_lookup = std::mem::take(&mut request.peer_lookup_open);
        request.forget_round(cx, session, new.kv_request_id);
        let fetch = Fetch {
            kv_request_id: new.kv_request_id.clone(),
            keys: cx.batch(new.keys),
            block_indexes: new.blocks.iter().map(|block| u64::from(block.0)).collect(),
            round_seq: round,
            load_token: Some(token.0),
        };
        let state = LoadState::Queued;
        let (job, blocks) = (new.job, new.blocks);
        let load = Load { job, token, blocks, exposed: false, closes_lookup, state, deadline };
        request.loads.insert(round, load);
        cx.loads.insert(token, (session, new.kv_request_id.clone(), round));
        cx.timers.set(deadline, TimerKey::Load(session, new.kv_request_id.clone(), round));
        self.loads_live += 1;
        self.landed.send_after(cx, fetch);
    }

    /// The answer to the oldest unanswered lookup with exactly these keys. Anything else is junk and changes nothing.
    pub fn on_lookup_resp(&mut self, cx: &mut Context, resp: &LookupResp) {
        let matched = self.requests.get_mut(&resp.kv_request_id).and_then(|request| {
            let is_asked = |sent: &SentLookup| request.asked.keys().part_is(&sent.keys, &resp.keys);
            let position = request.awaiting.iter().position(is_asked)?;
            let answered = request.awaiting.remove(position)?;
            Some((request, answered))
        });
        let Some((request, answered)) = matched else {
            cx.stats.messages_late += 1;
            if mutation::is(Mutation::JunkAnswerExtends)
                && let Some(request) = self.requests.get_mut(&resp.kv_request_id)
                && request.lookup_deadline.is_some()
            {
                request.arm_lookup_deadline(cx, self.session, &resp.kv_request_id);
            }
            return;
        };
        // Each key was sent once, so the answers stand in the order of the probes.
        for (probe, hit) in request.probes.get_mut(answered.keys).into_iter().flatten().zip(&resp.hits) {
            *probe = if *hit { Probe::Hit } else { Probe::Miss };
            *if *hit { &mut cx.stats.keys_hit } else { &mut cx.stats.keys_missed } += 1;
        }
        request.disarm_lookup_deadline(cx, self.session, &resp.kv_request_id);
        if !request.awaiting.is_empty() {
            request.arm_lookup_deadline(cx, self.session, &resp.kv_request_id);
        }
    }

    pub fn on_transfer_done(
        &mut self,
        cx: &mut Context,
        id: &KvRequestId,
        round: RoundSeq,
        success: bool,
        fenced: bool,
    ) {
        let round = match self.requests.get(id).and_then(|request| request.loads.keys().next_back()) {
            Some(latest) if mutation::is(Mutation::TakesDoneForAnyRound) => *latest,
            _ => round,
        };
        if self.landed.end(cx, id, round) {
            return;
        }
        let Some(load) = self.load_mut(id, round) else {
            assert!(!mutation::is(Mutation::TripsOverLateDone), "nobody waits for this transfer_done");
            cx.stats.messages_late += 1;
            return;
        };
        match &load.state {
            LoadState::Fetching => {
                let cause = if success {
                    Cause::new(Outcome::Done, "")
                } else {
                    Cause::new(Outcome::NotSupplied, "the producer ended the round without all of its blocks")
                };
                load.state = LoadState::Closing { cause };
                self.close_fence(cx, id, round, fenced);
            }
            // The round is over at the peer, so nothing of it writes any more. The `abort_ack` is still to come, and must
            // not find a later load of the same name.
            LoadState::Aborting { .. } if !fenced => self.report(cx, id, round, JobFlags::default()),
            LoadState::Aborting { .. } => {}
            LoadState::Queued | LoadState::Closing { .. } => cx.stats.messages_late += 1,
        }
    }

    /// The data plane has taken in all blocks of the load, and closed them.
    pub fn on_landed(&mut self, cx: &mut Context, id: &KvRequestId, round: RoundSeq) {
        let Some(load) = self.load_mut(id, round).filter(|load| load.state == LoadState::Fetching) else {
            return;
        };
        let deadline = load.deadline;
        load.state = LoadState::Closing { cause: Cause::new(Outcome::Done, "") };
        self.report(cx, id, round, JobFlags::default());
        self.landed.add(cx, id, round, deadline);
    }

    pub fn on_abort_ack(&mut self, cx: &mut Context, id: &KvRequestId, round: RoundSeq, fenced: bool) {
        let session = self.session;
        let Some(load) = self.load_mut(id, round) else {
            cx.stats.messages_late += 1;
            return;
        };
        match &load.state {
            LoadState::Aborting { cause: Some(cause) } => {
                let cause = cause.clone();
                cancel_load_timer(cx, session, id, round, load);
                load.state = LoadState::Closing { cause };
                self.close_fence(cx, id, round, fenced);
            }
            LoadState::Aborting { cause: None } => self.forget_load(cx, id, round),
            _ => cx.stats.messages_late += 1,
        }
    }

    fn load_mut(&mut self, id: &KvRequestId, round: RoundSeq) -> Option<&mut Load> {
        self.requests.get_mut(id)?.loads.get_mut(&round)
    }

    /// A legacy message names no round: it means the one load that can be live.
    #[must_use]
    pub fn only_round(&self, id: &KvRequestId) -> Option<RoundSeq> {
        let loads = &self.requests.get(id)?.loads;
        loads.iter().find(|(_, load)| load.state != LoadState::Queued).map(|(round, _)| *round)
    }

    fn close_fence(&mut self, cx: &mut Context, id: &KvRequestId, round: RoundSeq, fenced: bool) {
        let session = self.session;
        let Some(load) = self.load_mut(id, round) else { return };
        if fenced {
            let token = load.token;
            cx.emit(Output::Disarm { session, load: token });
        } else {
            self.report(cx, id, round, JobFlags::default());
        }
    }

    /// The data plane can no longer touch the load's blocks.
    pub fn on_disarmed(&mut self, cx: &mut Context, id: &KvRequestId, round: RoundSeq) {
        self.report(cx, id, round, JobFlags::default());
    }

    /// Gives the load's job its result, if that is still owed and its outcome is known.
    fn report(&mut self, cx: &mut Context, id: &KvRequestId, round: RoundSeq, flags: JobFlags) {
        let Some(load) = self.load_mut(id, round) else { return };
        let block_len = cx.config.block_len;
        match &mut load.state {
            LoadState::Closing { cause } => {
                let bytes =
                    if cause.outcome == Outcome::Done { load.blocks.len() as u64 * block_len } else { 0 };
                cx.loading.remove_all(&load.blocks);
                cx.finish_job(load.job, cause, bytes, flags);
                self.loads_live -= 1;
                self.bytes_in += bytes;
                self.forget_load(cx, id, round);
            }
            LoadState::Aborting { cause } => {
                if let Some(cause) = cause.take() {
                    cx.loading.remove_all(&load.blocks);
                    cx.finish_job(load.job, &cause, 0, flags);
                    self.loads_live -= 1;
                }
            }
            LoadState::Queued | LoadState::Fetching => {}
        }
    }

    fn forget_load(&mut self, cx: &mut Context, id: &KvRequestId, round: RoundSeq) {
        let Some(request) = self.requests.get_mut(id) else { return };
        if let Some(load) = request.loads.remove(&round) {
            if !mutation::is(Mutation::LeaksLoads) {
                cx.loads.remove(&load.token);
            }
            cx.exposed_loads -= usize::from(load.exposed);
            cancel_load_timer(cx, self.session, id, round, &load);
        }
        if request.finished && request.loads.is_empty() {
            self.requests.remove(id);
        }
    }

    /// Gives a load up: `abort_fetch` if its fetch was sent, and its result as soon as its blocks are safe.
    fn abort(&mut self, cx: &mut Context, id: &KvRequestId, round: RoundSeq, cause: Cause, fenced: bool) {
        let session = self.session;
        let Some(load) = self.load_mut(id, round) else { return };
        match load.state {
            LoadState::Queued => {
                cancel_load_timer(cx, session, id, round, load);
                load.state = LoadState::Closing { cause };
                let closes_lookup = load.closes_lookup;
                self.report(cx, id, round, JobFlags::default());
                if let Some(request) = self.requests.get_mut(id) {
                    request.peer_lookup_open |= closes_lookup;
                }
            }
            LoadState::Fetching => {
                cancel_load_timer(cx, session, id, round, load);
                load.state = LoadState::Aborting { cause: Some(cause) };
                load.deadline = cx.now + cx.config.timeouts.abort_ack;
                cx.timers.set(load.deadline, TimerKey::AbortAck(session, id.clone(), round));
                let token = load.token;
                if fenced && mutation::is(Mutation::SkipsDisarm) {
                    self.on_disarmed(cx, id, round);
                } else if fenced {
                    cx.emit(Output::Disarm { session, load: token });
                }
                let abort = AbortFetch { kv_request_id: id.clone(), round_seq: round };
                cx.say(session, Message::AbortFetch(abort));
            }
            LoadState::Aborting { .. } | LoadState::Closing { .. } => {}
        }
    }

    /// A load that was queued cannot be sent after all. Nothing happens if it is over; see [`Self::start_fetching`].
    pub fn refuse_queued(
        &mut self,
        cx: &mut Context,
        id: &KvRequestId,
        round: RoundSeq,
        token: Option<u64>,
        cause: Cause,
    ) {
        if self.queued(id, round, token).is_some() {
            self.abort(cx, id, round, cause, true);
        }
    }

    pub fn on_load_deadline(&mut self, cx: &mut Context, id: &KvRequestId, round: RoundSeq, fenced: bool) {
        self.landed.end_if_due(cx, id, round);
        let now = cx.now;
        if self.load_mut(id, round).is_some_and(|load| load.deadline <= now) {
            let cause = Cause::new(Outcome::TimedOut, "the load did not finish within its deadline");
            self.abort(cx, id, round, cause, fenced);
        }
    }

    /// No `abort_ack` came. Without a fence the blocks may still be written.
    pub fn on_abort_ack_deadline(
        &mut self,
        cx: &mut Context,
        id: &KvRequestId,
        round: RoundSeq,
        fenced: bool,
    ) {
        if !fenced {
            let may_still_be_written = !mutation::is(Mutation::ForgetsFlag);
            self.report(cx, id, round, JobFlags { may_still_be_written, ..JobFlags::default() });
        }
        let reported = matches!(self.load_mut(id, round), Some(load) if load.state == LoadState::Aborting { cause: None });
        if reported {
            self.forget_load(cx, id, round);
        } else if let Some(load) = self.load_mut(id, round) {
            // The fence is still closing; its event ends the load.
            if let LoadState::Aborting { cause: Some(cause) } = &load.state {
                load.state = LoadState::Closing { cause: cause.clone() };
            }
        }
    }

    /// A lookup of the request may have waited too long. Why the peer is to be given up, if it is.
    pub fn on_lookup_deadline(&mut self, cx: &mut Context, id: &KvRequestId) -> Option<Cause> {
        let request = self.requests.get_mut(id)?;
        request.lookup_deadline.take_if(|deadline| *deadline <= cx.now)?;
        let Some(own) = request.own_timeout else {
            return Some(Cause::new(Outcome::PeerLost, no_answer(id, cx.config.timeouts.lookup)));
        };
        while let Some(expired) = request.awaiting.pop_front_if(|sent| sent.at + own <= cx.now) {
            request.probes.get_mut(expired.keys).into_iter().flatten().for_each(|probe| *probe = Probe::Miss);
            request.gave_up = true;
        }
        if !request.awaiting.is_empty() {
            request.arm_lookup_deadline(cx, self.session, id);
        }
        None
    }

    /// Why keys of the id are misses that nobody has answered.
    #[must_use]
    pub fn lookups_given_up(&self, id: &KvRequestId) -> Option<Cause> {
        let request = self.requests.get(id)?;
        let own = request.own_timeout.filter(|_| request.gave_up)?;
        Some(Cause::new(Outcome::TimedOut, no_answer(id, own)))
    }

    /// The engine is done with the request.
    pub fn finish(&mut self, cx: &mut Context, id: &KvRequestId, fenced: bool) {
        let session = self.session;
        let Some(request) = self.requests.get_mut(id) else { return };
        request.finished = true;
        request.forget_round(cx, session, id);
        let unsent = |load: &Load| load.state == LoadState::Queued && load.closes_lookup;
        let owes_end = std::mem::take(&mut request.peer_lookup_open) || request.loads.values().any(unsent);
        let next_round = request.round;
        let rounds: Vec<RoundSeq> = request.loads.keys().copied().collect();
        for round in rounds {
            let cause = Cause::new(Outcome::Aborted, "the request was finished while the load was live");
            self.abort(cx, id, round, cause, fenced);
        }
        if owes_end && !mutation::is(Mutation::ForgetsEndOfId) {
            let end = Fetch {
                kv_request_id: id.clone(),
                keys: KeyBatch::new(),
                block_indexes: Vec::new(),
                round_seq: next_round,
                load_token: None,
            };
            cx.say(session, Message::Fetch(end));
            self.landed.forget_id(cx, id);
        }
        if self.requests.get(id).is_some_and(|request| request.loads.is_empty()) {
            self.requests.remove(id);
        }
    }
}

impl ConsumerRequest {
    fn arm_lookup_deadline(&mut self, cx: &mut Context, session: SessionId, id: &KvRequestId) {
        self.disarm_lookup_deadline(cx, session, id);
        let oldest = self.awaiting.front().map_or(cx.now, |sent| sent.at);
        let deadline = self.own_timeout.map_or(cx.now + cx.config.timeouts.lookup, |own| oldest + own);
        self.lookup_deadline = Some(deadline);
        cx.timers.set(deadline, TimerKey::Lookup(session, id.clone()));
    }

    fn disarm_lookup_deadline(&mut self, cx: &mut Context, session: SessionId, id: &KvRequestId) {
        if let Some(deadline) = self.lookup_deadline.take() {
            cx.timers.cancel(deadline, TimerKey::Lookup(session, id.clone()));
        }
    }

    fn has_unsent(&self) -> bool {
        self.unsent < self.probes.len()
    }

    fn look_up(&mut self, key: &[u8]) -> LookupState {
        let hash = self.asked.hash(key);
        if let Some(known) = self.asked.find(hash, key) {
            return match self.probes.get(known) {
                Some(Probe::Asked) => LookupState::Retry,
                Some(Probe::Hit) => LookupState::Hit,
                Some(Probe::Miss) | None => LookupState::Miss,
            };
        }
        if !self.asked.add(hash, key) {
            return LookupState::Miss;
        }
        self.probes.push(Probe::Asked);
        LookupState::Retry
    }

    fn probe(&self, key: &[u8]) -> Option<Probe> {
        let number = self.asked.find(self.asked.hash(key), key)?;
        self.probes.get(number).copied()
    }

    /// The next round begins, or none: what was looked up is void.
    fn forget_round(&mut self, cx: &mut Context, session: SessionId, id: &KvRequestId) {
        self.asked.clear();
        self.probes.clear();
        self.forget_lookups(cx, session, id);
    }

    /// Answers still to come change nothing any more.
    fn forget_lookups(&mut self, cx: &mut Context, session: SessionId, id: &KvRequestId) {
        self.unsent = self.probes.len();
        self.awaiting.clear();
        self.disarm_lookup_deadline(cx, session, id);
    }
}

fn no_answer(id: &KvRequestId, within: Duration) -> String {
    format!("no answer to a lookup of kv_request_id {id} within {within:?}")
}

fn cancel_load_timer(cx: &mut Context, session: SessionId, id: &KvRequestId, round: RoundSeq, load: &Load) {
    let key = match load.state {
        LoadState::Aborting { .. } => TimerKey::AbortAck(session, id.clone(), round),
        _ => TimerKey::Load(session, id.clone(), round),
    };
    cx.timers.cancel(load.deadline, key);
}

/// Cuts keys so that each part fits into one message under the limits that every peer keeps by default.
fn split_to_messages(keys: KeyBatch, cx: &Context) -> Vec<KeyBatch> {
    // Type, field names, id and headers; and at most 5 bytes of header for each key.
    let overhead = 256 + cx.config.limits.id_len;
    let room = cx.config.limits.message_bytes.saturating_sub(overhead).max(1);
    if keys.len() <= cx.config.limits.keys_per_message && keys.bytes() <= room {
        return vec![keys];
    }
    let size = |key: &[u8]| key.len() + 5;
    let mut parts = Vec::new();
    let mut part = KeyBatch::new();
    let mut used = 0;
    for key in keys.iter() {
        if !part.is_empty() && (part.len() >= cx.config.limits.keys_per_message || used + size(key) > room) {
            parts.push(std::mem::take(&mut part));
            used = 0;
        }
        used += size(key);
        if !part.push(key) {
            break;
        }
    }
    parts.push(part);
    parts
}
