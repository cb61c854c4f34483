//! An I/O thread: one loop over one epoll set, for all peers in both directions.
//!
//! ```text
//!   callers ── Mailbox ──► thread 0 ── Adopt, Look ──► thread 1
//!      │  │                listener, streams  ◄─ Look ─ streams
//!      │  └── Mailbox ─────────────────────────────────────▲
//!      │                      │                            │
//!      └─ tokens, armed loads, lines: each under a lock that is held for a few steps
//!                             └──────── DataEvents ────────┴──► poll
//! ```
//!
//! The streams of a peer, in each direction, go round the threads; a stream stays with its thread. Thread 0 accepts
//! connections and hands them over once they have proved whose they are.
//!
//! No step of a turn blocks, and each has a bound: what one connection may move, what one wake-up may report. So the
//! thread comes back to its commands soon, whatever the peers do.

use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::admission::Admission;
use super::fence::Fence;
use super::inbound::{End, Inbound};
use super::line::Line;
use super::listener::{Admitted, Doors, Listener};
use super::mailbox::{Command, Inbox, Mailbox};
use super::peer::{Fate, Peer};
use super::reactor::{LISTENER, LOCAL_LISTENER, Reactor, Route, WAKE};
use super::sys::{ConnectionId, Interest, Readiness};
use crate::data::DataEvent;
use crate::protocol::ids::SessionId;
use crate::protocol::timer::Timestamp;

/// What the callers and all threads hold.
pub(super) struct Shared {
    pub admission: Admission,
    pub fence: Fence,
    pub stop: AtomicBool,
    /// Why the data plane is of no use any more: all threads end for it.
    failure: OnceLock<String>,
    /// What every thread's time counts from.
    began: Instant,
}

impl Default for Shared {
    fn default() -> Shared {
        Shared {
            admission: Admission::default(),
            fence: Fence::default(),
            stop: AtomicBool::new(false),
            failure: OnceLock::new(),
            began: clock(),
        }
    }
}

struct IoThread {
    shared: Arc<Shared>,
    inbox: Inbox,
    reactor: Reactor,
    /// Of the first thread only.
    listener: Option<Listener>,
    inbound: HashMap<ConnectionId, Inbound>,
    inbound_of: HashMap<SessionId, Vec<ConnectionId>>,
    peers: HashMap<SessionId, Peer>,
}

/// Runs until told to stop, then closes everything.
pub(super) fn run(shared: Arc<Shared>, inbox: Inbox, reactor: Reactor, doors: Option<Doors>) {
    let mut thread = IoThread {
        shared,
        inbox,
        reactor,
        listener: doors.map(Listener::new),
        inbound: HashMap::new(),
        inbound_of: HashMap::new(),
        peers: HashMap::new(),
    };
    let failure = match catch_unwind(AssertUnwindSafe(|| thread.turn_until_stopped())) {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("the tcp data plane failed: {error}")),
        Err(_) => Some("the tcp data plane failed: a bug made its thread panic".to_owned()),
    };
    if let Some(failure) = failure
        && thread.shared.failure.set(failure).is_ok()
    {
        thread.reactor.seat.neighbours().for_each(Mailbox::wake);
    }
    thread.finish();
}

#[allow(clippy::disallowed_methods)] // connect and hello deadlines are kept here, below the tier's clock
fn clock() -> Instant {
    Instant::now()
}

