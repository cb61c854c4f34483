//! One open stream to a peer: frames out, acks in.
//!
//! ```text
//!            first byte taken by the socket             all bytes taken           ack
//!  unbegun ────────────────────────────────► begun ──────────────────────► unacked ─────► over
//!     │ transfer given up, stream lost          │ transfer given up           ▲
//!     └──► back to the line                     └──► filler ──────────────────┘
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
use super::line::{Cut, Frame, Rest};
use super::reactor::{Connection, Fill, Reactor, fill};
use super::sys::Interest;
use crate::protocol::config::Reach;
use crate::protocol::ids::TransferId;

/// A frame that is being sent.
struct Current {
    frame: Frame,
    head_sent: usize,
    /// Of the bytes of the blocks and the tail.
    body_sent: usize,
    /// Filler goes in place of the blocks.
    abandoned: bool,
}

impl Current {
    fn has_begun(&self) -> bool {
        self.head_sent > 0
    }
}

/// What the socket took.
pub(super) enum Sent {
    Some(Moved),
    /// The last bytes of the frame. `read`: its transfer, whose blocks were read until now.
    Last {
        moved: Moved,
        read: Option<TransferId>,
    },
    Blocked,
}

/// What a stream did with a transfer that was given up.
pub(super) enum LetGo {
    /// It reads no block of it.
    Nothing,
    Unbegun(Frame),
    /// From here on it reads none.
    Begun,
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
    pub fn wake_in(&self, after: Duration, reactor: &mut Reactor) {
        reactor.set_deadline(self.connection.id, after);
    }

    /// A frame is not all sent.
    pub fn has_frame(&self) -> bool {
        self.current.is_some()
    }

    /// The transfer was given up. From here on its blocks are not read.
    pub fn let_go(&mut self, transfer: TransferId) -> LetGo {
        match self.current.take() {
            Some(current) if current.frame.transfer == transfer && !current.has_begun() => {
                LetGo::Unbegun(current.frame)
            }
            Some(current) if current.frame.transfer == transfer && !current.abandoned => {
                self.current = Some(Current { abandoned: true, ..current });
                LetGo::Begun
            }
            other => {
                self.current = other;
                LetGo::Nothing
            }
        }
    }

    /// What to send next, once there is no frame. It has begun only when the socket has taken some of it.
    pub fn begin(&mut self, frame: Frame, block_len: usize) {
        let shape = (block_len, self.is_pulled());
        FrameHeader::encode(frame.transfer, frame.load, frame.blocks(), shape, &mut self.head);
        self.current = Some(Current { frame, head_sent: 0, body_sent: 0, abandoned: false });
    }

    /// Goes on with the frame.
    pub fn send(&mut self, limit: usize, reactor: &mut Reactor) -> io::Result<Sent> {
        let is_pulled = self.is_pulled();
        let Some(current) = self.current.as_mut() else { return Ok(Sent::Blocked) };
        let (blocks, block_len) = (current.frame.blocks(), reactor.block_len());
        let payload = if is_pulled { 0 } else { blocks.len() * block_len };
        let tail = match (is_pulled, current.abandoned) {
            (true, _) => &[][..],
            (false, false) => &TAIL_WHOLE,
            (false, true) => &TAIL_WITHDRAWN,
        };
        let head = self.head.get(current.head_sent..).unwrap_or_default();
        let left = payload.saturating_sub(current.body_sent);
        let body =
            Body { left, tail: tail.get(current.body_sent.saturating_sub(payload)..).unwrap_or_default() };
        let socket = &self.connection.socket;
        let sent = if current.abandoned {
            reactor.vectors.send_filler(socket, head, body, limit)
        } else {
            let place = Place::at(current.body_sent.min(payload), block_len);
            let rest = blocks.get(place.block..).unwrap_or_default().iter().map(|pair| pair.local);
            reactor.vectors.send(socket, head, rest, place.offset, body, limit)
        };
        let Some(moved) = unless_blocked(sent)? else { return Ok(Sent::Blocked) };
        if !current.has_begun() {
            self.unacked.push_back(current.frame.transfer);
        }
        let of_head = moved.bytes.min(head.len());
        current.head_sent += of_head;
        current.body_sent += moved.bytes - of_head;
        if current.head_sent < self.head.len() || current.body_sent < payload + tail.len() {
            return Ok(Sent::Some(moved));
        }
        let read = (!current.abandoned).then_some(current.frame.transfer);
        self.current = None;
        Ok(Sent::Last { moved, read })
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
        let some_sent = self.current.as_ref().is_some_and(Current::has_begun);
        if self.unacked.len() == 1 && some_sent {
            return Err(format!("the peer acked transfer {} before it had all bytes", ack.transfer));
        }
        self.unacked.pop_front();
        Ok(Some(ack))
    }

    pub fn want(&mut self, writable: bool, reactor: &Reactor) -> io::Result<()> {
        reactor.want(&mut self.connection, Interest { readable: true, writable })
    }

    /// Closes it. From here on it reads no local block.
    pub fn close(self, reactor: &mut Reactor) -> Cut {
        let is_pulled = self.is_pulled();
        reactor.close(self.connection);
        let rest = match self.current {
            Some(current) if !current.has_begun() => Rest::Unbegun(current.frame),
            Some(current) if !current.abandoned => Rest::Reading(current.frame.transfer),
            _ => Rest::None,
        };
        Cut { is_pulled, begun: self.unacked, rest }
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
