//! Linked into a Rust program that has its own logger: that gets the messages, and ours is refused by name.
#![allow(clippy::disallowed_methods, reason = "tests wait with bounds")]

mod common;

use std::ffi::CStr;
use std::sync::Mutex;

use common::{Node, NodeOptions};
use p2pkv::capi::{p2p_last_error, p2p_log_init, p2p_log_level, p2p_status};

struct Host(Mutex<Vec<String>>);

static HOST: Host = Host(Mutex::new(Vec::new()));

impl log::Log for Host {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().unwrap().push(record.args().to_string());
    }

    fn flush(&self) {}
}

#[test]
fn a_rust_program_keeps_its_logger_and_hears_the_library_in_it() {
    log::set_logger(&HOST).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    for _ in 0..2 {
        assert_eq!(p2p_log_init(p2p_log_level::WARN as u32), p2p_status::UNSUPPORTED);
    }
    // SAFETY: NUL-terminated, and valid until this thread's next call.
    let said = unsafe { CStr::from_ptr(p2p_last_error()) }.to_str().unwrap();
    assert!(said.contains("logger of its own"), "{said}");
    drop(Node::new(NodeOptions::default()));
    let heard = HOST.0.lock().unwrap();
    assert!(heard.iter().any(|message| message.contains("tcp data plane")), "{heard:?}");
}
