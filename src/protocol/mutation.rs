//! Rules that tests can have broken, to see that the simulator notices. Only with the cargo feature `mutations`, which
//! nothing that is shipped has; without it every question is answered `false` at compile time.

/// One broken rule each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// `abort_ack` leaves while a transfer of the round still writes.
    AcksWhileWriting,
    /// A repeated `abort_fetch` is acknowledged again.
    AcksTwice,
    /// An answer that nobody asked for puts the lookup's deadline off.
    JunkAnswerExtends,
    /// Asking again puts the lookup's deadline off.
    PollExtends,
    /// Names of loads are counted across all tiers of the process: no run is like another.
    CountsAcrossTiers,
    /// A session's death takes the next session along.
    DeathSpreads,
    /// A session's death forgets the loads that were being fetched.
    DeathLosesLoads,
    /// An aborted load is reported before its fence is closed.
    SkipsDisarm,
    /// A round that ended takes the id's other rounds along.
    EndOfRoundEndsAll,
    /// A fetch for an id that is over waits for stores.
    EndedIdWaits,
    /// A fetch of a key that its lookup has not pinned waits.
    UnpinnedWaits,
    /// A load that gives up without a fence is reported without its flag.
    ForgetsFlag,
    /// The terminal empty fetch is not sent.
    ForgetsEndOfId,
    /// Loads stay in the table of names.
    LeaksLoads,
    /// Pins of a looked-up round are not given back.
    LeaksLookupPins,
    /// Parked stores stay for ever.
    NeverReaps,
    /// A deadline is judged one call too late.
    LeavesDeadlines,
    /// Blocks are let go when the round ends, and not when its transfers have.
    ReleasesWhileReading,
    /// A job is reported twice.
    ReportsTwice,
    /// The time is told to peers.
    TellsTheTime,
    /// A late answer crashes.
    TripsOverLateDone,
    /// Keys and destinations of a fetch are paired the wrong way round.
    PairsWrongly,
    /// `transfer_done` ends whichever round is the latest.
    TakesDoneForAnyRound,
}

#[cfg(feature = "mutations")]
mod switch {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::Mutation;

    thread_local! {
        static ACTIVE: Cell<Option<Mutation>> = const { Cell::new(None) };
    }

    /// Breaks this rule, or none, on this thread from now on.
    pub fn set(mutation: Option<Mutation>) {
        ACTIVE.set(mutation);
    }

    #[must_use]
    pub fn is(mutation: Mutation) -> bool {
        ACTIVE.get() == Some(mutation)
    }

    /// Counts in the whole process: what no core may do.
    pub fn count() -> u64 {
        static COUNT: AtomicU64 = AtomicU64::new(1 << 32);
        COUNT.fetch_add(1, Ordering::Relaxed)
    }
}

#[cfg(feature = "mutations")]
pub use switch::{count, is, set};

#[cfg(not(feature = "mutations"))]
#[inline(always)]
#[must_use]
pub const fn is(_: Mutation) -> bool {
    false
}

#[cfg(not(feature = "mutations"))]
pub const fn count() -> u64 {
    0
}
