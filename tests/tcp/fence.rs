//! Nothing is written but what is armed, once, for that load and session; and nothing at all after a disarm.

use super::harness::*;
use p2pkv::data::{DataEvent, DataTransport, Disarm};
use p2pkv::protocol::ids::{BlockIndex, LoadToken, SessionId};

/// So large that the receiver does not wait for a whole block before it reads.
const LEN: usize = 1 << 20;

fn reader_with_writer() -> (Side, RawWriter) {
    let mut reader = Side::new(LEN, 8);
    reader.fill(0xEE);
    let writer = RawWriter::accepted(&mut reader);
    (reader, writer)
}

fn send_blocks(writer: &mut RawWriter, transfer: u64, load: Option<u64>, destinations: &[u32], byte: u8) {
    writer.send(&frame(transfer, load, LEN, destinations));
    writer.send(&vec![byte; LEN * destinations.len()]);
    writer.send(WHOLE);
}

fn assert_untouched(reader: &Side) {
    for block in 0..reader.num_blocks {
        assert!(reader.block(block).iter().all(|byte| *byte == 0xEE), "block {block} was written");
    }
}

#[test]
fn a_frame_for_an_unknown_load_changes_nothing() {
    let (mut reader, mut writer) = reader_with_writer();
    reader.arm(1, &[0, 1]);
    send_blocks(&mut writer, 7, Some(2), &[0, 1], 1);
    assert_eq!(writer.ack(), (2, 7, 0));
    send_blocks(&mut writer, 8, None, &[0, 1], 1);
    assert_eq!(writer.ack(), (1, 8, 0));
    assert_untouched(&reader);
    send_blocks(&mut writer, 9, Some(1), &[0, 1], 3);
    assert_eq!(writer.ack(), (0, 9, 0), "the connection goes on after refusals");
    assert!(reader.block(0).iter().all(|byte| *byte == 3));
}

#[test]
fn a_frame_with_one_unarmed_block_changes_nothing() {
    let (mut reader, mut writer) = reader_with_writer();
    reader.arm(1, &[0, 1]);
    send_blocks(&mut writer, 7, Some(1), &[0, 2], 1);
    assert_eq!(writer.ack(), (4, 7, 2));
    send_blocks(&mut writer, 8, Some(1), &[0, u32::MAX], 1);
    assert_eq!(writer.ack(), (4, 8, u64::from(u32::MAX)));
    assert_untouched(&reader);
}

#[test]
fn a_load_of_another_session_is_closed() {
    let (mut reader, mut writer) = reader_with_writer();
    reader.transport.arm(SessionId(2), LoadToken(1), &[BlockIndex(0)]);
    send_blocks(&mut writer, 7, Some(1), &[0], 1);
    assert_eq!(writer.ack(), (3, 7, 0));
    assert_untouched(&reader);
}

#[test]
fn a_block_that_landed_is_not_written_again() {
    let (mut reader, mut writer) = reader_with_writer();
    reader.arm(1, &[0, 1]);
    send_blocks(&mut writer, 7, Some(1), &[0], 1);
    assert_eq!(writer.ack(), (0, 7, 0));
    send_blocks(&mut writer, 8, Some(1), &[0], 2);
    assert_eq!(writer.ack(), (4, 8, 0));
    send_blocks(&mut writer, 9, Some(1), &[1, 1], 2);
    assert_eq!(writer.ack(), (4, 9, 1), "twice in one frame");
    assert!(reader.block(0).iter().all(|byte| *byte == 1));
    assert!(reader.block(1).iter().all(|byte| *byte == 0xEE));
}

#[test]
fn two_frames_in_flight_cannot_share_a_block() {
    let (mut reader, mut first) = reader_with_writer();
    let mut second = RawWriter::accepted(&mut reader);
    reader.arm(1, &[0]);
    first.send(&frame(7, Some(1), LEN, &[0]));
    first.send(&vec![1; LEN / 2]);
    eventually("the first bytes are in", || reader.byte(0, 0) == 1);
    send_blocks(&mut second, 8, Some(1), &[0], 2);
    assert_eq!(second.ack(), (4, 8, 0));
    first.send(&vec![1; LEN / 2]);
    first.send(WHOLE);
    assert_eq!(first.ack(), (0, 7, 0));
    assert!(reader.block(0).iter().all(|byte| *byte == 1));
}

