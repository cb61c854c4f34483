//! Standard error, which is the host's.

use std::io;

/// Writes at once and as a whole where the system can. Without std's lock, which a fork may leave locked; and where
/// nobody reads any more, without the SIGPIPE that would end the host. What cannot be written is lost.
pub fn write_stderr(text: &[u8]) {
    let before = Pending::now();
    // All signals, SIGPIPE among them: it is the kernel's answer to a write on this thread, and waits here.
    let _ = super::threads::with_signals_blocked(|| {
        let mut left = text;
        while !left.is_empty() {
            match rustix::io::write(io::stderr(), left) {
                Ok(0) => break,
                Ok(written) => left = left.get(written..).unwrap_or_default(),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::PIPE) => {
                    before.take_back_sigpipe();
                    break;
                }
                Err(_) => break,
            }
        }
    });
}

/// Whether a SIGPIPE waited for this thread already, which is the host's then.
struct Pending {
    has_sigpipe: bool,
}

impl Pending {
    fn now() -> Pending {
        // SAFETY: sigset_t is plain bits, valid when zero; written by the call.
        let has_sigpipe = unsafe {
            let mut pending: libc::sigset_t = std::mem::zeroed();
            libc::sigpending(&raw mut pending) == 0
                && libc::sigismember(&raw const pending, libc::SIGPIPE) == 1
        };
        Pending { has_sigpipe }
    }

    /// With SIGPIPE blocked, after a write that failed with EPIPE.
    fn take_back_sigpipe(&self) {
        if self.has_sigpipe {
            return;
        }
        // SAFETY: the set is made here; no information is asked for; zero time only looks.
        unsafe {
            let mut only: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut only);
            libc::sigaddset(&raw mut only, libc::SIGPIPE);
            let at_once: libc::timespec = std::mem::zeroed();
            libc::sigtimedwait(&raw const only, std::ptr::null_mut(), &raw const at_once);
        }
    }
}
