//! One block, from `submit_load` to the result in hand.

use std::time::{Duration, Instant};

use crate::bulk::ours_by;
use crate::node::Consumer;
use crate::producer::Producer;
use crate::rival::{Pace, Rivals};
use crate::row::{Judge, Row, Section};
use crate::sample::{Samples, Statistic};
use crate::shape::{Shape, Way};

const BLOCK_LEN: usize = 16 << 10;
const BLOCKS: usize = 8192;
const LOADS: usize = 4000;
const LIMIT: Duration = Duration::from_secs(5);
const RIVAL_BLOCKS: usize = 1024;
const RIVAL_LOADS: usize = 400;

/// No rival needs to be running meanwhile.
pub fn measure(ways: &[Way], rivals: Option<&Rivals>, tell: &mut impl FnMut(Row)) {
    let paces = [(Pace::Busy, 5.0), (Pace::Paced, 20.0)];
    let theirs = rivals.map(|rivals| paces.map(|(pace, reach)| (pace, reach, of_vllm(rivals, pace))));
    for way in ways {
        let ours = of_ours(*way);
        let what = format!("load of one 16 KiB block, {}", ours_by(*way));
        let row = |statistic, against: String, theirs, judge| Row {
            section: Section::Latency,
            what: format!("{what}, {}", if statistic == Statistic::P99 { "p99" } else { "p50" }),
            unit: "µs",
            statistic,
            ours: ours.clone(),
            against,
            theirs,
            judge,
            aside: String::new(),
        };
        for (pace, reach, theirs) in theirs.iter().flatten() {
            let name = format!("vLLM's tier, {}", pace.name());
            let judge = Judge::Less { at_least: Some(*reach) };
            tell(row(Statistic::Median, name.clone(), theirs.clone(), judge));
            tell(row(Statistic::P99, name, theirs.clone(), Judge::Less { at_least: None }));
        }
        if theirs.is_none() {
            tell(row(Statistic::Median, String::new(), Ok(Samples::default()), Judge::Told));
        }
        let itself: Samples = std::iter::once(ours.median()).collect();
        tell(row(
            Statistic::P99,
            "its own p50".to_owned(),
            Ok(itself),
            Judge::Growth { at_most: Some(10.0) },
        ));
    }
}

fn of_vllm(rivals: &Rivals, pace: Pace) -> Result<Samples, String> {
    let seconds = rivals.vllm(pace, false, BLOCK_LEN, RIVAL_BLOCKS)?.ask(&format!("one {RIVAL_LOADS}"))?;
    Ok(seconds.into_iter().map(|seconds| seconds * 1e6).collect())
}

fn of_ours(way: Way) -> Samples {
    let shape = Shape { block_len: BLOCK_LEN, blocks: BLOCKS, way };
    let mut producer = Producer::start(shape);
    let consumer = Consumer::connect(shape, producer.id());
    let samples = sampled(LOADS, LIMIT, |sample| consumer.load_one_block(sample));
    producer.check_way(shape);
    samples
}

/// Microseconds, after a few that are not counted.
pub fn sampled(count: usize, limit: Duration, sample: impl Fn(usize) -> Duration) -> Samples {
    let warm_up = count / 20;
    for index in 0..warm_up {
        sample(index);
    }
    let limit = Instant::now() + limit;
    let mut samples = Samples::default();
    for index in warm_up..warm_up + count {
        samples.push(sample(index).as_secs_f64() * 1e6);
        if Instant::now() > limit {
            break;
        }
    }
    samples
}
