//! The data planes' double: a fenced one, which takes a block only while it is armed, and one that writes whenever it
//! likes. Transfers go block by block, may fail, get stuck, outlive their session or their process.

use std::collections::BTreeSet;

use p2pkv::protocol::ids::{BlockIndex, BlockPair, LoadToken, SessionId, TransferId};
use p2pkv::protocol::output::Registration;
use p2pkv::protocol::timer::Timestamp;

use crate::clock::{Event, Life, micros, millis, secs};
use crate::coverage::Seen;
use crate::ledger::{FetchTag, RoundOf};
use crate::plan::Health;
use crate::region::Use;
use crate::report::Invariant;
use crate::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MoveId(pub u64);

/// How a session's peer is written to.
#[derive(Clone, Debug)]
pub struct Route {
    pub to: usize,
    /// Whose memory it leads to, once it was reached.
    reached: Option<u32>,
    /// Shown to a fenced receiver.
    pub token: Option<Vec<u8>>,
}

/// A load whose blocks a fenced peer may write.
#[derive(Debug)]
pub struct Armed {
    session: SessionId,
    open: BTreeSet<u32>,
    /// The fence is closing: what is being received still lands.
    closing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Completes,
    Fails { at: usize, decisive: bool },
    Sticks { at: usize, millis: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Moving,
    /// To be ended as soon as may be.
    Cancelled,
    /// Its process is dead; one block is still under way.
    Severed {
        content: u64,
    },
}

#[derive(Debug)]
pub struct Transfer {
    by: Life,
    session: SessionId,
    transfer: TransferId,
    to: Life,
    token: Option<Vec<u8>>,
    load: Option<LoadToken>,
    tag: Option<FetchTag>,
    round: Option<RoundOf>,
    pairs: Vec<BlockPair>,
    moved: usize,
    fate: Fate,
    state: State,
    due: Timestamp,
    /// Since when it cannot get through.
    stalled: Option<Timestamp>,
}

impl Transfer {
    fn is_fenced(&self) -> bool {
        self.token.is_some()
    }
}

/// How a transfer ends for its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    Failed { decisive: bool },
    Unwanted,
}

impl World {
    // ---- what a tier asks for ----

    pub fn register(&mut self, tier: usize, session: SessionId, registration: Registration) {
        let Some(to) = self.tiers[tier].peer_of(session) else { return };
        let token = match registration {
            Registration::Tcp { token, .. } => Some(token),
            Registration::Nixl { .. } => None,
        };
        self.tiers[tier].routes.insert(session, Route { to, reached: None, token });
        let slow = !self.plan.is_clean(tier, to) && self.rng.u8(..10) == 0;
        let takes = if slow { millis(self.rng.u64(100..6_000)) } else { micros(self.rng.u64(100..20_000)) };
        self.clock.after(takes, Event::Reached(self.life(tier), session));
    }

    pub fn on_reached(&mut self, life: Life, session: SessionId) {
        let tier = life.tier;
        if !self.is_alive(life) {
            return;
        }
        let Some(route) = self.tiers[tier].routes.get(&session).cloned() else { return };
        let peer = &self.tiers[route.to];
        let is_known = route.token.as_ref().is_none_or(|token| peer.tokens.contains_key(token));
        if peer.up && is_known && !self.network.is_blocked(tier, route.to) {
            let life = peer.life;
            if let Some(route) = self.tiers[tier].routes.get_mut(&session) {
                route.reached = Some(life);
            }
            self.note(&[10, tier as u64], || format!("tier {tier}: reaches the data plane of {}", route.to));
            return self.call(tier, |manager, now| manager.handle_peer_registered(now, session));
        }
        self.report.saw(Seen::PeerRefused);
        self.call(tier, |manager, now| manager.handle_peer_refused(now, session, "so told"));
    }

    pub fn arm(&mut self, tier: usize, session: SessionId, load: LoadToken, blocks: &[BlockIndex]) {
        let open = blocks.iter().map(|block| block.0).collect();
        self.tiers[tier].armed.insert(load, Armed { session, open, closing: false });
    }

    /// True if nothing can write any more; otherwise that is said later.
    pub fn disarm(&mut self, tier: usize, load: LoadToken) -> bool {
        let Some(armed) = self.tiers[tier].armed.get_mut(&load) else { return true };
        if self.rng.u8(..3) == 0 {
            armed.closing = true;
            let takes = if self.rng.u8(..8) == 0 { millis(200) } else { micros(self.rng.u64(50..5_000)) };
            self.clock.after(takes, Event::FenceCloses(Life { tier, number: self.tiers[tier].life }, load));
            return false;
        }
        self.tiers[tier].armed.remove(&load);
        true
    }

