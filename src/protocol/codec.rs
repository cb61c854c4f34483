//! msgpack ⇄ [`Message`], both dialects, every limit checked before anything is allocated.

use thiserror::Error;

use super::config::Limits;
use super::message::{Dialect, Message};

/// What bytes from a peer turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    Message(Message),
    /// A map with a `type` that this version does not know; to be ignored.
    Unknown {
        kind: String,
    },
}

/// Bytes that are not a message: a protocol error of whoever sent them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}: {detail}")]
pub struct CodecError {
    /// The `type` as far as it was read, `message` before.
    pub message: String,
    /// What was expected and what came.
    pub detail: String,
}

/// Reads one message. `dialect`: what the peer is known to speak; `None` before its `connect`, when either form of
/// `fetch` is taken and a missing `round_seq` is 0.
pub fn decode(payload: &[u8], dialect: Option<Dialect>, limits: &Limits) -> Result<Decoded, CodecError> {
    let _ = (payload, dialect, limits);
    Err(CodecError { message: String::new(), detail: String::new() })
}

/// Appends the message to `out`, as vLLM would have written it.
pub fn encode(message: &Message, dialect: Dialect, out: &mut Vec<u8>) {
    let _ = (message, dialect, out);
}
