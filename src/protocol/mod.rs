//! The protocol as a pure state machine: no socket, no thread, no clock. Every input carries `now`; outputs are
//! values that the caller drains.

pub mod codec;
pub mod config;
pub mod error;
pub mod fingerprint;
pub mod ids;
pub mod job;
pub mod keys;
pub mod message;
pub mod params;
pub mod timer;
