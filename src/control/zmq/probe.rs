//! Whether the system still gives descriptors and threads, asked before libzmq asks.
//!
//! libzmq aborts the process when it is refused an epoll fd or a thread, and its Rust binding panics on a full system
//! file table. Another thread may still take the last descriptor in between; that window cannot be closed from here.

use std::os::unix::net::UnixDatagram;
use std::thread;

use crossbeam_channel::bounded;

use crate::host::default_stack_size;

/// Mailboxes and epoll sets of the context (5), ROUTER and listener (2), the sender's epoll set and waker (2); twice
/// the mailboxes where libzmq was built without eventfd.
pub const DESCRIPTORS_OF_A_TIER: usize = 16;

/// Mailboxes and epoll sets; the mailbox of the socket that starts it; twice the mailboxes, as above.
pub const DESCRIPTORS_OF_A_CONTEXT: usize = 10;

/// Mailboxes of DEALER and both monitor ends (3 or 6), and the TCP socket.
pub const DESCRIPTORS_OF_A_LINK: usize = 7;

/// The I/O thread and the reaper.
pub const THREADS_OF_A_CONTEXT: usize = 2;

/// Opens `count` descriptors and closes them again.
pub fn descriptors(count: usize) -> Result<(), String> {
    let opened: std::io::Result<Vec<UnixDatagram>> = (0..count).map(|_| UnixDatagram::unbound()).collect();
    opened.map(drop).map_err(|error| {
        format!(
            "{count} file descriptors are needed and the system refused ({error}); raise the limit of open files (ulimit -n)"
        )
    })
}

/// Starts `count` threads that run at the same time, with stacks as large as libzmq's will be, and ends them.
pub fn threads(count: usize) -> Result<(), String> {
    let (keep_running, until_dropped) = bounded::<()>(0);
    let stack = default_stack_size();
    let started: std::io::Result<Vec<_>> = (0..count)
        .map(|_| {
            let until_dropped = until_dropped.clone();
            thread::Builder::new().stack_size(stack).spawn(move || until_dropped.recv().unwrap_or(()))
        })
        .collect();
    drop(keep_running);
    let threads = started.map_err(|error| {
        format!("{count} threads are needed and the system refused ({error}); raise the limits of processes and of memory (ulimit -u, -v)")
    })?;
    for thread in threads {
        // They do nothing that could panic.
        let _ = thread.join();
    }
    Ok(())
}
