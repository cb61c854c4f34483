//! The built-in data transport: plain TCP, straight from and into the regions.
//!
//! One I/O thread for each transport, or two where there are several streams to a peer (`thread`), own the listener and
//! all streams; callers reach them through a queue (`mailbox`). Shared is what must hold the moment a call returns: the
//! access tokens (`admission`) and the armed loads (`fence`); and what waits to be written to a peer (`line`). The writer's
//! side is `dial`, `stream`, `peer`; the receiver's `listener`, `inbound`; what they say to each other is `frame`.

mod admission;
mod dial;
mod fence;
mod frame;
mod inbound;
mod io_vectors;
mod line;
mod listener;
mod mailbox;
mod peer;
mod reactor;
mod stream;
mod sys;
mod thread;

pub(in crate::data) use reactor::EventSink;
pub(in crate::data) use sys::EventFd;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use self::dial::Target;
use self::frame::MAX_FRAME_BLOCKS;
use self::line::Line;
use self::listener::Doors;
use self::mailbox::{Command, Inbox, Mailbox};
use self::reactor::{LISTENER, LOCAL_LISTENER, Reactor, Seat, WAKE};
use self::sys::{Epoll, Interest};
use self::thread::Shared;
use super::same_host::RegionFile;
use super::{DataEvent, DataTransport, Disarm, PeerOffer, Region};
use crate::host::spawn_without_signals;
use crate::protocol::config::TransportKind;
use crate::protocol::error::{Error, ErrorKind, Result};
use crate::protocol::ids::{BlockIndex, BlockPair, LoadToken, SessionId, TransferId};

const MAX_STREAMS: usize = 16;
/// More gain nothing: two fill the memory's bandwidth.
const MAX_THREADS: usize = 2;
/// Frames are not cut smaller than this for the sake of balance between streams.
const MIN_BALANCED_FRAME: usize = 256 << 10;

/// How the transport behaves. The defaults suit one or two fast networks and some hundred peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// Where peers may connect to.
    pub bind_ip: IpAddr,
    /// 0: any free one, see [`TcpTransport::local_port`].
    pub port: u16,
    /// Connections to each peer that is written to, 1 to 16. With several there are two I/O threads, for both directions.
    pub streams: usize,
    /// TCP congestion control by name. `None`: `reno` to peers on this host, else the system's default.
    pub congestion: Option<String>,
    /// For each address of a peer.
    pub connect_timeout: Duration,
    /// From a connection to its hello, and from a hello to its answer.
    pub hello_timeout: Duration,
    /// A peer that gives no sign of life, or takes no byte, for so long is taken for dead.
    pub dead_peer_after: Duration,
    /// Bytes in one frame at most, but always at least one block.
    pub frame_bytes: usize,
    /// Accepted connections without a complete hello; at the cap the oldest is closed.
    pub max_unauthenticated: usize,
    /// Connections that one session's peer may hold to us.
    pub max_streams_per_session: usize,
    /// Whether peers of this host are to pull blocks out of memory, see [`super::same_host`].
    pub same_host: bool,
}

impl Default for TcpConfig {
    fn default() -> Self {
        TcpConfig {
            bind_ip: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            port: 0,
            streams: 2,
            congestion: None,
            connect_timeout: Duration::from_secs(5),
            hello_timeout: Duration::from_secs(5),
            dead_peer_after: Duration::from_secs(10),
            frame_bytes: 4 << 20,
            max_unauthenticated: 64,
            max_streams_per_session: MAX_STREAMS,
            same_host: true,
        }
    }
}

/// See [`DataTransport`]. Dropping it closes every connection and frees the port before it returns; events that were
/// not polled are gone.
pub struct TcpTransport {
    config: Arc<TcpConfig>,
    region: Region,
    port: u16,
    shared: Arc<Shared>,
    mailboxes: Vec<Mailbox>,
    /// What waits for each peer that was registered.
    lines: HashMap<SessionId, Arc<Line>>,
    /// For what needs no thread to be known.
    own_events: Sender<DataEvent>,
    events: Receiver<DataEvent>,
    ready: Arc<EventFd>,
    threads: Vec<JoinHandle<()>>,
}

