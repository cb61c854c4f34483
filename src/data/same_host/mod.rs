//! Between processes of one host the receiver pulls: it copies blocks out of the writer's memory into its own.
//!
//! It is an upgrade of the tcp plane, not a plane of its own: sessions, frames, acknowledgements and the fence are the
//! same (`data::tcp`); a data connection over a Unix socket brings a [`Handover`] with it, and frames on it bring no
//! bytes but the places of the blocks. Because only the receiver writes, its fence holds here as well.
//!
//! How the writer's memory is reached ([`Reach`]), best first:
//!
//! - **mapped**: the writer's region has a file, whose descriptor comes with the handover; the receiver maps it
//!   read-only and copies around the caches. One copy, at the machine's limit.
//! - **vm-read**: `process_vm_readv`, many blocks a call. Needs the permission to trace the writer.
//!
//! What neither can reach goes over TCP.
//!
//! The writer's blocks are pinned until it has the receiver's acknowledgement or has closed the connection. So bytes count
//! as landed only if the connection was still open *after* they were copied ([`socket::is_hung_up`]).

mod copy;
mod crew;
mod file;
mod mapping;
pub(in crate::data) mod socket;
mod vm_read;

pub(in crate::data) use crew::Crew;
pub use file::{RegionFile, SharedMemory, huge_page_bytes};

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use self::mapping::Mapping;
use self::vm_read::VmReader;
use super::Region;
use crate::protocol::config::Reach;
use crate::protocol::ids::{BlockIndex, BlockPair};

/// What a writer says of its region on a Unix socket; `file` comes beside the bytes.
#[derive(Debug)]
pub(in crate::data) struct Handover {
    /// As the writer calls itself.
    pub process: u32,
    /// A thread of it that lives as long as the connection.
    pub thread: u32,
    pub base_addr: u64,
    pub num_blocks: u32,
    /// Where block 0 begins in the file.
    pub file_offset: u64,
    pub file: Option<OwnedFd>,
}

/// A writer's region as the receiver can read it.
pub(in crate::data) struct Source {
    num_blocks: u32,
    access: Access,
}

enum Access {
    Mapped(Mapping),
    VmRead(VmReader),
}

/// How bytes are copied, whoever does it.
#[derive(Clone, Copy)]
enum Copier {
    /// From a mapping whose block 0 is at this address.
    Mapped {
        start: *const u8,
    },
    VmRead(vm_read::Address),
}

/// A run of bytes to be copied: to an address of ours, from an offset into the writer's region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    to: *mut u8,
    from: usize,
    len: usize,
}

/// Bytes that one pull takes at most, so that it takes well under a millisecond.
const BYTES_PER_PULL: usize = 4 << 20;
/// Larger pieces could not be shared well.
const LARGEST_PIECE: usize = 256 << 10;

impl Source {
    /// Tries the ways in their order. `Err` says why none of them works.
    pub fn open(handover: Handover, block_len: usize, socket: &impl AsFd) -> Result<Source, String> {
        let Handover { process, thread, base_addr, num_blocks, file_offset, file } = handover;
        let bytes = u64::from(num_blocks) * block_len as u64;
        let mapped = match file {
            Some(file) => Mapping::new(&file, file_offset, bytes).map_err(|why| format!("mapping it: {why}")),
            None => Err("its region has no file to map".to_owned()),
        };
        let source = |access| Source { num_blocks, access };
        let why_not_mapped = match mapped {
            Ok(mapping) => return Ok(source(Access::Mapped(mapping))),
            Err(why) => why,
        };
        match VmReader::new(socket, (process, thread), (base_addr, bytes)) {
            Ok(reader) => {
                log::debug!("same host: process_vm_readv is used ({why_not_mapped})");
                Ok(source(Access::VmRead(reader)))
            }
            Err(why) => Err(format!("{why_not_mapped}; process_vm_readv: {why}")),
        }
    }

    pub fn reach(&self) -> Reach {
        match self.access {
            Access::Mapped(_) => Reach::Mapped,
            Access::VmRead(_) => Reach::VmRead,
        }
    }

    pub fn has_block(&self, block: BlockIndex) -> bool {
        block.0 < self.num_blocks
    }

    /// Copies the next bytes, the first block from `offset` on, and gives their number; never 0. The caller has made sure
    /// that the local blocks may be written; `local` and `remote` of the pairs are as here: ours, the writer's.
    pub fn pull(
        &self,
        crew: &mut Crew,
        region: &Region,
        blocks: impl Iterator<Item = BlockPair>,
        offset: usize,
    ) -> io::Result<usize> {
        let (pieces, bytes) = self.cut(region, blocks, offset);
        if bytes == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a block that is in neither region"));
        }
        let copier = match &self.access {
            Access::Mapped(mapping) => Copier::Mapped { start: mapping.first_block() },
            Access::VmRead(reader) => Copier::VmRead(reader.address()),
        };
        crew.copy(copier, pieces, bytes).map(|()| bytes)
    }

    /// Pairs outside of either region end the list; callers have checked them.
    fn cut(
        &self,
        region: &Region,
        blocks: impl Iterator<Item = BlockPair>,
        mut offset: usize,
    ) -> (Vec<Piece>, usize) {
        let block_len = region.block_len();
        let mut pieces = Vec::new();
        let mut room = BYTES_PER_PULL;
        for pair in blocks {
            let Some(to) = region.block_ptr(pair.local).filter(|_| self.has_block(pair.remote)) else {
                break;
            };
            while offset < block_len && room > 0 {
                let len = (block_len - offset).min(room).min(LARGEST_PIECE);
                let from = pair.remote.0 as usize * block_len + offset;
                pieces.push(Piece { to: to.wrapping_add(offset), from, len });
                offset += len;
                room -= len;
            }
            if room == 0 {
                break;
            }
            offset = 0;
        }
        (pieces, BYTES_PER_PULL - room)
    }

    /// Whether what was pulled until now was really the writer's: the connection is open, and its process lives.
    pub fn was_alive(&self, socket: &impl AsFd) -> bool {
        let same_process = match &self.access {
            Access::Mapped(_) => true,
            Access::VmRead(reader) => reader.is_alive(),
        };
        same_process && !socket::is_hung_up(socket)
    }
}

impl Copier {
    /// Bytes that one thread takes at a time.
    fn stride(self) -> usize {
        match self {
            Copier::Mapped { .. } => 128 << 10,
            // Fewer would make the call itself count.
            Copier::VmRead(_) => 512 << 10,
        }
    }

    /// Copies all of it, or says what the system said. Both sides were checked, and nobody else touches `to` now.
    fn copy(self, pieces: &[Piece]) -> io::Result<()> {
        match self {
            Copier::Mapped { start } => {
                for piece in pieces {
                    // SAFETY: inside the mapping, whose file cannot shrink, and inside our region, in blocks that the fence
                    // has given us to write (`Source::cut`). The writer keeps its block as it is, or the copy is thrown
                    // away (`Source::was_alive`).
                    unsafe { copy::copy(piece.to, start.wrapping_add(piece.from), piece.len) };
                }
                copy::finish();
                Ok(())
            }
            Copier::VmRead(address) => address.read(pieces),
        }
    }
}
