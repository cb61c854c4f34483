//! One outgoing connection: a DEALER and the monitor that tells what becomes of it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use ::zmq::SocketEvent;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use super::{Heartbeat, ZmqConfig, millis, probe, receive_frame, set_heartbeat};
use crate::protocol::ids::{PeerId, SessionId};
use crate::protocol::timer::Timestamp;

const RECONNECT_FIRST: Duration = Duration::from_millis(100);
const RECONNECT_MOST: Duration = Duration::from_secs(1);

/// Then the attempt is made afresh: the system's own retransmissions grow too slow for a host that is booting.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// A peer's ROUTER never sends. This is enough for its handshake, and all it may make us hold.
const MAX_REPLY_BYTES: i64 = 8192;
const REPLY_QUEUE: i32 = 1;

/// What a monitor tells.
#[derive(Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The connection was there and is not any more, or the other side speaks no ZMTP.
    Lost(String),
    /// The DEALER and everything below it are gone; nothing follows.
    Ended,
}

/// ```text
///             close            MONITOR_STOPPED
///   Open ──────────▶ Closing ─────────────────▶ (dropped by its owner)
/// ```
enum State {
    Open {
        dealer: ::zmq::Socket,
        /// What the DEALER had no room for. While there is something, its fd is watched: it tells of room.
        backlog: Backlog,
    },
    /// The DEALER lingers and ends in libzmq's threads; `give_up` is when its peer is dialled again regardless.
    Closing { give_up: Timestamp },
}

