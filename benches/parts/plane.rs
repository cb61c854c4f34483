//! The data plane between two transports of this process: a load's blocks armed, moved and landed, beside `memcpy`.
//!
//! NIXL has its own benchmarks; what a load costs over it is in `compare.rs`.

use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::time::Duration;

use criterion::{BenchmarkGroup, Throughput};
use p2pkv::data::tcp::{TcpConfig, TcpTransport};
use p2pkv::data::{DataEvent, DataTransport, Disarm, PeerOffer, Region};
use p2pkv::protocol::config::Reach;
use p2pkv::protocol::ids::{BlockIndex, BlockPair, LoadToken, SessionId, TransferId};

use crate::keys::{MANY, blocks, shuffled};
use crate::measure::{Bench, Per, time};
use crate::memory::{Kind, Memory};

type Group<'a> = BenchmarkGroup<'a, Per>;

/// Larger than the caches, both sides together.
const SHAPES: [(usize, usize); 2] = [(16 << 10, 4096), (1 << 20, 64)];

const SESSION: SessionId = SessionId(1);
const TOKEN: &[u8] = b"a token of sixteen or more bytes";
/// Nothing here takes longer unless something is wrong.
const BOUND: Duration = Duration::from_secs(20);

pub fn measure(bench: &mut Bench) {
    let mut group = bench.benchmark_group("plane");
    group.throughput(Throughput::Elements(MANY as u64));
    arm(&mut group);
    for (block_len, count) in SHAPES {
        let bytes = (block_len * count) as u64;
        group.throughput(Throughput::ElementsAndBytes { elements: count as u64, bytes });
        let shape = format!("{count} x {} KiB", block_len >> 10);
        memcpy(&mut group, &shape, &mut Case::new(Reach::Mapped, block_len, count));
        for reach in [Reach::Mapped, Reach::VmRead, Reach::Stream] {
            pull(&mut group, &format!("{reach}, {shape}"), &mut Case::new(reach, block_len, count));
        }
    }
    group.finish();
}

/// Without a peer that writes.
fn arm(group: &mut Group<'_>) {
    let mut side = Side::new(Kind::Private, 64, 1 << 20, false);
    let scattered: Vec<usize> = shuffled(1 << 20).into_iter().take(MANY).collect();
    for (name, blocks) in [("in a row", blocks(0..MANY)), ("scattered", blocks(scattered))] {
        group.bench_function(format!("arm and disarm, {name}"), |bencher| {
            bencher.iter(|| {
                side.transport.arm(SESSION, LoadToken(1), &blocks);
                assert_eq!(side.transport.disarm(LoadToken(1)), Disarm::Done);
            });
        });
    }
}

fn memcpy(group: &mut Group<'_>, shape: &str, case: &mut Case) {
    group.bench_function(format!("memcpy, {shape}"), |bencher| bencher.iter(|| case.copy()));
}

fn pull(group: &mut Group<'_>, name: &str, case: &mut Case) {
    group.bench_function(name, |bencher| {
        let pull = |case: &mut Case, ()| case.pull();
        bencher.iter_custom(|turns| time(turns, case, |_| (), pull, |case, ()| case.settle()));
    });
    case.check();
}

struct Case {
    writer: Side,
    reader: Side,
    pairs: Vec<BlockPair>,
    destinations: Vec<BlockIndex>,
    loads: u64,
}

impl Case {
    /// All blocks, scattered on both sides.
    fn new(reach: Reach, block_len: usize, count: usize) -> Case {
        let kind = if reach == Reach::Mapped { Kind::Shared } else { Kind::Private };
        let same_host = reach != Reach::Stream;
        let mut writer = Side::new(kind, block_len, count, same_host);
        let mut reader = Side::new(Kind::Private, block_len, count, same_host);
        reader.transport.expect_peer(SESSION, TOKEN);
        let offer = PeerOffer::Tcp {
            addresses: vec![(Ipv4Addr::LOCALHOST, reader.transport.local_port()).into()],
            token: TOKEN.to_vec(),
            num_blocks: count as u64,
            same_host,
        };
        writer.transport.register_peer(SESSION, offer);
        writer.wait_for(&DataEvent::PeerRegistered { session: SESSION, reach });
        let destinations = blocks(shuffled(count));
        let pair = |(local, remote): (BlockIndex, &BlockIndex)| BlockPair { local, remote: *remote };
        let pairs = blocks(shuffled(count).into_iter().rev()).into_iter().zip(&destinations).map(pair);
        Case { pairs: pairs.collect(), writer, reader, destinations, loads: 0 }
    }

    /// From `arm` until the reader knows that all blocks are in.
    fn pull(&mut self) {
        self.loads += 1;
        let (load, transfer) = (LoadToken(self.loads), TransferId(self.loads));
        self.reader.transport.arm(SESSION, load, &self.destinations);
        self.writer.transport.write(SESSION, transfer, Some(load), &self.pairs);
        self.reader.wait_for(&DataEvent::Landed { load });
    }

    /// The writer knows it too.
    fn settle(&mut self) {
        self.writer.wait_for(&DataEvent::TransferDone { transfer: TransferId(self.loads) });
    }

    fn copy(&mut self) {
        for pair in &self.pairs {
            let (from, to) = (self.writer.block(pair.local), self.reader.block(pair.remote));
            // SAFETY: whole blocks inside of two regions, which are apart and which no transport touches meanwhile.
            unsafe { std::ptr::copy_nonoverlapping(from, to, self.writer.region.block_len()) };
        }
    }

    fn check(&self) {
        let first_word = |side: &Side, block: BlockIndex| {
            side.memory.words()[block.0 as usize * side.region.block_len() / size_of::<u64>()]
        };
        for pair in self.pairs.iter().filter(|_| self.loads > 0) {
            assert_eq!(first_word(&self.reader, pair.remote), first_word(&self.writer, pair.local));
        }
    }
}

/// A transport and its region. The transport ends first.
struct Side {
    transport: TcpTransport,
    region: Region,
    memory: Memory,
    events: Vec<DataEvent>,
}

impl Side {
    fn new(kind: Kind, block_len: usize, count: usize, same_host: bool) -> Side {
        let memory = Memory::new(kind, block_len, count, |block| block as u64);
        let count = u32::try_from(count).unwrap();
        // SAFETY: the memory outlives the transport, see the order of the fields.
        let region = unsafe { Region::new(memory.start(), count, block_len) }.unwrap();
        let config =
            TcpConfig { bind_ip: Ipv4Addr::LOCALHOST.into(), streams: 1, same_host, ..TcpConfig::default() };
        let transport = TcpTransport::with_file(region, &config, memory.region_file()).unwrap();
        Side { transport, region, memory, events: Vec::new() }
    }

    fn block(&self, block: BlockIndex) -> *mut u8 {
        self.region.block_ptr(block).unwrap()
    }

    /// It must be the next.
    fn wait_for(&mut self, event: &DataEvent) {
        while self.events.is_empty() {
            assert!(is_readable(self.transport.event_fd()), "{event:?} did not come within {BOUND:?}");
            self.transport.poll(&mut self.events);
        }
        assert_eq!(self.events, std::slice::from_ref(event));
        self.events.clear();
    }
}

fn is_readable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&raw mut poll, 1, i32::try_from(BOUND.as_millis()).unwrap()) == 1 }
}
