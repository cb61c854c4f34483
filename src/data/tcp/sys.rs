//! The few system calls that no crate of ours wraps: epoll and eventfd.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// What epoll is told about a descriptor, and says back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ConnectionId(pub u64);

/// What to be woken for. Errors and hang-ups are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interest {
    pub readable: bool,
    pub writable: bool,
}

impl Interest {
    pub const READ: Interest = Interest { readable: true, writable: false };
    pub const WRITE: Interest = Interest { readable: false, writable: true };

    fn bits(self) -> u32 {
        let readable = if self.readable { libc::EPOLLIN } else { 0 };
        let writable = if self.writable { libc::EPOLLOUT } else { 0 };
        u32::from_ne_bytes((readable | writable).to_ne_bytes())
    }
}

/// One report. An error or hang-up counts as both, so that the next call on the socket names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Readiness {
    pub id: ConnectionId,
    pub readable: bool,
    pub writable: bool,
}

impl Readiness {
    fn from_raw(event: libc::epoll_event) -> Readiness {
        let bits = i32::from_ne_bytes(event.events.to_ne_bytes());
        let broken = bits & (libc::EPOLLERR | libc::EPOLLHUP) != 0;
        Readiness {
            id: ConnectionId(event.u64),
            readable: broken || bits & libc::EPOLLIN != 0,
            writable: broken || bits & libc::EPOLLOUT != 0,
        }
    }
}

/// A level-triggered epoll set.
pub(super) struct Epoll {
    set: OwnedFd,
    reports: Vec<libc::epoll_event>,
}

/// Most reports taken at once: bounds the work between two looks at the command queue.
const REPORTS_PER_WAIT: usize = 64;

impl Epoll {
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: no pointer is passed; the result is checked and owned here only.
        let set = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Epoll { set, reports: vec![libc::epoll_event { events: 0, u64: 0 }; REPORTS_PER_WAIT] })
    }

    pub fn add(&self, fd: RawFd, id: ConnectionId, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, id, interest)
    }

    pub fn change(&self, fd: RawFd, id: ConnectionId, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, id, interest)
    }

    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        let unused = Interest { readable: false, writable: false };
        self.control(libc::EPOLL_CTL_DEL, fd, ConnectionId(0), unused)
    }

    fn control(&self, operation: i32, fd: RawFd, id: ConnectionId, interest: Interest) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest.bits(), u64: id.0 };
        // SAFETY: `event` lives across the call, which only reads it.
        check(unsafe { libc::epoll_ctl(self.set.as_raw_fd(), operation, fd, &raw mut event) }).map(drop)
    }

    /// Fills `ready` anew. A signal or the time-out leaves it empty. `None` waits without end.
    pub fn wait(&mut self, ready: &mut Vec<Readiness>, timeout: Option<Duration>) -> io::Result<()> {
        ready.clear();
        let millis =
            timeout.map_or(-1, |span| i32::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
        let room = i32::try_from(self.reports.len()).unwrap_or(i32::MAX);
        // SAFETY: `reports` has room for `room` entries and is not touched by others meanwhile.
        let result =
            unsafe { libc::epoll_wait(self.set.as_raw_fd(), self.reports.as_mut_ptr(), room, millis) };
        match check(result) {
            Ok(count) => {
                ready.extend(self.reports.iter().take(count).copied().map(Readiness::from_raw));
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A counter that a thread can sleep on: readable while signalled.
pub(in crate::data) struct EventFd(File);

impl EventFd {
    pub fn new() -> io::Result<EventFd> {
        // SAFETY: no pointer is passed; the result is checked and owned here only.
        let fd = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        Ok(EventFd(File::from(fd)))
    }

    /// Makes it readable. The one possible failure, a full counter, means that it is readable already.
    pub fn signal(&self) {
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }

    /// Makes it unreadable until the next signal. Fails only if it is so already.
    pub fn reset(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// From how many waiting bytes on a socket counts as readable (`SO_RCVLOWAT`). Its end or error counts always, and
/// so does a full buffer.
pub(super) fn set_receive_low_water(socket: &impl AsRawFd, bytes: usize) -> io::Result<()> {
    let value = i32::try_from(bytes).unwrap_or(i32::MAX);
    let fd = socket.as_raw_fd();
    // SAFETY: `value` lives across the call, which reads the four bytes that it is told of.
    let result =
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const value).cast(), 4) };
    check(result).map(drop)
}

fn check(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn owned(result: i32) -> io::Result<OwnedFd> {
    check(result)?;
    // SAFETY: a descriptor that the kernel has just made and that nothing else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}
