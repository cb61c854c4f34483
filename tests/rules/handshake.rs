//! §4, points 1 to 3, 5 and 6.

use p2pkv::protocol::config::TransportKind;
use p2pkv::protocol::job::{LookupState, Outcome, PeerState};
use p2pkv::protocol::message::{Connect, Message};

use crate::script::Script;
use crate::world::*;

const PEER: &str = "10.0.0.9:7000";

fn solo() -> World {
    World::new(1, TransportKind::Tcp)
}

/// A tier whose request waits for the scripted peer.
fn dialing() -> (World, p2pkv::protocol::ids::RequestId) {
    let mut world = solo();
    let request = world.request(0, symmetric_from("r", PEER)).unwrap();
    (world, request)
}

#[test]
fn connect_is_sent_at_once_and_says_how_the_peer_was_dialled() {
    let (world, _) = dialing();
    assert_eq!(world.sent_messages(0), ["connect"]);
    let Message::Connect(connect) = world.last_sent(0, "connect") else { unreachable!() };
    let extension = connect.extension.as_ref().unwrap();
    assert_eq!(extension.dialed_as.as_deref(), Some(PEER));
    assert_eq!(connect.hash_seed.as_deref(), Some("0"));
}

#[test]
fn an_unknown_peer_is_dialled_back_at_its_first_message() {
    let mut world = solo();
    Script::p2pkv(PEER).say_connect(&mut world);
    assert_eq!(world.sent_messages(0), ["connect"]);
    assert_eq!(world.nodes[0].manager.peers(world.now)[0].state, PeerState::Handshake);
}

#[test]
fn sends_queue_until_connect_ack_and_then_leave_in_order() {
    let (mut world, request) = dialing();
    let load = world.request(0, pd_from("pd", PEER)).unwrap();
    world.lookup(0, request, &[1]);
    world.flush(0);
    world.load(0, load, 1, &[2], &[40]);
    world.lookup(0, request, &[3]);
    world.flush(0);
    let peer = Script::p2pkv(PEER);
    peer.say_connect(&mut world);
    world.run();
    assert_eq!(world.sent_messages(0), ["connect", "connect_ack"]);
    assert_eq!(world.armed_loads(0), 0);
    peer.say_ack(&mut world);
    assert_eq!(world.sent_messages(0), ["connect", "connect_ack", "lookup", "fetch", "lookup"]);
    assert_eq!(world.armed_loads(0), 1, "armed before the fetch leaves");
}

#[test]
fn connect_ack_waits_for_the_data_plane() {
    let mut world = solo();
    world.auto_register = false;
    let peer = Script::p2pkv(PEER);
    peer.say_connect(&mut world);
    peer.say_ack(&mut world);
    assert_eq!(world.sent(0, "connect_ack"), 0);
    assert!(world.register_next(0));
    assert_eq!(world.sent(0, "connect_ack"), 1);
    assert_eq!(world.nodes[0].manager.peers(world.now)[0].state, PeerState::Ready);
}

fn refused(change: impl FnOnce(&mut Connect), words: &[&str]) {
    let (mut world, request) = dialing();
    world.lookup(0, request, &[1]);
    let load = world.request(0, pd_from("pd", PEER)).unwrap();
    world.load(0, load, 1, &[2], &[40]);
    let mut peer = Script::p2pkv(PEER);
    change(&mut peer.connect);
    peer.say_connect(&mut world);
    world.run();
    assert_eq!(world.outcome(0, 1), Outcome::Incompatible);
    let (outcome, detail) = world.failure(0, request).unwrap();
    assert_eq!(outcome, Outcome::Incompatible);
    for word in words {
        assert!(detail.contains(word), "{word:?} in {detail:?}");
        let said = world.last_disconnect(0);
        assert!(said.contains(word), "{word:?} in {said:?}");
    }
    assert_eq!(world.lookup(0, request, &[1]), [LookupState::Miss]);
    assert_eq!(world.nodes[0].open_sessions(), 0);
}

