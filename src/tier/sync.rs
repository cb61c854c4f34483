//! What the tier's threads meet at: the standard library's, or, under `--cfg p2pkv_shuttle`, a model checker's, which
//! chooses the order of all steps itself.

#[cfg(p2pkv_shuttle)]
pub use super::model::sync::*;
#[cfg(not(p2pkv_shuttle))]
pub use real::*;

#[cfg(not(p2pkv_shuttle))]
mod real {
    pub use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub use std::sync::{Condvar, Mutex, MutexGuard};
    pub use std::thread::{JoinHandle, yield_now};
    pub use std::thread_local;
    use std::time::Duration;

    pub use crate::host::spawn_without_signals as spawn;

    /// A thread that gives way looks so often whether the others have had their turn: well below a millisecond.
    pub const PATIENCE: usize = 500;

    /// Lets the lock go until `condition` is told of or `limit` has passed.
    pub fn let_go<T>(guard: MutexGuard<'_, T>, condition: &Condvar, limit: Duration) {
        // Poisoned or not: whoever locks next sees it.
        drop(condition.wait_timeout(guard, limit));
    }

    pub fn is_poisoned<T>(mutex: &Mutex<T>) -> bool {
        mutex.is_poisoned()
    }
}
