//! Blocks move between two and three processes, in every order.

use crate::peer::{Config, Engine, HIT, KIB, MIB, MISS, blocks, tags};

fn two() -> (Engine, Engine) {
    (Engine::new(&Config::default()), Engine::new(&Config::default()))
}

#[test]
fn pd_works_with_the_stores_first_and_with_the_fetch_first() {
    let (mut prefiller, mut decoder) = two();
    prefiller.fill(&blocks(8), &tags(100, 8));
    for (id, fetch_first) in [("a", false), ("b", true), ("c", false), ("d", true)] {
        prefiller.serve(id);
        decoder.fill(&blocks(8), &[7; 8]);
        decoder.pull_from(id, prefiller.id());
        if fetch_first {
            decoder.load(id, 1, &tags(100, 8), &blocks(8));
        }
        prefiller.store(id, 10, &tags(100, 3), &blocks(3));
        prefiller.store(id, 11, &tags(103, 5), &[3, 4, 5, 6, 7]);
        if !fetch_first {
            decoder.load(id, 1, &tags(100, 8), &blocks(8));
        }
        let result = decoder.result();
        result.expect("DONE");
        assert_eq!(result.bytes, 8 * 16 * KIB);
        prefiller.results(2).iter().for_each(|result| result.expect("DONE"));
        decoder.assert_holds(&blocks(8), &tags(100, 8));
        decoder.finish(id);
        prefiller.finish(id);
    }
    decoder.assert_comes_to_rest(0);
    prefiller.assert_comes_to_rest(0);
}

#[test]
fn a_pd_request_that_the_producer_finishes_early_is_not_supplied() {
    let (mut prefiller, mut decoder) = two();
    prefiller.fill(&[0], &[1]);
    prefiller.serve("r");
    decoder.pull_from("r", prefiller.id());
    decoder.load("r", 1, &[1, 2], &[0, 1]);
    prefiller.store("r", 10, &[1], &[0]);
    prefiller.finish("r");
    decoder.result().expect("NOT_SUPPLIED");
    assert_eq!(prefiller.result().job, 10);
    decoder.finish("r");
    decoder.assert_comes_to_rest(0);
    prefiller.assert_comes_to_rest(0);
}

#[test]
fn a_symmetric_pull_takes_the_hits_and_leaves_the_rest_alone() {
    let (mut producer, mut consumer) = two();
    producer.publish(&blocks(8), &tags(0, 8));
    consumer.fill(&blocks(64), &tags(1000, 64));
    consumer.ask_from("r", producer.id());
    assert_eq!(consumer.look_up("r", &[0, 50, 7, 51, 3]), [HIT, MISS, HIT, MISS, HIT]);
    consumer.load("r", 1, &[7, 0, 3], &[20, 22, 63]);
    let result = consumer.result();
    result.expect("DONE");
    assert_eq!(result.bytes, 3 * 16 * KIB);
    consumer.assert_holds(&[20, 22, 63], &[7, 0, 3]);
    let others: Vec<u32> = blocks(64).into_iter().filter(|block| ![20, 22, 63].contains(block)).collect();
    let untouched: Vec<u64> = others.iter().map(|block| 1000 + u64::from(*block)).collect();
    consumer.assert_holds(&others, &untouched);
    consumer.finish("r");
    consumer.assert_comes_to_rest(0);
    producer.assert_comes_to_rest(8);
    assert!(producer.unpublish(&tags(0, 8)));
}

#[test]
fn rounds_of_one_id_run_side_by_side() {
    let large = Config { num_blocks: 64, block_len: 512 * KIB, ..Config::default() };
    let (mut producer, mut consumer) = (Engine::new(&large), Engine::new(&large));
    producer.publish(&blocks(64), &tags(0, 64));
    consumer.ask_from("r", producer.id());
    for round in 0..8 {
        let (tags, to) = (tags(u64::from(round) * 8, 8), (round * 8..round * 8 + 8).collect::<Vec<_>>());
        assert_eq!(consumer.look_up("r", &tags), [HIT; 8]);
        consumer.load("r", u64::from(round), &tags, &to);
    }
    consumer.results(8).iter().for_each(|result| result.expect("DONE"));
    consumer.assert_holds(&blocks(64), &tags(0, 64));
    consumer.finish("r");
    consumer.assert_comes_to_rest(0);
    producer.assert_comes_to_rest(64);
}

