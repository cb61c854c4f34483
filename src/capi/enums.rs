//! The enums that cross as `uint32_t`, and how they meet those of the layers below.

use super::guard::Failure;
use crate::protocol::job::{
    JobFlags, JobKind, LookupState, OffloadPolicy, Outcome, OutcomeClass, PeerState, UnpublishState,
};
use crate::tier::{ProgressMode, TransportChoice};

/// In `p2p_job_result.flags` of a store: a transfer may still read the blocks. Do not give them to anyone yet.
pub const P2P_JOB_MAY_STILL_BE_READ: u32 = 1;
/// In `p2p_job_result.flags` of a load over NIXL: a late write may still land in the blocks. Do not give them to
/// anyone yet.
pub const P2P_JOB_MAY_STILL_BE_WRITTEN: u32 = 2;

/// How a job ended: `p2p_job_result.outcome`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// cbindgen:rename-all=prefix:P2P_OUTCOME_
pub enum p2p_outcome {
    /// Load: all bytes are in the blocks. Store: a peer has them, or nobody was going to ask.
    DONE = 0,
    /// Load: the producer ended the round without all of it.
    NOT_SUPPLIED = 1,
    /// The request finished, or the consumer gave the round up.
    ABORTED = 2,
    /// Its deadline passed.
    TIMED_OUT = 3,
    /// The session was ready and died.
    PEER_LOST = 4,
    /// The peer's configuration differs; `detail` has both values.
    INCOMPATIBLE = 5,
    /// The data plane failed.
    TRANSPORT_FAILED = 6,
    /// Store: nobody came for the blocks.
    NOT_FETCHED = 7,
    /// There was no session to use: unreachable, refused, backing off, too many peers, no usable id.
    NO_PEER = 8,
    /// The tier was freed.
    SHUT_DOWN = 9,
}

/// What to do about an outcome: `p2p_job_result.outcome_class`. Outcomes of later versions have one of these too.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// cbindgen:rename-all=prefix:P2P_OUTCOME_CLASS_
pub enum p2p_outcome_class {
    /// Nothing: it is done.
    NONE = 0,
    /// Ask again, here or elsewhere.
    RETRY = 1,
    /// Compute the blocks.
    RECOMPUTE = 2,
    /// An operator has to change a setting; compute the blocks meanwhile.
    FIX_CONFIGURATION = 3,
    /// The engine did something out of order.
    BUG = 4,
}

/// What a job was: `p2p_job_result.kind`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// cbindgen:rename-all=prefix:P2P_JOB_KIND_
pub enum p2p_job_kind {
    /// Blocks were pulled from a peer.
    LOAD = 1,
    /// Blocks were offered to a peer, by `p2p_submit_store` or by the serve op `create_store_job`.
    STORE = 2,
}

/// What is known of a key: `states_out` of `p2p_lookup` and of the serve op `lookup`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// cbindgen:rename-all=prefix:P2P_LOOKUP_
pub enum p2p_lookup_state {
    /// The block is not there.
    MISS = 0,
    /// The block is there and can be had.
    HIT = 1,
    /// No answer yet; ask again.
    RETRY = 2,
    /// Serve op only: the block is being made; the library asks again until `serve_timeout_ms`.
    PENDING = 3,
}

/// Which blocks of a request are wanted by `p2p_submit_store`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// cbindgen:rename-all=prefix:P2P_OFFLOAD_
pub enum p2p_offload_policy {
    /// Only blocks that are new to this tier.
    CHUNK_LEVEL = 0,
    /// All blocks of the request, since a consumer waits for each of them.
    REQUEST_LEVEL = 1,
}

/// Which data transport may be used: `p2p_tier_config.transport`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// cbindgen:rename-all=prefix:P2P_TRANSPORT_
pub enum p2p_transport {
    /// NIXL where it loads, and always TCP; the best that both sides have is taken: memory on the same host, see
    /// `p2p_same_host`, then NIXL, then TCP.
    AUTO = 0,
    /// TCP alone, and memory on the same host.
    TCP = 1,
    /// NIXL alone; `p2p_tier_new` fails with P2P_STATUS_TRANSPORT_UNAVAILABLE where it does not load.
    NIXL = 2,
}

/// Whether peers on the same host copy blocks from memory to memory: `p2p_tier_config.same_host`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// cbindgen:rename-all=prefix:P2P_SAME_HOST_
pub enum p2p_same_host {
    /// Where both allow it and it can be had: mapped memory, else `process_vm_readv`, else TCP with one warning.
    AUTO = 0,
    /// Never: TCP, or NIXL, as to any other host.
    OFF = 1,
}

/// Who advances the tier: `p2p_tier_config.progress`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// cbindgen:rename-all=prefix:P2P_PROGRESS_
pub enum p2p_progress {
    /// A thread of the tier's own.
    THREAD = 0,
    /// Whoever calls `p2p_poll_finished` or `p2p_wait_finished`; nothing moves between the calls.
    CALLER = 1,
}

