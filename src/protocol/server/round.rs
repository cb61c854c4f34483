//! One round of the producer role: supply meets demand.
//!
//! ```text
//!                 all demanded blocks moved
//!        Open ─────────────────────────────────────► (gone): transfer_done(true)
//!         │ transfer failed, key not pinned, store too old, abort,
//!         │ producer finished, end of id, session death
//!         ▼
//!       Ending ── no transfer under way any more ──► (gone): its one reply
//! ```
//!
//! Jobs and pins are let go when the round is gone, and not before: a posted write cannot be stopped.

use std::cell::LazyCell;
use std::ops::Range;

use smallvec::SmallVec;

use crate::protocol::context::{Cause, Context, TimerKey};
use crate::protocol::directory::Pin;
use crate::protocol::ids::{
    BlockIndex, BlockPair, JobId, KvRequestId, RoundSeq, SessionId, TransferId, WaiterId,
};
use crate::protocol::job::{JobFlags, Outcome};
use crate::protocol::key_table::KeyHash;
use crate::protocol::keys::KeyBatch;
use crate::protocol::mutation::{self, Mutation};
use crate::protocol::steps::KEY;
use crate::protocol::timer::Timestamp;

use super::remains::Remains;
use super::supply::{Source, Supply};
use super::unmet::Unmet;

/// Session, id and number of the round at hand.
pub type Named<'a> = (SessionId, &'a (KvRequestId, RoundSeq));

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    Open,
    Ending { cause: Cause, reply: Reply },
}

/// What the peer is told when the round is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    AbortAck,
    Nothing,
    TransferDone,
}

/// What a round's timer found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Forget,
    Nothing,
    PinTooOld,
    StoreTooOld,
    Stuck,
}

#[derive(Debug)]
pub struct RoundJob {
    pub job: JobId,
    blocks_matched: u64,
}

#[derive(Debug)]
pub struct Round {
    pub phase: Phase,
    /// A lookup named this round: its supply is what that pinned, nothing more will come.
    pub from_lookup: bool,
    pub producer_finished: bool,
    pub load_token: Option<u64>,
    /// Keys of the lookups and the fetch that named this round.
    pub keys_named: usize,
    pub jobs: SmallVec<[RoundJob; 2]>,
    /// The first deadline of its stores: all of them end with the round.
    store_deadline: Option<Timestamp>,
    supply: Supply,
    /// Of published blocks that were found for the fetch itself, where no lookup had pinned them.
    pins: Vec<Pin>,
    unmet: Unmet,
    /// Under which it waits for keys to be published, if it does.
    waiter: Option<WaiterId>,
    demanded: Option<Demand>,
    transfers: SmallVec<[(TransferId, u32); 1]>,
    began: Timestamp,
    ended: Timestamp,
    timer: Option<Timestamp>,
    warned: bool,
    /// Nobody fetched what the lookup pinned; the round is kept to refuse a late fetch at once.
    expired: bool,
}

#[derive(Clone, Copy, Debug)]
struct Demand {
    /// Blocks that have not been moved.
    remaining: usize,
    /// Blocks whose keys have not been looked for.
    unmatched: usize,
}

impl Round {
    pub fn new(cx: &Context) -> Self {
        Round {
            phase: Phase::Open,
            from_lookup: false,
            producer_finished: false,
            load_token: None,
            keys_named: 0,
            jobs: SmallVec::new(),
            store_deadline: None,
            supply: Supply::new(cx.hasher()),
            pins: Vec::new(),
            unmet: Unmet::new(cx.hasher()),
            waiter: None,
            demanded: None,
            transfers: SmallVec::new(),
            began: cx.now,
            ended: cx.now,
            timer: None,
            warned: false,
            expired: false,
        }
    }

    /// A lookup names the round: its pins get their full time from now. False if a fetch has closed the round already.
    pub fn looked_up(&mut self, now: Timestamp) -> bool {
        if self.demanded.is_some() {
            return false;
        }
        self.from_lookup = true;
        self.began = now;
        self.expired = false;
        true
    }

    pub fn has_demand(&self) -> bool {
        self.demanded.is_some()
    }

    /// Destination blocks that nothing has been found for.
    pub fn unmet(&self) -> usize {
        self.unmet.blocks()
    }

    /// What it holds, as [`Remains::size`] counts it.
    pub fn size(&self) -> usize {
        KEY * (self.supply.len() + self.pins.len() + self.unmet.len())
    }

