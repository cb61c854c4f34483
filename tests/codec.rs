//! The wire, byte for byte against what vLLM and msgspec write, and against everything that a peer should not.

use std::net::IpAddr;

use p2pkv::protocol::codec::{CodecError, Decoded, decode, encode};
use p2pkv::protocol::config::Limits;
use p2pkv::protocol::ids::{Instance, KvRequestId, RoundSeq};
use p2pkv::protocol::keys::KeyBatch;
use p2pkv::protocol::message::{
    AbortAck, AbortFetch, Connect, ConnectAck, Dialect, Disconnect, Extension, Fetch, Lookup, LookupResp,
    Message, TcpOffer, TransferDone,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use sha2::{Digest, Sha256};

const DIALECTS: [Option<Dialect>; 3] = [None, Some(Dialect::Current), Some(Dialect::Legacy)];

fn encoded(message: &Message, dialect: Dialect) -> Vec<u8> {
    let mut out = Vec::new();
    encode(message, dialect, &mut out);
    out
}

fn read(bytes: &[u8], dialect: Option<Dialect>) -> Result<Decoded, CodecError> {
    decode(bytes, dialect, &Limits::default())
}

fn message(bytes: &[u8], dialect: Option<Dialect>) -> Message {
    match read(bytes, dialect).unwrap() {
        Decoded::Message(message) => message,
        unknown @ Decoded::Unknown { .. } => panic!("{unknown:?}"),
    }
}

/// The error of a message that is refused while the dialect, and so either form of it, is still open.
fn refusal(bytes: &[u8]) -> CodecError {
    let error = read(bytes, None).unwrap_err();
    assert!(error.to_string().len() < 1200, "{error}");
    error
}

// Building bytes as no sane peer would, from parts that are each one msgpack value.

fn text(value: &str) -> Vec<u8> {
    let mut out = Vec::new();
    rmp::encode::write_str(&mut out, value).unwrap();
    out
}

fn bin(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    rmp::encode::write_bin(&mut out, value).unwrap();
    out
}

fn int(value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    rmp::encode::write_uint(&mut out, value).unwrap();
    out
}

fn array(items: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    rmp::encode::write_array_len(&mut out, u32::try_from(items.len()).unwrap()).unwrap();
    out.extend(items.concat());
    out
}

fn map(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    rmp::encode::write_map_len(&mut out, u32::try_from(entries.len()).unwrap()).unwrap();
    for (name, value) in entries {
        out.extend(text(name));
        out.extend(value);
    }
    out
}

const TRUE: u8 = 0xc3;
const NIL: u8 = 0xc0;

type Entries = Vec<(&'static str, Vec<u8>)>;

fn fetch_entries() -> Entries {
    vec![
        ("type", text("fetch")),
        ("kv_request_id", text("r")),
        ("keys", array(&[bin(b"a"), bin(b"b")])),
        ("block_indexes", array(&[int(1), int(2)])),
        ("round_seq", int(0)),
    ]
}

fn connect_entries() -> Entries {
    vec![
        ("type", text("connect")),
        ("peer_id", text("h:1")),
        ("agent_metadata", bin(b"")),
        ("base_addr", int(0)),
        ("num_blocks", int(1)),
        ("block_len", int(1)),
        ("config_fingerprint", text("")),
        ("hash_seed", text("")),
    ]
}

fn tcp_entries() -> Entries {
    vec![
        ("addresses", array(&[text("10.0.0.1"), text("::1")])),
        ("port", int(7)),
        ("token", bin(b"secret")),
        ("host_identity", text("me")),
    ]
}

fn extension_entries() -> Entries {
    vec![
        ("version", int(1)),
        ("instance", bin(&[9; 16])),
        ("transports", map(&[("tcp", map(&tcp_entries())), ("nixl", vec![TRUE])])),
        ("features", array(&[text("x")])),
    ]
}

/// The entries with this one set, added or, with `None`, left out.
fn with(mut entries: Entries, name: &'static str, value: Option<Vec<u8>>) -> Entries {
    let position = entries.iter().position(|(field, _)| *field == name);
    match (position, value) {
        (Some(at), Some(value)) => entries[at].1 = value,
        (Some(at), None) => drop(entries.remove(at)),
        (None, Some(value)) => entries.push((name, value)),
        (None, None) => {}
    }
    entries
}

fn connect_with(extension: Vec<u8>) -> Vec<u8> {
    map(&with(connect_entries(), "p2pkv", Some(extension)))
}

fn connect_with_tcp(tcp: Entries) -> Vec<u8> {
    let transports = map(&[("tcp", map(&tcp))]);
    connect_with(map(&with(extension_entries(), "transports", Some(transports))))
}

mod wire {
    //! What vLLM 0.33.0 and, for the legacy dialect, 0.26.0 sent.

    use super::*;

    fn unhex(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    fn samples() -> impl Iterator<Item = (&'static str, Dialect, Vec<u8>)> {
        include_str!("data/wire.tsv").lines().map(|line| {
            let [name, dialect, hex] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
            let dialect = if dialect == "legacy" { Dialect::Legacy } else { Dialect::Current };
            (name, dialect, unhex(hex))
        })
    }

    fn keys() -> KeyBatch {
        let first = unhex("d5a28f7c2037b9bd69676b62d2f3c25ae63fc8d8b70373ed1ba2c8e57867b56a00000000");
        let second = unhex("39475d0b9e2b1467a0e115c0d3c13df178b3a67785b897ba74d270ff3727c83100000000");
        [first.as_slice(), second.as_slice()].into_iter().collect()
    }

    fn metadata() -> Vec<u8> {
        let mut metadata = b"nixlSerDes|Agent$".to_vec();
        metadata.extend(0..=255);
        metadata.resize(486, 0);
        metadata
    }

    fn connect(dialect: Dialect) -> Message {
        let current = dialect == Dialect::Current;
        Message::Connect(Box::new(Connect {
            peer_id: if current { "127.0.0.1:42063" } else { "127.0.0.1:22336" }.to_owned(),
            agent_metadata: metadata(),
            base_addr: if current { 140_023_687_979_008 } else { 140_334_854_500_352 },
            num_blocks: 64,
            block_len: 16384,
            config_fingerprint: "cd0d4323bd6e1bb3".to_owned(),
            hash_seed: current.then(|| "vllm-none-hash".to_owned()),
            extension: None,
        }))
    }

    fn value(name: &str, dialect: Dialect) -> Message {
        let id = KvRequestId::new;
        let round_seq = RoundSeq::FIRST;
        let fetch = |kv_request_id, keys, block_indexes| {
            Message::Fetch(Fetch { kv_request_id, keys, block_indexes, round_seq, load_token: None })
        };
        match name {
            "abort_ack" => Message::AbortAck(AbortAck { kv_request_id: id("req-3"), round_seq }),
            "abort_fetch" => Message::AbortFetch(AbortFetch { kv_request_id: id("req-3"), round_seq }),
            "connect" => connect(dialect),
            "connect_ack" => Message::ConnectAck(ConnectAck { peer_id: "127.0.0.1:42063".to_owned() }),
            "disconnect" => Message::Disconnect(Disconnect { reason: None }),
            "fetch" => fetch(id("req-1"), keys(), vec![5, 6]),
            "fetch_empty" => fetch(id("req-2"), KeyBatch::new(), vec![]),
            "lookup" => Message::Lookup(Lookup { kv_request_id: id("req-2"), keys: keys(), round_seq }),
            "lookup_resp" => {
                let hits = vec![true, false];
                Message::LookupResp(LookupResp { kv_request_id: id("req-2"), keys: keys(), hits })
            }
            "transfer_done" => {
                Message::TransferDone(TransferDone { kv_request_id: id("req-1"), success: true, round_seq })
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn every_sample_is_read_as_what_it_says() {
        let mut read = 0;
        for (name, dialect, bytes) in samples() {
            for known in [Some(dialect), None] {
                assert_eq!(message(&bytes, known), value(name, dialect), "{name} {known:?}");
            }
            read += 1;
        }
        assert_eq!(read, 15);
    }

    #[test]
    fn every_sample_is_written_byte_for_byte() {
        for (name, dialect, bytes) in samples() {
            assert_eq!(encoded(&value(name, dialect), dialect), bytes, "{name} {dialect:?}");
        }
    }

    #[test]
    fn a_message_is_appended_to_what_is_there() {
        let mut out = b"before".to_vec();
        encode(&value("disconnect", Dialect::Current), Dialect::Current, &mut out);
        assert!(out.starts_with(b"before\x81\xa4type"));
    }

    #[test]
    fn headers_change_width_where_msgspec_changes_it() {
        for line in include_str!("data/msgspec_forms.tsv").lines() {
            let [name, size, len, digest] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
            let bytes = encoded(&form(name, size.parse().unwrap()), Dialect::Current);
            assert_eq!(bytes.len().to_string(), len, "{line}");
            let ours: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(ours, digest, "{line}");
        }
    }

    fn form(name: &str, size: u64) -> Message {
        let count = usize::try_from(size).unwrap();
        let abort = |id: &str, round| {
            Message::AbortFetch(AbortFetch {
                kv_request_id: KvRequestId::new(id),
                round_seq: RoundSeq(round),
            })
        };
        let fetch = |keys: KeyBatch| {
            let block_indexes = (0..keys.len() as u64).collect();
            let kv_request_id = KvRequestId::new("r");
            Message::Fetch(Fetch {
                kv_request_id,
                keys,
                block_indexes,
                round_seq: RoundSeq::FIRST,
                load_token: None,
            })
        };
        match name {
            "id_len" => abort(&"x".repeat(count), 0),
            "round_seq" => abort("r", size),
            "keys" => fetch(std::iter::repeat_n(b"\x07".as_slice(), count).collect()),
            "key_len" => fetch([vec![7; count].as_slice()].into_iter().collect()),
            "metadata" => Message::Connect(Box::new(Connect {
                peer_id: "h:1".to_owned(),
                agent_metadata: vec![7; count],
                base_addr: 0,
                num_blocks: 1,
                block_len: 1,
                config_fingerprint: String::new(),
                hash_seed: Some(String::new()),
                extension: None,
            })),
            other => panic!("{other}"),
        }
    }
}

mod tolerance {
    use super::*;

    fn fetch() -> Message {
        message(&map(&fetch_entries()), Some(Dialect::Current))
    }

    #[test]
    fn fields_may_come_in_any_order() {
        let mut entries = fetch_entries();
        for _ in 0..entries.len() {
            entries.rotate_left(1);
            assert_eq!(message(&map(&entries), Some(Dialect::Current)), fetch());
        }
        entries.reverse();
        assert_eq!(message(&map(&entries), Some(Dialect::Current)), fetch());
    }

    #[test]
    fn integers_may_have_any_width_and_sign_form() {
        let forms: [&[u8]; 9] = [
            &[5],
            &[0xcc, 5],
            &[0xcd, 0, 5],
            &[0xce, 0, 0, 0, 5],
            &[0xcf, 0, 0, 0, 0, 0, 0, 0, 5],
            &[0xd0, 5],
            &[0xd1, 0, 5],
            &[0xd2, 0, 0, 0, 5],
            &[0xd3, 0, 0, 0, 0, 0, 0, 0, 5],
        ];
        for form in forms {
            let bytes = map(&with(fetch_entries(), "round_seq", Some(form.to_vec())));
            let Message::Fetch(fetch) = message(&bytes, Some(Dialect::Current)) else { panic!() };
            assert_eq!(fetch.round_seq, RoundSeq(5), "{form:x?}");
        }
    }

    #[test]
    fn headers_may_have_any_width() {
        let texts: [&[u8]; 4] = [b"\xa1r", b"\xd9\x01r", b"\xda\x00\x01r", b"\xdb\x00\x00\x00\x01r"];
        let bins: [&[u8]; 3] = [b"\xc4\x01a", b"\xc5\x00\x01a", b"\xc6\x00\x00\x00\x01a"];
        let arrays: [&[u8]; 3] = [b"\x92", b"\xdc\x00\x02", b"\xdd\x00\x00\x00\x02"];
        let maps: [&[u8]; 3] = [b"\x85", b"\xde\x00\x05", b"\xdf\x00\x00\x00\x05"];
        for (at, id) in texts.iter().enumerate() {
            let keys = [arrays[at % 3], bins[at % 3], &bin(b"b")].concat();
            let entries = with(fetch_entries(), "keys", Some(keys));
            let bytes = map(&with(entries, "kv_request_id", Some(id.to_vec())));
            assert_eq!(message(&[maps[at % 3], &bytes[1..]].concat(), Some(Dialect::Current)), fetch());
        }
    }

    #[test]
    fn unknown_fields_may_hold_anything_and_be_named_by_anything() {
        let exts: [&[u8]; 3] = [b"\xd4\x01a", b"\xd8\x010123456789abcdef", b"\xc7\x02\x01ab"];
        let mut values: Vec<Vec<u8>> = exts.iter().map(|ext| ext.to_vec()).collect();
        values.extend([vec![NIL], vec![TRUE], vec![0xe0], b"\xd3\xff\xff\xff\xff\xff\xff\xff\xff".to_vec()]);
        values.extend([b"\xca\x00\x00\x00\x00".to_vec(), b"\xcb\x00\x00\x00\x00\x00\x00\x00\x00".to_vec()]);
        values.extend([b"\xa1\xff".to_vec(), array(&[map(&[("x", array(&[]))]), int(1)]), map(&[])]);
        for value in &values {
            let mut bytes = map(&with(fetch_entries(), "new", Some(value.clone())));
            assert_eq!(message(&bytes, Some(Dialect::Current)), fetch(), "{value:x?}");
            // The same value as the name of one more entry.
            bytes[0] += 1;
            bytes.extend(value);
            bytes.push(NIL);
            assert_eq!(message(&bytes, Some(Dialect::Current)), fetch(), "{value:x?}");
        }
    }

    #[test]
    fn an_unknown_type_is_told_and_no_error() {
        let bytes = map(&[("x", int(1)), ("type", text("gossip"))]);
        assert_eq!(read(&bytes, None), Ok(Decoded::Unknown { kind: "gossip".to_owned() }));
        let bytes = map(&[("type", text(&"é".repeat(1000)))]);
        assert_eq!(read(&bytes, None), Ok(Decoded::Unknown { kind: "é".repeat(64) }));
    }

    #[test]
    fn before_the_dialect_is_known_a_fetch_may_have_either_form() {
        let legacy: Entries = vec![
            ("type", text("fetch")),
            ("kv_request_id", text("r")),
            ("block_hashes", array(&[bin(b"a"), bin(b"b")])),
            ("block_indexes", array(&[int(1), int(2)])),
        ];
        assert_eq!(message(&map(&legacy), None), fetch());
        assert_eq!(message(&map(&legacy), Some(Dialect::Legacy)), fetch());
        let error = read(&map(&legacy), Some(Dialect::Current)).unwrap_err();
        assert_eq!(error.to_string(), "fetch: expected `keys`, got a map without it");
        let error = read(&map(&fetch_entries()), Some(Dialect::Legacy)).unwrap_err();
        assert_eq!(error.to_string(), "fetch: expected `block_hashes`, got a map without it");
        let error = refusal(&map(&with(fetch_entries(), "keys", None)));
        assert_eq!(error.to_string(), "fetch: expected `keys`, got a map without it");
    }

    #[test]
    fn the_legacy_dialect_has_no_rounds_whatever_comes() {
        let done = |round: Vec<u8>| {
            map(&[
                ("type", text("transfer_done")),
                ("kv_request_id", text("r")),
                ("success", vec![TRUE]),
                ("round_seq", round),
            ])
        };
        for round in [int(7), text("x")] {
            let Message::TransferDone(done) = message(&done(round), Some(Dialect::Legacy)) else { panic!() };
            assert_eq!(done.round_seq, RoundSeq::FIRST);
        }
        let Message::TransferDone(done) = message(&done(int(7)), None) else { panic!() };
        assert_eq!(done.round_seq, RoundSeq(7));
    }

    #[test]
    fn the_current_dialect_wants_a_round() {
        for kind in ["abort_ack", "abort_fetch", "fetch", "lookup", "transfer_done"] {
            let entries = with(with(fetch_entries(), "success", Some(vec![TRUE])), "type", Some(text(kind)));
            let bytes = map(&with(entries, "round_seq", None));
            let error = read(&bytes, Some(Dialect::Current)).unwrap_err();
            assert_eq!(error.to_string(), format!("{kind}: expected `round_seq`, got a map without it"));
            assert!(read(&bytes, None).is_ok());
        }
    }

    #[test]
    fn a_load_token_is_read_but_from_legacy_peers() {
        let entries = with(fetch_entries(), "p2pkv_load", Some(int(u64::MAX)));
        let entries = with(entries, "block_hashes", Some(array(&[bin(b"a"), bin(b"b")])));
        for (dialect, expected) in DIALECTS.into_iter().zip([Some(u64::MAX), Some(u64::MAX), None]) {
            let Message::Fetch(fetch) = message(&map(&entries), dialect) else { panic!() };
            assert_eq!(fetch.load_token, expected, "{dialect:?}");
        }
    }

    #[test]
    fn a_disconnect_is_one_whatever_its_reason_is() {
        let reason = |value: Vec<u8>| {
            let bytes = map(&[("type", text("disconnect")), ("reason", value)]);
            let Message::Disconnect(disconnect) = message(&bytes, None) else { panic!() };
            disconnect.reason
        };
        assert_eq!(reason(text("why")), Some("why".to_owned()));
        assert_eq!(reason(text(&"😀".repeat(100_000))), Some("😀".repeat(1024)));
        assert_eq!(reason(b"\xa2\xffx".to_vec()), Some("\u{fffd}x".to_owned()));
        assert_eq!(reason(int(7)), None);
    }

    #[test]
    fn an_extension_is_read_as_far_as_it_is_known() {
        let mut extension = with(extension_entries(), "version", Some(int(2)));
        extension = with(extension, "dialed_as", Some(text("a:1")));
        extension = with(extension, "dialed_as_echo", Some(text("b:2")));
        extension = with(extension, "answers", Some(bin(b"theirs")));
        extension.push(("later", array(&[int(1)])));
        let Message::Connect(connect) = message(&connect_with(map(&extension)), None) else { panic!() };
        let expected = Extension {
            version: 2,
            instance: Instance([9; 16]),
            dialed_as: Some("a:1".to_owned()),
            dialed_as_echo: Some("b:2".to_owned()),
            answers: Some(b"theirs".to_vec()),
            tcp: Some(TcpOffer {
                addresses: vec!["10.0.0.1".parse().unwrap(), "::1".parse().unwrap()],
                port: 7,
                token: b"secret".to_vec(),
                host_identity: "me".to_owned(),
            }),
            nixl: true,
            features: vec!["x".to_owned()],
        };
        assert_eq!(connect.extension, Some(expected));
    }

    #[test]
    fn an_extension_needs_no_more_than_version_and_instance() {
        let bytes = connect_with(map(&[("version", int(1)), ("instance", bin(&[9; 16]))]));
        let Message::Connect(connect) = message(&bytes, None) else { panic!() };
        let extension = connect.extension.unwrap();
        assert_eq!((extension.tcp, extension.nixl, extension.features), (None, false, vec![]));
    }

    #[test]
    fn a_connect_without_hash_seed_is_one() {
        let bytes = map(&with(connect_entries(), "hash_seed", None));
        let Message::Connect(connect) = message(&bytes, Some(Dialect::Current)) else { panic!() };
        assert_eq!(connect.hash_seed, None);
    }
}

mod refusals {
    use super::*;

    fn refused_fetch(name: &'static str, value: Vec<u8>) -> String {
        refusal(&map(&with(fetch_entries(), name, Some(value)))).to_string()
    }

    #[test]
    fn what_is_no_map_is_refused() {
        assert_eq!(refusal(b"\x05").to_string(), "message: expected a map, got 5");
        assert_eq!(refusal(b"\x93\x01\x02\x03").to_string(), "message: expected a map, got array of 3");
        for bytes in [b"".as_slice(), b"\xc1", b"\x81", b"\x81\xa4type", b"\xdf\x00\x00"] {
            refusal(bytes);
        }
    }

    #[test]
    fn a_type_is_wanted_and_text() {
        assert_eq!(refusal(b"\x80").to_string(), "message: expected `type`, got a map without it");
        let error = refusal(&map(&[("type", int(5))]));
        assert!(error.to_string().starts_with("message: `type`: expected str"), "{error}");
        refusal(&map(&[("type", b"\xa1\xff".to_vec())]));
    }

    #[test]
    fn every_truncation_is_refused() {
        for entries in [fetch_entries(), with(connect_entries(), "p2pkv", Some(map(&extension_entries())))] {
            let bytes = map(&entries);
            for len in 0..bytes.len() {
                assert!(read(&bytes[..len], None).is_err(), "{len}");
            }
        }
    }

    #[test]
    fn trailing_bytes_are_refused() {
        let error = refusal(&[map(&connect_entries()), vec![NIL; 3]].concat());
        assert_eq!(error.to_string(), "connect: expected the end of the message, got 3 more bytes");
    }

    #[test]
    fn a_known_field_twice_is_refused_wherever_it_is() {
        for name in ["type", "keys"] {
            let mut entries = fetch_entries();
            let again = entries.iter().find(|(field, _)| *field == name).unwrap().clone();
            entries.push(again);
            let error = refusal(&map(&entries));
            assert_eq!(error.to_string(), format!("fetch: expected `{name}` once, got it twice"));
        }
        let mut tcp = tcp_entries();
        tcp.push(("port", int(8)));
        let error = refusal(&connect_with_tcp(tcp));
        assert!(error.detail.contains("expected `p2pkv.transports.tcp.port` once"), "{error}");
    }

    #[test]
    fn every_missing_field_is_named() {
        let lookup_resp = || {
            let entries = with(fetch_entries(), "type", Some(text("lookup_resp")));
            with(entries, "hits", Some(array(&[vec![TRUE], vec![TRUE]])))
        };
        let done =
            || with(with(fetch_entries(), "type", Some(text("transfer_done"))), "success", Some(vec![TRUE]));
        let ack = || vec![("type", text("connect_ack")), ("peer_id", text("h:1"))];
        let cases: [(Entries, &[&str]); 5] = [
            (fetch_entries(), &["kv_request_id", "keys", "block_indexes"]),
            (lookup_resp(), &["kv_request_id", "keys", "hits"]),
            (done(), &["kv_request_id", "success"]),
            (ack(), &["peer_id"]),
            (
                connect_entries(),
                &["peer_id", "agent_metadata", "base_addr", "num_blocks", "block_len", "config_fingerprint"],
            ),
        ];
        for (entries, names) in cases {
            assert!(read(&map(&entries), None).is_ok());
            for &name in names {
                let error = refusal(&map(&with(entries.clone(), name, None)));
                assert_eq!(error.detail, format!("expected `{name}`, got a map without it"));
            }
        }
    }

    #[test]
    fn every_wrong_type_is_named_with_what_came() {
        assert_eq!(
            refused_fetch("round_seq", vec![TRUE]),
            "fetch: `round_seq`: expected an integer from 0 to 2^64-1, got true"
        );
        assert!(refused_fetch("round_seq", vec![0xff]).ends_with("got -1"));
        assert!(
            refused_fetch("round_seq", b"\xcb\x00\x00\x00\x00\x00\x00\x00\x00".to_vec())
                .ends_with("got a float")
        );
        assert!(refused_fetch("round_seq", vec![NIL]).ends_with("got nil"));
        assert!(refused_fetch("kv_request_id", bin(b"r")).ends_with("got bin of 1 bytes"));
        assert!(
            refused_fetch("kv_request_id", b"\xa1\xff".to_vec()).contains("`kv_request_id`: expected UTF-8")
        );
        assert!(refused_fetch("keys", bin(b"ab")).contains("`keys`: expected an array"));
        assert!(
            refused_fetch("block_indexes", array(&[int(1), vec![TRUE]])).contains("`block_indexes`: [1]:")
        );
        assert!(refused_fetch("block_indexes", array(&[int(1), vec![0xd0, 0x80]])).ends_with("got -128"));
        assert!(refused_fetch("p2pkv_load", vec![TRUE]).contains("`p2pkv_load`"));
    }

    #[test]
    fn keys_are_bin_and_nothing_else() {
        for (key, got) in
            [(text("a"), "str of 1 bytes"), (int(7), "7"), (vec![NIL], "nil"), (array(&[]), "array of 0")]
        {
            let error = refused_fetch("keys", array(&[bin(b"a"), key]));
            assert_eq!(error, format!("fetch: `keys`: [1]: expected bin of 1 to 256 bytes, got {got}"));
        }
    }

    #[test]
    fn hits_are_booleans_one_for_each_key() {
        let response = |hits: &[Vec<u8>]| {
            let entries = with(fetch_entries(), "type", Some(text("lookup_resp")));
            map(&with(entries, "hits", Some(array(hits))))
        };
        assert!(refusal(&response(&[int(1), int(0)])).detail.contains("expected true or false, got 1"));
        let error = refusal(&response(&[vec![TRUE]]));
        assert_eq!(error.to_string(), "lookup_resp: `hits`: expected one for each of the 2 keys, got 1");
    }

    #[test]
    fn block_indexes_come_one_for_each_key() {
        let error = refused_fetch("block_indexes", array(&[int(1)]));
        assert_eq!(error, "fetch: `block_indexes`: expected one for each of the 2 keys, got 1");
    }

    #[test]
    fn a_region_has_blocks_of_some_length() {
        for name in ["num_blocks", "block_len"] {
            let error = refusal(&map(&with(connect_entries(), name, Some(int(0)))));
            assert!(
                error.to_string().starts_with(&format!("connect: `{name}`: expected an integer from 1")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_malformed_extension_is_refused() {
        for (name, value) in [
            ("version", None),
            ("version", Some(int(0))),
            ("version", Some(int(1 << 32))),
            ("version", Some(vec![TRUE])),
            ("instance", None),
            ("instance", Some(bin(&[9; 15]))),
            ("instance", Some(text("0123456789abcdef"))),
            ("dialed_as", Some(vec![NIL])),
            ("dialed_as_echo", Some(text(&"x".repeat(1025)))),
            ("answers", Some(text("theirs"))),
            ("answers", Some(bin(&[1; 65]))),
            ("transports", Some(array(&[]))),
            ("transports", Some(map(&[("nixl", int(1))]))),
            ("transports", Some(map(&[("tcp", vec![TRUE])]))),
            ("features", Some(text("x"))),
            ("features", Some(array(&[int(1)]))),
            ("features", Some(array(&vec![text("x"); 65]))),
        ] {
            let bytes = connect_with(map(&with(extension_entries(), name, value.clone())));
            let error = refusal(&bytes).to_string();
            assert!(error.starts_with("connect: ") && error.contains(&format!("p2pkv.{name}")), "{error}");
        }
        assert!(refusal(&connect_with(vec![TRUE])).detail.contains("`p2pkv`: expected a map, got true"));
    }

    #[test]
    fn a_malformed_tcp_offer_is_refused() {
        for (name, value) in [
            ("addresses", None),
            ("addresses", Some(array(&[text("localhost")]))),
            ("addresses", Some(array(&[bin(b"\x7f\0\0\x01")]))),
            ("addresses", Some(array(&vec![text("::1"); 17]))),
            ("port", None),
            ("port", Some(int(0))),
            ("port", Some(int(65536))),
            ("token", None),
            ("token", Some(text("secret"))),
            ("token", Some(bin(&[0; 65]))),
            ("host_identity", None),
            ("host_identity", Some(text(&"x".repeat(1025)))),
        ] {
            let error = refusal(&connect_with_tcp(with(tcp_entries(), name, value))).to_string();
            assert!(error.contains(&format!("`p2pkv.transports.tcp.{name}`")), "{error}");
        }
    }

    #[test]
    fn errors_are_short_whatever_came() {
        let long = "\u{1}".repeat(1000);
        refusal(&connect_with_tcp(with(tcp_entries(), "addresses", Some(array(&[text(&long)])))));
        let kind = "\u{1}".repeat(100_000);
        let error = refusal(&[map(&[("type", text(&kind))]), vec![NIL]].concat());
        assert_eq!(error.message.chars().count(), 64);
    }
}

mod limits {
    use super::*;

    /// The message is taken at its limit and refused, with this in the error, one below it.
    fn check(bytes: &[u8], at: &Limits, below: &Limits, says: &str) {
        decode(bytes, Some(Dialect::Current), at).unwrap();
        let error = decode(bytes, Some(Dialect::Current), below).unwrap_err();
        assert!(error.detail.contains(says), "{error}");
    }

    #[test]
    fn message_bytes() {
        let bytes = map(&fetch_entries());
        let at = Limits { message_bytes: bytes.len(), ..Limits::default() };
        let below = Limits { message_bytes: bytes.len() - 1, ..Limits::default() };
        check(
            &bytes,
            &at,
            &below,
            &format!("expected at most {} bytes, got {}", bytes.len() - 1, bytes.len()),
        );
    }

    #[test]
    fn nesting() {
        // With the message itself and the outer array: 4 levels.
        let nested = array(&[map(&[("x", array(&[]))])]);
        let bytes = map(&with(fetch_entries(), "new", Some(nested)));
        let at = Limits { nesting: 4, ..Limits::default() };
        check(&bytes, &at, &Limits { nesting: 3, ..at.clone() }, "nesting limit");
    }

    #[test]
    fn keys_per_message() {
        let bytes = map(&fetch_entries());
        let at = Limits { keys_per_message: 2, ..Limits::default() };
        let below = Limits { keys_per_message: 1, ..Limits::default() };
        check(&bytes, &at, &below, "`keys`: expected an array of at most 1, got array of 2");
    }

    #[test]
    fn key_len() {
        let keys = array(&[bin(&[0; 256]), bin(&[0; 1])]);
        let bytes = map(&with(fetch_entries(), "keys", Some(keys)));
        let below = Limits { key_len: 255, ..Limits::default() };
        check(
            &bytes,
            &Limits::default(),
            &below,
            "`keys`: [0]: expected bin of 1 to 255 bytes, got bin of 256 bytes",
        );
        let empty = map(&with(fetch_entries(), "keys", Some(array(&[bin(b"a"), bin(b"")]))));
        assert!(refusal(&empty).detail.contains("[1]: expected bin of 1 to 256 bytes, got bin of 0 bytes"));
    }

    #[test]
    fn id_len() {
        let bytes = map(&with(fetch_entries(), "kv_request_id", Some(text(&"é".repeat(512)))));
        let below = Limits { id_len: 1023, ..Limits::default() };
        check(&bytes, &Limits::default(), &below, "expected str of 1 to 1023 bytes, got str of 1024 bytes");
        let empty = map(&with(fetch_entries(), "kv_request_id", Some(text(""))));
        assert!(refusal(&empty).detail.contains("got str of 0 bytes"));
    }

    #[test]
    fn texts_of_connect() {
        for name in ["peer_id", "config_fingerprint", "hash_seed"] {
            let sized = |len| map(&with(connect_entries(), name, Some(text(&"x".repeat(len)))));
            assert!(read(&sized(1024), None).is_ok());
            assert!(
                refusal(&sized(1025)).detail.starts_with(&format!("`{name}`: expected str of at most 1024"))
            );
        }
    }

    #[test]
    fn depth_of_200_000_is_refused_without_recursion_or_memory() {
        let arrays = vec![0x91; 200_000];
        let maps: Vec<u8> = [0x81, 0xa0].repeat(200_000);
        let keys = vec![0x81; 200_000];
        for deep in [arrays, maps, keys] {
            let bytes = map(&[("x", deep.clone()), ("type", text("fetch"))]);
            for bytes in [bytes, deep] {
                let used = allocation_counter::measure(|| assert!(read(&bytes, None).is_err()));
                assert!(used.bytes_total < 1024, "{used:?}");
            }
        }
    }

    #[test]
    fn headers_that_claim_more_than_there_is_allocate_nothing() {
        let claims: [&[u8]; 6] = [
            b"\xdd\x00\x10\x00\x00", // 1 Mi elements
            b"\xdd\xff\xff\xff\xff",
            b"\xdf\x00\x10\x00\x00",
            b"\xc6\xff\xff\xff\xff",
            b"\xdb\xff\xff\xff\xff",
            b"\xc9\xff\xff\xff\xff",
        ];
        for claim in claims {
            for name in ["keys", "block_indexes", "new"] {
                let value = [claim, &[0; 10]].concat();
                let mut entries = with(fetch_entries(), name, None);
                entries.push((name, value));
                let bytes = map(&entries);
                let used = allocation_counter::measure(|| assert!(read(&bytes, None).is_err()));
                assert!(used.bytes_total < 1024, "{name} {claim:x?}: {used:?}");
            }
        }
    }

    #[test]
    fn a_header_that_claims_more_than_there_is_is_refused_at_the_header() {
        for (claim, says) in [
            (b"\xdd\x00\x10\x00\x00".as_slice(), "an array's 1048576 elements, got only 20 bytes"),
            (b"\xdc\x00\x15", "an array's 21 elements, got only 20 bytes"),
            (b"\xdf\xff\xff\xff\xff", "a map's 4294967295 entries, got only 20 bytes"),
            (b"\x8b", "a map's 11 entries, got only 20 bytes"),
            (b"\xc4\x15", "21 more bytes as a header claims, got 20"),
        ] {
            let error = refusal(&map(&[("keys", [claim, &[0; 20]].concat())]));
            assert!(error.detail.contains(says), "{error}");
        }
    }

    #[test]
    fn memory_for_a_reason_is_bounded_by_what_is_kept_of_it() {
        let mut reason = vec![0xdb, 0, 0x10, 0, 0];
        reason.resize(5 + (1 << 20), 0xff);
        let bytes = map(&[("type", text("disconnect")), ("reason", reason)]);
        let used = allocation_counter::measure(|| assert!(read(&bytes, None).is_ok()));
        assert!(used.bytes_total < 64 << 10, "{used:?}");
    }

    #[test]
    fn memory_for_keys_is_bounded_by_the_bytes_that_came() {
        // As many keys as fit, none of them one: the dearest lie for its size.
        let nils = array(&vec![vec![NIL]; 1 << 20]);
        let indexes = array(&vec![int(0); 1 << 20]);
        let bytes = map(&with(with(fetch_entries(), "keys", Some(nils)), "block_indexes", Some(indexes)));
        let used = allocation_counter::measure(|| assert!(read(&bytes, None).is_err()));
        assert!(used.bytes_max < 3 << 20, "{used:?}");
    }

    #[test]
    fn keys_cost_a_fixed_number_of_allocations() {
        let count = |keys: usize| {
            let entries = with(fetch_entries(), "keys", Some(array(&vec![bin(&[7; 36]); keys])));
            let bytes = map(&with(entries, "block_indexes", Some(array(&vec![int(0); keys]))));
            allocation_counter::measure(|| assert!(read(&bytes, None).is_ok())).count_total
        };
        assert_eq!(count(10_000), count(10));
    }
}

mod properties {
    use super::*;

    fn id() -> impl Strategy<Value = KvRequestId> {
        "\\PC{1,80}".prop_map(|text| KvRequestId::new(&text))
    }

    fn round() -> impl Strategy<Value = RoundSeq> {
        prop_oneof![0..300u64, any::<u64>()].prop_map(RoundSeq)
    }

    fn keys(count: usize) -> impl Strategy<Value = KeyBatch> {
        vec(vec(any::<u8>(), 1..60), count)
            .prop_map(|keys| keys.iter().map(Vec::as_slice).collect::<KeyBatch>())
    }

    fn tcp() -> impl Strategy<Value = TcpOffer> {
        (vec(any::<IpAddr>(), 0..=16), 1..=u16::MAX, vec(any::<u8>(), 0..=64), "\\PC{0,40}").prop_map(
            |(addresses, port, token, host_identity)| TcpOffer { addresses, port, token, host_identity },
        )
    }

    fn extension() -> impl Strategy<Value = Extension> {
        let answers = option::of(vec(any::<u8>(), 0..=64));
        let names = (option::of("\\PC{0,40}"), option::of("\\PC{0,40}"), answers);
        let features = vec("[a-z]{0,40}", 0..=64);
        (1..=u32::MAX, any::<[u8; 16]>(), names, option::of(tcp()), any::<bool>(), features).prop_map(
            |(version, instance, (dialed_as, dialed_as_echo, answers), tcp, nixl, features)| Extension {
                version,
                instance: Instance(instance),
                dialed_as,
                dialed_as_echo,
                answers,
                tcp,
                nixl,
                features,
            },
        )
    }

    fn connect() -> impl Strategy<Value = Message> {
        let texts = ("\\PC{0,40}", "[0-9a-f]{0,16}", option::of("\\PC{0,40}"));
        let numbers = (any::<u64>(), 1..=u64::MAX, 1..=u64::MAX);
        (texts, numbers, vec(any::<u8>(), 0..600), option::of(extension())).prop_map(
            |(
                (peer_id, config_fingerprint, hash_seed),
                (base_addr, num_blocks, block_len),
                agent_metadata,
                extension,
            )| {
                Message::Connect(Box::new(Connect {
                    peer_id,
                    agent_metadata,
                    base_addr,
                    num_blocks,
                    block_len,
                    config_fingerprint,
                    hash_seed,
                    extension,
                }))
            },
        )
    }

    fn fetch() -> impl Strategy<Value = Message> {
        (0..40usize).prop_flat_map(|count| {
            (id(), keys(count), vec(any::<u64>(), count), round(), option::of(any::<u64>())).prop_map(
                |(kv_request_id, keys, block_indexes, round_seq, load_token)| {
                    Message::Fetch(Fetch { kv_request_id, keys, block_indexes, round_seq, load_token })
                },
            )
        })
    }

    fn lookups() -> impl Strategy<Value = Message> {
        (0..40usize).prop_flat_map(|count| {
            (id(), keys(count), round(), option::of(vec(any::<bool>(), count))).prop_map(
                |(kv_request_id, keys, round_seq, hits)| match hits {
                    Some(hits) => Message::LookupResp(LookupResp { kv_request_id, keys, hits }),
                    None => Message::Lookup(Lookup { kv_request_id, keys, round_seq }),
                },
            )
        })
    }

    fn any_message() -> impl Strategy<Value = Message> {
        prop_oneof![
            (id(), round()).prop_map(|(kv_request_id, round_seq)| {
                Message::AbortAck(AbortAck { kv_request_id, round_seq })
            }),
            (id(), round()).prop_map(|(kv_request_id, round_seq)| {
                Message::AbortFetch(AbortFetch { kv_request_id, round_seq })
            }),
            connect(),
            "\\PC{0,40}".prop_map(|peer_id| Message::ConnectAck(ConnectAck { peer_id })),
            option::of("\\PC{0,40}").prop_map(|reason| Message::Disconnect(Disconnect { reason })),
            fetch(),
            lookups(),
            (id(), any::<bool>(), round()).prop_map(|(kv_request_id, success, round_seq)| {
                Message::TransferDone(TransferDone { kv_request_id, success, round_seq })
            }),
        ]
    }

    /// What is left of a message in the legacy dialect.
    fn as_legacy(mut message: Message) -> Message {
        match &mut message {
            Message::AbortAck(abort) => abort.round_seq = RoundSeq::FIRST,
            Message::AbortFetch(abort) => abort.round_seq = RoundSeq::FIRST,
            Message::Fetch(fetch) => (fetch.round_seq, fetch.load_token) = (RoundSeq::FIRST, None),
            Message::Lookup(lookup) => lookup.round_seq = RoundSeq::FIRST,
            Message::TransferDone(done) => done.round_seq = RoundSeq::FIRST,
            Message::Connect(_)
            | Message::ConnectAck(_)
            | Message::Disconnect(_)
            | Message::LookupResp(_) => {}
        }
        message
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_is_read_back(sent in any_message()) {
            let bytes = encoded(&sent, Dialect::Current);
            for dialect in [Some(Dialect::Current), None] {
                prop_assert_eq!(&message(&bytes, dialect), &sent);
            }
            let bytes = encoded(&sent, Dialect::Legacy);
            let sent = as_legacy(sent);
            for dialect in [Some(Dialect::Legacy), None] {
                prop_assert_eq!(&message(&bytes, dialect), &sent);
            }
        }

        #[test]
        fn changed_bytes_never_panic_and_what_is_taken_can_be_written(
            sent in any_message(),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            cut in option::of(any::<prop::sample::Index>()),
        ) {
            let mut bytes = encoded(&sent, Dialect::Current);
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            for dialect in DIALECTS {
                match read(&bytes, dialect) {
                    Ok(Decoded::Message(taken)) => {
                        let again = encoded(&taken, Dialect::Current);
                        prop_assert_eq!(message(&again, Some(Dialect::Current)), taken);
                    }
                    Ok(Decoded::Unknown { kind }) => prop_assert!(kind.chars().count() <= 64),
                    Err(error) => prop_assert!(error.to_string().len() < 1200),
                }
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..400), in_map in any::<bool>()) {
            let bytes = if in_map { [b"\x84\xa4type\xa5fetch\xa4keys", bytes.as_slice()].concat() } else { bytes };
            for dialect in DIALECTS {
                let _ = read(&bytes, dialect);
            }
        }
    }
}