impl TcpTransport {
    /// Binds the port and starts the I/O threads, `p2pkv-tcp`.
    pub fn new(region: Region, config: &TcpConfig) -> Result<TcpTransport> {
        TcpTransport::with_file(region, config, None)
    }

    /// As `new`; peers of this host may map `file`, which the region is a mapping of.
    pub fn with_file(region: Region, config: &TcpConfig, file: Option<RegionFile>) -> Result<TcpTransport> {
        check(config)?;
        let resources = |error: io::Error| os_error("starting the tcp data plane", &error);
        let doors = listener::bind(config)?;
        let (own_events, events) = crossbeam_channel::unbounded();
        let (mailboxes, inboxes): (Vec<Mailbox>, Vec<Inbox>) = (0..thread_count(config.streams, cpu_count()))
            .map(|_| mailbox::open())
            .collect::<io::Result<Vec<_>>>()
            .map_err(resources)?
            .into_iter()
            .unzip();
        let mut transport = TcpTransport {
            config: Arc::new(config.clone()),
            region,
            port: doors.port,
            shared: Arc::default(),
            mailboxes,
            lines: HashMap::new(),
            own_events,
            events,
            ready: Arc::new(EventFd::new().map_err(resources)?),
            threads: Vec::new(),
        };
        let mut doors = Some(doors);
        for (index, inbox) in inboxes.into_iter().enumerate() {
            transport.start(index, inbox, doors.take(), file.clone()).map_err(resources)?;
        }
        Ok(transport)
    }

    fn start(
        &mut self,
        index: usize,
        inbox: Inbox,
        doors: Option<Doors>,
        file: Option<RegionFile>,
    ) -> io::Result<()> {
        let epoll = Epoll::new()?;
        epoll.add(inbox.wake_fd(), WAKE, Interest::READ)?;
        if let Some(doors) = &doors {
            epoll.add(doors.tcp.as_raw_fd(), LISTENER, Interest::READ)?;
            if let Some(local) = &doors.local {
                epoll.add(local.as_raw_fd(), LOCAL_LISTENER, Interest::READ)?;
            }
        }
        let seat = Seat {
            index,
            threads: self.mailboxes.clone(),
            has_cpu_to_spare: cpu_count() > self.mailboxes.len(),
        };
        let sink = EventSink::new(self.own_events.clone(), Arc::clone(&self.ready));
        let (shared, config, region) = (Arc::clone(&self.shared), Arc::clone(&self.config), self.region);
        self.threads.push(spawn_without_signals("p2pkv-tcp", move || {
            let reactor = Reactor::new(seat, config, (region, file), epoll, sink);
            thread::run(shared, inbox, reactor, doors);
        })?);
        Ok(())
    }

    /// Where the listener is, to be told to peers.
    #[must_use]
    pub fn local_port(&self) -> u16 {
        self.port
    }

    fn tell(&self, event: DataEvent) {
        // Cannot fail: we hold the receiving end.
        let _ = self.own_events.send(event);
        self.ready.signal();
    }

    fn post_all(&self, command: impl Fn() -> Command) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.post(command()));
    }

    /// Blocks to a frame: none too small for its header or too large for its table.
    fn frame_sizes(&self) -> RangeInclusive<usize> {
        let holding = |bytes: usize| (bytes / self.region.block_len()).clamp(1, MAX_FRAME_BLOCKS);
        let most = holding(self.config.frame_bytes);
        holding(MIN_BALANCED_FRAME).min(most)..=most
    }
}

impl DataTransport for TcpTransport {
    fn kind(&self) -> TransportKind {
        TransportKind::Tcp
    }

    fn event_fd(&self) -> RawFd {
        self.ready.as_raw_fd()
    }

    fn expect_peer(&mut self, session: SessionId, token: &[u8]) {
        self.shared.admission.expect(session, token);
    }

