//! How the parts are timed, and how that is told: in nanoseconds for each key or block.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{Criterion, Throughput};

pub type Bench = Criterion<Per>;

/// The time of the wall; criterion's throughput is told the other way about, as time for each of these.
pub struct Per {
    unit: &'static str,
}

impl Per {
    pub const KEY: Per = Per { unit: "ns/key" };
    pub const BLOCK: Per = Per { unit: "ns/block" };

    /// Short, so that all parts together take about a minute. Options on the command line go before.
    pub fn criterion(self) -> Bench {
        free_something_large();
        Criterion::default()
            .with_measurement(self)
            .without_plots()
            .sample_size(20)
            .warm_up_time(Duration::from_millis(200))
            .measurement_time(Duration::from_millis(700))
            .nresamples(10_000)
    }
}

/// As every engine's process has done before: see `free_something_large` in `compare/node.rs`.
fn free_something_large() {
    drop(black_box(vec![1_u8; 16 << 20]));
}

impl Measurement for Per {
    type Intermediate = Instant;
    type Value = Duration;

    fn start(&self) -> Instant {
        WallTime.start()
    }

    fn end(&self, begin: Instant) -> Duration {
        WallTime.end(begin)
    }

    fn add(&self, first: &Duration, second: &Duration) -> Duration {
        WallTime.add(first, second)
    }

    fn zero(&self) -> Duration {
        WallTime.zero()
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        WallTime.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        self
    }
}

impl ValueFormatter for Per {
    fn scale_values(&self, typical: f64, values: &mut [f64]) -> &'static str {
        WallTime.formatter().scale_values(typical, values)
    }

    fn scale_throughputs(&self, typical: f64, of: &Throughput, values: &mut [f64]) -> &'static str {
        match of {
            Throughput::Elements(elements) => {
                values.iter_mut().for_each(|ns| *ns /= *elements as f64);
                self.unit
            }
            Throughput::Bytes(bytes) => {
                values.iter_mut().for_each(|ns| *ns = *bytes as f64 / *ns);
                "GB/s"
            }
            other => WallTime.formatter().scale_throughputs(typical, other, values),
        }
    }

    fn scale_for_machines(&self, values: &mut [f64]) -> &'static str {
        WallTime.formatter().scale_for_machines(values)
    }
}

/// How long `part` takes in all, in so many turns. What leads to it and what cleans up after it is not counted.
pub fn time<C, I, O>(
    turns: u64,
    case: &mut C,
    before: impl Fn(&mut C) -> I,
    part: impl Fn(&mut C, I) -> O,
    after: impl Fn(&mut C, O),
) -> Duration {
    let mut taken = Duration::ZERO;
    for _ in 0..turns {
        let input = before(case);
        let begin = Instant::now();
        let outcome = black_box(part(case, black_box(input)));
        taken += begin.elapsed();
        after(case, outcome);
    }
    taken
}
