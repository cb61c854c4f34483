//! A tier in a process of its own that many peers come to, asked about what they cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use p2pkv::protocol::ids::JobId;
use p2pkv::protocol::job::PeerState;
use p2pkv::protocol::keys::KeysView;
use p2pkv::tier::{ProgressMode, RequestOptions, Tier};

use crate::child::Child;
use crate::node::{KEY_LEN, Node, NodeOptions, content, push_key};
use crate::sample::Samples;
use crate::shape::Shape;

const ROLE: &str = "--host";
/// What `statm` counts in, on x86-64 and most others.
const PAGE: usize = 4096;
const POLLS: usize = 4000;
const STORES_OUTLAST: Duration = Duration::from_secs(3600);
const STEP: Duration = Duration::from_millis(20);

const BETWEEN_POLLS: Duration = Duration::from_micros(200);

const CALLER: &str = "caller";
const THREAD: &str = "thread";

/// Plays the host, if the arguments say so: publishes every block and serves until the standard input ends.
pub fn serve_if_asked_for(arguments: &[String]) -> bool {
    let [role, block_len, blocks, way, max_peers, progress] = arguments else { return false };
    if role != ROLE {
        return false;
    }
    let shape = Shape::from_arguments(block_len, blocks, way);
    let progress = if progress == CALLER { ProgressMode::Caller } else { ProgressMode::Thread };
    let options = NodeOptions { max_peers: max_peers.parse().unwrap(), progress };
    Host::new(Node::with(shape, options, content), shape, progress).serve();
    true
}

struct Host {
    node: Node,
    /// Makes progress where the tier does not by itself, unless `Driver::pause` says not to.
    driver: Option<Driver>,
    watch: Option<JoinHandle<Samples>>,
    watching: Arc<AtomicBool>,
}

impl Host {
    fn new(node: Node, shape: Shape, progress: ProgressMode) -> Host {
        let mut keys = Vec::new();
        (0..shape.blocks).for_each(|block| push_key(block, &mut keys));
        let blocks: Vec<u32> = (0..shape.blocks as u32).collect();
        node.tier.publish(KeysView::new(&keys, KEY_LEN).unwrap(), &blocks).unwrap();
        let driver = (progress == ProgressMode::Caller).then(|| Driver::start(&node.tier));
        Host { node, driver, watch: None, watching: Arc::default() }
    }

    fn serve(mut self) {
        println!("{}", self.node.tier.local_id());
        for line in std::io::stdin().lines() {
            let line = line.unwrap();
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["resident"] => println!("{}", resident_bytes()),
                ["poll"] => println!("{}", self.poll_time()),
                ["peers", count] => println!("{}", self.await_peers(count.parse().unwrap())),
                ["park", requests, blocks] => {
                    park(&self.node, requests.parse().unwrap(), blocks.parse().unwrap());
                    println!("parked");
                }
                ["watch"] => {
                    self.watch_calls();
                    println!("watching");
                }
                ["watched"] => println!("{}", self.watched()),
                ["free"] => println!("{}", self.free()),
                _ => panic!("unknown command {line:?}"),
            }
        }
    }

    /// Median nanoseconds of one that finds nothing. In caller mode that is all of the tier's work.
    fn poll_time(&mut self) -> f64 {
        self.driver.iter().for_each(Driver::pause);
        let mut results = Vec::with_capacity(1);
        let times = (0..POLLS).map(|_| {
            let begin = Instant::now();
            self.node.tier.poll_finished(&mut results, 1).unwrap();
            begin.elapsed().as_nanos() as f64
        });
        let median = times.collect::<Samples>().median();
        self.driver.iter().for_each(Driver::go_on);
        median
    }

    /// Milliseconds until there are so many peers, all ready.
    fn await_peers(&self, count: usize) -> f64 {
        let begin = Instant::now();
        let are_there = || {
            let peers = self.node.tier.peers().unwrap();
            peers.len() == count && peers.iter().all(|peer| peer.state == PeerState::Ready)
        };
        while !are_there() {
            std::thread::sleep(STEP);
        }
        begin.elapsed().as_secs_f64() * 1e3
    }

    /// An engine with little to do, and how long its calls take.
    fn watch_calls(&mut self) {
        self.watching.store(true, Ordering::Release);
        self.driver.iter().for_each(|driver| driver.longest.store(0, Ordering::Release));
        let (tier, watching) = (Arc::clone(&self.node.tier), Arc::clone(&self.watching));
        self.watch = Some(std::thread::spawn(move || {
            let mut times = Vec::new();
            while watching.load(Ordering::Acquire) {
                engine_calls(&tier, &mut times);
                std::thread::sleep(Duration::from_micros(50));
            }
            times.into_iter().collect()
        }));
    }

    /// Microseconds: of 999 of 1000 calls, and of the longest, polls included where they make the progress.
    fn watched(&mut self) -> String {
        self.watching.store(false, Ordering::Release);
        let times = self.watch.take().unwrap().join().unwrap();
        let polls = self.driver.iter().map(|driver| driver.longest.load(Ordering::Acquire) as f64 / 1e3);
        format!("{} {}", times.percentile(0.999), polls.fold(times.percentile(1.0), f64::max))
    }

    /// Milliseconds.
    fn free(&mut self) -> f64 {
        self.driver.take();
        let begin = Instant::now();
        self.node.tier.shut_down();
        begin.elapsed().as_secs_f64() * 1e3
    }
}

