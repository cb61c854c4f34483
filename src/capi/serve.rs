//! Serving peers from the engine: callbacks that answer lookups and pin blocks.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::enums::{check_flags, lookup_state};
use super::guard::{self, Failure};
use super::handle::p2p_tier;
use super::pointers::{Caller, filled, p2p_keys};
use super::sized::SizeFirst;
use super::status::p2p_status;
use crate::host::returning;
use crate::protocol::ids::{BlockIndex, JobId, ServeId};
use crate::protocol::job::LookupState;
use crate::protocol::keys::KeysView;
use crate::tier::{ServeOps, ServeThread};

/// In `block_indexes_out` of the serve op `create_store_job`: this key cannot be served after all.
pub const P2P_NO_BLOCK: u32 = u32::MAX;
/// In `p2p_serve_ops.flags`: the callbacks are made on the tier's thread, and `p2p_serve` is not needed.
pub const P2P_SERVE_ON_PROGRESS_THREAD: u32 = 1;

/// How the engine answers lookups of peers, for keys that the block directory (`p2p_publish`) does not have.
///
/// For each lookup of a peer: `new_request`, then `lookup` until no key is PENDING or RETRY, with `create_store_job`
/// for those that are HIT, then `request_finished`. All carry the same `serve_id`.
///
/// The callbacks are made with no lock of the library held, on the thread that calls `p2p_serve`, or on the tier's
/// with P2P_SERVE_ON_PROGRESS_THREAD; never two at a time. They may call the library, but never `p2p_tier_free`; what
/// waits or would change the ops under them (`p2p_tier_drain`, `p2p_wait_finished`, `p2p_wait_lookups`,
/// `p2p_tier_set_serve_ops`) gives P2P_STATUS_UNSUPPORTED there, and `p2p_serve` does nothing. They must not block for
/// long, and must return, see the top. All but `lookup` may be NULL. Pointers that they get are borrowed for
/// the callback.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct p2p_serve_ops {
    /// sizeof(p2p_serve_ops).
    pub struct_size: usize,
    /// P2P_SERVE_ON_PROGRESS_THREAD or 0.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Handed to each callback; whatever you like, usable from the thread that the callbacks are made on.
    pub user_data: *mut c_void,
    /// A lookup of a peer begins. The two texts are UTF-8 and have no NUL at their end.
    pub new_request: Option<
        unsafe extern "C-unwind" fn(
            user_data: *mut c_void,
            serve_id: u64,
            kv_request_id: *const c_char,
            kv_request_id_len: usize,
            peer_id: *const c_char,
            peer_id_len: usize,
        ),
    >,
    /// Which keys are there: writes a `p2p_lookup_state` for each into `states_out`, which is all MISS before.
    pub lookup: Option<
        unsafe extern "C-unwind" fn(
            user_data: *mut c_void,
            serve_id: u64,
            keys: *const p2p_keys,
            states_out: *mut u32,
        ),
    >,
    /// Pins the blocks of keys that were HIT: their bytes stay as they are until a result with kind STORE and the id
    /// written to `job_id_out` has been polled. Writes their indexes to `block_indexes_out`, which is all P2P_NO_BLOCK
    /// before. A key left so is a miss after all; if all are, nothing is pinned and no result comes. NULL: every HIT
    /// is a miss.
    pub create_store_job: Option<
        unsafe extern "C-unwind" fn(
            user_data: *mut c_void,
            serve_id: u64,
            keys: *const p2p_keys,
            job_id_out: *mut u64,
            block_indexes_out: *mut u32,
        ),
    >,
    /// The lookup is answered or given up; `serve_id` will not come again.
    pub request_finished: Option<unsafe extern "C-unwind" fn(user_data: *mut c_void, serve_id: u64)>,
    /// Called exactly once, after the last callback has returned: release `user_data`.
    pub drop: Option<unsafe extern "C-unwind" fn(user_data: *mut c_void)>,
}

// SAFETY: `repr(C)` of integers, pointers and optional functions, size first; zeros are valid in all of them.
unsafe impl SizeFirst for p2p_serve_ops {
    const C_NAME: &'static str = "p2p_serve_ops";
    const ADVICE: &'static str = "set all to zeros, then struct_size";
}

/// Answers lookups of peers that wait for the engine, with the serve ops, on this thread.
///
/// Call it once in each scheduling step. Without serve ops, or with P2P_SERVE_ON_PROGRESS_THREAD, it does nothing.
///
/// Parameters:
/// - `tier`: borrowed for this call.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: NULL.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, at any time. From a serve op it does nothing.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_serve(tier: *const p2p_tier) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_tier("p2p_serve", &caller, tier, |tier| {
        tier.serve()?;
        Ok(p2p_status::OK)
    })
}

