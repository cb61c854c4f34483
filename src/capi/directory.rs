//! The block directory: blocks that peers may have without the engine being asked.

use super::enums::p2p_unpublish_state;
use super::guard;
use super::handle::p2p_tier;
use super::pointers::{Caller, filled, p2p_keys};
use super::status::p2p_status;
use crate::protocol::job::UnpublishState;

/// Lets peers have blocks: block `block_indexes[i]` has the bytes under `keys[i]`, and they stay as they are until
/// `p2p_unpublish` gives OK.
///
/// Publishing the same key at the same block again changes nothing. All or nothing: on error none of the keys is
/// newly published.
///
/// Parameters:
/// - `tier`: borrowed for this call.
/// - `keys`: borrowed for this call, copied.
/// - `block_indexes`: one for each key, below `num_blocks`; borrowed for this call. NULL is fine for no keys.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: NULL, keys of no length, a block index past the region.
/// - P2P_STATUS_ALREADY_EXISTS: a key is published at another block; the message says which.
/// - P2P_STATUS_LIMIT_EXCEEDED: a key is longer, or keys are more, than the tier allows.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_publish(
    tier: *const p2p_tier,
    keys: *const p2p_keys,
    block_indexes: *const u32,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_tier("p2p_publish", &caller, tier, |tier| {
        let keys = caller.keys(keys)?;
        let blocks = caller.array(block_indexes, keys.len(), "block_indexes")?;
        tier.publish(keys, blocks)?;
        Ok(p2p_status::OK)
    })
}

/// Takes blocks back. Call it before a block gets other bytes.
///
/// All or nothing: if a peer's round holds one of the keys, none is taken back; try again later, or with fewer keys.
///
/// Parameters:
/// - `tier`: borrowed for this call.
/// - `keys`: borrowed for this call.
/// - `states_out`: one `p2p_unpublish_state` for each key; owned by caller. NULL: not wanted. After
///   P2P_STATUS_BUSY, REMOVED says that the key alone could have been taken back.
///
/// Returns:
/// - P2P_STATUS_OK: none of the keys is published now.
/// - P2P_STATUS_BUSY: a key is held, so all of them are published as before; their blocks must stay as they are.
/// - P2P_STATUS_INVALID_ARGUMENT: NULL, or keys of no length.
/// - P2P_STATUS_OUT_OF_RESOURCES: no memory for so many states.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_unpublish(
    tier: *const p2p_tier,
    keys: *const p2p_keys,
    states_out: *mut u32,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_tier("p2p_unpublish", &caller, tier, |tier| {
        let keys = caller.keys(keys)?;
        let wanted = if states_out.is_null() { 0 } else { keys.len() };
        let states_out = caller.out_array(states_out, wanted, "states_out")?;
        let mut states = filled(UnpublishState::NotFound, keys.len())?;
        let removed = tier.unpublish(keys, &mut states)?;
        states_out.set(states.iter().map(|&state| p2p_unpublish_state::from(state) as u32));
        Ok(if removed { p2p_status::OK } else { p2p_status::BUSY })
    })
}
