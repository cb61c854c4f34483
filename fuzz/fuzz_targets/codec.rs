#![no_main]

#[path = "../bodies/codec.rs"]
mod codec;

libfuzzer_sys::fuzz_target!(|data: &[u8]| codec::run(data));
