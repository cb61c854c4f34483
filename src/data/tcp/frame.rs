//! The bytes on a data connection. Pure: encoding and decoding only. All integers are little-endian.
//!
//! ```text
//! writer → receiver   hello    magic[8] version:u32 block_len:u64 stream:u16 streams:u16 token_len:u16 reserved:u16
//!                              token[token_len]
//!      on a Unix socket also   handover magic[4] process:u32 base_addr:u64 file_offset:u64 num_blocks:u32 thread:u32
//! receiver → writer   answer   magic[4] code:u32 value:u64                     code 0 = accepted, value: see `Reach`
//! writer → receiver   frame    magic[4] flags:u32 transfer:u64 load:u64 blocks:u32 reserved:u32 bytes:u64
//!                              destination:u32 × blocks, then bytes = blocks × block_len, tail[4];
//!                              where the receiver pulls, instead of bytes and tail: source:u32 × blocks
//! receiver → writer   ack      magic[4] code:u32 transfer:u64 value:u64        code 0 = landed
//! ```
//!
//! Acks come in the order of the frames, one for each. The tail says whether the bytes before it are those of the blocks: a
//! frame whose transfer was given up on the way is filled up with others.

use std::fmt;

use thiserror::Error;

use crate::protocol::config::Reach;
use crate::protocol::ids::{BlockIndex, BlockPair, LoadToken, TransferId};

/// 2: frames end in a tail; blocks may be pulled.
pub(super) const VERSION: u32 = 2;
/// Longest access token on the wire.
pub(super) const MAX_TOKEN_LEN: usize = 256;
/// Most blocks in one frame: bounds the table of destinations that a connection must hold.
pub(super) const MAX_FRAME_BLOCKS: usize = 8192;

const HELLO_MAGIC: [u8; 8] = *b"p2pkvtcp";
const HANDOVER_MAGIC: [u8; 4] = *b"kvHO";
const ANSWER_MAGIC: [u8; 4] = *b"kvAN";
const FRAME_MAGIC: [u8; 4] = *b"kvFR";
const ACK_MAGIC: [u8; 4] = *b"kvAC";
const FLAG_HAS_LOAD: u32 = 1;
/// The receiver pulls the blocks from where the second table says.
const FLAG_PULL: u32 = 2;
const INDEX_LEN: usize = 4;

/// What ends a frame that brings bytes.
pub(super) type Tail = [u8; 4];
pub(super) const TAIL_WHOLE: Tail = *b"kvOK";
pub(super) const TAIL_WITHDRAWN: Tail = *b"kvNO";

