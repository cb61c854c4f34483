//! All sessions of one tier, and what lies between them: names, requests, parked stores, failed ids, caps, back-off.
//!
//! How to drive it: call one method with the present time, then take outputs until [`Manager::poll_output`] gives
//! none; call [`Manager::handle_timeout`] when [`Manager::next_deadline`] has come, and soon where
//! [`Manager::has_unfinished_work`]. Nothing else happens by itself.
//! Everything is deterministic: same configuration, same calls, same outputs.

mod bindings;
mod engine;
mod peers;
mod serving;
mod stores;
mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::config::CoreConfig;
use super::context::{Cause, Context, RoundName, TimerKey};
use super::ids::{KvRequestId, LoadToken, PeerId, RequestId, SessionId, TransferId};
use super::job::{OffloadPolicy, Outcome, PeerState, Stats};
use super::message::{Fetch, Lookup, LookupResp, Message};
use super::mutation::{self, Mutation};
use super::output::Output;
use super::params::Roles;
use super::session::Session;
use super::steps::{ITEM, Slice};
use super::timer::Timestamp;

pub use engine::RequestTimeouts;
use peers::Backoff;
use serving::Settling;
pub use serving::{ServeMode, ServeWork};
use stores::StoreTable;
use work::Published;

#[derive(Debug)]
pub struct Manager {
    cx: Context,
    sessions: BTreeMap<SessionId, Session>,
    /// Living sessions by the name they were dialled under, or the peer gave itself.
    by_peer: BTreeMap<PeerId, SessionId>,
    /// Names that peers give themselves, where a session goes by another.
    aliases: BTreeMap<PeerId, SessionId>,
    backoffs: BTreeMap<PeerId, Backoff>,
    /// When the last session with a peer died, for as long as its messages may still be about.
    recent_deaths: BTreeMap<PeerId, Timestamp>,
    requests: BTreeMap<RequestId, Request>,
    /// Ids that a request of ours pulls, and serves.
    consumer_ids: BTreeMap<KvRequestId, RequestId>,
    producer_ids: BTreeMap<KvRequestId, RequestId>,
    stores: StoreTable,
    /// Keys whose waiters have not all been told.
    published: VecDeque<Published>,
    settling: Option<Settling>,
    /// Sessions with lookups that the next flush sends.
    unflushed: BTreeSet<SessionId>,
    /// Message types that were logged as unknown.
    known_unknowns: BTreeSet<String>,
    last_session: u64,
    last_request: u64,
    shut_down: bool,
}

#[derive(Debug)]
struct Request {
    roles: Roles,
    /// The consumer's session; `Err`: why lookups are misses and loads fail. See [`Manager::session_of`].
    session: Option<Result<SessionId, Cause>>,
    timeouts: RequestTimeouts,
}

/// One peer as operators see it, and `p2p_peers` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSummary {
    pub peer: PeerId,
    pub session: Option<SessionId>,
    pub state: PeerState,
    /// `tcp`, `nixl` or empty while not settled.
    pub transport: &'static str,
    /// Why this transport, or why the peer is not ready.
    pub detail: String,
    pub loads_live: u64,
    pub stores_live: u64,
    pub transfers_live: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub rounds_served: u64,
    pub idle: Duration,
}

impl Manager {
    #[must_use]
    pub fn new(config: CoreConfig) -> Manager {
        Manager {
            cx: Context::new(Arc::new(config)),
            sessions: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            aliases: BTreeMap::new(),
            backoffs: BTreeMap::new(),
            recent_deaths: BTreeMap::new(),
            requests: BTreeMap::new(),
            consumer_ids: BTreeMap::new(),
            producer_ids: BTreeMap::new(),
            stores: StoreTable::default(),
            published: VecDeque::new(),
            settling: None,
            unflushed: BTreeSet::new(),
            known_unknowns: BTreeSet::new(),
            last_session: 0,
            last_request: 0,
            shut_down: false,
        }
    }

    #[must_use]
    pub fn config(&self) -> &Arc<CoreConfig> {
        &self.cx.config
    }

