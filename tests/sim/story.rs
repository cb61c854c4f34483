//! What engines are up to: each story is one `kv_request_id` between two tiers, its calls in an order that chance makes.

use std::ops::Range;
use std::time::Duration;

use p2pkv::protocol::manager::RequestTimeouts;

use crate::clock::{Event, Life, millis, secs};
use crate::coverage::Seen;
use crate::engine::{Act, Party, Pull};
use crate::model::IdStory;
use crate::world::World;

impl World {
    pub fn plan_stories(&mut self) {
        for _ in 0..self.plan.stories {
            let begins = self.time_within(self.plan.span);
            if self.rng.bool() { self.tell_pd(begins) } else { self.tell_symmetric(begins) }
        }
        for tier in 0..self.plan.tiers {
            for _ in 0..self.rng.usize(0..4) {
                self.plan_publication(tier);
            }
        }
    }

    fn time_within(&mut self, span: Duration) -> Duration {
        millis(self.rng.u64(0..span.as_millis() as u64))
    }

    fn plan(&mut self, after: Duration, act: Act) {
        self.clock.after(after, Event::Act(act));
    }

    fn plan_publication(&mut self, tier: usize) {
        let life = Life { tier, number: 0 };
        let keys = self.some_keys(8);
        let at = self.time_within(self.plan.span) / 2;
        self.plan(at, Act::Publish { life, keys: keys.clone() });
        if self.rng.bool() {
            let until = at + self.time_within(self.plan.span) / 4;
            self.plan(until, Act::Unpublish { life, keys });
        }
    }

    /// Two different tiers, producer first, and an id: mostly a new one.
    fn cast(&mut self) -> (usize, usize, u32) {
        let used: Vec<u32> = self.ids.keys().copied().collect();
        if !used.is_empty() && self.rng.u8(..8) == 0 {
            let id = used[self.rng.usize(..used.len())];
            let story = &self.ids[&id];
            return (story.producer, story.consumer, id);
        }
        let mut producer = self.rng.usize(..self.plan.tiers);
        let mut consumer = (producer + self.rng.usize(1..self.plan.tiers)) % self.plan.tiers;
        if !self.plan.may_pull(consumer, producer) {
            std::mem::swap(&mut consumer, &mut producer);
        }
        let id = self.ids.len() as u32;
        self.ids.insert(id, IdStory::new(producer, consumer));
        (producer, consumer, id)
    }

    fn party(&mut self, tier: usize, serves: Option<u32>, pulls: Option<Pull>, rounds_left: u32) -> usize {
        let now = self.clock.now;
        let timeouts = self.some_timeouts();
        self.parties.push(Party {
            life: self.life(tier),
            serves,
            pulls,
            timeouts,
            request: None,
            is_over: false,
            rounds_left,
            asked: Vec::new(),
            round_began: None,
            settled: 0,
            progress: now,
        });
        self.parties.len() - 1
    }

    /// Longer than anything takes where nothing is done to anybody.
    fn some_timeouts(&mut self) -> RequestTimeouts {
        let mut some = |least| (self.rng.u8(..4) == 0).then(|| secs(self.rng.u64(least..90)));
        RequestTimeouts { load: some(3), lookup: some(16), store: None }
    }

    /// The producer will have every block: stores before or after the fetch, in parts, twice, or never.
    fn tell_pd(&mut self, begins: Duration) {
        let (producer, consumer, id) = self.cast();
        let offers = self.party(producer, Some(id), None, 0);
        let pull = Pull { id, from: producer, symmetric: false };
        // Some requests serve one id while they pull another.
        let also_serves = (self.rng.u8(..6) == 0).then(|| self.cast()).filter(|(from, ..)| *from == consumer);
        let pulls = self.party(consumer, also_serves.map(|(.., id)| id), Some(pull), 0);
        let spread = self.spread();
        let at = |world: &mut World, range: Range<u64>| {
            begins + spread * u32::try_from(world.rng.u64(range)).unwrap_or_default() / 100
        };
        let count = self.rng.usize(1..7);
        let mut keys = self.some_keys(count);
        let (early, late) = (at(self, 0..20), at(self, 0..20));
        self.plan(early, Act::Begin { party: offers });
        self.plan(late, Act::Begin { party: pulls });

        let mut parts: Vec<Vec<u8>> = keys.chunks(1 + count / 2).map(<[u8]>::to_vec).collect();
        match self.rng.u8(..10) {
            0 => {
                self.report.saw(Seen::StoreNever);
                parts.clear();
            }
            1..3 => parts.push(keys.clone()),
            3 => drop(parts.pop()),
            _ => {}
        }
        for part in parts {
            let when = at(self, 0..100);
            self.plan(when, Act::Store { party: offers, keys: part });
        }
        if self.rng.u8(..5) == 0 {
            keys.push(keys[0]);
        }
        for _ in 0..1 + self.rng.u8(..10) / 9 {
            let when = at(self, 0..100);
            self.plan(when, Act::Load { party: pulls, keys: keys.clone() });
        }
        let patient = self.rng.u8(..3) > 0;
        let (least, most) = if patient { (100, 300) } else { (0, 150) };
        for party in [offers, pulls] {
            // Some forget to.
            if self.rng.u8(..4) == 0 {
                continue;
            }
            let when = at(self, least..most);
            self.plan(when, Act::Finish { party });
        }
    }

    /// Over how long the calls of a story are spread.
    fn spread(&mut self) -> Duration {
        match self.rng.u8(..20) {
            0 => secs(self.rng.u64(20..70)),
            1..6 => millis(self.rng.u64(300..5_000)),
            _ => millis(self.rng.u64(1..300)),
        }
    }

    /// The consumer asks first, then loads the hits, for some rounds.
    fn tell_symmetric(&mut self, begins: Duration) {
        let (producer, consumer, id) = self.cast();
        let many = self.rng.u8(..60) == 0;
        let rounds = if many { 50 } else { self.rng.u32(1..5) };
        let pull = Pull { id, from: producer, symmetric: true };
        let serves = (self.rng.u8(..6) == 0).then(|| self.cast()).filter(|(from, ..)| *from == consumer);
        let serves = serves.map(|(.., id)| id);
        let party = self.party(consumer, serves, Some(pull), rounds);
        if many {
            self.report.saw(Seen::FiftyRounds);
        }
        let life = self.life(producer);
        let keys = self.some_keys(10);
        self.plan(begins / 2, Act::Publish { life, keys });
        self.plan(begins, Act::Look { party });
        if serves.is_some() {
            let (keys, when) = (self.some_keys(4), begins + millis(self.rng.u64(1..2_000)));
            self.plan(when, Act::Store { party, keys });
        }
        // Some give up before their rounds are over.
        let patience = if self.rng.u8(..4) == 0 { millis(self.rng.u64(1..400)) } else { secs(100) };
        self.plan(begins + patience, Act::Finish { party });
    }
}
