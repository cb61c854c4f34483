//! `kv_transfer_params` → what a request is to its peers.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use super::error::{Error, ErrorKind, Result};
use super::ids::{KvRequestId, PeerId};

/// The consumer half: who to pull from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub kv_request_id: KvRequestId,
    pub peer: PeerId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsumerRole {
    /// `remote_prefiller`: the producer will have every block; no lookup, round 0 only.
    PrefillDecode(Source),
    /// `remote_kv_source`: looked up first.
    Symmetric(Source),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProducerRole {
    /// `remote_decoder`: stores of the request are offered under this id.
    Serves(KvRequestId),
    /// `remote_decoder` that cannot be used, and why: stores of the request fail.
    Malformed(String),
}

/// What one request's `kv_transfer_params` say. Both empty: the request has nothing to do with peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    pub consumer: Option<ConsumerRole>,
    pub producer: Option<ProducerRole>,
}

/// Current name and, where vLLM 0.25 and 0.26 had another, the legacy name.
struct RoleName {
    current: &'static str,
    legacy: Option<&'static str>,
}

const DECODER: RoleName = RoleName { current: "remote_decoder", legacy: Some("decode") };
const PREFILLER: RoleName = RoleName { current: "remote_prefiller", legacy: Some("prefill") };
const KV_SOURCE: RoleName = RoleName { current: "remote_kv_source", legacy: None };

/// The members of an object, each as it was written. Of equal names the last wins, as in Python.
type Members<'a> = BTreeMap<String, &'a RawValue>;

/// Reads the JSON text. Empty text, `null` and `{}` mean no role. `id_len`: the longest `kv_request_id` allowed,
/// in bytes.
///
/// A role that is `null` is none. Names that are no role are ignored, whatever their value: the engine's other
/// connectors have theirs here too. A `remote_port` may be a number or, as vLLM takes it, its digits as text.
///
/// # Errors
/// `InvalidParams`: not JSON, no object, roles that do not go together, the two names of one role with different
/// values, or a consumer role that names nobody who could be dialled.
pub fn parse(json: &str, id_len: usize) -> Result<Roles> {
    if json.trim().is_empty() {
        return Ok(Roles::default());
    }
    let members: Option<Members> = serde_json::from_str(json).map_err(|why| {
        invalid(format!("kv_transfer_params: expected a JSON object, got something else: {why}"))
    })?;
    let members = members.unwrap_or_default();
    let decoder = find(&members, &DECODER)?;
    let prefiller = find(&members, &PREFILLER)?;
    let kv_source = find(&members, &KV_SOURCE)?;
    check_combination([&decoder, &prefiller, &kv_source])?;

    let consumer = match (prefiller, kv_source) {
        (Some(role), _) => Some(ConsumerRole::PrefillDecode(source(&role, id_len)?)),
        (None, Some(role)) => Some(ConsumerRole::Symmetric(source(&role, id_len)?)),
        (None, None) => None,
    };
    Ok(Roles { consumer, producer: decoder.map(|role| producer(&role, id_len)) })
}

/// A role that is present, under the name that it was given by.
struct Given<'a> {
    name: &'static str,
    value: &'a RawValue,
}

fn find<'a>(members: &Members<'a>, role: &RoleName) -> Result<Option<Given<'a>>> {
    let given = |name: &'static str| {
        let value = members.get(name).copied().filter(|value| value.get() != "null")?;
        Some(Given { name, value })
    };
    match (given(role.current), role.legacy.and_then(given)) {
        (Some(current), Some(legacy)) if !same_value(current.value, legacy.value) => Err(invalid(format!(
            "kv_transfer_params: expected `{}` and `{}`, two names of one role, to be equal, got different values",
            current.name, legacy.name
        ))),
        (Some(given), _) | (None, Some(given)) => Ok(Some(given)),
        (None, None) => Ok(None),
    }
}

fn same_value(a: &RawValue, b: &RawValue) -> bool {
    let parsed = |raw: &RawValue| serde_json::from_str::<Value>(raw.get()).ok();
    a.get() == b.get() || matches!((parsed(a), parsed(b)), (Some(a), Some(b)) if a == b)
}

