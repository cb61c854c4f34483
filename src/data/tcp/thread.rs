//! The I/O thread: one loop over one epoll set, for all peers in both directions.
//!
//! No step of a turn blocks, and each has a bound: what one connection may move, what one wake-up may report. So the
//! thread comes back to its commands soon, whatever the peers do.

use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::admission::Admission;
use super::dial::Target;
use super::fence::Fence;
use super::inbound::{End, Inbound};
use super::listener::{Doors, Listener};
use super::peer::{Fate, Peer};
use super::reactor::{LISTENER, LOCAL_LISTENER, Reactor, Route, WAKE};
use super::sys::{ConnectionId, EventFd, Readiness};
use crate::data::DataEvent;
use crate::protocol::ids::{BlockPair, LoadToken, SessionId, TransferId};
use crate::protocol::timer::Timestamp;
use crossbeam_channel::Receiver;

/// What the callers ask of the thread.
pub(super) enum Command {
    Cancel(Vec<TransferId>),
    DropPeer(SessionId),
    RegisterPeer(Target),
    Write { session: SessionId, transfer: TransferId, load: Option<LoadToken>, blocks: Box<[BlockPair]> },
}

/// What both sides of the command queue hold.
pub(super) struct Shared {
    pub admission: Admission,
    pub fence: Fence,
    pub stop: AtomicBool,
    pub wake: EventFd,
}

struct IoThread {
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    reactor: Reactor,
    listener: Listener,
    inbound: HashMap<ConnectionId, Inbound>,
    inbound_of: HashMap<SessionId, Vec<ConnectionId>>,
    peers: HashMap<SessionId, Peer>,
    began: Instant,
}

/// Runs until told to stop, then closes everything.
pub(super) fn run(shared: Arc<Shared>, commands: Receiver<Command>, reactor: Reactor, doors: Doors) {
    let mut thread = IoThread {
        shared,
        commands,
        reactor,
        listener: Listener::new(doors),
        inbound: HashMap::new(),
        inbound_of: HashMap::new(),
        peers: HashMap::new(),
        began: clock(),
    };
    let reason = match catch_unwind(AssertUnwindSafe(|| thread.turn_until_stopped())) {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("the tcp data plane failed: {error}")),
        Err(_) => Some("the tcp data plane failed: a bug made its thread panic".to_owned()),
    };
    thread.finish(reason);
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
            let elapsed = clock().duration_since(self.began);
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
        self.shared.stop.load(Ordering::Acquire)
    }

    fn dispatch(&mut self, ready: Readiness) {
        match ready.id {
            // In this order: a command that comes after the last look comes with a signal of its own.
            WAKE => {
                self.shared.wake.reset();
                self.run_commands();
            }
            LISTENER | LOCAL_LISTENER => self.listener.accept_ready(ready.id, &mut self.reactor),
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
        if id == LISTENER {
            return self.listener.resume(&mut self.reactor);
        }
        match self.reactor.route(id) {
            Some(Route::Greeting) => self.listener.greeting_expired(id, &mut self.reactor),
            Some(Route::Outbound { session, slot }) => {
                self.with_peer(session, |peer, reactor| peer.on_deadline(slot, reactor));
            }
            Some(Route::Inbound) | None => {}
        }
    }

    // --- commands ---

    fn run_commands(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            if self.stopped() {
                return;
            }
            self.run_command(command);
            self.reactor.events.flush();
        }
    }

    fn run_command(&mut self, command: Command) {
        match command {
            Command::Cancel(transfers) => {
                for peer in self.peers.values_mut() {
                    peer.cancel(&transfers, &mut self.reactor);
                }
            }
            Command::DropPeer(session) => self.drop_peer(session),
            Command::RegisterPeer(target) => {
                let session = target.session;
                self.close_peer(session, "the peer was registered anew");
                if let Some(peer) = Peer::register(target, &mut self.reactor) {
                    self.peers.insert(session, peer);
                }
            }
            Command::Write { session, transfer, load, blocks } => {
                if self.peers.contains_key(&session) {
                    self.with_peer(session, |peer, reactor| peer.write(transfer, load, blocks, reactor));
                } else {
                    let reason = format!("session {session} has no data connection to write to");
                    self.reactor.events.push(DataEvent::TransferFailed { transfer, reason, decisive: true });
                }
            }
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
            peer.close(reason, &mut self.reactor);
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
        let inbound_of = &self.inbound_of;
        let streams_of = |session| inbound_of.get(&session).map_or(0, Vec::len);
        let admitted =
            self.listener.greeting_ready(id, &mut self.reactor, &self.shared.admission, streams_of);
        if let Some(inbound) = admitted {
            self.inbound_of.entry(inbound.session).or_default().push(id);
            self.inbound.insert(id, inbound);
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

    /// Closes everything. After a failure every peer gets its fault, and so do later commands, until the transport
    /// is dropped.
    fn finish(mut self, failure: Option<String>) {
        let reason = failure.as_deref().unwrap_or("the tcp data plane is shutting down");
        for (_, inbound) in self.inbound.drain() {
            self.reactor.close(inbound.connection);
        }
        for (session, peer) in self.peers.drain() {
            peer.close(reason, &mut self.reactor);
            if failure.is_some() {
                self.reactor.events.push(DataEvent::PeerFault { session, reason: reason.to_owned() });
            }
        }
        self.listener.close(&mut self.reactor);
        self.reactor.events.flush();
        if failure.is_some() {
            log::error!("{reason}");
            refuse_all(&self.shared, &self.commands, &mut self.reactor, reason);
        }
    }
}

/// Answers commands after a failure. The bound only matters for a drop that comes without a command.
fn refuse_all(shared: &Shared, commands: &Receiver<Command>, reactor: &mut Reactor, reason: &str) {
    const LOOK_FOR_STOP: Duration = Duration::from_millis(50);
    while !shared.stop.load(Ordering::Acquire) {
        match commands.recv_timeout(LOOK_FOR_STOP) {
            Ok(Command::Write { transfer, .. }) => {
                let reason = reason.to_owned();
                reactor.events.push(DataEvent::TransferFailed { transfer, reason, decisive: true });
            }
            Ok(Command::RegisterPeer(target)) => {
                let (session, reason) = (target.session, reason.to_owned());
                reactor.events.push(DataEvent::PeerRefused { session, reason });
            }
            Ok(Command::Cancel(_) | Command::DropPeer(_)) | Err(_) => {}
        }
        reactor.events.flush();
    }
}
