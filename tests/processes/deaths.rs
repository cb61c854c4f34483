//! kill -9 and restarts: the survivor loses what it had with the dead, once, soon, and nothing else.

use std::time::{Duration, Instant};

use crate::common::eventually;
use crate::peer::{Config, Engine, HIT, MIB, Random, blocks, free_port, tags};

/// A process is gone for its peers long before their heartbeats run out.
const SOON: Duration = Duration::from_secs(5);

/// Freezes `giver` while `taker`'s loads are under way, or fails.
pub fn freeze_in_the_middle(giver: &Engine, taker: &mut Engine, load: impl FnOnce(&mut Engine)) {
    load(taker);
    std::thread::sleep(Duration::from_millis(2));
    giver.stop();
    assert!(taker.has_no_result_for(Duration::from_millis(100)), "the loads were over too soon");
}

#[test]
fn each_load_from_a_killed_producer_ends_once_and_soon() {
    let [mut killed, mut other] = [0, 1].map(|_| Engine::new(&Config::large()));
    let mut consumer = Engine::new(&Config::large());
    killed.publish(&blocks(128), &tags(0, 128));
    other.publish(&blocks(8), &tags(500, 8));
    consumer.pull("before", other.id(), &tags(500, 8), &blocks(8));
    for part in 0..4u32 {
        consumer.ask_from(&format!("r{part}"), killed.id());
        consumer.look_up(&format!("r{part}"), &tags(u64::from(part) * 32, 32));
    }
    freeze_in_the_middle(&killed, &mut consumer, |consumer| {
        for part in 0..4u32 {
            let to: Vec<u32> = (part * 32..part * 32 + 32).collect();
            consumer.load(&format!("r{part}"), part.into(), &tags(u64::from(part) * 32, 32), &to);
        }
    });
    let death = Instant::now();
    killed.kill();
    let results = consumer.results(4);
    assert!(death.elapsed() < SOON, "{:?}", death.elapsed());
    for (part, result) in results.iter().enumerate() {
        assert_eq!(result.job, part as u64);
        result.expect("PEER_LOST");
    }
    assert_eq!(consumer.failure("r0").0, 4, "the request says the same: PEER_LOST");
    for part in 0..4u32 {
        consumer.finish(&format!("r{part}"));
    }
    consumer.pull("after", other.id(), &tags(500, 8), &blocks(8));
    consumer.assert_comes_to_rest(0);
    assert_eq!(consumer.stat("jobs"), 6);
}

#[test]
fn loads_from_a_living_producer_do_not_notice_the_death_of_another() {
    let [mut killed, mut other] = [0, 1].map(|_| Engine::new(&Config::large()));
    let mut consumer = Engine::new(&Config::large());
    for (producer, first) in [(&mut killed, 0), (&mut other, 500)] {
        producer.publish(&blocks(64), &tags(first, 64));
        consumer.ask_from(&first.to_string(), producer.id());
        assert_eq!(consumer.look_up(&first.to_string(), &tags(first, 64)), [HIT; 64]);
    }
    let upper: Vec<u32> = (64..128).collect();
    consumer.load("0", 0, &tags(0, 64), &blocks(64));
    consumer.load("500", 500, &tags(500, 64), &upper);
    killed.kill();
    let results = consumer.results(2);
    assert!(["DONE", "PEER_LOST"].contains(&results[0].name.as_str()), "{results:?}");
    results[1].expect("DONE");
    consumer.assert_holds(&upper, &tags(500, 64));
}

#[test]
fn stores_and_pins_for_a_killed_consumer_end_once_and_soon() {
    let mut producer = Engine::new(&Config::large());
    let [mut killed, mut other] = [0, 1].map(|_| Engine::new(&Config::large()));
    producer.publish(&blocks(64), &tags(0, 64));
    let upper: Vec<u32> = (64..128).collect();
    producer.fill(&upper, &tags(64, 64));
    producer.serve("pd");
    killed.pull_from("pd", producer.id());
    killed.ask_from("sym", producer.id());
    killed.look_up("sym", &tags(0, 64));
    killed.load("pd", 1, &tags(64, 64), &upper);
    killed.load("sym", 2, &tags(0, 64), &blocks(64));
    producer.store("pd", 10, &tags(64, 32), &(64..96).collect::<Vec<_>>());
    eventually("the fetch has met the store", || {
        let stats = producer.stats();
        stats["stores_live"] == 1 && stats["stores_parked"] == 0
    });
    killed.stop();
    producer.store("pd", 11, &tags(96, 32), &(96..128).collect::<Vec<_>>());
    assert!(producer.has_no_result_for(Duration::from_millis(100)), "the transfers were over too soon");
    assert!(!producer.unpublish(&tags(0, 64)), "the blocks are pinned");
    let death = Instant::now();
    killed.kill();
    let results = producer.results(2);
    assert!(death.elapsed() < SOON, "{:?}", death.elapsed());
    // Whichever plane notices first.
    let lost = |name: &str| ["PEER_LOST", "TRANSPORT_FAILED"].contains(&name);
    assert!(results.iter().all(|result| lost(&result.name)), "{results:?}");
    producer.finish("pd");
    producer.assert_comes_to_rest(64);
    assert_eq!(producer.stat("jobs"), 2);
    other.pull("next", producer.id(), &tags(0, 64), &blocks(64));
    producer.assert_comes_to_rest(64);
    assert!(producer.unpublish(&tags(0, 64)));
}

