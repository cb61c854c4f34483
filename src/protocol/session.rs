//! One session with one peer: handshake, what may be sent when, and death.
//!
//! ```text
//!   opened ──► Connecting ──connect──► Handshake ──registered + acknowledged──► Ready
//!                  │  ▲ redial             │                                      │
//!                  └──┘                    │      any first cause of death        │
//!                  └───────────────────────┴───────────────┬──────────────────────┘
//!                                                          ▼
//!                                                        Dying ── all ended, nothing under way ──► (gone)
//! ```
//!
//! A dying session has left the table of peers: the next one with the same peer can begin at once. It stays only until all
//! that was open in it has ended, a slice at a time, its transfers no longer read blocks and its fences are closed.

use core::net::SocketAddr;
use std::collections::BTreeSet;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::client::ClientRole;
use super::config::{CoreConfig, Reach, TransportKind};
use super::context::{Cause, Context, TimerKey};
use super::ids::{BlockIndex, KvRequestId, PeerId, RequestId, RoundSeq, SessionId};
use super::job::{Outcome, PeerState};
use super::message::{Connect, ConnectAck, Dialect, Disconnect, Extension, Fetch, Message, TcpOffer};
use super::mutation::{self, Mutation};
use super::output::{Output, Registration, data_addresses};
use super::server::ServerRole;
use super::steps::Slice;
use super::timer::Timestamp;

/// Transfer failures in a row, with no success between, that fault a peer.
const STRIKES: u32 = 3;

/// A `disconnect` so soon after an earlier session with the same peer may be that one's.
const STALE_DISCONNECT: std::time::Duration = std::time::Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Connecting,
    Handshake { registered: bool, acknowledged: bool },
    Ready,
    Dying,
}

/// How a session came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A request of ours named the peer.
    Dialed,
    /// The peer's first message. From its `connect`: what it called us, and the token that tells which session of it
    /// this is.
    Answered { dialed_as: Option<String>, token: Option<Vec<u8>> },
}

#[derive(Debug)]
pub struct Session {
    pub id: SessionId,
    pub peer: PeerId,
    pub client: ClientRole,
    pub server: ServerRole,
    /// Requests of the engine that pull from this peer.
    pub requests: BTreeSet<RequestId>,
    pub last_active: Timestamp,
    /// How the peer gets at what we write.
    pub reach: Reach,
    /// What the peer must show on its data connections to us, and says again in a `connect` that answers ours.
    token: Vec<u8>,
    origin: Origin,
    state: State,
    dialect: Dialect,
    transport: Option<TransportKind>,
    /// What the peer said of itself.
    connect: Option<Box<Connect>>,
    /// Where the control connection leads, once its name is resolved.
    addresses: Vec<SocketAddr>,
    /// Waiting for the peer's `connect_ack`.
    queue: Vec<Message>,
    handshake_deadline: Timestamp,
    redial_at: Option<Timestamp>,
    redials: u32,
    /// Until then a `disconnect` may belong to an earlier session.
    stale_until: Timestamp,
    strikes: u32,
    cause: Option<Cause>,
}

impl Session {
    /// Opens the connection and sends `connect`. `succeeds`: an earlier session with the peer died just now.
    pub fn open(cx: &mut Context, id: SessionId, peer: PeerId, origin: Origin, succeeds: bool) -> Session {
        let token = access_token(&cx.config, id);
        cx.emit(Output::OpenPeer { session: id, peer: peer.clone(), token: token.clone() });
        cx.stats.sessions_opened += 1;
        let mut session = Session {
            id,
            client: ClientRole::new(id),
            server: ServerRole::new(id),
            requests: BTreeSet::new(),
            last_active: cx.now,
            reach: Reach::default(),
            token,
            origin,
            state: State::Connecting,
            dialect: Dialect::Current,
            transport: None,
            connect: None,
            addresses: peer.numeric_address().into_iter().collect(),
            queue: Vec::new(),
            handshake_deadline: cx.now + cx.config.timeouts.handshake,
            redial_at: None,
            redials: 0,
            stale_until: if succeeds { cx.now + STALE_DISCONNECT } else { cx.now },
            strikes: 0,
            cause: None,
            peer,
        };
        cx.timers.set(session.handshake_deadline, TimerKey::Handshake(id));
        session.arm_redial(cx);
        session.send_connect(cx);
        session
    }

    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    #[must_use]
    pub fn cause(&self) -> Option<&Cause> {
        self.cause.as_ref()
    }