#[test]
fn another_block_len_is_refused_naming_both() {
    refused(|connect| connect.block_len = 4097, &["block_len", "4096", "4097"]);
}

#[test]
fn another_hash_seed_is_refused_naming_both() {
    refused(|connect| connect.hash_seed = Some("other".to_owned()), &["hash_seed", "\"0\"", "other"]);
}

#[test]
fn no_transport_in_common_is_refused_naming_both_lists() {
    let nixl_only = |connect: &mut Connect| {
        let extension = connect.extension.as_mut().unwrap();
        extension.tcp = None;
        extension.nixl = true;
    };
    refused(nixl_only, &["transport", "[tcp]", "[nixl]"]);
    refused(|connect| connect.extension = None, &["transport", "[tcp]", "[nixl]"]);
}

#[test]
fn another_fingerprint_is_refused_naming_both_and_an_empty_one_fits_all() {
    for (ours, theirs, fits) in [("aaaa", "bbbb", false), ("aaaa", "", true), ("", "bbbb", true)] {
        let mut config = config(0, 0, TransportKind::Tcp);
        config.config_fingerprint = ours.to_owned();
        let mut world = World::with_configs(vec![config], TransportKind::Tcp);
        let mut peer = Script::p2pkv(PEER);
        peer.connect.config_fingerprint = theirs.to_owned();
        peer.say_connect(&mut world);
        world.run();
        assert_eq!(world.sent(0, "connect_ack"), usize::from(fits), "{ours:?} {theirs:?}");
        if !fits {
            let said = world.last_disconnect(0);
            assert!(said.contains("fingerprint") && said.contains(ours) && said.contains(theirs), "{said}");
        }
    }
}

#[test]
fn the_refused_side_learns_that_its_configuration_is_the_reason() {
    let mut configs: Vec<_> = (0..2).map(|node| config(node, 0, TransportKind::Tcp)).collect();
    configs[1].block_len = 8192;
    let mut world = World::with_configs(configs, TransportKind::Tcp);
    let request = world.pd(0, "r", 1);
    world.load(0, request, 1, &[1], &[40]);
    // The other side is the first to see the difference.
    world.hold(1, 0);
    world.run();
    assert!(world.is_open(0, 1));
    world.release(1, 0);
    world.run();
    assert_eq!(world.outcome(0, 1), Outcome::Incompatible);
    world.finish(0, request);
    world.check_rest();
}

#[test]
fn a_second_connect_of_the_same_instance_is_a_protocol_error() {
    let mut world = solo();
    let peer = Script::p2pkv(PEER);
    peer.join(&mut world);
    peer.say_connect(&mut world);
    world.run();
    assert!(world.last_disconnect(0).contains("second connect"));
    assert_eq!(world.stats(0).protocol_errors, 1);
    assert_eq!(world.nodes[0].open_sessions(), 0);
}

#[test]
fn a_second_connect_with_the_same_agent_is_a_protocol_error_and_with_another_a_restart() {
    let mut world = World::new(1, TransportKind::Nixl);
    let mut peer = Script::vllm(PEER);
    peer.join(&mut world);
    peer.connect.agent_metadata = b"agent 2".to_vec();
    peer.join(&mut world);
    assert_eq!(world.stats(0).protocol_errors, 0);
    assert_eq!(world.nodes[0].opened.len(), 2);
    peer.say_connect(&mut world);
    assert_eq!(world.stats(0).protocol_errors, 1);
}

#[test]
fn a_connect_repeated_during_the_handshake_changes_nothing() {
    let mut world = solo();
    let peer = Script::p2pkv(PEER);
    peer.say_connect(&mut world);
    peer.say_connect(&mut world);
    world.run();
    peer.say_ack(&mut world);
    assert_eq!(world.nodes[0].manager.peers(world.now)[0].state, PeerState::Ready);
    assert_eq!(world.sent(0, "connect_ack"), 1);
}

