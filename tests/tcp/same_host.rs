//! Between processes of one host the receiver copies the blocks itself: mapped memory, and `process_vm_readv`.

use std::io::{IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use super::harness::*;
use p2pkv::data::same_host::SharedMemory;
use p2pkv::data::tcp::TcpConfig;
use p2pkv::data::{DataEvent, DataTransport, Disarm};
use p2pkv::protocol::config::Reach;
use p2pkv::protocol::ids::{LoadToken, TransferId};

fn writer_for(reach: Reach, block_len: usize, num_blocks: u32) -> Side {
    match reach {
        Reach::Mapped => Side::shared(block_len, num_blocks),
        Reach::Stream | Reach::VmRead => Side::new(block_len, num_blocks),
    }
}

fn connected_by(reach: Reach, block_len: usize, num_blocks: u32) -> (Side, Side) {
    let (mut writer, mut reader) =
        (writer_for(reach, block_len, num_blocks), Side::new(block_len, num_blocks));
    assert_eq!(connect_on_this_host(&mut writer, &mut reader), reach);
    (writer, reader)
}

fn each_reach(test: impl Fn(Reach)) {
    [Reach::Mapped, Reach::VmRead].into_iter().for_each(test);
}

/// Moves `locals[i]` to `remotes[i]` and compares every block of the reader.
fn move_and_compare(block_len: usize, num_blocks: u32, locals: &[u32], remotes: &[u32]) {
    each_reach(|reach| {
        let (mut writer, mut reader) = connected_by(reach, block_len, num_blocks);
        writer.paint(1);
        reader.fill(0xEE);
        reader.arm(5, remotes);
        let pairs: Vec<(u32, u32)> = locals.iter().copied().zip(remotes.iter().copied()).collect();
        writer.write(9, 5, &pairs);
        assert_eq!(writer.next_event(), done(9));
        reader.settle();
        assert_eq!(reader.landed, [LoadToken(5)]);
        let untouched = vec![0xEE; block_len];
        for block in 0..num_blocks {
            let source = remotes.iter().position(|remote| *remote == block).map(|position| locals[position]);
            let want = source.map_or_else(|| untouched.clone(), |local| writer.block(local));
            assert!(reader.block(block) == want, "{reach}: block {block} of {block_len} bytes differs");
        }
    });
}

#[test]
fn blocks_of_every_shape_arrive_where_they_belong() {
    move_and_compare(1, 3000, &shuffled(3000, 1)[..2000], &shuffled(3000, 2)[..2000]);
    move_and_compare(4097, 300, &shuffled(300, 3)[..201], &shuffled(300, 4)[..201]);
    move_and_compare(16 << 10, 1100, &shuffled(1100, 5)[..1024], &shuffled(1100, 6)[..1024]);
    move_and_compare(16 << 10, 64, &[3; 60], &shuffled(64, 9)[..60]);
    move_and_compare(8 << 20, 4, &[1, 3], &[0, 2]);
}

#[test]
fn a_disarm_in_the_middle_of_the_copying_holds_from_its_event_on() {
    each_reach(|reach| {
        let (mut writer, mut reader) = connected_by(reach, 1 << 20, 64);
        let blocks: Vec<u32> = (0..64).collect();
        let pairs: Vec<(u32, u32)> = blocks.iter().map(|block| (*block, *block)).collect();
        for round in 0..10_u64 {
            writer.fill(round as u8 + 1);
            reader.fill(0xEE);
            reader.arm(round, &blocks);
            writer.write(round, round, &pairs);
            eventually("the first bytes are in", || reader.byte(0, 0) != 0xEE);
            if reader.transport.disarm(LoadToken(round)) == Disarm::Pending {
                assert_eq!(reader.next_event(), DataEvent::Disarmed { load: LoadToken(round) });
            }
            let at_disarm: Vec<Vec<u8>> = blocks.iter().map(|block| reader.block(*block)).collect();
            let end = writer.next_event();
            assert!(end == done(round) || matches!(end, DataEvent::TransferUnwanted { .. }), "{end:?}");
            for block in &blocks {
                let unchanged = reader.block(*block) == at_disarm[*block as usize];
                assert!(unchanged, "{reach}: block {block} changed after the fence");
            }
        }
    });
}

#[test]
fn without_a_socket_beside_the_data_port_blocks_go_over_tcp() {
    let mut writer = Side::shared(4096, 8);
    let mut reader = Side::with(4096, 8, &TcpConfig { same_host: false, ..loopback() });
    assert_eq!(connect_on_this_host(&mut writer, &mut reader), Reach::Stream);
    writer.paint(2);
    reader.arm(1, &[5]);
    writer.write(1, 1, &[(3, 5)]);
    assert_eq!(writer.next_event(), done(1));
    assert!(reader.block(5) == writer.block(3));
}

// ---- by hand ----

fn name_of(port: u16) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("p2pkv-data-{port}")).unwrap()
}

