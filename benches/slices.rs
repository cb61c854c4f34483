//! The longest that one input of the protocol core takes while a peer does its worst: in slices, as a tier does it, and all
//! at once. An engine's call waits for one input at most.
//!
//! `cargo bench --bench slices`
#![allow(clippy::disallowed_methods, reason = "measures time")]

use std::time::{Duration, Instant};

use p2pkv::protocol::codec::Decoded;
use p2pkv::protocol::config::{
    CoreConfig, Limits, LocalTcp, LocalTransports, SLICE, Timeouts, TransportKind,
};
use p2pkv::protocol::ids::{BlockIndex, Instance, KvRequestId, PeerId, RoundSeq, SessionId};
use p2pkv::protocol::keys::{KeyBatch, KeysView};
use p2pkv::protocol::manager::{Manager, ServeMode};
use p2pkv::protocol::message::{
    AbortFetch, Connect, ConnectAck, Disconnect, Extension, Fetch, Lookup, Message, TcpOffer,
};
use p2pkv::protocol::output::Output;
use p2pkv::protocol::timer::Timestamp;

const PEER: &[u8] = b"10.0.0.9:7000";
const KEY_LEN: usize = 36;

fn config(slice: usize) -> CoreConfig {
    let tcp = LocalTcp { addresses: Vec::new(), port: 9, host_identity: String::new() };
    CoreConfig {
        local_id: PeerId::parse("10.0.0.1:7000").unwrap(),
        instance: Instance([1; 16]),
        base_addr: 0,
        num_blocks: 1 << 21,
        block_len: 4096,
        config_fingerprint: String::new(),
        hash_seed: String::new(),
        transports: LocalTransports {
            preference: vec![TransportKind::Tcp],
            tcp: Some(tcp),
            ..LocalTransports::default()
        },
        max_peers: 128,
        limits: Limits::default(),
        timeouts: Timeouts::default(),
        slice,
        table_seed: 7,
        token_secret: [1; 32],
    }
}

/// A core with one ready session, and how long its inputs took.
struct Victim {
    manager: Manager,
    now: Timestamp,
    longest: Duration,
    total: Duration,
    inputs: u64,
}

impl Victim {
    fn new(slice: usize) -> Victim {
        let manager = Manager::new(config(slice));
        let (longest, total) = (Duration::ZERO, Duration::ZERO);
        let mut victim = Victim { manager, now: Timestamp::ZERO, longest, total, inputs: 0 };
        victim.manager.set_serve_mode(victim.now, ServeMode::Engine);
        victim.say(Message::Connect(Box::new(connect())));
        victim.say(Message::ConnectAck(ConnectAck { peer_id: String::new() }));
        victim.forget();
        victim
    }

    fn forget(&mut self) {
        (self.longest, self.total, self.inputs) = (Duration::ZERO, Duration::ZERO, 0);
    }

    /// One input and what it asks for. The session whose data plane is to be reached, if one is.
    fn input(&mut self, act: impl FnOnce(&mut Manager, Timestamp)) -> Option<SessionId> {
        self.now = self.now + Duration::from_micros(1);
        let began = Instant::now();
        act(&mut self.manager, self.now);
        let mut registered = None;
        while let Some(output) = self.manager.poll_output() {
            if let Output::RegisterPeer { session, .. } = output {
                registered = Some(session);
            }
        }
        let took = began.elapsed();
        (self.longest, self.total) = (self.longest.max(took), self.total + took);
        self.inputs += 1;
        registered
    }

    fn say(&mut self, message: Message) {
        let decoded = Ok(Decoded::Message(message));
        let registers = self.input(|manager, now| manager.handle_message(now, PEER, decoded));
        if let Some(session) = registers {
            self.input(|manager, now| manager.handle_peer_registered(now, session));
        }
    }

    fn work_off(&mut self) {
        while self.manager.has_unfinished_work() {
            self.input(Manager::handle_timeout);
        }
    }

    fn publish(&mut self, keys: &[u8]) {
        let keys = KeysView::new(keys, KEY_LEN).unwrap();
        let blocks: Vec<BlockIndex> = (0..keys.len() as u32).map(BlockIndex).collect();
        self.input(|manager, now| manager.publish(now, keys, &blocks).unwrap());
    }
}

