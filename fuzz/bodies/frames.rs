//! Bytes on data connections, against a live transport on loopback: as a writer that sends whatever it likes, or as a
//! receiver that answers whatever it likes.
//!
//! The writer's side checks the fence: no byte of a block changes while no armed load of that session names it. What
//! is sent properly must land. The receiver's side checks that every transfer ends in exactly one event.

#[allow(dead_code, reason = "the tests of the transport use the rest")]
#[path = "../../tests/tcp/harness.rs"]
mod harness;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use p2pkv::data::{DataEvent, DataTransport, Disarm};
use p2pkv::protocol::ids::{BlockIndex, LoadToken, SessionId, TransferId};

use super::script::Script;
use harness::{BOUND, SESSION, Side, TOKEN, WHOLE, WITHDRAWN, frame, hello, offer_at};

const BLOCK_LEN: usize = 48;
const NUM_BLOCKS: u32 = 8;
const STRANGER: SessionId = SessionId(2);
const MOST_OPERATIONS: usize = 60;

pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    if script.flag() {
        answer(&mut script);
    } else {
        write(&mut script);
    }
}

// ---- a hostile writer ----

struct Load {
    /// Named to the transport under this session.
    session: SessionId,
    blocks: BTreeSet<u32>,
    /// Not yet written by a proper frame.
    open: BTreeSet<u32>,
    is_armed: bool,
}

struct Connection {
    stream: TcpStream,
    /// Every byte so far was a whole hello or frame, and every answer was read.
    is_proper: bool,
    /// The rest of a frame that was begun.
    owed: Vec<u8>,
}

struct Writer {
    side: Side,
    loads: Vec<Load>,
    connections: Vec<Connection>,
    /// What each block holds, for those that nobody may write.
    shadow: Vec<Vec<u8>>,
    /// Something was sent that is not accounted for: proper frames may be refused.
    is_murky: bool,
    transfers: u64,
}

fn write(script: &mut Script<'_>) {
    let mut side = Side::new(BLOCK_LEN, NUM_BLOCKS);
    side.fill(0xEE);
    side.transport.expect_peer(SESSION, TOKEN);
    let shadow = (0..NUM_BLOCKS).map(|block| side.block(block)).collect();
    let mut writer =
        Writer { side, loads: Vec::new(), connections: Vec::new(), shadow, is_murky: false, transfers: 0 };
    writer.connect(hello(2, BLOCK_LEN as u64, TOKEN));
    for _ in 0..MOST_OPERATIONS {
        if script.is_over() {
            break;
        }
        writer.step(script);
        writer.check();
    }
    writer.end();
}

impl Writer {
    fn step(&mut self, script: &mut Script<'_>) {
        match script.below(10) {
            0 | 1 => self.arm(script),
            2 => self.disarm(script.below(8)),
            3 | 4 => self.send_frame(script),
            5 => self.begin_frame(script),
            6 => self.go_on(script),
            7 => self.send_bytes(script),
            8 if script.flag() => self.connect(damaged(hello(2, BLOCK_LEN as u64, TOKEN), script)),
            8 => self.connect(hello(2, BLOCK_LEN as u64, TOKEN)),
            _ => self.leave(script),
        }
    }

    fn arm(&mut self, script: &mut Script<'_>) {
        let session = if script.below(4) == 0 { STRANGER } else { SESSION };
        let mask = script.byte();
        let blocks: BTreeSet<u32> = (0..NUM_BLOCKS).filter(|block| mask & (1 << block) != 0).collect();
        let indexes: Vec<BlockIndex> = blocks.iter().copied().map(BlockIndex).collect();
        self.side.transport.arm(session, LoadToken(self.loads.len() as u64), &indexes);
        self.loads.push(Load { session, open: blocks.clone(), blocks, is_armed: true });
    }

    fn disarm(&mut self, which: usize) {
        let Some(load) = self.loads.get_mut(which) else { return };
        let token = LoadToken(which as u64);
        let is_pending = self.side.transport.disarm(token) == Disarm::Pending;
        while is_pending && self.side.next_event() != (DataEvent::Disarmed { load: token }) {}
        let was_written_to = std::mem::take(&mut load.is_armed) && load.session == SESSION;
        let blocks = if was_written_to { load.blocks.clone() } else { BTreeSet::new() };
        for block in blocks {
            if !self.is_writable(block) {
                self.shadow[block as usize] = self.side.block(block);
            }
        }
    }

