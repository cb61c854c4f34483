//! The protocol as a pure state machine: no socket, no thread, no clock. Every input carries `now`; outputs are
//! values that the caller drains.

pub mod block_set;
pub mod client;
pub mod codec;
pub mod config;
pub mod context;
pub mod directory;
pub mod error;
pub mod fingerprint;
pub mod ids;
pub mod job;
pub mod key_table;
pub mod keys;
pub mod manager;
pub mod message;
pub mod mutation;
pub mod output;
pub mod params;
pub mod server;
pub mod session;
pub mod steps;
pub mod timer;
pub mod wanted;
