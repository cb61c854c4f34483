//! §4, consumer role: loads, over a transport that fences and one that cannot.

use p2pkv::protocol::config::TransportKind;
use p2pkv::protocol::error::ErrorKind;
use p2pkv::protocol::ids::RequestId;
use p2pkv::protocol::job::{JobFlags, Outcome};
use p2pkv::protocol::manager::RequestTimeouts;
use p2pkv::protocol::message::Message;

use crate::script::Script;
use crate::world::*;

const PEER: &str = "10.0.0.9:7000";
const WRITTEN: JobFlags = JobFlags { may_still_be_read: false, may_still_be_written: true };

/// A PD request with load 1 of one block under way.
fn loading(kind: TransportKind) -> (World, Script, RequestId) {
    let mut world = World::new(1, kind);
    let request = world.request(0, pd_from("r", PEER)).unwrap();
    let peer = match kind {
        TransportKind::Tcp => Script::p2pkv(PEER),
        TransportKind::Nixl => Script::vllm(PEER),
    };
    peer.join(&mut world);
    world.forget_sent();
    world.load(0, request, 1, &[1], &[40]);
    (world, peer, request)
}

fn fenced() -> (World, Script, RequestId) {
    let mut all = loading(TransportKind::Tcp);
    all.0.auto_disarm = false;
    all
}

fn unfenced() -> (World, Script, RequestId) {
    loading(TransportKind::Nixl)
}

fn assert_result(world: &World, outcome: Outcome, flags: JobFlags) {
    assert_eq!((world.outcome(0, 1), world.result(0, 1).flags), (outcome, flags));
    world.check();
}

#[test]
fn fenced_done_is_reported_when_the_fence_is_closed() {
    let (mut world, peer, request) = fenced();
    world.nodes[0].region[40] = 1;
    assert_eq!(world.armed_loads(0), 1);
    peer.done(&mut world, "r", 0, true);
    assert!(world.is_open(0, 1));
    world.disarm_next(0);
    assert_result(&world, Outcome::Done, JobFlags::default());
    assert_eq!(world.result(0, 1).bytes, BLOCK_LEN);
    world.finish(0, request);
    world.check_rest();
}

#[test]
fn unfenced_done_is_reported_at_once() {
    let (mut world, peer, request) = unfenced();
    world.nodes[0].region[40] = 1;
    assert_eq!(world.armed_loads(0), 0);
    peer.done(&mut world, "r", 0, true);
    assert_result(&world, Outcome::Done, JobFlags::default());
    world.finish(0, request);
    world.check_rest();
}

#[test]
fn a_round_that_the_producer_ends_without_success_is_not_supplied() {
    let (mut world, peer, request) = fenced();
    peer.done(&mut world, "r", 0, false);
    world.disarm_next(0);
    assert_result(&world, Outcome::NotSupplied, JobFlags::default());
    world.finish(0, request);
    world.check_rest();
}

#[test]
fn late_and_unknown_answers_are_counted_and_ignored() {
    let (mut world, peer, request) = unfenced();
    world.nodes[0].region[40] = 1;
    peer.done(&mut world, "r", 1, true);
    peer.done(&mut world, "x", 0, true);
    peer.abort_ack(&mut world, "r", 0);
    peer.abort_ack(&mut world, "x", 0);
    assert!(world.is_open(0, 1));
    peer.done(&mut world, "r", 0, true);
    peer.done(&mut world, "r", 0, false);
    peer.abort_ack(&mut world, "r", 0);
    assert_result(&world, Outcome::Done, JobFlags::default());
    assert_eq!(world.stats(0).messages_late, 6);
    assert_eq!(world.stats(0).protocol_errors, 0);
    world.finish(0, request);
    world.check_rest();
}

#[test]
fn fenced_load_deadline_aborts_and_reports_as_soon_as_the_fence_is_closed() {
    let (mut world, peer, request) = fenced();
    world.advance(millis(29_999));
    assert_eq!(world.sent(0, "abort_fetch"), 0);
    world.advance(millis(1));
    assert_eq!(world.sent(0, "abort_fetch"), 1);
    assert!(world.is_open(0, 1));
    world.disarm_next(0);
    assert_result(&world, Outcome::TimedOut, JobFlags::default());
    peer.abort_ack(&mut world, "r", 0);
    world.finish(0, request);
    world.check_rest();
}

