//! The ceiling for reading another process's ordinary memory: one thread, `process_vm_readv`, 1024 blocks a call.

use std::io;
use std::time::{Duration, Instant};

use super::source::Source;
use super::{Bare, Plan};
use crate::memory::{Kind, Memory};
use crate::node::content;
use crate::shape::Shape;

/// The kernel's own limit.
const VECTORS_PER_CALL: usize = 1024;

pub struct VmRead {
    source: Source,
    target: Memory,
    theirs: Vec<libc::iovec>,
    ours: Vec<libc::iovec>,
    block_len: usize,
}

impl VmRead {
    pub fn new(shape: Shape, plan: &Plan) -> VmRead {
        let block_len = shape.block_len;
        let source = Source::start(shape);
        let target = Memory::new(Kind::Private, block_len, shape.blocks, content);
        let vectors = |base: usize, blocks: &[usize]| -> Vec<libc::iovec> {
            let address = |block: &usize| std::ptr::with_exposed_provenance_mut(base + block * block_len);
            blocks.iter().map(|block| libc::iovec { iov_base: address(block), iov_len: block_len }).collect()
        };
        let theirs = vectors(source.address, &plan.from);
        let ours = vectors(target.start().expose_provenance(), &plan.to);
        VmRead { source, target, theirs, ours, block_len }
    }
}

impl Bare for VmRead {
    fn run(&mut self) -> Duration {
        let pid = self.source.pid() as libc::pid_t;
        let begin = Instant::now();
        for (ours, theirs) in self.ours.chunks(VECTORS_PER_CALL).zip(self.theirs.chunks(VECTORS_PER_CALL)) {
            let count = ours.len() as libc::c_ulong;
            // SAFETY: our vectors lie in the target; theirs are the kernel's to check.
            let read =
                unsafe { libc::process_vm_readv(pid, ours.as_ptr(), count, theirs.as_ptr(), count, 0) };
            let expected = ours.len() * self.block_len;
            assert_eq!(
                usize::try_from(read),
                Ok(expected),
                "process_vm_readv: {}",
                io::Error::last_os_error()
            );
        }
        begin.elapsed()
    }

    fn target(&mut self) -> &mut Memory {
        &mut self.target
    }
}
