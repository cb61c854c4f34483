//! Time as the core sees it: a number that callers pass in. Nothing here reads a clock.

use std::collections::BTreeSet;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time, in nanoseconds since the owner of the core began. Only differences mean anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    pub const ZERO: Timestamp = Timestamp(0);

    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Timestamp(nanos)
    }

    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not.
    #[must_use]
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    fn add(self, span: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Timestamp> for Timestamp {
    type Output = Duration;

    fn sub(self, earlier: Timestamp) -> Duration {
        self.since(earlier)
    }
}

/// Deadlines in order. An entry is one (time, key) pair; whoever sets a deadline keeps its time, to be able to
/// take it back.
#[derive(Debug)]
pub struct Timers<K: Ord> {
    entries: BTreeSet<(Timestamp, K)>,
}

impl<K: Ord> Default for Timers<K> {
    fn default() -> Self {
        Timers { entries: BTreeSet::new() }
    }
}

impl<K: Ord> Timers<K> {
    pub fn set(&mut self, at: Timestamp, key: K) {
        self.entries.insert((at, key));
    }

    pub fn cancel(&mut self, at: Timestamp, key: K) {
        self.entries.remove(&(at, key));
    }

    #[must_use]
    pub fn next(&self) -> Option<Timestamp> {
        self.entries.first().map(|(at, _)| *at)
    }

    /// Takes the earliest entry that is due.
    pub fn pop_due(&mut self, now: Timestamp) -> Option<K> {
        if self.next()? > now {
            return None;
        }
        self.entries.pop_first().map(|(_, key)| key)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_in_order_and_only_when_due() {
        let at = Timestamp::from_nanos;
        let mut timers = Timers::default();
        timers.set(at(20), 'b');
        timers.set(at(10), 'a');
        timers.set(at(15), 'x');
        timers.cancel(at(15), 'x');
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.pop_due(at(9)), None);
        assert_eq!(timers.pop_due(at(30)), Some('a'));
        assert_eq!(timers.pop_due(at(30)), Some('b'));
        assert!(timers.is_empty());
    }
}
