//! Keys that a fetch asked for and that nothing has been found for yet.

use foldhash::quality::FixedState;
use smallvec::SmallVec;

use crate::protocol::ids::BlockIndex;
use crate::protocol::key_table::{KeyHash, KeyTable};

/// Where the blocks of one key go.
pub type Destinations = SmallVec<[BlockIndex; 1]>;

#[derive(Debug)]
pub struct Unmet {
    keys: KeyTable,
    /// By the key's number. None where the key has been met.
    destinations: Vec<Destinations>,
    blocks: usize,
}

impl Unmet {
    pub fn new(hasher: FixedState) -> Self {
        Unmet { keys: KeyTable::new(hasher), destinations: Vec::new(), blocks: 0 }
    }

    /// Destination blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Keys that were added, met or not.
    pub fn len(&self) -> usize {
        self.destinations.len()
    }

    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.keys.hash(key)
    }

    /// Makes room for so many keys, if nothing is here yet.
    pub fn reserve_first(&mut self, keys: usize, bytes: usize) {
        if self.destinations.is_empty() {
            self.keys.reserve(keys, bytes);
            self.destinations.reserve(keys);
        }
    }

    /// Adds a destination of the key. True if nothing has waited for it until now.
    pub fn add(&mut self, hash: KeyHash, key: &[u8], block: BlockIndex) -> bool {
        self.blocks += 1;
        let known = self.keys.find(hash, key);
        if let Some(waiting) = known.and_then(|number| self.destinations.get_mut(number)) {
            waiting.push(block);
            return waiting.len() == 1;
        }
        // Without room nothing can meet it: it counts, and is refused in the end.
        let has_room = self.keys.add(hash, key);
        if has_room {
            self.destinations.push(Destinations::from_slice(&[block]));
        }
        has_room
    }

    pub fn wants(&self, hash: KeyHash, key: &[u8]) -> bool {
        let waiting = self.keys.find(hash, key).and_then(|number| self.destinations.get(number));
        waiting.is_some_and(|waiting| !waiting.is_empty())
    }

    /// Takes the key out, if anything waits for it.
    pub fn meet(&mut self, hash: KeyHash, key: &[u8]) -> Option<Destinations> {
        let waiting = self.destinations.get_mut(self.keys.find(hash, key)?)?;
        let met = std::mem::take(waiting);
        self.blocks -= met.len();
        (!met.is_empty()).then_some(met)
    }

    /// Gives back the memory of keys that were forgotten. Nothing is asked for any more.
    pub fn shrink(&mut self) {
        self.keys.keys_mut().truncate(self.destinations.len());
        self.destinations.shrink_to_fit();
    }

    /// Forgets the key added last. `None` if there is none; the hash, if it has not been met.
    pub fn forget_last(&mut self) -> Option<Option<KeyHash>> {
        let waiting = self.destinations.pop()?;
        let key = self.keys.keys().get(self.destinations.len());
        Some(key.filter(|_| !waiting.is_empty()).map(|key| self.keys.hash(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_met_can_be_asked_for_again() {
        let mut unmet = Unmet::new(FixedState::with_seed(1));
        let (a, b) = (unmet.hash(b"a"), unmet.hash(b"b"));
        assert!(unmet.add(a, b"a", BlockIndex(1)));
        assert!(!unmet.add(a, b"a", BlockIndex(2)), "somebody waits already");
        assert!(unmet.add(b, b"b", BlockIndex(3)));
        assert_eq!(unmet.blocks(), 3);
        assert_eq!(unmet.meet(a, b"a").unwrap().as_slice(), [BlockIndex(1), BlockIndex(2)]);
        assert_eq!(unmet.meet(a, b"a"), None);
        assert!(unmet.add(a, b"a", BlockIndex(4)));
        assert_eq!(unmet.meet(b, b"b").unwrap().as_slice(), [BlockIndex(3)]);
        assert_eq!((unmet.blocks(), unmet.len()), (1, 2));
        assert_eq!([unmet.forget_last(), unmet.forget_last()], [Some(None), Some(Some(a))]);
        assert_eq!(unmet.forget_last(), None);
    }
}
