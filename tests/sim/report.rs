//! What is written down of a run: its trace, what it reached, and the first rule it broke.

use std::collections::VecDeque;

use p2pkv::protocol::timer::Timestamp;

use crate::coverage::{Coverage, Seen};

/// The invariants of DESIGN.md §9 by their numbers, and what the reference model knows beyond them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    OneResult = 1,
    NoLateWrite = 2,
    PinsHeld = 3,
    OneAck = 4,
    RightBytes = 5,
    NoNeedlessWait = 6,
    Rest = 7,
    Isolation = 8,
    BoundedWork = 9,
    TimeIsGiven = 10,
    SameRun = 11,
    NothingCrashes = 12,
    /// A job or a call ended as the model does not allow.
    RightOutcome = 13,
}

#[derive(Clone, Debug)]
pub struct Violation {
    pub invariant: Invariant,
    pub what: String,
}

/// Lines that a failing run shows.
const LINES: usize = 120;

#[derive(Debug)]
pub struct Report {
    pub coverage: Coverage,
    pub violation: Option<Violation>,
    pub steps: u64,
    hash: u64,
    /// Kept only when a failing seed is run again.
    lines: Option<VecDeque<String>>,
}

impl Report {
    pub fn new(with_lines: bool) -> Report {
        Report {
            coverage: Coverage::default(),
            violation: None,
            steps: 0,
            hash: 0xcbf2_9ce4_8422_2325,
            lines: with_lines.then(VecDeque::new),
        }
    }

    pub fn saw(&mut self, seen: Seen) {
        self.coverage.saw(seen);
    }

    /// The first broken rule stands.
    pub fn violate(&mut self, invariant: Invariant, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { invariant, what: what() });
        }
    }

    pub fn check(&mut self, holds: bool, invariant: Invariant, what: impl FnOnce() -> String) {
        if !holds {
            self.violate(invariant, what);
        }
    }

    /// Notes one step: `facts` go into the hash of the run, `text` is only made for people.
    pub fn step(&mut self, now: Timestamp, facts: &[u64], text: impl FnOnce() -> String) {
        self.steps += 1;
        self.mix(now.as_nanos());
        facts.iter().for_each(|fact| self.mix(*fact));
        if let Some(lines) = &mut self.lines {
            if lines.len() == LINES {
                lines.pop_front();
            }
            let seconds = now.as_nanos() as f64 / 1e9;
            lines.push_back(format!("{seconds:>11.6}  {}", text()));
        }
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn mix(&mut self, fact: u64) {
        self.hash = (self.hash.rotate_left(5) ^ fact).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    /// Equal for equal runs.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn lines(&self) -> String {
        self.lines.iter().flatten().map(|line| format!("{line}\n")).collect()
    }
}
