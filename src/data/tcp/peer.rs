//! A peer that we write to: its streams, and the transfers that wait for them.
//!
//! Each stream fills one slot:
//!
//! ```text
//!            work waits                accepted
//!   Empty ─────────────► Dialing ─────────────────► Open
//!     ▲                     │ no address is left      │ lost
//!     └─────────────────────┴─────────────────────────┘
//! ```
//!
//! Transfers wait in one line. A stream that has room takes the next frame off the first of them, so the faster
//! stream carries more, and nothing is queued but the lists of blocks. Each transfer:
//!
//! ```text
//!               frames begin                     all begun, all acked
//!   Waiting ─────────────────► under way ───────────────────────────────► TransferDone
//!      │                          │ refused, stream lost:
//!      │                          ▼ no further frame begins
//!      │                       failing ── frames that began are acked, or their streams are closed ──┐
//!      └──────────┬───────────────┘                                                                  ▼
//!                 └─ cancel: at once, begun frames go on from a copy ──────────────────────► TransferFailed
//! ```

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Duration;

use super::dial::{Dial, Step, Target};
use super::frame::{Ack, MAX_FRAME_BLOCKS};
use super::reactor::Reactor;
use super::stream::{FramePlan, Sent, Stream};
use super::sys::Readiness;
use crate::data::DataEvent;
use crate::protocol::ids::{BlockPair, LoadToken, TransferId};
use crate::protocol::timer::Timestamp;

/// Bytes that one stream may send before others get their turn.
const BYTES_PER_TURN: usize = 1 << 20;
/// Frames are not cut smaller than this for the sake of balance between streams.
const MIN_BALANCED_FRAME: usize = 256 << 10;
/// While other streams carry on, a lost one is not dialled more often than this.
const REDIAL_PAUSE: Duration = Duration::from_secs(1);
/// Streams lost in a row, each for one of the slots, without a single ack between: the peer is given up.
const MAX_FRUITLESS_LOSSES: usize = 3;

/// Whether the peer is still one after what has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Fate {
    Stays,
    /// Its registration failed, and it said so.
    Refused,
}

enum Slot {
    Empty { not_before: Timestamp },
    Dialing(Dial),
    Open(Stream),
}

const EMPTY: Slot = Slot::Empty { not_before: Timestamp::ZERO };

#[derive(Clone, Debug)]
struct Failure {
    reason: String,
    blame: Blame,
}

/// What a failure says about the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blame {
    /// The transfer was given up, here or by the receiver.
    Nobody,
    ThisTime,
    /// Nothing more will succeed.
    ForGood,
}

struct Transfer {
    load: Option<LoadToken>,
    blocks: Box<[BlockPair]>,
    frame_blocks: usize,
    /// Blocks before this position are in frames that have begun.
    begun: usize,
    unacked_frames: usize,
    failure: Option<Failure>,
}

impl Transfer {
    fn is_waiting(&self) -> bool {
        self.failure.is_none() && self.begun < self.blocks.len()
    }

    fn is_over(&self) -> bool {
        self.unacked_frames == 0 && !self.is_waiting()
    }
}

pub(super) struct Peer {
    target: Target,
    slots: Vec<Slot>,
    registered: bool,
    /// In order; see [`Self::tidy_line`].
    waiting: VecDeque<TransferId>,
    transfers: HashMap<TransferId, Transfer>,
    fruitless_losses: usize,
}

impl Peer {
    /// Starts to open all streams.
    pub fn register(target: Target, reactor: &mut Reactor) -> Option<Peer> {
        let slots = (0..target.streams).map(|_| EMPTY).collect();
        let mut peer = Peer {
            target,
            slots,
            registered: false,
            waiting: VecDeque::new(),
            transfers: HashMap::new(),
            fruitless_losses: 0,
        };
        for slot in 0..peer.slots.len() {
            let step = Dial::start(&peer.target, slot, reactor);
            if peer.settle_dial(slot, step, reactor) == Fate::Refused {
                return None;
            }
        }
        Some(peer)
    }

    pub fn write(
        &mut self,
        id: TransferId,
        load: Option<LoadToken>,
        blocks: Box<[BlockPair]>,
        reactor: &mut Reactor,
    ) -> Fate {
        let frame_blocks = frame_blocks(blocks.len(), self.target.streams, reactor);
        let transfer = Transfer { load, blocks, frame_blocks, begun: 0, unacked_frames: 0, failure: None };
        self.transfers.insert(id, transfer);
        self.waiting.push_back(id);
        if !self.registered {
            return Fate::Stays;
        }
        self.dial_missing(reactor);
        self.pump_all(reactor)
    }

