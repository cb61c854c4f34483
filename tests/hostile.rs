//! Peers that break every rule. Whatever they do, at most their own session ends: an honest peer goes on pulling all the
//! time, and memory stays bounded.
#![allow(clippy::disallowed_methods, reason = "tests wait with bounds")]

mod common;
#[path = "hostile/raw.rs"]
mod raw;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use common::{BOUND, KEY_LEN, Node, NodeOptions, eventually, keys};
use p2pkv::protocol::codec;
use p2pkv::protocol::config::{Limits, Timeouts};
use p2pkv::protocol::ids::{BlockIndex, JobId, KvRequestId, RoundSeq, ServeId};
use p2pkv::protocol::job::{LookupState, Outcome};
use p2pkv::protocol::keys::KeysView;
use p2pkv::protocol::message::{
    AbortAck, Connect, ConnectAck, Dialect, Disconnect, LookupResp, Message, TransferDone,
};
use p2pkv::tier::{ServeOps, ServeThread};
use raw::{Raw, abort, batch, fetch, lookup};

/// One attack at a time: they measure how long others have to wait.
static TURN: Mutex<()> = Mutex::new(());

const PUBLISHED: u64 = 16;

/// The longest that one pull of the honest peer, or one call of the engine, may take under attack. By default as long as
/// anything may on a machine that is busy with other things; a quiet one is asked for less.
fn bound() -> Duration {
    let set = std::env::var("P2PKV_STRESS_BOUND_MS").ok().and_then(|text| text.parse().ok());
    set.map_or(BOUND, Duration::from_millis)
}

fn victim(options: NodeOptions) -> Node {
    let mut node = Node::new(options);
    (0..PUBLISHED).for_each(|tag| node.fill(tag as usize, tag));
    let blocks: Vec<u32> = (0..PUBLISHED as u32).collect();
    node.tier.publish(KeysView::new(&keys(0..PUBLISHED), KEY_LEN).unwrap(), &blocks).unwrap();
    node
}

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Runs `attack` while an honest peer pulls from the victim without pause and the victim's engine makes calls.
fn under_attack(name: &str, options: NodeOptions, attack: impl FnOnce(&Node)) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let victim = victim(options);
    let honest = Node::new(NodeOptions::default());
    let over = AtomicBool::new(false);
    let pulls = AtomicU64::new(0);
    let before = resident_bytes();
    let (mut longest_pull, mut longest_call, mut most) = (Duration::ZERO, Duration::ZERO, 0);
    thread::scope(|scope| {
        let puller = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !over.load(Ordering::Relaxed) {
                let number = pulls.fetch_add(1, Ordering::Relaxed);
                longest = longest.max(pull(&honest, &victim, number));
            }
            longest
        });
        let caller = scope.spawn(|| {
            let (mut longest, mut most) = (Duration::ZERO, 0);
            while !over.load(Ordering::Relaxed) {
                let began = Instant::now();
                victim.tier.flush_lookups().unwrap();
                longest = longest.max(began.elapsed());
                most = most.max(resident_bytes());
                thread::sleep(Duration::from_millis(1));
            }
            (longest, most)
        });
        eventually("the honest peer is at work", || pulls.load(Ordering::Relaxed) > 2);
        let pulls_before = pulls.load(Ordering::Relaxed);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| attack(&victim)));
        // Not only afterwards, and not all in one.
        eventually("the honest peer goes on", || pulls.load(Ordering::Relaxed) > pulls_before + 2);
        over.store(true, Ordering::Relaxed);
        longest_pull = puller.join().unwrap();
        (longest_call, most) = caller.join().unwrap();
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    println!(
        "{name}: {} pulls, the longest {longest_pull:?}; longest call {longest_call:?}; {} MiB more at most",
        pulls.load(Ordering::Relaxed),
        most.saturating_sub(before) >> 20
    );
    assert!(longest_pull < bound(), "{name}: a pull took {longest_pull:?}");
    assert!(longest_call < bound(), "{name}: a call took {longest_call:?}");
    eventually("nothing of the attack is left", || {
        let stats = victim.tier.stats().unwrap();
        [stats.loads_live, stats.stores_live, stats.blocks_pinned] == [0; 3]
    });
}

