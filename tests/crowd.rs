//! Many peers at once: they all get their session, and those who work beside them notice nothing.
#![allow(clippy::disallowed_methods, reason = "tests wait with bounds")]

mod common;
#[path = "common/crowd.rs"]
mod crowd;

use common::{BOUND, KEY_LEN, Node, NodeOptions, eventually, keys};
use crowd::{Crowd, DESCRIPTORS_OF_A_PEER, Manners};
use p2pkv::protocol::job::{LookupState, Outcome, PeerState};
use p2pkv::protocol::keys::KeysView;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PEERS: usize = 1000;
const PARKED: u64 = 10_000;

/// Both ends of every session are in this process. As many peers as it may have descriptors for, after asking for more.
fn affordable_peers() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let may_have = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let affordable = may_have.saturating_sub(500) / (2 * DESCRIPTORS_OF_A_PEER);
    let peers = usize::try_from(affordable).unwrap_or(PEERS).min(PEERS);
    println!("{peers} peers, {may_have} descriptors");
    peers
}

fn ready_peers(node: &Node) -> usize {
    node.tier.peers().unwrap().iter().filter(|peer| peer.state == PeerState::Ready).count()
}

fn come(node: &Node, count: usize) -> Crowd {
    let manners = Manners { block_len: node.block_len, hash_seed: "vllm-none-hash" };
    let mut crowd = Crowd::dial(count, node.tier.local_id().as_str(), manners);
    crowd.shake_hands(BOUND);
    crowd
}

/// Stores that nobody fetches.
fn park(node: &Node) {
    for number in 0..PARKED {
        let request = node.producer(&format!("parked-{number}"));
        node.store(request, number, &keys([1 << 32 | number]), &[0]);
    }
}

/// A lookup and a load of one published block.
fn pull(consumer: &Node, producer: &Node, id: &str) {
    let request = consumer.symmetric(id, producer);
    assert_eq!(consumer.look_up(request, &keys([7])), [LookupState::Hit]);
    consumer.load(request, 1, &keys([7]), &[3]);
    assert_eq!((consumer.result().outcome, consumer.holds(3, 7)), (Outcome::Done, true));
    consumer.tier.request_finish(request).unwrap();
}

#[test]
fn a_thousand_peers_and_ten_thousand_parked_requests_disturb_no_load_and_leave_nothing_behind() {
    let peers = affordable_peers();
    let mut host = Node::new(NodeOptions { max_peers: peers + 16, ..NodeOptions::default() });
    host.fill(5, 7);
    host.tier.publish(KeysView::new(&keys([7]), KEY_LEN).unwrap(), &[5]).unwrap();
    let consumer = Node::new(NodeOptions::default());

    let mut crowd = come(&host, peers);
    eventually("all are ready", || ready_peers(&host) == peers);
    park(&host);
    pull(&consumer, &host, "beside the crowd");
    // They die with requests open, so the host has a last word for each.
    crowd.look_up(3, BOUND);
    drop(crowd);
    eventually("only the consumer is left", || host.tier.peers().unwrap().len() == 1);
    pull(&consumer, &host, "after the crowd");

    // Others, while the last words to the first still linger.
    let _crowd = come(&host, peers);
    eventually("they are ready, too", || ready_peers(&host) == peers + 1);
    pull(&consumer, &host, "beside the next crowd");
    host.tier.shut_down();
    let mut results = Vec::new();
    host.tier.poll_finished(&mut results, usize::MAX).unwrap();
    assert_eq!(results.len() as u64, PARKED);
    assert!(results.iter().all(|result| result.outcome == Outcome::ShutDown));
}