#[test]
fn after_a_disarm_in_the_middle_of_a_block_not_one_more_byte_lands() {
    let (mut reader, mut writer) = reader_with_writer();
    reader.arm(1, &[3, 5]);
    writer.send(&frame(7, Some(1), LEN, &[3, 5]));
    writer.send(&vec![1; LEN / 2]);
    eventually("the first bytes are in", || reader.byte(3, 0) == 1);
    if reader.transport.disarm(LoadToken(1)) == Disarm::Pending {
        assert_eq!(reader.next_event(), DataEvent::Disarmed { load: LoadToken(1) });
    }
    let at_disarm = reader.block(3);
    writer.send(&vec![2; LEN / 2 + LEN]);
    writer.send(WHOLE);
    assert_eq!(writer.ack(), (5, 7, 0));
    assert!(reader.block(3) == at_disarm);
    assert!(reader.block(5).iter().all(|byte| *byte == 0xEE));
    send_blocks(&mut writer, 8, Some(1), &[5], 2);
    assert_eq!(writer.ack(), (2, 8, 0), "the load is not known any more");
}

#[test]
fn after_a_disarm_in_the_middle_of_frames_on_two_threads_not_one_more_byte_lands() {
    let mut reader = Side::new(LEN, 8);
    reader.fill(0xEE);
    let mut writers = [0, 1].map(|stream| RawWriter::accepted_as(stream, &mut reader));
    reader.arm(1, &[3, 5]);
    for (writer, block) in writers.iter_mut().zip([3, 5]) {
        writer.send(&frame(u64::from(block), Some(1), LEN, &[block]));
        writer.send(&vec![1; LEN / 2]);
    }
    eventually("both threads have written", || reader.byte(3, 0) == 1 && reader.byte(5, 0) == 1);
    if reader.transport.disarm(LoadToken(1)) == Disarm::Pending {
        assert_eq!(reader.next_event(), DataEvent::Disarmed { load: LoadToken(1) });
    }
    let at_disarm = [3, 5].map(|block| reader.block(block));
    for (writer, block) in writers.iter_mut().zip([3, 5]) {
        writer.send(&vec![2; LEN / 2]);
        writer.send(WHOLE);
        assert_eq!(writer.ack(), (5, block, 0));
    }
    assert!([3, 5].map(|block| reader.block(block)) == at_disarm);
    assert_eq!(
        (reader.settle(), reader.landed.as_slice()),
        (vec![], &[][..]),
        "told of once, and not as landed"
    );
}

#[test]
fn a_load_whose_blocks_come_over_two_threads_has_landed_once_with_the_last() {
    let mut reader = Side::new(LEN, 8);
    let mut writers = [0, 1].map(|stream| RawWriter::accepted_as(stream, &mut reader));
    for round in 0..20 {
        reader.landed.clear();
        reader.arm(round, &[0, 1]);
        for (writer, block) in writers.iter_mut().zip([0, 1]) {
            send_blocks(writer, 7, Some(round), &[block], round as u8);
        }
        writers.iter_mut().for_each(|writer| assert_eq!(writer.ack(), (0, 7, 0)));
        assert_eq!((reader.settle(), reader.landed.as_slice()), (vec![], &[LoadToken(round)][..]));
        assert!([0, 1].iter().all(|block| reader.block(*block).iter().all(|byte| *byte == round as u8)));
    }
}

#[test]
fn a_disarm_while_the_bytes_pour_in_holds_from_its_event_on() {
    let (mut writer, mut reader) = connected(1 << 20, 32);
    let blocks: Vec<u32> = (0..32).collect();
    let pairs: Vec<(u32, u32)> = blocks.iter().map(|block| (*block, *block)).collect();
    for round in 0..20_u64 {
        writer.fill(round as u8 + 1);
        reader.fill(0xEE);
        reader.arm(round, &blocks);
        writer.write(round, round, &pairs);
        eventually("the first bytes are in", || reader.byte(0, 0) != 0xEE || reader.byte(16, 0) != 0xEE);
        if reader.transport.disarm(LoadToken(round)) == Disarm::Pending {
            assert_eq!(reader.next_event(), DataEvent::Disarmed { load: LoadToken(round) });
        }
        let at_disarm: Vec<Vec<u8>> = blocks.iter().map(|block| reader.block(*block)).collect();
        let end = writer.next_event();
        assert!(end == done(round) || matches!(end, DataEvent::TransferUnwanted { .. }), "{end:?}");
        for block in &blocks {
            assert!(
                reader.block(*block) == at_disarm[*block as usize],
                "block {block} changed after the fence"
            );
        }
    }
}

