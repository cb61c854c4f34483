//! The blocks that one round can serve, by key.

use foldhash::quality::FixedState;

use crate::protocol::ids::BlockIndex;
use crate::protocol::key_table::{KeyHash, KeyTable};

/// Who holds a block for the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Directory,
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

    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.keys.hash(key)
    }

    pub fn find(&self, hash: KeyHash, key: &[u8]) -> Option<(BlockIndex, Source)> {
        self.blocks.get(self.keys.find(hash, key)?).copied()
    }

    /// Adds a key that is not there yet. False if there is no room.
    #[must_use]
    pub fn add(&mut self, new: KeyHash, key: &[u8], block: BlockIndex, source: Source) -> bool {
        let added = self.keys.add(new, key);
        if added {
            self.blocks.push((block, source));
        }
        added
    }

    pub fn reserve(&mut self, additional: usize) {
        self.keys.reserve(additional);
    }

    /// The keys whose blocks the directory holds pinned for the round.
    pub fn pinned(&self) -> impl Iterator<Item = &[u8]> {
        let sources = self.blocks.iter().map(|(_, source)| *source);
        let keys = self.keys.keys().iter().zip(sources);
        keys.filter(|(_, source)| *source == Source::Directory).map(|(key, _)| key)
    }

    pub fn clear(&mut self) {
        self.keys.clear();
        self.blocks.clear();
    }
}
