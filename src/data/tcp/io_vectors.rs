//! Scatter and gather: many blocks of the region in one system call, without a copy in between.

use std::io;
use std::os::fd::AsRawFd;

use crate::data::Region;
use crate::protocol::ids::BlockIndex;

/// The kernel's own limit (`UIO_MAXIOV`).
const MAX_VECTORS: usize = 1024;

/// A position in a list of blocks: the first byte not moved yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Position in the list, not a block index.
    pub block: usize,
    /// Always less than the block length.
    pub offset: usize,
}

impl Place {
    pub fn advance(&mut self, bytes: usize, block_len: usize) {
        *self = self.after(bytes, block_len);
    }

    pub fn after(self, bytes: usize, block_len: usize) -> Place {
        let from_block_start = self.offset + bytes;
        Place { block: self.block + from_block_start / block_len, offset: from_block_start % block_len }
    }
}

/// The vectors of one call; kept between calls for its memory alone, never for its content.
pub(super) struct IoVectors {
    region: Region,
    list: Vec<libc::iovec>,
}

impl IoVectors {
    pub fn new(region: Region) -> IoVectors {
        IoVectors { region, list: Vec::with_capacity(MAX_VECTORS) }
    }

    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Sends `head` and then at most `limit` bytes of `blocks`, the first of them from `offset` on. The result
    /// counts both. The caller holds the blocks pinned.
    pub fn send(
        &mut self,
        socket: &impl AsRawFd,
        head: &[u8],
        blocks: impl Iterator<Item = BlockIndex>,
        offset: usize,
        limit: usize,
    ) -> io::Result<Moved> {
        self.list.clear();
        if !head.is_empty() {
            self.push(head.as_ptr().cast_mut(), head.len());
        }
        let asked = head.len() + self.push_blocks(blocks, offset, limit)?;
        let message = self.message();
        // SAFETY: the vectors name `head`, borrowed for this call, and bytes of the region, which outlives us and
        // is touched through raw pointers only; sendmsg only reads them.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        moved(sent, asked)
    }

    /// A copy of what `blocks` hold, of the first of them from `offset` on, for when they may not be read any more. The
    /// caller holds them pinned until then. Fails where there is no memory for it.
    pub fn copy_out(
        &self,
        blocks: impl Iterator<Item = BlockIndex> + Clone,
        mut offset: usize,
    ) -> io::Result<Vec<u8>> {
        let block_len = self.region.block_len();
        let most = blocks.clone().count().saturating_mul(block_len);
        let mut copy = Vec::new();
        copy.try_reserve_exact(most.saturating_sub(offset))?;
        for block in blocks {
            let start = self.region.block_ptr(block).ok_or_else(|| outside(block, &self.region))?;
            // SAFETY: the rest of one block of the region, which outlives us; pinned, so nobody writes it meanwhile, and the
            // slice is gone with this statement.
            let rest = unsafe {
                std::slice::from_raw_parts(start.wrapping_add(offset), block_len.saturating_sub(offset))
            };
            copy.extend_from_slice(rest);
            offset = 0;
        }
        Ok(copy)
    }

    /// Receives at most `limit` bytes into `blocks`, the first of them from `offset` on. 0 bytes are the end of the
    /// stream. The caller has made sure that the blocks may be written now.
    pub fn receive(
        &mut self,
        socket: &impl AsRawFd,
        blocks: impl Iterator<Item = BlockIndex>,
        offset: usize,
        limit: usize,
    ) -> io::Result<Moved> {
        self.list.clear();
        let asked = self.push_blocks(blocks, offset, limit)?;
        let mut message = self.message();
        // SAFETY: the vectors name bytes of the region only, which outlives us and is touched through raw pointers
        // only; that these bytes may be written now is what the fence has settled.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
        moved(got, asked)
    }

    /// Gives the number of bytes that the vectors then name.
    fn push_blocks(
        &mut self,
        blocks: impl Iterator<Item = BlockIndex>,
        mut offset: usize,
        limit: usize,
    ) -> io::Result<usize> {
        let mut room = limit;
        for block in blocks {
            let start = self.region.block_ptr(block).ok_or_else(|| outside(block, &self.region))?;
            let bytes = self.region.block_len().saturating_sub(offset).min(room);
            self.push(start.wrapping_add(offset), bytes);
            offset = 0;
            room -= bytes;
            if room == 0 || self.list.len() == MAX_VECTORS {
                break;
            }
        }
        Ok(limit - room)
    }

    /// Adds one piece; one that begins where the last ends makes that longer.
    fn push(&mut self, start: *mut u8, bytes: usize) {
        if let Some(last) = self.list.last_mut()
            && last.iov_base.wrapping_byte_add(last.iov_len) == start.cast()
        {
            last.iov_len += bytes;
            return;
        }
        self.list.push(libc::iovec { iov_base: start.cast(), iov_len: bytes });
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: msghdr is integers and pointers; all zero means no address and no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.list.as_mut_ptr();
        message.msg_iovlen = self.list.len();
        message
    }
}

/// What one call moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    pub bytes: usize,
    /// Fewer than asked for: the socket is full or empty now, and another call would only say so.
    pub short: bool,
}

fn moved(result: isize, asked: usize) -> io::Result<Moved> {
    let bytes = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
    Ok(Moved { bytes, short: bytes < asked })
}

fn outside(block: BlockIndex, region: &Region) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("block {block} is not in the region of {} blocks", region.num_blocks()),
    )
}

/// Reads at most `limit` bytes from the socket and forgets them; TCP does so without copying. 0 bytes are the end of
/// the stream.
pub(super) fn discard(socket: &impl AsRawFd, limit: usize) -> io::Result<Moved> {
    // SAFETY: for TCP, MSG_TRUNC drops the bytes in the kernel and never writes to the buffer, hence none is given.
    let got = unsafe { libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), limit, libc::MSG_TRUNC) };
    moved(got, limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(blocks: &[u32], offset: usize, limit: usize) -> Vec<usize> {
        let mut memory = vec![0_u8; 8 * 10];
        // SAFETY: `memory` outlives the vectors, which nobody follows here.
        let region = unsafe { Region::new(memory.as_mut_ptr(), 8, 10) }.unwrap();
        let mut vectors = IoVectors::new(region);
        vectors.push_blocks(blocks.iter().copied().map(BlockIndex), offset, limit).unwrap();
        vectors.list.iter().map(|piece| piece.iov_len).collect()
    }

    #[test]
    fn adjacent_blocks_share_a_vector() {
        assert_eq!(lengths(&[1, 2, 3, 7, 5], 0, 1000), [30, 10, 10]);
        assert_eq!(lengths(&[3, 2, 1], 0, 1000), [10, 10, 10]);
    }

    #[test]
    fn a_call_starts_inside_a_block_and_ends_at_its_limit() {
        assert_eq!(lengths(&[1, 2], 4, 9), [9]);
        assert_eq!(lengths(&[1, 5], 4, 9), [6, 3]);
        assert_eq!(lengths(&[1, 5], 4, 6), [6]);
    }

    #[test]
    fn a_place_steps_over_blocks() {
        let mut place = Place { block: 1, offset: 7 };
        place.advance(3, 10);
        assert_eq!(place, Place { block: 2, offset: 0 });
        place.advance(25, 10);
        assert_eq!(place, Place { block: 4, offset: 5 });
    }
}