    /// The next thing to do, oldest first.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.cx.outputs.pop_front()
    }

    /// A message was sent. Without this call all is the same, with more work for the allocator.
    pub fn was_sent(&mut self, message: Message) {
        match message {
            Message::Fetch(Fetch { keys, .. })
            | Message::Lookup(Lookup { keys, .. })
            | Message::LookupResp(LookupResp { keys, .. }) => self.cx.keep_memory(keys),
            _ => {}
        }
    }

    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.cx.timers.next()
    }

    /// Lets happen whose time has come, as much of it as one call may. If that was not all, the next deadline has passed.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        self.cx.now = now;
        if mutation::is(Mutation::LeavesDeadlines) {
            return;
        }
        let mut slice = Slice::new(self.cx.config.slice);
        while !slice.is_spent()
            && let Some(key) = self.cx.timers.pop_due(now)
        {
            slice.spend(ITEM);
            self.fire(key);
            self.follow_up();
        }
        self.work();
    }

    fn fire(&mut self, key: TimerKey) {
        match key {
            TimerKey::AbortAck(session, id, round) => self.with_session(session, |session, cx| {
                let fenced = session.is_fenced();
                session.client.on_abort_ack_deadline(cx, &id, round, fenced);
            }),
            TimerKey::EndedId(id) => self.stores.forget_ended(&self.cx, &id),
            TimerKey::FaultDrain(session) => self.abandon(session),
            TimerKey::Handshake(session) => {
                let expired = self.sessions.get(&session).and_then(|found| found.handshake_expired(&self.cx));
                if let Some(cause) = expired {
                    self.kill(session, cause, true);
                }
            }
            TimerKey::Load(session, id, round) => self.with_session(session, |session, cx| {
                let fenced = session.is_fenced();
                session.client.on_load_deadline(cx, &id, round, fenced);
            }),
            TimerKey::Lookup(session, id) => self.on_lookup_deadline(session, &id),
            TimerKey::ParkedId(id) => self.reap_parked(&id),
            TimerKey::Redial(session) => {
                self.with_session(session, |session, cx| session.on_redial_timer(cx))
            }
            TimerKey::Round(session, id, round) => {
                self.with_session(session, |session, cx| session.server.on_round_timer(cx, &id, round));
            }
            TimerKey::Serve(serve) => self.on_serve_deadline(serve),
        }
    }

    fn with_session(&mut self, session: SessionId, act: impl FnOnce(&mut Session, &mut Context)) {
        if let Some(found) = self.sessions.get_mut(&session) {
            act(found, &mut self.cx);
        }
    }

    /// After every input.
    fn after_input(&mut self) {
        self.follow_up();
        self.work();
    }

    /// Carries the roles' messages through their sessions, and clears away what is over.
    fn follow_up(&mut self) {
        while let Some((session, message)) = self.cx.said.pop_front() {
            self.with_session(session, |session, cx| session.say(cx, message));
        }
        while let Some((session, id, success)) = self.cx.ended_rounds.pop() {
            self.on_round_ended(session, &id, success);
        }
        while let Some(session) = self.cx.touched.pop() {
            let has_work = self.cx.busy.contains(session);
            if !has_work && self.sessions.get(&session).is_some_and(Session::is_over) {
                self.sessions.remove(&session);
            }
        }
    }

    // ---- what the transports report ----

    pub fn handle_transfer_done(&mut self, now: Timestamp, transfer: TransferId) {
        self.cx.now = now;
        if let Some((session, id, round)) = self.cx.transfers.remove(&transfer) {
            self.with_session(session, |session, cx| {
                session.on_transfer_succeeded();
                session.server.on_transfer_done(cx, &id, round, transfer);
            });
            self.cx.touched.push(session);
        }
        self.after_input();
    }

    /// `decisive`: the peer is known to be gone or to refuse everything.
    pub fn handle_transfer_failed(
        &mut self,
        now: Timestamp,
        transfer: TransferId,
        why: &str,
        decisive: bool,
    ) {
        self.cx.now = now;
        if let Some((session, id, round)) = self.cx.transfers.remove(&transfer) {
            let mut fault = None;
            self.with_session(session, |session, cx| {
                let text = format!("a transfer of the round failed: {why}");
                let cause = Cause::new(Outcome::TransportFailed, text);
                if session.server.on_transfer_failed(cx, &id, round, transfer, cause) || decisive {
                    fault = session.on_transfer_failed(why, decisive);
                }
            });
            self.cx.touched.push(session);
            self.follow_up();
            if let Some(cause) = fault {
                self.fault(session, cause);
            }
        }
        self.after_input();
    }

    /// The transfer was given up, by us or by its receiver: its round ends, the peer is well.
    pub fn handle_transfer_unwanted(&mut self, now: Timestamp, transfer: TransferId, why: &str) {
        self.cx.now = now;
        if let Some((session, id, round)) = self.cx.transfers.remove(&transfer) {
            let cause = Cause::new(Outcome::Aborted, format!("a transfer of the round was given up: {why}"));
            self.with_session(session, |session, cx| {
                session.server.on_transfer_failed(cx, &id, round, transfer, cause);
            });
            self.cx.touched.push(session);
        }
        self.after_input();
    }

    pub fn handle_peer_fault(&mut self, now: Timestamp, session: SessionId, why: &str) {
        self.cx.now = now;
        self.fault(session, Cause::new(Outcome::TransportFailed, format!("data plane fault: {why}")));
        self.after_input();
    }

    pub fn handle_disarmed(&mut self, now: Timestamp, load: LoadToken) {
        self.cx.now = now;
        let named: Option<RoundName> = self.cx.loads.get(&load).cloned();
        if let Some((session, id, round)) = named {
            self.with_session(session, |session, cx| session.client.on_disarmed(cx, &id, round));
            self.cx.touched.push(session);
        }
        self.after_input();
    }

    /// All blocks of the load are in, and nothing can write into them any more.
    pub fn handle_landed(&mut self, now: Timestamp, load: LoadToken) {
        self.cx.now = now;
        let named: Option<RoundName> = self.cx.loads.get(&load).cloned();
        if let Some((session, id, round)) = named {
            self.with_session(session, |session, cx| session.client.on_landed(cx, &id, round));
            self.cx.touched.push(session);
        }
        self.after_input();
    }

    /// A dying session's time to drain is over.
    fn abandon(&mut self, session: SessionId) {
        self.with_session(session, |session, cx| {
            session.abandon(cx);
        });
    }

    // ---- what operators see ----

    #[must_use]
    pub fn stats(&self) -> Stats {
        let bound = self.sessions.values().map(|session| session.server.stores_live() as u64);
        let parked = self.stores.parked_jobs() as u64;
        Stats {
            peers: self.by_peer.len() as u64,
            requests: self.requests.len() as u64,
            loads_live: self.sessions.values().map(|session| session.client.loads_live() as u64).sum(),
            stores_live: bound.sum::<u64>() + parked,
            stores_parked: parked,
            keys_published: self.cx.directory.len() as u64,
            blocks_pinned: self.cx.directory.pinned() as u64,
            ..self.cx.stats
        }
    }

    #[must_use]
    pub fn peers(&self, now: Timestamp) -> Vec<PeerSummary> {
        let sessions = self.sessions.values().map(|session| PeerSummary {
            peer: session.peer.clone(),
            session: Some(session.id),
            state: session.peer_state(),
            transport: session.transport_name(),
            detail: match session.cause() {
                Some(cause) => cause.detail.clone(),
                None => session.why_transport(&self.cx.config),
            },
            loads_live: session.client.loads_live() as u64,
            stores_live: session.server.stores_live() as u64,
            transfers_live: session.server.transfers_live() as u64,
            bytes_in: session.client.bytes_in(),
            bytes_out: session.server.bytes_out(),
            rounds_served: session.server.rounds_served(),
            idle: now.since(session.last_active),
        });
        let waiting = self
            .backoffs
            .iter()
            .filter(|(peer, backoff)| backoff.until > now && !self.by_peer.contains_key(*peer));
        let waiting = waiting.map(|(peer, backoff)| PeerSummary {
            peer: peer.clone(),
            session: None,
            state: PeerState::BackingOff,
            transport: "",
            detail: format!("next attempt in {:?} after data plane faults", backoff.until.since(now)),
            loads_live: 0,
            stores_live: 0,
            transfers_live: 0,
            bytes_in: 0,
            bytes_out: 0,
            rounds_served: 0,
            idle: Duration::ZERO,
        });
        sessions.chain(waiting).collect()
    }

    /// Messages dropped before they reached the core.
    pub fn count_dropped(&mut self, messages: u64) {
        self.cx.stats.messages_dropped += messages;
    }

    /// Sessions, also those that are dying.
    #[must_use]
    pub fn sessions_open(&self) -> usize {
        self.sessions.len()
    }

    #[must_use]
    pub fn has_session(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// A peer may be writing into the region without a fence.
    #[must_use]
    pub fn has_exposed_loads(&self) -> bool {
        self.cx.exposed_loads > 0
    }

    /// Transfers that the data plane has not said the end of.
    #[must_use]
    pub fn open_transfers(&self) -> Vec<TransferId> {
        let mut transfers: Vec<TransferId> = self.cx.transfers.keys().copied().collect();
        transfers.sort_unstable();
        transfers
    }

    /// Loads whose blocks the data plane may still be told about.
    #[must_use]
    pub fn open_loads(&self) -> Vec<LoadToken> {
        let mut loads: Vec<LoadToken> = self.cx.loads.keys().copied().collect();
        loads.sort_unstable();
        loads
    }

    /// A transfer is under way or a load is open, anywhere.
    #[must_use]
    pub fn has_transfers_or_loads(&self) -> bool {
        !self.cx.transfers.is_empty() || !self.cx.loads.is_empty()
    }

    /// Any job is open, or a peer waits for an answer.
    #[must_use]
    pub fn has_pending_work(&self) -> bool {
        self.has_transfers_or_loads() || !self.cx.jobs.is_empty() || self.has_serve_work()
    }

    /// Nothing is left of any session, request, job or store: for tests of rest.
    #[must_use]
    pub fn is_quiescent(&self) -> bool {
        self.sessions.values().all(Session::has_no_work)
            && self.requests.is_empty()
            && self.consumer_ids.is_empty()
            && self.producer_ids.is_empty()
            && self.stores.is_empty()
            && self.published.is_empty()
            && self.cx.is_quiescent()
    }

    /// A producer request wants all its blocks offloaded, others only new ones.
    fn policy(roles: &Roles) -> OffloadPolicy {
        if roles.producer.is_some() { OffloadPolicy::RequestLevel } else { OffloadPolicy::ChunkLevel }
    }
}
