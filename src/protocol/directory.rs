//! The block directory: which published key is in which block, and how many rounds hold it.

use foldhash::quality::FixedState;
use hashbrown::HashMap;
use hashbrown::hash_map::EntryRef;

use super::error::{Error, ErrorKind, Result};
use super::ids::BlockIndex;
use super::job::UnpublishState;
use super::keys::{Key, KeysView};

#[derive(Debug)]
pub struct Directory {
    entries: HashMap<Key, Entry, FixedState>,
    pinned: usize,
}

#[derive(Debug)]
struct Entry {
    block: BlockIndex,
    pins: u32,
}

impl Directory {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Directory { entries: HashMap::with_hasher(FixedState::with_seed(seed)), pinned: 0 }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Blocks that at least one round holds.
    #[must_use]
    pub fn pinned(&self) -> usize {
        self.pinned
    }

    /// Publishes all keys or none. A key that is published at the same block already stays as it is.
    pub fn publish(&mut self, keys: KeysView<'_>, blocks: &[BlockIndex]) -> Result<()> {
        let mut added = Vec::with_capacity(keys.len());
        for (position, (key, block)) in keys.iter().zip(blocks).enumerate() {
            match self.entries.entry_ref(key) {
                EntryRef::Occupied(known) if known.get().block != *block => {
                    let text = format!(
                        "key {position} is published at block {} already, not at {block}; unpublish it first",
                        known.get().block
                    );
                    for key in added {
                        self.entries.remove::<[u8]>(key);
                    }
                    return Err(Error::new(ErrorKind::AlreadyExists, text));
                }
                EntryRef::Occupied(_) => {}
                EntryRef::Vacant(vacant) => {
                    vacant.insert_with_key(Key::new(key), Entry { block: *block, pins: 0 });
                    added.push(key);
                }
            }
        }
        Ok(())
    }

    /// Takes all of the keys out, or none if one is pinned. `states` is as long as `keys`: `Removed` then means that
    /// the key alone could have been removed. True if they are out.
    pub fn unpublish(&mut self, keys: KeysView<'_>, states: &mut [UnpublishState]) -> bool {
        let mut busy = false;
        for (key, state) in keys.iter().zip(states.iter_mut()) {
            *state = match self.entries.get(key) {
                None => UnpublishState::NotFound,
                Some(entry) if entry.pins > 0 => UnpublishState::Busy,
                Some(_) => UnpublishState::Removed,
            };
            busy |= *state == UnpublishState::Busy;
        }
        if !busy {
            keys.iter().for_each(|key| {
                self.entries.remove(key);
            });
        }
        !busy
    }

    /// Holds the key's block, if it is published, until [`Self::unpin`].
    pub fn pin(&mut self, key: &[u8]) -> Option<BlockIndex> {
        let entry = self.entries.get_mut(key)?;
        if entry.pins == 0 {
            self.pinned += 1;
        }
        entry.pins += 1;
        Some(entry.block)
    }

    pub fn unpin(&mut self, key: &[u8]) {
        if let Some(entry) = self.entries.get_mut(key)
            && entry.pins > 0
        {
            entry.pins -= 1;
            if entry.pins == 0 {
                self.pinned -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(data: &[u8]) -> KeysView<'_> {
        KeysView::new(data, 1).unwrap()
    }

    #[test]
    fn publishing_a_key_elsewhere_changes_nothing() {
        let mut directory = Directory::new(1);
        directory.publish(keys(b"ab"), &[BlockIndex(1), BlockIndex(2)]).unwrap();
        directory.publish(keys(b"b"), &[BlockIndex(2)]).unwrap();
        let refused = directory.publish(keys(b"cb"), &[BlockIndex(3), BlockIndex(4)]).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::AlreadyExists);
        assert_eq!(directory.len(), 2);
        assert_eq!(directory.pin(b"c"), None);
    }

    #[test]
    fn a_pinned_key_stays_published_until_the_last_unpin() {
        let mut directory = Directory::new(1);
        directory.publish(keys(b"a"), &[BlockIndex(7)]).unwrap();
        assert_eq!(directory.pin(b"a"), Some(BlockIndex(7)));
        assert_eq!(directory.pin(b"a"), Some(BlockIndex(7)));
        assert_eq!(directory.pinned(), 1);
        directory.unpin(b"a");
        let mut states = [UnpublishState::NotFound; 2];
        directory.publish(keys(b"b"), &[BlockIndex(8)]).unwrap();
        assert!(!directory.unpublish(keys(b"ba"), &mut states), "one pinned key keeps all");
        assert_eq!(states, [UnpublishState::Removed, UnpublishState::Busy]);
        assert_eq!(directory.len(), 2);
        directory.unpin(b"a");
        assert!(directory.unpublish(keys(b"ba"), &mut states));
        assert!(directory.unpublish(keys(b"ab"), &mut states));
        assert_eq!(states, [UnpublishState::NotFound; 2]);
        assert_eq!(directory.pinned(), 0);
    }
}
