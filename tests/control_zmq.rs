//! The control transport against itself, against raw sockets and against a system without descriptors; loopback only.
#![allow(clippy::disallowed_methods)] // tests hold real waits against real clocks

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use p2pkv::control::zmq::{Heartbeat, ZmqConfig, ZmqReceiver, ZmqSender, open};
use p2pkv::control::{ControlEvent, ControlReceiver, ControlSender};
use p2pkv::protocol::error::ErrorKind;
use p2pkv::protocol::ids::{PeerId, SessionId};
use p2pkv::protocol::timer::Timestamp;

/// No wait of these tests is longer.
const PATIENCE: Duration = Duration::from_secs(11);
const LINGER: Duration = Duration::from_millis(500);
const S: SessionId = SessionId(1);
const T: SessionId = SessionId(2);

struct Tier {
    id: PeerId,
    sender: ZmqSender,
    receiver: ZmqReceiver,
    events: Vec<ControlEvent>,
    born: Instant,
}

fn config() -> ZmqConfig {
    ZmqConfig { bind_host: "127.0.0.1".to_owned(), ..ZmqConfig::default() }
}

impl Tier {
    fn new() -> Tier {
        Tier::with(&config())
    }

    fn with(config: &ZmqConfig) -> Tier {
        let (id, sender, receiver) = open(config).unwrap();
        Tier { id, sender, receiver, events: Vec::new(), born: Instant::now() }
    }

    /// The restarted tier at a port that another one left.
    fn at(port: u16) -> Tier {
        Tier::with(&ZmqConfig { port, ..config() })
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(u64::try_from(self.born.elapsed().as_nanos()).unwrap())
    }

    fn dial(&mut self, session: SessionId, peer: &PeerId) {
        let now = self.now();
        self.sender.dial(now, session, peer);
    }

    fn close(&mut self, session: SessionId, linger: Duration) {
        let now = self.now();
        self.sender.close(now, session, linger);
    }

    /// Sleeps on the sender's fd as the tier does, then polls.
    fn poll(&mut self, at_most: Duration) {
        let at_most = self.sender.next_deadline().map_or(at_most, |due| due.since(self.now()).min(at_most));
        wait_readable(&[self.sender.event_fd()], at_most);
        let now = self.now();
        self.sender.poll(now, &mut self.events);
    }

    fn poll_until(&mut self, what: &str, mut done: impl FnMut(&mut Tier) -> bool) {
        let limit = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < limit, "{what}: not within {PATIENCE:?}; events: {:?}", self.events);
            self.poll(Duration::from_millis(50));
        }
    }

    fn lost(&self) -> Vec<&str> {
        self.events
            .iter()
            .filter_map(|event| match event {
                ControlEvent::ConnectionLost { reason, .. } => Some(reason.as_str()),
                _ => None,
            })
            .collect()
    }

    /// The next message, sleeping on the receiver's fd only: a lost wake-up shows as a failure.
    fn receive(&mut self) -> Message {
        let limit = Instant::now() + PATIENCE;
        loop {
            if let Some(message) = self.receiver.receive() {
                return Message { identity: message.identity.to_vec(), payload: message.payload.to_vec() };
            }
            let left = limit.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "nothing was received within {PATIENCE:?}");
            assert!(wait_readable(&[self.receiver.event_fd()], left), "nothing woke the receiver");
        }
    }

    fn expect(&mut self, from: &PeerId, payload: &[u8]) {
        let message = self.receive();
        assert_eq!(String::from_utf8_lossy(&message.identity), from.as_str());
        assert_eq!(message.payload, payload);
    }
}

/// A received message, kept.
struct Message {
    identity: Vec<u8>,
    payload: Vec<u8>,
}

