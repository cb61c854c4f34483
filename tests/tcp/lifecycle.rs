//! Peers come, stop, go and come back; every transfer ends once and nothing is left behind.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::harness::*;
use p2pkv::data::tcp::{TcpConfig, TcpTransport};
use p2pkv::data::{DataEvent, DataTransport, PeerOffer, Region};
use p2pkv::protocol::config::Reach;
use p2pkv::protocol::error::ErrorKind;
use p2pkv::protocol::ids::{BlockIndex, BlockPair, LoadToken, SessionId, TransferId};

const OTHER: SessionId = SessionId(2);

/// A receiver by hand that accepts every stream and then reads nothing.
struct StuckReceiver {
    listener: TcpListener,
    streams: Vec<TcpStream>,
}

fn answer_accepted() -> Vec<u8> {
    let mut bytes = b"kvAN".to_vec();
    bytes.extend([0; 12]);
    bytes
}

impl StuckReceiver {
    fn register(writer: &mut Side, streams: usize) -> StuckReceiver {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let offer = offer_at(vec![listener.local_addr().unwrap()], b"any");
        writer.transport.register_peer(SESSION, offer);
        let mut receiver = StuckReceiver { listener, streams: Vec::new() };
        (0..streams).for_each(|_| receiver.accept());
        assert_eq!(writer.next_event(), DataEvent::PeerRegistered { session: SESSION, reach: Reach::Stream });
        receiver
    }

    fn accept(&mut self) {
        let (mut stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        stream.read_exact(&mut [0; 28 + 3]).unwrap();
        stream.write_all(&answer_accepted()).unwrap();
        self.streams.push(stream);
    }
}

fn ack(transfer: u64) -> Vec<u8> {
    let mut bytes = b"kvAC".to_vec();
    bytes.extend([0; 4]);
    bytes.extend(transfer.to_le_bytes());
    bytes.extend([0; 8]);
    bytes
}

fn all_blocks(count: u32) -> Vec<(u32, u32)> {
    (0..count).map(|block| (block, block)).collect()
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_peer_that_stops_reading_keeps_only_its_own_transfers_waiting() {
    let (mut writer, mut reader) = (Side::new(1 << 20, 64), Side::new(1 << 20, 64));
    writer.paint(1);
    let _stuck = StuckReceiver::register(&mut writer, 2);
    let before = resident_kib();
    for transfer in 0..50 {
        writer.write(transfer, 0, &all_blocks(64));
    }
    reader.transport.expect_peer(OTHER, TOKEN);
    let offer = reader.offer(TOKEN);
    writer.transport.register_peer(OTHER, offer);
    assert_eq!(writer.next_event(), DataEvent::PeerRegistered { session: OTHER, reach: Reach::Stream });
    reader.transport.arm(OTHER, LoadToken(9), &[BlockIndex(3)]);
    let pair = BlockPair { local: BlockIndex(5), remote: BlockIndex(3) };
    writer.transport.write(OTHER, TransferId(1000), Some(LoadToken(9)), &[pair]);
    assert_eq!(writer.next_event(), done(1000));
    assert!(reader.block(3) == writer.block(5));
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 64 << 10, "3.2 GB of waiting transfers cost {grown} KiB");
    assert_eq!(writer.settle(), [], "the stuck peer's transfers wait");
}

#[test]
fn a_peer_that_takes_no_byte_for_too_long_is_taken_for_dead() {
    let impatient = TcpConfig { dead_peer_after: Duration::from_millis(400), streams: 1, ..loopback() };
    let mut writer = Side::with(1 << 20, 64, &impatient);
    let stuck = StuckReceiver::register(&mut writer, 1);
    writer.write(1, 0, &all_blocks(64));
    let (reason, decisive) = writer.failure_of(1);
    assert!(reason.contains("timed out") && !decisive, "{reason}");
    drop(stuck);
    assert_eq!(writer.settle(), []);
}

/// One frame as the stuck receiver reads it in the end: its transfer, its bytes, and whether they are the blocks'.
fn read_frame(stream: &mut TcpStream) -> (u64, Vec<u8>, bool) {
    let mut header = [0; 40];
    stream.read_exact(&mut header).unwrap();
    assert_eq!(&header[..4], b"kvFR");
    let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap());
    let blocks = u32::from_le_bytes(header[24..28].try_into().unwrap());
    stream.read_exact(&mut vec![0; blocks as usize * 4]).unwrap();
    let mut bytes = vec![0; usize::try_from(number(32)).unwrap()];
    stream.read_exact(&mut bytes).unwrap();
    let mut tail = [0; 4];
    stream.read_exact(&mut tail).unwrap();
    (number(8), bytes, &tail == WHOLE)
}

