//! The blocks that one round can serve, by key.

use foldhash::quality::FixedState;

use crate::protocol::directory::Pin;
use crate::protocol::ids::BlockIndex;
use crate::protocol::key_table::{KeyHash, KeyTable};

/// Who holds a block for the round.
#[derive(Debug, PartialEq, Eq)]
pub enum Source {
    Directory(Pin),
    /// Position among the round's jobs.
    Job(usize),
}

#[derive(Debug)]
pub struct Supply {
    keys: KeyTable,
    /// By the key's number.
    blocks: Vec<(BlockIndex, Source)>,
}

impl Supply {
    pub fn new(hasher: FixedState) -> Self {
        Supply { keys: KeyTable::new(hasher), blocks: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Of the key that was added last, if it came from the directory.
    pub fn last_pin(&self) -> Option<&Pin> {
        match self.blocks.last() {
            Some((_, Source::Directory(pin))) => Some(pin),
            _ => None,
        }
    }

    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.keys.hash(key)
    }

    pub fn find(&self, hash: KeyHash, key: &[u8]) -> Option<&(BlockIndex, Source)> {
        self.blocks.get(self.keys.find(hash, key)?)
    }

    /// Adds a key that is not there yet. If there is no room, gives back what was to be added.
    pub fn add(&mut self, new: KeyHash, key: &[u8], block: BlockIndex, source: Source) -> Result<(), Source> {
        if !self.keys.add(new, key) {
            return Err(source);
        }
        self.blocks.push((block, source));
        Ok(())
    }

    pub fn reserve(&mut self, keys: usize, bytes: usize) {
        self.keys.reserve(keys, bytes);
        self.blocks.reserve(keys);
    }

    /// Empties it; the pins are to be given back to the directory.
    pub fn take(&mut self) -> Vec<(BlockIndex, Source)> {
        self.keys.clear();
        std::mem::take(&mut self.blocks)
    }
}
