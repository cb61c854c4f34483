//! What must not happen inside a call: that the thread is cancelled, or that a callback does not return.

use std::os::raw::c_int;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old_state: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// While it lives, `pthread_cancel` of this thread waits: an engine's call of the library is finished first.
#[derive(Debug)]
pub struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    #[must_use]
    pub fn begin() -> Self {
        let mut before = PTHREAD_CANCEL_DISABLE;
        // SAFETY: a valid state and a live local; it cannot fail.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Uncancelled { before }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut disabled = 0;
        // SAFETY: as above.
        unsafe { pthread_setcancelstate(self.before, &raw mut disabled) };
    }
}

/// Calls the host's function. If that throws, panics or ends its thread, instead of returning, the process is aborted
/// with last words that name it: what the host left half done nobody knows.
pub fn returning<T>(callback: &'static str, call: impl FnOnce() -> T) -> T {
    let abort = AbortOnUnwind { callback };
    let answer = call();
    std::mem::forget(abort);
    answer
}

struct AbortOnUnwind {
    callback: &'static str,
}

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        let words = format!(
            "p2pkv[{}] FATAL {} did not return: it threw an exception, panicked or ended its thread. Callbacks must not, \
             see p2pkv.h; aborting\n",
            std::process::id(),
            self.callback
        );
        super::write_stderr(words.as_bytes());
        std::process::abort();
    }
}
