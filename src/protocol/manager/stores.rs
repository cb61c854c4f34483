//! The producer's ids: stores parked until somebody fetches, ids bound to the session that did, ids that are over.
//!
//! ```text
//!   store ──► parked ──first fetch──► bound ──round moved──► bound, served ──producer finishes──► ended
//!               │ 60 s                  ▲ │ session dies
//!               ▼                 fetch │ ▼
//!             reaped ──60 s──► (forgotten)
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use crate::protocol::context::{Cause, Context, TimerKey};
use crate::protocol::ids::{BlockIndex, JobId, KvRequestId, RoundSeq, SessionId};
use crate::protocol::job::{JobFlags, Outcome};
use crate::protocol::keys::KeyBatch;
use crate::protocol::message::{Dialect, Fetch};
use crate::protocol::mutation::{self, Mutation};
use crate::protocol::steps::Slice;
use crate::protocol::timer::Timestamp;

use super::Manager;
use super::bindings::{Binding, Bindings};

#[derive(Debug, Default)]
pub struct StoreTable {
    parked: BTreeMap<KvRequestId, Parked>,
    bound: Bindings,
    ended: BTreeMap<KvRequestId, Ended>,
    parked_jobs: usize,
}

#[derive(Debug)]
struct Parked {
    stores: Vec<ParkedStore>,
    since: Timestamp,
    reap_at: Timestamp,
    /// The producer's request is over: no more stores will come.
    producer_finished: bool,
}

#[derive(Debug)]
struct ParkedStore {
    job: JobId,
    keys: KeyBatch,
    blocks: Vec<BlockIndex>,
    /// Its own; `None` = the tier's.
    deadline: Option<Timestamp>,
}

/// An id that nothing more will come for.
#[derive(Clone, Copy, Debug)]
struct Ended {
    why: EndedWhy,
    forget_at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndedWhy {
    Finished,
    Reaped,
}

impl EndedWhy {
    fn text(self) -> &'static str {
        match self {
            EndedWhy::Finished => "the producer's request is finished and has no more blocks for this id",
            EndedWhy::Reaped => "the stores of this id were given up because nobody had fetched them in time",
        }
    }
}

impl StoreTable {
    pub fn parked_jobs(&self) -> usize {
        self.parked_jobs
    }

    /// Ended ids are a memory with a time limit, not work.
    pub fn is_empty(&self) -> bool {
        self.parked.is_empty() && self.bound.is_empty()
    }

    /// A new producer request takes the id up: that an earlier one finished no longer counts.
    pub fn begin_request(&mut self, cx: &mut Context, id: &KvRequestId) {
        if let Some(ended) = self.ended.get(id)
            && ended.why == EndedWhy::Finished
        {
            cx.timers.cancel(ended.forget_at, TimerKey::EndedId(id.clone()));
            self.ended.remove(id);
        }
        if let Some(parked) = self.parked.get_mut(id) {
            parked.producer_finished = false;
        }
    }

    pub fn forget_ended(&mut self, cx: &Context, id: &KvRequestId) {
        if self.ended.get(id).is_some_and(|ended| ended.forget_at <= cx.now) {
            self.ended.remove(id);
        }
    }

    /// The session is dead: its ids are bound no more. True if there are more of them.
    pub fn unbind_slice(&mut self, session: SessionId, slice: &mut Slice) -> bool {
        self.bound.remove_slice(session, slice)
    }

    fn end(&mut self, cx: &mut Context, id: &KvRequestId, why: EndedWhy) {
        let forget_at = cx.now + cx.config.timeouts.unbound_store;
        if let Some(earlier) = self.ended.insert(id.clone(), Ended { why, forget_at }) {
            cx.timers.cancel(earlier.forget_at, TimerKey::EndedId(id.clone()));
        }
        cx.timers.set(forget_at, TimerKey::EndedId(id.clone()));
    }

    fn park(&mut self, cx: &mut Context, id: &KvRequestId, store: ParkedStore) {
        let reap_at = store.deadline.unwrap_or(cx.now + cx.config.timeouts.unbound_store);
        let since = cx.now;
        let parked = self.parked.entry(id.clone()).or_insert_with(|| {
            cx.timers.set(reap_at, TimerKey::ParkedId(id.clone()));
            Parked { stores: Vec::new(), since, reap_at, producer_finished: false }
        });
        if reap_at < parked.reap_at {
            cx.timers.cancel(parked.reap_at, TimerKey::ParkedId(id.clone()));
            cx.timers.set(reap_at, TimerKey::ParkedId(id.clone()));
            parked.reap_at = reap_at;
        }
        parked.stores.push(store);
        self.parked_jobs += 1;
    }

    fn unpark(&mut self, cx: &mut Context, id: &KvRequestId) -> Option<Parked> {
        let parked = self.parked.remove(id)?;
        cx.timers.cancel(parked.reap_at, TimerKey::ParkedId(id.clone()));
        self.parked_jobs -= parked.stores.len();
        Some(parked)
    }
}

