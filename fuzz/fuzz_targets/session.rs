#![no_main]

#[path = "../bodies/session.rs"]
mod session;
#[path = "../bodies/script.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|data: &[u8]| session::run(data));
