//! §4, producer role.

use p2pkv::protocol::config::TransportKind;
use p2pkv::protocol::job::{LookupState, Outcome, PeerState};
use p2pkv::protocol::message::Message;

use crate::script::Script;
use crate::world::*;

const PEER: &str = "10.0.0.9:7000";

/// A tier with a ready session of the scripted consumer.
fn serving() -> (World, Script) {
    let mut world = World::new(1, TransportKind::Tcp);
    let peer = Script::p2pkv(PEER);
    peer.join(&mut world);
    world.auto_transfer = false;
    world.forget_sent();
    (world, peer)
}

fn dones(world: &World) -> Vec<(u64, bool)> {
    let done = |message: &Message| match message {
        Message::TransferDone(done) => Some((done.round_seq.0, done.success)),
        _ => None,
    };
    world.nodes[0].sent.iter().filter_map(|(_, message)| done(message)).collect()
}

fn end_all(world: &mut World, end: End) {
    for transfer in world.transfers(0) {
        world.end_transfer(0, transfer, end);
    }
    world.run();
}

fn is_ready(world: &World) -> bool {
    world.nodes[0].manager.peers(world.now).first().is_some_and(|peer| peer.state == PeerState::Ready)
}

#[test]
fn supply_and_demand_meet_in_either_order() {
    for decoder_first in [false, true] {
        let (mut world, peer) = serving();
        let producer = world.producer(0, "r");
        if decoder_first {
            peer.fetch(&mut world, "r", 0, &[1, 2], &[5, 6]);
        }
        world.store(0, producer, 1, &[2]);
        world.store(0, producer, 2, &[1, 3]);
        if !decoder_first {
            peer.fetch(&mut world, "r", 0, &[1, 2], &[5, 6]);
        }
        assert!(world.is_open(0, 1) && world.is_open(0, 2) && dones(&world).is_empty());
        end_all(&mut world, End::Done);
        assert_eq!((world.outcome(0, 1), world.outcome(0, 2)), (Outcome::Done, Outcome::Done));
        assert_eq!(dones(&world), [(0, true)]);
        world.finish(0, producer);
        world.check_rest();
    }
}

#[test]
fn matched_pairs_go_out_at_once_as_one_transfer_for_each_match() {
    let (mut world, peer) = serving();
    let producer = world.producer(0, "r");
    peer.fetch(&mut world, "r", 0, &[1, 2, 3], &[5, 6, 7]);
    assert_eq!(world.transfers(0).len(), 0);
    world.store(0, producer, 1, &[1, 2]);
    assert_eq!(world.transfers(0).len(), 1);
    world.store(0, producer, 2, &[3]);
    assert_eq!(world.transfers(0).len(), 2);
    end_all(&mut world, End::Done);
    assert_eq!(dones(&world), [(0, true)]);
}

#[test]
fn a_key_may_be_asked_for_at_several_destinations_and_stored_twice() {
    let mut world = World::two();
    let producer = world.producer(1, "r");
    let request = world.pd(0, "r", 1);
    world.store(1, producer, 1, &[3]);
    world.load(0, request, 9, &[3, 4, 3], &[40, 41, 42]);
    world.run();
    world.store(1, producer, 2, &[3, 4]);
    world.run();
    assert_eq!(world.outcome(0, 9), Outcome::Done);
    assert_eq!((world.outcome(1, 1), world.outcome(1, 2)), (Outcome::Done, Outcome::Done));
    assert_eq!(world.result(1, 1).bytes, 2 * BLOCK_LEN);
    world.finish(0, request);
    world.finish(1, producer);
    world.run();
    world.check_rest();
}

#[test]
fn demand_is_met_from_the_directory_published_before_or_after() {
    for published_first in [false, true] {
        let (mut world, peer) = serving();
        if published_first {
            world.publish(0, &[1, 2]);
        }
        peer.fetch(&mut world, "r", 0, &[1, 2, 3], &[5, 6, 7]);
        if !published_first {
            assert_eq!(world.transfers(0).len(), 0);
            world.publish(0, &[1]);
            world.publish(0, &[2]);
        }
        world.publish(0, &[3]);
        assert!(!world.unpublish(0, &[1]), "pinned for the round");
        end_all(&mut world, End::Done);
        assert_eq!(dones(&world), [(0, true)]);
        assert!(world.unpublish(0, &[1, 2, 3]));
        world.check_rest();
    }
}