/// Messages that wait for room in a DEALER, or for there to be one. A burst of a healthy peer's work is larger than the
/// DEALER's queue; what waits too long, or grows too large, is not.
#[derive(Default)]
pub struct Backlog {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// Bytes that may wait for one peer besides what its DEALER holds, and always one message.
const BACKLOG_BYTES: usize = 64 << 20;

impl Backlog {
    pub fn push(&mut self, payload: &[u8], most: usize) -> Result<(), String> {
        let fits = self.messages.is_empty() || self.bytes.saturating_add(payload.len()) <= BACKLOG_BYTES;
        if self.messages.len() >= most || !fits {
            return Err(format!("{} messages of {} bytes", self.messages.len(), self.bytes));
        }
        self.bytes += payload.len();
        self.messages.push_back(payload.to_vec());
        Ok(())
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.messages.iter().map(Vec::as_slice)
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    fn first(&self) -> Option<&[u8]> {
        self.messages.front().map(Vec::as_slice)
    }

    fn drop_first(&mut self) {
        if let Some(message) = self.messages.pop_front() {
            self.bytes -= message.len();
        }
    }
}

pub struct Link {
    pub peer: PeerId,
    pub session: SessionId,
    /// The number of the context that its sockets are of.
    pub context: usize,
    address: SocketAddr,
    state: State,
    monitor: ::zmq::Socket,
    monitor_fd: RawFd,
    silence: Duration,
    token: Token,
    send_backlog: usize,
}

/// What all links of a sender have in common.
pub struct LinkOptions {
    pub local_id: PeerId,
    pub heartbeat: Heartbeat,
    pub send_queue: usize,
    pub send_backlog: usize,
}

impl LinkOptions {
    pub fn new(config: &ZmqConfig, local_id: &PeerId) -> Self {
        LinkOptions {
            local_id: local_id.clone(),
            heartbeat: config.heartbeat,
            send_queue: config.send_queue,
            send_backlog: config.send_backlog,
        }
    }
}

impl Link {
    /// A watched DEALER that is not connected yet. `id` must be new in this context; it is also the token by which
    /// `registry` tells that there are events.
    pub fn new(
        (number, context): (usize, &::zmq::Context),
        registry: &Registry,
        options: &LinkOptions,
        (session, peer, address): (SessionId, PeerId, SocketAddr),
        id: usize,
    ) -> Result<Self, String> {
        probe::descriptors(probe::DESCRIPTORS_OF_A_LINK)?;
        let (monitor, monitor_fd) = monitor_socket(context).map_err(|error| no_socket(&error))?;
        // Before there is a DEALER: one that cannot be watched must not be.
        registry
            .register(&mut SourceFd(&monitor_fd), Token(id), Interest::READABLE)
            .map_err(|error| format!("its events cannot be watched: {error}"))?;
        let dealer = watched_dealer(context, options, address, (&monitor, id)).map_err(|error| {
            unwatch(registry, monitor_fd);
            no_socket(&error)
        })?;
        Ok(Link {
            peer,
            session,
            context: number,
            address,
            state: State::Open { dealer, backlog: Backlog::default() },
            monitor,
            monitor_fd,
            silence: options.heartbeat.timeout,
            token: Token(id),
            send_backlog: options.send_backlog,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn connect(&self) -> Result<(), String> {
        let State::Open { dealer, .. } = &self.state else { return Ok(()) };
        dealer
            .connect(&format!("tcp://{}", self.address))
            .map_err(|error| format!("{} cannot be connected to: {error}", self.address))
    }

    /// Queues one message, never waiting. Messages for a link that closes are dropped.
    pub fn send(&mut self, registry: &Registry, payload: &[u8]) -> Result<(), String> {
        let State::Open { dealer, backlog } = &mut self.state else { return Ok(()) };
        let is_first = backlog.is_empty();
        if is_first && take(dealer, payload).map_err(|error| cannot_queue(self.address, &error))? {
            return Ok(());
        }
        if let Err(waiting) = backlog.push(payload, self.send_backlog) {
            // Also without a pipe, after a failed handshake; its event is there already and says more.
            return Err(self.loss_in_monitor().unwrap_or_else(|| full_queue(&waiting)));
        }
        if !is_first {
            return Ok(());
        }
        watch_room(registry, dealer, self.token)
            .map_err(|why| format!("{}: its room cannot be watched: {why}", self.address))?;
        // Room that came before the watch is not told of.
        self.send_backlog(registry)
    }

    /// Goes on with what waits, as far as there is room.
    pub fn send_backlog(&mut self, registry: &Registry) -> Result<(), String> {
        let State::Open { dealer, backlog } = &mut self.state else { return Ok(()) };
        if backlog.is_empty() {
            return Ok(());
        }
        let failed = |error: ::zmq::Error| cannot_queue(self.address, &error);
        while let Some(message) = backlog.first() {
            // Only this question makes the DEALER take in what its I/O thread has told it, and so makes the fd tell again.
            let has_room = || dealer.get_events().is_ok_and(|events| events.contains(::zmq::POLLOUT));
            let taken = take(dealer, message).map_err(failed)?
                || has_room() && take(dealer, message).map_err(failed)?;
            if !taken {
                return Ok(());
            }
            backlog.drop_first();
        }
        unwatch_room(registry, dealer);
        Ok(())
    }

    /// Closes the DEALER, which gives what is queued at most `linger`; what it had no room for is dropped. The monitor is
    /// read on until it ends.
    pub fn close(&mut self, registry: &Registry, linger: Duration, give_up: Timestamp) {
        // It is closed anyway.
        let _ = self.send_backlog(registry);
        if let State::Open { dealer, backlog } = &self.state {
            if !backlog.is_empty() {
                unwatch_room(registry, dealer);
            }
            // Cannot fail on an open socket; the linger it was made with is 0.
            let _ = dealer.set_linger(millis(linger));
            self.state = State::Closing { give_up };
        }
    }

    pub fn give_up(&self) -> Option<Timestamp> {
        match self.state {
            State::Open { .. } => None,
            State::Closing { give_up } => Some(give_up),
        }
    }

    /// Before the link is dropped, which may only be after [`LinkEvent::Ended`].
    pub fn unwatch(&self, registry: &Registry) {
        unwatch(registry, self.monitor_fd);
    }

    /// The next thing that the monitor tells; `None` when it has told all.
    pub fn next_event(&self) -> Option<LinkEvent> {
        loop {
            let frame = receive_frame(&self.monitor)?;
            let mut more = frame.get_more();
            while more {
                more = receive_frame(&self.monitor).is_some_and(|frame| frame.get_more());
            }
            if let Some(event) = self.read_event(&frame) {
                return Some(event);
            }
        }
    }

    fn loss_in_monitor(&self) -> Option<String> {
        std::iter::from_fn(|| self.next_event()).find_map(|event| match event {
            LinkEvent::Lost(reason) => Some(reason),
            LinkEvent::Ended => None,
        })
    }

    /// A frame of the monitor: the event (u16) and its value (u32) in the machine's byte order.
    fn read_event(&self, frame: &[u8]) -> Option<LinkEvent> {
        let (kind, rest) = frame.split_first_chunk::<2>()?;
        let value = u32::from_ne_bytes(*rest.first_chunk::<4>()?);
        let kind = u16::from_ne_bytes(*kind);
        let address = self.address;
        let is = |event: SocketEvent| kind == event.to_raw();
        if is(SocketEvent::MONITOR_STOPPED) {
            Some(LinkEvent::Ended)
        } else if is(SocketEvent::DISCONNECTED) {
            let silence = self.silence;
            Some(LinkEvent::Lost(format!(
                "the connection to {address} was closed by the peer, or it was silent for {silence:?}"
            )))
        } else if is(SocketEvent::HANDSHAKE_FAILED_NO_DETAIL) {
            Some(LinkEvent::Lost(format!(
                "handshake failed: {address} accepted the connection, then {}; is it a tier's control port?",
                closing_words(value)
            )))
        } else if is(SocketEvent::HANDSHAKE_FAILED_PROTOCOL) {
            Some(LinkEvent::Lost(format!(
                "handshake failed: {address} broke the ZMTP protocol (error {value:#x}); is it a tier's control port?"
            )))
        } else if is(SocketEvent::HANDSHAKE_FAILED_AUTH) {
            Some(LinkEvent::Lost(format!(
                "handshake failed: {address} refused authentication (status {value})"
            )))
        } else {
            None
        }
    }
}

pub fn full_queue(waiting: &str) -> String {
    format!("send queue full ({waiting} wait for the peer to take them)")
}

fn cannot_queue(address: SocketAddr, error: &::zmq::Error) -> String {
    format!("a message to {address} cannot be queued: {error}")
}

/// False if the DEALER has no room.
fn take(dealer: &::zmq::Socket, payload: &[u8]) -> ::zmq::Result<bool> {
    loop {
        match dealer.send(payload, ::zmq::DONTWAIT) {
            Ok(()) => return Ok(true),
            Err(::zmq::Error::EINTR) => {}
            Err(::zmq::Error::EAGAIN) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// The DEALER's fd becomes readable when its I/O thread has something to tell it, such as that there is room.
fn watch_room(registry: &Registry, dealer: &::zmq::Socket, token: Token) -> Result<(), String> {
    let fd = dealer.get_fd().map_err(|error| error.to_string())?;
    registry.register(&mut SourceFd(&fd), token, Interest::READABLE).map_err(|error| error.to_string())
}

fn unwatch_room(registry: &Registry, dealer: &::zmq::Socket) {
    if let Ok(fd) = dealer.get_fd() {
        unwatch(registry, fd);
    }
}

/// What to be told of. CLOSED, CONNECT_RETRIED and CONNECT_DELAYED are not among it: on a DEALER they only tell that the
/// peer does not listen yet, each second while it is away (`stream_connecter_base.cpp`). A TCP connection that was made
/// and is gone is always DISCONNECTED, with a failed handshake told before it (`stream_engine_base.cpp`, `error`).
fn watched_events() -> i32 {
    [
        SocketEvent::HANDSHAKE_FAILED_NO_DETAIL,
        SocketEvent::HANDSHAKE_FAILED_PROTOCOL,
        SocketEvent::HANDSHAKE_FAILED_AUTH,
        SocketEvent::DISCONNECTED,
        SocketEvent::MONITOR_STOPPED,
    ]
    .into_iter()
    .fold(0, |mask, event| mask | i32::from(event.to_raw()))
}

fn monitor_socket(context: &::zmq::Context) -> ::zmq::Result<(::zmq::Socket, RawFd)> {
    let monitor = context.socket(::zmq::PAIR)?;
    monitor.set_linger(0)?;
    // No high-water mark: at a full one libzmq's I/O thread would wait for us.
    monitor.set_rcvhwm(0)?;
    monitor.set_sndhwm(0)?;
    let fd = monitor.get_fd()?;
    Ok((monitor, fd))
}

fn watched_dealer(
    context: &::zmq::Context,
    options: &LinkOptions,
    address: SocketAddr,
    (monitor, id): (&::zmq::Socket, usize),
) -> ::zmq::Result<::zmq::Socket> {
    let dealer = context.socket(::zmq::DEALER)?;
    set_dealer_options(&dealer, options, address)?;
    let endpoint = format!("inproc://p2pkv-link-{id}");
    dealer.monitor(&endpoint, watched_events())?;
    if let Err(error) = connect_monitor(monitor, &endpoint) {
        // A DEALER whose monitor nobody reads would block libzmq's reaper when it ends: better leak it.
        std::mem::forget(dealer);
        return Err(error);
    }
    // Only a reader that found nothing is woken (`pipe.cpp`, `check_read`), and a new pipe counts as being read. There
    // is nothing yet: the DEALER is not connected.
    let _ = receive_frame(monitor);
    Ok(dealer)
}

fn set_dealer_options(
    dealer: &::zmq::Socket,
    options: &LinkOptions,
    address: SocketAddr,
) -> ::zmq::Result<()> {
    dealer.set_identity(options.local_id.as_str().as_bytes())?;
    dealer.set_linger(0)?;
    // What is sent before the peer listens waits for it.
    dealer.set_immediate(false)?;
    dealer.set_sndhwm(i32::try_from(options.send_queue).unwrap_or(i32::MAX))?;
    dealer.set_rcvhwm(REPLY_QUEUE)?;
    dealer.set_maxmsgsize(MAX_REPLY_BYTES)?;
    dealer.set_reconnect_ivl(millis(RECONNECT_FIRST))?;
    dealer.set_reconnect_ivl_max(millis(RECONNECT_MOST))?;
    dealer.set_connect_timeout(millis(CONNECT_LIMIT))?;
    dealer.set_ipv6(address.is_ipv6())?;
    set_heartbeat(dealer, &options.heartbeat)
}

fn connect_monitor(monitor: &::zmq::Socket, endpoint: &str) -> ::zmq::Result<()> {
    loop {
        match monitor.connect(endpoint) {
            Err(::zmq::Error::EINTR) => {}
            done => return done,
        }
    }
}

/// libzmq closes the fd later, on a thread of its own; until then it could still become readable.
fn unwatch(registry: &Registry, fd: RawFd) {
    if let Err(error) = registry.deregister(&mut SourceFd(&fd)) {
        log::debug!("a connection was not watched: {error}");
    }
}

fn no_socket(error: &::zmq::Error) -> String {
    format!(
        "no socket can be opened for it ({error}); raise the limit of open files (ulimit -n) or use fewer peers"
    )
}

fn closing_words(errno: u32) -> String {
    match i32::try_from(errno) {
        Ok(code) if code != 0 => format!("ended it ({})", std::io::Error::from_raw_os_error(code)),
        _ => "closed it".to_owned(),
    }
}
