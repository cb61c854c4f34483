//! The C ABI. `include/p2pkv.h` is generated from this folder, see `build.rs`.
//!
//! Types, enum variants and parameters carry the names they have in C, so that one search finds both sides.
//! Each function is a thin body of the same shape: say once that the caller is trusted (`pointers::Caller`), then
//! inside the panic guard (`guard`) check and convert what came, call the tier, convert what it says.
//!
//! How the pieces own each other:
//!
//! ```text
//! p2p_tier (Box) ───► Shared (Arc): tier, pid, poisoned ◄─── p2p_request (Box), many
//! ```
//!
//! A request keeps `Shared` alive, so it stays safe to call and to finish after `p2p_tier_free`.

#![allow(non_camel_case_types, reason = "types have the names of the header")]
#![allow(clippy::upper_case_acronyms, reason = "so do enum variants")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the safety contract is the \"Parameters\" part, for C readers"
)]

mod config;
mod directory;
mod enums;
mod last_error;
mod log;
mod observe;
mod region;
mod request;
mod serve;
mod status;
mod strings;
mod tier;
mod transfer;
mod version;

mod guard;
mod handle;
mod pointers;
mod sized;

pub use config::*;
pub use directory::*;
pub use enums::*;
pub use handle::{p2p_request, p2p_tier};
pub use last_error::p2p_last_error;
pub use log::*;
pub use observe::*;
pub use pointers::p2p_keys;
pub use region::*;
pub use request::*;
pub use serve::*;
pub use status::*;
pub use strings::p2p_str;
pub use tier::*;
pub use transfer::*;
pub use version::*;
