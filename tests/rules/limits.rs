//! Limits, caps, and what one bad peer may not do.

use p2pkv::protocol::codec::Decoded;
use p2pkv::protocol::config::TransportKind;
use p2pkv::protocol::job::{LookupState, Outcome};

use crate::script::Script;
use crate::world::*;

fn peer_name(number: usize) -> String {
    format!("10.0.{}.{}:7000", number / 200 + 1, number % 200 + 1)
}

fn capped(max_peers: usize) -> World {
    let mut config = config(0, 0, TransportKind::Tcp);
    config.max_peers = max_peers;
    World::with_configs(vec![config], TransportKind::Tcp)
}

#[test]
fn an_unknown_message_type_is_ignored_and_counted() {
    let mut world = World::new(1, TransportKind::Tcp);
    let peer = Script::p2pkv(&peer_name(1));
    world.inject_decoded(0, &peer.name, Decoded::Unknown { kind: "hello".to_owned() });
    assert_eq!(world.nodes[0].opened.len(), 0);
    peer.join(&mut world);
    world.inject_decoded(0, &peer.name, Decoded::Unknown { kind: "hello".to_owned() });
    assert_eq!(world.stats(0).messages_dropped, 2);
    assert_eq!(world.stats(0).protocol_errors, 0);
    assert_eq!(world.nodes[0].open_sessions(), 1);
}

#[test]
fn a_malformed_message_ends_that_session_only() {
    let mut world = World::new(1, TransportKind::Tcp);
    let (bad, good) = (Script::p2pkv(&peer_name(1)), Script::p2pkv(&peer_name(2)));
    bad.join(&mut world);
    good.join(&mut world);
    world.publish(0, &[1]);
    good.lookup(&mut world, "r", 0, &[1]);
    world.inject_bytes(0, &bad.name, &[0x81, 0xa4, b't', b'y', b'p', b'e', 0xc3]);
    assert!(world.last_disconnect(0).contains("protocol error"));
    assert_eq!(world.nodes[0].open_sessions(), 1);
    good.fetch(&mut world, "r", 0, &[1], &[3]);
    world.run();
    assert_eq!(world.sent(0, "transfer_done"), 1);
    assert_eq!(world.stats(0).protocol_errors, 1);
}

#[test]
fn a_malformed_first_message_opens_nothing() {
    let mut world = World::new(1, TransportKind::Tcp);
    world.inject_bytes(0, &peer_name(1), b"\xff");
    assert_eq!(world.nodes[0].opened.len(), 0);
    assert_eq!(world.stats(0).protocol_errors, 1);
}

#[test]
fn work_before_the_handshake_is_ignored() {
    let mut world = World::new(1, TransportKind::Tcp);
    world.auto_register = false;
    world.publish(0, &[1]);
    let peer = Script::p2pkv(&peer_name(1));
    peer.say_connect(&mut world);
    peer.say_ack(&mut world);
    peer.lookup(&mut world, "r", 0, &[1]);
    peer.fetch(&mut world, "r", 0, &[1], &[3]);
    peer.abort(&mut world, "r", 0);
    world.run();
    assert_eq!(world.sent_messages(0), ["connect"]);
    assert_eq!(world.stats(0).messages_late, 3);
    assert_eq!(world.stats(0).blocks_pinned, 0);
}

#[test]
fn rounds_and_lookups_of_one_peer_are_limited() {
    let mut config = config(0, 0, TransportKind::Tcp);
    config.limits.outstanding_per_peer = 4;
    let mut world = World::with_configs(vec![config], TransportKind::Tcp);
    let (greedy, other) = (Script::p2pkv(&peer_name(1)), Script::p2pkv(&peer_name(2)));
    greedy.join(&mut world);
    other.join(&mut world);
    for id in ["a", "b", "c", "d"] {
        greedy.fetch(&mut world, id, 0, &[1], &[3]);
    }
    assert_eq!(world.nodes[0].open_sessions(), 2);
    greedy.fetch(&mut world, "e", 0, &[1], &[3]);
    assert!(world.last_disconnect(0).contains("more than 4"));
    assert_eq!(world.nodes[0].open_sessions(), 1);
    for id in ["a", "b", "c", "d"] {
        other.lookup(&mut world, id, 0, &[1]);
    }
    assert_eq!(world.nodes[0].open_sessions(), 1);
    other.lookup(&mut world, "e", 0, &[1]);
    assert_eq!(world.nodes[0].open_sessions(), 0);
}

