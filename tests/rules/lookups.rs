//! §4, consumer role: lookups.

use p2pkv::protocol::config::TransportKind;
use p2pkv::protocol::error::ErrorKind;
use p2pkv::protocol::ids::RequestId;
use p2pkv::protocol::job::{LookupState, Outcome};
use p2pkv::protocol::manager::RequestTimeouts;
use p2pkv::protocol::message::Message;

use crate::script::{Script, keys};
use crate::world::*;

const PEER: &str = "10.0.0.9:7000";

/// A tier with a ready session to the scripted peer.
fn ready() -> (World, Script, RequestId) {
    let mut world = World::new(1, TransportKind::Tcp);
    let request = world.request(0, symmetric_from("r", PEER)).unwrap();
    let peer = Script::p2pkv(PEER);
    peer.join(&mut world);
    world.forget_sent();
    (world, peer, request)
}

#[test]
fn the_first_lookup_registers_and_gives_retry_until_the_response() {
    let (mut world, peer, request) = ready();
    assert_eq!(world.lookup(0, request, &[1, 2]), [LookupState::Retry; 2]);
    assert_eq!(world.sent(0, "lookup"), 0, "a flush sends");
    world.flush(0);
    assert_eq!(world.lookup(0, request, &[1, 2]), [LookupState::Retry; 2]);
    peer.lookup_resp(&mut world, "r", &[1, 2], &[true, false]);
    for _ in 0..2 {
        assert_eq!(world.lookup(0, request, &[1, 2]), [LookupState::Hit, LookupState::Miss]);
    }
    world.flush(0);
    assert_eq!(world.sent(0, "lookup"), 1);
}

#[test]
fn a_flush_sends_one_lookup_for_each_request_with_the_new_keys_only() {
    let (mut world, _, request) = ready();
    let other = world.request(0, symmetric_from("other", PEER)).unwrap();
    world.lookup(0, request, &[1, 2]);
    world.lookup(0, other, &[3]);
    world.lookup(0, request, &[2, 4]);
    world.flush(0);
    let sent = |message: &Message| match message {
        Message::Lookup(lookup) => (lookup.kv_request_id.to_string(), lookup.keys.clone()),
        other => panic!("{other:?}"),
    };
    let lookups: Vec<_> = world.nodes[0].sent.iter().map(|(_, message)| sent(message)).collect();
    assert_eq!(lookups, [("r".to_owned(), keys(&[1, 2, 4])), ("other".to_owned(), keys(&[3]))]);
    world.lookup(0, request, &[1, 5]);
    world.flush(0);
    assert_eq!(sent(world.last_sent(0, "lookup")).1, keys(&[5]));
}

#[test]
fn a_fetch_closes_the_round_and_clears_its_answers() {
    let (mut world, peer, request) = ready();
    world.lookup(0, request, &[1, 2]);
    world.flush(0);
    peer.lookup_resp(&mut world, "r", &[1, 2], &[true, false]);
    world.load(0, request, 1, &[1], &[40]);
    assert_eq!(world.lookup(0, request, &[1, 2]), [LookupState::Retry; 2]);
    world.flush(0);
    let Message::Lookup(lookup) = world.last_sent(0, "lookup") else { unreachable!() };
    assert_eq!(lookup.round_seq.0, 1);
}

#[test]
fn junk_answers_change_nothing() {
    let (mut world, peer, request) = ready();
    world.lookup(0, request, &[1, 2]);
    world.flush(0);
    let before = world.stats(0).messages_late;
    peer.lookup_resp(&mut world, "r", &[2, 1], &[true, true]);
    peer.lookup_resp(&mut world, "r", &[1], &[true]);
    peer.lookup_resp(&mut world, "unknown", &[1, 2], &[true, true]);
    peer.lookup_resp(&mut world, "r", &[], &[]);
    assert_eq!(world.lookup(0, request, &[1, 2]), [LookupState::Retry; 2]);
    assert_eq!(world.stats(0).messages_late, before + 4);
    peer.lookup_resp(&mut world, "r", &[1, 2], &[true, true]);
    peer.lookup_resp(&mut world, "r", &[1, 2], &[false, false]);
    assert_eq!(world.lookup(0, request, &[1, 2]), [LookupState::Hit; 2], "the first answer stands");
    assert_eq!(world.stats(0).protocol_errors, 0);
}

#[test]
fn an_unanswered_lookup_retires_the_session_after_30_s() {
    let (mut world, _, request) = ready();
    world.lookup(0, request, &[1]);
    world.advance(seconds(40));
    world.flush(0);
    world.advance(millis(29_999));
    assert!(world.failure(0, request).is_none(), "counted from the flush");
    world.advance(millis(1));
    assert_eq!(world.failure(0, request).unwrap().0, Outcome::PeerLost);
    assert_eq!(world.lookup(0, request, &[1]), [LookupState::Miss]);
    assert!(world.last_disconnect(0).contains("no answer to a lookup"));
}

