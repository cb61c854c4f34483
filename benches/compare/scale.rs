//! What grows with peers, blocks, parked stores and threads, and by how much.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use p2pkv::protocol::job::PeerState;

use crate::child::Child;
use crate::node::{Consumer, Node, cpu_time};
use crate::producer::Producer;
use crate::row::{Judge, Row, Section};
use crate::sample::{Samples, Statistic};
use crate::shape::{Shape, Way};

const CROWD: &str = "--crowd";
const PEERS: usize = 100;
const PARKED_STORES: usize = 100;
const BLOCKS_OF_A_STORE: usize = 1000;
const IDLE_SPAN: Duration = Duration::from_secs(2);
const HANDSHAKES: usize = 9;
const THREADS: usize = 32;
const THREAD_RUNS: usize = 5;
const THREAD_SPAN: Duration = Duration::from_millis(400);
const POLLED_KEYS: usize = 256;
const BOUND: Duration = Duration::from_secs(20);

/// Plays the crowd, if the arguments say so: many small tiers in one process, each with something asked of the peer.
pub fn serve_if_asked_for(arguments: &[String]) -> bool {
    let [role, count, peer] = arguments else { return false };
    if role != CROWD {
        return false;
    }
    let shape = Shape { block_len: 64, blocks: 8, way: Way::Mapped };
    let crowd: Vec<Consumer> = (0..count.parse().unwrap()).map(|_| Consumer::connect(shape, peer)).collect();
    println!("ready");
    std::io::stdin().lines().for_each(drop);
    drop(crowd);
    true
}

fn row(what: String, unit: &'static str, ours: Samples, against: &str, theirs: Samples, judge: Judge) -> Row {
    Row {
        section: Section::Scale,
        what,
        unit,
        statistic: Statistic::Median,
        ours,
        against: against.to_owned(),
        theirs: Ok(theirs),
        judge,
        aside: String::new(),
    }
}

/// From the first request to a ready session.
pub fn adding_a_peer(way: Way, tell: &mut impl FnMut(Row)) {
    let times: Vec<(f64, f64)> =
        (0..HANDSHAKES).map(|_| (handshake(way, 1000), handshake(way, 1_000_000))).collect();
    tell(row(
        format!("adding a peer with 1,000,000 blocks, {}", way.name()),
        "ms",
        times.iter().map(|(_, many)| *many).collect(),
        "one with 1,000",
        times.iter().map(|(few, _)| *few).collect(),
        Judge::Growth { at_most: Some(2.0) },
    ));
}

fn handshake(way: Way, blocks: usize) -> f64 {
    let shape = Shape { block_len: 64, blocks, way };
    let (producer, consumer) = (Node::new(shape, |_| 1), Node::new(shape, |_| 1));
    let begin = Instant::now();
    let request = consumer.request("remote_prefiller", &producer.tier.local_id().to_string(), "handshake");
    while consumer.tier.peers().unwrap().iter().all(|peer| peer.state != PeerState::Ready) {
        assert!(begin.elapsed() < BOUND, "no session");
        std::thread::sleep(Duration::from_micros(20));
    }
    let took = begin.elapsed();
    consumer.tier.request_finish(request).unwrap();
    took.as_secs_f64() * 1e3
}

