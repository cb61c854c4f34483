//! Text in both directions.

use std::ffi::c_char;

use super::guard::{Answer, Failure};
use super::pointers::Caller;
use super::status::p2p_status;

// `P2P_NUL_TERMINATED` in C, written out in cbindgen.toml since cbindgen cannot say SIZE_MAX.
pub(super) const NUL_TERMINATED: usize = usize::MAX;

/// Text that goes in: UTF-8 without a NUL inside.
///
/// `data` NULL with `len` 0 is the empty text, which means "default" wherever there is one. `len` may be
/// P2P_NUL_TERMINATED: then the text ends at the first NUL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct p2p_str {
    /// The bytes; borrowed for the call that they are given to, copied if they are kept.
    pub data: *const c_char,
    /// How many bytes, without any NUL at the end; or P2P_NUL_TERMINATED.
    pub len: usize,
}

/// `None` if empty.
///
/// # Safety
/// `data` is NULL or points to `len` bytes, or to a NUL-terminated text, that do not change during `'a`.
pub(super) unsafe fn read<'a>(text: &p2p_str, parameter: &str) -> Result<Option<&'a str>, Failure> {
    if text.data.is_null() {
        return match text.len {
            0 => Ok(None),
            _ => Err(Failure::invalid(format!(
                "{parameter}.data is NULL, expected text (or len 0 for the default)"
            ))),
        };
    }
    let bytes = if text.len == NUL_TERMINATED {
        // SAFETY: not NULL; the caller said that it ends in a NUL.
        unsafe { std::ffi::CStr::from_ptr(text.data) }.to_bytes()
    } else if isize::try_from(text.len).is_err() {
        return Err(Failure::invalid(format!("{parameter}.len is {}, more than memory", text.len)));
    } else {
        // SAFETY: not NULL, not too long; the caller promised `len` bytes.
        unsafe { std::slice::from_raw_parts(text.data.cast::<u8>(), text.len) }
    };
    if let Some(at) = bytes.iter().position(|&byte| byte == 0) {
        return Err(Failure::invalid(format!("{parameter} has a NUL at byte {at} of {}", bytes.len())));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Failure::invalid(format!("{parameter} is not UTF-8: {error}")))?;
    Ok((!text.is_empty()).then_some(text))
}

/// Copies `text` and a NUL to the caller's buffer, cut at a character if it does not fit. `len_out` gets the whole
/// length without NUL.
pub(super) fn copy_out(
    caller: &Caller,
    text: &str,
    buf: *mut c_char,
    cap: usize,
    len_out: *mut usize,
) -> Answer {
    let buf = caller.out_array(buf, cap, "buf")?;
    let len_out = caller.out(len_out, "len_out")?;
    let fitting = text.floor_char_boundary(buf.len().saturating_sub(1));
    let status = if fitting == text.len() && buf.len() > 0 { p2p_status::OK } else { p2p_status::TRUNCATED };
    let bytes = text.bytes().take(fitting).chain([0]);
    buf.set(bytes.map(|byte| byte as c_char));
    len_out.set(text.len());
    Ok(status)
}

/// `text` in a field of fixed size: cut at a character if it does not fit, always NUL-terminated.
pub(super) fn field<const N: usize>(text: &str) -> [c_char; N] {
    let fitting = text.floor_char_boundary(N.saturating_sub(1));
    let mut field = [0; N];
    for (to, byte) in field.iter_mut().zip(text.bytes().take(fitting)) {
        *to = byte as c_char;
    }
    field
}

#[cfg(test)]
mod tests {
    use std::ptr::{null, null_mut};

    use super::*;

    fn read_text(data: *const c_char, len: usize) -> Result<Option<String>, String> {
        // SAFETY: the tests pass NULL or live C strings.
        let text = unsafe { read(&p2p_str { data, len }, "host") };
        text.map(|text| text.map(str::to_owned)).map_err(|failure| failure.message)
    }

    #[test]
    fn text_may_be_counted_or_nul_terminated_or_absent() {
        assert_eq!(read_text(null(), 0), Ok(None));
        assert_eq!(read_text(c"".as_ptr(), NUL_TERMINATED), Ok(None));
        assert_eq!(read_text(c"abc".as_ptr(), 2), Ok(Some("ab".to_owned())));
        assert_eq!(read_text(c"abc".as_ptr(), NUL_TERMINATED), Ok(Some("abc".to_owned())));
    }

    #[test]
    fn text_that_is_none_is_refused_by_name() {
        assert!(read_text(null(), 1).unwrap_err().contains("host.data is NULL"));
        assert!(read_text(null(), NUL_TERMINATED).unwrap_err().contains("host.data is NULL"));
        assert!(read_text(c"ab".as_ptr(), 3).unwrap_err().contains("NUL at byte 2"));
        assert!(read_text(c"\xff".as_ptr(), 1).unwrap_err().contains("host is not UTF-8"));
        assert!(read_text(c"a".as_ptr(), usize::MAX - 1).unwrap_err().contains("more than memory"));
    }

    #[test]
    fn copied_text_is_cut_at_a_character_and_always_terminated() {
        // SAFETY: pointers to live locals.
        let caller = unsafe { Caller::trust() };
        for (cap, expected, status) in
            [(5, "häh", p2p_status::OK), (4, "hä", p2p_status::TRUNCATED), (3, "h", p2p_status::TRUNCATED)]
        {
            let (mut buf, mut len) = ([1 as c_char; 8], 0);
            assert_eq!(copy_out(&caller, "häh", buf.as_mut_ptr(), cap, &mut len).unwrap(), status);
            assert_eq!(len, 4);
            let text: Vec<u8> = buf.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
            assert_eq!(text, expected.as_bytes());
        }
        let mut len = 0;
        assert_eq!(copy_out(&caller, "abc", null_mut(), 0, &mut len).unwrap(), p2p_status::TRUNCATED);
        assert_eq!(len, 3);
        assert!(copy_out(&caller, "abc", null_mut(), 4, &mut len).is_err());
        assert!(copy_out(&caller, "abc", null_mut(), 0, null_mut()).is_err());
    }

    #[test]
    fn a_field_keeps_room_for_its_nul() {
        assert_eq!(field::<4>("abcd"), [b'a', b'b', b'c', 0].map(|b| b as c_char));
        assert_eq!(field::<4>("aää"), [b'a', 0xc3, 0xa4, 0].map(|b| b as c_char));
    }
}
