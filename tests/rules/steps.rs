//! §9, invariant 9: what a peer leaves to be done is done in slices, and nobody sees a difference.

use p2pkv::protocol::config::{CoreConfig, Limits, TransportKind};
use p2pkv::protocol::ids::RequestId;
use p2pkv::protocol::job::{LookupState, Outcome};
use p2pkv::protocol::message::Message;
use p2pkv::protocol::steps::ITEM;

use crate::script::Script;
use crate::world::*;

const PEER: &str = "10.0.0.9:7000";
const OTHER: &str = "10.0.0.8:7000";

/// A tier whose inputs do so much each, with a ready session of the scripted peer.
fn tier(slice: usize) -> (World, Script) {
    tier_of(CoreConfig { slice, ..config(0, 0, TransportKind::Tcp) })
}

fn tier_of(config: CoreConfig) -> (World, Script) {
    let mut world = World::with_configs(vec![config], TransportKind::Tcp);
    let peer = Script::p2pkv(PEER);
    peer.join(&mut world);
    world.forget_sent();
    (world, peer)
}

fn is_unfinished(world: &World) -> bool {
    world.nodes[0].manager.has_unfinished_work()
}

/// Slices until nothing is left; how many results each of them gave.
fn work_off(world: &mut World) -> Vec<usize> {
    let mut given = Vec::new();
    let mut before = world.nodes[0].results.len();
    while world.work(0) {
        let now = world.nodes[0].results.len();
        given.push(now - before);
        before = now;
    }
    given
}

/// Rounds of the peer, each of which holds a store of ours and waits for a key that nobody has.
fn many_rounds(world: &mut World, peer: &Script) -> Vec<RequestId> {
    let mut producers = Vec::new();
    for number in 0..10 {
        let id = format!("r{number}");
        let producer = world.producer(0, &id);
        world.store(0, producer, number, &[1]);
        peer.fetch(world, &id, 0, &[1, 2], &[5, 6]);
        world.run();
        producers.push(producer);
    }
    producers
}

fn finish_all(world: &mut World, requests: &[RequestId]) {
    requests.iter().for_each(|request| world.finish(0, *request));
    world.run();
}

fn answer_of(world: &World) -> Option<&[bool]> {
    world.nodes[0].sent.iter().rev().find_map(|(_, message)| match message {
        Message::LookupResp(resp) => Some(resp.hits.as_slice()),
        _ => None,
    })
}

#[test]
fn the_death_of_a_session_with_many_rounds_is_worked_off_in_slices() {
    let (mut world, peer) = tier(2 * ITEM);
    let producers = many_rounds(&mut world, &peer);
    peer.disconnect(&mut world, Some("maintenance"));
    assert!(world.nodes[0].results.len() <= 2, "{}", world.nodes[0].results.len());
    assert!(is_unfinished(&world));
    let given = work_off(&mut world);
    assert!(given.iter().all(|results| *results <= 2) && given.len() >= 4, "{given:?}");
    for job in 0..10 {
        assert_eq!(world.outcome(0, job), Outcome::PeerLost);
        assert!(world.result(0, job).detail.contains("maintenance"), "{:?}", world.result(0, job));
    }
    finish_all(&mut world, &producers);
    world.check_rest();
    assert_eq!(world.nodes[0].manager.sessions_open(), 0);
}

#[test]
fn the_death_of_a_small_session_is_over_within_its_input() {
    let (mut world, peer) = tier(100 * ITEM);
    many_rounds(&mut world, &peer);
    peer.disconnect(&mut world, None);
    assert!(!is_unfinished(&world));
    assert_eq!(world.nodes[0].results.len(), 10);
    assert_eq!(world.nodes[0].manager.sessions_open(), 0);
}

#[test]
fn other_peers_are_served_between_the_slices() {
    let (mut world, peer) = tier(1);
    let other = Script::p2pkv(OTHER);
    other.join(&mut world);
    world.publish(0, &[7]);
    many_rounds(&mut world, &peer);
    peer.disconnect(&mut world, None);
    other.lookup(&mut world, "o", 0, &[7]);
    assert_eq!(answer_of(&world), Some([true].as_slice()));
    other.fetch(&mut world, "o", 0, &[7], &[3]);
    assert_eq!(world.transfers(0).len(), 1);
    assert!(is_unfinished(&world), "the dead session is not worked off yet");
    world.run();
    assert_eq!(world.sent(0, "transfer_done"), 1);
}

