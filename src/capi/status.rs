//! The status of a call and the names of statuses and outcomes.

use std::ffi::{CStr, c_char};

use super::enums::p2p_outcome;
use crate::protocol::error::ErrorKind;

/// What a call gives back.
///
/// 0 = OK. Positive: not an error, `p2p_last_error` is left alone. Negative: an error, and `p2p_last_error` says more:
/// -1 to -99 the caller's, -100 to -199 of transports and the operating system, -900 and below fatal, after which
/// only `p2p_tier_free` and `p2p_request_finish` are of use. Numbers never change meaning; later versions may
/// add some, so treat an unknown one by its band.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// cbindgen:rename-all=prefix:P2P_STATUS_
pub enum p2p_status {
    /// It worked.
    OK = 0,

    /// Time ran out; nothing was lost, call again.
    TIMED_OUT = 1,
    /// At least one key is pinned by a peer and stays published.
    BUSY = 2,
    /// The buffer or array is too short for everything; the length output says how much there is.
    TRUNCATED = 3,

    /// A parameter is NULL, out of range or malformed. The message names it.
    INVALID_ARGUMENT = -1,
    /// Not built in, not possible in this mode, or a struct has fields that this version does not know.
    UNSUPPORTED = -2,
    /// The handle was made before a fork, in the parent. Here it may only be abandoned.
    WRONG_PROCESS = -3,
    /// A job with this id is still open.
    DUPLICATE_JOB = -4,
    /// The name is in use: a live `kv_request_id`, a key published at another block.
    ALREADY_EXISTS = -5,
    /// No such request, key or job.
    NOT_FOUND = -6,
    /// The `kv_transfer_params` make no sense.
    INVALID_PARAMS = -7,
    /// A load names a key that the lookup of this round has not confirmed.
    NOT_A_HIT = -8,
    /// A configured limit would be passed.
    LIMIT_EXCEEDED = -9,
    /// The request has no role that allows the call.
    WRONG_ROLE = -10,
    /// The tier was freed or is being freed.
    SHUT_DOWN = -11,

    /// The control or data address is taken.
    ADDRESS_IN_USE = -100,
    /// The address cannot be resolved or bound here.
    ADDRESS_INVALID = -101,
    /// The asked-for data transport cannot be used here.
    TRANSPORT_UNAVAILABLE = -102,
    /// No file descriptors, threads or memory left.
    OUT_OF_RESOURCES = -103,
    /// The operating system did not permit it.
    PERMISSION_DENIED = -104,
    /// The operating system refused, in its own words.
    OS_ERROR = -105,

    /// A bug in the library was caught. The tier and its requests are unusable from now on.
    PANIC = -900,
    /// An earlier call on this tier gave P2P_STATUS_PANIC.
    POISONED = -901,
}

impl From<ErrorKind> for p2p_status {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::AddressInUse => p2p_status::ADDRESS_IN_USE,
            ErrorKind::AddressInvalid => p2p_status::ADDRESS_INVALID,
            ErrorKind::AlreadyExists => p2p_status::ALREADY_EXISTS,
            ErrorKind::DuplicateJob => p2p_status::DUPLICATE_JOB,
            ErrorKind::InvalidArgument => p2p_status::INVALID_ARGUMENT,
            ErrorKind::InvalidParams => p2p_status::INVALID_PARAMS,
            ErrorKind::LimitExceeded => p2p_status::LIMIT_EXCEEDED,
            ErrorKind::NotAHit => p2p_status::NOT_A_HIT,
            ErrorKind::NotFound => p2p_status::NOT_FOUND,
            ErrorKind::Os => p2p_status::OS_ERROR,
            ErrorKind::OutOfResources => p2p_status::OUT_OF_RESOURCES,
            ErrorKind::PermissionDenied => p2p_status::PERMISSION_DENIED,
            ErrorKind::Poisoned => p2p_status::POISONED,
            ErrorKind::ShutDown => p2p_status::SHUT_DOWN,
            ErrorKind::TransportUnavailable => p2p_status::TRANSPORT_UNAVAILABLE,
            ErrorKind::Unsupported => p2p_status::UNSUPPORTED,
            ErrorKind::WrongRole => p2p_status::WRONG_ROLE,
        }
    }
}

