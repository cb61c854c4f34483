//! The producer role toward one peer: lookups answered, rounds served, aborts acknowledged.
//!
//! The lifecycle of a single round is in [`round`]; how a lookup is answered is in [`lookups`]; how all ends with the
//! session in [`death`].

mod death;
mod lookups;
mod remains;
mod round;
mod supply;
mod tasks;
mod unmet;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use super::context::{Cause, Context};
use super::ids::{
    BlockIndex, BlockPair, JobId, KvRequestId, LoadToken, RoundSeq, ServeId, SessionId, TransferId,
};
use super::job::Outcome;
use super::keys::KeyBatch;
use super::message::{AbortAck, Fetch, Message, TransferDone};
use super::mutation::{self, Mutation};
use super::output::Output;
use super::steps::Slice;
use super::timer::Timestamp;

use death::Doomed;
use lookups::InboundLookup;
pub use lookups::{PinnedHits, ServeAnswer, ServeQuestion};
use remains::Remains;
use round::{Phase, Reply, Round};
use tasks::{FetchTask, Task};

/// Acknowledged aborts that are remembered, so that a repeated `abort_fetch` is not acknowledged twice.
const REMEMBERED_ACKS: usize = 1024;

/// A protocol error of the peer: the session ends with this as its reason.
pub type Violation = String;

/// Boxed: a table moves what it holds, and a round is large.
type Rounds = BTreeMap<(KvRequestId, RoundSeq), Box<Round>>;
type Lookups = BTreeMap<(KvRequestId, RoundSeq, ServeId), InboundLookup>;

#[derive(Debug)]
pub struct ServerRole {
    session: SessionId,
    rounds: Rounds,
    lookups: Lookups,
    /// What the peer has asked for last, where that is large, and what it has asked for since.
    task: Option<Task>,
    waiting: VecDeque<Message>,
    /// Keys of the messages that wait.
    keys_waiting: usize,
    /// What the session's death has not ended yet.
    doomed: Option<Doomed>,
    /// Of rounds that are over.
    remains: VecDeque<Remains>,
    acknowledged: BTreeSet<(KvRequestId, RoundSeq)>,
    acknowledged_order: VecDeque<(KvRequestId, RoundSeq)>,
    transfers_live: usize,
    stores_live: usize,
    /// Keys that the peer has named in rounds which are open.
    keys_open: usize,
    rounds_served: u64,
    bytes_out: u64,
}

/// Keys that one peer may have named in open rounds, in messages of the largest size: each costs memory here, and time
/// when the session ends.
const FULL_MESSAGES_OPEN: usize = 4;

impl ServerRole {
    #[must_use]
    pub fn new(session: SessionId) -> Self {
        ServerRole {
            session,
            rounds: BTreeMap::new(),
            lookups: BTreeMap::new(),
            task: None,
            waiting: VecDeque::new(),
            keys_waiting: 0,
            doomed: None,
            remains: VecDeque::new(),
            acknowledged: BTreeSet::new(),
            acknowledged_order: VecDeque::new(),
            transfers_live: 0,
            stores_live: 0,
            keys_open: 0,
            rounds_served: 0,
            bytes_out: 0,
        }
    }

    #[must_use]
    pub fn transfers_live(&self) -> usize {
        self.transfers_live
    }

    #[must_use]
    pub fn bytes_out(&self) -> u64 {
        self.bytes_out
    }

    #[must_use]
    pub fn rounds_served(&self) -> u64 {
        self.rounds_served
    }

