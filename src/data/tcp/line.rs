//! What waits to be written to one peer. The I/O threads that have streams to it share it, under a lock that is held for
//! a few steps, for each frame and never for a block.
//!
//! A stream that has room takes the next frame off the first transfer in line, so the faster stream carries more, and
//! nothing is queued but the lists of blocks. Each transfer:
//!
//! ```text
//!               frames are taken                 all taken, all acked
//!   Waiting ─────────────────► under way ───────────────────────────────► TransferDone
//!      │                          │ refused, stream lost:
//!      │                          ▼ no further frame is taken
//!      │                       failing ── frames that began are acked, or their streams are closed ──┐
//!      └──────────┬───────────────┘                                                                  ▼
//!                 └─ cancel: each thread lets go of the blocks, begun frames go on with filler ─► TransferFailed
//! ```
//!
//! Whichever thread does the last of that tells of the end.

use std::collections::{HashMap, VecDeque};
use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::dial::Target;
use super::frame::Ack;
use super::reactor::EventSink;
use crate::data::DataEvent;
use crate::protocol::config::Reach;
use crate::protocol::ids::{BlockPair, LoadToken, TransferId};
use crate::protocol::timer::Timestamp;

/// Streams lost in a row, each for one of the slots, without a single ack between: the peer is given up.
const MAX_FRUITLESS_LOSSES: usize = 3;

/// Some blocks of a transfer that travel together.
pub(super) struct Frame {
    pub transfer: TransferId,
    pub load: Option<LoadToken>,
    blocks: Arc<[BlockPair]>,
    range: Range<usize>,
}

impl Frame {
    pub fn blocks(&self) -> &[BlockPair] {
        self.blocks.get(self.range.clone()).unwrap_or_default()
    }
}

/// What a closed stream leaves.
pub(super) struct Cut {
    pub is_pulled: bool,
    /// The transfers of frames that began and are not acked, one for each.
    pub begun: VecDeque<TransferId>,
    /// The frame that was not all sent.
    pub rest: Rest,
}

pub(super) enum Rest {
    None,
    /// Nothing of it was sent.
    Unbegun(Frame),
    /// Blocks of it were still to be read.
    Reading(TransferId),
}

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
    blocks: Arc<[BlockPair]>,
    /// Blocks before this position are in frames that were taken.
    taken: usize,
    /// Frames that were taken and given back before they began.
    given_back: Vec<Range<usize>>,
    unacked_frames: usize,
    /// Of these, those that the receiver copies itself, at any time until its ack.
    pulled_frames: usize,
    /// Streams that still read blocks of it.
    readers: usize,
    failure: Option<Failure>,
    end: End,
}

/// What the end of a transfer waits for the last of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Acks,
    /// Cancelled while the receiver copies it: when that must have ended.
    Pulls(Timestamp),
    /// Cancelled: no ack matters any more.
    Reads,
}

impl Transfer {
    fn is_waiting(&self) -> bool {
        self.failure.is_none() && (self.taken < self.blocks.len() || !self.given_back.is_empty())
    }

    fn is_over(&self) -> bool {
        match self.end {
            End::Reads => self.readers == 0,
            End::Acks | End::Pulls(_) => self.unacked_frames == 0 && !self.is_waiting(),
        }
    }

    /// The next frame's blocks. Several streams get smaller ones towards the end, so that they finish together.
    fn take(&mut self, streams: usize, sizes: &RangeInclusive<usize>) -> Range<usize> {
        self.given_back.pop().unwrap_or_else(|| {
            let first = self.taken;
            let left = self.blocks.len() - first;
            let share = if streams > 1 { left.div_ceil(2 * streams) } else { left };
            self.taken = first + share.clamp(*sizes.start(), *sizes.end()).min(left);
            first..self.taken
        })
    }

    fn ended_frame(&mut self, is_pulled: bool) {
        self.unacked_frames = self.unacked_frames.saturating_sub(1);
        self.pulled_frames = self.pulled_frames.saturating_sub(usize::from(is_pulled));
    }

    fn ended_reading(&mut self) {
        self.readers = self.readers.saturating_sub(1);
    }
}

enum Stage {
    /// The peer has accepted so many streams; it is registered with the last.
    Opening {
        accepted: usize,
    },
    Open,
    Refused(String),
    /// Closed from this side, for that reason.
    Closed(String),
}

pub(super) struct Line {
    pub target: Target,
    /// Blocks of one frame.
    frame_sizes: RangeInclusive<usize>,
    state: Mutex<State>,
}

