//! The messages, one type each. Field order here is the order on the wire (vLLM's own).
//!
//! Source of the fields: the wire of vLLM's P2P tier, 0.27 and later (current dialect) and 0.25/0.26 (legacy).

use core::net::IpAddr;

use super::ids::{Instance, KvRequestId, RoundSeq};
use super::keys::KeyBatch;

/// Which form of the messages a peer speaks. Known from its `connect`: one without `hash_seed` is legacy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// vLLM 0.27 and later, and ourselves.
    Current,
    /// vLLM 0.25 and 0.26: `block_hashes` for `keys`, no `round_seq`, no lookups.
    Legacy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    AbortAck(AbortAck),
    AbortFetch(AbortFetch),
    Connect(Box<Connect>),
    ConnectAck(ConnectAck),
    Disconnect(Disconnect),
    Fetch(Fetch),
    Lookup(Lookup),
    LookupResp(LookupResp),
    TransferDone(TransferDone),
}

impl Message {
    /// The `type` field.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Message::AbortAck(_) => "abort_ack",
            Message::AbortFetch(_) => "abort_fetch",
            Message::Connect(_) => "connect",
            Message::ConnectAck(_) => "connect_ack",
            Message::Disconnect(_) => "disconnect",
            Message::Fetch(_) => "fetch",
            Message::Lookup(_) => "lookup",
            Message::LookupResp(_) => "lookup_resp",
            Message::TransferDone(_) => "transfer_done",
        }
    }
}

/// Producer → consumer: nothing of this round writes any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortAck {
    pub kv_request_id: KvRequestId,
    pub round_seq: RoundSeq,
}

/// Consumer → producer: this round is no longer wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortFetch {
    pub kv_request_id: KvRequestId,
    pub round_seq: RoundSeq,
}

/// Both ways, first on every connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    pub peer_id: String,
    /// The NIXL agent's metadata; empty without NIXL.
    pub agent_metadata: Vec<u8>,
    pub base_addr: u64,
    pub num_blocks: u64,
    pub block_len: u64,
    /// 16 hex digits, or empty: compatible with everyone.
    pub config_fingerprint: String,
    /// `None` marks a legacy peer.
    pub hash_seed: Option<String>,
    /// The map under key `p2pkv`; a peer without it is a vLLM.
    pub extension: Option<Extension>,
}

/// What only libp2pkv peers tell each other in `connect`, under key `p2pkv`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// `version`: version of this map, 1 now. A higher one is read as far as it is known.
    pub version: u32,
    /// `instance` (16 bytes, bin).
    pub instance: Instance,
    /// `dialed_as`: the name under which the sender dialled the receiver. Absent where the receiver dialled first.
    pub dialed_as: Option<String>,
    /// `dialed_as_echo`: the `dialed_as` that the sender got from the receiver.
    pub dialed_as_echo: Option<String>,
    /// `answers` (bin): the token of the `connect` that this one answers. Absent where the sender spoke first.
    pub answers: Option<Vec<u8>>,
    /// `transports.tcp`
    pub tcp: Option<TcpOffer>,
    /// `transports.nixl` (present and true)
    pub nixl: bool,
    /// `features`: names (str), for what later versions add.
    pub features: Vec<String>,
}

impl Extension {
    /// Version 1, with nothing but the instance.
    #[must_use]
    pub fn bare(instance: Instance) -> Self {
        Extension {
            version: 1,
            instance,
            dialed_as: None,
            dialed_as_echo: None,
            answers: None,
            tcp: None,
            nixl: false,
            features: Vec::new(),
        }
    }
}

/// How to reach the sender's tcp data plane, and the proof that one may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpOffer {
    /// `addresses` (array of str), in order of preference. Empty = the host of the sender's control socket.
    pub addresses: Vec<IpAddr>,
    /// `port`
    pub port: u16,
    /// `token` (bin): to be shown on every data connection to the sender.
    pub token: Vec<u8>,
    /// `host_identity` (str): equal on both sides = both may share memory.
    pub host_identity: String,
}

/// Both ways: the peer's `connect` is valid and its data plane registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectAck {
    pub peer_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnect {
    /// Ours; vLLM sends none and ignores it.
    pub reason: Option<String>,
}

/// Consumer → producer: write the blocks of these keys to these indexes of mine. Empty = the id is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    pub kv_request_id: KvRequestId,
    pub keys: KeyBatch,
    /// As on the wire: not yet checked against `num_blocks`.
    pub block_indexes: Vec<u64>,
    pub round_seq: RoundSeq,
    /// Key `p2pkv_load` (u64), only between libp2pkv peers: the data plane's name for this load.
    pub load_token: Option<u64>,
}

/// Consumer → producer: which of these do you have?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    pub kv_request_id: KvRequestId,
    pub keys: KeyBatch,
    pub round_seq: RoundSeq,
}

/// Producer → consumer: one for each `lookup`, keys in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupResp {
    pub kv_request_id: KvRequestId,
    pub keys: KeyBatch,
    pub hits: Vec<bool>,
}

/// Producer → consumer: the round ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferDone {
    pub kv_request_id: KvRequestId,
    pub success: bool,
    pub round_seq: RoundSeq,
}