fn wait_readable(fds: &[i32], at_most: Duration) -> bool {
    let mut fds: Vec<libc::pollfd> =
        fds.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    let timeout = i32::try_from(at_most.as_millis() + 1).unwrap();
    // SAFETY: the pointer and the length are those of a live vector.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
    ready > 0
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn peer_at(port: u16) -> PeerId {
    PeerId::from_host_port("127.0.0.1", port).unwrap()
}

fn count_dir(path: &str) -> usize {
    std::fs::read_dir(path).unwrap().count()
}

#[test]
fn both_directions_exchange_in_order() {
    let (mut a, mut b) = (Tier::new(), Tier::new());
    let (a_id, b_id) = (a.id.clone(), b.id.clone());
    a.dial(S, &b_id);
    b.dial(S, &a_id);
    for n in 0..100u8 {
        a.sender.send(S, &[n; 40]);
        b.sender.send(S, &[n; 3]);
    }
    for n in 0..100u8 {
        b.expect(&a_id, &[n; 40]);
        a.expect(&b_id, &[n; 3]);
    }
    assert!(a.receiver.receive().is_none());
    assert_eq!(a.sender.open_connections(), 1);
}

#[test]
fn a_large_message_arrives_whole() {
    let (mut a, mut b) = (Tier::new(), Tier::new());
    let b_id = b.id.clone();
    a.dial(S, &b_id);
    let payload: Vec<u8> = (0..8 << 20).map(|n: u32| n.to_le_bytes()[1]).collect();
    a.sender.send(S, &payload);
    assert!(b.receive().payload == payload);
}

#[test]
fn a_dial_before_the_peer_listens_waits_for_it_without_an_event() {
    let mut a = Tier::new();
    let port = free_port();
    a.dial(S, &peer_at(port));
    a.sender.send(S, b"early");
    let bind_at = Instant::now() + Duration::from_millis(300);
    while Instant::now() < bind_at {
        a.poll(Duration::from_millis(50));
    }
    assert_eq!(a.events, []);
    let mut b = Tier::at(port);
    b.expect(&a.id, b"early");
    a.poll(Duration::ZERO);
    assert_eq!(a.events, []);
}

#[test]
fn a_lost_peer_is_told_once_and_its_connection_ends() {
    let (mut a, mut b) = (Tier::new(), Tier::new());
    let b_id = b.id.clone();
    a.dial(S, &b_id);
    a.sender.send(S, b"hello");
    b.expect(&a.id, b"hello");
    drop(b);
    a.poll_until("the loss is told", |a| !a.lost().is_empty());
    a.sender.send(S, b"into the void");
    a.poll_until("nothing is left", |a| a.sender.open_connections() == 0);
    let now = a.now();
    a.sender.redial(now, S);
    a.poll(Duration::from_millis(200));
    assert_eq!(a.lost().len(), 1, "{:?}", a.events);
    assert_eq!(a.sender.open_connections(), 0, "a lost session stays lost");
    a.close(S, LINGER);
}

#[test]
fn a_restarted_peer_is_heard_at_once() {
    let mut a = Tier::new();
    let a_id = a.id.clone();
    let port = free_port();
    for life in 0..5u8 {
        let mut b = Tier::at(port);
        b.dial(S, &a_id);
        // Unread leftovers of the former life may come under an odd identity first.
        b.sender.send(S, &[life; 8]);
        b.sender.send(S, &[life; 8]);
        let limit = Instant::now() + Duration::from_secs(2);
        loop {
            let message = a.receive();
            let known = std::str::from_utf8(&message.identity).is_ok_and(|id| PeerId::parse(id).is_ok());
            if known && message.payload == [life; 8] {
                break;
            }
            assert!(Instant::now() < limit, "life {life} is not heard");
        }
        b.close(S, LINGER);
    }
}

#[test]
fn a_restarted_peer_is_heard_although_its_old_connection_is_still_there() {
    let mut b = Tier::new();
    let context = zmq::Context::new();
    let mut lives = Vec::new();
    for life in 0..5u8 {
        let dealer = context.socket(zmq::DEALER).unwrap();
        dealer.set_linger(0).unwrap();
        dealer.set_identity(b"crashed:1").unwrap();
        dealer.connect(&format!("tcp://{}", b.id)).unwrap();
        dealer.send([life].as_slice(), 0).unwrap();
        let message = b.receive();
        assert_eq!(
            (message.identity.as_slice(), message.payload.as_slice()),
            (&b"crashed:1"[..], &[life][..])
        );
        lives.push(dealer);
    }
}

/// Passes on what two sides say, until it is cut.
fn passed_on(from: TcpStream, to: &TcpStream) {
    for (mut from, mut to) in
        [(&from, to), (to, &from)].map(|(a, b)| (a.try_clone().unwrap(), b.try_clone().unwrap()))
    {
        thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
    }
}

#[test]
fn a_last_word_after_a_loss_reaches_a_peer_that_is_well() {
    let (mut a, mut b) = (Tier::new(), Tier::new());
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let through = peer_at(between.local_addr().unwrap().port());
    a.dial(S, &through);
    a.sender.send(S, b"hello");
    let (first, _) = between.accept().unwrap();
    let to_b = TcpStream::connect(("127.0.0.1", b.id.port())).unwrap();
    passed_on(first.try_clone().unwrap(), &to_b);
    b.expect(&a.id.clone(), b"hello");
    first.shutdown(std::net::Shutdown::Both).unwrap();
    a.poll_until("the loss is told", |a| a.lost().len() == 1);
    a.sender.send(S, b"goodbye");
    a.sender.send(S, b"and this is too late");
    a.close(S, LINGER);
    let a_id = a.id.clone();
    let passing = thread::spawn(move || {
        let (second, _) = between.accept().unwrap();
        passed_on(second, &TcpStream::connect(("127.0.0.1", b.id.port())).unwrap());
        b.expect(&a_id, b"goodbye");
    });
    a.poll_until("nothing is left", |a| a.sender.open_connections() == 0);
    passing.join().unwrap();
}

#[test]
fn a_full_send_queue_is_a_lost_connection() {
    let mut a = Tier::with(&ZmqConfig { send_backlog: 0, ..config() });
    a.dial(S, &peer_at(free_port()));
    for _ in 0..1000 {
        a.sender.send(S, b"x");
    }
    a.poll(Duration::ZERO);
    assert_eq!(a.events, []);
    a.sender.send(S, b"one too many");
    assert!(wait_readable(&[a.sender.event_fd()], PATIENCE), "an event must wake the tier");
    a.poll(Duration::ZERO);
    assert!(a.lost()[0].starts_with("send queue full"), "{:?}", a.events);
    a.poll_until("nothing is left", |a| a.sender.open_connections() == 0);
}

#[test]
fn a_burst_larger_than_the_queue_reaches_a_peer_that_reads_whole_and_in_order() {
    let (mut a, mut b) = (Tier::new(), Tier::new());
    a.dial(S, &b.id);
    for round in 0..3u32 {
        for n in 0..20_000u32 {
            a.sender.send(S, &(round * 20_000 + n).to_le_bytes());
        }
        let mut expected = round * 20_000;
        let limit = Instant::now() + PATIENCE;
        while expected < (round + 1) * 20_000 {
            assert!(Instant::now() < limit, "{expected} have come; events: {:?}", a.events);
            // Only an event makes the sender go on: room that it does not hear of would show as a failure.
            wait_readable(&[a.sender.event_fd(), b.receiver.event_fd()], Duration::from_millis(50));
            a.poll(Duration::ZERO);
            while let Some(message) = b.receiver.receive() {
                assert_eq!(message.payload, expected.to_le_bytes());
                expected += 1;
            }
        }
        assert_eq!(a.events, []);
    }
    a.close(S, LINGER);
    a.poll_until("nothing is left", |a| a.sender.open_connections() == 0);
}

#[test]
fn a_server_that_speaks_something_else_is_a_failed_handshake() {
    let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let peer = peer_at(server.local_addr().unwrap().port());
    let answering = thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        let _ = stream.read(&mut [0; 64]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    });
    let mut a = Tier::new();
    a.dial(S, &peer);
    a.sender.send(S, b"hello");
    a.poll_until("the loss is told", |a| !a.events.is_empty());
    assert!(a.lost()[0].contains("handshake failed"), "{:?}", a.events);
    assert!(a.lost()[0].contains(peer.as_str()), "{:?}", a.events);
    answering.join().unwrap();
}