#[test]
fn unfenced_load_deadline_waits_for_abort_ack() {
    let (mut world, peer, request) = unfenced();
    world.advance(seconds(35));
    assert!(world.is_open(0, 1));
    peer.abort_ack(&mut world, "r", 0);
    assert_result(&world, Outcome::TimedOut, JobFlags::default());
    world.finish(0, request);
    world.check_rest();
}

#[test]
fn unfenced_load_without_abort_ack_is_reported_after_10_s_with_the_flag() {
    let (mut world, _, request) = unfenced();
    world.advance(millis(39_999));
    assert!(world.is_open(0, 1));
    world.advance(millis(1));
    assert_result(&world, Outcome::TimedOut, WRITTEN);
    world.finish(0, request);
    world.check_rest();
}

#[test]
fn a_fence_that_closes_late_reports_late_even_after_the_ack_deadline() {
    for acknowledged in [false, true] {
        let (mut world, peer, request) = fenced();
        world.advance(seconds(30));
        if acknowledged {
            peer.abort_ack(&mut world, "r", 0);
        }
        world.advance(seconds(60));
        assert!(world.is_open(0, 1), "the I/O thread may be in the blocks");
        world.disarm_next(0);
        assert_result(&world, Outcome::TimedOut, JobFlags::default());
        world.finish(0, request);
        world.check_rest();
    }
}

#[test]
fn a_load_can_have_a_deadline_of_its_own() {
    let mut world = World::new(1, TransportKind::Tcp);
    let timeouts = RequestTimeouts { load: Some(seconds(2)), ..RequestTimeouts::default() };
    let request = world.request_with(0, pd_from("r", PEER), timeouts).unwrap();
    Script::p2pkv(PEER).join(&mut world);
    world.load(0, request, 1, &[1], &[40]);
    world.advance(seconds(2));
    assert_eq!(world.outcome(0, 1), Outcome::TimedOut);
}

#[test]
fn each_load_can_have_a_deadline_of_its_own() {
    let mut world = World::new(1, TransportKind::Tcp);
    let request = world.request(0, symmetric_from("r", PEER)).unwrap();
    let peer = Script::p2pkv(PEER);
    peer.join(&mut world);
    for (round, timeout) in [Some(seconds(5)), Some(seconds(2)), None].into_iter().enumerate() {
        let (job, key) = (round as u64 + 1, round as u8 + 1);
        world.nodes[0].manager.set_job_timeouts(request, timeout, None).unwrap();
        world.lookup(0, request, &[key]);
        world.flush(0);
        peer.lookup_resp(&mut world, "r", &[key], &[true]);
        world.load(0, request, job, &[key], &[40 + round as u32]);
    }
    for (span, open) in [(2, [true, false, true]), (3, [false, false, true]), (25, [false; 3])] {
        world.advance(seconds(span));
        assert_eq!([1, 2, 3].map(|job| world.is_open(0, job)), open);
    }
    assert!((1..=3).all(|job| world.outcome(0, job) == Outcome::TimedOut));
}

#[test]
fn a_load_that_was_never_sent_ends_at_its_deadline_without_a_word() {
    let mut world = World::new(1, TransportKind::Nixl);
    let timeouts = RequestTimeouts { load: Some(seconds(2)), ..RequestTimeouts::default() };
    let request = world.request_with(0, pd_from("r", PEER), timeouts).unwrap();
    world.load(0, request, 1, &[1], &[40]);
    world.advance(seconds(2));
    assert_result(&world, Outcome::TimedOut, JobFlags::default());
    Script::vllm(PEER).join(&mut world);
    assert_eq!((world.sent(0, "fetch"), world.sent(0, "abort_fetch")), (0, 0));
    world.finish(0, request);
    world.check_rest();
}

/// What can come after `finish` of a request with a live load.
#[derive(Clone, Copy, Debug)]
enum After {
    Ack,
    Done,
    Disarmed,
    Death,
    Time,
}