#[test]
fn a_cancelled_transfer_ends_at_once_and_its_blocks_are_not_read_any_more() {
    let mut writer = Side::with(1 << 20, 64, &TcpConfig { streams: 1, ..loopback() });
    writer.fill(0x11);
    let mut stuck = StuckReceiver::register(&mut writer, 1);
    writer.write(1, 0, &all_blocks(64));
    writer.write(2, 0, &all_blocks(64));
    assert_eq!(writer.settle(), []);
    writer.transport.cancel(&[TransferId(2), TransferId(77), TransferId(1)]);
    assert_eq!(writer.failure_of(2), ("cancelled".to_owned(), false));
    assert_eq!(writer.failure_of(1), ("cancelled".to_owned(), false));
    assert_eq!(writer.settle(), []);
    // The blocks get other bytes: none of them may follow in the frames that had begun.
    writer.fill(0xEE);
    writer.write(3, 0, &[(9, 9)]);
    let stream = &mut stuck.streams[0];
    let mut filler = 0;
    loop {
        let (transfer, bytes, whole) = read_frame(stream);
        stream.write_all(&ack(transfer)).unwrap();
        if transfer == 3 {
            assert!(whole && bytes.iter().all(|byte| *byte == 0xEE));
            break;
        }
        assert_eq!(transfer, 1, "nothing of transfer 2 had begun");
        let of_blocks = bytes.iter().take_while(|byte| **byte == 0x11).count();
        assert!(bytes[of_blocks..].iter().all(|byte| *byte == 0), "new bytes of the blocks were sent");
        assert!(!whole || of_blocks == bytes.len(), "filler passed for the blocks");
        filler += bytes.len() - of_blocks;
    }
    assert!(filler > 0, "a frame was cut in the middle");
    assert_eq!(writer.next_event(), done(3));
    assert_eq!(writer.settle(), []);
}

#[test]
fn a_frozen_receiver_of_two_streams_does_not_keep_the_blocks_of_a_cancelled_transfer() {
    let mut writer = Side::new(1 << 20, 64);
    writer.fill(0x11);
    let mut stuck = StuckReceiver::register(&mut writer, 2);
    writer.write(1, 0, &all_blocks(64));
    assert_eq!(writer.settle(), []);
    writer.transport.cancel(&[TransferId(1)]);
    assert_eq!(writer.failure_of(1), ("cancelled".to_owned(), false));
    writer.fill(0xEE);
    assert_eq!(writer.settle(), [], "told of once");
    let mut filler = 0;
    for stream in &mut stuck.streams {
        let (transfer, bytes, whole) = read_frame(stream);
        assert!(transfer == 1 && !whole);
        let of_blocks = bytes.iter().take_while(|byte| **byte == 0x11).count();
        assert!(bytes[of_blocks..].iter().all(|byte| *byte == 0), "new bytes of the blocks were sent");
        filler += bytes.len() - of_blocks;
        stream.write_all(&ack(1)).unwrap();
    }
    assert!(filler > 0, "a frame was cut in the middle");
}

fn has_bytes(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let has_bytes = stream.peek(&mut [0]).is_ok_and(|count| count > 0);
    stream.set_nonblocking(false).unwrap();
    has_bytes
}

#[test]
fn of_two_streams_one_that_is_reset_in_a_frame_fails_its_transfer_and_the_other_carries_the_next() {
    let mut writer = Side::new(1 << 20, 64);
    let mut receiver = StuckReceiver::register(&mut writer, 2);
    writer.write(1, 0, &all_blocks(64));
    receiver.streams[0].read_exact(&mut [0; 44]).unwrap();
    // Closed with bytes unread: a reset.
    drop(receiver.streams.remove(0));
    let mut ended = Vec::new();
    eventually("what began on the other stream was acknowledged, and so the transfer ends", || {
        if has_bytes(&receiver.streams[0]) {
            assert_eq!(read_frame(&mut receiver.streams[0]).0, 1);
            receiver.streams[0].write_all(&ack(1)).unwrap();
        }
        ended.extend(writer.events_within(Duration::ZERO));
        !ended.is_empty()
    });
    let [DataEvent::TransferFailed { transfer: TransferId(1), decisive: false, .. }] = ended[..] else {
        panic!("{ended:?}")
    };
    // Nobody listens there any more: the lost stream is not to be had again.
    let address = receiver.listener.local_addr().unwrap();
    receiver.listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    eventually("the door is closed", || TcpStream::connect(address).is_err());
    for transfer in 2..5 {
        writer.write(transfer, 0, &all_blocks(1));
        assert_eq!(read_frame(&mut receiver.streams[0]).0, transfer);
        receiver.streams[0].write_all(&ack(transfer)).unwrap();
        assert_eq!(writer.next_event(), done(transfer));
    }
    assert_eq!(writer.settle(), []);
}

