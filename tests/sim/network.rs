//! The control plane's double. A session has one outgoing connection, which keeps its order; different connections are as
//! fast or slow as they please. As the real one does, it tells the owner of a connection that was up when it is lost,
//! keeps dialling who does not listen yet, and lets the leftovers of a replaced connection arrive under an identity that
//! is no name.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use p2pkv::protocol::codec::{self, Decoded};
use p2pkv::protocol::ids::SessionId;
use p2pkv::protocol::message::{Dialect, Message};
use p2pkv::protocol::timer::Timestamp;

use crate::clock::{Event, Life, micros, millis, secs};
use crate::coverage::Seen;
use crate::ledger::FetchTag;
use crate::plan::{Health, Speech};
use crate::report::Invariant;
use crate::tier::name_of;
use crate::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WireId(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Dialing,
    /// To this life of the other tier.
    Up {
        life: u32,
    },
    /// Its owner has let it go; what was sent may still arrive.
    Closing {
        life: u32,
    },
    /// The owner has not noticed yet.
    Broken,
}

#[derive(Debug)]
pub struct Wire {
    from: Life,
    to: usize,
    session: SessionId,
    state: State,
    /// The other side does not read it: it still holds an earlier connection of the same name.
    deaf: bool,
    messages: VecDeque<Envelope>,
    last_due: Timestamp,
}

#[derive(Clone, Debug)]
pub struct Envelope {
    due: Timestamp,
    pub kind: &'static str,
    pub bytes: Vec<u8>,
    pub tag: Option<FetchTag>,
}

#[derive(Debug, Default)]
pub struct Network {
    wires: BTreeMap<WireId, Wire>,
    of_session: BTreeMap<(usize, SessionId), WireId>,
    /// Directions in which nothing gets through.
    blocked: BTreeSet<(usize, usize)>,
    /// Whose messages arrive under their sender's name.
    newest: BTreeMap<(usize, usize), WireId>,
    /// Directions in which answers to lookups get lost, as from an engine that hangs.
    pub mute: BTreeSet<(usize, usize)>,
    /// What hostile pairs have said, to be said again.
    pub heard: BTreeMap<(usize, usize), Vec<Envelope>>,
    last: u64,
}

/// Messages of a hostile pair that are remembered.
const REMEMBERED: usize = 64;

impl Network {
    pub fn is_blocked(&self, a: usize, b: usize) -> bool {
        self.blocked.contains(&(a, b)) || self.blocked.contains(&(b, a))
    }
}

impl World {
    // ---- what a tier asks for ----

    pub fn open_wire(&mut self, tier: usize, session: SessionId, to: usize) {
        self.network.last += 1;
        let wire = WireId(self.network.last);
        let is_faulty = !self.plan.is_clean(tier, to) && !self.resting;
        let deaf = is_faulty && self.rng.u8(..20) == 0;
        if deaf {
            self.report.saw(Seen::DeafConnection);
        }
        let from = self.life(tier);
        let now = self.clock.now;
        let opened =
            Wire { from, to, session, state: State::Dialing, deaf, messages: VecDeque::new(), last_due: now };
        self.network.wires.insert(wire, opened);
        self.network.of_session.insert((tier, session), wire);
        let by_name = self.tiers[tier].sessions.get(&session).is_some_and(|link| link.by_name);
        let takes = if by_name { micros(self.rng.u64(10..10_000)) } else { micros(1) };
        self.clock.after(takes, Event::Resolved(from, session));
    }

    pub fn on_resolved(&mut self, life: Life, session: SessionId) {
        let tier = life.tier;
        let Some(link) = self.tiers[tier].sessions.get(&session).filter(|_| self.is_alive(life)) else {
            return;
        };
        let (peer, by_name) = (link.peer, link.by_name);
        let is_faulty = !self.plan.is_clean(tier, peer) && !self.resting;
        if is_faulty && by_name && self.rng.u8(..20) == 0 {
            self.report.saw(Seen::Unresolvable);
            return self.call(tier, |manager, now| manager.handle_unresolvable(now, session, "so told"));
        }
        let addresses = vec![name_of(peer).parse().expect("an address")];
        self.note(&[5, tier as u64], || format!("tier {tier}: session {session} leads to {addresses:?}"));
        if let Some(wire) = self.network.of_session.get(&(tier, session)) {
            self.clock.after(micros(self.rng.u64(50..3_000)), Event::Dial(*wire));
        }
        self.call(tier, |manager, now| manager.handle_resolved(now, session, addresses));
    }