#[test]
fn what_the_engine_asks_of_a_dead_session_is_known_before_it_is_worked_off() {
    let (mut world, peer) = tier(1);
    let request = |world: &mut World, number: u64| {
        world.request(0, symmetric_from(&format!("r{number}"), PEER)).unwrap()
    };
    let requests: Vec<_> = (0..8).map(|number| request(&mut world, number)).collect();
    for (number, request) in requests.iter().enumerate() {
        world.lookup(0, *request, &[1]);
        world.flush(0);
        peer.lookup_resp(&mut world, &format!("r{number}"), &[1], &[true]);
    }
    world.load(0, requests[7], 1, &[1], &[40]);
    peer.disconnect(&mut world, Some("maintenance"));
    assert!(is_unfinished(&world));
    for request in &requests {
        assert_eq!(world.lookup(0, *request, &[1, 2]), [LookupState::Miss; 2]);
        assert!(world.failure(0, *request).unwrap().1.contains("maintenance"));
    }
    world.load(0, requests[6], 2, &[1], &[41]);
    assert_eq!(world.outcome(0, 2), Outcome::PeerLost, "refused at once");
    // What the engine does to a request whose turn has not come changes no cause.
    assert!(is_unfinished(&world));
    world.finish(0, requests[7]);
    world.run();
    assert_eq!(world.outcome(0, 1), Outcome::PeerLost);
    requests[..7].iter().for_each(|request| world.finish(0, *request));
    world.check_rest();
}

#[test]
fn an_id_of_a_dead_session_is_free_as_soon_as_nothing_of_it_can_be_written() {
    let (mut world, peer) = tier(1);
    world.auto_disarm = false;
    let ids = ["looked up", "loading", "more", "and more"];
    let requests = ids.map(|id| world.request(0, symmetric_from(id, PEER)).unwrap());
    for (id, request) in ids.iter().zip(requests) {
        world.lookup(0, request, &[1]);
        world.flush(0);
        peer.lookup_resp(&mut world, id, &[1], &[true]);
    }
    world.load(0, requests[1], 1, &[1], &[40]);
    requests.into_iter().for_each(|request| world.finish(0, request));
    peer.disconnect(&mut world, None);
    assert!(is_unfinished(&world));
    assert!(world.request(0, symmetric_from("looked up", OTHER)).is_ok());
    assert!(world.request(0, symmetric_from("loading", OTHER)).is_err(), "its fence is open");
    while world.work(0) {}
    while world.disarm_next(0) {}
    assert_eq!(world.outcome(0, 1), Outcome::Aborted, "the first cause");
    assert!(world.request(0, symmetric_from("loading", OTHER)).is_ok());
}

#[test]
fn a_new_session_with_the_peer_begins_before_the_old_one_is_worked_off() {
    let (mut world, peer) = tier(1);
    let producers = many_rounds(&mut world, &peer);
    let late = world.producer(0, "late");
    peer.disconnect(&mut world, None);
    peer.say_connect(&mut world);
    world.register_next(0);
    peer.say_ack(&mut world);
    // An id that the old session still holds, one that is new, and a store for each.
    peer.fetch(&mut world, "r9", 0, &[3], &[5]);
    peer.fetch(&mut world, "late", 0, &[4], &[6]);
    assert!(is_unfinished(&world), "the old session is there yet");
    world.store(0, producers[9], 100, &[3]);
    world.store(0, late, 101, &[4]);
    world.run();
    assert_eq!((world.outcome(0, 100), world.outcome(0, 101)), (Outcome::Done, Outcome::Done));
    assert!((0..10).all(|job| world.outcome(0, job) == Outcome::PeerLost));
    world.finish(0, late);
    finish_all(&mut world, &producers);
    world.check_rest();
}

#[test]
fn a_transfer_that_ends_after_the_death_does_not_make_its_round_a_success() {
    let (mut world, peer) = tier(1);
    world.auto_transfer = false;
    let producers: Vec<_> = (0..6).map(|number| world.producer(0, &format!("r{number}"))).collect();
    for (number, producer) in producers.iter().enumerate() {
        world.store(0, *producer, number as u64, &[1]);
        peer.fetch(&mut world, &format!("r{number}"), 0, &[1], &[5]);
    }
    let transfers = world.transfers(0);
    peer.disconnect(&mut world, None);
    world.end_transfer(0, transfers[5], End::Done);
    assert_eq!(world.outcome(0, 5), Outcome::PeerLost);
    // After the drain time nothing is waited for, a slice at a time.
    while world.work(0) {}
    assert!(world.is_open(0, 0));
    world.now = world.now + seconds(11);
    world.tick();
    while world.work(0) {}
    assert!((0..5).all(|job| world.outcome(0, job) == Outcome::PeerLost));
    assert!((0..5).all(|job| world.result(0, job).flags.may_still_be_read));
    finish_all(&mut world, &producers);
    assert_eq!(world.nodes[0].manager.sessions_open(), 0);
}

