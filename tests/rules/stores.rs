//! §5: roles, parked stores, ids.

use p2pkv::protocol::config::TransportKind;
use p2pkv::protocol::error::ErrorKind;
use p2pkv::protocol::ids::RequestId;
use p2pkv::protocol::job::{OffloadPolicy, Outcome};
use p2pkv::protocol::manager::RequestTimeouts;
use p2pkv::protocol::params::{ProducerRole, Roles};

use crate::world::*;

#[test]
fn a_producer_wants_all_blocks_offloaded_and_others_only_new_ones() {
    let mut world = World::two();
    let policy = |world: &World, request| world.nodes[0].manager.offload_policy(request).unwrap();
    let producer = world.producer(0, "a");
    assert_eq!(policy(&world, producer), OffloadPolicy::RequestLevel);
    let consumer = world.symmetric(0, "b", 1);
    assert_eq!(policy(&world, consumer), OffloadPolicy::ChunkLevel);
    let none = world.request(0, Roles::default()).unwrap();
    assert_eq!(policy(&world, none), OffloadPolicy::ChunkLevel);
}

#[test]
fn stores_without_remote_decoder_succeed_at_once_and_with_a_malformed_one_fail() {
    let mut world = World::two();
    let plain = world.request(0, Roles::default()).unwrap();
    world.store(0, plain, 1, &[1]);
    assert_eq!(world.outcome(0, 1), Outcome::Done);
    let consumer = world.symmetric(0, "b", 1);
    world.store(0, consumer, 2, &[1]);
    assert_eq!(world.outcome(0, 2), Outcome::Done);
    let malformed =
        Roles { consumer: None, producer: Some(ProducerRole::Malformed("kv_request_id is missing".into())) };
    let malformed = world.request(0, malformed).unwrap();
    world.store(0, malformed, 3, &[1]);
    assert_eq!(world.outcome(0, 3), Outcome::NoPeer);
    assert!(world.result(0, 3).detail.contains("kv_request_id is missing"));
}

#[test]
fn the_first_fetch_binds_the_id_and_replays_parked_stores() {
    let mut world = World::two();
    let producer = world.producer(1, "r");
    world.store(1, producer, 1, &[1]);
    world.store(1, producer, 2, &[2, 3]);
    assert_eq!((world.stats(1).stores_parked, world.stats(1).stores_live), (2, 2));
    let request = world.pd(0, "r", 1);
    world.advance(seconds(59));
    world.load(0, request, 9, &[3, 1, 2], &[40, 41, 42]);
    world.run();
    assert_eq!(world.outcome(0, 9), Outcome::Done);
    assert_eq!((world.outcome(1, 1), world.outcome(1, 2)), (Outcome::Done, Outcome::Done));
    assert_eq!(world.stats(1).stores_parked, 0);
    world.advance(seconds(60));
    world.finish(0, request);
    world.finish(1, producer);
    world.check_rest();
}

fn producer_with_store_time(world: &mut World, timeout: u64) -> RequestId {
    let timeouts = RequestTimeouts { store: Some(seconds(timeout)), ..RequestTimeouts::default() };
    world.request_with(1, producer_of("r"), timeouts).unwrap()
}

#[test]
fn a_stores_own_deadline_counts_from_its_submission_parked_or_not() {
    for fetched in [false, true] {
        let mut world = World::two();
        let producer = producer_with_store_time(&mut world, 3);
        world.store(1, producer, 1, &[1]);
        world.advance(seconds(2));
        if fetched {
            let request = world.pd(0, "r", 1);
            world.load(0, request, 9, &[1, 2], &[40, 41]);
            world.run();
        }
        world.advance(millis(999));
        assert!(world.is_open(1, 1));
        world.advance(millis(1));
        let expected = if fetched { Outcome::TimedOut } else { Outcome::NotFetched };
        assert_eq!(world.outcome(1, 1), expected);
        if fetched {
            world.run();
            assert_eq!(world.outcome(0, 9), Outcome::NotSupplied, "refused as soon as it is known");
        }
    }
}

