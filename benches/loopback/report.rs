//! The table for people and the line for programs.

use std::fmt;

use serde_json::{Value, json};

use crate::sample::Samples;
use crate::shape::{Shape, Way};

#[derive(Debug, Default)]
pub struct Report {
    pub bulk: Vec<Bulk>,
    pub latency: Vec<Latency>,
    pub idle: Vec<Idle>,
}

/// Speeds in GB/s (10^9 bytes), CPU time of all that takes part in seconds per GB.
#[derive(Debug)]
pub struct Bulk {
    pub shape: Shape,
    pub bare: Samples,
    pub bare_cpu: Samples,
    pub ours: Samples,
    pub ours_cpu: Samples,
}

#[derive(Debug)]
pub struct Latency {
    pub what: String,
    pub micros: Samples,
    /// CPU time of both processes for each.
    pub cpu_micros: f64,
}

/// Shares of one CPU.
#[derive(Debug)]
pub struct Idle {
    pub way: Way,
    pub consumer: f64,
    pub producer: f64,
}

impl Bulk {
    pub fn new(shape: Shape) -> Bulk {
        Bulk {
            shape,
            bare: Samples::new(),
            bare_cpu: Samples::new(),
            ours: Samples::new(),
            ours_cpu: Samples::new(),
        }
    }

    fn ratio(&self) -> f64 {
        self.ours.median() / self.bare.median()
    }

    fn name(&self) -> String {
        format!("{}, {}", self.shape.way, self.shape)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.bulk.is_empty() {
            writeln!(f, "\nload of scattered blocks, GB/s: median (quartiles); CPU s/GB of both sides")?;
            writeln!(
                f,
                "{:26} {:>4} {:>20} {:>20} {:>6} {:>9} {:>9}",
                "", "runs", "bare program", "p2pkv", "ratio", "bare CPU", "p2pkv CPU"
            )?;
        }
        for bulk in &self.bulk {
            writeln!(
                f,
                "{:26} {:>4} {:>20} {:>20} {:>6.2} {:>9.2} {:>9.2}",
                bulk.name(),
                bulk.ours.len(),
                spread(&bulk.bare),
                spread(&bulk.ours),
                bulk.ratio(),
                bulk.bare_cpu.median(),
                bulk.ours_cpu.median()
            )?;
        }
        if !self.latency.is_empty() {
            writeln!(f, "\nlatency, us; CPU us of both sides for each")?;
            writeln!(
                f,
                "{:26} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
                "", "samples", "min", "p50", "p90", "p99", "CPU"
            )?;
        }
        for latency in &self.latency {
            let micros = &latency.micros;
            writeln!(
                f,
                "{:26} {:>8} {:>8.0} {:>8.0} {:>8.0} {:>8.0} {:>8.0}",
                latency.what,
                micros.len(),
                micros.min(),
                micros.median(),
                micros.percentile(0.9),
                micros.percentile(0.99),
                latency.cpu_micros
            )?;
        }
        for idle in &self.idle {
            let percent = |share: f64| 100.0 * share;
            writeln!(
                f,
                "idle, with a ready peer ({}): {:.2} % of a CPU (consumer), {:.2} % (producer)",
                idle.way.name(),
                percent(idle.consumer),
                percent(idle.producer)
            )?;
        }
        writeln!(f)
    }
}

fn spread(samples: &Samples) -> String {
    let [low, median, high] = samples.quartiles();
    format!("{median:.2} ({low:.2}..{high:.2})")
}

impl Report {
    pub fn json(&self) -> Value {
        json!({
            "bulk": self.bulk.iter().map(bulk_json).collect::<Vec<_>>(),
            "latency": self.latency.iter().map(latency_json).collect::<Vec<_>>(),
            "idle": self.idle.iter().map(|idle| json!({
                "way": idle.way.name(),
                "consumer_cpu_share": idle.consumer,
                "producer_cpu_share": idle.producer,
            })).collect::<Vec<_>>(),
        })
    }
}

fn bulk_json(bulk: &Bulk) -> Value {
    json!({
        "block_len": bulk.shape.block_len,
        "blocks": bulk.shape.blocks,
        "way": bulk.shape.way.to_string(),
        "runs": bulk.ours.len(),
        "bare_gb_per_s": bulk.bare.quartiles(),
        "p2pkv_gb_per_s": bulk.ours.quartiles(),
        "ratio": bulk.ratio(),
        "bare_cpu_s_per_gb": bulk.bare_cpu.median(),
        "p2pkv_cpu_s_per_gb": bulk.ours_cpu.median(),
    })
}

fn latency_json(latency: &Latency) -> Value {
    json!({
        "what": latency.what,
        "samples": latency.micros.len(),
        "p50_us": latency.micros.median(),
        "p90_us": latency.micros.percentile(0.9),
        "p99_us": latency.micros.percentile(0.99),
        "cpu_us": latency.cpu_micros,
    })
}
