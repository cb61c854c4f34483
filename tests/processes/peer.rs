//! An engine in a child process, as the tests see it.

#![allow(dead_code, reason = "each test program uses its part")]

use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::engine::{MARK, VARIABLE};
use crate::common::eventually;

pub use crate::common::BOUND;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

pub const MISS: u64 = 0;
pub const HIT: u64 = 1;

#[derive(Clone, Debug)]
pub struct Config {
    pub host: &'static str,
    /// Empty: as `host`.
    pub advertised_host: &'static str,
    pub port: u16,
    pub data_port: u16,
    pub num_blocks: u64,
    /// All of the region is memory from the start, so that what grows later is something else.
    pub touched: bool,
    pub block_len: u64,
    pub fingerprint: &'static str,
    pub hash_seed: &'static str,
    pub caller_mode: bool,
    /// 0 = the default.
    pub handshake_ms: u64,
    pub load_ms: u64,
    pub lookup_ms: u64,
    pub store_ms: u64,
    pub unbound_store_ms: u64,
    pub max_peers: u32,
    pub memory: Memory,
}

/// How others on this host get at an engine's blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// Over tcp, as from any other host: what is promised of that, above all its fence, is looked at everywhere else.
    #[default]
    Apart,
    /// By `process_vm_readv`.
    Own,
    /// Mapped.
    Shared,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            host: "127.0.0.1",
            advertised_host: "",
            port: 0,
            data_port: 0,
            num_blocks: 64,
            touched: std::env::var_os("P2PKV_SOAK").is_some(),
            block_len: 16 * KIB,
            fingerprint: "",
            hash_seed: "",
            caller_mode: false,
            handshake_ms: 0,
            load_ms: 0,
            lookup_ms: 0,
            store_ms: 0,
            unbound_store_ms: 0,
            max_peers: 0,
            memory: Memory::Apart,
        }
    }
}

impl Config {
    /// A region that takes long enough to pull to do something meanwhile.
    pub fn large() -> Config {
        Config { num_blocks: 128, block_len: 2 * MIB, ..Config::default() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub job: u64,
    pub name: String,
    pub flags: u64,
    pub bytes: u64,
    /// From submission to the result, as the library says.
    pub took: Duration,
    pub detail: String,
}

/// Deadlines of one request in milliseconds; 0 = the tier's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    pub load_ms: u64,
    pub lookup_ms: u64,
    pub store_ms: u64,
}

/// Where an engine runs: what the command line of its process begins with, and the limits it is given.
#[derive(Clone, Debug, Default)]
pub struct Place {
    pub wrapper: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// Resource and limit, as `setrlimit` has them.
    pub limits: Vec<(libc::c_int, u64)>,
}

/// How the calls of an engine went that must not wait.
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    pub count: u64,
    pub median_us: u64,
    /// How many took more than 50 ms.
    pub slow: u64,
    pub longest_us: u64,
}

#[derive(Debug)]
pub struct Refusal {
    pub status: i64,
    pub text: String,
}

/// Ends the process when dropped, and waits for its end.
pub struct Engine {
    child: Child,
    stdin: ChildStdin,
    answers: Receiver<Value>,
    id: String,
    stopped: Cell<bool>,
}

impl Engine {
    /// Starts the process and its tier.
    pub fn new(config: &Config) -> Engine {
        let mut engine = Engine::without_tier();
        engine.open(config).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        engine
    }

    pub fn without_tier() -> Engine {
        Engine::at(&Place::default())
    }

