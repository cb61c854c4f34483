//! Messages to bytes and back.

use std::hint::black_box;

use criterion::measurement::Measurement;
use criterion::{BenchmarkGroup, Throughput};
use p2pkv::protocol::codec::{decode, encode};
use p2pkv::protocol::config::Limits;
use p2pkv::protocol::message::{Dialect, Message};

use crate::keys::{Keys, MANY, of_mixed_lengths, shuffled};
use crate::measure::Bench;
use crate::messages::{fetch, lookup, lookup_resp, transfer_done};

/// Indexes of blocks below this take up to three bytes, others five.
const SHORT_INDEXES: usize = 1 << 16;

pub fn measure(bench: &mut Bench) {
    let indexes = |first: usize| {
        let scattered = shuffled(SHORT_INDEXES).into_iter().take(MANY);
        scattered.map(|index| (first + index) as u64).collect::<Vec<u64>>()
    };
    let hits: Vec<bool> = (0..MANY).map(|key| key % 3 != 0).collect();
    let vllm = || Keys::new(MANY, 1).all().into();
    let mixed = || of_mixed_lengths(MANY);

    let mut group = bench.benchmark_group("codec");
    group.throughput(Throughput::Elements(MANY as u64));
    both(&mut group, "fetch", &fetch(vllm(), indexes(0)));
    both(&mut group, "fetch, long indexes", &fetch(vllm(), indexes(SHORT_INDEXES)));
    both(&mut group, "fetch, mixed keys", &fetch(mixed(), indexes(0)));
    both(&mut group, "lookup", &lookup(vllm()));
    both(&mut group, "lookup, mixed keys", &lookup(mixed()));
    both(&mut group, "lookup_resp", &lookup_resp(vllm(), hits.clone()));
    both(&mut group, "lookup_resp, mixed keys", &lookup_resp(mixed(), hits));
    group.finish();

    // Without keys: the time is that of the message.
    let mut group = bench.benchmark_group("codec");
    both(&mut group, "transfer_done", &transfer_done());
    group.finish();
}

fn both<M: Measurement>(group: &mut BenchmarkGroup<'_, M>, name: &str, message: &Message) {
    let mut bytes = Vec::new();
    group.bench_function(format!("encode {name}"), |bencher| {
        bencher.iter(|| {
            bytes.clear();
            encode(black_box(message), Dialect::Current, &mut bytes);
        });
    });
    bytes.clear();
    encode(message, Dialect::Current, &mut bytes);
    let limits = Limits::default();
    group.bench_function(format!("decode {name}"), |bencher| {
        bencher.iter(|| decode(black_box(&bytes), Some(Dialect::Current), &limits).unwrap());
    });
}