#[test]
fn a_second_fetch_of_an_open_round_is_a_protocol_error_of_that_session_only() {
    let (mut world, peer) = serving();
    let other = Script::p2pkv("10.0.0.8:7000");
    other.join(&mut world);
    peer.fetch(&mut world, "r", 0, &[1], &[5]);
    peer.fetch(&mut world, "r", 0, &[2], &[6]);
    assert!(world.last_disconnect(0).contains("second fetch"));
    assert_eq!(world.stats(0).protocol_errors, 1);
    assert_eq!(world.nodes[0].open_sessions(), 1);
    world.publish(0, &[1]);
    other.fetch(&mut world, "r", 0, &[1], &[5]);
    assert_eq!(world.transfers(0).len(), 1);
}

#[test]
fn a_fetch_outside_of_the_peers_region_is_a_protocol_error_of_that_session_only() {
    for index in [64, u64::from(u32::MAX) + 1, u64::MAX] {
        let (mut world, peer) = serving();
        let other = Script::p2pkv("10.0.0.8:7000");
        other.join(&mut world);
        world.publish(0, &[1]);
        peer.fetch(&mut world, "r", 0, &[1], &[index]);
        assert_eq!(world.transfers(0).len(), 0);
        let said = world.last_disconnect(0);
        assert!(said.contains(&index.to_string()) && said.contains("64"), "{said}");
        assert_eq!(world.nodes[0].open_sessions(), 1);
        world.check_rest();
    }
}

#[test]
fn a_fetch_closes_only_its_round() {
    let (mut world, peer) = serving();
    world.publish(0, &[1, 2]);
    peer.lookup(&mut world, "r", 0, &[1]);
    peer.fetch(&mut world, "r", 0, &[1], &[5]);
    peer.lookup(&mut world, "r", 1, &[2]);
    peer.fetch(&mut world, "r", 1, &[2], &[6]);
    assert_eq!(world.transfers(0).len(), 2);
    let second = world.transfers(0)[1];
    world.end_transfer(0, second, End::Done);
    world.run();
    assert_eq!(dones(&world), [(1, true)]);
    end_all(&mut world, End::Done);
    assert_eq!(dones(&world), [(1, true), (0, true)]);
    world.check_rest();
}

#[test]
fn an_empty_fetch_ends_the_id_unpins_and_is_not_answered() {
    let (mut world, peer) = serving();
    world.publish(0, &[1, 2]);
    peer.lookup(&mut world, "r", 0, &[1]);
    peer.lookup(&mut world, "r", 1, &[2]);
    peer.lookup(&mut world, "other", 0, &[2]);
    assert_eq!(world.stats(0).blocks_pinned, 2);
    peer.fetch(&mut world, "r", 2, &[], &[]);
    assert_eq!(world.stats(0).blocks_pinned, 1, "the other id keeps its pin");
    assert!(dones(&world).is_empty());
    peer.fetch(&mut world, "other", 0, &[], &[]);
    world.check_rest();
}

#[test]
fn a_fetch_of_a_key_that_no_lookup_pinned_fails_at_once() {
    let (mut world, peer) = serving();
    world.publish(0, &[1]);
    peer.lookup(&mut world, "r", 0, &[1, 2]);
    // Too late for this round: the peer was told that it is a miss.
    world.publish(0, &[2]);
    peer.fetch(&mut world, "r", 0, &[1, 2], &[5, 6]);
    assert_eq!(dones(&world), [(0, false)]);
    assert_eq!(world.transfers(0).len(), 0);
    world.check_rest();
}

#[test]
fn a_pd_round_waits_for_stores() {
    let (mut world, peer) = serving();
    peer.fetch(&mut world, "r", 0, &[1], &[5]);
    world.advance(seconds(25));
    assert!(dones(&world).is_empty());
    let producer = world.producer(0, "r");
    world.store(0, producer, 1, &[1]);
    end_all(&mut world, End::Done);
    assert_eq!(dones(&world), [(0, true)]);
}

#[test]
fn a_failing_round_keeps_its_pins_until_every_transfer_is_terminal() {
    let (mut world, peer) = serving();
    let producer = world.producer(0, "r");
    peer.fetch(&mut world, "r", 0, &[1, 2, 3], &[5, 6, 7]);
    world.store(0, producer, 1, &[1]);
    world.store(0, producer, 2, &[2]);
    world.publish(0, &[3]);
    let [a, b, c] = world.transfers(0)[..] else { panic!() };
    world.end_transfer(0, a, End::Failed);
    assert!(world.is_open(0, 1) && world.is_open(0, 2));
    assert_eq!(world.nodes[0].cancelled, [b, c]);
    assert!(dones(&world).is_empty());
    world.end_transfer(0, c, End::Done);
    assert_eq!(world.stats(0).blocks_pinned, 1);
    assert!(world.is_open(0, 1) && world.is_open(0, 2));
    world.end_transfer(0, b, End::Failed);
    assert_eq!(
        (world.outcome(0, 1), world.outcome(0, 2)),
        (Outcome::TransportFailed, Outcome::TransportFailed)
    );
    assert_eq!(dones(&world), [(0, false)]);
    world.finish(0, producer);
    world.check_rest();
}

