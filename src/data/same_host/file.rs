//! Regions that have a file: memory that other processes can map.

use std::ffi::c_void;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::Arc;

use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The file that a region is a mapping of, as peers on this host may read it.
#[derive(Clone, Debug)]
pub struct RegionFile {
    file: Arc<OwnedFd>,
    /// Where the region begins in the file.
    pub offset: u64,
}

impl RegionFile {
    /// Checks that `bytes` at `base_addr` are a shared mapping of the file from `offset` on, and keeps the file from
    /// shrinking. The descriptor stays the caller's.
    pub fn of(file: BorrowedFd<'_>, offset: u64, base_addr: u64, bytes: u64) -> Result<RegionFile, String> {
        let stat = fstat(file).map_err(|error| format!("region_fd {}: {error}", file.as_raw_fd()))?;
        let identity = Identity { device: device_numbers(stat.st_dev), inode: stat.st_ino };
        check_mapping(identity, offset, base_addr, bytes)?;
        seal(file)?;
        Ok(RegionFile { file: Arc::new(read_only(file)?), offset })
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Peers map it only if it cannot shrink under them.
fn seal(file: BorrowedFd<'_>) -> Result<(), String> {
    let sealed = fcntl_add_seals(file, SealFlags::SHRINK);
    match fcntl_get_seals(file) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => Ok(()),
        _ => Err(format!(
            "region_fd {} is no memfd that can be sealed against shrinking (memfd_create with MFD_ALLOW_SEALING): {}",
            file.as_raw_fd(),
            sealed.err().map_or_else(|| "no seal".to_owned(), |error| error.to_string())
        )),
    }
}

/// A descriptor of the same file that peers cannot write through.
fn read_only(file: BorrowedFd<'_>) -> Result<OwnedFd, String> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| format!("region_fd {} cannot be opened for reading: {error}", file.as_raw_fd()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: (u32, u32),
    inode: u64,
}

fn device_numbers(device: u64) -> (u32, u32) {
    (rustix::fs::major(device), rustix::fs::minor(device))
}

/// One line of `/proc/self/maps`: `start-end perms offset major:minor inode path`.
struct MapsLine {
    start: u64,
    end: u64,
    shared: bool,
    offset: u64,
    identity: Identity,
}

impl MapsLine {
    fn parse(line: &str) -> Option<MapsLine> {
        let mut fields = line.split_ascii_whitespace();
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let number = |text: &str| u32::from_str_radix(text, 16).ok();
        let (start, end) = fields.next()?.split_once('-')?;
        let shared = fields.next()?.as_bytes().get(3) == Some(&b's');
        let offset = hex(fields.next()?)?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let identity =
            Identity { device: (number(major)?, number(minor)?), inode: fields.next()?.parse().ok()? };
        Some(MapsLine { start: hex(start)?, end: hex(end)?, shared, offset, identity })
    }
}

/// A region that is not what its file holds would give peers wrong bytes: every part of it must be mapped from there.
fn check_mapping(identity: Identity, offset: u64, base_addr: u64, bytes: u64) -> Result<(), String> {
    let end = base_addr.saturating_add(bytes);
    let maps = File::open("/proc/self/maps").map_err(|error| format!("/proc/self/maps: {error}"))?;
    let mut covered = base_addr;
    for line in BufReader::new(maps).lines() {
        let line = line.map_err(|error| format!("/proc/self/maps: {error}"))?;
        let Some(part) = MapsLine::parse(&line) else { continue };
        if part.end <= covered || part.start > covered {
            continue;
        }
        let expected = offset + (part.start.max(base_addr) - base_addr);
        let found = part.offset + (part.start.max(base_addr) - part.start);
        if !part.shared || part.identity != identity || found != expected {
            break;
        }
        covered = part.end;
        if covered >= end {
            return Ok(());
        }
    }
    Err(format!(
        "the region at {base_addr:#x} is not a shared mapping of region_fd from offset {offset} on \
         (it differs at {covered:#x})"
    ))
}

/// Memory with a file of its own.
#[derive(Debug)]
pub struct SharedMemory {
    file: OwnedFd,
    start: *mut c_void,
    mapped: usize,
}

// SAFETY: an address and a descriptor, both owned here; the bytes are touched through raw pointers only.
unsafe impl Send for SharedMemory {}

impl SharedMemory {
    /// Zeroed memory of at least `bytes`, a whole number of pages. With `huge`, in pages of [`huge_page_bytes`] that the
    /// system must have set aside.
    pub fn new(bytes: usize, huge: bool) -> io::Result<SharedMemory> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let flags = if huge { flags | MemfdFlags::HUGETLB } else { flags };
        let page = if huge { huge_page_bytes()? } else { page_bytes() };
        let mapped = bytes.checked_next_multiple_of(page).ok_or(io::ErrorKind::InvalidInput)?;
        let file = memfd_create("p2pkv-region", flags)?;
        ftruncate(&file, mapped as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let start = unsafe {
            mmap(null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
        }?;
        Ok(SharedMemory { file, start, mapped })
    }

    pub fn start(&self) -> *mut c_void {
        self.start
    }

    /// The file, if `bytes` at `base_addr` are inside this memory, and where they begin in it.
    pub fn holds(&self, base_addr: u64, bytes: u64) -> Option<(BorrowedFd<'_>, u64)> {
        let offset = base_addr.checked_sub(self.start as u64)?;
        (offset.checked_add(bytes)? <= self.mapped as u64).then(|| (self.file.as_fd(), offset))
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: exactly what `mmap` gave; that nobody uses it any more is what dropping says.
        if let Err(error) = unsafe { munmap(self.start, self.mapped) } {
            log::error!("a region of {} bytes stays mapped: {error}", self.mapped);
        }
    }
}

fn page_bytes() -> usize {
    // SAFETY: sysconf has no precondition.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// The system's default size of huge pages.
pub fn huge_page_bytes() -> io::Result<usize> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Hugepagesize:"));
    let kib =
        line.and_then(|rest| rest.trim().strip_suffix("kB")).and_then(|kib| kib.trim().parse::<usize>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other("/proc/meminfo names no size of huge pages"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_with_a_file_is_recognised_and_anything_else_refused() {
        let memory = SharedMemory::new(5 << 20, false).unwrap();
        let base = memory.start() as u64;
        let of = |offset, base, bytes| {
            RegionFile::of(memory.file.as_fd(), offset, base, bytes).map(|file| file.offset)
        };
        assert_eq!(of(0, base, 5 << 20), Ok(0));
        assert_eq!(of(8192, base + 8192, 1 << 20), Ok(8192));
        assert_eq!(of(100, base + 100, 77), Ok(100));
        for (offset, base, bytes) in [(4096, base, 4096), (0, base + 4096, 4096), (0, base, 6 << 20)] {
            assert!(of(offset, base, bytes).unwrap_err().contains("is not a shared mapping"));
        }
        let elsewhere = vec![0_u8; 8192];
        assert!(of(0, elsewhere.as_ptr() as u64, 8192).is_err());
    }

    #[test]
    fn a_file_that_can_shrink_is_refused() {
        let file = memfd_create("p2pkv-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 8192).unwrap();
        // SAFETY: a new mapping.
        let start = unsafe { mmap(null_mut(), 8192, ProtFlags::READ, MapFlags::SHARED, &file, 0) }.unwrap();
        let refused = RegionFile::of(file.as_fd(), 0, start as u64, 8192).unwrap_err();
        assert!(refused.contains("sealed against shrinking"), "{refused}");
        // SAFETY: what was mapped above.
        unsafe { munmap(start, 8192) }.unwrap();
    }
}
