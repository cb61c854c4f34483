//! Two engines on one [`World`]: what can be done to it as a list of steps, and what must hold after each of them and
//! at the end.
#![allow(dead_code, reason = "each test program uses its part")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use p2pkv::protocol::config::{CoreConfig, TransportKind};
use p2pkv::protocol::ids::{RequestId, ServeId};
use p2pkv::protocol::job::{LookupState, PeerState};
use p2pkv::protocol::manager::ServeMode;
use p2pkv::protocol::timer::Timestamp;

use super::world::*;

const IDS: [&str; 3] = ["a", "b", "c"];
const KEYS: [u8; 6] = [0, 1, 2, 3, 4, 5];

/// Everything that can be done to the two. Numbers choose among what there is.
#[derive(Clone, Debug)]
pub enum Step {
    Produce {
        node: usize,
        id: usize,
    },
    Pull {
        node: usize,
        id: usize,
        symmetric: bool,
    },
    Finish {
        node: usize,
        which: usize,
    },
    Lookup {
        node: usize,
        which: usize,
        keys: u8,
    },
    Flush {
        node: usize,
    },
    Load {
        node: usize,
        which: usize,
        keys: u8,
    },
    Store {
        node: usize,
        which: usize,
        keys: u8,
    },
    Publish {
        node: usize,
        keys: u8,
    },
    Unpublish {
        node: usize,
        keys: u8,
    },
    Ask {
        node: usize,
    },
    Answer {
        node: usize,
        which: usize,
        hits: u8,
        open: u8,
    },
    Deliver {
        from: usize,
        count: usize,
    },
    Register {
        node: usize,
    },
    Transfer {
        node: usize,
        which: usize,
        end: End,
    },
    CloseFence {
        node: usize,
    },
    Time {
        millis: u64,
    },
    LoseConnection {
        node: usize,
    },
    Junk {
        to: usize,
    },
    /// Something happens to a message on its way, which TCP rules out: the peer itself must have gone wrong.
    Tamper {
        from: usize,
        which: usize,
        how: Tampering,
    },
    Refuse {
        node: usize,
    },
    Fault {
        node: usize,
    },
    Restart {
        node: usize,
    },
    Quiet,
}

#[derive(Clone, Copy, Debug)]
pub enum Tampering {
    Damage {
        at: usize,
        to: u8,
    },
    Cut {
        at: usize,
    },
    Duplicate,
    Lose,
    /// It overtakes the one before.
    Overtake,
}

