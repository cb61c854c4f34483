//! What happens when the process runs out of descriptors. Alone in its process, whose limit it changes.

#![allow(clippy::disallowed_methods)] // tests wait on conditions, with real time as the bound

#[path = "tcp/harness.rs"]
#[allow(dead_code)] // shared with tests/data_tcp.rs
mod harness;

use std::fs::File;
use std::time::Duration;

use harness::*;
use p2pkv::data::{DataEvent, DataTransport};
use p2pkv::protocol::ids::SessionId;

const LIMIT: usize = 64;

fn limit_descriptors() {
    let limit = libc::rlimit { rlim_cur: LIMIT as u64, rlim_max: LIMIT as u64 };
    // SAFETY: a valid rlimit; it only concerns this test's own process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}

fn cpu_time() -> Duration {
    // SAFETY: rusage is plain numbers, filled by the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let part = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    part(usage.ru_utime) + part(usage.ru_stime)
}

#[test]
fn no_descriptors_left_is_a_named_error_and_a_pause_until_there_are() {
    limit_descriptors();
    let (mut writer, mut reader) = connected(4096, 2);
    let waiting_stranger = RawWriter::open(&reader);
    let mut hoard: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();

    let other = SessionId(2);
    let offer = reader.offer(TOKEN);
    writer.transport.register_peer(other, offer.clone());
    let DataEvent::PeerRefused { reason, .. } = writer.next_event() else { panic!("not refused") };
    assert!(reason.contains("Too many open files"), "{reason}");

    writer.paint(1);
    reader.arm(1, &[1]);
    writer.write(1, 1, &[(0, 1)]);
    assert_eq!(writer.next_event(), done(1), "the peers of before go on");

    // One descriptor for the dialling end, none for the accepting one.
    hoard.pop();
    let mut late = RawWriter::open(&reader);
    let before = cpu_time();
    assert_eq!(reader.events_within(Duration::from_millis(500)), []);
    let spent = cpu_time() - before;
    assert!(spent < Duration::from_millis(100), "accepting spins: {spent:?} in half a second");

    drop(hoard);
    late.send(&hello(2, 4096, TOKEN));
    assert_eq!(late.answer(), (0, 0), "accepted once there are descriptors");
    drop(waiting_stranger);
}
