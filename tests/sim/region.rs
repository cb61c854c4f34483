//! An engine's memory: one number for each block, and who counts on it. A block that nobody counts on any more is
//! filled with garbage at once and may be given to the next who asks.

use fastrand::Rng;

use p2pkv::protocol::ids::{BlockIndex, JobId};

pub const NUM_BLOCKS: u32 = 96;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Free,
    /// Holds a key's bytes for a store, a serving job or the directory.
    Source,
    Destination(JobId),
    /// Given up for good: a flag said that it may still be read or written.
    Quarantined,
}

#[derive(Debug)]
pub struct Region {
    content: Vec<u64>,
    uses: Vec<Use>,
    /// The ones let go last stand last.
    free: Vec<u32>,
    garbage: u64,
}

/// What a tier has under a key.
pub fn content_of(tier: usize, key: u8) -> u64 {
    (tier as u64 + 1) << 32 | u64::from(key)
}

impl Region {
    pub fn new() -> Region {
        let blocks = NUM_BLOCKS as usize;
        Region {
            content: vec![u64::MAX; blocks],
            uses: vec![Use::Free; blocks],
            free: (0..NUM_BLOCKS).collect(),
            garbage: 1 << 63,
        }
    }

    pub fn read(&self, block: u32) -> u64 {
        self.content[block as usize]
    }

    pub fn write(&mut self, block: u32, content: u64) {
        self.content[block as usize] = content;
    }

    pub fn used_as(&self, block: u32) -> Use {
        self.uses[block as usize]
    }

    /// So many free blocks: the ones let go last, or any.
    pub fn take(&mut self, count: usize, used_as: Use, rng: &mut Rng) -> Option<Vec<u32>> {
        if self.free.len() < count {
            return None;
        }
        if rng.bool() {
            rng.shuffle(&mut self.free);
        }
        let taken = self.free.split_off(self.free.len() - count);
        taken.iter().for_each(|block| self.uses[*block as usize] = used_as);
        Some(taken)
    }

    pub fn let_go(&mut self, block: u32) {
        self.garbage += 1;
        self.content[block as usize] = self.garbage;
        self.uses[block as usize] = Use::Free;
        self.free.push(block);
    }

    pub fn quarantine(&mut self, block: u32) {
        self.uses[block as usize] = Use::Quarantined;
    }
}

pub fn indexes(blocks: &[u32]) -> Vec<BlockIndex> {
    blocks.iter().copied().map(BlockIndex).collect()
}