fn handover(base_addr: u64, num_blocks: u32) -> Vec<u8> {
    let mut bytes = b"kvHO".to_vec();
    bytes.extend(std::process::id().to_le_bytes());
    bytes.extend(base_addr.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend(num_blocks.to_le_bytes());
    bytes.extend([0; 4]);
    bytes
}

fn pull_frame(transfer: u64, load: u64, block_len: usize, pairs: &[(u32, u32)]) -> Vec<u8> {
    let destinations: Vec<u32> = pairs.iter().map(|(_, to)| *to).collect();
    let mut bytes = frame(transfer, Some(load), block_len, &destinations);
    bytes[4] |= 2;
    bytes.extend(pairs.iter().flat_map(|(from, _)| from.to_le_bytes()));
    bytes
}

/// A writer by hand with a mapped region, accepted as the peer of `SESSION`.
fn raw_writer(reader: &mut Side, memory: &SharedMemory, num_blocks: u32) -> UnixStream {
    reader.transport.expect_peer(SESSION, TOKEN);
    let stream = UnixStream::connect_addr(&name_of(reader.transport.local_port())).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    let mut message = hello(2, reader.block_len as u64, TOKEN);
    message.extend(handover(memory.start() as u64, num_blocks));
    let (file, _) = memory.holds(memory.start() as u64, 1).unwrap();
    send_with(&stream, &message, file);
    let mut answer = [0; 16];
    (&stream).read_exact(&mut answer).unwrap();
    assert_eq!((&answer[..4], answer[4], answer[8]), (&b"kvAN"[..], 0, 1), "accepted, mapped");
    stream
}

fn send_with(stream: &UnixStream, message: &[u8], file: std::os::fd::BorrowedFd<'_>) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    let sent = sendmsg(stream.as_fd(), &[IoSlice::new(message)], &mut control, SendFlags::empty());
    assert_eq!(sent, Ok(message.len()));
}

fn is_closed(mut stream: &UnixStream) -> bool {
    matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_))
}

#[test]
fn a_writer_that_lets_go_of_its_blocks_before_they_are_copied_has_not_delivered_them() {
    let mut reader = Side::new(64 << 20, 8);
    let memory = SharedMemory::new(8 * (64 << 20), false).unwrap();
    let mut writer = raw_writer(&mut reader, &memory, 8);
    let blocks: Vec<u32> = (0..8).collect();
    reader.arm(1, &blocks);
    let pairs: Vec<(u32, u32)> = blocks.iter().map(|block| (*block, *block)).collect();
    writer.write_all(&pull_frame(7, 1, 64 << 20, &pairs)).unwrap();
    // Half a gigabyte cannot have been copied by now.
    drop(writer);
    eventually("the reader has noticed", || {
        let _ = reader.settle();
        assert!(reader.landed.is_empty(), "blocks counted that their writer had let go of");
        reader.transport.disarm(LoadToken(1)) == Disarm::Done
    });
    reader.settle();
    assert!(reader.landed.is_empty());
}

