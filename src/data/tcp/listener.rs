//! The door: the listening socket, and connections that have not proved yet whose they are.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::admission::{Admission, Place};
use super::frame::{Answer, HandoverHead, Hello, HelloRefusal, VERSION};
use super::reactor::{Connection, Fill, LISTENER, LOCAL_LISTENER, Outbox, Reactor, Route, fill_from};
use super::sys::{ConnectionId, Interest};
use super::{TcpConfig, describe_bind_error};
use crate::data::same_host::{Handover, Source, socket as local_socket};
use crate::protocol::config::Reach;
use crate::protocol::error::Result;
use crate::protocol::ids::SessionId;
use crate::protocol::timer::Timestamp;

const BACKLOG: i32 = 1024;
/// Out of descriptors or memory: accepting rests so long instead of spinning.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Accepted in one go, before other work gets its turn.
const ACCEPTS_PER_TURN: usize = 32;

/// What is listened on.
pub(super) struct Doors {
    pub tcp: Socket,
    pub port: u16,
    /// For writers of this host.
    pub local: Option<Socket>,
}

/// Binds the data port, and the Unix socket beside it if that can be had. Free again as soon as they close.
pub(super) fn bind(config: &TcpConfig) -> Result<Doors> {
    let address = SocketAddr::new(config.bind_ip, config.port);
    let (tcp, port) = open_listening_socket(address).map_err(|error| describe_bind_error(address, &error))?;
    let local = config.same_host.then(|| local_socket::listen(port, BACKLOG));
    let local = local.and_then(|opened| {
        opened.inspect_err(|error| log::warn!("tcp: no Unix socket for peers of this host: {error}")).ok()
    });
    Ok(Doors { tcp, port, local })
}

fn open_listening_socket(address: SocketAddr) -> io::Result<(Socket, u16)> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    let bound = socket.local_addr()?.as_socket().ok_or_else(|| io::Error::other("bound to no IP address"))?;
    Ok((socket, bound.port()))
}

/// A connection that has proved whose it is, in no epoll set.
pub(super) struct Admitted {
    pub socket: Socket,
    pub guest: Guest,
}

/// Who a connection is from.
pub(super) struct Guest {
    pub session: SessionId,
    /// Its number among the writer's.
    pub stream: usize,
    pub from: String,
    /// The writer's region, where blocks are pulled from it.
    pub source: Option<Source>,
    pub place: Place,
}

pub(super) struct Listener {
    doors: Doors,
    paused_until: Option<Timestamp>,
    /// By id, hence by age.
    greetings: BTreeMap<ConnectionId, Greeting>,
}

impl Listener {
    /// The doors are in the epoll set already.
    pub fn new(doors: Doors) -> Listener {
        Listener { doors, paused_until: None, greetings: BTreeMap::new() }
    }

    fn door(&self, id: ConnectionId) -> Option<&Socket> {
        if id == LOCAL_LISTENER { self.doors.local.as_ref() } else { Some(&self.doors.tcp) }
    }

