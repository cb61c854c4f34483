//! Opening one stream to a peer: connect, hello, answer; the peer's addresses one after the other, before them the Unix
//! socket of a peer on this host.
//!
//! ```text
//!             connected              accepted
//!  ► Connecting ─────► Greeting ─────────────► Step::Accepted
//!        │  refused, error, deadline │
//!        └───────────┬───────────────┘
//!                    ├──► Connecting to the next address
//!                    └──► Step::Failed, if there is none: what happened at each address
//! ```

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::frame::{Answer, HandoverHead, Hello};
use super::reactor::{Connection, Fill, Outbox, Reactor, Route, fill};
use super::sys::{Interest, Readiness};
use crate::data::same_host::{RegionFile, socket as local_socket};
use crate::protocol::config::Reach;
use crate::protocol::ids::SessionId;
use crate::protocol::timer::Timestamp;

/// Addresses of one peer that are tried at most; each may cost a time-out.
const MAX_ADDRESSES: usize = 16;

/// Where a peer's data plane is, and the proof that we may use it.
pub(super) struct Target {
    pub session: SessionId,
    pub addresses: Vec<SocketAddr>,
    /// The data port of a peer on this host, and so the name of its Unix socket.
    pub local_port: Option<u16>,
    pub token: Vec<u8>,
    pub streams: usize,
}

impl Target {
    fn endpoint(&self, number: usize) -> Option<Endpoint> {
        let local = self.local_port.map(Endpoint::Local);
        local
            .into_iter()
            .chain(self.addresses.iter().take(MAX_ADDRESSES).copied().map(Endpoint::Tcp))
            .nth(number)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Tcp(SocketAddr),
    Local(u16),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => address.fmt(f),
            Endpoint::Local(port) => write!(f, "the Unix socket of data port {port}"),
        }
    }
}

pub(super) enum Step {
    Waiting(Dial),
    Accepted(Connection, Reach),
    Failed(String),
}

enum Stage {
    Connecting,
    Greeting { hello: Outbox, answer: [u8; Answer::LEN], got: usize },
}

/// One attempt under way.
pub(super) struct Dial {
    connection: Connection,
    stage: Stage,
    endpoint: Endpoint,
    deadline: Timestamp,
    trail: Trail,
}

/// What is behind an attempt and ahead of it.
struct Trail {
    slot: usize,
    next_endpoint: usize,
    failures: Vec<String>,
}

impl Trail {
    fn failed(&mut self, endpoint: Endpoint, why: &impl ToString) {
        let failure = format!("{endpoint}: {}", why.to_string());
        if matches!(endpoint, Endpoint::Local(_)) && self.slot == 0 {
            log::warn!("same host: blocks go over tcp to a peer of this host; {failure}");
        }
        self.failures.push(failure);
    }
}

impl Dial {
    pub fn start(target: &Target, slot: usize, reactor: &mut Reactor) -> Step {
        try_next(target, Trail { slot, next_endpoint: 0, failures: Vec::new() }, reactor)
    }

    pub fn on_ready(mut self, ready: Readiness, target: &Target, reactor: &mut Reactor) -> Step {
        match self.progress(ready, target, reactor) {
            Ok(Some(reach)) => match reactor.want(&mut self.connection, Interest::READ) {
                Ok(()) => Step::Accepted(self.connection, reach),
                Err(error) => self.give_up_endpoint(&error, target, reactor),
            },
            Ok(None) => Step::Waiting(self),
            Err(why) => self.give_up_endpoint(&why, target, reactor),
        }
    }

    pub fn on_deadline(self, target: &Target, reactor: &mut Reactor) -> Step {
        if self.deadline > reactor.now {
            return Step::Waiting(self);
        }
        let why = match self.stage {
            Stage::Connecting => format!("no connection within {:?}", reactor.config.connect_timeout),
            Stage::Greeting { .. } => format!("no answer within {:?}", reactor.config.hello_timeout),
        };
        self.give_up_endpoint(&why, target, reactor)
    }

    pub fn close(self, reactor: &mut Reactor) {
        reactor.close(self.connection);
    }

    fn give_up_endpoint(mut self, why: &impl ToString, target: &Target, reactor: &mut Reactor) -> Step {
        self.trail.failed(self.endpoint, why);
        reactor.close(self.connection);
        try_next(target, self.trail, reactor)
    }

