//! What is moved, and which way.

use std::fmt;

use crate::memory::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Tcp {
        streams: usize,
    },
    /// The producer's region has a file, which the consumer maps.
    Mapped,
    /// The consumer reads by `process_vm_readv`.
    VmRead,
    /// The producer writes through NIXL.
    Nixl,
}

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub block_len: usize,
    pub blocks: usize,
    pub way: Way,
}

impl Way {
    pub const ALL: [Way; 5] =
        [Way::Mapped, Way::VmRead, Way::Tcp { streams: 1 }, Way::Tcp { streams: 2 }, Way::Nixl];

    /// As arguments choose it.
    pub fn name(self) -> &'static str {
        match self {
            Way::Tcp { .. } => "tcp",
            Way::Mapped => "mapped",
            Way::VmRead => "vm-read",
            Way::Nixl => "nixl",
        }
    }

    pub fn memory(self) -> Kind {
        match self {
            Way::Mapped => Kind::Shared,
            Way::Tcp { .. } | Way::VmRead | Way::Nixl => Kind::Private,
        }
    }

    pub fn streams(self) -> usize {
        match self {
            Way::Tcp { streams } => streams,
            Way::Mapped | Way::VmRead | Way::Nixl => 1,
        }
    }

    pub fn is_same_host(self) -> bool {
        matches!(self, Way::Mapped | Way::VmRead)
    }

    /// What a tier says of a peer that it serves this way.
    pub fn is_described_by(self, transport: &str, detail: &str) -> bool {
        match self {
            Way::Tcp { .. } => transport == "tcp",
            Way::Mapped => transport == "same_host" && detail.contains("mapped memory"),
            Way::VmRead => transport == "same_host" && detail.contains("process_vm_readv"),
            Way::Nixl => transport == "nixl",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Tcp { streams } => write!(f, "tcp-{streams}"),
            Way::Mapped | Way::VmRead | Way::Nixl => f.write_str(self.name()),
        }
    }
}

impl Shape {
    /// The other process is told so in its arguments.
    pub fn arguments(&self) -> [String; 3] {
        [self.block_len.to_string(), self.blocks.to_string(), self.way.to_string()]
    }

    pub fn from_arguments(block_len: &str, blocks: &str, way: &str) -> Shape {
        let way = Way::ALL.into_iter().find(|known| known.to_string() == way);
        Shape { block_len: block_len.parse().unwrap(), blocks: blocks.parse().unwrap(), way: way.unwrap() }
    }

    pub fn bytes(&self) -> usize {
        self.block_len * self.blocks
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) = match self.block_len {
            len if len >= 1 << 20 => ("MiB", len >> 20),
            len => ("KiB", len >> 10),
        };
        write!(f, "{size} {unit} x {}", self.blocks)
    }
}
