//! What one input has left over: a slice of it is done with each input that follows.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::protocol::context::{Cause, RoundName};
use crate::protocol::ids::{BlockPair, SessionId, WaiterId};
use crate::protocol::keys::Key;
use crate::protocol::session::Session;
use crate::protocol::steps::{ITEM, Slice};
use crate::protocol::timer::Timestamp;

use super::{Manager, Request};

/// A key that was published, and rounds that waited for it and have not heard so.
#[derive(Debug)]
pub struct Published {
    pub key: Key,
    pub waiters: std::vec::IntoIter<WaiterId>,
}

impl Manager {
    /// Something is left to do, although nothing came in and no deadline has: [`Manager::handle_timeout`] does a slice of
    /// it, and so does every other input.
    #[must_use]
    pub fn has_unfinished_work(&self) -> bool {
        !self.cx.busy.is_empty() || !self.published.is_empty() || self.is_settling()
    }

    /// Does all that is left, however long it takes.
    pub fn finish_work(&mut self, now: Timestamp) {
        self.cx.now = now;
        while self.has_unfinished_work() {
            self.work();
        }
    }

    /// One slice of each kind.
    pub(super) fn work(&mut self) {
        self.tell_waiters(&mut Slice::new(self.cx.config.slice));
        self.settle_slice(&mut Slice::new(self.cx.config.slice));
        self.follow_up();
        let mut slice = Slice::new(self.cx.config.slice);
        while !slice.is_spent()
            && let Some(session) = self.cx.busy.take_turn()
        {
            if !self.work_on(session, &mut slice) {
                self.cx.busy.remove(session);
                self.cx.touched.push(session);
            }
            self.follow_up();
        }
    }

    /// What a round gets in one slice goes out as one transfer.
    fn tell_waiters(&mut self, slice: &mut Slice) {
        let mut met: BTreeMap<WaiterId, (RoundName, Vec<BlockPair>)> = BTreeMap::new();
        while !slice.is_spent()
            && let Some(published) = self.published.front_mut()
        {
            let Some(waiter) = published.waiters.next() else {
                self.published.pop_front();
                continue;
            };
            slice.spend(ITEM);
            let ((session, id, round), pairs) = match met.entry(waiter) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => match self.cx.wanted.round(waiter) {
                    Some(name) => new.insert((name.clone(), Vec::new())),
                    None => continue,
                },
            };
            if let Some(found) = self.sessions.get_mut(session) {
                found.server.on_published(&mut self.cx, (id, *round), published.key.as_bytes(), pairs);
            }
        }
        for ((session, id, round), pairs) in met.into_values() {
            if let Some(found) = self.sessions.get_mut(&session) {
                found.server.write(&mut self.cx, &(id, round), pairs);
            }
        }
        while self.published.front().is_some_and(|published| published.waiters.len() == 0) {
            self.published.pop_front();
        }
    }

    /// True if there is more.
    fn work_on(&mut self, session: SessionId, slice: &mut Slice) -> bool {
        loop {
            let Some(found) = self.sessions.get_mut(&session) else { return false };
            let more = found.work(&mut self.cx, slice);
            if found.is_dying() {
                let requests = self.let_go_requests(session, slice);
                return self.stores.unbind_slice(session, slice) || requests || more;
            }
            if slice.is_spent() {
                return more;
            }
            let Some((message, units)) = found.server.next_waiting() else { return more };
            slice.spend(units.min(self.cx.config.slice));
            if let Err(cause) = self.dispatch_work(session, message) {
                self.count_violation(&cause);
                self.kill(session, cause, true);
            }
            self.follow_up();
        }
    }

    fn let_go_requests(&mut self, session: SessionId, slice: &mut Slice) -> bool {
        let Some(found) = self.sessions.get_mut(&session) else { return false };
        let Some(cause) = found.cause().cloned() else { return false };
        while !slice.is_spent()
            && let Some(request) = found.requests.pop_first()
        {
            slice.spend(ITEM);
            if let Some(request) = self.requests.get_mut(&request) {
                request.session = Some(Err(cause.clone()));
            }
        }
        !found.requests.is_empty()
    }

    /// The consumer's session, or why it has none. A death counts at once, whatever of the session is left to end.
    pub(super) fn session_of<'a>(&'a self, request: &'a Request) -> Option<Result<SessionId, &'a Cause>> {
        match request.session.as_ref()? {
            Err(cause) => Some(Err(cause)),
            Ok(session) => match self.sessions.get(session).and_then(Session::cause) {
                Some(cause) => Some(Err(cause)),
                None => Some(Ok(*session)),
            },
        }
    }

    pub(super) fn is_living(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|found| !found.is_dying())
    }
}