    #[must_use]
    pub fn transport(&self) -> Option<TransportKind> {
        self.transport
    }

    #[must_use]
    pub fn peer_connect(&self) -> Option<&Connect> {
        self.connect.as_deref()
    }

    #[must_use]
    pub fn token(&self) -> &[u8] {
        &self.token
    }

    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Nothing has been heard of the peer.
    #[must_use]
    pub fn is_unheard(&self) -> bool {
        self.state == State::Connecting
    }

    /// The peer spoke first, and nothing has come of it yet.
    #[must_use]
    pub fn is_new_answer(&self) -> bool {
        matches!((&self.origin, self.state), (Origin::Answered { .. }, State::Handshake { .. }))
            && self.has_no_work()
    }

    /// Messages other than the handshake's are listened to.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        matches!(self.state, State::Ready | State::Handshake { registered: true, .. })
    }

    #[must_use]
    pub fn is_dying(&self) -> bool {
        self.state == State::Dying
    }

    /// The receiver's own data plane bars writes. Unknown transports have armed nothing yet.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.transport.is_none_or(TransportKind::is_fenced)
    }

    /// How blocks move between us and why so; empty while that is not settled.
    #[must_use]
    pub fn why_transport(&self, config: &CoreConfig) -> String {
        let (Some(kind), Some(connect)) = (self.transport, &self.connect) else { return String::new() };
        let name = kind.name();
        if kind == TransportKind::Tcp && is_on_this_host(config, connect) {
            return match self.reach {
                Reach::Stream => format!("{name}: the peer is on this host, but shares no memory with it"),
                reach => format!("{name}, upgraded: the peer is on this host and copies by {reach}"),
            };
        }
        let (ours, theirs) = (names(&config.transports.preference), names(&offered_transports(connect)));
        format!("{name}: the first of [{ours}] here that is among [{theirs}] there")
    }

    /// Empty while that is not settled.
    #[must_use]
    pub fn transport_name(&self) -> &'static str {
        match self.reach {
            Reach::Stream => self.transport.map_or("", TransportKind::name),
            Reach::Mapped | Reach::VmRead => "same_host",
        }
    }

    /// The peer is no vLLM.
    #[must_use]
    pub fn speaks_p2pkv(&self) -> bool {
        self.connect.as_ref().is_some_and(|connect| connect.extension.is_some())
    }

    #[must_use]
    pub fn is_legacy(&self) -> bool {
        self.dialect == Dialect::Legacy
    }

    /// The peer has acknowledged our `connect`: anything may be sent.
    #[must_use]
    pub fn is_acknowledged(&self) -> bool {
        matches!(self.state, State::Ready | State::Handshake { acknowledged: true, .. })
    }

    #[must_use]
    pub fn has_no_work(&self) -> bool {
        self.client.is_idle() && self.server.is_idle() && self.requests.is_empty()
    }

    /// Something is open here that the peer may know of.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        !(self.client.is_idle() && self.server.is_idle())
    }

    #[must_use]
    pub fn has_transfers_or_loads(&self) -> bool {
        self.client.loads_live() > 0 || self.server.transfers_live() > 0
    }

    #[must_use]
    pub fn peer_state(&self) -> PeerState {
        match self.state {
            State::Connecting => PeerState::Connecting,
            State::Dying => PeerState::Draining,
            State::Handshake { .. } => PeerState::Handshake,
            State::Ready => PeerState::Ready,
        }
    }

    // ---- sending ----

    fn send_connect(&self, cx: &mut Context) {
        let config = Arc::clone(&cx.config);
        let (dialed_as, dialed_as_echo, answers) = match &self.origin {
            Origin::Dialed => (Some(self.peer.to_string()), None, None),
            Origin::Answered { dialed_as, token } => (None, dialed_as.clone(), token.clone()),
        };
        let tcp = config.transports.tcp.as_ref().map(|tcp| TcpOffer {
            addresses: tcp.addresses.clone(),
            port: tcp.port,
            token: self.token.clone(),
            host_identity: tcp.host_identity.clone(),
        });
        let told = if mutation::is(Mutation::TellsTheTime) { (cx.now.as_nanos() as u32) >> 1 } else { 0 };
        let extension = Extension {
            version: 1 + told,
            instance: config.instance,
            dialed_as,
            dialed_as_echo,
            answers,
            tcp,
            nixl: config.transports.nixl_metadata.is_some(),
            features: if shares_memory(&config) { vec![SAME_HOST.to_owned()] } else { Vec::new() },
        };
        let connect = Connect {
            peer_id: config.local_id.to_string(),
            agent_metadata: config.transports.nixl_metadata.clone().unwrap_or_default(),
            base_addr: config.base_addr,
            num_blocks: u64::from(config.num_blocks),
            block_len: config.block_len,
            config_fingerprint: config.config_fingerprint.clone(),
            hash_seed: Some(config.hash_seed.clone()),
            extension: Some(extension),
        };
        self.transmit(cx, Message::Connect(Box::new(connect)));
    }

    fn transmit(&self, cx: &mut Context, message: Message) {
        cx.stats.messages_out += 1;
        cx.emit(Output::Send { session: self.id, message, dialect: self.dialect });
    }

    /// Sends a role's message, or keeps it until the peer's `connect_ack`.
    pub fn say(&mut self, cx: &mut Context, message: Message) {
        match self.state {
            State::Dying => {}
            _ if self.is_acknowledged() => self.send_now(cx, message),
            _ => self.queue.push(message),
        }
    }

    fn send_now(&mut self, cx: &mut Context, message: Message) {
        self.last_active = cx.now;
        match message {
            Message::Fetch(fetch) if !fetch.keys.is_empty() => self.send_fetch(cx, fetch),
            // A legacy peer knows neither lookups nor the end of an id.
            Message::Fetch(_) | Message::Lookup(_) if self.dialect == Dialect::Legacy => {}
            message => self.transmit(cx, message),
        }
    }

    /// A load's fetch: its blocks are armed first, so that no byte can come before.
    fn send_fetch(&mut self, cx: &mut Context, mut fetch: Fetch) {
        let (id, round) = (fetch.kv_request_id.clone(), fetch.round_seq);
        if let Some(why) = self.cannot_fetch(cx, &fetch) {
            let cause = Cause::new(Outcome::Incompatible, why);
            return self.client.refuse_queued(cx, &id, round, fetch.load_token, cause);
        }
        let (fenced, token) = (self.is_fenced(), fetch.load_token);
        let Some((load, blocks)) = self.client.start_fetching(cx, &id, round, token, fenced) else { return };
        if fenced {
            cx.emit(Output::Arm { session: self.id, load, blocks });
        }
        if !self.speaks_p2pkv() {
            fetch.load_token = None;
        }
        self.transmit(cx, Message::Fetch(fetch));
    }

    fn cannot_fetch(&self, cx: &Context, fetch: &Fetch) -> Option<String> {
        if self.dialect == Dialect::Legacy && self.client.has_load_in_flight(&fetch.kv_request_id) {
            return Some(format!(
                "peer {} speaks the legacy dialect, which takes one fetch of kv_request_id {} at a time",
                self.peer, fetch.kv_request_id
            ));
        }
        if !self.speaks_p2pkv() && fetch.keys.has_doubles(cx.hasher()) {
            return Some(format!(
                "peer {} is a vLLM, which never completes a fetch with a key twice",
                self.peer
            ));
        }
        None
    }

    fn flush_queue(&mut self, cx: &mut Context) {
        for message in std::mem::take(&mut self.queue) {
            self.send_now(cx, message);
        }
    }

    // ---- handshake ----

    fn arm_redial(&mut self, cx: &mut Context) {
        let wait = cx.config.timeouts.redial.saturating_mul(1 << self.redials.min(8));
        let at = cx.now + wait;
        self.redial_at = (at < self.handshake_deadline).then_some(at);
        if let Some(at) = self.redial_at {
            cx.timers.set(at, TimerKey::Redial(self.id));
        }
    }

    /// Nothing came back on a fresh connection: the peer's ROUTER may still hold an old one of ours.
    pub fn on_redial_timer(&mut self, cx: &mut Context) {
        if !self.is_unheard() || self.redial_at.is_none_or(|at| at > cx.now) {
            return;
        }
        self.redials += 1;
        cx.emit(Output::Redial { session: self.id });
        self.send_connect(cx);
        self.arm_redial(cx);
    }

    /// The peer has heard us under another name before: what counts is this session.
    pub fn repeat_connect(&self, cx: &mut Context) {
        if self.is_unheard() {
            self.send_connect(cx);
        }
    }

    /// The first `connect`, or one that repeats it before the handshake is over.
    pub fn on_connect(&mut self, cx: &mut Context, connect: Box<Connect>) -> Result<(), Cause> {
        if let Some(known) = &self.connect {
            let repeats = **known == *connect && matches!(self.state, State::Handshake { .. });
            return if repeats { Ok(()) } else { Err(violation("a second connect after the handshake")) };
        }
        self.last_active = cx.now;
        self.cancel_redial(cx);
        self.dialect = if connect.hash_seed.is_some() { Dialect::Current } else { Dialect::Legacy };
        self.state = State::Handshake { registered: false, acknowledged: false };
        check_compatible(&cx.config, &connect)?;
        self.transport = Some(choose_transport(&cx.config, &connect)?);
        self.connect = Some(connect);
        if self.dialect == Dialect::Legacy {
            self.client.all_probes_miss(cx);
        }
        self.register(cx);
        Ok(())
    }

    /// The control connection's addresses became known.
    pub fn on_resolved(&mut self, cx: &mut Context, addresses: Vec<SocketAddr>) {
        let was_unknown = std::mem::replace(&mut self.addresses, addresses).is_empty();
        let waits = matches!(self.state, State::Handshake { registered: false, .. });
        // Others are registered without an address, and have been.
        if was_unknown && waits && self.transport == Some(TransportKind::Tcp) {
            self.register(cx);
        }
    }

    fn register(&self, cx: &mut Context) {
        let (Some(connect), Some(transport)) = (&self.connect, self.transport) else { return };
        let registration = match (transport, connect.extension.as_ref().and_then(|ours| ours.tcp.as_ref())) {
            (TransportKind::Tcp, Some(tcp)) => {
                let addresses = data_addresses(&tcp.addresses, &self.addresses, tcp.port);
                if addresses.is_empty() {
                    return;
                }
                Registration::Tcp {
                    addresses,
                    token: tcp.token.clone(),
                    num_blocks: connect.num_blocks,
                    same_host: is_on_this_host(&cx.config, connect),
                }
            }
            _ => Registration::Nixl {
                metadata: connect.agent_metadata.clone(),
                base_addr: connect.base_addr,
                num_blocks: connect.num_blocks,
                block_len: connect.block_len,
            },
        };
        cx.emit(Output::RegisterPeer { session: self.id, registration });
    }

    pub fn on_registered(&mut self, cx: &mut Context) {
        let State::Handshake { registered, .. } = &mut self.state else { return };
        *registered = true;
        self.transmit(cx, Message::ConnectAck(ConnectAck { peer_id: cx.config.local_id.to_string() }));
        self.become_ready(cx);
    }

    /// Before the peer's `connect` it can only mean an earlier session.
    pub fn on_connect_ack(&mut self, cx: &mut Context) {
        match &mut self.state {
            State::Handshake { acknowledged, .. } if !*acknowledged => {
                *acknowledged = true;
                self.flush_queue(cx);
                self.client.on_ready(cx);
                self.become_ready(cx);
            }
            _ => cx.stats.messages_late += 1,
        }
    }

    fn become_ready(&mut self, cx: &mut Context) {
        if let State::Handshake { registered: true, acknowledged: true } = self.state {
            self.state = State::Ready;
            cx.timers.cancel(self.handshake_deadline, TimerKey::Handshake(self.id));
            let why = self.why_transport(&cx.config);
            log::info!("peer {}: ready, {why}, {:?} dialect", self.peer, self.dialect);
        }
    }

    /// What to die of when the handshake deadline passes.
    #[must_use]
    pub fn handshake_expired(&self, cx: &Context) -> Option<Cause> {
        let waited = cx.config.timeouts.handshake;
        let missing = match self.state {
            State::Connecting => "nothing was heard of it",
            State::Handshake { registered: false, .. } => "its data plane was not reached",
            State::Handshake { .. } => "it did not acknowledge our connect",
            State::Ready | State::Dying => return None,
        };
        Some(Cause::new(Outcome::NoPeer, format!("no session within {waited:?}: {missing}")))
    }

    // ---- data plane ----

    /// Counts failures in a row; the cause of death once there are too many.
    pub fn on_transfer_failed(&mut self, why: &str, decisive: bool) -> Option<Cause> {
        self.strikes += 1;
        (decisive || self.strikes >= STRIKES).then(|| {
            Cause::new(
                Outcome::TransportFailed,
                format!("data plane fault after {} failures: {why}", self.strikes),
            )
        })
    }

    pub fn on_transfer_succeeded(&mut self) {
        self.strikes = 0;
    }

    // ---- messages that end or start work ----

    /// Why the peer's `disconnect` ends this session; `None` if it cannot mean this one.
    #[must_use]
    pub fn on_disconnect(&self, cx: &Context, disconnect: &Disconnect) -> Option<Cause> {
        // A libp2pkv peer (it gives a reason) has said `connect` in every session that it ends: before that, it ends one of
        // an earlier session, of ours or of the process that was here before us. A vLLM that backs off says nothing else.
        if self.is_unheard() && (disconnect.reason.is_some() || cx.now < self.stale_until) {
            return None;
        }
        let said = disconnect.reason.as_deref().unwrap_or("no reason given");
        let outcome = match self.state {
            State::Ready => Outcome::PeerLost,
            _ if said.starts_with(INCOMPATIBLE) => Outcome::Incompatible,
            _ => Outcome::NoPeer,
        };
        // In quotes, since its "here" and "there" are not ours, and escaped, since it goes to a log.
        Some(Cause::new(outcome, format!("the peer disconnected: {said:?}")))
    }

    /// The block indexes of a fetch, checked against the region that the peer described.
    pub fn check_blocks(&self, fetch: &Fetch) -> Result<Vec<BlockIndex>, Cause> {
        // What lies outside of 32 bits lies outside of every region.
        let num_blocks = self.connect.as_ref().map_or(0, |connect| connect.num_blocks);
        let end = num_blocks.min(u64::from(u32::MAX) + 1);
        if let Some(index) = fetch.block_indexes.iter().find(|index| **index >= end) {
            return Err(violation(&format!("fetch names block {index} of a region of {num_blocks} blocks")));
        }
        let narrow = |index: &u64| BlockIndex(u32::try_from(*index).unwrap_or(u32::MAX));
        Ok(fetch.block_indexes.iter().map(narrow).collect())
    }

    /// A legacy peer names no rounds: an answer means its one live load.
    #[must_use]
    pub fn round_of_answer(&self, id: &KvRequestId, named: RoundSeq) -> RoundSeq {
        match self.dialect {
            Dialect::Current => named,
            Dialect::Legacy => self.client.only_round(id).unwrap_or(named),
        }
    }

    // ---- death ----

    /// Ends the session. `tell`: whether the peer should be sent a `disconnect`. The first cause stands.
    pub fn die(&mut self, cx: &mut Context, cause: Cause, tell: bool) {
        if self.is_dying() {
            return;
        }
        if tell {
            let reason = match cause.outcome {
                Outcome::Incompatible => format!("{INCOMPATIBLE}{}", cause.detail),
                _ => cause.detail.clone(),
            };
            self.transmit(cx, Message::Disconnect(Disconnect { reason: Some(reason) }));
        }
        let cause = Cause { detail: format!("peer {}: {}", self.peer, cause.detail), ..cause };
        log::log!(self.death_level(&cause, tell), "session {} ended: {}", self.id, cause.detail);
        cx.stats.sessions_lost += 1;
        self.cancel_redial(cx);
        cx.timers.cancel(self.handshake_deadline, TimerKey::Handshake(self.id));
        self.state = State::Dying;
        self.queue.clear();
        self.client.on_session_death();
        self.server.on_session_death(cause.clone());
        self.cause = Some(cause);
        cx.busy.insert(self.id);
        cx.emit(Output::ClosePeer { session: self.id, flush: tell });
        cx.timers.set(cx.now + cx.config.timeouts.fault_drain, TimerKey::FaultDrain(self.id));
    }

    /// A dying session's time to drain is over.
    pub fn abandon(&mut self, cx: &mut Context) {
        if let Some(cause) = &self.cause {
            self.server.abandon_transfers(cause.clone());
            cx.busy.insert(self.id);
        }
    }

    /// Does a slice of what is left to do. True if there is more.
    pub fn work(&mut self, cx: &mut Context, slice: &mut Slice) -> bool {
        let fenced = self.is_fenced();
        let client = self.cause.as_ref().is_some_and(|cause| self.client.work(cx, cause, fenced, slice));
        self.server.work(cx, slice) || client
    }

    /// Whether the engine may not use the id again yet.
    #[must_use]
    pub fn uses(&self, id: &KvRequestId) -> bool {
        self.client.uses(id, self.is_fenced())
    }

    /// Loud unless we end it ourselves, or the peer left while nobody here had a use for it.
    fn death_level(&self, cause: &Cause, tell: bool) -> log::Level {
        match cause.outcome {
            Outcome::ShutDown => log::Level::Info,
            Outcome::PeerLost if !tell && self.has_no_work() => log::Level::Info,
            _ => log::Level::Warn,
        }
    }

    /// Nothing keeps a dying session any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_dying() && self.has_no_work()
    }

    fn cancel_redial(&mut self, cx: &mut Context) {
        if let Some(at) = self.redial_at.take() {
            cx.timers.cancel(at, TimerKey::Redial(self.id));
        }
    }
}

