//! Whatever else connects to the ports of a tier is none of its peers' business.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::peer::{Config, Engine, HIT, Random, blocks, free_port, tags};

fn telnet() -> Vec<u8> {
    b"GET / HTTP/1.1\r\nHost: kv\r\n\r\nhello?\r\n".to_vec()
}

/// The start of a TLS 1.2 handshake: a record header, a ClientHello header, then what is left of it.
fn tls_hello() -> Vec<u8> {
    let mut hello = vec![0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03];
    hello.resize(517, 0x5a);
    hello
}

fn noise(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..100_000).map(|_| random.below(256) as u8).collect()
}

/// A ZMTP greeting that is right, then nonsense.
fn half_zmtp() -> Vec<u8> {
    let mut greeting = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
    greeting.extend_from_slice(b"NULL");
    greeting.resize(64, 0);
    greeting.extend(noise(3));
    greeting
}

/// Connects, says it, and keeps the line open.
fn visit(port: u16, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    // The tier may hang up, or not read on.
    let _ = stream.write_all(bytes);
    let mut answer = [0; 64];
    match stream.read(&mut answer) {
        Ok(_) => {}
        Err(error) => assert!(
            matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::ConnectionReset),
            "{error}"
        ),
    }
    stream
}

#[test]
fn wrong_bytes_on_both_ports_do_not_touch_a_pull_that_is_going_on() {
    let configs = [0, 1].map(|_| Config { data_port: free_port(), ..Config::large() });
    let [mut producer, mut consumer] = configs.each_ref().map(Engine::new);
    let ports = [producer.port(), consumer.port(), configs[0].data_port, configs[1].data_port];
    producer.publish(&blocks(128), &tags(0, 128));
    let fds = |engine: &Engine| engine.fds();
    let mut before = [0, 0];
    for round in 0..6 {
        let id = format!("r{round}");
        consumer.ask_from(&id, producer.id());
        assert_eq!(consumer.look_up(&id, &tags(0, 128)), [HIT; 128]);
        consumer.load(&id, 1, &tags(0, 128), &blocks(128));
        let words = [telnet(), tls_hello(), noise(round + 1), half_zmtp(), Vec::new()];
        let visitors: Vec<TcpStream> =
            ports.iter().flat_map(|port| words.iter().map(|bytes| visit(*port, bytes))).collect();
        consumer.result().expect("DONE");
        consumer.assert_holds(&blocks(128), &tags(0, 128));
        consumer.fill(&blocks(128), &[9; 128]);
        consumer.finish(&id);
        drop(visitors);
        if round == 0 {
            crate::common::eventually("visitors of the first round are gone", || {
                std::mem::replace(&mut before, [fds(&producer), fds(&consumer)])
                    == [fds(&producer), fds(&consumer)]
            });
        }
    }
    assert_eq!([producer.stat("sessions_lost"), consumer.stat("sessions_lost")], [0, 0]);
    assert_eq!([producer.stat("peers"), consumer.stat("peers")], [1, 1], "no visitor became a peer");
    crate::common::eventually("all visitors are gone", || {
        [fds(&producer), fds(&consumer)].iter().zip(&before).all(|(now, before)| now <= before)
    });
}
