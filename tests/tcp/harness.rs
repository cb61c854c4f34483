//! Two transports with memory of their own, bounded waits, and a peer that speaks the wire by hand. The bytes are
//! written out here a second time on purpose: a change of the wire must show.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use p2pkv::data::same_host::{RegionFile, SharedMemory};
use p2pkv::data::tcp::{TcpConfig, TcpTransport};
use p2pkv::data::{DataEvent, DataTransport, PeerOffer, Region};
use p2pkv::protocol::config::Reach;
use p2pkv::protocol::ids::{BlockIndex, BlockPair, LoadToken, SessionId, TransferId};

pub const BOUND: Duration = Duration::from_secs(20);
pub const SESSION: SessionId = SessionId(1);
pub const TOKEN: &[u8] = b"a token of sixteen or more bytes";

/// One transport and its region.
pub struct Side {
    // Before the memory: dropped first.
    pub transport: TcpTransport,
    _memory: Box<dyn std::any::Any>,
    base: *mut u8,
    pub block_len: usize,
    pub num_blocks: u32,
    /// Loads that were said to be whole; what the other events are does not depend on it.
    pub landed: Vec<LoadToken>,
    seen: Vec<DataEvent>,
}

pub fn loopback() -> TcpConfig {
    TcpConfig { bind_ip: Ipv4Addr::LOCALHOST.into(), ..TcpConfig::default() }
}

impl Side {
    pub fn new(block_len: usize, num_blocks: u32) -> Side {
        Side::with(block_len, num_blocks, &loopback())
    }

    pub fn with(block_len: usize, num_blocks: u32, config: &TcpConfig) -> Side {
        let mut memory = vec![0; block_len * num_blocks as usize].into_boxed_slice();
        let base = memory.as_mut_ptr();
        Side::over(base, Box::new(memory), None, (block_len, num_blocks), config)
    }

    /// With a region that others can map.
    pub fn shared(block_len: usize, num_blocks: u32) -> Side {
        let bytes = block_len * num_blocks as usize;
        let memory = SharedMemory::new(bytes, false).unwrap();
        let base = memory.start() as u64;
        let (file, offset) = memory.holds(base, bytes as u64).unwrap();
        let file = RegionFile::of(file, offset, base, bytes as u64).unwrap();
        let start = memory.start().cast();
        let config = TcpConfig { streams: 1, ..loopback() };
        Side::over(start, Box::new(memory), Some(file), (block_len, num_blocks), &config)
    }

    fn over(
        base: *mut u8,
        memory: Box<dyn std::any::Any>,
        file: Option<RegionFile>,
        (block_len, num_blocks): (usize, u32),
        config: &TcpConfig,
    ) -> Side {
        // SAFETY: the memory lives in the same struct and is dropped after the transport.
        let region = unsafe { Region::new(base, num_blocks, block_len) }.unwrap();
        let transport = TcpTransport::with_file(region, config, file).unwrap();
        Side { transport, _memory: memory, base, block_len, num_blocks, landed: Vec::new(), seen: Vec::new() }
    }

