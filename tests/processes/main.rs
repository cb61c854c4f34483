//! Engines in processes of their own, over loopback, through the C ABI: the same way as users have it.
//!
//! The test program starts itself again for each engine (`engine::engine_process`) and drives it over its standard
//! input and output, one line for each call (`peer::Engine`). An engine dies with its parent.
#![allow(clippy::disallowed_methods, reason = "tests wait with bounds")]

#[path = "../common/mod.rs"]
mod common;

mod abi;
mod engine;
mod peer;

mod deaths;
mod fence;
mod freezes;
mod handshake;
mod leaving;
mod names;
mod pulls;
mod rest;
mod same_host;
mod strangers;
