//! Manners toward the process that the library lives in: what is the process's and not a tier's.

mod calls;
mod descriptors;
mod fork_lock;
mod stderr;
mod threads;

pub use calls::{Uncancelled, returning};
pub use descriptors::{descriptor_limit, grow_descriptor_table};
pub use fork_lock::{ForkGuard, ForkLock};
pub use stderr::write_stderr;
pub use threads::{current_cpu, default_stack_size, spawn_without_signals};
