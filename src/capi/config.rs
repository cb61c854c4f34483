//! The tier's configuration: fields, environment variables, defaults.

use std::ffi::{OsString, c_void};
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::enums::{p2p_progress, p2p_same_host, p2p_transport};
use super::guard::{self, Failure};
use super::pointers::Caller;
use super::region::file_behind;
use super::sized::SizeFirst;
use super::status::p2p_status;
use super::strings::p2p_str;
use crate::data::Region;
use crate::data::same_host::RegionFile;
use crate::protocol::config::{Limits, Timeouts};
use crate::protocol::fingerprint;
use crate::tier::TierConfig;

/// What `p2p_tier_new` makes a tier from.
///
/// Prepare it with `p2p_tier_config_init`, then set `base_addr`, `num_blocks`, `block_len` and what should differ
/// from its default. 0, NULL and empty text mean the default. Where the default comes from an environment
/// variable, that is read by `p2p_tier_new`, and a malformed one is an error that names it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct p2p_tier_config {
    /// sizeof(p2p_tier_config), set by `p2p_tier_config_init`.
    pub struct_size: usize,
    /// Name or address to bind. Default: P2PKV_HOST, else 127.0.0.1.
    pub host: p2p_str,
    /// Name or address that peers dial. Default: `host`. Needed when `host` is a wildcard such as 0.0.0.0.
    pub advertised_host: p2p_str,
    /// First byte of the region: `num_blocks * block_len` bytes that stay mapped and writable until
    /// `p2p_tier_free` has returned. Required.
    pub base_addr: *mut c_void,
    /// How many blocks, 1 to UINT32_MAX - 1. Required.
    pub num_blocks: u64,
    /// Bytes of each block; peers must have the same. Required.
    pub block_len: u64,
    /// The model and cache configuration as JSON. It is hashed, and tiers with different hashes refuse one another.
    /// Default: compatible with everyone.
    pub model_config_json: p2p_str,
    /// The hash itself, 16 lower-case hex digits, instead of `model_config_json`. Both: error.
    pub config_fingerprint: p2p_str,
    /// How block hashes begin; peers must have the same. Default: "vllm-none-hash".
    pub hash_seed: p2p_str,
    /// TCP congestion control by its name in the system. Default: "reno" on loopback, the system's elsewhere.
    pub tcp_congestion: p2p_str,
    /// Control port. Default: P2PKV_PORT, else any free one, see `p2p_tier_local_id`.
    pub port: u32,
    /// Port of the TCP data plane. Default: any free one.
    pub data_port: u32,
    /// TCP connections to each peer. Default: 1; more can help on links with much delay, and where there are CPUs to spare:
    /// from 2 on the data plane has two threads, so both sides should be set alike.
    pub tcp_streams: u32,
    /// A `p2p_transport`. Default: P2P_TRANSPORT_AUTO.
    pub transport: u32,
    /// A `p2p_progress`. Default: P2P_PROGRESS_THREAD.
    pub progress: u32,
    /// Most sessions at a time, up to 4096; each takes about seven file descriptors. Default: P2PKV_MAX_PEERS, else 128.
    pub max_peers: u32,
    /// Most keys in one message or call. Default: 1048576.
    pub max_keys_per_message: u32,
    /// Longest key in bytes. Default: 256.
    pub max_key_len: u32,
    /// Longest `kv_request_id` in bytes. Default: 1024.
    pub max_id_len: u32,
    /// Most requests that one peer may have open here. Default: 65536.
    pub max_outstanding_per_peer: u32,
    /// Longest message in bytes. Default: 64 MiB.
    pub max_message_bytes: u64,
    /// A session not ready after this dies. Default: 30000. Like all times here in milliseconds, at most 365 days.
    pub handshake_timeout_ms: u64,
    /// Lookups without an answer for so long end their session. Default: 30000.
    pub lookup_timeout_ms: u64,
    /// A load older than this is aborted. Default: 30000.
    pub load_timeout_ms: u64,
    /// An aborted load waits so long for the producer's word that it no longer writes. Default: 10000.
    pub abort_ack_timeout_ms: u64,
    /// A store whose consumer is known fails after this. Default: 30000.
    pub store_timeout_ms: u64,
    /// A store that nobody has asked for fails after this. Default: 60000.
    pub unbound_store_timeout_ms: u64,
    /// Keys that the serve op `lookup` calls PENDING become MISS after this. Default: 5000.
    pub serve_timeout_ms: u64,
    /// Sessions without work for so long may be closed when `max_peers` is near. Default: P2PKV_IDLE_TIMEOUT_S
    /// seconds, else 300000.
    pub idle_timeout_ms: u64,
    /// NIXL plug-ins to use, comma-separated. Default: P2PKV_NIXL_BACKENDS, else "UCX".
    pub nixl_backends: p2p_str,
    /// Threads of NIXL's own that share a large transfer, at most 64. Default: none.
    pub nixl_threads: u32,
    /// A `p2p_same_host`. Default: P2PKV_SAME_HOST (`auto` or `off`), else P2P_SAME_HOST_AUTO.
    pub same_host: u32,
    /// Where the region begins in the file of `region_fd`.
    pub region_offset: u64,
    /// Descriptor of the memfd that the region is a MAP_SHARED mapping of, for peers on this host to map; borrowed for
    /// the call, and sealed against shrinking. Default, and for 0: none but that of `p2p_region_alloc`.
    pub region_fd: i32,
    /// Microseconds for which the progress thread looks for news before it sleeps, at most 1000: less latency for CPU time,
    /// where cores are to spare. Default: 0.
    pub spin_us: u32,
}

