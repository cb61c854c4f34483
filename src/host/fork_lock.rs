//! Locks that are the process's and not a tier's, and that a fork never leaves locked in the child.
//!
//! fork copies only the thread that calls it: a lock that another thread holds at that moment would stay locked in
//! the child for good. So a fork first takes all of these locks, and both sides let them go after it. Whoever holds
//! one runs none of the host's code and waits for nothing, so a fork waits for moments only.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// A lock in a static. Not poisoned by a panic: what it guards is changed in one step.
pub struct ForkLock<T> {
    raw: Raw,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through the guard, so by one thread at a time.
unsafe impl<T: Send> Sync for ForkLock<T> {}

impl<T> ForkLock<T> {
    #[must_use]
    pub const fn new(value: T) -> Self {
        ForkLock { raw: Raw::new(), value: UnsafeCell::new(value) }
    }

    /// Hold it for moments: no call of the host's code, no wait, no fork. Not twice on one thread.
    pub fn lock(&'static self) -> ForkGuard<T> {
        self.raw.enrol();
        self.raw.lock();
        ForkGuard(self)
    }
}

pub struct ForkGuard<T: 'static>(&'static ForkLock<T>);

impl<T> Deref for ForkGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is ours, so nobody has a mutable reference.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for ForkGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is ours and so is the guard, so nobody else has a reference.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for ForkGuard<T> {
    fn drop(&mut self) {
        self.0.raw.unlock();
    }
}

/// A mutex that another function than the one that locked it may unlock, as the hooks of a fork must.
struct Raw {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    enrolled: AtomicBool,
}

// SAFETY: a pthread mutex is made for many threads.
unsafe impl Sync for Raw {}

/// The locks that forks take, in the order in which they were first used.
static ENROLLED: [AtomicPtr<Raw>; 4] = [const { AtomicPtr::new(null_mut()) }; 4];

/// How many of them the fork that is going on has taken. Written and read with those locks held.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

impl Raw {
    const fn new() -> Self {
        Raw { mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), enrolled: AtomicBool::new(false) }
    }

    fn lock(&self) {
        // SAFETY: initialised, and in a static, so it stays where it is.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
    }

    fn unlock(&self) {
        // SAFETY: as in `lock`; this thread holds it.
        unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
    }

    /// Before its first use. Nothing here waits for another thread, which a child may not have.
    fn enrol(&'static self) {
        if self.enrolled.load(Ordering::Acquire) {
            return;
        }
        hook_into_forks();
        let this = (&raw const *self).cast_mut();
        for slot in &ENROLLED {
            match slot.compare_exchange(null_mut(), this, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(other) if other == this => break,
                Err(_) => {}
            }
        }
        self.enrolled.store(true, Ordering::Release);
    }
}

/// Once for the process. Should two threads come at the same moment, the hooks are called twice and the second does
/// nothing.
fn hook_into_forks() {
    static HOOKED: AtomicBool = AtomicBool::new(false);
    if !HOOKED.load(Ordering::Acquire) {
        // SAFETY: functions that stay loaded: the library is never unloaded. If memory is short the locks are as
        // any others.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) };
        HOOKED.store(true, Ordering::Release);
    }
}

thread_local! {
    /// This thread is forking and has taken the locks.
    static FORKING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

fn enrolled() -> impl Iterator<Item = &'static Raw> {
    let raw = |slot: &AtomicPtr<Raw>| {
        // SAFETY: NULL or the address of a static.
        unsafe { slot.load(Ordering::Acquire).as_ref() }
    };
    ENROLLED.iter().map_while(raw)
}

unsafe extern "C" fn before_fork() {
    if FORKING.replace(true) {
        return;
    }
    let mut taken = 0;
    for raw in enrolled() {
        raw.lock();
        taken += 1;
    }
    TAKEN.store(taken, Ordering::Release);
}

unsafe extern "C" fn after_fork() {
    if !FORKING.replace(false) {
        return;
    }
    for raw in enrolled().take(TAKEN.load(Ordering::Acquire)) {
        raw.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_takes_each_lock_once_and_lets_it_go_on_both_sides() {
        static FIRST: ForkLock<u32> = ForkLock::new(1);
        *FIRST.lock() += 1;
        // SAFETY: called in pairs, as a fork does; twice, as when two threads hooked in.
        unsafe {
            before_fork();
            before_fork();
            // SAFETY: as in `lock`.
            assert_ne!(libc::pthread_mutex_trylock(FIRST.raw.mutex.get()), 0, "a fork holds the lock");
            after_fork();
            after_fork();
        }
        assert_eq!(*FIRST.lock(), 2);
    }
}
