//! A mutex whose holder is not interrupted by the host's code.
//!
//! A log message can call the host, and the host may call the library from there. With a lock held that would wait for
//! itself, or keep everybody else waiting for the host. So what calls the host is put off until this thread has let all
//! of its locks go.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, PoisonError, TryLockError};
use std::time::Duration;

use super::sync::{self, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, thread_local};

type Act = Box<dyn FnOnce()>;

thread_local! {
    /// Locks that this thread holds.
    static HELD: Cell<usize> = const { Cell::new(0) };
    /// This thread is at what was put off; what that takes and lets go is no occasion to begin again.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
    static PUT_OFF: RefCell<VecDeque<Act>> = const { RefCell::new(VecDeque::new()) };
}

/// Whether this thread holds a lock, so that the host's code may not be called now.
#[must_use]
pub fn is_held() -> bool {
    HELD.with(Cell::get) > 0
}

/// Runs `act` as soon as this thread holds no lock; now, if it holds none.
pub fn once_unlocked(act: impl FnOnce() + 'static) {
    if !is_held() {
        return act();
    }
    let act: Act = Box::new(act);
    // A thread that is ending has no such list any more, and no more to say.
    let _ = PUT_OFF.try_with(|put_off| put_off.borrow_mut().push_back(act));
}

fn run_put_off() {
    struct Running;
    impl Drop for Running {
        fn drop(&mut self) {
            RUNNING.with(|running| running.set(false));
        }
    }
    if RUNNING.with(|running| running.replace(true)) {
        return;
    }
    let _running = Running;
    let next = || PUT_OFF.try_with(|put_off| put_off.borrow_mut().pop_front()).ok().flatten();
    while let Some(act) = next() {
        act();
    }
}

/// Counts one held lock. When the last one goes, what was put off is run: not while a panic unwinds, the next time then.
#[derive(Debug)]
struct Mark;

impl Mark {
    fn new() -> Mark {
        HELD.with(|held| held.set(held.get() + 1));
        Mark
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        HELD.with(|held| held.set(held.get().saturating_sub(1)));
        if !is_held() && !std::thread::panicking() {
            run_put_off();
        }
    }
}

/// A panic happened while the lock was held: what it guards may be half done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poisoned;

#[derive(Debug)]
pub struct Lock<T> {
    mutex: Mutex<T>,
    /// Threads that wait for it, and how many have waited and got it.
    waiting: AtomicU64,
    served: AtomicU64,
}

/// Fields are dropped in order: the lock is open when the mark goes.
#[derive(Debug)]
pub struct Guard<'a, T> {
    guard: MutexGuard<'a, T>,
    mark: Mark,
}

impl<T> Lock<T> {
    pub fn new(value: T) -> Self {
        Lock { mutex: Mutex::new(value), waiting: AtomicU64::new(0), served: AtomicU64::new(0) }
    }

    pub fn lock(&self) -> Result<Guard<'_, T>, Poisoned> {
        self.wait_for_it().map_err(|_| Poisoned)
    }

    /// Lets one have it that waits for it, if any does; for who lets it go to take it again at once. Else that one mostly
    /// finds it taken when it is awake at last, and may do so many times in a row.
    pub fn give_way(&self) {
        let served = self.served.load(Ordering::Relaxed);
        for _ in 0..sync::PATIENCE {
            let is_over = self.served.load(Ordering::Relaxed) != served;
            if is_over || self.waiting.load(Ordering::Relaxed) == 0 {
                return;
            }
            sync::yield_now();
        }
    }

    /// For what must be done in any case, or cannot be half done.
    pub fn lock_even_if_poisoned(&self) -> Guard<'_, T> {
        self.wait_for_it().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_it(&self) -> LockResult<Guard<'_, T>> {
        let found = match self.mutex.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Err(poisoned),
            Err(TryLockError::WouldBlock) => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                let found = self.mutex.lock();
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                self.served.fetch_add(1, Ordering::Relaxed);
                found
            }
        };
        let held = |guard| Guard { guard, mark: Mark::new() };
        found.map(held).map_err(|poisoned| PoisonError::new(held(poisoned.into_inner())))
    }

    /// `None` while somebody holds it, maybe this thread itself.
    pub fn try_lock_even_if_poisoned(&self) -> Option<Guard<'_, T>> {
        let guard = match self.mutex.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Guard { guard, mark: Mark::new() })
    }

    pub fn is_poisoned(&self) -> bool {
        sync::is_poisoned(&self.mutex)
    }
}

impl<T> Guard<'_, T> {
    /// Lets the lock go until `condition` is told of or `limit` has passed, then gives up the lock.
    pub fn wait(self, condition: &Condvar, limit: Duration) {
        let Guard { guard, mark } = self;
        sync::let_go(guard, condition, limit);
        drop(mark);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn what_calls_the_host_runs_in_order_once_the_last_lock_is_open() {
        let (outer, inner) = (Rc::new(Lock::new(0)), Lock::new(0));
        let heard = Rc::new(RefCell::new(Vec::new()));
        let say = |what: u32| {
            let (heard, outer) = (Rc::clone(&heard), Rc::clone(&outer));
            once_unlocked(move || {
                assert!(outer.try_lock_even_if_poisoned().is_some(), "called with the lock held");
                heard.borrow_mut().push(what);
            });
        };
        say(1);
        let first = outer.lock().unwrap();
        say(2);
        let second = inner.lock().unwrap();
        say(3);
        drop(second);
        assert_eq!(*heard.borrow(), [1]);
        drop(first);
        assert_eq!(*heard.borrow(), [1, 2, 3]);
        assert!(!is_held());
    }

    #[test]
    fn a_panic_with_the_lock_held_poisons_it_and_leaves_no_mark() {
        let lock = Lock::new(7);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = lock.lock().unwrap();
            panic!("inside");
        }));
        assert!(outcome.is_err() && lock.is_poisoned() && !is_held());
        assert_eq!(lock.lock().err(), Some(Poisoned));
        assert_eq!(*lock.lock_even_if_poisoned(), 7);
    }
}
