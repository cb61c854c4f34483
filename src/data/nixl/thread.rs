//! The thread that makes all calls of NIXL: commands in, events out, and a look at what is under way in between.
//!
//! ```text
//!              nothing known          peers known        writes expected      writes under way
//!   sleeps     until a command        IDLE               EXPECTING            not at first, then WRITING
//! ```
//!
//! Writes that peers make into our region need our help where the network has no RDMA, and so do the connections they
//! set up for them. Therefore it looks up now and then even when it has nothing to move itself.
//!
//! ```text
//!   (unknown) ──register──► Known ──drop──► Leaving ── no write under way ──► (gone)
//! ```
//!
//! A remote agent is forgotten with its last session, and never before its last write has ended.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};

use super::NixlConfig;
use super::agent::{self, Agent, Posted, Progress};
use super::descriptors::{self, RemoteRegion};
use super::library::Library;
use crate::data::tcp::EventSink;
use crate::data::{DataEvent, Region};
use crate::protocol::config::Reach;
use crate::protocol::ids::{BlockPair, SessionId, TransferId};

/// What the callers ask of the thread. When the queue has no sender any more, it ends.
pub(super) enum Command {
    DropPeer(SessionId),
    ExpectWrites(bool),
    RegisterPeer(Target),
    Write { session: SessionId, transfer: TransferId, blocks: Box<[BlockPair]> },
}

/// A session's peer, as its `connect` describes it.
pub(super) struct Target {
    pub session: SessionId,
    pub metadata: Vec<u8>,
    pub region: RemoteRegion,
}

/// Looks without a pause after the last news: small transfers end within them.
const EAGER_LOOKS: u32 = 64;
/// Pause between looks while writes are under way.
const WRITING: Duration = Duration::from_micros(100);
/// So many looks at that pace, about 2 s, then at the next: the peer may have stopped, and be stopped for long.
const WRITING_LOOKS: u32 = 10_000;
/// While peers are expected to write, or have only just been learned.
const EXPECTING: Duration = Duration::from_millis(1);
/// While peers are known and nothing goes on: connections are kept and closed.
const IDLE: Duration = Duration::from_millis(100);
/// So many looks in the pace of `EXPECTING` after a peer was learned or forgotten: connections are set up and closed in
/// both directions.
const SETTLING_LOOKS: u32 = 2000;
/// Commands taken before the next look.
const COMMAND_BATCH: usize = 64;
/// Writes that are under way at the end get so many looks in the pace of `EXPECTING`.
const FAREWELL_LOOKS: u32 = 1000;

struct NixlThread {
    region: Region,
    events: EventSink,
    /// Before the agent: they must be gone when it goes.
    writes: Vec<Write>,
    agent: Agent,
    peers: HashMap<SessionId, Peer>,
    /// Remote agents by name.
    remotes: HashMap<String, Remote>,
    expects_writes: bool,
    /// Looks while writes are under way, since one was posted or ended.
    vain_looks: u32,
    settling_looks: u32,
}

struct Write {
    session: SessionId,
    transfer: TransferId,
    posted: Posted,
}

struct Peer {
    agent: String,
    region: RemoteRegion,
    writes_under_way: usize,
    /// See the diagram at the top.
    leaving: bool,
}

/// A remote agent. A peer whose session was replaced has two sessions for a while.
struct Remote {
    metadata: Vec<u8>,
    sessions: usize,
}

/// Makes the agent, tells how that went (its metadata, or why not), and works until nobody can send commands.
pub(super) fn run(
    loaded: Library,
    name: &str,
    region: Region,
    config: &NixlConfig,
    commands: Receiver<Command>,
    events: EventSink,
    started: &Sender<Result<Vec<u8>, String>>,
) {
    let made = Agent::new(loaded, name, &region, config)
        .and_then(|agent| agent.metadata().map(|metadata| (agent, metadata)));
    let agent = match made {
        Ok((agent, metadata)) => {
            // The other end waits for it.
            let _ = started.send(Ok(metadata));
            agent
        }
        Err(reason) => {
            let _ = started.send(Err(reason));
            return;
        }
    };
    let mut thread = NixlThread {
        region,
        events,
        writes: Vec::new(),
        agent,
        peers: HashMap::new(),
        remotes: HashMap::new(),
        expects_writes: false,
        vain_looks: 0,
        settling_looks: 0,
    };
    if catch_unwind(AssertUnwindSafe(|| thread.work(&commands))).is_err() {
        let reason = "the nixl data plane failed: a bug made its thread panic";
        log::error!("{reason}");
        thread.fail_all(reason);
        refuse_all(&commands, &mut thread.events, reason);
    }
}

