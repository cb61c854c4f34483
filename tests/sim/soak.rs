//! Many seeds, on as many threads as there are.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::coverage::Coverage;
use crate::report::{Invariant, Report, Violation};
use crate::world::{Options, World};

/// Each so many-th run is made three times.
const COMPARED: u64 = 50;

/// One seed and what came of it.
pub struct Failure {
    pub seed: u64,
    pub violation: Violation,
}

pub fn options(seed: u64) -> Options {
    Options { seed, skew: Duration::ZERO, with_lines: false }
}

/// A panic anywhere in the core is a violation like others.
pub fn run(options: Options) -> Report {
    let mut world = World::new(options);
    let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
    if let Err(panic) = ended {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words");
        let what = format!("a panic: {text}");
        world.report.violation = Some(Violation { invariant: Invariant::NothingCrashes, what });
    }
    world.report
}

/// Invariants 10 and 11: the same seed gives the same run, also where the tiers' clocks show something else.
pub fn compare(first: &Report, seed: u64) -> Option<Violation> {
    let differs = |other: Options| {
        let other = run(other);
        (other.hash() != first.hash()).then(|| format!("{:016x} and {:016x}", first.hash(), other.hash()))
    };
    if let Some(what) = differs(options(seed)) {
        return Some(Violation { invariant: Invariant::SameRun, what });
    }
    let skew = Duration::from_secs(1_234_567);
    differs(Options { skew, ..options(seed) })
        .map(|what| Violation { invariant: Invariant::TimeIsGiven, what })
}

/// Runs seeds from `first` on. Gives what they reached together, or the failure with the lowest seed found.
pub fn soak(first: u64, count: u64) -> Result<Coverage, Failure> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let next = AtomicU64::new(first);
    let end = first + count;
    let work = || {
        let mut coverage = Coverage::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return Ok(coverage);
            }
            let report = run(options(seed));
            let is_compared = seed.is_multiple_of(COMPARED);
            let unequal = || if is_compared { compare(&report, seed) } else { None };
            if let Some(violation) = report.violation.clone().or_else(unequal) {
                next.store(end, Ordering::Relaxed);
                return Err(Failure { seed, violation });
            }
            coverage.add(&report.coverage);
        }
    };
    let mut coverage = Coverage::default();
    let mut failures = Vec::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            match worker.join().expect("panics are caught") {
                Ok(part) => coverage.add(&part),
                Err(failure) => failures.push(failure),
            }
        }
    });
    match failures.into_iter().min_by_key(|failure| failure.seed) {
        Some(failure) => Err(failure),
        None => Ok(coverage),
    }
}

/// Runs a failing seed again, with its trace.
pub fn explain(failure: &Failure) -> String {
    let report = run(Options { with_lines: true, ..options(failure.seed) });
    let Violation { invariant, what } = &failure.violation;
    format!(
        "seed {seed} breaks invariant {number} ({invariant:?}): {what}\n\
         run it again with: P2PKV_SIM_SEED={seed} cargo test --test sim one_seed -- --nocapture\n\
         the last steps of the run:\n{lines}",
        seed = failure.seed,
        number = *invariant as u32,
        lines = report.lines(),
    )
}
