//! Lookups of the peer: answered from the block directory, then by the engine, one response each.
//!
//! ```text
//!   arrived ──► Unasked ──question──► Asking ──answer──► Asked ──► (gone): response
//!                                       ▲                  │
//!                                       └──── question ────┘
//! ```
//!
//! A serving context is opened toward the engine by the first question and closed once, on every path.

use std::ops::Bound;

use crate::protocol::context::{Cause, Context, TimerKey};
use crate::protocol::ids::{BlockIndex, JobId, KvRequestId, RoundSeq, ServeId};
use crate::protocol::job::{JobFlags, JobKind, LookupState, Outcome};
use crate::protocol::keys::KeyBatch;
use crate::protocol::message::{Lookup, LookupResp, Message};
use crate::protocol::steps::{KEY, Slice};
use crate::protocol::timer::Timestamp;

use super::round::Round;
use super::tasks::Task;
use super::{ServerRole, Violation};

#[derive(Debug)]
pub struct InboundLookup {
    keys: KeyBatch,
    /// By position; `None` = not settled.
    answers: Vec<Option<bool>>,
    state: AskState,
    deadline: Timestamp,
    /// What the next answer leaves open becomes a miss.
    last_chance: bool,
}

/// A lookup that the directory is being asked about.
#[derive(Debug)]
pub struct LookupTask {
    name: (KvRequestId, RoundSeq),
    keys: KeyBatch,
    /// No fetch has closed the round.
    is_open: bool,
    /// As far as the directory was asked.
    answers: Vec<Option<bool>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum AskState {
    Unasked,
    /// The engine is being asked about these positions.
    Asking {
        positions: Vec<usize>,
    },
    Asked,
}

/// Keys to ask the engine about, outside any lock.
#[derive(Clone, Debug)]
pub struct ServeQuestion {
    pub serve: ServeId,
    /// The engine has not heard of this context yet.
    pub opens: bool,
    pub kv_request_id: KvRequestId,
    pub keys: KeyBatch,
}

/// Blocks that one job of the engine pins: one entry for each of its hits, `None` = a miss after all.
#[derive(Clone, Debug)]
pub struct PinnedHits {
    /// `None` = nothing was pinned.
    pub job: Option<JobId>,
    pub blocks: Vec<Option<BlockIndex>>,
}

/// What the engine said: a state for each key, and the blocks it pinned for those that are hits.
#[derive(Clone, Debug)]
pub struct ServeAnswer {
    pub states: Vec<LookupState>,
    /// The jobs that hold the pins of the hits, in order.
    pub pinned: Vec<PinnedHits>,
}

impl InboundLookup {
    /// It was removed: its context is closed unless the engine is in the middle of it, when the answer closes it.
    pub fn forget(&self, cx: &mut Context, serve: ServeId) {
        cx.timers.cancel(self.deadline, TimerKey::Serve(serve));
        cx.serve.unsettled.remove(&serve);
        if self.state == AskState::Asked {
            cx.serve.close(serve);
        }
    }
}

impl ServerRole {
    pub fn on_lookup(&mut self, cx: &mut Context, lookup: Lookup) -> Result<(), Violation> {
        self.check_room(cx)?;
        self.check_keys(cx, lookup.keys.len())?;
        let name = (lookup.kv_request_id, lookup.round_seq);
        self.forget_acknowledgement(&name);
        let session = self.session;
        let round = self.rounds.entry(name.clone()).or_insert_with(|| Box::new(Round::new(cx)));
        round.keys_named += lookup.keys.len();
        self.keys_open += lookup.keys.len();
        let is_open = round.looked_up(cx.now);
        if is_open {
            round.expect_lookup(cx, &lookup.keys);
        }
        round.set_timer(cx, (session, &name));
        let answers = Vec::with_capacity(lookup.keys.len());
        self.begin(cx, Task::Lookup(LookupTask { name, keys: lookup.keys, is_open, answers }));
        Ok(())
    }