impl Tampering {
    fn apply(self, wire: &mut VecDeque<Vec<u8>>, which: usize) {
        let which = which % wire.len().max(1);
        let Some(message) = wire.get_mut(which) else { return };
        match self {
            Tampering::Damage { at, to } => {
                let at = at % message.len().max(1);
                message.get_mut(at).into_iter().for_each(|byte| *byte = to);
            }
            Tampering::Cut { at } => message.truncate(at),
            Tampering::Duplicate => {
                let again = message.clone();
                wire.push_back(again);
            }
            Tampering::Lose => drop(wire.remove(which)),
            Tampering::Overtake => wire.swap(which, which.saturating_sub(1)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Producer,
    Pd,
    Symmetric,
}

/// The engines' side: what they asked for and what they must get.
struct Engines {
    world: World,
    requests: [Vec<(RequestId, Kind, usize)>; 2],
    /// Accepted jobs, and for a load of which id and kind it is.
    jobs: [BTreeMap<u64, Option<(Kind, usize)>>; 2],
    questions: [Vec<(ServeId, Vec<u8>)>; 2],
    contexts: [BTreeSet<ServeId>; 2],
    /// When a producer request ended, if no other has taken up its id since.
    producer_ended: [BTreeMap<usize, Timestamp>; 2],
    last_job: u64,
    /// Something died: who waits for whom cannot be told from here any more.
    disturbed: bool,
    /// One side has lost its connection; the other may find out only at the end.
    half_lost: bool,
}

fn chosen(mask: u8) -> Vec<u8> {
    KEYS.into_iter().filter(|key| mask & (1 << key) != 0).collect()
}

impl Engines {
    fn new(kind: TransportKind, slice: usize) -> Engines {
        let configs = (0..2).map(|node| CoreConfig { slice, ..config(node, 0, kind) }).collect();
        let mut world = World::with_configs(configs, kind);
        world.auto_register = false;
        world.auto_transfer = false;
        world.auto_disarm = false;
        world.auto_land = kind == TransportKind::Tcp;
        for node in 0..2 {
            world.nodes[node].manager.set_serve_mode(world.now, ServeMode::Engine);
        }
        Engines {
            world,
            requests: Default::default(),
            jobs: Default::default(),
            questions: Default::default(),
            contexts: Default::default(),
            producer_ended: Default::default(),
            last_job: 0,
            disturbed: false,
            half_lost: false,
        }
    }

    fn new_job(&mut self) -> u64 {
        self.last_job += 1;
        self.last_job
    }

    fn request(&self, node: usize, which: usize, kinds: &[Kind]) -> Option<(RequestId, Kind, usize)> {
        let fitting: Vec<_> =
            self.requests[node].iter().filter(|(_, kind, _)| kinds.contains(kind)).copied().collect();
        fitting.get(which % fitting.len().max(1)).copied()
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Produce { node, id } => {
                if let Ok(request) = self.world.request(node, producer_of(IDS[id])) {
                    self.requests[node].push((request, Kind::Producer, id));
                    self.producer_ended[node].remove(&id);
                }
            }
            Step::Pull { node, id, symmetric } => {
                let peer = node_name(1 - node);
                let (roles, kind) = match symmetric {
                    true => (symmetric_from(IDS[id], &peer), Kind::Symmetric),
                    false => (pd_from(IDS[id], &peer), Kind::Pd),
                };
                if let Ok(request) = self.world.request(node, roles) {
                    self.requests[node].push((request, kind, id));
                }
            }
            Step::Finish { node, which } => self.finish(node, which),
            Step::Lookup { node, which, keys } => {
                if let Some((request, ..)) = self.request(node, which, &[Kind::Symmetric, Kind::Pd]) {
                    self.world.lookup(node, request, &chosen(keys));
                }
            }
            Step::Flush { node } => self.world.flush(node),
            Step::Load { node, which, keys } => self.load(node, which, keys),
            Step::Store { node, which, keys } => {
                if let Some((request, ..)) = self.request(node, which, &[Kind::Producer]) {
                    let job = self.new_job();
                    self.jobs[node].insert(job, None);
                    self.world.store(node, request, job, &chosen(keys));
                }
            }
            Step::Publish { node, keys } => self.world.publish(node, &chosen(keys)),
            Step::Unpublish { node, keys } => drop(self.world.unpublish(node, &chosen(keys))),
            Step::Ask { node } => self.ask(node),
            Step::Answer { node, which, hits, open } => self.answer(node, which, hits, open),
            Step::Deliver { from, count } => {
                for _ in 0..count {
                    self.world.deliver(from, 1 - from);
                }
            }
            Step::Register { node } => drop(self.world.register_next(node)),
            Step::Transfer { node, which, end } => {
                let transfers = self.world.transfers(node);
                if let Some(transfer) = transfers.get(which % transfers.len().max(1)) {
                    self.disturbed |= end != End::Done;
                    self.world.end_transfer(node, *transfer, end);
                }
            }
            Step::CloseFence { node } => drop(self.world.disarm_next(node)),
            Step::Time { millis: span } => {
                self.world.now = self.world.now + millis(span);
                self.world.tick();
                self.disturbed |= span > 2_000;
            }
            Step::LoseConnection { node } => {
                self.disturbed = true;
                self.half_lost = true;
                self.lose_connections(node);
            }
            Step::Junk { to } => {
                self.disturbed = true;
                self.world.inject_bytes(to, &node_name(1 - to), b"\xc1");
            }
            Step::Tamper { from, which, how } => {
                self.disturbed = true;
                self.half_lost = true;
                self.world.tamper(from, 1 - from, |wire| how.apply(wire, which));
            }
            Step::Refuse { node } => {
                self.disturbed = true;
                self.world.refuse_any(node, "so told");
            }
            Step::Fault { node } => {
                self.disturbed = true;
                for session in self.world.open_sessions_of(node) {
                    self.world.fault(node, session, "so told");
                }
            }
            Step::Restart { node } => self.restart(node),
            Step::Quiet => self.quiet(),
        }
        self.check();
    }

    fn lose_connections(&mut self, node: usize) {
        for session in self.world.open_sessions_of(node) {
            self.world.connection_lost(node, session);
        }
    }

    fn finish(&mut self, node: usize, which: usize) {
        if self.requests[node].is_empty() {
            return;
        }
        let which = which % self.requests[node].len();
        let (request, kind, id) = self.requests[node].remove(which);
        self.world.finish(node, request);
        if kind == Kind::Producer {
            self.producer_ended[node].insert(id, self.world.now);
        }
    }

    fn load(&mut self, node: usize, which: usize, mask: u8) {
        let Some((request, kind, id)) = self.request(node, which, &[Kind::Symmetric, Kind::Pd]) else {
            return;
        };
        let mut keys = chosen(mask);
        let states = self.world.lookup(node, request, &keys);
        let mut states = states.iter();
        keys.retain(|_| states.next() == Some(&LookupState::Hit));
        let mut to = self.world.free_destinations(node);
        to.truncate(keys.len());
        if to.len() < keys.len() {
            return;
        }
        let job = self.new_job();
        self.jobs[node].insert(job, Some((kind, id)));
        if self.world.try_load(node, request, job, &keys, &to).is_err() {
            self.jobs[node].remove(&job);
        }
    }

    fn ask(&mut self, node: usize) {
        for work in self.world.serve_questions(node) {
            let question = work.question;
            let is_new = self.contexts[node].insert(question.serve);
            assert_eq!(is_new, question.opens, "a context is opened once, by its first question");
            self.questions[node].push((question.serve, question.keys.iter().map(|key| key[0]).collect()));
        }
    }

    fn answer(&mut self, node: usize, which: usize, hits: u8, open: u8) {
        if self.questions[node].is_empty() {
            return;
        }
        let which = which % self.questions[node].len();
        let (serve, keys) = self.questions[node].remove(which);
        let state = |(at, _): (usize, &u8)| match ((hits >> at) & 1, (open >> at) & 1) {
            (_, 1) => LookupState::Pending,
            (1, _) => LookupState::Hit,
            _ => LookupState::Miss,
        };
        let states: Vec<LookupState> = keys.iter().enumerate().map(state).collect();
        let job = states.contains(&LookupState::Hit).then(|| self.new_job());
        if let Some(job) = job {
            self.jobs[node].insert(job, None);
        }
        self.world.serve_answer(node, serve, &keys, &states, job);
    }

    fn restart(&mut self, node: usize) {
        self.disturbed = true;
        self.world.restart(node);
        self.world.nodes[node].manager.set_serve_mode(self.world.now, ServeMode::Engine);
        self.requests[node].clear();
        self.jobs[node].clear();
        self.questions[node].clear();
        self.contexts[node].clear();
        self.producer_ended[node].clear();
    }

    /// Everything happens that can without time going by; then nothing may wait that need not (invariant 6).
    fn quiet(&mut self) {
        self.let_happen(true);
        self.world.run();
        self.let_happen(false);
        if self.disturbed {
            return;
        }
        for node in 0..2 {
            let peers = self.world.nodes[node].manager.peers(self.world.now);
            assert!(peers.iter().all(|peer| peer.state == PeerState::Ready), "{peers:#?}");
            for (job, load) in &self.jobs[node] {
                let Some((kind, id)) = load else { continue };
                let may_wait = *kind == Kind::Pd && !self.producer_ended[1 - node].contains_key(id);
                assert!(may_wait || !self.world.is_open(node, *job), "load {job} of {id} waits for nothing");
            }
        }
    }

    fn let_happen(&mut self, all: bool) {
        self.world.auto_register = all;
        self.world.auto_transfer = all;
        self.world.auto_disarm = all;
    }

    fn check(&mut self) {
        for node in 0..2 {
            for closed in self.world.nodes[node].manager.serve_closed() {
                assert!(self.contexts[node].remove(&closed), "context {closed} is closed twice");
            }
            if !self.disturbed {
                let (acks, aborts) =
                    (self.world.sent(node, "abort_ack"), self.world.sent(1 - node, "abort_fetch"));
                assert!(acks <= aborts, "more acknowledgements than aborts");
            }
        }
        self.world.check();
    }

    /// All requests end; after every deadline nothing is left of anything (invariants 1 and 7).
    fn come_to_rest(&mut self) {
        self.let_happen(true);
        self.world.notice_restarts();
        if self.half_lost {
            (0..2).for_each(|node| self.lose_connections(node));
        }
        for node in 0..2 {
            while !self.requests[node].is_empty() {
                self.finish(node, 0);
            }
            while !self.questions[node].is_empty() {
                self.answer(node, 0, 0xff, 0);
            }
        }
        self.world.advance(seconds(300));
        for node in 0..2 {
            assert!(self.world.unpublish(node, &KEYS), "node {node} holds a pin");
            for job in self.jobs[node].keys() {
                assert!(!self.world.is_open(node, *job), "job {job} of node {node} has no result");
            }
        }
        self.check();
        assert!(self.contexts.iter().all(BTreeSet::is_empty), "open contexts: {:?}", self.contexts);
        self.world.check_rest();
        assert_eq!(self.world.next_deadline(), None, "a deadline is left: {:#?}", self.world.nodes);
        for node in 0..2 {
            assert!(self.world.nodes[node].manager.sessions_open() <= 1);
        }
    }
}

/// Invariants 1 and 3 to 7 of the design, and 2 where the transport fences.
/// `slice`: of both tiers.
pub fn keeps_the_invariants(kind: TransportKind, slice: usize, steps: &[Step]) {
    let mut engines = Engines::new(kind, slice);
    for step in steps {
        engines.run(step);
    }
    engines.come_to_rest();
}
