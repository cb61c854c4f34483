//! Two live tiers in one process, over loopback.
#![allow(clippy::disallowed_methods, reason = "tests wait with bounds")]

mod common;

use common::{Node, NodeOptions, keys};
use p2pkv::protocol::job::{LookupState, Outcome};
use p2pkv::protocol::keys::KeysView;
use p2pkv::tier::ProgressMode;

fn two() -> (Node, Node) {
    (Node::new(NodeOptions::default()), Node::new(NodeOptions::default()))
}

#[test]
fn symmetric_pull_of_published_blocks_moves_the_bytes() {
    let (mut producer, consumer) = two();
    for tag in 0..8 {
        producer.fill(tag, tag as u64);
    }
    let published = keys(0..8);
    producer
        .tier
        .publish(KeysView::new(&published, common::KEY_LEN).unwrap(), &[0, 1, 2, 3, 4, 5, 6, 7])
        .unwrap();
    let request = consumer.symmetric("r1", &producer);
    let asked = keys([0, 1, 2, 99]);
    assert_eq!(
        consumer.look_up(request, &asked),
        [LookupState::Hit, LookupState::Hit, LookupState::Hit, LookupState::Miss]
    );
    consumer.load(request, 1, &keys([2, 0]), &[10, 11]);
    let result = consumer.result();
    assert_eq!(result.outcome, Outcome::Done, "{result:?}");
    assert_eq!(result.bytes, 2 * 4096);
    assert!(consumer.holds(10, 2) && consumer.holds(11, 0));
    consumer.tier.request_finish(request).unwrap();
}

#[test]
fn pd_works_with_the_prefiller_first_and_the_decoder_first() {
    let (mut prefiller, decoder) = two();
    prefiller.fill(3, 33);
    prefiller.fill(4, 44);
    for (id, decoder_first) in [("a", false), ("b", true)] {
        let serve = prefiller.producer(id);
        let pull = decoder.pd_consumer(id, &prefiller);
        if decoder_first {
            decoder.load(pull, 1, &keys([33, 44]), &[0, 1]);
        }
        prefiller.store(serve, 7, &keys([33]), &[3]);
        prefiller.store(serve, 8, &keys([44]), &[4]);
        if !decoder_first {
            decoder.load(pull, 1, &keys([33, 44]), &[0, 1]);
        }
        assert_eq!(decoder.result().outcome, Outcome::Done);
        assert!(prefiller.results(2).iter().all(|result| result.outcome == Outcome::Done));
        assert!(decoder.holds(0, 33) && decoder.holds(1, 44));
        decoder.tier.request_finish(pull).unwrap();
        prefiller.tier.request_finish(serve).unwrap();
    }
}

#[test]
fn caller_mode_needs_no_thread() {
    let options = || NodeOptions { progress: ProgressMode::Caller, ..NodeOptions::default() };
    let (mut producer, consumer) = (Node::new(NodeOptions::default()), Node::new(options()));
    producer.fill(0, 5);
    producer.tier.publish(KeysView::new(&keys([5]), common::KEY_LEN).unwrap(), &[0]).unwrap();
    let request = consumer.symmetric("r", &producer);
    assert_eq!(consumer.look_up(request, &keys([5])), [LookupState::Hit]);
    consumer.load(request, 1, &keys([5]), &[9]);
    assert_eq!(consumer.result().outcome, Outcome::Done);
    assert!(consumer.holds(9, 5));
}
