//! A set of block indexes of one region, a bit each.

use super::ids::BlockIndex;

#[derive(Clone, Debug, Default)]
pub struct BlockSet {
    words: Vec<u64>,
}

impl BlockSet {
    fn place(block: BlockIndex) -> (usize, u64) {
        ((block.0 / 64) as usize, 1 << (block.0 % 64))
    }

    #[must_use]
    pub fn contains(&self, block: BlockIndex) -> bool {
        let (word, bit) = Self::place(block);
        self.words.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// True if it was not there.
    pub fn insert(&mut self, block: BlockIndex) -> bool {
        let (word, bit) = Self::place(block);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let Some(bits) = self.words.get_mut(word) else { return false };
        let is_new = *bits & bit == 0;
        *bits |= bit;
        is_new
    }

    pub fn remove(&mut self, block: BlockIndex) {
        let (word, bit) = Self::place(block);
        if let Some(bits) = self.words.get_mut(word) {
            *bits &= !bit;
        }
    }

    pub fn insert_all(&mut self, blocks: &[BlockIndex]) {
        for block in blocks {
            self.insert(*block);
        }
    }

    pub fn remove_all(&mut self, blocks: &[BlockIndex]) {
        for block in blocks {
            self.remove(*block);
        }
    }

    /// The first of `blocks` that is in the set already or stands twice among them. The set stays as it is.
    pub fn first_conflict(&mut self, blocks: &[BlockIndex]) -> Option<BlockIndex> {
        let conflict = blocks.iter().position(|block| !self.insert(*block));
        let added = conflict.unwrap_or(blocks.len());
        self.remove_all(blocks.get(..added).unwrap_or_default());
        conflict.and_then(|position| blocks.get(position).copied())
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|bits| *bits == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_is_found_and_the_set_unchanged() {
        let blocks = |indexes: &[u32]| indexes.iter().copied().map(BlockIndex).collect::<Vec<_>>();
        let mut set = BlockSet::default();
        set.insert_all(&blocks(&[1, 64]));
        assert_eq!(set.first_conflict(&blocks(&[2, 3])), None);
        assert_eq!(set.first_conflict(&blocks(&[2, 2])), Some(BlockIndex(2)));
        assert_eq!(set.first_conflict(&blocks(&[2, 64])), Some(BlockIndex(64)));
        assert!(!set.contains(BlockIndex(2)) && set.contains(BlockIndex(64)));
        set.remove_all(&blocks(&[1, 64]));
        assert!(set.is_empty());
    }
}
