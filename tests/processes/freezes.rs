//! SIGSTOP: a peer that is there and does nothing. Nobody else waits for it.

use std::time::{Duration, Instant};

use crate::deaths::freeze_in_the_middle;
use crate::peer::{Config, Engine, HIT, Random, Times, blocks, symmetric, tags};

/// Engine calls return within 5 ms whatever peers do. The machine may be busy with something else, so a few of many may
/// be delayed; a call that waits for a frozen peer would be far above in every run.
fn assert_no_call_waits(engine: &mut Engine) {
    let calls = engine.calls();
    assert!(calls.count > 100, "{calls:?}");
    assert!(calls.median_us < 5_000, "{calls:?}");
    assert!(calls.slow <= calls.count / 50, "{calls:?}");
    assert!(calls.longest_us < 1_000_000, "{calls:?}");
}

#[test]
fn calls_return_and_loads_end_by_their_own_deadline_while_the_producer_is_frozen() {
    let (mut producer, mut consumer) = (Engine::new(&Config::large()), Engine::new(&Config::large()));
    producer.publish(&blocks(64), &tags(0, 64));
    for (round, load_ms) in [600, 1500].into_iter().enumerate() {
        let id = format!("r{round}");
        let times = Times { load_ms, ..Times::default() };
        consumer.try_request(&id, &symmetric(&id, producer.id()), times).unwrap();
        assert_eq!(consumer.look_up(&id, &tags(0, 64)), [HIT; 64]);
        consumer.calls();
        freeze_in_the_middle(&producer, &mut consumer, |consumer| {
            consumer.load(&id, 1, &tags(0, 64), &blocks(64));
        });
        consumer.steps(
            50,
            &symmetric("step", producer.id()),
            &tags(900, 16),
            &(112..128).collect::<Vec<_>>(),
        );
        let result = consumer.result();
        result.expect("TIMED_OUT");
        let deadline = Duration::from_millis(load_ms);
        assert!(result.took >= deadline && result.took < deadline + Duration::from_secs(1), "{result:?}");
        assert_no_call_waits(&mut consumer);
        // The blocks are the engine's again: the rest of the transfer must not land in them.
        consumer.fill(&blocks(64), &tags(5000, 64));
        producer.go_on();
        consumer.finish(&id);
        consumer.pull(&format!("after{round}"), producer.id(), &tags(0, 32), &(64..96).collect::<Vec<_>>());
        producer.assert_comes_to_rest(64);
        consumer.assert_holds(&blocks(64), &tags(5000, 64));
    }
    consumer.assert_comes_to_rest(0);
    assert_eq!(consumer.stat("sessions_lost"), 0);
}

#[test]
fn calls_return_and_others_are_served_while_a_consumer_is_frozen() {
    let mut producer = Engine::new(&Config::large());
    let [mut frozen, mut other] = [0, 1].map(|_| Engine::new(&Config::large()));
    producer.publish(&blocks(128), &tags(0, 128));
    frozen.ask_from("r", producer.id());
    frozen.look_up("r", &tags(0, 128));
    frozen.load("r", 1, &tags(0, 128), &blocks(128));
    frozen.stop();
    producer.calls();
    producer.steps(50, &symmetric("step", frozen.id()), &tags(900, 16), &blocks(16));
    assert_no_call_waits(&mut producer);
    for round in 0..5 {
        let start = Instant::now();
        other.pull(&format!("o{round}"), producer.id(), &tags(0, 16), &blocks(16));
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }
    assert!(producer.stat("blocks_pinned") > 0, "the frozen consumer's transfer is under way");
    frozen.go_on();
    frozen.result().expect("DONE");
    frozen.assert_holds(&blocks(128), &tags(0, 128));
    frozen.finish("r");
    producer.assert_comes_to_rest(128);
}

