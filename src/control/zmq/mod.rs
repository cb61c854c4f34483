//! The control transport over ZeroMQ; the only room that names zmq.
//!
//! ```text
//!   ZmqReceiver: one ROUTER, bound          ZmqSender: one link for each peer
//!                                             link = DEALER ──events──▶ monitor (PAIR)
//! ```
//!
//! A context holds 300 links; a tier that may have more has further contexts for them (`contexts`).
//!
//! Rules that keep libzmq (4.3.4) from blocking or aborting the process; the file names are libzmq's:
//!
//! - A monitor event is sent with a blocking `zmq_msg_send` by the thread where it happens, the I/O thread or the
//!   reaper, under the socket's monitor lock (`socket_base.cpp`, `monitor_event`). Without a reader at the other end
//!   that send never returns and the tier is deaf for good. So a monitor has no high-water mark, is connected before
//!   its DEALER connects, and outlives it: it is closed only after MONITOR_STOPPED.
//! - MONITOR_STOPPED is sent by the destructor of the watched socket (`socket_base.cpp`, `~socket_base_t`), after its
//!   sessions and TCP sockets are gone. It is the one sign that a connection is really closed.
//! - Creating the context aborts when an epoll fd or a thread is refused (`epoll.cpp`, `thread.cpp`), and the Rust
//!   binding panics on errors that it has no name for. So descriptors, threads and the address are tried first.
//! - A receive that would block has emptied the socket's mailbox before it says so (`socket_base.cpp`, `recv`), so the
//!   next command makes a new edge on its fd: read until there is nothing, and no wake-up is lost.
//!
//! The first context ends when both halves are dropped. The sender goes first or last, it does not matter: it closes its
//! DEALERs at once, waits (bounded) until each is really gone, then closes the monitors; the receiver closes the
//! ROUTER, which has no linger; whoever is last ends the context, which then has nothing left to wait for.

mod bind;
mod contexts;
mod link;
mod probe;
mod receiver;
mod sender;

use std::time::Duration;

use crate::protocol::error::{Error, ErrorKind, Result};
use crate::protocol::ids::PeerId;

pub use receiver::ZmqReceiver;
pub use sender::ZmqSender;

/// Most peers of one control socket. Each takes [`DESCRIPTORS_PER_PEER`], and every [`contexts::LINKS_PER_CONTEXT`] of
/// them two threads.
pub const MAX_PEERS: usize = 4096;

/// Three mailboxes, and a TCP connection in each direction.
pub const DESCRIPTORS_PER_PEER: usize = 5;

/// When a silent connection is given up. Must agree with what peers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Between two pings.
    pub interval: Duration,
    /// Without any answer to a ping for this long, the connection is lost.
    pub timeout: Duration,
    /// What the peer is told to wait for our pings.
    pub ttl: Duration,
}

/// What the control transport is opened with.
#[derive(Clone, Debug)]
pub struct ZmqConfig {
    /// Address or name to listen at; `0.0.0.0`, `::` and `*` are every interface.
    pub bind_host: String,
    /// 0 = any free port.
    pub port: u16,
    /// The tier's own name; `None` = made from `advertised_host`, else `bind_host`, and the port.
    pub local_id: Option<PeerId>,
    /// The host that peers know this tier by. Required for a wildcard `bind_host` without `local_id`.
    pub advertised_host: Option<String>,
    /// Larger incoming frames end the connection that they came by.
    pub max_message_bytes: usize,
    /// Peers that are connected, connecting or closing at the same time; at most [`MAX_PEERS`].
    pub max_peers: usize,
    pub heartbeat: Heartbeat,
    /// The most that a close waits for queued messages, and so the bound of dropping the sender.
    pub linger: Duration,
    /// Messages that the DEALER holds for one peer.
    pub send_queue: usize,
    /// Messages that may wait besides for one peer: a burst of what may be outstanding, in both roles.
    pub send_backlog: usize,
}

impl Default for ZmqConfig {
    fn default() -> Self {
        ZmqConfig {
            bind_host: "localhost".to_owned(),
            port: 0,
            local_id: None,
            advertised_host: None,
            max_message_bytes: 64 << 20,
            max_peers: 128,
            heartbeat: Heartbeat {
                interval: Duration::from_secs(2),
                timeout: Duration::from_secs(10),
                ttl: Duration::from_secs(10),
            },
            linger: Duration::from_millis(500),
            send_queue: 1000,
            send_backlog: 128 << 10,
        }
    }
}

/// Binds the control socket. Gives the tier's own name and the two halves, each for one thread at a time.
///
/// May wait for a name service (at most five seconds) if `bind_host` is a name.
///
/// # Errors
/// `AddressInUse`, `AddressInvalid`, `PermissionDenied`, `OutOfResources`, `InvalidArgument`, `LimitExceeded` or `Os`;
/// the text names the address and what to do.
pub fn open(config: &ZmqConfig) -> Result<(PeerId, ZmqSender, ZmqReceiver)> {
    if config.max_peers > MAX_PEERS {
        return Err(Error::new(
            ErrorKind::LimitExceeded,
            format!(
                "max_peers is {}, but a tier serves at most {MAX_PEERS}; lower max_peers",
                config.max_peers
            ),
        ));
    }
    bind::check_name(config)?;
    probe::descriptors(probe::DESCRIPTORS_OF_A_TIER)
        .and_then(|()| probe::threads(probe::THREADS_OF_A_CONTEXT))
        .map_err(|reason| {
            Error::new(ErrorKind::OutOfResources, format!("the control socket cannot be opened: {reason}"))
        })?;
    let context = ::zmq::Context::new();
    let (router, port) = bind::router(&context, config)?;
    let local_id = bind::local_id(config, port)?;
    let receiver = ZmqReceiver::new(router)?;
    let sender = ZmqSender::new(context, config, &local_id)?;
    Ok((local_id, sender, receiver))
}

/// Milliseconds as libzmq takes them.
fn millis(span: Duration) -> i32 {
    i32::try_from(span.as_millis()).unwrap_or(i32::MAX)
}

/// Heartbeats on a ROUTER or DEALER.
fn set_heartbeat(socket: &::zmq::Socket, heartbeat: &Heartbeat) -> ::zmq::Result<()> {
    socket.set_heartbeat_ivl(millis(heartbeat.interval))?;
    socket.set_heartbeat_timeout(millis(heartbeat.timeout))?;
    socket.set_heartbeat_ttl(millis(heartbeat.ttl))
}

/// The next frame, `None` when there is none now. A signal that interrupts the call is not an empty queue: taking it
/// for one would lose the wake-up.
fn receive_frame(socket: &::zmq::Socket) -> Option<::zmq::Message> {
    loop {
        match socket.recv_msg(::zmq::DONTWAIT) {
            Ok(frame) => return Some(frame),
            Err(::zmq::Error::EINTR) => {}
            Err(_) => return None,
        }
    }
}