    /// Asks the block directory about some keys. The task again, if some are left.
    pub(super) fn lookup_slice(
        &mut self,
        cx: &mut Context,
        mut lookup: LookupTask,
        slice: &mut Slice,
    ) -> Option<Task> {
        let round = self.rounds.get_mut(&lookup.name).filter(|_| lookup.is_open);
        let engine_serves = cx.serve.engine_serves && round.is_some();
        let some = lookup.keys.iter_from(lookup.answers.len()).take(slice.left());
        slice.spend(KEY * some.len());
        match round {
            Some(round) => lookup.answers.extend(some.map(|key| {
                let hit = round.pin_looked_up(cx, key);
                (hit || !engine_serves).then_some(hit)
            })),
            None => lookup.answers.extend(some.map(|_| Some(false))),
        }
        if lookup.answers.len() < lookup.keys.len() {
            return Some(Task::Lookup(lookup));
        }
        if !engine_serves || lookup.answers.iter().all(Option::is_some) {
            self.respond(cx, lookup.name.0, lookup.keys, &lookup.answers);
        } else {
            self.leave_to_engine(cx, lookup);
        }
        None
    }

    fn leave_to_engine(&mut self, cx: &mut Context, lookup: LookupTask) {
        let (id, round) = lookup.name;
        let serve = cx.new_serve_id();
        let deadline = cx.now + cx.config.timeouts.serve;
        cx.timers.set(deadline, TimerKey::Serve(serve));
        cx.serve.unsettled.insert(serve, (self.session, id.clone(), round));
        cx.serve.has_news = true;
        let inbound = InboundLookup {
            keys: lookup.keys,
            answers: lookup.answers,
            state: AskState::Unasked,
            deadline,
            last_chance: false,
        };
        self.lookups.insert((id, round, serve), inbound);
    }

    fn respond(
        &mut self,
        cx: &mut Context,
        kv_request_id: KvRequestId,
        keys: KeyBatch,
        answers: &[Option<bool>],
    ) {
        cx.stats.lookups_answered += 1;
        let hits = answers.iter().map(|answer| answer.unwrap_or(false)).collect();
        cx.say(self.session, Message::LookupResp(LookupResp { kv_request_id, keys, hits }));
    }

    /// What to ask the engine for this lookup now; `None` while it is being asked.
    pub fn question(&mut self, id: &KvRequestId, round: RoundSeq, serve: ServeId) -> Option<ServeQuestion> {
        let inbound = self.lookups.get_mut(&(id.clone(), round, serve))?;
        let opens = match inbound.state {
            AskState::Asking { .. } => return None,
            AskState::Unasked => true,
            AskState::Asked => false,
        };
        let open = |(position, answer): (usize, &Option<bool>)| answer.is_none().then_some(position);
        let positions: Vec<usize> = inbound.answers.iter().enumerate().filter_map(open).collect();
        let keys = positions.iter().filter_map(|position| inbound.keys.get(*position)).collect();
        inbound.state = AskState::Asking { positions };
        Some(ServeQuestion { serve, opens, kv_request_id: id.clone(), keys })
    }

    /// Takes the engine's answer. False if the lookup is gone; the caller then lets the pins go.
    pub fn answer(
        &mut self,
        cx: &mut Context,
        id: &KvRequestId,
        round: RoundSeq,
        serve: ServeId,
        answer: &ServeAnswer,
    ) -> bool {
        let name = (id.clone(), round, serve);
        let Some(inbound) = self.lookups.get_mut(&name) else { return false };
        let AskState::Asking { positions } = std::mem::replace(&mut inbound.state, AskState::Asked) else {
            return true;
        };
        let mut hits = Vec::new();
        for (position, state) in positions.iter().zip(&answer.states) {
            let Some(slot) = inbound.answers.get_mut(*position) else { continue };
            match state {
                // Until its pin is known.
                LookupState::Hit => hits.push(*position),
                LookupState::Miss => {}
                LookupState::Pending | LookupState::Retry => continue,
            }
            *slot = Some(false);
        }
        let mut hits = hits.into_iter();
        for pinned in &answer.pinned {
            let held = pinned.blocks.iter().zip(hits.by_ref());
            let held: Vec<(usize, BlockIndex)> =
                held.filter_map(|(block, position)| block.map(|block| (position, block))).collect();
            if let Some(job) = pinned.job {
                self.take_pins(cx, &name, job, &held);
            }
        }
        self.conclude(cx, &name);
        true
    }

