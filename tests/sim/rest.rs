//! The end of a run: faults stop, engines finish, time passes, and then nothing may be left (invariants 1 and 7).

use crate::clock::secs;
use crate::coverage::Seen;
use crate::plan::Health;
use crate::report::Invariant;
use crate::world::World;

impl World {
    pub fn come_to_rest(&mut self) {
        if self.report.violation.is_some() {
            return;
        }
        self.note(&[60], || "everything comes to rest".to_owned());
        self.resting = true;
        if self.rng.u8(..4) == 0 {
            let end = self.clock.now + secs(self.rng.u64(20..130));
            self.run_until(end);
        }
        self.clock.drop_plans();
        self.network.mute.clear();
        self.unblock_all();
        (0..self.plan.tiers).for_each(|tier| self.restart(tier));
        let at_work = self.rng.u8(..6) == 0;
        if at_work {
            self.report.saw(Seen::ShutDownAtWork);
            self.shut_down();
        }
        (0..self.parties.len()).for_each(|party| self.finish(party));
        (0..self.plan.tiers).for_each(|tier| self.answer_all(tier));
        self.break_half_lost();
        self.pass_time();
        // A liar's peer may wait for what the liar never meant; that ends with the session.
        if !at_work && (self.plan.ends_with_shutdown || self.plan.worst() == Health::Hostile) {
            self.shut_down();
            self.pass_time();
        }
        (0..self.plan.tiers).for_each(|tier| self.check_rest(tier));
        (0..self.plan.tiers).for_each(|tier| self.conclude_finishing(tier, None, false));
    }

    fn pass_time(&mut self) {
        let end = self.clock.now + secs(300);
        self.run_until(end);
    }

    fn shut_down(&mut self) {
        self.shutting_down = true;
        for tier in 0..self.plan.tiers {
            self.call(tier, |manager, now| manager.shut_down(now));
        }
    }

    fn answer_all(&mut self, tier: usize) {
        self.serve(tier);
        while let Some((serve, _)) = self.tiers[tier].questions.first() {
            let serve = *serve;
            self.answer(tier, serve);
        }
    }

    /// Where only one direction was lost, the other end finds out now. A producer whose consumer has left unheard keeps the
    /// round of a fetch that no store meets until it says something to it, or loses its own connection.
    fn break_half_lost(&mut self) {
        for a in 0..self.plan.tiers {
            for b in (0..self.plan.tiers).filter(|b| *b != a) {
                if !self.plan.is_clean(a, b) {
                    self.break_connection(a, b);
                }
            }
        }
    }

    fn check_rest(&mut self, tier: usize) {
        if self.report.violation.is_some() {
            return;
        }
        let found = &self.tiers[tier];
        if let Some((job, open)) = found.jobs.first_key_value() {
            let what = format!("tier {tier}: job {job} never got a result: {open:?}");
            return self.report.violate(Invariant::OneResult, || what);
        }
        let published: Vec<u8> = found.published.keys().copied().collect();
        if !self.shutting_down {
            self.unpublish(tier, &published);
        }
        let found = &self.tiers[tier];
        let manager = &found.manager;
        let sessions = if self.shutting_down { 0 } else { manager.stats().peers as usize };
        let stats = manager.stats();
        let left = [
            ("the core's tables", !manager.is_quiescent()),
            ("pins", stats.blocks_pinned > 0),
            ("published keys", !self.shutting_down && stats.keys_published > 0),
            ("sessions", manager.sessions_open() != sessions),
            ("work", manager.has_unfinished_work()),
            ("deadlines", manager.next_deadline().is_some()),
            ("transfers", !manager.open_transfers().is_empty() || self.transfers_of(tier) > 0),
            ("open loads", !manager.open_loads().is_empty() || manager.has_exposed_loads()),
            ("armed blocks", !found.armed.is_empty()),
            ("serving contexts", !found.contexts.is_empty()),
            ("connections", found.sessions.len() != sessions),
        ];
        for (what, is_left) in left {
            self.report.check(!is_left, Invariant::Rest, || format!("tier {tier} at rest has {what} left"));
        }
        let owed = self.tiers[tier].ledger.owed_acks().find(|(peer, ..)| self.plan.is_clean(tier, *peer));
        if let Some(round) = owed {
            let what = format!("tier {tier} never acknowledged the abort of {round:?}");
            self.report.violate(Invariant::OneAck, || what);
        }
    }
}