    pub fn redial(&mut self, tier: usize, session: SessionId) {
        self.report.saw(Seen::Redial);
        let Some(wire) = self.network.of_session.get(&(tier, session)) else { return };
        let Some(old) = self.network.wires.get_mut(wire) else { return };
        old.messages.clear();
        if old.state == State::Dialing {
            return;
        }
        let Some(old) = self.network.wires.remove(wire) else { return };
        self.open_wire(tier, session, old.to);
    }

    pub fn send(&mut self, tier: usize, session: SessionId, mut message: Message, dialect: Dialect) {
        let Some(wire) = self.network.of_session.get(&(tier, session)).copied() else { return };
        let Some(to) = self.network.wires.get(&wire).map(|wire| wire.to) else { return };
        let tag = self.note_sent(tier, to, session, &message);
        self.translate(tier, to, &mut message);
        let mut bytes = Vec::new();
        codec::encode(&message, dialect, &mut bytes);
        self.report.bytes(&bytes);
        let kind = message.name();
        self.note(&[1, tier as u64, to as u64], || format!("tier {tier} -> {to}: says {message:?}"));
        let envelope = Envelope { due: self.clock.now, kind, bytes, tag };
        self.post(wire, envelope);
    }

    /// Between tiers that play vLLM to each other, what vLLM does not say is left out.
    fn translate(&self, from: usize, to: usize, message: &mut Message) {
        let Message::Connect(connect) = message else { return };
        match self.plan.speech(from, to) {
            Speech::P2pkv => {}
            Speech::Vllm => connect.extension = None,
            Speech::Legacy => {
                connect.extension = None;
                connect.hash_seed = None;
            }
        }
    }

    fn post(&mut self, wire: WireId, mut envelope: Envelope) {
        let Some(found) = self.network.wires.get(&wire) else { return };
        let slow = self.plan.health(found.from.tier, found.to) > Health::Clean && self.rng.u8(..10) == 0;
        let latency = if slow { millis(self.rng.u64(10..800)) } else { micros(self.rng.u64(50..8_000)) };
        let Some(found) = self.network.wires.get_mut(&wire) else { return };
        envelope.due = found.last_due.max(self.clock.now + latency);
        found.last_due = envelope.due;
        if matches!(found.state, State::Up { .. }) {
            self.clock.at(envelope.due, Event::Arrive(wire));
        }
        found.messages.push_back(envelope);
    }

    pub fn close_wire(&mut self, tier: usize, session: SessionId, flush: bool) {
        let Some(wire) = self.network.of_session.remove(&(tier, session)) else { return };
        let stays = flush || self.rng.bool();
        let Some(found) = self.network.wires.get_mut(&wire) else { return };
        match found.state {
            State::Up { life } if stays => {
                found.state = State::Closing { life };
                self.clock.after(millis(500), Event::Vanish(wire));
            }
            _ => drop(self.network.wires.remove(&wire)),
        }
    }

    // ---- what happens on the way ----

