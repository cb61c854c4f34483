//! Threads of the library's own, on which no signal handler of the host's ever runs.

use std::io;
use std::thread::{self, JoinHandle};

/// The CPU that this thread runs on at the moment. By the C library: rustix looks for the vDSO by itself and reads past it
/// where there is none, as under valgrind.
#[must_use]
pub fn current_cpu() -> Option<usize> {
    // SAFETY: takes nothing, and touches no memory of ours.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Starts a thread on which every signal is blocked from its first instruction, so that the host's handlers run on
/// the host's threads. The kernel shows the first 15 bytes of `name`.
///
/// # Errors
/// The system has no thread left.
pub fn spawn_without_signals<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    with_signals_blocked(|| thread::Builder::new().name(name.to_owned()).spawn(body))?
}

/// Bytes of stack that a thread of C code gets which asks for none in particular.
#[must_use]
pub fn default_stack_size() -> usize {
    let mut size = 0;
    // SAFETY: the attributes are initialised before they are read, and destroyed once; `size` is a live local.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        if libc::pthread_attr_init(&raw mut attributes) == 0 {
            libc::pthread_attr_getstacksize(&raw const attributes, &raw mut size);
            libc::pthread_attr_destroy(&raw mut attributes);
        }
    }
    size
}

/// Calls with every signal blocked on this thread: threads that are started meanwhile, also by code that is not ours,
/// are born with that mask.
///
/// # Errors
/// The mask cannot be set; then nothing was called.
pub(super) fn with_signals_blocked<T>(call: impl FnOnce() -> T) -> io::Result<T> {
    struct Restore(libc::sigset_t);
    impl Drop for Restore {
        fn drop(&mut self) {
            // It was the mask before, so it can be set.
            let _ = set_signal_mask(&self.0);
        }
    }
    let _restore = Restore(set_signal_mask(&full_signal_set())?);
    Ok(call())
}

fn full_signal_set() -> libc::sigset_t {
    // SAFETY: sigset_t is plain bits, valid when zero; sigfillset then writes all of it.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        all
    }
}

/// Sets the calling thread's mask and gives back the one before.
fn set_signal_mask(mask: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    // SAFETY: as in `full_signal_set`; both pointers are valid for the call.
    let (result, before) = unsafe {
        let mut before: libc::sigset_t = std::mem::zeroed();
        (libc::pthread_sigmask(libc::SIG_SETMASK, mask, &raw mut before), before)
    };
    if result == 0 { Ok(before) } else { Err(io::Error::from_raw_os_error(result)) }
}
