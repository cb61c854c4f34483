//! Making, asking and ending a tier.

use std::ffi::c_char;
use std::sync::Arc;
use std::time::Duration;

use super::config::{p2p_tier_config, to_tier_config};
use super::guard;
use super::handle::{Shared, p2p_tier};
use super::pointers::Caller;
use super::status::p2p_status;
use super::strings::copy_out;
use crate::tier::Tier;

/// As a `timeout_ms`: wait without limit.
pub const P2P_TIMEOUT_INFINITE: u64 = u64::MAX;

/// Makes a tier: binds its sockets and, unless `progress` says otherwise, starts its thread.
///
/// **The region at `config->base_addr` must stay mapped and writable until `p2p_tier_free` has returned.** Peers
/// write into it at any time while a load is open.
///
/// Parameters:
/// - `config`: borrowed for this call, text in it is copied. Prepared by `p2p_tier_config_init`.
/// - `tier_out`: the tier; owned by caller, free with `p2p_tier_free`. Written only on P2P_STATUS_OK.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: a NULL, a field or an environment variable that is out of range; the message names
///   it.
/// - P2P_STATUS_UNSUPPORTED: a field is set that this version does not know, or a transport is not built in.
/// - P2P_STATUS_LIMIT_EXCEEDED: `max_peers` is more than a tier can serve.
/// - P2P_STATUS_ADDRESS_IN_USE: the control or data port is taken.
/// - P2P_STATUS_ADDRESS_INVALID: the host cannot be resolved or bound here.
/// - P2P_STATUS_TRANSPORT_UNAVAILABLE: the asked-for transport does not work on this machine.
/// - P2P_STATUS_OUT_OF_RESOURCES: no file descriptors, threads or memory left.
/// - P2P_STATUS_PERMISSION_DENIED: the system does not permit it.
/// - P2P_STATUS_OS_ERROR: the system refused; the message has its words.
/// - P2P_STATUS_PANIC: a bug in the library.
///
/// Threads: any, at any time. Reads the environment, so not while another thread changes it.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_tier_new(
    config: *const p2p_tier_config,
    tier_out: *mut *mut p2p_tier,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::run("p2p_tier_new", || {
        let config = caller.size_first(config, "config")?;
        let tier_out = caller.out(tier_out, "tier_out")?;
        let config = to_tier_config(&caller, &config, &|variable| std::env::var_os(variable))?;
        let shared = Arc::new(Shared::new(Tier::new(config)?));
        tier_out.set(Box::into_raw(Box::new(p2p_tier { shared })));
        Ok(p2p_status::OK)
    })
}

/// Ends a tier.
///
/// Tells the peers, waits up to about 3 seconds for transfers that are under way, then closes everything. Jobs that are
/// still open end with it; their results cannot be polled any more, so drain and poll first if they matter. Requests
/// that are still alive stay safe: every call on them gives P2P_STATUS_SHUT_DOWN, and they are still to be finished.
/// When this returns nothing reads or writes the region any more over TCP, and the serve ops have been dropped.
///
/// In a child forked after `p2p_tier_new` this does nothing: the handle is abandoned there.
///
/// Parameters:
/// - `tier`: moved in; NULL is fine.
///
/// Threads: last and alone: no other call on this tier may be running or come later (calls on its requests may).
/// Never from a serve op or a log callback.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_tier_free(tier: *mut p2p_tier) {
    if tier.is_null() {
        return;
    }
    // SAFETY: not NULL, so from `Box::into_raw` in `p2p_tier_new`; the caller gives it away here, once.
    let tier = unsafe { Box::from_raw(tier) };
    if tier.shared.is_foreign() {
        std::mem::forget(tier);
        return;
    }
    let shared = Arc::clone(&tier.shared);
    guard::on_shared_even_if_poisoned("p2p_tier_free", &shared, |live| {
        live.shut_down();
        drop(tier);
    });
    guard::on_drop("p2p_tier_free", shared);
}

