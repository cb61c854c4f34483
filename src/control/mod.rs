//! The control plane: small messages between tiers. What a control transport is.
//!
//! Sending and receiving are two halves, so that a large message is received and decoded without holding the
//! tier's lock. A transport knows peers by [`PeerId`] and connections by [`SessionId`]; it knows nothing of what the
//! bytes mean.

pub mod resolve;
pub mod zmq;

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::protocol::ids::{PeerId, SessionId};
use crate::protocol::timer::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// The connection was up and is gone, or its handshake failed, or its send queue is full. Given at most once
    /// for each session, and never for a dial that is merely not answered yet.
    ConnectionLost { session: SessionId, reason: String },
    /// The peer's name was resolved: the addresses that the dial will use, in order.
    Resolved { session: SessionId, addresses: Vec<SocketAddr> },
    /// The peer's name cannot be resolved, now or ever.
    Unresolvable { session: SessionId, reason: String },
}

/// Outgoing connections: one for each session, all non-blocking.
pub trait ControlSender: Send {
    /// Opens a connection to `peer`. Name resolution and connecting go on in the background; messages sent
    /// meanwhile queue. If an earlier connection to the same peer is not fully closed yet, the dial waits for that.
    fn dial(&mut self, now: Timestamp, session: SessionId, peer: &PeerId);

    /// Closes the session's connection and dials afresh. What was queued is gone.
    fn redial(&mut self, now: Timestamp, session: SessionId);

    /// Queues one message. A full queue is a lost connection (an event follows), never a wait.
    fn send(&mut self, session: SessionId, payload: &[u8]);

    /// Ends the session's connection after giving queued messages at most `linger` to leave.
    fn close(&mut self, now: Timestamp, session: SessionId, linger: Duration);

    /// Makes progress on dials and closes, and appends what happened.
    fn poll(&mut self, now: Timestamp, events: &mut Vec<ControlEvent>);

    /// When `poll` must be called again even though no fd became readable.
    fn next_deadline(&self) -> Option<Timestamp>;

    /// One fd (an epoll set) that is readable when `poll` has work.
    fn event_fd(&self) -> RawFd;

    /// Connections that are open, opening or closing; 0 = nothing is left of any of them.
    fn open_connections(&self) -> usize;
}

/// One message as it arrived: who says it is from, and the bytes. Where the transport has put them, not a copy.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The sender's routing id, unchecked.
    pub identity: &'a [u8],
    pub payload: &'a [u8],
}

/// Incoming messages of all peers.
pub trait ControlReceiver: Send {
    /// The next message, or `None` when there is none now. Messages with a wrong number of frames or over the size
    /// limit are dropped and counted. The one before is let go.
    fn receive(&mut self) -> Option<Received<'_>>;

    /// Messages dropped so far, for any reason.
    fn dropped(&self) -> u64;

    /// Readable when [`Self::receive`] may have something. Edge-triggered: read until `None`.
    fn event_fd(&self) -> RawFd;
}