    /// How the receiver reads, once it has accepted.
    fn progress(
        &mut self,
        ready: Readiness,
        target: &Target,
        reactor: &mut Reactor,
    ) -> Result<Option<Reach>, String> {
        let text = |error: io::Error| error.to_string();
        let socket = &self.connection.socket;
        if matches!(self.stage, Stage::Connecting) {
            if let Some(error) = socket.take_error().map_err(text)? {
                return Err(text(error));
            }
            if !ready.writable {
                return Ok(None);
            }
            reactor.choose_congestion_control(socket);
            let hello = match self.endpoint {
                Endpoint::Tcp(_) => self.trail.hello(target, reactor),
                Endpoint::Local(_) => self.trail.hand_over(target, reactor, socket)?,
            };
            self.stage = Stage::Greeting { hello, answer: [0; Answer::LEN], got: 0 };
            self.deadline = reactor.set_deadline(self.connection.id, reactor.config.hello_timeout);
        }
        let Stage::Greeting { hello, answer, got } = &mut self.stage else { return Ok(None) };
        hello.flush(socket).map_err(text)?;
        let filled = fill(socket, answer, got).map_err(text)?;
        let verdict = match filled {
            Fill::Ended => return Err("closed the connection without an answer to the hello".to_owned()),
            Fill::Complete => Some(Answer::decode(answer).map_err(|error| error.to_string())?),
            Fill::Blocked => None,
        };
        match verdict {
            Some(Answer(Ok(reach))) => Ok(Some(reach)),
            Some(Answer(Err(refusal))) => Err(format!("refused: {refusal}")),
            None => {
                let interest = Interest { readable: true, writable: hello.waiting() > 0 };
                reactor.want(&mut self.connection, interest).map_err(text)?;
                Ok(None)
            }
        }
    }
}

impl Trail {
    fn hello(&self, target: &Target, reactor: &Reactor) -> Outbox {
        let mut outbox = Outbox::default();
        outbox.push(&self.hello_bytes(target, reactor));
        outbox
    }

    fn hello_bytes(&self, target: &Target, reactor: &Reactor) -> Vec<u8> {
        let number = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        let (stream, streams) = (number(self.slot), number(target.streams));
        Hello::encode(reactor.block_len() as u64, stream, streams, &target.token)
    }

    /// Says hello and where our region is, in one go; nothing is left to send.
    fn hand_over(&self, target: &Target, reactor: &Reactor, socket: &Socket) -> Result<Outbox, String> {
        if !local_socket::is_own_user(socket) {
            return Err("a process of another user listens there".to_owned());
        }
        let file = reactor.file.as_ref();
        let head = HandoverHead {
            process: rustix::process::getpid().as_raw_nonzero().get().unsigned_abs(),
            thread: rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs(),
            base_addr: reactor.region().base_addr(),
            file_offset: file.map_or(0, |file| file.offset),
            num_blocks: reactor.region().num_blocks(),
        };
        let mut message = self.hello_bytes(target, reactor);
        message.extend_from_slice(&head.encode());
        local_socket::send_with(&socket.as_fd(), &message, file.map(RegionFile::descriptor))
            .map_err(|error| format!("the hello could not be sent: {error}"))?;
        Ok(Outbox::default())
    }
}

fn try_next(target: &Target, mut trail: Trail, reactor: &mut Reactor) -> Step {
    while let Some(endpoint) = target.endpoint(trail.next_endpoint) {
        trail.next_endpoint += 1;
        let route = Route::Outbound { session: target.session, slot: trail.slot };
        match begin_connect(endpoint, reactor).and_then(|s| reactor.open(s, Interest::WRITE, route)) {
            Ok(connection) => {
                let deadline = reactor.set_deadline(connection.id, reactor.config.connect_timeout);
                return Step::Waiting(Dial {
                    connection,
                    stage: Stage::Connecting,
                    endpoint,
                    deadline,
                    trail,
                });
            }
            Err(error) => trail.failed(endpoint, &error),
        }
    }
    let tried =
        if trail.failures.is_empty() { "it names no address".to_owned() } else { trail.failures.join("; ") };
    Step::Failed(format!("cannot open a data connection to the peer ({tried})"))
}

fn begin_connect(endpoint: Endpoint, reactor: &Reactor) -> io::Result<Socket> {
    let address = match endpoint {
        Endpoint::Tcp(address) => address,
        Endpoint::Local(port) => return local_socket::connect(port),
    };
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    reactor.tune(&socket)?;
    match socket.connect(&SockAddr::from(address)) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}
