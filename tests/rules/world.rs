//! A world of `Manager`s with one clock that only moves when told to, message queues between them, and a data plane
//! double. No thread, no socket: the same calls give the same run.
//!
//! Messages cross as bytes, through the codec. Blocks are modelled by tags: a region is a tag for each block, key `k`
//! means tag `k`, and a block that is not pinned any more gets poisoned, so that a read too late shows up as a wrong
//! tag. A write into a block of no open load is recorded as a violation.
#![allow(dead_code, reason = "each test program uses its part")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use p2pkv::protocol::codec::{self, Decoded};
use p2pkv::protocol::config::{
    CoreConfig, Limits, LocalTcp, LocalTransports, SLICE, Timeouts, TransportKind,
};
use p2pkv::protocol::error::Result;
use p2pkv::protocol::ids::{
    BlockIndex, BlockPair, Instance, JobId, KvRequestId, LoadToken, PeerId, RequestId, ServeId, SessionId,
    TransferId,
};
use p2pkv::protocol::job::{JobKind, JobResult, LookupState, Outcome, UnpublishState};
use p2pkv::protocol::keys::KeysView;
use p2pkv::protocol::manager::{Manager, RequestTimeouts};
use p2pkv::protocol::message::{Dialect, Message};
use p2pkv::protocol::output::{Output, Registration};
use p2pkv::protocol::params::{ConsumerRole, ProducerRole, Roles, Source};
use p2pkv::protocol::timer::Timestamp;

pub const BLOCK_LEN: u64 = 4096;
pub const NUM_BLOCKS: u32 = 64;

/// A block that nothing promises the content of.
pub const POISON: u64 = u64::MAX;

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The keys that the bytes of `names` stand for, each four bytes long.
pub fn key_bytes(names: &[u8]) -> Vec<u8> {
    names.iter().flat_map(|name| [*name; 4]).collect()
}

pub fn blocks(indexes: &[u32]) -> Vec<BlockIndex> {
    indexes.iter().copied().map(BlockIndex).collect()
}

pub fn node_name(node: usize) -> String {
    format!("10.0.0.{}:7000", node + 1)
}

/// What a tier would be told at its start.
pub fn config(node: usize, life: u8, kind: TransportKind) -> CoreConfig {
    let tcp = LocalTcp {
        addresses: vec!["10.0.0.1".parse().unwrap()],
        port: 9000 + node as u16,
        host_identity: String::new(),
    };
    let transports = match kind {
        TransportKind::Tcp => LocalTransports {
            preference: vec![TransportKind::Tcp],
            tcp: Some(tcp),
            nixl_metadata: None,
            ..LocalTransports::default()
        },
        // Offers tcp too, as every tier does.
        TransportKind::Nixl => LocalTransports {
            preference: vec![TransportKind::Nixl, TransportKind::Tcp],
            tcp: Some(tcp),
            nixl_metadata: Some(vec![node as u8, life]),
            ..LocalTransports::default()
        },
    };
    CoreConfig {
        local_id: PeerId::parse(&node_name(node)).unwrap(),
        instance: Instance([16 * node as u8 + life; 16]),
        base_addr: 0x1000,
        num_blocks: NUM_BLOCKS,
        block_len: BLOCK_LEN,
        config_fingerprint: String::new(),
        hash_seed: "0".to_owned(),
        transports,
        max_peers: 128,
        limits: Limits::default(),
        timeouts: Timeouts::default(),
        slice: SLICE,
        table_seed: 7,
        token_secret: [16 * node as u8 + life; 32],
    }
}

/// How a session's control connection and data plane stand.
#[derive(Debug)]
struct Link {
    /// The name that was dialled, and the node that has it.
    peer: String,
    node: Option<usize>,
    /// Of that node when it was dialled.
    life: u8,
    open: bool,
    closed: Option<Timestamp>,
    /// Shown on data connections to the peer.
    peer_token: Option<Vec<u8>>,
    fenced: bool,
}

#[derive(Debug)]
struct Posted {
    session: SessionId,
    load: Option<LoadToken>,
    pairs: Vec<BlockPair>,
}

#[derive(Debug)]
struct OpenLoad {
    keys: Vec<u8>,
    blocks: Vec<u32>,
}

