//! A peer that we write to, as one I/O thread sees it: the streams that are this thread's. What is written over them is the
//! [`Line`], which all threads share.
//!
//! Each stream fills one slot:
//!
//! ```text
//!            work waits                accepted
//!   Empty ─────────────► Dialing ─────────────────► Open
//!     ▲                     │ no address is left      │ lost
//!     └─────────────────────┴─────────────────────────┘
//! ```

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::dial::{Dial, Step};
use super::line::{AfterLoss, Line};
use super::reactor::Reactor;
use super::stream::{LetGo, Sent, Stream};
use super::sys::Readiness;
use crate::protocol::ids::{SessionId, TransferId};
use crate::protocol::timer::Timestamp;

/// Bytes that one stream may send before others get their turn.
const BYTES_PER_TURN: usize = 1 << 20;
/// While other streams carry on, a lost one is not dialled more often than this.
const REDIAL_PAUSE: Duration = Duration::from_secs(1);
/// A receiver that pulls acknowledges what was cancelled at once. One that does not is frozen or overloaded: only closing
/// its stream makes sure that what it still copies counts for nothing.
const CANCEL_GRACE: Duration = Duration::from_millis(25);

/// Whether the peer is still one after what has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Fate {
    Stays,
    /// Its registration failed: this thread has nothing of it any more.
    Refused,
}

enum Slot {
    /// Another thread's.
    Elsewhere,
    Empty {
        not_before: Timestamp,
    },
    Dialing(Dial),
    Open(Stream),
}

const EMPTY: Slot = Slot::Empty { not_before: Timestamp::ZERO };

pub(super) struct Peer {
    line: Arc<Line>,
    slots: Vec<Slot>,
}

impl Peer {
    /// Starts to open this thread's streams.
    pub fn register(line: Arc<Line>, reactor: &mut Reactor) -> Option<Peer> {
        let session = line.target.session;
        let mine = |slot| if reactor.seat.has_stream(session, slot) { EMPTY } else { Slot::Elsewhere };
        let slots = (0..line.target.streams).map(mine).collect();
        let mut peer = Peer { line, slots };
        if peer.line.is_over() {
            return peer.leave(reactor);
        }
        for slot in 0..peer.slots.len() {
            if !matches!(peer.slots.get(slot), Some(Slot::Empty { .. })) {
                continue;
            }
            let step = Dial::start(&peer.line.target, slot, reactor);
            if peer.settle_dial(slot, step, reactor) == Fate::Refused {
                return None;
            }
        }
        Some(peer)
    }

    /// Another thread refused it before this one had begun.
    fn leave(self, reactor: &mut Reactor) -> Option<Peer> {
        self.line.closed_part(&mut reactor.events);
        None
    }

    fn session(&self) -> SessionId {
        self.line.target.session
    }

    /// The line has changed: work came, or the end.
    pub fn look(&mut self, reactor: &mut Reactor) -> Fate {
        if self.line.is_over() {
            self.close_streams("the peer refused another stream", reactor);
            self.line.closed_part(&mut reactor.events);
            return Fate::Refused;
        }
        self.dial_missing(reactor);
        self.pump_all(reactor)
    }

    /// Ends transfers at once. What has not begun never will; frames that have begun go on without the blocks. Only what a
    /// receiver is copying itself it must stop first: it ends with the acks, or when its streams are closed for want of
    /// them.
    pub fn cancel(&mut self, transfers: &[TransferId], reactor: &mut Reactor) {
        let until = reactor.now + CANCEL_GRACE;
        for id in transfers {
            self.line.cancel(*id, until, &mut reactor.events);
            for slot in &mut self.slots {
                let Slot::Open(stream) = slot else { continue };
                if stream.is_pulled() && stream.has_unacked(*id) {
                    stream.wake_in(CANCEL_GRACE, reactor);
                }
                match stream.let_go(*id) {
                    LetGo::Nothing => {}
                    LetGo::Unbegun(frame) => {
                        self.line.give_back(frame, stream.is_pulled(), &mut reactor.events);
                    }
                    LetGo::Begun => self.line.ended_reading(*id, &mut reactor.events),
                }
            }
        }
    }

    pub fn on_ready(&mut self, slot: usize, ready: Readiness, reactor: &mut Reactor) -> Fate {
        match self.take_slot(slot) {
            Slot::Dialing(dial) => {
                let step = dial.on_ready(ready, &self.line.target, reactor);
                self.settle_dial(slot, step, reactor)
            }
            Slot::Open(mut stream) => {
                let outcome = self.drive(&mut stream, ready, reactor);
                self.keep_or_lose(slot, stream, outcome, reactor)
            }
            other @ (Slot::Elsewhere | Slot::Empty { .. }) => {
                self.put_slot(slot, other);
                Fate::Stays
            }
        }
    }

    pub fn on_deadline(&mut self, slot: usize, reactor: &mut Reactor) -> Fate {
        match self.take_slot(slot) {
            Slot::Dialing(dial) => {
                let step = dial.on_deadline(&self.line.target, reactor);
                self.settle_dial(slot, step, reactor)
            }
            Slot::Open(stream) if self.is_overdue(&stream, reactor.now) => {
                self.lose(slot, stream, "the receiver did not answer to a cancel in time", reactor)
            }
            other => {
                self.put_slot(slot, other);
                Fate::Stays
            }
        }
    }

