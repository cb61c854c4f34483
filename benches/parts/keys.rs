//! Keys as vLLM's are, and others; block indexes; all from seeds.

use std::ops::Range;

use p2pkv::protocol::ids::BlockIndex;
use p2pkv::protocol::keys::{KeyBatch, KeysView};

/// Of a large load.
pub const MANY: usize = 8192;

/// A hash of 32 bytes and the index of a KV-cache group, in four bytes, the highest first.
pub const KEY_LEN: usize = 36;
const GROUP: [u8; 4] = 0_u32.to_be_bytes();

/// Different keys, one behind the other.
pub struct Keys {
    bytes: Vec<u8>,
}

impl Keys {
    /// Other ones for each seed.
    pub fn new(count: usize, seed: u64) -> Keys {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = vec![0; count * KEY_LEN];
        for key in bytes.chunks_exact_mut(KEY_LEN) {
            let (hash, group) = key.split_at_mut(KEY_LEN - GROUP.len());
            random.fill(hash);
            group.copy_from_slice(&GROUP);
        }
        Keys { bytes }
    }

    pub fn all(&self) -> KeysView<'_> {
        self.part(0..self.bytes.len() / KEY_LEN)
    }

    pub fn part(&self, positions: Range<usize>) -> KeysView<'_> {
        let bytes = positions.start * KEY_LEN..positions.end * KEY_LEN;
        KeysView::new(&self.bytes[bytes], KEY_LEN).unwrap()
    }

    /// For a message.
    pub fn pick(&self, positions: &[usize]) -> KeyBatch {
        let key = |position: &usize| &self.bytes[position * KEY_LEN..][..KEY_LEN];
        let mut batch = KeyBatch::with_capacity(positions.len(), positions.len() * KEY_LEN);
        batch.extend(positions.iter().map(key));
        batch
    }
}

/// Keys of 8 to 64 bytes, hardly two neighbours of one length.
pub fn of_mixed_lengths(count: usize) -> KeyBatch {
    let mut random = fastrand::Rng::with_seed(3);
    let keys: Vec<Vec<u8>> = (0..count)
        .map(|_| {
            let mut key = vec![0; random.usize(8..=64)];
            random.fill(&mut key);
            key
        })
        .collect();
    keys.iter().map(Vec::as_slice).collect()
}

/// `0..count` in another order.
pub fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    fastrand::Rng::with_seed(5).shuffle(&mut order);
    order
}

pub fn blocks(indexes: impl IntoIterator<Item = usize>) -> Vec<BlockIndex> {
    indexes.into_iter().map(|index| BlockIndex(u32::try_from(index).unwrap())).collect()
}