/// Pulls until it works, as an engine does that falls back to computing meanwhile.
fn pull_within(limit: Duration, consumer: &mut Engine, id: &str, peer: &str, tags: &[u64]) {
    let start = Instant::now();
    for attempt in 0.. {
        let id = format!("{id}.{attempt}");
        consumer.ask_from(&id, peer);
        if consumer.look_up(&id, tags).iter().all(|state| *state == HIT) {
            consumer.load(&id, 1, tags, &blocks(tags.len() as u32));
            if consumer.result().name == "DONE" {
                consumer.finish(&id);
                consumer.assert_holds(&blocks(tags.len() as u32), tags);
                break;
            }
        }
        let why = consumer.failure(&id);
        consumer.finish(&id);
        assert!(start.elapsed() < limit, "attempt {attempt}: {why:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(start.elapsed() < limit, "took {:?}", start.elapsed());
}

/// Every other life ends with kill -9, the others with `p2p_tier_free`.
fn end(mut engine: Engine, life: u64) {
    if life.is_multiple_of(2) {
        engine.kill();
    } else {
        engine.free(true);
    }
}

const AT_ONCE: Duration = Duration::from_millis(3000);

#[test]
fn a_producer_restarted_at_its_port_is_heard_at_once_20_times() {
    let config = Config { port: free_port(), ..Config::default() };
    let mut consumer = Engine::new(&Config::default());
    for life in 0..20 {
        let mut producer = Engine::new(&config);
        producer.publish(&blocks(4), &tags(life * 10, 4));
        pull_within(AT_ONCE, &mut consumer, &format!("r{life}"), producer.id(), &tags(life * 10, 4));
        end(producer, life);
    }
    consumer.assert_comes_to_rest(0);
}

#[test]
fn a_consumer_restarted_at_its_port_is_heard_at_once_20_times() {
    let config = Config { port: free_port(), ..Config::default() };
    let mut producer = Engine::new(&Config::default());
    producer.publish(&blocks(4), &tags(0, 4));
    for life in 0..20 {
        let mut consumer = Engine::new(&config);
        pull_within(AT_ONCE, &mut consumer, &format!("r{life}"), producer.id(), &tags(0, 4));
        end(consumer, life);
    }
    producer.assert_comes_to_rest(4);
}

#[test]
fn both_restarted_in_turn_find_each_other_again() {
    let configs = [0, 1].map(|_| Config { port: free_port(), ..Config::default() });
    let mut engines = configs.each_ref().map(Engine::new);
    for life in 0..10_usize {
        let [first, second] = &mut engines;
        let (producer, consumer) = if life % 4 < 2 { (first, second) } else { (second, first) };
        producer.publish(&blocks(4), &tags(0, 4));
        pull_within(AT_ONCE, consumer, &format!("r{life}"), producer.id(), &tags(0, 4));
        // The consumer knows first that its blocks are in.
        eventually("nobody holds the blocks", || producer.unpublish(&tags(0, 4)));
        let restarted = life % 2;
        let stand_in = Engine::without_tier();
        std::mem::replace(&mut engines[restarted], stand_in).kill();
        engines[restarted].open(&configs[restarted]).unwrap();
    }
}

#[test]
fn a_large_load_survives_neither_restart_of_its_producer_nor_gets_bytes_of_its_next_life() {
    let config = Config { port: free_port(), data_port: free_port(), ..Config::large() };
    let mut consumer = Engine::new(&Config::large());
    for life in 0..3 {
        let mut producer = Engine::new(&config);
        producer.publish(&blocks(64), &tags(life * 100, 64));
        let id = format!("r{life}");
        consumer.ask_from(&id, producer.id());
        assert_eq!(consumer.look_up(&id, &tags(life * 100, 64)), [HIT; 64]);
        freeze_in_the_middle(&producer, &mut consumer, |consumer| {
            consumer.load(&id, 1, &tags(life * 100, 64), &blocks(64));
        });
        producer.kill();
        let result = consumer.result();
        result.expect("PEER_LOST");
        assert_eq!(result.bytes % (2 * MIB), 0);
        consumer.finish(&id);
        consumer.fill(&blocks(64), &tags(7000, 64));
        // The next life at the same ports serves another engine, and the refilled blocks stay as they are.
        let mut next = Engine::new(&config);
        next.publish(&blocks(64), &tags(life * 100, 64));
        let upper: Vec<u32> = (64..128).collect();
        consumer.pull(&format!("n{life}"), next.id(), &tags(life * 100, 64), &upper);
        consumer.assert_holds(&blocks(64), &tags(7000, 64));
        next.kill();
    }
}

/// From before the handshake to after the last byte.
fn at_any_moment(random: &mut Random) {
    std::thread::sleep(Duration::from_micros(random.below(40_000)));
}

#[test]
fn a_producer_killed_at_any_moment_leaves_one_result() {
    let config = Config { num_blocks: 32, block_len: MIB, handshake_ms: 1500, ..Config::default() };
    let mut consumer = Engine::new(&config);
    let mut random = Random(31);
    for round in 0..20 {
        let id = format!("r{round}");
        let mut producer = Engine::new(&config);
        producer.fill(&blocks(32), &tags(0, 32));
        producer.serve(&id);
        producer.store(&id, 10, &tags(0, 32), &blocks(32));
        consumer.pull_from(&id, producer.id());
        consumer.load(&id, round, &tags(0, 32), &blocks(32));
        at_any_moment(&mut random);
        producer.kill();
        let start = Instant::now();
        let result = consumer.result();
        assert!(start.elapsed() < SOON, "{result:?} after {:?}", start.elapsed());
        assert_eq!(result.job, round);
        match result.name.as_str() {
            "DONE" => consumer.assert_holds(&blocks(32), &tags(0, 32)),
            "PEER_LOST" | "NO_PEER" | "TRANSPORT_FAILED" => {}
            unexpected => panic!("{unexpected}: {result:?}"),
        }
        consumer.fill(&blocks(32), &tags(7000, 32));
        consumer.finish(&id);
    }
    consumer.assert_comes_to_rest(0);
    assert_eq!(consumer.stat("jobs"), 20);
}

#[test]
fn a_consumer_killed_at_any_moment_leaves_one_result_for_each_store() {
    let config = Config { num_blocks: 32, block_len: MIB, unbound_store_ms: 1500, ..Config::default() };
    let mut producer = Engine::new(&config);
    producer.fill(&blocks(32), &tags(0, 32));
    let mut random = Random(32);
    for round in 0..20 {
        let id = format!("r{round}");
        let mut consumer = Engine::new(&config);
        producer.serve(&id);
        consumer.pull_from(&id, producer.id());
        consumer.load(&id, 1, &tags(0, 32), &blocks(32));
        producer.store(&id, 2 * round, &tags(0, 16), &blocks(16));
        producer.store(&id, 2 * round + 1, &tags(16, 16), &(16..32).collect::<Vec<_>>());
        if random.below(2) == 0 {
            eventually("the fetch has met the stores", || producer.stat("stores_parked") == 0);
        }
        at_any_moment(&mut random);
        // If its fetch has not arrived by now, the stores wait for somebody else a while.
        consumer.kill();
        producer.finish(&id);
        let results = producer.results_within(2, SOON);
        assert_eq!(results.iter().map(|r| r.job).collect::<Vec<_>>(), [2 * round, 2 * round + 1]);
    }
    producer.assert_comes_to_rest(0);
    assert_eq!(producer.stat("jobs"), 40);
}

#[test]
fn the_ends_of_a_chain_survive_its_middle() {
    let [mut first, mut middle, mut last] = [0, 1, 2].map(|_| Engine::new(&Config::large()));
    first.publish(&blocks(64), &tags(0, 64));
    middle.publish(&blocks(64), &tags(500, 64));
    middle.ask_from("up", first.id());
    middle.look_up("up", &tags(0, 64));
    last.ask_from("down", middle.id());
    last.look_up("down", &tags(500, 64));
    let upper: Vec<u32> = (64..128).collect();
    middle.load("up", 1, &tags(0, 64), &upper);
    last.load("down", 1, &tags(500, 64), &upper);
    middle.kill();
    let result = last.result();
    assert!(["DONE", "PEER_LOST"].contains(&result.name.as_str()), "{result:?}");
    first.assert_comes_to_rest(64);
    last.finish("down");
    last.pull("directly", first.id(), &tags(0, 64), &blocks(64));
}