#[derive(Debug)]
pub struct Node {
    pub manager: Manager,
    pub region: Vec<u64>,
    pub results: Vec<JobResult>,
    /// Everything sent, in order.
    pub sent: Vec<(SessionId, Message)>,
    pub opened: Vec<SessionId>,
    pub redials: Vec<SessionId>,
    pub cancelled: Vec<TransferId>,
    life: u8,
    links: BTreeMap<SessionId, Link>,
    tokens: BTreeMap<Vec<u8>, SessionId>,
    armed: BTreeMap<LoadToken, (SessionId, BTreeSet<u32>)>,
    /// Disarms that wait for the I/O thread.
    disarming: VecDeque<LoadToken>,
    registering: VecDeque<SessionId>,
    posted: BTreeMap<TransferId, Posted>,
    loads: BTreeMap<JobId, OpenLoad>,
    /// Blocks that a failed load without a fence has left to late writes.
    quarantined: BTreeSet<u32>,
    /// Blocks pinned by open stores, and by how many.
    stored: BTreeMap<JobId, Vec<u32>>,
    published: BTreeMap<u8, u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Done,
    Failed,
    FailedForGood,
}

#[derive(Debug)]
pub struct World {
    pub now: Timestamp,
    pub nodes: Vec<Node>,
    kind: TransportKind,
    wires: BTreeMap<(usize, usize), VecDeque<Vec<u8>>>,
    names: BTreeMap<String, usize>,
    held: BTreeSet<(usize, usize)>,
    /// Data planes are reached at once; transfers complete at once; fences close at once.
    pub auto_register: bool,
    pub auto_transfer: bool,
    pub auto_disarm: bool,
    /// The receiver's data plane says so itself when all blocks of a load are in.
    pub auto_land: bool,
    pub violations: Vec<String>,
    /// A peer has said what it never would by itself: the bytes of a load may be those that it was told wrongly, and
    /// only a fence keeps its writes where they belong.
    tampered: bool,
}

impl World {
    pub fn new(nodes: usize, kind: TransportKind) -> World {
        Self::with_configs((0..nodes).map(|node| config(node, 0, kind)).collect(), kind)
    }

    /// Two tiers over the fenced transport.
    pub fn two() -> World {
        Self::new(2, TransportKind::Tcp)
    }

    /// Two tiers over the transport that the receiver cannot fence.
    pub fn two_unfenced() -> World {
        Self::new(2, TransportKind::Nixl)
    }

    pub fn with_configs(configs: Vec<CoreConfig>, kind: TransportKind) -> World {
        let names = (0..configs.len()).map(|node| (node_name(node), node)).collect();
        World {
            now: Timestamp::ZERO + seconds(1),
            nodes: configs.into_iter().map(Node::new).collect(),
            kind,
            wires: BTreeMap::new(),
            names,
            held: BTreeSet::new(),
            auto_register: true,
            auto_transfer: true,
            auto_disarm: true,
            auto_land: false,
            violations: Vec::new(),
            tampered: false,
        }
    }

    /// Another name under which a node can be dialled.
    pub fn add_name(&mut self, name: &str, node: usize) {
        self.names.insert(name.to_owned(), node);
    }

    // ---- engine calls ----

    pub fn request(&mut self, node: usize, roles: Roles) -> Result<RequestId> {
        self.request_with(node, roles, RequestTimeouts::default())
    }

    pub fn request_with(
        &mut self,
        node: usize,
        roles: Roles,
        timeouts: RequestTimeouts,
    ) -> Result<RequestId> {
        let request = self.nodes[node].manager.request_new(self.now, roles, timeouts);
        self.execute(node);
        request
    }

    pub fn producer(&mut self, node: usize, id: &str) -> RequestId {
        self.request(node, producer_of(id)).unwrap()
    }

    pub fn pd(&mut self, node: usize, id: &str, peer: usize) -> RequestId {
        self.request(node, pd_from(id, &node_name(peer))).unwrap()
    }

    pub fn symmetric(&mut self, node: usize, id: &str, peer: usize) -> RequestId {
        self.request(node, symmetric_from(id, &node_name(peer))).unwrap()
    }

    pub fn finish(&mut self, node: usize, request: RequestId) {
        self.nodes[node].manager.request_finish(self.now, request).unwrap();
        self.execute(node);
    }

    pub fn lookup(&mut self, node: usize, request: RequestId, keys: &[u8]) -> Vec<LookupState> {
        let mut states = vec![LookupState::Pending; keys.len()];
        let bytes = key_bytes(keys);
        let view = KeysView::new(&bytes, 4).unwrap();
        self.nodes[node].manager.lookup(self.now, request, view, &mut states).unwrap();
        self.execute(node);
        states
    }

