//! What each tier has been asked by its peers, round by round, as seen from outside: whether its acknowledgements are
//! true, and which load a write belongs to.

use std::collections::BTreeMap;

use p2pkv::protocol::ids::{JobId, KvRequestId, LoadToken, SessionId};
use p2pkv::protocol::message::{Fetch, Message};

use crate::clock::Life;
use crate::coverage::Seen;
use crate::report::Invariant;
use crate::world::World;

/// Which load a `fetch` on the wire is for: what no message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchTag {
    pub consumer: Life,
    pub job: JobId,
}

/// Peer, id and number.
pub type RoundOf = (usize, KvRequestId, u64);

#[derive(Debug, Default)]
pub struct Entry {
    pub tag: Option<FetchTag>,
    token: Option<u64>,
    remotes: Vec<u64>,
    /// Acknowledgements since a fetch or lookup last named the round.
    acks: u32,
    /// The session that sent them: another one does not know of them.
    acked_in: Option<SessionId>,
    owes_ack: bool,
    order: u64,
}

impl Entry {
    pub fn is_acknowledged(&self) -> bool {
        self.acks > 0
    }
}

#[derive(Debug, Default)]
pub struct Ledger {
    rounds: BTreeMap<RoundOf, Entry>,
    last: u64,
}

impl Ledger {
    fn entry(&mut self, peer: usize, id: &KvRequestId, round: u64) -> &mut Entry {
        self.rounds.entry((peer, id.clone(), round)).or_default()
    }

    fn on_fetch(&mut self, peer: usize, fetch: &Fetch, tag: Option<FetchTag>) {
        self.last += 1;
        let order = self.last;
        let entry = self.entry(peer, &fetch.kv_request_id, fetch.round_seq.0);
        *entry = Entry {
            tag,
            token: fetch.load_token,
            remotes: fetch.block_indexes.clone(),
            acks: 0,
            acked_in: None,
            owes_ack: false,
            order,
        };
    }

    /// The round that a write to `remote` is for: the latest that named the block, and the load's token where there is
    /// one. `is_liar`: an old fetch of the peer's may have come again, and wait; rounds that are over are not meant then.
    pub fn round_of_write(
        &self,
        peer: usize,
        load: Option<LoadToken>,
        remote: u32,
        is_liar: bool,
    ) -> Option<(&RoundOf, &Entry)> {
        let fits = |entry: &Entry| {
            entry.remotes.contains(&u64::from(remote)) && load.is_none_or(|load| entry.token == Some(load.0))
        };
        let fitting = self.rounds.iter().filter(|((of, ..), entry)| *of == peer && fits(entry));
        fitting.max_by_key(|(_, entry)| (!is_liar || !entry.is_acknowledged(), entry.order))
    }

    pub fn forget_peer(&mut self, peer: usize) {
        self.rounds.retain(|(of, ..), _| *of != peer);
    }

    /// Aborts of clean peers that were never acknowledged.
    pub fn owed_acks(&self) -> impl Iterator<Item = &RoundOf> {
        self.rounds.iter().filter_map(|(round, entry)| entry.owes_ack.then_some(round))
    }
}

impl World {
    /// Before a message is handed to `to`.
    pub fn note_delivered(&mut self, from: usize, to: usize, message: &Message, tag: Option<FetchTag>) {
        match message {
            Message::AbortFetch(abort) => self.note_abort(from, to, &abort.kv_request_id, abort.round_seq.0),
            Message::ConnectAck(_) => self.tiers[to].note_acknowledged(from, self.clock.now),
            Message::Fetch(fetch) if !fetch.keys.is_empty() => {
                self.tiers[to].ledger.on_fetch(from, fetch, tag)
            }
            Message::Lookup(lookup) => {
                let entry = self.tiers[to].ledger.entry(from, &lookup.kv_request_id, lookup.round_seq.0);
                (entry.acks, entry.owes_ack) = (0, false);
            }
            Message::AbortAck(ack) => self.note_reply(from, to, &ack.kv_request_id, 'a'),
            Message::TransferDone(done) => self.note_reply(from, to, &done.kv_request_id, 'd'),
            _ => {}
        }
    }

