//! What the tier shows of itself.

use std::ffi::c_char;

use super::enums::p2p_peer_state;
use super::guard;
use super::handle::p2p_tier;
use super::pointers::Caller;
use super::sized::{Element, SizeFirst};
use super::status::p2p_status;
use super::strings::{copy_out, field};
use crate::protocol::job::Stats;
use crate::tier::PeerSummary;

/// One peer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct p2p_peer_info {
    /// "host:port" of its control socket; NUL-terminated.
    pub peer_id: [c_char; 264],
    /// How blocks move: "tcp", "nixl", empty while not settled; NUL-terminated.
    pub transport: [c_char; 16],
    /// Why this transport, or why the peer is not ready; NUL-terminated UTF-8, cut if too long.
    pub detail: [c_char; 216],
    /// A `p2p_peer_state`.
    pub state: u32,
    /// 0.
    pub reserved: u32,
    /// Loads from it that are open.
    pub loads_live: u64,
    /// Stores bound to it that are open.
    pub stores_live: u64,
    /// Transfers to it that are in flight.
    pub transfers_live: u64,
    /// Bytes loaded from it.
    pub bytes_in: u64,
    /// Bytes served to it.
    pub bytes_out: u64,
    /// Rounds served to it.
    pub rounds_served: u64,
    /// Milliseconds since there was work for it.
    pub idle_ms: u64,
}

// SAFETY: `repr(C)`; 264 + 16 + 216 + 2 * 4 + 7 * 8 = 560 bytes, no padding.
unsafe impl Element for p2p_peer_info {
    const C_NAME: &'static str = "p2p_peer_info";
    const FIRST_SIZE: usize = 560;
}