    pub fn on_dial(&mut self, wire: WireId) {
        let Some(found) = self.network.wires.get(&wire).filter(|wire| wire.state == State::Dialing) else {
            return;
        };
        let (from, to) = (found.from.tier, found.to);
        if !self.tiers[to].up || self.network.is_blocked(from, to) {
            let wait = millis(self.rng.u64(100..1_000));
            return self.clock.after(wait, Event::Dial(wire));
        }
        let hands_over = self.plan.speech(from, to) == Speech::P2pkv;
        if self.has_parting(from, to) && (!hands_over || self.rng.u8(..4) > 0) {
            return self.clock.after(millis(100), Event::Dial(wire));
        }
        let life = self.tiers[to].life;
        let is_taken = self.network.newest.get(&(from, to)).is_some_and(|old| {
            self.network.wires.get(old).is_some_and(|old| old.state == State::Up { life })
        });
        let Some(found) = self.network.wires.get_mut(&wire) else { return };
        found.state = State::Up { life };
        // A vLLM never reads a second connection of the same name.
        if is_taken && !hands_over {
            found.deaf = true;
            return;
        }
        let mut due = self.clock.now;
        for envelope in &mut found.messages {
            due = due.max(envelope.due);
            envelope.due = due;
            self.clock.at(due, Event::Arrive(wire));
        }
        found.last_due = due;
        if self
            .network
            .newest
            .insert((from, to), wire)
            .is_some_and(|old| self.network.wires.contains_key(&old))
        {
            self.report.saw(Seen::Handover);
        }
    }

    /// An earlier connection is still being closed: mostly that is waited for.
    fn has_parting(&self, from: usize, to: usize) -> bool {
        let is_parting = |wire: &Wire| {
            wire.from.tier == from && wire.to == to && matches!(wire.state, State::Closing { .. })
        };
        self.network.wires.values().any(is_parting)
    }

    pub fn on_arrive(&mut self, wire: WireId) {
        let now = self.clock.now;
        let Some(found) = self.network.wires.get_mut(&wire) else { return };
        let (from, to) = (found.from.tier, found.to);
        let (State::Up { life } | State::Closing { life }) = found.state else { return };
        let reachable = self.tiers[to].up && self.tiers[to].life == life;
        if !reachable || self.network.blocked.contains(&(from, to)) {
            return;
        }
        if found.messages.front().is_none_or(|envelope| envelope.due > now) {
            return;
        }
        let Some(envelope) = found.messages.pop_front() else { return };
        if found.deaf || (envelope.kind == "lookup_resp" && self.network.mute.contains(&(from, to))) {
            return self.note(&[2], || format!("tier {from} -> {to}: {} is lost", envelope.kind));
        }
        if self.network.newest.get(&(from, to)) != Some(&wire) {
            return self.deliver_nameless(to, &envelope);
        }
        if self.plan.is_hostile(from, to) {
            let heard = self.network.heard.entry((from, to)).or_default();
            if heard.len() < REMEMBERED {
                heard.push(envelope.clone());
            }
        }
        self.deliver(from, to, &envelope);
    }

    /// libzmq gives the leftovers of a replaced connection a random identity.
    fn deliver_nameless(&mut self, to: usize, envelope: &Envelope) {
        let identity = [0, 1, 2, 3, self.rng.u8(..)];
        self.hand_over(None, to, &identity, &envelope.bytes);
    }

    pub fn deliver(&mut self, from: usize, to: usize, envelope: &Envelope) {
        self.note(&[3, from as u64, to as u64], || format!("tier {from} -> {to}: {} arrives", envelope.kind));
        self.hand_over_noting(from, to, &envelope.bytes, envelope.tag);
    }

    /// Bytes under the name of a tier, whether it sent them or not.
    pub fn hand_over_noting(&mut self, from: usize, to: usize, bytes: &[u8], tag: Option<FetchTag>) {
        let name = name_of(from);
        let manager = &self.tiers[to].manager;
        let dialect = manager.dialect_of(name.as_bytes());
        if let Ok(Decoded::Message(message)) = codec::decode(bytes, dialect, &manager.config().limits) {
            self.note_delivered(from, to, &message, tag);
        }
        self.hand_over(Some(from), to, name.as_bytes(), bytes);
    }

    fn hand_over(&mut self, from: Option<usize>, to: usize, identity: &[u8], bytes: &[u8]) {
        let errors = self.tiers[to].manager.stats().protocol_errors;
        self.call(to, |manager, now| {
            let dialect = manager.dialect_of(identity);
            let decoded = codec::decode(bytes, dialect, &manager.config().limits);
            manager.handle_message(now, identity, decoded);
        });
        if self.tiers[to].manager.stats().protocol_errors > errors {
            self.report.saw(Seen::ProtocolError);
            let is_clean = from.is_some_and(|from| self.plan.is_clean(from, to));
            self.report.check(!is_clean, Invariant::RightOutcome, || {
                format!("tier {to} calls a protocol error what a tier of ours says")
            });
        }
    }