/// Sets, replaces or clears how the engine answers lookups of peers.
///
/// With P2P_SERVE_ON_PROGRESS_THREAD callbacks may come before this returns. What earlier ops have left open is MISS; they
/// are told of the end of every lookup, then dropped. A callback that is running is waited for: hold no lock that it takes.
///
/// Parameters:
/// - `tier`: borrowed for this call.
/// - `ops`: copied. NULL: the engine is not asked any more. `ops->user_data` is borrowed until `ops->drop` is called; on
///   error it stays yours and `drop` is not called.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: NULL, no `lookup`, an unknown flag, or `reserved` not 0.
/// - P2P_STATUS_UNSUPPORTED: a field is set that this version does not know, or the call comes from a serve op.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, at any time. Not from a serve op.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_tier_set_serve_ops(
    tier: *const p2p_tier,
    ops: *const p2p_serve_ops,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_tier("p2p_tier_set_serve_ops", &caller, tier, |tier| {
        if ops.is_null() {
            tier.set_serve_ops(None, ServeThread::Caller)?;
            return Ok(p2p_status::OK);
        }
        let ops = caller.size_first(ops, "ops")?;
        check_flags(
            "ops.flags",
            ops.flags,
            P2P_SERVE_ON_PROGRESS_THREAD,
            "P2P_SERVE_ON_PROGRESS_THREAD (0x1)",
        )?;
        if ops.reserved != 0 {
            return Err(Failure::invalid(format!("ops.reserved is {}, expected 0", ops.reserved)));
        }
        let on_progress_thread = ops.flags & P2P_SERVE_ON_PROGRESS_THREAD != 0;
        let thread = if on_progress_thread { ServeThread::Progress } else { ServeThread::Caller };
        let engine = Arc::new(EngineOps::new(ops)?);
        tier.set_serve_ops(Some(Arc::<EngineOps>::clone(&engine)), thread)?;
        engine.take_user_data();
        Ok(p2p_status::OK)
    })
}

/// The engine's callbacks. `drop` is called when the last holder lets go, so after the last callback.
struct EngineOps {
    lookup: unsafe extern "C-unwind" fn(*mut c_void, u64, *const p2p_keys, *mut u32),
    ops: p2p_serve_ops,
    /// Set once the tier has taken the ops: from then on `user_data` is ours to drop.
    owns_user_data: AtomicBool,
    has_warned: AtomicBool,
}

// SAFETY: the header asks that `user_data` is usable from the threads that the callbacks are made on.
unsafe impl Send for EngineOps {}
// SAFETY: as above; we only pass it on.
unsafe impl Sync for EngineOps {}

impl EngineOps {
    fn new(ops: p2p_serve_ops) -> Result<Self, Failure> {
        let lookup = ops.lookup.ok_or_else(|| Failure::invalid("ops.lookup is NULL, expected a callback"))?;
        Ok(EngineOps {
            lookup,
            ops,
            owns_user_data: AtomicBool::new(false),
            has_warned: AtomicBool::new(false),
        })
    }

    fn take_user_data(&self) {
        self.owns_user_data.store(true, Ordering::Release);
    }

    /// Warns once, since an engine that is wrong once is wrong in every step.
    fn warn(&self, message: &str) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            ::log::warn!("{message} (said once)");
        }
    }
}

impl Drop for EngineOps {
    fn drop(&mut self) {
        if let (true, Some(drop)) = (*self.owns_user_data.get_mut(), self.ops.drop) {
            // SAFETY: the engine's own function with its own data, once, and no callback runs any more.
            returning("the serve op `drop`", || unsafe { drop(self.ops.user_data) });
        }
    }
}

impl ServeOps for EngineOps {
    fn new_request(&self, serve: ServeId, kv_request_id: &str, peer: &str) {
        if let Some(new_request) = self.ops.new_request {
            let text = |text: &str| (text.as_ptr().cast::<c_char>(), text.len());
            let ((id, id_len), (peer, peer_len)) = (text(kv_request_id), text(peer));
            // SAFETY: the engine's own function with its own data; the texts live until it returns.
            returning("the serve op `new_request`", || unsafe {
                new_request(self.ops.user_data, serve.0, id, id_len, peer, peer_len);
            });
        }
    }

    fn lookup(&self, serve: ServeId, keys: KeysView<'_>, states: &mut [LookupState]) {
        let Ok(mut answers) = filled(0u32, states.len()) else {
            self.warn("no memory to ask the serve op `lookup`; its keys are MISS");
            return;
        };
        // SAFETY: the engine's own function with its own data; the arrays live until it returns and have one
        // entry for each key.
        returning("the serve op `lookup`", || unsafe {
            (self.lookup)(self.ops.user_data, serve.0, &c_keys(keys), answers.as_mut_ptr());
        });
        for (state, &answer) in states.iter_mut().zip(&answers) {
            *state = lookup_state(answer).unwrap_or_else(|| {
                self.warn(&format!(
                    "the serve op `lookup` wrote state {answer}, expected 0 to 3; taken as MISS"
                ));
                LookupState::Miss
            });
        }
    }