/// How a `disconnect` reason begins that means: do not try again with this configuration.
const INCOMPATIBLE: &str = "incompatible: ";

fn violation(what: &str) -> Cause {
    Cause::new(Outcome::PeerLost, format!("protocol error: {what}"))
}

/// What the peer must show on its data connections to this session: not guessable, and of this session only.
fn access_token(config: &CoreConfig, session: SessionId) -> Vec<u8> {
    let mut hash = Sha256::new();
    hash.update(config.token_secret);
    hash.update(session.0.to_be_bytes());
    hash.finalize().to_vec()
}

fn check_compatible(config: &CoreConfig, connect: &Connect) -> Result<(), Cause> {
    let differs = |field: &str, ours: &str, theirs: &str| {
        Err(Cause::new(Outcome::Incompatible, format!("{field} differs: {ours} here, {theirs} there")))
    };
    if connect.block_len != config.block_len {
        return differs("block_len", &config.block_len.to_string(), &connect.block_len.to_string());
    }
    let (ours, theirs) = (&config.config_fingerprint, &connect.config_fingerprint);
    if !ours.is_empty() && !theirs.is_empty() && ours != theirs {
        return differs("config_fingerprint", ours, theirs);
    }
    match &connect.hash_seed {
        Some(theirs) if *theirs != config.hash_seed => {
            differs("hash_seed", &format!("{:?}", config.hash_seed), &format!("{theirs:?}"))
        }
        _ => Ok(()),
    }
}