#[test]
fn finish_gives_the_live_load_one_result_in_every_order_of_what_follows() {
    use After::{Ack, Death, Disarmed, Done, Time};
    let orders: [&[After]; 14] = [
        &[],
        &[Ack],
        &[Done],
        &[Ack, Done],
        &[Done, Ack],
        &[Disarmed, Ack],
        &[Ack, Disarmed, Done],
        &[Done, Disarmed, Ack],
        &[Disarmed, Done, Ack],
        &[Death],
        &[Ack, Death],
        &[Done, Death, Disarmed],
        &[Disarmed, Death],
        &[Time, Ack, Done],
    ];
    for kind in [TransportKind::Tcp, TransportKind::Nixl] {
        for order in orders {
            let (mut world, peer, request) = loading(kind);
            world.auto_disarm = false;
            let session = world.newest_session(0);
            world.finish(0, request);
            assert_eq!(world.sent(0, "abort_fetch"), 1);
            for event in order {
                match event {
                    After::Ack => peer.abort_ack(&mut world, "r", 0),
                    After::Done => peer.done(&mut world, "r", 0, true),
                    After::Disarmed => drop(world.disarm_next(0)),
                    After::Death => world.connection_lost(0, session),
                    After::Time => world.advance(seconds(11)),
                }
            }
            world.auto_disarm = true;
            world.advance(seconds(11));
            assert_eq!(world.nodes[0].results.len(), 1, "{kind:?} {order:?}");
            assert_eq!(world.outcome(0, 1), Outcome::Aborted, "{kind:?} {order:?}");
            let answered =
                matches!(order.first(), Some(Ack | Done | Disarmed)) && !matches!(order, [Disarmed, Death]);
            let may = kind == TransportKind::Nixl && !answered;
            assert_eq!(world.result(0, 1).flags.may_still_be_written, may, "{kind:?} {order:?}");
            world.check_rest();
        }
    }
}

#[test]
fn done_before_finish_leaves_nothing_to_abort() {
    let (mut world, peer, request) = unfenced();
    world.nodes[0].region[40] = 1;
    peer.done(&mut world, "r", 0, true);
    world.finish(0, request);
    assert_eq!(world.sent(0, "abort_fetch"), 0);
    world.check_rest();
}

#[test]
fn death_ends_a_fenced_load_at_its_fence_and_an_unfenced_one_with_the_flag() {
    let (mut world, _, _) = fenced();
    world.connection_lost(0, world.newest_session(0));
    assert!(world.is_open(0, 1));
    world.disarm_next(0);
    assert_result(&world, Outcome::PeerLost, JobFlags::default());
    assert_eq!(world.nodes[0].manager.sessions_open(), 0);
    let (mut world, _, _) = unfenced();
    world.connection_lost(0, world.newest_session(0));
    assert_result(&world, Outcome::PeerLost, WRITTEN);
    assert_eq!(world.nodes[0].manager.sessions_open(), 0);
}

#[test]
fn a_finished_load_that_waits_in_the_queue_is_not_sent_for_the_next_of_the_same_id() {
    let mut world = World::two();
    let mut producer = None;
    let request = world.pd(0, "r", 1);
    world.load(0, request, 1, &[1], &[40]);
    world.finish(0, request);
    assert_eq!(world.outcome(0, 1), Outcome::Aborted);
    let request = world.pd(0, "r", 1);
    world.load(0, request, 2, &[2], &[41]);
    producer.get_or_insert_with(|| world.producer(1, "r"));
    world.store(1, producer.unwrap(), 7, &[2]);
    world.store(1, producer.unwrap(), 8, &[1]);
    world.run();
    assert_eq!(world.outcome(0, 2), Outcome::Done);
    assert_eq!((world.tag(0, 41), world.tag(0, 40)), (2, POISON));
    assert_eq!(world.sent(0, "fetch"), 1);
    world.check();
}

#[test]
fn the_deadline_of_an_aborted_load_is_not_that_of_the_next() {
    let (mut world, peer, request) = unfenced();
    world.advance(seconds(15));
    world.finish(0, request);
    peer.abort_ack(&mut world, "r", 0);
    let request = world.request(0, pd_from("r", PEER)).unwrap();
    world.load(0, request, 2, &[1], &[41]);
    world.advance(seconds(29));
    assert!(world.is_open(0, 2));
    world.advance(seconds(1));
    assert_eq!(world.sent(0, "abort_fetch"), 2);
}

#[test]
fn the_ack_of_one_abort_is_not_taken_for_that_of_the_next() {
    let (mut world, peer, request) = unfenced();
    world.finish(0, request);
    // The producer had just finished; its ack of the abort is still to come.
    peer.done(&mut world, "r", 0, true);
    assert_result(&world, Outcome::Aborted, JobFlags::default());
    let refused = world.request(0, pd_from("r", PEER)).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::AlreadyExists);
    peer.abort_ack(&mut world, "r", 0);
    assert!(world.request(0, pd_from("r", PEER)).is_ok());
}