    pub fn flush(&mut self, node: usize) {
        self.nodes[node].manager.flush_lookups(self.now).unwrap();
        self.execute(node);
    }

    /// Looks up, flushes, lets everything happen, and looks again.
    pub fn look_up(&mut self, node: usize, request: RequestId, keys: &[u8]) -> Vec<LookupState> {
        self.lookup(node, request, keys);
        self.flush(node);
        self.run();
        self.lookup(node, request, keys)
    }

    pub fn try_load(
        &mut self,
        node: usize,
        request: RequestId,
        job: u64,
        keys: &[u8],
        to: &[u32],
    ) -> Result<()> {
        let bytes = key_bytes(keys);
        let view = KeysView::new(&bytes, 4).unwrap();
        let job = JobId(job);
        let found = &mut self.nodes[node];
        found.manager.submit_load(self.now, request, job, view, &blocks(to))?;
        for block in to {
            found.region[*block as usize] = POISON;
        }
        found.loads.insert(job, OpenLoad { keys: keys.to_vec(), blocks: to.to_vec() });
        self.execute(node);
        Ok(())
    }

    pub fn load(&mut self, node: usize, request: RequestId, job: u64, keys: &[u8], to: &[u32]) {
        self.try_load(node, request, job, keys, to).unwrap();
    }

    /// Key `k` is in block `k`.
    pub fn store(&mut self, node: usize, request: RequestId, job: u64, keys: &[u8]) {
        let at: Vec<u32> = keys.iter().map(|key| u32::from(*key)).collect();
        let bytes = key_bytes(keys);
        let view = KeysView::new(&bytes, 4).unwrap();
        let found = &mut self.nodes[node];
        found.fill(keys);
        found.stored.insert(JobId(job), at.clone());
        found.manager.submit_store(self.now, request, JobId(job), view, &blocks(&at)).unwrap();
        self.execute(node);
    }

    pub fn publish(&mut self, node: usize, keys: &[u8]) {
        let at: Vec<u32> = keys.iter().map(|key| u32::from(*key)).collect();
        let bytes = key_bytes(keys);
        let view = KeysView::new(&bytes, 4).unwrap();
        let found = &mut self.nodes[node];
        found.fill(keys);
        found.published.extend(keys.iter().map(|key| (*key, u32::from(*key))));
        found.manager.publish(self.now, view, &blocks(&at)).unwrap();
        self.execute(node);
    }

    pub fn unpublish(&mut self, node: usize, keys: &[u8]) -> bool {
        let bytes = key_bytes(keys);
        let view = KeysView::new(&bytes, 4).unwrap();
        let mut states = vec![UnpublishState::NotFound; keys.len()];
        let found = &mut self.nodes[node];
        let out = found.manager.unpublish(view, &mut states).unwrap();
        if out {
            found.published.retain(|key, _| !keys.contains(key));
            self.blocks_let_go(node);
        }
        self.execute(node);
        out
    }

    pub fn shut_down(&mut self, node: usize) {
        self.nodes[node].manager.shut_down(self.now);
        self.execute(node);
    }

    // ---- serving ----

    pub fn serve_questions(&mut self, node: usize) -> Vec<p2pkv::protocol::manager::ServeWork> {
        self.nodes[node].manager.serve_work(self.now)
    }

    /// `held`: the job that pins the hits, which are in the blocks of their keys.
    pub fn serve_answer(
        &mut self,
        node: usize,
        serve: ServeId,
        keys: &[u8],
        states: &[LookupState],
        job: Option<u64>,
    ) {
        use p2pkv::protocol::server::{PinnedHits, ServeAnswer};
        let hits: Vec<u8> = keys
            .iter()
            .zip(states)
            .filter(|(_, state)| **state == LookupState::Hit)
            .map(|(key, _)| *key)
            .collect();
        let mut pinned = Vec::new();
        if let Some(job) = job {
            self.nodes[node].fill(&hits);
            let at: Vec<u32> = hits.iter().map(|key| u32::from(*key)).collect();
            self.nodes[node].stored.insert(JobId(job), at.clone());
            let at = at.into_iter().map(|block| Some(BlockIndex(block))).collect();
            pinned.push(PinnedHits { job: Some(JobId(job)), blocks: at });
        }
        let answer = ServeAnswer { states: states.to_vec(), pinned };
        self.nodes[node].manager.serve_answered(self.now, serve, answer);
        self.execute(node);
    }