impl From<&PeerSummary> for p2p_peer_info {
    fn from(info: &PeerSummary) -> Self {
        p2p_peer_info {
            peer_id: field(info.peer.as_str()),
            transport: field(info.transport),
            detail: field(&info.detail),
            state: p2p_peer_state::from(info.state) as u32,
            reserved: 0,
            loads_live: info.loads_live,
            stores_live: info.stores_live,
            transfers_live: info.transfers_live,
            bytes_in: info.bytes_in,
            bytes_out: info.bytes_out,
            rounds_served: info.rounds_served,
            idle_ms: u64::try_from(info.idle.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// Counters since the tier began, and a few levels (those that go down again are marked).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct p2p_tier_statistics {
    /// sizeof(p2p_tier_statistics), set by you.
    pub struct_size: usize,
    /// Level: sessions.
    pub peers: u64,
    /// Level: requests not yet finished.
    pub requests: u64,
    /// Level: loads open.
    pub loads_live: u64,
    /// Level: stores open, parked ones included.
    pub stores_live: u64,
    /// Level: stores that nobody has asked for yet.
    pub stores_parked: u64,
    /// Level: keys in the block directory.
    pub keys_published: u64,
    /// Level: blocks that a peer's round holds.
    pub blocks_pinned: u64,
    /// Jobs that ended in DONE.
    pub jobs_done: u64,
    /// Jobs that ended otherwise.
    pub jobs_failed: u64,
    /// Bytes loaded.
    pub bytes_in: u64,
    /// Bytes served.
    pub bytes_out: u64,
    /// Lookups sent to peers.
    pub lookups_sent: u64,
    /// Lookups of peers answered.
    pub lookups_answered: u64,
    /// Keys of peers answered with HIT.
    pub keys_hit: u64,
    /// Keys of peers answered with MISS.
    pub keys_missed: u64,
    /// Messages received.
    pub messages_in: u64,
    /// Messages sent.
    pub messages_out: u64,
    /// Messages thrown away: of no known sender, of no known type.
    pub messages_dropped: u64,
    /// Messages that came after what they belong to was over.
    pub messages_late: u64,
    /// Messages that broke the protocol; each ended a session.
    pub protocol_errors: u64,
    /// Sessions opened.
    pub sessions_opened: u64,
    /// Sessions that died.
    pub sessions_lost: u64,
    /// Level: results not yet polled.
    pub results_queued: u64,
}

// SAFETY: `repr(C)` of 24 integers of 8 bytes, size first.
unsafe impl SizeFirst for p2p_tier_statistics {
    const C_NAME: &'static str = "p2p_tier_statistics";
    const ADVICE: &'static str = "set it before the call";
}

impl From<Stats> for p2p_tier_statistics {
    fn from(stats: Stats) -> Self {
        p2p_tier_statistics {
            struct_size: size_of::<p2p_tier_statistics>(),
            peers: stats.peers,
            requests: stats.requests,
            loads_live: stats.loads_live,
            stores_live: stats.stores_live,
            stores_parked: stats.stores_parked,
            keys_published: stats.keys_published,
            blocks_pinned: stats.blocks_pinned,
            jobs_done: stats.jobs_done,
            jobs_failed: stats.jobs_failed,
            bytes_in: stats.bytes_in,
            bytes_out: stats.bytes_out,
            lookups_sent: stats.lookups_sent,
            lookups_answered: stats.lookups_answered,
            keys_hit: stats.keys_hit,
            keys_missed: stats.keys_missed,
            messages_in: stats.messages_in,
            messages_out: stats.messages_out,
            messages_dropped: stats.messages_dropped,
            messages_late: stats.messages_late,
            protocol_errors: stats.protocol_errors,
            sessions_opened: stats.sessions_opened,
            sessions_lost: stats.sessions_lost,
            results_queued: stats.results_queued,
        }
    }
}

/// The peers that the tier knows, with or without a session.
///
/// Parameters:
/// - `tier`: borrowed for this call.
/// - `infos_out`: written, as many as fit; owned by caller. NULL is fine when `capacity` is 0.
/// - `info_size`: sizeof(p2p_peer_info): a library of another version then knows which fields you have.
/// - `capacity`: how many there is room for.
/// - `n_out`: how many peers there are, also when that is more than `capacity`.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_TRUNCATED: there are more than `capacity`.
/// - P2P_STATUS_INVALID_ARGUMENT: NULL, or an `info_size` that no version of the struct has.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_peers(
    tier: *const p2p_tier,
    infos_out: *mut p2p_peer_info,
    info_size: usize,
    capacity: usize,
    n_out: *mut usize,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_tier("p2p_peers", &caller, tier, |tier| {
        let infos_out = caller.out_elements(infos_out, info_size, "info_size", capacity, "infos_out")?;
        let n_out = caller.out(n_out, "n_out")?;
        let peers = tier.peers()?;
        infos_out.set(peers.iter().map(p2p_peer_info::from));
        n_out.set(peers.len());
        Ok(if peers.len() > capacity { p2p_status::TRUNCATED } else { p2p_status::OK })
    })
}

/// The tier's counters at one moment.
///
/// Parameters:
/// - `tier`: borrowed for this call.
/// - `stats_out`: written as far as its `struct_size` goes, which you set before; fields that this library does not
///   know become 0. Owned by caller.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: NULL, or `struct_size` is not set.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_tier_stats(
    tier: *const p2p_tier,
    stats_out: *mut p2p_tier_statistics,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_tier("p2p_tier_stats", &caller, tier, |tier| {
        let stats_out = caller.out_size_first(stats_out, "stats_out")?;
        stats_out.set(&tier.stats()?.into());
        Ok(p2p_status::OK)
    })
}

/// The tier's metrics as OpenMetrics text: what `p2p_tier_stats` tells, and bytes by peer. Every metric begins with
/// `p2pkv_` and has the label `tier`, which is `p2p_tier_local_id`.
///
/// Parameters:
/// - `tier`: borrowed for this call.
/// - `buf`: written, NUL-terminated; owned by caller. NULL is fine when `cap` is 0.
/// - `cap`: bytes in `buf`.
/// - `len_out`: length of the whole text without NUL.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_TRUNCATED: `cap` is not larger than `*len_out`; `buf` has as much as fits. Peers may come between two
///   calls: leave some room.
/// - P2P_STATUS_INVALID_ARGUMENT: NULL.
/// - P2P_STATUS_WRONG_PROCESS, P2P_STATUS_SHUT_DOWN, P2P_STATUS_PANIC, P2P_STATUS_POISONED: see the top.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_tier_metrics_text(
    tier: *const p2p_tier,
    buf: *mut c_char,
    cap: usize,
    len_out: *mut usize,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::on_tier("p2p_tier_metrics_text", &caller, tier, |tier| {
        copy_out(&caller, &tier.metrics_text()?, buf, cap, len_out)
    })
}
