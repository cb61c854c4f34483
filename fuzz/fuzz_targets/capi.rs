#![no_main]

#[path = "../bodies/capi.rs"]
mod capi;
#[path = "../bodies/script.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|data: &[u8]| capi::run(data));
