//! `kv_transfer_params` → what a request is to its peers.

use super::error::Result;
use super::ids::{KvRequestId, PeerId};

/// The consumer half: who to pull from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub kv_request_id: KvRequestId,
    pub peer: PeerId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsumerRole {
    /// `remote_prefiller`: the producer will have every block; no lookup, round 0 only.
    PrefillDecode(Source),
    /// `remote_kv_source`: looked up first.
    Symmetric(Source),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProducerRole {
    /// `remote_decoder`: stores of the request are offered under this id.
    Serves(KvRequestId),
    /// `remote_decoder` that cannot be used, and why: stores of the request fail.
    Malformed(String),
}

/// What one request's `kv_transfer_params` say. Both empty: the request has nothing to do with peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    pub consumer: Option<ConsumerRole>,
    pub producer: Option<ProducerRole>,
}

/// Reads the JSON text. Empty text, `null` and `{}` mean no role. `id_len`: the longest `kv_request_id` allowed.
pub fn parse(json: &str, id_len: usize) -> Result<Roles> {
    let _ = (json, id_len);
    Ok(Roles::default())
}
