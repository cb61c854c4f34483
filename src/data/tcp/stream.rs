//! One open stream to a peer: frames out, acks in.
//!
//! ```text
//!            first byte taken by the socket              all bytes taken           ack
//!  planned ─────────────────────────────────► current ──────────────────► unacked ─────► over
//!     │ socket full: nothing has begun
//!     └──► not planned
//! ```

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use super::frame::{Ack, FrameHeader};
use super::io_vectors::{Moved, Place};
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

/// A frame of which the socket has taken some bytes, and not all.
struct Current {
    plan: FramePlan,
    head_sent: usize,
    place: Place,
}

/// What the socket took.
pub(super) enum Sent {
    Some(Moved),
    /// None; a frame that was to begin has not.
    Blocked,
}

pub(super) struct Stream {
    connection: Connection,
    pub reach: Reach,
    current: Option<Current>,
    /// Header and table of the current frame; reused.
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

    pub fn current(&self) -> Option<FramePlan> {
        self.current.as_ref().map(|current| current.plan)
    }

    /// Goes on with the current frame, or begins `plan` if there is none. `blocks` are those of that frame.
    pub fn send(
        &mut self,
        plan: FramePlan,
        blocks: &[BlockPair],
        limit: usize,
        reactor: &mut Reactor,
    ) -> io::Result<Sent> {
        let block_len = reactor.block_len();
        let mut frame = match self.current.take() {
            Some(current) => current,
            None => {
                let shape = (block_len, self.is_pulled());
                FrameHeader::encode(plan.transfer, plan.load, blocks, shape, &mut self.head);
                Current { plan, head_sent: 0, place: Place::default() }
            }
        };
        let head = self.head.get(frame.head_sent..).unwrap_or_default();
        let sent_along = if self.is_pulled() { &[] } else { blocks };
        let rest = sent_along.get(frame.place.block..).unwrap_or_default().iter().map(|pair| pair.local);
        let begins = frame.head_sent == 0;
        match reactor.vectors.send(&self.connection.socket, head, rest, frame.place.offset, limit) {
            Ok(moved) => {
                let of_head = moved.bytes.min(head.len());
                frame.head_sent += of_head;
                frame.place.advance(moved.bytes - of_head, block_len);
                if begins {
                    self.unacked.push_back(frame.plan.transfer);
                }
                let whole = frame.head_sent >= self.head.len() && frame.place.block >= sent_along.len();
                self.current = (!whole).then_some(frame);
                Ok(Sent::Some(moved))
            }
            Err(error) if is_temporary(&error) => {
                self.current = (!begins).then_some(frame);
                Ok(Sent::Blocked)
            }
            Err(error) => Err(error),
        }
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

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
