//! The C functions as an engine calls them, each call timed.
//!
//! What makes all the `unsafe` here sound: every pointer is of a value of its caller's that lives until the call has
//! returned, with the length that is said beside it; a handle is used until it is given back, once, and by one thread.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::mem::{size_of, zeroed};
use std::ptr::{null_mut, slice_from_raw_parts_mut};
use std::time::{Duration, Instant};

use p2pkv::capi::*;
use serde_json::{Value, json};

use crate::common::{KEY_LEN, keys, pattern};

/// The load of a scheduling step that nobody waits for.
const STEP_JOB: u64 = u64::MAX;

/// A status that is an error, and what `p2p_last_error` said.
pub type Refusal = (i32, String);

/// One tier, its region and its requests by the names that the test gave them.
pub struct Tier {
    tier: *mut p2p_tier,
    requests: BTreeMap<String, *mut p2p_request>,
    region: *mut [u8],
    /// The region came from the library.
    shared: bool,
    block_len: usize,
    /// How long each call took that must not wait.
    calls: Vec<Duration>,
    /// Results that came in a scheduling step.
    polled: Vec<p2p_job_result>,
}

pub fn text(text: &str) -> p2p_str {
    p2p_str { data: text.as_ptr().cast(), len: text.len() }
}

fn from_c(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8(bytes).unwrap()
}

/// Lets the library log to standard error as far as P2PKV_LOG says.
pub fn log_as_asked() {
    checked(p2p_log_init(p2p_log_level::OFF as u32)).unwrap();
}

fn checked(status: p2p_status) -> Result<i32, Refusal> {
    if status as i32 >= 0 {
        return Ok(status as i32);
    }
    // SAFETY: NUL-terminated, and valid until this thread's next call.
    let said = unsafe { CStr::from_ptr(p2p_last_error()) };
    Err((status as i32, said.to_str().unwrap().to_owned()))
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or(0)
}

/// `peer::Memory`, as it comes over the line.
const APART: u64 = 0;
const SHARED: u64 = 2;

fn allocate(bytes: usize, shared: bool) -> *mut [u8] {
    if !shared {
        return Box::into_raw(vec![0u8; bytes].into_boxed_slice());
    }
    let mut base = null_mut();
    // SAFETY: a living local.
    checked(unsafe { p2p_region_alloc(bytes as u64, 0, &mut base) }).unwrap();
    slice_from_raw_parts_mut(base.cast(), bytes)
}

impl Tier {
    pub fn new(options: &Value) -> Result<Tier, Refusal> {
        let (num_blocks, block_len) = (number(options, "num_blocks"), number(options, "block_len"));
        let block_len = usize::try_from(block_len).unwrap();
        let memory = number(options, "memory");
        let region = allocate(usize::try_from(num_blocks).unwrap() * block_len, memory == SHARED);
        if number(options, "touched") == 1 {
            // SAFETY: just allocated. Zeros are memory only once somebody has touched them.
            unsafe { region.cast::<u8>().write_bytes(1, region.len()) };
        }
        let said = |field: &str| options[field].as_str().unwrap_or("").to_owned();
        let (host, fingerprint, hash_seed) = (said("host"), said("fingerprint"), said("hash_seed"));
        let advertised_host = said("advertised_host");
        let small = |field: &str| u32::try_from(number(options, field)).unwrap();
        let mut tier = null_mut();
        // SAFETY: all zeros is a valid config; pointers are of living values; the region outlives the tier.
        checked(unsafe {
            let mut config: p2p_tier_config = zeroed();
            p2p_tier_config_init(&mut config, size_of::<p2p_tier_config>());
            config.host = text(&host);
            config.base_addr = region.cast();
            config.num_blocks = num_blocks;
            config.block_len = block_len as u64;
            config.config_fingerprint = text(&fingerprint);
            config.hash_seed = text(&hash_seed);
            config.port = small("port");
            config.data_port = small("data_port");
            config.progress = small("progress");
            // What is promised of tcp, above all its fence, is looked at; also where NIXL is installed.
            config.transport = p2p_transport::TCP as u32;
            config.same_host = if memory == APART { p2p_same_host::OFF } else { p2p_same_host::AUTO } as u32;
            config.advertised_host = text(&advertised_host);
            config.max_peers = small("max_peers");
            config.handshake_timeout_ms = number(options, "handshake_ms");
            config.lookup_timeout_ms = number(options, "lookup_ms");
            config.load_timeout_ms = number(options, "load_ms");
            config.store_timeout_ms = number(options, "store_ms");
            config.unbound_store_timeout_ms = number(options, "unbound_store_ms");
            p2p_tier_new(&config, &mut tier)
        })?;
        let shared = memory == SHARED;
        Ok(Tier {
            tier,
            requests: BTreeMap::new(),
            region,
            shared,
            block_len,
            calls: Vec::new(),
            polled: Vec::new(),
        })
    }

