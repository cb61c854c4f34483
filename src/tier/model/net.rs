//! Both planes without a network: the peers are protocol cores that answer at once, on the thread that sends to them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};

use crate::control::{ControlEvent, ControlReceiver, ControlSender, Received};
use crate::data::{DataEvent, DataTransport, Disarm, PeerOffer};
use crate::protocol::codec;
use crate::protocol::config::{
    CoreConfig, Limits, LocalTcp, LocalTransports, Reach, SLICE, Timeouts, TransportKind,
};
use crate::protocol::ids::{
    BlockIndex, BlockPair, Instance, JobId, LoadToken, PeerId, RequestId, SessionId, TransferId,
};
use crate::protocol::job::LookupState;
use crate::protocol::keys::KeysView;
use crate::protocol::manager::{Manager, RequestTimeouts};
use crate::protocol::output::Output;
use crate::protocol::params;
use crate::protocol::timer::Timestamp;
use crate::tier::clock;

pub const PEERS: usize = 3;
pub const NUM_BLOCKS: u32 = 64;
pub const OURS: &str = "10.0.0.1:7000";

pub fn peer_name(peer: usize) -> String {
    format!("10.0.0.{}:7000", peer + 2)
}

pub fn key(name: u8) -> [u8; 4] {
    [name; 4]
}

pub fn config(name: &str, instance: u8) -> CoreConfig {
    CoreConfig {
        local_id: PeerId::parse(name).unwrap(),
        instance: Instance([instance; 16]),
        base_addr: 0x1000,
        num_blocks: NUM_BLOCKS,
        block_len: 64,
        config_fingerprint: String::new(),
        hash_seed: "0".to_owned(),
        transports: LocalTransports {
            preference: vec![TransportKind::Tcp],
            tcp: Some(LocalTcp {
                addresses: vec!["10.0.0.1".parse().unwrap()],
                port: 9000,
                host_identity: String::new(),
            }),
            ..LocalTransports::default()
        },
        max_peers: 8,
        limits: Limits::default(),
        timeouts: Timeouts::default(),
        slice: SLICE,
        table_seed: 7,
        token_secret: [instance; 32],
    }
}

/// What all three halves share. A plain mutex: it is never held where shuttle may switch threads.
#[derive(Clone)]
pub struct Net(Arc<Mutex<Wires>>);

struct Wires {
    peers: Vec<Peer>,
    inbox: VecDeque<(Vec<u8>, Vec<u8>)>,
    control: Vec<ControlEvent>,
    data: Vec<DataEvent>,
    /// Our connections: to which peer, and to which life of it.
    links: BTreeMap<SessionId, (usize, u8)>,
    armed: BTreeMap<LoadToken, BTreeSet<BlockIndex>>,
}

struct Peer {
    manager: Manager,
    life: u8,
    pulls: Vec<RequestId>,
    jobs: u64,
}

impl Peer {
    /// Has the blocks of all keys.
    fn new(peer: usize, life: u8) -> Peer {
        let mut manager = Manager::new(config(&peer_name(peer), 16 * (peer as u8 + 1) + life));
        let keys: Vec<u8> = (0..8).flat_map(key).collect();
        let blocks: Vec<BlockIndex> = (0..8).map(BlockIndex).collect();
        manager.publish(clock::now(), KeysView::new(&keys, 4).unwrap(), &blocks).unwrap();
        Peer { manager, life, pulls: Vec::new(), jobs: 0 }
    }
}

