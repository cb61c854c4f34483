//! The block directory: which published key is in which block, and how many rounds hold it.

use std::collections::VecDeque;

use foldhash::quality::FixedState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::error::{Error, ErrorKind, Result};
use super::ids::BlockIndex;
use super::job::UnpublishState;
use super::key_table::KeyHash;
use super::keys::{Key, KeysView};

/// Published keys lie in slots, in the order in which they were published, as far as no freed slot is used again: what is
/// published together is looked up together, and then lies together in memory.
#[derive(Debug)]
pub struct Directory {
    hasher: FixedState,
    slots: Vec<Slot>,
    /// Slots of keys that were unpublished, first in, first out: then also in a directory that is always full what is
    /// published together lies in order.
    free: VecDeque<u32>,
    /// Slots by key.
    numbers: HashTable<u32>,
    pinned: usize,
}

#[derive(Debug)]
struct Slot {
    /// Without a byte in a free slot.
    key: Key,
    block: BlockIndex,
    pins: u32,
}

/// Holds one published key and its block until it is given back.
#[derive(Debug, PartialEq, Eq)]
pub struct Pin {
    slot: u32,
}

impl Directory {
    #[must_use]
    pub fn new(hasher: FixedState) -> Self {
        Directory { hasher, slots: Vec::new(), free: VecDeque::new(), numbers: HashTable::new(), pinned: 0 }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Blocks that at least one round holds.
    #[must_use]
    pub fn pinned(&self) -> usize {
        self.pinned
    }

    fn find(&self, hash: KeyHash, key: &[u8]) -> Option<u32> {
        self.numbers.find(hash.0, |slot| is_key(&self.slots, *slot, key)).copied()
    }

    fn published(&self, key: &[u8]) -> Option<&Slot> {
        self.slots.get(self.find(KeyHash::new(&self.hasher, key), key)? as usize)
    }

    /// Publishes all keys or none. A key that is published at the same block already stays as it is.
    pub fn publish(&mut self, keys: KeysView<'_>, blocks: &[BlockIndex]) -> Result<()> {
        let mut added = Vec::with_capacity(keys.len());
        for (position, (key, block)) in keys.iter().zip(blocks).enumerate() {
            match self.published(key).map(|slot| slot.block) {
                Some(known) if known != *block => {
                    added.into_iter().for_each(|key: &[u8]| self.remove(key));
                    return Err(Error::new(
                        ErrorKind::AlreadyExists,
                        format!(
                            "key {position} is published at block {known} already, not at {block}; unpublish it first"
                        ),
                    ));
                }
                Some(_) => {}
                None => {
                    self.add(key, *block);
                    added.push(key);
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, key: &[u8], block: BlockIndex) {
        let Directory { hasher, slots, free, numbers, .. } = self;
        let hash = KeyHash::new(hasher, key);
        let rehash = |slot: &u32| {
            slots.get(*slot as usize).map_or(0, |slot| KeyHash::new(hasher, slot.key.as_bytes()).0)
        };
        let Entry::Vacant(vacant) = numbers.entry(hash.0, |slot| is_key(slots, *slot, key), rehash) else {
            return;
        };
        let content = Slot { key: Key::new(key), block, pins: 0 };
        match free.pop_front().and_then(|number| Some((number, slots.get_mut(number as usize)?))) {
            Some((number, slot)) => {
                *slot = content;
                vacant.insert(number);
            }
            None => {
                // A key takes far more than a byte: there is no memory for so many that the numbers run out.
                vacant.insert(u32::try_from(slots.len()).unwrap_or(u32::MAX));
                slots.push(content);
            }
        }
    }

    /// Takes all of the keys out, or none if one is pinned. `states` is as long as `keys`: `Removed` then means that
    /// the key alone could have been removed. True if they are out.
    pub fn unpublish(&mut self, keys: KeysView<'_>, states: &mut [UnpublishState]) -> bool {
        let mut busy = false;
        for (key, state) in keys.iter().zip(states.iter_mut()) {
            *state = match self.published(key) {
                None => UnpublishState::NotFound,
                Some(slot) if slot.pins > 0 => UnpublishState::Busy,
                Some(_) => UnpublishState::Removed,
            };
            busy |= *state == UnpublishState::Busy;
        }
        if !busy {
            keys.iter().for_each(|key| self.remove(key));
        }
        !busy
    }

    fn remove(&mut self, key: &[u8]) {
        let Directory { hasher, slots, free, numbers, .. } = self;
        let hash = KeyHash::new(hasher, key);
        if let Ok(entry) = numbers.find_entry(hash.0, |slot| is_key(slots, *slot, key)) {
            let number = entry.remove().0;
            if let Some(slot) = slots.get_mut(number as usize) {
                slot.key = Key::default();
            }
            free.push_back(number);
        }
    }

    /// Holds the key's block, if it is published, until [`Self::unpin`]. The slot behind that of `last` is looked at first:
    /// keys are mostly asked for in the order in which they were published, and then `hash` is not needed.
    pub fn pin(
        &mut self,
        last: Option<&Pin>,
        key: &[u8],
        hash: impl FnOnce() -> KeyHash,
    ) -> Option<(BlockIndex, Pin)> {
        let next = last.and_then(|last| last.slot.checked_add(1));
        let number = match next.filter(|next| is_key(&self.slots, *next, key)) {
            Some(next) => next,
            None => self.find(hash(), key)?,
        };
        self.hold(number)
    }

    fn hold(&mut self, number: u32) -> Option<(BlockIndex, Pin)> {
        let slot = self.slots.get_mut(number as usize)?;
        if slot.pins == 0 {
            self.pinned += 1;
        }
        slot.pins += 1;
        Some((slot.block, Pin { slot: number }))
    }

    pub fn unpin(&mut self, pin: Pin) {
        if let Some(slot) = self.slots.get_mut(pin.slot as usize)
            && slot.pins > 0
        {
            slot.pins -= 1;
            if slot.pins == 0 {
                self.pinned -= 1;
            }
        }
    }
}

/// No key that is asked for is empty, so no free slot is it.
fn is_key(slots: &[Slot], number: u32, key: &[u8]) -> bool {
    slots.get(number as usize).is_some_and(|slot| slot.key.as_bytes() == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(data: &[u8]) -> KeysView<'_> {
        KeysView::new(data, 1).unwrap()
    }

    fn pin(directory: &mut Directory, key: &[u8]) -> Option<(BlockIndex, Pin)> {
        pin_after(directory, None, key)
    }

    fn pin_after(directory: &mut Directory, last: Option<&Pin>, key: &[u8]) -> Option<(BlockIndex, Pin)> {
        directory.pin(last, key, || KeyHash::new(&FixedState::with_seed(1), key))
    }

    #[test]
    fn publishing_a_key_elsewhere_changes_nothing() {
        let mut directory = Directory::new(FixedState::with_seed(1));
        directory.publish(keys(b"ab"), &[BlockIndex(1), BlockIndex(2)]).unwrap();
        directory.publish(keys(b"b"), &[BlockIndex(2)]).unwrap();
        let refused = directory.publish(keys(b"cb"), &[BlockIndex(3), BlockIndex(4)]).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::AlreadyExists);
        assert_eq!(directory.len(), 2);
        assert_eq!(pin(&mut directory, b"c"), None);
    }

    #[test]
    fn a_pinned_key_stays_published_until_the_last_unpin() {
        let mut directory = Directory::new(FixedState::with_seed(1));
        directory.publish(keys(b"a"), &[BlockIndex(7)]).unwrap();
        let (block, first) = pin(&mut directory, b"a").unwrap();
        assert_eq!(block, BlockIndex(7));
        let (_, second) = pin(&mut directory, b"a").unwrap();
        assert_eq!(directory.pinned(), 1);
        directory.unpin(first);
        let mut states = [UnpublishState::NotFound; 2];
        directory.publish(keys(b"b"), &[BlockIndex(8)]).unwrap();
        assert!(!directory.unpublish(keys(b"ba"), &mut states), "one pinned key keeps all");
        assert_eq!(states, [UnpublishState::Removed, UnpublishState::Busy]);
        assert_eq!(directory.len(), 2);
        directory.unpin(second);
        assert!(directory.unpublish(keys(b"ba"), &mut states));
        assert!(directory.unpublish(keys(b"ab"), &mut states));
        assert_eq!(states, [UnpublishState::NotFound; 2]);
        assert_eq!(directory.pinned(), 0);
    }

    #[test]
    fn the_next_slot_is_taken_only_if_it_is_the_keys() {
        let mut directory = Directory::new(FixedState::with_seed(1));
        let blocks: Vec<BlockIndex> = (0..4).map(BlockIndex).collect();
        directory.publish(keys(b"abcd"), &blocks).unwrap();
        let (_, first) = pin(&mut directory, b"a").unwrap();
        let (block, second) = pin_after(&mut directory, Some(&first), b"b").unwrap();
        assert_eq!((block, second.slot), (BlockIndex(1), first.slot + 1));
        let (block, third) = pin_after(&mut directory, Some(&second), b"d").unwrap();
        assert_eq!(block, BlockIndex(3), "the one behind is another's");
        assert_eq!(pin_after(&mut directory, Some(&third), b"e"), None, "there is none behind");
        assert!(directory.unpublish(keys(b"c"), &mut [UnpublishState::NotFound]));
        assert_eq!(pin_after(&mut directory, Some(&second), b"c"), None, "the one behind is free");
        assert_eq!(directory.pinned(), 3);
    }

    #[test]
    fn freed_slots_are_used_again_and_no_key_takes_anothers_place() {
        let mut directory = Directory::new(FixedState::with_seed(1));
        for round in 0..50_u8 {
            let new: Vec<u8> = (0..20).map(|key| round.wrapping_mul(5).wrapping_add(key)).collect();
            for key in &new {
                directory.publish(keys(&[*key]), &[BlockIndex(u32::from(*key))]).unwrap();
            }
            for key in &new {
                let (block, held) = pin(&mut directory, &[*key]).unwrap();
                assert_eq!(block, BlockIndex(u32::from(*key)));
                directory.unpin(held);
            }
            let mut states = [UnpublishState::NotFound; 5];
            assert!(directory.unpublish(keys(&new[..5]), &mut states));
            assert_eq!(directory.len(), 15);
        }
        assert!(directory.slots.len() <= 20);
    }
}