#[test]
fn keys_of_a_large_fetch_are_matched_slice_by_slice_and_written_as_they_are() {
    let (mut world, peer) = tier(2);
    world.auto_transfer = false;
    world.publish(0, &[1, 2, 3, 4, 5, 6, 7, 8]);
    world.run();
    peer.fetch(&mut world, "r", 0, &[1, 2, 3, 4, 5, 6, 7, 8], &[1, 2, 3, 4, 5, 6, 7, 8]);
    let first = world.transfers(0).len();
    assert!(first >= 1 && is_unfinished(&world));
    // What has been moved already is not all.
    world.transfers(0).into_iter().for_each(|transfer| world.end_transfer(0, transfer, End::Done));
    assert_eq!(world.sent(0, "transfer_done"), 0);
    world.auto_transfer = true;
    world.run();
    assert_eq!(world.sent(0, "transfer_done"), 1);
    world.check_rest();
}

#[test]
fn messages_wait_in_order_behind_a_large_one_of_their_session_and_of_no_other() {
    let (mut world, peer) = tier(1);
    world.auto_transfer = false;
    let other = Script::p2pkv(OTHER);
    other.join(&mut world);
    world.publish(0, &[1]);
    world.run();
    world.forget_sent();
    peer.fetch(&mut world, "r", 0, &[2, 3, 4, 5, 6, 7, 8], &[2, 3, 4, 5, 6, 7, 8]);
    peer.lookup(&mut world, "s", 0, &[1]);
    peer.abort(&mut world, "r", 0);
    peer.fetch(&mut world, "r", 0, &[1], &[9]);
    assert_eq!(world.sent_messages(0), [""; 0], "all of them wait");
    other.lookup(&mut world, "o", 0, &[1]);
    assert_eq!(world.sent_messages(0), ["lookup_resp"]);
    world.auto_transfer = true;
    world.run();
    assert_eq!(world.sent_messages(0), ["lookup_resp", "lookup_resp", "abort_ack", "transfer_done"]);
    // What answers us does not wait for what is asked of us.
    let request = world.request(0, symmetric_from("ours", PEER)).unwrap();
    world.lookup(0, request, &[1]);
    world.flush(0);
    peer.fetch(&mut world, "r", 1, &[2, 3, 4, 5, 6, 7, 8], &[2, 3, 4, 5, 6, 7, 8]);
    peer.lookup_resp(&mut world, "ours", &[1], &[true]);
    assert_eq!(world.lookup(0, request, &[1]), [LookupState::Hit]);
}

#[test]
fn a_round_that_was_looked_up_is_written_whole_or_not_at_all() {
    let (mut world, peer) = tier(1);
    world.auto_transfer = false;
    world.publish(0, &[1, 2, 3, 4]);
    for (round, last) in [(0, 9), (1, 4)] {
        peer.lookup(&mut world, "r", round, &[1, 2, 3, 4]);
        world.run();
        peer.fetch(&mut world, "r", round, &[1, 2, 3, last], &[1, 2, 3, 4]);
        assert_eq!(world.transfers(0).len(), 0);
        world.run();
        assert_eq!(world.transfers(0).len(), usize::from(last == 4));
    }
    world.auto_transfer = true;
    world.run();
    let done = |(_, message): &(_, Message)| match message {
        Message::TransferDone(done) => Some((done.round_seq.0, done.success)),
        _ => None,
    };
    let dones: Vec<_> = world.nodes[0].sent.iter().filter_map(done).collect();
    assert_eq!(dones, [(0, false), (1, true)]);
    world.check_rest();
}

#[test]
fn stores_publications_and_the_end_of_the_producer_find_a_fetch_that_is_half_matched() {
    for finishes in [false, true] {
        let (mut world, peer) = tier(1);
        let producer = world.producer(0, "r");
        peer.fetch(&mut world, "r", 0, &[1, 2, 3, 4, 5, 6], &[1, 2, 3, 4, 5, 6]);
        assert!(is_unfinished(&world));
        // One key that was looked for already and one that was not, of each.
        world.store(0, producer, 1, if finishes { &[1, 6] } else { &[1, 3, 4, 6] });
        world.publish(0, &[2, 5]);
        if finishes {
            world.finish(0, producer);
        }
        world.run();
        let expected = if finishes { Outcome::Aborted } else { Outcome::Done };
        assert_eq!(world.outcome(0, 1), expected);
        assert_eq!(world.sent(0, "transfer_done"), 1);
        if !finishes {
            world.finish(0, producer);
        }
        world.check_rest();
    }
}

#[test]
fn a_transfer_that_fails_ends_a_fetch_that_is_half_matched() {
    let (mut world, peer) = tier(1);
    world.auto_transfer = false;
    world.publish(0, &[1, 2, 3, 4, 5, 6, 7, 8]);
    world.run();
    peer.fetch(&mut world, "r", 0, &[1, 2, 3, 4, 5, 6, 7, 8], &[1, 2, 3, 4, 5, 6, 7, 8]);
    let begun = world.transfers(0);
    world.end_transfer(0, begun[0], End::Failed);
    world.transfers(0).into_iter().for_each(|transfer| world.end_transfer(0, transfer, End::Failed));
    world.run();
    assert_eq!(world.sent(0, "transfer_done"), 1);
    assert!(world.transfers(0).len() < 8 && world.stats(0).blocks_pinned == 0);
    world.check_rest();
}