fn pull(honest: &Node, victim: &Node, number: u64) -> Duration {
    let began = Instant::now();
    let request = honest.symmetric(&format!("honest-{number}"), victim);
    let tag = number % PUBLISHED;
    assert_eq!(honest.look_up(request, &keys([tag])), [LookupState::Hit], "pull {number}");
    honest.load(request, number, &keys([tag]), &[3]);
    let result = honest.result();
    assert_eq!(result.outcome, Outcome::Done, "{result:?}");
    assert!(honest.holds(3, tag));
    honest.tier.request_finish(request).unwrap();
    began.elapsed()
}

/// What a map with only a `type` and one more field looks like, field and value given raw.
fn small_map(kind: &str, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x82, 0xa4];
    bytes.extend_from_slice(b"type");
    bytes.push(0xa0 | u8::try_from(kind.len()).unwrap());
    bytes.extend_from_slice(kind.as_bytes());
    bytes.extend_from_slice(rest);
    bytes
}

#[test]
fn malformed_messages_end_only_the_session_that_they_came_by() {
    under_attack("garbage", NodeOptions::default(), |victim| {
        let stranger = Raw::new(victim);
        for length in 0..400 {
            let mut bytes = vec![0; length];
            common::pattern(length as u64 + 1, &mut bytes);
            stranger.send_bytes(&bytes);
        }
        let mut lookup_bytes = Vec::new();
        codec::encode(&lookup("r", 0, batch(&keys(0..3))), Dialect::Current, &mut lookup_bytes);
        let truncated = lookup_bytes[..lookup_bytes.len() - 5].to_vec();
        let mut key_count = b"\xa4keys\xdd".to_vec();
        key_count.extend_from_slice(&u32::MAX.to_be_bytes());
        let mut key_size = b"\xa4keys\x91\xc6".to_vec();
        key_size.extend_from_slice(&u32::MAX.to_be_bytes());
        let attacks: [(&str, Vec<u8>); 8] = [
            ("no map", vec![0xc1; 64]),
            ("nothing", Vec::new()),
            ("deep nesting", vec![0x91; 100_000]),
            ("cut off", truncated),
            ("4 Gi keys", small_map("lookup", &key_count)),
            ("a key of 4 GiB", small_map("lookup", &key_size)),
            ("keys of the wrong type", small_map("lookup", b"\xa4keys\x93\xc3\x01\xa1x")),
            ("a map of 4 Gi fields", vec![0xdf, 0xff, 0xff, 0xff, 0xff, 0xa4]),
        ];
        for (what, bytes) in attacks {
            let raw = Raw::ready(victim);
            raw.send_bytes(&bytes);
            let reason = raw.expect_end();
            assert!(reason.contains("protocol error"), "{what}: {reason}");
        }
    });
}

#[test]
fn messages_out_of_order_twice_or_too_late_end_at_most_the_session() {
    under_attack("disorder", NodeOptions::default(), |victim| {
        // Answers to nothing.
        let raw = Raw::ready(victim);
        let (id, round) = (KvRequestId::new("r"), RoundSeq(0));
        for _ in 0..100 {
            raw.send(&Message::TransferDone(TransferDone {
                kv_request_id: id.clone(),
                success: true,
                round_seq: round,
            }));
            raw.send(&Message::AbortAck(AbortAck { kv_request_id: id.clone(), round_seq: round }));
            raw.send(&Message::LookupResp(LookupResp {
                kv_request_id: id.clone(),
                keys: batch(&keys([1])),
                hits: vec![true],
            }));
            raw.send(&Message::ConnectAck(ConnectAck { peer_id: String::new() }));
        }
        raw.send(&lookup("alive", 0, batch(&keys([1]))));
        raw.expect("lookup_resp");
        // A second fetch of an open round; a block that is not ours to name; our own connect again.
        raw.send(&fetch("waits", 0, batch(&keys([99])), 0));
        raw.send(&fetch("waits", 0, batch(&keys([99])), 0));
        assert!(raw.expect_end().contains("second fetch"));
        let raw = Raw::ready(victim);
        raw.send(&fetch("r", 0, batch(&keys([1])), u64::from(raw::BLOCKS)));
        assert!(raw.expect_end().contains("region of"));
        let raw = Raw::ready(victim);
        raw.send(&Message::Connect(Box::new(raw.connect_message(victim.block_len))));
        assert!(raw.expect_end().contains("second connect"));
        // Work before the handshake is over, and acknowledgements before it begins.
        let raw = Raw::new(victim);
        raw.send(&Message::ConnectAck(ConnectAck { peer_id: String::new() }));
        raw.send(&fetch("early", 0, batch(&keys([1])), 0));
        raw.expect("connect");
        let mut raw = Raw::new(victim);
        raw.send(&fetch("early", 0, batch(&keys([1])), 0));
        raw.shake_hands(victim);
    });
}

