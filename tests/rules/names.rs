//! §4, point 4: one session for a peer, whatever it is called.

use p2pkv::protocol::config::TransportKind;
use p2pkv::protocol::error::ErrorKind;
use p2pkv::protocol::job::{LookupState, Outcome};
use p2pkv::protocol::message::Message;

use crate::script::Script;
use crate::world::*;

fn aliased() -> World {
    let mut world = World::two();
    world.add_name("decoder.example:7000", 1);
    world
}

#[test]
fn a_peer_that_echoes_the_dialled_name_is_one_session_under_it() {
    let mut world = aliased();
    world.publish(1, &[1, 2]);
    let request = world.request(0, symmetric_from("r", "decoder.example:7000")).unwrap();
    assert_eq!(world.look_up(0, request, &[1]), [LookupState::Hit]);
    world.load(0, request, 1, &[1], &[40]);
    world.run();
    assert_eq!(world.outcome(0, 1), Outcome::Done);
    let peers = world.nodes[0].manager.peers(world.now);
    assert_eq!(peers.len(), 1);
    assert_eq!(peers[0].peer.as_str(), "decoder.example:7000");
    // Its own name leads to the same session.
    let other = world.symmetric(0, "r2", 1);
    assert_eq!(world.look_up(0, other, &[2]), [LookupState::Hit]);
    assert_eq!(world.nodes[0].opened.len(), 1);
    world.finish(0, request);
    world.finish(0, other);
    world.run();
    world.check_rest();
}

#[test]
fn a_peer_at_the_numeric_address_that_was_dialled_is_the_one_meant() {
    // The same address in other words.
    let mut world = World::new(1, TransportKind::Nixl);
    world.request(0, symmetric_from("r", "[::ffff:10.0.0.9]:7000")).unwrap();
    let session = world.newest_session(0);
    world.resolved(0, session, "10.0.0.9:7000");
    Script::vllm("10.0.0.9:7000").join(&mut world);
    assert_eq!(world.nodes[0].opened.len(), 1);
    assert_eq!(world.sent(0, "connect_ack"), 1);
}

#[test]
fn localhost_is_the_peer_that_calls_itself_by_its_address() {
    let mut world = World::new(1, TransportKind::Nixl);
    let request = world.request(0, symmetric_from("r", "localhost:7009")).unwrap();
    let session = world.newest_session(0);
    world.resolved(0, session, "127.0.0.1:7009");
    Script::vllm("127.0.0.1:7009").join(&mut world);
    assert_eq!(world.nodes[0].opened.len(), 1);
    world.lookup(0, request, &[1]);
    world.flush(0);
    assert_eq!(world.sent(0, "lookup"), 1);
}

#[test]
fn two_names_that_resolve_to_one_address_are_one_session() {
    let mut world = World::new(1, TransportKind::Nixl);
    let request = world.request(0, symmetric_from("r", "dialled.example:7009")).unwrap();
    let dialled = world.newest_session(0);
    world.resolved(0, dialled, "10.0.0.9:7009");
    let peer = Script::vllm("own-name.example:7009");
    peer.say_connect(&mut world);
    let heard = world.newest_session(0);
    assert_ne!(dialled, heard);
    world.resolved(0, heard, "10.0.0.9:7009");
    world.run();
    peer.say_ack(&mut world);
    assert!(world.failure(0, request).is_none());
    world.lookup(0, request, &[1]);
    world.flush(0);
    assert_eq!(world.nodes[0].sent.last().map(|(session, _)| *session), Some(dialled));
    assert_eq!(world.nodes[0].open_sessions(), 1);
}

#[test]
fn the_same_holds_when_the_dialled_name_is_resolved_last() {
    let mut world = World::new(1, TransportKind::Nixl);
    let request = world.request(0, symmetric_from("r", "localhost:7009")).unwrap();
    let dialled = world.newest_session(0);
    let peer = Script::vllm("127.0.0.1:7009");
    peer.say_connect(&mut world);
    world.resolved(0, dialled, "127.0.0.1:7009");
    world.run();
    peer.say_ack(&mut world);
    assert!(world.failure(0, request).is_none());
    world.lookup(0, request, &[1]);
    world.flush(0);
    assert_eq!(world.sent(0, "lookup"), 1);
    assert_eq!(world.nodes[0].open_sessions(), 1);
}

