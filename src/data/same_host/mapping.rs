//! A writer's region, mapped read-only from its file.

use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr::null_mut;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

pub(super) struct Mapping {
    start: *mut c_void,
    mapped: usize,
    /// From the start to block 0.
    skip: usize,
}

// SAFETY: a read-only mapping that nothing else unmaps; the address may move to the I/O thread with its owner.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `bytes` from `offset` of the file. Only a file that cannot shrink: reading past its end would be a SIGBUS in our
    /// host.
    pub fn new(file: &impl AsFd, offset: u64, bytes: u64) -> Result<Mapping, String> {
        let seals = fcntl_get_seals(file).map_err(|error| format!("it is no memfd ({error})"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err("its file could shrink (it has no F_SEAL_SHRINK)".to_owned());
        }
        let stat = fstat(file).map_err(|error| error.to_string())?;
        let end = offset.checked_add(bytes).ok_or("its place in the file overflows")?;
        if u64::try_from(stat.st_size).is_ok_and(|size| size < end) {
            return Err(format!("its file has {} bytes, its blocks end at {end}", stat.st_size));
        }
        // Huge pages must be mapped whole; the file tells their size.
        let page = u64::try_from(stat.st_blksize).unwrap_or(4096).max(4096);
        let begin = offset - offset % page;
        let whole =
            |bytes: u64| bytes.checked_next_multiple_of(page).and_then(|bytes| usize::try_from(bytes).ok());
        let mapped = whole(end - begin).ok_or("it is larger than memory")?;
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let start = unsafe { mmap(null_mut(), mapped, ProtFlags::READ, MapFlags::SHARED, file, begin) };
        let start = start.map_err(|error| error.to_string())?;
        let skip = usize::try_from(offset - begin).unwrap_or(0);
        Ok(Mapping { start, mapped, skip })
    }

    pub fn first_block(&self) -> *const u8 {
        self.start.cast::<u8>().wrapping_add(self.skip).cast_const()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `mmap` gave, and nobody else knows it.
        if let Err(error) = unsafe { munmap(self.start, self.mapped) } {
            log::warn!("same host: a peer's region stays mapped: {error}");
        }
    }
}
