//! Calls of the C ABI, in any order and with good and bad arguments, on two tiers that can reach each other over
//! loopback. Only what the header calls undefined is left out: stale handles, and pointers to less memory than promised.
//!
//! No call panics or poisons; every status is one of the pinned list; a refused call says why; every accepted job ends
//! in exactly one result of its kind, at the latest soon after all requests were finished.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use p2pkv::capi::*;

use super::script::Script;

const BLOCK_LEN: usize = 64;
const NUM_BLOCKS: usize = 8;
const MOST_KEYS: u32 = 16;
const KEY_LEN: usize = 4;
const MOST_OPERATIONS: usize = 80;
const LOAD: u32 = p2p_job_kind::LOAD as u32;
const STORE: u32 = p2p_job_kind::STORE as u32;

pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let mut tiers = [Tier::new(), Tier::new()];
    let ids = [tiers[0].local_id(), tiers[1].local_id()];
    for _ in 0..MOST_OPERATIONS {
        if script.is_over() {
            break;
        }
        let what = script.byte();
        let at = usize::from(what & 1);
        tiers[at].step(usize::from(what >> 1), &ids[1 - at], &mut script);
        if script.flag() {
            tiers.iter_mut().for_each(|tier| tier.poll(8));
        }
    }
    come_to_rest(&mut tiers);
}

/// All requests end; then every job has its result, without anybody waiting for more than the shortened timeouts.
fn come_to_rest(tiers: &mut [Tier; 2]) {
    for tier in tiers.iter_mut() {
        for request in std::mem::take(&mut tier.requests) {
            // SAFETY: made by `p2p_request_new` and not finished yet.
            tier.expect_ok(unsafe { p2p_request_finish(request) });
        }
        // SAFETY: a live tier; NULL takes the ops away.
        tier.expect_ok(unsafe { p2p_tier_set_serve_ops(tier.handle, ptr::null()) });
    }
    for _ in 0..5_000 {
        tiers.iter_mut().for_each(|tier| tier.wait(1));
        if tiers.iter().all(|tier| tier.engine.jobs.is_empty()) {
            return;
        }
    }
    panic!("jobs without a result: {:?} and {:?}", tiers[0].engine.jobs, tiers[1].engine.jobs);
}

/// What the engine knows, also inside the callbacks. Boxed: the library has its address.
#[derive(Default)]
struct Engine {
    /// Open jobs and their kinds.
    jobs: BTreeMap<u64, u32>,
    last_job: u64,
    /// What the callbacks answer, in turn.
    answers: Vec<u8>,
    at: usize,
    drops: usize,
}

impl Engine {
    fn new_job(&mut self) -> u64 {
        self.last_job += 1;
        self.last_job
    }

    fn answer(&mut self) -> u8 {
        self.at += 1;
        self.answers.get(self.at % self.answers.len().max(1)).copied().unwrap_or(1)
    }
}

/// Freed first, then the memory that it uses.
struct Tier {
    handle: *mut p2p_tier,
    requests: Vec<*mut p2p_request>,
    engine: Box<Engine>,
    ops_given: usize,
    _region: Box<[u8]>,
}

impl Drop for Tier {
    fn drop(&mut self) {
        // SAFETY: alive until here.
        unsafe { p2p_tier_free(self.handle) };
        if !std::thread::panicking() {
            assert_eq!(self.engine.drops, self.ops_given, "each set of ops is dropped once");
        }
    }
}

fn str(text: &str) -> p2p_str {
    p2p_str { data: text.as_ptr().cast(), len: text.len() }
}

fn config(region: &mut [u8]) -> p2p_tier_config {
    // SAFETY: zeros are a valid configuration.
    let mut config: p2p_tier_config = unsafe { std::mem::zeroed() };
    // SAFETY: a whole struct, and its size.
    unsafe { p2p_tier_config_init(&raw mut config, size_of::<p2p_tier_config>()) };
    config.base_addr = region.as_mut_ptr().cast();
    config.num_blocks = NUM_BLOCKS as u64;
    config.block_len = BLOCK_LEN as u64;
    config.transport = p2p_transport::TCP as u32;
    config.progress = p2p_progress::CALLER as u32;
    config.max_keys_per_message = MOST_KEYS;
    config.max_key_len = 40;
    config.max_id_len = 32;
    config.handshake_timeout_ms = 2_000;
    config.lookup_timeout_ms = 100;
    config.load_timeout_ms = 100;
    config.abort_ack_timeout_ms = 100;
    config.store_timeout_ms = 100;
    config.unbound_store_timeout_ms = 20;
    config.serve_timeout_ms = 20;
    config
}

