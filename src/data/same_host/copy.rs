//! Copying with stores that go around the caches.
//!
//! A block that was pulled is next read by somebody else (a GPU, another core); storing it through the caches would first
//! read the lines that are about to be overwritten, and push out what the host works with. Measured on this project's
//! machines: about half again as fast as `memcpy` from 64 KiB on.

/// Below this a plain copy is as fast, and its bytes stay at hand.
const LEAST: usize = 4096;

/// # Safety
/// `from` must be readable and `to` writable for `len` bytes, and the two must not overlap. Other threads or processes may
/// write `from` meanwhile only if the caller throws the copy away then.
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= LEAST {
        // SAFETY: as for this function.
        return unsafe { x86::copy(to, from, len) };
    }
    // SAFETY: as for this function.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}

/// Makes what [`copy`] stored visible to others before anything that is stored later.
pub(super) fn finish() {
    #[cfg(target_arch = "x86_64")]
    x86::finish();
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128, _mm256_loadu_si256,
        _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
    };

    const LINE: usize = 64;

    /// # Safety
    /// As [`super::copy`], and `len` is at least a cache line.
    pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
        let head = to.align_offset(LINE).min(len);
        let lines = (len - head) / LINE;
        let tail = head + lines * LINE;
        // SAFETY: head, lines and tail are the parts of `len` bytes; the lines of `to` are aligned.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, head);
            let (to_lines, from_lines) = (to.add(head), from.add(head));
            if is_x86_feature_detected!("avx512f") {
                lines_512(to_lines, from_lines, lines);
            } else if is_x86_feature_detected!("avx2") {
                lines_256(to_lines, from_lines, lines);
            } else {
                lines_128(to_lines, from_lines, lines);
            }
            std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
        }
    }

    pub fn finish() {
        // SAFETY: an instruction of every x86-64.
        unsafe { _mm_sfence() };
    }

    #[target_feature(enable = "avx512f")]
    unsafe fn lines_512(to: *mut u8, from: *const u8, lines: usize) {
        let mut line = 0;
        // Loads and stores in runs of four.
        while line + 4 <= lines {
            // SAFETY: inside both; `to` is aligned to lines.
            unsafe {
                let (to, from) = (to.add(line * LINE), from.add(line * LINE));
                let first: __m512i = _mm512_loadu_si512(from.cast());
                let second: __m512i = _mm512_loadu_si512(from.add(LINE).cast());
                let third: __m512i = _mm512_loadu_si512(from.add(2 * LINE).cast());
                let fourth: __m512i = _mm512_loadu_si512(from.add(3 * LINE).cast());
                _mm512_stream_si512(to.cast(), first);
                _mm512_stream_si512(to.add(LINE).cast(), second);
                _mm512_stream_si512(to.add(2 * LINE).cast(), third);
                _mm512_stream_si512(to.add(3 * LINE).cast(), fourth);
            }
            line += 4;
        }
        while line < lines {
            // SAFETY: inside both; `to` is aligned to lines.
            unsafe {
                let bytes: __m512i = _mm512_loadu_si512(from.add(line * LINE).cast());
                _mm512_stream_si512(to.add(line * LINE).cast(), bytes);
            }
            line += 1;
        }
    }

    #[target_feature(enable = "avx2")]
    unsafe fn lines_256(to: *mut u8, from: *const u8, lines: usize) {
        for line in 0..lines {
            // SAFETY: inside both; `to` is aligned to lines.
            unsafe {
                let (to, from) = (to.add(line * LINE), from.add(line * LINE));
                let low: __m256i = _mm256_loadu_si256(from.cast());
                let high: __m256i = _mm256_loadu_si256(from.add(LINE / 2).cast());
                _mm256_stream_si256(to.cast(), low);
                _mm256_stream_si256(to.add(LINE / 2).cast(), high);
            }
        }
    }

    unsafe fn lines_128(to: *mut u8, from: *const u8, lines: usize) {
        for quarter in 0..lines * 4 {
            // SAFETY: inside both; `to` is aligned to lines.
            unsafe {
                let bytes: __m128i = _mm_loadu_si128(from.add(quarter * 16).cast());
                _mm_stream_si128(to.add(quarter * 16).cast(), bytes);
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn every_width_copies_every_line() {
            let from: Vec<u8> = (0..64 * 40).map(|byte| (byte * 7 % 251) as u8).collect();
            type Lines = unsafe fn(*mut u8, *const u8, usize);
            let mut ways: Vec<Lines> = vec![lines_128];
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has it.
                ways.push(|to, from, lines| unsafe { lines_256(to, from, lines) });
            }
            if is_x86_feature_detected!("avx512f") {
                // SAFETY: the processor has it.
                ways.push(|to, from, lines| unsafe { lines_512(to, from, lines) });
            }
            for way in ways {
                let mut room = vec![0_u8; from.len() + LINE];
                let skip = room.as_ptr().align_offset(LINE);
                // SAFETY: `room` has a line more than is copied.
                unsafe { way(room.as_mut_ptr().add(skip), from.as_ptr(), 40) };
                finish();
                assert!(room[skip..skip + from.len()] == from[..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_length_from_and_to_any_address() {
        let source: Vec<u8> =
            (0..20_000_u32).map(|byte| (byte.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for (to_skip, from_skip) in [(0, 0), (1, 0), (0, 1), (63, 5), (17, 64)] {
            for len in [0, 1, 63, 64, 4095, 4096, 4097, 5000, 16384, 19_000] {
                let mut target = vec![0xEE_u8; 20_200];
                // SAFETY: both have room for it.
                unsafe { copy(target.as_mut_ptr().add(to_skip), source.as_ptr().add(from_skip), len) };
                finish();
                assert!(target[to_skip..to_skip + len] == source[from_skip..from_skip + len]);
                assert!(target[..to_skip].iter().chain(&target[to_skip + len..]).all(|byte| *byte == 0xEE));
            }
        }
    }
}
