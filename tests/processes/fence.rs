//! After a load was reported, not one byte lands in its blocks, wherever the producer was.

use std::time::Duration;

use crate::peer::{Config, Engine, HIT, MIB, Random, Times, blocks, symmetric, tags};

/// What ends the load, and so when the request is finished.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finishes {
    ToAbort,
    /// The load ends by its deadline.
    Afterwards,
}

/// In each round the producer is frozen at a random moment of a transfer, the load ends there, its blocks get new
/// bytes, and the producer goes on.
fn refilled_blocks_stay(block_len: u64, rounds: u64, seed: u64, finishes: Finishes) {
    let count = u32::try_from(64 * MIB / block_len).unwrap();
    let config = Config { num_blocks: u64::from(count) + 1, block_len, ..Config::default() };
    let (mut producer, mut consumer) = (Engine::new(&config), Engine::new(&config));
    producer.publish(&blocks(count + 1), &tags(0, count + 1));
    let mut random = Random(seed);
    let mut caught = 0;
    for round in 0..rounds {
        let id = format!("r{round}");
        consumer.fill(&blocks(count), &tags(round * 1000, count));
        let times = Times { load_ms: 150, ..Times::default() };
        consumer.try_request(&id, &symmetric(&id, producer.id()), times).unwrap();
        assert_eq!(consumer.look_up(&id, &tags(0, count)), vec![HIT; count as usize]);
        consumer.load(&id, round, &tags(0, count), &blocks(count));
        std::thread::sleep(Duration::from_micros(random.below(25_000)));
        producer.stop();
        if finishes == Finishes::ToAbort {
            consumer.finish(&id);
        }
        let result = consumer.result();
        caught += u32::from(result.name != "DONE");
        if finishes == Finishes::Afterwards {
            consumer.finish(&id);
        }
        let new = tags(1_000_000 + round * 1000, count);
        consumer.fill(&blocks(count), &new);
        producer.go_on();
        // What was on its way has arrived once the producer says that nothing of it is left, and something later came.
        producer.assert_comes_to_rest(u64::from(count) + 1);
        consumer.pull(&format!("last{round}"), producer.id(), &[u64::from(count)], &[count]);
        consumer.assert_holds(&blocks(count), &new);
    }
    println!("{caught} of {rounds} transfers were caught in the middle");
    assert!(caught > 3, "only {caught} of {rounds} transfers were caught in the middle");
    consumer.assert_comes_to_rest(0);
    assert_eq!(consumer.stat("sessions_lost"), 0);
}

#[test]
fn not_a_byte_lands_after_an_abort() {
    refilled_blocks_stay(MIB, 50, 11, Finishes::ToAbort);
}

#[test]
fn not_a_byte_lands_after_an_abort_of_small_blocks() {
    refilled_blocks_stay(MIB / 64, 25, 12, Finishes::ToAbort);
}

#[test]
fn not_a_byte_lands_after_a_timeout() {
    refilled_blocks_stay(16 * MIB, 20, 13, Finishes::Afterwards);
}

#[test]
fn a_block_that_is_loaded_again_from_elsewhere_gets_only_those_bytes() {
    let config = Config { num_blocks: 64, block_len: MIB, ..Config::default() };
    let [mut frozen, mut other, mut consumer] = [0, 1, 2].map(|_| Engine::new(&config));
    frozen.publish(&blocks(64), &tags(0, 64));
    // The same keys, as with two caches of one model, but bytes that can be told apart.
    other.fill(&blocks(64), &tags(5000, 64));
    other.republish(&blocks(64), &tags(0, 64));
    let mut random = Random(14);
    let mut caught = 0;
    for round in 0..20 {
        let (first, second) = (format!("f{round}"), format!("s{round}"));
        consumer.ask_from(&first, frozen.id());
        consumer.ask_from(&second, other.id());
        consumer.look_up(&first, &tags(0, 64));
        consumer.look_up(&second, &tags(0, 64));
        consumer.load(&first, 1, &tags(0, 64), &blocks(64));
        std::thread::sleep(Duration::from_micros(random.below(15_000)));
        frozen.stop();
        consumer.finish(&first);
        caught += u32::from(consumer.result().name != "DONE");
        consumer.load(&second, 2, &tags(0, 64), &blocks(64));
        std::thread::sleep(Duration::from_micros(random.below(15_000)));
        frozen.go_on();
        consumer.result().expect("DONE");
        consumer.finish(&second);
        frozen.assert_comes_to_rest(64);
        consumer.assert_holds(&blocks(64), &tags(5000, 64));
    }
    assert!(caught > 3, "only {caught} of 20 transfers were caught in the middle");
    assert_eq!(consumer.stat("sessions_lost"), 0);
}