/// Bytes that are not what the protocol says.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum WireError {
    #[error("expected the {0} of a p2pkv data connection, got other bytes")]
    Foreign(&'static str),
    #[error("{what} is {got}, allowed are {least} to {most}")]
    OutOfRange { what: &'static str, got: u64, least: u64, most: u64 },
    #[error("the frame has {got} bytes for {blocks} blocks of {block_len}")]
    Size { got: u64, blocks: u32, block_len: u64 },
    #[error("the {0} is cut off")]
    Short(&'static str),
}

/// Takes integers off the front of some bytes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

/// The first thing a writer says, without the token that follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub version: u32,
    pub block_len: u64,
    pub stream: u16,
    pub streams: u16,
    pub token_len: usize,
}

impl Hello {
    pub const LEN: usize = 28;

    /// The whole hello. A token over [`MAX_TOKEN_LEN`] cannot be right and is cut, so that it is refused.
    pub fn encode(block_len: u64, stream: u16, streams: u16, token: &[u8]) -> Vec<u8> {
        let token = token.get(..MAX_TOKEN_LEN).unwrap_or(token);
        let token_len = u16::try_from(token.len()).unwrap_or(u16::MAX);
        let mut bytes = Vec::with_capacity(Self::LEN + token.len());
        bytes.extend_from_slice(&HELLO_MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&block_len.to_le_bytes());
        bytes.extend_from_slice(&stream.to_le_bytes());
        bytes.extend_from_slice(&streams.to_le_bytes());
        bytes.extend_from_slice(&token_len.to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(token);
        bytes
    }

    /// Whether bytes that are not complete yet can still become a hello.
    pub fn may_begin_with(bytes: &[u8]) -> bool {
        let known = bytes.len().min(HELLO_MAGIC.len());
        bytes.get(..known) == HELLO_MAGIC.get(..known)
    }

    pub fn decode(bytes: &[u8]) -> Result<Hello, WireError> {
        let short = WireError::Short("hello");
        let mut fields = Fields(bytes);
        if fields.take() != Some(HELLO_MAGIC) {
            return Err(WireError::Foreign("hello"));
        }
        let (Some(version), Some(block_len), Some(stream), Some(streams), Some(token_len)) =
            (fields.u32(), fields.u64(), fields.u16(), fields.u16(), fields.u16())
        else {
            return Err(short);
        };
        let token_len = usize::from(token_len);
        if token_len > MAX_TOKEN_LEN {
            return Err(WireError::OutOfRange {
                what: "the token's length",
                got: token_len as u64,
                least: 0,
                most: MAX_TOKEN_LEN as u64,
            });
        }
        Ok(Hello { version, block_len, stream, streams, token_len })
    }
}

/// Why a receiver does not want a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelloRefusal {
    BlockLen {
        receiver: u64,
    },
    Token,
    TooManyStreams {
        limit: u64,
    },
    /// The receiver cannot read the writer's memory; its log says why.
    Unreachable,
    Version {
        receiver: u64,
    },
    Other {
        code: u32,
    },
}

impl HelloRefusal {
    fn to_wire(self) -> (u32, u64) {
        match self {
            HelloRefusal::Version { receiver } => (1, receiver),
            HelloRefusal::Token => (2, 0),
            HelloRefusal::BlockLen { receiver } => (3, receiver),
            HelloRefusal::TooManyStreams { limit } => (4, limit),
            HelloRefusal::Unreachable => (5, 0),
            HelloRefusal::Other { code } => (code, 0),
        }
    }

    fn from_wire(code: u32, value: u64) -> HelloRefusal {
        match code {
            1 => HelloRefusal::Version { receiver: value },
            2 => HelloRefusal::Token,
            3 => HelloRefusal::BlockLen { receiver: value },
            4 => HelloRefusal::TooManyStreams { limit: value },
            5 => HelloRefusal::Unreachable,
            code => HelloRefusal::Other { code },
        }
    }
}

impl fmt::Display for HelloRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HelloRefusal::BlockLen { receiver } => write!(f, "the receiver's block_len is {receiver}"),
            HelloRefusal::Token => f.write_str("the receiver does not know the access token"),
            HelloRefusal::TooManyStreams { limit } => {
                write!(f, "the receiver takes at most {limit} streams of one session")
            }
            HelloRefusal::Unreachable => {
                f.write_str("the receiver cannot read this process's memory (its log says why)")
            }
            HelloRefusal::Version { receiver } => {
                write!(f, "the receiver speaks version {receiver} of the data protocol, this side {VERSION}")
            }
            HelloRefusal::Other { code } => write!(f, "the receiver gave code {code}"),
        }
    }
}

/// What follows the hello on a Unix socket: where the writer's region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HandoverHead {
    /// The writer's process and one of its threads, as it calls them itself.
    pub process: u32,
    pub thread: u32,
    pub base_addr: u64,
    pub file_offset: u64,
    pub num_blocks: u32,
}

impl HandoverHead {
    pub const LEN: usize = 32;

