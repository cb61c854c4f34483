//! The built-in data transport: plain TCP, straight from and into the regions.
//!
//! One I/O thread for each transport (`thread`) owns the listener and all streams; callers reach it through a queue.
//! Only what must hold the moment a call returns is shared: the access tokens (`admission`) and the armed loads
//! (`fence`). The writer's side is `dial`, `stream`, `peer`; the receiver's `listener`, `inbound`; what they
//! say to each other is `frame`.

mod admission;
mod dial;
mod fence;
mod frame;
mod inbound;
mod io_vectors;
mod listener;
mod peer;
mod reactor;
mod stream;
mod sys;
mod thread;

pub(in crate::data) use reactor::EventSink;
pub(in crate::data) use sys::EventFd;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use self::admission::Admission;
use self::dial::Target;
use self::fence::Fence;
use self::reactor::{LISTENER, LOCAL_LISTENER, Reactor, WAKE};
use self::sys::{Epoll, Interest};
use self::thread::{Command, Shared};
use super::same_host::RegionFile;
use super::{DataEvent, DataTransport, Disarm, PeerOffer, Region};
use crate::host::spawn_without_signals;
use crate::protocol::config::TransportKind;
use crate::protocol::error::{Error, ErrorKind, Result};
use crate::protocol::ids::{BlockIndex, BlockPair, LoadToken, SessionId, TransferId};

const MAX_STREAMS: usize = 16;

/// How the transport behaves. The defaults suit one or two fast networks and some hundred peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// Where peers may connect to.
    pub bind_ip: IpAddr,
    /// 0: any free one, see [`TcpTransport::local_port`].
    pub port: u16,
    /// Connections to each peer that is written to, 1 to 16.
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
    commands: Sender<Command>,
    /// For what needs no thread to be known.
    own_events: Sender<DataEvent>,
    events: Receiver<DataEvent>,
    ready: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl TcpTransport {
    /// Binds the port and starts the I/O thread, `p2pkv-tcp`.
    pub fn new(region: Region, config: &TcpConfig) -> Result<TcpTransport> {
        TcpTransport::with_file(region, config, None)
    }

    /// As `new`; peers of this host may map `file`, which the region is a mapping of.
    pub fn with_file(region: Region, config: &TcpConfig, file: Option<RegionFile>) -> Result<TcpTransport> {
        check(config)?;
        let config = Arc::new(config.clone());
        let doors = listener::bind(&config)?;
        let port = doors.port;
        let (commands, command_queue) = crossbeam_channel::unbounded();
        let (event_queue, events) = crossbeam_channel::unbounded();
        let resources = |error: io::Error| os_error("starting the tcp data plane", &error);
        let ready = Arc::new(EventFd::new().map_err(resources)?);
        let shared = Arc::new(Shared {
            admission: Admission::default(),
            fence: Fence::default(),
            stop: AtomicBool::new(false),
            wake: EventFd::new().map_err(resources)?,
        });
        let epoll = Epoll::new().map_err(resources)?;
        epoll.add(shared.wake.as_raw_fd(), WAKE, Interest::READ).map_err(resources)?;
        epoll.add(doors.tcp.as_raw_fd(), LISTENER, Interest::READ).map_err(resources)?;
        if let Some(local) = &doors.local {
            epoll.add(local.as_raw_fd(), LOCAL_LISTENER, Interest::READ).map_err(resources)?;
        }
        let thread = {
            let (shared, config) = (Arc::clone(&shared), Arc::clone(&config));
            let sink = EventSink::new(event_queue.clone(), Arc::clone(&ready));
            spawn_without_signals("p2pkv-tcp", move || {
                let reactor = Reactor::new(config, (region, file), epoll, sink);
                thread::run(shared, command_queue, reactor, doors);
            })
            .map_err(resources)?
        };
        Ok(TcpTransport {
            config,
            region,
            port,
            shared,
            commands,
            own_events: event_queue,
            events,
            ready,
            thread: Some(thread),
        })
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

    fn post(&self, command: Command) {
        // The receiving end lives as long as the thread, and that until we are dropped.
        let _ = self.commands.send(command);
        self.shared.wake.signal();
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
        self.post(Command::RegisterPeer(Target { session, addresses, local_port, token, streams }));
    }

    fn drop_peer(&mut self, session: SessionId) {
        self.shared.admission.forget(session);
        self.post(Command::DropPeer(session));
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
        let blocks = Box::from(blocks);
        self.post(Command::Write { session, transfer, load, blocks });
    }

    fn cancel(&mut self, transfers: &[TransferId]) {
        self.post(Command::Cancel(transfers.to_vec()));
    }

    fn poll(&mut self, events: &mut Vec<DataEvent>) {
        self.ready.reset();
        events.extend(self.events.try_iter());
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.signal();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the tcp data plane's thread panicked");
        }
    }
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
