//! From a configuration to a running tier.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex};

use crate::control::zmq::{self, ZmqConfig, ZmqReceiver, ZmqSender};
use crate::control::{ControlReceiver, ControlSender};
use crate::host::spawn_without_signals;
use crate::protocol::config::CoreConfig;
use crate::protocol::error::{Error, ErrorKind, Result};
use crate::protocol::ids::{Instance, PeerId};
use crate::protocol::manager::Manager;

use super::clock::Clock;
use super::core::Core;
use super::lock::Lock;
use super::planes::Planes;
use super::poller::Poller;
use super::results::ResultQueue;
use super::{ProgressMode, Shared, Tier, TierConfig};

pub fn tier(config: TierConfig) -> Result<Tier> {
    let (local_id, sender, receiver) = open_control(&config)?;
    let Planes { transports, local } = Planes::start(&config)?;
    let core_config = CoreConfig {
        local_id: local_id.clone(),
        instance: Instance(random()?),
        base_addr: config.region.base_addr(),
        num_blocks: config.region.num_blocks(),
        block_len: config.region.block_len() as u64,
        config_fingerprint: config.config_fingerprint,
        hash_seed: config.hash_seed,
        transports: local,
        max_peers: config.max_peers,
        limits: config.limits.clone(),
        timeouts: config.timeouts,
        table_seed: u64::from_ne_bytes(random()?),
        token_secret: random()?,
    };

    let poller = Poller::new()?;
    let results = ResultQueue::new()?;
    let data_fds = transports.iter().map(|transport| transport.event_fd());
    for fd in [sender.event_fd(), receiver.event_fd()].into_iter().chain(data_fds) {
        poller.add(fd)?;
    }
    if config.progress == ProgressMode::Caller {
        poller.add(results.fd())?;
    }
    let core = Core::new(Manager::new(core_config), Box::new(sender), transports);
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

/// On a thread of its own: those that libzmq starts are born with its name and without signals.
fn open_control(config: &TierConfig) -> Result<(PeerId, ZmqSender, ZmqReceiver)> {
    let control = ZmqConfig {
        bind_host: config.host.clone(),
        port: config.port,
        advertised_host: config.advertised_host.clone(),
        max_message_bytes: config.limits.message_bytes,
        max_peers: config.max_peers,
        ..ZmqConfig::default()
    };
    let opening = spawn_without_signals("p2pkv-zmq", move || zmq::open(&control)).map_err(|error| {
        Error::new(ErrorKind::OutOfResources, format!("cannot start the control socket's threads: {error}"))
    })?;
    opening.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn spawn(shared: &Arc<Shared>) -> Result<std::thread::JoinHandle<()>> {
    let shared = Arc::clone(shared);
    spawn_without_signals("p2pkv-progress", move || shared.run()).map_err(|error| {
        Error::new(ErrorKind::OutOfResources, format!("cannot start the progress thread: {error}"))
    })
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(ErrorKind::Os, format!("cannot get random bytes from the system: {error}"))
    })?;
    Ok(bytes)
}
