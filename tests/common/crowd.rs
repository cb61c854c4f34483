//! Many peers in one process, without a tier each: of every one a ROUTER and a DEALER that speak the handshake as tiers
//! do, and one data plane for all of them. Used by the benches, too.
#![allow(dead_code, reason = "each program uses its part")]

use std::time::{Duration, Instant};

use p2pkv::data::tcp::{TcpConfig, TcpTransport};
use p2pkv::data::{DataEvent, DataTransport, PeerOffer, Region};
use p2pkv::protocol::codec::{self, Decoded};
use p2pkv::protocol::config::Limits;
use p2pkv::protocol::ids::{Instance, KvRequestId, RoundSeq, SessionId};
use p2pkv::protocol::keys::{KeyBatch, KeysView};
use p2pkv::protocol::message::{Connect, ConnectAck, Dialect, Extension, Fetch, Lookup, Message, TcpOffer};

/// libzmq gives a context 1023 sockets, and each peer takes two.
const PEERS_PER_CONTEXT: usize = 500;

const BLOCKS: u32 = 8;

/// Descriptors of one peer here: two sockets, a listener, a control connection in each direction, and as many of the data
/// plane.
pub const DESCRIPTORS_OF_A_PEER: u64 = 7;

/// What all the peers say of themselves, as the tier does that they dial.
#[derive(Clone, Copy)]
pub struct Manners {
    pub block_len: usize,
    pub hash_seed: &'static str,
}

pub struct Crowd {
    manners: Manners,
    peers: Vec<Peer>,
    data: TcpTransport,
}

struct Peer {
    id: String,
    token: [u8; 16],
    router: zmq::Socket,
    dealer: zmq::Socket,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Dialling,
    /// The tier's data plane is being dialled.
    Registering {
        acknowledged: bool,
    },
    /// Only the tier's `connect_ack` is missing.
    Registered,
    Ready,
}

impl Crowd {
    /// Everybody is bound and has dialled `target`, and has said `connect`.
    pub fn dial(count: usize, target: &str, manners: Manners) -> Crowd {
        let memory = vec![0_u8; BLOCKS as usize * manners.block_len].leak();
        // SAFETY: leaked.
        let region = unsafe { Region::new(memory.as_mut_ptr(), BLOCKS, manners.block_len) }.unwrap();
        let config = TcpConfig {
            bind_ip: [127, 0, 0, 1].into(),
            streams: 1,
            max_unauthenticated: usize::MAX,
            ..TcpConfig::default()
        };
        let mut data = TcpTransport::new(region, &config).unwrap();
        let mut context = zmq::Context::new();
        let mut peers = Vec::with_capacity(count);
        for number in 0..count {
            if number % PEERS_PER_CONTEXT == 0 {
                context = zmq::Context::new();
            }
            let peer = Peer::new(&context, target, number);
            data.expect_peer(session(number), &peer.token);
            peers.push(peer);
        }
        let crowd = Crowd { manners, peers, data };
        crowd.peers.iter().for_each(|peer| peer.send(&crowd.connect(peer)));
        crowd
    }

    fn connect(&self, peer: &Peer) -> Message {
        let tcp = TcpOffer {
            addresses: Vec::new(),
            port: self.data.local_port(),
            token: peer.token.to_vec(),
            host_identity: String::new(),
        };
        Message::Connect(Box::new(Connect {
            peer_id: peer.id.clone(),
            agent_metadata: Vec::new(),
            base_addr: 4096,
            num_blocks: u64::from(BLOCKS),
            block_len: self.manners.block_len as u64,
            config_fingerprint: String::new(),
            hash_seed: Some(self.manners.hash_seed.to_owned()),
            extension: Some(Extension { tcp: Some(tcp), ..Extension::bare(Instance(peer.token)) }),
        }))
    }

