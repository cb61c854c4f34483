//! Any order of calls, deliveries, outcomes, deaths and time steps between two cores keeps the invariants 1 and 3 to 7
//! of the design, and 2 where the transport fences. A failing case is shrunk and printed as its list of steps.

#[path = "rules/engines.rs"]
mod engines;
#[path = "rules/world.rs"]
mod world;

use p2pkv::protocol::config::{SLICE, TransportKind};
use p2pkv::protocol::steps::ITEM;
use proptest::collection::vec;
use proptest::prelude::*;

use engines::{Step, keeps_the_invariants};
use world::End;

fn step() -> impl Strategy<Value = Step> {
    let node = 0..2usize;
    let which = 0..4usize;
    let keys = 1..64u8;
    let end = prop_oneof![6 => Just(End::Done), 2 => Just(End::Failed), 1 => Just(End::FailedForGood)];
    let millis = prop_oneof![4 => 1..2_000u64, 2 => 2_000..12_000u64, 1 => 12_000..70_000u64];
    prop_oneof![
        4 => (node.clone(), 0..3usize).prop_map(|(node, id)| Step::Produce { node, id }),
        6 => (node.clone(), 0..3usize, any::<bool>())
            .prop_map(|(node, id, symmetric)| Step::Pull { node, id, symmetric }),
        4 => (node.clone(), which.clone()).prop_map(|(node, which)| Step::Finish { node, which }),
        6 => (node.clone(), which.clone(), keys.clone())
            .prop_map(|(node, which, keys)| Step::Lookup { node, which, keys }),
        6 => node.clone().prop_map(|node| Step::Flush { node }),
        8 => (node.clone(), which.clone(), keys.clone())
            .prop_map(|(node, which, keys)| Step::Load { node, which, keys }),
        8 => (node.clone(), which.clone(), keys.clone())
            .prop_map(|(node, which, keys)| Step::Store { node, which, keys }),
        4 => (node.clone(), keys.clone()).prop_map(|(node, keys)| Step::Publish { node, keys }),
        2 => (node.clone(), keys.clone()).prop_map(|(node, keys)| Step::Unpublish { node, keys }),
        4 => node.clone().prop_map(|node| Step::Ask { node }),
        4 => (node.clone(), which.clone(), any::<u8>(), any::<u8>())
            .prop_map(|(node, which, hits, open)| Step::Answer { node, which, hits, open }),
        16 => (node.clone(), 1..5usize).prop_map(|(from, count)| Step::Deliver { from, count }),
        4 => node.clone().prop_map(|node| Step::Register { node }),
        8 => (node.clone(), which, end).prop_map(|(node, which, end)| Step::Transfer { node, which, end }),
        4 => node.clone().prop_map(|node| Step::CloseFence { node }),
        4 => millis.prop_map(|millis| Step::Time { millis }),
        1 => node.clone().prop_map(|node| Step::LoseConnection { node }),
        1 => node.clone().prop_map(|to| Step::Junk { to }),
        1 => node.prop_map(|node| Step::Restart { node }),
        8 => Just(Step::Quiet),
    ]
}

/// What one input may do: next to nothing, or all that these two can leave.
fn slice() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 1..5usize, 1 => Just(2 * ITEM), 1 => Just(SLICE)]
}

fn bounded(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(bounded(600))]

    #[test]
    fn any_run_over_a_fenced_transport_keeps_the_invariants(slice in slice(), steps in vec(step(), 1..120)) {
        keeps_the_invariants(TransportKind::Tcp, slice, &steps);
    }

    #[test]
    fn any_run_over_an_unfenced_transport_keeps_the_invariants(slice in slice(), steps in vec(step(), 1..120)) {
        keeps_the_invariants(TransportKind::Nixl, slice, &steps);
    }
}
