//! What one kind of fault came to: its numbers, checked at the end and written as a line of the table.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::common::{BOUND, eventually};
use crate::peer::{Engine, Outcome};

/// Set to 1: the long form.
const SOAK: &str = "P2PKV_SOAK";

/// Where the long form appends its lines.
const REPORT: &str = "P2PKV_CHAOS_REPORT";

pub fn is_soak() -> bool {
    std::env::var(SOAK).is_ok_and(|value| value == "1")
}

/// How often to do something, in the short and in the long form.
pub fn times(short: u64, long: u64) -> u64 {
    if is_soak() { long } else { short }
}

/// Says once that a case is left out where it cannot be done.
pub fn permitted(what: &str, works: bool) -> bool {
    if !works {
        println!("skipped: {what} is not permitted or not there");
    }
    works
}

/// Runs a program of the system; whether it is there and was content.
pub fn tool(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// Waits until blocks move, or have moved.
pub fn transfer_begins(producer: &mut Engine) {
    eventually("the transfer begins", || {
        let moving = producer.peers()[0]["transfers_live"].as_u64().is_some_and(|transfers| transfers > 0);
        moving || producer.stat("stores_live") == 0
    });
}

/// Descriptors, threads and KiB of memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    fds: usize,
    threads: usize,
    rss_kib: u64,
}

impl Held {
    /// What a session with one peer holds on top: its sockets, at either plane.
    pub fn allow_one_peer(&mut self) {
        self.fds += 12;
    }
}

pub fn held(engine: &Engine) -> Held {
    Held { fds: engine.fds(), threads: engine.threads(), rss_kib: engine.rss_kib() }
}

/// The books of one case. Every job that it opens ends in one result, or is given up with its process.
pub struct Run {
    fault: &'static str,
    how: &'static str,
    pub injections: u64,
    next_job: u64,
    open: BTreeSet<u64>,
    jobs: u64,
    wrong: u64,
    double: u64,
    leaked: Held,
    longest: Duration,
    longest_late: Option<Duration>,
    longest_call: Duration,
}

impl Run {
    pub fn new(fault: &'static str, how: &'static str) -> Run {
        Run {
            fault,
            how,
            injections: 0,
            next_job: 1,
            open: BTreeSet::new(),
            jobs: 0,
            wrong: 0,
            double: 0,
            leaked: Held::default(),
            longest: Duration::ZERO,
            longest_late: None,
            longest_call: Duration::ZERO,
        }
    }

    fn job(&mut self) -> u64 {
        self.next_job += 1;
        self.open.insert(self.next_job);
        self.next_job
    }

    pub fn load(&mut self, engine: &mut Engine, id: &str, tags: &[u64], blocks: &[u32]) -> u64 {
        let job = self.job();
        engine.load(id, job, tags, blocks);
        job
    }

    pub fn store(&mut self, engine: &mut Engine, id: &str, tags: &[u64], blocks: &[u32]) -> u64 {
        let job = self.job();
        engine.store(id, job, tags, blocks);
        job
    }

    /// The results of that many open jobs; those that do not come are lost.
    pub fn collect(&mut self, engine: &mut Engine, count: usize) -> Vec<Outcome> {
        let results = engine.results_within(count, BOUND);
        for result in &results {
            self.double += u64::from(!self.open.remove(&result.job));
            self.jobs += 1;
            self.longest = self.longest.max(result.took);
        }
        assert_eq!(results.len(), count, "{}: lost results, open are {:?}", self.fault, self.open);
        results
    }

    pub fn collect_one(&mut self, engine: &mut Engine) -> Outcome {
        self.collect(engine, 1).remove(0)
    }

    /// The process died with these jobs.
    pub fn give_up(&mut self, jobs: &[u64]) {
        self.open.retain(|job| !jobs.contains(job));
    }