    fn create_store_job(
        &self,
        serve: ServeId,
        keys: KeysView<'_>,
        blocks: &mut [Option<BlockIndex>],
    ) -> Option<JobId> {
        let create_store_job = self.ops.create_store_job?;
        let mut indexes = filled(P2P_NO_BLOCK, blocks.len()).ok()?;
        let mut job = 0u64;
        // SAFETY: as in `lookup`.
        returning("the serve op `create_store_job`", || unsafe {
            create_store_job(self.ops.user_data, serve.0, &c_keys(keys), &mut job, indexes.as_mut_ptr());
        });
        for (block, &index) in blocks.iter_mut().zip(&indexes) {
            *block = (index != P2P_NO_BLOCK).then_some(BlockIndex(index));
        }
        blocks.iter().any(Option::is_some).then_some(JobId(job))
    }

    fn request_finished(&self, serve: ServeId) {
        if let Some(request_finished) = self.ops.request_finished {
            // SAFETY: the engine's own function with its own data.
            returning("the serve op `request_finished`", || unsafe {
                request_finished(self.ops.user_data, serve.0);
            });
        }
    }
}

fn c_keys(keys: KeysView<'_>) -> p2p_keys {
    p2p_keys { data: keys.as_bytes().as_ptr(), key_len: keys.key_len(), count: keys.len() }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::sync::atomic::AtomicU32;

    use super::*;

    static DROPS: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C-unwind" fn count_drop(user_data: *mut c_void) {
        // SAFETY: the test's own counter.
        unsafe { &*user_data.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
    }

    unsafe extern "C-unwind" fn answer_by_first_byte(
        _: *mut c_void,
        _: u64,
        keys: *const p2p_keys,
        states_out: *mut u32,
    ) {
        // SAFETY: as the library promises its callbacks.
        unsafe {
            let keys = &*keys;
            for index in 0..keys.count {
                states_out.add(index).write(u32::from(*keys.data.add(index * keys.key_len)));
            }
        }
    }

    unsafe extern "C-unwind" fn pin_the_second(
        _: *mut c_void,
        _: u64,
        keys: *const p2p_keys,
        job_id_out: *mut u64,
        blocks_out: *mut u32,
    ) {
        // SAFETY: as the library promises its callbacks.
        unsafe {
            job_id_out.write(77);
            if (*keys).count > 1 {
                blocks_out.add(1).write(5);
            }
        }
    }

    fn engine(drops: &'static AtomicU32) -> EngineOps {
        // SAFETY: zeros are valid ops, see `SizeFirst`.
        let mut ops: p2p_serve_ops = unsafe { MaybeUninit::zeroed().assume_init() };
        ops.lookup = Some(answer_by_first_byte);
        ops.create_store_job = Some(pin_the_second);
        ops.drop = Some(count_drop);
        ops.user_data = (&raw const *drops).cast_mut().cast();
        EngineOps::new(ops).unwrap()
    }

    #[test]
    fn user_data_is_dropped_once_and_only_if_it_was_taken() {
        drop(engine(&DROPS));
        assert_eq!(DROPS.load(Ordering::SeqCst), 0);
        let taken = engine(&DROPS);
        taken.take_user_data();
        drop(taken);
        assert_eq!(DROPS.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn callbacks_see_the_keys_and_unknown_answers_are_misses() {
        static NONE: AtomicU32 = AtomicU32::new(0);
        let engine = engine(&NONE);
        let keys = KeysView::new(&[1, 9, 3, 9, 4, 9, 0, 9], 2).unwrap();
        let mut states = [LookupState::Miss; 4];
        engine.lookup(ServeId(1), keys, &mut states);
        assert_eq!(states, [LookupState::Hit, LookupState::Pending, LookupState::Miss, LookupState::Miss]);
    }

    #[test]
    fn a_store_job_without_blocks_is_none() {
        static NONE: AtomicU32 = AtomicU32::new(0);
        let engine = engine(&NONE);
        let mut blocks = [None; 2];
        let job = engine.create_store_job(ServeId(1), KeysView::new(&[1, 2], 1).unwrap(), &mut blocks);
        assert_eq!((job, blocks), (Some(JobId(77)), [None, Some(BlockIndex(5))]));
        let mut blocks = [None; 1];
        assert_eq!(engine.create_store_job(ServeId(1), KeysView::new(&[1], 1).unwrap(), &mut blocks), None);
    }
}