fn check_combination([decoder, prefiller, kv_source]: [&Option<Given>; 3]) -> Result<()> {
    if prefiller.is_none() || (decoder.is_none() && kv_source.is_none()) {
        return Ok(());
    }
    let names: Vec<String> = [decoder, prefiller, kv_source]
        .into_iter()
        .flatten()
        .map(|role| format!("`{}`", role.name))
        .collect();
    Err(invalid(format!(
        "kv_transfer_params: expected one role, or `remote_decoder` with `remote_kv_source`, got {}",
        names.join(" with ")
    )))
}

fn producer(role: &Given, id_len: usize) -> ProducerRole {
    match members(role).and_then(|members| kv_request_id(role, &members, id_len)) {
        Ok(id) => ProducerRole::Serves(id),
        Err(why) => ProducerRole::Malformed(why),
    }
}

fn source(role: &Given, id_len: usize) -> Result<Source> {
    let read = || {
        let members = members(role)?;
        Ok(Source { kv_request_id: kv_request_id(role, &members, id_len)?, peer: peer(role, &members)? })
    };
    read().map_err(invalid)
}

fn members<'a>(role: &Given<'a>) -> Field<Members<'a>> {
    serde_json::from_str(role.value.get()).map_err(|_| {
        format!("kv_transfer_params: `{}`: expected an object, got {}", role.name, shown(role.value))
    })
}

/// A field's value, or what was expected and what came.
type Field<T> = std::result::Result<T, String>;

fn kv_request_id(role: &Given, members: &Members, id_len: usize) -> Field<KvRequestId> {
    let expected = format!("text of 1 to {id_len} bytes");
    let id = text(role, members, "kv_request_id", &expected)?;
    if !(1..=id_len).contains(&id.len()) {
        return Err(wrong(role, "kv_request_id", &expected, &format!("{} bytes", id.len())));
    }
    Ok(KvRequestId::new(&id))
}

fn peer(role: &Given, members: &Members) -> Field<PeerId> {
    let host = text(role, members, "remote_host", "a host name or address")?;
    let port = port(role, members)?;
    PeerId::from_host_port(&host, port)
        .map_err(|why| wrong(role, "remote_host", "a host name or address", &why.to_string()))
}

fn port(role: &Given, members: &Members) -> Field<u16> {
    const EXPECTED: &str = "a port from 1 to 65535, as an integer or its digits as text";
    let raw = field(role, members, "remote_port", EXPECTED)?;
    let port = match serde_json::from_str(raw.get()) {
        Ok(Value::Number(number)) => number.as_u64().and_then(|port| u16::try_from(port).ok()),
        Ok(Value::String(digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
        _ => None,
    };
    port.filter(|&port| port > 0).ok_or_else(|| wrong(role, "remote_port", EXPECTED, &shown(raw)))
}

fn text(role: &Given, members: &Members, name: &str, expected: &str) -> Field<String> {
    let raw = field(role, members, name, expected)?;
    serde_json::from_str(raw.get()).map_err(|_| wrong(role, name, expected, &shown(raw)))
}

fn field<'a>(role: &Given, members: &Members<'a>, name: &str, expected: &str) -> Field<&'a RawValue> {
    members.get(name).copied().ok_or_else(|| wrong(role, name, expected, "nothing"))
}

fn wrong(role: &Given, name: &str, expected: &str, got: &str) -> String {
    format!("kv_transfer_params: `{}.{name}`: expected {expected}, got {got}", role.name)
}