    // ---- what happens ----

    /// Carries out what a node's core asks for.
    pub fn execute(&mut self, node: usize) {
        while let Some(output) = self.nodes[node].manager.poll_output() {
            match output {
                Output::Arm { session, load, blocks } => {
                    let blocks = blocks.iter().map(|block| block.0).collect();
                    self.nodes[node].armed.insert(load, (session, blocks));
                }
                Output::CancelTransfers { transfers, .. } => self.nodes[node].cancelled.extend(transfers),
                Output::ClosePeer { session, .. } => self.nodes[node].close(self.now, session),
                Output::Disarm { load, .. } => {
                    if self.auto_disarm {
                        self.disarm(node, load);
                    } else if !self.nodes[node].disarming.contains(&load) {
                        self.nodes[node].disarming.push_back(load);
                    }
                }
                Output::Finished(result) => self.on_result(node, result),
                Output::OpenPeer { session, peer, token } => {
                    let to = self.names.get(peer.as_str()).copied();
                    let link = Link {
                        peer: peer.to_string(),
                        node: to,
                        life: to.map_or(0, |to| self.nodes[to].life),
                        open: true,
                        closed: None,
                        peer_token: None,
                        fenced: true,
                    };
                    let found = &mut self.nodes[node];
                    found.links.insert(session, link);
                    found.tokens.insert(token, session);
                    found.opened.push(session);
                }
                Output::Redial { session } => self.redial(node, session),
                Output::RegisterPeer { session, registration } => self.register(node, session, registration),
                Output::Send { session, message, dialect } => self.send(node, session, message, dialect),
                Output::Write { session, transfer, load, blocks } => {
                    self.nodes[node].posted.insert(transfer, Posted { session, load, pairs: blocks });
                }
            }
        }
    }

    fn redial(&mut self, node: usize, session: SessionId) {
        self.nodes[node].redials.push(session);
        let to = self.nodes[node].links.get(&session).and_then(|link| link.node);
        let life = to.map_or(0, |to| self.nodes[to].life);
        if let Some(link) = self.nodes[node].links.get_mut(&session) {
            link.life = life;
        }
    }

    fn register(&mut self, node: usize, session: SessionId, registration: Registration) {
        let found = &mut self.nodes[node];
        let Some(link) = found.links.get_mut(&session) else { return };
        match registration {
            Registration::Tcp { token, .. } => link.peer_token = Some(token),
            Registration::Nixl { .. } => link.fenced = false,
        }
        found.registering.push_back(session);
    }

    fn send(&mut self, node: usize, session: SessionId, message: Message, dialect: Dialect) {
        let mut bytes = Vec::new();
        codec::encode(&message, dialect, &mut bytes);
        let found = &mut self.nodes[node];
        found.sent.push((session, message));
        if let Some(to) = found.links.get(&session).and_then(|link| link.node) {
            self.wires.entry((node, to)).or_default().push_back(bytes);
        }
    }

    pub fn disarm(&mut self, node: usize, load: LoadToken) {
        self.nodes[node].armed.remove(&load);
        self.nodes[node].manager.handle_disarmed(self.now, load);
    }

    /// Closes the oldest fence that is closing.
    pub fn disarm_next(&mut self, node: usize) -> bool {
        let Some(load) = self.nodes[node].disarming.pop_front() else { return false };
        self.disarm(node, load);
        self.execute(node);
        true
    }

    /// All blocks of the load are in, whatever the peer has said of it.
    pub fn land(&mut self, node: usize, load: LoadToken) {
        self.nodes[node].armed.remove(&load);
        self.nodes[node].manager.handle_landed(self.now, load);
        self.execute(node);
    }

    /// As `land`, for the oldest load that is armed.
    pub fn land_next(&mut self, node: usize) {
        let oldest = *self.nodes[node].armed.keys().next().expect("a load is armed");
        self.land(node, oldest);
    }