/// Where a session with a peer stands: `p2p_peer_info.state`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// cbindgen:rename-all=prefix:P2P_PEER_
pub enum p2p_peer_state {
    /// Dialled, nothing heard.
    CONNECTING = 1,
    /// Heard from, not yet agreed.
    HANDSHAKE = 2,
    /// Blocks can move.
    READY = 3,
    /// Faulted; its transfers are ending.
    DRAINING = 4,
    /// No session: the next attempt waits.
    BACKING_OFF = 5,
}

/// What became of a key: `states_out` of `p2p_unpublish`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// cbindgen:rename-all=prefix:P2P_UNPUBLISH_
pub enum p2p_unpublish_state {
    /// No longer published; the block is yours again.
    REMOVED = 0,
    /// A peer's round holds the block; the key stays published. Try again later.
    BUSY = 1,
    /// The key was not published.
    NOT_FOUND = 2,
}

/// How much is logged: `p2p_log_init`, `p2p_log_set_callback`. Each level includes those before it.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// cbindgen:rename-all=prefix:P2P_LOG_
pub enum p2p_log_level {
    /// Nothing.
    OFF = 0,
    /// Something is broken and somebody has to act.
    ERROR = 1,
    /// Something is wrong or slow; the library goes on.
    WARN = 2,
    /// Sessions that begin and end, and what was chosen.
    INFO = 3,
    /// Each request and job.
    DEBUG = 4,
    /// Each message.
    TRACE = 5,
}

impl TryFrom<u32> for p2p_transport {
    type Error = Failure;

    fn try_from(value: u32) -> Result<Self, Failure> {
        match value {
            0 => Ok(p2p_transport::AUTO),
            1 => Ok(p2p_transport::TCP),
            2 => Ok(p2p_transport::NIXL),
            _ => Err(unknown_value("transport", value, "0 (AUTO), 1 (TCP) or 2 (NIXL)")),
        }
    }
}

impl TryFrom<u32> for p2p_same_host {
    type Error = Failure;

    fn try_from(value: u32) -> Result<Self, Failure> {
        match value {
            0 => Ok(p2p_same_host::AUTO),
            1 => Ok(p2p_same_host::OFF),
            _ => Err(unknown_value("same_host", value, "0 (AUTO) or 1 (OFF)")),
        }
    }
}

impl TryFrom<u32> for p2p_progress {
    type Error = Failure;

    fn try_from(value: u32) -> Result<Self, Failure> {
        match value {
            0 => Ok(p2p_progress::THREAD),
            1 => Ok(p2p_progress::CALLER),
            _ => Err(unknown_value("progress", value, "0 (THREAD) or 1 (CALLER)")),
        }
    }
}

impl TryFrom<u32> for p2p_log_level {
    type Error = Failure;

    fn try_from(value: u32) -> Result<Self, Failure> {
        match value {
            0 => Ok(p2p_log_level::OFF),
            1 => Ok(p2p_log_level::ERROR),
            2 => Ok(p2p_log_level::WARN),
            3 => Ok(p2p_log_level::INFO),
            4 => Ok(p2p_log_level::DEBUG),
            5 => Ok(p2p_log_level::TRACE),
            _ => Err(unknown_value(
                "level",
                value,
                "0 (OFF), 1 (ERROR), 2 (WARN), 3 (INFO), 4 (DEBUG) or 5 (TRACE)",
            )),
        }
    }
}

fn unknown_value(parameter: &str, value: u32, allowed: &str) -> Failure {
    Failure::invalid(format!("{parameter} is {value}, expected {allowed}"))
}

/// Refuses bits that are not in `known`; `names` lists those for the message.
pub(super) fn check_flags(parameter: &str, flags: u32, known: u32, names: &str) -> Result<(), Failure> {
    match flags & !known {
        0 => Ok(()),
        unknown => Err(Failure::invalid(format!(
            "{parameter} is {flags:#x}, bits {unknown:#x} are unknown; known: {names}"
        ))),
    }
}

impl From<p2p_transport> for TransportChoice {
    fn from(transport: p2p_transport) -> Self {
        match transport {
            p2p_transport::AUTO => TransportChoice::Auto,
            p2p_transport::TCP => TransportChoice::Tcp,
            p2p_transport::NIXL => TransportChoice::Nixl,
        }
    }
}

impl From<p2p_progress> for ProgressMode {
    fn from(progress: p2p_progress) -> Self {
        match progress {
            p2p_progress::THREAD => ProgressMode::Thread,
            p2p_progress::CALLER => ProgressMode::Caller,
        }
    }
}

