//! Room for the descriptors of many peers.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

/// The soft limit of open files, and how many of them are open. `None` where there is no limit, or the system does not tell.
#[must_use]
pub fn descriptor_limit() -> Option<(u64, u64)> {
    let limit = getrlimit(Resource::Nofile).current?;
    let open = std::fs::read_dir("/proc/self/fd").ok()?.count();
    Some((limit, open as u64))
}

/// Lets the system's table of this process's descriptors grow to `count` now, as far as the limit allows. It grows by
/// doubling, and whoever opens the descriptor that is one too many waits for all CPUs: 5 to 20 ms. Costs eight bytes each.
pub fn grow_descriptor_table(count: u64) {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let last = i32::try_from(count.min(limit).saturating_sub(1)).unwrap_or(i32::MAX);
    let grown = eventfd(0, EventfdFlags::CLOEXEC).and_then(|any| fcntl_dupfd_cloexec(any, last));
    // Then it grows when it must.
    if let Err(error) = grown {
        log::debug!("room for {count} descriptors: {error}");
    }
}
