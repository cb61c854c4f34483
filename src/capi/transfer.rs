//! Lookups, jobs and their results.

use std::ffi::c_char;

use super::enums::{job_flags, p2p_job_kind, p2p_lookup_state, p2p_outcome, p2p_outcome_class};
use super::guard::{self, Failure};
use super::handle::{p2p_request, p2p_tier};
use super::pointers::{Caller, OutElements, filled, p2p_keys};
use super::sized::Element;
use super::status::p2p_status;
use super::strings::field;
use super::tier::wait_limit;
use crate::protocol::ids::JobId;
use crate::protocol::job::{JobResult, LookupState};

/// The one result of a job.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct p2p_job_result {
    /// As it was given to `p2p_submit_load`, `p2p_submit_store` or by the serve op `create_store_job`.
    pub job_id: u64,
    /// A `p2p_job_kind`.
    pub kind: u32,
    /// A `p2p_outcome`. Later versions may have more: treat an unknown one by its class.
    pub outcome: u32,
    /// A `p2p_outcome_class`: what to do about the outcome.
    pub outcome_class: u32,
    /// P2P_JOB_MAY_STILL_BE_READ, P2P_JOB_MAY_STILL_BE_WRITTEN: quarantine the blocks. 0: they are yours again.
    pub flags: u32,
    /// Bytes moved.
    pub bytes: u64,
    /// From submission to the result.
    pub nanoseconds: u64,
    /// Why, and which peer; NUL-terminated UTF-8, cut if too long; empty when DONE.
    pub detail: [c_char; 216],
}

// SAFETY: `repr(C)`; 8 + 4 * 4 + 2 * 8 + 216 = 256 bytes, no padding.
unsafe impl Element for p2p_job_result {
    const C_NAME: &'static str = "p2p_job_result";
    const FIRST_SIZE: usize = 256;
}

impl From<JobResult> for p2p_job_result {
    fn from(result: JobResult) -> Self {
        p2p_job_result {
            job_id: result.job.0,
            kind: p2p_job_kind::from(result.kind) as u32,
            outcome: p2p_outcome::from(result.outcome) as u32,
            outcome_class: p2p_outcome_class::from(result.outcome.class()) as u32,
            flags: job_flags(result.flags),
            bytes: result.bytes,
            nanoseconds: u64::try_from(result.elapsed.as_nanos()).unwrap_or(u64::MAX),
            detail: field(&result.detail),
        }
    }
}

/// Asks whether the request's producer has blocks.
///
/// Does not wait. The first call for a key registers it and gives RETRY; call `p2p_flush_lookups` once for all
/// requests of a scheduling step, and ask again in later steps. An answer stays the same until the keys are loaded or
/// the request finishes. HIT promises that the producer holds the block for this request. A request that loads
/// without asking (`remote_prefiller`) gets HIT for every key, one without a producer MISS.
///
/// Parameters:
/// - `request`: borrowed for this call.
/// - `keys`: borrowed for this call.
/// - `states_out`: one `p2p_lookup_state` for each key: MISS, HIT or RETRY; owned by caller. NULL is fine for no
///   keys. Written only on P2P_STATUS_OK.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: NULL, or keys of no length.
/// - P2P_STATUS_LIMIT_EXCEEDED: a key is longer, or keys are more, than the tier allows.
/// - P2P_STATUS_OUT_OF_RESOURCES: no memory for so many states.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, one at a time for each request.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_lookup(
    request: *mut p2p_request,
    keys: *const p2p_keys,
    states_out: *mut u32,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_request("p2p_lookup", &caller, request, |tier, id| {
        let keys = caller.keys(keys)?;
        let states_out = caller.out_array(states_out, keys.len(), "states_out")?;
        let mut states = filled(LookupState::Retry, keys.len())?;
        tier.lookup(id, keys, &mut states)?;
        states_out.set(states.iter().map(|&state| p2p_lookup_state::from(state) as u32));
        Ok(p2p_status::OK)
    })
}

