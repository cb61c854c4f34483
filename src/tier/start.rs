//! From a configuration to a running tier.

use std::sync::Arc;
use std::time::Duration;

use crate::control::zmq::{self, ZmqConfig, ZmqReceiver, ZmqSender};
use crate::control::{ControlReceiver, ControlSender};
use crate::data::DataTransport;
use crate::host::{descriptor_limit, grow_descriptor_table, spawn_without_signals};
use crate::protocol::config::{CoreConfig, SLICE};
use crate::protocol::error::{Error, ErrorKind, Result};
use crate::protocol::ids::{Instance, PeerId};
use crate::protocol::manager::Manager;

use super::clock::Clock;
use super::core::Core;
use super::lock::Lock;
use super::planes::Planes;
use super::poller::Poller;
use super::results::ResultQueue;
use super::sync::{self, AtomicBool, AtomicU64, Condvar, JoinHandle, Mutex};
use super::{ProgressMode, Shared, Tier, TierConfig};

pub fn tier(config: TierConfig) -> Result<Tier> {
    let (local_id, sender, receiver) = open_control(&config)?;
    prepare_descriptors(&config);
    let Planes { transports, local } = Planes::start(&config)?;
    let core_config = CoreConfig {
        local_id,
        instance: Instance(random()?),
        base_addr: config.region.base_addr(),
        num_blocks: config.region.num_blocks(),
        block_len: config.region.block_len() as u64,
        config_fingerprint: config.config_fingerprint,
        hash_seed: config.hash_seed,
        transports: local,
        max_peers: config.max_peers,
        limits: config.limits,
        timeouts: config.timeouts,
        slice: SLICE,
        table_seed: u64::from_ne_bytes(random()?),
        token_secret: random()?,
    };

    assemble(Parts {
        core: core_config,
        mode: config.progress,
        spin: config.spin,
        sender: Box::new(sender),
        receiver: Box::new(receiver),
        transports,
    })
}

/// What a tier is put together from.
pub struct Parts {
    pub core: CoreConfig,
    pub mode: ProgressMode,
    pub spin: Duration,
    pub sender: Box<dyn ControlSender>,
    pub receiver: Box<dyn ControlReceiver>,
    pub transports: Vec<Box<dyn DataTransport>>,
}

pub fn assemble(parts: Parts) -> Result<Tier> {
    let Parts { core, mode, spin, sender, receiver, transports } = parts;
    let poller = Poller::new()?;
    let results = ResultQueue::new()?;
    let data_fds = transports.iter().map(|transport| transport.event_fd());
    for fd in [sender.event_fd(), receiver.event_fd()].into_iter().chain(data_fds) {
        poller.add(fd)?;
    }
    if mode == ProgressMode::Caller {
        poller.add(results.fd())?;
    }
    let (local_id, limits) = (core.local_id.clone(), core.limits.clone());
    let core = Core::new(Manager::new(core), sender, transports);
    let shared = Arc::new(Shared {
        local_id,
        limits,
        mode,
        spin,
        clock: Clock::start(),
        core: Lock::new(core),
        changed: Condvar::new(),
        receiver: Lock::new(Some(receiver)),
        results,
        poller,
        serving: Mutex::new(None),
        serve_turn: Lock::new(()),
        sleeps_until: AtomicU64::new(0),
        serves_again: AtomicBool::new(false),
        taken: AtomicU64::new(0),
        dropped: AtomicU64::new(0),
        closing: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        broken: AtomicBool::new(false),
    });
    let thread = match mode {
        ProgressMode::Thread => Some(spawn(&shared)?),
        ProgressMode::Caller => None,
    };
    Ok(Tier { shared, thread: Mutex::new(thread) })
}

/// Descriptors of a tier without peers, and a few to spare.
const DESCRIPTORS_OF_A_TIER: usize = 40;

/// Who has more peers than most has asked for them, and is warned; by default the shortage may never be met.
const USUAL_MAX_PEERS: usize = 128;

/// So that no engine call waits for the table of descriptors to grow, and nobody learns that there are too few of them only
/// when the peers are there: those that none is left for are refused.
fn prepare_descriptors(config: &TierConfig) {
    // As many data connections from each as to it.
    let of_a_peer = zmq::DESCRIPTORS_PER_PEER + 2 * config.tcp_streams;
    let needed = (DESCRIPTORS_OF_A_TIER + config.max_peers * of_a_peer) as u64;
    let Some((limit, open)) = descriptor_limit() else { return };
    if let Some(shortage) = shortage_of_descriptors(config.max_peers, needed, limit, open) {
        let level = if config.max_peers > USUAL_MAX_PEERS { log::Level::Warn } else { log::Level::Info };
        log::log!(level, "{shortage}");
    }
    grow_descriptor_table(open + needed);
}

fn shortage_of_descriptors(max_peers: usize, needed: u64, limit: u64, open: u64) -> Option<String> {
    (limit < open + needed).then(|| {
        format!(
            "max_peers is {max_peers}, which takes up to {needed} file descriptors, but {open} are open and the limit of open \
             files is {limit}; raise it (ulimit -n {}) or lower max_peers, else some peers are refused when many come",
            open + needed
        )
    })
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

fn spawn(shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    sync::spawn("p2pkv-progress", move || shared.run()).map_err(|error| {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_open_files_that_is_too_low_for_max_peers_is_told_with_the_one_that_is_not() {
        let told = shortage_of_descriptors(1000, 7040, 1024, 60).unwrap_or_default();
        for part in
            ["max_peers is 1000", "7040", "60 are open", "limit of open files is 1024", "ulimit -n 7100"]
        {
            assert!(told.contains(part), "{part:?} is missing in {told:?}");
        }
        assert_eq!(shortage_of_descriptors(1000, 7040, 7100, 60), None);
    }
}
