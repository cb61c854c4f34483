//! msgpack ⇄ [`Message`], both dialects, every limit checked before anything is allocated.
//!
//! Reading goes in two steps: [`fields`] walks the whole map once, checks its structure and notes where the known
//! fields lie; `decode` then builds the message from them. So `type` may come anywhere, and what is not known
//! costs nothing but the walk.

mod decode;
mod encode;
mod fields;
mod reader;

use thiserror::Error;

pub use decode::decode;
pub use encode::encode;

use super::message::Message;

/// What bytes from a peer turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    Message(Message),
    /// A map with a `type` that this version does not know; to be ignored.
    Unknown {
        /// The first 64 characters of it, as the peer wrote them.
        kind: String,
    },
}

/// Bytes that are not a message: a protocol error of whoever sent them. Its length is bounded, whatever came.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}: {detail}")]
pub struct CodecError {
    /// The `type` as far as it was read, `message` before.
    pub message: String,
    /// What was expected and what came.
    pub detail: String,
}