/// Sends the keys that `p2p_lookup` has registered since the last flush, one message for each request.
///
/// Parameters:
/// - `tier`: borrowed for this call.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: NULL.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_flush_lookups(tier: *const p2p_tier) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_tier("p2p_flush_lookups", &caller, tier, |tier| {
        tier.flush_lookups()?;
        Ok(p2p_status::OK)
    })
}

/// Flushes, then waits until every key that was looked up for the request is HIT or MISS. For engines that do not step
/// anyway; others call `p2p_flush_lookups` and ask again in their next step.
///
/// Parameters:
/// - `request`: borrowed for this call.
/// - `timeout_ms`: how long to wait at most, in milliseconds. 0: flush only. P2P_TIMEOUT_INFINITE: without limit; the
///   request's own lookup deadline ends the wait all the same.
///
/// Returns:
/// - P2P_STATUS_OK: `p2p_lookup` has an answer for each of the keys.
/// - P2P_STATUS_TIMED_OUT: some are still RETRY; nothing was lost.
/// - P2P_STATUS_INVALID_ARGUMENT: NULL.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, one at a time for each request. Blocks up to `timeout_ms`. Not from a serve op. With
/// P2P_PROGRESS_CALLER the call itself makes the progress, for the whole tier.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_wait_lookups(request: *mut p2p_request, timeout_ms: u64) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_request("p2p_wait_lookups", &caller, request, |tier, id| {
        let answered = tier.wait_lookups(id, wait_limit(timeout_ms))?;
        Ok(if answered { p2p_status::OK } else { p2p_status::TIMED_OUT })
    })
}

/// Pulls blocks from the request's producer: the bytes under `keys[i]` into block `block_indexes[i]`.
///
/// Does not wait. An accepted job ends in exactly one result, see `p2p_poll_finished`; until then the library
/// writes into the blocks at any time. A job that is refused here has no result and touches nothing.
///
/// Parameters:
/// - `request`: borrowed for this call.
/// - `job_id`: your name for the job, unlike that of any job that is still open.
/// - `keys`: borrowed for this call. After a lookup: only keys whose answer was HIT.
/// - `block_indexes`: one for each key, all different, below `num_blocks`; borrowed for this call. NULL is fine for no
///   keys.
///
/// Returns:
/// - P2P_STATUS_OK: accepted.
/// - P2P_STATUS_INVALID_ARGUMENT: NULL, keys of no length, a block index past the region.
/// - P2P_STATUS_DUPLICATE_JOB: a job with this id is still open.
/// - P2P_STATUS_NOT_A_HIT: the lookup of this round has not confirmed one of the keys; the message says which.
/// - P2P_STATUS_WRONG_ROLE: the request has no producer to load from.
/// - P2P_STATUS_LIMIT_EXCEEDED: a key is longer, or keys are more, than the tier allows.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, one at a time for each request.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_submit_load(
    request: *mut p2p_request,
    job_id: u64,
    keys: *const p2p_keys,
    block_indexes: *const u32,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_request("p2p_submit_load", &caller, request, |tier, id| {
        let keys = caller.keys(keys)?;
        let blocks = caller.array(block_indexes, keys.len(), "block_indexes")?;
        tier.submit_load(id, JobId(job_id), keys, blocks)?;
        Ok(p2p_status::OK)
    })
}

/// Offers blocks to the request's consumer: block `block_indexes[i]` has the bytes under `keys[i]`.
///
/// Does not wait. An accepted job ends in exactly one result, see `p2p_poll_finished`; until then the bytes must stay
/// as they are. A consumer may ask before or after. For a request without `remote_decoder` the job is DONE at once.
///
/// Parameters:
/// - `request`: borrowed for this call.
/// - `job_id`: your name for the job, unlike that of any job that is still open.
/// - `keys`: borrowed for this call.
/// - `block_indexes`: one for each key, below `num_blocks`; borrowed for this call. NULL is fine for no keys.
///
/// Returns:
/// - P2P_STATUS_OK: accepted.
/// - P2P_STATUS_INVALID_ARGUMENT: NULL, keys of no length, a block index past the region.
/// - P2P_STATUS_DUPLICATE_JOB: a job with this id is still open.
/// - P2P_STATUS_LIMIT_EXCEEDED: a key is longer, or keys are more, than the tier allows.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, one at a time for each request.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_submit_store(
    request: *mut p2p_request,
    job_id: u64,
    keys: *const p2p_keys,
    block_indexes: *const u32,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_request("p2p_submit_store", &caller, request, |tier, id| {
        let keys = caller.keys(keys)?;
        let blocks = caller.array(block_indexes, keys.len(), "block_indexes")?;
        tier.submit_store(id, JobId(job_id), keys, blocks)?;
        Ok(p2p_status::OK)
    })
}

