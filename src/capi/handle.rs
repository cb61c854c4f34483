//! What is behind the two opaque handles.
//!
//! ```text
//!            a panic in any call on the tier or its requests
//! usable ────────────────────────────────────────────────────► poisoned ──► only free and finish
//!    └── fork, seen from the child ──► wrong process ──► only abandoned
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::guard::Failure;
use super::status::p2p_status;
use crate::protocol::ids::RequestId;
use crate::tier::Tier;

/// A tier: one region, one control socket, many peers. Made by `p2p_tier_new`, ended by `p2p_tier_free`.
pub struct p2p_tier {
    pub(super) shared: Arc<Shared>,
}

/// A request of the engine: the scope of lookups, loads and stores. Made by `p2p_request_new`, ended by
/// `p2p_request_finish`.
pub struct p2p_request {
    pub(super) shared: Arc<Shared>,
    pub(super) id: RequestId,
}

pub(super) struct Shared {
    pub(super) tier: Arc<Tier>,
    /// The process that made the tier.
    pid: libc::pid_t,
    poisoned: AtomicBool,
}

impl Shared {
    pub(super) fn new(tier: Arc<Tier>) -> Self {
        Shared { tier, pid: current_pid(), poisoned: AtomicBool::new(false) }
    }

    pub(super) fn check_usable(&self) -> Result<(), Failure> {
        if self.is_foreign() {
            return Err(self.foreign());
        }
        if self.is_poisoned() {
            return Err(Failure::new(
                p2p_status::POISONED,
                "an earlier call on this tier met a bug in libp2pkv (P2P_STATUS_PANIC); free the tier and make a new one",
            ));
        }
        Ok(())
    }

    /// True in a child that was forked after the tier was made: neither its threads nor its sockets are ours there.
    pub(super) fn is_foreign(&self) -> bool {
        self.pid != current_pid()
    }

    pub(super) fn foreign(&self) -> Failure {
        Failure::new(
            p2p_status::WRONG_PROCESS,
            format!(
                "the tier belongs to process {}, this is its fork {}; make a tier of your own here and abandon this handle",
                self.pid,
                current_pid()
            ),
        )
    }

    pub(super) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    pub(super) fn poison(&self) {
        self.poisoned.store(true, Ordering::Release);
    }
}

fn current_pid() -> libc::pid_t {
    // SAFETY: getpid has no precondition.
    unsafe { libc::getpid() }
}
