#![no_main]

#[path = "../bodies/capi.rs"]
mod capi;

libfuzzer_sys::fuzz_target!(|data: &[u8]| capi::run(data));
