//! What is done to tiers and to what lies between them. Only those that the plan calls faulty or hostile are touched.

use p2pkv::protocol::codec;
use p2pkv::protocol::ids::{Instance, KvRequestId, RoundSeq};
use p2pkv::protocol::keys::{KeyBatch, KeysView};
use p2pkv::protocol::message::{
    AbortAck, AbortFetch, Connect, ConnectAck, Dialect, Disconnect, Extension, Fetch, Lookup, LookupResp,
    Message, TransferDone,
};

use crate::clock::{Event, millis, secs};
use crate::coverage::Seen;
use crate::engine::{KEYS, id_text, key_bytes};
use crate::plan::{Health, Speech};
use crate::tier::{BLOCK_LEN, name_of};
use crate::world::World;

#[derive(Clone, Debug)]
pub enum Fault {
    /// A partition is still there after the heartbeats' patience.
    Bite {
        a: usize,
        b: usize,
    },
    Block {
        from: usize,
        to: usize,
        both: bool,
        millis: u64,
    },
    DropConnection {
        from: usize,
        to: usize,
        both: bool,
    },
    Junk {
        from: usize,
        to: usize,
    },
    Kill {
        tier: usize,
        down_millis: u64,
    },
    /// The answers to lookups get lost, and wrong ones come instead.
    Mute {
        from: usize,
        to: usize,
    },
    FailPlane {
        tier: usize,
        peer: usize,
    },
    Replay {
        from: usize,
        to: usize,
    },
    Restart {
        tier: usize,
    },
    Unblock {
        from: usize,
        to: usize,
    },
    Unmute {
        from: usize,
        to: usize,
    },
    WrongAnswer {
        from: usize,
        to: usize,
        left: u32,
    },
}

impl World {
    pub fn plan_faults(&mut self) {
        let ill: Vec<usize> =
            (0..self.plan.tiers).filter(|tier| self.plan.health[*tier] > Health::Clean).collect();
        if ill.is_empty() {
            return;
        }
        for _ in 0..self.plan.faults {
            let tier = ill[self.rng.usize(..ill.len())];
            let peer = (tier + self.rng.usize(1..self.plan.tiers)) % self.plan.tiers;
            let fault = self.some_fault(tier, peer);
            let at = millis(self.rng.u64(0..self.plan.span.as_millis() as u64));
            self.clock.after(at, Event::Fault(fault));
        }
        for from in 0..self.plan.tiers {
            for to in (0..self.plan.tiers).filter(|to| *to != from) {
                if self.plan.is_hostile(from, to) {
                    self.plan_lies(from, to);
                }
            }
        }
    }

    fn some_fault(&mut self, tier: usize, peer: usize) -> Fault {
        let (from, to) = if self.rng.bool() { (tier, peer) } else { (peer, tier) };
        match self.rng.u8(..12) {
            0..3 => {
                let long = self.rng.bool();
                Fault::Kill { tier, down_millis: if long { self.rng.u64(1..45_000) } else { 0 } }
            }
            3..6 => Fault::DropConnection { from, to, both: self.rng.bool() },
            6..9 => {
                let long = self.rng.bool();
                let millis = if long { self.rng.u64(10_000..45_000) } else { self.rng.u64(1..3_000) };
                Fault::Block { from, to, both: self.rng.bool(), millis }
            }
            9 => Fault::FailPlane { tier: from, peer: to },
            _ => Fault::Mute { from, to },
        }
    }

    fn plan_lies(&mut self, from: usize, to: usize) {
        for _ in 0..self.rng.usize(0..8) {
            let at = millis(self.rng.u64(0..self.plan.span.as_millis() as u64));
            let fault = if self.rng.bool() { Fault::Replay { from, to } } else { Fault::Junk { from, to } };
            self.clock.after(at, Event::Fault(fault));
        }
    }

    pub fn inflict(&mut self, fault: Fault) {
        self.note(&[50], || format!("fault: {fault:?}"));
        match fault {
            Fault::Bite { a, b } => self.break_if_blocked(a, b),
            Fault::Block { from, to, both, millis } => self.partition(from, to, both, millis),
            Fault::DropConnection { from, to, both } => {
                self.report.saw(Seen::ConnectionDropped);
                self.break_connection(from, to);
                if both {
                    self.break_connection(to, from);
                }
            }
            Fault::Junk { from, to } => self.junk(from, to),
            Fault::Kill { tier, down_millis } => self.kill(tier, down_millis),
            Fault::Mute { from, to } => self.mute(from, to),
            Fault::FailPlane { tier, peer } => self.plane_fault(tier, peer),
            Fault::Replay { from, to } => self.replay(from, to),
            Fault::Restart { tier } => self.restart(tier),
            Fault::Unblock { from, to } => self.unblock(from, to),
            Fault::Unmute { from, to } => drop(self.network.mute.remove(&(from, to))),
            Fault::WrongAnswer { from, to, left } => self.wrong_answer(from, to, left),
        }
    }

