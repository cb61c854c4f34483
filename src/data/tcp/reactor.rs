//! What all connections of an I/O thread share: the epoll set, deadlines, events to the tier, socket options.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use socket2::{Socket, TcpKeepalive};

use super::TcpConfig;
use super::io_vectors::IoVectors;
use super::mailbox::{Command, Mailbox};
use super::sys::{ConnectionId, Epoll, EventFd, Interest, Readiness};
use crate::data::same_host::{Crew, RegionFile};
use crate::data::{DataEvent, Region};
use crate::protocol::ids::SessionId;
use crate::protocol::timer::Timestamp;

/// The wake-up of the thread.
pub(super) const WAKE: ConnectionId = ConnectionId(0);
pub(super) const LISTENER: ConnectionId = ConnectionId(1);
/// The Unix socket beside the listener.
pub(super) const LOCAL_LISTENER: ConnectionId = ConnectionId(2);
const FIRST_CONNECTION: u64 = 3;
/// A thread that has just moved bytes looks so long for more before it sleeps: about what it takes to wake it.
const LOOKS_FOR: Duration = Duration::from_micros(50);
/// A thread that looks is there at once, one that sleeps is to be woken less often.
const LOW_WATER_LOOKING: usize = 128 << 10;
const LOW_WATER_SLEEPING: usize = 256 << 10;

/// Who an epoll report is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Accepted, hello not complete.
    Greeting,
    Inbound,
    Outbound {
        session: SessionId,
        slot: usize,
    },
}

/// A socket in the epoll set. Ends by [`Reactor::close`] only.
pub(super) struct Connection {
    pub id: ConnectionId,
    pub socket: Socket,
    interest: Interest,
}

/// Which of the I/O threads this is, and how the others are reached.
pub(super) struct Seat {
    pub index: usize,
    /// All threads', this one's too.
    pub threads: Vec<Mailbox>,
    /// There are more CPUs than I/O threads: looking for more bytes takes none from those who have some.
    pub has_cpu_to_spare: bool,
}

impl Seat {
    /// The thread of one of the streams that a session has in one direction. They are spread over all threads, and so are
    /// the first streams of several sessions.
    fn of_stream(&self, session: SessionId, stream: usize) -> usize {
        let session = usize::try_from(session.0).unwrap_or_default();
        session.wrapping_add(stream) % self.threads.len().max(1)
    }

    pub fn has_stream(&self, session: SessionId, stream: usize) -> bool {
        self.of_stream(session, stream) == self.index
    }

    /// `None` if this one it is.
    pub fn neighbour_with(&self, session: SessionId, stream: usize) -> Option<&Mailbox> {
        let index = self.of_stream(session, stream);
        self.threads.get(index).filter(|_| index != self.index)
    }

    pub fn neighbours(&self) -> impl Iterator<Item = &Mailbox> {
        let others = |(index, _): &(usize, _)| *index != self.index;
        self.threads.iter().enumerate().filter(others).map(|(_, mailbox)| mailbox)
    }
}

pub(super) struct Reactor {
    pub seat: Seat,
    pub config: Arc<TcpConfig>,
    pub now: Timestamp,
    /// What our region is a mapping of.
    pub file: Option<RegionFile>,
    pub vectors: IoVectors,
    pub events: EventSink,
    /// Who copies blocks out of the memory of peers on this host.
    pub crew: Crew,
    epoll: Epoll,
    routes: HashMap<ConnectionId, Route>,
    next_id: u64,
    /// May name connections that are gone or past that deadline: whoever is woken looks again.
    deadlines: BTreeSet<(Timestamp, u64)>,
    /// Connections with work that no readiness will tell of.
    busy: Vec<ConnectionId>,
    congestion_warned: bool,
    /// Since the last wait.
    had_traffic: bool,
}

impl Reactor {
    pub fn new(
        seat: Seat,
        config: Arc<TcpConfig>,
        (region, file): (Region, Option<RegionFile>),
        epoll: Epoll,
        events: EventSink,
    ) -> Reactor {
        Reactor {
            seat,
            config,
            now: Timestamp::ZERO,
            file,
            vectors: IoVectors::new(region),
            events,
            crew: Crew::default(),
            epoll,
            routes: HashMap::new(),
            next_id: FIRST_CONNECTION,
            deadlines: BTreeSet::new(),
            busy: Vec::new(),
            congestion_warned: false,
            had_traffic: false,
        }
    }