#[test]
fn a_writer_cannot_name_blocks_that_it_does_not_have() {
    let mut reader = Side::new(4096, 8);
    let memory = SharedMemory::new(4 * 4096, false).unwrap();
    let mut writer = raw_writer(&mut reader, &memory, 4);
    reader.arm(1, &[0]);
    writer.write_all(&pull_frame(7, 1, 4096, &[(4, 0)])).unwrap();
    assert!(is_closed(&writer));
    reader.settle();
    assert!(reader.landed.is_empty());
}

#[test]
fn a_region_that_is_larger_than_its_file_is_not_mapped() {
    let mut reader = Side::new(4096, 8);
    let memory = SharedMemory::new(4 * 4096, false).unwrap();
    reader.transport.expect_peer(SESSION, TOKEN);
    let stream = UnixStream::connect_addr(&name_of(reader.transport.local_port())).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    let mut message = hello(2, 4096, TOKEN);
    // Nor is there anything at that address.
    message.extend(handover(4096, 8));
    let (file, _) = memory.holds(memory.start() as u64, 1).unwrap();
    send_with(&stream, &message, file);
    let mut answer = [0; 16];
    (&stream).read_exact(&mut answer).unwrap();
    assert_eq!(answer[4], 5, "refused: cannot be reached");
    assert!(is_closed(&stream));
}

#[test]
fn frames_that_bring_bytes_and_frames_that_do_not_are_not_mixed_up() {
    let mut reader = Side::new(4096, 8);
    let memory = SharedMemory::new(8 * 4096, false).unwrap();
    let mut local = raw_writer(&mut reader, &memory, 8);
    local.write_all(&frame(7, Some(1), 4096, &[0])).unwrap();
    assert!(is_closed(&local));
    let mut tcp = RawWriter::accepted(&mut reader);
    tcp.send(&pull_frame(7, 1, 4096, &[(0, 0)]));
    assert!(tcp.is_closed_by_peer());
}

#[test]
fn strangers_at_the_local_socket_are_sent_away() {
    let reader = Side::new(4096, 8);
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0, 0], &hello(2, 4096, b"wrong token")] {
        let mut stream = UnixStream::connect_addr(&name_of(reader.transport.local_port())).unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        let mut bytes = bytes.to_vec();
        bytes.extend(handover(4096, 8));
        stream.write_all(&bytes).unwrap();
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(said.is_empty() || said[4] != 0, "{said:?}");
    }
}

#[test]
fn a_reader_that_does_not_answer_to_a_cancel_loses_its_connection_and_the_blocks_are_free() {
    // The place of a reader that never reads, with a data port for its name.
    let door = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = door.local_addr().unwrap().port();
    let frozen = UnixListener::bind_addr(&name_of(port)).unwrap();
    let mut writer = Side::shared(4096, 8);
    let offer = p2pkv::data::PeerOffer::Tcp {
        addresses: vec![door.local_addr().unwrap()],
        token: TOKEN.to_vec(),
        num_blocks: 8,
        same_host: true,
    };
    writer.transport.register_peer(SESSION, offer);
    let (mut stream, _) = frozen.accept().unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    let mut greeting = vec![0; 28 + TOKEN.len() + 32];
    stream.read_exact(&mut greeting).unwrap();
    let mut accepted = b"kvAN".to_vec();
    accepted.extend(0_u32.to_le_bytes());
    accepted.extend(1_u64.to_le_bytes());
    stream.write_all(&accepted).unwrap();
    assert_eq!(writer.next_event(), DataEvent::PeerRegistered { session: SESSION, reach: Reach::Mapped });

    writer.write(1, 1, &[(0, 0)]);
    writer.transport.cancel(&[TransferId(1)]);
    let (reason, decisive) = writer.failure_of(1);
    assert!(reason == "cancelled" && !decisive, "{reason}");
    let mut frames = Vec::new();
    let _ = stream.read_to_end(&mut frames);
    assert!(frames.is_empty() || frames.len() == 48, "one frame, and then the end");
}
