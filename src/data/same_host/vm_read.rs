//! A writer's region, read by `process_vm_readv`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::Piece;

/// The kernel's own limit (`UIO_MAXIOV`).
const MAX_VECTORS: usize = 1024;

pub(super) struct VmReader {
    /// By whose number the memory is read. That of a thread: a process whose main thread has ended has none under its own.
    thread: Pid,
    /// Tells of the process's end: its number may then be another's.
    process: OwnedFd,
    base_addr: usize,
    bytes: usize,
    /// Kept between calls for their memory alone.
    ours: Vec<libc::iovec>,
    theirs: Vec<libc::iovec>,
}

// SAFETY: the vectors are filled anew for each call and never followed between calls.
unsafe impl Send for VmReader {}

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
        let thread = thread.unwrap_or(pid);
        let process =
            pidfd_open(pid, PidfdFlags::empty()).map_err(|error| format!("process {pid}: {error}"))?;
        let address = |value: u64| usize::try_from(value).map_err(|_| "its region is larger than memory");
        let (base_addr, bytes) = (address(base_addr)?, address(bytes)?);
        base_addr.checked_add(bytes).ok_or("its region ends outside of memory")?;
        let mut reader = VmReader { thread, process, base_addr, bytes, ours: Vec::new(), theirs: Vec::new() };
        reader.try_it().map_err(|error| format!("process {pid}: {error}"))?;
        Ok(reader)
    }

    /// Reads one byte at either end of the region.
    fn try_it(&mut self) -> io::Result<()> {
        let mut byte = 0_u8;
        for from in [0, self.bytes.saturating_sub(1)] {
            self.pull(std::iter::once(Piece { to: &raw mut byte, from, len: 1 }))?;
        }
        Ok(())
    }

    pub fn is_alive(&self) -> bool {
        let mut watched = [PollFd::new(&self.process, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }

    pub fn pull(&mut self, pieces: impl Iterator<Item = Piece>) -> io::Result<usize> {
        self.ours.clear();
        self.theirs.clear();
        for piece in pieces.take(MAX_VECTORS) {
            if piece.from.checked_add(piece.len).is_none_or(|end| end > self.bytes) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "a block outside of the peer's region",
                ));
            }
            push(&mut self.ours, piece.to, piece.len);
            push(
                &mut self.theirs,
                std::ptr::with_exposed_provenance_mut(self.base_addr + piece.from),
                piece.len,
            );
        }
        let (ours, theirs) = (count(&self.ours), count(&self.theirs));
        // SAFETY: the local vectors name bytes of our region (or one of `try_it`) that the fence has given us to write; the
        // remote ones are addresses of another process, which the kernel checks.
        let moved = unsafe {
            libc::process_vm_readv(
                self.thread.as_raw_nonzero().get(),
                self.ours.as_ptr(),
                ours,
                self.theirs.as_ptr(),
                theirs,
                0,
            )
        };
        match usize::try_from(moved) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "nothing could be read")),
            Ok(moved) => Ok(moved),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

/// Adds a piece; one that begins where the last ends makes that longer.
fn push(list: &mut Vec<libc::iovec>, start: *mut u8, len: usize) {
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