#[test]
fn an_id_whose_abort_is_open_is_refused_until_the_ack_or_its_deadline() {
    let (mut world, _, request) = fenced();
    world.auto_disarm = true;
    world.finish(0, request);
    world.run();
    assert_eq!(world.outcome(0, 1), Outcome::Aborted);
    let refused = world.request(0, pd_from("r", PEER)).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::AlreadyExists);
    world.advance(seconds(10));
    assert!(world.request(0, pd_from("r", PEER)).is_ok());
}

#[test]
fn a_load_whose_blocks_have_all_landed_is_done_before_the_peer_says_so() {
    let (mut world, peer, request) = fenced();
    world.nodes[0].region[40] = 1;
    world.land_next(0);
    assert_result(&world, Outcome::Done, JobFlags::default());
    assert_eq!(world.result(0, 1).bytes, BLOCK_LEN);
    peer.done(&mut world, "r", 0, true);
    assert_eq!(world.stats(0).messages_late, 0);
    world.finish(0, request);
    world.check_rest();
}

#[test]
fn what_the_peer_says_of_a_landed_load_changes_nothing() {
    let (mut world, peer, request) = fenced();
    world.nodes[0].region[40] = 1;
    world.land_next(0);
    world.finish(0, request);
    peer.done(&mut world, "r", 0, false);
    assert_result(&world, Outcome::Done, JobFlags::default());
    assert_eq!(world.sent(0, "abort_fetch"), 0);
    world.check_rest();
}

#[test]
fn the_name_of_a_landed_load_is_used_again_once_the_peer_is_done_with_it() {
    let (mut world, peer, request) = fenced();
    world.nodes[0].region[40] = 1;
    world.land_next(0);
    world.finish(0, request);
    let request = world.request(0, pd_from("r", PEER)).unwrap();
    world.load(0, request, 2, &[2], &[41]);
    assert_eq!(world.sent(0, "fetch"), 1, "the peer may still have the round of the first");
    peer.done(&mut world, "r", 0, true);
    assert_eq!(world.sent(0, "fetch"), 2);
    assert!(world.is_open(0, 2), "the word on the first is none on the second");
    world.nodes[0].region[41] = 2;
    world.land_next(0);
    assert_eq!(world.outcome(0, 2), Outcome::Done);
}

#[test]
fn a_landed_load_of_which_the_peer_never_speaks_leaves_its_name_at_its_deadline() {
    let (mut world, _, request) = fenced();
    world.nodes[0].region[40] = 1;
    world.land_next(0);
    world.finish(0, request);
    let request = world.request(0, pd_from("r", PEER)).unwrap();
    world.advance(seconds(10));
    world.load(0, request, 2, &[2], &[41]);
    world.advance(seconds(20));
    assert_eq!(world.sent(0, "fetch"), 2);
    world.advance(seconds(9));
    assert!(world.is_open(0, 2));
    world.advance(seconds(1));
    assert_eq!(world.sent(0, "abort_fetch"), 1);
}

#[test]
fn a_load_that_was_given_up_does_not_become_done_by_landing() {
    let (mut world, _, request) = fenced();
    world.finish(0, request);
    world.land_next(0);
    world.disarm_next(0);
    assert_result(&world, Outcome::Aborted, JobFlags::default());
}

#[test]
fn death_after_landing_leaves_the_result_and_nothing_else() {
    let (mut world, _, request) = fenced();
    world.nodes[0].region[40] = 1;
    world.land_next(0);
    world.connection_lost(0, world.newest_session(0));
    assert_result(&world, Outcome::Done, JobFlags::default());
    world.finish(0, request);
    world.check_rest();
}

#[test]
fn a_pd_request_loads_once() {
    let (mut world, peer, request) = unfenced();
    let refused = |world: &mut World| world.try_load(0, request, 2, &[2], &[41]).unwrap_err().kind;
    assert_eq!(refused(&mut world), ErrorKind::AlreadyExists);
    world.nodes[0].region[40] = 1;
    peer.done(&mut world, "r", 0, true);
    assert_eq!(refused(&mut world), ErrorKind::AlreadyExists);
}