#[test]
fn a_peer_whose_own_name_cannot_be_resolved_is_blamed_at_once_naming_both() {
    let mut world = World::new(1, TransportKind::Nixl);
    let request = world.request(0, pd_from("r", "10.0.0.9:7000")).unwrap();
    world.load(0, request, 1, &[1], &[40]);
    Script::vllm("pod-17:7000").say_connect(&mut world);
    let heard = world.newest_session(0);
    world.unresolvable(0, heard);
    let detail = &world.result(0, 1).detail;
    assert!(detail.contains("pod-17:7000") && detail.contains("10.0.0.9:7000"), "{detail}");
    assert_eq!(world.outcome(0, 1), Outcome::NoPeer);
}

#[test]
fn a_stranger_whose_name_cannot_be_resolved_is_not_taken_for_the_peer_that_was_dialled() {
    let mut world = World::new(1, TransportKind::Tcp);
    let request = world.request(0, pd_from("r", "10.0.0.9:7000")).unwrap();
    world.load(0, request, 1, &[1], &[40]);
    Script::p2pkv("pod-17:7000").say_connect(&mut world);
    let heard = world.newest_session(0);
    world.unresolvable(0, heard);
    assert!(world.is_open(0, 1), "{:?}", world.result(0, 1));
}

#[test]
fn a_name_that_cannot_be_resolved_fails_its_own_jobs_and_no_others() {
    let mut world = World::new(1, TransportKind::Tcp);
    let good = world.request(0, symmetric_from("a", "10.0.0.9:7000")).unwrap();
    let bad = world.request(0, symmetric_from("b", "no-such-host:7000")).unwrap();
    let session = world.newest_session(0);
    world.unresolvable(0, session);
    assert_eq!(world.failure(0, bad).unwrap().0, Outcome::NoPeer);
    assert!(world.failure(0, good).is_none(), "{:?}", world.failure(0, good));
}

#[test]
fn a_restart_keeps_the_dialled_name() {
    let mut world = aliased();
    let request = world.request(0, symmetric_from("r", "decoder.example:7000")).unwrap();
    world.run();
    world.restart(1);
    world.publish(1, &[1]);
    world.symmetric(1, "x", 0);
    world.run();
    world.finish(0, request);
    let request = world.request(0, symmetric_from("r", "decoder.example:7000")).unwrap();
    assert_eq!(world.look_up(0, request, &[1]), [LookupState::Hit]);
    assert_eq!(world.nodes[0].opened.len(), 2);
}

#[test]
fn dialling_a_living_peer_by_a_second_name_ends_in_one_session() {
    let mut world = aliased();
    world.publish(1, &[1]);
    let first = world.symmetric(0, "a", 1);
    assert_eq!(world.look_up(0, first, &[1]), [LookupState::Hit]);
    let second = world.request(0, symmetric_from("b", "decoder.example:7000")).unwrap();
    assert_eq!(world.look_up(0, second, &[1]), [LookupState::Hit]);
    assert_eq!(world.nodes[0].open_sessions(), 1);
    assert_eq!(world.nodes[1].open_sessions(), 1);
    world.finish(0, first);
    let third = world.symmetric(0, "c", 1);
    assert_eq!(world.look_up(0, third, &[1]), [LookupState::Hit]);
}

#[test]
fn a_request_to_oneself_is_refused_under_every_name() {
    let mut world = World::new(1, TransportKind::Tcp);
    let refused = world.request(0, symmetric_from("r", &node_name(0))).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidParams);
    world.add_name("me.example:7000", 0);
    let request = world.request(0, symmetric_from("r", "me.example:7000")).unwrap();
    world.run();
    let (outcome, detail) = world.failure(0, request).unwrap();
    assert_eq!(outcome, Outcome::Incompatible);
    assert!(detail.contains("this tier itself"), "{detail}");
}

#[test]
fn identities_that_are_no_host_and_port_are_dropped_and_counted() {
    let mut world = World::new(1, TransportKind::Tcp);
    let mut peer = Script::p2pkv("10.0.0.9:7000");
    for identity in ["", "no port", "10.0.0.9", "\u{0}abcd", "a:0", "tcp://a:1"] {
        peer.name = identity.to_owned();
        peer.say_connect(&mut world);
    }
    world.inject_bytes(0, "10.0.0.9:99999", b"");
    assert_eq!(world.stats(0).messages_dropped, 7);
    assert_eq!(world.nodes[0].opened.len(), 0);
}

#[test]
fn ipv6_peers_are_named_with_brackets() {
    let mut world = World::new(1, TransportKind::Tcp);
    let request = world.request(0, symmetric_from("r", "[fd00::9]:7000")).unwrap();
    Script::p2pkv("[fd00::9]:7000").join(&mut world);
    world.lookup(0, request, &[1]);
    world.flush(0);
    assert!(matches!(world.nodes[0].sent.last(), Some((_, Message::Lookup(_)))));
}