    pub fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let HandoverHead { process, thread, base_addr, file_offset, num_blocks } = self;
        write_fields(
            &mut bytes,
            &[
                &HANDOVER_MAGIC,
                &process.to_le_bytes(),
                &base_addr.to_le_bytes(),
                &file_offset.to_le_bytes(),
                &num_blocks.to_le_bytes(),
                &thread.to_le_bytes(),
            ],
        );
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<HandoverHead, WireError> {
        let mut fields = Fields(bytes);
        if fields.take() != Some(HANDOVER_MAGIC) {
            return Err(WireError::Foreign("handover"));
        }
        match (fields.u32(), fields.u64(), fields.u64(), fields.u32(), fields.u32()) {
            (Some(process), Some(base_addr), Some(file_offset), Some(num_blocks), Some(thread)) => {
                Ok(HandoverHead { process, thread, base_addr, file_offset, num_blocks })
            }
            _ => Err(WireError::Short("handover")),
        }
    }
}

/// The receiver's word on a hello: how it gets at the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer(pub Result<Reach, HelloRefusal>);

impl Answer {
    pub const LEN: usize = 16;

    pub fn encode(self) -> [u8; Self::LEN] {
        let (code, value) = match self.0 {
            Ok(Reach::Stream) => (0, 0),
            Ok(Reach::Mapped) => (0, 1),
            Ok(Reach::VmRead) => (0, 2),
            Err(refusal) => refusal.to_wire(),
        };
        let mut bytes = [0; Self::LEN];
        write_fields(&mut bytes, &[&ANSWER_MAGIC, &code.to_le_bytes(), &value.to_le_bytes()]);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Answer, WireError> {
        let mut fields = Fields(bytes);
        if fields.take() != Some(ANSWER_MAGIC) {
            return Err(WireError::Foreign("answer"));
        }
        match (fields.u32(), fields.u64()) {
            (Some(0), Some(0)) => Ok(Answer(Ok(Reach::Stream))),
            (Some(0), Some(1)) => Ok(Answer(Ok(Reach::Mapped))),
            (Some(0), Some(2)) => Ok(Answer(Ok(Reach::VmRead))),
            (Some(0), Some(got)) => {
                Err(WireError::OutOfRange { what: "how the receiver reads", got, least: 0, most: 2 })
            }
            (Some(code), Some(value)) => Ok(Answer(Err(HelloRefusal::from_wire(code, value)))),
            _ => Err(WireError::Short("answer")),
        }
    }
}

/// What precedes the destinations and the bytes of some blocks of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub transfer: TransferId,
    pub load: Option<LoadToken>,
    /// 1 to [`MAX_FRAME_BLOCKS`].
    pub blocks: u32,
    pub pull: bool,
}

impl FrameHeader {
    pub const LEN: usize = 40;

    /// Header and tables, in place of what `head` held.
    pub fn encode(
        transfer: TransferId,
        load: Option<LoadToken>,
        blocks: &[BlockPair],
        (block_len, pull): (usize, bool),
        head: &mut Vec<u8>,
    ) {
        let count = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        let flags = if load.is_some() { FLAG_HAS_LOAD } else { 0 } | if pull { FLAG_PULL } else { 0 };
        head.clear();
        head.reserve(Self::LEN + blocks.len() * 2 * INDEX_LEN);
        head.extend_from_slice(&FRAME_MAGIC);
        head.extend_from_slice(&flags.to_le_bytes());
        head.extend_from_slice(&transfer.0.to_le_bytes());
        head.extend_from_slice(&load.map_or(0, |load| load.0).to_le_bytes());
        head.extend_from_slice(&count.to_le_bytes());
        head.extend_from_slice(&[0; 4]);
        head.extend_from_slice(&(u64::from(count) * block_len as u64).to_le_bytes());
        head.extend(blocks.iter().flat_map(|pair| pair.remote.0.to_le_bytes()));
        if pull {
            head.extend(blocks.iter().flat_map(|pair| pair.local.0.to_le_bytes()));
        }
    }

