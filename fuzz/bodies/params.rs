//! `kv_transfer_params` and model configurations from an orchestrator. No text makes them panic, and what is accepted
//! keeps the rules that the rest of the library relies on.

use p2pkv::protocol::fingerprint;
use p2pkv::protocol::params::{self, ConsumerRole, ProducerRole};

const ID_LEN: usize = 64;

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match params::parse(text, ID_LEN) {
        Ok(roles) => {
            if let Some(ProducerRole::Serves(id)) = &roles.producer {
                check_id(id.as_str());
            }
            let source = match &roles.consumer {
                None => None,
                Some(ConsumerRole::PrefillDecode(source)) => {
                    assert!(roles.producer.is_none(), "a PD consumer is no producer: {text}");
                    Some(source)
                }
                Some(ConsumerRole::Symmetric(source)) => Some(source),
            };
            if let Some(source) = source {
                check_id(source.kv_request_id.as_str());
                assert!(!source.peer.as_str().is_empty());
            }
            assert_eq!(params::parse(text, ID_LEN).ok(), Some(roles), "the same text, the same roles");
        }
        Err(error) => assert!(!error.message.is_empty() && error.message.len() < 4096, "{}", error.message),
    }
    check_fingerprint(text);
}

fn check_id(id: &str) {
    assert!((1..=ID_LEN).contains(&id.len()), "{id:?}");
}

/// 16 hex digits or empty, and blind to spaces between the parts.
fn check_fingerprint(text: &str) {
    let Ok(print) = fingerprint::of_json(text) else { return };
    let is_hex = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
    assert!(print.is_empty() || (print.len() == 16 && print.bytes().all(is_hex)), "{print}");
    assert_eq!(fingerprint::of_json(&format!(" \n{text}\t ")).as_deref(), Ok(print.as_str()));
}