#[test]
fn garbage_at_the_router_disturbs_nobody() {
    let (mut a, mut b) = (Tier::new(), Tier::new());
    let b_id = b.id.clone();
    a.dial(S, &b_id);
    a.sender.send(S, b"before");
    b.expect(&a.id, b"before");

    let hello = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[0x5a; 200]].concat();
    let mut noise = 1u64;
    let random: Vec<u8> = (0..4096)
        .map(|_| {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            noise.to_le_bytes()[7]
        })
        .collect();
    let greeting = [&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1][..], b"NULL", &[0; 48], &random].concat();
    let huge =
        [&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0][..], b"NULL", &[0; 48], &[6], &[0xff; 8]].concat();
    let mut raw = Vec::new();
    for bytes in
        [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), b"help\r\n".to_vec(), hello, random, greeting, huge]
    {
        let mut stream = TcpStream::connect(("127.0.0.1", b.id.port())).unwrap();
        let _ = stream.write_all(&bytes);
        raw.push(stream);
    }
    a.sender.send(S, b"during");
    loop {
        let message = b.receive();
        if message.identity == a.id.as_str().as_bytes() {
            assert_eq!(message.payload, b"during");
            break;
        }
        let dialable = std::str::from_utf8(&message.identity).is_ok_and(|id| PeerId::parse(id).is_ok());
        assert!(!dialable, "garbage came under a dialable name");
    }
    drop(raw);
    a.sender.send(S, b"after");
    while b.receive().payload != b"after" {}
    a.poll(Duration::ZERO);
    assert_eq!(a.events, []);
}

