//! The time of day may jump: nothing depends on it.

use std::path::PathBuf;
use std::time::Duration;

use crate::peer::{Config, Engine, HIT, Place, Times, blocks, symmetric, tags};
use crate::run::{Run, permitted, times, tool};

/// Loaded before the C library: the time of day jumps by up to a year at every look, forth and back.
const JUMPING_CLOCK: &str = r#"
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static void jump(struct timespec *now) {
  static unsigned long looks;
  unsigned long look = __atomic_add_fetch(&looks, 1, __ATOMIC_RELAXED) * 2654435761u;
  now->tv_sec += (long)(look % 63072000) - 31536000;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = (int)syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) jump(now);
  return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec exact;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (out) *out = exact.tv_sec;
  return exact.tv_sec;
}
"#;

fn jumping_clock() -> Option<Place> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, library) = (folder.join("jumping_clock.c"), folder.join("jumping_clock.so"));
    std::fs::write(&source, JUMPING_CLOCK).unwrap();
    let paths = [&source, &library].map(|path| path.to_str().unwrap().to_owned());
    let compiled = tool("cc", &["-shared", "-fPIC", "-O1", "-o", &paths[1], &paths[0]]);
    let environment = vec![("LD_PRELOAD".to_owned(), paths[1].clone())];
    permitted("compiling a clock that jumps (cc)", compiled)
        .then(|| Place { environment, ..Place::default() })
}

/// A process whose monotonic clock is some months ahead of ours: only durations may cross the wire.
fn another_boot() -> Option<Place> {
    let wrapper = ["unshare", "-T", "--monotonic", "9000000", "--boottime", "9000000", "--"]
        .map(str::to_owned)
        .to_vec();
    let mut arguments: Vec<&str> = wrapper[1..].iter().map(String::as_str).collect();
    arguments.push("true");
    permitted("a time namespace (unshare -T)", tool("unshare", &arguments))
        .then(|| Place { wrapper, ..Place::default() })
}

fn pulls_and_deadlines(fault: &'static str, how: &'static str, place: &Place) {
    let mut run = Run::new(fault, how);
    let mut producer = Engine::at(place);
    producer.open(&Config::large()).unwrap();
    let mut consumer = Engine::new(&Config::large());
    producer.publish(&blocks(64), &tags(0, 64));
    consumer.publish(&blocks(8), &tags(500, 8));
    let deadline = Duration::from_millis(300);
    let upper: Vec<u32> = (64..128).collect();
    for round in 0..times(2, 20) {
        run.injections += 1;
        run.pull(&mut consumer, &format!("c{round}"), producer.id(), &tags(0, 64), &upper);
        run.pull(&mut producer, &format!("p{round}"), consumer.id(), &tags(500, 8), &upper[..8]);
        // Its deadlines are those of the monotonic clock too.
        let id = format!("d{round}");
        let times = Times { store_ms: 300, ..Times::default() };
        producer.try_request(&id, &crate::peer::producer(&id), times).unwrap();
        run.store(&mut producer, &id, &tags(0, 4), &blocks(4));
        let result = run.collect_one(&mut producer);
        result.expect("NOT_FETCHED");
        run.ended("a store", result.took, deadline);
        producer.finish(&id);
    }
    let id = "symmetric";
    producer.try_request(id, &symmetric(id, consumer.id()), Times::default()).unwrap();
    assert_eq!(producer.look_up(id, &tags(500, 8)), [HIT; 8]);
    producer.finish(id);
    assert_eq!([producer.stat("sessions_lost"), consumer.stat("sessions_lost")], [0, 0]);
    run.calls(&mut producer);
    run.end();
}

#[test]
fn a_time_of_day_that_jumps() {
    if let Some(place) = jumping_clock() {
        pulls_and_deadlines(
            "steps of the clock",
            "CLOCK_REALTIME jumps by up to a year at every look",
            &place,
        );
    }
}

#[test]
fn a_monotonic_clock_that_began_at_another_time() {
    if let Some(place) = another_boot() {
        pulls_and_deadlines("clocks that differ", "a time namespace, 104 days ahead", &place);
    }
}

/// The purity test bans clocks from the core; here is the rest of src/: no time of day anywhere, but for log lines.
#[test]
fn nothing_in_the_library_reads_the_time_of_day() {
    let mut folders = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            for word in ["SystemTime", "CLOCK_REALTIME", "ClockId::Realtime", "UNIX_EPOCH"] {
                let found = code.clone().find(|line| line.contains(word));
                assert!(found.is_none(), "{}: {}", path.display(), found.unwrap_or_default());
            }
        }
    }
}