impl From<Outcome> for p2p_outcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Aborted => p2p_outcome::ABORTED,
            Outcome::Done => p2p_outcome::DONE,
            Outcome::Incompatible => p2p_outcome::INCOMPATIBLE,
            Outcome::NoPeer => p2p_outcome::NO_PEER,
            Outcome::NotFetched => p2p_outcome::NOT_FETCHED,
            Outcome::NotSupplied => p2p_outcome::NOT_SUPPLIED,
            Outcome::PeerLost => p2p_outcome::PEER_LOST,
            Outcome::ShutDown => p2p_outcome::SHUT_DOWN,
            Outcome::TimedOut => p2p_outcome::TIMED_OUT,
            Outcome::TransportFailed => p2p_outcome::TRANSPORT_FAILED,
        }
    }
}

impl From<OutcomeClass> for p2p_outcome_class {
    fn from(class: OutcomeClass) -> Self {
        match class {
            OutcomeClass::Bug => p2p_outcome_class::BUG,
            OutcomeClass::FixConfiguration => p2p_outcome_class::FIX_CONFIGURATION,
            OutcomeClass::None => p2p_outcome_class::NONE,
            OutcomeClass::Recompute => p2p_outcome_class::RECOMPUTE,
            OutcomeClass::Retry => p2p_outcome_class::RETRY,
        }
    }
}

impl From<JobKind> for p2p_job_kind {
    fn from(kind: JobKind) -> Self {
        match kind {
            JobKind::Load => p2p_job_kind::LOAD,
            JobKind::Store => p2p_job_kind::STORE,
        }
    }
}

impl From<LookupState> for p2p_lookup_state {
    fn from(state: LookupState) -> Self {
        match state {
            LookupState::Hit => p2p_lookup_state::HIT,
            LookupState::Miss => p2p_lookup_state::MISS,
            LookupState::Pending => p2p_lookup_state::PENDING,
            LookupState::Retry => p2p_lookup_state::RETRY,
        }
    }
}

impl From<OffloadPolicy> for p2p_offload_policy {
    fn from(policy: OffloadPolicy) -> Self {
        match policy {
            OffloadPolicy::ChunkLevel => p2p_offload_policy::CHUNK_LEVEL,
            OffloadPolicy::RequestLevel => p2p_offload_policy::REQUEST_LEVEL,
        }
    }
}

impl From<PeerState> for p2p_peer_state {
    fn from(state: PeerState) -> Self {
        match state {
            PeerState::BackingOff => p2p_peer_state::BACKING_OFF,
            PeerState::Connecting => p2p_peer_state::CONNECTING,
            PeerState::Draining => p2p_peer_state::DRAINING,
            PeerState::Handshake => p2p_peer_state::HANDSHAKE,
            PeerState::Ready => p2p_peer_state::READY,
        }
    }
}

impl From<UnpublishState> for p2p_unpublish_state {
    fn from(state: UnpublishState) -> Self {
        match state {
            UnpublishState::Busy => p2p_unpublish_state::BUSY,
            UnpublishState::NotFound => p2p_unpublish_state::NOT_FOUND,
            UnpublishState::Removed => p2p_unpublish_state::REMOVED,
        }
    }
}

impl From<p2p_log_level> for ::log::LevelFilter {
    fn from(level: p2p_log_level) -> Self {
        match level {
            p2p_log_level::OFF => ::log::LevelFilter::Off,
            p2p_log_level::ERROR => ::log::LevelFilter::Error,
            p2p_log_level::WARN => ::log::LevelFilter::Warn,
            p2p_log_level::INFO => ::log::LevelFilter::Info,
            p2p_log_level::DEBUG => ::log::LevelFilter::Debug,
            p2p_log_level::TRACE => ::log::LevelFilter::Trace,
        }
    }
}

impl From<::log::Level> for p2p_log_level {
    fn from(level: ::log::Level) -> Self {
        match level {
            ::log::Level::Error => p2p_log_level::ERROR,
            ::log::Level::Warn => p2p_log_level::WARN,
            ::log::Level::Info => p2p_log_level::INFO,
            ::log::Level::Debug => p2p_log_level::DEBUG,
            ::log::Level::Trace => p2p_log_level::TRACE,
        }
    }
}

/// The state that an engine wrote; `None` if the number is not one.
pub(super) fn lookup_state(value: u32) -> Option<LookupState> {
    match value {
        0 => Some(LookupState::Miss),
        1 => Some(LookupState::Hit),
        2 => Some(LookupState::Retry),
        3 => Some(LookupState::Pending),
        _ => None,
    }
}

pub(super) fn job_flags(flags: JobFlags) -> u32 {
    let bit = |set: bool, bit: u32| if set { bit } else { 0 };
    bit(flags.may_still_be_read, P2P_JOB_MAY_STILL_BE_READ)
        | bit(flags.may_still_be_written, P2P_JOB_MAY_STILL_BE_WRITTEN)
}