    pub fn on_fence_closed(&mut self, life: Life, load: LoadToken) {
        if self.is_alive(life) {
            self.tiers[life.tier].armed.remove(&load);
            self.note(&[11, life.tier as u64], || {
                format!("tier {}: fence of load {load} is closed", life.tier)
            });
            self.call(life.tier, |manager, now| manager.handle_disarmed(now, load));
        }
    }

    /// The last block that was armed is in: the fence is closed, and the tier hears of it soon.
    fn note_landed(&mut self, receiver: Life, load: LoadToken) {
        let armed = &mut self.tiers[receiver.tier].armed;
        if armed.get(&load).is_some_and(|armed| armed.open.is_empty() && !armed.closing) {
            armed.remove(&load);
            let takes = micros(self.rng.u64(0..3_000));
            self.clock.after(takes, Event::Landed(receiver, load));
        }
    }

    pub fn on_landed(&mut self, life: Life, load: LoadToken) {
        if self.is_alive(life) {
            self.report.saw(Seen::LoadLanded);
            self.note(&[14, life.tier as u64], || format!("tier {}: load {load} has landed", life.tier));
            self.call(life.tier, |manager, now| manager.handle_landed(now, load));
        }
    }

    /// False if the session has no route.
    pub fn write(
        &mut self,
        tier: usize,
        session: SessionId,
        transfer: TransferId,
        load: Option<LoadToken>,
        pairs: Vec<BlockPair>,
    ) -> bool {
        let Some(route) = self.tiers[tier].routes.get(&session).cloned() else { return false };
        let Some(number) = route.reached else { return false };
        let remote = pairs.first().map_or(0, |pair| pair.remote.0);
        let is_liar = self.plan.is_hostile(tier, route.to);
        let found = self.tiers[tier].ledger.round_of_write(route.to, load, remote, is_liar);
        let round = found.map(|(round, _)| round.clone());
        let tag = found.and_then(|(_, entry)| entry.tag);
        let acked = found.is_some_and(|(_, entry)| entry.is_acknowledged());
        self.report.check(!acked, Invariant::OneAck, || {
            format!("tier {tier} writes for {round:?}, whose abort it has acknowledged")
        });
        self.note(&[12, tier as u64, pairs.len() as u64], || {
            format!("tier {tier}: transfer {transfer} for {round:?} begins: {pairs:?}")
        });
        let moved = Transfer {
            by: self.life(tier),
            session,
            transfer,
            to: Life { tier: route.to, number },
            token: route.token,
            load,
            tag,
            round,
            fate: self.fate(tier, route.to, pairs.len()),
            pairs,
            moved: 0,
            state: State::Moving,
            due: self.clock.now,
            stalled: None,
        };
        self.last_move += 1;
        let id = MoveId(self.last_move);
        self.transfers.insert(id, moved);
        self.schedule(id, 50..3_000);
        true
    }

    fn fate(&mut self, by: usize, to: usize, blocks: usize) -> Fate {
        if self.plan.health(by, to) == Health::Clean || self.resting {
            return Fate::Completes;
        }
        let at = self.rng.usize(0..=blocks);
        match self.rng.u8(..20) {
            0..2 => Fate::Fails { at, decisive: self.rng.u8(..5) == 0 },
            2..4 => Fate::Sticks { at, millis: self.rng.u64(500..25_000) },
            _ => Fate::Completes,
        }
    }

    fn schedule(&mut self, id: MoveId, micros_from_now: std::ops::Range<u64>) {
        let wait = micros(self.rng.u64(micros_from_now));
        if let Some(moved) = self.transfers.get_mut(&id) {
            moved.due = self.clock.now + wait;
        }
        self.clock.after(wait, Event::Move(id));
    }

    pub fn cancel(&mut self, tier: usize, transfers: &[TransferId]) {
        let life = self.life(tier);
        self.cancel_where(|moved| moved.by == life && transfers.contains(&moved.transfer));
    }

    pub fn drop_peer(&mut self, tier: usize, session: SessionId) {
        let life = self.life(tier);
        self.tiers[tier].routes.remove(&session);
        self.tiers[tier].tokens.retain(|_, of| *of != session);
        self.cancel_where(|moved| moved.by == life && moved.session == session);
    }