/// Enough of a value to find it again.
fn shown(raw: &RawValue) -> String {
    raw.get().chars().take(80).collect()
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidParams, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"{"kv_request_id":"r1","remote_host":"10.0.0.1","remote_port":7777}"#;

    fn roles(json: &str) -> Roles {
        parse(json, 16).unwrap()
    }

    fn refusal(json: &str) -> String {
        let error = parse(json, 16).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidParams, "{json}");
        error.message
    }

    fn source_r1(peer: &str) -> Source {
        Source { kv_request_id: KvRequestId::new("r1"), peer: PeerId::parse(peer).unwrap() }
    }

    /// A `remote_kv_source` with one field set to this JSON text, or left out.
    fn with_field(name: &str, value: Option<&str>) -> String {
        let fields = [("kv_request_id", "\"r1\""), ("remote_host", "\"h\""), ("remote_port", "1")];
        let members: Vec<String> = fields
            .iter()
            .filter_map(|&(field, usual)| {
                let text = if field == name { value? } else { usual };
                Some(format!("\"{field}\":{text}"))
            })
            .collect();
        format!("{{\"remote_kv_source\":{{{}}}}}", members.join(","))
    }

    #[test]
    fn nothing_means_no_role() {
        let nulls =
            r#"{"remote_decoder":null,"remote_prefiller":null,"remote_kv_source":null,"decode":null}"#;
        for json in ["", " \n", "null", "{}", " {} ", nulls] {
            assert_eq!(roles(json), Roles::default(), "{json:?}");
        }
    }

    #[test]
    fn each_role_is_read_under_its_current_name() {
        let decoder = roles(r#"{"remote_decoder":{"kv_request_id":"r1"}}"#);
        assert_eq!(decoder.producer, Some(ProducerRole::Serves(KvRequestId::new("r1"))));
        assert_eq!(decoder.consumer, None);
        let prefiller = roles(&format!(r#"{{"remote_prefiller":{SOURCE}}}"#));
        assert_eq!(prefiller.consumer, Some(ConsumerRole::PrefillDecode(source_r1("10.0.0.1:7777"))));
        assert_eq!(prefiller.producer, None);
        let symmetric = roles(&format!(r#"{{"remote_kv_source":{SOURCE}}}"#));
        assert_eq!(symmetric.consumer, Some(ConsumerRole::Symmetric(source_r1("10.0.0.1:7777"))));
    }

    #[test]
    fn legacy_names_mean_the_same() {
        let decoder = roles(r#"{"decode":{"kv_request_id":"r1"}}"#);
        assert_eq!(decoder.producer, Some(ProducerRole::Serves(KvRequestId::new("r1"))));
        let prefiller = roles(&format!(r#"{{"prefill":{SOURCE}}}"#));
        assert_eq!(prefiller.consumer, Some(ConsumerRole::PrefillDecode(source_r1("10.0.0.1:7777"))));
    }

    #[test]
    fn both_names_of_a_role_must_agree() {
        let both = r#"{"decode":{"kv_request_id":"r1"},"remote_decoder":{ "kv_request_id" : "r1" }}"#;
        assert_eq!(roles(both).producer, Some(ProducerRole::Serves(KvRequestId::new("r1"))));
        let message = refusal(r#"{"decode":{"kv_request_id":"r1"},"remote_decoder":{"kv_request_id":"r2"}}"#);
        assert!(message.contains("`remote_decoder` and `decode`"), "{message}");
    }

    #[test]
    fn a_decoder_and_a_kv_source_go_together() {
        let roles =
            roles(&format!(r#"{{"remote_decoder":{{"kv_request_id":"p"}},"remote_kv_source":{SOURCE}}}"#));
        assert_eq!(roles.producer, Some(ProducerRole::Serves(KvRequestId::new("p"))));
        assert_eq!(roles.consumer, Some(ConsumerRole::Symmetric(source_r1("10.0.0.1:7777"))));
    }

    #[test]
    fn other_combinations_are_refused_by_name() {
        let decoder = r#""remote_decoder":{"kv_request_id":"p"}"#;
        let prefiller = format!(r#""prefill":{SOURCE}"#);
        let kv_source = format!(r#""remote_kv_source":{SOURCE}"#);
        let message = refusal(&format!("{{{decoder},{prefiller}}}"));
        assert!(message.ends_with("got `remote_decoder` with `prefill`"), "{message}");
        let message = refusal(&format!("{{{prefiller},{kv_source}}}"));
        assert!(message.ends_with("got `prefill` with `remote_kv_source`"), "{message}");
        let message = refusal(&format!("{{{kv_source},{prefiller},{decoder}}}"));
        assert!(
            message.ends_with("got `remote_decoder` with `prefill` with `remote_kv_source`"),
            "{message}"
        );
    }

    #[test]
    fn names_that_are_no_role_are_ignored_whatever_they_hold() {
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        let json = format!(
            r#"{{"do_remote_decode":true,"big":1e999,"deep":{deep},
                "remote_decoder":{{"kv_request_id":"r1","other":[1]}}}}"#
        );
        assert_eq!(roles(&json).producer, Some(ProducerRole::Serves(KvRequestId::new("r1"))));
    }

    #[test]
    fn a_decoder_that_cannot_be_used_is_malformed_and_no_error() {
        let too_long = format!(r#"{{"kv_request_id":"{}"}}"#, "x".repeat(17));
        for (value, says) in [
            ("{}", "got nothing"),
            ("[]", "expected an object, got []"),
            ("true", "expected an object, got true"),
            (r#"{"kv_request_id":7}"#, "got 7"),
            (r#"{"kv_request_id":null}"#, "got null"),
            (r#"{"kv_request_id":""}"#, "got 0 bytes"),
            (&too_long, "expected text of 1 to 16 bytes, got 17 bytes"),
        ] {
            let roles = roles(&format!(r#"{{"remote_decoder":{value}}}"#));
            let Some(ProducerRole::Malformed(why)) = roles.producer else { panic!("{value}: {roles:?}") };
            assert!(why.contains(says) && why.contains("remote_decoder"), "{why}");
        }
    }

    #[test]
    fn a_source_that_cannot_be_used_is_refused_with_field_expected_and_got() {
        let too_long = format!("\"{}\"", "x".repeat(17));
        for (field, value, got) in [
            ("kv_request_id", None, "nothing"),
            ("kv_request_id", Some("7"), "7"),
            ("kv_request_id", Some("\"\""), "0 bytes"),
            ("kv_request_id", Some(too_long.as_str()), "17 bytes"),
            ("remote_host", None, "nothing"),
            ("remote_host", Some("null"), "null"),
            ("remote_host", Some("\"a b\""), "not a host name"),
            ("remote_host", Some("\"\""), "not a host name"),
            ("remote_port", None, "nothing"),
            ("remote_port", Some("0"), "0"),
            ("remote_port", Some("65536"), "65536"),
            ("remote_port", Some("-1"), "-1"),
            ("remote_port", Some("1.0"), "1.0"),
            ("remote_port", Some("true"), "true"),
            ("remote_port", Some("\"\""), "\"\""),
            ("remote_port", Some("\"+1\""), "\"+1\""),
            ("remote_port", Some("\"http\""), "\"http\""),
        ] {
            let message = refusal(&with_field(field, value));
            assert!(message.contains(&format!("`remote_kv_source.{field}`: expected")), "{message}");
            assert!(message.contains(got), "{message}");
        }
        assert!(
            refusal(r#"{"remote_prefiller":[]}"#).contains("`remote_prefiller`: expected an object, got []")
        );
    }

    #[test]
    fn a_port_may_be_its_digits_as_text() {
        for port in ["65535", "\"65535\""] {
            let roles = roles(&with_field("remote_port", Some(port)));
            assert_eq!(roles.consumer, Some(ConsumerRole::Symmetric(source_r1("h:65535"))));
        }
    }

    #[test]
    fn an_ipv6_host_may_come_bare_or_in_brackets() {
        for host in ["\"::1\"", "\"[::1]\""] {
            let roles = roles(&with_field("remote_host", Some(host)));
            assert_eq!(roles.consumer, Some(ConsumerRole::Symmetric(source_r1("[::1]:1"))));
        }
    }

    #[test]
    fn what_is_no_json_object_is_refused() {
        for json in ["[]", "7", "\"x\"", "{", "{} {}", "{\"a\":}", "NaN"] {
            assert!(refusal(json).contains("expected a JSON object"), "{json}");
        }
    }

    #[test]
    fn refusals_are_short_whatever_came() {
        let long = format!("\"{}\"", "x".repeat(100_000));
        for field in ["remote_host", "remote_port", "kv_request_id"] {
            assert!(refusal(&with_field(field, Some(&long))).len() < 600);
        }
        assert!(refusal(&format!(r#"{{"remote_prefiller":{long}}}"#)).len() < 600);
    }
}