// SAFETY: `repr(C)` of integers, pointers and text, size first; zeros are valid in all of them.
unsafe impl SizeFirst for p2p_tier_config {
    const C_NAME: &'static str = "p2p_tier_config";
    const ADVICE: &'static str = "prepare it with p2p_tier_config_init";
}

/// Prepares a configuration: all defaults.
///
/// Parameters:
/// - `config_out`: written; owned by caller. Set to zeros and its `struct_size` to `config_size`.
/// - `config_size`: sizeof(p2p_tier_config).
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: NULL, or a size that no version of the struct has.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_tier_config_init(
    config_out: *mut p2p_tier_config,
    config_size: usize,
) -> p2p_status {
    // SAFETY: the pointers are those of this call, as its documentation says.
    let caller = unsafe { Caller::trust() };
    guard::run("p2p_tier_config_init", || {
        caller.init_size_first(config_out, "config_out", config_size, "config_size")?;
        Ok(p2p_status::OK)
    })
}

/// Where environment variables come from; tests have their own.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

pub(super) const MAX_TIMEOUT_MS: u64 = 365 * 24 * 3600 * 1000;

/// Checks every field and replaces defaults.
pub(super) fn to_tier_config(
    caller: &Caller,
    config: &p2p_tier_config,
    environment: Environment<'_>,
) -> Result<TierConfig, Failure> {
    let text = |text: &p2p_str, field: &str| -> Result<Option<String>, Failure> {
        Ok(caller.text(text, &format!("config.{field}"))?.map(str::to_owned))
    };
    let host = match text(&config.host, "host")? {
        Some(host) => host,
        None => env_text(environment, "P2PKV_HOST")?.unwrap_or_else(|| "127.0.0.1".to_owned()),
    };
    let port = match config.port {
        0 => env_number(environment, "P2PKV_PORT", 0..=u64::from(u16::MAX))?.unwrap_or(0),
        port => u64::from(port),
    };
    let region = region(config)?;
    let max_peers = match config.max_peers {
        0 => env_number(environment, "P2PKV_MAX_PEERS", 1..=u64::from(u32::MAX))?.unwrap_or(128),
        max_peers => u64::from(max_peers),
    };
    Ok(TierConfig {
        host,
        advertised_host: text(&config.advertised_host, "advertised_host")?,
        port: port_number(port, "port")?,
        data_port: port_number(u64::from(config.data_port), "data_port")?,
        tcp_streams: if config.tcp_streams == 0 { 1 } else { config.tcp_streams as usize },
        tcp_congestion: text(&config.tcp_congestion, "tcp_congestion")?,
        nixl_backends: nixl_backends(text(&config.nixl_backends, "nixl_backends")?, environment)?,
        nixl_threads: nixl_threads(config)?,
        region_file: region_file(config, &region)?,
        same_host: same_host(config, environment)?,
        region,
        config_fingerprint: config_fingerprint(caller, config)?,
        hash_seed: text(&config.hash_seed, "hash_seed")?.unwrap_or_else(|| "vllm-none-hash".to_owned()),
        transport: p2p_transport::try_from(config.transport)?.into(),
        progress: p2p_progress::try_from(config.progress)?.into(),
        spin: spin(config)?,
        max_peers: to_usize(max_peers, "max_peers")?,
        limits: limits(config)?,
        timeouts: timeouts(config, environment)?,
    })
}