    fn is_writable(&self, block: u32) -> bool {
        self.loads.iter().any(|load| load.is_armed && load.session == SESSION && load.blocks.contains(&block))
    }

    /// A whole frame, and its verdict.
    fn send_frame(&mut self, script: &mut Script<'_>) {
        let (which, load, destinations, mut bytes) = self.next_frame(script);
        let Some(connection) = self.connections.get_mut(which) else { return };
        let fill = script.byte();
        bytes.resize(bytes.len() + destinations.len() * BLOCK_LEN, fill);
        bytes.extend(WHOLE);
        if !connection.is_proper {
            self.is_murky = true;
            let _ = connection.stream.write_all(&bytes);
            return;
        }
        connection.stream.write_all(&bytes).expect("a proper connection stays open");
        let mut ack = [0; 24];
        connection.stream.read_exact(&mut ack).expect("a proper frame gets its verdict");
        assert_eq!((&ack[..4], &ack[8..16]), (&b"kvAC"[..], &self.transfers.to_le_bytes()[..]));
        let has_landed = ack[4..8] == [0; 4];
        self.check_verdict(load, &destinations, fill, has_landed);
    }

    fn check_verdict(&mut self, load: usize, destinations: &[u32], fill: u8, has_landed: bool) {
        let mut wanted: BTreeSet<u32> = destinations.iter().copied().collect();
        let is_distinct = wanted.len() == destinations.len();
        let armed = self.loads.get_mut(load).filter(|load| load.is_armed && load.session == SESSION);
        let may_land = armed.as_ref().is_some_and(|load| wanted.is_subset(&load.open)) && is_distinct;
        assert!(!has_landed || may_land, "a frame for {destinations:?} of load {load} was not to be taken");
        assert!(has_landed || !may_land || self.is_murky, "a proper frame for {destinations:?} was refused");
        if has_landed {
            if let Some(load) = armed {
                load.open.retain(|block| !wanted.remove(block));
            }
            // Through another load, a frame that is not accounted for may write the same block.
            for block in destinations.iter().filter(|_| !self.is_murky) {
                assert!(self.side.block(*block).iter().all(|byte| *byte == fill), "block {block} is torn");
            }
        }
    }

    /// Its head and table now, its bytes when [`Self::go_on`] sends them.
    fn begin_frame(&mut self, script: &mut Script<'_>) {
        let (which, _, destinations, head) = self.next_frame(script);
        let Some(connection) = self.connections.get_mut(which) else { return };
        self.is_murky = true;
        connection.is_proper = false;
        let _ = connection.stream.write_all(&head);
        connection.owed.resize(destinations.len() * BLOCK_LEN, script.byte());
        connection.owed.extend(if script.flag() { WHOLE } else { WITHDRAWN });
    }

    fn go_on(&mut self, script: &mut Script<'_>) {
        let which = script.below(4);
        let Some(connection) = self.connections.get_mut(which) else { return };
        let count = usize::from(script.byte()).min(connection.owed.len());
        let _ = connection.stream.write_all(&connection.owed[..count]);
        connection.owed.drain(..count);
    }

    /// Connection, load, destinations and head.
    fn next_frame(&mut self, script: &mut Script<'_>) -> (usize, usize, Vec<u32>, Vec<u8>) {
        self.transfers += 1;
        let (which, load) = (script.below(4), script.below(8));
        let count = 1 + script.below(4);
        let destinations: Vec<u32> =
            (0..count).map(|_| script.below(NUM_BLOCKS as usize + 1) as u32).collect();
        let head = frame(self.transfers, Some(load as u64), BLOCK_LEN, &destinations);
        (which, load, destinations, head)
    }

