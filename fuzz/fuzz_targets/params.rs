#![no_main]

#[path = "../bodies/params.rs"]
mod params;

libfuzzer_sys::fuzz_target!(|data: &[u8]| params::run(data));
