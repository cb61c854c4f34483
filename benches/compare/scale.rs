//! What grows with peers, blocks, parked stores and threads, and by how much.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use p2pkv::protocol::job::PeerState;
use p2pkv::tier::ProgressMode;

use crate::child::Child;
use crate::crowd::{Crowd, Manners};
use crate::host::{Calls, Inn};
use crate::node::{Consumer, Node, cpu_time};
use crate::producer::Producer;
use crate::row::{Judge, Row, Section};
use crate::sample::{Samples, Statistic};
use crate::shape::{Shape, Way};

const CROWD: &str = "--crowd";
const BUSY: &str = "busy";
/// Of each peer. Together more than what libzmq's pipes have room for at first.
const WAVES: usize = 60;
const LOOKUPS: usize = 10;
const PEERS: usize = 1000;
const PARKED_REQUESTS: usize = 10_000;
const BLOCKS_OF_A_REQUEST: usize = 100;
const PUBLISHED_BLOCKS: usize = 1_000_000;
/// One more than come, and room for those that are evicted near the cap.
const MAX_PEERS: usize = PEERS + 16;
/// Of libp2pkv, and of libzmq: its threads have the name of the one that opened it.
const PROGRESS_THREAD: &str = "p2pkv-progress";
const ZMQ_THREADS: &str = "p2pkv-zmq";
const IDLE_SPAN: Duration = Duration::from_secs(2);
/// Long enough that all peers' heartbeats are in it, and several looks around of the progress thread.
const CROWDED_SPAN: Duration = Duration::from_secs(6);
const HANDSHAKES: usize = 9;
const THREADS: usize = 32;
const THREAD_RUNS: usize = 5;
const THREAD_SPAN: Duration = Duration::from_millis(400);
const POLLED_KEYS: usize = 256;
const BOUND: Duration = Duration::from_secs(60);
const HOST: Shape = Shape { block_len: 64, blocks: PUBLISHED_BLOCKS, way: Way::Tcp { streams: 1 } };