    pub fn id(&self) -> String {
        let (mut buffer, mut len) = ([0; 300], 0);
        // SAFETY: the buffer has the length that is said.
        checked(unsafe { p2p_tier_local_id(self.tier, buffer.as_mut_ptr(), buffer.len(), &mut len) })
            .unwrap();
        from_c(&buffer)
    }

    fn timed(&mut self, call: impl FnOnce(&Tier) -> p2p_status) -> Result<i32, Refusal> {
        let start = Instant::now();
        let status = call(self);
        self.calls.push(start.elapsed());
        checked(status)
    }

    /// Calls since the last time, in microseconds: how many, the median, how many above 50 ms, the longest.
    pub fn take_calls(&mut self) -> Value {
        let mut calls = std::mem::take(&mut self.calls);
        calls.sort_unstable();
        let micros = |call: Option<&Duration>| call.map_or(0, |call| call.as_micros() as u64);
        let slow = calls.iter().filter(|call| **call > Duration::from_millis(50)).count();
        json!({
            "count": calls.len(),
            "median_us": micros(calls.get(calls.len() / 2)),
            "slow": slow,
            "longest_us": micros(calls.last()),
        })
    }

    /// The bytes of one block, which peers may write meanwhile.
    fn block(&self, block: u32) -> *mut u8 {
        let start = block as usize * self.block_len;
        assert!(start + self.block_len <= self.region.len());
        // SAFETY: inside the region, as checked.
        unsafe { self.region.cast::<u8>().add(start) }
    }

