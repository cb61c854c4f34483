//! Work of every size: nothing at all, single bytes, large blocks, many keys, much data, long pauses.

use std::time::{Duration, Instant};

use crate::peer::{Config, Engine, HIT, MIB, blocks, tags};
use crate::run::{Run, held, is_soak, times};

/// A region that gives out the same `count` keys of `block_len` bytes, and one that takes them.
fn shape(fault: &'static str, count: u32, block_len: u64, rounds: u64) {
    let mut run = Run::new(fault, "pulls");
    let config = Config { num_blocks: u64::from(count), block_len, ..Config::default() };
    let (mut producer, mut consumer) = (Engine::new(&config), Engine::new(&config));
    producer.publish(&blocks(count), &tags(0, count));
    let mut before = None;
    for round in 0..rounds {
        run.injections += 1;
        run.pull(&mut consumer, &format!("r{round}"), producer.id(), &tags(0, count), &blocks(count));
        consumer.fill(&blocks(count), &tags(7000, count));
        before.get_or_insert_with(|| [held(&producer), held(&consumer)]);
    }
    let before = before.unwrap();
    run.rests(&mut producer, u64::from(count), before[0]);
    run.rests(&mut consumer, 0, before[1]);
    run.end();
}

#[test]
fn work_of_no_length() {
    let mut run = Run::new("work of no length", "loads, stores and lookups of no keys");
    let (mut producer, mut consumer) = (Engine::new(&Config::default()), Engine::new(&Config::default()));
    for round in 0..times(3, 200) {
        let id = format!("r{round}");
        run.injections += 1;
        producer.serve(&id);
        consumer.ask_from(&id, producer.id());
        assert_eq!(consumer.look_up(&id, &[]), Vec::<u64>::new());
        run.load(&mut consumer, &id, &[], &[]);
        run.store(&mut producer, &id, &[], &[]);
        run.collect_one(&mut consumer).expect("DONE");
        run.collect_one(&mut producer).expect("DONE");
        consumer.finish(&id);
        producer.finish(&id);
    }
    producer.assert_comes_to_rest(0);
    consumer.assert_comes_to_rest(0);
    run.end();
}

#[test]
fn blocks_of_one_byte() {
    shape("blocks of 1 byte", 1000, 1, times(2, 50));
}

#[test]
fn blocks_of_64_mib() {
    shape("blocks of 64 MiB", 3, 64 * MIB, times(1, 20));
}

#[test]
fn twenty_thousand_keys() {
    shape("20,000 keys in one pull", 20_000, 512, times(1, 30));
}

/// More than 4 GiB, and more than 5, over the same link: no count of bytes wraps.
#[test]
fn more_than_5_gib_on_one_link() {
    if !is_soak() {
        return println!("skipped: only in the long form");
    }
    shape("more than 5 GiB on one link", 256, 2 * MIB, 11);
}

#[test]
fn pauses_of_minutes() {
    let mut run = Run::new("idle gaps", "nothing for a while, then a pull at once");
    let (mut producer, mut consumer) = (Engine::new(&Config::default()), Engine::new(&Config::default()));
    producer.publish(&blocks(16), &tags(0, 16));
    run.pull(&mut consumer, "first", producer.id(), &tags(0, 16), &blocks(16));
    for round in 0..1 {
        let pause = if is_soak() { Duration::from_secs(125) } else { Duration::from_millis(200) };
        std::thread::sleep(pause);
        run.injections += 1;
        let start = Instant::now();
        let id = format!("r{round}");
        consumer.ask_from(&id, producer.id());
        assert_eq!(consumer.look_up(&id, &tags(0, 16)), [HIT; 16]);
        run.load(&mut consumer, &id, &tags(0, 16), &blocks(16));
        run.collect_one(&mut consumer).expect("DONE");
        run.check(&mut consumer, &blocks(16), &tags(0, 16));
        run.spent(start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        consumer.finish(&id);
    }
    assert_eq!(consumer.stat("sessions_opened"), 1, "the session outlives the pauses");
    run.end();
}