    fn bytes(&self) -> usize {
        self.block_len * self.num_blocks as usize
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.transport.local_port()).into()
    }

    pub fn offer(&self, token: &[u8]) -> PeerOffer {
        offer_at(vec![self.address()], token)
    }

    /// Different bytes at every place, and for every `salt`.
    pub fn paint(&mut self, salt: u64) {
        for index in 0..self.bytes() {
            let mixed = (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(salt << 7);
            // SAFETY: inside the memory.
            unsafe { self.base.add(index).write_volatile((mixed >> 29) as u8) };
        }
    }

    pub fn fill(&mut self, byte: u8) {
        // SAFETY: the whole memory, which nobody writes at this time.
        unsafe { self.base.write_bytes(byte, self.bytes()) };
    }

    pub fn byte(&self, block: u32, offset: usize) -> u8 {
        // SAFETY: inside the memory; volatile, since a peer may be writing it.
        unsafe { self.base.add(block as usize * self.block_len + offset).read_volatile() }
    }

    /// A copy of a block's bytes as they are now.
    pub fn block(&self, block: u32) -> Vec<u8> {
        (0..self.block_len).map(|offset| self.byte(block, offset)).collect()
    }

    pub fn arm(&mut self, load: u64, blocks: &[u32]) {
        let blocks: Vec<BlockIndex> = blocks.iter().copied().map(BlockIndex).collect();
        self.transport.arm(SESSION, LoadToken(load), &blocks);
    }

    pub fn write(&mut self, transfer: u64, load: u64, pairs: &[(u32, u32)]) {
        let pairs: Vec<BlockPair> = pairs
            .iter()
            .map(|(local, remote)| BlockPair { local: BlockIndex(*local), remote: BlockIndex(*remote) })
            .collect();
        self.transport.write(SESSION, TransferId(transfer), Some(LoadToken(load)), &pairs);
    }

    /// Everything that happened so far; waits at most `wait` for the first of it.
    pub fn events_within(&mut self, wait: Duration) -> Vec<DataEvent> {
        if self.seen.is_empty() {
            poll_fd(self.transport.event_fd(), wait);
            self.transport.poll(&mut self.seen);
        }
        let landed = &mut self.landed;
        self.seen.retain(|event| match event {
            DataEvent::Landed { load } => {
                landed.push(*load);
                false
            }
            _ => true,
        });
        std::mem::take(&mut self.seen)
    }

    /// The next `count` events.
    pub fn next_events(&mut self, count: usize) -> Vec<DataEvent> {
        let deadline = Instant::now() + BOUND;
        let mut events = Vec::new();
        while events.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "expected {count} events, got {events:?}");
            events.extend(self.events_within(left));
        }
        self.seen = events.split_off(count);
        events
    }

    pub fn next_event(&mut self) -> DataEvent {
        self.next_events(1).remove(0)
    }

    /// The event of `transfer`, which must be the next.
    pub fn failure_of(&mut self, transfer: u64) -> (String, bool) {
        match self.next_event() {
            DataEvent::TransferFailed { transfer: id, reason, decisive } if id == TransferId(transfer) => {
                (reason, decisive)
            }
            DataEvent::TransferUnwanted { transfer: id, reason } if id == TransferId(transfer) => {
                (reason, false)
            }
            other => panic!("expected the failure of transfer {transfer}, got {other:?}"),
        }
    }

    /// Passes all earlier commands through the I/O threads: their common answer to this one, a peer without an address,
    /// comes after each has come to it.
    pub fn settle(&mut self) -> Vec<DataEvent> {
        let nobody = SessionId(u64::MAX);
        self.transport.register_peer(nobody, offer_at(Vec::new(), TOKEN));
        let mut events = Vec::new();
        loop {
            match self.next_event() {
                DataEvent::PeerRefused { session, .. } if session == nobody => return events,
                other => events.push(other),
            }
        }
    }
}

pub fn done(transfer: u64) -> DataEvent {
    DataEvent::TransferDone { transfer: TransferId(transfer) }
}

pub fn offer_at(addresses: Vec<SocketAddr>, token: &[u8]) -> PeerOffer {
    PeerOffer::Tcp { addresses, token: token.to_vec(), num_blocks: u64::MAX, same_host: false }
}

/// `writer` can write to `reader` when this returns.
pub fn connect(writer: &mut Side, reader: &mut Side) {
    reader.transport.expect_peer(SESSION, TOKEN);
    let offer = reader.offer(TOKEN);
    writer.transport.register_peer(SESSION, offer);
    assert_eq!(writer.next_event(), DataEvent::PeerRegistered { session: SESSION, reach: Reach::Stream });
}

/// As `connect`, between processes of one host; gives how the reader gets at the writer's blocks.
pub fn connect_on_this_host(writer: &mut Side, reader: &mut Side) -> Reach {
    reader.transport.expect_peer(SESSION, TOKEN);
    let offer = PeerOffer::Tcp {
        addresses: vec![reader.address()],
        token: TOKEN.to_vec(),
        num_blocks: u64::MAX,
        same_host: true,
    };
    writer.transport.register_peer(SESSION, offer);
    match writer.next_event() {
        DataEvent::PeerRegistered { session: SESSION, reach } => reach,
        other => panic!("expected that the peer is registered, got {other:?}"),
    }
}

