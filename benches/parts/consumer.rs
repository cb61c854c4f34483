//! The engine's own lookups and loads, from the call to what is sent, and what the peer says to them.

use criterion::{BenchmarkGroup, Throughput};
use p2pkv::protocol::ids::{BlockIndex, JobId, PeerId, RequestId};
use p2pkv::protocol::job::LookupState;
use p2pkv::protocol::manager::RequestTimeouts;
use p2pkv::protocol::message::Connect;
use p2pkv::protocol::params::{ConsumerRole, Roles, Source};

use crate::keys::{Keys, MANY, blocks};
use crate::measure::{Bench, Per, time};
use crate::messages::{connect_of_p2pkv, connect_of_vllm, id, lookup_resp, transfer_done};
use crate::node::{Asked, NOW, Node, PEER};

type Group<'a> = BenchmarkGroup<'a, Per>;

pub fn measure(bench: &mut Bench) {
    let mut group = bench.benchmark_group("consumer");
    group.throughput(Throughput::Elements(MANY as u64));
    let mut case = Case::new(connect_of_p2pkv());
    lookups(&mut group, &mut case);
    loads(&mut group, &mut case);
    let mut case = Case::new(connect_of_vllm());
    load(&mut group, &mut case, "load, from a vLLM", Case::pd);
    group.finish();
}

struct Case {
    node: Node,
    keys: Keys,
    blocks: Vec<BlockIndex>,
    states: Vec<LookupState>,
}

const LOAD: JobId = JobId(1);

impl Case {
    fn new(connect: Connect) -> Case {
        Case {
            node: Node::joined(connect),
            keys: Keys::new(MANY, 1),
            blocks: blocks(0..MANY),
            states: vec![LookupState::Pending; MANY],
        }
    }

    fn request(&mut self, role: impl Fn(Source) -> ConsumerRole) -> RequestId {
        let source = Source { kv_request_id: id(), peer: PeerId::parse(PEER).unwrap() };
        let roles = Roles { consumer: Some(role(source)), producer: None };
        self.node.manager.request_new(NOW, roles, RequestTimeouts::default()).unwrap()
    }

    fn pd(&mut self) -> RequestId {
        self.request(ConsumerRole::PrefillDecode)
    }

    fn symmetric(&mut self) -> RequestId {
        self.request(ConsumerRole::Symmetric)
    }

    fn finish(&mut self, request: RequestId) {
        self.node.manager.request_finish(NOW, request).unwrap();
        self.node.carry_out();
    }

    fn look_up(&mut self, request: RequestId) {
        self.node.manager.lookup(NOW, request, self.keys.all(), &mut self.states).unwrap();
    }

    fn look_up_and_flush(&mut self, request: RequestId) -> Asked {
        self.look_up(request);
        self.node.manager.flush_lookups(NOW).unwrap();
        self.node.carry_out()
    }

    fn all_hit(&mut self) {
        let answer = lookup_resp(self.keys.all().into(), vec![true; MANY]);
        self.node.hear(answer);
    }

    /// A request whose keys are all known to be at the peer.
    fn looked_up(&mut self) -> RequestId {
        let request = self.symmetric();
        self.look_up_and_flush(request).was_sent("lookup");
        self.all_hit();
        request
    }

    fn load(&mut self, request: RequestId) -> Asked {
        self.node.manager.submit_load(NOW, request, LOAD, self.keys.all(), &self.blocks).unwrap();
        self.node.carry_out()
    }

    fn landed(&mut self, asked: &Asked) -> Asked {
        self.node.manager.handle_landed(NOW, asked.armed.unwrap());
        self.node.carry_out()
    }
}

fn lookups(group: &mut Group<'_>, case: &mut Case) {
    group.bench_function("lookup of new keys", |bencher| {
        let look_up = |case: &mut Case, request| (request, case.look_up_and_flush(request));
        let end = |case: &mut Case, (request, asked): (_, Asked)| {
            asked.was_sent("lookup");
            case.finish(request);
        };
        bencher.iter_custom(|turns| time(turns, case, Case::symmetric, look_up, end));
    });
    group.bench_function("lookup_resp", |bencher| {
        let waiting = |case: &mut Case| {
            let request = case.symmetric();
            case.look_up_and_flush(request);
            (request, lookup_resp(case.keys.all().into(), vec![true; MANY]))
        };
        let hear = |case: &mut Case, (request, message)| {
            case.node.hear(message);
            request
        };
        let end = |case: &mut Case, request| {
            case.look_up(request);
            assert!(case.states.iter().all(|state| *state == LookupState::Hit));
            case.finish(request);
        };
        bencher.iter_custom(|turns| time(turns, case, waiting, hear, end));
    });
    group.bench_function("lookup of known keys", |bencher| {
        let request = case.looked_up();
        bencher.iter(|| case.look_up(request));
        case.finish(request);
    });
}

fn loads(group: &mut Group<'_>, case: &mut Case) {
    load(group, case, "load", Case::pd);
    load(group, case, "load of looked-up keys", Case::looked_up);
    group.bench_function("load, landed", |bencher| {
        let loading = |case: &mut Case| {
            let request = case.pd();
            (request, case.load(request))
        };
        let land = |case: &mut Case, (request, asked)| (request, case.landed(&asked));
        let end = |case: &mut Case, (request, landed): (_, Asked)| {
            landed.is_done();
            case.node.hear(transfer_done());
            case.finish(request);
        };
        bencher.iter_custom(|turns| time(turns, case, loading, land, end));
    });
}

fn load(group: &mut Group<'_>, case: &mut Case, name: &str, request: fn(&mut Case) -> RequestId) {
    group.bench_function(name, |bencher| {
        let load = |case: &mut Case, request| (request, case.load(request));
        let end = |case: &mut Case, (request, asked): (_, Asked)| {
            asked.was_sent("fetch");
            // Over NIXL, the peer's word is what ends it.
            let landed = asked.armed.is_some().then(|| case.landed(&asked));
            let done = case.node.hear(transfer_done());
            landed.unwrap_or(done).is_done();
            case.finish(request);
        };
        bencher.iter_custom(|turns| time(turns, case, request, load, end));
    });
}