/// Name of a status: "OK", "INVALID_ARGUMENT", and so on.
///
/// Parameters:
/// - `status`: any integer.
///
/// Returns: the name without its prefix, "UNKNOWN" for numbers that are no status; static, never free it.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub extern "C" fn p2p_status_name(status: i32) -> *const c_char {
    name_of(STATUS_NAMES, |known| known as i32 == status)
}

/// Name of an outcome: "DONE", "PEER_LOST", and so on.
///
/// Parameters:
/// - `outcome`: any integer, usually `p2p_job_result.outcome`.
///
/// Returns: the name without its prefix, "UNKNOWN" for numbers that are no outcome; static, never free it.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub extern "C" fn p2p_outcome_name(outcome: u32) -> *const c_char {
    name_of(OUTCOME_NAMES, |known| known as u32 == outcome)
}

fn name_of<T: Copy>(names: &[(T, &'static CStr)], is_it: impl Fn(T) -> bool) -> *const c_char {
    names.iter().find(|(known, _)| is_it(*known)).map_or(c"UNKNOWN", |(_, name)| name).as_ptr()
}

const STATUS_NAMES: &[(p2p_status, &CStr)] = &[
    (p2p_status::OK, c"OK"),
    (p2p_status::TIMED_OUT, c"TIMED_OUT"),
    (p2p_status::BUSY, c"BUSY"),
    (p2p_status::TRUNCATED, c"TRUNCATED"),
    (p2p_status::INVALID_ARGUMENT, c"INVALID_ARGUMENT"),
    (p2p_status::UNSUPPORTED, c"UNSUPPORTED"),
    (p2p_status::WRONG_PROCESS, c"WRONG_PROCESS"),
    (p2p_status::DUPLICATE_JOB, c"DUPLICATE_JOB"),
    (p2p_status::ALREADY_EXISTS, c"ALREADY_EXISTS"),
    (p2p_status::NOT_FOUND, c"NOT_FOUND"),
    (p2p_status::INVALID_PARAMS, c"INVALID_PARAMS"),
    (p2p_status::NOT_A_HIT, c"NOT_A_HIT"),
    (p2p_status::LIMIT_EXCEEDED, c"LIMIT_EXCEEDED"),
    (p2p_status::WRONG_ROLE, c"WRONG_ROLE"),
    (p2p_status::SHUT_DOWN, c"SHUT_DOWN"),
    (p2p_status::ADDRESS_IN_USE, c"ADDRESS_IN_USE"),
    (p2p_status::ADDRESS_INVALID, c"ADDRESS_INVALID"),
    (p2p_status::TRANSPORT_UNAVAILABLE, c"TRANSPORT_UNAVAILABLE"),
    (p2p_status::OUT_OF_RESOURCES, c"OUT_OF_RESOURCES"),
    (p2p_status::PERMISSION_DENIED, c"PERMISSION_DENIED"),
    (p2p_status::OS_ERROR, c"OS_ERROR"),
    (p2p_status::PANIC, c"PANIC"),
    (p2p_status::POISONED, c"POISONED"),
];

const OUTCOME_NAMES: &[(p2p_outcome, &CStr)] = &[
    (p2p_outcome::DONE, c"DONE"),
    (p2p_outcome::NOT_SUPPLIED, c"NOT_SUPPLIED"),
    (p2p_outcome::ABORTED, c"ABORTED"),
    (p2p_outcome::TIMED_OUT, c"TIMED_OUT"),
    (p2p_outcome::PEER_LOST, c"PEER_LOST"),
    (p2p_outcome::INCOMPATIBLE, c"INCOMPATIBLE"),
    (p2p_outcome::TRANSPORT_FAILED, c"TRANSPORT_FAILED"),
    (p2p_outcome::NOT_FETCHED, c"NOT_FETCHED"),
    (p2p_outcome::NO_PEER, c"NO_PEER"),
    (p2p_outcome::SHUT_DOWN, c"SHUT_DOWN"),
];