    /// Puts what the engine pinned into the round, or lets it go where no fetch can ask for it any more.
    fn take_pins(
        &mut self,
        cx: &mut Context,
        name: &(KvRequestId, RoundSeq, ServeId),
        job: JobId,
        held: &[(usize, BlockIndex)],
    ) {
        let round_name = (name.0.clone(), name.1);
        let session = self.session;
        cx.open_job(job, JobKind::Store);
        let (Some(inbound), Some(round)) = (self.lookups.get_mut(name), self.rounds.get_mut(&round_name))
        else {
            return let_go(cx, job);
        };
        if round.has_demand() || held.is_empty() {
            return let_go(cx, job);
        }
        round.add_job(cx, job, None);
        self.stores_live += 1;
        let mut no_pairs = Vec::new();
        for (position, block) in held {
            if let (Some(key), Some(slot)) = (inbound.keys.get(*position), inbound.answers.get_mut(*position))
            {
                round.supply_from_job(cx, key, *block, &mut no_pairs);
                *slot = Some(true);
            }
        }
        round.set_timer(cx, (session, &round_name));
    }

    pub fn on_serve_deadline(&mut self, cx: &mut Context, id: &KvRequestId, round: RoundSeq, serve: ServeId) {
        let name = (id.clone(), round, serve);
        if let Some(inbound) = self.lookups.get_mut(&name) {
            inbound.last_chance = true;
            self.conclude(cx, &name);
        }
    }

    /// The next open lookup of the round: a fetch closes it, and what is still open of its lookups is a miss.
    pub(super) fn next_lookup_of(
        &self,
        (id, round): &(KvRequestId, RoundSeq),
        after: ServeId,
    ) -> Option<ServeId> {
        let from = Bound::Excluded((id.clone(), *round, after));
        let to = Bound::Included((id.clone(), *round, ServeId(u64::MAX)));
        self.lookups.range((from, to)).next().map(|((_, _, serve), _)| *serve)
    }

    /// Responds and closes the context, if everything is settled or no more time is given.
    fn conclude(&mut self, cx: &mut Context, name: &(KvRequestId, RoundSeq, ServeId)) {
        let Some(inbound) = self.lookups.get(name) else { return };
        let asking = matches!(inbound.state, AskState::Asking { .. });
        let settled = inbound.last_chance || inbound.answers.iter().all(Option::is_some);
        if asking || !settled {
            return;
        }
        if let Some(inbound) = self.take_lookup(cx, name) {
            self.respond(cx, name.0.clone(), inbound.keys, &inbound.answers);
        }
    }

    fn take_lookup(
        &mut self,
        cx: &mut Context,
        name: &(KvRequestId, RoundSeq, ServeId),
    ) -> Option<InboundLookup> {
        let inbound = self.lookups.remove(name)?;
        inbound.forget(cx, name.2);
        Some(inbound)
    }

    /// Forgets one lookup of the id. False if there is none.
    pub(super) fn drop_lookup_of(&mut self, cx: &mut Context, id: &KvRequestId) -> bool {
        let from = (id.clone(), RoundSeq::FIRST, ServeId(0));
        let first = self.lookups.range(from..).next().map(|(name, _)| name);
        let Some(name) = first.filter(|name| name.0 == *id).cloned() else { return false };
        self.take_lookup(cx, &name).is_some()
    }
}

fn let_go(cx: &mut Context, job: JobId) {
    let cause = Cause::new(Outcome::NotFetched, "no fetch can ask for these hits any more");
    cx.finish_job(job, &cause, 0, JobFlags::default());
}
