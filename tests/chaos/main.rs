//! Faults on purpose, with engines in processes of their own, on loopback and in network namespaces.
//!
//! Each case runs in two sizes: a short one among the other tests, and a long one under `make soak`, whose numbers are
//! the table of docs/reliability.md. A case that needs what the machine does not permit says so and ends.
#![allow(clippy::disallowed_methods, reason = "tests wait with bounds")]

#[path = "../processes/abi.rs"]
mod abi;
#[path = "../common/mod.rs"]
mod common;
#[path = "../processes/engine.rs"]
mod engine;
#[path = "../processes/peer.rs"]
mod peer;
mod run;

mod clocks;
mod deadlines;
mod faults;
mod frees;
mod limits;
mod links;
mod shapes;
mod strangers;
