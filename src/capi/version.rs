//! Versions and features: what a consumer compares when it loads the library.

use std::ffi::c_char;

/// Major version of the library this header belongs to.
pub const P2P_VERSION_MAJOR: u32 = 0;
/// Minor version of the library this header belongs to.
pub const P2P_VERSION_MINOR: u32 = 2;
/// Patch version of the library this header belongs to.
pub const P2P_VERSION_PATCH: u32 = 0;
/// The three parts as one number that grows with each release: major * 10000 + minor * 100 + patch.
pub const P2P_VERSION_NUMBER: u32 = P2P_VERSION_MAJOR * 10000 + P2P_VERSION_MINOR * 100 + P2P_VERSION_PATCH;
/// Number of the binary interface this header describes. Compare with `p2p_abi_version()` after loading.
pub const P2P_ABI_VERSION: u32 = 1;

/// `p2p_features`: blocks can move over TCP.
pub const P2P_FEATURE_TCP: u64 = 1;
/// `p2p_features`: blocks can move over NIXL (RDMA and friends).
pub const P2P_FEATURE_NIXL: u64 = 2;
/// `p2p_features`: tiers on one host copy from memory to memory instead of over TCP.
pub const P2P_FEATURE_SAME_HOST: u64 = 4;
/// `p2p_features`: `p2p_tier_metrics_text` gives metrics.
pub const P2P_FEATURE_METRICS: u64 = 8;

/// Version of the library that was loaded, as text.
///
/// May differ from the `P2P_VERSION_*` macros, which are of the header that was compiled against.
///
/// Returns: "major.minor.patch", NUL-terminated; static, never free it.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub extern "C" fn p2p_version() -> *const c_char {
    const { c_text(concat!(env!("CARGO_PKG_VERSION"), "\0")) }.as_ptr()
}

/// Number of the binary interface of the library that was loaded.
///
/// Refuse to go on when it is not `P2P_ABI_VERSION`: structs or functions then mean something else.
///
/// Returns: the number.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub extern "C" fn p2p_abi_version() -> u32 {
    P2P_ABI_VERSION
}

/// What this build can do, as `P2P_FEATURE_*` bits.
///
/// A bit says that the code is there, not that this machine allows it: see `p2p_peer_info.detail` for what was
/// chosen and why. Functions of a feature that is not there exist and return P2P_STATUS_UNSUPPORTED. Ignore bits you
/// do not know.
///
/// Returns: the bits.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub extern "C" fn p2p_features() -> u64 {
    P2P_FEATURE_TCP
        | P2P_FEATURE_SAME_HOST
        | P2P_FEATURE_METRICS
        | if cfg!(feature = "nixl") { P2P_FEATURE_NIXL } else { 0 }
}

const fn c_text(text: &'static str) -> &'static std::ffi::CStr {
    match std::ffi::CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    }
}