#[test]
fn messages_with_a_wrong_frame_count_are_dropped_and_counted() {
    let mut b = Tier::new();
    let context = zmq::Context::new();
    let dealer = context.socket(zmq::DEALER).unwrap();
    dealer.set_linger(0).unwrap();
    dealer.set_identity(b"odd:1").unwrap();
    dealer.connect(&format!("tcp://{}", b.id)).unwrap();
    dealer.send_multipart([&b"a"[..], b"b"], 0).unwrap();
    dealer.send_multipart([&b""[..], b"b", b"c"], 0).unwrap();
    dealer.send("fine", 0).unwrap();
    assert_eq!(b.receive().payload, b"fine");
    assert_eq!(b.receiver.dropped(), 2);
}

#[test]
fn an_oversized_message_ends_only_the_connection_that_it_came_by() {
    let mut b = Tier::with(&ZmqConfig { max_message_bytes: 1000, ..config() });
    let b_id = b.id.clone();
    let (mut a, mut c) = (Tier::new(), Tier::new());
    a.dial(S, &b_id);
    a.sender.send(S, &[0; 1001]);
    a.poll_until("the connection is cut", |a| !a.lost().is_empty());
    c.dial(S, &b_id);
    c.sender.send(S, &[1; 1000]);
    b.expect(&c.id, &[1; 1000]);
}

#[test]
fn ipv6_loopback_works() {
    if TcpListener::bind(("::1", 0)).is_err() {
        return;
    }
    let mut b = Tier::with(&ZmqConfig { bind_host: "::1".to_owned(), ..ZmqConfig::default() });
    let b_id = b.id.clone();
    assert!(b_id.as_str().starts_with("[::1]:"));
    let mut a = Tier::new();
    a.dial(S, &b_id);
    a.sender.send(S, b"six");
    b.expect(&a.id, b"six");
}

