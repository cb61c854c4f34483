//! Who is meant by a name, and who is not there.

use std::time::{Duration, Instant};

use crate::peer::{Config, Engine, Times, free_port};

const QUICKLY: Duration = Duration::from_secs(3);

/// A producer bound as `host` is pulled from by the name `dialed`, twice, and pulls back by its consumer's own name.
fn is_one_peer(host: &'static str, dialed: &str) {
    let mut producer = Engine::new(&Config { host, ..Config::default() });
    let mut consumer = Engine::new(&Config { host, ..Config::default() });
    producer.publish(&[0, 1], &[1, 2]);
    let name = format!("{dialed}:{}", producer.port());
    let start = Instant::now();
    consumer.pull("first", &name, &[1], &[5]);
    consumer.pull("second", &name, &[2], &[6]);
    assert!(start.elapsed() < QUICKLY, "{:?}", start.elapsed());
    consumer.republish(&[5], &[1]);
    producer.pull("back", consumer.id(), &[1], &[9]);
    consumer.pull("by its own name", producer.id(), &[2], &[7]);
    assert_eq!(consumer.stat("peers"), 1, "{}", consumer.peers());
    assert_eq!(producer.stat("peers"), 1, "{}", producer.peers());
}

#[test]
fn localhost_may_be_dialled_by_its_address() {
    is_one_peer("localhost", "127.0.0.1");
}

#[test]
fn an_address_may_be_dialled_by_its_name() {
    is_one_peer("127.0.0.1", "localhost");
}

#[test]
fn localhost_may_be_dialled_by_its_name() {
    is_one_peer("localhost", "localhost");
}

#[test]
fn ipv6_works() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: this machine has no ::1");
        return;
    }
    is_one_peer("::1", "[::1]");
    is_one_peer("[::1]", "::1");
}

#[test]
fn a_tier_cannot_pull_from_itself() {
    let mut engine = Engine::new(&Config::default());
    let itself = engine.id().to_owned();
    let params = crate::peer::symmetric("r", &itself);
    let refusal = engine.try_request("r", &params, Times::default()).unwrap_err();
    assert_eq!(refusal.status, -7, "{refusal:?}");
    assert!(refusal.text.contains(&itself), "{refusal:?}");
    engine.assert_comes_to_rest(0);
}

#[test]
fn a_tier_that_dials_itself_by_another_name_is_told_quickly() {
    for (host, dialed) in [("127.0.0.1", "localhost"), ("localhost", "127.0.0.1")] {
        let mut engine = Engine::new(&Config { host, ..Config::default() });
        let name = format!("{dialed}:{}", engine.port());
        engine.pull_from("r", &name);
        let start = Instant::now();
        engine.load("r", 1, &[1], &[0]);
        let result = engine.result();
        result.expect("INCOMPATIBLE");
        assert!(start.elapsed() < QUICKLY, "{:?}", start.elapsed());
        assert!(result.detail.contains("itself") && result.detail.contains(&name), "{result:?}");
        engine.finish("r");
        engine.assert_comes_to_rest(0);
        assert_eq!(engine.stat("peers"), 0, "{}", engine.peers());
    }
}

#[test]
fn a_consumer_may_dial_before_its_producer_listens() {
    let port = free_port();
    let mut consumer = Engine::new(&Config::default());
    let peer = format!("127.0.0.1:{port}");
    consumer.pull_from("r", &peer);
    consumer.load("r", 1, &[1], &[3]);
    assert!(consumer.has_no_result_for(Duration::from_secs(1)), "a refused dial ended the load");
    let start = Instant::now();
    let mut producer = Engine::new(&Config { port, ..Config::default() });
    producer.fill(&[0], &[1]);
    producer.serve("r");
    producer.store("r", 10, &[1], &[0]);
    consumer.result().expect("DONE");
    assert!(start.elapsed() < QUICKLY, "{:?}", start.elapsed());
    consumer.assert_holds(&[3], &[1]);
    producer.result().expect("DONE");
}

#[test]
fn a_peer_that_nobody_starts_is_given_up_at_the_handshake_deadline() {
    let mut consumer = Engine::new(&Config { handshake_ms: 1000, ..Config::default() });
    let peer = format!("127.0.0.1:{}", free_port());
    let start = Instant::now();
    consumer.pull_from("r", &peer);
    consumer.load("r", 1, &[1], &[0]);
    consumer.ask_from("asked", &peer);
    assert_eq!(consumer.look_up("asked", &[1]), [crate::peer::MISS]);
    let result = consumer.result();
    result.expect("NO_PEER");
    assert!(result.detail.contains(&peer), "{result:?}");
    let took = start.elapsed();
    assert!(took > Duration::from_millis(900) && took < Duration::from_millis(2500), "{took:?}");
    consumer.finish("r");
    consumer.finish("asked");
    consumer.assert_comes_to_rest(0);
}

#[test]
fn a_name_that_does_not_exist_is_given_up_quickly() {
    let mut consumer = Engine::new(&Config::default());
    let start = Instant::now();
    consumer.pull_from("r", "no-such-host.invalid:7777");
    consumer.load("r", 1, &[1], &[0]);
    let result = consumer.result();
    result.expect("NO_PEER");
    assert!(result.detail.contains("no-such-host.invalid"), "{result:?}");
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}