#[test]
fn a_producer_frozen_past_its_heartbeats_is_lost_and_found_again() {
    let config = Config { handshake_ms: 5000, ..Config::large() };
    let (mut producer, mut consumer) = (Engine::new(&config), Engine::new(&config));
    producer.publish(&blocks(64), &tags(0, 64));
    consumer.ask_from("r", producer.id());
    consumer.look_up("r", &tags(0, 64));
    let start = Instant::now();
    freeze_in_the_middle(&producer, &mut consumer, |consumer| {
        consumer.load("r", 1, &tags(0, 64), &blocks(64));
    });
    let result = consumer.result();
    result.expect("PEER_LOST");
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    consumer.fill(&blocks(64), &tags(5000, 64));
    consumer.finish("r");
    producer.go_on();
    let start = Instant::now();
    consumer.ask_from("again", producer.id());
    assert_eq!(consumer.look_up("again", &tags(0, 32)), [HIT; 32], "{:?}", consumer.failure("again"));
    consumer.load("again", 2, &tags(0, 32), &(64..96).collect::<Vec<_>>());
    consumer.result().expect("DONE");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    consumer.assert_holds(&blocks(64), &tags(5000, 64));
    consumer.finish("again");
    consumer.assert_comes_to_rest(0);
    producer.assert_comes_to_rest(64);
}

