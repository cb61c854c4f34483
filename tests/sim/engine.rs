//! The engines: what they ask of their tiers, in the orders that stories and chance make.

use p2pkv::protocol::ids::{BlockIndex, JobId, KvRequestId, PeerId, RequestId, ServeId};
use p2pkv::protocol::job::{LookupState, UnpublishState};
use p2pkv::protocol::keys::KeysView;
use p2pkv::protocol::manager::RequestTimeouts;
use p2pkv::protocol::params::{ConsumerRole, ProducerRole, Roles, Source};
use p2pkv::protocol::server::{PinnedHits, ServeAnswer};
use p2pkv::protocol::timer::Timestamp;

use crate::clock::{Event, Life, micros, millis, secs};
use crate::coverage::Seen;
use crate::model::{Job, Load, Store};
use crate::region::{Use, content_of, indexes};
use crate::report::Invariant;
use crate::tier::{alias_of, name_of};
use crate::world::World;

/// One call, or the next one of a sequence. Parties are named by their place.
#[derive(Clone, Debug)]
pub enum Act {
    Answer { life: Life, serve: ServeId },
    Begin { party: usize },
    Finish { party: usize },
    Load { party: usize, keys: Vec<u8> },
    LoadHits { party: usize },
    Look { party: usize },
    Poll { party: usize },
    Publish { life: Life, keys: Vec<u8> },
    Serve { life: Life },
    Store { party: usize, keys: Vec<u8> },
    Unpublish { life: Life, keys: Vec<u8> },
}

/// A request of one engine.
#[derive(Debug)]
pub struct Party {
    pub life: Life,
    pub serves: Option<u32>,
    pub pulls: Option<Pull>,
    pub timeouts: RequestTimeouts,
    pub request: Option<RequestId>,
    pub is_over: bool,
    pub rounds_left: u32,
    /// What was looked up last, and when anything of it moved.
    pub asked: Vec<u8>,
    /// When the present round was first looked up.
    pub round_began: Option<Timestamp>,
    pub settled: usize,
    pub progress: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pull {
    pub id: u32,
    pub from: usize,
    pub symmetric: bool,
}

pub const KEYS: u8 = 24;

pub fn id_text(id: u32) -> String {
    format!("id-{id}")
}

pub fn key_bytes(keys: &[u8]) -> Vec<u8> {
    keys.iter().flat_map(|key| [*key; 4]).collect()
}

fn view(bytes: &[u8]) -> KeysView<'_> {
    KeysView::new(bytes, 4).expect("keys of four bytes")
}

impl World {
    pub fn act(&mut self, act: Act) {
        match act {
            Act::Answer { life, serve } if self.is_alive(life) => self.answer(life.tier, serve),
            Act::Begin { party } => drop(self.begin(party)),
            Act::Finish { party } => self.finish(party),
            Act::Load { party, keys } => self.load(party, &keys, false),
            Act::LoadHits { party } => self.load_hits(party),
            Act::Look { party } => self.look(party),
            Act::Poll { party } => self.poll(party),
            Act::Publish { life, keys } if self.is_alive(life) => self.publish(life.tier, &keys),
            Act::Serve { life } if self.is_alive(life) => self.serve(life.tier),
            Act::Store { party, keys } => self.store(party, &keys),
            Act::Unpublish { life, keys } if self.is_alive(life) => self.unpublish(life.tier, &keys),
            Act::Answer { .. } | Act::Publish { .. } | Act::Serve { .. } | Act::Unpublish { .. } => {}
        }
    }

    // ---- requests ----

    /// The party's request, made now if it was not yet; `None` if it is over or its tier is.
    pub fn begin(&mut self, party: usize) -> Option<RequestId> {
        let found = &self.parties[party];
        if found.is_over || !self.is_alive(found.life) {
            return None;
        }
        if found.request.is_some() {
            return found.request;
        }
        let (tier, serves, pulls, timeouts) = (found.life.tier, found.serves, found.pulls, found.timeouts);
        let by_name = pulls.is_some_and(|pull| self.plan.calls_by_name(tier, pull.from));
        let roles = roles_of(serves, pulls, by_name);
        let made = self.call(tier, |manager, now| manager.request_new(now, roles, timeouts));
        self.note(&[30, tier as u64, party as u64, u64::from(made.is_ok())], || {
            format!("tier {tier}: party {party} begins, serves {serves:?}, pulls {pulls:?}: {made:?}")
        });
        match made {
            Ok(request) => {
                self.saw_if(serves.is_some() && pulls.is_some(), Seen::BothRoles);
                self.note_begun(serves, pulls);
                self.parties[party].request = Some(request);
                Some(request)
            }
            // The id is in use.
            Err(_) => {
                self.parties[party].is_over = true;
                None
            }
        }
    }

