//! What a seed decides before anything happens.

use std::time::Duration;

use fastrand::Rng;

use p2pkv::protocol::config::TransportKind;

use crate::clock::secs;

/// How much is done to a pair of tiers. Whoever is not mentioned in a fault must not notice it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// Nothing: every outcome is known beforehand.
    Clean,
    /// Connections, data planes and processes fail, but nobody lies.
    Faulty,
    /// Messages are repeated, replayed and made up as well.
    Hostile,
}

/// What the two tiers of a pair take each other for. The messages between them are changed on the way, so that a tier
/// plays the other's vLLM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speech {
    P2pkv,
    /// No extension in `connect`: no tokens, no instance.
    Vllm,
    /// No `hash_seed` either.
    Legacy,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub tiers: usize,
    pub kinds: Vec<TransportKind>,
    pub health: Vec<Health>,
    /// By pair, the smaller number first.
    speech: Vec<Speech>,
    /// Whom a tier calls by a name that has to be resolved, and that the other does not use itself.
    named: Vec<bool>,
    /// Whether the engine answers lookups that the directory cannot.
    pub serves: Vec<bool>,
    pub stories: usize,
    pub span: Duration,
    pub faults: usize,
    pub ends_with_shutdown: bool,
    /// Below the number of others, some are turned away.
    pub max_peers: usize,
}

impl Plan {
    pub fn new(rng: &mut Rng) -> Plan {
        let tiers = [2, 2, 3, 3, 4, 5][rng.usize(..6)];
        let calm = rng.u8(..4) == 0;
        let pick_health = |rng: &mut Rng| match rng.u8(..10) {
            0..5 => Health::Clean,
            5..8 => Health::Faulty,
            _ => Health::Hostile,
        };
        let health = (0..tiers).map(|_| if calm { Health::Clean } else { pick_health(rng) }).collect();
        let all_tcp = rng.bool();
        let pick_kind = |rng: &mut Rng| {
            if all_tcp || rng.u8(..4) == 0 { TransportKind::Tcp } else { TransportKind::Nixl }
        };
        let kinds: Vec<TransportKind> = (0..tiers).map(|_| pick_kind(rng)).collect();
        let mut speech = Vec::new();
        for a in 0..tiers {
            for b in 0..tiers {
                // A vLLM moves blocks with NIXL only.
                let both_nixl = kinds[a] == TransportKind::Nixl && kinds[b] == TransportKind::Nixl;
                speech.push(match rng.u8(..5) {
                    0 if both_nixl && a < b => Speech::Vllm,
                    1 if both_nixl && a < b => Speech::Legacy,
                    _ => Speech::P2pkv,
                });
            }
        }
        let named = (0..tiers * tiers).map(|_| rng.u8(..4) == 0).collect();
        let span = match rng.u8(..8) {
            0 => 40..150,
            1..3 => 8..40,
            _ => 1..8,
        };
        Plan {
            tiers,
            kinds,
            health,
            speech,
            named,
            serves: (0..tiers).map(|_| rng.u8(..3) > 0).collect(),
            stories: rng.usize(3..24),
            span: secs(rng.u64(span)),
            faults: rng.usize(1..12),
            ends_with_shutdown: rng.bool(),
            max_peers: if rng.u8(..12) == 0 { rng.usize(1..3) } else { 128 },
        }
    }

    pub fn health(&self, a: usize, b: usize) -> Health {
        self.health[a].max(self.health[b])
    }

    pub fn is_clean(&self, a: usize, b: usize) -> bool {
        self.health(a, b) == Health::Clean && self.max_peers >= self.tiers
    }

    pub fn is_hostile(&self, a: usize, b: usize) -> bool {
        self.health(a, b) == Health::Hostile
    }

    pub fn is_calm(&self) -> bool {
        self.worst() == Health::Clean
    }

    pub fn worst(&self) -> Health {
        self.health.iter().copied().max().unwrap_or(Health::Clean)
    }

    pub fn calls_by_name(&self, caller: usize, called: usize) -> bool {
        self.named[caller * self.tiers + called]
    }

    /// Whether one may pull from the other. Where nothing is to go wrong, whoever is called by another name than its own
    /// is only ever dialled: a peer that is known by its own name already and is then dialled by another begins anew.
    pub fn may_pull(&self, consumer: usize, producer: usize) -> bool {
        let (low, high) = (consumer.min(producer), consumer.max(producer));
        let dialler = match (self.calls_by_name(low, high), self.calls_by_name(high, low)) {
            (true, _) => low,
            (false, true) => high,
            (false, false) => return true,
        };
        !self.is_clean(consumer, producer) || consumer == dialler
    }

    pub fn speech(&self, a: usize, b: usize) -> Speech {
        self.speech[a.min(b) * self.tiers + a.max(b)]
    }
}
