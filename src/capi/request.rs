//! Requests: the scope of lookups, loads and stores.

use std::ffi::c_char;
use std::sync::Arc;

use super::config::timeout;
use super::enums::{p2p_offload_policy, p2p_outcome};
use super::guard;
use super::handle::{p2p_request, p2p_tier};
use super::pointers::Caller;
use super::sized::SizeFirst;
use super::status::p2p_status;
use super::strings::{copy_out, p2p_str};
use crate::protocol::job::Outcome;
use crate::tier::RequestOptions;

/// What `p2p_request_new` may be told. Prepare it with `p2p_request_options_init`; 0 and empty text mean the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct p2p_request_options {
    /// sizeof(p2p_request_options), set by `p2p_request_options_init`.
    pub struct_size: usize,
    /// The request's `kv_transfer_params` as the orchestrator gave them, a JSON object. Its roles: `remote_decoder`
    /// {kv_request_id} serves; `remote_prefiller` {kv_request_id, remote_host, remote_port} loads without asking;
    /// `remote_kv_source` {the same} looks up, then loads. Default: no role.
    pub kv_transfer_params_json: p2p_str,
    /// Its loads are aborted after this, in milliseconds, at most 365 days. Default: the tier's.
    pub load_timeout_ms: u64,
    /// Each of its lookups is given up after this, in milliseconds from its flush, at most 365 days: keys without an answer
    /// are MISS then, and the session goes on. Default: the tier's, which ends the session.
    pub lookup_timeout_ms: u64,
    /// Its stores fail after this, in milliseconds from their submission, at most 365 days, whether or not anyone has asked
    /// for them. Default: the tier's two.
    pub store_timeout_ms: u64,
}

// SAFETY: `repr(C)` of integers and text, size first; zeros are valid in all of them.
unsafe impl SizeFirst for p2p_request_options {
    const C_NAME: &'static str = "p2p_request_options";
    const ADVICE: &'static str = "prepare it with p2p_request_options_init";
}

/// Prepares request options: all defaults.
///
/// Parameters:
/// - `options_out`: written; owned by caller. Set to zeros and its `struct_size` to `options_size`.
/// - `options_size`: sizeof(p2p_request_options).
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: NULL, or a size that no version of the struct has.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_request_options_init(
    options_out: *mut p2p_request_options,
    options_size: usize,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::run("p2p_request_options_init", || {
        caller.init_size_first(options_out, "options_out", options_size, "options_size")?;
        Ok(p2p_status::OK)
    })
}

/// Begins a request.
///
/// A consumer's request opens the session with its producer here, or uses the one there is; this does not wait for
/// it. If it cannot, lookups of the request are MISS and its loads fail.
///
/// Parameters:
/// - `tier`: borrowed for this call; the request keeps what it needs of it.
/// - `options`: borrowed for this call, text in it is copied. NULL: all defaults, so no role.
/// - `request_out`: the request; owned by caller, free with `p2p_request_finish`. Written only on P2P_STATUS_OK.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: NULL, or a field out of range.
/// - P2P_STATUS_INVALID_PARAMS: the parameters are no JSON object, or name roles that exclude one another.
/// - P2P_STATUS_ALREADY_EXISTS: another live request has this `kv_request_id`.
/// - P2P_STATUS_LIMIT_EXCEEDED: the id is longer than the tier allows.
/// - P2P_STATUS_UNSUPPORTED: a field is set that this version does not know.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_request_new(
    tier: *const p2p_tier,
    options: *const p2p_request_options,
    request_out: *mut *mut p2p_request,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_tier("p2p_request_new", &caller, tier, |live| {
        let options = if options.is_null() {
            RequestOptions::default()
        } else {
            let options = caller.size_first(options, "options")?;
            let params = caller.text(&options.kv_transfer_params_json, "options.kv_transfer_params_json")?;
            RequestOptions {
                kv_transfer_params_json: params.unwrap_or_default().to_owned(),
                load_timeout: timeout(options.load_timeout_ms, "options.load_timeout_ms")?,
                lookup_timeout: timeout(options.lookup_timeout_ms, "options.lookup_timeout_ms")?,
                store_timeout: timeout(options.store_timeout_ms, "options.store_timeout_ms")?,
            }
        };
        let request_out = caller.out(request_out, "request_out")?;
        let shared = Arc::clone(&caller.reference(tier, "tier")?.shared);
        let id = live.request_new(&options)?;
        request_out.set(Box::into_raw(Box::new(p2p_request { shared, id })));
        Ok(p2p_status::OK)
    })
}