fn region(config: &p2p_tier_config) -> Result<Region, Failure> {
    let (num_blocks, block_len) = (config.num_blocks, config.block_len);
    if config.base_addr.is_null() {
        return Err(Failure::invalid("config.base_addr is NULL, expected the region's first byte"));
    }
    let most = u64::from(u32::MAX - 1);
    let blocks =
        u32::try_from(num_blocks).ok().filter(|_| (1..=most).contains(&num_blocks)).ok_or_else(|| {
            Failure::invalid(format!("config.num_blocks is {num_blocks}, expected 1 to {most}"))
        })?;
    if block_len == 0 {
        return Err(Failure::invalid("config.block_len is 0, expected the bytes of a block"));
    }
    let base = config.base_addr.cast::<u8>();
    // SAFETY: that the region outlives the tier is the engine's promise, in bold in the header; the tier's transports
    // are dropped before `p2p_tier_free` returns.
    let region =
        to_usize(block_len, "block_len").ok().and_then(|len| unsafe { Region::new(base, blocks, len) });
    region.ok_or_else(|| {
        Failure::invalid(format!(
            "config.num_blocks {num_blocks} times config.block_len {block_len} at {base:?} is more than memory"
        ))
    })
}

fn region_file(config: &p2p_tier_config, region: &Region) -> Result<Option<RegionFile>, Failure> {
    let bytes = u64::from(region.num_blocks()) * region.block_len() as u64;
    if config.region_fd <= 0 {
        return Ok(file_behind(region.base_addr(), bytes));
    }
    // SAFETY: that the descriptor is open during this call is the engine's promise; one that is not is only refused.
    let file = unsafe { BorrowedFd::borrow_raw(config.region_fd) };
    RegionFile::of(file, config.region_offset, region.base_addr(), bytes)
        .map(Some)
        .map_err(|why| Failure::invalid(format!("config.region_fd: {why}")))
}

fn same_host(config: &p2p_tier_config, environment: Environment<'_>) -> Result<bool, Failure> {
    if p2p_same_host::try_from(config.same_host)? == p2p_same_host::OFF {
        return Ok(false);
    }
    match env_text(environment, "P2PKV_SAME_HOST")?.as_deref() {
        None | Some("auto") => Ok(true),
        Some("off") => Ok(false),
        Some(other) => Err(Failure::invalid(format!(
            "the environment variable P2PKV_SAME_HOST is {other:?}, expected auto or off"
        ))),
    }
}

fn config_fingerprint(caller: &Caller, config: &p2p_tier_config) -> Result<String, Failure> {
    let json = caller.text(&config.model_config_json, "config.model_config_json")?;
    let ready_made = caller.text(&config.config_fingerprint, "config.config_fingerprint")?;
    match (json, ready_made) {
        (None, None) => Ok(String::new()),
        (Some(json), None) => fingerprint::of_json(json)
            .map_err(|error| Failure::new(error.kind.into(), format!("config.model_config_json: {error}"))),
        (None, Some(digits)) => {
            let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            if digits.len() != 16 || !digits.bytes().all(is_digit) {
                return Err(Failure::invalid(format!(
                    "config.config_fingerprint is {digits:?}, expected 16 lower-case hex digits"
                )));
            }
            Ok(digits.to_owned())
        }
        (Some(_), Some(digits)) => Err(Failure::invalid(format!(
            "config.config_fingerprint is {digits:?} and config.model_config_json is set too, expected one of them"
        ))),
    }
}