#[test]
fn names_are_resolved_and_queued_messages_follow() {
    let mut b = Tier::with(&ZmqConfig { bind_host: "localhost".to_owned(), ..ZmqConfig::default() });
    let b_id = b.id.clone();
    assert_eq!(b_id.host(), "localhost");
    let mut a = Tier::new();
    a.dial(S, &b_id);
    a.sender.send(S, b"one");
    a.sender.send(S, b"two");
    assert_eq!(a.sender.open_connections(), 1);
    a.poll_until("the name is resolved", |a| !a.events.is_empty());
    let ControlEvent::Resolved { session, addresses } = &a.events[0] else { panic!("{:?}", a.events) };
    assert_eq!((*session, addresses[0].port()), (S, b_id.port()));
    b.expect(&a.id, b"one");
    b.expect(&a.id, b"two");
}

#[test]
fn a_name_that_does_not_exist_is_told() {
    let mut a = Tier::new();
    a.dial(S, &PeerId::parse("no-such-host.invalid:7").unwrap());
    a.poll_until("it is told", |a| !a.events.is_empty());
    let ControlEvent::Unresolvable { session, reason } = &a.events[0] else { panic!("{:?}", a.events) };
    assert_eq!(*session, S);
    assert!(reason.contains("no-such-host.invalid"), "{reason}");
    assert_eq!(a.sender.open_connections(), 0);
}

#[test]
fn a_name_is_dialled_again_only_when_its_peer_can_have_noticed_the_close() {
    let (mut a, mut b) = (Tier::new(), Tier::new());
    let b_id = b.id.clone();
    a.dial(S, &b_id);
    a.close(S, LINGER);
    a.poll_until("it ends", |a| a.sender.open_connections() == 0);
    a.dial(T, &b_id);
    a.sender.send(T, b"x");
    a.poll(Duration::ZERO);
    assert!(a.sender.next_deadline().is_some(), "the dial waits");
    a.poll_until("the new dial's message", |_| b.receiver.receive().is_some());
    assert_eq!(a.sender.next_deadline(), None);
}

#[test]
fn a_dial_waits_until_the_earlier_connection_is_really_closed() {
    let mut a = Tier::new();
    let port = free_port();
    let peer = peer_at(port);
    a.dial(S, &peer);
    // Keeps the old connection for its whole linger: nobody listens.
    a.sender.send(S, b"old");
    a.close(S, LINGER);
    let closed_at = Instant::now();
    a.dial(T, &peer);
    a.sender.send(T, b"first");
    a.sender.send(T, b"second");
    assert_eq!(a.sender.open_connections(), 2);
    a.poll_until("the old connection is gone", |a| a.sender.open_connections() == 1);
    assert!(closed_at.elapsed() >= LINGER - Duration::from_millis(50), "{:?}", closed_at.elapsed());
    let mut b = Tier::at(port);
    a.poll_until("the new dial's first message", |_| {
        b.receiver.receive().is_some_and(|message| message.payload == b"first")
    });
    b.expect(&a.id, b"second");
    assert_eq!(a.events, []);
}

#[test]
fn what_waits_for_an_earlier_connection_is_bounded() {
    let mut a = Tier::with(&ZmqConfig { send_backlog: 0, ..config() });
    let peer = peer_at(free_port());
    a.dial(S, &peer);
    a.dial(T, &peer);
    for _ in 0..1001 {
        a.sender.send(T, b"x");
    }
    a.poll(Duration::ZERO);
    assert!(a.lost()[0].starts_with("send queue full"), "{:?}", a.events);
}

