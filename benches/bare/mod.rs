//! Bare programs: what the machine allows. Block lists known beforehand, one peer, no frames, no failures, no fence.

pub mod mapped;
pub mod memcpy;
pub mod nixl;
pub mod source;
pub mod tcp;
pub mod vm_read;

use std::time::Duration;

use crate::memory::Memory;
use crate::node::content;
use crate::race::Opponent;
use crate::shape::{Shape, Way};

pub trait Bare {
    /// Moves all blocks; how long that took.
    fn run(&mut self) -> Duration;

    /// Where they are moved to.
    fn target(&mut self) -> &mut Memory;
}

/// From which block to which, all of them, scattered on both sides.
pub struct Plan {
    from: Vec<usize>,
    to: Vec<usize>,
}

impl Plan {
    pub fn of(blocks: usize) -> Plan {
        Plan { from: shuffled(blocks, 0x9E37_79B9), to: shuffled(blocks, 0x85EB_CA6B) }
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        self.from.iter().copied().zip(self.to.iter().copied())
    }
}

fn shuffled(blocks: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..blocks).collect();
    let mut state = seed;
    for last in (1..order.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(last, (state >> 33) as usize % (last + 1));
    }
    order
}

/// A bare program whose target is in this process, and what it is to move.
pub struct Ceiling {
    shape: Shape,
    plan: Plan,
    program: Box<dyn Bare>,
}

impl Ceiling {
    /// The limit for a way of the shape. NIXL's is a process of its own.
    pub fn new(shape: Shape) -> Ceiling {
        let plan = Plan::of(shape.blocks);
        let program: Box<dyn Bare> = match shape.way {
            Way::Tcp { streams } => Box::new(tcp::Streams::new(shape, &plan, streams)),
            Way::Mapped => Box::new(mapped::Mapped::new(shape, &plan)),
            Way::VmRead => Box::new(vm_read::VmRead::new(shape, &plan)),
            Way::Nixl => panic!("see `nixl::Pair`"),
        };
        Ceiling { shape, plan, program }
    }

    /// The limit for all ways.
    pub fn memcpy(shape: Shape) -> Ceiling {
        let plan = Plan::of(shape.blocks);
        let program = Box::new(memcpy::Memcpy::new(shape, &plan));
        Ceiling { shape, plan, program }
    }
}

impl Opponent for Ceiling {
    /// The target's pages are there, and hold nothing of the source.
    fn prepare(&mut self) {
        self.program.target().words_mut().fill(1);
    }

    fn run(&mut self) -> Result<Duration, String> {
        Ok(self.program.run())
    }

    fn check(&mut self) {
        let words_per_block = self.shape.block_len / size_of::<u64>();
        let words = self.program.target().words();
        for (from, to) in self.plan.pairs() {
            let block = &words[to * words_per_block..][..words_per_block];
            assert!(block.iter().all(|word| *word == content(from)), "the bare program moved wrong bytes");
        }
    }
}
