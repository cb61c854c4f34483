//! From a configuration to a running tier.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex};

use crate::control::zmq::{self, ZmqConfig};
use crate::control::{ControlReceiver, ControlSender};
use crate::data::DataTransport;
use crate::data::tcp::{TcpConfig, TcpTransport, spawn_without_signals};
use crate::protocol::config::{CoreConfig, LocalTcp, LocalTransports, TransportKind};
use crate::protocol::error::{Error, ErrorKind, Result};
use crate::protocol::ids::Instance;
use crate::protocol::manager::Manager;

use super::clock::Clock;
use super::core::Core;
use super::lock::Lock;
use super::poller::Poller;
use super::results::ResultQueue;
use super::{ProgressMode, Shared, Tier, TierConfig, TransportChoice};

pub fn tier(config: TierConfig) -> Result<Tier> {
    if config.transport == TransportChoice::Nixl {
        let text = "this build has no NIXL data plane; set transport to AUTO or TCP";
        return Err(Error::new(ErrorKind::TransportUnavailable, text));
    }
    let (local_id, sender, receiver) = zmq::open(&ZmqConfig {
        bind_host: config.host.clone(),
        port: config.port,
        advertised_host: config.advertised_host.clone(),
        max_message_bytes: config.limits.message_bytes,
        max_peers: config.max_peers,
        ..ZmqConfig::default()
    })?;
    let tcp = TcpTransport::new(
        config.region,
        &TcpConfig {
            bind_ip: bind_ip(&config.host)?,
            port: config.data_port,
            streams: config.tcp_streams,
            congestion: config.tcp_congestion.clone(),
            ..TcpConfig::default()
        },
    )?;
    let transports = LocalTransports {
        preference: vec![TransportKind::Tcp],
        tcp: Some(LocalTcp { addresses: Vec::new(), port: tcp.local_port(), host_identity: host_identity() }),
        nixl_metadata: None,
    };
    log::info!("tier {local_id}: data planes offered: tcp port {}", tcp.local_port());
    let core_config = CoreConfig {
        local_id: local_id.clone(),
        instance: Instance(random()?),
        base_addr: config.region.base_addr(),
        num_blocks: config.region.num_blocks(),
        block_len: config.region.block_len() as u64,
        config_fingerprint: config.config_fingerprint,
        hash_seed: config.hash_seed,
        transports,
        max_peers: config.max_peers,
        limits: config.limits.clone(),
        timeouts: config.timeouts,
        table_seed: u64::from_ne_bytes(random()?),
        token_secret: random()?,
    };

    let poller = Poller::new()?;
    let results = ResultQueue::new()?;
    let tcp: Box<dyn DataTransport> = Box::new(tcp);
    for fd in [sender.event_fd(), receiver.event_fd(), tcp.event_fd()] {
        poller.add(fd)?;
    }
    if config.progress == ProgressMode::Caller {
        poller.add(results.fd())?;
    }
    let core = Core::new(Manager::new(core_config), Box::new(sender), vec![tcp]);
    let shared = Arc::new(Shared {
        local_id,
        limits: config.limits,
        mode: config.progress,
        clock: Clock::start(),
        core: Lock::new(core),
        changed: Condvar::new(),
        receiver: Lock::new(Some(Box::new(receiver))),
        results,
        poller,
        serving: Mutex::new(None),
        serve_turn: Lock::new(()),
        sleeps_until: AtomicU64::new(0),
        serves_again: AtomicBool::new(false),
        dropped: AtomicU64::new(0),
        closing: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        broken: AtomicBool::new(false),
    });
    let thread = match config.progress {
        ProgressMode::Thread => Some(spawn(&shared)?),
        ProgressMode::Caller => None,
    };
    Ok(Tier { shared, thread: Mutex::new(thread) })
}

fn spawn(shared: &Arc<Shared>) -> Result<std::thread::JoinHandle<()>> {
    let shared = Arc::clone(shared);
    spawn_without_signals("p2pkv-progress", move || shared.run()).map_err(|error| {
        Error::new(ErrorKind::OutOfResources, format!("cannot start the progress thread: {error}"))
    })
}

/// Where the data plane listens: at the control socket's host.
fn bind_ip(host: &str) -> Result<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match bare {
        "*" => return Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        "::" => return Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        _ => {}
    }
    if let Ok(ip) = bare.parse() {
        return Ok(ip);
    }
    let addresses: Vec<SocketAddr> = (bare, 0)
        .to_socket_addrs()
        .map_err(|error| {
            Error::new(ErrorKind::AddressInvalid, format!("host {host:?} cannot be resolved: {error}"))
        })?
        .collect();
    // As the control socket does: IPv4 where the name has it.
    let best = addresses.iter().find(|address| address.is_ipv4()).or_else(|| addresses.first());
    best.map(SocketAddr::ip)
        .ok_or_else(|| Error::new(ErrorKind::AddressInvalid, format!("host {host:?} has no address")))
}

/// Equal for all processes that run on this kernel since it booted.
fn host_identity() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(ErrorKind::Os, format!("cannot get random bytes from the system: {error}"))
    })?;
    Ok(bytes)
}