#[test]
fn a_redial_reaches_a_router_without_handover() {
    let context = zmq::Context::new();
    let router = context.socket(zmq::ROUTER).unwrap();
    router.set_linger(0).unwrap();
    router.set_rcvtimeo(10_000).unwrap();
    router.bind("tcp://127.0.0.1:*").unwrap();
    let endpoint = router.get_last_endpoint().unwrap().unwrap();
    let peer = PeerId::parse(endpoint.trim_start_matches("tcp://")).unwrap();
    let mut a = Tier::new();
    a.dial(S, &peer);
    for n in 0..10u8 {
        a.sender.send(S, &[n]);
        let frames = router.recv_multipart(0).unwrap();
        assert_eq!(frames, [a.id.as_str().as_bytes().to_vec(), vec![n]]);
        let now = a.now();
        a.sender.redial(now, S);
        a.sender.send(S, b"again");
        // As vLLM does: its loop looks at the socket all the time.
        a.poll_until("the redial is heard", |_| {
            router.recv_multipart(zmq::DONTWAIT).is_ok_and(|frames| frames[1] == b"again")
        });
    }
    assert_eq!(a.events, []);
}

#[test]
fn a_thousand_dials_leave_no_fd_and_no_thread_and_the_router_hears() {
    if std::env::var_os("P2PKV_TEST_CHILD").is_none() {
        return run_in_child("a_thousand_dials_leave_no_fd_and_no_thread_and_the_router_hears");
    }
    let mut a = Tier::new();
    let everywhere = ZmqConfig { bind_host: "0.0.0.0".to_owned(), ..config() };
    let mut b = Tier::with(&ZmqConfig { advertised_host: Some("127.0.0.1".to_owned()), ..everywhere });
    let port = b.id.port();
    let peer_name = |n| PeerId::from_host_port(&format!("127.0.{}.{}", n / 250, n % 250 + 1), port).unwrap();
    let mut base = None;
    for n in 0..1000u64 {
        let session = SessionId(n);
        // One listener under many names, since a name is not dialled again at once.
        a.dial(session, &peer_name(n));
        if n % 2 == 0 {
            a.sender.send(session, &n.to_le_bytes());
            b.expect(&a.id, &n.to_le_bytes());
        }
        a.close(session, if n % 3 == 0 { LINGER } else { Duration::ZERO });
        a.poll_until("it ends", |a| a.sender.open_connections() == 0);
        if n == 10 {
            base = Some((count_dir("/proc/self/fd"), count_dir("/proc/self/task")));
        }
    }
    a.dial(S, &peer_name(1000));
    a.sender.send(S, b"still there");
    b.expect(&a.id, b"still there");
    a.close(S, LINGER);
    a.poll_until("it ends", |a| a.sender.open_connections() == 0);
    assert_eq!(a.events, []);
    let (fds, threads) = base.unwrap();
    let settled = Instant::now() + PATIENCE;
    while count_dir("/proc/self/fd") > fds + 2 && Instant::now() < settled {
        a.poll(Duration::from_millis(10));
    }
    assert!(count_dir("/proc/self/fd") <= fds + 2, "{} fds, {fds} at first", count_dir("/proc/self/fd"));
    assert_eq!(count_dir("/proc/self/task"), threads);
}

#[test]
fn peers_that_leave_while_we_close_never_make_the_tier_deaf() {
    let mut a = Tier::new();
    let a_id = a.id.clone();
    let mut known = std::collections::HashSet::new();
    for n in 0..300u64 {
        // A name that was there before is not dialled at once, and a port may come again.
        let mut b = std::iter::repeat_with(Tier::new).find(|b| known.insert(b.id.clone())).unwrap();
        let b_id = b.id.clone();
        a.dial(SessionId(n), &b_id);
        b.dial(S, &a_id);
        b.sender.send(S, &n.to_le_bytes());
        a.sender.send(SessionId(n), &n.to_le_bytes());
        b.expect(&a_id, &n.to_le_bytes());
        while a.receive().payload != n.to_le_bytes() {}
        let together = Arc::new(Barrier::new(2));
        let departs = Arc::clone(&together);
        let leaving = thread::spawn(move || {
            departs.wait();
            drop(b);
        });
        together.wait();
        // Spread over the departure, from before it to its middle.
        for _ in 0..n % 40 {
            std::hint::spin_loop();
            a.poll(Duration::ZERO);
        }
        a.close(SessionId(n), LINGER);
        a.poll_until("it ends", |a| a.sender.open_connections() == 0);
        leaving.join().unwrap();
    }
    let mut b = Tier::new();
    b.dial(S, &a_id);
    b.sender.send(S, b"do you hear me");
    while a.receive().payload != b"do you hear me" {}
}