#[test]
fn a_flood_of_lookups_that_the_engine_leaves_open_is_cut_off_at_the_limit() {
    under_attack("lookup flood", NodeOptions::default(), |victim| {
        victim.tier.set_serve_ops(Some(Arc::new(Undecided)), ServeThread::Caller).unwrap();
        let raw = Raw::ready(victim);
        let one_key = batch(&keys([1000]));
        for number in 0..=(64 << 10) {
            raw.send(&lookup(&format!("r{number}"), 0, one_key.clone()));
        }
        assert!(raw.expect_end().contains("open at once"));
        victim.tier.set_serve_ops(None, ServeThread::Caller).unwrap();
    });
}

#[test]
fn fetches_of_an_id_with_many_open_lookups_do_not_search_them_all() {
    under_attack("lookups of one id", NodeOptions::default(), |victim| {
        victim.tier.set_serve_ops(Some(Arc::new(Undecided)), ServeThread::Caller).unwrap();
        let raw = Raw::ready(victim);
        let one_key = batch(&keys([1000]));
        for round in 0..20_000 {
            raw.send(&lookup("r", round, one_key.clone()));
        }
        for round in 0..20_000 {
            raw.send(&fetch("r", 100_000 + round, one_key.clone(), 0));
        }
        raw.send(&lookup("last", 0, batch(&keys([1]))));
        wait_for_answer(&raw, "last");
        drop(raw);
        victim.tier.set_serve_ops(None, ServeThread::Caller).unwrap();
    });
}

fn wait_for_answer(raw: &Raw, id: &str) {
    loop {
        if let Message::LookupResp(resp) = raw.expect("lookup_resp")
            && resp.kv_request_id.as_str() == id
        {
            return;
        }
    }
}

/// An engine that never makes up its mind.
struct Undecided;

impl ServeOps for Undecided {
    fn new_request(&self, _: ServeId, _: &str, _: &str) {}

    fn lookup(&self, _: ServeId, _: KeysView<'_>, states: &mut [LookupState]) {
        states.fill(LookupState::Pending);
    }

    fn create_store_job(&self, _: ServeId, _: KeysView<'_>, _: &mut [Option<BlockIndex>]) -> Option<JobId> {
        None
    }

    fn request_finished(&self, _: ServeId) {}
}

#[test]
fn one_key_wanted_in_very_many_rounds_costs_others_nothing() {
    under_attack("one key in 60 000 rounds", NodeOptions::default(), |victim| {
        let raw = Raw::ready(victim);
        let one_key = batch(&keys([1000]));
        for number in 0..60_000 {
            raw.send(&fetch(&format!("r{number}"), 0, one_key.clone(), 0));
        }
        raw.send(&lookup("last", 0, batch(&keys([1]))));
        wait_for_answer(&raw, "last");
        // Each leaves in turn, then all at once.
        for number in 0..10_000 {
            raw.send(&abort(&format!("r{number}"), 0));
        }
        raw.send(&lookup("aborted", 0, batch(&keys([1]))));
        wait_for_answer(&raw, "aborted");
        raw.send(&Message::Disconnect(Disconnect { reason: None }));
        eventually("the session is gone", || victim.tier.peers().unwrap().len() == 1);
    });
}