    /// The process, without a tier, somewhere.
    pub fn at(place: &Place) -> Engine {
        let this = std::env::current_exe().unwrap();
        let mut words = place.wrapper.iter().map(String::as_str).chain([this.to_str().unwrap()]);
        let mut command = Command::new(words.next().unwrap());
        command
            .args(words)
            .args(["--exact", "engine::engine_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, "1")
            .envs(place.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let limits = place.limits.clone();
        // SAFETY: prctl and setrlimit may be called between fork and exec. The first lets the child die with the test's
        // thread.
        unsafe {
            command.pre_exec(move || {
                let mut worked = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0;
                for (resource, limit) in &limits {
                    let limit = libc::rlimit { rlim_cur: *limit, rlim_max: *limit };
                    worked &= libc::setrlimit(*resource as _, &limit) == 0;
                }
                if worked { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            });
        }
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (answer, answers) = channel();
        // Ends with the child's output.
        std::thread::spawn(move || {
            for line in stdout.lines() {
                let Ok(line) = line else { break };
                // The harness prints the test's name, without an end of line, before the first.
                let Some((_, said)) = line.split_once(MARK) else { continue };
                if answer.send(serde_json::from_str(said).unwrap()).is_err() {
                    break;
                }
            }
        });
        Engine { child, stdin, answers, id: String::new(), stopped: Cell::new(false) }
    }

    /// Makes the tier.
    pub fn open(&mut self, config: &Config) -> Result<(), Refusal> {
        let id = self.ask(json!({
            "do": "new",
            "host": config.host,
            "port": config.port,
            "data_port": config.data_port,
            "advertised_host": config.advertised_host,
            "num_blocks": config.num_blocks,
            "touched": u8::from(config.touched),
            "block_len": config.block_len,
            "fingerprint": config.fingerprint,
            "hash_seed": config.hash_seed,
            "progress": u32::from(config.caller_mode),
            "handshake_ms": config.handshake_ms,
            "load_ms": config.load_ms,
            "lookup_ms": config.lookup_ms,
            "max_peers": config.max_peers,
            "memory": config.memory as u64,
            "store_ms": config.store_ms,
            "unbound_store_ms": config.unbound_store_ms,
        }))?;
        self.id = id.as_str().unwrap().to_owned();
        Ok(())
    }

    fn ask(&mut self, call: Value) -> Result<Value, Refusal> {
        self.say(&call);
        self.answer(&call["do"])
    }

    fn say(&mut self, call: &Value) {
        assert!(!self.stopped.get(), "{call} to a process that is stopped");
        writeln!(self.stdin, "{call}").unwrap_or_else(|error| panic!("{call}: {error}"));
    }

    fn answer(&self, call: &Value) -> Result<Value, Refusal> {
        let mut answer = match self.answers.recv_timeout(BOUND + BOUND) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => panic!("no answer to {call} from engine {}", self.id),
            Err(RecvTimeoutError::Disconnected) => panic!("engine {} died in {call}", self.id),
        };
        match answer.get("error") {
            None => Ok(answer["ok"].take()),
            Some(text) => Err(Refusal {
                status: answer["status"].as_i64().unwrap(),
                text: text.as_str().unwrap().to_owned(),
            }),
        }
    }

    fn get(&mut self, call: Value) -> Value {
        let what = call.to_string();
        self.ask(call).unwrap_or_else(|refusal| panic!("{:.100}: {refusal:?}", what))
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn port(&self) -> u16 {
        self.id.rsplit_once(':').unwrap().1.parse().unwrap()
    }

    // ---- memory ----

    pub fn fill(&mut self, blocks: &[u32], tags: &[u64]) {
        self.get(json!({ "do": "fill", "blocks": blocks, "tags": tags }));
    }

    /// Checks every byte.
    pub fn assert_holds(&mut self, blocks: &[u32], tags: &[u64]) {
        let difference = self.difference(blocks, tags);
        assert_eq!(difference, Value::Null, "block and byte that differ, in engine {}", self.id);
    }

    pub fn differs(&mut self, blocks: &[u32], tags: &[u64]) -> bool {
        self.difference(blocks, tags) != Value::Null
    }

    fn difference(&mut self, blocks: &[u32], tags: &[u64]) -> Value {
        self.get(json!({ "do": "difference", "blocks": blocks, "tags": tags }))
    }

    /// Fills blocks and lets peers have them.
    pub fn publish(&mut self, blocks: &[u32], tags: &[u64]) {
        self.fill(blocks, tags);
        self.republish(blocks, tags);
    }

    /// Lets peers have what the blocks hold.
    pub fn republish(&mut self, blocks: &[u32], tags: &[u64]) {
        self.get(json!({ "do": "publish", "blocks": blocks, "tags": tags }));
    }

    /// False if a peer holds one of them.
    pub fn unpublish(&mut self, tags: &[u64]) -> bool {
        self.get(json!({ "do": "unpublish", "tags": tags })) == 0
    }

    // ---- requests ----

    pub fn try_request(&mut self, name: &str, params: &str, times: Times) -> Result<(), Refusal> {
        let Times { load_ms, lookup_ms, store_ms } = times;
        let call = json!({
            "do": "request", "name": name, "params": params,
            "load_ms": load_ms, "lookup_ms": lookup_ms, "store_ms": store_ms,
        });
        self.ask(call).map(drop)
    }

    pub fn request(&mut self, name: &str, params: &str) {
        self.try_request(name, params, Times::default())
            .unwrap_or_else(|refusal| panic!("{name}: {refusal:?}"));
    }

    pub fn serve(&mut self, id: &str) {
        self.request(id, &producer(id));
    }

    /// Without lookup.
    pub fn pull_from(&mut self, id: &str, peer: &str) {
        self.request(id, &pd(id, peer));
    }

    /// With lookup.
    pub fn ask_from(&mut self, id: &str, peer: &str) {
        self.request(id, &symmetric(id, peer));
    }

    pub fn finish(&mut self, id: &str) {
        self.get(json!({ "do": "finish", "name": id }));
    }

    /// Outcome and text of why the request's peer cannot be used.
    pub fn failure(&mut self, id: &str) -> (u64, String) {
        let found = self.get(json!({ "do": "outcome", "name": id }));
        (found[0].as_u64().unwrap(), found[1].as_str().unwrap().to_owned())
    }

    pub fn look_up(&mut self, id: &str, tags: &[u64]) -> Vec<u64> {
        let timeout_ms = BOUND.as_millis() as u64;
        let found = self.get(json!({ "do": "look_up", "name": id, "tags": tags, "timeout_ms": timeout_ms }));
        found.as_array().unwrap().iter().map(|state| state.as_u64().unwrap()).collect()
    }

    /// Without waiting for answers.
    pub fn look_up_now(&mut self, id: &str, tags: &[u64]) -> Vec<u64> {
        let found = self.get(json!({ "do": "look_up", "name": id, "tags": tags, "timeout_ms": 0 }));
        found.as_array().unwrap().iter().map(|state| state.as_u64().unwrap()).collect()
    }

    pub fn load(&mut self, id: &str, job: u64, tags: &[u64], blocks: &[u32]) {
        self.get(json!({ "do": "load", "name": id, "job": job, "tags": tags, "blocks": blocks }));
    }

    pub fn store(&mut self, id: &str, job: u64, tags: &[u64], blocks: &[u32]) {
        self.get(json!({ "do": "store", "name": id, "job": job, "tags": tags, "blocks": blocks }));
    }

    /// Looks up, loads what is all there, checks the bytes, finishes.
    pub fn pull(&mut self, id: &str, peer: &str, tags: &[u64], blocks: &[u32]) {
        self.ask_from(id, peer);
        assert_eq!(self.look_up(id, tags), vec![HIT; tags.len()], "{:?}", self.failure(id));
        self.load(id, 1, tags, blocks);
        self.result().expect("DONE");
        self.assert_holds(blocks, tags);
        self.finish(id);
    }

    // ---- results ----

    /// At most `count`, by job.
    pub fn results_within(&mut self, count: usize, limit: Duration) -> Vec<Outcome> {
        let limit = limit.as_millis() as u64;
        let found = self.get(json!({ "do": "results", "count": count, "timeout_ms": limit }));
        let mut results: Vec<Outcome> = found.as_array().unwrap().iter().map(outcome).collect();
        results.sort_by_key(|result| result.job);
        results
    }

    /// Exactly `count`, by job.
    pub fn results(&mut self, count: usize) -> Vec<Outcome> {
        let results = self.results_within(count, BOUND);
        assert_eq!(results.len(), count, "results within {BOUND:?}: {results:?}");
        results
    }

    pub fn result(&mut self) -> Outcome {
        self.results(1).remove(0)
    }

    /// A call that waits (`drain`, `lookups` of a request, `results`): its status and how long it took.
    pub fn wait(&mut self, what: &str, id: &str, limit: Duration) -> (i64, Duration) {
        let timeout_ms = limit.as_millis() as u64;
        let found = self.get(json!({ "do": "wait", "for": what, "name": id, "timeout_ms": timeout_ms }));
        (found[0].as_i64().unwrap(), Duration::from_micros(found[1].as_u64().unwrap()))
    }

    pub fn has_no_result_for(&mut self, while_waiting: Duration) -> bool {
        self.results_within(1, while_waiting).is_empty()
    }

    // ---- what an operator sees ----

    pub fn stats(&mut self) -> Value {
        self.get(json!({ "do": "stats" }))
    }

    pub fn stat(&mut self, field: &str) -> u64 {
        self.stats()[field].as_u64().unwrap()
    }

    pub fn peers(&mut self) -> Value {
        self.get(json!({ "do": "peers" }))
    }

    /// How blocks go to a peer, and why so.
    pub fn transport_to(&mut self, peer: &str) -> (String, String) {
        let peers = self.peers();
        let said = peers.as_array().unwrap().iter().find(|known| known["peer"] == peer).unwrap();
        let text = |field: &str| said[field].as_str().unwrap().to_owned();
        (text("transport"), text("detail"))
    }

    /// Waits until no job, request, pin or transfer is left. `published` keys may be.
    pub fn assert_comes_to_rest(&mut self, published: u64) {
        let levels = ["requests", "loads_live", "stores_live", "stores_parked", "blocks_pinned", "pending"];
        let deadline = Instant::now() + BOUND;
        loop {
            let stats = self.stats();
            if levels.iter().all(|level| stats[level] == 0) {
                assert_eq!(stats["keys_published"], published);
                assert_eq!(stats["results_queued"], 0, "a job has two results: {stats}");
                return;
            }
            assert!(Instant::now() < deadline, "engine {} does not come to rest: {stats}", self.id);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Makes `count` scheduling steps that name a peer.
    pub fn steps(&mut self, count: u64, params: &str, tags: &[u64], blocks: &[u32]) {
        self.get(json!({ "do": "steps", "count": count, "params": params, "tags": tags, "blocks": blocks }));
    }

    /// Calls since the last time.
    pub fn calls(&mut self) -> Calls {
        let calls = self.get(json!({ "do": "calls" }));
        let number = |field: &str| calls[field].as_u64().unwrap();
        Calls {
            count: number("count"),
            median_us: number("median_us"),
            slow: number("slow"),
            longest_us: number("longest_us"),
        }
    }

    /// Frees the tier; the process stays.
    pub fn free(&mut self, finish_first: bool) -> Duration {
        let took = self.get(json!({ "do": "free", "finish_first": finish_first }));
        Duration::from_micros(took.as_u64().unwrap())
    }

    /// On another thread than the one that made it.
    pub fn free_elsewhere(&mut self) -> Duration {
        let took = self.get(json!({ "do": "free", "elsewhere": true }));
        Duration::from_micros(took.as_u64().unwrap())
    }

    pub fn begin_free(&mut self) {
        self.say(&json!({ "do": "free", "finish_first": false }));
    }

    pub fn end_free(&mut self) -> Duration {
        let took = self.answer(&json!("free")).unwrap();
        Duration::from_micros(took.as_u64().unwrap())
    }

    // ---- the process ----

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: plain numbers. The child is not reaped yet, so the id is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as libc::pid_t, signal) }, 0);
    }

    /// Freezes the process: when this returns, none of its threads runs.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        self.stopped.set(true);
        eventually("all threads are stopped", || self.tasks().iter().all(|state| *state == 'T'));
    }

    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
        self.stopped.set(false);
    }

