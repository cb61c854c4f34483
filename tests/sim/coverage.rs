//! What runs have reached, so that a simulator which no longer gets anywhere is noticed.

macro_rules! seen {
    ($($name:ident),* $(,)?) => {
        /// Something worth reaching.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Seen { $($name),* }

        impl Seen {
            pub const ALL: &[Seen] = &[$(Seen::$name),*];
        }
    };
}

seen! {
    // loads and stores
    FetchBeforeStore, StoreBeforeFetch, StoreNever, KeyStoredTwice, KeyLoadedTwice, SecondLoadRefused,
    LoadDone, LoadDoneVllm, LoadDoneLegacy, LoadDoneUnfenced, LoadNotSupplied, LoadAborted, LoadTimedOut,
    LoadPeerLost, LoadTransportFailed, LoadNoPeer, LoadIncompatible, LoadShutDown,
    StoreDone, StoreNotFetched, StoreAborted, StoreTimedOut, StorePeerLost, StoreTransportFailed, StoreShutDown,
    // rounds
    RoundsOverlap, RoundEndedWithNextPinned, FiftyRounds, BothRoles, IdUsedAgain, LateLoadRefused,
    // lookups
    ServedHit, ServedMiss, ServedPending, ServedRetry, AnswerAfterLookupEnded, LookupDeadline, JunkAnswer,
    UnpublishBusy,
    // finish in the middle of a load
    FinishMidLoad, FinishThenAck, FinishThenDoneThenAck, FinishThenNeither, FinishThenDisconnect,
    // aborts
    AbortOfUnknown, AbortRepeated, AbortWhileWriting,
    // the data plane
    FenceRefusedWrite, WriteWhileFenceCloses, LoadLanded, MayStillBeWritten, MayStillBeRead, LateWriteOfFlagged,
    TransferFailed, TransferStuck, PeerFault, PeerRefused, BackOff, BlockReusedWhileWriteUnderWay,
    // connections and processes
    ConnectionDropped, OneWayPartition, TwoWayPartition, KilledAndBackAtOnce, KilledForAWhile, DeafConnection,
    Unresolvable, CalledByAnotherName, NoRoomForPeer, Redial, HandshakeDeadline, Handover, PeerRestartNoticed,
    // lies
    ReplayedConnect, ReplayedConnectAck, ReplayedDisconnect, ReplayedLookup, ReplayedLookupResp, ReplayedFetch,
    ReplayedTransferDone, ReplayedAbortFetch, ReplayedAbortAck, MadeUpConnect, MadeUpMessage, BrokenBytes, UnknownType,
    ProtocolError, ShutDownAtWork,
    // work that is put off
    WorkInSlices,
}

#[derive(Clone, Debug)]
pub struct Coverage {
    counts: Vec<u64>,
}

impl Default for Coverage {
    fn default() -> Self {
        Coverage { counts: vec![0; Seen::ALL.len()] }
    }
}

impl Coverage {
    pub fn saw(&mut self, seen: Seen) {
        self.counts[seen as usize] += 1;
    }

    pub fn count(&self, seen: Seen) -> u64 {
        self.counts[seen as usize]
    }

    pub fn add(&mut self, other: &Coverage) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
    }

    pub fn table(&self) -> String {
        let cell = |seen: &Seen| format!("{:<29}{:>9}", format!("{seen:?}"), self.count(*seen));
        let cells: Vec<String> = Seen::ALL.iter().map(cell).collect();
        cells.chunks(3).map(|row| row.join("   ") + "\n").collect()
    }

    /// What was reached less often than so many times.
    pub fn below(&self, least: u64) -> Vec<Seen> {
        Seen::ALL.iter().copied().filter(|seen| self.count(*seen) < least).collect()
    }
}