    /// `deadline`: the job's own; `None` = the tier's, from now.
    pub fn add_job(&mut self, cx: &Context, job: JobId, deadline: Option<Timestamp>) {
        let deadline = deadline.unwrap_or(cx.now + cx.config.timeouts.store);
        self.store_deadline = Some(self.store_deadline.map_or(deadline, |first| first.min(deadline)));
        self.jobs.push(RoundJob { job, blocks_matched: 0 });
    }

    /// Offers a block of the job added last; demand that waits for it is met. A key that was offered before stays as it was.
    pub fn supply_from_job(
        &mut self,
        cx: &mut Context,
        key: &[u8],
        block: BlockIndex,
        pairs: &mut Vec<BlockPair>,
    ) {
        let owner = self.jobs.len().saturating_sub(1);
        let hash = self.supply.hash(key);
        if self.supply.find(hash, key).is_none() {
            // Without room it is as if it had not been stored: a fetch of it waits, and is refused in the end.
            let _ = self.supply.add(hash, key, block, Source::Job(owner));
        }
        let met = self.meet(cx, hash, key, block, pairs);
        self.credit(owner, met);
    }

    fn credit(&mut self, owner: usize, blocks: u64) {
        if let Some(owner) = self.jobs.get_mut(owner) {
            owner.blocks_matched += blocks;
        }
    }

    /// A lookup names the key: its published block is pinned, for the fetch to find. False if there is none.
    pub fn pin_looked_up(&mut self, cx: &mut Context, key: &[u8]) -> bool {
        let hash = self.supply.hash(key);
        if self.supply.find(hash, key).is_some() {
            return true;
        }
        let Some((block, pin)) = cx.directory.pin(self.supply.last_pin(), key, || hash) else { return false };
        match self.supply.add(hash, key, block, Source::Directory(pin)) {
            Ok(()) => true,
            Err(Source::Directory(pin)) => {
                cx.directory.unpin(pin);
                false
            }
            Err(Source::Job(_)) => false,
        }
    }

    /// The key was published: demand that waits for it is met.
    pub fn supply_from_directory(&mut self, cx: &mut Context, key: &[u8], pairs: &mut Vec<BlockPair>) {
        let hash = self.unmet.hash(key);
        if self.unmet.wants(hash, key)
            && let Some(block) = self.pin_for_demand(cx, key, || hash)
        {
            self.meet(cx, hash, key, block, pairs);
        }
    }

    /// Nobody asks for the block by its key again: the pin alone is kept.
    fn pin_for_demand(
        &mut self,
        cx: &mut Context,
        key: &[u8],
        hash: impl FnOnce() -> KeyHash,
    ) -> Option<BlockIndex> {
        let (block, pin) = cx.directory.pin(self.pins.last(), key, hash)?;
        self.pins.push(pin);
        Some(block)
    }

    /// A lookup names these keys: there is room for as many of them as the directory can have.
    pub fn expect_lookup(&mut self, cx: &Context, keys: &KeyBatch) {
        let count = keys.len().min(cx.directory.len());
        self.supply.reserve(count, keys.bytes().min(count.saturating_mul(cx.config.limits.key_len)));
    }

    /// A store brings these keys.
    pub fn expect_store(&mut self, keys: &KeyBatch) {
        self.supply.reserve(keys.len(), keys.bytes());
    }

    fn meet(
        &mut self,
        cx: &mut Context,
        hash: KeyHash,
        key: &[u8],
        local: BlockIndex,
        pairs: &mut Vec<BlockPair>,
    ) -> u64 {
        if self.unmet.blocks() == 0 {
            return 0;
        }
        let Some(destinations) = self.unmet.meet(hash, key) else { return 0 };
        if let Some(waiter) = self.waiter {
            cx.wanted.remove(hash, waiter);
        }
        pairs.extend(destinations.iter().map(|remote| BlockPair { local, remote: *remote }));
        destinations.len() as u64
    }

    /// A fetch asks for so many blocks; what they are follows in [`Self::demand`].
    pub fn begin_demand(&mut self, cx: &Context, blocks: usize, load_token: Option<u64>) {
        self.demanded = Some(Demand { remaining: blocks, unmatched: blocks });
        self.load_token = load_token;
        if !self.from_lookup {
            self.pins.reserve(blocks.min(cx.directory.len()));
        }
    }

    /// Keys of the fetch are still to come, and not in vain.
    pub fn is_matching(&self) -> bool {
        self.phase == Phase::Open && self.demanded.is_some_and(|demand| demand.unmatched > 0)
    }

