//! The limit for everything: one thread copies scattered blocks inside one process, by `memcpy`.

use std::time::{Duration, Instant};

use super::{Bare, Plan};
use crate::memory::{Kind, Memory};
use crate::node::content;
use crate::shape::Shape;

pub struct Memcpy {
    _source: Memory,
    target: Memory,
    moves: Vec<(*const u8, *mut u8)>,
    block_len: usize,
}

impl Memcpy {
    pub fn new(shape: Shape, plan: &Plan) -> Memcpy {
        let memory = || Memory::new(Kind::Private, shape.block_len, shape.blocks, content);
        let (source, target) = (memory(), memory());
        let at = |memory: &Memory, block: usize| memory.start().wrapping_add(block * shape.block_len);
        let moves =
            plan.pairs().map(|(from, to)| (at(&source, from).cast_const(), at(&target, to))).collect();
        Memcpy { moves, _source: source, target, block_len: shape.block_len }
    }
}

impl Bare for Memcpy {
    fn run(&mut self) -> Duration {
        let begin = Instant::now();
        for (from, to) in &self.moves {
            // SAFETY: whole blocks inside of two regions, which are apart.
            unsafe { std::ptr::copy_nonoverlapping(*from, *to, self.block_len) };
        }
        begin.elapsed()
    }

    fn target(&mut self) -> &mut Memory {
        &mut self.target
    }
}
