//! Bytes that are none of ours, on both ports, while another peer pulls; see also tests/hostile.rs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::peer::{Config, Engine, HIT, Random, blocks, free_port, tags};
use crate::run::{Run, held, times};

fn telnet() -> Vec<u8> {
    b"GET / HTTP/1.1\r\nHost: kv\r\n\r\nhello?\r\n".to_vec()
}

fn tls_hello() -> Vec<u8> {
    let mut hello = vec![0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03];
    hello.resize(517, 0x5a);
    hello
}

fn noise(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..100_000).map(|_| random.below(256) as u8).collect()
}

/// A ZMTP 3.0 DEALER up to the end of its handshake.
fn zmtp_dealer(identity: &str) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(64, 0);
    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    for (name, value) in [("", "DEALER"), ("Identity", identity)] {
        if !name.is_empty() {
            ready.push(name.len() as u8);
            ready.extend_from_slice(name.as_bytes());
        }
        ready.extend_from_slice(&u32::try_from(value.len()).unwrap().to_be_bytes());
        ready.extend_from_slice(value.as_bytes());
    }
    bytes.extend([0x04, u8::try_from(ready.len()).unwrap()]);
    bytes.extend(ready);
    bytes
}

/// One frame of a message; `more` follow. Its promised length may be another than its real one.
fn zmtp_frame(payload: &[u8], promised: u64, more: bool) -> Vec<u8> {
    let mut bytes = vec![0x02 | u8::from(more)];
    bytes.extend(promised.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

fn spoken(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = zmtp_dealer("127.0.0.1:9");
    frames.iter().for_each(|frame| bytes.extend_from_slice(frame));
    bytes
}

fn wrong_frame_count() -> Vec<u8> {
    let part = |more| zmtp_frame(b"\x81\xa4type\xa6lookup", 13, more);
    spoken(&[part(true), part(true), part(false)])
}

/// A msgpack array in an array, and so on.
fn deep_msgpack() -> Vec<u8> {
    let deep = vec![0x91; 200_000];
    spoken(&[zmtp_frame(&deep, 200_000, false)])
}

fn gib_frame() -> Vec<u8> {
    spoken(&[zmtp_frame(&[0x90; 1000], 1 << 30, false)])
}

/// A hello of the data plane with a token that nobody gave out, and one that promises a longer one than there may be.
fn data_hellos(token_len: u16) -> Vec<u8> {
    let mut bytes = b"p2pkvtcp".to_vec();
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend((16_u64 << 10).to_le_bytes());
    bytes.extend([0, 0, 1, 0]);
    bytes.extend(token_len.to_le_bytes());
    bytes.extend([0; 2]);
    bytes.extend([7; 256]);
    // A frame of 1 GiB behind it, for whoever reads on.
    bytes.extend_from_slice(b"kvFR");
    bytes.extend([0xff; 36]);
    bytes
}

/// Connects, says it, and keeps the line open.
fn visit(port: u16, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    // The tier may hang up, or not read on, or answer.
    let _ = stream.write_all(bytes);
    let _ = stream.read(&mut [0; 64]);
    stream
}

/// Everything, to each of the ports.
pub fn visit_all(ports: [u16; 2]) -> Vec<TcpStream> {
    let words = [
        telnet(),
        tls_hello(),
        noise(5),
        wrong_frame_count(),
        deep_msgpack(),
        gib_frame(),
        data_hellos(256),
        data_hellos(u16::MAX),
        Vec::new(),
    ];
    ports.iter().flat_map(|port| words.iter().map(|bytes| visit(*port, bytes))).collect()
}

#[test]
fn bytes_that_are_not_ours() {
    let mut run = Run::new(
        "bytes that are not ours",
        "telnet, TLS, noise, wrong frames, 200,000-deep msgpack, 1 GiB promised",
    );
    let configs = [0, 1].map(|_| Config { data_port: free_port(), ..Config::large() });
    let [mut producer, mut consumer] = configs.each_ref().map(Engine::new);
    producer.publish(&blocks(64), &tags(0, 64));
    run.pull(&mut consumer, "first", producer.id(), &tags(0, 64), &blocks(64));
    let before = [held(&producer), held(&consumer)];
    for round in 0..times(4, 20) {
        let id = format!("r{round}");
        consumer.ask_from(&id, producer.id());
        assert_eq!(consumer.look_up(&id, &tags(0, 64)), [HIT; 64]);
        run.load(&mut consumer, &id, &tags(0, 64), &blocks(64));
        let at_producer = visit_all([producer.port(), configs[0].data_port]);
        let at_consumer = visit_all([consumer.port(), configs[1].data_port]);
        run.injections += (at_producer.len() + at_consumer.len()) as u64;
        run.collect_one(&mut consumer).expect("DONE");
        run.check(&mut consumer, &blocks(64), &tags(0, 64));
        consumer.fill(&blocks(64), &[9; 64]);
        consumer.finish(&id);
    }
    assert_eq!([producer.stat("sessions_lost"), consumer.stat("sessions_lost")], [0, 0]);
    assert_eq!([producer.stat("peers"), consumer.stat("peers")], [1, 1], "no visitor became a peer");
    run.rests(&mut producer, 64, before[0]);
    run.rests(&mut consumer, 0, before[1]);
    run.end();
}
