//! Two tiers over NIXL, where it is installed (see `P2PKV_NIXL_LIBRARY_DIR`); without it only its absence is tested.
#![allow(clippy::disallowed_methods, reason = "tests wait with bounds")]
#![cfg(feature = "nixl")]

mod common;

use common::{KEY_LEN, Node, NodeOptions, keys};
use p2pkv::protocol::job::Outcome;
use p2pkv::protocol::keys::KeysView;
use p2pkv::tier::TransportChoice;

/// `None`, with a word on why, where there is no NIXL.
fn node(num_blocks: u32, block_len: usize) -> Option<Node> {
    let options =
        NodeOptions { num_blocks, block_len, transport: TransportChoice::Nixl, ..NodeOptions::default() };
    match Node::try_new(options) {
        Ok(node) => Some(node),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

#[test]
fn pd_moves_the_bytes() {
    let (Some(mut prefiller), Some(decoder)) = (node(64, 4096), node(64, 4096)) else { return };
    let tags: Vec<u64> = (0..32).collect();
    for tag in 0..32 {
        prefiller.fill(tag, tag as u64);
    }
    for (id, decoder_first) in [("a", false), ("b", true)] {
        let serve = prefiller.producer(id);
        let pull = decoder.pd_consumer(id, &prefiller);
        let sources: Vec<u32> = (0..32).collect();
        // Runs of four neighbours.
        let destinations: Vec<u32> = (0..32).map(|block| block / 4 * 8 + block % 4).collect();
        if decoder_first {
            decoder.load(pull, 1, &keys(tags.iter().copied()), &destinations);
        }
        prefiller.store(serve, 7, &keys(tags.iter().copied()), &sources);
        if !decoder_first {
            decoder.load(pull, 1, &keys(tags.iter().copied()), &destinations);
        }
        let result = decoder.result();
        assert_eq!(result.outcome, Outcome::Done, "{result:?}");
        assert_eq!(prefiller.result().outcome, Outcome::Done);
        for (tag, block) in tags.iter().zip(&destinations) {
            assert!(decoder.holds(*block as usize, *tag), "block {block}");
        }
        assert_eq!(decoder.tier.peers().unwrap()[0].transport, "nixl");
        decoder.tier.request_finish(pull).unwrap();
        prefiller.tier.request_finish(serve).unwrap();
    }
}

#[test]
fn many_transfers_in_both_directions() {
    let (Some(mut one), Some(mut other)) = (node(256, 4096), node(256, 4096)) else { return };
    for node in [&mut one, &mut other] {
        for tag in 0..128 {
            node.fill(tag, tag as u64);
        }
        let blocks: Vec<u32> = (0..128).collect();
        node.tier.publish(KeysView::new(&keys(0..128), KEY_LEN).unwrap(), &blocks).unwrap();
    }
    for (consumer, producer) in [(&one, &other), (&other, &one)] {
        for round in 0..64u64 {
            let request = consumer.pd_consumer(&format!("{}-{round}", producer.tier.local_id()), producer);
            consumer.load(
                request,
                round,
                &keys([round, round + 1]),
                &[128 + round as u32, 192 + round as u32],
            );
        }
    }
    for consumer in [&one, &other] {
        assert!(consumer.results(64).iter().all(|result| result.outcome == Outcome::Done));
        for round in 0..64 {
            assert!(
                consumer.holds(128 + round, round as u64) && consumer.holds(192 + round, round as u64 + 1)
            );
        }
    }
}
