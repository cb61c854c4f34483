//! What the core asks its owner to do, as values.

use core::net::{IpAddr, SocketAddr};

use super::config::TransportKind;
use super::ids::{BlockIndex, BlockPair, LoadToken, PeerId, SessionId, TransferId};
use super::job::JobResult;
use super::message::{Dialect, Message};

/// One thing to do. The owner carries them out in order; what comes of them returns as inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Let the session's peer write these blocks, once each, under this name.
    Arm { session: SessionId, load: LoadToken, blocks: Vec<BlockIndex> },
    /// Ask the data plane to end transfers early.
    CancelTransfers { session: SessionId, transfers: Vec<TransferId> },
    /// The session is over: end its control connection (letting queued messages leave if `flush`) and its data plane.
    ClosePeer { session: SessionId, flush: bool },
    /// Bar writes for this load; `handle_disarmed` once that is certain.
    Disarm { session: SessionId, load: LoadToken },
    /// A job ended.
    Finished(JobResult),
    /// Dial the peer's control socket; accept its data connections that show `token`.
    OpenPeer { session: SessionId, peer: PeerId, token: Vec<u8> },
    /// Close the session's control connection and dial afresh.
    Redial { session: SessionId },
    /// Make writing to the peer possible; `handle_peer_registered` or `handle_peer_refused` follows.
    RegisterPeer { session: SessionId, registration: Registration },
    /// Send a control message.
    Send { session: SessionId, message: Message, dialect: Dialect },
    /// Move blocks; `handle_transfer_done` or `handle_transfer_failed` follows, once.
    Write { session: SessionId, transfer: TransferId, load: Option<LoadToken>, blocks: Vec<BlockPair> },
}

/// How the chosen data transport reaches a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registration {
    Nixl {
        metadata: Vec<u8>,
        base_addr: u64,
        num_blocks: u64,
        block_len: u64,
    },
    /// `same_host`: both run on one host and are willing to share memory.
    Tcp {
        addresses: Vec<SocketAddr>,
        token: Vec<u8>,
        num_blocks: u64,
        same_host: bool,
    },
}

impl Registration {
    #[must_use]
    pub fn kind(&self) -> TransportKind {
        match self {
            Registration::Nixl { .. } => TransportKind::Nixl,
            Registration::Tcp { .. } => TransportKind::Tcp,
        }
    }
}

/// Addresses to try for a peer's tcp data plane: those it names, else the hosts its control socket was reached at.
#[must_use]
pub fn data_addresses(named: &[IpAddr], control: &[SocketAddr], port: u16) -> Vec<SocketAddr> {
    if named.is_empty() {
        control.iter().map(|address| SocketAddr::new(address.ip(), port)).collect()
    } else {
        named.iter().map(|ip| SocketAddr::new(*ip, port)).collect()
    }
}
