//! Processes that freeze, die and come back, and connections that are reset.

use std::time::{Duration, Instant};

use crate::peer::{Config, Engine, HIT, MIB, Random, blocks, free_port, symmetric, tags};
use crate::run::{Run, held, permitted, times, tool};

/// What a survivor needs at most to know of a death that the operating system tells of.
const SOON: Duration = Duration::from_secs(5);

fn medium() -> Config {
    Config { num_blocks: 64, block_len: MIB, handshake_ms: 3000, ..Config::default() }
}

#[test]
fn freezes_of_either_side() {
    let mut run = Run::new("freeze", "SIGSTOP for 0 to 40 ms of either side, four times in each pull");
    let (mut producer, mut consumer) = (Engine::new(&Config::large()), Engine::new(&Config::large()));
    producer.publish(&blocks(64), &tags(0, 64));
    run.pull(&mut consumer, "before", producer.id(), &tags(0, 64), &blocks(64));
    let before = [held(&producer), held(&consumer)];
    let mut random = Random(71);
    for round in 0..times(5, 80) {
        let id = format!("r{round}");
        consumer.ask_from(&id, producer.id());
        assert_eq!(consumer.look_up(&id, &tags(0, 64)), [HIT; 64]);
        run.load(&mut consumer, &id, &tags(0, 64), &blocks(64));
        for _ in 0..4 {
            std::thread::sleep(Duration::from_micros(random.below(10_000)));
            let engine = if random.below(2) == 0 { &producer } else { &consumer };
            engine.stop();
            std::thread::sleep(Duration::from_micros(random.below(40_000)));
            engine.go_on();
            run.injections += 1;
        }
        run.collect_one(&mut consumer).expect("DONE");
        run.check(&mut consumer, &blocks(64), &tags(0, 64));
        consumer.fill(&blocks(64), &[9; 64]);
        consumer.finish(&id);
    }
    run.rests(&mut producer, 64, before[0]);
    run.rests(&mut consumer, 0, before[1]);
    run.end();
}

#[test]
fn kills_of_a_producer() {
    let mut run =
        Run::new("kill -9 of a producer", "at any moment of a pull; the next life is another process");
    let mut consumer = Engine::new(&medium());
    let mut random = Random(72);
    let mut before = None;
    for round in 0..times(4, 40) {
        let id = format!("r{round}");
        let mut producer = Engine::new(&medium());
        producer.fill(&blocks(64), &tags(0, 64));
        producer.serve(&id);
        producer.store(&id, 10, &tags(0, 64), &blocks(64));
        consumer.pull_from(&id, producer.id());
        run.load(&mut consumer, &id, &tags(0, 64), &blocks(64));
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        producer.kill();
        run.injections += 1;
        let death = Instant::now();
        let result = run.collect_one(&mut consumer);
        assert!(death.elapsed() < SOON, "{result:?} after {:?}", death.elapsed());
        match result.name.as_str() {
            "DONE" => run.check(&mut consumer, &blocks(64), &tags(0, 64)),
            "PEER_LOST" | "NO_PEER" | "TRANSPORT_FAILED" => {}
            unexpected => panic!("{unexpected}: {result:?}"),
        }
        consumer.fill(&blocks(64), &tags(7000, 64));
        consumer.finish(&id);
        consumer.assert_comes_to_rest(0);
        run.check(&mut consumer, &blocks(64), &tags(7000, 64));
        before.get_or_insert_with(|| held(&consumer));
    }
    run.rests(&mut consumer, 0, before.unwrap());
    run.end();
}