#[test]
fn an_abort_is_acknowledged_when_every_transfer_of_the_round_is_terminal() {
    let (mut world, peer) = serving();
    world.publish(0, &[1, 2]);
    peer.fetch(&mut world, "r", 0, &[1, 2], &[5, 6]);
    peer.abort(&mut world, "r", 0);
    assert_eq!(world.nodes[0].cancelled.len(), 1);
    world.advance(seconds(120));
    assert_eq!(world.sent(0, "abort_ack"), 0, "however long it takes");
    assert_eq!(world.stats(0).blocks_pinned, 2);
    end_all(&mut world, End::Done);
    assert_eq!(world.sent(0, "abort_ack"), 1);
    assert!(dones(&world).is_empty());
    world.check_rest();
}

#[test]
fn an_abort_of_an_unknown_round_is_acknowledged_at_once() {
    let (mut world, peer) = serving();
    peer.abort(&mut world, "r", 3);
    assert_eq!(world.sent(0, "abort_ack"), 1);
    world.check_rest();
}

#[test]
fn abort_ack_is_sent_once_for_each_round() {
    let (mut world, peer) = serving();
    world.publish(0, &[1]);
    peer.fetch(&mut world, "r", 0, &[1], &[5]);
    peer.abort(&mut world, "r", 0);
    peer.abort(&mut world, "r", 0);
    end_all(&mut world, End::Failed);
    peer.abort(&mut world, "r", 0);
    assert_eq!(world.sent(0, "abort_ack"), 1);
    // The id begins anew.
    peer.fetch(&mut world, "r", 0, &[1], &[5]);
    peer.abort(&mut world, "r", 0);
    end_all(&mut world, End::Failed);
    assert_eq!(world.sent(0, "abort_ack"), 2);
    world.check_rest();
}

#[test]
fn the_end_of_an_id_does_not_swallow_the_ack_of_an_abort_before_it() {
    let (mut world, peer) = serving();
    world.publish(0, &[1]);
    peer.fetch(&mut world, "r", 0, &[1], &[5]);
    peer.abort(&mut world, "r", 0);
    peer.fetch(&mut world, "r", 1, &[], &[]);
    assert_eq!(world.sent(0, "abort_ack"), 0);
    end_all(&mut world, End::Failed);
    assert_eq!(world.sent(0, "abort_ack"), 1);
    world.check_rest();
}

#[test]
fn an_abort_during_a_failing_round_is_answered_with_the_ack_alone() {
    let (mut world, peer) = serving();
    let producer = world.producer(0, "r");
    world.store(0, producer, 1, &[1]);
    peer.fetch(&mut world, "r", 0, &[1, 2], &[5, 6]);
    world.store(0, producer, 2, &[2]);
    let first = world.transfers(0)[0];
    world.end_transfer(0, first, End::Failed);
    peer.abort(&mut world, "r", 0);
    end_all(&mut world, End::Failed);
    assert_eq!(world.sent(0, "abort_ack"), 1);
    assert!(dones(&world).is_empty());
    assert_eq!(world.outcome(0, 1), Outcome::TransportFailed, "the first cause");
}

#[test]
fn aborted_transfers_are_no_fault_of_the_peer() {
    let (mut world, peer) = serving();
    world.publish(0, &[1]);
    for round in 0..5 {
        peer.lookup(&mut world, "r", round, &[1]);
        peer.fetch(&mut world, "r", round, &[1], &[5]);
        peer.abort(&mut world, "r", round);
        end_all(&mut world, End::Failed);
    }
    assert!(is_ready(&world));
    assert_eq!(world.sent(0, "abort_ack"), 5);
}

#[test]
fn a_store_that_is_not_moved_within_30_s_fails_once_no_transfer_reads_it() {
    let (mut world, peer) = serving();
    let producer = world.producer(0, "r");
    peer.fetch(&mut world, "r", 0, &[1, 2], &[5, 6]);
    world.store(0, producer, 1, &[1]);
    world.advance(seconds(31));
    assert!(world.is_open(0, 1));
    assert!(dones(&world).is_empty());
    end_all(&mut world, End::Failed);
    assert_eq!(world.outcome(0, 1), Outcome::TimedOut);
    assert_eq!(dones(&world), [(0, false)]);
    // Too late.
    world.store(0, producer, 2, &[2]);
    assert_eq!(world.outcome(0, 2), Outcome::NotFetched);
    world.finish(0, producer);
    world.check_rest();
}