    /// Takes some of a fetch's demand: what stores or the directory have goes to `pairs`, the rest waits.
    pub fn demand(
        &mut self,
        cx: &mut Context,
        named: Named<'_>,
        keys: &KeyBatch,
        blocks: &[BlockIndex],
        some: Range<usize>,
        pairs: &mut Vec<BlockPair>,
    ) {
        if let Some(demand) = &mut self.demanded {
            demand.unmatched = demand.unmatched.saturating_sub(some.len());
        }
        let left = blocks.len() - some.start;
        let blocks = blocks.get(some.clone()).unwrap_or_default();
        let hasher = cx.hasher();
        for (key, remote) in keys.iter_from(some.start).zip(blocks) {
            // Once for all tables, and only if one of them is asked.
            let hash = LazyCell::new(|| KeyHash::new(&hasher, key));
            match self.local_block(cx, key, || *hash) {
                Some(local) => pairs.push(BlockPair { local, remote: *remote }),
                None => {
                    self.unmet.reserve_first(left, keys.bytes());
                    self.want(cx, named, (key, *hash), *remote);
                }
            }
        }
    }

    /// What the round can serve under the key now.
    fn local_block(
        &mut self,
        cx: &mut Context,
        key: &[u8],
        hash: impl Fn() -> KeyHash,
    ) -> Option<BlockIndex> {
        if !self.supply.is_empty()
            && let Some((block, source)) = self.supply.find(hash(), key)
        {
            let block = *block;
            if let Source::Job(owner) = *source {
                self.credit(owner, 1);
            }
            return Some(block);
        }
        if self.from_lookup { None } else { self.pin_for_demand(cx, key, hash) }
    }

    fn want(
        &mut self,
        cx: &mut Context,
        (session, (id, round)): Named<'_>,
        (key, hash): (&[u8], KeyHash),
        remote: BlockIndex,
    ) {
        if self.unmet.add(hash, key, remote) && !self.from_lookup {
            let waiter = *self.waiter.get_or_insert_with(|| cx.wanted.enter((session, id.clone(), *round)));
            cx.wanted.insert(hash, waiter);
        }
    }

    pub fn transfer_began(&mut self, transfer: TransferId, blocks: usize) {
        self.transfers.push((transfer, u32::try_from(blocks).unwrap_or(u32::MAX)));
    }

    /// How many blocks the transfer had, if it was this round's.
    pub fn transfer_ended(&mut self, transfer: TransferId) -> Option<u32> {
        let position = self.transfers.iter().position(|(other, _)| *other == transfer)?;
        Some(self.transfers.remove(position).1)
    }

    pub fn moved(&mut self, blocks: u32) {
        if let Some(demand) = &mut self.demanded {
            demand.remaining = demand.remaining.saturating_sub(blocks as usize);
        }
    }

    pub fn transfers_under_way(&self) -> Vec<TransferId> {
        self.transfers.iter().map(|(transfer, _)| *transfer).collect()
    }

    /// Gives the round its verdict. The first cause stands; an abort that comes later still wants its
    /// acknowledgement. True if the round was open until now.
    pub fn end(&mut self, now: Timestamp, cause: Cause, reply: Reply) -> bool {
        let reply =
            if reply == Reply::TransferDone && self.demanded.is_none() { Reply::Nothing } else { reply };
        match &mut self.phase {
            Phase::Open => {
                self.phase = Phase::Ending { cause, reply };
                self.ended = now;
                true
            }
            Phase::Ending { reply: owed, .. } => {
                *owed = match (*owed, reply) {
                    (Reply::AbortAck, _) | (_, Reply::AbortAck) => Reply::AbortAck,
                    (Reply::Nothing, _) | (_, Reply::Nothing) => Reply::Nothing,
                    (Reply::TransferDone, Reply::TransferDone) => Reply::TransferDone,
                };
                false
            }
        }
    }

    pub fn succeeded(&self) -> bool {
        matches!(&self.phase, Phase::Ending { cause, .. } if cause.outcome == Outcome::Done)
    }

    /// Draws the conclusion that the counts allow. True if the round is over and nothing of it is under way.
    pub fn decide(&mut self, now: Timestamp) -> bool {
        if self.phase == Phase::Open
            && let Some(demand) = self.demanded
        {
            if demand.remaining == 0 {
                self.end(now, Cause::new(Outcome::Done, ""), Reply::TransferDone);
            } else if self.producer_finished
                && demand.unmatched == 0
                && self.transfers.is_empty()
                && self.unmet() > 0
            {
                let why =
                    format!("the request was finished with {} blocks asked for and not stored", self.unmet());
                self.end(now, Cause::new(Outcome::Aborted, why), Reply::TransferDone);
            }
        }
        self.phase != Phase::Open && self.transfers.is_empty()
    }