#[test]
fn dropping_with_queued_messages_is_quick_and_frees_the_port() {
    for close_first in [false, true] {
        let mut a = Tier::new();
        let port = a.id.port();
        a.dial(S, &peer_at(free_port()));
        a.dial(T, &PeerId::parse("no-such-host.invalid:7").unwrap());
        for _ in 0..100 {
            a.sender.send(S, &[0; 1000]);
        }
        if close_first {
            a.close(S, Duration::from_secs(60));
        }
        let begun = Instant::now();
        drop(a);
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        drop(TcpListener::bind(("127.0.0.1", port)).unwrap());
        drop(Tier::at(port));
    }
}

#[test]
fn what_was_queued_before_a_close_arrives_although_the_tier_is_dropped() {
    let mut b = Tier::new();
    let b_id = b.id.clone();
    let mut a = Tier::new();
    a.dial(S, &b_id);
    for n in 0..100u8 {
        a.sender.send(S, &[n]);
    }
    a.close(S, LINGER);
    let a_id = a.id.clone();
    drop(a);
    for n in 0..100u8 {
        b.expect(&a_id, &[n]);
    }
}

#[test]
fn a_silent_peer_is_lost_by_heartbeat() {
    let heartbeat = Heartbeat {
        interval: Duration::from_millis(100),
        timeout: Duration::from_millis(300),
        ttl: Duration::from_millis(300),
    };
    let mut a = Tier::with(&ZmqConfig { heartbeat, ..config() });
    let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    a.dial(S, &peer_at(server.local_addr().unwrap().port()));
    let (mut stream, _) = server.accept().unwrap();
    // A ROUTER's handshake, then silence.
    stream.write_all(&[&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1][..], b"NULL", &[0; 48]].concat()).unwrap();
    let ready = [&b"\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER"[..]].concat();
    stream.write_all(&[4, u8::try_from(ready.len()).unwrap()]).unwrap();
    stream.write_all(&ready).unwrap();
    a.poll_until("the silence is told", |a| !a.lost().is_empty());
    assert!(a.lost()[0].contains("silent"), "{:?}", a.events);
}

#[test]
fn addresses_that_cannot_be_bound_are_refused_with_what_to_do() {
    let a = Tier::new();
    let open_at = |bind_host: &str, port| {
        let config = ZmqConfig { bind_host: bind_host.to_owned(), port, ..ZmqConfig::default() };
        open(&config).map(|(id, _, _)| id).unwrap_err()
    };
    let taken = open_at("127.0.0.1", a.id.port());
    assert_eq!(taken.kind, ErrorKind::AddressInUse);
    assert!(taken.message.contains(a.id.as_str()) && taken.message.contains("another port"), "{taken}");
    for host in ["192.0.2.1", "no-such-host.invalid", "0.0.0.0", "bad host", ""] {
        let error = open_at(host, 0);
        assert_eq!(error.kind, ErrorKind::AddressInvalid, "{host}: {error}");
        assert!(error.message.contains(host), "{host}: {error}");
    }
    let config = ZmqConfig { max_peers: 100_000, ..config() };
    assert_eq!(open(&config).map(|_| ()).unwrap_err().kind, ErrorKind::LimitExceeded);
}

