//! The simulator has teeth: each rule of the core is broken once, and a run must show it as the invariant that it breaks.

use std::panic;

use p2pkv::protocol::mutation::{self, Mutation};

use crate::report::{Invariant, Violation};
use crate::soak::{compare, options, run};

/// Within so many seeds each must be found.
const SEEDS: u64 = 5_000;

const BROKEN: &[(Mutation, Invariant)] = &[
    (Mutation::DeathLosesLoads, Invariant::OneResult),
    (Mutation::NeverReaps, Invariant::OneResult),
    (Mutation::ReportsTwice, Invariant::OneResult),
    (Mutation::ForgetsFlag, Invariant::NoLateWrite),
    (Mutation::SkipsDisarm, Invariant::NoLateWrite),
    (Mutation::ReleasesWhileReading, Invariant::PinsHeld),
    (Mutation::AcksTwice, Invariant::OneAck),
    (Mutation::AcksWhileWriting, Invariant::OneAck),
    (Mutation::PairsWrongly, Invariant::RightBytes),
    (Mutation::TakesDoneForAnyRound, Invariant::RightBytes),
    (Mutation::EndedIdWaits, Invariant::NoNeedlessWait),
    (Mutation::JunkAnswerExtends, Invariant::NoNeedlessWait),
    (Mutation::PollExtends, Invariant::NoNeedlessWait),
    (Mutation::UnpinnedWaits, Invariant::NoNeedlessWait),
    (Mutation::ForgetsEndOfId, Invariant::Rest),
    (Mutation::LeaksLoads, Invariant::Rest),
    (Mutation::LeaksLookupPins, Invariant::Rest),
    (Mutation::DeathSpreads, Invariant::Isolation),
    (Mutation::LeavesDeadlines, Invariant::BoundedWork),
    (Mutation::TellsTheTime, Invariant::TimeIsGiven),
    (Mutation::CountsAcrossTiers, Invariant::SameRun),
    (Mutation::TripsOverLateDone, Invariant::NothingCrashes),
    (Mutation::EndOfRoundEndsAll, Invariant::RightOutcome),
];

fn violation(seed: u64) -> Option<Violation> {
    let report = run(options(seed));
    report.violation.clone().or_else(|| compare(&report, seed))
}

/// How many seeds it takes until a run breaks this invariant before any other, and what that run says.
fn seeds_needed(mutation: Mutation, invariant: Invariant) -> Option<(u64, String)> {
    mutation::set(Some(mutation));
    let mut found = (0..SEEDS).filter_map(|seed| Some((seed, violation(seed)?)));
    let found = found.find(|(_, violation)| violation.invariant == invariant);
    mutation::set(None);
    found.map(|(seed, violation)| (seed + 1, violation.what))
}

#[test]
fn every_broken_rule_is_noticed() {
    // One of them panics on purpose.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let needed: Vec<_> = BROKEN.iter().map(|(rule, invariant)| seeds_needed(*rule, *invariant)).collect();
    panic::set_hook(hook);
    for ((mutation, invariant), needed) in BROKEN.iter().zip(&needed) {
        let seeds = needed.as_ref().map_or("never".to_owned(), |(seeds, _)| seeds.to_string());
        println!("| {mutation:?} | {} {invariant:?} | {seeds} |", *invariant as u32);
    }
    for ((mutation, _), needed) in BROKEN.iter().zip(&needed) {
        assert!(needed.is_some(), "{mutation:?} is not noticed within {SEEDS} seeds");
    }
}

#[test]
fn every_invariant_has_a_broken_rule() {
    for number in 1..=Invariant::RightOutcome as u32 {
        let has = BROKEN.iter().any(|(_, invariant)| *invariant as u32 == number);
        assert!(has, "invariant {number} has no mutation");
    }
}
