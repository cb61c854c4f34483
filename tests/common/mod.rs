//! A tier with a region of its own, and what tests do with it.
#![allow(dead_code, reason = "each test program uses its part")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use p2pkv::data::Region;
use p2pkv::protocol::config::{Limits, Timeouts};
use p2pkv::protocol::ids::{JobId, RequestId};
use p2pkv::protocol::job::{JobResult, LookupState};
use p2pkv::protocol::keys::KeysView;
use p2pkv::tier::{ProgressMode, RequestOptions, Tier, TierConfig, TransportChoice};

pub const KEY_LEN: usize = 36;

/// No condition of a test takes longer than this unless something is wrong.
pub const BOUND: Duration = Duration::from_secs(20);

/// A tier and the memory it shares. The tier is dropped first.
pub struct Node {
    pub tier: Arc<Tier>,
    pub region: Box<[u8]>,
    pub block_len: usize,
}

pub struct NodeOptions {
    pub num_blocks: u32,
    pub block_len: usize,
    pub host: String,
    pub port: u16,
    pub progress: ProgressMode,
    pub fingerprint: String,
    pub hash_seed: String,
    pub timeouts: Timeouts,
    pub max_peers: usize,
    pub transport: TransportChoice,
    /// Whether peers read this one's memory themselves.
    pub same_host: bool,
    pub limits: Limits,
}

impl Default for NodeOptions {
    fn default() -> Self {
        NodeOptions {
            num_blocks: 64,
            block_len: 4096,
            host: "127.0.0.1".to_owned(),
            port: 0,
            progress: ProgressMode::Thread,
            fingerprint: String::new(),
            hash_seed: "vllm-none-hash".to_owned(),
            timeouts: Timeouts::default(),
            max_peers: 128,
            // What is the same wherever the tests run; tests of NIXL choose it.
            transport: TransportChoice::Tcp,
            same_host: true,
            limits: Limits::default(),
        }
    }
}

impl Node {
    pub fn new(options: NodeOptions) -> Node {
        Node::try_new(options).unwrap()
    }

    pub fn try_new(options: NodeOptions) -> p2pkv::protocol::error::Result<Node> {
        let mut region = vec![0u8; options.num_blocks as usize * options.block_len].into_boxed_slice();
        // SAFETY: the box outlives the tier: fields are dropped in order, and `Tier` ends its transports when dropped.
        let memory =
            unsafe { Region::new(region.as_mut_ptr(), options.num_blocks, options.block_len) }.unwrap();
        let tier = Tier::new(TierConfig {
            host: options.host,
            advertised_host: None,
            port: options.port,
            data_port: 0,
            tcp_streams: 2,
            tcp_congestion: None,
            nixl_backends: vec!["UCX".to_owned()],
            nixl_threads: 0,
            region: memory,
            region_file: None,
            same_host: options.same_host,
            config_fingerprint: options.fingerprint,
            hash_seed: options.hash_seed,
            transport: options.transport,
            progress: options.progress,
            spin: Duration::ZERO,
            max_peers: options.max_peers,
            limits: options.limits,
            timeouts: options.timeouts,
        })?;
        Ok(Node { tier, region, block_len: options.block_len })
    }

    pub fn fill(&mut self, block: usize, tag: u64) {
        let block_len = self.block_len;
        pattern(tag, &mut self.region[block * block_len..][..block_len]);
    }

    pub fn block(&self, block: usize) -> &[u8] {
        &self.region[block * self.block_len..][..self.block_len]
    }

    pub fn holds(&self, block: usize, tag: u64) -> bool {
        let mut expected = vec![0; self.block_len];
        pattern(tag, &mut expected);
        self.block(block) == expected
    }

    pub fn producer(&self, id: &str) -> RequestId {
        self.request(&format!(r#"{{"remote_decoder":{{"kv_request_id":"{id}"}}}}"#))
    }

    pub fn pd_consumer(&self, id: &str, of: &Node) -> RequestId {
        self.request(&self.source("remote_prefiller", id, of))
    }

    pub fn symmetric(&self, id: &str, of: &Node) -> RequestId {
        self.request(&self.source("remote_kv_source", id, of))
    }

    fn source(&self, role: &str, id: &str, of: &Node) -> String {
        let peer = of.tier.local_id();
        format!(
            r#"{{"{role}":{{"kv_request_id":"{id}","remote_host":"{}","remote_port":{}}}}}"#,
            peer.host(),
            peer.port()
        )
    }

    pub fn request(&self, params: &str) -> RequestId {
        let options =
            RequestOptions { kv_transfer_params_json: params.to_owned(), ..RequestOptions::default() };
        self.tier.request_new(&options).unwrap()
    }

    /// Looks keys up and waits for the answers.
    pub fn look_up(&self, request: RequestId, keys: &[u8]) -> Vec<LookupState> {
        let view = KeysView::new(keys, KEY_LEN).unwrap();
        let mut states = vec![LookupState::Retry; view.len()];
        self.tier.lookup(request, view, &mut states).unwrap();
        assert!(self.tier.wait_lookups(request, Some(BOUND)).unwrap(), "lookups were answered");
        self.tier.lookup(request, view, &mut states).unwrap();
        states
    }

    pub fn load(&self, request: RequestId, job: u64, keys: &[u8], blocks: &[u32]) {
        self.tier.submit_load(request, JobId(job), KeysView::new(keys, KEY_LEN).unwrap(), blocks).unwrap();
    }

    pub fn store(&self, request: RequestId, job: u64, keys: &[u8], blocks: &[u32]) {
        self.tier.submit_store(request, JobId(job), KeysView::new(keys, KEY_LEN).unwrap(), blocks).unwrap();
    }

    /// Waits for `count` results, in the order of their job ids.
    pub fn results(&self, count: usize) -> Vec<JobResult> {
        let deadline = Instant::now() + BOUND;
        let mut results = Vec::new();
        while results.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            let arrived = self.tier.wait_finished(&mut results, count, Some(left)).unwrap();
            assert!(arrived, "only {} of {count} results within {BOUND:?}: {results:?}", results.len());
        }
        results.sort_by_key(|result| result.job);
        results
    }

    pub fn result(&self) -> JobResult {
        self.results(1).remove(0)
    }

    pub fn has_no_result(&self) -> bool {
        let mut results = Vec::new();
        self.tier.poll_finished(&mut results, 1).unwrap();
        results.is_empty()
    }
}

/// Keys for tags, packed.
pub fn keys(tags: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let mut packed = Vec::new();
    for tag in tags {
        let mut key = [0u8; KEY_LEN];
        pattern(tag ^ 0x5eed, &mut key);
        packed.extend_from_slice(&key);
    }
    packed
}

/// Bytes that no other tag has.
pub fn pattern(tag: u64, bytes: &mut [u8]) {
    let mut state = tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
    for chunk in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let word = state.to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Waits until `done`, a bounded time.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + BOUND;
    while !done() {
        assert!(Instant::now() < deadline, "not within {BOUND:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
