//! The names of `tier::sync`, modelled.

use std::io;
use std::sync::LockResult;
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
pub use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub use shuttle::sync::{Mutex, MutexGuard};
pub use shuttle::thread::{JoinHandle, yield_now};
pub use shuttle::thread_local;

use crate::tier::clock;

/// Others get so many turns, at most, while somebody waits and nothing happens.
pub const PATIENCE: usize = 24;

/// shuttle's own never times out. Here, a wait with a limit ends some turns later, and then so much time has passed; one
/// without is shuttle's, so that a lost wake-up shows as a deadlock.
#[derive(Debug)]
pub struct Condvar {
    endless: shuttle::sync::Condvar,
    told: AtomicU64,
}

impl Condvar {
    pub fn new() -> Self {
        Condvar { endless: shuttle::sync::Condvar::new(), told: AtomicU64::new(0) }
    }

    pub fn notify_all(&self) {
        self.told.fetch_add(1, Ordering::SeqCst);
        self.endless.notify_all();
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.endless.wait(guard)
    }
}

pub fn let_go<T>(guard: MutexGuard<'_, T>, condition: &Condvar, limit: Duration) {
    let before = condition.told.load(Ordering::SeqCst);
    drop(guard);
    pass(limit, || condition.told.load(Ordering::SeqCst) != before);
}

/// A panic ends the execution here.
pub fn is_poisoned<T>(_: &Mutex<T>) -> bool {
    false
}

/// Waits for `done`, at most `limit`. Some waits end early for no reason, as real ones may.
pub fn pass(limit: Duration, done: impl Fn() -> bool) {
    for _ in 0..thread_rng().gen_range(1..PATIENCE) {
        if done() {
            return;
        }
        yield_now();
    }
    if thread_rng().gen_bool(0.5) {
        clock::advance(limit);
    }
}

pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    shuttle::thread::Builder::new().name(name.to_owned()).spawn(body)
}