    fn note_abort(&mut self, from: usize, to: usize, id: &KvRequestId, round: u64) {
        let writes = self.writes_of(to, from, id, round);
        let known = self.tiers[to].ledger.rounds.contains_key(&(from, id.clone(), round));
        let has_session = self.tiers[to].sessions.values().any(|link| link.peer == from);
        let entry = self.tiers[to].ledger.entry(from, id, round);
        let repeated = entry.acks > 0;
        entry.owes_ack = !repeated && has_session;
        for (seen, happened) in [
            (Seen::AbortOfUnknown, !known),
            (Seen::AbortRepeated, repeated),
            (Seen::AbortWhileWriting, writes > 0),
        ] {
            if happened {
                self.report.saw(seen);
            }
        }
    }

    /// Before a message leaves a tier. Gives a fetch its tag.
    pub fn note_sent(
        &mut self,
        tier: usize,
        to: usize,
        session: SessionId,
        message: &Message,
    ) -> Option<FetchTag> {
        match message {
            Message::AbortAck(ack) => {
                let (id, round) = (&ack.kv_request_id, ack.round_seq.0);
                self.check_nothing_writes(tier, to, id, round, "abort_ack");
                let stale = self.may_be_stale(tier, to);
                let entry = self.tiers[tier].ledger.entry(to, id, round);
                if entry.acked_in.replace(session) != Some(session) {
                    entry.acks = 0;
                }
                entry.acks += u32::from(!stale);
                entry.owes_ack = false;
                let acks = entry.acks;
                self.report.check(acks <= 1, Invariant::OneAck, || {
                    format!("tier {tier} sends {acks} abort_acks for {id} round {round} to {to}")
                });
                None
            }
            Message::TransferDone(done) => {
                let (id, round) = (&done.kv_request_id, done.round_seq.0);
                self.check_nothing_writes(tier, to, id, round, "transfer_done");
                let next_is_open = self.tiers[tier].ledger.rounds.contains_key(&(to, id.clone(), round + 1));
                self.saw_if(next_is_open, Seen::RoundEndedWithNextPinned);
                None
            }
            Message::Disconnect(disconnect) => {
                let reason = disconnect.reason.as_deref().unwrap_or_default();
                self.saw_if(reason.starts_with("no answer to a lookup"), Seen::LookupDeadline);
                self.saw_if(reason.starts_with("no session within"), Seen::HandshakeDeadline);
                None
            }
            Message::Lookup(lookup) => {
                self.unclosed.insert((tier, to, lookup.kv_request_id.clone()));
                None
            }
            Message::Fetch(fetch) => {
                self.unclosed.remove(&(tier, to, fetch.kv_request_id.clone()));
                self.note_fetch(tier, fetch)
            }
            _ => None,
        }
    }

    fn note_fetch(&mut self, tier: usize, fetch: &Fetch) -> Option<FetchTag> {
        let first = u32::try_from(*fetch.block_indexes.first()?).ok()?;
        let job = self.tiers[tier].load_into(first)?;
        if let Some(load) = self.tiers[tier].load_mut(job) {
            load.is_sent = true;
        }
        Some(FetchTag { consumer: self.life(tier), job })
    }

    /// What waited for the peer's `connect_ack` leaves with it. A liar can have named a round a second time meanwhile.
    fn may_be_stale(&self, tier: usize, to: usize) -> bool {
        let now = Some(self.clock.now);
        let links = self.tiers[tier].sessions.values();
        self.plan.is_hostile(tier, to)
            && links.filter(|link| link.peer == to).any(|link| link.acknowledged == now)
    }

    fn check_nothing_writes(&mut self, tier: usize, to: usize, id: &KvRequestId, round: u64, what: &str) {
        let writes = self.writes_of(tier, to, id, round);
        let stale = self.may_be_stale(tier, to);
        self.report.check(writes == 0 || stale, Invariant::OneAck, || {
            format!(
                "tier {tier} sends {what} for {id} round {round} to {to}, and {writes} transfers still write"
            )
        });
    }

    /// After a session ended nothing of it is owed any more.
    pub fn note_closed(&mut self, tier: usize, session: SessionId) {
        let Some(peer) = self.tiers[tier].peer_of(session) else { return };
        let others =
            self.tiers[tier].sessions.iter().filter(|(other, link)| **other != session && link.peer == peer);
        if others.count() == 0 {
            self.tiers[tier].ledger.forget_peer(peer);
            self.unclosed.retain(|(of, with, _)| (*of, *with) != (tier, peer));
            self.conclude_finishing(tier, Some(peer), true);
        }
    }
}