/// Waits until no load is open and no transfer is in flight. Nothing is aborted.
///
/// With P2P_PROGRESS_CALLER the call itself makes the progress.
///
/// Parameters:
/// - `tier`: borrowed for this call.
/// - `timeout_ms`: longest wait in milliseconds; 0 only looks, P2P_TIMEOUT_INFINITE has no limit.
///
/// Returns:
/// - P2P_STATUS_OK: quiet.
/// - P2P_STATUS_TIMED_OUT: not yet; nothing was lost.
/// - P2P_STATUS_INVALID_ARGUMENT: NULL.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, at any time. Blocks up to `timeout_ms`. Not from a serve op.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_tier_drain(tier: *const p2p_tier, timeout_ms: u64) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_tier("p2p_tier_drain", &caller, tier, |tier| {
        let quiet = tier.drain(wait_limit(timeout_ms))?;
        Ok(if quiet { p2p_status::OK } else { p2p_status::TIMED_OUT })
    })
}

/// A file descriptor that is readable while `p2p_poll_finished` has something to give or to do, or `p2p_serve`
/// something to ask.
///
/// It is level-triggered: it becomes readable when a result is queued and stops being so when the queue is empty.
/// Wait for it with poll, epoll or an event loop; never read, write or close it. The loop:
///
/// ```c
/// int32_t fd;
/// p2p_tier_event_fd(tier, &fd);
/// struct pollfd waiting = { .fd = fd, .events = POLLIN };
/// for (;;) {
///     poll(&waiting, 1, -1);
///     p2p_job_result results[64];
///     size_t n;
///     do {
///         if (p2p_poll_finished(tier, results, sizeof results[0], 64, &n) < 0)
///             return report(p2p_last_error());
///         for (size_t i = 0; i < n; i++)
///             finish_job(&results[i]);
///     } while (n == 64);
/// }
/// ```
///
/// Each accepted job comes out of it exactly once. If there are serve ops without P2P_SERVE_ON_PROGRESS_THREAD, call
/// `p2p_serve` in the loop too: the descriptor is also readable while a lookup of a peer waits for it. With
/// P2P_PROGRESS_CALLER it is also readable when a socket or a deadline needs `p2p_poll_finished`, so this loop is all
/// that such a tier needs. Answers to `p2p_lookup` do not make it readable.
///
/// Parameters:
/// - `tier`: borrowed for this call.
/// - `fd_out`: the descriptor; owned by the tier, valid until `p2p_tier_free`.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: NULL.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_tier_event_fd(tier: *const p2p_tier, fd_out: *mut i32) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_tier("p2p_tier_event_fd", &caller, tier, |tier| {
        caller.out(fd_out, "fd_out")?.set(tier.event_fd());
        Ok(p2p_status::OK)
    })
}

/// The name by which peers know this tier: `host:port` of its control socket, `[v6]:port` for IPv6.
///
/// Give it to whoever tells consumers where to pull from.
///
/// Parameters:
/// - `tier`: borrowed for this call.
/// - `buf`: written, NUL-terminated; owned by caller. NULL is fine when `cap` is 0.
/// - `cap`: bytes in `buf`; 264 is always enough.
/// - `len_out`: length of the whole name without NUL, also when `buf` is too short.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_TRUNCATED: `cap` is not larger than `*len_out`; `buf` has as much as fits.
/// - P2P_STATUS_INVALID_ARGUMENT: NULL.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_tier_local_id(
    tier: *const p2p_tier,
    buf: *mut c_char,
    cap: usize,
    len_out: *mut usize,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_tier("p2p_tier_local_id", &caller, tier, |tier| {
        copy_out(&caller, tier.local_id().as_str(), buf, cap, len_out)
    })
}

/// Whether anything is under way: jobs, lookups of peers, transfers.
///
/// An engine that sleeps while it has no requests should not sleep while this says 1 and P2P_PROGRESS_CALLER is on.
///
/// Parameters:
/// - `tier`: borrowed for this call.
/// - `pending_out`: 1 or 0.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: NULL.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_tier_has_pending_work(
    tier: *const p2p_tier,
    pending_out: *mut u32,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_tier("p2p_tier_has_pending_work", &caller, tier, |tier| {
        caller.out(pending_out, "pending_out")?.set(u32::from(tier.has_pending_work()));
        Ok(p2p_status::OK)
    })
}

