//! A tier with a region, and the consumer's side of what is measured.

use std::sync::Arc;
use std::time::{Duration, Instant};

use p2pkv::data::Region;
use p2pkv::protocol::config::{Limits, Timeouts};
use p2pkv::protocol::ids::{JobId, RequestId};
use p2pkv::protocol::job::{LookupState, Outcome};
use p2pkv::protocol::keys::KeysView;
use p2pkv::tier::{ProgressMode, RequestOptions, Tier, TierConfig, TransportChoice};

use crate::memory::Memory;
use crate::shape::{Shape, Way};

/// A 32-byte block hash and a 4-byte group index, as vLLM's keys.
pub const KEY_LEN: usize = 36;

/// Nothing here takes longer unless something is wrong.
const BOUND: Duration = Duration::from_secs(20);

/// What a tier is told besides its shape.
pub struct NodeOptions {
    pub max_peers: usize,
    pub progress: ProgressMode,
}

impl Default for NodeOptions {
    fn default() -> Self {
        NodeOptions { max_peers: 128, progress: ProgressMode::Thread }
    }
}

/// A tier and its region. The tier ends first.
pub struct Node {
    pub tier: Arc<Tier>,
    memory: Memory,
    words_per_block: usize,
}

impl Node {
    /// `fill`: the word that fills each block.
    pub fn new(shape: Shape, fill: impl Fn(usize) -> u64) -> Node {
        free_something_large();
        Node::with(shape, NodeOptions::default(), fill)
    }

    pub fn with(shape: Shape, options: NodeOptions, fill: impl Fn(usize) -> u64) -> Node {
        let memory = Memory::new(shape.way.memory(), shape.block_len, shape.blocks, fill);
        // SAFETY: the memory outlives the tier, see the order of the fields.
        let region = unsafe { Region::new(memory.start(), shape.blocks as u32, shape.block_len) };
        let tier = Tier::new(TierConfig {
            host: "127.0.0.1".to_owned(),
            advertised_host: None,
            port: 0,
            data_port: 0,
            tcp_streams: shape.way.streams(),
            tcp_congestion: None,
            nixl_backends: vec!["UCX".to_owned()],
            nixl_threads: 0,
            region: region.unwrap(),
            region_file: memory.region_file(),
            same_host: shape.way.is_same_host(),
            config_fingerprint: String::new(),
            hash_seed: String::new(),
            transport: match shape.way {
                Way::Nixl => TransportChoice::Nixl,
                Way::Tcp { .. } | Way::Mapped | Way::VmRead => TransportChoice::Tcp,
            },
            progress: options.progress,
            spin: Duration::ZERO,
            max_peers: options.max_peers,
            limits: Limits::default(),
            timeouts: Timeouts::default(),
        });
        Node { tier: tier.unwrap(), memory, words_per_block: shape.block_len / size_of::<u64>() }
    }

    pub fn request(&self, role: &str, peer: &str, id: &str) -> RequestId {
        let (host, port) = peer.rsplit_once(':').unwrap();
        let kv_transfer_params_json =
            format!(r#"{{"{role}":{{"kv_request_id":"{id}","remote_host":"{host}","remote_port":{port}}}}}"#);
        let options = RequestOptions { kv_transfer_params_json, ..RequestOptions::default() };
        self.tier.request_new(&options).unwrap()
    }

    fn block(&self, block: usize) -> &[u64] {
        &self.memory.words()[block * self.words_per_block..][..self.words_per_block]
    }
}

/// As every engine's process has done before: the C library gives the pages of each large message back to the system and
/// takes them anew, until something larger was freed (`M_TRIM_THRESHOLD` in `mallopt(3)`). Rivals do the same.
fn free_something_large() {
    drop(std::hint::black_box(vec![1_u8; 16 << 20]));
}

/// CPU time of all threads of this process so far.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What fills the producer's block.
pub fn content(block: usize) -> u64 {
    mix(block as u64 + 1)
}

/// The key of the producer's block.
pub fn push_key(block: usize, keys: &mut Vec<u8>) {
    for part in 0..4 {
        keys.extend_from_slice(&mix((block as u64) << 8 | part | 0x80).to_le_bytes());
    }
    keys.extend_from_slice(&0_u32.to_be_bytes());
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// All numbers below `count` in an order that only the seed decides.
fn shuffled(count: usize, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count as u32).collect();
    order.sort_by_key(|number| mix(u64::from(*number) ^ mix(seed)));
    order
}

pub struct Consumer {
    node: Node,
    shape: Shape,
    producer: String,
    /// Of all of the producer's blocks, in order.
    keys: Vec<u8>,
}

/// Looked up, not loaded yet.
pub struct Load {
    request: RequestId,
    job: JobId,
    sources: Vec<u32>,
    keys: Vec<u8>,
    targets: Vec<u32>,
}

/// Looked up, to be asked for again.
pub struct Poll {
    request: RequestId,
    keys: Vec<u8>,
}

impl Consumer {
    /// Ends when the producer has answered for the first time.
    pub fn connect(shape: Shape, producer: &str) -> Consumer {
        let mut keys = Vec::new();
        (0..shape.blocks).for_each(|block| push_key(block, &mut keys));
        let producer = producer.to_owned();
        let consumer = Consumer { node: Node::new(shape, |_| 0), shape, producer, keys };
        consumer.look_up(usize::MAX, 1);
        consumer
    }