#[test]
fn loads_are_refused_for_what_is_wrong_with_them_and_nothing_is_left() {
    let (mut world, _, request) = loading(TransportKind::Tcp);
    let serving = world.producer(0, "s");
    let kind = |error: p2pkv::protocol::error::Result<()>| error.unwrap_err().kind;
    let other = world.request(0, pd_from("o", PEER)).unwrap();
    assert_eq!(kind(world.try_load(0, other, 1, &[1], &[41])), ErrorKind::DuplicateJob);
    assert_eq!(kind(world.try_load(0, other, 2, &[1], &[64])), ErrorKind::InvalidArgument);
    assert_eq!(kind(world.try_load(0, other, 2, &[1], &[40])), ErrorKind::InvalidArgument, "in use");
    assert_eq!(kind(world.try_load(0, other, 2, &[1, 2], &[41, 41])), ErrorKind::InvalidArgument);
    assert_eq!(kind(world.try_load(0, other, 2, &[1, 2], &[41])), ErrorKind::InvalidArgument);
    assert_eq!(kind(world.try_load(0, serving, 2, &[1], &[41])), ErrorKind::WrongRole);
    world.finish(0, request);
    world.finish(0, serving);
    assert_eq!(kind(world.try_load(0, request, 2, &[1], &[41])), ErrorKind::NotFound);
    world.load(0, other, 2, &[1], &[40]);
}

#[test]
fn a_load_of_nothing_is_done_at_once() {
    let mut world = World::new(1, TransportKind::Tcp);
    let request = world.request(0, symmetric_from("r", PEER)).unwrap();
    world.load(0, request, 1, &[], &[]);
    assert_eq!(world.outcome(0, 1), Outcome::Done);
    world.finish(0, request);
    world.check();
}

#[test]
fn a_legacy_peer_gets_one_fetch_of_an_id_at_a_time() {
    let mut world = World::new(1, TransportKind::Nixl);
    let request = world.request(0, pd_from("r", PEER)).unwrap();
    let peer = Script::legacy(PEER);
    peer.join(&mut world);
    world.load(0, request, 1, &[1], &[40]);
    let refused = world.try_load(0, request, 2, &[2], &[41]).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::AlreadyExists);
    world.nodes[0].region[40] = 1;
    peer.done(&mut world, "r", 0, true);
    assert_eq!(world.outcome(0, 1), Outcome::Done);
    // The answer to the second names no round either.
    world.load(0, request, 2, &[2], &[41]);
    world.nodes[0].region[41] = 2;
    peer.done(&mut world, "r", 0, true);
    assert_eq!(world.outcome(0, 2), Outcome::Done);
    world.finish(0, request);
    world.check_rest();
}

#[test]
fn a_vllm_is_not_asked_for_a_key_twice_in_one_load() {
    let mut world = World::new(1, TransportKind::Nixl);
    let request = world.request(0, pd_from("r", PEER)).unwrap();
    Script::vllm(PEER).join(&mut world);
    world.load(0, request, 1, &[1, 1], &[40, 41]);
    assert_eq!(world.outcome(0, 1), Outcome::Incompatible);
    assert_eq!(world.sent(0, "fetch"), 0);
    world.finish(0, request);
    world.check_rest();
}

#[test]
fn only_libp2pkv_peers_are_told_the_name_of_the_load() {
    for (script, kind, named) in
        [(Script::p2pkv(PEER), TransportKind::Tcp, true), (Script::vllm(PEER), TransportKind::Nixl, false)]
    {
        let mut world = World::new(1, kind);
        let request = world.request(0, pd_from("r", PEER)).unwrap();
        script.join(&mut world);
        world.load(0, request, 1, &[1], &[40]);
        let Message::Fetch(fetch) = world.last_sent(0, "fetch") else { unreachable!() };
        assert_eq!(fetch.load_token.is_some(), named);
    }
}

#[test]
fn a_failed_fenced_load_is_never_written_into_however_late_the_bytes_come() {
    let mut world = World::two();
    world.auto_transfer = false;
    let request = world.pd(0, "r", 1);
    let producer = world.producer(1, "r");
    world.store(1, producer, 7, &[3]);
    world.load(0, request, 1, &[3], &[40]);
    world.run();
    let transfer = world.transfers(1)[0];
    world.hold(0, 1);
    world.finish(0, request);
    world.run();
    assert_eq!(world.outcome(0, 1), Outcome::Aborted);
    world.end_transfer(1, transfer, End::Done);
    assert_eq!(world.tag(0, 40), POISON);
    world.release(0, 1);
    world.run();
    world.finish(1, producer);
    world.check_rest();
}