    #[must_use]
    pub fn stores_live(&self) -> usize {
        self.stores_live
    }

    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.rounds.is_empty()
            && self.lookups.is_empty()
            && self.transfers_live == 0
            && !self.is_at_work()
            && self.doomed.is_none()
            && self.remains.is_empty()
    }

    /// Whether a lookup has named this round: then its pins are all the supply it will have.
    #[must_use]
    pub fn is_looked_up(&self, id: &KvRequestId, round: RoundSeq) -> bool {
        self.rounds.get(&(id.clone(), round)).is_some_and(|found| found.from_lookup)
    }

    /// The next round of the id, and what it holds.
    fn next_round_of(
        &self,
        id: &KvRequestId,
        after: Option<RoundSeq>,
    ) -> Option<((KvRequestId, RoundSeq), usize)> {
        let from = match after {
            Some(round) => Bound::Excluded((id.clone(), round)),
            None => Bound::Included((id.clone(), RoundSeq::FIRST)),
        };
        let (name, round) = self.rounds.range((from, Bound::Unbounded)).next()?;
        (name.0 == *id).then(|| (name.clone(), round.size()))
    }

    fn check_room(&self, cx: &Context) -> Result<(), Violation> {
        let open = self.rounds.len() + self.lookups.len() + self.waiting.len();
        let limit = cx.config.limits.outstanding_per_peer;
        if open < limit { Ok(()) } else { Err(format!("more than {limit} rounds and lookups open at once")) }
    }

    fn check_keys(&self, cx: &Context, more: usize) -> Result<(), Violation> {
        let limit = cx.config.limits.keys_per_message.saturating_mul(FULL_MESSAGES_OPEN);
        if self.keys_open.saturating_add(self.keys_waiting).saturating_add(more) <= limit {
            return Ok(());
        }
        Err(format!("more than {limit} keys in rounds that are open at once"))
    }

    /// Blocks that a store of the engine offers for the id: supply of its PD round. `deadline`: as in [`Round::add_job`].
    pub fn add_store(
        &mut self,
        cx: &mut Context,
        id: &KvRequestId,
        job: JobId,
        keys: &KeyBatch,
        blocks: &[BlockIndex],
        deadline: Option<Timestamp>,
    ) {
        let name = (id.clone(), RoundSeq::FIRST);
        let session = self.session;
        let round = self.rounds.entry(name.clone()).or_insert_with(|| Box::new(Round::new(cx)));
        round.add_job(cx, job, deadline);
        round.expect_store(keys);
        self.stores_live += 1;
        let mut pairs = Vec::new();
        for (key, block) in keys.iter().zip(blocks) {
            round.supply_from_job(cx, key, *block, &mut pairs);
        }
        round.set_timer(cx, (session, &name));
        self.write(cx, &name, pairs);
        self.settle(cx, &name);
    }

    /// A key was published that a round of this session wants: what to write goes to `pairs`.
    pub fn on_published(
        &mut self,
        cx: &mut Context,
        (id, round): (&KvRequestId, RoundSeq),
        key: &[u8],
        pairs: &mut Vec<BlockPair>,
    ) {
        if let Some(found) = self.rounds.get_mut(&(id.clone(), round)) {
            found.supply_from_directory(cx, key, pairs);
        }
    }

    /// What a non-empty `fetch` asks for. `blocks` are inside the peer's region. `refusal`: why no store can come for it.
    pub fn on_fetch(
        &mut self,
        cx: &mut Context,
        fetch: Fetch,
        mut blocks: Vec<BlockIndex>,
        refusal: Option<String>,
    ) -> Result<(), Violation> {
        let name = (fetch.kv_request_id, fetch.round_seq);
        self.forget_acknowledgement(&name);
        if !self.rounds.contains_key(&name) {
            self.check_room(cx)?;
        }
        self.check_keys(cx, fetch.keys.len())?;
        let round = self.rounds.entry(name.clone()).or_insert_with(|| Box::new(Round::new(cx)));
        if round.has_demand() {
            return Err(format!(
                "second fetch for kv_request_id {} round {}, whose first is still open",
                name.0, name.1
            ));
        }
        round.keys_named += fetch.keys.len();
        self.keys_open += fetch.keys.len();
        round.begin_demand(cx, blocks.len(), fetch.load_token);
        if mutation::is(Mutation::PairsWrongly) {
            blocks.reverse();
        }
        let pairs = Vec::with_capacity(blocks.len().min(cx.config.slice));
        let (keys, settled) = (fetch.keys, ServeId(0));
        self.begin(cx, Task::Fetch(FetchTask { name, keys, blocks, refusal, settled, matched: 0, pairs }));
        Ok(())
    }

    /// The terminal empty `fetch`: the peer is done with the id.
    pub fn on_end_of_id(&mut self, cx: &mut Context, id: KvRequestId) {
        self.begin(cx, Task::EndOfId { id, after: None });
    }

    pub fn on_abort_fetch(&mut self, cx: &mut Context, id: &KvRequestId, round: RoundSeq) {
        let name = (id.clone(), round);
        if self.acknowledged.contains(&name) && !mutation::is(Mutation::AcksTwice) {
            cx.stats.messages_late += 1;
        } else if self.rounds.contains_key(&name) {
            let reply = if mutation::is(Mutation::AcksWhileWriting) {
                self.acknowledge(cx, &name);
                Reply::Nothing
            } else {
                Reply::AbortAck
            };
            self.end(cx, &name, Cause::new(Outcome::Aborted, "the peer aborted the round"), reply);
        } else {
            self.acknowledge(cx, &name);
        }
    }

    /// The engine finished the producer request: what is still unmet will stay so. Stores are for the first round; others
    /// wait for none.
    pub fn on_producer_finished(&mut self, cx: &mut Context, id: &KvRequestId) {
        let name = (id.clone(), RoundSeq::FIRST);
        if let Some(found) = self.rounds.get_mut(&name)
            && !found.from_lookup
        {
            found.producer_finished = true;
            self.settle(cx, &name);
        }
    }

    pub fn on_transfer_done(
        &mut self,
        cx: &mut Context,
        id: &KvRequestId,
        round: RoundSeq,
        transfer: TransferId,
    ) {
        let name = (id.clone(), round);
        self.transfers_live -= 1;
        self.end_doomed(cx, &name);
        let Some(found) = self.rounds.get_mut(&name) else { return };
        if let Some(blocks) = found.transfer_ended(transfer) {
            found.moved(blocks);
            let bytes = u64::from(blocks) * cx.config.block_len;
            cx.stats.bytes_out += bytes;
            self.bytes_out += bytes;
        }
        self.settle(cx, &name);
    }

    /// False if the round was ending already: then the transfer was to be cancelled, and says nothing of the peer.
    pub fn on_transfer_failed(
        &mut self,
        cx: &mut Context,
        id: &KvRequestId,
        round: RoundSeq,
        transfer: TransferId,
        cause: Cause,
    ) -> bool {
        let name = (id.clone(), round);
        self.transfers_live -= 1;
        self.end_doomed(cx, &name);
        let Some(found) = self.rounds.get_mut(&name) else { return false };
        let was_open = found.phase == Phase::Open;
        found.transfer_ended(transfer);
        self.end(cx, &name, cause, Reply::TransferDone);
        was_open
    }

    pub fn on_round_timer(&mut self, cx: &mut Context, id: &KvRequestId, round: RoundSeq) {
        let name = (id.clone(), round);
        let session = self.session;
        let Some(found) = self.rounds.get_mut(&name) else { return };
        match found.on_timer(cx) {
            round::Due::Nothing => {}
            round::Due::Forget => return drop(self.remove_round(&name)),
            round::Due::StoreTooOld => {
                let cause = Cause::new(Outcome::TimedOut, "the store was not moved within its deadline");
                return self.end(cx, &name, cause, Reply::TransferDone);
            }
            round::Due::PinTooOld => {
                self.stores_live -= found.jobs.len();
                let remains = found.expire(cx);
                self.let_go(cx, remains);
            }
            round::Due::Stuck => log::warn!(
                "session {session}: transfers of kv_request_id {id} round {round} are still under way {:?} after the \
                 round ended; its blocks stay pinned until they are over",
                cx.config.timeouts.stuck_transfer_warning
            ),
        }
        if let Some(found) = self.rounds.get_mut(&name) {
            found.set_timer(cx, (session, &name));
        }
    }

    fn remove_round(&mut self, name: &(KvRequestId, RoundSeq)) -> Option<Box<Round>> {
        let round = self.rounds.remove(name)?;
        self.keys_open = self.keys_open.saturating_sub(round.keys_named);
        Some(round)
    }

    /// Posts a transfer of the round, if there is something to write and the round is open.
    pub fn write(&mut self, cx: &mut Context, name: &(KvRequestId, RoundSeq), pairs: Vec<BlockPair>) {
        let Some(round) = self.rounds.get_mut(name) else { return };
        if pairs.is_empty() || round.phase != Phase::Open {
            return;
        }
        let transfer = cx.new_transfer_id();
        round.transfer_began(transfer, pairs.len());
        cx.transfers.insert(transfer, (self.session, name.0.clone(), name.1));
        self.transfers_live += 1;
        let load = round.load_token.map(LoadToken);
        cx.emit(Output::Write { session: self.session, transfer, load, blocks: pairs });
    }

    /// Ends a round with a verdict; the first one stands.
    fn end(&mut self, cx: &mut Context, name: &(KvRequestId, RoundSeq), cause: Cause, reply: Reply) {
        let session = self.session;
        let Some(round) = self.rounds.get_mut(name) else { return };
        let began = round.end(cx.now, cause, reply);
        if began {
            if mutation::is(Mutation::ReleasesWhileReading) {
                self.stores_live -= round.jobs.len();
                round.expire(cx).let_go_all(cx);
            }
            let transfers = round.transfers_under_way();
            if !transfers.is_empty() {
                cx.emit(Output::CancelTransfers { session, transfers });
            }
            round.set_timer(cx, (session, name));
        }
        self.settle(cx, name);
    }

    /// Completes a round if nothing more is to come of it.
    fn settle(&mut self, cx: &mut Context, name: &(KvRequestId, RoundSeq)) {
        let session = self.session;
        let Some(round) = self.rounds.get_mut(name) else { return };
        if !round.decide(cx.now) {
            return;
        }
        let Some(mut round) = self.remove_round(name) else { return };
        self.stores_live -= round.jobs.len();
        let (reply, remains) = round.finish(cx, (session, name), false);
        self.let_go(cx, remains);
        if !round.from_lookup && name.1 == RoundSeq::FIRST {
            cx.ended_rounds.push((session, name.0.clone(), round.succeeded()));
        }
        let done = |success| {
            Message::TransferDone(TransferDone { kv_request_id: name.0.clone(), success, round_seq: name.1 })
        };
        match reply {
            Reply::Nothing => {}
            Reply::AbortAck => self.acknowledge(cx, name),
            Reply::TransferDone => {
                let success = round.succeeded();
                self.rounds_served += u64::from(success);
                cx.say(session, done(success));
                if mutation::is(Mutation::EndOfRoundEndsAll) {
                    self.end_id_slice(cx, name.0.clone(), None, &mut Slice::new(usize::MAX));
                }
            }
        }
    }

    /// Lets go what a round held: at once, if it is little.
    fn let_go(&mut self, cx: &mut Context, remains: Remains) {
        if remains.size() <= cx.config.slice {
            return remains.let_go_all(cx);
        }
        self.remains.push_back(remains);
        cx.busy.insert(self.session);
    }

    /// Does a slice of what is left to do. True if there is more.
    pub fn work(&mut self, cx: &mut Context, slice: &mut Slice) -> bool {
        self.end_doomed_slice(cx, slice);
        self.do_task(cx, slice);
        while !slice.is_spent()
            && let Some(remains) = self.remains.front_mut()
        {
            remains.let_go(cx, slice);
            if remains.size() == 0 {
                self.remains.pop_front();
            }
        }
        self.is_at_work() || self.doomed.is_some() || !self.remains.is_empty()
    }

    fn acknowledge(&mut self, cx: &mut Context, name: &(KvRequestId, RoundSeq)) {
        cx.say(
            self.session,
            Message::AbortAck(AbortAck { kv_request_id: name.0.clone(), round_seq: name.1 }),
        );
        if self.acknowledged.insert(name.clone()) {
            self.acknowledged_order.push_back(name.clone());
        }
        if self.acknowledged_order.len() > REMEMBERED_ACKS
            && let Some(oldest) = self.acknowledged_order.pop_front()
        {
            self.acknowledged.remove(&oldest);
        }
    }

    /// The id begins anew at this round.
    fn forget_acknowledgement(&mut self, name: &(KvRequestId, RoundSeq)) {
        if self.acknowledged.remove(name) {
            self.acknowledged_order.retain(|other| other != name);
        }
    }
}