    fn request(&self, role: &str, id: &str) -> RequestId {
        self.node.request(role, &self.producer, id)
    }

    /// A pull without a lookup of the producer's first blocks, ready to be submitted.
    pub fn begin_pull(&self, sample: usize, blocks: usize) -> Load {
        let request = self.request("remote_prefiller", &format!("pull-{sample}"));
        let targets = shuffled(blocks, sample as u64);
        let sources = (0..blocks as u32).collect();
        Load { request, job: JobId(2 << 32 | sample as u64), sources, keys: self.first_keys(blocks), targets }
    }

    /// Keys that have been looked up, and are not going to be loaded.
    pub fn begin_polling(&self, name: &str, keys: usize) -> Poll {
        let request = self.request("remote_kv_source", &format!("poll-{name}"));
        let keys = self.first_keys(keys);
        self.wait_for_hits(request, view(&keys));
        Poll { request, keys }
    }

    pub fn poll_again(&self, poll: &Poll) {
        let keys = view(&poll.keys);
        let mut states = vec![LookupState::Retry; keys.len()];
        self.node.tier.lookup(poll.request, keys, &mut states).unwrap();
        assert!(states.iter().all(|state| *state == LookupState::Hit), "a hit was forgotten");
    }

    pub fn end_polling(&self, poll: &Poll) {
        self.node.tier.request_finish(poll.request).unwrap();
    }

    fn first_keys(&self, count: usize) -> Vec<u8> {
        self.keys[..count * KEY_LEN].to_vec()
    }

    /// Everything is a hit before a measured load of everything.
    pub fn look_up_all(&self, run: u64) -> Load {
        let sources = shuffled(self.shape.blocks, 2 * run);
        let mut keys = Vec::with_capacity(self.keys.len());
        sources.iter().for_each(|block| push_key(*block as usize, &mut keys));
        let request = self.request("remote_kv_source", &format!("bulk-{run}"));
        self.wait_for_hits(request, view(&keys));
        Load { request, job: JobId(run), sources, keys, targets: shuffled(self.shape.blocks, 2 * run + 1) }
    }

    fn wait_for_hits(&self, request: RequestId, keys: KeysView<'_>) {
        let tier = &self.node.tier;
        let mut states = vec![LookupState::Retry; keys.len()];
        tier.lookup(request, keys, &mut states).unwrap();
        assert!(tier.wait_lookups(request, Some(BOUND)).unwrap(), "the producer did not answer");
        tier.lookup(request, keys, &mut states).unwrap();
        assert!(states.iter().all(|state| *state == LookupState::Hit), "not all keys are hits");
    }

    pub fn load(&self, load: &Load) {
        self.load_and_wait(load.request, load.job, view(&load.keys), &load.targets);
    }

    fn load_and_wait(&self, request: RequestId, job: JobId, keys: KeysView<'_>, targets: &[u32]) {
        let tier = &self.node.tier;
        tier.submit_load(request, job, keys, targets).unwrap();
        let mut results = Vec::with_capacity(1);
        assert!(tier.wait_finished(&mut results, 1, Some(BOUND)).unwrap(), "the load did not end");
        assert!(results[0].job == job && results[0].outcome == Outcome::Done, "{:?}", results[0]);
    }

    /// Every block holds what the producer has under the key that was loaded into it.
    pub fn check(&self, load: &Load) {
        for (source, target) in load.sources.iter().zip(&load.targets) {
            let expected = content(*source as usize);
            let got = self.node.block(*target as usize);
            assert!(got.iter().all(|word| *word == expected), "block {target} holds wrong bytes");
        }
    }

    pub fn finish(&self, load: &Load) {
        self.node.tier.request_finish(load.request).unwrap();
    }

    /// From `submit_load` to the result in hand.
    pub fn load_one_block(&self, sample: usize) -> Duration {
        let block = sample % self.shape.blocks;
        let request = self.request("remote_prefiller", &format!("one-{sample}"));
        let key = &self.keys[block * KEY_LEN..][..KEY_LEN];
        let begin = Instant::now();
        self.load_and_wait(request, JobId(1 << 32 | sample as u64), view(key), &[block as u32]);
        let took = begin.elapsed();
        self.node.tier.request_finish(request).unwrap();
        took
    }

    /// From the first `lookup` to the answers in hand.
    pub fn look_up(&self, sample: usize, keys: usize) -> Duration {
        let request = self.request("remote_kv_source", &format!("lookup-{sample}"));
        let begin = Instant::now();
        self.wait_for_hits(request, view(&self.keys[..keys * KEY_LEN]));
        let took = begin.elapsed();
        self.node.tier.request_finish(request).unwrap();
        took
    }
}

fn view(keys: &[u8]) -> KeysView<'_> {
    KeysView::new(keys, KEY_LEN).unwrap()
}
