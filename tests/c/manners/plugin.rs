//! A Rust library of the host's own, beside libp2pkv in one process: with its own copy of std, its own logger, and
//! functions that panic into whoever calls them.

/// Makes env_logger this library's logger, to stderr. 0 if that was possible.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_log_init() -> i32 {
    let mut builder = env_logger::Builder::new();
    i32::from(builder.filter_level(log::LevelFilter::Info).try_init().is_err())
}

#[unsafe(no_mangle)]
pub extern "C" fn plugin_log() {
    log::info!("the plugin speaks");
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn plugin_panic() {
    panic!("the plugin panics");
}
