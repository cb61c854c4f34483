//! What the whole library does between two processes of one host, beside bare programs in the same run.
//!
//! `cargo bench --bench loopback` measures everything in about two minutes; `-- bulk`, `-- load`, `-- lookup` and
//! `-- idle` measure a part, `-- mapped`, `-- vm-read` and `-- tcp` one way. The program runs itself again as the
//! producer. The last line of the output is the same as one JSON object. Figures move from machine to machine and with
//! what else runs on it: compare ratios.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock and waits")]

#[path = "bare/mod.rs"]
mod bare;
#[path = "loopback/child.rs"]
mod child;
#[path = "loopback/memory.rs"]
mod memory;
#[path = "loopback/node.rs"]
mod node;
#[path = "loopback/producer.rs"]
mod producer;
#[path = "loopback/report.rs"]
mod report;
#[path = "loopback/sample.rs"]
mod sample;
#[path = "loopback/shape.rs"]
mod shape;

use std::time::{Duration, Instant};

use bare::Ceiling;
use node::{Consumer, cpu_time};
use producer::Producer;
use report::{Bulk, Idle, Latency, Report};
use sample::Samples;
use shape::{Shape, Way};

const KIB: usize = 1 << 10;
const SHAPES: [(usize, usize); 3] = [(16 * KIB, 1024), (64 * KIB, 1024), (1024 * KIB, 512)];

/// After one that is not counted.
const BULK_RUNS: usize = 31;
/// A shape that takes longer gets fewer runs, but not so few that a median means nothing.
const BULK_LIMIT: Duration = Duration::from_secs(5);
const LEAST_BULK_RUNS: usize = 7;
const ONE_BLOCK_LOADS: usize = 4000;
const LOOKUPS: usize = 600;
const LOOKUP_KEYS: usize = 4096;

/// No latency is measured for longer than this, however slow it is.
const LATENCY_LIMIT: Duration = Duration::from_secs(5);
const IDLE_SPAN: Duration = Duration::from_secs(2);

const PARTS: [&str; 4] = ["bulk", "load", "lookup", "idle"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(shape) = producer::asked_for(&arguments) {
        return producer::serve(shape);
    }
    if let Some(shape) = bare::source::asked_for(&arguments) {
        return bare::source::serve(shape);
    }
    // cargo adds `--bench`.
    let wanted: Vec<&str> = arguments.iter().map(String::as_str).filter(|name| *name != "--bench").collect();
    let chosen =
        |name: &str, among: &[&str]| wanted.contains(&name) || !wanted.iter().any(|one| among.contains(one));
    let wants = |part: &str| chosen(part, &PARTS);
    let ways = Way::ALL.into_iter().filter(|way| chosen(way.name(), &Way::ALL.map(Way::name)));

    let mut report = Report::default();
    for way in ways {
        if wants("bulk") {
            report.bulk.extend(SHAPES.map(|(block_len, blocks)| bulk(Shape { block_len, blocks, way })));
        }
        // A second stream makes nothing of these quicker.
        if (wants("load") || wants("lookup") || wants("idle")) && way != (Way::Tcp { streams: 2 }) {
            let shape = Shape { block_len: 16 * KIB, blocks: 8192, way };
            let mut producer = Producer::start(shape);
            let consumer = Consumer::connect(shape, producer.id());
            if wants("load") {
                report.latency.push(one_block_loads(&consumer, &mut producer, shape));
            }
            if wants("lookup") && report.latency.iter().all(|done| done.what != LOOKUP) {
                report.latency.push(lookups(&consumer, &mut producer));
            }
            if wants("idle") {
                report.idle.push(idle(&mut producer, way));
            }
        }
    }
    print!("{report}");
    println!("{}", report.json());
}

/// Loads of all blocks, in turn with the bare program.
fn bulk(shape: Shape) -> Bulk {
    let mut producer = Producer::start(shape);
    let consumer = Consumer::connect(shape, producer.id());
    let mut bare = Ceiling::new(shape);
    let gb = shape.bytes() as f64 / 1e9;
    let mut measured = Bulk::new(shape);
    let limit = Instant::now() + BULK_LIMIT;
    for run in 0..=BULK_RUNS {
        bare.clear();
        let (bare_took, bare_cpu) = on_cpu(None, || bare.run());
        bare.check();

        let load = consumer.look_up_all(run as u64);
        let (took, cpu) = on_cpu(Some(&mut producer), || timed(|| consumer.load(&load)));
        consumer.check(&load);
        consumer.finish(&load);

        if run > 0 {
            measured.bare.push(gb / bare_took.as_secs_f64());
            measured.bare_cpu.push(bare_cpu.as_secs_f64() / gb);
            measured.ours.push(gb / took.as_secs_f64());
            measured.ours_cpu.push(cpu.as_secs_f64() / gb);
            if run >= LEAST_BULK_RUNS && Instant::now() > limit {
                break;
            }
        }
    }
    producer.check_way(shape);
    measured
}

fn timed(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}

/// What `work` gives, and the CPU time that this process and the producer's spend on it.
fn on_cpu<T>(mut producer: Option<&mut Producer>, work: impl FnOnce() -> T) -> (T, Duration) {
    let mut spent = || cpu_time() + producer.as_mut().map_or(Duration::ZERO, |producer| producer.cpu_time());
    let before = spent();
    let done = work();
    (done, spent() - before)
}

fn one_block_loads(consumer: &Consumer, producer: &mut Producer, shape: Shape) -> Latency {
    let what = format!("load of 16 KiB, {}", shape.way.name());
    let measured = sampled(what, ONE_BLOCK_LOADS, producer, |sample| consumer.load_one_block(sample));
    producer.check_way(shape);
    measured
}

const LOOKUP: &str = "lookup of 4096 keys";

fn lookups(consumer: &Consumer, producer: &mut Producer) -> Latency {
    sampled(LOOKUP.to_owned(), LOOKUPS, producer, |sample| consumer.look_up(sample, LOOKUP_KEYS))
}

fn sampled(
    what: String,
    count: usize,
    producer: &mut Producer,
    sample: impl Fn(usize) -> Duration,
) -> Latency {
    let warm_up = count / 20;
    for index in 0..warm_up {
        sample(index);
    }
    let mut samples = Samples::new();
    let limit = Instant::now() + LATENCY_LIMIT;
    let ((), cpu) = on_cpu(Some(producer), || {
        for index in warm_up..warm_up + count {
            samples.push(sample(index).as_secs_f64() * 1e6);
            if Instant::now() > limit {
                break;
            }
        }
    });
    let cpu_micros = cpu.as_secs_f64() * 1e6 / samples.len() as f64;
    Latency { what, micros: samples, cpu_micros }
}

/// What two tiers that are ready for one another cost while nothing happens, in shares of a CPU.
fn idle(producer: &mut Producer, way: Way) -> Idle {
    let (consumer_before, producer_before) = (cpu_time(), producer.cpu_time());
    std::thread::sleep(IDLE_SPAN);
    let share = |spent: Duration| spent.as_secs_f64() / IDLE_SPAN.as_secs_f64();
    Idle {
        way,
        consumer: share(cpu_time() - consumer_before),
        producer: share(producer.cpu_time() - producer_before),
    }
}