    /// Something with a deadline has ended so long after it began. The bound is generous, since the machine may be busy;
    /// how late it was is in the report.
    pub fn ended(&mut self, what: &str, took: Duration, deadline: Duration) {
        assert!(
            took + Duration::from_millis(1) >= deadline,
            "{}: {what} ended early, after {took:?}",
            self.fault
        );
        let late = took.saturating_sub(deadline);
        assert!(late < Duration::from_secs(1), "{}: {what} of {deadline:?} took {took:?}", self.fault);
        self.longest_late = self.longest_late.max(Some(late));
    }

    /// Something that is no job took so long.
    pub fn spent(&mut self, took: Duration) {
        self.longest = self.longest.max(took);
    }

    /// Counts what is not as it was stored.
    pub fn check(&mut self, engine: &mut Engine, blocks: &[u32], tags: &[u64]) {
        let differs = engine.differs(blocks, tags);
        assert!(!differs, "{}: wrong bytes in engine {}", self.fault, engine.id());
        self.wrong += u64::from(differs);
    }

    /// Looks up, loads, checks every byte, finishes.
    pub fn pull(&mut self, consumer: &mut Engine, id: &str, peer: &str, tags: &[u64], blocks: &[u32]) {
        consumer.ask_from(id, peer);
        let found = consumer.look_up(id, tags);
        assert!(
            found.iter().all(|state| *state == crate::peer::HIT),
            "{}: {:?}",
            self.fault,
            consumer.failure(id)
        );
        self.load(consumer, id, tags, blocks);
        self.collect_one(consumer).expect("DONE");
        self.check(consumer, blocks, tags);
        consumer.finish(id);
    }

    /// The calls that the engine has made since the last time and that must not wait.
    pub fn calls(&mut self, engine: &mut Engine) {
        let calls = engine.calls();
        self.longest_call = self.longest_call.max(Duration::from_micros(calls.longest_us));
        assert!(calls.longest_us < 1_000_000, "{}: {calls:?}", self.fault);
    }

    /// No job, pin or transfer is left, and no descriptor or thread more than before.
    pub fn rests(&mut self, engine: &mut Engine, published: u64, before: Held) {
        self.calls(engine);
        engine.assert_comes_to_rest(published);
        self.rested(engine, before);
    }

    /// As `rests`, of a process whose tier may be gone.
    pub fn rested(&mut self, engine: &Engine, before: Held) {
        eventually(&format!("{}: descriptors and threads are back at {before:?}", self.fault), || {
            let now = held(engine);
            now.fds <= before.fds && now.threads <= before.threads
        });
        let now = held(engine);
        self.leaked.fds += now.fds.saturating_sub(before.fds);
        self.leaked.threads += now.threads.saturating_sub(before.threads);
        self.leaked.rss_kib = self.leaked.rss_kib.max(now.rss_kib.saturating_sub(before.rss_kib));
    }

    /// Memory, which may go up and down, but not by more than this many KiB.
    pub fn grown(&mut self, engine: &Engine, before: Held, limit_kib: u64) {
        let grown = engine.rss_kib().saturating_sub(before.rss_kib);
        assert!(grown < limit_kib, "{}: grown by {grown} KiB", self.fault);
        self.leaked.rss_kib = self.leaked.rss_kib.max(grown);
    }

    /// Checks the books and writes them down.
    pub fn end(self) {
        let millis = |span: Duration| span.as_micros() as f64 / 1000.0;
        let line = json!({
            "fault": self.fault,
            "how": self.how,
            "injections": self.injections,
            "jobs": self.jobs,
            "wrong": self.wrong,
            "lost": self.open.len(),
            "double": self.double,
            "leaked_fds": self.leaked.fds,
            "leaked_threads": self.leaked.threads,
            "grown_kib": self.leaked.rss_kib,
            "longest_ms": millis(self.longest),
            "late_ms": self.longest_late.map(millis),
            "longest_call_ms": millis(self.longest_call),
        });
        println!("{line}");
        if let (true, Ok(path)) = (is_soak(), std::env::var(REPORT)) {
            let mut report = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
            writeln!(report, "{line}").unwrap();
        }
        assert_eq!((self.wrong, self.open.len(), self.double), (0, 0, 0), "wrong, lost, double: {line}");
    }
}