#[test]
fn a_session_that_dies_in_the_middle_of_its_messages_leaves_nothing() {
    let (mut world, peer) = tier(1);
    world.publish(0, &[1, 2, 3, 4]);
    peer.lookup(&mut world, "l", 0, &[1, 2, 3, 4]);
    peer.fetch(&mut world, "r", 0, &[1, 2, 3, 4, 5, 6], &[1, 2, 3, 4, 5, 6]);
    peer.fetch(&mut world, "s", 0, &[5], &[7]);
    peer.disconnect(&mut world, None);
    assert!(is_unfinished(&world));
    world.run();
    world.check_rest();
    assert_eq!(world.nodes[0].manager.sessions_open(), 0);
}

#[test]
fn messages_that_wait_count_against_the_limits() {
    let limits = Limits { outstanding_per_peer: 4, ..Limits::default() };
    let (mut world, peer) = tier_of(CoreConfig { slice: 1, limits, ..config(0, 0, TransportKind::Tcp) });
    peer.fetch(&mut world, "r", 0, &[1; 40], &[2; 40]);
    for _ in 0..4 {
        peer.abort(&mut world, "other", 0);
    }
    assert!(world.last_disconnect(0).contains("open at once"));
    let limits = Limits { keys_per_message: 10, ..Limits::default() };
    let (mut world, peer) = tier_of(CoreConfig { slice: 1, limits, ..config(0, 0, TransportKind::Tcp) });
    for number in 0..5 {
        peer.fetch(&mut world, &format!("r{number}"), 0, &[1; 10], &[2; 10]);
    }
    assert!(world.last_disconnect(0).contains("keys in rounds"));
    world.run();
    world.check_rest();
}

#[test]
fn the_end_of_an_id_with_many_rounds_is_worked_off_in_slices() {
    let (mut world, peer) = tier(2 * ITEM);
    world.publish(0, &[1]);
    for round in 0..10 {
        peer.lookup(&mut world, "r", round, &[1]);
    }
    world.run();
    assert_eq!(world.stats(0).blocks_pinned, 1);
    peer.fetch(&mut world, "r", 10, &[], &[]);
    assert!(is_unfinished(&world));
    peer.lookup(&mut world, "r", 3, &[1]);
    world.run();
    assert_eq!(world.stats(0).blocks_pinned, 1, "the lookup that came after it");
    peer.fetch(&mut world, "r", 11, &[], &[]);
    world.run();
    world.check_rest();
}

#[test]
fn a_key_that_many_rounds_want_is_served_in_slices() {
    let (mut world, peer) = tier(2 * ITEM);
    world.auto_transfer = false;
    for number in 0..10 {
        peer.fetch(&mut world, &format!("r{number}"), 0, &[1], &[number + 2]);
    }
    world.run();
    world.publish(0, &[1]);
    assert!(world.transfers(0).len() <= 2 && is_unfinished(&world));
    // Whoever asks now does not wait behind them, and whoever leaves is passed over.
    peer.fetch(&mut world, "new", 0, &[1], &[50]);
    peer.abort(&mut world, "r9", 0);
    world.run();
    assert_eq!(world.transfers(0).len(), 10);
    world.auto_transfer = true;
    world.run();
    assert_eq!((world.sent(0, "transfer_done"), world.sent(0, "abort_ack")), (10, 1));
    world.check_rest();
}

#[test]
fn deadlines_that_come_at_once_are_judged_in_slices() {
    let (mut world, peer) = tier(2 * ITEM);
    many_rounds(&mut world, &peer);
    world.now = world.now + seconds(31);
    world.nodes[0].manager.handle_timeout(world.now);
    world.execute(0);
    assert!(world.nodes[0].results.len() <= 2);
    assert!(world.nodes[0].manager.next_deadline().is_some_and(|next| next <= world.now));
    world.tick();
    assert_eq!(world.nodes[0].results.len(), 10);
    assert!((0..10).all(|job| world.outcome(0, job) == Outcome::TimedOut));
}

#[test]
fn a_tier_that_is_freed_ends_all_that_is_left_whatever_the_slices() {
    let (mut world, peer) = tier(1);
    many_rounds(&mut world, &peer);
    world.shut_down(0);
    assert!(is_unfinished(&world));
    world.nodes[0].manager.finish_work(world.now);
    world.execute(0);
    assert!(!is_unfinished(&world));
    assert!((0..10).all(|job| world.outcome(0, job) == Outcome::ShutDown));
}