    fn is_overdue(&self, stream: &Stream, now: Timestamp) -> bool {
        self.line.overdue(now).into_iter().any(|id| stream.has_unacked(id))
    }

    /// Closes this thread's streams and ends the transfers, as far as they are not on the streams of others. True if no
    /// other thread has done so before.
    pub fn close(mut self, reason: &str, reactor: &mut Reactor) -> bool {
        let first = self.line.close(reason, &mut reactor.events);
        self.close_streams(reason, reactor);
        self.line.closed_part(&mut reactor.events);
        first
    }

    fn take_slot(&mut self, slot: usize) -> Slot {
        self.slots.get_mut(slot).map_or(EMPTY, |place| std::mem::replace(place, EMPTY))
    }

    fn put_slot(&mut self, slot: usize, content: Slot) {
        if let Some(place) = self.slots.get_mut(slot) {
            *place = content;
        }
    }

    fn close_streams(&mut self, reason: &str, reactor: &mut Reactor) {
        for slot in &mut self.slots {
            match std::mem::replace(slot, EMPTY) {
                Slot::Elsewhere => *slot = Slot::Elsewhere,
                Slot::Empty { .. } => {}
                Slot::Dialing(dial) => {
                    dial.close(reactor);
                    self.line.closed_dial();
                }
                Slot::Open(stream) => {
                    let cut = stream.close(reactor);
                    self.line.closed_stream(cut, reason, &mut reactor.events);
                }
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
            Step::Accepted(connection, reach) => {
                self.put_slot(slot, Slot::Open(Stream::new(connection, reach)));
                if self.line.opened_stream(reach, &mut reactor.events) {
                    reactor.tell_neighbours(self.session());
                }
                self.pump_all(reactor)
            }
            Step::Failed(reason) if !self.line.is_registered() => self.refuse(&reason, reactor),
            Step::Failed(reason) => {
                self.put_slot(slot, Slot::Empty { not_before: reactor.now + REDIAL_PAUSE });
                if self.line.failed_dial(&reason, &mut reactor.events) {
                    log::warn!("tcp: session {} goes on with fewer streams: {reason}", self.session());
                    // For the frame that a lost stream may have given back.
                    reactor.tell_neighbours(self.session());
                }
                Fate::Stays
            }
        }
    }

    fn refuse(&mut self, reason: &str, reactor: &mut Reactor) -> Fate {
        self.line.refuse(reason, &mut reactor.events);
        self.close_streams(reason, reactor);
        self.line.closed_part(&mut reactor.events);
        reactor.tell_neighbours(self.session());
        Fate::Refused
    }

    /// Dials for every empty slot while work waits.
    fn dial_missing(&mut self, reactor: &mut Reactor) {
        for slot in 0..self.slots.len() {
            let Some(Slot::Empty { not_before }) = self.slots.get(slot) else { continue };
            if self.line.begin_dial(*not_before, reactor.now) {
                let step = Dial::start(&self.line.target, slot, reactor);
                let _: Fate = self.settle_dial(slot, step, reactor);
            }
        }
    }

    // --- running streams ---

    fn drive(&mut self, stream: &mut Stream, ready: Readiness, reactor: &mut Reactor) -> Result<(), String> {
        if ready.readable {
            while let Some(ack) = stream.receive_ack()? {
                self.line.acked(ack, stream.is_pulled(), &mut reactor.events);
            }
        }
        self.pump(stream, reactor)
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
            if !stream.has_frame() {
                let Some(frame) = self.line.take(stream.is_pulled()) else { break };
                stream.begin(frame, reactor.block_len());
            }
            let moved = match stream.send(budget, reactor).map_err(broke)? {
                Sent::Blocked => break,
                Sent::Some(moved) => moved,
                Sent::Last { moved, read: None } => moved,
                Sent::Last { moved, read: Some(transfer) } => {
                    self.line.ended_reading(transfer, &mut reactor.events);
                    moved
                }
            };
            budget = budget.saturating_sub(moved.bytes);
            if moved.short {
                break;
            }
        }
        if stream.has_frame() && !stream.is_pulled() {
            reactor.note_traffic();
        }
        let more = stream.has_frame() || self.line.has_work();
        stream.want(more, reactor).map_err(broke)
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

    fn lose(&mut self, slot: usize, stream: Stream, reason: &str, reactor: &mut Reactor) -> Fate {
        log::debug!("tcp: session {} lost stream {slot}: {reason}", self.session());
        let cut = stream.close(reactor);
        self.put_slot(slot, EMPTY);
        match self.line.lost_stream(cut, reason, &mut reactor.events) {
            AfterLoss::Refused => return self.refuse(reason, reactor),
            AfterLoss::GivenUp => self.close_streams(reason, reactor),
            AfterLoss::GoOn => self.dial_missing(reactor),
        }
        Fate::Stays
    }
}