    pub fn on_vanish(&mut self, wire: WireId) {
        if self.network.wires.get(&wire).is_some_and(|wire| matches!(wire.state, State::Closing { .. })) {
            self.network.wires.remove(&wire);
        }
    }

    /// The owner's socket reports the loss.
    pub fn on_break(&mut self, wire: WireId) {
        let Some(found) = self.network.wires.remove(&wire) else { return };
        let (owner, session) = (found.from, found.session);
        if self.is_alive(owner) && self.network.of_session.get(&(owner.tier, session)) == Some(&wire) {
            self.note(&[4, owner.tier as u64], || {
                format!("tier {}: connection of session {session} is lost", owner.tier)
            });
            self.call(owner.tier, |manager, now| manager.handle_connection_lost(now, session, "so told"));
        }
    }

    // ---- what faults do to it ----

    fn break_where(&mut self, is_meant: impl Fn(&Wire) -> bool, notice: std::time::Duration) {
        let meant = |(id, wire): (&WireId, &Wire)| {
            let is_up = matches!(wire.state, State::Up { .. } | State::Closing { .. });
            (is_up && is_meant(wire)).then_some(*id)
        };
        let broken: Vec<WireId> = self.network.wires.iter().filter_map(meant).collect();
        for wire in broken {
            if let Some(found) = self.network.wires.get_mut(&wire) {
                found.state = State::Broken;
                found.messages.clear();
            }
            self.clock.after(notice, Event::Break(wire));
        }
    }

    pub fn break_connection(&mut self, from: usize, to: usize) {
        self.break_where(|wire| wire.from.tier == from && wire.to == to, micros(100));
    }

    /// Heartbeats find out after ten seconds.
    pub fn break_if_blocked(&mut self, a: usize, b: usize) {
        if self.network.is_blocked(a, b) {
            self.break_connection(a, b);
            self.break_connection(b, a);
        }
    }

    pub fn block(&mut self, from: usize, to: usize) {
        self.network.blocked.insert((from, to));
    }

    /// What was held back arrives.
    pub fn unblock(&mut self, from: usize, to: usize) {
        self.network.blocked.remove(&(from, to));
        let held = |(id, wire): (&WireId, &Wire)| {
            (wire.from.tier == from && wire.to == to).then_some((*id, wire.messages.len()))
        };
        let held: Vec<(WireId, usize)> = self.network.wires.iter().filter_map(held).collect();
        for (wire, messages) in held {
            for _ in 0..messages {
                self.clock.after(micros(self.rng.u64(100..5_000)), Event::Arrive(wire));
            }
        }
    }

    pub fn unblock_all(&mut self) {
        while let Some((from, to)) = self.network.blocked.first().copied() {
            self.unblock(from, to);
        }
    }

    /// A process dies: what it sent may still arrive, and others notice at once or by their heartbeats.
    pub fn cut_wires_of(&mut self, tier: usize) {
        let own: Vec<WireId> = self
            .network
            .wires
            .iter()
            .filter_map(|(id, wire)| (wire.from.tier == tier).then_some(*id))
            .collect();
        for wire in own {
            let stays = self.rng.bool();
            let Some(found) = self.network.wires.get_mut(&wire) else { continue };
            match found.state {
                State::Up { life } | State::Closing { life } if stays => {
                    found.state = State::Closing { life };
                    self.clock.after(millis(500), Event::Vanish(wire));
                }
                _ => drop(self.network.wires.remove(&wire)),
            }
        }
        self.network.of_session.retain(|(owner, _), _| *owner != tier);
        let notice =
            if self.rng.u8(..5) < 3 { millis(self.rng.u64(0..20)) } else { secs(self.rng.u64(1..11)) };
        self.break_where(|wire| wire.to == tier, notice);
    }
}