#[test]
fn a_consumer_frozen_past_its_heartbeats_loses_its_pins_and_gets_one_result() {
    let config = Config { handshake_ms: 5000, ..Config::large() };
    let (mut producer, mut consumer) = (Engine::new(&config), Engine::new(&config));
    producer.publish(&blocks(128), &tags(0, 128));
    consumer.ask_from("r", producer.id());
    consumer.look_up("r", &tags(0, 128));
    consumer.load("r", 1, &tags(0, 128), &blocks(128));
    consumer.stop();
    producer.assert_comes_to_rest(128);
    consumer.go_on();
    let result = consumer.result();
    assert_ne!(result.name, "DONE");
    consumer.fill(&blocks(128), &tags(5000, 128));
    consumer.finish("r");
    consumer.assert_comes_to_rest(0);
    consumer.assert_holds(&blocks(128), &tags(5000, 128));
    let start = Instant::now();
    consumer.pull("again", producer.id(), &tags(0, 32), &blocks(32));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn a_peer_that_is_frozen_from_the_start_is_given_up_and_found_when_it_goes_on() {
    let mut producer = Engine::new(&Config::default());
    let mut consumer = Engine::new(&Config { handshake_ms: 1500, ..Config::default() });
    producer.publish(&blocks(4), &tags(0, 4));
    producer.stop();
    let start = Instant::now();
    consumer.pull_from("r", producer.id());
    consumer.load("r", 1, &[1], &[0]);
    consumer.steps(50, &symmetric("step", producer.id()), &tags(900, 16), &(32..48).collect::<Vec<_>>());
    assert_no_call_waits(&mut consumer);
    consumer.result().expect("NO_PEER");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    consumer.finish("r");
    producer.go_on();
    let start = Instant::now();
    consumer.pull("again", producer.id(), &tags(0, 4), &blocks(4));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    consumer.assert_comes_to_rest(0);
    producer.assert_comes_to_rest(4);
}

#[test]
fn more_messages_than_a_frozen_peer_can_take_block_nobody() {
    let (mut producer, mut consumer) = (Engine::new(&Config::default()), Engine::new(&Config::default()));
    let mut other = Engine::new(&Config::default());
    for engine in [&mut producer, &mut other] {
        engine.publish(&blocks(4), &tags(0, 4));
        consumer.pull("before", engine.id(), &tags(0, 4), &blocks(4));
    }
    producer.stop();
    consumer.calls();
    // Each sends a lookup and the end of its id: more than the queue of 1,000 messages and the socket buffers hold.
    for _ in 0..4 {
        let none: Vec<u64> = tags(10_000, 60);
        consumer.steps(1000, &symmetric("step", producer.id()), &none, &blocks(60));
    }
    assert_no_call_waits(&mut consumer);
    consumer.pull("other", other.id(), &tags(0, 4), &blocks(4));
    producer.go_on();
    let start = Instant::now();
    loop {
        consumer.ask_from("after", producer.id());
        let found = consumer.look_up("after", &tags(0, 4));
        consumer.finish("after");
        if found == [HIT; 4] {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{}", consumer.peers());
    }
    consumer.assert_comes_to_rest(0);
    producer.assert_comes_to_rest(4);
}

#[test]
fn stores_for_a_frozen_consumer_end_by_their_deadline_and_others_are_served() {
    let mut producer = Engine::new(&Config { store_ms: 1000, ..Config::large() });
    let [mut frozen, mut other] = [0, 1].map(|_| Engine::new(&Config::large()));
    producer.fill(&blocks(128), &tags(0, 128));
    producer.serve("r");
    frozen.pull_from("r", producer.id());
    frozen.load("r", 1, &tags(0, 128), &blocks(128));
    producer.store("r", 10, &tags(0, 1), &[0]);
    crate::common::eventually("the fetch has met the store", || producer.stat("stores_parked") == 0);
    frozen.stop();
    let start = Instant::now();
    producer.store("r", 11, &tags(1, 127), &(1..128).collect::<Vec<_>>());
    producer.serve("o");
    other.pull_from("o", producer.id());
    other.load("o", 1, &tags(0, 8), &blocks(8));
    producer.store("o", 20, &tags(0, 8), &blocks(8));
    other.result().expect("DONE");
    other.assert_holds(&blocks(8), &tags(0, 8));
    let results = producer.results(3);
    // Long before its heartbeats tell that the consumer is gone.
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    for result in &results {
        result.expect(if result.job == 20 { "DONE" } else { "TIMED_OUT" });
    }
    // The blocks are the engine's again. What had begun to move goes on from a copy of what they held.
    producer.fill(&blocks(128), &tags(7000, 128));
    producer.finish("r");
    producer.finish("o");
    frozen.go_on();
    frozen.result().expect("NOT_SUPPLIED");
    frozen.fill(&blocks(128), &tags(5000, 128));
    frozen.finish("r");
    producer.republish(&blocks(8), &tags(7000, 8));
    frozen.pull("again", producer.id(), &tags(7000, 8), &blocks(8));
    frozen.assert_holds(&(8..128).collect::<Vec<_>>(), &tags(5008, 120));
    assert_eq!(frozen.stat("sessions_lost"), 0);
    producer.assert_comes_to_rest(8);
}

#[test]
fn short_freezes_of_either_side_do_no_harm() {
    let (mut producer, mut consumer) = (Engine::new(&Config::large()), Engine::new(&Config::large()));
    producer.publish(&blocks(64), &tags(0, 64));
    let mut random = Random(21);
    for round in 0..30 {
        let id = format!("r{round}");
        consumer.ask_from(&id, producer.id());
        assert_eq!(consumer.look_up(&id, &tags(0, 64)), [HIT; 64]);
        consumer.load(&id, 1, &tags(0, 64), &blocks(64));
        for _ in 0..4 {
            std::thread::sleep(Duration::from_micros(random.below(10_000)));
            let engine = if random.below(2) == 0 { &producer } else { &consumer };
            engine.stop();
            std::thread::sleep(Duration::from_micros(random.below(20_000)));
            engine.go_on();
        }
        consumer.result().expect("DONE");
        consumer.assert_holds(&blocks(64), &tags(0, 64));
        consumer.fill(&blocks(64), &[9; 64]);
        consumer.finish(&id);
    }
    consumer.assert_comes_to_rest(0);
    producer.assert_comes_to_rest(64);
    assert_eq!([producer.stat("sessions_lost"), consumer.stat("sessions_lost")], [0, 0]);
}