fn connect() -> Connect {
    let tcp = TcpOffer {
        addresses: vec!["10.0.0.9".parse().unwrap()],
        port: 9,
        token: vec![9; 32],
        host_identity: String::new(),
    };
    let extension = Extension { tcp: Some(tcp), ..Extension::bare(Instance([9; 16])) };
    Connect {
        peer_id: String::from_utf8_lossy(PEER).into_owned(),
        agent_metadata: Vec::new(),
        base_addr: 0,
        num_blocks: 1 << 21,
        block_len: 4096,
        config_fingerprint: String::new(),
        hash_seed: Some(String::new()),
        extension: Some(extension),
    }
}

fn key_bytes(count: usize) -> Vec<u8> {
    let key = |number: usize| (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
    (0..count).flat_map(|number| key(number).into_iter().cycle().take(KEY_LEN)).collect()
}

fn batch(count: usize) -> KeyBatch {
    KeyBatch::from(KeysView::new(&key_bytes(count), KEY_LEN).unwrap())
}

fn lookup(id: &str, round: u64, keys: KeyBatch) -> Message {
    Message::Lookup(Lookup { kv_request_id: KvRequestId::new(id), keys, round_seq: RoundSeq(round) })
}

fn fetch(id: &str, round: u64, keys: KeyBatch) -> Message {
    Message::Fetch(Fetch {
        kv_request_id: KvRequestId::new(id),
        block_indexes: (0..keys.len() as u64).collect(),
        keys,
        round_seq: RoundSeq(round),
        load_token: Some(1),
    })
}

fn abort(id: &str) -> Message {
    Message::AbortFetch(AbortFetch { kv_request_id: KvRequestId::new(id), round_seq: RoundSeq(0) })
}

fn leave() -> Message {
    Message::Disconnect(Disconnect { reason: None })
}

const KI: usize = 1 << 10;

type Case = (&'static str, fn(&mut Victim));

/// What is measured is what comes after `forget`.
const CASES: &[Case] = &[
    ("death with 64 Ki open lookups", |victim| {
        let key = batch(1);
        (1..64 * KI).for_each(|_| victim.say(lookup("r", 0, key.clone())));
        victim.forget();
        victim.say(leave());
    }),
    ("death with 60 000 open rounds", |victim| {
        let key = batch(1);
        (0..60_000).for_each(|number| victim.say(fetch(&format!("r{number}"), 0, key.clone())));
        victim.forget();
        victim.say(leave());
    }),
    ("fetch of 64 Ki keys that nothing meets", |victim| {
        let keys = batch(64 * KI);
        victim.say(fetch("r", 0, keys));
    }),
    ("abort of 64 Ki keys that nothing met", |victim| {
        victim.say(fetch("r", 0, batch(64 * KI)));
        victim.work_off();
        victim.forget();
        victim.say(abort("r"));
    }),
    ("fetch of 1 Mi keys that nothing meets", |victim| {
        let keys = batch(KI * KI);
        victim.say(fetch("r", 0, keys));
    }),
    ("death with 4 Mi keys that nothing met", |victim| {
        for number in 0..4 {
            victim.say(fetch(&format!("r{number}"), 0, batch(KI * KI)));
            victim.work_off();
        }
        victim.forget();
        victim.say(leave());
    }),
    ("lookup and fetch of 1 Mi published keys", |victim| {
        let keys = key_bytes(KI * KI);
        victim.publish(&keys);
        let (looked_up, fetched) = (batch(KI * KI), batch(KI * KI));
        victim.forget();
        victim.say(lookup("r", 0, looked_up));
        victim.say(fetch("r", 0, fetched));
    }),
    ("a key published that 60 000 rounds want", |victim| {
        let key = batch(1);
        (0..60_000).for_each(|number| victim.say(fetch(&format!("r{number}"), 0, key.clone())));
        victim.forget();
        victim.publish(&key_bytes(1));
    }),
    ("end of an id with 60 000 rounds", |victim| {
        let key = batch(1);
        victim.manager.set_serve_mode(victim.now, ServeMode::DirectoryOnly);
        (0..60_000).for_each(|round| victim.say(lookup("r", round, key.clone())));
        victim.forget();
        victim.say(fetch("r", 60_000, KeyBatch::new()));
    }),
];

fn main() {
    println!("| case | slices: inputs | longest | all | at once: longest |");
    println!("| --- | --- | --- | --- | --- |");
    for (name, case) in CASES {
        let run = |slice| {
            let mut victim = Victim::new(slice);
            case(&mut victim);
            victim.work_off();
            (victim.inputs, victim.longest, victim.total)
        };
        let (inputs, longest, total) = run(SLICE);
        let (_, at_once, _) = run(usize::MAX);
        println!("| {name} | {inputs} | {longest:.1?} | {total:.1?} | {at_once:.1?} |");
    }
}