#[test]
fn finish_with_demand_unmet_is_refused_at_once_or_as_soon_as_nothing_is_in_flight() {
    for in_flight in [false, true] {
        let (mut world, peer) = serving();
        let producer = world.producer(0, "r");
        peer.fetch(&mut world, "r", 0, &[1, 2], &[5, 6]);
        if in_flight {
            world.store(0, producer, 1, &[1]);
        }
        world.finish(0, producer);
        assert_eq!(dones(&world).len(), usize::from(!in_flight));
        end_all(&mut world, End::Done);
        assert_eq!(dones(&world), [(0, false)]);
        world.check_rest();
    }
}

#[test]
fn a_fetch_that_comes_after_finish_is_refused_in_one_round_trip() {
    let (mut world, peer) = serving();
    let producer = world.producer(0, "r");
    world.finish(0, producer);
    peer.fetch(&mut world, "r", 0, &[1], &[5]);
    assert_eq!(dones(&world), [(0, false)]);
    world.publish(0, &[1]);
    peer.fetch(&mut world, "r", 0, &[1], &[5]);
    end_all(&mut world, End::Done);
    assert_eq!(dones(&world), [(0, false), (0, true)], "unless the directory has it");
    world.check_rest();
}

#[test]
fn finish_with_everything_stored_waits_for_the_fetch() {
    let (mut world, peer) = serving();
    let producer = world.producer(0, "r");
    world.store(0, producer, 1, &[1]);
    world.finish(0, producer);
    assert!(world.is_open(0, 1));
    peer.fetch(&mut world, "r", 0, &[1], &[5]);
    end_all(&mut world, End::Done);
    assert_eq!(world.outcome(0, 1), Outcome::Done);
    assert_eq!(dones(&world), [(0, true)]);
    world.check_rest();
}

#[test]
fn death_lets_stores_go_once_no_transfer_reads_them() {
    let (mut world, peer) = serving();
    let producer = world.producer(0, "r");
    peer.fetch(&mut world, "r", 0, &[1, 2], &[5, 6]);
    world.store(0, producer, 1, &[1]);
    let transfer = world.transfers(0)[0];
    world.connection_lost(0, world.newest_session(0));
    assert!(world.is_open(0, 1));
    world.end_transfer(0, transfer, End::Failed);
    assert_eq!(world.outcome(0, 1), Outcome::PeerLost);
    assert!(!world.result(0, 1).flags.may_still_be_read);
    assert!(dones(&world).is_empty());
    assert_eq!(world.nodes[0].manager.sessions_open(), 0);
    world.finish(0, producer);
    world.check_rest();
}

#[test]
fn a_transfer_that_does_not_end_within_the_drain_leaves_its_store_with_the_flag() {
    let mut world = World::new(1, TransportKind::Nixl);
    let peer = Script::vllm(PEER);
    peer.join(&mut world);
    world.auto_transfer = false;
    let producer = world.producer(0, "r");
    peer.fetch(&mut world, "r", 0, &[1, 2], &[5, 6]);
    world.store(0, producer, 1, &[1]);
    world.connection_lost(0, world.newest_session(0));
    world.advance(millis(9_999));
    assert!(world.is_open(0, 1));
    world.advance(millis(1));
    assert_eq!(world.outcome(0, 1), Outcome::PeerLost);
    assert!(world.result(0, 1).flags.may_still_be_read);
    end_all(&mut world, End::Done);
    assert_eq!(world.nodes[0].manager.sessions_open(), 0);
    world.finish(0, producer);
    world.check_rest();
}

#[test]
fn fifty_rounds_in_a_row_leave_nothing() {
    for mut world in [World::two(), World::two_unfenced()] {
        world.publish(1, &[1, 2, 3]);
        let request = world.symmetric(0, "r", 1);
        for round in 0..50 {
            assert_eq!(world.look_up(0, request, &[1, 2, 3, 9])[..3], [LookupState::Hit; 3]);
            world.load(0, request, round, &[3, 1], &[40, 41]);
            world.run();
            assert_eq!(world.outcome(0, round), Outcome::Done);
            assert_eq!(world.stats(1).blocks_pinned, 0);
        }
        world.finish(0, request);
        world.run();
        assert!(world.unpublish(1, &[1, 2, 3]));
        world.check_rest();
        assert_eq!(world.next_deadline(), None);
    }
}

