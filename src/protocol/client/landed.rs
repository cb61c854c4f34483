//! Names of loads that are over here and, for all we know, not yet at the peer.
//!
//! A name stays until the peer's `transfer_done`, the deadline of its load, the end of the id or of the session. The next
//! `fetch` of the same name waits for it here: the peer must know first that the old one is over.

use std::collections::BTreeMap;

use crate::protocol::context::{Context, TimerKey};
use crate::protocol::ids::{KvRequestId, RoundSeq, SessionId};
use crate::protocol::message::{Fetch, Message};
use crate::protocol::timer::Timestamp;

#[derive(Debug)]
pub struct LandedLoads {
    session: SessionId,
    names: BTreeMap<(KvRequestId, RoundSeq), Landed>,
}

#[derive(Debug)]
struct Landed {
    deadline: Timestamp,
    /// The `fetch` of the next load of this name.
    next: Option<Fetch>,
}

impl LandedLoads {
    pub fn new(session: SessionId) -> Self {
        LandedLoads { session, names: BTreeMap::new() }
    }

    pub fn add(&mut self, cx: &mut Context, id: &KvRequestId, round: RoundSeq, deadline: Timestamp) {
        cx.timers.set(deadline, TimerKey::Load(self.session, id.clone(), round));
        self.names.insert((id.clone(), round), Landed { deadline, next: None });
    }

    /// Sends the `fetch` of a new load, once its name is free.
    pub fn send_after(&mut self, cx: &mut Context, fetch: Fetch) {
        match self.names.get_mut(&(fetch.kv_request_id.clone(), fetch.round_seq)) {
            Some(landed) => landed.next = Some(fetch),
            None => cx.say(self.session, Message::Fetch(fetch)),
        }
    }

    /// The peer is done with the load: its name may be used again. False if there is none of that name.
    pub fn end(&mut self, cx: &mut Context, id: &KvRequestId, round: RoundSeq) -> bool {
        let Some(landed) = self.names.remove(&(id.clone(), round)) else { return false };
        cx.timers.cancel(landed.deadline, TimerKey::Load(self.session, id.clone(), round));
        if let Some(fetch) = landed.next {
            cx.say(self.session, Message::Fetch(fetch));
        }
        true
    }

    /// The peer has had all the time of the load to say that it is done.
    pub fn end_if_due(&mut self, cx: &mut Context, id: &KvRequestId, round: RoundSeq) {
        let now = cx.now;
        if self.names.get(&(id.clone(), round)).is_some_and(|landed| landed.deadline <= now) {
            self.end(cx, id, round);
        }
    }

    /// The peer hears of the end of the id before anything else of it: no name of it is taken any more.
    pub fn forget_id(&mut self, cx: &mut Context, id: &KvRequestId) {
        let over = self.names.extract_if(.., |(landed_id, _), _| landed_id == id);
        for ((id, round), landed) in over {
            cx.timers.cancel(landed.deadline, TimerKey::Load(self.session, id, round));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// False if there was none.
    pub fn forget_one(&mut self, cx: &mut Context) -> bool {
        let Some(((id, round), landed)) = self.names.pop_first() else { return false };
        cx.timers.cancel(landed.deadline, TimerKey::Load(self.session, id, round));
        true
    }
}