    /// Ends transfers at once. What has not begun never will; frames that have begun go on from a copy of the blocks.
    pub fn cancel(&mut self, transfers: &[TransferId], reactor: &mut Reactor) {
        for id in transfers {
            let Some(transfer) = self.transfers.remove(id) else { continue };
            for slot in 0..self.slots.len() {
                self.let_go(slot, *id, &transfer.blocks, reactor);
            }
            let cancelled = || Failure { reason: "cancelled".to_owned(), blame: Blame::Nobody };
            report(*id, Some(transfer.failure.unwrap_or_else(cancelled)), reactor);
        }
        self.tidy_line();
    }

    fn let_go(&mut self, slot: usize, id: TransferId, blocks: &[BlockPair], reactor: &mut Reactor) {
        match self.take_slot(slot) {
            Slot::Open(mut stream) => {
                let outcome = stream.let_go(id, blocks, reactor).map_err(|error| {
                    format!("a frame whose transfer was given up is too large to be kept: {error}")
                });
                // It had frames, so the peer is registered and stays.
                let _: Fate = self.keep_or_lose(slot, stream, outcome, reactor);
            }
            other => self.put_slot(slot, other),
        }
    }

    pub fn on_ready(&mut self, slot: usize, ready: Readiness, reactor: &mut Reactor) -> Fate {
        match self.take_slot(slot) {
            Slot::Empty { .. } => Fate::Stays,
            Slot::Dialing(dial) => {
                let step = dial.on_ready(ready, &self.target, reactor);
                self.settle_dial(slot, step, reactor)
            }
            Slot::Open(mut stream) => {
                let outcome = self.drive(&mut stream, ready, reactor);
                self.keep_or_lose(slot, stream, outcome, reactor)
            }
        }
    }

    pub fn on_deadline(&mut self, slot: usize, reactor: &mut Reactor) -> Fate {
        match self.take_slot(slot) {
            Slot::Dialing(dial) => {
                let step = dial.on_deadline(&self.target, reactor);
                self.settle_dial(slot, step, reactor)
            }
            other => {
                self.put_slot(slot, other);
                Fate::Stays
            }
        }
    }

    /// Closes all streams and ends all transfers.
    pub fn close(mut self, reason: &str, reactor: &mut Reactor) {
        self.close_streams(reactor);
        self.fail_all(&Failure { reason: reason.to_owned(), blame: Blame::ForGood }, reactor);
    }

    fn take_slot(&mut self, slot: usize) -> Slot {
        self.slots.get_mut(slot).map_or(EMPTY, |place| std::mem::replace(place, EMPTY))
    }

    fn put_slot(&mut self, slot: usize, content: Slot) {
        if let Some(place) = self.slots.get_mut(slot) {
            *place = content;
        }
    }

    fn close_streams(&mut self, reactor: &mut Reactor) {
        for slot in &mut self.slots {
            match std::mem::replace(slot, EMPTY) {
                Slot::Empty { .. } => {}
                Slot::Dialing(dial) => dial.close(reactor),
                Slot::Open(stream) => drop(stream.close(reactor)),
            }
        }
    }

    // --- opening streams ---

    fn settle_dial(&mut self, slot: usize, step: Step, reactor: &mut Reactor) -> Fate {
        match step {
            Step::Waiting(dial) => {
                self.put_slot(slot, Slot::Dialing(dial));
                Fate::Stays
            }
            Step::Accepted(connection) => {
                self.put_slot(slot, Slot::Open(Stream::new(connection)));
                if !self.registered {
                    self.registered = self.slots.iter().all(|slot| matches!(slot, Slot::Open(_)));
                    if !self.registered {
                        return Fate::Stays;
                    }
                    reactor.events.push(DataEvent::PeerRegistered { session: self.target.session });
                }
                self.pump_all(reactor)
            }
            Step::Failed(reason) if !self.registered => self.refuse(&reason, reactor),
            Step::Failed(reason) => {
                self.put_slot(slot, Slot::Empty { not_before: reactor.now + REDIAL_PAUSE });
                if self.slots.iter().all(|slot| matches!(slot, Slot::Empty { .. })) {
                    self.give_up(&reason, reactor);
                } else {
                    let session = self.target.session;
                    log::warn!("tcp: session {session} goes on with fewer streams: {reason}");
                }
                Fate::Stays
            }
        }
    }