    /// Checks every field against what this side can take.
    pub fn decode(bytes: &[u8], block_len: usize) -> Result<FrameHeader, WireError> {
        let mut fields = Fields(bytes);
        if fields.take() != Some(FRAME_MAGIC) {
            return Err(WireError::Foreign("frame header"));
        }
        let (Some(flags), Some(transfer), Some(load), Some(blocks), Some(_reserved), Some(got)) =
            (fields.u32(), fields.u64(), fields.u64(), fields.u32(), fields.u32(), fields.u64())
        else {
            return Err(WireError::Short("frame header"));
        };
        if blocks == 0 || blocks as usize > MAX_FRAME_BLOCKS {
            return Err(WireError::OutOfRange {
                what: "the number of blocks in a frame",
                got: u64::from(blocks),
                least: 1,
                most: MAX_FRAME_BLOCKS as u64,
            });
        }
        let block_len = block_len as u64;
        if u64::from(blocks).checked_mul(block_len) != Some(got) {
            return Err(WireError::Size { got, blocks, block_len });
        }
        let load = (flags & FLAG_HAS_LOAD != 0).then_some(LoadToken(load));
        Ok(FrameHeader { transfer: TransferId(transfer), load, blocks, pull: flags & FLAG_PULL != 0 })
    }

    /// Bytes of a frame that brings one block.
    pub fn shortest(block_len: usize) -> u64 {
        (Self::LEN + INDEX_LEN + block_len + size_of::<Tail>()) as u64
    }

    /// Of all tables.
    pub fn table_len(&self) -> usize {
        self.blocks as usize * INDEX_LEN * if self.pull { 2 } else { 1 }
    }

    pub fn payload_len(&self, block_len: usize) -> u64 {
        u64::from(self.blocks) * block_len as u64
    }

    /// Everything behind the tables.
    pub fn body_len(&self, block_len: usize) -> u64 {
        if self.pull { 0 } else { self.payload_len(block_len) + size_of::<Tail>() as u64 }
    }

    /// The receiver's blocks, from the given position on.
    pub fn destinations<'t>(
        &self,
        tables: &'t [u8],
        from: usize,
    ) -> impl Iterator<Item = BlockIndex> + Clone + use<'t> {
        indexes(tables.get(..self.blocks as usize * INDEX_LEN).unwrap_or_default(), from)
    }

    /// The writer's blocks, from the given position on; none unless the receiver pulls.
    pub fn sources<'t>(
        &self,
        tables: &'t [u8],
        from: usize,
    ) -> impl Iterator<Item = BlockIndex> + Clone + use<'t> {
        indexes(tables.get(self.blocks as usize * INDEX_LEN..).unwrap_or_default(), from)
    }
}

fn indexes(table: &[u8], from: usize) -> impl Iterator<Item = BlockIndex> + Clone {
    let rest = table.get(from * INDEX_LEN..).unwrap_or_default();
    rest.as_chunks::<INDEX_LEN>().0.iter().map(|index| BlockIndex(u32::from_le_bytes(*index)))
}

/// Why a receiver threw a frame's bytes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameRefusal {
    /// Not named by the load, or taken by an earlier frame.
    BlockClosed {
        block: BlockIndex,
    },
    /// The fence closed while the frame came in.
    Disarmed,
    NamesNoLoad,
    OtherSession,
    UnknownLoad,
    /// The writer gave the transfer up in the middle of the frame.
    Withdrawn,
    Other {
        code: u32,
    },
}

impl FrameRefusal {
    /// One of both gave the load up; its own message about that may still be on the way.
    pub fn is_of_an_ended_load(self) -> bool {
        matches!(self, FrameRefusal::Disarmed | FrameRefusal::UnknownLoad | FrameRefusal::Withdrawn)
    }