impl Net {
    pub fn new() -> Net {
        Net(Arc::new(Mutex::new(Wires {
            peers: (0..PEERS).map(|peer| Peer::new(peer, 0)).collect(),
            inbox: VecDeque::new(),
            control: Vec::new(),
            data: Vec::new(),
            links: BTreeMap::new(),
            armed: BTreeMap::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Wires> {
        self.0.lock().unwrap()
    }

    /// The peer's process dies and is started anew; our connections to it break.
    pub fn restart(&self, peer: usize) {
        let mut wires = self.lock();
        let life = wires.peers[peer].life + 1;
        wires.peers[peer] = Peer::new(peer, life);
        let broken: Vec<SessionId> =
            wires.links.iter().filter(|(_, link)| link.0 == peer).map(|(session, _)| *session).collect();
        for session in broken {
            wires.control.push(ControlEvent::ConnectionLost { session, reason: "killed".to_owned() });
        }
    }

    /// The peer becomes a consumer of ours, or goes on being one.
    pub fn pull(&self, peer: usize, id: &str) {
        self.lock().pull(peer, id);
    }

    pub fn armed(&self) -> usize {
        self.lock().armed.len()
    }
}

impl Wires {
    fn pull(&mut self, peer: usize, id: &str) {
        let json = format!(
            r#"{{"remote_kv_source":{{"kv_request_id":"{id}","remote_host":"10.0.0.1","remote_port":7000}}}}"#
        );
        let now = clock::now();
        let pulling = &mut self.peers[peer];
        if let Ok(request) =
            pulling.manager.request_new(now, params::parse(&json, 64).unwrap(), RequestTimeouts::default())
        {
            pulling.pulls.push(request);
        }
        for request in pulling.pulls.clone() {
            let (keys, mut states) = ([key(0), key(1)].concat(), [LookupState::Miss; 2]);
            let keys = KeysView::new(&keys, 4).unwrap();
            pulling.manager.lookup(now, request, keys, &mut states).unwrap();
            if states == [LookupState::Hit; 2] {
                pulling.jobs += 1;
                let blocks = [BlockIndex(10), BlockIndex(11)];
                let _ = pulling.manager.submit_load(now, request, JobId(pulling.jobs), keys, &blocks);
            }
        }
        pulling.manager.flush_lookups(now).unwrap();
        self.execute(peer);
    }

    /// Carries out what a peer's core asks for, all of it at once.
    fn execute(&mut self, peer: usize) {
        let now = clock::now();
        while let Some(output) = self.peers[peer].manager.poll_output() {
            let manager = &mut self.peers[peer].manager;
            match output {
                Output::Disarm { load, .. } => manager.handle_disarmed(now, load),
                Output::RegisterPeer { session, .. } => manager.handle_peer_registered(now, session),
                Output::Send { message, dialect, .. } => {
                    let mut bytes = Vec::new();
                    codec::encode(&message, dialect, &mut bytes);
                    self.inbox.push_back((peer_name(peer).into_bytes(), bytes));
                }
                Output::Write { transfer, load, blocks, .. } => self.write(peer, transfer, load, &blocks),
                Output::Arm { .. }
                | Output::CancelTransfers { .. }
                | Output::ClosePeer { .. }
                | Output::Finished(_)
                | Output::OpenPeer { .. }
                | Output::Redial { .. } => {}
            }
        }
    }

    /// Into our blocks, where the fence lets it.
    fn write(&mut self, peer: usize, transfer: TransferId, load: Option<LoadToken>, blocks: &[BlockPair]) {
        let armed = load.and_then(|load| self.armed.get_mut(&load));
        let has_landed = armed.is_some_and(|open| blocks.iter().all(|pair| open.remove(&pair.remote)));
        let manager = &mut self.peers[peer].manager;
        if has_landed {
            manager.handle_transfer_done(clock::now(), transfer);
        } else {
            manager.handle_transfer_unwanted(clock::now(), transfer, "not armed");
        }
    }
}

impl ControlSender for Net {
    fn dial(&mut self, _: Timestamp, session: SessionId, peer: &PeerId) {
        let mut wires = self.lock();
        match (0..PEERS).find(|at| peer_name(*at) == peer.as_str()) {
            Some(at) => {
                let life = wires.peers[at].life;
                wires.links.insert(session, (at, life));
            }
            None => {
                wires.control.push(ControlEvent::Unresolvable { session, reason: "no such peer".to_owned() });
            }
        }
    }

    fn redial(&mut self, _: Timestamp, session: SessionId) {
        let mut wires = self.lock();
        if let Some((peer, _)) = wires.links.get(&session).copied() {
            let life = wires.peers[peer].life;
            wires.links.insert(session, (peer, life));
        }
    }

    fn send(&mut self, session: SessionId, payload: &[u8]) {
        let mut wires = self.lock();
        let Some((peer, life)) = wires.links.get(&session).copied() else { return };
        let to = &mut wires.peers[peer];
        if to.life == life {
            let dialect = to.manager.dialect_of(OURS.as_bytes());
            let decoded = codec::decode(payload, dialect, &Limits::default());
            to.manager.handle_message(clock::now(), OURS.as_bytes(), decoded);
            wires.execute(peer);
        }
    }

    fn close(&mut self, _: Timestamp, session: SessionId, _: Duration) {
        self.lock().links.remove(&session);
    }

    fn poll(&mut self, _: Timestamp, events: &mut Vec<ControlEvent>) {
        events.append(&mut self.lock().control);
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        None
    }

    fn event_fd(&self) -> RawFd {
        -1
    }

    fn open_connections(&self) -> usize {
        self.lock().links.len()
    }
}

pub struct Inbox {
    pub net: Net,
    pub last: (Vec<u8>, Vec<u8>),
}

impl ControlReceiver for Inbox {
    fn receive(&mut self) -> Option<Received<'_>> {
        self.last = self.net.lock().inbox.pop_front()?;
        Some(Received { identity: &self.last.0, payload: &self.last.1 })
    }

    fn dropped(&self) -> u64 {
        0
    }

    fn event_fd(&self) -> RawFd {
        -1
    }
}

impl DataTransport for Net {
    fn kind(&self) -> TransportKind {
        TransportKind::Tcp
    }

    fn event_fd(&self) -> RawFd {
        -1
    }

    fn expect_peer(&mut self, _: SessionId, _: &[u8]) {}

    fn register_peer(&mut self, session: SessionId, _: PeerOffer) {
        self.lock().data.push(DataEvent::PeerRegistered { session, reach: Reach::Stream });
    }

    fn drop_peer(&mut self, _: SessionId) {}

    fn arm(&mut self, _: SessionId, load: LoadToken, blocks: &[BlockIndex]) {
        self.lock().armed.insert(load, blocks.iter().copied().collect());
    }

    /// As if its I/O thread were at work in the blocks, or not.
    fn disarm(&mut self, load: LoadToken) -> Disarm {
        let mut wires = self.lock();
        if wires.armed.remove(&load).is_some() && thread_rng().gen_bool(0.5) {
            wires.data.push(DataEvent::Disarmed { load });
            return Disarm::Pending;
        }
        Disarm::Done
    }

    fn write(&mut self, _: SessionId, transfer: TransferId, _: Option<LoadToken>, _: &[BlockPair]) {
        let event = match thread_rng().gen_range(0..8) {
            0 => DataEvent::TransferFailed { transfer, reason: "so told".to_owned(), decisive: false },
            _ => DataEvent::TransferDone { transfer },
        };
        self.lock().data.push(event);
    }

    fn cancel(&mut self, _: &[TransferId]) {}

    /// Some of what has happened; the rest is still under way, maybe until the transport is dropped.
    fn poll(&mut self, events: &mut Vec<DataEvent>) {
        let mut wires = self.lock();
        let count = thread_rng().gen_range(0..=wires.data.len());
        events.extend(wires.data.drain(..count));
    }
}
