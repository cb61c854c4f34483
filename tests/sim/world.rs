//! The whole of one run: tiers, what lies between them, what is planned and what is written down.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fastrand::Rng;

use p2pkv::protocol::config::SLICE;
use p2pkv::protocol::ids::{JobId, KvRequestId};
use p2pkv::protocol::manager::Manager;
use p2pkv::protocol::output::Output;
use p2pkv::protocol::steps::ITEM;
use p2pkv::protocol::timer::Timestamp;

use crate::clock::{Clock, Event, Life, micros};
use crate::coverage::Seen;
use crate::engine::{Act, Party};
use crate::model::IdStory;
use crate::network::Network;
use crate::plan::Plan;
use crate::plane::{MoveId, Transfer};
use crate::report::{Invariant, Report};
use crate::tier::{Link, Tier, tier_named};

/// What one seed makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub seed: u64,
    /// How far the tiers' clocks are apart; must make no difference.
    pub skew: Duration,
    pub with_lines: bool,
}

#[derive(Debug)]
pub struct World {
    pub plan: Plan,
    pub clock: Clock,
    pub rng: Rng,
    pub tiers: Vec<Tier>,
    pub network: Network,
    pub transfers: BTreeMap<MoveId, Transfer>,
    pub parties: Vec<Party>,
    pub ids: BTreeMap<u32, IdStory>,
    pub report: Report,
    pub last_move: u64,
    pub last_job: u64,
    /// Lookups that no fetch has followed: consumer, producer, id.
    pub unclosed: BTreeSet<(usize, usize, KvRequestId)>,
    /// Faults are over and engines only clear up.
    pub resting: bool,
    pub shutting_down: bool,
    skew: Duration,
    slice: usize,
}

/// No run needs more; one that does is a storm.
const MOST_STEPS: u64 = 60_000;

/// What one call may make the core ask for, and so much more for each thing that is open.
const OUTPUTS_PER_CALL: usize = 64;
const OUTPUTS_PER_OPEN: usize = 8;

/// Deadlines that may come at one moment.
const MOST_DEADLINES: usize = 1_000;

/// Of four seeds one has slices in which everything fits, and three such as hold next to nothing.
fn slice_of(seed: u64) -> usize {
    match seed % 4 {
        0 => SLICE,
        1 => 1,
        2 => 2,
        _ => 4 * ITEM,
    }
}

impl World {
    pub fn new(options: Options) -> World {
        let mut rng = Rng::with_seed(options.seed);
        let plan = Plan::new(&mut rng);
        let mut world = World {
            clock: Clock::new(),
            rng,
            tiers: Vec::new(),
            network: Network::default(),
            transfers: BTreeMap::new(),
            parties: Vec::new(),
            ids: BTreeMap::new(),
            report: Report::new(options.with_lines),
            last_move: 0,
            last_job: 0,
            unclosed: BTreeSet::new(),
            resting: false,
            shutting_down: false,
            skew: options.skew,
            slice: slice_of(options.seed),
            plan,
        };
        for number in 0..world.plan.tiers {
            let tier = world.new_tier(number, 0);
            world.tiers.push(tier);
        }
        world
    }

    pub fn new_tier(&self, number: usize, life: u32) -> Tier {
        let skew = self.skew * (number as u32 + 1);
        Tier::new(number, life, &self.plan, self.slice, skew)
    }

    pub fn run(&mut self) {
        self.plan_stories();
        self.plan_faults();
        let end = self.clock.now + self.plan.span;
        self.run_until(end);
        self.come_to_rest();
    }

    pub fn run_until(&mut self, end: Timestamp) {
        while self.report.violation.is_none() && self.next().is_some_and(|next| next <= end) {
            self.step();
        }
        self.clock.now = self.clock.now.max(end);
    }

    fn next(&self) -> Option<Timestamp> {
        self.clock.next().into_iter().chain(self.next_deadline().map(|(at, _)| at)).min()
    }

    fn next_deadline(&self) -> Option<(Timestamp, usize)> {
        let deadline = |tier: &Tier| {
            let at = tier.manager.next_deadline()?;
            Some((Timestamp::from_nanos(at.as_nanos() - tier.skew.as_nanos() as u64), tier.number))
        };
        self.tiers.iter().filter(|tier| tier.up).filter_map(deadline).min()
    }