    pub fn region(&self) -> &Region {
        self.vectors.region()
    }

    pub fn block_len(&self) -> usize {
        self.region().block_len()
    }

    /// Sleeps until something is ready or the next deadline. `now` is the time before the sleep.
    pub fn wait(&mut self, ready: &mut Vec<Readiness>) -> io::Result<()> {
        if std::mem::take(&mut self.had_traffic) && self.look_for_more(ready)? {
            return Ok(());
        }
        let next = self.deadlines.first().map(|(at, _)| *at - self.now);
        let timeout = if self.busy.is_empty() { next } else { Some(Duration::ZERO) };
        self.epoll.wait(ready, timeout)
    }

    /// In the middle of a load: the next bytes come, or go, so soon that sleeping would only lose time.
    pub fn note_traffic(&mut self) {
        self.had_traffic = self.seat.has_cpu_to_spare;
    }

    /// In the middle of a frame, waking up for fewer bytes costs more than it gains.
    pub fn low_water(&self) -> usize {
        if self.seat.has_cpu_to_spare { LOW_WATER_LOOKING } else { LOW_WATER_SLEEPING }
    }

    /// True as soon as there is something to do.
    #[allow(clippy::disallowed_methods)] // far shorter than what `now` counts
    fn look_for_more(&mut self, ready: &mut Vec<Readiness>) -> io::Result<bool> {
        let begin = Instant::now();
        while begin.elapsed() < LOOKS_FOR {
            self.epoll.wait(ready, Some(Duration::ZERO))?;
            if !ready.is_empty() || !self.busy.is_empty() {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        Ok(false)
    }

    /// Comes back to the connection after the others have had their turn.
    pub fn call_again(&mut self, id: ConnectionId) {
        self.busy.push(id);
    }

    pub fn take_busy(&mut self, into: &mut Vec<ConnectionId>) {
        into.clear();
        into.append(&mut self.busy);
    }

    pub fn open(&mut self, socket: Socket, interest: Interest, route: Route) -> io::Result<Connection> {
        let id = ConnectionId(self.next_id);
        self.next_id += 1;
        self.epoll.add(socket.as_raw_fd(), id, interest)?;
        self.routes.insert(id, route);
        Ok(Connection { id, socket, interest })
    }

    /// Takes the socket out of the set, open as it is.
    pub fn release(&mut self, connection: Connection) -> Socket {
        self.forget(&connection);
        connection.socket
    }

    pub fn route(&self, id: ConnectionId) -> Option<Route> {
        self.routes.get(&id).copied()
    }

    pub fn want(&self, connection: &mut Connection, interest: Interest) -> io::Result<()> {
        if connection.interest != interest {
            self.epoll.change(connection.socket.as_raw_fd(), connection.id, interest)?;
            connection.interest = interest;
        }
        Ok(())
    }

    /// Takes the socket out of the set and ends the stream by hand: a forked child of the host may hold a copy of the
    /// descriptor, and dropping ours would then do neither.
    pub fn close(&mut self, connection: Connection) {
        self.forget(&connection);
        // A connection that never was or is broken cannot be shut down; that is as good.
        let _ = connection.socket.shutdown(Shutdown::Both);
    }

    fn forget(&mut self, connection: &Connection) {
        self.routes.remove(&connection.id);
        if let Err(error) = self.epoll.remove(connection.socket.as_raw_fd()) {
            log::debug!("taking a connection out of the epoll set: {error}");
        }
    }

    /// The other threads look at the peer's line.
    pub fn tell_neighbours(&self, session: SessionId) {
        self.seat.neighbours().for_each(|neighbour| neighbour.post(Command::Look(session)));
    }

    pub fn set_deadline(&mut self, id: ConnectionId, after: Duration) -> Timestamp {
        let at = self.now + after;
        self.deadlines.insert((at, id.0));
        at
    }

    pub fn next_expired(&mut self) -> Option<ConnectionId> {
        let (at, id) = self.deadlines.first().copied()?;
        if at > self.now {
            return None;
        }
        self.deadlines.remove(&(at, id));
        Some(ConnectionId(id))
    }

    pub fn watch_listener(&self, id: ConnectionId, socket: &Socket, watch: bool) -> io::Result<()> {
        if watch {
            self.epoll.add(socket.as_raw_fd(), id, Interest::READ)
        } else {
            self.epoll.remove(socket.as_raw_fd())
        }
    }

    /// Options of every data connection. Half-open links end after about `dead_peer_after`.
    pub fn tune(&self, socket: &Socket) -> io::Result<()> {
        let dead_after = self.config.dead_peer_after;
        let probe_after = (dead_after / 2).max(Duration::from_secs(1));
        let probe_every = (dead_after / 6).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(probe_after).with_interval(probe_every).with_retries(3);
        socket.set_nonblocking(true)?;
        if is_unix(socket) {
            return Ok(());
        }
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(dead_after))
    }

    /// Congestion control of an established connection. On one host `bbr`, a common default, halves the speed.
    pub fn choose_congestion_control(&mut self, socket: &Socket) {
        if is_unix(socket) {
            return;
        }
        let name = match &self.config.congestion {
            Some(name) => name.as_str(),
            None if is_local(socket) => "reno",
            None => return,
        };
        if let Err(error) = socket.set_tcp_congestion(name.as_bytes())
            && !self.congestion_warned
        {
            log::warn!(
                "tcp: congestion control {name:?} is not to be had, the system's default stays: {error}"
            );
            self.congestion_warned = true;
        }
    }
}

/// Such sockets know nothing of TCP's options.
fn is_unix(socket: &Socket) -> bool {
    socket.local_addr().is_ok_and(|address| address.is_unix())
}

/// Whether both ends are on this host.
fn is_local(socket: &Socket) -> bool {
    let peer = socket.peer_addr().ok().and_then(|address| address.as_socket());
    let own = socket.local_addr().ok().and_then(|address| address.as_socket());
    let ip = |address: SocketAddr| address.ip().to_canonical();
    match (peer.map(ip), own.map(ip)) {
        (Some(peer), Some(own)) => peer.is_loopback() || peer == own,
        _ => false,
    }
}

/// Events on their way to [`crate::data::DataTransport::poll`].
pub(in crate::data) struct EventSink {
    channel: Sender<DataEvent>,
    ready: Arc<EventFd>,
    unsignalled: bool,
}

impl EventSink {
    pub fn new(channel: Sender<DataEvent>, ready: Arc<EventFd>) -> EventSink {
        EventSink { channel, ready, unsignalled: false }
    }

