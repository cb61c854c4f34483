//! Memory for regions: from a page boundary on, every page touched before anything is measured.

use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

use p2pkv::data::same_host::{RegionFile, SharedMemory};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What an engine has from `malloc`.
    Private,
    /// With a file that other processes can map.
    Shared,
}

enum Owner {
    Private,
    Shared(SharedMemory),
}

pub struct Memory {
    start: *mut u8,
    bytes: usize,
    owner: Owner,
}

// SAFETY: what threads share of it are addresses and a descriptor; bytes are only read between transfers.
unsafe impl Sync for Memory {}

impl Memory {
    /// `blocks` of `block_len` bytes, each filled with the word that `fill` gives for it.
    pub fn new(kind: Kind, block_len: usize, blocks: usize, fill: impl Fn(usize) -> u64) -> Memory {
        let bytes = block_len * blocks;
        let (start, owner) = match kind {
            Kind::Private => {
                let protection = ProtFlags::READ | ProtFlags::WRITE;
                // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
                let start = unsafe { mmap_anonymous(null_mut(), bytes, protection, MapFlags::PRIVATE) };
                (start.unwrap(), Owner::Private)
            }
            Kind::Shared => {
                let memory = SharedMemory::new(bytes, false).unwrap();
                (memory.start(), Owner::Shared(memory))
            }
        };
        let mut memory = Memory { start: start.cast(), bytes, owner };
        for (block, words) in memory.words_mut().chunks_exact_mut(block_len / size_of::<u64>()).enumerate() {
            words.fill(fill(block));
        }
        memory
    }

    pub fn start(&self) -> *mut u8 {
        self.start
    }

    pub fn words(&self) -> &[u64] {
        // SAFETY: a whole number of words from a page boundary on, mapped as long as `self`. Who reads waits until the
        // transfer that writes is over.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.bytes / size_of::<u64>()) }
    }

    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.bytes / size_of::<u64>()) }
    }

    /// Its file, if it has one.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.owner {
            Owner::Private => None,
            Owner::Shared(memory) => memory.holds(self.start as u64, self.bytes as u64).map(|(file, _)| file),
        }
    }

    pub fn region_file(&self) -> Option<RegionFile> {
        let of = |file| RegionFile::of(file, 0, self.start as u64, self.bytes as u64).unwrap();
        self.file().map(of)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Owner::Private = self.owner {
            // SAFETY: exactly what was mapped, and borrows of it have ended.
            unsafe { munmap(self.start.cast(), self.bytes) }.unwrap();
        }
    }
}