pub fn connected(block_len: usize, num_blocks: u32) -> (Side, Side) {
    let (mut writer, mut reader) = (Side::new(block_len, num_blocks), Side::new(block_len, num_blocks));
    connect(&mut writer, &mut reader);
    (writer, reader)
}

pub fn poll_fd(fd: i32, wait: Duration) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&raw mut poll, 1, i32::try_from(wait.as_millis()).unwrap()) > 0 }
}

pub fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + BOUND;
    while !condition() {
        assert!(Instant::now() < deadline, "never came true: {what}");
        std::thread::yield_now();
    }
}

/// A shuffled `0..count`.
pub fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    let mut state = seed;
    for last in (1..order.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(last, (state >> 33) as usize % (last + 1));
    }
    order
}

/// A writer by hand.
pub struct RawWriter {
    pub stream: TcpStream,
}

pub fn hello(version: u32, block_len: u64, token: &[u8]) -> Vec<u8> {
    hello_of_stream(0, version, block_len, token)
}

fn hello_of_stream(stream: u16, version: u32, block_len: u64, token: &[u8]) -> Vec<u8> {
    let mut bytes = b"p2pkvtcp".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(block_len.to_le_bytes());
    bytes.extend(stream.to_le_bytes());
    bytes.extend(1_u16.to_le_bytes());
    bytes.extend(u16::try_from(token.len()).unwrap().to_le_bytes());
    bytes.extend([0; 2]);
    bytes.extend(token);
    bytes
}

pub fn frame(transfer: u64, load: Option<u64>, block_len: usize, destinations: &[u32]) -> Vec<u8> {
    let count = u32::try_from(destinations.len()).unwrap();
    let mut bytes = b"kvFR".to_vec();
    bytes.extend(u32::from(load.is_some()).to_le_bytes());
    bytes.extend(transfer.to_le_bytes());
    bytes.extend(load.unwrap_or(0).to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend((u64::from(count) * block_len as u64).to_le_bytes());
    bytes.extend(destinations.iter().flat_map(|index| index.to_le_bytes()));
    bytes
}

/// What follows the bytes of a frame's blocks.
pub const WHOLE: &[u8; 4] = b"kvOK";
pub const WITHDRAWN: &[u8; 4] = b"kvNO";

impl RawWriter {
    pub fn open(reader: &Side) -> RawWriter {
        let stream = TcpStream::connect(reader.address()).unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        stream.set_write_timeout(Some(BOUND)).unwrap();
        stream.set_nodelay(true).unwrap();
        RawWriter { stream }
    }

    /// Connected and accepted as the peer of `SESSION`.
    pub fn accepted(reader: &mut Side) -> RawWriter {
        RawWriter::accepted_as(0, reader)
    }

    /// As the stream of that number: two in a row are two I/O threads' work, where there are two.
    pub fn accepted_as(stream: u16, reader: &mut Side) -> RawWriter {
        reader.transport.expect_peer(SESSION, TOKEN);
        let mut writer = RawWriter::open(reader);
        writer.send(&hello_of_stream(stream, 2, reader.block_len as u64, TOKEN));
        assert_eq!(writer.answer(), (0, 0));
        writer
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// A few bytes at a time, each time waiting until the other kernel has them, so that each is read by itself.
    pub fn send_in_pieces(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(7) {
            self.send(piece);
            eventually("the piece is acknowledged", || {
                let mut unsent = 0_i32;
                // SAFETY: TIOCOUTQ writes one int.
                let result = unsafe { libc::ioctl(self.stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut unsent) };
                result == 0 && unsent == 0
            });
        }
    }

    /// Code and value.
    pub fn answer(&mut self) -> (u32, u64) {
        let mut bytes = [0; 16];
        self.stream.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes[..4], b"kvAN");
        (u32_at(&bytes, 4), u64_at(&bytes, 8))
    }

    /// Code, transfer and value.
    pub fn ack(&mut self) -> (u32, u64, u64) {
        let mut bytes = [0; 24];
        self.stream.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes[..4], b"kvAC");
        (u32_at(&bytes, 4), u64_at(&bytes, 8), u64_at(&bytes, 16))
    }

    /// The reader closes the connection without another byte.
    pub fn is_closed_by_peer(&mut self) -> bool {
        match self.stream.read(&mut [0; 64]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}