#[test]
fn a_connect_of_another_instance_fails_the_old_work_and_begins_the_next_session() {
    let (mut world, request) = dialing();
    let mut peer = Script::p2pkv(PEER);
    peer.join(&mut world);
    world.lookup(0, request, &[1]);
    let load = world.request(0, pd_from("pd", PEER)).unwrap();
    world.load(0, load, 1, &[2], &[40]);
    peer.extension().instance.0[0] = 1;
    peer.say_connect(&mut world);
    world.run();
    assert_eq!(world.outcome(0, 1), Outcome::PeerLost);
    assert!(world.result(0, 1).detail.contains("restarted"));
    assert_eq!(world.lookup(0, request, &[1]), [LookupState::Miss]);
    assert_eq!(world.sent(0, "disconnect"), 0, "the new process has done nothing wrong");
    assert_eq!(world.sent(0, "connect_ack"), 2, "the same message begins the next session");
    peer.say_ack(&mut world);
    let again = world.request(0, symmetric_from("r2", PEER)).unwrap();
    assert!(world.failure(0, again).is_none());
    assert_eq!(world.nodes[0].opened.len(), 2);
}

#[test]
fn a_killed_peer_comes_back_without_a_lost_message() {
    let mut world = World::two();
    let request = world.symmetric(0, "r", 1);
    world.run();
    world.restart(1);
    world.publish(1, &[5]);
    // Somebody at the new process wants something of us.
    world.symmetric(1, "other", 0);
    world.run();
    assert_eq!(world.failure(0, request).unwrap().0, Outcome::PeerLost);
    world.finish(0, request);
    let request = world.symmetric(0, "r", 1);
    assert_eq!(world.look_up(0, request, &[5]), [LookupState::Hit]);
    assert_eq!(world.nodes[0].open_sessions(), 1);
}

#[test]
fn a_session_not_ready_within_the_deadline_dies_and_says_what_was_missing() {
    let (mut world, request) = dialing();
    let load = world.request(0, pd_from("pd", PEER)).unwrap();
    // Its own deadline is later.
    world.advance(seconds(20));
    world.load(0, load, 1, &[2], &[40]);
    world.advance(millis(9_999));
    assert!(world.failure(0, request).is_none());
    world.advance(millis(1));
    let (outcome, detail) = world.failure(0, request).unwrap();
    assert_eq!(outcome, Outcome::NoPeer);
    assert!(detail.contains("nothing was heard"), "{detail}");
    assert_eq!(world.outcome(0, 1), Outcome::NoPeer);
}

#[test]
fn the_handshake_deadline_tells_a_missing_ack_from_a_missing_data_plane() {
    for (registers, missing) in [(true, "did not acknowledge"), (false, "data plane was not reached")] {
        let (mut world, request) = dialing();
        world.auto_register = registers;
        Script::p2pkv(PEER).say_connect(&mut world);
        world.advance(seconds(31));
        let (_, detail) = world.failure(0, request).unwrap();
        assert!(detail.contains(missing), "{detail}");
    }
}

#[test]
fn a_silent_peer_is_dialled_again_within_the_handshake_deadline() {
    let (mut world, _) = dialing();
    world.advance(millis(2_999));
    assert_eq!(world.nodes[0].redials.len(), 0);
    world.advance(millis(1));
    assert_eq!(world.nodes[0].redials.len(), 1);
    assert_eq!(world.sent_messages(0), ["connect", "connect"]);
    world.advance(seconds(26));
    assert_eq!(world.nodes[0].redials.len(), 3, "3 s, 6 s and 12 s apart");
    let (mut world, _) = dialing();
    Script::p2pkv(PEER).say_connect(&mut world);
    world.advance(seconds(20));
    assert_eq!(world.nodes[0].redials.len(), 0, "heard of: the dial is good");
}

