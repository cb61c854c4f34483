//! What an engine call can be refused for.

use std::fmt;

/// The kinds of refusal; the C ABI gives each a fixed number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The control or data address is taken.
    AddressInUse,
    /// The address cannot be resolved or bound here.
    AddressInvalid,
    /// The name is in use: a live `kv_request_id`, a key published at another block.
    AlreadyExists,
    /// A job with this id is still open.
    DuplicateJob,
    /// A parameter is out of its range.
    InvalidArgument,
    /// The `kv_transfer_params` make no sense.
    InvalidParams,
    /// A configured limit would be passed.
    LimitExceeded,
    /// A load names a key that this round's lookup has not confirmed.
    NotAHit,
    /// No such request, key or job.
    NotFound,
    /// The operating system refused, with its own words in the message.
    Os,
    /// No file descriptors, threads or memory left.
    OutOfResources,
    /// The operating system did not permit it.
    PermissionDenied,
    /// A panic was caught earlier; only freeing the tier is left.
    Poisoned,
    /// The tier is shutting down.
    ShutDown,
    /// The asked-for data transport cannot be used here.
    TransportUnavailable,
    /// Not built in, or not in this mode.
    Unsupported,
    /// The request has no role that allows the call.
    WrongRole,
}

/// A refusal: the kind, and a sentence with what was expected, what came and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub kind: ErrorKind,
    pub message: String,
}

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;