fn nixl_backends(list: Option<String>, environment: Environment<'_>) -> Result<Vec<String>, Failure> {
    let list = match list {
        Some(list) => list,
        None => env_text(environment, "P2PKV_NIXL_BACKENDS")?.unwrap_or_else(|| "UCX".to_owned()),
    };
    let names: Vec<String> = list.split(',').map(|name| name.trim().to_owned()).collect();
    let is_name = |name: &String| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    if names.iter().all(is_name) {
        return Ok(names);
    }
    Err(Failure::invalid(format!(
        "the NIXL back-ends {list:?} are not names of plug-ins separated by commas"
    )))
}

fn nixl_threads(config: &p2p_tier_config) -> Result<usize, Failure> {
    const MOST: u32 = 64;
    match config.nixl_threads {
        threads @ 0..=MOST => Ok(threads as usize),
        threads => Err(Failure::invalid(format!("config.nixl_threads is {threads}, expected 0 to {MOST}"))),
    }
}

fn spin(config: &p2p_tier_config) -> Result<Duration, Failure> {
    const MOST: u32 = 1000;
    match config.spin_us {
        micros @ 0..=MOST => Ok(Duration::from_micros(micros.into())),
        micros => Err(Failure::invalid(format!("config.spin_us is {micros}, expected 0 to {MOST}"))),
    }
}

fn limits(config: &p2p_tier_config) -> Result<Limits, Failure> {
    let default = Limits::default();
    let or = |value: u32, default: usize| if value == 0 { default } else { value as usize };
    Ok(Limits {
        message_bytes: match config.max_message_bytes {
            0 => default.message_bytes,
            bytes => to_usize(bytes, "max_message_bytes")?,
        },
        nesting: default.nesting,
        keys_per_message: or(config.max_keys_per_message, default.keys_per_message),
        key_len: or(config.max_key_len, default.key_len),
        id_len: or(config.max_id_len, default.id_len),
        outstanding_per_peer: or(config.max_outstanding_per_peer, default.outstanding_per_peer),
    })
}

fn timeouts(config: &p2p_tier_config, environment: Environment<'_>) -> Result<Timeouts, Failure> {
    let default = Timeouts::default();
    let or = |ms: u64, default: Duration, field: &str| -> Result<Duration, Failure> {
        Ok(timeout(ms, &format!("config.{field}"))?.unwrap_or(default))
    };
    let idle = match env_number(environment, "P2PKV_IDLE_TIMEOUT_S", 1..=MAX_TIMEOUT_MS / 1000)? {
        Some(seconds) => Duration::from_secs(seconds),
        None => default.idle,
    };
    Ok(Timeouts {
        handshake: or(config.handshake_timeout_ms, default.handshake, "handshake_timeout_ms")?,
        lookup: or(config.lookup_timeout_ms, default.lookup, "lookup_timeout_ms")?,
        load: or(config.load_timeout_ms, default.load, "load_timeout_ms")?,
        abort_ack: or(config.abort_ack_timeout_ms, default.abort_ack, "abort_ack_timeout_ms")?,
        store: or(config.store_timeout_ms, default.store, "store_timeout_ms")?,
        unbound_store: or(
            config.unbound_store_timeout_ms,
            default.unbound_store,
            "unbound_store_timeout_ms",
        )?,
        serve: or(config.serve_timeout_ms, default.serve, "serve_timeout_ms")?,
        idle: or(config.idle_timeout_ms, idle, "idle_timeout_ms")?,
        ..default
    })
}

/// `None` if 0, which means the default.
pub(super) fn timeout(ms: u64, field: &str) -> Result<Option<Duration>, Failure> {
    match ms {
        0 => Ok(None),
        1..=MAX_TIMEOUT_MS => Ok(Some(Duration::from_millis(ms))),
        _ => Err(Failure::invalid(format!("{field} is {ms}, expected at most {MAX_TIMEOUT_MS} (365 days)"))),
    }
}