#[test]
fn keys_in_open_rounds_are_bounded_and_forgotten() {
    let limits = Limits { keys_per_message: 64 << 10, ..Limits::default() };
    under_attack("large messages", NodeOptions { limits, ..NodeOptions::default() }, |victim| {
        let many = batch(&keys(1000..1000 + (64 << 10)));
        // What is over does not count.
        let raw = Raw::ready(victim);
        for round in 0..8 {
            raw.send(&lookup("large", round, many.clone()));
            raw.expect("lookup_resp");
            raw.send(&fetch("large", round, many.clone(), 0));
            raw.expect("transfer_done");
        }
        for number in 0..2 {
            raw.send(&lookup(&format!("l{number}"), 0, many.clone()));
            raw.send(&fetch(&format!("f{number}"), 0, many.clone(), 0));
        }
        raw.send(&lookup("one more", 0, batch(&keys([1]))));
        assert!(raw.expect_end().contains("keys in rounds that are open at once"));
    });
}

#[test]
fn a_flood_of_aborts_is_acknowledged_and_forgotten() {
    under_attack("abort flood", NodeOptions::default(), |victim| {
        let raw = Raw::ready(victim);
        let mut acknowledged = 0;
        for number in 0..100_000u32 {
            raw.send(&abort(&format!("{number}{}", "x".repeat(1000)), 0));
            while let Some(message) = raw.receive() {
                assert_eq!(message.name(), "abort_ack");
                acknowledged += 1;
            }
        }
        while acknowledged < 100_000 {
            raw.expect("abort_ack");
            acknowledged += 1;
        }
    });
}

#[test]
fn a_peer_that_never_reads_loses_its_session_and_nobody_else_does() {
    under_attack("slow reader", NodeOptions::default(), |victim| {
        let mut raw = Raw::with_room_for(1, victim);
        raw.shake_hands(victim);
        let many = batch(&keys(1000..2000));
        let limit = Instant::now() + BOUND;
        let mut number = 0;
        while victim.tier.stats().unwrap().sessions_lost == 0 {
            assert!(Instant::now() < limit, "the session lives after {number} lookups");
            if raw.try_send(&lookup(&format!("r{number}"), 0, many.clone())) {
                number += 1;
            }
        }
        println!("lost after {number} lookups");
    });
}

#[test]
fn sessions_are_bounded_whoever_many_names_come() {
    let options = NodeOptions { max_peers: 16, ..NodeOptions::default() };
    under_attack("connect flood", options, |victim| {
        let raw = Raw::new(victim);
        let connect = raw.connect_message(victim.block_len);
        let mut strangers = Vec::new();
        for number in 0..300u16 {
            let name = format!("127.0.0.1:{}", 20_000 + number);
            let dealer = raw.dial_as(&name);
            let mut bytes = Vec::new();
            let connect = Connect { peer_id: name, ..connect.clone() };
            codec::encode(&Message::Connect(Box::new(connect)), Dialect::Current, &mut bytes);
            dealer.send(bytes, 0).unwrap();
            strangers.push(dealer);
            assert!(victim.tier.peers().unwrap().len() <= 40, "{:?}", victim.tier.peers().unwrap().len());
        }
        assert!(victim.tier.stats().unwrap().peers <= 16);
    });
}

#[test]
fn a_peer_that_restarts_and_disconnects_all_the_time_is_only_its_own_problem() {
    under_attack("restart storm", NodeOptions::default(), |victim| {
        let mut raw = Raw::ready(victim);
        for _ in 0..500 {
            raw.next_life();
            raw.send(&Message::Connect(Box::new(raw.connect_message(victim.block_len))));
            raw.send(&Message::Disconnect(Disconnect { reason: None }));
        }
        eventually("only the honest peer is left", || {
            while raw.receive().is_some() {}
            victim.tier.stats().unwrap().peers == 1
        });
        // And it may come back.
        let back = Raw::ready(victim);
        back.send(&lookup("back", 0, batch(&keys([1]))));
        back.expect("lookup_resp");
    });
}

