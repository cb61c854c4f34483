//! §5: back-off after data plane faults; §6: what faults a peer.

use p2pkv::protocol::config::TransportKind;
use p2pkv::protocol::ids::RequestId;
use p2pkv::protocol::job::{Outcome, PeerState};

use crate::script::Script;
use crate::world::*;

const PEER: &str = "10.0.0.9:7000";

fn try_peer(world: &mut World, number: &mut u32) -> RequestId {
    *number += 1;
    world.request(0, symmetric_from(&format!("r{number}"), PEER)).unwrap()
}

#[test]
fn reconnects_after_data_plane_faults_wait_0_1_2_4_up_to_60_s() {
    let mut world = World::new(1, TransportKind::Tcp);
    let mut number = 0;
    for wait in [0, 1, 2, 4, 8, 16, 32, 60, 60] {
        let request = try_peer(&mut world, &mut number);
        assert!(world.failure(0, request).is_none(), "before the wait of {wait} s");
        world.fault(0, world.newest_session(0), "so told");
        assert_eq!(world.failure(0, request).unwrap().0, Outcome::TransportFailed);
        if wait > 0 {
            let early = try_peer(&mut world, &mut number);
            let (outcome, detail) = world.failure(0, early).unwrap();
            assert_eq!(outcome, Outcome::NoPeer);
            assert!(detail.contains("data plane"), "{detail}");
            let peers = world.nodes[0].manager.peers(world.now);
            assert!(peers.iter().any(|peer| peer.state == PeerState::BackingOff));
            world.advance(seconds(wait) - millis(1));
            let early = try_peer(&mut world, &mut number);
            assert!(world.failure(0, early).is_some(), "at the end of the wait of {wait} s");
            world.advance(millis(1));
        }
    }
}

#[test]
fn a_good_while_ends_the_back_off() {
    let mut world = World::new(1, TransportKind::Tcp);
    let mut number = 0;
    for _ in 0..2 {
        let request = try_peer(&mut world, &mut number);
        world.fault(0, world.newest_session(0), "so told");
        assert!(world.failure(0, request).is_some());
        world.advance(seconds(100));
    }
    let request = try_peer(&mut world, &mut number);
    assert!(world.failure(0, request).is_none());
}

#[test]
fn control_plane_deaths_do_not_back_off() {
    let mut world = World::new(1, TransportKind::Tcp);
    let mut number = 0;
    for _ in 0..5 {
        let request = try_peer(&mut world, &mut number);
        assert!(world.failure(0, request).is_none());
        world.connection_lost(0, world.newest_session(0));
    }
}

#[test]
fn a_data_plane_that_cannot_be_registered_is_a_fault() {
    let mut world = World::new(1, TransportKind::Tcp);
    world.auto_register = false;
    let mut number = 0;
    let request = try_peer(&mut world, &mut number);
    Script::p2pkv(PEER).say_connect(&mut world);
    world.refuse_next(0, "no route");
    let (outcome, detail) = world.failure(0, request).unwrap();
    assert_eq!(outcome, Outcome::TransportFailed);
    assert!(detail.contains("no route"));
    assert!(world.last_disconnect(0).contains("no route"));
}

#[test]
fn a_back_off_does_not_keep_a_peer_from_coming_to_us() {
    let mut world = World::new(1, TransportKind::Tcp);
    let mut number = 0;
    for _ in 0..2 {
        try_peer(&mut world, &mut number);
        world.fault(0, world.newest_session(0), "so told");
    }
    Script::p2pkv(PEER).join(&mut world);
    let request = try_peer(&mut world, &mut number);
    assert!(world.failure(0, request).is_none(), "its session is used");
}

/// A ready consumer, and a failed or done transfer for each call.
struct Strikes {
    world: World,
    peer: Script,
    round: u64,
}

impl Strikes {
    fn new() -> Strikes {
        let mut world = World::new(1, TransportKind::Tcp);
        let peer = Script::p2pkv(PEER);
        peer.join(&mut world);
        world.auto_transfer = false;
        world.publish(0, &[1]);
        Strikes { world, peer, round: 0 }
    }

    fn transfer(&mut self, end: End) {
        self.peer.lookup(&mut self.world, "r", self.round, &[1]);
        self.peer.fetch(&mut self.world, "r", self.round, &[1], &[5]);
        self.round += 1;
        let transfer = self.world.transfers(0)[0];
        self.world.end_transfer(0, transfer, end);
    }

    fn is_alive(&self) -> bool {
        self.world.nodes[0].open_sessions() == 1
    }
}

#[test]
fn three_failures_in_a_row_fault_the_peer() {
    let mut strikes = Strikes::new();
    strikes.transfer(End::Failed);
    strikes.transfer(End::Failed);
    assert!(strikes.is_alive());
    strikes.transfer(End::Failed);
    assert!(!strikes.is_alive());
    assert!(strikes.world.last_disconnect(0).contains("3 failures"));
}

#[test]
fn a_success_between_resets_the_count() {
    let mut strikes = Strikes::new();
    for _ in 0..4 {
        strikes.transfer(End::Failed);
        strikes.transfer(End::Failed);
        strikes.transfer(End::Done);
    }
    assert!(strikes.is_alive());
}

#[test]
fn one_decisive_failure_faults_the_peer() {
    let mut strikes = Strikes::new();
    strikes.transfer(End::FailedForGood);
    assert!(!strikes.is_alive());
    strikes.world.run();
    strikes.world.check_rest();
}