struct State {
    stage: Stage,
    streams: usize,
    /// Threads that have or will have streams.
    parts: usize,
    open_streams: usize,
    dialing: usize,
    /// In order; see [`Self::tidy`].
    waiting: VecDeque<TransferId>,
    transfers: HashMap<TransferId, Transfer>,
    fruitless_losses: usize,
}

/// What a thread has to do after a stream was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterLoss {
    GoOn,
    /// The peer was not registered, and never will be.
    Refused,
    /// It was the last straw: its other streams go too.
    GivenUp,
}

impl Line {
    /// For `parts` threads. All streams count as being dialled from now on.
    pub fn new(target: Target, parts: usize, frame_sizes: RangeInclusive<usize>) -> Line {
        let streams = target.streams;
        let state = State {
            stage: Stage::Opening { accepted: 0 },
            streams,
            parts,
            open_streams: 0,
            dialing: streams,
            waiting: VecDeque::new(),
            transfers: HashMap::new(),
            fruitless_losses: 0,
        };
        Line { target, frame_sizes, state: Mutex::new(state) }
    }

    /// Puts a transfer at the end of the line; the threads have to be told. `Err`: why
    /// nothing is written to the peer any more.
    pub fn push(&self, id: TransferId, load: Option<LoadToken>, blocks: &[BlockPair]) -> Result<(), String> {
        let mut state = self.state();
        if let Stage::Refused(reason) | Stage::Closed(reason) = &state.stage {
            return Err(reason.clone());
        }
        let transfer = Transfer {
            load,
            blocks: Arc::from(blocks),
            taken: 0,
            given_back: Vec::new(),
            unacked_frames: 0,
            pulled_frames: 0,
            readers: 0,
            failure: None,
            end: End::Acks,
        };
        state.transfers.insert(id, transfer);
        state.waiting.push_back(id);
        Ok(())
    }

    // --- frames ---

    /// The next frame, for a stream that has room: from here on the stream reads its blocks.
    pub fn take(&self, is_pulled: bool) -> Option<Frame> {
        let mut state = self.state();
        if !matches!(state.stage, Stage::Open) {
            return None;
        }
        let id = *state.waiting.front()?;
        let transfer = state.transfers.get_mut(&id)?;
        let range = transfer.take(self.target.streams, &self.frame_sizes);
        transfer.unacked_frames += 1;
        transfer.pulled_frames += usize::from(is_pulled);
        transfer.readers += 1;
        let frame = Frame { transfer: id, load: transfer.load, blocks: Arc::clone(&transfer.blocks), range };
        state.tidy();
        Some(frame)
    }

    pub fn has_work(&self) -> bool {
        let state = self.state();
        matches!(state.stage, Stage::Open) && !state.waiting.is_empty()
    }

    /// A frame of which nothing was sent, on a stream that is gone or for a transfer that was given up.
    pub fn give_back(&self, frame: Frame, is_pulled: bool, events: &mut EventSink) {
        self.state().give_back(frame, is_pulled, events);
    }

    /// A stream has read the last block of a frame, or lets go of the rest.
    pub fn ended_reading(&self, id: TransferId, events: &mut EventSink) {
        let mut state = self.state();
        if let Some(transfer) = state.transfers.get_mut(&id) {
            transfer.ended_reading();
            state.settle(id, events);
        }
    }

    pub fn acked(&self, ack: Ack, is_pulled: bool, events: &mut EventSink) {
        let mut state = self.state();
        state.fruitless_losses = 0;
        let Some(transfer) = state.transfers.get_mut(&ack.transfer) else { return };
        transfer.ended_frame(is_pulled);
        if let Err(refusal) = ack.verdict {
            let reason = format!("the receiver refused the blocks: {refusal}");
            let blame = if refusal.is_of_an_ended_load() { Blame::Nobody } else { Blame::ThisTime };
            transfer.failure.get_or_insert(Failure { reason, blame });
            state.tidy();
        }
        state.settle(ack.transfer, events);
    }

    /// Nothing more of the transfer begins. Each thread says so, and lets go of the blocks of its own frames after it. A
    /// receiver that copies blocks itself must have stopped at `until`.
    pub fn cancel(&self, id: TransferId, until: Timestamp, events: &mut EventSink) {
        let mut state = self.state();
        let Some(transfer) = state.transfers.get_mut(&id) else { return };
        transfer
            .failure
            .get_or_insert_with(|| Failure { reason: "cancelled".to_owned(), blame: Blame::Nobody });
        transfer.end = match transfer.end {
            _ if transfer.pulled_frames == 0 => End::Reads,
            End::Acks => End::Pulls(until),
            end => end,
        };
        state.tidy();
        state.settle(id, events);
    }