#[test]
fn cancelled_transfers_do_no_harm_to_the_streams_they_were_on() {
    let (mut writer, mut reader) = connected(1 << 20, 64);
    writer.paint(3);
    let blocks: Vec<u32> = (0..64).collect();
    for round in 0..20 {
        reader.arm(round, &blocks);
        writer.write(round, round, &all_blocks(64));
        writer.transport.cancel(&[TransferId(round)]);
        match writer.next_event() {
            DataEvent::TransferDone { transfer } => assert_eq!(transfer, TransferId(round)),
            DataEvent::TransferUnwanted { transfer, reason } => {
                assert_eq!((transfer, reason.as_str()), (TransferId(round), "cancelled"));
            }
            other => panic!("{other:?}"),
        }
        reader.transport.disarm(LoadToken(round));
    }
    assert_eq!(writer.settle(), []);
    reader.arm(100, &blocks);
    writer.write(100, 100, &all_blocks(64));
    assert_eq!(writer.next_event(), done(100));
    assert!(blocks.iter().all(|block| reader.block(*block) == writer.block(*block)));
}

#[test]
fn dropping_a_peer_ends_each_of_its_transfers_once() {
    let mut writer = Side::new(1 << 20, 64);
    let mut stuck = StuckReceiver::register(&mut writer, 2);
    (0..5).for_each(|transfer| writer.write(transfer, 0, &all_blocks(64)));
    writer.transport.drop_peer(SESSION);
    let mut ended: Vec<u64> = Vec::new();
    for event in writer.next_events(5) {
        match event {
            DataEvent::TransferFailed { transfer, .. } => ended.push(transfer.0),
            other => panic!("{other:?}"),
        }
    }
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2, 3, 4]);
    writer.write(6, 0, &all_blocks(1));
    assert!(writer.failure_of(6).1, "there is no peer any more");
    assert_eq!(writer.settle(), []);
    let mut rest = Vec::new();
    for stream in &mut stuck.streams {
        // The end of the stream, or a reset: either way it is closed.
        let _ = stream.read_to_end(&mut rest);
    }
}

#[test]
fn a_receiver_that_dies_fails_what_is_in_flight_and_then_everything() {
    let (mut writer, mut reader) = connected(1 << 20, 64);
    reader.arm(1, &(0..64).collect::<Vec<_>>());
    for transfer in 0..8 {
        writer.write(transfer, 1, &all_blocks(64));
    }
    drop(reader);
    let mut ended: Vec<u64> = Vec::new();
    let mut decisive_seen = false;
    while ended.len() < 8 {
        match writer.next_event() {
            DataEvent::TransferFailed { transfer, decisive, .. } => {
                decisive_seen |= decisive;
                ended.push(transfer.0);
            }
            DataEvent::TransferDone { transfer } => ended.push(transfer.0),
            DataEvent::PeerFault { .. } => decisive_seen = true,
            other => panic!("{other:?}"),
        }
    }
    ended.sort_unstable();
    assert_eq!(ended, (0..8).collect::<Vec<_>>());
    writer.write(100, 1, &all_blocks(1));
    let mut last = writer.next_event();
    if matches!(last, DataEvent::PeerFault { .. }) {
        last = writer.next_event();
    }
    assert!(matches!(last, DataEvent::TransferFailed { decisive: true, .. }), "{last:?}, {decisive_seen}");
    assert_eq!(writer.settle(), []);
}

