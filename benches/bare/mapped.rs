//! The ceiling between processes of one host: one thread copies scattered blocks out of a mapping of another process's
//! memory, with stores that go around the caches.

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::source::Source;
use super::{Bare, Plan};
use crate::memory::{Kind, Memory};
use crate::node::content;
use crate::shape::Shape;

pub struct Mapped {
    _source: Source,
    start: *mut u8,
    bytes: usize,
    target: Memory,
    /// Addresses of whole blocks, here.
    moves: Vec<(*const u8, *mut u8)>,
    block_len: usize,
}

impl Mapped {
    pub fn new(shape: Shape, plan: &Plan) -> Mapped {
        let (block_len, bytes) = (shape.block_len, shape.bytes());
        let source = Source::start(shape);
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let start = unsafe { mmap(null_mut(), bytes, ProtFlags::READ, flags, source.file(), 0) };
        let start: *mut u8 = start.unwrap().cast();
        let target = Memory::new(Kind::Shared, block_len, shape.blocks, content);
        let at = |base: *mut u8, block: usize| base.wrapping_add(block * block_len);
        let moves = plan.pairs().map(|(from, to)| (at(start, from).cast_const(), at(target.start(), to)));
        Mapped { moves: moves.collect(), _source: source, start, bytes, target, block_len }
    }
}

impl Bare for Mapped {
    fn run(&mut self) -> Duration {
        let begin = Instant::now();
        for (from, to) in &self.moves {
            // SAFETY: whole blocks inside the mapping and inside the target, which are apart; lines start at lines.
            unsafe { stream(*to, *from, self.block_len) };
        }
        begin.elapsed()
    }

    fn target(&mut self) -> &mut Memory {
        &mut self.target
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped.
        unsafe { munmap(self.start.cast(), self.bytes) }.unwrap();
    }
}

/// The widest stores that the machine has.
///
/// # Safety
/// `len` bytes, a multiple of 256, readable at `from` and writable at `to`, which are apart and aligned to 64.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: as for this function.
    unsafe {
        if is_x86_feature_detected!("avx512f") {
            x86::stream_512(to, from, len);
        } else if is_x86_feature_detected!("avx") {
            x86::stream_256(to, from, len);
        } else {
            std::ptr::copy_nonoverlapping(from, to, len);
        }
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: as for this function on x86-64.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, _mm256_load_si256, _mm256_stream_si256, _mm512_load_si512, _mm512_stream_si512,
    };

    const STEP: usize = 256;

    #[target_feature(enable = "avx512f")]
    pub unsafe fn stream_512(to: *mut u8, from: *const u8, len: usize) {
        for offset in (0..len).step_by(STEP) {
            // SAFETY: four lines inside both.
            unsafe {
                let (to, from) = (to.add(offset), from.add(offset));
                let lines = [0, 64, 128, 192].map(|line| _mm512_load_si512(from.add(line).cast()));
                for (line, bytes) in lines.into_iter().enumerate() {
                    _mm512_stream_si512(to.add(64 * line).cast(), bytes);
                }
            }
        }
    }

    #[target_feature(enable = "avx")]
    pub unsafe fn stream_256(to: *mut u8, from: *const u8, len: usize) {
        for offset in (0..len).step_by(STEP) {
            // SAFETY: four lines inside both.
            unsafe {
                let (to, from) = (to.add(offset), from.add(offset));
                for half in (0..STEP).step_by(32) {
                    let bytes: __m256i = _mm256_load_si256(from.add(half).cast());
                    _mm256_stream_si256(to.add(half).cast(), bytes);
                }
            }
        }
    }
}