    fn refuse(&mut self, reason: &str, reactor: &mut Reactor) -> Fate {
        self.close_streams(reactor);
        self.fail_all(&Failure { reason: reason.to_owned(), blame: Blame::ForGood }, reactor);
        let session = self.target.session;
        reactor.events.push(DataEvent::PeerRefused { session, reason: reason.to_owned() });
        Fate::Refused
    }

    /// The peer cannot be reached any more. A failed transfer says so; without one, the peer itself is named.
    fn give_up(&mut self, reason: &str, reactor: &mut Reactor) {
        if self.transfers.is_empty() {
            let session = self.target.session;
            reactor.events.push(DataEvent::PeerFault { session, reason: reason.to_owned() });
        }
        self.fail_all(&Failure { reason: reason.to_owned(), blame: Blame::ForGood }, reactor);
    }

    /// Dials for every empty slot while work waits.
    fn dial_missing(&mut self, reactor: &mut Reactor) {
        let some_open = self.slots.iter().any(|slot| matches!(slot, Slot::Open(_)));
        for slot in 0..self.slots.len() {
            let due = match self.slots.get(slot) {
                Some(Slot::Empty { not_before }) => !some_open || *not_before <= reactor.now,
                _ => false,
            };
            if due && !self.waiting.is_empty() {
                let step = Dial::start(&self.target, slot, reactor);
                let _: Fate = self.settle_dial(slot, step, reactor);
            }
        }
    }

    // --- running streams ---

    fn drive(&mut self, stream: &mut Stream, ready: Readiness, reactor: &mut Reactor) -> Result<(), String> {
        if ready.readable {
            while let Some(ack) = stream.receive_ack()? {
                self.on_ack(ack, reactor);
            }
        }
        self.pump(stream, reactor)
    }

    fn on_ack(&mut self, ack: Ack, reactor: &mut Reactor) {
        self.fruitless_losses = 0;
        let Some(transfer) = self.transfers.get_mut(&ack.transfer) else { return };
        transfer.unacked_frames = transfer.unacked_frames.saturating_sub(1);
        if let Err(refusal) = ack.verdict {
            let reason = format!("the receiver refused the blocks: {refusal}");
            let blame = if refusal.is_of_an_ended_load() { Blame::Nobody } else { Blame::ThisTime };
            transfer.failure.get_or_insert(Failure { reason, blame });
        }
        self.settle(vec![ack.transfer], reactor);
    }

    fn pump_all(&mut self, reactor: &mut Reactor) -> Fate {
        for slot in 0..self.slots.len() {
            match self.take_slot(slot) {
                Slot::Open(mut stream) => {
                    let outcome = self.pump(&mut stream, reactor);
                    if self.keep_or_lose(slot, stream, outcome, reactor) == Fate::Refused {
                        return Fate::Refused;
                    }
                }
                other => self.put_slot(slot, other),
            }
        }
        Fate::Stays
    }

    /// Sends until the socket is full, the turn is over or nothing waits.
    fn pump(&mut self, stream: &mut Stream, reactor: &mut Reactor) -> Result<(), String> {
        let broke = |error: io::Error| format!("the data connection broke: {error}");
        let mut budget = BYTES_PER_TURN;
        while budget > 0 {
            let Sent::Some(moved) = self.send_some(stream, budget, reactor).map_err(broke)? else { break };
            budget = budget.saturating_sub(moved.bytes);
            if moved.short {
                break;
            }
        }
        let more = stream.current().is_some() || !self.waiting.is_empty();
        stream.want(more, reactor).map_err(broke)
    }

    /// One call's worth of the current frame, or of the next one.
    fn send_some(&mut self, stream: &mut Stream, limit: usize, reactor: &mut Reactor) -> io::Result<Sent> {
        if stream.has_copied() {
            return stream.send_copied(limit, reactor);
        }
        let continued = stream.current();
        let Some(plan) = continued.or_else(|| self.next_frame()) else { return Ok(Sent::Blocked) };
        let Some(transfer) = self.transfers.get_mut(&plan.transfer) else { return Ok(Sent::Blocked) };
        let blocks = transfer.blocks.get(plan.first..plan.first + plan.count).unwrap_or_default();
        let sent = stream.send(plan, blocks, limit, reactor)?;
        if continued.is_none() && matches!(sent, Sent::Some(_)) {
            transfer.begun += plan.count;
            transfer.unacked_frames += 1;
            self.tidy_line();
        }
        Ok(sent)
    }

