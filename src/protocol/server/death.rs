//! The end of a session's rounds and lookups, a slice at a time.
//!
//! ```text
//!   death ──► doomed ──its turn, or its transfer ends──► ended as any round is, by the cause of death
//!                                                          │ transfers under way
//!                                                          ▼
//!                                                        Ending ── they end, or are abandoned ──► (gone)
//! ```
//!
//! What is doomed is found by nobody: no store, publication, answer or deadline changes it any more.

use std::collections::VecDeque;

use crate::protocol::context::{Cause, Context};
use crate::protocol::ids::{KvRequestId, RoundSeq};
use crate::protocol::message::Message;
use crate::protocol::steps::{ITEM, KEY, Slice};

use super::round::Reply;
use super::{Lookups, Rounds, ServerRole};

#[derive(Debug)]
pub struct Doomed {
    cause: Cause,
    pub rounds: Rounds,
    lookups: Lookups,
    /// What had to wait, and need not be done any more.
    waiting: VecDeque<Message>,
    /// What is under way when its turn comes is not waited for.
    abandons: bool,
}

impl ServerRole {
    /// The session is dead. Rounds with transfers under way stay until those are over.
    pub fn on_session_death(&mut self, cause: Cause) {
        self.task = None;
        self.keys_waiting = 0;
        let (rounds, lookups) = (std::mem::take(&mut self.rounds), std::mem::take(&mut self.lookups));
        let waiting = std::mem::take(&mut self.waiting);
        self.doomed = Some(Doomed { cause, rounds, lookups, waiting, abandons: false });
    }

    /// The data plane could not say within the drain time that the transfers ended: jobs end with a flag.
    pub fn abandon_transfers(&mut self, cause: Cause) {
        let nothing = || Doomed {
            cause,
            rounds: Rounds::new(),
            lookups: Lookups::new(),
            waiting: VecDeque::new(),
            abandons: true,
        };
        self.doomed.get_or_insert_with(nothing).abandons = true;
    }

    pub(super) fn end_doomed_slice(&mut self, cx: &mut Context, slice: &mut Slice) {
        while !slice.is_spent()
            && let Some(doomed) = &mut self.doomed
        {
            if let Some(((_, _, serve), inbound)) = doomed.lookups.pop_first() {
                inbound.forget(cx, serve);
                slice.spend(ITEM);
            } else if doomed.waiting.pop_front().is_some() {
                slice.spend(KEY);
            } else if let Some(name) = doomed.rounds.keys().next().cloned() {
                slice.spend(ITEM + self.end_doomed(cx, &name));
            } else if doomed.abandons && !self.rounds.is_empty() {
                // Those that were ended before, and have transfers under way.
                doomed.rounds = std::mem::take(&mut self.rounds);
            } else {
                self.doomed = None;
            }
        }
    }

    /// Ends the round, if the session's death has not done so yet. How much was let go with it.
    pub(super) fn end_doomed(&mut self, cx: &mut Context, name: &(KvRequestId, RoundSeq)) -> usize {
        let Some(doomed) = &mut self.doomed else { return 0 };
        let Some(round) = doomed.rounds.remove(name) else { return 0 };
        let (cause, abandons) = (doomed.cause.clone(), doomed.abandons);
        let size = round.size().min(cx.config.slice);
        let is_abandoned = abandons && !round.transfers_under_way().is_empty();
        self.rounds.insert(name.clone(), round);
        self.end(cx, name, cause, Reply::Nothing);
        if is_abandoned {
            self.abandon(cx, name);
        }
        size
    }

    fn abandon(&mut self, cx: &mut Context, name: &(KvRequestId, RoundSeq)) {
        let Some(mut round) = self.remove_round(name) else { return };
        for transfer in round.transfers_under_way() {
            cx.transfers.remove(&transfer);
            self.transfers_live -= 1;
        }
        self.stores_live -= round.jobs.len();
        let (_, remains) = round.finish(cx, (self.session, name), true);
        self.let_go(cx, remains);
    }
}