#[test]
fn the_first_deadline_among_the_stores_of_a_round_ends_it() {
    let mut world = World::two();
    let producer = producer_with_store_time(&mut world, 20);
    let request = world.pd(0, "r", 1);
    world.load(0, request, 9, &[1, 2, 3], &[40, 41, 42]);
    world.run();
    world.store(1, producer, 1, &[1]);
    world.nodes[1].manager.set_job_timeouts(producer, None, Some(seconds(4))).unwrap();
    world.store(1, producer, 2, &[2]);
    world.advance(millis(3_999));
    assert!(world.is_open(1, 1) && world.is_open(1, 2));
    world.advance(millis(1));
    assert_eq!((world.outcome(1, 1), world.outcome(1, 2)), (Outcome::TimedOut, Outcome::TimedOut));
}

#[test]
fn stores_parked_for_60_s_fail_and_the_id_is_remembered_60_s() {
    let mut world = World::two();
    let producer = world.producer(1, "r");
    world.store(1, producer, 1, &[1]);
    world.advance(seconds(30));
    world.store(1, producer, 2, &[2]);
    world.advance(millis(29_999));
    assert!(world.is_open(1, 1));
    world.advance(millis(1));
    assert_eq!((world.outcome(1, 1), world.outcome(1, 2)), (Outcome::NotFetched, Outcome::NotFetched));
    world.advance(seconds(59));
    world.store(1, producer, 3, &[3]);
    assert_eq!(world.outcome(1, 3), Outcome::NotFetched, "a late store fails");
    let request = world.pd(0, "r", 1);
    world.load(0, request, 9, &[1], &[40]);
    world.run();
    assert_eq!(world.outcome(0, 9), Outcome::NotSupplied, "a late fetch is refused in one round trip");
    world.finish(0, request);
    world.advance(seconds(1));
    world.store(1, producer, 4, &[3]);
    assert!(world.is_open(1, 4), "forgotten");
    let request = world.pd(0, "r", 1);
    world.load(0, request, 10, &[3], &[40]);
    world.run();
    assert_eq!(world.outcome(0, 10), Outcome::Done);
    world.finish(0, request);
    world.finish(1, producer);
    world.advance(seconds(60));
    world.check_rest();
    assert_eq!(world.next_deadline(), None);
}

#[test]
fn a_late_fetch_is_met_from_the_directory_where_that_can() {
    let mut world = World::two();
    let producer = world.producer(1, "r");
    world.store(1, producer, 1, &[1]);
    world.advance(seconds(60));
    world.publish(1, &[1]);
    let request = world.pd(0, "r", 1);
    world.load(0, request, 9, &[1], &[40]);
    world.run();
    assert_eq!(world.outcome(0, 9), Outcome::Done);
}

#[test]
fn an_id_in_live_use_cannot_be_taken_by_a_second_request() {
    let mut world = World::new(3, TransportKind::Tcp);
    let taken = |world: &mut World, roles: Roles| world.request(0, roles).unwrap_err().kind;
    let serves = world.producer(0, "a");
    let pulls = world.symmetric(0, "b", 1);
    assert_eq!(taken(&mut world, producer_of("a")), ErrorKind::AlreadyExists);
    assert_eq!(taken(&mut world, symmetric_from("b", &node_name(2))), ErrorKind::AlreadyExists);
    assert_eq!(taken(&mut world, pd_from("b", &node_name(1))), ErrorKind::AlreadyExists);
    // To serve and to pull the same id is no conflict.
    let both = world.producer(0, "b");
    for request in [serves, pulls, both] {
        world.finish(0, request);
    }
    world.producer(0, "a");
    world.symmetric(0, "b", 2);
}

#[test]
fn one_request_may_serve_and_pull() {
    let mut world = World::new(3, TransportKind::Tcp);
    world.publish(1, &[1]);
    let mut roles = symmetric_from("pull", &node_name(1));
    roles.producer = producer_of("serve").producer;
    let request = world.request(0, roles).unwrap();
    world.look_up(0, request, &[1]);
    world.load(0, request, 1, &[1], &[40]);
    world.store(0, request, 2, &[2]);
    let consumer = world.pd(2, "serve", 0);
    world.load(2, consumer, 3, &[2], &[50]);
    world.run();
    assert_eq!((world.outcome(0, 1), world.outcome(0, 2)), (Outcome::Done, Outcome::Done));
    assert_eq!(world.outcome(2, 3), Outcome::Done);
    world.finish(0, request);
    world.finish(2, consumer);
    world.run();
    world.check_rest();
}

