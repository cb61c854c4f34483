//! libp2pkv: LLM inference servers pull KV-cache blocks from one another instead of computing them again.
//!
//! Arrows point one way: `capi → tier → {control, data, protocol}`. `control` and `data` know nothing of sessions;
//! `protocol` is pure and knows nothing of anything. All
//! but `protocol` use `host`: manners toward the process around.

#![deny(
    unsafe_code,
    clippy::dbg_macro,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::string_slice,
    clippy::todo,
    clippy::undocumented_unsafe_blocks,
    clippy::unimplemented,
    clippy::unreachable,
    clippy::unwrap_used
)]
#![allow(rustdoc::private_intra_doc_links, reason = "the docs are read by people who have the source, too")]

#[allow(unsafe_code, reason = "the C ABI takes pointers")]
pub mod capi;
pub mod control;
#[allow(unsafe_code, reason = "bytes of the region are read and written by the kernel and by peers")]
pub mod data;
#[allow(unsafe_code, reason = "signal masks and locks that survive a fork are the C library's")]
pub mod host;
pub mod protocol;
pub mod tier;
