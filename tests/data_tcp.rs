//! The tcp data plane over loopback, through its public interface and against hand-written peers.

#![allow(clippy::disallowed_methods)] // tests wait on conditions, with real time as the bound

#[path = "tcp/harness.rs"]
mod harness;

#[path = "tcp/fence.rs"]
mod fence;
#[path = "tcp/lifecycle.rs"]
mod lifecycle;
#[path = "tcp/moving.rs"]
mod moving;
#[path = "tcp/same_host.rs"]
mod same_host;
#[path = "tcp/strangers.rs"]
mod strangers;