#[test]
fn kills_of_a_consumer() {
    let mut run =
        Run::new("kill -9 of a consumer", "at any moment of a store; the next life is another process");
    let mut producer = Engine::new(&Config { unbound_store_ms: 1500, ..medium() });
    producer.fill(&blocks(64), &tags(0, 64));
    let mut random = Random(73);
    let mut before = None;
    for round in 0..times(4, 40) {
        let id = format!("r{round}");
        let mut consumer = Engine::new(&medium());
        producer.serve(&id);
        consumer.pull_from(&id, producer.id());
        consumer.load(&id, 1, &tags(0, 64), &blocks(64));
        run.store(&mut producer, &id, &tags(0, 32), &blocks(32));
        run.store(&mut producer, &id, &tags(32, 32), &(32..64).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        consumer.kill();
        run.injections += 1;
        // Stores whose fetch never came wait for somebody else a while.
        let death = Instant::now();
        run.collect(&mut producer, 2);
        assert!(death.elapsed() < SOON, "{:?}", death.elapsed());
        producer.finish(&id);
        producer.assert_comes_to_rest(0);
        before.get_or_insert_with(|| held(&producer));
    }
    run.rests(&mut producer, 0, before.unwrap());
    run.end();
}

#[test]
fn restarts_at_the_same_port() {
    let mut run =
        Run::new("restart at the same port", "kill -9, a new process at the same ports, a pull at once");
    let config = Config { port: free_port(), data_port: free_port(), ..Config::default() };
    let mut consumer = Engine::new(&Config::default());
    let mut before = None;
    for life in 0..times(6, 60) {
        let mut producer = Engine::new(&config);
        producer.publish(&blocks(4), &tags(life * 10, 4));
        let start = Instant::now();
        pull_until_it_works(&mut run, &mut consumer, &format!("r{life}"), producer.id(), &tags(life * 10, 4));
        run.spent(start.elapsed());
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        producer.kill();
        run.injections += 1;
        crate::common::eventually("the death is noticed", || consumer.stat("peers") == 0);
        before.get_or_insert_with(|| held(&consumer));
    }
    run.rests(&mut consumer, 0, before.unwrap());
    run.end();
}

/// As an engine does that computes meanwhile.
fn pull_until_it_works(run: &mut Run, consumer: &mut Engine, id: &str, peer: &str, tags: &[u64]) {
    let start = Instant::now();
    for attempt in 0.. {
        let id = format!("{id}.{attempt}");
        consumer.ask_from(&id, peer);
        let to = blocks(tags.len() as u32);
        if consumer.look_up(&id, tags).iter().all(|state| *state == HIT) {
            run.load(consumer, &id, tags, &to);
            if run.collect_one(consumer).name == "DONE" {
                run.check(consumer, &to, tags);
                return consumer.finish(&id);
            }
        }
        let why = consumer.failure(&id);
        consumer.finish(&id);
        assert!(start.elapsed() < SOON, "attempt {attempt}: {why:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_tier_that_ends_and_begins_again_at_once_loses_no_first_message() {
    let mut run = Run::new(
        "end and new begin in the same tick",
        "p2p_tier_free, p2p_tier_new at the same ports, a pull at once",
    );
    let config = Config { port: free_port(), data_port: free_port(), ..Config::default() };
    let mut producer = Engine::new(&Config::default());
    producer.publish(&blocks(4), &tags(0, 4));
    let mut consumer = Engine::new(&config);
    let mut before = None;
    for life in 0..times(30, 1000) {
        // The very first lookup and load have to work.
        run.pull(&mut consumer, &format!("r{life}"), producer.id(), &tags(0, 4), &blocks(4));
        if life == times(10, 20) {
            before = Some([held(&producer), held(&consumer)]);
        }
        let start = Instant::now();
        consumer.free(true);
        consumer.open(&config).unwrap();
        run.spent(start.elapsed());
        run.injections += 1;
    }
    run.pull(&mut consumer, "last", producer.id(), &tags(0, 4), &blocks(4));
    let before = before.unwrap();
    run.rests(&mut producer, 4, before[0]);
    run.rests(&mut consumer, 0, before[1]);
    run.end();
}

#[test]
fn peers_that_come_and_go_leave_nothing_behind() {
    let mut run =
        Run::new("peers that come and go", "a new tier at a new port for each pull, ended by p2p_tier_free");
    let mut producer = Engine::new(&Config::default());
    producer.publish(&blocks(4), &tags(0, 4));
    let mut visitor = Engine::without_tier();
    let mut before = None;
    for number in 0..times(15, 250) {
        visitor.open(&Config::default()).unwrap();
        run.pull(&mut visitor, &format!("r{number}"), producer.id(), &tags(0, 4), &blocks(4));
        visitor.free(true);
        run.injections += 1;
        if number == times(4, 20) {
            crate::common::eventually("all sessions are gone", || producer.stat("peers") == 0);
            before = Some(held(&producer));
        }
    }
    crate::common::eventually("all sessions are gone", || producer.stat("peers") == 0);
    run.rests(&mut producer, 4, before.unwrap());
    run.end();
}

/// Ends all connections to or from a port with a reset at both ends.
fn reset(port: u16) {
    for side in ["sport", "dport"] {
        tool("ss", &["-K", "-t", side, "=", &format!(":{port}")]);
    }
}

/// Whether the kernel lets us reset connections of others.
fn may_reset() -> bool {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    if tool("ss", &["-V"]) {
        reset(address.port());
    }
    let was_reset = std::io::Read::read(&mut stream, &mut [0; 1]).is_err_and(|error| {
        !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
    });
    permitted("resetting connections (ss -K)", was_reset)
}

/// Both engines know of a broken data connection in less than a second.
#[test]
fn resets_of_the_data_connection() {
    if !may_reset() {
        return;
    }
    let mut run = Run::new("reset of the data connection", "ss -K in the middle of a transfer");
    let config = Config { data_port: free_port(), ..Config::large() };
    let (mut producer, mut consumer) = (Engine::new(&Config::large()), Engine::new(&config));
    producer.fill(&blocks(128), &tags(0, 128));
    let mut random = Random(74);
    let mut before = None;
    for round in 0..times(5, 40) {
        let id = format!("r{round}");
        producer.serve(&id);
        consumer.pull_from(&id, producer.id());
        run.load(&mut consumer, &id, &tags(0, 128), &blocks(128));
        run.store(&mut producer, &id, &tags(0, 128), &blocks(128));
        std::thread::sleep(Duration::from_micros(random.below(30_000)));
        reset(config.data_port);
        run.injections += 1;
        let start = Instant::now();
        let results = [run.collect_one(&mut consumer), run.collect_one(&mut producer)];
        if results[0].name == "DONE" {
            run.check(&mut consumer, &blocks(128), &tags(0, 128));
        } else {
            // Three in a row fault the peer, so these may name the session.
            assert!(start.elapsed() < Duration::from_secs(1), "{:?}: {results:?}", start.elapsed());
        }
        consumer.finish(&id);
        producer.finish(&id);
        // Also where three failures in a row ended the session: the next attempt may be made to wait for it.
        pull_again(&mut run, &mut consumer, &mut producer, &format!("again{round}"));
        before.get_or_insert_with(|| [held(&producer), held(&consumer)]);
    }
    let before = before.unwrap();
    run.rests(&mut producer, 0, before[0]);
    run.rests(&mut consumer, 0, before[1]);
    run.end();
}

fn pull_again(run: &mut Run, consumer: &mut Engine, producer: &mut Engine, id: &str) {
    producer.republish(&blocks(4), &tags(0, 4));
    pull_until_it_works(run, consumer, id, producer.id(), &tags(0, 4));
    crate::common::eventually("the pins are gone", || producer.unpublish(&tags(0, 4)));
}

#[test]
fn resets_of_the_control_connection() {
    if !may_reset() {
        return;
    }
    let mut run = Run::new("reset of the control connection", "ss -K in the middle of a transfer");
    let (mut producer, mut consumer) = (Engine::new(&Config::large()), Engine::new(&Config::large()));
    producer.publish(&blocks(128), &tags(0, 128));
    let mut before = None;
    for round in 0..times(5, 40) {
        let id = format!("r{round}");
        consumer.ask_from(&id, producer.id());
        assert_eq!(consumer.look_up(&id, &tags(0, 128)), [HIT; 128], "{:?}", consumer.failure(&id));
        run.load(&mut consumer, &id, &tags(0, 128), &blocks(128));
        // Either way one of the two notices, and has to tell the other.
        reset(if round % 2 == 0 { producer.port() } else { consumer.port() });
        run.injections += 1;
        let start = Instant::now();
        let result = run.collect_one(&mut consumer);
        assert!(start.elapsed() < SOON, "{:?}: {result:?}", start.elapsed());
        match result.name.as_str() {
            "DONE" => run.check(&mut consumer, &blocks(128), &tags(0, 128)),
            "PEER_LOST" | "TRANSPORT_FAILED" | "NOT_SUPPLIED" => {}
            unexpected => panic!("{unexpected}: {result:?}"),
        }
        consumer.finish(&id);
        pull_until_it_works(&mut run, &mut consumer, &format!("again{round}"), producer.id(), &tags(0, 4));
        producer.assert_comes_to_rest(128);
        before.get_or_insert_with(|| [held(&producer), held(&consumer)]);
    }
    let before = before.unwrap();
    run.rests(&mut producer, 128, before[0]);
    run.rests(&mut consumer, 0, before[1]);
    run.end();
}

/// What a peer that stops reading costs: memory that is bounded by its messages, and nobody else's time.
#[test]
fn a_peer_that_stops_reading_while_everyone_sends_to_it() {
    let mut run =
        Run::new("peer that stops reading", "SIGSTOP, then lookups, loads and stores toward it without end");
    let (mut frozen, mut other) = (Engine::new(&Config::default()), Engine::new(&Config::default()));
    let mut engine = Engine::new(&Config { num_blocks: 256, ..Config::default() });
    frozen.publish(&blocks(4), &tags(0, 4));
    other.publish(&blocks(4), &tags(0, 4));
    run.pull(&mut engine, "first", frozen.id(), &tags(0, 4), &blocks(4));
    run.pull(&mut engine, "second", other.id(), &tags(0, 4), &blocks(4));
    run.calls(&mut engine);
    let before = held(&engine);
    frozen.stop();
    run.injections += 1;
    let step = symmetric("step", frozen.id());
    for round in 0..times(3, 40) {
        engine.steps(1000, &step, &tags(10_000, 60), &(100..160).collect::<Vec<_>>());
        let start = Instant::now();
        run.pull(&mut engine, &format!("o{round}"), other.id(), &tags(0, 4), &blocks(4));
        run.spent(start.elapsed());
    }
    // What may wait for one peer is 64 MiB of messages, and what libzmq and the kernel hold of them.
    run.grown(&engine, before, 160 << 10);
    frozen.go_on();
    crate::common::eventually("the peer is heard again", || {
        engine.ask_from("after", frozen.id());
        let found = engine.look_up("after", &tags(0, 4));
        engine.finish("after");
        found == [HIT; 4]
    });
    run.calls(&mut engine);
    run.end();
}