impl NixlThread {
    fn work(&mut self, commands: &Receiver<Command>) {
        while let Some(command) = self.wait(commands) {
            if let Some(command) = command {
                self.run_command(command);
                for command in commands.try_iter().take(COMMAND_BATCH) {
                    self.run_command(command);
                }
            }
            self.look();
            self.events.flush();
        }
        self.finish();
    }

    /// Waits for a command, at most until the next look is due. `None`: no more will come.
    fn wait(&mut self, commands: &Receiver<Command>) -> Option<Option<Command>> {
        let pause = if !self.writes.is_empty() {
            self.vain_looks = self.vain_looks.saturating_add(1);
            if self.vain_looks <= EAGER_LOOKS {
                return match commands.try_recv() {
                    Ok(command) => Some(Some(command)),
                    Err(TryRecvError::Empty) => {
                        std::thread::yield_now();
                        Some(None)
                    }
                    Err(TryRecvError::Disconnected) => None,
                };
            }
            if self.vain_looks <= WRITING_LOOKS { WRITING } else { EXPECTING }
        } else if self.expects_writes {
            EXPECTING
        } else if self.settling_looks > 0 {
            self.settling_looks -= 1;
            EXPECTING
        } else if !self.peers.is_empty() {
            IDLE
        } else {
            return commands.recv().ok().map(Some);
        };
        match commands.recv_timeout(pause) {
            Ok(command) => Some(Some(command)),
            Err(RecvTimeoutError::Timeout) => Some(None),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    // --- commands ---

    fn run_command(&mut self, command: Command) {
        match command {
            Command::DropPeer(session) => self.drop_peer(session),
            Command::ExpectWrites(expected) => self.expects_writes = expected,
            Command::RegisterPeer(target) => {
                let session = target.session;
                let event = match self.register_peer(target) {
                    Ok(()) => DataEvent::PeerRegistered { session, reach: Reach::Stream },
                    Err(reason) => DataEvent::PeerRefused { session, reason },
                };
                self.events.push(event);
            }
            Command::Write { session, transfer, blocks } => self.write(session, transfer, &blocks),
        }
    }

    fn register_peer(&mut self, target: Target) -> Result<(), String> {
        let name = agent::name_in(&target.metadata)
            .ok_or_else(|| {
                format!(
                    "the peer's agent_metadata of {} bytes is not NIXL's, or names no agent",
                    target.metadata.len()
                )
            })?
            .to_owned();
        if self.peers.contains_key(&target.session) {
            return Err(format!("session {} has a NIXL agent already", target.session));
        }
        match self.remotes.get_mut(&name) {
            Some(known) if known.metadata != target.metadata => {
                return Err(format!(
                    "NIXL agent {name} is known with other metadata: another peer has this name"
                ));
            }
            Some(_) if !self.agent.covers(&name, &target.region) => {
                let (bytes, base) = (target.region.len(), target.region.base());
                return Err(format!("NIXL agent {name} has not registered the {bytes} bytes at {base:#x}"));
            }
            Some(known) => known.sessions += 1,
            None => {
                self.agent.learn(&target.metadata, &name, &target.region)?;
                self.remotes.insert(name.clone(), Remote { metadata: target.metadata, sessions: 1 });
            }
        }
        let peer = Peer { agent: name, region: target.region, writes_under_way: 0, leaving: false };
        self.peers.insert(target.session, peer);
        self.settling_looks = SETTLING_LOOKS;
        Ok(())
    }

    fn drop_peer(&mut self, session: SessionId) {
        if let Some(peer) = self.peers.get_mut(&session) {
            peer.leaving = true;
            self.let_go(session);
        }
    }

    /// Forgets a leaving peer once nothing is under way to it, and its agent with its last session.
    fn let_go(&mut self, session: SessionId) {
        let Some(peer) = self.peers.get(&session) else { return };
        if !peer.leaving || peer.writes_under_way > 0 {
            return;
        }
        let Some(Peer { agent: name, .. }) = self.peers.remove(&session) else { return };
        let Some(remote) = self.remotes.get_mut(&name) else { return };
        remote.sessions -= 1;
        if remote.sessions == 0 {
            self.remotes.remove(&name);
            self.agent.forget(&name);
            self.settling_looks = SETTLING_LOOKS;
        }
    }

    fn write(&mut self, session: SessionId, transfer: TransferId, blocks: &[BlockPair]) {
        let Some(peer) = self.peers.get_mut(&session).filter(|peer| !peer.leaving) else {
            let reason = format!("session {session} has no NIXL agent to write to");
            return self.failed(transfer, reason, true);
        };
        let pieces =
            descriptors::pieces(blocks, &self.region, &peer.region).filter(|pieces| !pieces.is_empty());
        let Some(pieces) = pieces else {
            let reason = format!("a write of {} blocks that are not all inside both regions", blocks.len());
            return self.failed(transfer, reason, false);
        };
        match self.agent.write(&peer.agent, &pieces) {
            Ok(Some(posted)) => {
                peer.writes_under_way += 1;
                self.writes.push(Write { session, transfer, posted });
                self.vain_looks = 0;
            }
            Ok(None) => self.events.push(DataEvent::TransferDone { transfer }),
            Err(failure) => self.failed(transfer, failure.reason, failure.decisive),
        }
    }

    fn failed(&mut self, transfer: TransferId, reason: String, decisive: bool) {
        self.events.push(DataEvent::TransferFailed { transfer, reason, decisive });
    }

    // --- what is under way ---

    fn look(&mut self) {
        self.agent.progress();
        let mut index = 0;
        while let Some(write) = self.writes.get(index) {
            let event = match self.agent.check(&write.posted) {
                Ok(Progress::UnderWay) => {
                    index += 1;
                    continue;
                }
                Ok(Progress::Done) => DataEvent::TransferDone { transfer: write.transfer },
                Err(reason) => DataEvent::TransferFailed { transfer: write.transfer, reason, decisive: true },
            };
            let session = self.writes.swap_remove(index).session;
            self.vain_looks = 0;
            self.events.push(event);
            if let Some(peer) = self.peers.get_mut(&session) {
                peer.writes_under_way -= 1;
            }
            self.let_go(session);
        }
    }

    // --- the end ---

    /// Lets what is under way end by itself, within bounds. The rest is cancelled with its agent.
    fn finish(&mut self) {
        let never = crossbeam_channel::never::<()>();
        for _ in 0..FAREWELL_LOOKS {
            self.look();
            if self.writes.is_empty() {
                return;
            }
            let _ = never.recv_timeout(EXPECTING);
        }
        log::warn!("nixl: {} writes are still under way at the end, cancelling them", self.writes.len());
    }

    /// After a panic: every write and every peer gets its end.
    fn fail_all(&mut self, reason: &str) {
        for Write { transfer, posted, .. } in self.writes.drain(..) {
            // Neither cancelled nor asked about: nothing is known of NIXL's state.
            std::mem::forget(posted);
            self.events.push(DataEvent::TransferFailed {
                transfer,
                reason: reason.to_owned(),
                decisive: true,
            });
        }
        for session in self.peers.keys() {
            self.events.push(DataEvent::PeerFault { session: *session, reason: reason.to_owned() });
        }
        self.events.flush();
    }
}

/// Answers commands after a failure.
fn refuse_all(commands: &Receiver<Command>, events: &mut EventSink, reason: &str) {
    for command in commands {
        match command {
            Command::Write { transfer, .. } => {
                let reason = reason.to_owned();
                events.push(DataEvent::TransferFailed { transfer, reason, decisive: true });
            }
            Command::RegisterPeer(target) => {
                let (session, reason) = (target.session, reason.to_owned());
                events.push(DataEvent::PeerRefused { session, reason });
            }
            Command::DropPeer(_) | Command::ExpectWrites(_) => {}
        }
        events.flush();
    }
}
