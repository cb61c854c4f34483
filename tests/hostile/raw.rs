//! A peer of raw sockets that can say anything: a DEALER and a ROUTER, and the library's own data plane to write with.

use std::time::{Duration, Instant};

use p2pkv::data::tcp::{TcpConfig, TcpTransport};
use p2pkv::data::{DataEvent, DataTransport, PeerOffer, Region};
use p2pkv::protocol::codec::{self, Decoded};
use p2pkv::protocol::config::Limits;
use p2pkv::protocol::ids::{
    BlockIndex, BlockPair, Instance, KvRequestId, LoadToken, PeerId, RoundSeq, SessionId, TransferId,
};
use p2pkv::protocol::keys::{KeyBatch, KeysView};
use p2pkv::protocol::message::{
    AbortFetch, Connect, ConnectAck, Dialect, Extension, Fetch, Lookup, Message, TcpOffer,
};

use crate::common::{BOUND, KEY_LEN, Node};

pub const BLOCKS: u32 = 64;
const SESSION: SessionId = SessionId(1);
const TOKEN: &[u8] = b"a raw peer's token";

pub struct Raw {
    pub id: PeerId,
    instance: [u8; 16],
    dealer: zmq::Socket,
    router: zmq::Socket,
    data: TcpTransport,
    /// What the tier said of itself, once it did.
    pub theirs: Option<Connect>,
    last_transfer: u64,
    target: String,
    context: zmq::Context,
}

impl Raw {
    /// Bound and dialled; nothing is said yet.
    pub fn new(target: &Node) -> Raw {
        Raw::with_room_for(1_000_000, target)
    }

    /// One that takes so few messages before it must be read from.
    pub fn with_room_for(messages: i32, target: &Node) -> Raw {
        let context = zmq::Context::new();
        let router = context.socket(zmq::ROUTER).unwrap();
        router.set_linger(0).unwrap();
        router.set_rcvhwm(messages).unwrap();
        router.bind("tcp://127.0.0.1:*").unwrap();
        let endpoint = router.get_last_endpoint().unwrap().unwrap();
        let id = PeerId::parse(endpoint.strip_prefix("tcp://").unwrap()).unwrap();
        let bytes = BLOCKS as usize * target.block_len;
        let memory = Box::leak(vec![0xAAu8; bytes].into_boxed_slice());
        // SAFETY: leaked.
        let region = unsafe { Region::new(memory.as_mut_ptr(), BLOCKS, target.block_len) }.unwrap();
        let config = TcpConfig { bind_ip: "127.0.0.1".parse().unwrap(), ..TcpConfig::default() };
        let mut data = TcpTransport::new(region, &config).unwrap();
        data.expect_peer(SESSION, TOKEN);
        let target = format!("tcp://{}", target.tier.local_id());
        let dealer = dial(&context, &target, id.as_str());
        Raw { id, instance: [7; 16], dealer, router, data, theirs: None, last_transfer: 0, target, context }
    }

    /// A peer with a session, ready in both directions.
    pub fn ready(target: &Node) -> Raw {
        let mut raw = Raw::new(target);
        raw.shake_hands(target);
        raw
    }

    /// A second connection to the tier, under any name.
    pub fn dial_as(&self, name: &str) -> zmq::Socket {
        dial(&self.context, &self.target, name)
    }

    pub fn next_life(&mut self) {
        self.instance[0] = self.instance[0].wrapping_add(1);
        self.instance[1] ^= self.instance[0];
    }

    pub fn connect_message(&self, block_len: usize) -> Connect {
        Connect {
            peer_id: self.id.to_string(),
            agent_metadata: Vec::new(),
            base_addr: 4096,
            num_blocks: u64::from(BLOCKS),
            block_len: block_len as u64,
            config_fingerprint: String::new(),
            hash_seed: Some("vllm-none-hash".to_owned()),
            extension: Some(Extension {
                tcp: Some(TcpOffer {
                    addresses: Vec::new(),
                    port: self.data.local_port(),
                    token: TOKEN.to_vec(),
                    host_identity: String::new(),
                }),
                ..Extension::bare(Instance(self.instance))
            }),
        }
    }

    pub fn shake_hands(&mut self, target: &Node) {
        self.send(&Message::Connect(Box::new(self.connect_message(target.block_len))));
        let theirs = loop {
            if let Message::Connect(connect) = self.expect("connect") {
                break connect;
            }
        };
        let offer = theirs.extension.as_ref().and_then(|extension| extension.tcp.clone()).unwrap();
        let addresses = vec![std::net::SocketAddr::new([127, 0, 0, 1].into(), offer.port)];
        let offer =
            PeerOffer::Tcp { addresses, token: offer.token, num_blocks: theirs.num_blocks, same_host: false };
        self.data.register_peer(SESSION, offer);
        self.theirs = Some(*theirs);
        let registered = |event: &DataEvent| matches!(event, DataEvent::PeerRegistered { .. });
        self.data_event("registered", registered);
        self.send(&Message::ConnectAck(ConnectAck { peer_id: self.id.to_string() }));
        self.expect("connect_ack");
    }