    pub fn accept_ready(&mut self, id: ConnectionId, reactor: &mut Reactor) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(door) = self.door(id) else { return };
            match door.accept() {
                Ok((socket, from)) => {
                    let kind = if id == LOCAL_LISTENER { Kind::Local } else { Kind::Tcp(from.as_socket()) };
                    self.greet(socket, kind, reactor);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_shortage(&error) => return self.pause(&error, reactor),
                // The connection that was next died before it was accepted: no matter.
                Err(error) => log::debug!("tcp: accepting a data connection: {error}"),
            }
        }
    }

    fn pause(&mut self, error: &io::Error, reactor: &mut Reactor) {
        if self.paused_until.is_some() {
            return;
        }
        log::warn!("tcp: cannot accept data connections ({error}); trying again in {ACCEPT_PAUSE:?}");
        if let Err(error) = self.watch(false, reactor) {
            log::warn!("tcp: pausing the listener: {error}");
        }
        self.paused_until = Some(reactor.set_deadline(LISTENER, ACCEPT_PAUSE));
    }

    /// The deadline of the pause, or an old one.
    pub fn resume(&mut self, reactor: &mut Reactor) {
        if self.paused_until.is_none_or(|until| until > reactor.now) {
            return;
        }
        match self.watch(true, reactor) {
            Ok(()) => self.paused_until = None,
            Err(error) => {
                log::warn!("tcp: resuming the listener: {error}");
                self.paused_until = Some(reactor.set_deadline(LISTENER, ACCEPT_PAUSE));
            }
        }
    }

    fn watch(&self, watch: bool, reactor: &Reactor) -> io::Result<()> {
        reactor.watch_listener(LISTENER, &self.doors.tcp, watch)?;
        self.doors.local.as_ref().map_or(Ok(()), |local| reactor.watch_listener(LOCAL_LISTENER, local, watch))
    }

    /// At the cap the oldest stranger has to go: a true peer says its hello at once.
    fn greet(&mut self, socket: Socket, kind: Kind, reactor: &mut Reactor) {
        if self.greetings.len() >= reactor.config.max_unauthenticated
            && let Some((_, oldest)) = self.greetings.pop_first()
        {
            log::debug!("tcp: too many connections without a hello; closing the one from {}", oldest.from());
            reactor.close(oldest.connection);
        }
        let opened =
            reactor.tune(&socket).and_then(|()| reactor.open(socket, Interest::READ, Route::Greeting));
        match opened {
            Ok(connection) => {
                let deadline = reactor.set_deadline(connection.id, reactor.config.hello_timeout);
                let id = connection.id;
                self.greetings.insert(
                    id,
                    Greeting {
                        connection,
                        kind,
                        deadline,
                        hello: None,
                        bytes: Vec::new(),
                        got: 0,
                        file: None,
                    },
                );
            }
            Err(error) => log::warn!("tcp: a data connection cannot be used: {error}"),
        }
    }

    /// Reads on. Gives the connection once it has proved whose it is and there is room for it.
    pub fn greeting_ready(
        &mut self,
        id: ConnectionId,
        reactor: &mut Reactor,
        admission: &Admission,
    ) -> Option<Admitted> {
        let mut greeting = self.greetings.remove(&id)?;
        let verdict = match greeting.read() {
            Ok(Some(hello)) => greeting.verdict(&hello, reactor, admission),
            Ok(None) => {
                self.greetings.insert(id, greeting);
                return None;
            }
            Err(why) => {
                log::debug!("tcp: closing the connection from {}: {why}", greeting.from());
                reactor.close(greeting.connection);
                return None;
            }
        };
        greeting.answer(verdict, reactor)
    }

    pub fn greeting_expired(&mut self, id: ConnectionId, reactor: &mut Reactor) {
        if self.greetings.get(&id).is_some_and(|greeting| greeting.deadline <= reactor.now)
            && let Some(greeting) = self.greetings.remove(&id)
        {
            log::debug!("tcp: closing the connection from {}: no hello in time", greeting.from());
            reactor.close(greeting.connection);
        }
    }

    /// Shut down by hand, for the port's sake, should a forked child hold a copy.
    pub fn close(mut self, reactor: &mut Reactor) {
        while let Some((_, greeting)) = self.greetings.pop_first() {
            reactor.close(greeting.connection);
        }
        let _ = self.doors.tcp.shutdown(Shutdown::Both);
        if let Some(local) = &self.doors.local {
            let _ = local.shutdown(Shutdown::Both);
        }
    }
}

/// What a hello that is accepted gets.
struct Pass {
    session: SessionId,
    stream: usize,
    source: Option<Source>,
    place: Place,
}

impl Pass {
    fn reach(&self) -> Reach {
        self.source.as_ref().map_or(Reach::Stream, Source::reach)
    }
}

/// Where a connection came in.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Tcp(Option<SocketAddr>),
    Local,
}

/// Conditions that pass when something is freed, and until then make `accept` fail without end.
fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// An accepted connection whose hello is not complete.
struct Greeting {
    connection: Connection,
    kind: Kind,
    deadline: Timestamp,
    /// Known once the fixed part is complete; the token follows.
    hello: Option<Hello>,
    bytes: Vec<u8>,
    got: usize,
    /// What a local writer sent along.
    file: Option<OwnedFd>,
}

impl Greeting {
    fn from(&self) -> String {
        match self.kind {
            Kind::Tcp(Some(from)) => from.to_string(),
            Kind::Tcp(None) => "an unknown address".to_owned(),
            Kind::Local => "a process of this host".to_owned(),
        }
    }

    fn is_local(&self) -> bool {
        matches!(self.kind, Kind::Local)
    }

