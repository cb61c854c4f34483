//! Jobs and their results, and the other answers that the core gives to the engine.

use std::time::Duration;

use super::ids::JobId;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobKind {
    Load,
    Store,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Load: all bytes are in the blocks. Store: a peer has them, or nobody was going to ask.
    Done,
    /// Load: the producer ended the round without all of it.
    NotSupplied,
    /// The request finished, or the consumer gave the round up.
    Aborted,
    /// Its deadline passed.
    TimedOut,
    /// The session was ready and died.
    PeerLost,
    /// The peer's configuration differs.
    Incompatible,
    /// The data plane failed.
    TransportFailed,
    /// Store: parked, and nobody came for it.
    NotFetched,
    /// There was no session to use: unreachable, refused, back-off, too many peers, no usable id.
    NoPeer,
    /// The tier was freed.
    ShutDown,
}

/// What the engine should do about an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutcomeClass {
    /// Nothing: it went well.
    None,
    /// Ask again, here or elsewhere.
    Retry,
    /// Compute the blocks.
    Recompute,
    /// An operator has to change a setting; compute the blocks meanwhile.
    FixConfiguration,
    /// The engine did something out of order.
    Bug,
}

impl Outcome {
    #[must_use]
    pub fn class(self) -> OutcomeClass {
        match self {
            Outcome::Done => OutcomeClass::None,
            Outcome::PeerLost | Outcome::TimedOut | Outcome::TransportFailed => OutcomeClass::Retry,
            Outcome::Aborted | Outcome::NotFetched | Outcome::NotSupplied => OutcomeClass::Recompute,
            Outcome::Incompatible | Outcome::NoPeer => OutcomeClass::FixConfiguration,
            Outcome::ShutDown => OutcomeClass::Bug,
        }
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Aborted => "ABORTED",
            Outcome::Done => "DONE",
            Outcome::Incompatible => "INCOMPATIBLE",
            Outcome::NoPeer => "NO_PEER",
            Outcome::NotFetched => "NOT_FETCHED",
            Outcome::NotSupplied => "NOT_SUPPLIED",
            Outcome::PeerLost => "PEER_LOST",
            Outcome::ShutDown => "SHUT_DOWN",
            Outcome::TimedOut => "TIMED_OUT",
            Outcome::TransportFailed => "TRANSPORT_FAILED",
        }
    }
}

/// What the engine must keep in mind about the blocks of a finished job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobFlags {
    /// Store: a transfer may still read the blocks.
    pub may_still_be_read: bool,
    /// Load: a late write may still land in the blocks.
    pub may_still_be_written: bool,
}

/// The one result of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobResult {
    pub job: JobId,
    pub kind: JobKind,
    pub outcome: Outcome,
    pub flags: JobFlags,
    /// Bytes moved.
    pub bytes: u64,
    /// From submission to the result.
    pub elapsed: Duration,
    /// Why, and with whom; empty when done.
    pub detail: String,
}

/// What is known of a key at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookupState {
    Hit,
    Miss,
    /// Serving side: being made, ask again.
    Pending,
    /// No answer yet.
    Retry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OffloadPolicy {
    /// Only blocks that are new.
    ChunkLevel,
    /// All blocks of the request, since a consumer waits for each of them.
    RequestLevel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnpublishState {
    /// A peer's round holds it; it stays published.
    Busy,
    NotFound,
    Removed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerState {
    /// No session: the next attempt waits.
    BackingOff,
    /// Dialled, nothing heard.
    Connecting,
    /// Faulted; its transfers are ending.
    Draining,
    /// Heard from, not yet both acknowledged and registered.
    Handshake,
    Ready,
}

/// Counters since the tier began, and a few levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub peers: u64,
    pub requests: u64,
    pub loads_live: u64,
    pub stores_live: u64,
    pub stores_parked: u64,
    pub keys_published: u64,
    pub blocks_pinned: u64,
    pub jobs_done: u64,
    pub jobs_failed: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub lookups_sent: u64,
    pub lookups_answered: u64,
    pub keys_hit: u64,
    pub keys_missed: u64,
    pub messages_in: u64,
    pub messages_out: u64,
    pub messages_dropped: u64,
    pub messages_late: u64,
    pub protocol_errors: u64,
    pub sessions_opened: u64,
    pub sessions_lost: u64,
    pub results_queued: u64,
}
