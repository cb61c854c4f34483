//! Keys, each with a number: its position in the order in which they came.
//!
//! What is known of a key lies in a plain list beside the table, at its number. The table holds four bytes for each key
//! and the keys lie one behind the other: thousands of them stay in the cache and cost a few allocations in all.

use std::hash::BuildHasher;

use foldhash::quality::FixedState;
use hashbrown::HashTable;

use super::keys::KeyBatch;

#[derive(Debug)]
pub struct KeyTable {
    hasher: FixedState,
    keys: KeyBatch,
    numbers: HashTable<u32>,
}

/// Of one key under the tier's seed, so that it is hashed once for all tables that are asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash(pub u64);

impl KeyHash {
    #[must_use]
    pub fn new(hasher: &FixedState, key: &[u8]) -> Self {
        KeyHash(hasher.hash_one(key))
    }
}

impl KeyTable {
    #[must_use]
    pub fn new(hasher: FixedState) -> Self {
        KeyTable { hasher, keys: KeyBatch::new(), numbers: HashTable::new() }
    }

    #[must_use]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::new(&self.hasher, key)
    }

    #[must_use]
    pub fn find(&self, hash: KeyHash, key: &[u8]) -> Option<usize> {
        let is_key = |number: &u32| self.keys.get(*number as usize) == Some(key);
        self.numbers.find(hash.0, is_key).map(|number| *number as usize)
    }

    /// Gives the next number to a key that is not there yet. False if there is no room, at 4 GiB of keys.
    #[must_use]
    pub fn add(&mut self, new: KeyHash, key: &[u8]) -> bool {
        let KeyTable { hasher, keys, numbers } = self;
        let Ok(number) = u32::try_from(keys.len()) else { return false };
        if !keys.push(key) {
            return false;
        }
        numbers.insert_unique(new.0, number, |number| rehash(hasher, keys, *number));
        true
    }

    /// Makes room for so many more keys, of so many bytes in all: a table that grows step by step hashes all of them anew
    /// each time.
    pub fn reserve(&mut self, additional: usize, bytes: usize) {
        let KeyTable { hasher, keys, numbers } = self;
        keys.reserve(additional, bytes);
        numbers.reserve(additional, |number| rehash(hasher, keys, *number));
    }

    /// All keys, by number.
    #[must_use]
    pub fn keys(&self) -> &KeyBatch {
        &self.keys
    }

    /// The keys alone, of a table that is not asked any more.
    pub fn keys_mut(&mut self) -> &mut KeyBatch {
        &mut self.keys
    }

    pub fn clear(&mut self) {
        self.keys.clear();
        self.numbers.clear();
    }
}

fn rehash(hasher: &FixedState, keys: &KeyBatch, number: u32) -> u64 {
    KeyHash::new(hasher, keys.get(number as usize).unwrap_or_default()).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_numbered_in_order_and_found_after_growth() {
        let mut table = KeyTable::new(FixedState::with_seed(1));
        let keys: Vec<Vec<u8>> = (0..1000_u32).map(|n| vec![n as u8; 1 + n as usize / 256]).collect();
        for (number, key) in keys.iter().enumerate() {
            let hash = table.hash(key);
            assert_eq!(table.find(hash, key), None);
            assert!(table.add(hash, key));
            assert_eq!(table.find(hash, key), Some(number));
        }
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(table.find(table.hash(key), key), Some(number));
        }
        table.clear();
        assert_eq!(table.find(table.hash(&keys[7]), &keys[7]), None);
        assert!(table.keys().is_empty());
    }
}