    fn to_wire(self) -> (u32, u64) {
        match self {
            FrameRefusal::NamesNoLoad => (1, 0),
            FrameRefusal::UnknownLoad => (2, 0),
            FrameRefusal::OtherSession => (3, 0),
            FrameRefusal::BlockClosed { block } => (4, u64::from(block.0)),
            FrameRefusal::Disarmed => (5, 0),
            FrameRefusal::Withdrawn => (6, 0),
            FrameRefusal::Other { code } => (code, 0),
        }
    }

    fn from_wire(code: u32, value: u64) -> FrameRefusal {
        match (code, u32::try_from(value)) {
            (1, _) => FrameRefusal::NamesNoLoad,
            (2, _) => FrameRefusal::UnknownLoad,
            (3, _) => FrameRefusal::OtherSession,
            (4, Ok(block)) => FrameRefusal::BlockClosed { block: BlockIndex(block) },
            (5, _) => FrameRefusal::Disarmed,
            (6, _) => FrameRefusal::Withdrawn,
            (code, _) => FrameRefusal::Other { code },
        }
    }
}

impl fmt::Display for FrameRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameRefusal::BlockClosed { block } => {
                write!(f, "block {block} is not of this load, or something was written to it already")
            }
            FrameRefusal::Disarmed => f.write_str("the load ended while the blocks came in"),
            FrameRefusal::NamesNoLoad => f.write_str("the frame names no load"),
            FrameRefusal::OtherSession => f.write_str("the load belongs to another session"),
            FrameRefusal::UnknownLoad => f.write_str("the load has ended or never was"),
            FrameRefusal::Withdrawn => f.write_str("the writer gave the transfer up"),
            FrameRefusal::Other { code } => write!(f, "the receiver gave code {code}"),
        }
    }
}

/// The receiver's word on one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ack {
    pub transfer: TransferId,
    pub verdict: Result<(), FrameRefusal>,
}

impl Ack {
    pub const LEN: usize = 24;

