//! What the whole library does between two processes over loopback, beside a bare TCP program in the same run.
//!
//! `cargo bench --bench loopback` measures everything in less than a minute; `-- bulk`, `-- load`, `-- lookup` and
//! `-- idle` measure a part. The program runs itself again as the producer. The last line of the output is the same
//! as one JSON object. Figures move from machine to machine and with what else runs on it: compare ratios.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock and waits")]

#[path = "bare/tcp.rs"]
mod bare;
#[path = "loopback/node.rs"]
mod node;
#[path = "loopback/producer.rs"]
mod producer;
#[path = "loopback/report.rs"]
mod report;
#[path = "loopback/sample.rs"]
mod sample;

use std::time::{Duration, Instant};

use bare::Bare;
use node::{Consumer, Shape, cpu_time};
use producer::Producer;
use report::{Bulk, Idle, Latency, Report};
use sample::Samples;

const KIB: usize = 1 << 10;
const SHAPES: [(usize, usize); 2] = [(16 * KIB, 8192), (1024 * KIB, 512)];
const STREAMS: [usize; 2] = [1, 2];

/// After one that is not counted.
const BULK_RUNS: usize = 7;
/// On a machine that is busy otherwise, a shape gets fewer runs rather than more time.
const BULK_LIMIT: Duration = Duration::from_secs(8);
const ONE_BLOCK_LOADS: usize = 4000;
const LOOKUPS: usize = 600;
const LOOKUP_KEYS: usize = 4096;

/// No latency is measured for longer than this, however slow it is.
const LATENCY_LIMIT: Duration = Duration::from_secs(6);
const IDLE_SPAN: Duration = Duration::from_secs(2);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(shape) = producer::asked_for(&arguments) {
        return producer::serve(shape);
    }
    // cargo adds `--bench`.
    let wanted: Vec<&str> = arguments.iter().map(String::as_str).filter(|name| *name != "--bench").collect();
    let wants = |part: &str| wanted.is_empty() || wanted.contains(&part);

    let mut report = Report::default();
    if wants("bulk") {
        for (block_len, blocks) in SHAPES {
            for streams in STREAMS {
                report.bulk.push(bulk(Shape { block_len, blocks, streams }));
            }
        }
    }
    if wants("load") || wants("lookup") || wants("idle") {
        let shape = Shape { block_len: 16 * KIB, blocks: 8192, streams: 2 };
        let mut producer = Producer::start(shape);
        let consumer = Consumer::connect(shape, producer.id());
        if wants("load") {
            report.latency.push(one_block_loads(&consumer, &mut producer));
        }
        if wants("lookup") {
            report.latency.push(lookups(&consumer, &mut producer));
        }
        if wants("idle") {
            report.idle = Some(idle(&mut producer));
        }
    }
    print!("{report}");
    println!("{}", report.json());
}

/// Loads of all blocks, in turn with the bare program.
fn bulk(shape: Shape) -> Bulk {
    let mut producer = Producer::start(shape);
    let consumer = Consumer::connect(shape, producer.id());
    let mut bare = Bare::new(shape.block_len, shape.blocks, shape.streams);
    let gb = (shape.block_len * shape.blocks) as f64 / 1e9;
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
            if Instant::now() > limit {
                break;
            }
        }
    }
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

fn one_block_loads(consumer: &Consumer, producer: &mut Producer) -> Latency {
    let what = "load of one 16 KiB block";
    sampled(what, ONE_BLOCK_LOADS, producer, |sample| consumer.load_one_block(sample))
}

fn lookups(consumer: &Consumer, producer: &mut Producer) -> Latency {
    let what = "lookup of 4096 keys";
    sampled(what, LOOKUPS, producer, |sample| consumer.look_up(sample, LOOKUP_KEYS))
}

fn sampled(
    what: &'static str,
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
fn idle(producer: &mut Producer) -> Idle {
    let (consumer_before, producer_before) = (cpu_time(), producer.cpu_time());
    std::thread::sleep(IDLE_SPAN);
    let share = |spent: Duration| spent.as_secs_f64() / IDLE_SPAN.as_secs_f64();
    Idle {
        consumer: share(cpu_time() - consumer_before),
        producer: share(producer.cpu_time() - producer_before),
    }
}