/// Plays the crowd, if the arguments say so. Its CPU time stands for that of other machines, so it comes last.
pub fn serve_if_asked_for(arguments: &[String]) -> bool {
    let [role, count, peer] = arguments else { return false };
    if role != CROWD {
        return false;
    }
    rustix::process::nice(19).unwrap();
    let manners = Manners { block_len: HOST.block_len, hash_seed: "" };
    let mut crowd = Crowd::dial(count.parse().unwrap(), peer, manners);
    crowd.shake_hands(BOUND);
    println!("ready");
    for line in std::io::stdin().lines() {
        assert_eq!(line.unwrap(), BUSY);
        for _ in 0..WAVES {
            crowd.look_up(LOOKUPS, BOUND);
            crowd.finish(LOOKUPS);
        }
        println!("done");
    }
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

/// What a tier has to do that has nothing to do.
struct Idle {
    poll: f64,
    progress: f64,
    zmq: f64,
}

impl Idle {
    fn of(inn: &mut Inn) -> Idle {
        let now = |inn: &Inn| (inn.cpu_time_of(PROGRESS_THREAD), inn.cpu_time_of(ZMQ_THREADS));
        let before = now(inn);
        std::thread::sleep(CROWDED_SPAN);
        let after = now(inn);
        let share = |spent: Duration| 100.0 * spent.as_secs_f64() / CROWDED_SPAN.as_secs_f64();
        let (progress, zmq) = (share(after.0 - before.0), share(after.1 - before.1));
        Idle { poll: inn.poll_time(), progress, zmq }
    }
}

/// A tier in a process of its own, first with one peer, then with many and with parked stores; then they all leave.
pub fn crowd(tell: &mut impl FnMut(Row)) {
    let mut inn = Inn::open(HOST, MAX_PEERS, ProgressMode::Thread);
    let _first = arrive(&mut inn, 1, 1);
    let (one, one_rss) = (Idle::of(&mut inn), inn.resident_bytes());

    inn.watch_calls();
    let begin = Instant::now();
    let mut others = arrive(&mut inn, PEERS - 1, PEERS);
    let arrival = begin.elapsed().as_secs_f64() * 1e3;
    let arriving = inn.watched();
    let many_rss = inn.resident_bytes();
    inn.park(PARKED_REQUESTS, BLOCKS_OF_A_REQUEST);
    let parked_rss = inn.resident_bytes();
    let many = Idle::of(&mut inn);

    tell(against_one("polling for results", "ns", many.poll, one.poll, 2.0));
    tell(against_one("the progress thread's CPU", "% of one", many.progress, one.progress, 2.0));
    tell(below("the progress thread's CPU, crowded", "% of one", many.progress, 1.0));
    tell(told("libzmq's CPU, crowded: heartbeats of every peer, both ways", "% of one", many.zmq));
    let kib = (many_rss - one_rss) / 1024.0 / (PEERS - 1) as f64;
    tell(below("memory for an idle peer", "KiB", kib, 64.0));
    let bytes = (parked_rss - many_rss) / (PARKED_REQUESTS * BLOCKS_OF_A_REQUEST) as f64;
    tell(below("memory for a parked block, key and request included", "bytes", bytes, 128.0));
    assert_eq!(others.ask(BUSY), "done");
    std::thread::sleep(IDLE_SPAN);
    let busy_kib = (inn.resident_bytes() - parked_rss) / 1024.0 / (PEERS - 1) as f64;
    tell(told("memory for an idle peer after 600 lookups", "KiB", kib + busy_kib));
    tell(told(&format!("until {} more peers are ready", PEERS - 1), "ms", arrival));
    calls("they arrive", &arriving, tell);

    inn.watch_calls();
    let begin = Instant::now();
    drop(others);
    inn.await_peers(1);
    tell(told(
        &format!("until {} that died at once are gone", PEERS - 1),
        "ms",
        begin.elapsed().as_secs_f64() * 1e3,
    ));
    calls("they die", &inn.watched(), tell);

    let _again = arrive(&mut inn, PEERS - 1, PEERS);
    tell(below(&format!("freeing a tier with {PEERS} peers"), "ms", inn.free(), 3000.0));
}

/// The same poll where it does all of the tier's work.
pub fn crowd_of_a_caller(tell: &mut impl FnMut(Row)) {
    let mut inn = Inn::open(HOST, MAX_PEERS, ProgressMode::Caller);
    let _first = arrive(&mut inn, 1, 1);
    let one = inn.poll_time();
    inn.watch_calls();
    let _others = arrive(&mut inn, PEERS - 1, PEERS);
    let arriving = inn.watched();
    inn.park(PARKED_REQUESTS, BLOCKS_OF_A_REQUEST);
    tell(against_one("polling without a progress thread", "ns", inn.poll_time(), one, 2.0));
    calls("they arrive, polls without a progress thread included", &arriving, tell);
}

fn arrive(inn: &mut Inn, count: usize, then: usize) -> Child {
    let mut crowd = Child::of_this_program(&[CROWD.to_owned(), count.to_string(), inn.id().to_owned()]);
    assert_eq!(crowd.answer(), "ready");
    inn.await_peers(then);
    crowd
}

fn calls(when: &str, calls: &Calls, tell: &mut impl FnMut(Row)) {
    tell(told(&format!("999 of 1000 engine calls while {when}, at most"), "µs", calls.nearly_all));
    tell(below(&format!("the longest engine call while {when}"), "µs", calls.longest, 5000.0));
}

fn against_one(what: &str, unit: &'static str, many: f64, one: f64, at_most: f64) -> Row {
    let single = |value: f64| -> Samples { std::iter::once(value).collect() };
    let what = format!("{what}, {PEERS} peers, {PARKED_REQUESTS} parked requests");
    row(what, unit, single(many), "one peer", single(one), Judge::Growth { at_most: Some(at_most) })
}

fn below(what: &str, unit: &'static str, value: f64, limit: f64) -> Row {
    alone(what, unit, value, Judge::Below(limit))
}

fn told(what: &str, unit: &'static str, value: f64) -> Row {
    alone(what, unit, value, Judge::Told)
}

fn alone(what: &str, unit: &'static str, value: f64, judge: Judge) -> Row {
    row(what.to_owned(), unit, std::iter::once(value).collect(), "", Samples::default(), judge)
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