    /// `None`: more has to come.
    fn read(&mut self) -> std::result::Result<Option<Hello>, String> {
        loop {
            let handover_len = if self.is_local() { HandoverHead::LEN } else { 0 };
            let needed = Hello::LEN + self.hello.map_or(0, |hello| hello.token_len + handover_len);
            self.bytes.resize(needed, 0);
            let filled = self.fill();
            if !Hello::may_begin_with(self.bytes.get(..self.got).unwrap_or_default()) {
                return Err("it does not speak the data protocol".to_owned());
            }
            match filled.map_err(|error| error.to_string())? {
                Fill::Ended => return Err("it closed before its hello was complete".to_owned()),
                Fill::Blocked => return Ok(None),
                Fill::Complete if self.hello.is_some() => return Ok(self.hello),
                Fill::Complete => {
                    self.hello = Some(Hello::decode(&self.bytes).map_err(|error| error.to_string())?);
                }
            }
        }
    }

    fn fill(&mut self) -> io::Result<Fill> {
        let Greeting { connection, bytes, got, file, kind, .. } = self;
        match kind {
            Kind::Local => {
                fill_from(|rest| local_socket::receive(&connection.socket, rest, file), bytes, got)
            }
            Kind::Tcp(_) => fill_from(|rest| (&connection.socket).read(rest), bytes, got),
        }
    }

    /// How a local writer's blocks are got at.
    fn reach(
        &mut self,
        hello: &Hello,
        session: SessionId,
        reactor: &Reactor,
    ) -> std::result::Result<Option<Source>, HelloRefusal> {
        if !self.is_local() {
            return Ok(None);
        }
        let refuse = |why: String| {
            log::warn!(
                "same host: session {session}'s memory cannot be reached, its blocks go over tcp: {why}"
            );
            HelloRefusal::Unreachable
        };
        let head = self.bytes.get(Hello::LEN + hello.token_len..).unwrap_or_default();
        let HandoverHead { process, thread, base_addr, file_offset, num_blocks } =
            HandoverHead::decode(head).map_err(|error| refuse(error.to_string()))?;
        let file = self.file.take();
        let handover = Handover { process, thread, base_addr, num_blocks, file_offset, file };
        Source::open(handover, reactor.block_len(), &self.connection.socket).map(Some).map_err(refuse)
    }

    fn verdict(
        &mut self,
        hello: &Hello,
        reactor: &Reactor,
        admission: &Admission,
    ) -> std::result::Result<Pass, HelloRefusal> {
        let (session, place) = self.judge(hello, reactor, admission)?;
        let source = self.reach(hello, session, reactor)?;
        Ok(Pass { session, stream: hello.stream.into(), source, place })
    }

    fn judge(
        &self,
        hello: &Hello,
        reactor: &Reactor,
        admission: &Admission,
    ) -> std::result::Result<(SessionId, Place), HelloRefusal> {
        if hello.version != VERSION {
            return Err(HelloRefusal::Version { receiver: VERSION.into() });
        }
        let token = self.bytes.get(Hello::LEN..Hello::LEN + hello.token_len).unwrap_or_default();
        let session = admission.session_of(token).ok_or(HelloRefusal::Token)?;
        let block_len = reactor.block_len() as u64;
        if hello.block_len != block_len {
            return Err(HelloRefusal::BlockLen { receiver: block_len });
        }
        let limit = reactor.config.max_streams_per_session;
        let place = admission.place(session, limit);
        Ok((session, place.ok_or(HelloRefusal::TooManyStreams { limit: limit as u64 })?))
    }

    /// Nothing was sent before on this connection, so the few bytes fit its buffer or it is broken.
    fn answer(
        self,
        verdict: std::result::Result<Pass, HelloRefusal>,
        reactor: &mut Reactor,
    ) -> Option<Admitted> {
        let mut outbox = Outbox::default();
        outbox.push(&Answer(verdict.as_ref().map(Pass::reach).map_err(|why| *why)).encode());
        let sent = outbox.flush(&self.connection.socket);
        match (verdict, sent) {
            (Ok(pass), Ok(())) if outbox.waiting() == 0 => {
                let from = self.from();
                log::debug!("tcp: data connection of session {} from {from}: {}", pass.session, pass.reach());
                let socket = reactor.release(self.connection);
                let Pass { session, stream, source, place } = pass;
                return Some(Admitted { socket, guest: Guest { session, stream, from, source, place } });
            }
            (Err(refusal), Ok(())) => {
                log::warn!("tcp: refused a data connection from {}: {refusal}", self.from());
            }
            (_, sent) => log::debug!("tcp: the connection from {} broke: {:?}", self.from(), sent.err()),
        }
        reactor.close(self.connection);
        None
    }
}
