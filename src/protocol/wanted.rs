//! Which rounds still want a key: asked whenever something is published.
//!
//! A round is known here by a number of its own, so that it can be over long before its keys are cleared away, and the
//! next round of its name is not taken for it.

use std::collections::BTreeSet;

use foldhash::quality::FixedState;
use hashbrown::hash_table::Entry;
use hashbrown::{HashMap, HashTable};

use super::context::RoundName;
use super::ids::WaiterId;
use super::key_table::KeyHash;

/// A table that grows moves all that is in it: in so many, each moves little at a time.
const PARTS: usize = 64;

#[derive(Debug)]
pub struct Wanted {
    rounds: HashMap<WaiterId, RoundName, FixedState>,
    /// By the hash of the key alone. Two keys of one hash are told apart by the rounds, which know theirs; if one round
    /// wants both, it hears of the second only until it has the first.
    parts: Box<[HashTable<(u64, Waiters)>]>,
    last: u64,
}

/// The rounds that want a key. Nearly always one; but a peer may ask for the same key in all rounds that it may open, and
/// leaving must not be a search through them then.
#[derive(Debug)]
enum Waiters {
    One(WaiterId),
    Many(BTreeSet<WaiterId>),
}

impl Waiters {
    fn insert(&mut self, waiter: WaiterId) {
        match self {
            Waiters::One(first) => *self = Waiters::Many(BTreeSet::from([*first, waiter])),
            Waiters::Many(all) => drop(all.insert(waiter)),
        }
    }

    /// True if none is left.
    fn remove(&mut self, waiter: WaiterId) -> bool {
        match self {
            Waiters::One(only) => *only == waiter,
            Waiters::Many(all) => {
                all.remove(&waiter);
                all.is_empty()
            }
        }
    }

    fn to_vec(&self) -> Vec<WaiterId> {
        match self {
            Waiters::One(only) => vec![*only],
            Waiters::Many(all) => all.iter().copied().collect(),
        }
    }
}

impl Wanted {
    #[must_use]
    pub fn new(hasher: FixedState) -> Self {
        let parts = (0..PARTS).map(|_| HashTable::new()).collect();
        Wanted { rounds: HashMap::with_hasher(hasher), parts, last: 0 }
    }

    /// No round and no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rounds.is_empty() && self.parts.iter().all(HashTable::is_empty)
    }

    /// Whether any round waits for anything.
    #[must_use]
    pub fn has_rounds(&self) -> bool {
        !self.rounds.is_empty()
    }

    /// A round that will want keys.
    pub fn enter(&mut self, round: RoundName) -> WaiterId {
        self.last += 1;
        let waiter = WaiterId(self.last);
        self.rounds.insert(waiter, round);
        waiter
    }

    /// The round is over. Its keys are still to be removed, at leisure.
    pub fn leave(&mut self, waiter: WaiterId) {
        self.rounds.remove(&waiter);
    }

    #[must_use]
    pub fn round(&self, waiter: WaiterId) -> Option<&RoundName> {
        self.rounds.get(&waiter)
    }

    pub fn insert(&mut self, key: KeyHash, waiter: WaiterId) {
        let Some(part) = self.part(key) else { return };
        match part.entry(key.0, |(hash, _)| *hash == key.0, |(hash, _)| *hash) {
            Entry::Occupied(mut waiters) => waiters.get_mut().1.insert(waiter),
            Entry::Vacant(vacant) => drop(vacant.insert((key.0, Waiters::One(waiter)))),
        }
    }

    pub fn remove(&mut self, key: KeyHash, waiter: WaiterId) {
        let Some(part) = self.part(key) else { return };
        if let Ok(mut found) = part.find_entry(key.0, |(hash, _)| *hash == key.0)
            && found.get_mut().1.remove(waiter)
        {
            found.remove();
        }
    }

    /// Whoever may want the key, the oldest first.
    #[must_use]
    pub fn waiters(&mut self, key: KeyHash) -> Vec<WaiterId> {
        let found = self.part(key).and_then(|part| part.find(key.0, |(hash, _)| *hash == key.0));
        found.map(|(_, waiters)| waiters.to_vec()).unwrap_or_default()
    }

    /// The table finds its places by the lowest and the highest bits of a hash.
    fn part(&mut self, key: KeyHash) -> Option<&mut HashTable<(u64, Waiters)>> {
        self.parts.get_mut((key.0 >> 40) as usize % PARTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ids::{KvRequestId, RoundSeq, SessionId};

    #[test]
    fn a_round_that_is_over_is_named_no_more_and_its_keys_go_one_by_one() {
        let mut wanted = Wanted::new(FixedState::with_seed(1));
        let name = (SessionId(1), KvRequestId::new("r"), RoundSeq(0));
        let (old, new) = (wanted.enter(name.clone()), wanted.enter(name.clone()));
        let key = KeyHash(7);
        wanted.insert(key, old);
        wanted.insert(key, new);
        wanted.leave(old);
        assert_eq!(wanted.waiters(key), [old, new]);
        assert_eq!((wanted.round(old), wanted.round(new)), (None, Some(&name)));
        wanted.remove(key, old);
        assert_eq!(wanted.waiters(key), [new]);
        wanted.leave(new);
        assert!(!wanted.has_rounds() && !wanted.is_empty(), "a key is left");
        wanted.remove(key, new);
        assert!(wanted.is_empty());
    }
}
