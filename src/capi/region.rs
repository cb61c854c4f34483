//! Memory for regions, for engines that have none of their own.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io;
use std::ptr::null_mut;

use super::enums::check_flags;
use super::guard::{self, Failure};
use super::pointers::Caller;
use super::status::p2p_status;
use crate::host::ForkLock;

/// Address → mapped bytes of what `p2p_region_alloc` gave out.
static REGIONS: ForkLock<BTreeMap<usize, usize>> = ForkLock::new(BTreeMap::new());

/// Maps memory for a region.
///
/// An engine may use any memory of its own instead; this is for those that have none yet.
///
/// Parameters:
/// - `bytes`: how many; rounded up to whole pages.
/// - `flags`: must be 0.
/// - `base_addr_out`: zeroed, page-aligned memory; owned by caller, free with `p2p_region_free`. Written only on
///   P2P_STATUS_OK.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: NULL, 0 bytes, more than memory, or a flag that is not known.
/// - P2P_STATUS_OUT_OF_RESOURCES: the system has no such memory.
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
        check_flags("flags", flags, 0, "none")?;
        let mapped = whole_pages(bytes)?;
        let base = map(mapped)?;
        REGIONS.lock().insert(base as usize, mapped);
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
        let known = REGIONS.lock().remove(&(base_addr as usize));
        let Some(mapped) = known else {
            return Err(Failure::invalid(format!(
                "base_addr {base_addr:?} did not come from p2p_region_alloc, or was freed before"
            )));
        };
        // SAFETY: exactly what `map` gave and nobody has unmapped, see the registry; that no tier uses it any more
        // is the caller's promise.
        match unsafe { libc::munmap(base_addr, mapped) } {
            0 => Ok(p2p_status::OK),
            _ => Err(Failure::new(p2p_status::OS_ERROR, format!("munmap: {}", io::Error::last_os_error()))),
        }
    })
}

fn whole_pages(bytes: u64) -> Result<usize, Failure> {
    if bytes == 0 {
        return Err(Failure::invalid("bytes is 0, expected the size of the region"));
    }
    // SAFETY: sysconf has no precondition.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let whole = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_next_multiple_of(page));
    whole
        .filter(|&whole| isize::try_from(whole).is_ok())
        .ok_or_else(|| Failure::invalid(format!("bytes is {bytes}, more than memory")))
}

fn map(bytes: usize) -> Result<*mut c_void, Failure> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
    let base =
        unsafe { libc::mmap(null_mut(), bytes, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    if base == libc::MAP_FAILED {
        let error = io::Error::last_os_error();
        return Err(Failure::new(p2p_status::OUT_OF_RESOURCES, format!("cannot map {bytes} bytes: {error}")));
    }
    Ok(base)
}

#[cfg(test)]
mod tests {
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
        assert_eq!(alloc(1, 1), p2p_status::INVALID_ARGUMENT);
        assert_eq!(alloc(u64::MAX, 0), p2p_status::INVALID_ARGUMENT);
        assert_eq!(alloc(1 << 62, 0), p2p_status::OUT_OF_RESOURCES);
        assert!(base.is_null());
    }
}
