//! Opening one stream to a peer: connect, hello, answer; the peer's addresses one after the other.
//!
//! ```text
//!             connected              accepted
//!  ► Connecting ─────► Greeting ─────────────► Step::Accepted
//!        │  refused, error, deadline │
//!        └───────────┬───────────────┘
//!                    ├──► Connecting to the next address
//!                    └──► Step::Failed, if there is none: what happened at each address
//! ```

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::frame::{Answer, Hello};
use super::reactor::{Connection, Fill, Outbox, Reactor, Route, fill};
use super::sys::{Interest, Readiness};
use crate::protocol::ids::SessionId;
use crate::protocol::timer::Timestamp;

/// Addresses of one peer that are tried at most; each may cost a time-out.
const MAX_ADDRESSES: usize = 16;

/// Where a peer's data plane is, and the proof that we may use it.
pub(super) struct Target {
    pub session: SessionId,
    pub addresses: Vec<SocketAddr>,
    pub token: Vec<u8>,
    pub streams: usize,
}

pub(super) enum Step {
    Waiting(Dial),
    Accepted(Connection),
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
    address: SocketAddr,
    deadline: Timestamp,
    trail: Trail,
}

/// What is behind an attempt and ahead of it.
struct Trail {
    slot: usize,
    next_address: usize,
    failures: Vec<String>,
}

impl Trail {
    fn failed(&mut self, address: SocketAddr, why: &impl ToString) {
        self.failures.push(format!("{address}: {}", why.to_string()));
    }
}

impl Dial {
    pub fn start(target: &Target, slot: usize, reactor: &mut Reactor) -> Step {
        try_next(target, Trail { slot, next_address: 0, failures: Vec::new() }, reactor)
    }

    pub fn on_ready(mut self, ready: Readiness, target: &Target, reactor: &mut Reactor) -> Step {
        match self.progress(ready, target, reactor) {
            Ok(true) => match reactor.want(&mut self.connection, Interest::READ) {
                Ok(()) => Step::Accepted(self.connection),
                Err(error) => self.give_up_address(&error, target, reactor),
            },
            Ok(false) => Step::Waiting(self),
            Err(why) => self.give_up_address(&why, target, reactor),
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
        self.give_up_address(&why, target, reactor)
    }

    pub fn close(self, reactor: &mut Reactor) {
        reactor.close(self.connection);
    }

    fn give_up_address(mut self, why: &impl ToString, target: &Target, reactor: &mut Reactor) -> Step {
        self.trail.failed(self.address, why);
        reactor.close(self.connection);
        try_next(target, self.trail, reactor)
    }

    /// `true` once the receiver has accepted.
    fn progress(&mut self, ready: Readiness, target: &Target, reactor: &mut Reactor) -> Result<bool, String> {
        let text = |error: io::Error| error.to_string();
        let socket = &self.connection.socket;
        if matches!(self.stage, Stage::Connecting) {
            if let Some(error) = socket.take_error().map_err(text)? {
                return Err(text(error));
            }
            if !ready.writable {
                return Ok(false);
            }
            reactor.choose_congestion_control(socket);
            let hello = self.trail.hello(target, reactor);
            self.stage = Stage::Greeting { hello, answer: [0; Answer::LEN], got: 0 };
            self.deadline = reactor.set_deadline(self.connection.id, reactor.config.hello_timeout);
        }
        let Stage::Greeting { hello, answer, got } = &mut self.stage else { return Ok(false) };
        hello.flush(socket).map_err(text)?;
        let filled = fill(socket, answer, got).map_err(text)?;
        let verdict = match filled {
            Fill::Ended => return Err("closed the connection without an answer to the hello".to_owned()),
            Fill::Complete => Some(Answer::decode(answer).map_err(|error| error.to_string())?),
            Fill::Blocked => None,
        };
        match verdict {
            Some(Answer(Ok(()))) => Ok(true),
            Some(Answer(Err(refusal))) => Err(format!("refused: {refusal}")),
            None => {
                let interest = Interest { readable: true, writable: hello.waiting() > 0 };
                reactor.want(&mut self.connection, interest).map_err(text)?;
                Ok(false)
            }
        }
    }
}

impl Trail {
    fn hello(&self, target: &Target, reactor: &Reactor) -> Outbox {
        let number = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        let (stream, streams) = (number(self.slot), number(target.streams));
        let mut outbox = Outbox::default();
        outbox.push(&Hello::encode(reactor.block_len() as u64, stream, streams, &target.token));
        outbox
    }
}

fn try_next(target: &Target, mut trail: Trail, reactor: &mut Reactor) -> Step {
    while let Some(address) = target.addresses.iter().take(MAX_ADDRESSES).nth(trail.next_address).copied() {
        trail.next_address += 1;
        let route = Route::Outbound { session: target.session, slot: trail.slot };
        match begin_connect(address, reactor).and_then(|s| reactor.open(s, Interest::WRITE, route)) {
            Ok(connection) => {
                let deadline = reactor.set_deadline(connection.id, reactor.config.connect_timeout);
                return Step::Waiting(Dial {
                    connection,
                    stage: Stage::Connecting,
                    address,
                    deadline,
                    trail,
                });
            }
            Err(error) => trail.failed(address, &error),
        }
    }
    let tried =
        if trail.failures.is_empty() { "it names no address".to_owned() } else { trail.failures.join("; ") };
    Step::Failed(format!("cannot open a data connection to the peer ({tried})"))
}

fn begin_connect(address: SocketAddr, reactor: &Reactor) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    reactor.tune(&socket)?;
    match socket.connect(&SockAddr::from(address)) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}
