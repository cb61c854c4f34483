//! Blocks arrive where they belong, byte for byte, in every shape.

use std::time::{Duration, Instant};

use super::harness::*;
use p2pkv::data::{DataTransport, Disarm};
use p2pkv::protocol::ids::LoadToken;

/// Moves `locals[i]` to `remotes[i]` and compares every block of the reader, those that must not change included.
fn move_and_compare(block_len: usize, num_blocks: u32, locals: &[u32], remotes: &[u32]) {
    let (mut writer, mut reader) = connected(block_len, num_blocks);
    writer.paint(1);
    reader.fill(0xEE);
    reader.arm(5, remotes);
    let pairs: Vec<(u32, u32)> = locals.iter().copied().zip(remotes.iter().copied()).collect();
    writer.write(9, 5, &pairs);
    assert_eq!(writer.next_event(), done(9));
    assert_eq!(reader.transport.disarm(LoadToken(5)), Disarm::Done);
    let untouched = vec![0xEE; block_len];
    let mut expected: Vec<Option<u32>> = vec![None; num_blocks as usize];
    pairs.iter().for_each(|(local, remote)| expected[*remote as usize] = Some(*local));
    for (block, source) in (0..).zip(expected) {
        let want = source.map_or_else(|| untouched.clone(), |local| writer.block(local));
        assert!(reader.block(block) == want, "block {block} of {block_len} bytes differs");
    }
}

#[test]
fn blocks_of_one_byte() {
    move_and_compare(1, 1, &[0], &[0]);
    move_and_compare(1, 20_000, &shuffled(20_000, 1)[..9_000], &shuffled(20_000, 2)[..9_000]);
}

#[test]
fn blocks_of_odd_length() {
    move_and_compare(4097, 700, &shuffled(700, 3)[..601], &shuffled(700, 4)[..601]);
    move_and_compare(1_000_003, 5, &[4, 0, 2], &[1, 3, 0]);
}

#[test]
fn many_blocks_scattered() {
    move_and_compare(16 << 10, 1100, &shuffled(1100, 5)[..1024], &shuffled(1100, 6)[..1024]);
}

#[test]
fn many_blocks_adjacent_on_both_sides_or_on_one() {
    let run: Vec<u32> = (10..1034).collect();
    let elsewhere: Vec<u32> = (60..1084).collect();
    move_and_compare(16 << 10, 1100, &run, &elsewhere);
    move_and_compare(16 << 10, 1100, &run, &shuffled(1100, 7)[..1024]);
    move_and_compare(16 << 10, 1100, &shuffled(1100, 8)[..1024], &run);
}

#[test]
fn one_block_to_many_places() {
    move_and_compare(4096, 64, &[3; 60], &shuffled(64, 9)[..60]);
}

#[test]
fn one_block_of_64_mib() {
    move_and_compare(64 << 20, 1, &[0], &[0]);
}

#[test]
fn two_transfers_at_once_end_in_one_event_each() {
    let (mut writer, mut reader) = connected(16 << 10, 1024);
    writer.paint(2);
    let order = shuffled(1024, 10);
    let (first, second) = order.split_at(512);
    reader.arm(1, first);
    reader.arm(2, second);
    let same = |blocks: &[u32]| blocks.iter().map(|block| (*block, *block)).collect::<Vec<_>>();
    writer.write(1, 1, &same(first));
    writer.write(2, 2, &same(second));
    let mut events = writer.next_events(2);
    events.sort_by_key(|event| format!("{event:?}"));
    assert_eq!(events, [done(1), done(2)]);
    assert!((0..1024).all(|block| reader.block(block) == writer.block(block)));
}

#[test]
fn several_transfers_may_fill_one_load() {
    let (mut writer, mut reader) = connected(4096, 16);
    writer.paint(3);
    reader.arm(1, &[0, 1, 2, 3]);
    writer.write(1, 1, &[(8, 0), (9, 1)]);
    writer.write(2, 1, &[(10, 2), (11, 3)]);
    let mut events = writer.next_events(2);
    events.sort_by_key(|event| format!("{event:?}"));
    assert_eq!(events, [done(1), done(2)]);
    assert!((0..4).all(|block| reader.block(block) == writer.block(block + 8)));
}

#[test]
fn both_sides_write_to_each_other_at_the_same_time() {
    let (mut left, mut right) = connected(64 << 10, 512);
    connect(&mut right, &mut left);
    left.paint(4);
    right.paint(5);
    let (there, back): (Vec<u32>, Vec<u32>) = ((256..512).collect(), (256..512).collect());
    left.arm(1, &there);
    right.arm(2, &back);
    let pairs: Vec<(u32, u32)> = (0..256).map(|block| (block, block + 256)).collect();
    left.write(1, 2, &pairs);
    right.write(2, 1, &pairs);
    assert_eq!(left.next_event(), done(1));
    assert_eq!(right.next_event(), done(2));
    for block in 0..256 {
        assert!(
            right.block(block + 256) == left.block(block) && left.block(block + 256) == right.block(block)
        );
    }
}

#[test]
fn more_than_four_gib_over_one_connection() {
    let one_stream = p2pkv::data::tcp::TcpConfig { streams: 1, ..loopback() };
    let (mut writer, mut reader) = (Side::with(64 << 20, 1, &one_stream), Side::new(64 << 20, 1));
    connect(&mut writer, &mut reader);
    writer.paint(6);
    for round in 0..66 {
        reader.arm(round, &[0]);
        writer.write(round, round, &[(0, 0)]);
        assert_eq!(writer.next_event(), done(round));
        assert_eq!(reader.transport.disarm(LoadToken(round)), Disarm::Done);
    }
    assert!(reader.block(0) == writer.block(0));
}

#[test]
fn a_connection_that_was_idle_past_the_dead_peer_time_still_works() {
    let impatient = p2pkv::data::tcp::TcpConfig { dead_peer_after: Duration::from_millis(300), ..loopback() };
    let (mut writer, mut reader) = (Side::with(4096, 4, &impatient), Side::with(4096, 4, &impatient));
    connect(&mut writer, &mut reader);
    writer.paint(7);
    let idle_until = Instant::now() + Duration::from_millis(900);
    assert_eq!(writer.events_within(idle_until - Instant::now()), []);
    reader.arm(1, &[1]);
    writer.write(1, 1, &[(0, 1)]);
    assert_eq!(writer.next_event(), done(1));
    assert!(reader.block(1) == writer.block(0));
}

#[test]
fn blocks_outside_of_the_own_region_are_refused_before_anything_is_sent() {
    let (mut writer, _reader) = connected(4096, 4);
    writer.write(1, 1, &[(0, 0), (4, 1)]);
    let (reason, _) = writer.failure_of(1);
    assert!(reason.contains("region of 4"), "{reason}");
}