/// `None` = no limit. Waits of more than a century are none either, so that no clock overflows.
pub(super) fn wait_limit(timeout_ms: u64) -> Option<Duration> {
    const CENTURY_MS: u64 = 100 * 366 * 24 * 3600 * 1000;
    (timeout_ms < CENTURY_MS).then(|| Duration::from_millis(timeout_ms))
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::ptr::null_mut;

    use super::super::last_error::p2p_last_error;
    use super::super::observe::{p2p_tier_statistics, p2p_tier_stats};
    use super::super::request::{p2p_request_finish, p2p_request_new, p2p_request_offload_policy};
    use super::*;

    struct Memory(Vec<u8>);

    fn make(memory: &mut Memory) -> *mut p2p_tier {
        let mut config = std::mem::MaybeUninit::<p2p_tier_config>::uninit();
        let mut tier = null_mut();
        // SAFETY: live locals; the memory outlives the tier in each test.
        unsafe {
            super::super::config::p2p_tier_config_init(config.as_mut_ptr(), size_of::<p2p_tier_config>());
            let mut config = config.assume_init();
            config.base_addr = memory.0.as_mut_ptr().cast();
            config.num_blocks = 4;
            config.block_len = 64;
            assert_eq!(p2p_tier_new(&config, &mut tier), p2p_status::OK, "{}", last());
        }
        tier
    }

    fn last() -> String {
        // SAFETY: never NULL, NUL-terminated.
        unsafe { CStr::from_ptr(p2p_last_error()) }.to_str().unwrap().to_owned()
    }

    fn stats(tier: *const p2p_tier) -> p2p_status {
        let mut stats =
            p2p_tier_statistics { struct_size: size_of::<p2p_tier_statistics>(), ..Default::default() };
        // SAFETY: a live tier and a local.
        unsafe { p2p_tier_stats(tier, &mut stats) }
    }

    #[test]
    fn a_panic_is_reported_then_poisons_the_tier_and_its_requests_and_free_still_works() {
        let mut memory = Memory(vec![0; 256]);
        let tier = make(&mut memory);
        // SAFETY: live handles and locals, each given away once.
        unsafe {
            let mut request = null_mut();
            assert_eq!(p2p_request_new(tier, std::ptr::null(), &mut request), p2p_status::OK);
            let caller = Caller::trust();
            let status = guard::on_tier("p2p_test", &caller, tier, |_| panic!("broken {}", 7));
            assert_eq!(status, p2p_status::PANIC);
            assert!(last().contains("p2p_test") && last().contains("broken 7"), "{}", last());
            assert_eq!(stats(tier), p2p_status::POISONED);
            assert!(last().contains("p2p_tier_stats"), "{}", last());
            let mut policy = 9;
            assert_eq!(p2p_request_offload_policy(request, &mut policy), p2p_status::POISONED);
            assert_eq!(policy, 9, "outputs are written only on success");
            p2p_tier_free(tier);
            assert_eq!(p2p_request_finish(request), p2p_status::POISONED);
        }
    }

    #[test]
    fn a_panic_with_a_hostile_payload_stays_inside() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        assert_eq!(guard::run("p2p_test", || std::panic::panic_any(Bomb)), p2p_status::PANIC);
    }

    #[test]
    fn requests_outlive_their_tier_safely() {
        let mut memory = Memory(vec![0; 256]);
        let tier = make(&mut memory);
        // SAFETY: live handles and locals, each given away once.
        unsafe {
            let mut request = null_mut();
            assert_eq!(p2p_request_new(tier, std::ptr::null(), &mut request), p2p_status::OK);
            p2p_tier_free(tier);
            let mut policy = 0;
            assert_eq!(p2p_request_offload_policy(request, &mut policy), p2p_status::SHUT_DOWN);
            assert_eq!(p2p_request_finish(request), p2p_status::SHUT_DOWN);
            assert_eq!(p2p_request_finish(null_mut()), p2p_status::OK);
            p2p_tier_free(null_mut());
        }
    }

    #[test]
    fn success_and_positive_statuses_leave_the_last_error_alone() {
        let mut memory = Memory(vec![0; 256]);
        let tier = make(&mut memory);
        super::super::last_error::set("before");
        let mut len = 0;
        // SAFETY: a live tier and locals.
        unsafe {
            assert_eq!(p2p_tier_local_id(tier, null_mut(), 0, &mut len), p2p_status::TRUNCATED);
            assert_eq!(stats(tier), p2p_status::OK);
            assert_eq!(last(), "before");
            p2p_tier_free(tier);
        }
        assert!(len > 0);
    }

    #[test]
    fn a_wait_beyond_a_century_is_without_limit() {
        assert_eq!(wait_limit(0), Some(Duration::ZERO));
        assert_eq!(wait_limit(P2P_TIMEOUT_INFINITE), None);
        assert_eq!(wait_limit(P2P_TIMEOUT_INFINITE - 1), None);
    }
}