    fn on_result(&mut self, node: usize, result: JobResult) {
        let tampered = self.tampered;
        let found = &mut self.nodes[node];
        if found.results.iter().any(|known| known.job == result.job) {
            self.violations.push(format!("node {node}: job {} has two results", result.job));
        }
        match result.kind {
            JobKind::Load => {
                let Some(load) = found.loads.remove(&result.job) else {
                    return self.violations.push(format!("node {node}: no load {}", result.job));
                };
                if result.flags.may_still_be_written {
                    found.quarantined.extend(&load.blocks);
                }
                for (key, block) in load.keys.iter().zip(&load.blocks) {
                    let tag = found.region[*block as usize];
                    if result.outcome == Outcome::Done && tag != u64::from(*key) && !tampered {
                        let text =
                            format!("node {node}: load {} gave {tag} in block {block} for {key}", result.job);
                        self.violations.push(text);
                    }
                }
            }
            JobKind::Store => {
                let blocks = found.stored.remove(&result.job);
                if !result.flags.may_still_be_read {
                    self.blocks_let_go(node);
                } else if let Some(blocks) = blocks {
                    // Never given back: as an engine would do.
                    found.stored.insert(JobId(u64::MAX - result.job.0), blocks);
                }
            }
        }
        self.nodes[node].results.push(result);
    }

    /// Blocks that a load may be given: of no open load, and not left to late writes.
    pub fn free_destinations(&self, node: usize) -> Vec<u32> {
        let node = &self.nodes[node];
        let is_taken = |block: &u32| {
            node.quarantined.contains(block) || node.loads.values().any(|load| load.blocks.contains(block))
        };
        (NUM_BLOCKS / 2..NUM_BLOCKS).filter(|block| !is_taken(block)).collect()
    }

    pub fn open_sessions_of(&self, node: usize) -> Vec<SessionId> {
        let open = |(session, link): (&SessionId, &Link)| link.open.then_some(*session);
        self.nodes[node].links.iter().filter_map(open).collect()
    }

    /// What no store and no publication promises any more is used for something else. Only the lower half of a region
    /// is ever served from.
    fn blocks_let_go(&mut self, node: usize) {
        let found = &mut self.nodes[node];
        let pinned = found.pinned();
        for block in (0..NUM_BLOCKS / 2).filter(|block| !pinned.contains(block)) {
            if found.is_read(self.now, block) {
                self.violations.push(format!("node {node}: block {block} is let go and still read"));
            }
            found.region[block as usize] = POISON;
        }
    }

    pub fn hold(&mut self, from: usize, to: usize) {
        self.held.insert((from, to));
    }

    pub fn release(&mut self, from: usize, to: usize) {
        self.held.remove(&(from, to));
    }

    /// Messages on their way.
    pub fn under_way(&self, from: usize, to: usize) -> usize {
        self.wires.get(&(from, to)).map_or(0, VecDeque::len)
    }

    /// Changes what is on its way.
    pub fn tamper(&mut self, from: usize, to: usize, change: impl FnOnce(&mut VecDeque<Vec<u8>>)) {
        if let Some(wire) = self.wires.get_mut(&(from, to)) {
            self.tampered = true;
            change(wire);
        }
    }

    pub fn drop_messages(&mut self, from: usize, to: usize) {
        self.wires.remove(&(from, to));
    }