fn engine_calls(tier: &Tier, times: &mut Vec<f64>) {
    let timed = |times: &mut Vec<f64>, begin: Instant| times.push(begin.elapsed().as_secs_f64() * 1e6);
    let begin = Instant::now();
    let Ok(request) = tier.request_new(&RequestOptions::default()) else { return };
    timed(times, begin);
    let begin = Instant::now();
    let policy = tier.offload_policy(request);
    timed(times, begin);
    let begin = Instant::now();
    let finished = tier.request_finish(request);
    timed(times, begin);
    let _ = (policy, finished);
}

/// A thread that polls for results, as an engine's own would.
struct Driver {
    paused: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    /// Nanoseconds of the longest call.
    longest: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    fn start(tier: &Arc<Tier>) -> Driver {
        let (paused, over) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let longest = Arc::<AtomicU64>::default();
        let (tier, is_paused, is_over) = (Arc::clone(tier), Arc::clone(&paused), Arc::clone(&over));
        let told = Arc::clone(&longest);
        let thread = std::thread::spawn(move || {
            let mut results = Vec::new();
            while !is_over.load(Ordering::Acquire) {
                if !is_paused.load(Ordering::Acquire) {
                    let begin = Instant::now();
                    let _ = tier.poll_finished(&mut results, 1);
                    told.fetch_max(begin.elapsed().as_nanos() as u64, Ordering::AcqRel);
                }
                std::thread::sleep(BETWEEN_POLLS);
            }
        });
        Driver { paused, over, longest, thread: Some(thread) }
    }

    fn pause(&self) {
        self.paused.store(true, Ordering::Release);
        std::thread::sleep(3 * STEP);
    }

    fn go_on(&self) {
        self.paused.store(false, Ordering::Release);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let resident: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
    resident * PAGE
}

/// Stores that nobody fetches, each of a request of its own and with keys of its own.
fn park(node: &Node, requests: usize, blocks: usize) {
    for number in 0..requests {
        let options = RequestOptions {
            kv_transfer_params_json: format!(r#"{{"remote_decoder":{{"kv_request_id":"parked-{number}"}}}}"#),
            store_timeout: Some(STORES_OUTLAST),
            ..RequestOptions::default()
        };
        let request = node.tier.request_new(&options).unwrap();
        let mut keys = Vec::new();
        (0..blocks).for_each(|block| push_key(1 << 40 | number << 16 | block, &mut keys));
        let indexes: Vec<u32> = (0..blocks as u32).collect();
        let keys = KeysView::new(&keys, KEY_LEN).unwrap();
        node.tier.submit_store(request, JobId(number as u64), keys, &indexes).unwrap();
    }
}

/// The host as the other processes see it.
pub struct Inn {
    process: Child,
    id: String,
}

/// The longest of many engine calls, and the longest but for one in a thousand, in microseconds.
pub struct Calls {
    pub nearly_all: f64,
    pub longest: f64,
}

impl Inn {
    pub fn open(shape: Shape, max_peers: usize, progress: ProgressMode) -> Inn {
        let progress = if progress == ProgressMode::Caller { CALLER } else { THREAD };
        let mut arguments = vec![ROLE.to_owned()];
        arguments.extend(shape.arguments());
        arguments.extend([max_peers.to_string(), progress.to_owned()]);
        let mut process = Child::of_this_program(&arguments);
        let id = process.answer();
        Inn { process, id }
    }

    /// `host:port` of its control socket.
    pub fn id(&self) -> &str {
        &self.id
    }

    fn number(&mut self, question: &str) -> f64 {
        self.process.ask(question).parse().unwrap()
    }

    pub fn resident_bytes(&mut self) -> f64 {
        self.number("resident")
    }

    /// Nanoseconds of a poll for results that finds none.
    pub fn poll_time(&mut self) -> f64 {
        self.number("poll")
    }

    pub fn await_peers(&mut self, count: usize) {
        self.number(&format!("peers {count}"));
    }

    pub fn park(&mut self, requests: usize, blocks: usize) {
        assert_eq!(self.process.ask(&format!("park {requests} {blocks}")), "parked");
    }

    pub fn watch_calls(&mut self) {
        assert_eq!(self.process.ask("watch"), "watching");
    }

    pub fn watched(&mut self) -> Calls {
        let answer = self.process.ask("watched");
        let numbers: Vec<f64> = answer.split(' ').map(|number| number.parse().unwrap()).collect();
        Calls { nearly_all: numbers[0], longest: numbers[1] }
    }

    /// Milliseconds that freeing the tier takes.
    pub fn free(&mut self) -> f64 {
        self.number("free")
    }

    /// CPU time so far of its threads of that name.
    pub fn cpu_time_of(&self, thread: &str) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.pid())).unwrap();
        let of = |task: std::fs::DirEntry| {
            let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            let nanos = read("schedstat").split(' ').next().and_then(|nanos| nanos.parse().ok());
            if read("comm").trim_end() == thread { nanos.unwrap_or(0) } else { 0 }
        };
        Duration::from_nanos(tasks.map(|task| of(task.unwrap())).sum())
    }
}