#[test]
fn who_loses_its_connection_says_so_to_a_peer_that_may_wait_for_it() {
    for in_use in [false, true] {
        let mut world = World::new(1, TransportKind::Tcp);
        let request = world.request(0, pd_from("r", PEER)).unwrap();
        Script::p2pkv(PEER).join(&mut world);
        if in_use {
            world.load(0, request, 1, &[1], &[40]);
        }
        world.forget_sent();
        world.connection_lost(0, world.newest_session(0));
        assert_eq!(world.sent(0, "disconnect"), usize::from(in_use));
    }
}

#[test]
fn death_makes_loads_fail_lookups_miss_and_the_id_stays_failed() {
    let (mut world, request) = dialing();
    let peer = Script::p2pkv(PEER);
    peer.join(&mut world);
    world.lookup(0, request, &[1, 2]);
    world.flush(0);
    peer.lookup_resp(&mut world, "r", &[1, 2], &[true, true]);
    world.load(0, request, 1, &[1], &[40]);
    world.connection_lost(0, world.newest_session(0));
    assert_eq!(world.outcome(0, 1), Outcome::PeerLost);
    // A new session with the peer does not revive the request.
    peer.join(&mut world);
    assert_eq!(world.lookup(0, request, &[1, 2]), [LookupState::Miss; 2]);
    world.load(0, request, 2, &[1], &[41]);
    assert_eq!(world.outcome(0, 2), Outcome::PeerLost);
    world.finish(0, request);
    let again = world.request(0, symmetric_from("r", PEER)).unwrap();
    assert_eq!(world.lookup(0, again, &[1]), [LookupState::Retry]);
}

#[test]
fn the_first_cause_of_death_is_the_one_that_is_kept() {
    let (mut world, request) = dialing();
    let session = world.newest_session(0);
    Script::p2pkv(PEER).join(&mut world);
    let load = world.request(0, pd_from("pd", PEER)).unwrap();
    world.load(0, load, 1, &[2], &[40]);
    world.auto_disarm = false;
    world.connection_lost(0, session);
    world.fault(0, session, "a later cause");
    world.disarm_next(0);
    for detail in [&world.result(0, 1).detail, &world.failure(0, request).unwrap().1] {
        assert!(detail.contains("connection lost") && detail.contains(PEER), "{detail}");
    }
    assert_eq!(world.stats(0).sessions_lost, 1);
}

#[test]
fn an_ack_of_an_earlier_session_does_not_harm_the_next() {
    let mut world = World::two();
    let request = world.symmetric(0, "a", 1);
    world.auto_register = false;
    world.run();
    // Both have the other's connect; the ack of node 1 is on its way when node 0 loses its connection.
    world.hold(1, 0);
    world.register_next(1);
    world.connection_lost(0, world.newest_session(0));
    world.finish(0, request);
    let request = world.symmetric(0, "b", 1);
    world.auto_register = true;
    world.release(1, 0);
    world.run();
    world.publish(1, &[3]);
    assert_eq!(world.look_up(0, request, &[3]), [LookupState::Hit]);
    assert_eq!(world.stats(0).protocol_errors + world.stats(1).protocol_errors, 0);
}

#[test]
fn two_tiers_that_dial_each_other_at_the_same_time_have_one_session() {
    let mut world = World::two();
    let requests = [world.symmetric(0, "a", 1), world.symmetric(1, "b", 0)];
    world.publish(0, &[1]);
    world.publish(1, &[2]);
    world.run();
    assert_eq!(world.look_up(0, requests[0], &[2]), [LookupState::Hit]);
    assert_eq!(world.look_up(1, requests[1], &[1]), [LookupState::Hit]);
    assert_eq!((world.nodes[0].opened.len(), world.nodes[1].opened.len()), (1, 1));
}

