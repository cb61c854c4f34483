//! What a transfer moves, in as few pieces as it can be described with.

use crate::data::Region;
use crate::protocol::ids::BlockPair;

/// The peer's region, as its `connect` describes it: checked to lie in the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteRegion {
    base: usize,
    num_blocks: u64,
    block_len: usize,
}

impl RemoteRegion {
    /// `None` if it cannot be: empty, or past the end of the address space.
    pub fn new(base_addr: u64, num_blocks: u64, block_len: u64) -> Option<RemoteRegion> {
        let base = usize::try_from(base_addr).ok()?;
        let block_len = usize::try_from(block_len).ok()?;
        let bytes = usize::try_from(num_blocks).ok()?.checked_mul(block_len)?;
        base.checked_add(bytes)?;
        (bytes > 0).then_some(RemoteRegion { base, num_blocks, block_len })
    }

    pub fn base(&self) -> usize {
        self.base
    }

    pub fn len(&self) -> usize {
        // Checked when made.
        self.block_len.wrapping_mul(usize::try_from(self.num_blocks).unwrap_or(0))
    }

    pub fn block_len(&self) -> usize {
        self.block_len
    }
}

/// A stretch of bytes on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub local: usize,
    pub remote: usize,
    pub len: usize,
}

/// The pieces of a transfer: neighbours on both sides become one. `None` if a block is outside its region.
pub(super) fn pieces(blocks: &[BlockPair], local: &Region, remote: &RemoteRegion) -> Option<Vec<Piece>> {
    let mut pieces: Vec<Piece> = Vec::new();
    for pair in blocks {
        if u64::from(pair.remote.0) >= remote.num_blocks {
            return None;
        }
        let from = local.block_ptr(pair.local)?.addr();
        let to = remote.base + pair.remote.0 as usize * remote.block_len;
        match pieces.last_mut() {
            Some(last) if last.local + last.len == from && last.remote + last.len == to => {
                last.len += remote.block_len;
            }
            _ => pieces.push(Piece { local: from, remote: to, len: remote.block_len }),
        }
    }
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ids::BlockIndex;

    fn pair(local: u32, remote: u32) -> BlockPair {
        BlockPair { local: BlockIndex(local), remote: BlockIndex(remote) }
    }

    fn regions() -> (Region, RemoteRegion) {
        // SAFETY: the bytes are never touched.
        let local = unsafe { Region::new(std::ptr::without_provenance_mut(0x1000), 8, 16) }.unwrap();
        (local, RemoteRegion::new(0x9000, 8, 16).unwrap())
    }

    #[test]
    fn blocks_that_run_on_on_both_sides_become_one_piece() {
        let (local, remote) = regions();
        let pieces =
            pieces(&[pair(0, 4), pair(1, 5), pair(2, 6), pair(4, 7), pair(5, 1)], &local, &remote).unwrap();
        let expected = [(0x1000, 0x9040, 48), (0x1040, 0x9070, 16), (0x1050, 0x9010, 16)];
        assert_eq!(
            pieces.iter().map(|piece| (piece.local, piece.remote, piece.len)).collect::<Vec<_>>(),
            expected
        );
    }

    #[test]
    fn a_block_outside_either_region_is_no_transfer() {
        let (local, remote) = regions();
        assert_eq!(pieces(&[pair(0, 8)], &local, &remote), None);
        assert_eq!(pieces(&[pair(8, 0)], &local, &remote), None);
    }

    #[test]
    fn a_region_past_the_address_space_is_refused() {
        assert_eq!(RemoteRegion::new(u64::MAX - 8, 1, 16), None);
        assert_eq!(RemoteRegion::new(0, u64::MAX, 16), None);
        assert_eq!(RemoteRegion::new(0x1000, 0, 16), None);
        assert_eq!(RemoteRegion::new(0x1000, 4, 16).unwrap().len(), 64);
    }
}