    pub fn finish(&mut self, party: usize) {
        let found = &mut self.parties[party];
        found.is_over = true;
        let (life, pulls, serves) = (found.life, found.pulls, found.serves);
        let Some(request) = found.request.take().filter(|_| self.is_alive(life)) else { return };
        self.note(&[31, party as u64], || format!("tier {}: party {party} finishes", life.tier));
        self.note_finished(party, life.tier, pulls, serves);
        let ended = self.call(life.tier, |manager, now| manager.request_finish(now, request));
        self.report.check(ended.is_ok(), Invariant::RightOutcome, || format!("finish is refused: {ended:?}"));
        let Some(pull) = pulls else { return };
        let lookup = (life.tier, pull.from, KvRequestId::new(&id_text(pull.id)));
        self.report.check(!self.unclosed.contains(&lookup), Invariant::Rest, || {
            format!("tier {}: id {} is over, and {} does not hear of it", life.tier, pull.id, pull.from)
        });
    }

    // ---- pulling ----

    pub fn load(&mut self, party: usize, keys: &[u8], looked_up_long_ago: bool) {
        let Some(request) = self.begin(party) else { return };
        let (life, pull) = (self.parties[party].life, self.parties[party].pulls);
        let Some(pull) = pull else { return };
        let tier = life.tier;
        let job = self.new_job();
        let taken = self.tiers[tier].region.take(keys.len(), Use::Destination(job), &mut self.rng);
        let Some(blocks) = taken else { return };
        for block in &blocks {
            let reused = self.writes_under_way_into(tier, *block);
            self.saw_if(reused, Seen::BlockReusedWhileWriteUnderWay);
        }
        let load = Load {
            party,
            pull,
            keys: keys.to_vec(),
            blocks: blocks.clone(),
            submitted: self.clock.now,
            timeout: self.parties[party].timeouts.load.unwrap_or(secs(30)),
            looked_up_long_ago,
            is_sent: false,
            finished: None,
        };
        self.note(&[32, job.0], || {
            format!("tier {tier}: load {job} of {} for {keys:?} to {blocks:?}", pull.id)
        });
        self.note_load(tier, &load);
        self.tiers[tier].jobs.insert(job, Job::Load(load));
        let (bytes, to) = (key_bytes(keys), indexes(&blocks));
        let taken = self.call(tier, |manager, now| manager.submit_load(now, request, job, view(&bytes), &to));
        if taken.is_err() {
            self.report.saw(Seen::SecondLoadRefused);
            self.note(&[33, job.0], || format!("tier {tier}: load {job} is refused: {taken:?}"));
            self.tiers[tier].jobs.remove(&job);
            blocks.iter().for_each(|block| self.tiers[tier].region.let_go(*block));
            self.report.check(!pull.symmetric, Invariant::RightOutcome, || {
                format!("tier {tier}: a load of confirmed hits is refused: {taken:?}")
            });
        }
    }

    /// Begins a round: looks some keys up.
    fn look(&mut self, party: usize) {
        let Some(request) = self.begin(party) else { return };
        let count = self.rng.usize(1..6);
        let keys = self.some_keys(count);
        let tier = self.parties[party].life.tier;
        let states = self.states_at(tier, request, &keys);
        self.call(tier, |manager, now| manager.flush_lookups(now)).expect("not shut down");
        self.note(&[34, party as u64], || {
            format!("tier {tier}: party {party} looks {keys:?} up: {states:?}")
        });
        let now = self.clock.now;
        let found = &mut self.parties[party];
        (found.asked, found.settled, found.progress) = (keys, 0, now);
        found.round_began.get_or_insert(now);
        self.clock.after(millis(self.rng.u64(1..60)), Event::Act(Act::Poll { party }));
    }

    fn states_at(&mut self, tier: usize, request: RequestId, keys: &[u8]) -> Vec<LookupState> {
        let mut states = vec![LookupState::Pending; keys.len()];
        let bytes = key_bytes(keys);
        let asked = self.call(tier, |manager, now| manager.lookup(now, request, view(&bytes), &mut states));
        self.report.check(asked.is_ok(), Invariant::RightOutcome, || format!("lookup is refused: {asked:?}"));
        states
    }

