//! Sleeping until something happens: one epoll set over all sources, a wake-up and a deadline.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use crate::protocol::error::{Error, ErrorKind, Result};

#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    wake: OwnedFd,
    timer: OwnedFd,
}

impl Poller {
    pub fn new() -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|error| os_error("cannot make an epoll set", error))?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| os_error("cannot make the wake-up eventfd", error))?;
        let timer =
            rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
                .map_err(|error| os_error("cannot make the deadline timer", error))?;
        let poller = Poller { epoll, wake, timer };
        poller.add(poller.wake.as_fd())?;
        poller.add(poller.timer.as_fd())?;
        Ok(poller)
    }

    /// Watches an fd that stays open as long as this poller.
    pub fn add(&self, fd: BorrowedFd<'_>) -> Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN)
            .map_err(|error| os_error("cannot watch an fd", error))
    }

    /// The set itself: readable when any source is, or the deadline has come.
    pub fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Ends a wait that is going on, or the next one.
    pub fn wake(&self) {
        // A full counter means that the wake-up is there already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
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

    /// Waits until a source is readable, at most `limit`.
    pub fn wait(&self, limit: Option<Duration>) {
        let limit = limit.map(timespec);
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 8];
        match epoll::wait(&self.epoll, &mut events, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => log::error!("cannot wait for events: {error}"),
        }
        self.clear();
    }

    /// Takes back wake-ups and an expired deadline.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
    }
}

fn timespec(span: Duration) -> Timespec {
    let seconds = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec: seconds, tv_nsec: span.subsec_nanos().into() }
}

/// An error of the operating system, with what was being done.
pub fn os_error(doing: &str, error: Errno) -> Error {
    let kind = match error {
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOSPC => ErrorKind::OutOfResources,
        Errno::PERM | Errno::ACCESS => ErrorKind::PermissionDenied,
        _ => ErrorKind::Os,
    };
    Error::new(kind, format!("{doing}: {error}"))
}
