//! A writer's region, read by `process_vm_readv`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use smallvec::SmallVec;

use super::Piece;

/// The kernel's own limit (`UIO_MAXIOV`).
const MAX_VECTORS: usize = 1024;

pub(super) struct VmReader {
    address: Address,
    /// Tells of the process's end: its number may then be another's.
    process: OwnedFd,
}

/// Where a region is: in which process, from which of its addresses on.
#[derive(Clone, Copy)]
pub(super) struct Address {
    /// By whose number the memory is read. That of a thread: a process whose main thread has ended has none under its own.
    thread: Pid,
    base: usize,
}

impl VmReader {
    /// The process at the other end of the socket, if it may be read from. `named`: as it calls itself and one of its
    /// threads, which means nothing where it lives in another PID namespace.
    pub fn new(
        socket: &impl AsFd,
        named: (u32, u32),
        (base_addr, bytes): (u64, u64),
    ) -> Result<VmReader, String> {
        let pid = socket_peercred(socket).map_err(|error| format!("whose it is: {error}"))?.pid;
        let is_its_own_name = pid.as_raw_nonzero().get().unsigned_abs() == named.0;
        let thread = i32::try_from(named.1).ok().and_then(Pid::from_raw).filter(|_| is_its_own_name);
        let process =
            pidfd_open(pid, PidfdFlags::empty()).map_err(|error| format!("process {pid}: {error}"))?;
        let number = |value: u64| usize::try_from(value).map_err(|_| "its region is larger than memory");
        let (base, bytes) = (number(base_addr)?, number(bytes)?);
        base.checked_add(bytes).ok_or("its region ends outside of memory")?;
        let address = Address { thread: thread.unwrap_or(pid), base };
        address.try_it(bytes).map_err(|error| format!("process {pid}: {error}"))?;
        Ok(VmReader { address, process })
    }

    pub fn address(&self) -> Address {
        self.address
    }

    pub fn is_alive(&self) -> bool {
        let mut watched = [PollFd::new(&self.process, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }
}

impl Address {
    /// Reads one byte at either end of the region.
    fn try_it(self, bytes: usize) -> io::Result<()> {
        let mut byte = 0_u8;
        for from in [0, bytes.saturating_sub(1)] {
            self.read(&[Piece { to: &raw mut byte, from, len: 1 }])?;
        }
        Ok(())
    }

    /// Reads all of it, or fails.
    pub fn read(self, pieces: &[Piece]) -> io::Result<()> {
        pieces.chunks(MAX_VECTORS).try_for_each(|chunk| self.read_at_once(chunk))
    }

    fn read_at_once(self, pieces: &[Piece]) -> io::Result<()> {
        let (mut ours, mut theirs) = (Vectors::new(), Vectors::new());
        for piece in pieces {
            push(&mut ours, piece.to, piece.len);
            push(&mut theirs, std::ptr::with_exposed_provenance_mut(self.base + piece.from), piece.len);
        }
        // SAFETY: the local vectors name bytes of our region (or one of `try_it`) that the fence has given us to write; the
        // remote ones are addresses of another process, which the kernel checks.
        let read = unsafe {
            libc::process_vm_readv(
                self.thread.as_raw_nonzero().get(),
                ours.as_ptr(),
                count(&ours),
                theirs.as_ptr(),
                count(&theirs),
                0,
            )
        };
        match usize::try_from(read) {
            Ok(bytes) if bytes == pieces.iter().map(|piece| piece.len).sum::<usize>() => Ok(()),
            // Part of its region is not there.
            Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

type Vectors = SmallVec<[libc::iovec; 64]>;

/// Adds a piece; one that begins where the last ends makes that longer.
fn push(list: &mut Vectors, start: *mut u8, len: usize) {
    if let Some(last) = list.last_mut()
        && last.iov_base.wrapping_byte_add(last.iov_len) == start.cast()
    {
        last.iov_len += len;
        return;
    }
    list.push(libc::iovec { iov_base: start.cast(), iov_len: len });
}

fn count(list: &[libc::iovec]) -> libc::c_ulong {
    libc::c_ulong::try_from(list.len()).unwrap_or(libc::c_ulong::MAX)
}