    /// Asks again what has become of the lookup; goes on to the load once all is known.
    fn poll(&mut self, party: usize) {
        let Some(request) = self.begin(party) else { return };
        let (tier, keys) = (self.parties[party].life.tier, self.parties[party].asked.clone());
        let states = self.states_at(tier, request, &keys);
        self.note_poll(party, &states);
        if states.contains(&LookupState::Retry) {
            return self.clock.after(millis(self.rng.u64(5..2_000)), Event::Act(Act::Poll { party }));
        }
        let late = self.rng.u8(..30) == 0;
        let wait = if late { secs(self.rng.u64(31..40)) } else { micros(self.rng.u64(10..3_000)) };
        self.clock.after(wait, Event::Act(Act::LoadHits { party }));
    }

    fn load_hits(&mut self, party: usize) {
        let Some(request) = self.begin(party) else { return };
        let found = &self.parties[party];
        let (tier, asked) = (found.life.tier, found.asked.clone());
        let old = found.round_began.is_some_and(|began| self.clock.now.since(began) > secs(25));
        let states = self.states_at(tier, request, &asked);
        let hits = asked.iter().zip(&states).filter(|(_, state)| **state == LookupState::Hit);
        let hits: Vec<u8> = hits.map(|(key, _)| *key).collect();
        if !hits.is_empty() && self.rng.u8(..10) > 0 {
            self.load(party, &hits, old);
            self.parties[party].round_began = None;
        }
        let found = &mut self.parties[party];
        found.rounds_left = found.rounds_left.saturating_sub(1);
        let (next, most) = match found.rounds_left {
            0 => (Act::Finish { party }, 400_000),
            _ => (Act::Look { party }, 20_000),
        };
        self.clock.after(micros(self.rng.u64(10..most)), Event::Act(next));
    }

    // ---- offering ----

    fn fill(&mut self, tier: usize, keys: &[u8]) -> Option<Vec<u32>> {
        let blocks = self.tiers[tier].region.take(keys.len(), Use::Source, &mut self.rng)?;
        for (key, block) in keys.iter().zip(&blocks) {
            self.tiers[tier].region.write(*block, content_of(tier, *key));
        }
        Some(blocks)
    }

    fn store(&mut self, party: usize, keys: &[u8]) {
        let Some(request) = self.begin(party) else { return };
        let (tier, serves) = (self.parties[party].life.tier, self.parties[party].serves);
        let (Some(id), Some(blocks)) = (serves, self.fill(tier, keys)) else { return };
        let job = self.new_job();
        self.note(&[35, job.0], || format!("tier {tier}: store {job} of {id} for {keys:?} from {blocks:?}"));
        self.note_store(id, keys);
        let store = Store { id: Some(id), blocks: blocks.clone(), submitted: self.clock.now };
        self.tiers[tier].jobs.insert(job, Job::Store(store));
        let (bytes, from) = (key_bytes(keys), indexes(&blocks));
        let taken =
            self.call(tier, |manager, now| manager.submit_store(now, request, job, view(&bytes), &from));
        self.report.check(taken.is_ok(), Invariant::RightOutcome, || format!("store is refused: {taken:?}"));
    }

    pub fn publish(&mut self, tier: usize, keys: &[u8]) {
        let new: Vec<u8> =
            keys.iter().copied().filter(|key| !self.tiers[tier].published.contains_key(key)).collect();
        let Some(blocks) = self.fill(tier, &new) else { return };
        self.tiers[tier].published.extend(new.iter().copied().zip(blocks.iter().copied()));
        self.tiers[tier].changed = self.clock.now;
        self.note(&[36, tier as u64], || format!("tier {tier}: publishes {new:?} at {blocks:?}"));
        let (bytes, at) = (key_bytes(&new), indexes(&blocks));
        let done = self.call(tier, |manager, now| manager.publish(now, view(&bytes), &at));
        self.report.check(done.is_ok(), Invariant::RightOutcome, || format!("publish is refused: {done:?}"));
    }

    pub fn unpublish(&mut self, tier: usize, keys: &[u8]) {
        let bytes = key_bytes(keys);
        let mut states = vec![UnpublishState::NotFound; keys.len()];
        let out = self.call(tier, |manager, _| manager.unpublish(view(&bytes), &mut states));
        self.tiers[tier].changed = self.clock.now;
        self.note(&[37, tier as u64], || format!("tier {tier}: unpublishes {keys:?}: {states:?}"));
        self.saw_if(states.contains(&UnpublishState::Busy), Seen::UnpublishBusy);
        if !out.unwrap_or(false) {
            return;
        }
        for key in keys {
            let Some(block) = self.tiers[tier].published.remove(key) else { continue };
            let is_read = self.is_read(tier, block, true);
            self.report.check(!is_read, Invariant::PinsHeld, || {
                format!("tier {tier}: key {key} may be unpublished while a transfer reads block {block}")
            });
            self.tiers[tier].region.let_go(block);
        }
    }