/// Takes results of finished jobs, oldest first, without waiting.
///
/// With P2P_PROGRESS_CALLER the call first makes progress, also when `capacity` is 0.
///
/// Parameters:
/// - `tier`: borrowed for this call.
/// - `results_out`: written, `*n_out` of them; owned by caller. NULL is fine when `capacity` is 0.
/// - `result_size`: sizeof(p2p_job_result): a library of another version then knows which fields you have.
/// - `capacity`: how many results there is room for.
/// - `n_out`: how many there were, maybe 0. As many as `capacity`: there may be more.
///
/// Returns:
/// - P2P_STATUS_OK: also when there were none.
/// - P2P_STATUS_INVALID_ARGUMENT: NULL, or a `result_size` that no version of the struct has.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, at any time; each result goes to one of them.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_poll_finished(
    tier: *const p2p_tier,
    results_out: *mut p2p_job_result,
    result_size: usize,
    capacity: usize,
    n_out: *mut usize,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_tier("p2p_poll_finished", &caller, tier, |tier| {
        let results_out = results(&caller, results_out, result_size, capacity)?;
        let n_out = caller.out(n_out, "n_out")?;
        let mut finished = Vec::new();
        tier.poll_finished(&mut finished, capacity)?;
        n_out.set(results_out.set(finished.into_iter().map(p2p_job_result::from)));
        Ok(p2p_status::OK)
    })
}

/// Takes results of finished jobs, oldest first, and waits until there is at least one.
///
/// With P2P_PROGRESS_CALLER the call itself makes the progress.
///
/// Parameters:
/// - `tier`: borrowed for this call.
/// - `results_out`: written, `*n_out` of them; owned by caller.
/// - `result_size`: sizeof(p2p_job_result): a library of another version then knows which fields you have.
/// - `capacity`: how many results there is room for, at least 1.
/// - `timeout_ms`: longest wait in milliseconds; 0 does not wait, P2P_TIMEOUT_INFINITE has no limit.
/// - `n_out`: how many there were.
///
/// Returns:
/// - P2P_STATUS_OK: at least one.
/// - P2P_STATUS_TIMED_OUT: none in time; `*n_out` is 0.
/// - P2P_STATUS_INVALID_ARGUMENT: NULL, no capacity, or a `result_size` that no version of the struct has.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, at any time; each result goes to one of them. Blocks up to `timeout_ms`. Not from a serve op.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_wait_finished(
    tier: *const p2p_tier,
    results_out: *mut p2p_job_result,
    result_size: usize,
    capacity: usize,
    timeout_ms: u64,
    n_out: *mut usize,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_tier("p2p_wait_finished", &caller, tier, |tier| {
        let results_out = results(&caller, results_out, result_size, capacity)?;
        let n_out = caller.out(n_out, "n_out")?;
        if capacity == 0 {
            return Err(Failure::invalid("capacity is 0, expected room for at least one result"));
        }
        let mut finished = Vec::new();
        let any = tier.wait_finished(&mut finished, capacity, wait_limit(timeout_ms))?;
        n_out.set(results_out.set(finished.into_iter().map(p2p_job_result::from)));
        Ok(if any { p2p_status::OK } else { p2p_status::TIMED_OUT })
    })
}

fn results(
    caller: &Caller,
    results_out: *mut p2p_job_result,
    result_size: usize,
    capacity: usize,
) -> Result<OutElements<p2p_job_result>, Failure> {
    caller.out_elements(results_out, result_size, "result_size", capacity, "results_out")
}
