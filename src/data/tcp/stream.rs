//! One open stream to a peer: frames out, acks in.
//!
//! ```text
//!            first byte taken by the socket              all bytes taken           ack
//!  planned ─────────────────────────────────► current ──────────────────► unacked ─────► over
//!     │ socket full: nothing has begun           │ transfer given up          ▲
//!     └──► not planned                           └──► copied ─────────────────┘
//! ```
//!
//! The receiver has been promised the bytes of a frame once it has begun, and takes what comes for them. When its transfer
//! is given up, the rest is sent from a copy: the blocks are the engine's again at once, however slow the receiver is.

use std::collections::VecDeque;
use std::io;

use super::frame::{Ack, FrameHeader};
use super::io_vectors::{Moved, Place};
use super::reactor::{Connection, Fill, Reactor, fill};
use super::sys::Interest;
use crate::protocol::ids::{BlockPair, LoadToken, TransferId};

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
    rest: Rest,
}

/// Where the bytes behind the head of a current frame come from.
enum Rest {
    Blocks(Place),
    /// What was left of the blocks when the transfer was given up.
    Copied {
        bytes: Vec<u8>,
        sent: usize,
    },
}

/// What the socket took.
pub(super) enum Sent {
    Some(Moved),
    /// None; a frame that was to begin has not.
    Blocked,
}

pub(super) struct Stream {
    connection: Connection,
    current: Option<Current>,
    /// Header and table of the current frame; reused.
    head: Vec<u8>,
    /// Of the frames that have begun, the current one last.
    unacked: VecDeque<TransferId>,
    ack: [u8; Ack::LEN],
    ack_got: usize,
}

impl Stream {
    pub fn new(connection: Connection) -> Stream {
        Stream {
            connection,
            current: None,
            head: Vec::new(),
            unacked: VecDeque::new(),
            ack: [0; Ack::LEN],
            ack_got: 0,
        }
    }

    /// The frame that has begun and is not all sent.
    pub fn current(&self) -> Option<FramePlan> {
        self.current.as_ref().map(|current| current.plan)
    }

    /// The rest of the current frame is no block of anybody's any more: [`Self::send_copied`].
    pub fn has_copied(&self) -> bool {
        matches!(self.current, Some(Current { rest: Rest::Copied { .. }, .. }))
    }

    /// The transfer, which moves `blocks`, was given up: from here on they are not read. Fails if what is left of them is too
    /// much to keep; then the stream must be closed.
    pub fn let_go(
        &mut self,
        transfer: TransferId,
        blocks: &[BlockPair],
        reactor: &mut Reactor,
    ) -> io::Result<()> {
        let Some(Current { plan, rest, .. }) = &mut self.current else { return Ok(()) };
        let Rest::Blocks(place) = rest else { return Ok(()) };
        if plan.transfer != transfer {
            return Ok(());
        }
        let frame = blocks.get(plan.first..plan.first + plan.count).unwrap_or_default();
        let left = frame.get(place.block..).unwrap_or_default().iter().map(|pair| pair.local);
        let bytes = reactor.keep_copy(left, place.offset)?;
        *rest = Rest::Copied { bytes, sent: 0 };
        Ok(())
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
        let (head_sent, place) = match &self.current {
            Some(Current { head_sent, rest: Rest::Blocks(place), .. }) => (*head_sent, *place),
            Some(_) => return self.send_copied(limit, reactor),
            None => {
                FrameHeader::encode(plan.transfer, plan.load, blocks, block_len, &mut self.head);
                (0, Place::default())
            }
        };
        let head = self.head.get(head_sent..).unwrap_or_default();
        let rest = blocks.get(place.block..).unwrap_or_default().iter().map(|pair| pair.local);
        let moved = reactor.vectors.send(&self.connection.socket, head, rest, place.offset, limit);
        let Some(moved) = unless_blocked(moved)? else { return Ok(Sent::Blocked) };
        if self.current.is_none() {
            self.unacked.push_back(plan.transfer);
        }
        let of_head = moved.bytes.min(head.len());
        let place = place.after(moved.bytes - of_head, block_len);
        let whole = place.block >= blocks.len();
        self.current =
            (!whole).then_some(Current { plan, head_sent: head_sent + of_head, rest: Rest::Blocks(place) });
        Ok(Sent::Some(moved))
    }

    /// Goes on with the current frame, whose transfer was given up.
    pub fn send_copied(&mut self, limit: usize, reactor: &mut Reactor) -> io::Result<Sent> {
        let Some(Current { head_sent, rest: Rest::Copied { bytes, sent }, .. }) = &mut self.current else {
            return Ok(Sent::Blocked);
        };
        let head = self.head.get(*head_sent..).unwrap_or_default();
        let rest = bytes.get(*sent..).unwrap_or_default();
        // The table goes by itself: this is rare.
        let piece = if head.is_empty() { rest.get(..limit).unwrap_or(rest) } else { head };
        let taken = self.connection.socket.send_with_flags(piece, libc::MSG_NOSIGNAL);
        let moved = taken.map(|bytes| Moved { bytes, short: bytes < piece.len() });
        let Some(moved) = unless_blocked(moved)? else { return Ok(Sent::Blocked) };
        let counted = if head.is_empty() { &mut *sent } else { head_sent };
        *counted += moved.bytes;
        if *sent == bytes.len() {
            reactor.drop_copy(bytes.len());
            self.current = None;
        }
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
        if let Some(Current { rest: Rest::Copied { bytes, .. }, .. }) = &self.current {
            reactor.drop_copy(bytes.len());
        }
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
