//! Every operation ends by its deadline, whatever the peer does or does not.

use std::net::TcpListener;
use std::time::Duration;

use crate::peer::{Config, Engine, MISS, Times, blocks, free_port, pd, producer, symmetric, tags};
use crate::run::{Run, held, times, transfer_begins};

/// Long before any heartbeat or tier-wide deadline.
const DEADLINE_MS: u64 = 400;
const DEADLINE: Duration = Duration::from_millis(DEADLINE_MS);

fn patient() -> Times {
    Times::default()
}

fn impatient() -> Times {
    Times { load_ms: DEADLINE_MS, lookup_ms: DEADLINE_MS, store_ms: DEADLINE_MS }
}

/// Lets a transfer begin, then freezes the process.
fn freeze_soon(engine: &Engine) {
    std::thread::sleep(Duration::from_millis(2));
    engine.stop();
}

#[test]
fn loads_from_a_frozen_producer() {
    let mut run = Run::new("frozen producer: load", "SIGSTOP in the middle of the transfer");
    let (mut producer, mut consumer) = (Engine::new(&Config::large()), Engine::new(&Config::large()));
    producer.publish(&blocks(64), &tags(0, 64));
    run.pull(&mut consumer, "before", producer.id(), &tags(0, 64), &blocks(64));
    let before = [held(&producer), held(&consumer)];
    for round in 0..times(3, 25) {
        let id = format!("r{round}");
        consumer.try_request(&id, &symmetric(&id, producer.id()), impatient()).unwrap();
        consumer.look_up(&id, &tags(0, 64));
        run.load(&mut consumer, &id, &tags(0, 64), &blocks(64));
        freeze_soon(&producer);
        let result = run.collect_one(&mut consumer);
        run.injections += 1;
        if result.name != "DONE" {
            result.expect("TIMED_OUT");
            run.ended("a load", result.took, DEADLINE);
        }
        // From here on the blocks are the engine's: what is left of the transfer must not land in them.
        consumer.fill(&blocks(64), &tags(5000, 64));
        producer.go_on();
        consumer.finish(&id);
        run.pull(
            &mut consumer,
            &format!("n{round}"),
            producer.id(),
            &tags(0, 8),
            &[64, 65, 66, 67, 68, 69, 70, 71],
        );
        producer.assert_comes_to_rest(64);
        run.check(&mut consumer, &blocks(64), &tags(5000, 64));
    }
    run.rests(&mut producer, 64, before[0]);
    run.rests(&mut consumer, 0, before[1]);
    run.end();
}

#[test]
fn stores_for_a_frozen_consumer() {
    let mut run = Run::new("frozen consumer: store", "SIGSTOP in the middle of the transfer");
    let (mut producer, mut consumer) = (Engine::new(&Config::large()), Engine::new(&Config::large()));
    let before = [held(&producer), held(&consumer)].map(|mut held| {
        held.allow_one_peer();
        held
    });
    for round in 0..times(3, 25) {
        let id = format!("r{round}");
        producer.fill(&blocks(64), &tags(0, 64));
        producer.try_request(&id, &crate::peer::producer(&id), impatient()).unwrap();
        consumer.try_request(&id, &pd(&id, producer.id()), patient()).unwrap();
        run.load(&mut consumer, &id, &tags(0, 64), &blocks(64));
        run.store(&mut producer, &id, &tags(0, 64), &blocks(64));
        transfer_begins(&mut producer);
        consumer.stop();
        let result = run.collect_one(&mut producer);
        run.injections += 1;
        if result.name != "DONE" {
            result.expect("TIMED_OUT");
            run.ended("a store", result.took, DEADLINE);
        }
        // The blocks are the engine's: their next bytes must not reach the consumer.
        producer.fill(&blocks(64), &tags(9000, 64));
        producer.finish(&id);
        consumer.go_on();
        let load = run.collect_one(&mut consumer);
        if load.name == "DONE" {
            run.check(&mut consumer, &blocks(64), &tags(0, 64));
        }
        consumer.finish(&id);
    }
    run.rests(&mut producer, 0, before[0]);
    run.rests(&mut consumer, 0, before[1]);
    run.end();
}

#[test]
fn stores_that_nobody_fetches() {
    let mut run = Run::new("absent consumer: store", "nobody fetches");
    let mut engine = Engine::new(&Config::default());
    let before = held(&engine);
    for round in 0..times(3, 50) {
        let id = format!("r{round}");
        engine.try_request(&id, &producer(&id), impatient()).unwrap();
        run.store(&mut engine, &id, &tags(0, 4), &blocks(4));
        run.injections += 1;
        let result = run.collect_one(&mut engine);
        result.expect("NOT_FETCHED");
        run.ended("a store", result.took, DEADLINE);
        engine.finish(&id);
    }
    run.rests(&mut engine, 0, before);
    run.end();
}