    pub fn encode(self) -> [u8; Self::LEN] {
        let (code, value) = self.verdict.map_or_else(FrameRefusal::to_wire, |()| (0, 0));
        let transfer = self.transfer.0.to_le_bytes();
        let mut bytes = [0; Self::LEN];
        write_fields(&mut bytes, &[&ACK_MAGIC, &code.to_le_bytes(), &transfer, &value.to_le_bytes()]);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Ack, WireError> {
        let mut fields = Fields(bytes);
        if fields.take() != Some(ACK_MAGIC) {
            return Err(WireError::Foreign("acknowledgement"));
        }
        let (Some(code), Some(transfer), Some(value)) = (fields.u32(), fields.u64(), fields.u64()) else {
            return Err(WireError::Short("acknowledgement"));
        };
        let verdict = if code == 0 { Ok(()) } else { Err(FrameRefusal::from_wire(code, value)) };
        Ok(Ack { transfer: TransferId(transfer), verdict })
    }
}

fn write_fields(bytes: &mut [u8], fields: &[&[u8]]) {
    bytes.iter_mut().zip(fields.iter().copied().flatten()).for_each(|(to, from)| *to = *from);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(remote: u32) -> BlockPair {
        BlockPair { local: BlockIndex(remote / 2), remote: BlockIndex(remote) }
    }

    #[test]
    fn a_hello_comes_back_as_it_was() {
        let bytes = Hello::encode(4096, 1, 2, b"token");
        let hello = Hello::decode(&bytes[..Hello::LEN]).unwrap();
        assert_eq!(hello, Hello { version: VERSION, block_len: 4096, stream: 1, streams: 2, token_len: 5 });
        assert_eq!(&bytes[Hello::LEN..], b"token");
    }

    #[test]
    fn a_frame_comes_back_as_it_was() {
        for load in [None, Some(LoadToken(0)), Some(LoadToken(u64::MAX))] {
            let mut head = vec![1; 3];
            for pull in [false, true] {
                FrameHeader::encode(TransferId(9), load, &[pair(7), pair(u32::MAX)], (10, pull), &mut head);
                let header = FrameHeader::decode(&head[..FrameHeader::LEN], 10).unwrap();
                assert_eq!(header, FrameHeader { transfer: TransferId(9), load, blocks: 2, pull });
                assert_eq!((header.table_len(), header.payload_len(10)), (if pull { 16 } else { 8 }, 20));
                let tables = &head[FrameHeader::LEN..];
                assert_eq!(tables.len(), header.table_len());
                assert!(header.destinations(tables, 0).eq([BlockIndex(7), BlockIndex(u32::MAX)]));
                assert!(header.destinations(tables, 1).eq([BlockIndex(u32::MAX)]));
                assert!(header.destinations(tables, 2).eq([]));
                let sources = [BlockIndex(3), BlockIndex(u32::MAX / 2)];
                assert!(header.sources(tables, 0).eq(sources.into_iter().filter(|_| pull)));
            }
        }
    }

    #[test]
    fn a_handover_comes_back_as_it_was() {
        let head =
            HandoverHead { process: 8, thread: 9, base_addr: u64::MAX, file_offset: 4096, num_blocks: 7 };
        assert_eq!(HandoverHead::decode(&head.encode()), Ok(head));
        assert!(HandoverHead::decode(&head.encode()[..20]).is_err());
        assert!(HandoverHead::decode(b"GET / HTTP/1.1 and so on and on.").is_err());
    }

    #[test]
    fn every_refusal_comes_back_as_it_was() {
        let frame = [
            FrameRefusal::BlockClosed { block: BlockIndex(u32::MAX) },
            FrameRefusal::Disarmed,
            FrameRefusal::NamesNoLoad,
            FrameRefusal::OtherSession,
            FrameRefusal::UnknownLoad,
            FrameRefusal::Withdrawn,
            FrameRefusal::Other { code: 99 },
        ];
        for verdict in frame.into_iter().map(Err).chain([Ok(())]) {
            let ack = Ack { transfer: TransferId(5), verdict };
            assert_eq!(Ack::decode(&ack.encode()), Ok(ack));
        }
        let hello = [
            HelloRefusal::BlockLen { receiver: u64::MAX },
            HelloRefusal::Token,
            HelloRefusal::TooManyStreams { limit: 16 },
            HelloRefusal::Unreachable,
            HelloRefusal::Version { receiver: 3 },
            HelloRefusal::Other { code: 99 },
        ];
        let accepted = [Reach::Stream, Reach::Mapped, Reach::VmRead].map(Ok);
        for answer in hello.into_iter().map(Err).chain(accepted).map(Answer) {
            assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }
    }

    #[test]
    fn a_header_with_impossible_sizes_is_refused() {
        let mut head = Vec::new();
        FrameHeader::encode(TransferId(1), None, &[pair(0)], (10, false), &mut head);
        let with = |at: usize, field: &[u8]| {
            let mut bytes = head.clone();
            bytes[at..at + field.len()].copy_from_slice(field);
            FrameHeader::decode(&bytes[..FrameHeader::LEN], 10)
        };
        assert!(with(0, b"GET ").is_err());
        assert!(with(24, &0_u32.to_le_bytes()).is_err(), "no blocks");
        assert!(with(24, &u32::MAX.to_le_bytes()).is_err(), "too many blocks");
        assert!(with(32, &11_u64.to_le_bytes()).is_err(), "bytes that do not fit the blocks");
        assert!(FrameHeader::decode(&head[..20], 10).is_err(), "cut off");
        assert!(with(0, b"kvFR").is_ok());
    }

    #[test]
    fn foreign_bytes_are_known_from_the_first_one() {
        assert!(!Hello::may_begin_with(b"GET / HTTP/1.1"));
        assert!(!Hello::may_begin_with(&[0x16, 3, 1]));
        assert!(Hello::may_begin_with(b"p2p"));
        assert!(Hello::may_begin_with(b""));
    }
}