#[test]
fn a_stream_that_broke_while_idle_is_opened_again_by_the_next_write() {
    let mut writer = Side::new(4096, 4);
    let mut receiver = StuckReceiver::register(&mut writer, 2);
    receiver.streams.clear();
    assert_eq!(writer.settle(), []);
    eventually("the writer has seen the end of both", || {
        writer.write(1, 0, &all_blocks(1));
        match writer.events_within(Duration::from_millis(50)).first() {
            Some(DataEvent::TransferFailed { decisive: false, .. }) => false,
            None => true,
            other => panic!("{other:?}"),
        }
    });
    receiver.accept();
    let mut bytes = vec![0; 44 + 4096];
    receiver.streams[0].read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes[..4], b"kvFR");
    receiver.streams[0].write_all(&ack(1)).unwrap();
    assert_eq!(writer.next_event(), done(1));
}

#[test]
fn a_stream_that_breaks_fails_the_transfer_on_it_at_once() {
    let mut writer = Side::with(4096, 4, &TcpConfig { streams: 1, ..loopback() });
    let mut receiver = StuckReceiver::register(&mut writer, 1);
    writer.write(1, 0, &all_blocks(4));
    receiver.streams[0].read_exact(&mut [0; 100]).unwrap();
    receiver.streams.clear();
    assert!(!writer.failure_of(1).1, "the peer may be well");
    writer.write(2, 0, &all_blocks(1));
    receiver.accept();
    receiver.streams[0].read_exact(&mut [0; 44 + 4096]).unwrap();
    assert_eq!(writer.settle(), []);
}

