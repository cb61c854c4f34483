//! libp2pkv: LLM inference servers pull KV-cache blocks from one another instead of computing them again.
//!
//! Arrows point one way: `capi → tier → {control, data, protocol}`. `control` and `data` know nothing of sessions;
//! `protocol` is pure and knows nothing of anything.

pub mod control;
pub mod data;
pub mod protocol;
pub mod tier;
