//! The NIXL data transport: RDMA and whatever else NIXL finds a way through. vLLM moves blocks with nothing else.
//!
//! One thread for each transport ([`thread`]) makes all calls of NIXL ([`agent`]); callers reach it through a queue. It
//! sleeps while nothing is under way. NIXL itself is found ([`search`]) and loaded ([`library`]) when the first tier that
//! may use it starts; without it this transport cannot be made, and everything else works.
//!
//! NIXL cannot be fenced: nothing here can bar a peer that was given the region's metadata from writing into it.

mod agent;
mod descriptors;
mod library;
mod search;
mod thread;

use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};

use self::descriptors::RemoteRegion;
use self::thread::{Command, Target};
use super::tcp::{EventFd, EventSink};
use super::{DataEvent, DataTransport, Disarm, PeerOffer, Region};
use crate::host::spawn_without_signals;
use crate::protocol::config::TransportKind;
use crate::protocol::error::{Error, ErrorKind, Result};
use crate::protocol::ids::{BlockIndex, BlockPair, LoadToken, SessionId, TransferId};

/// How NIXL is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NixlConfig {
    /// Names of NIXL plug-ins, each made with the agent; NIXL picks one for each transfer.
    pub backends: Vec<String>,
    /// Threads that share a large transfer, where the back-end has such. 0 = none.
    pub threads: usize,
}

impl Default for NixlConfig {
    fn default() -> Self {
        NixlConfig { backends: vec!["UCX".to_owned()], threads: 0 }
    }
}

/// See [`DataTransport`]. Dropping it waits a second for writes that are under way, then cancels them, and takes the
/// region's registration back before it returns; events that were not polled are gone.
pub struct NixlTransport {
    region: Region,
    metadata: Vec<u8>,
    library: PathBuf,
    /// `None` only while being dropped: the thread ends when the queue has no sender.
    commands: Option<Sender<Command>>,
    /// For what needs no thread to be known.
    own_events: Sender<DataEvent>,
    events: Receiver<DataEvent>,
    ready: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl NixlTransport {
    /// Loads NIXL, starts the thread `p2pkv-nixl` and registers the region.
    ///
    /// # Errors
    /// `TransportUnavailable`: NIXL is not there (with the places that were tried), or does not work here.
    pub fn new(region: Region, config: &NixlConfig) -> Result<NixlTransport> {
        let unavailable = |reason: String| Error::new(ErrorKind::TransportUnavailable, reason);
        let os = |error: std::io::Error| {
            Error::new(ErrorKind::OutOfResources, format!("starting the nixl data plane: {error}"))
        };
        let (loaded, library) = library::load().map_err(unavailable)?;
        let ready = Arc::new(EventFd::new().map_err(os)?);
        let (commands, command_queue) = crossbeam_channel::unbounded();
        let (event_queue, events) = crossbeam_channel::unbounded();
        let (started, outcome) = crossbeam_channel::bounded(1);
        let sink = EventSink::new(event_queue.clone(), Arc::clone(&ready));
        let name = agent_name()?;
        let config = config.clone();
        // NIXL's threads are started by this one, so they take no signals either.
        let thread = spawn_without_signals("p2pkv-nixl", move || {
            thread::run(loaded, &name, region, &config, command_queue, sink, &started);
        })
        .map_err(os)?;
        let mut transport = NixlTransport {
            region,
            metadata: Vec::new(),
            library,
            commands: Some(commands),
            own_events: event_queue,
            events,
            ready,
            thread: Some(thread),
        };
        transport.metadata = outcome
            .recv()
            .unwrap_or_else(|_| Err("NIXL made its thread panic".to_owned()))
            .map_err(unavailable)?;
        Ok(transport)
    }

    /// What peers need to write into the region: for `connect`.
    #[must_use]
    pub fn metadata(&self) -> &[u8] {
        &self.metadata
    }

    /// The file that NIXL was loaded from.
    #[must_use]
    pub fn library(&self) -> &Path {
        &self.library
    }

    fn tell(&self, event: DataEvent) {
        // Cannot fail: we hold the receiving end.
        let _ = self.own_events.send(event);
        self.ready.signal();
    }

    fn post(&self, command: Command) {
        // The receiving end lives as long as the thread, and that until we are dropped.
        let _ = self.commands.as_ref().map(|commands| commands.send(command));
    }
}

impl DataTransport for NixlTransport {
    fn kind(&self) -> TransportKind {
        TransportKind::Nixl
    }

    fn event_fd(&self) -> RawFd {
        self.ready.as_raw_fd()
    }

    /// Whoever has the metadata may write: there is no token to be shown.
    fn expect_peer(&mut self, _session: SessionId, _token: &[u8]) {}

    fn register_peer(&mut self, session: SessionId, offer: PeerOffer) {
        match target(session, offer, self.region.block_len()) {
            Ok(target) => self.post(Command::RegisterPeer(target)),
            Err(reason) => self.tell(DataEvent::PeerRefused { session, reason }),
        }
    }

    fn drop_peer(&mut self, session: SessionId) {
        self.post(Command::DropPeer(session));
    }

    /// There is no fence: all blocks are open to every peer.
    fn arm(&mut self, _session: SessionId, _load: LoadToken, _blocks: &[BlockIndex]) {}

    fn disarm(&mut self, _load: LoadToken) -> Disarm {
        Disarm::Done
    }

    fn expect_writes(&mut self, expected: bool) {
        self.post(Command::ExpectWrites(expected));
    }

    fn write(
        &mut self,
        session: SessionId,
        transfer: TransferId,
        _load: Option<LoadToken>,
        blocks: &[BlockPair],
    ) {
        self.post(Command::Write { session, transfer, blocks: Box::from(blocks) });
    }

    /// A posted write cannot be stopped: it ends by itself.
    fn cancel(&mut self, _transfers: &[TransferId]) {}

    fn poll(&mut self, events: &mut Vec<DataEvent>) {
        self.ready.reset();
        events.extend(self.events.try_iter());
    }
}

impl Drop for NixlTransport {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the nixl data plane's thread panicked");
        }
    }
}

fn target(session: SessionId, offer: PeerOffer, block_len: usize) -> std::result::Result<Target, String> {
    let PeerOffer::Nixl { metadata, base_addr, num_blocks, block_len: theirs } = offer else {
        return Err("the nixl transport got an offer for another one".to_owned());
    };
    let region = RemoteRegion::new(base_addr, num_blocks, theirs)
        .filter(|region| region.block_len() == block_len)
        .ok_or_else(|| {
            format!("the peer's region of {num_blocks} blocks of {theirs} bytes at {base_addr:#x} cannot be written to")
        })?;
    Ok(Target { session, metadata, region })
}

/// A random uuid: a restarted tier is another agent.
fn agent_name() -> Result<String> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(ErrorKind::Os, format!("cannot get random bytes from the system: {error}"))
    })?;
    let number =
        u128::from_be_bytes(bytes) & !(0xf000 << 64) & !(0xc000 << 48) | (0x4000 << 64) | (0x8000 << 48);
    let hex = format!("{number:032x}");
    let mut name = String::with_capacity(36);
    for (position, digit) in hex.chars().enumerate() {
        if matches!(position, 8 | 12 | 16 | 20) {
            name.push('-');
        }
        name.push(digit);
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_named_by_random_uuids() {
        let (one, other) = (agent_name().unwrap(), agent_name().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.len(), 36);
        let groups: Vec<&str> = one.split('-').collect();
        assert_eq!(groups.iter().map(|group| group.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(groups[2].starts_with('4') && groups[3].starts_with(['8', '9', 'a', 'b']), "{one}");
    }
}
