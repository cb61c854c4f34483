//! The rules of the protocol core, one test each, with injected time.

mod backoff;
mod handshake;
mod limits;
mod loads;
mod lookups;
mod names;
mod producer;
mod script;
mod serving;
mod steps;
mod stores;
mod world;
