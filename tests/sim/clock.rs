//! Virtual time: it stands still while things happen and jumps to the next thing that is due.

use std::collections::BTreeMap;
use std::time::Duration;

use p2pkv::protocol::ids::{LoadToken, SessionId};
use p2pkv::protocol::timer::Timestamp;

use crate::engine::Act;
use crate::faults::Fault;
use crate::network::WireId;
use crate::plane::MoveId;

pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub const fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// One life of one tier. What was meant for an earlier life finds nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Life {
    pub tier: usize,
    pub number: u32,
}

/// Something that will happen.
#[derive(Clone, Debug)]
pub enum Event {
    Act(Act),
    /// The next message of a connection has arrived.
    Arrive(WireId),
    /// The owner of a connection learns that it is gone.
    Break(WireId),
    Dial(WireId),
    Fault(Fault),
    FenceCloses(Life, LoadToken),
    /// The receiver's data plane says that all blocks of a load are in.
    Landed(Life, LoadToken),
    /// A transfer goes one block on, or ends.
    Move(MoveId),
    /// The name of a session's peer is resolved, or cannot be.
    Resolved(Life, SessionId),
    /// The attempt to reach a peer's data plane is over.
    Reached(Life, SessionId),
    /// A closed connection's last messages have left or never will.
    Vanish(WireId),
    /// A tier's owner does a slice of what is left to do.
    Work(Life),
}

#[derive(Debug)]
pub struct Clock {
    pub now: Timestamp,
    queue: BTreeMap<(Timestamp, u64), Event>,
    last: u64,
}

impl Clock {
    pub fn new() -> Clock {
        Clock { now: Timestamp::ZERO + secs(1), queue: BTreeMap::new(), last: 0 }
    }

    pub fn after(&mut self, delay: Duration, event: Event) {
        self.at(self.now + delay, event);
    }

    /// Things due at the same time happen in the order in which they were planned.
    pub fn at(&mut self, at: Timestamp, event: Event) {
        self.last += 1;
        self.queue.insert((at.max(self.now), self.last), event);
    }

    pub fn next(&self) -> Option<Timestamp> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    pub fn take_next(&mut self) -> Option<Event> {
        let ((at, _), event) = self.queue.pop_first()?;
        self.now = self.now.max(at);
        Some(event)
    }

    /// Engines and faults rest from now on; what is under way goes on.
    pub fn drop_plans(&mut self) {
        self.queue.retain(|_, event| !matches!(event, Event::Act(_) | Event::Fault(_)));
    }
}