#[test]
fn a_wildcard_listens_everywhere_under_the_advertised_name() {
    let mut b = Tier::with(&ZmqConfig {
        bind_host: "0.0.0.0".to_owned(),
        advertised_host: Some("127.0.0.1".to_owned()),
        ..ZmqConfig::default()
    });
    let b_id = b.id.clone();
    let mut a = Tier::new();
    a.dial(S, &b_id);
    a.sender.send(S, b"x");
    b.expect(&a.id, b"x");
}

#[test]
fn every_descriptor_is_closed_on_exec() {
    if std::env::var_os("P2PKV_TEST_CHILD").is_none() {
        return run_in_child("every_descriptor_is_closed_on_exec");
    }
    let before: Vec<_> =
        std::fs::read_dir("/proc/self/fd").unwrap().map(|f| f.unwrap().file_name()).collect();
    let (mut a, mut b) = (Tier::new(), Tier::new());
    let b_id = b.id.clone();
    a.dial(S, &b_id);
    a.sender.send(S, b"x");
    b.expect(&a.id, b"x");
    let mut seen = 0;
    for entry in std::fs::read_dir("/proc/self/fdinfo").unwrap() {
        let name = entry.unwrap().file_name();
        let Ok(info) = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", name.display())) else {
            continue;
        };
        if before.contains(&name) {
            continue;
        }
        seen += 1;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
        let flags = i32::from_str_radix(flags, 8).unwrap();
        let what = std::fs::read_link(format!("/proc/self/fd/{}", name.display()));
        assert!(flags & libc::O_CLOEXEC != 0, "fd {} ({what:?}) survives exec", name.display());
    }
    assert!(seen > 10, "only {seen} descriptors were looked at");
}

#[test]
fn without_descriptors_a_dial_is_lost_and_an_open_refused_but_nothing_aborts() {
    if std::env::var_os("P2PKV_TEST_CHILD").is_none() {
        return run_in_child("without_descriptors_a_dial_is_lost_and_an_open_refused_but_nothing_aborts");
    }
    let (mut a, mut b) = (Tier::new(), Tier::new());
    let b_id = b.id.clone();
    a.dial(S, &b_id);
    a.sender.send(S, b"before");
    b.expect(&a.id, b"before");
    // For every number of free descriptors from none up to enough.
    for free in 0..12u64 {
        set_open_files(count_dir("/proc/self/fd") as u64 + free);
        let session = SessionId(100 + free);
        a.dial(session, &peer_at(1));
        a.poll(Duration::ZERO);
        if free < 7 {
            let lost = a.lost();
            let reason = lost.last().expect("the dial is lost");
            assert!(reason.contains("ulimit -n"), "{reason}");
        }
        let refused = open(&config()).map(|_| ()).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::OutOfResources);
        assert!(refused.message.contains("ulimit -n"), "{refused}");
        a.close(session, Duration::ZERO);
        a.poll_until("it ends", |a| a.sender.open_connections() == 1);
        a.sender.send(S, b"during");
        b.expect(&a.id, b"during");
    }
    set_open_files(1024);
    a.dial(T, &b_id);
    a.close(S, LINGER);
    a.sender.send(T, b"after");
    a.poll_until("the new dial's message", |_| {
        b.receiver.receive().is_some_and(|message| message.payload == b"after")
    });
}

fn set_open_files(limit: u64) {
    let limits = libc::rlimit { rlim_cur: limit, rlim_max: 4096 };
    // SAFETY: the pointer is to a live value.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limits) }, 0);
}

/// Runs one test of this file in a process of its own, where descriptors and threads are only its.
fn run_in_child(test: &str) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env("P2PKV_TEST_CHILD", "1")
        .output()
        .unwrap();
    assert!(
        child.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&child.stdout),
        String::from_utf8_lossy(&child.stderr)
    );
}