    // ---- serving ----

    /// Takes what peers have asked; the answers come later.
    pub fn serve(&mut self, tier: usize) {
        for work in self.call(tier, |manager, now| manager.serve_work(now)) {
            let question = work.question;
            let is_new = self.tiers[tier].contexts.insert(question.serve);
            self.report.check(is_new == question.opens, Invariant::RightOutcome, || {
                format!("tier {tier}: context {} is not opened exactly once", question.serve)
            });
            let keys = question.keys.iter().map(|key| key[0]).collect();
            self.tiers[tier].questions.push((question.serve, keys));
            let slow = self.rng.u8(..20) == 0;
            let wait = if slow { secs(self.rng.u64(1..8)) } else { micros(self.rng.u64(10..40_000)) };
            let act = Act::Answer { life: self.life(tier), serve: question.serve };
            self.clock.after(wait, Event::Act(act));
        }
    }

    pub fn answer(&mut self, tier: usize, serve: ServeId) {
        let place = self.tiers[tier].questions.iter().position(|(of, _)| *of == serve);
        let Some(place) = place else { return };
        let (_, keys) = self.tiers[tier].questions.remove(place);
        let states: Vec<LookupState> = keys.iter().map(|_| self.serve_state()).collect();
        let hits: Vec<u8> = keys
            .iter()
            .zip(&states)
            .filter(|(_, state)| **state == LookupState::Hit)
            .map(|(key, _)| *key)
            .collect();
        let pinned = if hits.is_empty() { Vec::new() } else { vec![self.pin(tier, &hits)] };
        self.note(&[38, tier as u64, serve.0], || format!("tier {tier}: answers {serve} with {states:?}"));
        let late = !self.tiers[tier].manager.has_serve_work();
        self.saw_if(late, Seen::AnswerAfterLookupEnded);
        let open = states.iter().any(|state| matches!(state, LookupState::Pending | LookupState::Retry));
        let answer = ServeAnswer { states, pinned };
        self.call(tier, |manager, now| manager.serve_answered(now, serve, answer));
        if open && !self.resting {
            self.clock.after(millis(self.rng.u64(5..900)), Event::Act(Act::Serve { life: self.life(tier) }));
        }
    }

    fn serve_state(&mut self) -> LookupState {
        if self.resting {
            return LookupState::Miss;
        }
        let (state, seen) = match self.rng.u8(..10) {
            0..6 => (LookupState::Hit, Seen::ServedHit),
            6..8 => (LookupState::Miss, Seen::ServedMiss),
            8 => (LookupState::Pending, Seen::ServedPending),
            _ => (LookupState::Retry, Seen::ServedRetry),
        };
        self.report.saw(seen);
        state
    }

    /// A serving job holds the hits, as far as there are blocks.
    fn pin(&mut self, tier: usize, hits: &[u8]) -> PinnedHits {
        let Some(blocks) = self.fill(tier, hits) else {
            return PinnedHits { job: None, blocks: vec![None; hits.len()] };
        };
        let job: JobId = self.new_job();
        let store = Store { id: None, blocks: blocks.clone(), submitted: self.clock.now };
        self.tiers[tier].jobs.insert(job, Job::Store(store));
        PinnedHits {
            job: Some(job),
            blocks: blocks.into_iter().map(|block| Some(BlockIndex(block))).collect(),
        }
    }

    pub fn some_keys(&mut self, count: usize) -> Vec<u8> {
        let mut keys: Vec<u8> = (0..count).map(|_| self.rng.u8(..KEYS)).collect();
        keys.sort_unstable();
        keys.dedup();
        self.rng.shuffle(&mut keys);
        keys
    }
}

fn roles_of(serves: Option<u32>, pulls: Option<Pull>, by_name: bool) -> Roles {
    let consumer = pulls.map(|pull| {
        let name = if by_name { alias_of(pull.from) } else { name_of(pull.from) };
        let source = Source {
            kv_request_id: KvRequestId::new(&id_text(pull.id)),
            peer: PeerId::parse(&name).expect("a name"),
        };
        if pull.symmetric { ConsumerRole::Symmetric(source) } else { ConsumerRole::PrefillDecode(source) }
    });
    let producer = serves.map(|id| ProducerRole::Serves(KvRequestId::new(&id_text(id))));
    Roles { consumer, producer }
}