#[test]
fn only_newly_answered_keys_re_arm_the_lookup_deadline() {
    let (mut world, peer, request) = ready();
    world.lookup(0, request, &[1]);
    world.flush(0);
    world.lookup(0, request, &[2]);
    world.advance(seconds(10));
    world.flush(0);
    // Neither a second flush nor junk gives more time.
    world.advance(seconds(15));
    peer.lookup_resp(&mut world, "r", &[9], &[true]);
    peer.lookup_resp(&mut world, "r", &[1], &[true]);
    world.advance(seconds(29));
    assert!(world.failure(0, request).is_none(), "an answer does");
    peer.lookup_resp(&mut world, "r", &[1], &[true]);
    world.advance(seconds(1));
    assert!(world.failure(0, request).is_some(), "the same answer again does not");
}

#[test]
fn an_answered_request_waits_for_nothing() {
    let (mut world, peer, request) = ready();
    world.lookup(0, request, &[1]);
    world.flush(0);
    peer.lookup_resp(&mut world, "r", &[1], &[true]);
    world.advance(seconds(120));
    assert_eq!(world.lookup(0, request, &[1]), [LookupState::Hit]);
}

#[test]
fn a_lookup_flushed_before_the_handshake_counts_its_time_from_the_end_of_that() {
    let mut world = World::new(1, TransportKind::Tcp);
    let request = world.request(0, symmetric_from("r", PEER)).unwrap();
    world.lookup(0, request, &[1]);
    world.flush(0);
    world.advance(seconds(25));
    Script::p2pkv(PEER).join(&mut world);
    world.advance(seconds(29));
    assert!(world.failure(0, request).is_none());
    world.advance(seconds(1));
    assert!(world.failure(0, request).is_some());
}

fn with_lookup_time(world: &mut World, id: &str) -> RequestId {
    let timeouts = RequestTimeouts { lookup: Some(seconds(2)), ..RequestTimeouts::default() };
    world.request_with(0, symmetric_from(id, PEER), timeouts).unwrap()
}

#[test]
fn lookups_past_the_requests_own_deadline_are_misses_and_nobody_else_is_harmed() {
    let (mut world, peer, other) = ready();
    let quick = with_lookup_time(&mut world, "quick");
    world.lookup(0, other, &[1]);
    world.lookup(0, quick, &[1]);
    world.flush(0);
    world.advance(seconds(1));
    world.lookup(0, quick, &[2]);
    world.flush(0);
    world.advance(millis(999));
    assert_eq!(world.lookup(0, quick, &[1, 2]), [LookupState::Retry; 2]);
    world.advance(millis(1));
    assert_eq!(world.lookup(0, quick, &[1, 2]), [LookupState::Miss, LookupState::Retry], "each its own time");
    peer.lookup_resp(&mut world, "quick", &[2], &[true]);
    peer.lookup_resp(&mut world, "quick", &[1], &[true]);
    assert_eq!(
        world.lookup(0, quick, &[1, 2]),
        [LookupState::Miss, LookupState::Hit],
        "too late for the first"
    );
    let (outcome, detail) = world.failure(0, quick).unwrap();
    assert_eq!(outcome, Outcome::TimedOut);
    assert!(detail.contains("2s"), "names the time that was waited: {detail}");
    assert!(world.failure(0, other).is_none());
    peer.lookup_resp(&mut world, "r", &[1], &[true]);
    assert_eq!(world.lookup(0, other, &[1]), [LookupState::Hit]);
    // The peer may have pinned what it answered too late.
    world.finish(0, quick);
    let Message::Fetch(end) = world.last_sent(0, "fetch") else { unreachable!() };
    assert!(end.keys.is_empty());
    world.finish(0, other);
    world.check_rest();
}

#[test]
fn the_requests_own_lookup_deadline_holds_before_the_peer_was_ever_heard_too() {
    let mut world = World::new(1, TransportKind::Tcp);
    let quick = with_lookup_time(&mut world, "quick");
    world.lookup(0, quick, &[1]);
    world.flush(0);
    world.advance(millis(1_999));
    assert_eq!(world.lookup(0, quick, &[1]), [LookupState::Retry]);
    world.advance(millis(1));
    assert_eq!(world.lookup(0, quick, &[1]), [LookupState::Miss]);
}

#[test]
fn finish_after_a_lookup_sends_one_terminal_empty_fetch() {
    let (mut world, peer, request) = ready();
    world.lookup(0, request, &[1]);
    world.flush(0);
    peer.lookup_resp(&mut world, "r", &[1], &[true]);
    world.finish(0, request);
    let Message::Fetch(fetch) = world.last_sent(0, "fetch") else { unreachable!() };
    assert!(fetch.keys.is_empty() && fetch.block_indexes.is_empty());
    assert_eq!(world.sent(0, "fetch"), 1);
    world.check_rest();
}