    // ---- honest faults ----

    fn partition(&mut self, from: usize, to: usize, both: bool, span: u64) {
        self.report.saw(if both { Seen::TwoWayPartition } else { Seen::OneWayPartition });
        let directions = if both { vec![(from, to), (to, from)] } else { vec![(from, to)] };
        for (from, to) in directions {
            self.block(from, to);
            self.clock.after(millis(span), Event::Fault(Fault::Unblock { from, to }));
        }
        self.clock.after(secs(10), Event::Fault(Fault::Bite { a: from, b: to }));
    }

    fn kill(&mut self, tier: usize, down_millis: u64) {
        if !self.tiers[tier].up {
            return;
        }
        self.report.saw(if down_millis == 0 { Seen::KilledAndBackAtOnce } else { Seen::KilledForAWhile });
        self.sever_transfers_of(tier);
        self.cut_wires_of(tier);
        self.tiers[tier].up = false;
        self.unclosed.retain(|(of, ..)| *of != tier);
        for party in self.parties.iter_mut().filter(|party| party.life.tier == tier) {
            party.is_over = true;
        }
        if down_millis == 0 {
            self.restart(tier);
        } else {
            self.clock.after(millis(down_millis), Event::Fault(Fault::Restart { tier }));
        }
    }

    /// A new process at the same address.
    pub fn restart(&mut self, tier: usize) {
        if !self.tiers[tier].up {
            self.tiers[tier] = self.new_tier(tier, self.tiers[tier].life + 1);
        }
    }

    fn plane_fault(&mut self, tier: usize, peer: usize) {
        let session = self.tiers[tier].routes.iter().find(|(_, route)| route.to == peer);
        let Some(session) = session.map(|(session, _)| *session).filter(|_| self.tiers[tier].up) else {
            return;
        };
        self.report.saw(Seen::PeerFault);
        self.call(tier, |manager, now| manager.handle_peer_fault(now, session, "so told"));
    }

    fn mute(&mut self, from: usize, to: usize) {
        self.network.mute.insert((from, to));
        self.clock.after(secs(70), Event::Fault(Fault::Unmute { from, to }));
        self.clock.after(millis(500), Event::Fault(Fault::WrongAnswer { from, to, left: 40 }));
    }

    /// An answer with keys that nobody asked about.
    fn wrong_answer(&mut self, from: usize, to: usize, left: u32) {
        if left == 0 || !self.network.mute.contains(&(from, to)) {
            return;
        }
        let asking = self.parties.iter().find(|party| {
            party.life.tier == to && party.pulls.is_some_and(|pull| pull.from == from && pull.symmetric)
        });
        if let Some(pull) = asking.and_then(|party| party.pulls) {
            self.report.saw(Seen::JunkAnswer);
            let keys = keys_of(&[KEYS + 1]);
            let resp =
                LookupResp { kv_request_id: KvRequestId::new(&id_text(pull.id)), keys, hits: vec![true] };
            self.say_falsely(from, to, &Message::LookupResp(resp));
        }
        self.clock.after(millis(1_500), Event::Fault(Fault::WrongAnswer { from, to, left: left - 1 }));
    }

    // ---- lies ----

    fn say_falsely(&mut self, from: usize, to: usize, message: &Message) {
        if self.tiers[to].up {
            let dialect =
                if self.plan.speech(from, to) == Speech::Legacy { Dialect::Legacy } else { Dialect::Current };
            let mut bytes = Vec::new();
            codec::encode(message, dialect, &mut bytes);
            self.hand_over_noting(from, to, &bytes, None);
        }
    }

    /// Something that was said before is said again, perhaps to another life.
    fn replay(&mut self, from: usize, to: usize) {
        let Some(heard) = self.network.heard.get(&(from, to)).filter(|heard| !heard.is_empty()) else {
            return;
        };
        let envelope = heard[self.rng.usize(..heard.len())].clone();
        if !self.tiers[to].up {
            return;
        }
        self.report.saw(match envelope.kind {
            "abort_ack" => Seen::ReplayedAbortAck,
            "abort_fetch" => Seen::ReplayedAbortFetch,
            "connect" => Seen::ReplayedConnect,
            "connect_ack" => Seen::ReplayedConnectAck,
            "disconnect" => Seen::ReplayedDisconnect,
            "fetch" => Seen::ReplayedFetch,
            "lookup" => Seen::ReplayedLookup,
            "lookup_resp" => Seen::ReplayedLookupResp,
            _ => Seen::ReplayedTransferDone,
        });
        self.deliver(from, to, &envelope);
    }

