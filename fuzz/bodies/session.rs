//! Two protocol cores and everything that can be done to them, in any order: engine calls, deliveries, damaged, doubled
//! and overtaking messages, ends of transfers, deaths, time. Work is done in slices that hold next to nothing. The invariants of the design hold at each step and at the
//! end. The same world and the same checks as in `tests/properties.rs`; here the fuzzer chooses the steps.

#[path = "../../tests/rules/engines.rs"]
mod engines;
#[path = "../../tests/rules/world.rs"]
mod world;

use p2pkv::protocol::config::TransportKind;

use super::script::Script;
use engines::{Step, Tampering, keeps_the_invariants};
use world::End;

/// Longer lists find nothing that shorter ones do not, and cost more.
const MOST_STEPS: usize = 200;

pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let kind = if script.flag() { TransportKind::Nixl } else { TransportKind::Tcp };
    let mut steps = Vec::new();
    while !script.is_over() && steps.len() < MOST_STEPS {
        steps.push(step(&mut script));
    }
    keeps_the_invariants(kind, 1 + steps.len() % 4, &steps);
}

/// One byte says what and to whom, the next ones with what.
fn step(script: &mut Script<'_>) -> Step {
    let what = script.byte();
    let node = usize::from(what & 1);
    match (what >> 1) % 24 {
        0 => Step::Produce { node, id: script.below(3) },
        1 => Step::Pull { node, id: script.below(3), symmetric: false },
        2 => Step::Pull { node, id: script.below(3), symmetric: true },
        3 => Step::Finish { node, which: script.below(4) },
        4 => Step::Lookup { node, which: script.below(4), keys: keys(script) },
        5 => Step::Flush { node },
        6 => Step::Load { node, which: script.below(4), keys: keys(script) },
        7 => Step::Store { node, which: script.below(4), keys: keys(script) },
        8 => Step::Publish { node, keys: keys(script) },
        9 => Step::Unpublish { node, keys: keys(script) },
        10 => Step::Ask { node },
        11 => Step::Answer { node, which: script.below(4), hits: script.byte(), open: script.byte() },
        12 => Step::Deliver { from: node, count: 1 + script.below(4) },
        13 => Step::Register { node },
        14 => Step::Transfer { node, which: script.below(4), end: end(script) },
        15 => Step::CloseFence { node },
        16 => Step::Time { millis: millis(script) },
        17 => Step::LoseConnection { node },
        18 => Step::Junk { to: node },
        19 => Step::Restart { node },
        20 => Step::Tamper { from: node, which: script.below(8), how: tampering(script) },
        21 => Step::Refuse { node },
        22 => Step::Fault { node },
        _ => Step::Quiet,
    }
}

/// At least one of the six.
fn keys(script: &mut Script<'_>) -> u8 {
    1 + script.byte() % 63
}

fn end(script: &mut Script<'_>) -> End {
    match script.below(4) {
        0 => End::Failed,
        1 => End::FailedForGood,
        _ => End::Done,
    }
}

/// Up to 70 s, which passes every deadline but the idle one.
fn millis(script: &mut Script<'_>) -> u64 {
    let amount = u64::from(script.byte());
    match amount % 3 {
        0 => 1 + amount,
        1 => 10 * amount,
        _ => 275 * amount,
    }
}

fn tampering(script: &mut Script<'_>) -> Tampering {
    match script.below(5) {
        0 => Tampering::Cut { at: script.below(256) },
        1 => Tampering::Duplicate,
        2 => Tampering::Lose,
        3 => Tampering::Overtake,
        _ => Tampering::Damage { at: script.below(256), to: script.byte() },
    }
}