/// Lookups and loads toward a peer that never says a word.
fn silence(run: &mut Run, engine: &mut Engine, peer: &str, round: u64) {
    let (ask, pull) = (format!("ask{round}"), format!("pull{round}"));
    engine.try_request(&ask, &symmetric(&ask, peer), impatient()).unwrap();
    engine.try_request(&pull, &pd(&pull, peer), impatient()).unwrap();
    run.load(engine, &pull, &tags(0, 4), &blocks(4));
    let found = engine.look_up_now(&ask, &tags(0, 4));
    assert!(found.iter().all(|state| *state != MISS), "asked, not answered: {found:?}");
    let (status, took) = engine.wait("lookups", &ask, Duration::from_secs(20));
    assert_eq!(status, 0);
    run.ended("a lookup", took.max(DEADLINE), DEADLINE);
    assert_eq!(engine.look_up_now(&ask, &tags(0, 4)), [MISS; 4]);
    let result = run.collect_one(engine);
    result.expect("TIMED_OUT");
    run.ended("a load", result.took, DEADLINE);
    engine.finish(&ask);
    engine.finish(&pull);
    run.injections += 1;
}

#[test]
fn lookups_and_loads_toward_peers_that_say_nothing() {
    let mut run =
        Run::new("peer that never answers", "a port that accepts and stays silent; a process stopped before");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_id = silent.local_addr().unwrap().to_string();
    let frozen = Engine::new(&Config::default());
    frozen.stop();
    let mut engine = Engine::new(&Config::default());
    for round in 0..times(2, 20) {
        silence(&mut run, &mut engine, &silent_id, 2 * round);
        silence(&mut run, &mut engine, frozen.id(), 2 * round + 1);
    }
    run.calls(&mut engine);
    run.end();
}

#[test]
fn lookups_of_a_ready_peer_that_froze() {
    let mut run = Run::new("frozen producer: lookup", "SIGSTOP after the handshake");
    let (mut producer, mut engine) = (Engine::new(&Config::default()), Engine::new(&Config::default()));
    producer.publish(&blocks(4), &tags(0, 4));
    for round in 0..times(2, 20) {
        run.pull(&mut engine, &format!("before{round}"), producer.id(), &tags(0, 4), &blocks(4));
        producer.stop();
        silence(&mut run, &mut engine, producer.id(), round);
        producer.go_on();
        producer.assert_comes_to_rest(4);
    }
    assert_eq!(engine.stat("sessions_lost"), 0, "a request's own deadline is its own affair");
    run.calls(&mut engine);
    run.end();
}

#[test]
fn calls_that_wait_return_by_their_timeout() {
    for caller_mode in [false, true] {
        let how = if caller_mode { "frozen producer, P2P_PROGRESS_CALLER" } else { "frozen producer" };
        let mut run = Run::new("calls that wait: results, drain, lookups", how);
        let mut producer = Engine::new(&Config::large());
        let mut engine = Engine::new(&Config { caller_mode, ..Config::large() });
        producer.publish(&blocks(64), &tags(0, 64));
        engine.ask_from("r", producer.id());
        engine.look_up("r", &tags(0, 64));
        run.load(&mut engine, "r", &tags(0, 64), &blocks(64));
        freeze_soon(&producer);
        engine.ask_from("s", producer.id());
        engine.look_up_now("s", &tags(0, 4));
        for _ in 0..times(2, 10) {
            for (what, id) in [("results", ""), ("drain", ""), ("lookups", "s")] {
                let (status, took) = engine.wait(what, id, Duration::from_millis(150));
                assert_eq!(status, 1, "{what}: TIMED_OUT");
                run.ended(what, took, Duration::from_millis(150));
                run.injections += 1;
            }
        }
        producer.go_on();
        run.collect_one(&mut engine).expect("DONE");
        run.check(&mut engine, &blocks(64), &tags(0, 64));
        run.end();
    }
}

#[test]
fn frees_while_the_other_side_is_frozen() {
    let mut run =
        Run::new("free while the peer is frozen", "SIGSTOP, then p2p_tier_free: at most 3 s of drain");
    for round in 0..times(1, 4) {
        let config = Config { port: free_port(), data_port: free_port(), ..Config::large() };
        let (mut producer, mut consumer) = (Engine::new(&Config::large()), Engine::new(&config));
        producer.publish(&blocks(64), &tags(0, 64));
        consumer.ask_from("r", producer.id());
        consumer.look_up("r", &tags(0, 64));
        let job = run.load(&mut consumer, "r", &tags(0, 64), &blocks(64));
        freeze_soon(&producer);
        let took = if round % 2 == 0 { consumer.free_elsewhere() } else { consumer.free(true) };
        run.give_up(&[job]);
        assert!(took < Duration::from_millis(4500), "{took:?}");
        run.injections += 1;
        run.spent(took);
        // Its ports are free at once.
        consumer.open(&config).unwrap();
    }
    run.end();
}