    /// A fenced transfer ends soon; an unfenced one cannot be stopped, and perhaps it is.
    fn cancel_where(&mut self, is_meant: impl Fn(&Transfer) -> bool) {
        let meant = |(id, moved): (&MoveId, &Transfer)| is_meant(moved).then_some((*id, moved.is_fenced()));
        let meant: Vec<(MoveId, bool)> = self.transfers.iter().filter_map(meant).collect();
        for (id, fenced) in meant {
            if fenced || self.rng.bool() {
                if let Some(moved) = self.transfers.get_mut(&id) {
                    moved.state = State::Cancelled;
                }
                self.schedule(id, 10..3_000);
            }
        }
    }

    // ---- what happens ----

    pub fn on_move(&mut self, id: MoveId) {
        let now = self.clock.now;
        let Some(moved) = self.transfers.get_mut(&id).filter(|moved| moved.due <= now) else { return };
        if let State::Severed { content } = moved.state {
            self.land(id, Some(content));
            self.transfers.remove(&id);
            return;
        }
        let (by, to) = (moved.by.tier, moved.to);
        if !self.is_alive(to) {
            return self.end_transfer(id, End::Failed { decisive: true });
        }
        if self.network.is_blocked(by, to.tier) {
            return self.stall(id);
        }
        let Some(moved) = self.transfers.get_mut(&id) else { return };
        moved.stalled = None;
        let place = moved.moved;
        match (moved.state, moved.fate) {
            (State::Cancelled, _) => self.end_transfer(id, End::Unwanted),
            (_, Fate::Fails { at, decisive }) if at <= place => {
                self.report.saw(Seen::TransferFailed);
                self.end_transfer(id, End::Failed { decisive });
            }
            (_, Fate::Sticks { at, millis }) if at <= place => {
                moved.fate = Fate::Completes;
                self.report.saw(Seen::TransferStuck);
                self.schedule(id, millis * 1_000..millis * 1_000 + 1);
            }
            _ if place == moved.pairs.len() => self.end_transfer(id, End::Done),
            _ => self.move_on(id),
        }
    }

    fn stall(&mut self, id: MoveId) {
        let now = self.clock.now;
        let Some(moved) = self.transfers.get_mut(&id) else { return };
        let since = *moved.stalled.get_or_insert(now);
        if now.since(since) >= secs(10) {
            return self.end_transfer(id, End::Failed { decisive: true });
        }
        self.schedule(id, 100_000..500_000);
    }

    fn move_on(&mut self, id: MoveId) {
        if self.land(id, None) {
            if let Some(moved) = self.transfers.get_mut(&id) {
                moved.moved += 1;
            }
            self.schedule(id, 20..1_500);
        } else {
            self.report.saw(Seen::FenceRefusedWrite);
            self.end_transfer(id, End::Unwanted);
        }
    }

    /// The next block of a transfer reaches its destination. False if the receiver's fence keeps it out.
    fn land(&mut self, id: MoveId, content: Option<u64>) -> bool {
        let Some(moved) = self.transfers.get(&id) else { return false };
        let Some(pair) = moved.pairs.get(moved.moved).copied() else { return true };
        let (by, to, tag) = (moved.by, moved.to, moved.tag);
        let fenced_load = moved.load.filter(|_| moved.is_fenced());
        if !self.is_alive(to) {
            return false;
        }
        if let (Some(token), load) = (&moved.token, moved.load) {
            let tier = &mut self.tiers[to.tier];
            let session = tier.tokens.get(token).copied();
            let Some(armed) = load.and_then(|load| tier.armed.get_mut(&load)) else { return false };
            let admitted = session == Some(armed.session) || (armed.closing && session.is_none());
            if !admitted || !armed.open.remove(&pair.remote.0) {
                return false;
            }
            if armed.closing {
                self.report.saw(Seen::WriteWhileFenceCloses);
            }
        } else if self.plan.is_hostile(by.tier, to.tier) && !self.is_open(tag) {
            // What a liar made us write where no fence is cannot be kept out by anybody.
            return true;
        }
        self.check_landing(by, to, tag, pair.remote.0);
        let content = content.unwrap_or_else(|| self.tiers[by.tier].region.read(pair.local.0));
        self.tiers[to.tier].region.write(pair.remote.0, content);
        if let Some(load) = fenced_load {
            self.note_landed(to, load);
        }
        true
    }

