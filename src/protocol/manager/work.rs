//! What one input has left over: a slice of it is done with each input that follows.

use crate::protocol::context::Cause;
use crate::protocol::ids::SessionId;
use crate::protocol::session::Session;
use crate::protocol::steps::{ITEM, Slice};
use crate::protocol::timer::Timestamp;

use super::{Manager, Request};

impl Manager {
    /// Something is left to do, although nothing came in and no deadline has: [`Manager::handle_timeout`] does a slice of
    /// it, and so does every other input.
    #[must_use]
    pub fn has_unfinished_work(&self) -> bool {
        !self.cx.busy.is_empty()
    }

    /// Does all that is left, however long it takes.
    pub fn finish_work(&mut self, now: Timestamp) {
        self.cx.now = now;
        while self.has_unfinished_work() {
            self.work();
        }
    }

    /// One slice.
    pub(super) fn work(&mut self) {
        let mut slice = Slice::new(self.cx.config.slice);
        while !slice.is_spent()
            && let Some(session) = self.cx.busy.next()
        {
            if !self.work_on(session, &mut slice) {
                self.cx.busy.remove(session);
                self.cx.touched.push(session);
            }
            self.follow_up();
        }
    }

    /// True if there is more.
    fn work_on(&mut self, session: SessionId, slice: &mut Slice) -> bool {
        let Some(found) = self.sessions.get_mut(&session) else { return false };
        let more = found.work(&mut self.cx, slice);
        if !found.is_dying() {
            return more;
        }
        let requests = self.let_go_requests(session, slice);
        self.stores.unbind_slice(session, slice) || requests || more
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
