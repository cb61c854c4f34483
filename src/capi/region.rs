//! Memory for regions, for engines that have none of their own.

use std::collections::BTreeMap;
use std::ffi::c_void;

use super::enums::check_flags;
use super::guard::{self, Failure};
use super::pointers::Caller;
use super::status::p2p_status;
use crate::data::same_host::{RegionFile, SharedMemory};
use crate::host::ForkLock;

/// `p2p_region_alloc`: in huge pages of the system's default size.
pub const P2P_REGION_HUGE_PAGES: u32 = 1;

/// What `p2p_region_alloc` gave out, by address.
static REGIONS: ForkLock<BTreeMap<usize, SharedMemory>> = ForkLock::new(BTreeMap::new());

/// Maps memory for a region.
///
/// An engine may use any memory of its own instead. Blocks in this memory move fastest between tiers of one host: it is
/// a memfd, which they map, and a tier over it needs no `region_fd`. A forked child shares it with its parent.
///
/// Parameters:
/// - `bytes`: how many; rounded up to whole pages.
/// - `flags`: 0 or P2P_REGION_HUGE_PAGES, which the system must have set aside (`vm.nr_hugepages`).
/// - `base_addr_out`: zeroed, page-aligned memory; owned by caller, free with `p2p_region_free`. Written only on
///   P2P_STATUS_OK.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: NULL, 0 bytes, more than memory, or a flag that is not known.
/// - P2P_STATUS_OUT_OF_RESOURCES: the system has no such memory, or not so many huge pages free.
/// - P2P_STATUS_PANIC: a bug in the library.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_region_alloc(
    bytes: u64,
    flags: u32,
    base_addr_out: *mut *mut c_void,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::run("p2p_region_alloc", || {
        let base_addr_out = caller.out(base_addr_out, "base_addr_out")?;
        check_flags("flags", flags, P2P_REGION_HUGE_PAGES, "P2P_REGION_HUGE_PAGES")?;
        let huge = flags & P2P_REGION_HUGE_PAGES != 0;
        let memory = SharedMemory::new(check_bytes(bytes)?, huge).map_err(|error| {
            let pages = if huge { " in huge pages (see vm.nr_hugepages)" } else { "" };
            Failure::new(p2p_status::OUT_OF_RESOURCES, format!("cannot map {bytes} bytes{pages}: {error}"))
        })?;
        let base = memory.start();
        REGIONS.lock().insert(base as usize, memory);
        base_addr_out.set(base);
        Ok(p2p_status::OK)
    })
}

/// Gives back what `p2p_region_alloc` gave.
///
/// **Only after `p2p_tier_free` of every tier that uses it has returned.**
///
/// Parameters:
/// - `base_addr`: moved in; NULL is fine and OK.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: not an address that `p2p_region_alloc` gave, or freed before.
/// - P2P_STATUS_PANIC: a bug in the library.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_region_free(base_addr: *mut c_void) -> p2p_status {
    guard::run("p2p_region_free", || {
        if base_addr.is_null() {
            return Ok(p2p_status::OK);
        }
        let freed = REGIONS.lock().remove(&(base_addr as usize));
        if freed.is_none() {
            return Err(Failure::invalid(format!(
                "base_addr {base_addr:?} did not come from p2p_region_alloc, or was freed before"
            )));
        }
        Ok(p2p_status::OK)
    })
}

fn check_bytes(bytes: u64) -> Result<usize, Failure> {
    if bytes == 0 {
        return Err(Failure::invalid("bytes is 0, expected the size of the region"));
    }
    let size = isize::try_from(bytes).ok().and_then(|bytes| usize::try_from(bytes).ok());
    size.ok_or_else(|| Failure::invalid(format!("bytes is {bytes}, more than memory")))
}

/// The file behind a region that lies in memory from `p2p_region_alloc`.
pub(super) fn file_behind(base_addr: u64, bytes: u64) -> Option<RegionFile> {
    let start = usize::try_from(base_addr).ok()?;
    let regions = REGIONS.lock();
    let (_, memory) = regions.range(..=start).next_back()?;
    let (file, offset) = memory.holds(base_addr, bytes)?;
    RegionFile::of(file, offset, base_addr, bytes)
        .inspect_err(|why| log::warn!("same host: peers cannot map this region: {why}"))
        .ok()
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;

    #[test]
    fn a_region_is_zeroed_page_aligned_and_freed_once() {
        let mut base = null_mut();
        // SAFETY: live locals; the region is only used between alloc and free.
        unsafe {
            assert_eq!(p2p_region_alloc(5000, 0, &mut base), p2p_status::OK);
            assert_eq!(base as usize % 4096, 0);
            let bytes = std::slice::from_raw_parts_mut(base.cast::<u8>(), 5000);
            assert!(bytes.iter().all(|&byte| byte == 0));
            bytes.fill(1);
            assert_eq!(p2p_region_free(base.wrapping_byte_add(1)), p2p_status::INVALID_ARGUMENT);
            assert_eq!(p2p_region_free(base), p2p_status::OK);
            assert_eq!(p2p_region_free(base), p2p_status::INVALID_ARGUMENT);
            assert_eq!(p2p_region_free(null_mut()), p2p_status::OK);
        }
    }

    #[test]
    fn sizes_and_flags_that_cannot_be_are_refused() {
        let mut base = null_mut();
        // SAFETY: live locals.
        let mut alloc = |bytes, flags| unsafe { p2p_region_alloc(bytes, flags, &mut base) };
        assert_eq!(alloc(0, 0), p2p_status::INVALID_ARGUMENT);
        assert_eq!(alloc(1, 2), p2p_status::INVALID_ARGUMENT);
        assert_eq!(alloc(u64::MAX, 0), p2p_status::INVALID_ARGUMENT);
        assert_eq!(alloc(1 << 62, 0), p2p_status::OUT_OF_RESOURCES);
        assert!(base.is_null());
    }
}