    /// Ends the jobs. What is held is to be let go after that. `abandoned`: transfers may still be reading.
    pub fn finish(&mut self, cx: &mut Context, named: Named<'_>, abandoned: bool) -> (Reply, Remains) {
        self.cancel_timer(cx, named);
        let (cause, reply) = match &self.phase {
            Phase::Ending { cause, reply } => (cause.clone(), *reply),
            Phase::Open => (Cause::new(Outcome::Aborted, "the round was given up"), Reply::Nothing),
        };
        let flags =
            JobFlags { may_still_be_read: abandoned && !self.transfers.is_empty(), ..JobFlags::default() };
        let block_len = cx.config.block_len;
        for owner in std::mem::take(&mut self.jobs) {
            let bytes = if cause.outcome == Outcome::Done { owner.blocks_matched * block_len } else { 0 };
            cx.finish_job(owner.job, &cause, bytes, flags);
        }
        (reply, self.take_remains(cx))
    }

    /// Nobody fetched in time what a lookup pinned.
    pub fn expire(&mut self, cx: &mut Context) -> Remains {
        self.expired = true;
        let cause =
            Cause::new(Outcome::NotFetched, "the peer looked the blocks up and did not fetch them in time");
        for owner in std::mem::take(&mut self.jobs) {
            cx.finish_job(owner.job, &cause, 0, JobFlags::default());
        }
        self.take_remains(cx)
    }

    fn take_remains(&mut self, cx: &mut Context) -> Remains {
        let leaks = mutation::is(Mutation::LeaksLookupPins) && self.from_lookup;
        let mut supply = self.supply.take();
        let mut pins = std::mem::take(&mut self.pins);
        if leaks {
            supply.clear();
            pins.clear();
        }
        let waiter = self.waiter.take();
        waiter.into_iter().for_each(|waiter| cx.wanted.leave(waiter));
        let unmet = std::mem::replace(&mut self.unmet, Unmet::new(cx.hasher()));
        Remains { supply, pins, unmet, waiter, spent: KeyBatch::new() }
    }

    fn is_looked_up_only(&self) -> bool {
        self.from_lookup && self.demanded.is_none()
    }

    pub fn on_timer(&mut self, cx: &Context) -> Due {
        self.timer = None;
        let timeouts = &cx.config.timeouts;
        let is_due = |since: Timestamp, span| cx.now >= since + span;
        if let Phase::Ending { .. } = self.phase {
            let stuck = !self.warned && is_due(self.ended, timeouts.stuck_transfer_warning);
            self.warned |= stuck;
            return if stuck { Due::Stuck } else { Due::Nothing };
        }
        if self.is_looked_up_only() {
            if self.expired && is_due(self.began, timeouts.lookup_pin + timeouts.unbound_store) {
                return Due::Forget;
            }
            let too_old = !self.expired && is_due(self.began, timeouts.lookup_pin);
            return if too_old { Due::PinTooOld } else { Due::Nothing };
        }
        if self.store_deadline.is_some_and(|deadline| deadline <= cx.now) {
            return Due::StoreTooOld;
        }
        Due::Nothing
    }

    /// Sets the timer to the next thing that can become due.
    pub fn set_timer(&mut self, cx: &mut Context, (session, name): Named<'_>) {
        let timeouts = &cx.config.timeouts;
        let at = if let Phase::Ending { .. } = self.phase {
            (!self.warned).then(|| self.ended + timeouts.stuck_transfer_warning)
        } else if self.is_looked_up_only() {
            let pin = self.began + timeouts.lookup_pin;
            Some(if self.expired { pin + timeouts.unbound_store } else { pin })
        } else {
            self.store_deadline
        };
        self.cancel_timer(cx, (session, name));
        if let Some(at) = at {
            cx.timers.set(at, TimerKey::Round(session, name.0.clone(), name.1));
            self.timer = Some(at);
        }
    }

    fn cancel_timer(&mut self, cx: &mut Context, (session, name): Named<'_>) {
        if let Some(at) = self.timer.take() {
            cx.timers.cancel(at, TimerKey::Round(session, name.0.clone(), name.1));
        }
    }
}
