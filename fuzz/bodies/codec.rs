//! Bytes from a peer. Decoding them never panics, and what was understood says the same after it was encoded again.
//!
//! The first byte chooses dialect and limits, the others are the message.

use p2pkv::protocol::codec::{self, CodecError, Decoded};
use p2pkv::protocol::config::Limits;
use p2pkv::protocol::message::{Dialect, Message};

pub fn run(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    let dialect = match choice & 3 {
        0 => Some(Dialect::Current),
        1 => Some(Dialect::Legacy),
        _ => None,
    };
    let limits = if choice & 4 == 0 { Limits::default() } else { tight() };
    match codec::decode(bytes, dialect, &limits) {
        Ok(Decoded::Message(message)) => {
            check_limits(&message, &limits);
            check_round_trip(&message, dialect.unwrap_or(Dialect::Current), &limits);
        }
        Ok(Decoded::Unknown { kind }) => assert!(kind.chars().count() <= 64, "{kind}"),
        Err(CodecError { message, detail }) => assert!(message.len() + detail.len() < 2048, "{detail}"),
    }
}

/// Small enough that a short input passes each of them.
fn tight() -> Limits {
    Limits {
        message_bytes: 512,
        nesting: 4,
        keys_per_message: 4,
        key_len: 40,
        id_len: 16,
        ..Limits::default()
    }
}

fn check_round_trip(message: &Message, dialect: Dialect, limits: &Limits) {
    let mut again = Vec::new();
    codec::encode(message, dialect, &mut again);
    // Numbers and texts may have come in a shorter form than ours, so the size limit can be passed by our own.
    let limits = Limits { message_bytes: usize::MAX, ..limits.clone() };
    assert_eq!(codec::decode(&again, Some(dialect), &limits), Ok(Decoded::Message(message.clone())));
}

fn check_limits(message: &Message, limits: &Limits) {
    let (id, keys) = match message {
        Message::AbortAck(it) => (&it.kv_request_id, None),
        Message::AbortFetch(it) => (&it.kv_request_id, None),
        Message::Fetch(it) => (&it.kv_request_id, Some(&it.keys)),
        Message::Lookup(it) => (&it.kv_request_id, Some(&it.keys)),
        Message::LookupResp(it) => (&it.kv_request_id, Some(&it.keys)),
        Message::TransferDone(it) => (&it.kv_request_id, None),
        Message::Connect(_) | Message::ConnectAck(_) | Message::Disconnect(_) => return,
    };
    assert!((1..=limits.id_len).contains(&id.as_str().len()));
    let Some(keys) = keys else { return };
    assert!(keys.len() <= limits.keys_per_message);
    assert!(keys.iter().all(|key| (1..=limits.key_len).contains(&key.len())));
}