#[test]
fn both_pull_from_each_other_at_the_same_time() {
    let config = Config { num_blocks: 64, block_len: 512 * KIB, ..Config::default() };
    let (mut a, mut b) = (Engine::new(&config), Engine::new(&config));
    a.publish(&blocks(32), &tags(0, 32));
    b.publish(&blocks(32), &tags(500, 32));
    let upper: Vec<u32> = (32..64).collect();
    // The same id on both sides: each is a consumer of the other's, and a producer for the other.
    for round in 0..5 {
        let id = format!("r{round}");
        a.ask_from(&id, b.id());
        b.ask_from(&id, a.id());
        a.look_up(&id, &tags(500, 32));
        b.look_up(&id, &tags(0, 32));
        a.load(&id, 1, &tags(500, 32), &upper);
        b.load(&id, 1, &tags(0, 32), &upper);
        a.result().expect("DONE");
        b.result().expect("DONE");
        a.assert_holds(&upper, &tags(500, 32));
        b.assert_holds(&upper, &tags(0, 32));
        a.fill(&upper, &[9; 32]);
        b.fill(&upper, &[9; 32]);
        a.finish(&id);
        b.finish(&id);
    }
    for engine in [&mut a, &mut b] {
        engine.assert_comes_to_rest(32);
        assert_eq!(engine.stat("peers"), 1, "one session in both directions");
    }
}

#[test]
fn one_producer_serves_two_consumers_at_once() {
    let config = Config { num_blocks: 64, block_len: 512 * KIB, ..Config::default() };
    let mut producer = Engine::new(&config);
    let mut consumers = [Engine::new(&config), Engine::new(&config)];
    producer.publish(&blocks(64), &tags(0, 64));
    // The orchestrator's id names a request at the producer; here both consumers look the same keys up under one.
    for round in 0..4 {
        let id = format!("r{round}");
        for consumer in &mut consumers {
            consumer.ask_from(&id, producer.id());
            assert_eq!(consumer.look_up(&id, &tags(0, 64)), [HIT; 64]);
            consumer.load(&id, 1, &tags(0, 64), &blocks(64));
        }
        for consumer in &mut consumers {
            consumer.result().expect("DONE");
            consumer.assert_holds(&blocks(64), &tags(0, 64));
            consumer.fill(&blocks(64), &[9; 64]);
            consumer.finish(&id);
        }
    }
    producer.assert_comes_to_rest(64);
    assert_eq!(producer.stat("peers"), 2);
}

#[test]
fn blocks_travel_along_a_chain() {
    let mut chain = [0, 1, 2].map(|_| Engine::new(&Config::default()));
    let [a, b, c] = &mut chain;
    a.publish(&blocks(8), &tags(0, 8));
    let (middle, end): (Vec<u32>, Vec<u32>) = ((20..28).collect(), (40..48).collect());
    b.pull("ab", a.id(), &tags(0, 8), &middle);
    b.republish(&middle, &tags(0, 8));
    c.pull("bc", b.id(), &tags(0, 8), &end);
    a.assert_comes_to_rest(8);
    b.assert_comes_to_rest(8);
    c.assert_comes_to_rest(0);
    assert_eq!(c.stat("peers"), 1, "the end of the chain knows only the middle");
}

#[test]
fn a_consumer_in_caller_mode_pulls_from_a_process_with_a_thread() {
    let mut producer = Engine::new(&Config::default());
    let mut consumer = Engine::new(&Config { caller_mode: true, ..Config::default() });
    producer.publish(&blocks(8), &tags(0, 8));
    for round in 0..20 {
        consumer.pull(&format!("r{round}"), producer.id(), &tags(0, 8), &blocks(8));
    }
}