    /// The state letter of each thread.
    fn tasks(&self) -> Vec<char> {
        let folder = format!("/proc/{}/task", self.child.id());
        let state = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
            stat.rsplit_once(") ")?.1.chars().next()
        };
        std::fs::read_dir(folder).unwrap().filter_map(state).collect()
    }

    pub fn threads(&self) -> usize {
        self.tasks().len()
    }

    /// Memory in use, in KiB.
    pub fn rss_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn fds(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// kill -9.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // Neither fails for a child that is not reaped; if it is, there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.end();
    }
}

impl Outcome {
    #[track_caller]
    pub fn expect(&self, name: &str) {
        assert_eq!(self.name, name, "{self:?}");
        assert_eq!(self.flags, 0, "{self:?}");
        assert_eq!(self.detail.is_empty(), name == "DONE", "{self:?}");
    }
}

fn outcome(value: &Value) -> Outcome {
    let number = |field: &str| value[field].as_u64().unwrap();
    let text = |field: &str| value[field].as_str().unwrap().to_owned();
    Outcome {
        job: number("job"),
        name: text("outcome"),
        flags: number("flags"),
        bytes: number("bytes"),
        took: Duration::from_micros(number("us")),
        detail: text("detail"),
    }
}

pub fn producer(id: &str) -> String {
    json!({ "remote_decoder": { "kv_request_id": id } }).to_string()
}

pub fn pd(id: &str, peer: &str) -> String {
    source("remote_prefiller", id, peer)
}

pub fn symmetric(id: &str, peer: &str) -> String {
    source("remote_kv_source", id, peer)
}

fn source(role: &str, id: &str, peer: &str) -> String {
    let (host, port) = peer.rsplit_once(':').unwrap();
    let port: u16 = port.parse().unwrap();
    json!({ role: { "kv_request_id": id, "remote_host": host, "remote_port": port } }).to_string()
}

/// A port that nobody listens at now. Outside the range from which the system takes ports for connections, so that it
/// stays free between two lives of a process.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes with numbers in a row begin far from one another.
    let start = (std::process::id().wrapping_mul(7919) % 20_000) as u16;
    let candidate = || 10_000 + start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
    std::iter::repeat_with(candidate)
        .take(1000)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .unwrap()
}

/// 0, 1, 2 … as blocks, and as tags from `first` up.
pub fn blocks(count: u32) -> Vec<u32> {
    (0..count).collect()
}

pub fn tags(first: u64, count: u32) -> Vec<u64> {
    (first..first + u64::from(count)).collect()
}

/// Numbers that look random, the same in every run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