#[test]
fn no_more_than_max_peers_are_answered_or_dialled() {
    let mut world = capped(3);
    for number in 1..=3 {
        Script::p2pkv(&peer_name(number)).join(&mut world);
    }
    Script::p2pkv(&peer_name(4)).join(&mut world);
    assert_eq!(world.nodes[0].opened.len(), 3);
    let request = world.request(0, symmetric_from("r", &peer_name(5))).unwrap();
    assert_eq!(world.failure(0, request).unwrap().0, Outcome::NoPeer);
    // A peer that is connected can still be used.
    let request = world.request(0, symmetric_from("r2", &peer_name(1))).unwrap();
    assert!(world.failure(0, request).is_none());
}

#[test]
fn idle_sessions_are_evicted_near_the_cap_only_the_longest_idle_first() {
    let mut world = capped(16);
    for number in 1..=8 {
        Script::p2pkv(&peer_name(number)).join(&mut world);
        world.advance(seconds(1));
    }
    // Number 1 has a request; all others are idle.
    let request = world.request(0, symmetric_from("r", &peer_name(1))).unwrap();
    world.advance(seconds(289));
    Script::p2pkv(&peer_name(20)).join(&mut world);
    assert_eq!(world.nodes[0].open_sessions(), 9, "nobody is idle for 300 s");
    world.advance(seconds(12));
    Script::p2pkv(&peer_name(21)).join(&mut world);
    let names: Vec<String> =
        world.nodes[0].manager.peers(world.now).iter().map(|peer| peer.peer.to_string()).collect();
    assert!(names.contains(&peer_name(1)), "has work");
    assert!(!names.contains(&peer_name(2)) && !names.contains(&peer_name(3)), "{names:?}");
    assert!(names.contains(&peer_name(4)) && names.contains(&peer_name(21)), "{names:?}");
    assert!(world.failure(0, request).is_none());
    assert!(world.last_disconnect(0).contains("idle"));
}

#[test]
fn far_from_the_cap_idle_sessions_stay() {
    let mut world = capped(128);
    for number in 1..=20 {
        Script::p2pkv(&peer_name(number)).join(&mut world);
    }
    world.advance(seconds(10_000));
    Script::p2pkv(&peer_name(50)).join(&mut world);
    assert_eq!(world.nodes[0].open_sessions(), 21);
}

#[test]
fn a_peer_that_never_answers_delays_nobody_else() {
    let mut world = World::new(2, TransportKind::Tcp);
    world.publish(1, &[1]);
    let dead = world.request(0, symmetric_from("dead", "10.9.9.9:7000")).unwrap();
    world.lookup(0, dead, &[1]);
    let live = world.symmetric(0, "live", 1);
    assert_eq!(world.look_up(0, live, &[1]), [LookupState::Hit]);
    world.load(0, live, 1, &[1], &[40]);
    world.run();
    assert_eq!(world.outcome(0, 1), Outcome::Done);
    assert_eq!(world.lookup(0, dead, &[1]), [LookupState::Retry]);
}

#[test]
fn disconnects_end_the_session_and_say_why() {
    let mut world = World::new(1, TransportKind::Tcp);
    let peer = Script::p2pkv(&peer_name(1));
    let request = world.request(0, symmetric_from("r", &peer.name)).unwrap();
    peer.join(&mut world);
    peer.disconnect(&mut world, Some("maintenance"));
    let (outcome, detail) = world.failure(0, request).unwrap();
    assert_eq!(outcome, Outcome::PeerLost);
    assert!(detail.contains("maintenance"), "{detail}");
    assert_eq!(world.sent(0, "disconnect"), 0, "not answered");
}