    fn next_frame(&self) -> Option<FramePlan> {
        let id = *self.waiting.front()?;
        let transfer = self.transfers.get(&id)?;
        let count = (transfer.blocks.len() - transfer.begun).min(transfer.frame_blocks);
        Some(FramePlan { transfer: id, load: transfer.load, first: transfer.begun, count })
    }

    fn keep_or_lose(
        &mut self,
        slot: usize,
        stream: Stream,
        outcome: Result<(), String>,
        reactor: &mut Reactor,
    ) -> Fate {
        match outcome {
            Ok(()) => {
                self.put_slot(slot, Slot::Open(stream));
                Fate::Stays
            }
            Err(reason) => self.lose(slot, stream, &reason, reactor),
        }
    }

    /// The transfers with frames on the stream fail; those that wait get a new stream.
    fn lose(&mut self, slot: usize, stream: Stream, reason: &str, reactor: &mut Reactor) -> Fate {
        let session = self.target.session;
        log::debug!("tcp: session {session} lost stream {slot}: {reason}");
        let cut = stream.close(reactor);
        self.put_slot(slot, EMPTY);
        if !self.registered {
            return self.refuse(reason, reactor);
        }
        for id in &cut {
            if let Some(transfer) = self.transfers.get_mut(id) {
                transfer.unacked_frames = transfer.unacked_frames.saturating_sub(1);
                transfer.failure.get_or_insert(Failure { reason: reason.to_owned(), blame: Blame::ThisTime });
            }
        }
        self.settle(cut, reactor);
        self.fruitless_losses += 1;
        if self.fruitless_losses > MAX_FRUITLESS_LOSSES * self.slots.len() {
            self.close_streams(reactor);
            self.fruitless_losses = 0;
            self.give_up(&format!("its data connections break again and again: {reason}"), reactor);
            return Fate::Stays;
        }
        self.dial_missing(reactor);
        Fate::Stays
    }

    // --- ends of transfers ---

    /// Looks at transfers that something happened to: out of the line with those that fail, an event for those
    /// that are over.
    fn settle(&mut self, ids: impl IntoIterator<Item = TransferId>, reactor: &mut Reactor) {
        let mut some_failed = false;
        for id in ids {
            let Some(transfer) = self.transfers.get(&id) else { continue };
            some_failed |= transfer.failure.is_some();
            if transfer.is_over()
                && let Some(transfer) = self.transfers.remove(&id)
            {
                report(id, transfer.failure, reactor);
            }
        }
        if some_failed {
            self.tidy_line();
        }
    }

    /// The first in line always waits. Those behind it may have failed: searching for them each time would let a peer that
    /// cancels many transfers one by one hold up all others.
    fn tidy_line(&mut self) {
        while let Some(first) = self.waiting.front()
            && !self.transfers.get(first).is_some_and(Transfer::is_waiting)
        {
            self.waiting.pop_front();
        }
    }

    /// For when no stream is left.
    fn fail_all(&mut self, failure: &Failure, reactor: &mut Reactor) {
        self.waiting.clear();
        for (id, transfer) in self.transfers.drain() {
            report(id, Some(transfer.failure.unwrap_or_else(|| failure.clone())), reactor);
        }
    }
}

fn report(transfer: TransferId, failure: Option<Failure>, reactor: &mut Reactor) {
    reactor.events.push(match failure {
        None => DataEvent::TransferDone { transfer },
        Some(Failure { reason, blame: Blame::Nobody }) => DataEvent::TransferUnwanted { transfer, reason },
        Some(Failure { reason, blame }) => {
            DataEvent::TransferFailed { transfer, reason, decisive: blame == Blame::ForGood }
        }
    });
}

/// Blocks to a frame: enough frames for all streams, none too small for its header or too large for its table.
fn frame_blocks(blocks: usize, streams: usize, reactor: &Reactor) -> usize {
    let holding = |bytes: usize| (bytes / reactor.block_len()).clamp(1, MAX_FRAME_BLOCKS);
    let most = holding(reactor.config.frame_bytes);
    let least = holding(MIN_BALANCED_FRAME).min(most);
    blocks.div_ceil(streams.max(1)).clamp(least, most)
}