    fn junk(&mut self, from: usize, to: usize) {
        if !self.tiers[to].up {
            return;
        }
        match self.rng.u8(..7) {
            6 => {
                self.report.saw(Seen::MadeUpConnect);
                let connect = self.made_up_connect(from);
                self.say_falsely(from, to, &Message::Connect(Box::new(connect)));
            }
            0 => {
                self.report.saw(Seen::BrokenBytes);
                let bytes: Vec<u8> = (0..self.rng.usize(..20)).map(|_| self.rng.u8(..)).collect();
                self.hand_over_noting(from, to, &bytes, None);
            }
            1 => {
                self.report.saw(Seen::UnknownType);
                self.hand_over_noting(from, to, b"\x81\xa4type\xa5other", None);
            }
            _ => {
                self.report.saw(Seen::MadeUpMessage);
                let message = self.made_up(from, to);
                self.note(&[51], || format!("tier {from} -> {to}: says falsely {message:?}"));
                self.say_falsely(from, to, &message);
            }
        }
    }

    /// As if another process, perhaps one with other settings, were at the tier's address.
    fn made_up_connect(&mut self, from: usize) -> Connect {
        let extension = self.rng.bool().then(|| Extension {
            version: 1,
            instance: Instance([self.rng.u8(200..); 16]),
            dialed_as: None,
            dialed_as_echo: None,
            answers: self.rng.bool().then(|| vec![self.rng.u8(..); 32]),
            tcp: None,
            nixl: true,
            features: Vec::new(),
        });
        Connect {
            peer_id: name_of(from),
            agent_metadata: vec![self.rng.u8(..)],
            base_addr: 0,
            num_blocks: 96,
            block_len: if self.rng.u8(..3) == 0 { 1 } else { BLOCK_LEN },
            config_fingerprint: String::new(),
            hash_seed: [None, Some("0".to_owned()), Some("other".to_owned())][self.rng.usize(..3)].clone(),
            extension,
        }
    }

    /// A message of any type about an id of these two, or one that nobody knows.
    fn made_up(&mut self, from: usize, to: usize) -> Message {
        let of_pair = |(id, story): (&u32, &crate::model::IdStory)| {
            let pair = (story.producer, story.consumer);
            (pair == (from, to) || pair == (to, from)).then_some(*id)
        };
        let known: Vec<u32> = self.ids.iter().filter_map(of_pair).collect();
        let id = if known.is_empty() || self.rng.u8(..4) == 0 {
            999
        } else {
            known[self.rng.usize(..known.len())]
        };
        let kv_request_id = KvRequestId::new(&id_text(id));
        let round_seq = RoundSeq(self.rng.u64(0..3));
        let names = self.some_keys(3);
        let keys = keys_of(&names);
        match self.rng.u8(..9) {
            0 => Message::AbortAck(AbortAck { kv_request_id, round_seq }),
            1 => Message::AbortFetch(AbortFetch { kv_request_id, round_seq }),
            2 => Message::ConnectAck(ConnectAck { peer_id: "nobody:1".to_owned() }),
            3 => Message::Disconnect(Disconnect { reason: self.rng.bool().then(|| "made up".to_owned()) }),
            4 => {
                let most = if self.rng.u8(..4) == 0 { 1_000 } else { 96 };
                let block_indexes = names.iter().map(|_| self.rng.u64(0..most)).collect();
                let load_token = self.rng.bool().then(|| self.rng.u64(0..8));
                Message::Fetch(Fetch { kv_request_id, keys, block_indexes, round_seq, load_token })
            }
            5 => Message::Fetch(Fetch {
                kv_request_id,
                keys: KeyBatch::new(),
                block_indexes: Vec::new(),
                round_seq,
                load_token: None,
            }),
            6 => Message::Lookup(Lookup { kv_request_id, keys, round_seq }),
            7 => {
                let hits = names.iter().map(|_| self.rng.bool()).collect();
                Message::LookupResp(LookupResp { kv_request_id, keys, hits })
            }
            _ => Message::TransferDone(TransferDone { kv_request_id, success: self.rng.bool(), round_seq }),
        }
    }
}

fn keys_of(names: &[u8]) -> KeyBatch {
    KeyBatch::from(KeysView::new(&key_bytes(names), 4).expect("keys of four bytes"))
}