/// What the peer moves blocks with.
fn offered_transports(connect: &Connect) -> Vec<TransportKind> {
    match &connect.extension {
        // A vLLM moves blocks with NIXL only.
        None => vec![TransportKind::Nixl],
        Some(extension) => {
            let nixl = extension.nixl.then_some(TransportKind::Nixl);
            nixl.into_iter().chain(extension.tcp.as_ref().map(|_| TransportKind::Tcp)).collect()
        }
    }
}

fn choose_transport(config: &CoreConfig, connect: &Connect) -> Result<TransportKind, Cause> {
    let offered = offered_transports(connect);
    let ours = &config.transports.preference;
    // Of one host nothing is faster, or as safe.
    if ours.contains(&TransportKind::Tcp) && is_on_this_host(config, connect) {
        return Ok(TransportKind::Tcp);
    }
    ours.iter().copied().find(|kind| offered.contains(kind)).ok_or_else(|| {
        let (ours, theirs) = (names(ours), names(&offered));
        let mut detail = format!("no data transport in common: [{ours}] here, [{theirs}] there");
        if offered.contains(&TransportKind::Nixl) && !config.transports.why_no_nixl.is_empty() {
            detail = format!("{detail} (no nixl here: {})", config.transports.why_no_nixl);
        }
        Cause::new(Outcome::Incompatible, detail)
    })
}

/// In `features`: the peer's tcp plane can be upgraded where both are on one host.
const SAME_HOST: &str = "same-host";

fn shares_memory(config: &CoreConfig) -> bool {
    config.transports.tcp.as_ref().is_some_and(|tcp| !tcp.host_identity.is_empty())
}

/// Both are on one host and can share memory. Both sides must come to the same answer.
fn is_on_this_host(config: &CoreConfig, connect: &Connect) -> bool {
    let Some(ours) = config.transports.tcp.as_ref().filter(|_| shares_memory(config)) else { return false };
    connect.extension.as_ref().is_some_and(|extension| {
        extension.features.iter().any(|feature| feature == SAME_HOST)
            && extension.tcp.as_ref().is_some_and(|theirs| theirs.host_identity == ours.host_identity)
    })
}

fn names(kinds: &[TransportKind]) -> String {
    kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
}
