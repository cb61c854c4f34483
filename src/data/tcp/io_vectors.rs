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
    pub fn at(bytes: usize, block_len: usize) -> Place {
        Place { block: bytes / block_len, offset: bytes % block_len }
    }

    pub fn advance(&mut self, bytes: usize, block_len: usize) {
        let from_block_start = self.offset + bytes;
        self.block += from_block_start / block_len;
        self.offset = from_block_start % block_len;
    }
}

/// What is left of a frame behind its head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Body<T> {
    /// Bytes of blocks.
    pub left: usize,
    pub tail: T,
}

/// Sent in place of blocks that may not be read any more.
static FILLER: [u8; 16 << 10] = [0; 16 << 10];

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

    /// Sends `head`, then at most `limit` bytes of `blocks`, the first of them from `offset` on, and where those are the
    /// last of the body also its tail. The result counts all. The caller holds the blocks pinned.
    pub fn send(
        &mut self,
        socket: &impl AsRawFd,
        head: &[u8],
        blocks: impl Iterator<Item = BlockIndex>,
        offset: usize,
        body: Body<&[u8]>,
        limit: usize,
    ) -> io::Result<Moved> {
        self.list.clear();
        self.push_bytes(head);
        let of_blocks = self.push_blocks(blocks, offset, limit.min(body.left))?;
        let of_tail = self.push_tail(body.tail, of_blocks == body.left);
        let message = self.message();
        // SAFETY: the vectors name `head` and `tail`, borrowed for this call, and bytes of the region, which outlives us and
        // is touched through raw pointers only; sendmsg only reads them.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        moved(sent, head.len() + of_blocks + of_tail)
    }

    /// As `send`, with filler in place of the blocks.
    pub fn send_filler(
        &mut self,
        socket: &impl AsRawFd,
        head: &[u8],
        body: Body<&[u8]>,
        limit: usize,
    ) -> io::Result<Moved> {
        self.list.clear();
        self.push_bytes(head);
        let mut filled = 0;
        while filled < body.left.min(limit) && self.has_room() {
            let piece = (body.left.min(limit) - filled).min(FILLER.len());
            // Not merged with the one before, which has the same bytes.
            self.list.push(libc::iovec { iov_base: FILLER.as_ptr().cast_mut().cast(), iov_len: piece });
            filled += piece;
        }
        let of_tail = self.push_tail(body.tail, filled == body.left);
        let message = self.message();
        // SAFETY: the vectors name `head` and `tail`, borrowed for this call, and a static; sendmsg only reads them.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        moved(sent, head.len() + filled + of_tail)
    }

    /// Receives at most `limit` bytes into `blocks`, the first of them from `offset` on, and where those are the last of
    /// the body also its tail. 0 bytes are the end of the stream. The caller has made sure that the blocks may be written
    /// now.
    pub fn receive(
        &mut self,
        socket: &impl AsRawFd,
        blocks: impl Iterator<Item = BlockIndex>,
        offset: usize,
        body: Body<&mut [u8]>,
        limit: usize,
    ) -> io::Result<Moved> {
        self.list.clear();
        let of_blocks = self.push_blocks(blocks, offset, limit.min(body.left))?;
        let of_tail = if of_blocks == body.left { body.tail.len() } else { 0 };
        if of_tail > 0 {
            self.push(body.tail.as_mut_ptr(), of_tail);
        }
        let mut message = self.message();
        // SAFETY: the vectors name `tail`, borrowed for this call, and bytes of the region, which outlives us and is touched
        // through raw pointers only; that these bytes may be written now is what the fence has settled.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
        moved(got, of_blocks + of_tail)
    }

    fn push_bytes(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.push(bytes.as_ptr().cast_mut(), bytes.len());
        }
    }

    fn push_tail(&mut self, tail: &[u8], is_next: bool) -> usize {
        if !is_next {
            return 0;
        }
        self.push_bytes(tail);
        tail.len()
    }

    /// For a piece of the body; the last vector is the tail's.
    fn has_room(&self) -> bool {
        self.list.len() < MAX_VECTORS - 1
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
            if room == 0 || !self.has_room() {
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
