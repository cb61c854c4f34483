//! `tier::poller`, modelled: sources have no fds here, so a wait ends by itself some turns later.

use std::os::fd::RawFd;
use std::time::Duration;

use crate::protocol::error::Result;
use crate::tier::sync::{AtomicBool, Mutex, Ordering, pass};

#[derive(Debug)]
pub struct Poller {
    turn: Mutex<()>,
    woken: AtomicBool,
}

impl Poller {
    pub fn new() -> Result<Self> {
        Ok(Poller { turn: Mutex::new(()), woken: AtomicBool::new(false) })
    }

    pub fn add(&self, _: RawFd) -> Result<()> {
        Ok(())
    }

    pub fn fd(&self) -> RawFd {
        -1
    }

    pub fn wake(&self) {
        self.woken.store(true, Ordering::SeqCst);
    }

    pub fn set_deadline(&self, _: Option<Duration>) {}

    pub fn has_news(&self) -> bool {
        self.woken.load(Ordering::SeqCst)
    }

    pub fn wait(&self, limit: Option<Duration>) -> bool {
        let Ok(_turn) = self.turn.try_lock() else { return false };
        pass(limit.unwrap_or_default(), || self.woken.swap(false, Ordering::SeqCst));
        true
    }
}
