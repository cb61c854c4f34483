//! What the core is told once: its own description, limits and times. Defaults are those of the design, most of
//! them vLLM's own.

use std::time::Duration;

use super::ids::{Instance, PeerId};

/// Bounds on what a peer may send. All are checked before anything is allocated for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub message_bytes: usize,
    pub nesting: usize,
    pub keys_per_message: usize,
    pub key_len: usize,
    pub id_len: usize,
    /// Rounds with demand, unanswered lookups and remembered aborts that one peer may have open here.
    pub outstanding_per_peer: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            message_bytes: 64 << 20,
            nesting: 8,
            keys_per_message: 1 << 20,
            key_len: 256,
            id_len: 1024,
            outstanding_per_peer: 64 << 10,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Session opened → ready.
    pub handshake: Duration,
    /// Nothing heard on a fresh connection → close it and dial once more, within the handshake deadline.
    pub redial: Duration,
    /// Lookup flushed (or last newly answered key) → the session is given up.
    pub lookup: Duration,
    /// Load submitted → aborted.
    pub load: Duration,
    /// `abort_fetch` sent → the load fails without `abort_ack` (transports that cannot fence).
    pub abort_ack: Duration,
    /// Store bound to a session → failed.
    pub store: Duration,
    /// Store parked → failed, and for as long again its id is refused.
    pub unbound_store: Duration,
    /// Lookup of a peer arrived → keys still unsettled become MISS.
    pub serve: Duration,
    /// Hits pinned for a lookup → unpinned if no fetch came.
    pub lookup_pin: Duration,
    /// A transfer still writes after abort or failure → a warning is logged.
    pub stuck_transfer_warning: Duration,
    /// A faulted session waits this long for its transfers before it dies.
    pub fault_drain: Duration,
    /// A session without work for so long may be evicted near the cap.
    pub idle: Duration,
    /// Longest wait between attempts after data-plane faults.
    pub backoff_max: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Timeouts {
            handshake: seconds(30),
            redial: seconds(3),
            lookup: seconds(30),
            load: seconds(30),
            abort_ack: seconds(10),
            store: seconds(30),
            unbound_store: seconds(60),
            serve: seconds(5),
            lookup_pin: seconds(30),
            stuck_transfer_warning: seconds(10),
            fault_drain: seconds(10),
            idle: seconds(300),
            backoff_max: seconds(60),
        }
    }
}

/// About a millisecond of work at most, for what costs most: keys that nothing meets.
pub const SLICE: usize = 12 << 10;

/// The local tier as its peers see it, and the rules it keeps.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    pub local_id: PeerId,
    pub instance: Instance,
    pub base_addr: u64,
    pub num_blocks: u32,
    pub block_len: u64,
    /// 16 hex digits or empty, see [`super::fingerprint`].
    pub config_fingerprint: String,
    pub hash_seed: String,
    pub transports: LocalTransports,
    pub max_peers: usize,
    pub limits: Limits,
    pub timeouts: Timeouts,
    /// How much one input may do of what can be put off, in units of [`super::steps`]; [`SLICE`] in a tier.
    pub slice: usize,
    /// Seeds the hash tables against chosen keys. Random in a tier, fixed in a simulation.
    pub table_seed: u64,
    /// Access tokens are derived from it, one for each session.
    pub token_secret: [u8; 32],
}

/// What the local tier can move blocks with, in order of preference, and what its `connect` says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalTransports {
    pub preference: Vec<TransportKind>,
    pub tcp: Option<LocalTcp>,
    /// The NIXL agent's metadata, where NIXL is on.
    pub nixl_metadata: Option<Vec<u8>>,
    /// Why NIXL is off, in words for people. Empty where it is on.
    pub why_no_nixl: String,
}

/// Everything of a [`super::message::TcpOffer`] but the token, which is each session's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalTcp {
    pub addresses: Vec<core::net::IpAddr>,
    pub port: u16,
    pub host_identity: String,
}

/// How a peer gets at the bytes of blocks that are written to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// They are sent to it.
    #[default]
    Stream,
    /// It has our region mapped, and copies them itself.
    Mapped,
    /// It reads them by `process_vm_readv`.
    VmRead,
}

impl core::fmt::Display for Reach {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Reach::Stream => "stream",
            Reach::Mapped => "mapped memory",
            Reach::VmRead => "process_vm_readv",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportKind {
    Nixl,
    Tcp,
}

impl TransportKind {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TransportKind::Nixl => "nixl",
            TransportKind::Tcp => "tcp",
        }
    }

    /// Whether the receiver itself can bar writes into its blocks.
    #[must_use]
    pub fn is_fenced(self) -> bool {
        match self {
            TransportKind::Nixl => false,
            TransportKind::Tcp => true,
        }
    }
}
