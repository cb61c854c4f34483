//! What peers say, of one id.

use p2pkv::protocol::ids::{Instance, KvRequestId, RoundSeq};
use p2pkv::protocol::keys::KeyBatch;
use p2pkv::protocol::message::{
    Connect, Extension, Fetch, Lookup, LookupResp, Message, TcpOffer, TransferDone,
};

use crate::node::{BLOCK_LEN, NUM_BLOCKS};

/// As long as those that vLLM's proxy makes.
pub const ID: &str = "cmpl-8b1a9953-c461-1296-a827-abf8c47804d7";

pub fn id() -> KvRequestId {
    KvRequestId::new(ID)
}

pub fn fetch(keys: KeyBatch, block_indexes: Vec<u64>) -> Message {
    let (kv_request_id, round_seq) = (id(), RoundSeq::FIRST);
    Message::Fetch(Fetch { kv_request_id, keys, block_indexes, round_seq, load_token: Some(1) })
}

/// The empty `fetch`.
pub fn end_of_id() -> Message {
    fetch(KeyBatch::new(), Vec::new())
}

pub fn lookup(keys: KeyBatch) -> Message {
    Message::Lookup(Lookup { kv_request_id: id(), keys, round_seq: RoundSeq::FIRST })
}

pub fn lookup_resp(keys: KeyBatch, hits: Vec<bool>) -> Message {
    Message::LookupResp(LookupResp { kv_request_id: id(), keys, hits })
}

pub fn transfer_done() -> Message {
    Message::TransferDone(TransferDone { kv_request_id: id(), success: true, round_seq: RoundSeq::FIRST })
}

/// Of another libp2pkv, with the built-in data plane only.
pub fn connect_of_p2pkv() -> Connect {
    let tcp = TcpOffer {
        addresses: vec!["10.0.0.2".parse().unwrap()],
        port: 9,
        token: b"token of the peer's session one.".to_vec(),
        host_identity: String::new(),
    };
    let extension = Extension { tcp: Some(tcp), ..Extension::bare(Instance([2; 16])) };
    Connect { extension: Some(extension), agent_metadata: Vec::new(), ..connect_of_vllm() }
}

pub fn connect_of_vllm() -> Connect {
    Connect {
        peer_id: crate::node::PEER.to_owned(),
        agent_metadata: b"agent".to_vec(),
        base_addr: 0,
        num_blocks: NUM_BLOCKS.into(),
        block_len: BLOCK_LEN,
        config_fingerprint: String::new(),
        hash_seed: Some("0".to_owned()),
        extension: None,
    }
}