    /// The inbox is drained before any deadline is judged.
    fn step(&mut self) {
        let event = self.clock.next();
        match self.next_deadline() {
            Some((at, tier)) if event.is_none_or(|event| at < event) => {
                self.clock.now = self.clock.now.max(at);
                self.tick(tier);
            }
            _ => {
                if let Some(event) = self.clock.take_next() {
                    self.happen(event);
                }
            }
        }
        if self.report.steps.is_multiple_of(16) {
            self.audit();
        }
        let steps = self.report.steps;
        self.report.check(steps < MOST_STEPS, Invariant::BoundedWork, || {
            "the tiers do not come to rest: too much happens".to_owned()
        });
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Act(act) => self.act(act),
            Event::Arrive(wire) => self.on_arrive(wire),
            Event::Break(wire) => self.on_break(wire),
            Event::Dial(wire) => self.on_dial(wire),
            Event::Fault(fault) => self.inflict(fault),
            Event::FenceCloses(life, load) => self.on_fence_closed(life, load),
            Event::Landed(life, load) => self.on_landed(life, load),
            Event::Move(id) => self.on_move(id),
            Event::Resolved(life, session) => self.on_resolved(life, session),
            Event::Reached(life, session) => self.on_reached(life, session),
            Event::Vanish(wire) => self.on_vanish(wire),
            Event::Work(life) => self.on_work(life),
        }
    }

    fn tick(&mut self, tier: usize) {
        self.note(&[20, tier as u64], || format!("tier {tier}: a deadline has come"));
        let mut left = true;
        for _ in 0..MOST_DEADLINES {
            left = self.call(tier, |manager, now| {
                manager.handle_timeout(now);
                manager.next_deadline().is_some_and(|next| next <= now)
            });
            if !left {
                break;
            }
        }
        self.report.check(!left, Invariant::BoundedWork, || {
            format!("tier {tier} is left with a deadline that has passed: its owner would spin")
        });
    }

    /// The owner of a tier comes back to what is left to do.
    fn on_work(&mut self, life: Life) {
        if !self.is_alive(life) {
            return;
        }
        self.tiers[life.tier].works = false;
        self.report.saw(Seen::WorkInSlices);
        self.note(&[23, life.tier as u64], || format!("tier {}: work that is left", life.tier));
        self.call(life.tier, |manager, now| manager.handle_timeout(now));
    }

    /// What is left is not done at once: everything else can come between two slices.
    fn plan_work(&mut self, tier: usize) {
        let found = &mut self.tiers[tier];
        if found.manager.has_unfinished_work() && !found.works {
            found.works = true;
            let wait = micros(self.rng.u64(1..3_000));
            self.clock.after(wait, Event::Work(self.life(tier)));
        }
    }

    // ---- driving a core ----

    /// One call into a core, and everything that it asks for.
    pub fn call<T>(&mut self, tier: usize, act: impl FnOnce(&mut Manager, Timestamp) -> T) -> T {
        let now = self.clock.now + self.tiers[tier].skew;
        let answer = act(&mut self.tiers[tier].manager, now);
        self.execute(tier);
        self.hear_of_serving(tier);
        self.plan_work(tier);
        answer
    }

    fn execute(&mut self, tier: usize) {
        let open = self.tiers[tier].jobs.len() + self.parties.len();
        let mut left = OUTPUTS_PER_CALL + OUTPUTS_PER_OPEN * open;
        while let Some(output) = self.tiers[tier].manager.poll_output() {
            self.carry_out(tier, output);
            left -= 1;
            if left == 0 {
                return self.report.violate(Invariant::BoundedWork, || {
                    format!("one call made tier {tier} ask for too much")
                });
            }
        }
    }

    fn carry_out(&mut self, tier: usize, output: Output) {
        match output {
            Output::Arm { session, load, blocks } => self.arm(tier, session, load, &blocks),
            Output::CancelTransfers { transfers, .. } => self.cancel(tier, &transfers),
            Output::ClosePeer { session, flush } => self.close_peer(tier, session, flush),
            Output::Disarm { load, .. } => {
                if self.disarm(tier, load) {
                    let now = self.clock.now + self.tiers[tier].skew;
                    self.tiers[tier].manager.handle_disarmed(now, load);
                }
            }
            Output::Finished(result) => self.on_result(tier, &result),
            Output::OpenPeer { session, peer, token } => {
                let by_name = peer.numeric_address().is_none();
                let Some(peer) = tier_named(peer.as_str()) else { return };
                let link = Link { peer, by_name, opened: self.clock.now, acknowledged: None };
                self.note(&[21, tier as u64], || {
                    format!("tier {tier}: session {session} with {peer} begins")
                });
                self.tiers[tier].sessions.insert(session, link);
                self.tiers[tier].tokens.insert(token, session);
                self.open_wire(tier, session, peer);
            }
            Output::Redial { session } => self.redial(tier, session),
            Output::RegisterPeer { session, registration } => self.register(tier, session, registration),
            Output::Send { session, message, dialect } => self.send(tier, session, message, dialect),
            Output::Write { session, transfer, load, blocks } => {
                if !self.write(tier, session, transfer, load, blocks) {
                    let now = self.clock.now + self.tiers[tier].skew;
                    let why = "no data transport is registered";
                    self.tiers[tier].manager.handle_transfer_failed(now, transfer, why, true);
                }
            }
        }
    }

    fn close_peer(&mut self, tier: usize, session: p2pkv::protocol::ids::SessionId, flush: bool) {
        self.note(&[22, tier as u64], || format!("tier {tier}: session {session} ends"));
        self.note_closed(tier, session);
        self.close_wire(tier, session, flush);
        self.drop_peer(tier, session);
        self.tiers[tier].sessions.remove(&session);
        self.tiers[tier].closed.insert(session, self.clock.now);
    }

    /// Lookups for the engine, and contexts that are over.
    fn hear_of_serving(&mut self, tier: usize) {
        for closed in self.tiers[tier].manager.serve_closed() {
            let was_open = self.tiers[tier].contexts.remove(&closed);
            self.report.check(was_open, Invariant::RightOutcome, || {
                format!("tier {tier}: serving context {closed} is closed and was not open")
            });
        }
        if self.plan.serves[tier] && self.tiers[tier].manager.has_serve_news() && !self.resting {
            let wait = micros(self.rng.u64(10..20_000));
            self.clock.after(wait, Event::Act(Act::Serve { life: self.life(tier) }));
        }
    }

    // ---- small questions ----

    pub fn life(&self, tier: usize) -> Life {
        Life { tier, number: self.tiers[tier].life }
    }

    pub fn is_alive(&self, life: Life) -> bool {
        self.tiers[life.tier].up && self.tiers[life.tier].life == life.number
    }

    pub fn new_job(&mut self) -> JobId {
        self.last_job += 1;
        JobId(self.last_job)
    }

    pub fn note(&mut self, facts: &[u64], text: impl FnOnce() -> String) {
        self.report.step(self.clock.now, facts, text);
    }

    pub fn saw_if(&mut self, happened: bool, seen: Seen) {
        if happened {
            self.report.saw(seen);
        }
    }
}
