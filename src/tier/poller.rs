//! Sleeping until something happens: one set over all sources, a wake-up and a deadline.

use std::io::ErrorKind as IoErrorKind;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use crate::protocol::error::Result;

use super::os_error::{io_error, os_error};

/// Events are edge-triggered: after a wait, every source has to be read until it has nothing left.
#[derive(Debug)]
pub struct Poller {
    poll: Mutex<(Poll, Events)>,
    registry: Registry,
    fd: RawFd,
    waker: Waker,
    timer: OwnedFd,
}

impl Poller {
    pub fn new() -> Result<Self> {
        let failed = |doing: &str, error: std::io::Error| io_error(doing, &error);
        let poll = Poll::new().map_err(|error| failed("cannot make an epoll set", error))?;
        let registry =
            poll.registry().try_clone().map_err(|error| failed("cannot share an epoll set", error))?;
        let waker =
            Waker::new(&registry, Token(0)).map_err(|error| failed("cannot make the wake-up", error))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|error| os_error("cannot make the deadline timer", error))?;
        let fd = poll.as_raw_fd();
        let poller =
            Poller { poll: Mutex::new((poll, Events::with_capacity(16))), registry, fd, waker, timer };
        poller.add(poller.timer.as_raw_fd())?;
        Ok(poller)
    }

    /// Watches an fd that stays open as long as this poller.
    pub fn add(&self, fd: RawFd) -> Result<()> {
        self.registry
            .register(&mut SourceFd(&fd), Token(1), Interest::READABLE)
            .map_err(|error| io_error("cannot watch an fd", &error))
    }

    /// The set itself: readable when any source has news, or the deadline has come.
    pub fn fd(&self) -> RawFd {
        self.fd
    }

    /// Ends a wait that is going on, or the next one.
    pub fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            log::error!("cannot wake the progress thread: {error}");
        }
    }

    /// Lets the set become readable after `delay`; `None` = never by time.
    pub fn set_deadline(&self, delay: Option<Duration>) {
        // An all-zero time would disarm the timer.
        let delay = delay.map_or(Duration::ZERO, |delay| delay.max(Duration::from_nanos(1)));
        let time = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(delay) };
        if let Err(error) = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time) {
            log::error!("cannot set the deadline timer: {error}");
        }
    }

    /// Whether a wait would end at once.
    pub fn has_news(&self) -> bool {
        let mut watched = [PollFd::new(&self.registry, PollFlags::IN)];
        poll(&mut watched, Some(&timespec(Duration::ZERO))) != Ok(0)
    }

    /// Waits until a source has news, at most `limit`. If another thread waits already, returns at once with `false`.
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        let mut guard = match self.poll.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let (poll, events) = &mut *guard;
        match poll.poll(events, limit) {
            Ok(()) => {}
            Err(error) if error.kind() == IoErrorKind::Interrupted => {}
            Err(error) => log::error!("cannot wait for events: {error}"),
        }
        true
    }
}

fn timespec(span: Duration) -> Timespec {
    let seconds = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec: seconds, tv_nsec: span.subsec_nanos().into() }
}