    /// Transfers whose receiver has not stopped in time.
    pub fn overdue(&self, now: Timestamp) -> Vec<TransferId> {
        let is_late = |transfer: &Transfer| matches!(transfer.end, End::Pulls(until) if until <= now);
        let state = self.state();
        state.transfers.iter().filter(|(_, transfer)| is_late(transfer)).map(|(id, _)| *id).collect()
    }

    // --- streams ---

    /// A stream was accepted. True if the peer is registered with it: the other threads may have work now.
    pub fn opened_stream(&self, reach: Reach, events: &mut EventSink) -> bool {
        let mut state = self.state();
        state.dialing = state.dialing.saturating_sub(1);
        state.open_streams += 1;
        let Stage::Opening { accepted } = &mut state.stage else { return false };
        *accepted += 1;
        if *accepted < self.target.streams {
            return false;
        }
        state.stage = Stage::Open;
        events.push(DataEvent::PeerRegistered { session: self.target.session, reach });
        true
    }

    /// Whether to dial for a stream that is missing. True counts as begun.
    pub fn begin_dial(&self, not_before: Timestamp, now: Timestamp) -> bool {
        let mut state = self.state();
        let is_wanted = matches!(state.stage, Stage::Open) && !state.waiting.is_empty();
        let is_due = is_wanted && (state.open_streams == 0 || not_before <= now);
        state.dialing += usize::from(is_due);
        is_due
    }

    /// Of a registered peer. The last stream of all takes the transfers with it; false then.
    pub fn failed_dial(&self, reason: &str, events: &mut EventSink) -> bool {
        let mut state = self.state();
        state.dialing = state.dialing.saturating_sub(1);
        let goes_on = state.open_streams + state.dialing > 0;
        if !goes_on {
            state.give_up(reason, &self.target, events);
        }
        goes_on
    }

    pub fn closed_dial(&self) {
        let mut state = self.state();
        state.dialing = state.dialing.saturating_sub(1);
    }

    /// The transfers with frames on it fail; those that wait get a new stream.
    pub fn lost_stream(&self, cut: Cut, reason: &str, events: &mut EventSink) -> AfterLoss {
        let mut state = self.state();
        let is_registered = !matches!(state.stage, Stage::Opening { .. } | Stage::Refused(_));
        state.cut(cut, &Failure { reason: reason.to_owned(), blame: Blame::ThisTime }, events);
        if !is_registered {
            return AfterLoss::Refused;
        }
        state.fruitless_losses += 1;
        if state.fruitless_losses <= MAX_FRUITLESS_LOSSES * state.streams {
            return AfterLoss::GoOn;
        }
        state.fruitless_losses = 0;
        let reason = format!("its data connections break again and again: {reason}");
        state.give_up(&reason, &self.target, events);
        AfterLoss::GivenUp
    }

    /// A stream was closed from this side.
    pub fn closed_stream(&self, cut: Cut, reason: &str, events: &mut EventSink) {
        self.state().cut(cut, &Failure { reason: reason.to_owned(), blame: Blame::ForGood }, events);
    }

    // --- the end ---

    pub fn is_registered(&self) -> bool {
        matches!(self.state().stage, Stage::Open)
    }

    pub fn is_over(&self) -> bool {
        matches!(self.state().stage, Stage::Refused(_) | Stage::Closed(_))
    }

    /// The peer cannot be registered. The event comes from the last part that closes.
    pub fn refuse(&self, reason: &str, events: &mut EventSink) {
        let mut state = self.state();
        if matches!(state.stage, Stage::Opening { .. }) {
            state.stage = Stage::Refused(reason.to_owned());
            state.fail_all(reason, events);
        }
    }

    /// Ends everything, as far as other threads' streams allow: these close in their turn. True the first time.
    pub fn close(&self, reason: &str, events: &mut EventSink) -> bool {
        let mut state = self.state();
        if matches!(state.stage, Stage::Refused(_) | Stage::Closed(_)) {
            return false;
        }
        state.stage = Stage::Closed(reason.to_owned());
        state.fail_all(reason, events);
        true
    }