    pub fn fill(&mut self, blocks: &[u32], tags: &[u64]) {
        let mut bytes = vec![0; self.block_len];
        for (block, tag) in blocks.iter().zip(tags) {
            pattern(*tag, &mut bytes);
            // SAFETY: one whole block of the region; the test gives no block to a load at the same time.
            unsafe { self.block(*block).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
    }

    /// Where the first block is that does not hold its tag's bytes: block and byte.
    pub fn first_difference(&self, blocks: &[u32], tags: &[u64]) -> Option<(u32, usize)> {
        let (mut expected, mut found) = (vec![0; self.block_len], vec![0; self.block_len]);
        blocks.iter().zip(tags).find_map(|(block, tag)| {
            pattern(*tag, &mut expected);
            // SAFETY: one whole block of the region.
            unsafe { self.block(*block).copy_to_nonoverlapping(found.as_mut_ptr(), found.len()) };
            if found == expected {
                return None;
            }
            expected.iter().zip(&found).position(|(expected, found)| expected != found).map(|at| (*block, at))
        })
    }

    pub fn publish(&mut self, tags: &[u64], blocks: &[u32]) -> Result<i32, Refusal> {
        with_keys(tags, |keys| self.timed(|it| unsafe { p2p_publish(it.tier, keys, blocks.as_ptr()) }))
    }

    pub fn unpublish(&mut self, tags: &[u64]) -> Result<i32, Refusal> {
        with_keys(tags, |keys| self.timed(|it| unsafe { p2p_unpublish(it.tier, keys, null_mut()) }))
    }

    /// `times`: load, lookup and store, in milliseconds; 0 = the tier's.
    pub fn request(&mut self, name: &str, params: &str, times: [u64; 3]) -> Result<(), Refusal> {
        let mut request = null_mut();
        self.timed(|it| unsafe {
            let mut options: p2p_request_options = zeroed();
            p2p_request_options_init(&mut options, size_of::<p2p_request_options>());
            options.kv_transfer_params_json = text(params);
            [options.load_timeout_ms, options.lookup_timeout_ms, options.store_timeout_ms] = times;
            p2p_request_new(it.tier, &options, &mut request)
        })?;
        assert!(self.requests.insert(name.to_owned(), request).is_none(), "two requests {name}");
        Ok(())
    }

    fn named(&self, name: &str) -> *mut p2p_request {
        *self.requests.get(name).unwrap_or_else(|| panic!("no request {name}"))
    }

    /// Why the request cannot use its peer: outcome and text; outcome 0 while it can.
    pub fn outcome(&self, name: &str) -> Result<(u32, String), Refusal> {
        let (mut outcome, mut buffer, mut len) = (0, [0; 1000], 0);
        // SAFETY: the buffer has the length that is said.
        checked(unsafe {
            p2p_request_outcome(self.named(name), &mut outcome, buffer.as_mut_ptr(), buffer.len(), &mut len)
        })?;
        Ok((outcome, from_c(&buffer)))
    }

    pub fn finish(&mut self, name: &str) -> Result<i32, Refusal> {
        let request = self.requests.remove(name).unwrap_or_else(|| panic!("no request {name}"));
        self.timed(|_| unsafe { p2p_request_finish(request) })
    }

    /// Asks, waits at most `timeout_ms`, and says what is known then.
    pub fn look_up(&mut self, name: &str, tags: &[u64], timeout_ms: u64) -> Result<Vec<u32>, Refusal> {
        let request = self.named(name);
        let mut states = vec![u32::MAX; tags.len()];
        with_keys(tags, |keys| {
            self.timed(|_| unsafe { p2p_lookup(request, keys, states.as_mut_ptr()) })?;
            self.timed(|it| unsafe { p2p_flush_lookups(it.tier) })?;
            if timeout_ms > 0 {
                // SAFETY: the request is alive.
                checked(unsafe { p2p_wait_lookups(request, timeout_ms) })?;
            }
            self.timed(|_| unsafe { p2p_lookup(request, keys, states.as_mut_ptr()) })
        })?;
        Ok(states)
    }

    pub fn load(&mut self, name: &str, job: u64, tags: &[u64], blocks: &[u32]) -> Result<i32, Refusal> {
        let request = self.named(name);
        with_keys(tags, |keys| {
            self.timed(|_| unsafe { p2p_submit_load(request, job, keys, blocks.as_ptr()) })
        })
    }

    pub fn store(&mut self, name: &str, job: u64, tags: &[u64], blocks: &[u32]) -> Result<i32, Refusal> {
        let request = self.named(name);
        with_keys(tags, |keys| {
            self.timed(|_| unsafe { p2p_submit_store(request, job, keys, blocks.as_ptr()) })
        })
    }

    /// A call that may wait, for `timeout_ms`: its status, and how long it took in microseconds.
    pub fn wait(&mut self, what: &str, name: &str, timeout_ms: u64) -> Result<(i32, u64), Refusal> {
        // SAFETY: plain numbers and characters: all zeros is valid.
        let (mut result, mut n): (p2p_job_result, usize) = (unsafe { zeroed() }, 0);
        let start = Instant::now();
        // SAFETY: room for one result of this size; the request is alive.
        let status = unsafe {
            match what {
                "drain" => p2p_tier_drain(self.tier, timeout_ms),
                "lookups" => p2p_wait_lookups(self.named(name), timeout_ms),
                "results" => {
                    let size = size_of::<p2p_job_result>();
                    p2p_wait_finished(self.tier, &mut result, size, 1, timeout_ms, &mut n)
                }
                unknown => panic!("nothing waits for {unknown}"),
            }
        };
        let took = start.elapsed().as_micros() as u64;
        self.polled.extend((n > 0).then_some(result));
        Ok((checked(status)?, took))
    }

    /// Results until there are `count` or time is over.
    pub fn results(&mut self, count: usize, timeout_ms: u64) -> Result<Vec<Value>, Refusal> {
        let deadline = Instant::now() + Duration::from_millis(timeout_ms);
        let polled = self.polled.len().min(count);
        let mut found: Vec<Value> =
            self.polled.drain(..polled).map(|result| result_to_json(&result)).collect();
        while found.len() < count {
            // SAFETY: plain numbers and characters: all zeros is valid.
            let mut results: [p2p_job_result; 16] = unsafe { zeroed() };
            let left = deadline.saturating_duration_since(Instant::now()).as_millis() as u64;
            let (capacity, mut n) = (results.len().min(count - found.len()), 0);
            let out = results.as_mut_ptr();
            // SAFETY: room for `capacity` results of this size.
            let status = checked(unsafe {
                p2p_wait_finished(self.tier, out, size_of::<p2p_job_result>(), capacity, left, &mut n)
            })?;
            if status == p2p_status::TIMED_OUT as i32 {
                break;
            }
            found.extend(results.iter().take(n).map(result_to_json));
        }
        Ok(found)
    }

    pub fn stats(&mut self) -> Result<Value, Refusal> {
        // SAFETY: plain numbers: all zeros is valid.
        let mut stats: p2p_tier_statistics = unsafe { zeroed() };
        stats.struct_size = size_of::<p2p_tier_statistics>();
        self.timed(|it| unsafe { p2p_tier_stats(it.tier, &mut stats) })?;
        let mut pending = 0;
        self.timed(|it| unsafe { p2p_tier_has_pending_work(it.tier, &mut pending) })?;
        Ok(json!({
            "peers": stats.peers,
            "requests": stats.requests,
            "loads_live": stats.loads_live,
            "stores_live": stats.stores_live,
            "stores_parked": stats.stores_parked,
            "keys_published": stats.keys_published,
            "blocks_pinned": stats.blocks_pinned,
            "jobs": stats.jobs_done + stats.jobs_failed,
            "bytes_in": stats.bytes_in,
            "bytes_out": stats.bytes_out,
            "protocol_errors": stats.protocol_errors,
            "sessions_opened": stats.sessions_opened,
            "sessions_lost": stats.sessions_lost,
            "results_queued": stats.results_queued,
            "pending": pending,
        }))
    }

    pub fn peers(&mut self) -> Result<Vec<Value>, Refusal> {
        // SAFETY: plain numbers and characters: all zeros is valid.
        let mut infos: Vec<p2p_peer_info> = (0..64).map(|_| unsafe { zeroed() }).collect();
        let mut n = 0;
        self.timed(|it| unsafe {
            p2p_peers(it.tier, infos.as_mut_ptr(), size_of::<p2p_peer_info>(), infos.len(), &mut n)
        })?;
        let peer = |info: &p2p_peer_info| {
            json!({
                "peer": from_c(&info.peer_id),
                "state": info.state,
                "transport": from_c(&info.transport),
                "detail": from_c(&info.detail),
                "transfers_live": info.transfers_live,
            })
        };
        Ok(infos.iter().take(n).map(peer).collect())
    }

    /// Every call that an engine makes in a scheduling step and that must not wait.
    pub fn step(&mut self, peer_params: &str, tags: &[u64], blocks: &[u32]) -> Result<(), Refusal> {
        self.request("step", peer_params, [0; 3])?;
        self.look_up("step", tags, 0)?;
        // Not a hit yet, so refused; or ended at once where there is no session.
        let _ = self.load("step", STEP_JOB, tags, blocks);
        self.publish(tags, blocks)?;
        self.unpublish(tags)?;
        self.timed(|it| unsafe { p2p_serve(it.tier) })?;
        self.stats()?;
        self.peers()?;
        self.finish("step")?;
        // SAFETY: plain numbers and characters: all zeros is valid.
        let (mut results, mut n): ([p2p_job_result; 16], usize) = (unsafe { zeroed() }, 0);
        let (out, capacity) = (results.as_mut_ptr(), results.len());
        self.timed(|it| unsafe {
            p2p_poll_finished(it.tier, out, size_of::<p2p_job_result>(), capacity, &mut n)
        })?;
        self.polled.extend(results.iter().take(n).filter(|result| result.job_id != STEP_JOB));
        Ok(())
    }

    /// Frees the tier on another thread than the one that made it.
    pub fn free_elsewhere(self) -> Duration {
        struct Moved(Tier);
        // SAFETY: its pointers are used by one thread at a time, and any may.
        unsafe impl Send for Moved {}
        let moved = Moved(self);
        let free = move || {
            let Moved(tier) = { moved };
            tier.free(false)
        };
        std::thread::spawn(free).join().unwrap()
    }

    /// Frees the tier; its requests are finished before, or after, as an engine may do it.
    pub fn free(mut self, finish_first: bool) -> Duration {
        let requests = std::mem::take(&mut self.requests);
        // SAFETY: handles that were made here, each ended once, the tier alone; then nobody knows the region any more.
        unsafe {
            if finish_first {
                finish_all(&requests, p2p_status::OK);
            }
            let start = Instant::now();
            p2p_tier_free(self.tier);
            let took = start.elapsed();
            if !finish_first {
                finish_all(&requests, p2p_status::SHUT_DOWN);
            }
            if self.shared {
                checked(p2p_region_free(self.region.cast())).unwrap();
            } else {
                drop(Box::from_raw(slice_from_raw_parts_mut(self.region.cast::<u8>(), self.region.len())));
            }
            took
        }
    }
}

fn finish_all(requests: &BTreeMap<String, *mut p2p_request>, expected: p2p_status) {
    for request in requests.values() {
        // SAFETY: each is ended once.
        assert_eq!(unsafe { p2p_request_finish(*request) }, expected);
    }
}

fn result_to_json(result: &p2p_job_result) -> Value {
    // SAFETY: a static NUL-terminated name.
    let outcome = unsafe { CStr::from_ptr(p2p_outcome_name(result.outcome)) };
    json!({
        "job": result.job_id,
        "outcome": outcome.to_str().unwrap(),
        "flags": result.flags,
        "bytes": result.bytes,
        "us": result.nanoseconds / 1_000,
        "detail": from_c(&result.detail),
    })
}

fn with_keys<T>(tags: &[u64], call: impl FnOnce(&p2p_keys) -> T) -> T {
    let packed = keys(tags.iter().copied());
    call(&p2p_keys { data: packed.as_ptr(), key_len: KEY_LEN, count: tags.len() })
}