#[test]
fn a_finish_in_the_middle_of_a_load_aborts_it_and_nothing_else() {
    let (mut producer, mut consumer) = (Engine::new(&Config::large()), Engine::new(&Config::large()));
    producer.publish(&blocks(128), &tags(0, 128));
    let mut aborted = 0;
    for round in 0..10 {
        let (gone, kept) = (format!("gone{round}"), format!("kept{round}"));
        for (id, first) in [(&gone, 0), (&kept, 64)] {
            consumer.ask_from(id, producer.id());
            consumer.look_up(id, &tags(first, 64));
        }
        let upper: Vec<u32> = (64..128).collect();
        consumer.load(&gone, 1, &tags(0, 64), &blocks(64));
        consumer.load(&kept, 2, &tags(64, 64), &upper);
        std::thread::sleep(std::time::Duration::from_millis(round));
        consumer.finish(&gone);
        let results = consumer.results(2);
        aborted += u32::from(results[0].name == "ABORTED");
        assert!(["ABORTED", "DONE"].contains(&results[0].name.as_str()), "{results:?}");
        results[1].expect("DONE");
        consumer.assert_holds(&upper, &tags(64, 64));
        consumer.finish(&kept);
    }
    assert!(aborted > 0, "no load was caught in the middle");
    consumer.assert_comes_to_rest(0);
    producer.assert_comes_to_rest(128);
    assert_eq!(consumer.stat("sessions_lost"), 0);
}

#[test]
fn blocks_may_be_one_byte_or_64_mib() {
    for (num_blocks, block_len) in [(4096, 1), (3, 64 * MIB)] {
        let config = Config { num_blocks, block_len, ..Config::default() };
        let (mut producer, mut consumer) = (Engine::new(&config), Engine::new(&config));
        let count = num_blocks as u32;
        producer.publish(&blocks(count), &tags(0, count));
        let backwards: Vec<u32> = (0..count).rev().collect();
        consumer.pull("r", producer.id(), &tags(0, count), &backwards);
    }
}

#[test]
fn one_load_may_have_20_000_keys() {
    let config = Config { num_blocks: 20_000, block_len: KIB, ..Config::default() };
    let (mut producer, mut consumer) = (Engine::new(&config), Engine::new(&config));
    producer.publish(&blocks(20_000), &tags(0, 20_000));
    // Neither source nor destination runs on.
    let scattered: Vec<u32> = (0..20_000).map(|index| index * 7919 % 20_000).collect();
    consumer.pull("r", producer.id(), &tags(0, 20_000), &scattered);
    consumer.assert_comes_to_rest(0);
    producer.assert_comes_to_rest(20_000);
}

#[test]
fn loads_that_are_aborted_again_and_again_are_no_fault_of_the_peer() {
    let (mut producer, mut consumer) = (Engine::new(&Config::large()), Engine::new(&Config::large()));
    producer.publish(&blocks(128), &tags(0, 128));
    for round in 0..10_u64 {
        let ids: Vec<String> = (0..8).map(|part| format!("r{round}.{part}")).collect();
        for (part, id) in (0..8u32).zip(&ids) {
            consumer.ask_from(id, producer.id());
            consumer.look_up(id, &tags(u64::from(part) * 16, 16));
        }
        for (part, id) in (0..8u32).zip(&ids) {
            let to: Vec<u32> = (part * 16..part * 16 + 16).collect();
            consumer.load(id, part.into(), &tags(u64::from(part) * 16, 16), &to);
        }
        std::thread::sleep(std::time::Duration::from_millis(round));
        ids.iter().for_each(|id| consumer.finish(id));
        consumer.results(8);
        producer.assert_comes_to_rest(128);
    }
    assert_eq!([producer.stat("sessions_lost"), consumer.stat("sessions_lost")], [0, 0]);
}
