//! What the whole library does between two processes of one host, beside bare programs and beside others, in one run.
//!
//! `cargo bench --bench compare` measures everything within ten minutes and writes `docs/performance.md` with its plots.
//! Words after `--` choose a part, and then nothing is written: `bulk` (beside bare programs), `rivals`, `load`,
//! `lookup`, `fetch`, `scale`; with `mapped`, `vm-read`, `tcp` or `nixl` only that way; with `ours` no rivals at all.
//! The last line of the output is the same as one JSON list.
//!
//! This program runs itself again as the other processes. Rivals are taken from PyPI into a cache; those that cannot be
//! are told as not measured. Figures move from machine to machine and with what else runs on it: compare ratios.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock and waits")]

#[path = "bare/mod.rs"]
mod bare;
#[path = "compare/bulk.rs"]
mod bulk;
#[path = "compare/child.rs"]
mod child;
#[path = "compare/control.rs"]
mod control;
#[path = "../tests/common/crowd.rs"]
mod crowd;
#[path = "compare/document.rs"]
mod document;
#[path = "compare/host.rs"]
mod host;
#[path = "compare/latency.rs"]
mod latency;
#[path = "compare/machine.rs"]
mod machine;
#[path = "compare/memory.rs"]
mod memory;
#[path = "compare/node.rs"]
mod node;
#[path = "compare/plots.rs"]
mod plots;
#[path = "compare/producer.rs"]
mod producer;
#[path = "compare/race.rs"]
mod race;
#[path = "compare/rival.rs"]
mod rival;
#[path = "compare/row.rs"]
mod row;
#[path = "compare/sample.rs"]
mod sample;
#[path = "compare/scale.rs"]
mod scale;
#[path = "compare/shape.rs"]
mod shape;

use std::time::{Duration, Instant};

use bulk::Against;
use machine::Machine;
use rival::Rivals;
use row::{Row, Section};
use shape::Way;

/// Rivals that are left then are told as not measured.
const RUN_LIMIT: Duration = Duration::from_secs(8 * 60);

const PARTS: [&str; 6] = ["bulk", "rivals", "load", "lookup", "fetch", "scale"];
const WITHOUT_RIVALS: &str = "ours";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if plays_a_role(&arguments) {
        return;
    }
    let run = Run::new(arguments);
    let machine = Machine::look();
    println!("{machine}\n");
    let mut rows = Vec::new();
    run.measure(&mut |row: Row| {
        println!("{row}");
        rows.push(row);
    });
    println!("\n{}", serde_json::Value::Array(rows.iter().map(Row::json).collect()));
    if run.is_of_everything() {
        document::write(&rows, &machine).unwrap();
    }
}

fn plays_a_role(arguments: &[String]) -> bool {
    if let Some(shape) = producer::asked_for(arguments) {
        producer::serve(shape);
        return true;
    }
    if let Some(shape) = bare::source::asked_for(arguments) {
        bare::source::serve(shape);
        return true;
    }
    bare::nixl::serve_if_asked_for(arguments)
        || host::serve_if_asked_for(arguments)
        || scale::serve_if_asked_for(arguments)
}

/// What is wanted.
struct Run {
    wanted: Vec<String>,
    rivals: Rivals,
    begin: Instant,
}

impl Run {
    fn new(arguments: Vec<String>) -> Run {
        // cargo adds `--bench`.
        let wanted: Vec<String> = arguments.into_iter().filter(|name| name != "--bench").collect();
        let alone = wanted.iter().any(|name| name == WITHOUT_RIVALS);
        let rivals = if alone { Rivals::none() } else { Rivals::prepare() };
        if let Ok(directory) = rivals.nixl() {
            // SAFETY: nothing else runs in this process yet.
            unsafe { std::env::set_var("P2PKV_NIXL_LIBRARY_DIR", directory) };
        }
        Run { wanted, rivals, begin: Instant::now() }
    }

    fn is_of_everything(&self) -> bool {
        self.wanted.is_empty()
    }

    /// All of a kind, unless some of the kind are named.
    fn wants(&self, name: &str, kind: &[&str]) -> bool {
        let named = |name: &str| self.wanted.iter().any(|wanted| wanted == name);
        named(name) || !kind.iter().any(|other| named(other))
    }

    fn wants_part(&self, part: &str) -> bool {
        self.wants(part, &PARTS)
    }

    /// Over NIXL last: what it has started in this process stays.
    fn ways(&self) -> impl Iterator<Item = Way> {
        let names = Way::ALL.map(Way::name);
        Way::ALL.into_iter().filter(move |way| self.wants(way.name(), &names))
    }

    fn rivals(&self) -> Option<&Rivals> {
        let is_wanted = self.wanted.iter().all(|name| name != WITHOUT_RIVALS);
        (is_wanted && self.begin.elapsed() < RUN_LIMIT).then_some(&self.rivals)
    }

    fn measure(&self, tell: &mut impl FnMut(Row)) {
        // What has no rivals to wait for comes first: the time for the others is bounded.
        for way in self.ways().filter(|way| *way != Way::Nixl) {
            self.bulk(way, Section::Ceilings, tell);
        }
        let once: Vec<Way> = self.ways().filter(|way| way.streams() == 1 && *way != Way::Nixl).collect();
        if self.wants_part("load") {
            latency::measure(&once, self.rivals(), tell);
        }
        if self.wants_part("lookup") {
            control::lookup(self.rivals(), tell);
        }
        if self.wants_part("fetch") {
            control::fetch(self.rivals(), tell);
        }
        for way in self.ways().filter(|way| *way != Way::Nixl) {
            self.bulk(way, Section::Rivals, tell);
        }
        if self.wants_part("scale") {
            scale::crowd(tell);
            scale::crowd_of_a_caller(tell);
            scale::threads(tell);
            once.iter().for_each(|way| scale::idle_pair(*way, tell));
            once.iter().for_each(|way| scale::adding_a_peer(*way, tell));
        }
        if self.ways().any(|way| way == Way::Nixl) {
            if let Err(why) = self.rivals.nixl() {
                return tell(bulk::without_nixl(why));
            }
            self.bulk(Way::Nixl, Section::Ceilings, tell);
            self.bulk(Way::Nixl, Section::Rivals, tell);
            if self.wants_part("scale") {
                scale::adding_a_peer(Way::Nixl, tell);
            }
        }
    }

    fn bulk(&self, way: Way, section: Section, tell: &mut impl FnMut(Row)) {
        let part = if section == Section::Ceilings { "bulk" } else { "rivals" };
        if self.wants_part(part) && (section == Section::Ceilings || self.rivals().is_some()) {
            let chosen: Vec<Against> =
                Against::of(way).iter().copied().filter(|against| against.section() == section).collect();
            bulk::measure(way, &chosen, &self.rivals, tell);
        }
    }
}
