//! The process whose memory the bare programs read: it fills its blocks and waits.

use std::fs::File;
use std::os::fd::AsRawFd;

use crate::child::Child;
use crate::memory::Memory;
use crate::node::content;
use crate::shape::Shape;

const ROLE: &str = "--source";

/// The shape, if the arguments are those of a source.
pub fn asked_for(arguments: &[String]) -> Option<Shape> {
    let [role, block_len, blocks, way] = arguments else { return None };
    (role == ROLE).then(|| Shape::from_arguments(block_len, blocks, way))
}

/// Until the standard input ends.
pub fn serve(shape: Shape) {
    let memory = Memory::new(shape.way.memory(), shape.block_len, shape.blocks, content);
    let file = memory.file().map_or(-1, |file| file.as_raw_fd());
    println!("{} {file}", memory.start() as usize);
    std::io::stdin().lines().for_each(drop);
}

pub struct Source {
    process: Child,
    /// Of its first block, there.
    pub address: usize,
    file: i32,
}

impl Source {
    pub fn start(shape: Shape) -> Source {
        let arguments: Vec<String> = std::iter::once(ROLE.to_owned()).chain(shape.arguments()).collect();
        let mut process = Child::of_this_program(&arguments);
        let answer = process.answer();
        let (address, file) = answer.split_once(' ').unwrap();
        Source { address: address.parse().unwrap(), file: file.parse().unwrap(), process }
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Of its memory.
    pub fn file(&self) -> File {
        File::open(format!("/proc/{}/fd/{}", self.pid(), self.file)).unwrap()
    }
}
