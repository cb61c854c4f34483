//! Loads of a whole shape by the library, in turn with something else that moves the same blocks.

use std::time::{Duration, Instant};

use crate::node::{Consumer, cpu_time};
use crate::producer::Producer;
use crate::sample::Samples;
use crate::shape::Shape;

/// What else moves blocks.
pub trait Opponent {
    /// Before each run.
    fn prepare(&mut self) {}

    /// Moves all blocks of the shape; how long that took.
    fn run(&mut self) -> Result<Duration, String>;

    /// That it moved them right, after each run.
    fn check(&mut self) {}

    /// It takes no CPU until [`Self::wake`].
    fn rest(&mut self) {}

    fn wake(&mut self) {}
}

/// How often, and how long if that takes too long.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub runs: usize,
    pub limit: Duration,
    /// However long they take: of fewer a median means nothing.
    pub least_runs: usize,
}

/// Speeds in GB/s (10^9 bytes).
#[derive(Debug, Default)]
pub struct Race {
    pub ours: Samples,
    pub theirs: Samples,
    /// Seconds of CPU time for each GB: both sides of ours, and what this process has of theirs.
    pub our_cpu: Samples,
    pub their_cpu: Samples,
}

impl Race {
    pub fn append(&mut self, other: &Race) {
        self.ours.append(&other.ours);
        self.theirs.append(&other.theirs);
        self.our_cpu.append(&other.our_cpu);
        self.their_cpu.append(&other.their_cpu);
    }
}

/// Two tiers of the library that are ready for one another.
pub struct Ours {
    shape: Shape,
    producer: Producer,
    consumer: Consumer,
    runs: u64,
}

impl Ours {
    pub fn start(shape: Shape) -> Ours {
        let producer = Producer::start(shape);
        let consumer = Consumer::connect(shape, producer.id());
        let mut ours = Ours { shape, producer, consumer, runs: 0 };
        // The first makes the data connections.
        ours.run();
        ours.producer.check_way(shape);
        ours
    }

    fn run(&mut self) -> (Duration, Duration) {
        let load = self.consumer.look_up_all(self.runs);
        self.runs += 1;
        let before = cpu_time() + self.producer.cpu_time();
        let begin = Instant::now();
        self.consumer.load(&load);
        let took = begin.elapsed();
        let cpu = cpu_time() + self.producer.cpu_time() - before;
        self.consumer.check(&load);
        self.consumer.finish(&load);
        (took, cpu)
    }

    pub fn against(&mut self, opponent: &mut dyn Opponent, bounds: Bounds) -> Result<Race, String> {
        let gb = self.shape.bytes() as f64 / 1e9;
        let limit = Instant::now() + bounds.limit;
        let mut race = Race::default();
        for run in 0..=bounds.runs {
            opponent.wake();
            opponent.prepare();
            let before = cpu_time();
            let theirs = opponent.run()?;
            let their_cpu = cpu_time() - before;
            opponent.check();
            opponent.rest();
            let (ours, our_cpu) = self.run();
            // The first of each finds cold caches and new connections.
            if run == 0 {
                continue;
            }
            race.theirs.push(gb / theirs.as_secs_f64());
            race.their_cpu.push(their_cpu.as_secs_f64() / gb);
            race.ours.push(gb / ours.as_secs_f64());
            race.our_cpu.push(our_cpu.as_secs_f64() / gb);
            if run >= bounds.least_runs && Instant::now() > limit {
                break;
            }
        }
        Ok(race)
    }
}
