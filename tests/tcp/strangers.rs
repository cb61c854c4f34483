//! Anyone can reach the port. It costs them their connection, and nobody else anything.

use std::time::{Duration, Instant};

use super::harness::*;
use p2pkv::data::tcp::TcpConfig;
use p2pkv::data::{DataEvent, DataTransport};

fn refusal(writer: &mut Side) -> String {
    match writer.next_event() {
        DataEvent::PeerRefused { session, reason } if session == SESSION => reason,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// A transfer still goes through.
fn assert_serves(reader: &mut Side) {
    let mut writer = Side::new(reader.block_len, 2);
    connect(&mut writer, reader);
    writer.paint(1);
    reader.arm(1, &[1]);
    writer.write(1, 1, &[(0, 1)]);
    assert_eq!(writer.next_event(), done(1));
    assert!(reader.block(1) == writer.block(0));
}

#[test]
fn a_wrong_token_is_refused_by_name() {
    let (mut writer, mut reader) = (Side::new(4096, 2), Side::new(4096, 2));
    reader.transport.expect_peer(SESSION, TOKEN);
    let offer = reader.offer(b"another");
    writer.transport.register_peer(SESSION, offer);
    let reason = refusal(&mut writer);
    assert!(reason.contains(&reader.address().to_string()) && reason.contains("token"), "{reason}");
    assert_serves(&mut reader);
}

#[test]
fn the_token_of_a_dropped_session_is_void() {
    let (mut writer, mut reader) = (Side::new(4096, 2), Side::new(4096, 2));
    reader.transport.expect_peer(SESSION, TOKEN);
    reader.transport.drop_peer(SESSION);
    let offer = reader.offer(TOKEN);
    writer.transport.register_peer(SESSION, offer);
    assert!(refusal(&mut writer).contains("token"));
}

#[test]
fn another_block_length_or_version_is_refused_with_the_receivers_value() {
    let (mut writer, mut reader) = (Side::new(1024, 2), Side::new(4096, 2));
    reader.transport.expect_peer(SESSION, TOKEN);
    let offer = reader.offer(TOKEN);
    writer.transport.register_peer(SESSION, offer);
    assert!(refusal(&mut writer).contains("block_len is 4096"));
    let mut raw = RawWriter::open(&reader);
    raw.send(&hello(1, 4096, TOKEN));
    assert_eq!(raw.answer(), (1, 2));
    assert!(raw.is_closed_by_peer());
}

#[test]
fn garbage_costs_only_its_own_connection() {
    let mut reader = Side::new(4096, 2);
    let mut too_long = hello(2, 4096, b"");
    too_long[24..26].copy_from_slice(&u16::MAX.to_le_bytes());
    let tls = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3];
    let strangers: [&[u8]; 5] = [b"GET / HTTP/1.1\r\n\r\n", b"\r\n", &tls, &[0xFF; 5000], &too_long];
    for bytes in strangers {
        let mut stranger = RawWriter::open(&reader);
        stranger.send(bytes);
        assert!(stranger.is_closed_by_peer(), "{bytes:?}");
    }
    let mut half_hello = RawWriter::open(&reader);
    half_hello.send(&hello(2, 4096, TOKEN)[..20]);
    drop(half_hello);
    assert_serves(&mut reader);
}

#[test]
fn garbage_after_a_good_hello_costs_only_that_connection() {
    let mut reader = Side::new(4096, 2);
    let mut no_blocks = frame(1, Some(1), 4096, &[0]);
    no_blocks[24..28].copy_from_slice(&0_u32.to_le_bytes());
    let mut huge = frame(1, Some(1), 4096, &[0]);
    huge[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
    huge[32..40].copy_from_slice(&(u64::from(u32::MAX) * 4096).to_le_bytes());
    let mut odd_size = frame(1, Some(1), 4096, &[0]);
    odd_size[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
    for bytes in [no_blocks, huge, odd_size, vec![0xAB; 4000]] {
        let mut writer = RawWriter::accepted(&mut reader);
        writer.send(&bytes);
        assert!(writer.is_closed_by_peer());
    }
    assert_serves(&mut reader);
}

#[test]
fn who_says_no_hello_is_closed_in_time() {
    let hasty = TcpConfig { hello_timeout: Duration::from_millis(200), ..loopback() };
    let reader = Side::with(4096, 2, &hasty);
    let mut silent = RawWriter::open(&reader);
    let mut slow = RawWriter::open(&reader);
    slow.send(b"p2pkv");
    let begin = Instant::now();
    assert!(silent.is_closed_by_peer() && slow.is_closed_by_peer());
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn silent_connections_do_not_keep_a_peer_out() {
    let patient = TcpConfig { hello_timeout: Duration::from_secs(120), ..loopback() };
    let mut reader = Side::with(4096, 2, &patient);
    let mut silent: Vec<RawWriter> = (0..70).map(|_| RawWriter::open(&reader)).collect();
    assert_serves(&mut reader);
    assert!(silent[0].is_closed_by_peer(), "the oldest had to go");
}

#[test]
fn one_session_holds_no_more_than_its_streams() {
    let mut reader = Side::with(4096, 2, &TcpConfig { max_streams_per_session: 3, ..loopback() });
    let held: Vec<RawWriter> = (0..3).map(|_| RawWriter::accepted(&mut reader)).collect();
    let mut one_more = RawWriter::open(&reader);
    one_more.send(&hello(2, 4096, TOKEN));
    assert_eq!(one_more.answer(), (4, 3));
    drop(held);
    eventually("the places are free again", || {
        let mut next = RawWriter::open(&reader);
        next.send(&hello(2, 4096, TOKEN));
        next.answer() == (0, 0)
    });
}

#[test]
fn hellos_and_frames_may_come_in_pieces() {
    let mut reader = Side::new(64, 2);
    reader.transport.expect_peer(SESSION, TOKEN);
    reader.arm(1, &[1]);
    let mut writer = RawWriter::open(&reader);
    writer.send_in_pieces(&hello(2, 64, TOKEN));
    assert_eq!(writer.answer(), (0, 0));
    let mut bytes = frame(7, Some(1), 64, &[1]);
    bytes.extend(0..64);
    bytes.extend(WHOLE);
    writer.send_in_pieces(&bytes);
    assert_eq!(writer.ack(), (0, 7, 0));
    assert!(reader.block(1).into_iter().eq(0..64));
}