impl Manager {
    /// Where a store's blocks go: to the session that asked for the id, or to the parking place.
    /// `timeout`: its own, from now until it has ended one way or the other.
    pub(super) fn store(
        &mut self,
        id: &KvRequestId,
        job: JobId,
        keys: KeyBatch,
        blocks: Vec<BlockIndex>,
        timeout: Option<Duration>,
    ) {
        let deadline = timeout.map(|timeout| self.cx.now + timeout);
        if self.stores.ended.get(id).is_some_and(|ended| ended.why == EndedWhy::Reaped) {
            let cause = Cause::new(Outcome::NotFetched, EndedWhy::Reaped.text());
            return self.cx.finish_job(job, &cause, 0, JobFlags::default());
        }
        let Some(binding) = self.living_binding(id) else {
            return self.stores.park(&mut self.cx, id, ParkedStore { job, keys, blocks, deadline });
        };
        let (session, served) = (binding.session(), binding.served);
        let legacy = self.sessions.get(&session).is_some_and(|session| session.dialect() == Dialect::Legacy);
        match served {
            None => self.with_session(session, |session, cx| {
                session.server.add_store(cx, id, job, &keys, &blocks, deadline);
            }),
            // A legacy peer may fetch the same id again.
            Some(_) if legacy => {
                self.stores.bound.remove(id);
                self.stores.park(&mut self.cx, id, ParkedStore { job, keys, blocks, deadline });
            }
            Some(true) => self.cx.finish_job(job, &Cause::new(Outcome::Done, ""), 0, JobFlags::default()),
            Some(false) => {
                let cause = Cause::new(Outcome::NotFetched, "the peer that had asked for this id gave it up");
                self.cx.finish_job(job, &cause, 0, JobFlags::default());
            }
        }
    }

    /// A fetch that no lookup went before: stores of the id are its supply, then the directory.
    pub(super) fn on_pd_fetch(
        &mut self,
        session: SessionId,
        fetch: Fetch,
        blocks: Vec<BlockIndex>,
    ) -> Result<(), Cause> {
        let id = fetch.kv_request_id.clone();
        let refusal = self.no_stores_for(session, &fetch);
        let mut parked = None;
        if refusal.is_none() {
            self.stores.bound.insert(&id, session);
            parked = self.stores.unpark(&mut self.cx, &id);
        }
        let Some(found) = self.sessions.get_mut(&session) else { return Ok(()) };
        let cx = &mut self.cx;
        let producer_finished = parked.as_ref().is_some_and(|parked| parked.producer_finished);
        for store in parked.into_iter().flat_map(|parked| parked.stores) {
            found.server.add_store(cx, &id, store.job, &store.keys, &store.blocks, store.deadline);
        }
        found
            .server
            .on_fetch(cx, fetch, blocks, refusal)
            .map_err(|what| Cause::new(Outcome::PeerLost, format!("protocol error: {what}")))?;
        if producer_finished {
            found.server.on_producer_finished(cx, &id);
            self.stores.end(cx, &id, EndedWhy::Finished);
            self.stores.bound.remove(&id);
        }
        Ok(())
    }

    /// Why no store will ever supply this fetch; `None` if one may.
    fn no_stores_for(&self, session: SessionId, fetch: &Fetch) -> Option<String> {
        let id = &fetch.kv_request_id;
        if let Some(ended) = self.stores.ended.get(id)
            && !mutation::is(Mutation::EndedIdWaits)
        {
            return Some(ended.why.text().to_owned());
        }
        if fetch.round_seq != RoundSeq::FIRST {
            return Some(format!(
                "round {} was not looked up, and stores supply round 0 only",
                fetch.round_seq
            ));
        }
        match self.living_binding(id) {
            Some(binding) if binding.session() != session => {
                Some("the stores of this id go to another peer".to_owned())
            }
            _ => None,
        }
    }

    /// Which session the id is bound to. A dead one's binding counts no more, whenever its turn to go comes.
    fn living_binding(&self, id: &KvRequestId) -> Option<&Binding> {
        self.stores.bound.get(id).filter(|binding| self.is_living(binding.session()))
    }

    /// A round that stores supply came to its end.
    pub(super) fn on_round_ended(&mut self, session: SessionId, id: &KvRequestId, success: bool) {
        let is_living = self.is_living(session);
        let Some(binding) = self.stores.bound.get_mut(id) else { return };
        if binding.session() != session || !is_living {
            return;
        }
        if self.producer_ids.contains_key(id) {
            binding.served = Some(success);
        } else {
            self.stores.bound.remove(id);
        }
    }

    /// The peer's terminal empty fetch.
    pub(super) fn consumer_ended(&mut self, session: SessionId, id: &KvRequestId) {
        self.on_round_ended(session, id, false);
    }

    /// The engine finished the producer request of this id.
    pub(super) fn end_producer(&mut self, id: &KvRequestId) {
        if let Some(parked) = self.stores.parked.get_mut(id) {
            parked.producer_finished = true;
            return;
        }
        if let Some(binding) = self.stores.bound.remove(id) {
            self.with_session(binding.session(), |session, cx| session.server.on_producer_finished(cx, id));
        }
        if !self.stores.ended.contains_key(id) {
            self.stores.end(&mut self.cx, id, EndedWhy::Finished);
        }
    }

    /// Nobody fetched in time.
    pub(super) fn reap_parked(&mut self, id: &KvRequestId) {
        let is_due = |parked: &&Parked| parked.reap_at <= self.cx.now && !mutation::is(Mutation::NeverReaps);
        let Some(parked) = self.stores.parked.get(id).filter(is_due) else {
            return;
        };
        let waited = parked.reap_at.since(parked.since);
        self.fail_parked(
            id,
            &Cause::new(Outcome::NotFetched, format!("nobody fetched kv_request_id {id} within {waited:?}")),
        );
        self.stores.end(&mut self.cx, id, EndedWhy::Reaped);
    }

    fn fail_parked(&mut self, id: &KvRequestId, cause: &Cause) {
        let Some(parked) = self.stores.unpark(&mut self.cx, id) else { return };
        for store in parked.stores {
            self.cx.finish_job(store.job, cause, 0, JobFlags::default());
        }
    }

    pub(super) fn end_all_parked(&mut self) {
        while let Some(id) = self.stores.parked.keys().next().cloned() {
            self.fail_parked(&id, &Cause::new(Outcome::ShutDown, "this tier was freed"));
        }
    }
}