    /// A thread has closed all its streams to the peer and opens none.
    pub fn closed_part(&self, events: &mut EventSink) {
        let mut state = self.state();
        state.parts = state.parts.saturating_sub(1);
        if state.parts == 0
            && let Stage::Refused(reason) = &state.stage
        {
            let (session, reason) = (self.target.session, reason.clone());
            events.push(DataEvent::PeerRefused { session, reason });
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn give_back(&mut self, frame: Frame, is_pulled: bool, events: &mut EventSink) {
        let id = frame.transfer;
        let Some(transfer) = self.transfers.get_mut(&id) else { return };
        transfer.ended_frame(is_pulled);
        transfer.ended_reading();
        transfer.given_back.push(frame.range);
        if transfer.is_waiting() && self.waiting.front() != Some(&id) {
            self.waiting.push_front(id);
        }
        self.settle(id, events);
    }

    fn cut(&mut self, cut: Cut, failure: &Failure, events: &mut EventSink) {
        self.open_streams = self.open_streams.saturating_sub(1);
        match cut.rest {
            Rest::None => {}
            Rest::Unbegun(frame) => self.give_back(frame, cut.is_pulled, events),
            Rest::Reading(id) => {
                if let Some(transfer) = self.transfers.get_mut(&id) {
                    transfer.ended_reading();
                }
            }
        }
        for id in &cut.begun {
            if let Some(transfer) = self.transfers.get_mut(id) {
                transfer.ended_frame(cut.is_pulled);
                transfer.failure.get_or_insert_with(|| failure.clone());
            }
        }
        self.tidy();
        cut.begun.into_iter().for_each(|id| self.settle(id, events));
    }

    /// An event for the transfer if it is over.
    fn settle(&mut self, id: TransferId, events: &mut EventSink) {
        if self.transfers.get(&id).is_some_and(Transfer::is_over)
            && let Some(transfer) = self.transfers.remove(&id)
        {
            report(id, transfer.failure, events);
        }
    }

    /// The first in line always waits. Those behind it may have failed: searching for them each time would let a peer that
    /// cancels many transfers one by one hold up all others.
    fn tidy(&mut self) {
        while let Some(first) = self.waiting.front()
            && !self.transfers.get(first).is_some_and(Transfer::is_waiting)
        {
            self.waiting.pop_front();
        }
    }

    /// The peer cannot be reached any more. A failed transfer says so; without one, the peer itself is named.
    fn give_up(&mut self, reason: &str, target: &Target, events: &mut EventSink) {
        if self.transfers.is_empty() {
            let (session, reason) = (target.session, reason.to_owned());
            events.push(DataEvent::PeerFault { session, reason });
        }
        self.fail_all(reason, events);
    }

    /// Those with frames on streams that are still open end with these.
    fn fail_all(&mut self, reason: &str, events: &mut EventSink) {
        self.waiting.clear();
        for transfer in self.transfers.values_mut() {
            transfer
                .failure
                .get_or_insert_with(|| Failure { reason: reason.to_owned(), blame: Blame::ForGood });
        }
        for (id, transfer) in self.transfers.extract_if(|_, transfer| transfer.is_over()) {
            report(id, transfer.failure, events);
        }
    }
}

fn report(transfer: TransferId, failure: Option<Failure>, events: &mut EventSink) {
    events.push(match failure {
        None => DataEvent::TransferDone { transfer },
        Some(Failure { reason, blame: Blame::Nobody }) => DataEvent::TransferUnwanted { transfer, reason },
        Some(Failure { reason, blame }) => {
            DataEvent::TransferFailed { transfer, reason, decisive: blame == Blame::ForGood }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ids::{BlockIndex, SessionId};

    /// The sizes of all frames of one transfer, in their order.
    fn frames(streams: usize, blocks: u32) -> Vec<usize> {
        let target = Target {
            session: SessionId(1),
            addresses: Vec::new(),
            local_port: None,
            token: Vec::new(),
            streams,
        };
        let line = Line::new(target, 1, 4..=64);
        let pair = |block| BlockPair { local: BlockIndex(block), remote: BlockIndex(block) };
        let all: Vec<BlockPair> = (0..blocks).map(pair).collect();
        line.push(TransferId(1), None, &all).unwrap();
        line.state().stage = Stage::Open;
        let taken: Vec<Frame> = std::iter::from_fn(|| line.take(false)).collect();
        assert_eq!(taken.iter().flat_map(Frame::blocks).copied().collect::<Vec<_>>(), all, "each once");
        taken.iter().map(|frame| frame.blocks().len()).collect()
    }

    #[test]
    fn one_stream_gets_frames_as_large_as_they_may_be() {
        assert_eq!(frames(1, 130), [64, 64, 2]);
    }

    #[test]
    fn several_streams_get_smaller_frames_towards_the_end_and_none_below_the_least() {
        let sizes = frames(2, 300);
        assert_eq!(sizes.first(), Some(&64));
        assert!(sizes.is_sorted_by(|earlier, later| earlier >= later), "{sizes:?}");
        let (last, others) = sizes.split_last().unwrap();
        assert!(*last <= 4 && others.iter().all(|size| *size >= 4), "{sizes:?}");
    }
}
