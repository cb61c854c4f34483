//! One open stream to a peer: frames out, acks in.
//!
//! ```text
//!            first byte taken by the socket              all bytes taken           ack
//!  planned ─────────────────────────────────► current ──────────────────► unacked ─────► over
//!     │ socket full: nothing has begun           │ transfer given up          ▲
//!     └──► not planned                           └──► filler ─────────────────┘
//! ```
//!
//! The receiver has been promised the bytes of a frame once it has begun. When its transfer is given up, the rest is
//! filler in place of the blocks, and the tail says so: the blocks are the engine's again at once, however slow the
//! receiver is. Where the receiver pulls, a frame is its head alone.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use super::frame::{Ack, FrameHeader, TAIL_WHOLE, TAIL_WITHDRAWN};
use super::io_vectors::{Body, Moved, Place};
use super::reactor::{Connection, Fill, Reactor, fill};
use super::sys::Interest;
use crate::protocol::config::Reach;
use crate::protocol::ids::{BlockPair, LoadToken, TransferId};
use crate::protocol::timer::Timestamp;

/// Some blocks of a transfer that travel together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FramePlan {
    pub transfer: TransferId,
    pub load: Option<LoadToken>,
    /// Position of the first block in the transfer.
    pub first: usize,
    pub count: usize,
}

/// A frame that is being sent.
struct Current {
    plan: FramePlan,
    head_sent: usize,
    /// Of the bytes of the blocks and the tail.
    body_sent: usize,
    /// Filler goes in place of the blocks.
    abandoned: bool,
}

/// What the socket took.
pub(super) enum Sent {
    Some(Moved),
    /// None; a frame that was to begin has not.
    Blocked,
}

pub(super) struct Stream {
    connection: Connection,
    reach: Reach,
    current: Option<Current>,
    /// Header and tables of the current frame; reused.
    head: Vec<u8>,
    /// Of the frames that have begun, the current one last.
    unacked: VecDeque<TransferId>,
    ack: [u8; Ack::LEN],
    ack_got: usize,
}

impl Stream {
    pub fn new(connection: Connection, reach: Reach) -> Stream {
        Stream {
            connection,
            reach,
            current: None,
            head: Vec::new(),
            unacked: VecDeque::new(),
            ack: [0; Ack::LEN],
            ack_got: 0,
        }
    }

    /// The receiver copies the blocks itself, at any time until its ack.
    pub fn is_pulled(&self) -> bool {
        self.reach != Reach::Stream
    }

    pub fn has_unacked(&self, transfer: TransferId) -> bool {
        self.unacked.contains(&transfer)
    }

    /// To be woken for the stream in so long.
    pub fn wake_in(&self, after: Duration, reactor: &mut Reactor) -> Timestamp {
        reactor.set_deadline(self.connection.id, after)
    }

    /// The frame that has begun and is not all sent.
    pub fn current(&self) -> Option<FramePlan> {
        self.current.as_ref().map(|current| current.plan)
    }

    /// The rest of the current frame belongs to no transfer any more.
    pub fn is_abandoned(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.abandoned)
    }

    /// The transfer was given up. From here on its blocks are not read.
    pub fn abandon(&mut self, transfer: TransferId) {
        if let Some(current) = self.current.as_mut().filter(|current| current.plan.transfer == transfer) {
            current.abandoned = true;
        }
    }

    /// What to send next, once nothing is current. It has begun only when the socket has taken some of it.
    pub fn plan(&mut self, plan: FramePlan, blocks: &[BlockPair], block_len: usize) {
        let shape = (block_len, self.is_pulled());
        FrameHeader::encode(plan.transfer, plan.load, blocks, shape, &mut self.head);
        self.current = Some(Current { plan, head_sent: 0, body_sent: 0, abandoned: false });
    }

    /// Goes on with the current frame. `blocks` are those of it, if it was not abandoned.
    pub fn send(&mut self, blocks: &[BlockPair], limit: usize, reactor: &mut Reactor) -> io::Result<Sent> {
        let Some(mut frame) = self.current.take() else { return Ok(Sent::Blocked) };
        let block_len = reactor.block_len();
        let payload = if self.is_pulled() { 0 } else { frame.plan.count * block_len };
        let tail = match (self.is_pulled(), frame.abandoned) {
            (true, _) => &[][..],
            (false, false) => &TAIL_WHOLE,
            (false, true) => &TAIL_WITHDRAWN,
        };
        let head = self.head.get(frame.head_sent..).unwrap_or_default();
        let left = payload.saturating_sub(frame.body_sent);
        let body =
            Body { left, tail: tail.get(frame.body_sent.saturating_sub(payload)..).unwrap_or_default() };
        let socket = &self.connection.socket;
        let sent = if frame.abandoned {
            reactor.vectors.send_filler(socket, head, body, limit)
        } else {
            let place = Place::at(frame.body_sent.min(payload), block_len);
            let rest = blocks.get(place.block..).unwrap_or_default().iter().map(|pair| pair.local);
            reactor.vectors.send(socket, head, rest, place.offset, body, limit)
        };
        let begins = frame.head_sent == 0;
        let Some(moved) = unless_blocked(sent)? else {
            self.current = (!begins).then_some(frame);
            return Ok(Sent::Blocked);
        };
        if begins {
            self.unacked.push_back(frame.plan.transfer);
        }
        let of_head = moved.bytes.min(head.len());
        frame.head_sent += of_head;
        frame.body_sent += moved.bytes - of_head;
        let whole = frame.head_sent >= self.head.len() && frame.body_sent >= payload + tail.len();
        self.current = (!whole).then_some(frame);
        Ok(Sent::Some(moved))
    }

    /// The next ack, if it has come in whole. Must be for the oldest frame.
    pub fn receive_ack(&mut self) -> Result<Option<Ack>, String> {
        match fill(&self.connection.socket, &mut self.ack, &mut self.ack_got) {
            Ok(Fill::Complete) => {}
            Ok(Fill::Blocked) => return Ok(None),
            Ok(Fill::Ended) => return Err("the peer closed the data connection".to_owned()),
            Err(error) => return Err(format!("the data connection broke: {error}")),
        }
        self.ack_got = 0;
        let ack = Ack::decode(&self.ack).map_err(|error| error.to_string())?;
        match self.unacked.front() {
            Some(oldest) if *oldest == ack.transfer => {}
            other => {
                let expected = other.map_or_else(|| "none".to_owned(), ToString::to_string);
                let got = ack.transfer;
                return Err(format!("expected the ack of transfer {expected}, the peer sent that of {got}"));
            }
        }
        if self.unacked.len() == 1 && self.current.is_some() {
            return Err(format!("the peer acked transfer {} before it had all bytes", ack.transfer));
        }
        self.unacked.pop_front();
        Ok(Some(ack))
    }

    pub fn want(&mut self, writable: bool, reactor: &Reactor) -> io::Result<()> {
        reactor.want(&mut self.connection, Interest { readable: true, writable })
    }

    /// Closes it. From here on it reads no local block; the transfers of its unfinished frames, one for each frame.
    pub fn close(self, reactor: &mut Reactor) -> VecDeque<TransferId> {
        reactor.close(self.connection);
        self.unacked
    }
}

fn unless_blocked(moved: io::Result<Moved>) -> io::Result<Option<Moved>> {
    match moved {
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        moved => moved.map(Some),
    }
}