    fn register_peer(&mut self, session: SessionId, offer: PeerOffer) {
        let PeerOffer::Tcp { addresses, token, num_blocks: _, same_host } = offer else {
            let reason = "the tcp transport got an offer for another one".to_owned();
            return self.tell(DataEvent::PeerRefused { session, reason });
        };
        let local_port =
            addresses.first().map(SocketAddr::port).filter(|_| same_host && self.config.same_host);
        let streams = self.config.streams;
        let target = Target { session, addresses, local_port, token, streams };
        let line = Arc::new(Line::new(target, self.mailboxes.len(), self.frame_sizes()));
        self.lines.insert(session, Arc::clone(&line));
        self.post_all(|| Command::RegisterPeer(Arc::clone(&line)));
    }

    fn drop_peer(&mut self, session: SessionId) {
        self.shared.admission.forget(session);
        self.lines.remove(&session);
        self.post_all(|| Command::DropPeer(session));
    }

    fn arm(&mut self, session: SessionId, load: LoadToken, blocks: &[BlockIndex]) {
        self.shared.fence.arm(session, load, blocks);
    }

    fn disarm(&mut self, load: LoadToken) -> Disarm {
        self.shared.fence.disarm(load)
    }

    fn write(
        &mut self,
        session: SessionId,
        transfer: TransferId,
        load: Option<LoadToken>,
        blocks: &[BlockPair],
    ) {
        let limit = self.region.num_blocks();
        if blocks.is_empty() || blocks.iter().any(|pair| pair.local.0 >= limit) {
            let reason =
                format!("a write of {} blocks that are not all in the region of {limit}", blocks.len());
            return self.tell(DataEvent::TransferFailed { transfer, reason, decisive: false });
        }
        let pushed = match self.lines.get(&session) {
            Some(line) => line.push(transfer, load, blocks),
            None => Err(format!("session {session} has no data connection to write to")),
        };
        match pushed {
            Ok(()) => self.post_all(|| Command::Look(session)),
            Err(reason) => self.tell(DataEvent::TransferFailed { transfer, reason, decisive: true }),
        }
    }

    fn cancel(&mut self, transfers: &[TransferId]) {
        let transfers: Arc<[TransferId]> = Arc::from(transfers);
        self.post_all(|| Command::Cancel(Arc::clone(&transfers)));
    }

    fn poll(&mut self, events: &mut Vec<DataEvent>) {
        self.ready.reset();
        events.extend(self.events.try_iter());
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.mailboxes.iter().for_each(Mailbox::wake);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::error!("a thread of the tcp data plane panicked");
            }
        }
    }
}

/// One thread is enough for one stream: its bytes come one after the other.
fn thread_count(streams: usize, cpus: usize) -> usize {
    streams.min(cpus).clamp(1, MAX_THREADS)
}

fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn check(config: &TcpConfig) -> Result<()> {
    let range = |what: &str, got: usize, most: usize| {
        let message = format!("tcp {what} is {got}, allowed are 1 to {most}");
        if (1..=most).contains(&got) { Ok(()) } else { Err(Error::new(ErrorKind::InvalidArgument, message)) }
    };
    range("streams", config.streams, MAX_STREAMS)?;
    range("frame_bytes", config.frame_bytes, usize::MAX)?;
    range("max_unauthenticated", config.max_unauthenticated, usize::MAX)?;
    range("max_streams_per_session", config.max_streams_per_session, usize::MAX)
}

fn describe_bind_error(address: SocketAddr, error: &io::Error) -> Error {
    os_error(&format!("binding the tcp data port at {address}"), error)
}

fn os_error(doing: &str, error: &io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::AddrInUse => ErrorKind::AddressInUse,
        io::ErrorKind::AddrNotAvailable => ErrorKind::AddressInvalid,
        io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock => ErrorKind::OutOfResources,
        _ if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS)) => {
            ErrorKind::OutOfResources
        }
        _ => ErrorKind::Os,
    };
    Error::new(kind, format!("{doing}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_threads_as_streams_and_cpus_can_use_and_never_more_than_two() {
        let counts =
            [(1, 8), (2, 8), (16, 64), (2, 1), (16, 2)].map(|(streams, cpus)| thread_count(streams, cpus));
        assert_eq!(counts, [1, 2, 2, 1, 2]);
    }
}