#[test]
fn a_store_after_the_death_of_the_session_waits_for_the_next_fetch() {
    let mut world = World::two();
    let producer = world.producer(1, "r");
    let request = world.pd(0, "r", 1);
    world.load(0, request, 1, &[1, 2], &[40, 41]);
    world.run();
    world.store(1, producer, 7, &[1]);
    world.run();
    world.auto_transfer = true;
    world.connection_lost(1, world.newest_session(1));
    assert_eq!(world.outcome(1, 7), Outcome::PeerLost);
    world.store(1, producer, 8, &[1, 2]);
    assert!(world.is_open(1, 8));
    world.connection_lost(0, world.newest_session(0));
    world.finish(0, request);
    let request = world.pd(0, "r", 1);
    world.load(0, request, 2, &[1, 2], &[40, 41]);
    world.run();
    assert_eq!(world.outcome(0, 2), Outcome::Done);
    assert_eq!(world.outcome(1, 8), Outcome::Done);
}

#[test]
fn an_id_can_be_used_again_after_both_sides_finished() {
    let mut world = World::two();
    for time in 0..3 {
        let producer = world.producer(1, "r");
        let request = world.pd(0, "r", 1);
        world.store(1, producer, time, &[4]);
        world.load(0, request, time, &[4], &[40]);
        world.run();
        assert_eq!(world.outcome(0, time), Outcome::Done);
        world.finish(1, producer);
        world.finish(0, request);
    }
    world.check_rest();
}

#[test]
fn stores_of_nothing_are_done_at_once() {
    let mut world = World::two();
    let producer = world.producer(0, "r");
    world.store(0, producer, 1, &[]);
    assert_eq!(world.outcome(0, 1), Outcome::Done);
}

#[test]
fn shut_down_gives_every_open_job_its_result() {
    let mut world = World::new(3, TransportKind::Tcp);
    world.auto_transfer = false;
    let parked = world.producer(0, "parked");
    world.store(0, parked, 1, &[1]);
    let bound = world.producer(0, "bound");
    world.store(0, bound, 2, &[2]);
    let consumer = world.pd(1, "bound", 0);
    world.load(1, consumer, 3, &[2], &[40]);
    let pull = world.pd(0, "pull", 2);
    world.load(0, pull, 4, &[5], &[41]);
    world.run();
    world.shut_down(0);
    world.run();
    assert_eq!([1, 2, 4].map(|job| world.outcome(0, job)), [Outcome::ShutDown; 3]);
    assert_eq!(world.outcome(1, 3), Outcome::PeerLost);
    assert_eq!(world.nodes[0].manager.sessions_open(), 0);
    world.check();
}

#[test]
fn drain_can_tell_when_no_transfer_and_no_load_is_left() {
    let mut world = World::two();
    world.auto_transfer = false;
    let producer = world.producer(1, "r");
    world.store(1, producer, 1, &[1]);
    let busy = |world: &World, node: usize| world.nodes[node].manager.has_transfers_or_loads();
    assert!(!busy(&world, 1), "a parked store is no transfer");
    let request = world.pd(0, "r", 1);
    world.load(0, request, 2, &[1], &[40]);
    world.run();
    assert!(busy(&world, 0) && busy(&world, 1));
    world.auto_transfer = true;
    world.run();
    assert!(!busy(&world, 0) && !busy(&world, 1));
}

#[test]
fn a_key_cannot_be_published_at_two_blocks_in_one_call_either() {
    use p2pkv::protocol::keys::KeysView;
    let mut world = World::two();
    let bytes = key_bytes(&[1, 2, 1]);
    let view = KeysView::new(&bytes, 4).unwrap();
    let refused = world.nodes[0].manager.publish(world.now, view, &blocks(&[1, 2, 3])).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::AlreadyExists);
    assert_eq!(world.stats(0).keys_published, 0, "all or none");
    world.nodes[0].manager.publish(world.now, view, &blocks(&[1, 2, 1])).unwrap();
}