/// A tier in a process of its own, first with one peer, then with many and with parked stores.
pub fn idleness(tell: &mut impl FnMut(Row)) {
    let shape = Shape { block_len: 64, blocks: 8192, way: Way::Mapped };
    let mut host = Producer::start(shape);
    let crowd = |host: &Producer, count: usize| {
        let mut child = Child::of_this_program(&[CROWD.to_owned(), count.to_string(), host.id().to_owned()]);
        assert_eq!(child.answer(), "ready");
        child
    };
    let _first = crowd(&host, 1);
    let (one_poll, one_cpu, one_rss) = (host.poll_time(), idle_share(&mut host), host.resident_bytes());

    let _others = crowd(&host, PEERS);
    let many_rss = host.resident_bytes();
    host.park(PARKED_STORES, BLOCKS_OF_A_STORE);
    let parked_rss = host.resident_bytes();
    let (many_poll, many_cpu) = (host.poll_time(), idle_share(&mut host));

    let single = |value: f64| -> Samples { std::iter::once(value).collect() };
    let crowded = format!("with {} peers and {PARKED_STORES} parked stores", PEERS + 1);
    let growth = Judge::Growth { at_most: None };
    let nanos = single(many_poll);
    tell(row(
        format!("asking an idle tier for results, {crowded}"),
        "ns",
        nanos,
        "one peer",
        single(one_poll),
        growth,
    ));
    let what = format!("idle CPU for each peer, {crowded}");
    let percent = single(many_cpu / (PEERS + 1) as f64);
    tell(row(what, "% of one", percent, "one peer", single(one_cpu), growth));
    let kib = (many_rss - one_rss) / 1024.0 / PEERS as f64;
    tell(row("memory for an idle peer".to_owned(), "KiB", single(kib), "", Samples::default(), Judge::Told));
    let bytes = (parked_rss - many_rss) / (PARKED_STORES * BLOCKS_OF_A_STORE) as f64;
    let what = "memory for a parked block, key included".to_owned();
    tell(row(what, "bytes", single(bytes), "", Samples::default(), Judge::Told));
}

/// In percent of a CPU.
fn idle_share(host: &mut Producer) -> f64 {
    let before = host.cpu_time();
    std::thread::sleep(IDLE_SPAN);
    100.0 * (host.cpu_time() - before).as_secs_f64() / IDLE_SPAN.as_secs_f64()
}

/// Two tiers that are ready for one another, in shares of a CPU.
pub fn idle_pair(way: Way, tell: &mut impl FnMut(Row)) {
    let shape = Shape { block_len: 16 << 10, blocks: 1024, way };
    let mut producer = Producer::start(shape);
    let _consumer = Consumer::connect(shape, producer.id());
    let before = cpu_time() + producer.cpu_time();
    std::thread::sleep(IDLE_SPAN);
    let spent = cpu_time() + producer.cpu_time() - before;
    let percent = std::iter::once(100.0 * spent.as_secs_f64() / IDLE_SPAN.as_secs_f64()).collect();
    let what = format!("idle CPU of two tiers, both together, {}", way.name());
    tell(row(what, "% of one", percent, "", Samples::default(), Judge::Told));
}

/// Keys that are answered, asked for again and again, each thread with a request of its own.
pub fn threads(tell: &mut impl FnMut(Row)) {
    let shape = Shape { block_len: 64, blocks: 8192, way: Way::Mapped };
    let producer = Producer::start(shape);
    let consumer = Consumer::connect(shape, producer.id());
    let runs: Vec<(f64, f64)> =
        (0..THREAD_RUNS).map(|run| (polled(&consumer, run, 1), polled(&consumer, run, THREADS))).collect();
    tell(row(
        format!("{THREADS} threads looking up on one tier"),
        "M keys/s",
        runs.iter().map(|(_, many)| *many).collect(),
        "one thread",
        runs.iter().map(|(one, _)| *one).collect(),
        Judge::More { at_least: Some(0.8) },
    ));
}

/// Millions of keys a second.
fn polled(consumer: &Consumer, run: usize, threads: usize) -> f64 {
    let polls: Vec<_> = (0..threads)
        .map(|thread| consumer.begin_polling(&format!("{run}-{threads}-{thread}"), POLLED_KEYS))
        .collect();
    let (over, keys) = (AtomicBool::new(false), AtomicU64::new(0));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for poll in &polls {
            let (over, keys) = (&over, &keys);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    consumer.poll_again(poll);
                    keys.fetch_add(POLLED_KEYS as u64, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(THREAD_SPAN);
        over.store(true, Ordering::Relaxed);
    });
    let took = begin.elapsed();
    polls.iter().for_each(|poll| consumer.end_polling(poll));
    keys.into_inner() as f64 / took.as_secs_f64() / 1e6
}