/// Checks what can be said of any status.
fn check(status: p2p_status) -> p2p_status {
    assert!(!matches!(status, p2p_status::PANIC | p2p_status::POISONED), "{status:?}: {}", last_error());
    // SAFETY: a static text.
    let name = unsafe { CStr::from_ptr(p2p_status_name(status as i32)) };
    assert_ne!(name, c"UNKNOWN");
    assert!(status as i32 >= 0 || !last_error().is_empty(), "{status:?} without a word");
    status
}

fn refused(status: p2p_status) {
    assert_eq!(check(status), p2p_status::INVALID_ARGUMENT, "{}", last_error());
}

fn last_error() -> String {
    // SAFETY: a text that lives until this thread's next call.
    unsafe { CStr::from_ptr(p2p_last_error()) }.to_str().expect("UTF-8").to_owned()
}

/// Keys of one call, with the memory they lie in.
struct Keys {
    bytes: Vec<u8>,
    view: p2p_keys,
}

/// One to four of six good keys; or, now and then, something else.
fn keys(script: &mut Script<'_>) -> Keys {
    let count = 1 + script.below(4);
    let bytes: Vec<u8> = (0..count).flat_map(|_| [script.byte() % 6; KEY_LEN]).collect();
    let mut keys = Keys { view: p2p_keys { data: bytes.as_ptr(), key_len: KEY_LEN, count }, bytes };
    match script.byte() {
        0 => keys.view.count = 0,
        1 => keys.view.key_len = 0,
        2 => keys.view.data = ptr::null(),
        3 => keys.view.count = usize::MAX / 2,
        4 => (keys.view.key_len, keys.view.count) = (usize::MAX, 2),
        5 => {
            // Longer, or more, than the tier allows.
            keys.bytes = vec![7; 41 * KEY_LEN];
            let (key_len, count) = if script.flag() { (41, KEY_LEN) } else { (KEY_LEN, 41) };
            keys.view = p2p_keys { data: keys.bytes.as_ptr(), key_len, count };
        }
        _ => {}
    }
    keys
}

/// So many block indexes as the longest keys need; most of them exist.
fn blocks(script: &mut Script<'_>) -> [u32; 64] {
    let first = script.byte();
    let mut blocks = std::array::from_fn(|at| (usize::from(first) + at) as u32 % NUM_BLOCKS as u32);
    if first == 0xFF {
        blocks[0] = u32::MAX - u32::from(script.byte() & 1);
    }
    blocks
}

impl Tier {
    fn new() -> Tier {
        let mut region = vec![0; NUM_BLOCKS * BLOCK_LEN].into_boxed_slice();
        let config = config(&mut region);
        let mut handle = ptr::null_mut();
        // SAFETY: a prepared configuration, and memory that outlives the tier.
        let status = unsafe { p2p_tier_new(&raw const config, &raw mut handle) };
        assert_eq!(status, p2p_status::OK, "{}", last_error());
        Tier { handle, requests: Vec::new(), engine: Box::default(), ops_given: 0, _region: region }
    }

    fn local_id(&self) -> String {
        let mut text = [0_u8; 300];
        let mut len = 0;
        // SAFETY: a live tier, and room as said.
        let status =
            unsafe { p2p_tier_local_id(self.handle, text.as_mut_ptr().cast(), text.len(), &raw mut len) };
        assert_eq!(status, p2p_status::OK);
        String::from_utf8(text[..len].to_vec()).unwrap()
    }

    fn expect_ok(&self, status: p2p_status) {
        assert_eq!(check(status), p2p_status::OK, "{}", last_error());
    }

