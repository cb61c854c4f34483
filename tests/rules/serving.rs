//! §4, producer role: lookups of peers, answered by directory and engine.

use p2pkv::protocol::config::TransportKind;
use p2pkv::protocol::ids::ServeId;
use p2pkv::protocol::job::{LookupState, Outcome};
use p2pkv::protocol::manager::ServeMode;
use p2pkv::protocol::message::Message;

use crate::script::{Script, keys};
use crate::world::*;

const PEER: &str = "10.0.0.9:7000";
use LookupState::{Hit, Miss, Pending, Retry};

fn engine() -> (World, Script) {
    let mut world = World::new(1, TransportKind::Tcp);
    world.nodes[0].manager.set_serve_mode(world.now, ServeMode::Engine);
    let peer = Script::p2pkv(PEER);
    peer.join(&mut world);
    world.forget_sent();
    (world, peer)
}

/// The one question there is.
fn ask(world: &mut World) -> p2pkv::protocol::server::ServeQuestion {
    let mut work = world.serve_questions(0);
    assert_eq!(work.len(), 1);
    work.remove(0).question
}

fn closed(world: &mut World) -> Vec<ServeId> {
    world.nodes[0].manager.serve_closed()
}

fn response(world: &World) -> Vec<bool> {
    match world.last_sent(0, "lookup_resp") {
        Message::LookupResp(resp) => resp.hits.clone(),
        _ => unreachable!(),
    }
}

#[test]
fn each_lookup_gets_one_response_with_every_key_in_wire_order() {
    let (mut world, peer) = engine();
    world.publish(0, &[1, 3]);
    peer.lookup(&mut world, "r", 0, &[3, 2, 1, 4, 3]);
    let question = ask(&mut world);
    assert_eq!(question.keys, keys(&[2, 4]), "the directory is asked first");
    assert_eq!(world.sent(0, "lookup_resp"), 0);
    world.serve_answer(0, question.serve, &[2, 4], &[Hit, Miss], Some(7));
    let Message::LookupResp(resp) = world.last_sent(0, "lookup_resp") else { unreachable!() };
    assert_eq!((&resp.keys, &resp.hits), (&keys(&[3, 2, 1, 4, 3]), &vec![true, true, true, false, true]));
    assert_eq!(world.sent(0, "lookup_resp"), 1);
    assert_eq!(closed(&mut world), [question.serve]);
    peer.fetch(&mut world, "r", 0, &[2, 1], &[5, 6]);
    world.run();
    assert_eq!(world.outcome(0, 7), Outcome::Done);
    world.check_rest();
}

#[test]
fn without_an_engine_the_directory_answers_at_once() {
    let mut world = World::new(1, TransportKind::Tcp);
    world.publish(0, &[1]);
    let peer = Script::p2pkv(PEER);
    peer.join(&mut world);
    peer.lookup(&mut world, "r", 0, &[1, 2]);
    assert_eq!(response(&world), [true, false]);
    assert!(!world.nodes[0].manager.has_serve_work());
}

#[test]
fn open_keys_are_asked_again_each_serve_in_the_same_context() {
    let (mut world, peer) = engine();
    peer.lookup(&mut world, "r", 0, &[1, 2, 3]);
    let first = ask(&mut world);
    assert!(first.opens);
    assert!(world.serve_questions(0).is_empty(), "not twice at a time");
    world.serve_answer(0, first.serve, &[1, 2, 3], &[Pending, Miss, Retry], None);
    assert_eq!(world.sent(0, "lookup_resp"), 0);
    let second = ask(&mut world);
    assert!(!second.opens);
    assert_eq!((second.serve, &second.keys), (first.serve, &keys(&[1, 3])));
    world.serve_answer(0, first.serve, &[1, 3], &[Hit, Hit], Some(5));
    assert_eq!(response(&world), [true, false, true]);
    assert_eq!(closed(&mut world), [first.serve]);
    peer.fetch(&mut world, "r", 1, &[], &[]);
    assert_eq!(world.outcome(0, 5), Outcome::NotFetched);
    world.check_rest();
}

