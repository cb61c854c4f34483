//! `p2p_tier_free` ends in about 4 s whatever peers do, and its ports are free then.

use std::time::Duration;

use crate::deaths::freeze_in_the_middle;
use crate::peer::{Config, Engine, MIB, blocks, free_port, tags};

const BOUND_OF_FREE: Duration = Duration::from_millis(5000);

fn with_ports(config: Config) -> Config {
    Config { port: free_port(), data_port: free_port(), ..config }
}

/// A new tier at the same ports, at once.
fn opens_again(engine: &mut Engine, config: &Config) {
    engine.open(config).unwrap_or_else(|refusal| panic!("{refusal:?}"));
}

#[test]
fn at_once_after_it_was_made() {
    let config = with_ports(Config::default());
    let mut engine = Engine::without_tier();
    for _ in 0..20 {
        engine.open(&config).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        let took = engine.free(true);
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
}

#[test]
fn with_a_load_from_a_frozen_producer() {
    for finish_first in [true, false] {
        let config = with_ports(Config::large());
        let (mut producer, mut consumer) = (Engine::new(&Config::large()), Engine::new(&config));
        producer.publish(&blocks(64), &tags(0, 64));
        consumer.ask_from("r", producer.id());
        consumer.look_up("r", &tags(0, 64));
        freeze_in_the_middle(&producer, &mut consumer, |consumer| {
            consumer.load("r", 1, &tags(0, 64), &blocks(64));
        });
        let took = consumer.free(finish_first);
        assert!(took < BOUND_OF_FREE, "{took:?}");
        opens_again(&mut consumer, &config);
        producer.go_on();
        // The producer learns that the tier is gone, and the new one at its place is served.
        producer.assert_comes_to_rest(64);
        consumer.pull("again", producer.id(), &tags(0, 8), &blocks(8));
    }
}

#[test]
fn with_transfers_to_a_frozen_consumer() {
    let config = with_ports(Config::large());
    let (mut producer, mut consumer) = (Engine::new(&config), Engine::new(&Config::large()));
    producer.publish(&blocks(128), &tags(0, 128));
    consumer.ask_from("r", producer.id());
    consumer.look_up("r", &tags(0, 128));
    consumer.load("r", 1, &tags(0, 128), &blocks(128));
    consumer.stop();
    let took = producer.free(true);
    assert!(took < BOUND_OF_FREE, "{took:?}");
    opens_again(&mut producer, &config);
    consumer.go_on();
    let result = consumer.result();
    assert_ne!(result.name, "DONE", "{result:?}");
    consumer.finish("r");
    consumer.assert_comes_to_rest(0);
    producer.publish(&[0], &[7]);
    consumer.pull("again", producer.id(), &[7], &[0]);
}

#[test]
fn with_messages_queued_for_a_peer_that_is_not_there() {
    let config = with_ports(Config::default());
    let mut engine = Engine::new(&config);
    let nobody = format!("127.0.0.1:{}", free_port());
    for request in 0..50 {
        let id = format!("r{request}");
        engine.pull_from(&id, &nobody);
        engine.load(&id, request, &[request], &[request as u32]);
    }
    let took = engine.free(false);
    assert!(took < BOUND_OF_FREE, "{took:?}");
    opens_again(&mut engine, &config);
}

#[test]
fn a_load_that_is_nearly_done_is_let_finish_by_both_ends() {
    let (mut producer, mut consumer) = (Engine::new(&Config::large()), Engine::new(&Config::large()));
    producer.publish(&blocks(64), &tags(0, 64));
    consumer.ask_from("r", producer.id());
    consumer.look_up("r", &tags(0, 64));
    consumer.load("r", 1, &tags(0, 64), &blocks(64));
    // Until the first bytes have moved, so that the producer knows of the load.
    crate::common::eventually("the transfer begins", || {
        let peers = producer.peers();
        peers[0]["transfers_live"] != 0 || producer.stat("bytes_out") > 0
    });
    producer.begin_free();
    let result = consumer.result();
    result.expect("DONE");
    assert_eq!(result.bytes, 64 * 2 * MIB);
    consumer.assert_holds(&blocks(64), &tags(0, 64));
    let took = producer.end_free();
    assert!(took < BOUND_OF_FREE, "{took:?}");
}

#[test]
fn a_peer_learns_at_once_that_a_tier_was_freed() {
    let (mut producer, mut consumer) = (Engine::new(&Config::default()), Engine::new(&Config::default()));
    producer.publish(&[0], &[1]);
    consumer.pull("r", producer.id(), &[1], &[0]);
    consumer.pull_from("waits", producer.id());
    consumer.load("waits", 2, &[99], &[1]);
    assert!(consumer.has_no_result_for(Duration::from_millis(100)));
    producer.free(true);
    let results = consumer.results_within(1, Duration::from_secs(2));
    assert_eq!(results.len(), 1, "not told within 2 s");
    results[0].expect("PEER_LOST");
}