    /// Hands over the oldest message.
    pub fn deliver(&mut self, from: usize, to: usize) -> bool {
        let Some(bytes) = self.wires.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return false };
        self.hand_over(to, &node_name(from), &bytes);
        true
    }

    fn hand_over(&mut self, to: usize, identity: &str, bytes: &[u8]) {
        let manager = &mut self.nodes[to].manager;
        let dialect = manager.dialect_of(identity.as_bytes());
        let decoded = codec::decode(bytes, dialect, &manager.config().limits);
        manager.handle_message(self.now, identity.as_bytes(), decoded);
        self.execute(to);
    }

    /// A message from a peer that is no node of this world.
    pub fn inject(&mut self, to: usize, identity: &str, dialect: Dialect, message: &Message) {
        let mut bytes = Vec::new();
        codec::encode(message, dialect, &mut bytes);
        self.hand_over(to, identity, &bytes);
    }

    pub fn inject_bytes(&mut self, to: usize, identity: &str, bytes: &[u8]) {
        self.hand_over(to, identity, bytes);
    }

    pub fn inject_decoded(&mut self, to: usize, identity: &str, decoded: Decoded) {
        self.nodes[to].manager.handle_message(self.now, identity.as_bytes(), Ok(decoded));
        self.execute(to);
    }

    /// Lets one registration of a data plane end.
    pub fn register_next(&mut self, node: usize) -> bool {
        let Some(session) = self.nodes[node].registering.pop_front() else { return false };
        self.nodes[node].manager.handle_peer_registered(self.now, session);
        self.execute(node);
        true
    }

    pub fn refuse_next(&mut self, node: usize, why: &str) {
        assert!(self.refuse_any(node, why), "a registration is under way");
    }

    pub fn refuse_any(&mut self, node: usize, why: &str) -> bool {
        let Some(session) = self.nodes[node].registering.pop_front() else { return false };
        self.nodes[node].manager.handle_peer_refused(self.now, session, why);
        self.execute(node);
        true
    }

    pub fn transfers(&self, node: usize) -> Vec<TransferId> {
        self.nodes[node].posted.keys().copied().collect()
    }

    /// Ends a transfer. `Done` writes what the blocks hold at this moment, if the receiver lets it.
    pub fn end_transfer(&mut self, node: usize, transfer: TransferId, end: End) {
        let Some(posted) = self.nodes[node].posted.remove(&transfer) else { return };
        let done = end == End::Done && self.write(node, &posted);
        let manager = &mut self.nodes[node].manager;
        if done {
            manager.handle_transfer_done(self.now, transfer);
        } else {
            manager.handle_transfer_failed(self.now, transfer, "so told", end == End::FailedForGood);
        }
        self.execute(node);
    }

    /// False if the receiver refused.
    fn write(&mut self, node: usize, posted: &Posted) -> bool {
        let Some(link) = self.nodes[node].links.get(&posted.session) else { return false };
        let Some(to) = link.node else { return true };
        let (fenced, token) = (link.fenced, link.peer_token.clone());
        if link.life != self.nodes[to].life {
            return false;
        }
        if fenced && !self.admits(to, token, posted) {
            return false;
        }
        for pair in &posted.pairs {
            let tag = self.nodes[node].region[pair.local.0 as usize];
            let receiver = &mut self.nodes[to];
            let is_open = receiver.loads.values().any(|load| load.blocks.contains(&pair.remote.0));
            let is_excused = self.tampered && !fenced;
            if !is_open && !is_excused && !receiver.quarantined.contains(&pair.remote.0) {
                self.violations.push(format!("node {to}: late write into block {}", pair.remote));
            }
            receiver.region[pair.remote.0 as usize] = tag;
        }
        self.land_if_whole(to, posted.load);
        true
    }

    fn land_if_whole(&mut self, node: usize, load: Option<LoadToken>) {
        let is_whole =
            |load: &LoadToken| self.nodes[node].armed.get(load).is_some_and(|(_, open)| open.is_empty());
        if let Some(load) = load.filter(is_whole)
            && self.auto_land
        {
            self.land(node, load);
        }
    }

    fn admits(&mut self, to: usize, token: Option<Vec<u8>>, posted: &Posted) -> bool {
        let receiver = &mut self.nodes[to];
        let Some(session) = token.and_then(|token| receiver.tokens.get(&token).copied()) else {
            return false;
        };
        let Some((armed_for, open)) = posted.load.and_then(|load| receiver.armed.get_mut(&load)) else {
            return false;
        };
        let all_open = posted.pairs.iter().all(|pair| open.contains(&pair.remote.0));
        if *armed_for != session || !all_open {
            return false;
        }
        posted.pairs.iter().all(|pair| open.remove(&pair.remote.0))
    }

    pub fn connection_lost(&mut self, node: usize, session: SessionId) {
        self.nodes[node].manager.handle_connection_lost(self.now, session, "so told");
        self.execute(node);
    }

    pub fn fault(&mut self, node: usize, session: SessionId, why: &str) {
        self.nodes[node].manager.handle_peer_fault(self.now, session, why);
        self.execute(node);
    }

    pub fn resolved(&mut self, node: usize, session: SessionId, address: &str) {
        let address: SocketAddr = address.parse().unwrap();
        self.nodes[node].manager.handle_resolved(self.now, session, vec![address]);
        self.execute(node);
    }

    pub fn unresolvable(&mut self, node: usize, session: SessionId) {
        self.nodes[node].manager.handle_unresolvable(self.now, session, "no such host");
        self.execute(node);
    }

    /// The node's process is killed and started again at the same address. Others do not notice by themselves.
    pub fn restart(&mut self, node: usize) {
        let life = self.nodes[node].life + 1;
        let slice = self.nodes[node].manager.config().slice;
        let mut again = Node::new(CoreConfig { slice, ..config(node, life, self.kind) });
        again.life = life;
        self.nodes[node] = again;
        self.wires.retain(|(from, to), _| *from != node && *to != node);
    }

    /// Connections to processes that are gone are found broken.
    pub fn notice_restarts(&mut self) {
        let lives: Vec<u8> = self.nodes.iter().map(|node| node.life).collect();
        for node in 0..self.nodes.len() {
            let is_broken = |(session, link): (&SessionId, &Link)| {
                let broken = link.open && link.node.is_some_and(|to| lives[to] != link.life);
                broken.then_some(*session)
            };
            let broken: Vec<SessionId> = self.nodes[node].links.iter().filter_map(is_broken).collect();
            for session in broken {
                self.connection_lost(node, session);
            }
        }
    }

    /// Everything that can happen without time going by, happens. Held wires stay held.
    pub fn run(&mut self) {
        for _ in 0..10_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the world does not come to rest: {:#?}", self.last_words());
    }

    fn step(&mut self) -> bool {
        let mut moved = false;
        for node in 0..self.nodes.len() {
            self.execute(node);
            moved |= self.work(node);
            while self.auto_register && self.register_next(node) {
                moved = true;
            }
            while self.auto_disarm && self.disarm_next(node) {
                moved = true;
            }
            for transfer in self.transfers(node) {
                let found = &self.nodes[node];
                let link = found.posted.get(&transfer).and_then(|posted| found.links.get(&posted.session));
                let is_lost = link.is_some_and(|link| link.fenced && !link.open);
                if is_lost || self.auto_transfer {
                    let end = if is_lost { End::Failed } else { End::Done };
                    self.end_transfer(node, transfer, end);
                    moved = true;
                }
            }
        }
        let ready = |(wire, queue): (&(usize, usize), &VecDeque<Vec<u8>>)| {
            (!queue.is_empty() && !self.held.contains(wire)).then_some(*wire)
        };
        let wires: Vec<(usize, usize)> = self.wires.iter().filter_map(ready).collect();
        for (from, to) in wires {
            moved |= self.deliver(from, to);
        }
        moved
    }

    fn last_words(&self) -> Vec<&Message> {
        self.nodes
            .iter()
            .flat_map(|node| node.sent.iter().rev().take(6).map(|(_, message)| message))
            .collect()
    }

    /// Time goes by, from deadline to deadline, and everything that can happen does.
    pub fn advance(&mut self, span: Duration) {
        let end = self.now + span;
        self.run();
        while let Some(next) = self.next_deadline().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.tick();
            self.run();
        }
        self.now = end;
        self.tick();
        self.run();
    }

    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.nodes.iter().filter_map(|node| node.manager.next_deadline()).min()
    }

    /// Deadlines are judged.
    pub fn tick(&mut self) {
        for node in 0..self.nodes.len() {
            loop {
                self.nodes[node].manager.handle_timeout(self.now);
                self.execute(node);
                if self.nodes[node].manager.next_deadline().is_none_or(|next| next > self.now) {
                    break;
                }
            }
        }
    }

    /// One slice of what is left to do. False if nothing is.
    pub fn work(&mut self, node: usize) -> bool {
        let is_left = self.nodes[node].manager.has_unfinished_work();
        if is_left {
            self.nodes[node].manager.handle_timeout(self.now);
            self.execute(node);
        }
        is_left
    }

    // ---- what there is to see ----

    pub fn result(&self, node: usize, job: u64) -> &JobResult {
        let results = &self.nodes[node].results;
        let found = results.iter().find(|result| result.job == JobId(job));
        found.unwrap_or_else(|| panic!("job {job} has no result; there are {results:?}"))
    }

    pub fn outcome(&self, node: usize, job: u64) -> Outcome {
        self.result(node, job).outcome
    }

    pub fn is_open(&self, node: usize, job: u64) -> bool {
        !self.nodes[node].results.iter().any(|result| result.job == JobId(job))
    }

    pub fn sent(&self, node: usize, name: &str) -> usize {
        self.nodes[node].sent.iter().filter(|(_, message)| message.name() == name).count()
    }

    pub fn sent_messages(&self, node: usize) -> Vec<&'static str> {
        self.nodes[node].sent.iter().map(|(_, message)| message.name()).collect()
    }

    pub fn forget_sent(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.sent.clear());
    }

    pub fn last_sent(&self, node: usize, name: &str) -> &Message {
        let mut all = self.nodes[node].sent.iter().rev().map(|(_, message)| message);
        all.find(|message| message.name() == name).unwrap_or_else(|| panic!("no {name} was sent"))
    }

    pub fn last_disconnect(&self, node: usize) -> &str {
        match self.last_sent(node, "disconnect") {
            Message::Disconnect(disconnect) => disconnect.reason.as_deref().unwrap_or_default(),
            _ => unreachable!(),
        }
    }

    pub fn newest_session(&self, node: usize) -> SessionId {
        *self.nodes[node].opened.last().expect("a session was opened")
    }

    pub fn failure(&self, node: usize, request: RequestId) -> Option<(Outcome, String)> {
        let cause = self.nodes[node].manager.request_failure(request).unwrap();
        cause.map(|cause| (cause.outcome, cause.detail))
    }

    pub fn stats(&self, node: usize) -> p2pkv::protocol::job::Stats {
        self.nodes[node].manager.stats()
    }

    pub fn tag(&self, node: usize, block: u32) -> u64 {
        self.nodes[node].region[block as usize]
    }

    pub fn armed_loads(&self, node: usize) -> usize {
        self.nodes[node].armed.len()
    }

    pub fn check(&self) {
        assert_eq!(self.violations, Vec::<String>::new());
    }

    /// Every table is empty and no rule was broken.
    pub fn check_rest(&self) {
        self.check();
        for (number, node) in self.nodes.iter().enumerate() {
            assert!(node.manager.is_quiescent(), "node {number} is not at rest: {:#?}", node.manager);
            assert!(node.armed.is_empty() && node.posted.is_empty(), "node {number}");
            assert!(node.loads.is_empty() && node.disarming.is_empty(), "node {number}");
            assert!(node.stored.keys().all(|job| job.0 > u64::MAX / 2), "node {number}: {:?}", node.stored);
        }
    }
}