    pub fn send(&self, message: &Message) {
        let mut bytes = Vec::new();
        codec::encode(message, Dialect::Current, &mut bytes);
        self.send_bytes(&bytes);
    }

    /// Waits where the tier does not take more.
    pub fn send_bytes(&self, bytes: &[u8]) {
        self.dealer.send(bytes, 0).unwrap();
    }

    /// False where nothing more is taken now.
    pub fn try_send(&self, message: &Message) -> bool {
        let mut bytes = Vec::new();
        codec::encode(message, Dialect::Current, &mut bytes);
        self.dealer.send(&bytes, zmq::DONTWAIT).is_ok()
    }

    /// The next message that the tier sent, if one is there.
    pub fn receive(&self) -> Option<Message> {
        let frames = self.router.recv_multipart(zmq::DONTWAIT).ok()?;
        match codec::decode(&frames[1], None, &Limits::default()).unwrap() {
            Decoded::Message(message) => Some(message),
            Decoded::Unknown { kind } => panic!("the tier sent {kind}"),
        }
    }

    /// Reads on until a message of that type comes.
    pub fn expect(&self, name: &str) -> Message {
        let limit = Instant::now() + BOUND;
        let mut others = Vec::new();
        loop {
            assert!(Instant::now() < limit, "no {name} within {BOUND:?}, but {others:?}");
            self.router.poll(zmq::POLLIN, 50).unwrap();
            match self.receive() {
                Some(message) if message.name() == name => return message,
                Some(other) if others.len() < 20 => others.push(other.name()),
                _ => {}
            }
        }
    }

    /// Reads on until the tier ends the session, and gives its reason.
    pub fn expect_end(&self) -> String {
        let Message::Disconnect(disconnect) = self.expect("disconnect") else { unreachable!() };
        disconnect.reason.unwrap_or_default()
    }

    /// Writes own blocks to blocks of the tier; `Err` is why they were refused.
    pub fn write(&mut self, load: Option<u64>, blocks: &[u32]) -> Result<(), String> {
        self.last_transfer += 1;
        let transfer = TransferId(self.last_transfer);
        let pair = |block: &u32| BlockPair { local: BlockIndex(0), remote: BlockIndex(*block) };
        let pairs: Vec<BlockPair> = blocks.iter().map(pair).collect();
        self.data.write(SESSION, transfer, load.map(LoadToken), &pairs);
        let ends = |event: &DataEvent| {
            use DataEvent::{TransferDone, TransferFailed, TransferUnwanted};
            matches!(event, TransferDone { .. } | TransferFailed { .. } | TransferUnwanted { .. })
        };
        match self.data_event("end of a transfer", ends) {
            DataEvent::TransferFailed { reason, .. } | DataEvent::TransferUnwanted { reason, .. } => {
                Err(reason)
            }
            _ => Ok(()),
        }
    }

    fn data_event(&mut self, what: &str, wanted: impl Fn(&DataEvent) -> bool) -> DataEvent {
        let limit = Instant::now() + BOUND;
        let mut events = Vec::new();
        loop {
            self.data.poll(&mut events);
            if let Some(found) = events.iter().position(&wanted) {
                return events.swap_remove(found);
            }
            assert!(Instant::now() < limit, "{what}: not within {BOUND:?}, but {events:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn dial(context: &zmq::Context, target: &str, name: &str) -> zmq::Socket {
    let dealer = context.socket(zmq::DEALER).unwrap();
    dealer.set_identity(name.as_bytes()).unwrap();
    dealer.set_linger(0).unwrap();
    dealer.set_sndhwm(200_000).unwrap();
    dealer.connect(target).unwrap();
    dealer
}

pub fn batch(packed: &[u8]) -> KeyBatch {
    KeyBatch::from(KeysView::new(packed, KEY_LEN).unwrap())
}

pub fn lookup(id: &str, round: u64, keys: KeyBatch) -> Message {
    Message::Lookup(Lookup { kv_request_id: KvRequestId::new(id), keys, round_seq: RoundSeq(round) })
}

pub fn fetch(id: &str, round: u64, keys: KeyBatch, block: u64) -> Message {
    let block_indexes = vec![block; keys.len()];
    let (kv_request_id, round_seq) = (KvRequestId::new(id), RoundSeq(round));
    Message::Fetch(Fetch { kv_request_id, keys, block_indexes, round_seq, load_token: Some(1) })
}

pub fn abort(id: &str, round: u64) -> Message {
    Message::AbortFetch(AbortFetch { kv_request_id: KvRequestId::new(id), round_seq: RoundSeq(round) })
}