/// Sets the deadlines of the loads and stores that are submitted from now on; those that are open keep theirs. Call it
/// before a submission for a deadline of that job's own.
///
/// Parameters:
/// - `request`: borrowed for this call.
/// - `load_timeout_ms`, `store_timeout_ms`: as in `p2p_request_options`; 0: the tier's.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: NULL, or more than 365 days.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, one at a time for each request.
/// Since: 0.2.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_request_set_timeouts(
    request: *mut p2p_request,
    load_timeout_ms: u64,
    store_timeout_ms: u64,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_request("p2p_request_set_timeouts", &caller, request, |tier, id| {
        let load = timeout(load_timeout_ms, "load_timeout_ms")?;
        let store = timeout(store_timeout_ms, "store_timeout_ms")?;
        tier.set_job_timeouts(id, load, store)?;
        Ok(p2p_status::OK)
    })
}

/// Which blocks of the request to give to `p2p_submit_store`.
///
/// Parameters:
/// - `request`: borrowed for this call.
/// - `policy_out`: a `p2p_offload_policy`. A producer's request wants all its blocks, others only new ones.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: NULL.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, but not while another call on this request may change it.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_request_offload_policy(
    request: *const p2p_request,
    policy_out: *mut u32,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_request("p2p_request_offload_policy", &caller, request, |tier, id| {
        let policy_out = caller.out(policy_out, "policy_out")?;
        policy_out.set(p2p_offload_policy::from(tier.offload_policy(id)?) as u32);
        Ok(p2p_status::OK)
    })
}

/// How the request stands with its producer: why lookups are MISS and loads fail.
///
/// Parameters:
/// - `request`: borrowed for this call.
/// - `outcome_out`: a `p2p_outcome`: DONE while nothing is wrong or there is no producer; TIMED_OUT once lookups were given
///   up at the request's own deadline; else what a load would end with now, such as NO_PEER, PEER_LOST or INCOMPATIBLE. It
///   stays so until the request finishes.
/// - `buf`: the reason, as `p2p_job_result.detail` would give it; owned by caller. Written with a NUL, cut to `cap`.
///   NULL with `cap` 0: not wanted.
/// - `cap`: bytes at `buf`.
/// - `len_out`: length of the whole reason without its NUL. NULL only together with `buf`.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_TRUNCATED: the reason was cut; `outcome_out` is written all the same.
/// - P2P_STATUS_INVALID_ARGUMENT: NULL.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, but not while another call on this request may change it.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_request_outcome(
    request: *const p2p_request,
    outcome_out: *mut u32,
    buf: *mut c_char,
    cap: usize,
    len_out: *mut usize,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_request("p2p_request_outcome", &caller, request, |tier, id| {
        let outcome_out = caller.out(outcome_out, "outcome_out")?;
        let (outcome, detail) = tier.request_failure(id)?.unwrap_or((Outcome::Done, String::new()));
        let status = if buf.is_null() && cap == 0 && len_out.is_null() {
            p2p_status::OK
        } else {
            copy_out(&caller, &detail, buf, cap, len_out)?
        };
        outcome_out.set(p2p_outcome::from(outcome) as u32);
        Ok(status)
    })
}

/// Ends a request and frees it, whatever is returned.
///
/// Loads that are still open are aborted; each still ends in its one result, and until then its blocks may be
/// written. Stores go on until their peer has them or their time is over. Hits that were looked up and not loaded
/// are given back to the producer.
///
/// In a child forked after `p2p_tier_new` the handle is only abandoned.
///
/// Parameters:
/// - `request`: moved in, even on error; NULL is fine and OK.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top; the handle is
///   gone all the same.
///
/// Threads: last and alone on this request. May come after `p2p_tier_free`.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_request_finish(request: *mut p2p_request) -> p2p_status {
    const NAME: &str = "p2p_request_finish";
    if request.is_null() {
        return p2p_status::OK;
    }
    // SAFETY: not NULL, so from `Box::into_raw` in `p2p_request_new`; the caller gives it away here, once.
    let p2p_request { shared, id } = *unsafe { Box::from_raw(request) };
    let status = guard::on_shared(NAME, &shared, |tier| {
        tier.request_finish(id)?;
        Ok(p2p_status::OK)
    });
    guard::on_drop(NAME, shared);
    status
}
