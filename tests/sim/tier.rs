//! One tier: the core under test, the engine's memory and books, and the data plane's state at its side.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use p2pkv::protocol::config::{CoreConfig, Limits, LocalTcp, LocalTransports, Timeouts, TransportKind};
use p2pkv::protocol::ids::{Instance, JobId, LoadToken, PeerId, ServeId, SessionId};
use p2pkv::protocol::manager::{Manager, ServeMode};
use p2pkv::protocol::timer::Timestamp;

use crate::ledger::Ledger;
use crate::model::{Finishing, Job, Load};
use crate::plan::Plan;
use crate::plane::{Armed, Route};
use crate::region::{NUM_BLOCKS, Region, Use};

pub const BLOCK_LEN: u64 = 4096;

#[derive(Debug)]
pub struct Tier {
    pub number: usize,
    pub life: u32,
    pub up: bool,
    /// Its owner is about to come back to what is left to do.
    pub works: bool,
    pub manager: Manager,
    /// Its clock is so far ahead of the world's.
    pub skew: Duration,
    pub region: Region,
    pub jobs: BTreeMap<JobId, Job>,
    pub published: BTreeMap<u8, u32>,
    pub changed: Timestamp,
    /// Questions of peers that the engine has not answered: context, keys.
    pub questions: Vec<(ServeId, Vec<u8>)>,
    pub contexts: BTreeSet<ServeId>,
    /// Sessions whose connection is open.
    pub sessions: BTreeMap<SessionId, Link>,
    /// When sessions ended whose transfers may still be about.
    pub closed: BTreeMap<SessionId, Timestamp>,
    pub routes: BTreeMap<SessionId, Route>,
    pub armed: BTreeMap<LoadToken, Armed>,
    /// What peers must show: as the session's own data plane knows it.
    pub tokens: BTreeMap<Vec<u8>, SessionId>,
    pub ledger: Ledger,
    pub finishing: Vec<Finishing>,
}

#[derive(Debug)]
pub struct Link {
    pub peer: usize,
    /// Dialled by a name that has to be resolved.
    pub by_name: bool,
    pub opened: Timestamp,
    /// When the peer's `connect_ack` came last.
    pub acknowledged: Option<Timestamp>,
}

pub fn name_of(tier: usize) -> String {
    format!("10.0.0.{}:7000", tier + 1)
}

/// Another name of it, which others may use.
pub fn alias_of(tier: usize) -> String {
    format!("host-{}:7000", tier + 1)
}

pub fn tier_named(name: &str) -> Option<usize> {
    let host = name.strip_suffix(":7000")?;
    let number = host.strip_prefix("10.0.0.").or_else(|| host.strip_prefix("host-"))?;
    number.parse::<usize>().ok()?.checked_sub(1)
}

fn config(number: usize, life: u32, plan: &Plan, slice: usize) -> CoreConfig {
    let kind = plan.kinds[number];
    let name = 16 * number as u8 + life as u8;
    let preference = match kind {
        TransportKind::Tcp => vec![TransportKind::Tcp],
        TransportKind::Nixl => vec![TransportKind::Nixl, TransportKind::Tcp],
    };
    let tcp = LocalTcp {
        addresses: vec!["10.0.0.1".parse().unwrap()],
        port: 9000 + number as u16,
        host_identity: String::new(),
    };
    CoreConfig {
        local_id: PeerId::parse(&name_of(number)).unwrap(),
        instance: Instance([name; 16]),
        base_addr: 0x1000,
        num_blocks: NUM_BLOCKS,
        block_len: BLOCK_LEN,
        config_fingerprint: String::new(),
        hash_seed: "0".to_owned(),
        transports: LocalTransports {
            preference,
            tcp: Some(tcp),
            nixl_metadata: (kind == TransportKind::Nixl).then(|| vec![number as u8, life as u8]),
            why_no_nixl: String::new(),
        },
        max_peers: plan.max_peers,
        limits: Limits::default(),
        timeouts: Timeouts::default(),
        slice,
        table_seed: 7,
        token_secret: [name; 32],
    }
}

impl Tier {
    pub fn new(number: usize, life: u32, plan: &Plan, slice: usize, skew: Duration) -> Tier {
        let mut manager = Manager::new(config(number, life, plan, slice));
        let mode = if plan.serves[number] { ServeMode::Engine } else { ServeMode::DirectoryOnly };
        manager.set_serve_mode(Timestamp::ZERO + skew, mode);
        Tier {
            number,
            life,
            up: true,
            works: false,
            manager,
            skew,
            region: Region::new(),
            jobs: BTreeMap::new(),
            published: BTreeMap::new(),
            changed: Timestamp::ZERO,
            questions: Vec::new(),
            contexts: BTreeSet::new(),
            sessions: BTreeMap::new(),
            closed: BTreeMap::new(),
            routes: BTreeMap::new(),
            armed: BTreeMap::new(),
            tokens: BTreeMap::new(),
            ledger: Ledger::default(),
            finishing: Vec::new(),
        }
    }

    pub fn peer_of(&self, session: SessionId) -> Option<usize> {
        self.sessions.get(&session).map(|link| link.peer)
    }

    pub fn note_acknowledged(&mut self, peer: usize, now: Timestamp) {
        for link in self.sessions.values_mut().filter(|link| link.peer == peer) {
            link.acknowledged = Some(now);
        }
    }

    /// Whether the peer writes here without a fence.
    pub fn is_unfenced(&self, peer: usize) -> bool {
        self.routes.values().any(|route| route.to == peer && route.token.is_none())
    }

    /// The open load that has this block as a destination.
    pub fn load_into(&self, block: u32) -> Option<JobId> {
        match self.region.used_as(block) {
            Use::Destination(job) => Some(job),
            _ => None,
        }
    }

    pub fn load_mut(&mut self, job: JobId) -> Option<&mut Load> {
        match self.jobs.get_mut(&job)? {
            Job::Load(load) => Some(load),
            Job::Store(_) => None,
        }
    }

    pub fn load(&self, job: JobId) -> Option<&Load> {
        match self.jobs.get(&job)? {
            Job::Load(load) => Some(load),
            Job::Store(_) => None,
        }
    }

    pub fn loads(&self) -> impl Iterator<Item = (&JobId, &Load)> {
        self.jobs.iter().filter_map(|(job, open)| match open {
            Job::Load(load) => Some((job, load)),
            Job::Store(_) => None,
        })
    }
}
