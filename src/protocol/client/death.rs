//! The end of a session's loads and lookups, a slice at a time.
//!
//! What is doomed is found by nobody: no answer, deadline or event of the data plane changes it any more. Its fence is
//! asked to close again when its turn comes, since it may have closed unheard.

use crate::protocol::context::{Cause, Context};
use crate::protocol::ids::{KvRequestId, RoundSeq};
use crate::protocol::job::JobFlags;
use crate::protocol::mutation::{self, Mutation};
use crate::protocol::output::Output;
use crate::protocol::steps::{ITEM, Slice};

use super::{ClientRole, ConsumerRequest, LoadState, cancel_load_timer};

impl ClientRole {
    /// The session is dead: every load ends, as soon as its blocks are safe.
    pub fn on_session_death(&mut self) {
        self.unflushed.clear();
        self.doomed = std::mem::take(&mut self.requests);
    }

    /// Does a slice of what is left to do. True if there is more.
    pub fn work(&mut self, cx: &mut Context, cause: &Cause, fenced: bool, slice: &mut Slice) -> bool {
        while !slice.is_spent() && self.landed.forget_one(cx) {
            slice.spend(ITEM);
        }
        while !slice.is_spent()
            && let Some((id, request)) = self.doomed.pop_first()
        {
            slice.spend(ITEM * (1 + request.loads.len()));
            self.end_request(cx, id, request, cause, fenced);
        }
        !self.doomed.is_empty() || !self.landed.is_empty()
    }

    fn end_request(
        &mut self,
        cx: &mut Context,
        id: KvRequestId,
        mut request: ConsumerRequest,
        cause: &Cause,
        fenced: bool,
    ) {
        request.finished = true;
        request.forget_round(cx, self.session, &id);
        let rounds: Vec<RoundSeq> = request.loads.keys().copied().collect();
        if rounds.is_empty() {
            return;
        }
        self.requests.insert(id.clone(), request);
        for round in rounds {
            self.end_on_death(cx, &id, round, cause, fenced);
        }
    }

    fn end_on_death(
        &mut self,
        cx: &mut Context,
        id: &KvRequestId,
        round: RoundSeq,
        cause: &Cause,
        fenced: bool,
    ) {
        let session = self.session;
        let Some(load) = self.load_mut(id, round) else { return };
        cancel_load_timer(cx, session, id, round, load);
        let was_sent = load.state != LoadState::Queued;
        let cause = match &load.state {
            LoadState::Aborting { cause: None } => return self.forget_load(cx, id, round),
            LoadState::Fetching if mutation::is(Mutation::DeathLosesLoads) => {
                return self.forget_load(cx, id, round);
            }
            LoadState::Aborting { cause: Some(cause) } | LoadState::Closing { cause } => cause.clone(),
            LoadState::Queued | LoadState::Fetching => cause.clone(),
        };
        let token = load.token;
        load.state = LoadState::Closing { cause };
        if was_sent && fenced {
            cx.emit(Output::Disarm { session, load: token });
        } else {
            let may_still_be_written = was_sent && !mutation::is(Mutation::ForgetsFlag);
            let flags = JobFlags { may_still_be_written, ..JobFlags::default() };
            self.report(cx, id, round, flags);
        }
    }
}

impl ConsumerRequest {
    /// Whether the end of the session leaves something of it: a load whose fence is still to close.
    pub(super) fn outlives(&self, fenced: bool) -> bool {
        let closes = |state: &LoadState| {
            matches!(
                state,
                LoadState::Fetching | LoadState::Aborting { cause: Some(_) } | LoadState::Closing { .. }
            )
        };
        fenced && self.loads.values().any(|load| closes(&load.state))
    }
}