    /// Any bytes, or a frame with some of its bytes changed.
    fn send_bytes(&mut self, script: &mut Script<'_>) {
        let bytes = if script.flag() {
            let (_, _, destinations, mut bytes) = self.next_frame(script);
            bytes.resize(bytes.len() + destinations.len() * BLOCK_LEN, 0xDD);
            bytes.extend(WHOLE);
            damaged(bytes, script)
        } else {
            script.bytes().to_vec()
        };
        let which = script.below(4);
        let Some(connection) = self.connections.get_mut(which) else { return };
        self.is_murky = true;
        connection.is_proper = false;
        let _ = connection.stream.write_all(&bytes);
    }

    fn connect(&mut self, greeting: Vec<u8>) {
        let mut stream = TcpStream::connect(self.side.address()).expect("the transport listens");
        stream.set_read_timeout(Some(BOUND)).unwrap();
        stream.set_write_timeout(Some(BOUND)).unwrap();
        let is_right = greeting == hello(2, BLOCK_LEN as u64, TOKEN);
        let _ = stream.write_all(&greeting);
        let mut answer = [0; 16];
        let is_proper = is_right && stream.read_exact(&mut answer).is_ok() && answer[4..8] == [0; 4];
        self.connections.push(Connection { stream, is_proper, owed: Vec::new() });
    }

    fn leave(&mut self, script: &mut Script<'_>) {
        if self.connections.is_empty() {
            return;
        }
        let which = script.below(4) % self.connections.len();
        let connection = self.connections.swap_remove(which);
        if script.flag() {
            let _ = connection.stream.shutdown(Shutdown::Write);
        }
    }

    fn check(&self) {
        for block in (0..NUM_BLOCKS).filter(|block| !self.is_writable(*block)) {
            assert!(self.side.block(block) == self.shadow[block as usize], "block {block} was written");
        }
    }

    fn end(mut self) {
        for which in 0..self.loads.len() {
            self.disarm(which);
        }
        self.connections.clear();
        self.side.settle();
        self.check();
    }
}

fn damaged(mut bytes: Vec<u8>, script: &mut Script<'_>) -> Vec<u8> {
    for _ in 0..=script.below(3) {
        let at = script.below(256) % bytes.len();
        bytes[at] = script.byte();
    }
    bytes
}

// ---- a hostile receiver ----

fn answer(script: &mut Script<'_>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut side = Side::new(BLOCK_LEN, NUM_BLOCKS);
    let offer = offer_at(vec![listener.local_addr().unwrap()], TOKEN);
    side.transport.register_peer(SESSION, offer);
    let (mut stream, _) = listener.accept().unwrap();
    drop(listener);
    stream.set_read_timeout(Some(BOUND)).unwrap();
    if script.flag() {
        let _ = stream.write_all(b"kvAN\0\0\0\0\0\0\0\0\0\0\0\0");
    }
    let transfers = script.below(4) as u64;
    for transfer in 0..transfers {
        side.write(transfer, 7, &[(transfer as u32, 1), (transfer as u32 + 1, 2)]);
    }
    while !script.is_over() {
        let bytes = match script.below(3) {
            0 => script.bytes().to_vec(),
            1 => ack(script),
            _ => damaged(ack(script), script),
        };
        let _ = stream.write_all(&bytes);
    }
    let _ = stream.shutdown(Shutdown::Both);
    drop(stream);
    side.transport.drop_peer(SESSION);
    check_ends(&side.settle(), transfers);
}

fn ack(script: &mut Script<'_>) -> Vec<u8> {
    let mut bytes = b"kvAC".to_vec();
    bytes.extend(u32::from(script.byte() % 7).to_le_bytes());
    bytes.extend((script.below(5) as u64).to_le_bytes());
    bytes.extend([0; 8]);
    bytes
}

fn check_ends(events: &[DataEvent], transfers: u64) {
    let ended = |event: &DataEvent| match event {
        DataEvent::TransferDone { transfer }
        | DataEvent::TransferFailed { transfer, .. }
        | DataEvent::TransferUnwanted { transfer, .. } => Some(*transfer),
        _ => None,
    };
    let mut ends: Vec<TransferId> = events.iter().filter_map(ended).collect();
    ends.sort_unstable_by_key(|transfer| transfer.0);
    let all: Vec<TransferId> = (0..transfers).map(TransferId).collect();
    assert_eq!(ends, all, "each transfer ends once: {events:?}");
}