    fn step(&mut self, what: usize, peer: &str, script: &mut Script<'_>) {
        match what % 16 {
            0 | 1 => self.new_request(peer, script),
            2 => self.finish(script),
            3 => self.look_up(script),
            4 | 5 => self.submit(LOAD, script),
            6 | 7 => self.submit(STORE, script),
            8 => self.publish(script),
            9 => self.unpublish(script),
            10 => self.serve(script),
            11 => self.poll(script.below(4)),
            12 => self.wait(script.below(3) as u64),
            13 => self.observe(script),
            14 => self.call_with_nulls(script),
            _ => self.call_with_nonsense(script),
        }
    }

    // ---- requests and jobs ----

    fn new_request(&mut self, peer: &str, script: &mut Script<'_>) {
        let (host, port) = peer.rsplit_once(':').unwrap();
        let id = script.below(3);
        let source = format!(r#"{{"kv_request_id":"id-{id}","remote_host":"{host}","remote_port":{port}}}"#);
        let params = match script.below(8) {
            0 | 1 => format!(r#"{{"remote_decoder":{{"kv_request_id":"id-{id}"}}}}"#),
            2 | 3 => format!(r#"{{"remote_prefiller":{source}}}"#),
            4 => format!(r#"{{"remote_kv_source":{source}}}"#),
            5 => {
                format!(r#"{{"remote_decoder":{{"kv_request_id":"own-{id}"}},"remote_kv_source":{source}}}"#)
            }
            6 => String::new(),
            _ => String::from_utf8_lossy(script.bytes()).into_owned(),
        };
        let options = p2p_request_options {
            struct_size: size_of::<p2p_request_options>(),
            kv_transfer_params_json: str(&params),
            load_timeout_ms: 0,
            lookup_timeout_ms: 0,
            store_timeout_ms: 0,
        };
        let mut request = ptr::null_mut();
        // SAFETY: a live tier, and whole structs.
        let status = check(unsafe { p2p_request_new(self.handle, &raw const options, &raw mut request) });
        assert_eq!(status == p2p_status::OK, !request.is_null());
        if status == p2p_status::OK {
            self.requests.push(request);
        }
    }

    fn request(&self, script: &mut Script<'_>) -> Option<*mut p2p_request> {
        let which = script.below(4);
        self.requests.get(which % self.requests.len().max(1)).copied()
    }

    fn finish(&mut self, script: &mut Script<'_>) {
        let which = script.below(4);
        if !self.requests.is_empty() {
            let request = self.requests.swap_remove(which % self.requests.len());
            // SAFETY: alive, and forgotten here.
            self.expect_ok(unsafe { p2p_request_finish(request) });
        }
    }

    fn look_up(&mut self, script: &mut Script<'_>) {
        let Some(request) = self.request(script) else { return };
        let keys = keys(script);
        let mut states = [99; 64];
        // SAFETY: a live request; as many states as keys.
        let status = check(unsafe { p2p_lookup(request, &raw const keys.view, states.as_mut_ptr()) });
        let written = states.iter().filter(|state| **state != 99).count();
        assert_eq!(written, if status == p2p_status::OK { keys.view.count } else { 0 });
        if script.flag() {
            // SAFETY: a live tier.
            check(unsafe { p2p_flush_lookups(self.handle) });
        }
        if script.below(4) == 0 {
            // SAFETY: a live request.
            check(unsafe { p2p_wait_lookups(request, script.below(2) as u64) });
        }
        let mut policy = 99;
        // SAFETY: a live request and one integer.
        self.expect_ok(unsafe { p2p_request_offload_policy(request, &raw mut policy) });
        let (mut outcome, mut text, mut len) = (99, [0_u8; 8], 0);
        let (cap, buf) = (script.below(9), text.as_mut_ptr().cast());
        // SAFETY: a live request, and room as said.
        check(unsafe { p2p_request_outcome(request, &raw mut outcome, buf, cap, &raw mut len) });
    }

    fn submit(&mut self, kind: u32, script: &mut Script<'_>) {
        let Some(request) = self.request(script) else { return };
        let (keys, blocks) = (keys(script), blocks(script));
        let is_again = script.byte() == 0;
        // A job is open no longer than until its result is queued: what is queued is taken first.
        while is_again && self.results(8, None) > 0 {}
        let job = if is_again { self.engine.last_job } else { self.engine.new_job() };
        let call = if kind == LOAD { p2p_submit_load } else { p2p_submit_store };
        // SAFETY: a live request; as many indexes as keys.
        let status = check(unsafe { call(request, job, &raw const keys.view, blocks.as_ptr()) });
        if status == p2p_status::OK {
            let open = self.engine.jobs.insert(job, kind);
            assert_eq!(open, None, "job {job} was taken although it is open");
        }
    }

    // ---- results ----

    fn poll(&mut self, capacity: usize) {
        self.results(capacity, None);
    }

    fn wait(&mut self, milliseconds: u64) {
        self.results(8, Some(milliseconds));
    }

    fn results(&mut self, capacity: usize, wait: Option<u64>) -> usize {
        // SAFETY: zeros are a valid result.
        let mut results: [p2p_job_result; 8] = unsafe { std::mem::zeroed() };
        let (to, size, mut count) = (results.as_mut_ptr(), size_of::<p2p_job_result>(), usize::MAX);
        let n = &raw mut count;
        // SAFETY: a live tier, and room for `capacity` results, at most 8.
        let status = check(unsafe {
            match wait {
                None => p2p_poll_finished(self.handle, to, size, capacity, n),
                Some(limit) => p2p_wait_finished(self.handle, to, size, capacity, limit, n),
            }
        });
        assert!(status as i32 >= 0, "{status:?}: {}", last_error());
        assert!(count <= capacity, "{count} results for {capacity}");
        for result in &results[..count] {
            let kind = self.engine.jobs.remove(&result.job_id);
            assert_eq!(kind, Some(result.kind), "the result of job {}", result.job_id);
            // SAFETY: a static text.
            assert_ne!(unsafe { CStr::from_ptr(p2p_outcome_name(result.outcome)) }, c"UNKNOWN");
        }
        count
    }

    // ---- serving ----

    fn publish(&mut self, script: &mut Script<'_>) {
        let (keys, blocks) = (keys(script), blocks(script));
        // SAFETY: a live tier; as many indexes as keys.
        check(unsafe { p2p_publish(self.handle, &raw const keys.view, blocks.as_ptr()) });
    }

    fn unpublish(&mut self, script: &mut Script<'_>) {
        let keys = keys(script);
        let mut states = [99; 64];
        // SAFETY: a live tier; as many states as keys.
        check(unsafe { p2p_unpublish(self.handle, &raw const keys.view, states.as_mut_ptr()) });
    }

    fn serve(&mut self, script: &mut Script<'_>) {
        match script.below(6) {
            0 => {
                // SAFETY: a live tier; NULL takes the ops away.
                self.expect_ok(unsafe { p2p_tier_set_serve_ops(self.handle, ptr::null()) });
            }
            1 | 2 => self.give_ops(script),
            // SAFETY: a live tier.
            _ => self.expect_ok(unsafe { p2p_serve(self.handle) }),
        }
    }

    fn give_ops(&mut self, script: &mut Script<'_>) {
        let variant = script.byte();
        self.engine.answers = script.bytes().to_vec();
        let ops = p2p_serve_ops {
            struct_size: size_of::<p2p_serve_ops>(),
            flags: if variant == 1 { 0x10 } else { 0 },
            reserved: u32::from(variant == 2),
            user_data: (&raw mut *self.engine).cast(),
            new_request: Some(on_new_request),
            lookup: (variant != 3).then_some(on_lookup),
            create_store_job: (variant != 4).then_some(on_create_store_job),
            request_finished: None,
            drop: Some(on_drop),
        };
        // SAFETY: a live tier; the callbacks fit their declarations, and the engine outlives the tier.
        let status = check(unsafe { p2p_tier_set_serve_ops(self.handle, &raw const ops) });
        assert_eq!(status == p2p_status::OK, !matches!(variant, 1..=3), "{}", last_error());
        self.ops_given += usize::from(status == p2p_status::OK);
    }

    // ---- what there is to see, and what is refused ----

    fn observe(&mut self, script: &mut Script<'_>) {
        let mut text = [0_u8; 8];
        let (mut len, mut number, mut fd) = (0, 0, 0);
        // SAFETY: zeros are valid in both.
        let (mut infos, mut stats): ([p2p_peer_info; 2], p2p_tier_statistics) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        stats.struct_size = size_of::<p2p_tier_statistics>();
        let cap = script.below(9);
        let (buf, room, info_size) = (text.as_mut_ptr().cast(), script.below(3), size_of::<p2p_peer_info>());
        // SAFETY: a live tier, and room as said.
        unsafe {
            check(p2p_tier_local_id(self.handle, buf, cap, &raw mut len));
            check(p2p_tier_metrics_text(self.handle, buf, cap, &raw mut len));
            check(p2p_peers(self.handle, infos.as_mut_ptr(), info_size, room, &raw mut len));
            self.expect_ok(p2p_tier_stats(self.handle, &raw mut stats));
            self.expect_ok(p2p_tier_has_pending_work(self.handle, &raw mut number));
            self.expect_ok(p2p_tier_event_fd(self.handle, &raw mut fd));
            check(p2p_tier_drain(self.handle, 0));
        }
        let (is_pending, open) = (number != 0, self.engine.jobs.len());
        assert!(is_pending || open == 0, "no pending work, but {open} jobs are open");
    }

    fn call_with_nulls(&mut self, script: &mut Script<'_>) {
        let (keys, mut number, mut len) = (keys(script), 0, 0);
        let (tier, request) = (self.handle, self.request(script).unwrap_or(ptr::null_mut()));
        // SAFETY: NULL is allowed everywhere and refused; everything else is alive and has room.
        unsafe {
            match script.below(16) {
                0 => refused(p2p_lookup(ptr::null_mut(), &raw const keys.view, &raw mut number)),
                1 => refused(p2p_lookup(request, ptr::null(), &raw mut number)),
                2 => refused(p2p_submit_load(request, 1, ptr::null(), &raw const number)),
                3 => refused(p2p_submit_store(ptr::null_mut(), 1, &raw const keys.view, &raw const number)),
                4 => refused(p2p_publish(tier, ptr::null(), &raw const number)),
                5 => refused(p2p_unpublish(ptr::null(), &raw const keys.view, &raw mut number)),
                6 => refused(p2p_poll_finished(tier, ptr::null_mut(), 256, 1, &raw mut len)),
                7 => refused(p2p_poll_finished(ptr::null(), ptr::null_mut(), 256, 0, &raw mut len)),
                8 => refused(p2p_request_new(tier, ptr::null(), ptr::null_mut())),
                9 => refused(p2p_tier_event_fd(tier, ptr::null_mut())),
                10 => refused(p2p_tier_stats(tier, ptr::null_mut())),
                11 => refused(p2p_tier_local_id(tier, ptr::null_mut(), 8, &raw mut len)),
                12 => {
                    refused(p2p_request_outcome(request, ptr::null_mut(), ptr::null_mut(), 0, &raw mut len))
                }
                13 => refused(p2p_tier_new(ptr::null(), ptr::null_mut())),
                14 => refused(p2p_peers(tier, ptr::null_mut(), size_of::<p2p_peer_info>(), 1, &raw mut len)),
                _ => refused(p2p_tier_has_pending_work(tier, ptr::null_mut())),
            }
        }
    }

    fn call_with_nonsense(&mut self, script: &mut Script<'_>) {
        let mut len = 0;
        // SAFETY: every pointer is alive; sizes are either true or refused before they are believed.
        unsafe {
            match script.below(6) {
                0 => new_tier_of_nonsense(script),
                1 => {
                    let mut results: [p2p_job_result; 1] = std::mem::zeroed();
                    let size = script.below(256);
                    let to = results.as_mut_ptr();
                    refused(p2p_poll_finished(self.handle, to, size, 1, &raw mut len));
                }
                2 => {
                    let mut options: p2p_request_options = std::mem::zeroed();
                    options.struct_size = script.below(8);
                    let mut request = ptr::null_mut();
                    refused(p2p_request_new(self.handle, &raw const options, &raw mut request));
                }
                3 => {
                    let mut stats: p2p_tier_statistics = std::mem::zeroed();
                    stats.struct_size = [0, 7, 5_000, usize::MAX][script.below(4)];
                    refused(p2p_tier_stats(self.handle, &raw mut stats));
                }
                4 => {
                    let mut base = ptr::null_mut();
                    refused(p2p_region_alloc(0, 0, &raw mut base));
                    refused(p2p_region_alloc(64, 2 << script.below(31), &raw mut base));
                    refused(p2p_region_free(ptr::without_provenance_mut(script.u64() as usize | 1)));
                    refused(p2p_log_init(6 + u32::from(script.byte())));
                }
                _ => {
                    let number = script.u64();
                    let known = |name: *const c_char| !CStr::from_ptr(name).is_empty();
                    assert!(known(p2p_status_name(number as i32)) && known(p2p_outcome_name(number as u32)));
                }
            }
        }
    }
}

/// A configuration with one thing wrong.
fn new_tier_of_nonsense(script: &mut Script<'_>) {
    let mut region = vec![0; NUM_BLOCKS * BLOCK_LEN];
    let mut config = config(&mut region);
    match script.below(10) {
        0 => config.struct_size = [0, 7, 5_000, usize::MAX][script.below(4)],
        1 => config.num_blocks = u64::from(u32::MAX) + u64::from(script.byte()),
        2 => config.block_len = 0,
        3 => config.block_len = u64::MAX - u64::from(script.byte()),
        4 => config.transport = 3 + u32::from(script.byte()),
        5 => config.progress = 2 + u32::from(script.byte()),
        6 => config.port = 65_536 + u32::from(script.byte()),
        7 => config.spin_us = 1001,
        8 => config.config_fingerprint = str("not sixteen"),
        _ => config.host = str("\u{0}"),
    }
    let mut handle = ptr::null_mut();
    // SAFETY: a whole struct, and room for one pointer.
    let status = check(unsafe { p2p_tier_new(&raw const config, &raw mut handle) });
    assert!((status as i32) < 0 && handle.is_null(), "{status:?}");
}

// ---- the engine's callbacks ----

/// # Safety
/// `user_data` is a tier's engine.
unsafe fn engine<'a>(user_data: *mut c_void) -> &'a mut Engine {
    // SAFETY: the caller's promise; callbacks come on the one thread that makes the calls.
    unsafe { &mut *user_data.cast::<Engine>() }
}

unsafe extern "C-unwind" fn on_new_request(
    _: *mut c_void,
    _: u64,
    id: *const c_char,
    id_len: usize,
    peer: *const c_char,
    peer_len: usize,
) {
    for (text, len) in [(id, id_len), (peer, peer_len)] {
        // SAFETY: as the header says.
        let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
        assert!(std::str::from_utf8(bytes).is_ok_and(|text| !text.is_empty()));
    }
}

unsafe extern "C-unwind" fn on_lookup(
    user_data: *mut c_void,
    _: u64,
    keys: *const p2p_keys,
    states_out: *mut u32,
) {
    // SAFETY: as the header says.
    let (engine, count) = unsafe { (engine(user_data), (*keys).count) };
    for at in 0..count {
        // The last of them is no state at all.
        let state = u32::from(engine.answer() % 5);
        // SAFETY: one state for each key.
        unsafe { states_out.add(at).write(state) };
    }
}

unsafe extern "C-unwind" fn on_create_store_job(
    user_data: *mut c_void,
    _: u64,
    keys: *const p2p_keys,
    job_id_out: *mut u64,
    block_indexes_out: *mut u32,
) {
    // SAFETY: as the header says.
    let (engine, count) = unsafe { (engine(user_data), (*keys).count) };
    let mut any = false;
    for at in 0..count {
        let block = u32::from(engine.answer()) % (NUM_BLOCKS as u32 + 1);
        if block < NUM_BLOCKS as u32 {
            any = true;
            // SAFETY: one index for each key.
            unsafe { block_indexes_out.add(at).write(block) };
        }
    }
    if any {
        let job = engine.new_job();
        engine.jobs.insert(job, STORE);
        // SAFETY: one integer.
        unsafe { job_id_out.write(job) };
    }
}

unsafe extern "C-unwind" fn on_drop(user_data: *mut c_void) {
    // SAFETY: a tier's engine.
    unsafe { engine(user_data) }.drops += 1;
}