#[test]
fn calling_oneself_by_the_tiers_own_name_ends_nothing() {
    under_attack("own name", NodeOptions::default(), |victim| {
        let raw = Raw::new(victim);
        let impostor = raw.dial_as(victim.tier.local_id().as_str());
        let peers = victim.tier.peers().unwrap();
        let dropped = victim.tier.stats().unwrap().messages_dropped;
        let mut connect = raw.connect_message(victim.block_len);
        for peer in &peers {
            connect.extension.as_mut().unwrap().dialed_as = Some(peer.peer.to_string());
            let mut bytes = Vec::new();
            codec::encode(&Message::Connect(Box::new(connect.clone())), Dialect::Current, &mut bytes);
            for _ in 0..20 {
                impostor.send(&bytes, 0).unwrap();
            }
        }
        eventually("it was heard", || victim.tier.stats().unwrap().messages_dropped >= dropped + 20);
        assert_eq!(victim.tier.stats().unwrap().sessions_lost, 0);
    });
}

#[test]
fn taking_another_peers_name_ends_at_most_that_peers_session_which_can_be_made_anew() {
    under_attack("hijack", NodeOptions::default(), |victim| {
        let timeouts = Timeouts { lookup: Duration::from_millis(500), ..Timeouts::default() };
        let robbed = Node::new(NodeOptions { timeouts, ..NodeOptions::default() });
        let raw = Raw::new(victim);
        for number in 1..=3 {
            pull_in_the_end(&robbed, victim, number);
            let impostor = raw.dial_as(robbed.tier.local_id().as_str());
            let mut bytes = Vec::new();
            codec::encode(&Message::Disconnect(Disconnect { reason: None }), Dialect::Current, &mut bytes);
            impostor.send(&bytes, 0).unwrap();
            eventually("the victim believes it", || victim.tier.stats().unwrap().sessions_lost >= number);
        }
        pull_in_the_end(&robbed, victim, 4);
    });
}

/// Its connection is no longer read from and it does not know: what it asks ends with the lookup's deadline.
fn pull_in_the_end(robbed: &Node, victim: &Node, number: u64) {
    let limit = Instant::now() + BOUND;
    for attempt in 0.. {
        let request = robbed.symmetric(&format!("robbed-{number}-{attempt}"), victim);
        let states = robbed.look_up(request, &keys([1]));
        robbed.tier.request_finish(request).unwrap();
        if states == [LookupState::Hit] {
            return;
        }
        assert!(Instant::now() < limit, "the robbed peer does not come back");
    }
}

#[test]
fn the_data_plane_takes_only_what_a_live_load_of_that_session_has_armed() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let victim = victim(NodeOptions::default());
    let (mut owner, mut thief) = (Raw::ready(&victim), Raw::ready(&victim));
    let params = |id: &str| {
        format!(
            r#"{{"remote_prefiller":{{"kv_request_id":"{id}","remote_host":"127.0.0.1","remote_port":{}}}}}"#,
            owner.id.port()
        )
    };
    let request = victim.request(&params("pull"));
    let canary = 4711;
    let mut guarded = victim;
    (20..24).for_each(|block| guarded.fill(block, canary));
    let victim = guarded;
    victim.load(request, 1, &keys([500, 501]), &[20, 21]);
    let Message::Fetch(fetch) = owner.expect("fetch") else { unreachable!() };
    let token = fetch.load_token.unwrap();
    // Another session, every load that may exist.
    for guess in 0..=token + 3 {
        assert!(thief.write(Some(guess), &[20]).unwrap_err().contains("refused"), "load {guess}");
    }
    assert!(thief.write(None, &[20]).is_err());
    // The right session: a block that is not of the load, another load, no load, one block twice.
    assert!(owner.write(Some(token), &[22]).is_err());
    assert!(owner.write(Some(token), &[20, 20]).is_err());
    assert!(owner.write(Some(token + 1), &[20]).is_err());
    assert!(owner.write(None, &[20]).is_err());
    assert!((20..24).all(|block| victim.holds(block, canary)));
    // What is armed lands, once.
    assert_eq!(owner.write(Some(token), &[20]), Ok(()));
    assert!(owner.write(Some(token), &[20]).is_err());
    // The load is given up, so the rest of it is closed.
    victim.tier.request_finish(request).unwrap();
    assert_eq!(victim.result().outcome, Outcome::Aborted);
    assert!(owner.write(Some(token), &[21]).is_err());
    assert!((21..24).all(|block| victim.holds(block, canary)));
}