#[test]
fn keys_still_open_after_5_s_become_misses() {
    let (mut world, peer) = engine();
    peer.lookup(&mut world, "r", 0, &[1, 2]);
    let question = ask(&mut world);
    world.serve_answer(0, question.serve, &[1, 2], &[Pending, Miss], None);
    world.advance(millis(4_999));
    assert_eq!(world.sent(0, "lookup_resp"), 0);
    world.advance(millis(1));
    assert_eq!(response(&world), [false, false]);
    assert_eq!(closed(&mut world), [question.serve]);
    peer.fetch(&mut world, "r", 1, &[], &[]);
    world.check_rest();
}

#[test]
fn a_lookup_that_the_engine_never_took_up_is_a_miss_after_5_s_and_opens_no_context() {
    let (mut world, peer) = engine();
    peer.lookup(&mut world, "r", 0, &[1]);
    world.advance(seconds(5));
    assert_eq!(response(&world), [false]);
    assert!(closed(&mut world).is_empty());
    assert!(world.serve_questions(0).is_empty());
}

#[test]
fn an_answer_that_comes_after_the_deadline_still_counts() {
    let (mut world, peer) = engine();
    peer.lookup(&mut world, "r", 0, &[1, 2]);
    let question = ask(&mut world);
    world.advance(seconds(6));
    assert_eq!(world.sent(0, "lookup_resp"), 0, "the engine is at it");
    world.serve_answer(0, question.serve, &[1, 2], &[Hit, Pending], Some(5));
    assert_eq!(response(&world), [true, false]);
    assert_eq!(closed(&mut world), [question.serve]);
}

#[test]
fn death_while_asking_closes_the_context_once_and_lets_the_pins_go() {
    let (mut world, peer) = engine();
    peer.lookup(&mut world, "r", 0, &[1]);
    let question = ask(&mut world);
    world.connection_lost(0, world.newest_session(0));
    assert!(closed(&mut world).is_empty(), "the engine is in the middle of it");
    world.serve_answer(0, question.serve, &[1], &[Hit], Some(5));
    assert_eq!(world.outcome(0, 5), Outcome::PeerLost);
    assert_eq!(closed(&mut world), [question.serve]);
    assert!(closed(&mut world).is_empty());
    assert_eq!(world.sent(0, "lookup_resp"), 0);
    world.check_rest();
}

#[test]
fn death_between_two_questions_closes_the_context_once() {
    let (mut world, peer) = engine();
    peer.lookup(&mut world, "r", 0, &[1, 2]);
    let question = ask(&mut world);
    world.serve_answer(0, question.serve, &[1, 2], &[Hit, Pending], Some(5));
    world.connection_lost(0, world.newest_session(0));
    assert_eq!(closed(&mut world), [question.serve]);
    assert_eq!(world.outcome(0, 5), Outcome::PeerLost);
    world.check_rest();
}

#[test]
fn death_before_the_first_question_opens_nothing() {
    let (mut world, peer) = engine();
    peer.lookup(&mut world, "r", 0, &[1]);
    world.connection_lost(0, world.newest_session(0));
    assert!(closed(&mut world).is_empty());
    assert!(world.serve_questions(0).is_empty());
    world.check_rest();
}

#[test]
fn the_end_of_the_id_closes_the_context_on_every_path() {
    for asked in [0, 1, 2] {
        let (mut world, peer) = engine();
        peer.lookup(&mut world, "r", 0, &[1]);
        let question = (asked > 0).then(|| ask(&mut world));
        if asked == 2 {
            world.serve_answer(0, question.as_ref().unwrap().serve, &[1], &[Pending], None);
        }
        peer.fetch(&mut world, "r", 0, &[], &[]);
        if asked == 1 {
            world.serve_answer(0, question.as_ref().unwrap().serve, &[1], &[Hit], Some(5));
        }
        let expected: Vec<ServeId> = question.iter().map(|question| question.serve).collect();
        assert_eq!(closed(&mut world), expected);
        assert_eq!(world.sent(0, "lookup_resp"), 0);
        world.check_rest();
    }
}

#[test]
fn a_fetch_closes_the_lookups_of_its_round() {
    let (mut world, peer) = engine();
    world.publish(0, &[1]);
    peer.lookup(&mut world, "r", 0, &[1]);
    peer.lookup(&mut world, "r", 0, &[2]);
    let question = ask(&mut world);
    peer.fetch(&mut world, "r", 0, &[1], &[5]);
    world.run();
    assert_eq!(world.sent(0, "transfer_done"), 1);
    world.serve_answer(0, question.serve, &[2], &[Hit], Some(9));
    assert_eq!(world.outcome(0, 9), Outcome::NotFetched);
    assert_eq!(response(&world), [false]);
    assert_eq!(closed(&mut world), [question.serve]);
    world.check_rest();
}