impl IoThread {
    fn turn_until_stopped(&mut self) -> io::Result<()> {
        let (mut ready, mut busy) = (Vec::new(), Vec::new());
        while !self.stopped() {
            self.reactor.wait(&mut ready)?;
            let elapsed = clock().duration_since(self.shared.began);
            self.reactor.now = Timestamp::ZERO + elapsed;
            for report in &ready {
                if self.stopped() {
                    break;
                }
                self.dispatch(*report);
                self.reactor.events.flush();
            }
            self.reactor.take_busy(&mut busy);
            for id in &busy {
                self.inbound_ready(Readiness { id: *id, readable: true, writable: false });
                self.reactor.events.flush();
            }
            while let Some(id) = self.reactor.next_expired() {
                self.on_deadline(id);
            }
            self.reactor.events.flush();
        }
        Ok(())
    }

    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Acquire) || self.shared.failure.get().is_some()
    }

    fn dispatch(&mut self, ready: Readiness) {
        match ready.id {
            WAKE => {
                self.inbox.reset();
                self.run_commands();
            }
            LISTENER | LOCAL_LISTENER => {
                if let Some(listener) = &mut self.listener {
                    listener.accept_ready(ready.id, &mut self.reactor);
                }
            }
            id => match self.reactor.route(id) {
                Some(Route::Greeting) => self.greeting_ready(id),
                Some(Route::Inbound) => self.inbound_ready(ready),
                Some(Route::Outbound { session, slot }) => {
                    self.with_peer(session, |peer, reactor| peer.on_ready(slot, ready, reactor));
                }
                // Closed earlier in this turn.
                None => {}
            },
        }
    }

    fn on_deadline(&mut self, id: ConnectionId) {
        match (self.reactor.route(id), &mut self.listener) {
            (Some(Route::Outbound { session, slot }), _) => {
                self.with_peer(session, |peer, reactor| peer.on_deadline(slot, reactor));
            }
            (Some(Route::Greeting), Some(listener)) => listener.greeting_expired(id, &mut self.reactor),
            (None, Some(listener)) if id == LISTENER => listener.resume(&mut self.reactor),
            (Some(Route::Inbound | Route::Greeting) | None, _) => {}
        }
    }

    // --- commands ---

    fn run_commands(&mut self) {
        while let Ok(command) = self.inbox.commands.try_recv() {
            if self.stopped() {
                return;
            }
            self.run_command(command);
            self.reactor.events.flush();
        }
    }

    fn run_command(&mut self, command: Command) {
        match command {
            Command::Adopt(admitted) => self.adopt(*admitted),
            Command::Cancel(transfers) => {
                for peer in self.peers.values_mut() {
                    peer.cancel(&transfers, &mut self.reactor);
                }
            }
            Command::DropPeer(session) => self.drop_peer(session),
            Command::Look(session) => self.with_peer(session, Peer::look),
            Command::RegisterPeer(line) => self.register_peer(line),
        }
    }

    fn register_peer(&mut self, line: Arc<Line>) {
        let session = line.target.session;
        self.close_peer(session, "the peer was registered anew");
        if let Some(peer) = Peer::register(line, &mut self.reactor) {
            self.peers.insert(session, peer);
        }
    }

    fn drop_peer(&mut self, session: SessionId) {
        self.close_peer(session, "the session with the peer is over");
        for id in self.inbound_of.remove(&session).unwrap_or_default() {
            if let Some(inbound) = self.inbound.remove(&id) {
                self.reactor.close(inbound.connection);
            }
        }
    }

    fn close_peer(&mut self, session: SessionId, reason: &str) {
        if let Some(peer) = self.peers.remove(&session) {
            let _: bool = peer.close(reason, &mut self.reactor);
        }
    }

    fn with_peer(&mut self, session: SessionId, act: impl FnOnce(&mut Peer, &mut Reactor) -> Fate) {
        if let Some(peer) = self.peers.get_mut(&session)
            && act(peer, &mut self.reactor) == Fate::Refused
        {
            self.peers.remove(&session);
        }
    }

    // --- inbound connections ---

    fn greeting_ready(&mut self, id: ConnectionId) {
        let Some(listener) = &mut self.listener else { return };
        let Some(admitted) = listener.greeting_ready(id, &mut self.reactor, &self.shared.admission) else {
            return;
        };
        // Pulls stay here: the crew shares them out between CPUs already.
        let is_pulled = admitted.guest.source.is_some();
        match self.reactor.seat.neighbour_with(admitted.guest.session, admitted.guest.stream) {
            Some(neighbour) if !is_pulled => neighbour.post(Command::Adopt(Box::new(admitted))),
            _ => self.adopt(admitted),
        }
    }

    /// A session that was dropped meanwhile has no connection any more: its token was void before this thread was told.
    fn adopt(&mut self, admitted: Admitted) {
        let Admitted { socket, guest } = admitted;
        let session = guest.session;
        if !self.shared.admission.expects(session) {
            // By hand, as everywhere: a forked child may hold a copy.
            let _ = socket.shutdown(Shutdown::Both);
            return;
        }
        match self.reactor.open(socket, Interest::READ, Route::Inbound) {
            Ok(connection) => {
                let id = connection.id;
                self.inbound_of.entry(session).or_default().push(id);
                self.inbound.insert(id, Inbound::new(connection, guest));
            }
            Err(error) => log::warn!("tcp: the data connection from {} cannot be used: {error}", guest.from),
        }
    }

    fn inbound_ready(&mut self, ready: Readiness) {
        let Some(inbound) = self.inbound.get_mut(&ready.id) else { return };
        if let Err(end) = inbound.on_ready(ready, &mut self.reactor, &self.shared.fence) {
            self.close_inbound(ready.id, end);
        }
    }

    fn close_inbound(&mut self, id: ConnectionId, end: End) {
        let Some(inbound) = self.inbound.remove(&id) else { return };
        let Inbound { session, from, .. } = &inbound;
        match end {
            None => log::debug!("tcp: session {session}: {from} closed its data connection"),
            Some(why) => log::warn!("tcp: session {session}: closing the data connection from {from}: {why}"),
        }
        if let Some(streams) = self.inbound_of.get_mut(session) {
            streams.retain(|stream| *stream != id);
            if streams.is_empty() {
                self.inbound_of.remove(session);
            }
        }
        self.reactor.close(inbound.connection);
    }

    // --- the end ---

    /// Closes everything. After a failure every peer gets its fault, and new ones are refused, until the transport is
    /// dropped.
    fn finish(mut self) {
        let failure = self.shared.failure.get().cloned();
        let reason = failure.as_deref().unwrap_or("the tcp data plane is shutting down");
        for (_, inbound) in self.inbound.drain() {
            self.reactor.close(inbound.connection);
        }
        for (session, peer) in self.peers.drain() {
            let is_first = peer.close(reason, &mut self.reactor);
            if failure.is_some() && is_first {
                self.reactor.events.push(DataEvent::PeerFault { session, reason: reason.to_owned() });
            }
        }
        if let Some(listener) = self.listener {
            listener.close(&mut self.reactor);
        }
        self.reactor.events.flush();
        if failure.is_some() {
            log::error!("{reason}");
            refuse_all(&self.shared, &self.inbox, &mut self.reactor, reason);
        }
    }
}

/// Answers commands after a failure. The bound only matters for a drop that comes without a command.
fn refuse_all(shared: &Shared, inbox: &Inbox, reactor: &mut Reactor, reason: &str) {
    const LOOK_FOR_STOP: Duration = Duration::from_millis(50);
    while !shared.stop.load(Ordering::Acquire) {
        if let Ok(Command::RegisterPeer(line)) = inbox.commands.recv_timeout(LOOK_FOR_STOP) {
            line.refuse(reason, &mut reactor.events);
            line.closed_part(&mut reactor.events);
            reactor.events.flush();
        }
    }
}