    fn is_open(&self, tag: Option<FetchTag>) -> bool {
        tag.is_some_and(|tag| {
            self.is_alive(tag.consumer) && self.tiers[tag.consumer.tier].load(tag.job).is_some()
        })
    }

    /// Invariant 2: a byte lands only for a load that is open, or was reported with a flag.
    fn check_landing(&mut self, by: Life, to: Life, tag: Option<FetchTag>, block: u32) {
        let used = self.tiers[to.tier].region.used_as(block);
        if used == Use::Quarantined {
            return self.report.saw(Seen::LateWriteOfFlagged);
        }
        let is_for = tag.map(|tag| Use::Destination(tag.job));
        // A liar may guess the name and the blocks of its own load.
        let is_guess =
            tag.is_none() && matches!(used, Use::Destination(_)) && self.plan.is_hostile(by.tier, to.tier);
        self.report.check(is_for == Some(used) || is_guess, Invariant::NoLateWrite, || {
            format!(
                "tier {} writes into block {block} of tier {} for {tag:?}, but it is {used:?}",
                by.tier, to.tier
            )
        });
    }

    fn end_transfer(&mut self, id: MoveId, end: End) {
        let Some(moved) = self.transfers.remove(&id) else { return };
        if !self.is_alive(moved.by) {
            return;
        }
        let (tier, transfer) = (moved.by.tier, moved.transfer);
        self.note(&[13, tier as u64, transfer.0], || {
            format!("tier {tier}: transfer {transfer} ends: {end:?}")
        });
        self.call(tier, |manager, now| match end {
            End::Done => manager.handle_transfer_done(now, transfer),
            End::Failed { decisive } => manager.handle_transfer_failed(now, transfer, "so told", decisive),
            End::Unwanted => manager.handle_transfer_unwanted(now, transfer, "so told"),
        });
    }

    /// The process of a tier dies: its transfers stop, perhaps after one more block.
    pub fn sever_transfers_of(&mut self, tier: usize) {
        let life = self.life(tier);
        let own: Vec<MoveId> =
            self.transfers.iter().filter_map(|(id, moved)| (moved.by == life).then_some(*id)).collect();
        for id in own {
            let next = self.transfers.get(&id).and_then(|moved| moved.pairs.get(moved.moved)).copied();
            match next.filter(|_| self.rng.bool()) {
                Some(pair) => {
                    let content = self.tiers[tier].region.read(pair.local.0);
                    if let Some(moved) = self.transfers.get_mut(&id) {
                        moved.state = State::Severed { content };
                    }
                    self.schedule(id, 10..50_000);
                }
                None => drop(self.transfers.remove(&id)),
            }
        }
    }

    // ---- what checks ask ----

    /// Transfers of a round that may still write where the consumer counts on it.
    pub fn writes_of(
        &self,
        tier: usize,
        to: usize,
        id: &p2pkv::protocol::ids::KvRequestId,
        round: u64,
    ) -> usize {
        let is_of = |of: &RoundOf| of.0 == to && of.1 == *id && of.2 == round;
        let writes = |moved: &&Transfer| {
            moved.by.tier == tier
                && self.is_alive(moved.by)
                && moved.round.as_ref().is_some_and(is_of)
                && self.is_open(moved.tag)
        };
        self.transfers.values().filter(writes).count()
    }

    /// Whether a transfer may still read the block. `drained`: those whose session ended long ago do not count.
    pub fn is_read(&self, tier: usize, block: u32, drained: bool) -> bool {
        let life = self.life(tier);
        self.transfers.values().any(|moved| {
            let closed = self.tiers[tier].closed.get(&moved.session);
            let is_over = drained && closed.is_some_and(|closed| self.clock.now.since(*closed) >= secs(10));
            moved.by == life && !is_over && moved.pairs.iter().any(|pair| pair.local.0 == block)
        })
    }

    /// Whether something is on its way into a block that was given up with a flag, or is not there to be written.
    pub fn writes_under_way_into(&self, tier: usize, block: u32) -> bool {
        let life = self.life(tier);
        self.transfers
            .values()
            .any(|moved| moved.to == life && moved.pairs.iter().any(|pair| pair.remote.0 == block))
    }

    pub fn transfers_of(&self, tier: usize) -> usize {
        self.transfers.values().filter(|moved| moved.by.tier == tier).count()
    }
}