    /// The other end is gone only while the transport is dropped; nobody wants the event then.
    pub fn push(&mut self, event: DataEvent) {
        let _ = self.channel.send(event);
        self.unsignalled = true;
    }

    /// One signal for all events since the last.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.unsignalled) {
            self.ready.signal();
        }
    }
}

/// How far a read of known length has come.
pub(super) enum Fill {
    Complete,
    Blocked,
    /// The peer has closed.
    Ended,
}

/// Reads until `got` has reached the end of `buffer`, and never a byte more.
pub(super) fn fill(socket: &Socket, buffer: &mut [u8], got: &mut usize) -> io::Result<Fill> {
    let mut reader = socket;
    fill_from(|rest| reader.read(rest), buffer, got)
}

pub(super) fn fill_from(
    mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    buffer: &mut [u8],
    got: &mut usize,
) -> io::Result<Fill> {
    while let Some(rest) = buffer.get_mut(*got..).filter(|rest| !rest.is_empty()) {
        match read(rest) {
            Ok(0) => return Ok(Fill::Ended),
            Ok(count) => *got += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Fill::Blocked),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Fill::Complete)
}

/// Small messages waiting for room in a socket.
#[derive(Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    pub fn push(&mut self, message: &[u8]) {
        self.bytes.extend_from_slice(message);
    }

    pub fn waiting(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Sends what the socket takes now.
    pub fn flush(&mut self, socket: &Socket) -> io::Result<()> {
        while let Some(rest) = self.bytes.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match socket.send_with_flags(rest, libc::MSG_NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(())
    }
}