#[test]
fn several_rounds_of_one_id_are_in_flight_at_once() {
    let mut world = World::two();
    world.auto_transfer = false;
    world.publish(1, &[1, 2, 3]);
    let request = world.symmetric(0, "r", 1);
    for (job, key) in [(1, 1), (2, 2), (3, 3)] {
        assert_eq!(world.look_up(0, request, &[key]), [LookupState::Hit]);
        world.load(0, request, job, &[key], &[40 + u32::from(key)]);
        world.run();
    }
    for transfer in world.transfers(1).into_iter().rev() {
        world.end_transfer(1, transfer, End::Done);
    }
    world.run();
    assert_eq!([1, 2, 3].map(|job| world.outcome(0, job)), [Outcome::Done; 3]);
    world.finish(0, request);
    world.check_rest();
}

#[test]
fn pins_of_a_lookup_are_let_go_after_30_s_and_a_later_fetch_is_refused_at_once() {
    let (mut world, peer) = serving();
    world.publish(0, &[1]);
    peer.lookup(&mut world, "r", 0, &[1]);
    world.advance(millis(29_999));
    assert_eq!(world.stats(0).blocks_pinned, 1);
    world.advance(millis(1));
    assert_eq!(world.stats(0).blocks_pinned, 0);
    peer.fetch(&mut world, "r", 0, &[1], &[5]);
    assert_eq!(dones(&world), [(0, false)]);
    peer.lookup(&mut world, "x", 0, &[1]);
    world.advance(seconds(91));
    world.check_rest();
}

#[test]
fn each_lookup_pins_for_its_own_30_s() {
    let (mut world, peer) = serving();
    world.publish(0, &[1, 2]);
    peer.lookup(&mut world, "r", 0, &[1]);
    world.advance(seconds(29));
    peer.lookup(&mut world, "r", 0, &[2]);
    world.advance(seconds(29));
    peer.fetch(&mut world, "r", 0, &[2], &[5]);
    end_all(&mut world, End::Done);
    assert_eq!(dones(&world), [(0, true)]);
    world.check_rest();
}

#[test]
fn a_lookup_in_a_round_whose_pins_were_let_go_leaks_none() {
    let (mut world, peer) = serving();
    world.publish(0, &[1, 2]);
    peer.lookup(&mut world, "r", 0, &[1]);
    world.advance(seconds(60));
    peer.lookup(&mut world, "r", 0, &[2]);
    world.advance(seconds(200));
    assert_eq!(world.stats(0).blocks_pinned, 0);
    assert!(world.unpublish(0, &[1, 2]));
    world.check_rest();
}

#[test]
fn a_fetch_of_a_later_round_that_nobody_looked_up_is_refused_and_harms_no_other() {
    let (mut world, peer) = serving();
    let producer = world.producer(0, "r");
    peer.fetch(&mut world, "r", 0, &[1, 2], &[5, 6]);
    peer.fetch(&mut world, "r", 1, &[1], &[7]);
    assert_eq!(dones(&world), [(1, false)]);
    world.store(0, producer, 1, &[1, 2]);
    end_all(&mut world, End::Done);
    assert_eq!(world.outcome(0, 1), Outcome::Done);
    assert_eq!(dones(&world), [(1, false), (0, true)]);
}

#[test]
fn the_same_id_of_two_peers_is_two_things() {
    let (mut world, peer) = serving();
    let other = Script::p2pkv("10.0.0.8:7000");
    other.join(&mut world);
    let producer = world.producer(0, "r");
    peer.fetch(&mut world, "r", 0, &[1], &[5]);
    other.fetch(&mut world, "r", 0, &[1], &[6]);
    assert_eq!(dones(&world), [(0, false)], "the stores go to whoever asked first");
    world.store(0, producer, 1, &[1]);
    end_all(&mut world, End::Done);
    assert_eq!(dones(&world), [(0, false), (0, true)]);
}

#[test]
fn a_legacy_consumer_is_served_without_rounds_or_lookups() {
    let mut world = World::new(1, TransportKind::Nixl);
    let peer = Script::legacy(PEER);
    peer.join(&mut world);
    let producer = world.producer(0, "r");
    for job in [1, 2] {
        world.store(0, producer, job, &[1]);
        peer.fetch(&mut world, "r", 0, &[1], &[5]);
        world.run();
        assert_eq!(world.outcome(0, job), Outcome::Done, "and again");
    }
    peer.fetch(&mut world, "x", 0, &[1], &[5]);
    peer.abort(&mut world, "x", 0);
    assert_eq!(world.sent(0, "abort_ack"), 1);
    world.finish(0, producer);
    world.check_rest();
}