#[test]
fn hits_that_were_not_pinned_are_misses() {
    let (mut world, peer) = engine();
    peer.lookup(&mut world, "r", 0, &[1]);
    let question = ask(&mut world);
    world.serve_answer(0, question.serve, &[1], &[Hit], None);
    assert_eq!(response(&world), [false]);
}

#[test]
fn a_job_id_that_is_open_already_makes_misses() {
    let (mut world, peer) = engine();
    let producer = world.producer(0, "s");
    world.store(0, producer, 5, &[3]);
    peer.lookup(&mut world, "r", 0, &[1]);
    let question = ask(&mut world);
    world.serve_answer(0, question.serve, &[1], &[Hit], Some(5));
    assert_eq!(response(&world), [false]);
    assert!(world.is_open(0, 5));
}

#[test]
fn too_short_an_answer_leaves_the_rest_open() {
    let (mut world, peer) = engine();
    peer.lookup(&mut world, "r", 0, &[1, 2]);
    let question = ask(&mut world);
    world.serve_answer(0, question.serve, &[], &[], None);
    assert_eq!(ask(&mut world).keys, keys(&[1, 2]));
}

#[test]
fn taking_the_engine_away_makes_misses_and_closes_contexts() {
    let (mut world, peer) = engine();
    peer.lookup(&mut world, "a", 0, &[1]);
    let question = ask(&mut world);
    world.serve_answer(0, question.serve, &[1], &[Pending], None);
    peer.lookup(&mut world, "b", 0, &[1]);
    world.nodes[0].manager.set_serve_mode(world.now, ServeMode::DirectoryOnly);
    world.execute(0);
    assert_eq!(world.sent(0, "lookup_resp"), 2);
    assert_eq!(closed(&mut world), [question.serve]);
}

#[test]
fn news_that_come_while_the_engine_is_asked_are_not_lost() {
    let (mut world, peer) = engine();
    peer.lookup(&mut world, "a", 0, &[1]);
    assert!(world.nodes[0].manager.has_serve_news());
    let question = ask(&mut world);
    assert!(!world.nodes[0].manager.has_serve_news());
    peer.lookup(&mut world, "b", 0, &[2]);
    world.serve_answer(0, question.serve, &[1], &[Miss], None);
    closed(&mut world);
    assert!(world.nodes[0].manager.has_serve_news(), "b waits");
    let question = ask(&mut world);
    world.serve_answer(0, question.serve, &[2], &[Pending], None);
    assert!(!world.nodes[0].manager.has_serve_news(), "asked; to be asked again is no news");
}

#[test]
fn lookups_of_two_peers_have_contexts_of_their_own() {
    let (mut world, peer) = engine();
    let other = Script::p2pkv("10.0.0.8:7000");
    other.join(&mut world);
    peer.lookup(&mut world, "r", 0, &[1]);
    other.lookup(&mut world, "r", 0, &[1]);
    let work = world.serve_questions(0);
    assert_eq!(work.len(), 2);
    assert_ne!(work[0].question.serve, work[1].question.serve);
    assert_eq!((work[0].peer.as_str(), work[1].peer.as_str()), (PEER, "10.0.0.8:7000"));
}

#[test]
fn hits_of_the_engine_are_pinned_until_the_round_is_over() {
    let (mut world, peer) = engine();
    world.auto_transfer = false;
    peer.lookup(&mut world, "r", 0, &[1, 2]);
    let question = ask(&mut world);
    world.serve_answer(0, question.serve, &[1, 2], &[Hit, Hit], Some(5));
    peer.fetch(&mut world, "r", 0, &[1], &[9]);
    peer.abort(&mut world, "r", 0);
    assert!(world.is_open(0, 5));
    let transfer = world.transfers(0)[0];
    world.end_transfer(0, transfer, End::Failed);
    assert_eq!(world.outcome(0, 5), Outcome::Aborted);
    closed(&mut world);
    world.check_rest();
}