fn port_number(port: u64, field: &str) -> Result<u16, Failure> {
    u16::try_from(port)
        .map_err(|_| Failure::invalid(format!("config.{field} is {port}, expected 0 to 65535")))
}

fn to_usize(value: u64, field: &str) -> Result<usize, Failure> {
    usize::try_from(value)
        .map_err(|_| Failure::invalid(format!("config.{field} is {value}, more than memory")))
}

/// `None` if unset or empty.
pub(super) fn env_text(environment: Environment<'_>, variable: &str) -> Result<Option<String>, Failure> {
    let Some(value) = environment(variable) else { return Ok(None) };
    let text = value.into_string().map_err(|value| {
        Failure::invalid(format!("the environment variable {variable} is {value:?}, expected UTF-8"))
    })?;
    Ok((!text.is_empty()).then_some(text))
}

fn env_number(
    environment: Environment<'_>,
    variable: &str,
    range: RangeInclusive<u64>,
) -> Result<Option<u64>, Failure> {
    let Some(text) = env_text(environment, variable)? else { return Ok(None) };
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.map(Some).ok_or_else(|| {
        Failure::invalid(format!(
            "the environment variable {variable} is {text:?}, expected a number from {} to {}",
            range.start(),
            range.end()
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;

    fn usable() -> p2p_tier_config {
        // SAFETY: zeros are a valid configuration, see `SizeFirst`.
        let mut config: p2p_tier_config = unsafe { MaybeUninit::zeroed().assume_init() };
        config.base_addr = std::ptr::without_provenance_mut(4096);
        config.num_blocks = 4;
        config.block_len = 64;
        config
    }

    fn text(text: &'static str) -> p2p_str {
        p2p_str { data: text.as_ptr().cast(), len: text.len() }
    }

    fn convert_in(
        environment: &[(&str, &str)],
        change: impl Fn(&mut p2p_tier_config),
    ) -> Result<TierConfig, String> {
        let mut config = usable();
        change(&mut config);
        // SAFETY: all text is static; the region is never touched.
        let caller = unsafe { Caller::trust() };
        let look_up = |name: &str| {
            environment.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
        };
        to_tier_config(&caller, &config, &look_up).map_err(|failure| {
            assert_eq!(failure.status, p2p_status::INVALID_ARGUMENT);
            failure.message
        })
    }

    fn convert(change: impl Fn(&mut p2p_tier_config)) -> Result<TierConfig, String> {
        convert_in(&[], change)
    }

    #[test]
    fn zeros_mean_the_defaults_of_the_design() {
        let config = convert(|_| ()).unwrap();
        assert_eq!((config.host.as_str(), config.port, config.data_port), ("127.0.0.1", 0, 0));
        assert_eq!((config.tcp_streams, config.max_peers), (1, 128));
        assert_eq!((config.nixl_backends, config.nixl_threads), (vec!["UCX".to_owned()], 0));
        assert_eq!((config.config_fingerprint.as_str(), config.hash_seed.as_str()), ("", "vllm-none-hash"));
        assert_eq!((config.limits, config.timeouts), (Limits::default(), Timeouts::default()));
    }

    #[test]
    fn the_environment_stands_behind_the_fields() {
        let environment = [
            ("P2PKV_HOST", "::1"),
            ("P2PKV_PORT", "7001"),
            ("P2PKV_MAX_PEERS", "9"),
            ("P2PKV_IDLE_TIMEOUT_S", "5"),
        ];
        let config = convert_in(&environment, |_| ()).unwrap();
        assert_eq!((config.host.as_str(), config.port, config.max_peers), ("::1", 7001, 9));
        assert_eq!(config.timeouts.idle, Duration::from_secs(5));
        let set = |config: &mut p2p_tier_config| {
            config.host = text("localhost");
            config.port = 1;
            config.max_peers = 2;
            config.idle_timeout_ms = 3;
        };
        let config = convert_in(&environment, set).unwrap();
        assert_eq!((config.host.as_str(), config.port, config.max_peers), ("localhost", 1, 2));
        assert_eq!(config.timeouts.idle, Duration::from_millis(3));
    }

    #[test]
    fn a_malformed_variable_is_named_with_its_value() {
        for (variable, value) in [
            ("P2PKV_PORT", "65536"),
            ("P2PKV_PORT", "http"),
            ("P2PKV_MAX_PEERS", "0"),
            ("P2PKV_IDLE_TIMEOUT_S", "-1"),
            ("P2PKV_SAME_HOST", "yes"),
        ] {
            let message = convert_in(&[(variable, value)], |_| ()).unwrap_err();
            assert!(message.contains(variable) && message.contains(value), "{message}");
        }
        assert!(convert_in(&[("P2PKV_PORT", "")], |_| ()).is_ok(), "empty is unset");
    }

    #[test]
    fn a_region_that_cannot_be_is_refused_by_field() {
        let refused = |change: fn(&mut p2p_tier_config)| convert(change).unwrap_err();
        assert!(refused(|config| config.base_addr = std::ptr::null_mut()).contains("base_addr is NULL"));
        assert!(refused(|config| config.num_blocks = 0).contains("num_blocks is 0"));
        assert!(
            refused(|config| config.num_blocks = u64::from(u32::MAX)).contains("num_blocks is 4294967295")
        );
        assert!(refused(|config| config.block_len = 0).contains("block_len is 0"));
        assert!(refused(|config| config.block_len = u64::MAX / 2).contains("more than memory"));
        assert!(
            refused(|config| config.base_addr = std::ptr::without_provenance_mut(usize::MAX - 8))
                .contains("more than memory")
        );
    }

    #[test]
    fn numbers_out_of_range_are_refused_by_field_and_value() {
        let refused = |change: fn(&mut p2p_tier_config)| convert(change).unwrap_err();
        assert!(refused(|config| config.port = 65536).contains("config.port is 65536"));
        assert!(refused(|config| config.data_port = 70000).contains("config.data_port is 70000"));
        assert!(refused(|config| config.transport = 3).contains("transport is 3, expected 0 (AUTO)"));
        assert!(refused(|config| config.progress = 9).contains("progress is 9, expected 0 (THREAD)"));
        assert!(refused(|config| config.same_host = 2).contains("same_host is 2, expected 0 (AUTO)"));
        assert!(refused(|config| config.region_fd = 1 << 20).contains("config.region_fd: region_fd 1048576"));
        assert!(refused(|config| config.nixl_threads = 65).contains("config.nixl_threads is 65"));
        assert!(refused(|config| config.nixl_backends = text("UCX,,")).contains("\"UCX,,\""));
        assert!(refused(|config| config.spin_us = 1001).contains("config.spin_us is 1001"));
        assert!(refused(|config| config.load_timeout_ms = u64::MAX).contains("config.load_timeout_ms is"));
    }

    #[test]
    fn memory_is_shared_with_peers_on_this_host_unless_that_is_off() {
        assert!(convert(|_| ()).unwrap().same_host);
        assert!(!convert(|config| config.same_host = 1).unwrap().same_host);
        assert!(!convert_in(&[("P2PKV_SAME_HOST", "off")], |_| ()).unwrap().same_host);
        assert!(convert_in(&[("P2PKV_SAME_HOST", "auto")], |_| ()).unwrap().same_host);
    }

    #[test]
    fn the_fingerprint_is_either_made_or_given() {
        let given = convert(|config| config.config_fingerprint = text("0123456789abcdef")).unwrap();
        assert_eq!(given.config_fingerprint, "0123456789abcdef");
        for wrong in ["0123456789ABCDEF", "0123", "0123456789abcdef0"] {
            let message = convert(|config| config.config_fingerprint = text(wrong)).unwrap_err();
            assert!(message.contains(wrong), "{message}");
        }
        let both = |config: &mut p2p_tier_config| {
            config.config_fingerprint = text("0123456789abcdef");
            config.model_config_json = text("{\"a\":1}");
        };
        assert!(convert(both).unwrap_err().contains("expected one of them"));
    }
}
