//! The control plane: what a fetch costs for each key, and how long a lookup takes.

use std::time::Duration;

use crate::latency::sampled;
use crate::node::{Consumer, cpu_time};
use crate::producer::Producer;
use crate::rival::{Pace, Rivals, Script};
use crate::row::{Judge, Row, Section};
use crate::sample::{Samples, Statistic};
use crate::shape::{Shape, Way};

const KEYS: usize = 8192;
const FETCHES: usize = 31;
const RIVAL_FETCHES: usize = 15;
const LOOKUP_KEYS: usize = 4096;
const LOOKUPS: usize = 600;
const LIMIT: Duration = Duration::from_secs(5);
/// Between two calls of an engine that is busy otherwise.
const ENGINE_SLEEPS: Duration = Duration::from_millis(100);
const LOOKUPS_BETWEEN_SLEEPS: usize = 40;

/// As good as no data: there is no way to put a transport of one's own under a tier.
const BLOCK_LEN: usize = 8;

pub fn fetch(rivals: Option<&Rivals>, tell: &mut impl FnMut(Row)) {
    let theirs = rivals.map_or_else(|| Err("not asked for".to_owned()), fetch_of_vllm);
    tell(Row {
        section: Section::Control,
        what: format!("CPU of both sides for each of {KEYS} keys of a fetch"),
        unit: "µs",
        statistic: Statistic::Median,
        ours: fetch_of_ours(),
        against: "vLLM's tier, null data plane, paced".to_owned(),
        theirs,
        judge: Judge::Less { at_least: Some(10.0) },
        aside: String::new(),
    });
}

/// For each key, what a fetch of many takes more than one of one.
fn for_each_key(many: impl Iterator<Item = f64>, one: &Samples) -> Samples {
    many.map(|cpu| (cpu - one.median()) * 1e6 / (KEYS - 1) as f64).collect()
}

fn fetch_of_vllm(rivals: &Rivals) -> Result<Samples, String> {
    let mut tier = rivals.vllm(Pace::Paced, true, 64, KEYS)?;
    let one = asked(&mut tier, "cpu 1", RIVAL_FETCHES)?;
    let many = asked(&mut tier, &format!("cpu {KEYS}"), RIVAL_FETCHES)?;
    Ok(for_each_key(many.into_iter(), &one.into_iter().collect()))
}

fn asked(tier: &mut Script, question: &str, count: usize) -> Result<Vec<f64>, String> {
    let answers: Result<Vec<Vec<f64>>, String> = (0..count).map(|_| tier.ask(question)).collect();
    Ok(answers?.concat())
}

fn fetch_of_ours() -> Samples {
    let shape = Shape { block_len: BLOCK_LEN, blocks: KEYS, way: Way::Mapped };
    let mut producer = Producer::start(shape);
    let consumer = Consumer::connect(shape, producer.id());
    let mut cpu = |sample: usize, keys: usize| {
        let pull = consumer.begin_pull(sample, keys);
        let before = cpu_time() + producer.cpu_time();
        consumer.load(&pull);
        let spent = cpu_time() + producer.cpu_time() - before;
        consumer.finish(&pull);
        spent.as_secs_f64()
    };
    cpu(0, KEYS);
    let one: Samples = (0..FETCHES).map(|sample| cpu(1 + sample, 1)).collect();
    for_each_key((0..FETCHES).map(|sample| cpu(1 + FETCHES + sample, KEYS)), &one)
}

pub fn lookup(rivals: Option<&Rivals>, tell: &mut impl FnMut(Row)) {
    let theirs = rivals.map_or_else(|| Err("not asked for".to_owned()), lookup_of_vllm);
    let shape = Shape { block_len: BLOCK_LEN, blocks: KEYS, way: Way::Mapped };
    let producer = Producer::start(shape);
    let consumer = Consumer::connect(shape, producer.id());
    let row = |what: &str, statistic, ours, against: &str, theirs, judge| Row {
        section: Section::Control,
        what: format!("lookup of {LOOKUP_KEYS} keys, there and back, {what}"),
        unit: "µs",
        statistic,
        ours,
        against: against.to_owned(),
        theirs,
        judge,
        aside: String::new(),
    };
    let once = |sample| consumer.look_up(sample, LOOKUP_KEYS);
    let ours = sampled(LOOKUPS, LIMIT, once);
    let vllm = "vLLM's tier, null data plane, busy";
    let less = |at_least| Judge::Less { at_least };
    tell(row("p50", Statistic::Median, ours.clone(), vllm, theirs.clone(), less(Some(10.0))));
    tell(row("p99", Statistic::P99, ours, vllm, theirs, less(None)));
    let rarely = sampled(LOOKUPS_BETWEEN_SLEEPS, 2 * LIMIT, |sample| {
        std::thread::sleep(ENGINE_SLEEPS);
        once(2 * LOOKUPS + sample)
    });
    let what = "p99, both engines asleep for 100 ms before";
    tell(row(what, Statistic::P99, rarely, "", Ok(Samples::default()), Judge::Below(2000.0)));
}

fn lookup_of_vllm(rivals: &Rivals) -> Result<Samples, String> {
    let mut tier = rivals.vllm(Pace::Busy, true, 64, KEYS)?;
    let seconds = tier.ask(&format!("lookup {LOOKUP_KEYS} {LOOKUPS}"))?;
    Ok(seconds.into_iter().map(|seconds| seconds * 1e6).collect())
}