impl Node {
    fn new(config: CoreConfig) -> Node {
        Node {
            region: vec![POISON; config.num_blocks as usize],
            manager: Manager::new(config),
            results: Vec::new(),
            sent: Vec::new(),
            opened: Vec::new(),
            redials: Vec::new(),
            cancelled: Vec::new(),
            life: 0,
            links: BTreeMap::new(),
            tokens: BTreeMap::new(),
            armed: BTreeMap::new(),
            disarming: VecDeque::new(),
            registering: VecDeque::new(),
            posted: BTreeMap::new(),
            loads: BTreeMap::new(),
            quarantined: BTreeSet::new(),
            stored: BTreeMap::new(),
            published: BTreeMap::new(),
        }
    }

    fn fill(&mut self, keys: &[u8]) {
        for key in keys {
            self.region[*key as usize] = u64::from(*key);
        }
    }

    /// Blocks that some store or publication promises.
    fn pinned(&self) -> BTreeSet<u32> {
        self.stored.values().flatten().chain(self.published.values()).copied().collect()
    }

    /// A block of a transfer that may still read it. After the drain of a dead session that is said with a flag, or,
    /// for a published block, nobody relies on what is read.
    fn is_read(&self, now: Timestamp, block: u32) -> bool {
        self.posted.values().any(|posted| {
            let closed = self.links.get(&posted.session).and_then(|link| link.closed);
            let is_drained = closed.is_some_and(|closed| closed + seconds(10) <= now);
            !is_drained && posted.pairs.iter().any(|pair| pair.local.0 == block)
        })
    }

    fn close(&mut self, now: Timestamp, session: SessionId) {
        if let Some(link) = self.links.get_mut(&session) {
            link.open = false;
            link.closed = Some(now);
        }
        self.tokens.retain(|_, other| *other != session);
        self.registering.retain(|other| *other != session);
    }

    pub fn open_sessions(&self) -> usize {
        self.links.values().filter(|link| link.open).count()
    }
}

pub fn producer_of(id: &str) -> Roles {
    Roles { consumer: None, producer: Some(ProducerRole::Serves(KvRequestId::new(id))) }
}

pub fn pd_from(id: &str, peer: &str) -> Roles {
    Roles { consumer: Some(ConsumerRole::PrefillDecode(source(id, peer))), producer: None }
}

pub fn symmetric_from(id: &str, peer: &str) -> Roles {
    Roles { consumer: Some(ConsumerRole::Symmetric(source(id, peer))), producer: None }
}

fn source(id: &str, peer: &str) -> Source {
    Source { kv_request_id: KvRequestId::new(id), peer: PeerId::parse(peer).unwrap() }
}
