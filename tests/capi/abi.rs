//! Numbers, sizes and offsets: the same in Rust, in C, and in the file that other languages' bindings test against.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;

use p2pkv::capi::*;
use serde_json::{Value, json};

use crate::elf::listed_symbols;
use crate::toolchain::{compilers, root, scratch, succeed};

struct Field {
    name: &'static str,
    offset: usize,
    size: usize,
}

struct Struct {
    name: &'static str,
    size: usize,
    align: usize,
    fields: Vec<Field>,
}

struct Enum {
    name: &'static str,
    size: usize,
    variants: Vec<(String, i64)>,
}

fn field_size<T, F>(_: impl Fn(&T) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! structure {
    ($name:ident { $($field:ident),+ $(,)? }) => {
        Struct {
            name: stringify!($name),
            size: size_of::<$name>(),
            align: align_of::<$name>(),
            fields: vec![$(Field {
                name: stringify!($field),
                offset: std::mem::offset_of!($name, $field),
                size: field_size(|it: &$name| &it.$field),
            }),+],
        }
    };
}

macro_rules! enumeration {
    ($name:ident $prefix:literal { $($variant:ident),+ $(,)? }) => {
        Enum {
            name: stringify!($name),
            size: size_of::<$name>(),
            variants: vec![$((
                concat!($prefix, stringify!($variant)).to_owned(),
                $name::$variant as i64,
            )),+],
        }
    };
}

fn structs() -> Vec<Struct> {
    vec![
        structure!(p2p_str { data, len }),
        structure!(p2p_keys { data, key_len, count }),
        structure!(p2p_tier_config {
            struct_size,
            host,
            advertised_host,
            base_addr,
            num_blocks,
            block_len,
            model_config_json,
            config_fingerprint,
            hash_seed,
            tcp_congestion,
            port,
            data_port,
            tcp_streams,
            transport,
            progress,
            max_peers,
            max_keys_per_message,
            max_key_len,
            max_id_len,
            max_outstanding_per_peer,
            max_message_bytes,
            handshake_timeout_ms,
            lookup_timeout_ms,
            load_timeout_ms,
            abort_ack_timeout_ms,
            store_timeout_ms,
            unbound_store_timeout_ms,
            serve_timeout_ms,
            idle_timeout_ms,
            nixl_backends,
            nixl_threads,
            same_host,
            region_offset,
            region_fd,
            spin_us,
        }),
        structure!(p2p_request_options {
            struct_size,
            kv_transfer_params_json,
            load_timeout_ms,
            lookup_timeout_ms,
            store_timeout_ms,
        }),
        structure!(p2p_job_result {
            job_id,
            kind,
            outcome,
            outcome_class,
            flags,
            bytes,
            nanoseconds,
            detail,
        }),
        structure!(p2p_peer_info {
            peer_id,
            transport,
            detail,
            state,
            reserved,
            loads_live,
            stores_live,
            transfers_live,
            bytes_in,
            bytes_out,
            rounds_served,
            idle_ms,
        }),
        structure!(p2p_tier_statistics {
            struct_size,
            peers,
            requests,
            loads_live,
            stores_live,
            stores_parked,
            keys_published,
            blocks_pinned,
            jobs_done,
            jobs_failed,
            bytes_in,
            bytes_out,
            lookups_sent,
            lookups_answered,
            keys_hit,
            keys_missed,
            messages_in,
            messages_out,
            messages_dropped,
            messages_late,
            protocol_errors,
            sessions_opened,
            sessions_lost,
            results_queued,
        }),
        structure!(p2p_serve_ops {
            struct_size,
            flags,
            reserved,
            user_data,
            new_request,
            lookup,
            create_store_job,
            request_finished,
            drop,
        }),
    ]
}

fn enums() -> Vec<Enum> {
    vec![
        enumeration!(p2p_status "P2P_STATUS_" {
            OK, TIMED_OUT, BUSY, TRUNCATED, INVALID_ARGUMENT, UNSUPPORTED, WRONG_PROCESS, DUPLICATE_JOB,
            ALREADY_EXISTS, NOT_FOUND, INVALID_PARAMS, NOT_A_HIT, LIMIT_EXCEEDED, WRONG_ROLE, SHUT_DOWN,
            ADDRESS_IN_USE, ADDRESS_INVALID, TRANSPORT_UNAVAILABLE, OUT_OF_RESOURCES, PERMISSION_DENIED, OS_ERROR,
            PANIC, POISONED,
        }),
        enumeration!(p2p_outcome "P2P_OUTCOME_" {
            DONE, NOT_SUPPLIED, ABORTED, TIMED_OUT, PEER_LOST, INCOMPATIBLE, TRANSPORT_FAILED, NOT_FETCHED, NO_PEER,
            SHUT_DOWN,
        }),
        enumeration!(p2p_outcome_class "P2P_OUTCOME_CLASS_" { NONE, RETRY, RECOMPUTE, FIX_CONFIGURATION, BUG }),
        enumeration!(p2p_job_kind "P2P_JOB_KIND_" { LOAD, STORE }),
        enumeration!(p2p_lookup_state "P2P_LOOKUP_" { MISS, HIT, RETRY, PENDING }),
        enumeration!(p2p_offload_policy "P2P_OFFLOAD_" { CHUNK_LEVEL, REQUEST_LEVEL }),
        enumeration!(p2p_transport "P2P_TRANSPORT_" { AUTO, TCP, NIXL }),
        enumeration!(p2p_same_host "P2P_SAME_HOST_" { AUTO, OFF }),
        enumeration!(p2p_progress "P2P_PROGRESS_" { THREAD, CALLER }),
        enumeration!(p2p_peer_state "P2P_PEER_" { CONNECTING, HANDSHAKE, READY, DRAINING, BACKING_OFF }),
        enumeration!(p2p_unpublish_state "P2P_UNPUBLISH_" { REMOVED, BUSY, NOT_FOUND }),
        enumeration!(p2p_log_level "P2P_LOG_" { OFF, ERROR, WARN, INFO, DEBUG, TRACE }),
    ]
}

fn constants() -> Vec<(&'static str, u64)> {
    vec![
        ("P2P_NUL_TERMINATED", usize::MAX as u64),
        ("P2P_VERSION_MAJOR", P2P_VERSION_MAJOR.into()),
        ("P2P_VERSION_MINOR", P2P_VERSION_MINOR.into()),
        ("P2P_VERSION_PATCH", P2P_VERSION_PATCH.into()),
        ("P2P_VERSION_NUMBER", P2P_VERSION_NUMBER.into()),
        ("P2P_ABI_VERSION", P2P_ABI_VERSION.into()),
        ("P2P_FEATURE_TCP", P2P_FEATURE_TCP),
        ("P2P_FEATURE_NIXL", P2P_FEATURE_NIXL),
        ("P2P_FEATURE_SAME_HOST", P2P_FEATURE_SAME_HOST),
        ("P2P_FEATURE_METRICS", P2P_FEATURE_METRICS),
        ("P2P_JOB_MAY_STILL_BE_READ", P2P_JOB_MAY_STILL_BE_READ.into()),
        ("P2P_JOB_MAY_STILL_BE_WRITTEN", P2P_JOB_MAY_STILL_BE_WRITTEN.into()),
        ("P2P_TIMEOUT_INFINITE", P2P_TIMEOUT_INFINITE),
        ("P2P_NO_BLOCK", P2P_NO_BLOCK.into()),
        ("P2P_SERVE_ON_PROGRESS_THREAD", P2P_SERVE_ON_PROGRESS_THREAD.into()),
        ("P2P_REGION_HUGE_PAGES", P2P_REGION_HUGE_PAGES.into()),
    ]
}

#[test]
fn no_struct_has_hidden_padding() {
    for structure in structs() {
        let sum: usize = structure.fields.iter().map(|field| field.size).sum();
        assert_eq!(sum, structure.size, "{}: padding, or a field is missing in this test", structure.name);
    }
}

#[test]
fn sizes_that_were_released_only_grow() {
    for structure in structs() {
        let released = match structure.name {
            "p2p_str" => 16,
            "p2p_keys" => 24,
            "p2p_tier_config" => 240,
            "p2p_request_options" => 40,
            "p2p_job_result" => 256,
            "p2p_peer_info" => 560,
            "p2p_tier_statistics" => 192,
            "p2p_serve_ops" => 64,
            name => panic!("{name} has no size here"),
        };
        assert!(
            structure.size >= released,
            "{} shrank from {released} to {}",
            structure.name,
            structure.size
        );
    }
}

#[test]
fn every_number_of_the_header_is_checked_here() {
    let header = fs::read_to_string(root().join("include/p2pkv.h")).unwrap();
    let define = |line: &str| line.strip_prefix("#define ")?.split_once(' ').map(|(name, _)| name.to_owned());
    let variant = |line: &str| {
        let (name, _) = line.trim_start().split_once(" = ")?;
        name.starts_with("P2P_").then(|| name.to_owned())
    };
    let in_header: BTreeSet<String> =
        header.lines().filter_map(|line| define(line).or_else(|| variant(line))).collect();
    let variants = enums().into_iter().flat_map(|it| it.variants).map(|(name, _)| name);
    let here: BTreeSet<String> = variants.chain(constants().into_iter().map(|it| it.0.to_owned())).collect();
    assert_eq!(in_header, here);
}

#[test]
fn c_and_cpp_agree_on_every_number_size_and_offset() {
    let mut source = String::from(
        "#include \"p2pkv.h\"\n#ifndef __cplusplus\n#define static_assert _Static_assert\n#endif\n",
    );
    let mut claim = |left: String, right: String| {
        writeln!(source, "static_assert({left} == {right}, \"{left}\");").unwrap();
    };
    for structure in structs() {
        claim(format!("sizeof({})", structure.name), structure.size.to_string());
        for field in &structure.fields {
            claim(format!("offsetof({}, {})", structure.name, field.name), field.offset.to_string());
            claim(format!("sizeof((({} *)0)->{})", structure.name, field.name), field.size.to_string());
        }
    }
    for enumeration in enums() {
        claim(format!("sizeof({})", enumeration.name), enumeration.size.to_string());
        for (name, number) in &enumeration.variants {
            claim(format!("(int64_t){name}"), format!("INT64_C({number})"));
        }
    }
    for (name, number) in constants() {
        claim(format!("(uint64_t){name}"), format!("UINT64_C({number})"));
    }
    // So that the macro can be used where the preprocessor counts.
    source.push_str("#if P2P_VERSION_NUMBER < 100\n#error P2P_VERSION_NUMBER\n#endif\n");
    let file = scratch("abi").join("abi.c");
    fs::write(&file, source).unwrap();
    for compiler in compilers().into_iter().filter(|compiler| compiler.standard != "c99") {
        succeed(compiler.start().arg("-fsyntax-only").arg(&file));
    }
}

#[test]
fn the_version_macros_are_the_packages_version() {
    let part = |text: &str| text.parse::<u32>().unwrap();
    let package = (
        part(env!("CARGO_PKG_VERSION_MAJOR")),
        part(env!("CARGO_PKG_VERSION_MINOR")),
        part(env!("CARGO_PKG_VERSION_PATCH")),
    );
    assert_eq!(package, (P2P_VERSION_MAJOR, P2P_VERSION_MINOR, P2P_VERSION_PATCH));
    assert_eq!(P2P_VERSION_NUMBER, package.0 * 10000 + package.1 * 100 + package.2);
    // SAFETY: a static C string.
    let text = unsafe { std::ffi::CStr::from_ptr(p2p_version()) };
    assert_eq!(text.to_str().unwrap(), env!("CARGO_PKG_VERSION"));
    assert_eq!(p2p_abi_version(), P2P_ABI_VERSION);
}

#[test]
fn every_status_and_outcome_has_its_own_name() {
    // SAFETY: static C strings.
    let text = |name| unsafe { std::ffi::CStr::from_ptr(name) }.to_str().unwrap();
    for enumeration in enums() {
        for (name, number) in &enumeration.variants {
            match enumeration.name {
                "p2p_status" => {
                    let said = text(p2p_status_name(i32::try_from(*number).unwrap()));
                    assert_eq!(format!("P2P_STATUS_{said}"), *name);
                }
                "p2p_outcome" => {
                    let said = text(p2p_outcome_name(u32::try_from(*number).unwrap()));
                    assert_eq!(format!("P2P_OUTCOME_{said}"), *name);
                }
                _ => (),
            }
        }
    }
    assert_eq!(text(p2p_status_name(4)), "UNKNOWN");
    assert_eq!(text(p2p_outcome_name(10)), "UNKNOWN");
}

/// All of it, for bindings in other languages.
fn description() -> Value {
    let structs: serde_json::Map<String, Value> = structs()
        .into_iter()
        .map(|it| {
            let fields: Vec<Value> = it
                .fields
                .iter()
                .map(|field| json!({ "name": field.name, "offset": field.offset, "size": field.size }))
                .collect();
            (it.name.to_owned(), json!({ "size": it.size, "align": it.align, "fields": fields }))
        })
        .collect();
    let enums: serde_json::Map<String, Value> = enums()
        .into_iter()
        .map(|it| {
            let variants: serde_json::Map<String, Value> =
                it.variants.into_iter().map(|(name, number)| (name, json!(number))).collect();
            (it.name.to_owned(), Value::Object(variants))
        })
        .collect();
    let constants: serde_json::Map<String, Value> =
        constants().into_iter().map(|(name, number)| (name.to_owned(), json!(number))).collect();
    json!({
        "about": "Sizes, offsets and numbers of include/p2pkv.h on 64-bit Linux. Written by tests/capi/abi.rs.",
        "constants": constants,
        "enums": enums,
        "functions": listed_symbols(),
        "structs": structs,
    })
}

#[test]
fn the_description_for_other_languages_is_fresh() {
    let path = root().join("tests/data/abi.json");
    let fresh = format!("{:#}\n", description());
    if std::env::var_os("P2PKV_WRITE_ABI").is_some_and(|value| value == "1") {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &fresh).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == fresh,
        "tests/data/abi.json is not what src/capi/ gives. Run `P2PKV_WRITE_ABI=1 cargo test --test capi abi` and \
         commit the result"
    );
}