#[test]
fn finish_without_a_lookup_since_the_last_fetch_sends_none() {
    let (mut world, peer, request) = ready();
    world.lookup(0, request, &[1]);
    world.flush(0);
    peer.lookup_resp(&mut world, "r", &[1], &[true]);
    world.load(0, request, 1, &[1], &[40]);
    world.nodes[0].region[40] = 1;
    peer.done(&mut world, "r", 0, true);
    // Registered, never flushed.
    world.lookup(0, request, &[1]);
    world.finish(0, request);
    assert_eq!(world.sent(0, "fetch"), 1);
    world.check();
}

#[test]
fn pd_consumers_take_every_block_for_granted_and_look_nothing_up() {
    let (mut world, _, _) = ready();
    let pd = world.request(0, pd_from("pd", PEER)).unwrap();
    assert_eq!(world.lookup(0, pd, &[1, 2, 3]), [LookupState::Hit; 3]);
    world.flush(0);
    assert_eq!(world.sent(0, "lookup"), 0);
}

#[test]
fn a_load_of_keys_that_are_no_confirmed_hits_is_refused_and_not_sent() {
    let (mut world, peer, request) = ready();
    world.lookup(0, request, &[1, 2, 3]);
    let refused = |world: &mut World, keys: &[u8], to: &[u32]| {
        let error = world.try_load(0, request, 2, keys, to).unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotAHit, "{error}");
    };
    refused(&mut world, &[1], &[40]);
    world.flush(0);
    refused(&mut world, &[1], &[40]);
    peer.lookup_resp(&mut world, "r", &[1, 2, 3], &[true, false, true]);
    refused(&mut world, &[1, 2], &[40, 41]);
    refused(&mut world, &[1, 9], &[40, 41]);
    world.load(0, request, 1, &[3, 1], &[40, 41]);
    refused(&mut world, &[1], &[42]);
    assert_eq!(world.sent(0, "fetch"), 1);
}

#[test]
fn a_lookup_larger_than_a_message_may_be_is_cut() {
    let mut config = config(0, 0, TransportKind::Tcp);
    config.limits.keys_per_message = 3;
    let mut world = World::with_configs(vec![config], TransportKind::Tcp);
    let request = world.request(0, symmetric_from("r", PEER)).unwrap();
    let peer = Script::p2pkv(PEER);
    peer.join(&mut world);
    world.lookup(0, request, &[1, 2, 3, 4, 5, 6, 7]);
    world.flush(0);
    assert_eq!(world.sent(0, "lookup"), 3);
    peer.lookup_resp(&mut world, "r", &[4, 5, 6], &[true; 3]);
    peer.lookup_resp(&mut world, "r", &[1, 2, 3], &[false; 3]);
    peer.lookup_resp(&mut world, "r", &[7], &[true]);
    let expected = [false, false, false, true, true, true, true]
        .map(|hit| if hit { LookupState::Hit } else { LookupState::Miss });
    assert_eq!(world.lookup(0, request, &[1, 2, 3, 4, 5, 6, 7]), expected);
}

#[test]
fn requests_of_unusable_peers_miss_at_once_and_say_why() {
    let mut config = config(0, 0, TransportKind::Tcp);
    config.max_peers = 1;
    let mut world = World::with_configs(vec![config], TransportKind::Tcp);
    world.request(0, symmetric_from("a", PEER)).unwrap();
    let request = world.request(0, symmetric_from("b", "10.0.0.8:7000")).unwrap();
    assert_eq!(world.lookup(0, request, &[1]), [LookupState::Miss]);
    let (outcome, detail) = world.failure(0, request).unwrap();
    assert_eq!(outcome, Outcome::NoPeer);
    assert!(detail.contains("max_peers"));
    world.load(0, request, 1, &[1], &[40]);
    assert_eq!(world.outcome(0, 1), Outcome::NoPeer);
}

#[test]
fn a_legacy_peer_is_never_asked_and_all_lookups_miss() {
    let mut world = World::new(1, TransportKind::Nixl);
    let request = world.request(0, symmetric_from("r", PEER)).unwrap();
    world.lookup(0, request, &[1]);
    world.flush(0);
    assert_eq!(world.lookup(0, request, &[1]), [LookupState::Retry]);
    let peer = Script::legacy(PEER);
    peer.say_connect(&mut world);
    world.run();
    assert_eq!(world.lookup(0, request, &[1, 2]), [LookupState::Miss; 2]);
    peer.say_ack(&mut world);
    world.flush(0);
    world.finish(0, request);
    assert_eq!((world.sent(0, "lookup"), world.sent(0, "fetch")), (0, 0));
    world.check_rest();
}