    /// Goes on until every peer has a session with the tier.
    pub fn shake_hands(&mut self, bound: Duration) {
        let limit = Instant::now() + bound;
        let mut events = Vec::new();
        while self.ready() < self.peers.len() {
            assert!(Instant::now() < limit, "only {} of {} are ready", self.ready(), self.peers.len());
            self.take_messages();
            self.data.poll(&mut events);
            events.drain(..).for_each(|event| self.on_data_event(event));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Every peer asks for a key that nobody has, in so many requests that stay open.
    pub fn look_up(&mut self, times: usize, bound: Duration) {
        let limit = Instant::now() + bound;
        for peer in &self.peers {
            (0..times).for_each(|number| peer.send(&lookup(number)));
        }
        for peer in &self.peers {
            for _ in 0..times {
                while !matches!(peer.receive(), Some(Message::LookupResp(_))) {
                    assert!(Instant::now() < limit, "{}: not all is answered", peer.id);
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    /// Ends what `look_up` has left open.
    pub fn finish(&self, times: usize) {
        for peer in &self.peers {
            (0..times).for_each(|number| peer.send(&end(number)));
        }
    }

    pub fn ready(&self) -> usize {
        self.peers.iter().filter(|peer| peer.stage == Stage::Ready).count()
    }

    fn take_messages(&mut self) {
        for (number, peer) in self.peers.iter_mut().enumerate() {
            while let Some(message) = peer.receive() {
                match (message, peer.stage) {
                    (Message::Connect(connect), Stage::Dialling) => {
                        self.data.register_peer(session(number), offer(*connect));
                        peer.stage = Stage::Registering { acknowledged: false };
                    }
                    (Message::ConnectAck(_), Stage::Registering { .. }) => {
                        peer.stage = Stage::Registering { acknowledged: true };
                    }
                    (Message::ConnectAck(_), Stage::Registered) => peer.stage = Stage::Ready,
                    (message, _) => panic!("{}: unexpected {message:?}", peer.id),
                }
            }
        }
    }

    fn on_data_event(&mut self, event: DataEvent) {
        let DataEvent::PeerRegistered { session, .. } = event else { panic!("the data plane: {event:?}") };
        let peer = &mut self.peers[session.0 as usize];
        peer.send(&Message::ConnectAck(ConnectAck { peer_id: peer.id.clone() }));
        peer.stage = match peer.stage {
            Stage::Registering { acknowledged: true } => Stage::Ready,
            _ => Stage::Registered,
        };
    }
}

impl Peer {
    fn new(context: &zmq::Context, target: &str, number: usize) -> Peer {
        let router = context.socket(zmq::ROUTER).unwrap();
        set_options(&router);
        router.bind("tcp://127.0.0.1:*").unwrap();
        let endpoint = router.get_last_endpoint().unwrap().unwrap();
        let id = endpoint.strip_prefix("tcp://").unwrap().to_owned();
        let dealer = context.socket(zmq::DEALER).unwrap();
        set_options(&dealer);
        dealer.set_identity(id.as_bytes()).unwrap();
        dealer.connect(&format!("tcp://{target}")).unwrap();
        let mut token = [7; 16];
        token[..8].copy_from_slice(&(number as u64).to_be_bytes());
        Peer { id, token, router, dealer, stage: Stage::Dialling }
    }

    fn send(&self, message: &Message) {
        let mut bytes = Vec::new();
        codec::encode(message, Dialect::Current, &mut bytes);
        self.dealer.send(bytes, zmq::DONTWAIT).unwrap();
    }

    fn receive(&self) -> Option<Message> {
        let frames = self.router.recv_multipart(zmq::DONTWAIT).ok()?;
        match codec::decode(&frames[1], None, &Limits::default()).unwrap() {
            Decoded::Message(message) => Some(message),
            Decoded::Unknown { kind } => panic!("the tier sent {kind}"),
        }
    }
}

fn request(number: usize) -> KvRequestId {
    KvRequestId::new(&format!("busy-{number}"))
}

fn lookup(number: usize) -> Message {
    let key = [0xFF; 36];
    let keys = KeyBatch::from(KeysView::new(&key, key.len()).unwrap());
    Message::Lookup(Lookup { kv_request_id: request(number), keys, round_seq: RoundSeq(0) })
}

/// A fetch of nothing.
fn end(number: usize) -> Message {
    Message::Fetch(Fetch {
        kv_request_id: request(number),
        keys: KeyBatch::default(),
        block_indexes: Vec::new(),
        round_seq: RoundSeq(0),
        load_token: None,
    })
}

/// As tiers have them.
fn set_options(socket: &zmq::Socket) {
    socket.set_linger(0).unwrap();
    socket.set_heartbeat_ivl(2000).unwrap();
    socket.set_heartbeat_timeout(10_000).unwrap();
    socket.set_heartbeat_ttl(10_000).unwrap();
}

fn session(number: usize) -> SessionId {
    SessionId(number as u64)
}

fn offer(theirs: Connect) -> PeerOffer {
    let tcp = theirs.extension.and_then(|extension| extension.tcp).unwrap();
    let addresses = vec![std::net::SocketAddr::new([127, 0, 0, 1].into(), tcp.port)];
    PeerOffer::Tcp { addresses, token: tcp.token, num_blocks: theirs.num_blocks, same_host: false }
}
