//! A peer's answer to a session that is over must not be taken for one to the session that follows it.

use std::time::Duration;

use p2pkv::protocol::codec::Decoded;
use p2pkv::protocol::config::{
    CoreConfig, Limits, LocalTcp, LocalTransports, SLICE, Timeouts, TransportKind,
};
use p2pkv::protocol::ids::{Instance, PeerId, SessionId};
use p2pkv::protocol::manager::{Manager, RequestTimeouts};
use p2pkv::protocol::message::{Connect, Disconnect, Message};
use p2pkv::protocol::output::Output;
use p2pkv::protocol::params;
use p2pkv::protocol::timer::Timestamp;

fn manager(name: &str, instance: u8) -> Manager {
    Manager::new(CoreConfig {
        local_id: PeerId::parse(name).unwrap(),
        instance: Instance([instance; 16]),
        base_addr: 0,
        num_blocks: 8,
        block_len: 8,
        config_fingerprint: String::new(),
        hash_seed: String::new(),
        transports: LocalTransports {
            preference: vec![TransportKind::Tcp],
            tcp: Some(LocalTcp { addresses: Vec::new(), port: 9, host_identity: String::new() }),
            ..LocalTransports::default()
        },
        max_peers: 8,
        limits: Limits::default(),
        timeouts: Timeouts::default(),
        slice: SLICE,
        table_seed: 0,
        token_secret: [instance; 32],
    })
}

const CONSUMER: &str = "127.0.0.1:1";
const PRODUCER: &str = "127.0.0.1:2";

fn at(millis: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(millis)
}

/// Everything that the core asks for now: its `connect`s, and the sessions that register a data plane.
fn drain(manager: &mut Manager) -> (Vec<Connect>, Vec<SessionId>) {
    let (mut connects, mut registered) = (Vec::new(), Vec::new());
    while let Some(output) = manager.poll_output() {
        match output {
            Output::Send { message: Message::Connect(connect), .. } => connects.push(*connect),
            Output::RegisterPeer { session, .. } => registered.push(session),
            _ => {}
        }
    }
    (connects, registered)
}

fn hear(manager: &mut Manager, now: Timestamp, from: &str, message: Message) {
    manager.handle_message(now, from.as_bytes(), Ok(Decoded::Message(message)));
}

fn dial(manager: &mut Manager, now: Timestamp, id: &str) {
    let text = format!(
        r#"{{"remote_kv_source":{{"kv_request_id":"{id}","remote_host":"127.0.0.1","remote_port":2}}}}"#
    );
    let roles = params::parse(&text, 100).unwrap();
    manager.request_new(now, roles, RequestTimeouts::default()).unwrap();
}

#[test]
fn an_answer_to_a_dead_session_is_ignored_and_the_next_one_is_taken() {
    let (mut consumer, mut producer) = (manager(CONSUMER, 1), manager(PRODUCER, 2));
    dial(&mut consumer, at(0), "first");
    let first = drain(&mut consumer).0.remove(0);
    // The producer hears of it only after the consumer has given it up.
    consumer.handle_timeout(at(30_000));
    dial(&mut consumer, at(30_000), "second");
    let second = drain(&mut consumer).0.pop().unwrap();

    hear(&mut producer, at(30_001), CONSUMER, Message::Connect(Box::new(first)));
    let stale = drain(&mut producer).0.remove(0);
    let gone = Disconnect { reason: Some("nothing was heard of it".to_owned()) };
    hear(&mut producer, at(30_002), CONSUMER, Message::Disconnect(gone));
    hear(&mut producer, at(30_003), CONSUMER, Message::Connect(Box::new(second)));
    let answer = drain(&mut producer).0.remove(0);

    hear(&mut consumer, at(30_004), PRODUCER, Message::Connect(Box::new(stale)));
    assert_eq!(drain(&mut consumer).1, [], "the data plane of a dead session was dialled");
    hear(&mut consumer, at(30_005), PRODUCER, Message::Connect(Box::new(answer)));
    assert_eq!(drain(&mut consumer).1, [SessionId(2)]);
    assert_eq!(consumer.stats().sessions_lost, 1, "only the one that was given up");
}
