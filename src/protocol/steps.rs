//! Work in steps: one input does a bounded amount of it, the inputs that follow do the rest.
//!
//! What a peer may leave to be done is bounded by the limits, but those allow more than an engine's call may wait for. So
//! whatever can be much is done a slice at a time, and between two slices others get their turn.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::ids::SessionId;

/// What a key costs, in the units of a slice. Everything else that is done for each of many is an item.
pub const KEY: usize = 1;
pub const ITEM: usize = 24;

/// What is left of a slice. The first piece of work is always done, however large it is, so that all comes to its end.
#[derive(Debug)]
pub struct Slice {
    left: usize,
}

impl Slice {
    #[must_use]
    pub fn new(units: usize) -> Self {
        Slice { left: units.max(1) }
    }

    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.left == 0
    }

    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }

    pub fn spend(&mut self, units: usize) {
        self.left = self.left.saturating_sub(units);
    }
}

/// Sessions with work left, which take turns.
#[derive(Debug, Default)]
pub struct Busy {
    sessions: BTreeSet<SessionId>,
    last: Option<SessionId>,
}

impl Busy {
    pub fn insert(&mut self, session: SessionId) {
        self.sessions.insert(session);
    }

    pub fn remove(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    #[must_use]
    pub fn contains(&self, session: SessionId) -> bool {
        self.sessions.contains(&session)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Whose turn it is.
    pub fn take_turn(&mut self) -> Option<SessionId> {
        let behind = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.sessions.range((behind, Bound::Unbounded)).next();
        self.last = next.or_else(|| self.sessions.first()).copied();
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_sessions_take_turns_also_when_one_leaves() {
        let mut busy = Busy::default();
        [1, 2, 3].into_iter().for_each(|session| busy.insert(SessionId(session)));
        let turns: Vec<u64> = (0..4).filter_map(|_| busy.take_turn()).map(|session| session.0).collect();
        assert_eq!(turns, [1, 2, 3, 1]);
        busy.remove(SessionId(2));
        assert_eq!(busy.take_turn(), Some(SessionId(3)));
        busy.remove(SessionId(3));
        busy.remove(SessionId(1));
        assert_eq!(busy.take_turn(), None);
    }
}
