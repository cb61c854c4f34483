#![no_main]

#[path = "../bodies/frames.rs"]
mod frames;
#[path = "../bodies/script.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|data: &[u8]| frames::run(data));
