//! A peer that says what a test writes, and nothing else.

use p2pkv::protocol::ids::{Instance, KvRequestId, RoundSeq};
use p2pkv::protocol::keys::{KeyBatch, KeysView};
use p2pkv::protocol::message::{
    AbortAck, AbortFetch, Connect, ConnectAck, Dialect, Disconnect, Extension, Fetch, Lookup, LookupResp,
    Message, TcpOffer, TransferDone,
};

use crate::world::{BLOCK_LEN, World, key_bytes};

#[derive(Clone, Debug)]
pub struct Script {
    pub name: String,
    pub dialect: Dialect,
    pub connect: Connect,
}

impl Script {
    /// Another libp2pkv with the built-in transport.
    pub fn p2pkv(name: &str) -> Script {
        let tcp = TcpOffer {
            addresses: vec!["10.0.0.9".parse().unwrap()],
            port: 9,
            token: b"token of the script's session 1.".to_vec(),
            host_identity: String::new(),
        };
        let extension = Extension { tcp: Some(tcp), ..Extension::bare(Instance([99; 16])) };
        let connect = Connect {
            peer_id: name.to_owned(),
            agent_metadata: Vec::new(),
            base_addr: 0,
            num_blocks: 64,
            block_len: BLOCK_LEN,
            config_fingerprint: String::new(),
            hash_seed: Some("0".to_owned()),
            extension: Some(extension),
        };
        Script { name: name.to_owned(), dialect: Dialect::Current, connect }
    }

    /// A vLLM of the current dialect: NIXL, no extension.
    pub fn vllm(name: &str) -> Script {
        let mut script = Self::p2pkv(name);
        script.connect.extension = None;
        script.connect.agent_metadata = b"agent 1".to_vec();
        script
    }

    /// A vLLM 0.25 or 0.26.
    pub fn legacy(name: &str) -> Script {
        let mut script = Self::vllm(name);
        script.connect.hash_seed = None;
        script.dialect = Dialect::Legacy;
        script
    }

    pub fn extension(&mut self) -> &mut Extension {
        self.connect.extension.as_mut().unwrap()
    }

    pub fn say(&self, world: &mut World, message: Message) {
        world.inject(0, &self.name, self.dialect, &message);
    }

    pub fn say_connect(&self, world: &mut World) {
        self.say(world, Message::Connect(Box::new(self.connect.clone())));
    }

    pub fn say_ack(&self, world: &mut World) {
        self.say(world, Message::ConnectAck(ConnectAck { peer_id: self.name.clone() }));
    }

    /// The whole handshake.
    pub fn join(&self, world: &mut World) {
        self.say_connect(world);
        world.run();
        self.say_ack(world);
        world.run();
    }

    pub fn disconnect(&self, world: &mut World, reason: Option<&str>) {
        self.say(world, Message::Disconnect(Disconnect { reason: reason.map(str::to_owned) }));
    }

    pub fn lookup(&self, world: &mut World, id: &str, round: u64, names: &[u8]) {
        let lookup =
            Lookup { kv_request_id: KvRequestId::new(id), keys: keys(names), round_seq: RoundSeq(round) };
        self.say(world, Message::Lookup(lookup));
    }

    pub fn lookup_resp(&self, world: &mut World, id: &str, names: &[u8], hits: &[bool]) {
        let resp = LookupResp { kv_request_id: KvRequestId::new(id), keys: keys(names), hits: hits.to_vec() };
        self.say(world, Message::LookupResp(resp));
    }

    pub fn fetch(&self, world: &mut World, id: &str, round: u64, names: &[u8], to: &[u64]) {
        let fetch = Fetch {
            kv_request_id: KvRequestId::new(id),
            keys: keys(names),
            block_indexes: to.to_vec(),
            round_seq: RoundSeq(round),
            load_token: None,
        };
        self.say(world, Message::Fetch(fetch));
    }

    pub fn abort(&self, world: &mut World, id: &str, round: u64) {
        let abort = AbortFetch { kv_request_id: KvRequestId::new(id), round_seq: RoundSeq(round) };
        self.say(world, Message::AbortFetch(abort));
    }

    pub fn abort_ack(&self, world: &mut World, id: &str, round: u64) {
        let ack = AbortAck { kv_request_id: KvRequestId::new(id), round_seq: RoundSeq(round) };
        self.say(world, Message::AbortAck(ack));
    }

    pub fn done(&self, world: &mut World, id: &str, round: u64, success: bool) {
        let done = TransferDone { kv_request_id: KvRequestId::new(id), success, round_seq: RoundSeq(round) };
        self.say(world, Message::TransferDone(done));
    }
}

pub fn keys(names: &[u8]) -> KeyBatch {
    KeyBatch::from(KeysView::new(&key_bytes(names), 4).unwrap())
}
