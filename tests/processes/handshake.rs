//! Peers that do not fit are refused at once, on both sides, with words that help.

use std::time::{Duration, Instant};

use crate::peer::{Config, Engine};

/// Far below the handshake deadline of 30 s.
const QUICKLY: Duration = Duration::from_secs(3);

const INCOMPATIBLE: u64 = 5;

/// Both pull from each other; both are told why not.
fn both_refuse(a: &Config, b: &Config, field: &str, values: [&str; 2]) {
    let mut engines = [Engine::new(a), Engine::new(b)];
    let ids = engines.each_ref().map(|engine| engine.id().to_owned());
    let start = Instant::now();
    for (engine, peer) in engines.iter_mut().zip(ids.iter().rev()) {
        engine.pull_from("r", peer);
        engine.load("r", 1, &[1], &[0]);
    }
    for (engine, peer) in engines.iter_mut().zip(ids.iter().rev()) {
        let result = engine.result();
        result.expect("INCOMPATIBLE");
        for part in [field, values[0], values[1], peer] {
            assert!(result.detail.contains(part), "{part:?} is not in {:?}", result.detail);
        }
        assert_eq!(engine.failure("r"), (INCOMPATIBLE, result.detail));
        engine.finish("r");
        engine.assert_comes_to_rest(0);
    }
    assert!(start.elapsed() < QUICKLY, "{:?}", start.elapsed());
    one_side_is_told(&mut engines);
}

/// The same when only one of them wants something of the other, as soon after an earlier refusal as can be: the
/// connections of that one are still closing.
fn one_side_is_told(engines: &mut [Engine; 2]) {
    for attempt in 0..5 {
        let [consumer, producer] = engines;
        let start = Instant::now();
        consumer.pull_from("again", producer.id());
        consumer.load("again", 2, &[1], &[0]);
        consumer.result().expect("INCOMPATIBLE");
        assert!(start.elapsed() < Duration::from_secs(2), "attempt {attempt}: {:?}", start.elapsed());
        consumer.finish("again");
        engines.reverse();
    }
}

#[test]
fn different_block_lengths() {
    let a = Config { block_len: 4096, ..Config::default() };
    let b = Config { block_len: 8192, ..Config::default() };
    both_refuse(&a, &b, "block_len", ["4096", "8192"]);
}

#[test]
fn different_fingerprints() {
    let a = Config { fingerprint: "00112233445566aa", ..Config::default() };
    let b = Config { fingerprint: "00112233445566bb", ..Config::default() };
    both_refuse(&a, &b, "config_fingerprint", ["00112233445566aa", "00112233445566bb"]);
}

#[test]
fn different_hash_seeds() {
    let a = Config { hash_seed: "seed-one", ..Config::default() };
    let b = Config { hash_seed: "seed-two", ..Config::default() };
    both_refuse(&a, &b, "hash_seed", ["seed-one", "seed-two"]);
}

#[test]
fn a_tier_without_fingerprint_fits_any() {
    let a = Config { fingerprint: "00112233445566aa", ..Config::default() };
    let (mut a, mut b) = (Engine::new(&a), Engine::new(&Config::default()));
    a.publish(&[0], &[1]);
    b.pull("r", a.id(), &[1], &[1]);
}

#[test]
fn an_incompatible_peer_does_not_touch_the_work_with_others() {
    let odd = Config { hash_seed: "odd", ..Config::default() };
    let mut producer = Engine::new(&Config::default());
    let (mut consumer, mut odd) = (Engine::new(&Config::default()), Engine::new(&odd));
    producer.publish(&[0], &[1]);
    for round in 0..20 {
        odd.ask_from("r", producer.id());
        odd.look_up("r", &[1]);
        consumer.pull(&format!("r{round}"), producer.id(), &[1], &[1]);
        odd.finish("r");
    }
    assert_eq!(consumer.stat("sessions_lost"), 0);
}