#[test]
fn a_peer_is_registered_only_when_all_streams_are_accepted() {
    let mut writer = Side::new(4096, 4);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    writer.transport.register_peer(SESSION, offer_at(vec![listener.local_addr().unwrap()], b"any"));
    let mut receiver = StuckReceiver { listener, streams: Vec::new() };
    receiver.accept();
    assert_eq!(writer.settle(), []);
    let (mut second, _) = receiver.listener.accept().unwrap();
    second.read_exact(&mut [0; 28 + 3]).unwrap();
    second.write_all(b"kvAN").unwrap();
    second.write_all(&[4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    let DataEvent::PeerRefused { reason, .. } = writer.next_event() else { panic!("not refused") };
    assert!(reason.contains("at most 1 streams"), "{reason}");
    assert_eq!(receiver.streams[0].read(&mut [0]).unwrap_or(0), 0, "the first stream is closed too");
}

#[test]
fn an_ack_that_cannot_be_right_ends_the_stream() {
    let one_stream = TcpConfig { streams: 1, ..loopback() };
    let mut writer = Side::with(64 << 20, 1, &one_stream);
    let mut receiver = StuckReceiver::register(&mut writer, 1);
    receiver.streams[0].write_all(&ack(1)).unwrap();
    assert_eq!(receiver.streams[0].read(&mut [0]).unwrap_or(0), 0, "for nothing");

    writer.write(1, 0, &all_blocks(1));
    receiver.accept();
    receiver.streams[1].write_all(&ack(2)).unwrap();
    let (reason, _) = writer.failure_of(1);
    assert!(reason.contains("expected the ack of transfer 1, the peer sent that of 2"), "{reason}");

    writer.write(3, 0, &all_blocks(1));
    receiver.accept();
    receiver.streams[2].read_exact(&mut [0; 44]).unwrap();
    receiver.streams[2].write_all(&ack(3)).unwrap();
    let (reason, _) = writer.failure_of(3);
    assert!(reason.contains("before it had all bytes"), "{reason}");
}

#[test]
fn addresses_are_tried_in_order_and_all_failures_are_named() {
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let (mut writer, mut reader) = (Side::new(4096, 2), Side::new(4096, 2));
    reader.transport.expect_peer(SESSION, TOKEN);
    writer.transport.register_peer(SESSION, offer_at(vec![closed, reader.address()], TOKEN));
    assert_eq!(writer.next_event(), DataEvent::PeerRegistered { session: SESSION, reach: Reach::Stream });
    writer.transport.register_peer(OTHER, offer_at(vec![closed, reader.address()], b"wrong"));
    let DataEvent::PeerRefused { reason, .. } = writer.next_event() else { panic!("not refused") };
    for part in [closed.to_string(), reader.address().to_string(), "refused".into(), "token".into()] {
        assert!(reason.contains(&part), "{reason:?} does not name {part:?}");
    }
    writer.transport.register_peer(OTHER, offer_at(Vec::new(), TOKEN));
    assert!(matches!(writer.next_event(), DataEvent::PeerRefused { .. }));
    let nixl = PeerOffer::Nixl { metadata: Vec::new(), base_addr: 0, num_blocks: 1, block_len: 1 };
    writer.transport.register_peer(OTHER, nixl);
    assert!(matches!(writer.next_event(), DataEvent::PeerRefused { .. }));
}

#[test]
fn a_host_that_does_not_answer_is_refused_in_time() {
    let hasty = TcpConfig {
        connect_timeout: Duration::from_millis(200),
        hello_timeout: Duration::from_millis(200),
        ..loopback()
    };
    let mut writer = Side::with(4096, 2, &hasty);
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    writer.transport.register_peer(SESSION, offer_at(vec![silent.local_addr().unwrap()], TOKEN));
    let begin = Instant::now();
    let DataEvent::PeerRefused { reason, .. } = writer.next_event() else { panic!("not refused") };
    assert!(reason.contains("no answer within 200ms"), "{reason}");
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_thousand_peers_that_come_and_go_leave_no_descriptor() {
    let (mut writer, mut reader) = connected(4096, 2);
    let fds_of = |count: usize| count + 8; // other tests in this process open and close some meanwhile
    let before = open_fds();
    for number in 10..1010 {
        let session = SessionId(number);
        let token = number.to_le_bytes();
        reader.transport.expect_peer(session, &token);
        let offer = reader.offer(&token);
        writer.transport.register_peer(session, offer);
        assert_eq!(writer.next_event(), DataEvent::PeerRegistered { session, reach: Reach::Stream });
        if number % 2 == 0 {
            writer.transport.drop_peer(session);
            reader.transport.drop_peer(session);
        } else {
            reader.transport.drop_peer(session);
            writer.transport.drop_peer(session);
        }
    }
    eventually("as many descriptors as before", || open_fds() <= fds_of(before));
}

#[test]
fn the_port_is_free_as_soon_as_the_transport_is_dropped() {
    let (mut writer, reader) = connected(4096, 2);
    let port = reader.transport.local_port();
    let config = TcpConfig { port, ..loopback() };
    drop(reader);
    let mut again = Side::with(4096, 2, &config);
    assert_eq!(again.transport.local_port(), port);
    writer.transport.drop_peer(SESSION);
    connect(&mut writer, &mut again);
}

#[test]
fn a_restarted_receiver_refuses_the_old_token_decisively() {
    let (mut writer, reader) = connected(4096, 2);
    let config = TcpConfig { port: reader.transport.local_port(), ..loopback() };
    drop(reader);
    let _again = Side::with(4096, 2, &config);
    let mut transfer = 0;
    eventually("a write meets the new receiver", || {
        transfer += 1;
        writer.write(transfer, 0, &all_blocks(1));
        let (reason, decisive) = writer.failure_of(transfer);
        assert!(!decisive || reason.contains("token"), "{reason}");
        decisive
    });
}

#[test]
fn dropping_a_busy_transport_takes_no_time() {
    let (mut writer, mut reader) = connected(1 << 20, 256);
    reader.arm(1, &(0..256).collect::<Vec<_>>());
    let mut stuck = Side::new(1 << 20, 64);
    let _receiver = StuckReceiver::register(&mut stuck, 2);
    writer.write(1, 1, &all_blocks(256));
    stuck.write(1, 1, &all_blocks(64));
    let begin = Instant::now();
    drop((writer, reader, stuck.transport));
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

#[test]
fn a_taken_port_and_senseless_settings_are_refused_by_name() {
    let holder = Side::new(4096, 2);
    let mut byte = [0_u8; 8];
    // SAFETY: no transport is made with it that outlives this function.
    let region = unsafe { Region::new(byte.as_mut_ptr(), 2, 4) }.unwrap();
    let taken = TcpConfig { port: holder.transport.local_port(), ..loopback() };
    let error = TcpTransport::new(region, &taken).err().unwrap();
    assert_eq!(error.kind, ErrorKind::AddressInUse);
    assert!(error.message.contains(&holder.address().to_string()), "{error}");
    let elsewhere = TcpConfig { bind_ip: [192, 0, 2, 1].into(), ..loopback() };
    assert_eq!(TcpTransport::new(region, &elsewhere).err().unwrap().kind, ErrorKind::AddressInvalid);
    let none = TcpConfig { streams: 0, ..loopback() };
    assert_eq!(TcpTransport::new(region, &none).err().unwrap().kind, ErrorKind::InvalidArgument);
}
