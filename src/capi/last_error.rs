//! The last failure of each thread, in words.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// What the last failing call on this thread has to say.
///
/// One sentence or two: which parameter, which peer, which id, what was expected, what came, what to do. Calls
/// that succeed, and those that return a positive status, leave it alone: look at it only after a negative one.
///
/// Returns: NUL-terminated UTF-8, "" if no call has failed on this thread yet; never NULL. Valid until the next
/// failing call on this thread or the thread's end; never free it.
///
/// Threads: any, at any time; each thread has its own.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub extern "C" fn p2p_last_error() -> *const c_char {
    let text = LAST.try_with(|last| last.try_borrow().map(|text| text.as_ptr()));
    // Not there: the thread is ending, its locals are gone.
    text.ok().and_then(Result::ok).unwrap_or(c"".as_ptr())
}

pub(super) fn set(message: &str) {
    let message = c_text(message);
    // A thread that is ending has nobody left to read it.
    let _ = LAST.try_with(|last| last.replace(message));
}

/// As a C string. A NUL inside, which only a peer's words could bring in, becomes U+FFFD.
pub(super) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn last() -> String {
        // SAFETY: never NULL, NUL-terminated, valid until the next `set` on this thread.
        unsafe { CStr::from_ptr(p2p_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn each_thread_has_its_own_last_error() {
        set("mine");
        let other = std::thread::spawn(|| {
            let before = last();
            set("theirs");
            (before, last())
        });
        assert_eq!(other.join().unwrap(), (String::new(), "theirs".to_owned()));
        assert_eq!(last(), "mine");
    }

    #[test]
    fn a_nul_inside_does_not_cut_the_message() {
        set("peer \0 said");
        assert_eq!(last(), "peer \u{fffd} said");
    }
}