#[test]
fn a_refused_frame_fails_its_transfer_with_the_receivers_reason() {
    let (mut writer, mut reader) = connected(4096, 8);
    writer.write(1, 77, &[(0, 0)]);
    let (reason, decisive) = writer.failure_of(1);
    assert!(reason.contains("has ended or never was") && !decisive, "{reason}");
    reader.arm(78, &[1]);
    writer.write(2, 78, &[(0, 1), (0, 2)]);
    let (reason, decisive) = writer.failure_of(2);
    assert!(reason.contains("block 2 ") && !decisive, "{reason}");
}

#[test]
fn a_load_stays_armed_when_its_session_is_dropped_but_nobody_can_write() {
    let (mut reader, mut writer) = reader_with_writer();
    reader.arm(1, &[0]);
    writer.send(&frame(7, Some(1), LEN, &[0]));
    writer.send(&vec![1; LEN / 2]);
    eventually("the first bytes are in", || reader.byte(0, 0) == 1);
    reader.transport.drop_peer(SESSION);
    assert!(writer.is_closed_by_peer());
    assert_eq!(reader.transport.disarm(LoadToken(1)), Disarm::Done);
    assert!(reader.block(0)[LEN / 2..].iter().all(|byte| *byte == 0xEE));
}

#[test]
fn disarming_what_is_not_armed_is_done() {
    let mut reader = Side::new(LEN, 8);
    assert_eq!(reader.transport.disarm(LoadToken(1)), Disarm::Done);
    reader.arm(1, &[0]);
    assert_eq!(reader.transport.disarm(LoadToken(1)), Disarm::Done);
    assert_eq!(reader.transport.disarm(LoadToken(1)), Disarm::Done);
}

#[test]
fn a_load_has_landed_when_its_last_armed_block_is_in_and_not_before() {
    let (mut reader, mut writer) = reader_with_writer();
    reader.arm(1, &[0, 1, 2]);
    send_blocks(&mut writer, 7, Some(1), &[2, 0], 1);
    assert_eq!(writer.ack(), (0, 7, 0));
    send_blocks(&mut writer, 8, Some(1), &[0], 9);
    assert_eq!(writer.ack(), (4, 8, 0), "a block that is in is not written again, nor counted");
    assert_eq!((reader.settle(), reader.landed.as_slice()), (vec![], &[][..]));
    send_blocks(&mut writer, 9, Some(1), &[1], 1);
    assert_eq!(writer.ack(), (0, 9, 0));
    assert_eq!((reader.settle(), reader.landed.as_slice()), (vec![], &[LoadToken(1)][..]));
    assert_eq!(reader.transport.disarm(LoadToken(1)), Disarm::Done);
}

#[test]
fn a_frame_that_was_withdrawn_does_not_count_as_landed() {
    let (mut reader, mut writer) = reader_with_writer();
    reader.arm(1, &[0, 1]);
    send_blocks(&mut writer, 7, Some(1), &[0], 1);
    assert_eq!(writer.ack(), (0, 7, 0));
    writer.send(&frame(8, Some(1), LEN, &[1]));
    writer.send(&vec![0; LEN]);
    writer.send(WITHDRAWN);
    assert_eq!(writer.ack(), (6, 8, 0));
    assert_eq!((reader.settle(), reader.landed.as_slice()), (vec![], &[][..]));
}

#[test]
fn a_frame_that_ends_in_anything_else_ends_the_connection() {
    let (mut reader, mut writer) = reader_with_writer();
    reader.arm(1, &[0]);
    writer.send(&frame(7, Some(1), LEN, &[0]));
    writer.send(&vec![0; LEN]);
    writer.send(b"kvFR");
    assert!(writer.is_closed_by_peer());
    assert_eq!((reader.settle(), reader.landed.as_slice()), (vec![], &[][..]));
}