#[test]
fn a_peer_that_slept_through_the_deadline_gets_one_new_session_and_no_endless_row_of_them() {
    let mut world = World::two();
    let request = world.symmetric(0, "r", 1);
    // Node 1 is stopped: nothing is delivered to it until node 0 has given up.
    world.hold(0, 1);
    world.advance(seconds(31));
    assert!(world.failure(0, request).is_some());
    world.finish(0, request);
    world.release(0, 1);
    world.run();
    assert!(world.nodes[0].opened.len() + world.nodes[1].opened.len() < 8);
    world.publish(1, &[3]);
    let request = world.symmetric(0, "r", 1);
    assert_eq!(world.look_up(0, request, &[3]), [LookupState::Hit]);
}

#[test]
fn the_answer_to_a_session_that_is_gone_is_not_taken_for_one_to_the_next() {
    let mut world = World::two();
    let request = world.symmetric(0, "r", 1);
    world.hold(1, 0);
    world.run();
    // Node 1 has answered; node 0 gives up and tries again before it reads that.
    world.connection_lost(0, world.newest_session(0));
    world.finish(0, request);
    let request = world.symmetric(0, "r", 1);
    world.release(1, 0);
    world.run();
    world.publish(1, &[3]);
    assert_eq!(world.look_up(0, request, &[3]), [LookupState::Hit]);
    assert!(world.nodes[0].opened.len() + world.nodes[1].opened.len() < 8);
}

#[test]
fn a_late_disconnect_opens_no_session() {
    let mut world = solo();
    Script::p2pkv(PEER).disconnect(&mut world, None);
    assert_eq!(world.nodes[0].opened.len(), 0);
}

#[test]
fn a_message_for_a_session_that_is_gone_is_answered_with_connect() {
    let mut world = World::two();
    let request = world.symmetric(0, "r", 1);
    world.run();
    world.connection_lost(1, world.newest_session(1));
    world.lookup(0, request, &[1]);
    world.flush(0);
    world.run();
    // At once, not at the lookup's deadline.
    assert_eq!(world.failure(0, request).unwrap().0, Outcome::PeerLost);
    assert!(world.nodes[0].opened.len() + world.nodes[1].opened.len() < 8);
}

#[test]
fn a_disconnect_that_an_earlier_session_caused_does_not_end_the_next() {
    let mut world = World::two();
    let request = world.symmetric(0, "r", 1);
    world.run();
    // Node 1 gives up on its own, while node 0 has lost its connection and dials again.
    world.hold(1, 0);
    world.hold(0, 1);
    world.inject_bytes(1, &node_name(0), b"junk");
    world.connection_lost(0, world.newest_session(0));
    world.finish(0, request);
    let request = world.symmetric(0, "r", 1);
    world.release(1, 0);
    world.run();
    world.release(0, 1);
    world.run();
    assert!(world.failure(0, request).is_none(), "{:?}", world.failure(0, request));
    world.publish(1, &[3]);
    assert_eq!(world.look_up(0, request, &[3]), [LookupState::Hit]);
}

#[test]
fn a_disconnect_for_the_process_that_was_here_before_does_not_end_a_session() {
    let mut world = World::new(1, TransportKind::Tcp);
    let peer = Script::p2pkv(PEER);
    let request = world.request(0, symmetric_from("r", &peer.name)).unwrap();
    peer.disconnect(&mut world, Some("data plane fault: the receiver does not know the access token"));
    assert!(world.failure(0, request).is_none(), "{:?}", world.failure(0, request));
    peer.join(&mut world);
    assert!(world.failure(0, request).is_none(), "{:?}", world.failure(0, request));
}

#[test]
fn nothing_is_opened_or_answered_after_shut_down() {
    let mut world = World::two();
    let request = world.symmetric(1, "r", 0);
    world.run();
    world.lookup(1, request, &[1]);
    world.flush(1);
    world.shut_down(0);
    let opened = world.nodes[0].opened.len();
    world.run();
    Script::p2pkv(PEER).say_connect(&mut world);
    assert_eq!(world.nodes[0].opened.len(), opened);
    assert_eq!(world.nodes[0].manager.sessions_open(), 0);
    assert!(world.nodes[0].manager.request_new(world.now, producer_of("x"), Default::default()).is_err());
}
