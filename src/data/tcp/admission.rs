//! Who may connect: the access tokens of the live sessions, and how many connections each has.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::protocol::ids::SessionId;

/// Shared with the callers, so that a token counts from the moment that `expect_peer` returns and is void from the
/// moment that `drop_peer` does.
#[derive(Default)]
pub(super) struct Admission {
    expected: Mutex<Vec<Expected>>,
}

struct Expected {
    session: SessionId,
    token: Vec<u8>,
    /// Connections that hold a [`Place`].
    places: Arc<AtomicUsize>,
}

/// One connection's, until dropped.
pub(super) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Admission {
    /// An empty token would open the door to everyone; it opens it to nobody.
    pub fn expect(&self, session: SessionId, token: &[u8]) {
        let mut expected = self.expected();
        let known = expected.iter().find(|one| one.session == session);
        let places = known.map(|one| Arc::clone(&one.places)).unwrap_or_default();
        expected.retain(|one| one.session != session);
        if token.is_empty() {
            log::error!("session {session} has an empty access token: its peer cannot connect");
        } else {
            expected.push(Expected { session, token: token.to_vec(), places });
        }
    }

    pub fn forget(&self, session: SessionId) {
        self.expected().retain(|one| one.session != session);
    }

    /// The session has not been forgotten.
    pub fn expects(&self, session: SessionId) -> bool {
        self.expected().iter().any(|one| one.session == session)
    }

    /// Room for one more connection of the session, if it has fewer than `limit`.
    pub fn place(&self, session: SessionId, limit: usize) -> Option<Place> {
        let expected = self.expected();
        let places = &expected.iter().find(|one| one.session == session)?.places;
        if places.fetch_add(1, Ordering::Relaxed) >= limit {
            places.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Place(Arc::clone(places)))
    }

    /// The session whose token this is. Takes as long whichever it is, or none.
    pub fn session_of(&self, shown: &[u8]) -> Option<SessionId> {
        let mut found = Choice::from(0);
        let mut session = 0;
        for one in self.expected().iter() {
            let equal = one.token.as_slice().ct_eq(shown);
            session.conditional_assign(&one.session.0, equal);
            found |= equal;
        }
        bool::from(found).then_some(SessionId(session))
    }

    fn expected(&self) -> MutexGuard<'_, Vec<Expected>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_session_until_forgotten() {
        let admission = Admission::default();
        admission.expect(SessionId(1), b"one");
        admission.expect(SessionId(2), b"two");
        assert_eq!(admission.session_of(b"two"), Some(SessionId(2)));
        assert_eq!(admission.session_of(b"on"), None);
        assert_eq!(admission.session_of(b"onee"), None);
        admission.expect(SessionId(2), b"new");
        assert_eq!(admission.session_of(b"two"), None);
        admission.forget(SessionId(1));
        assert_eq!(admission.session_of(b"one"), None);
    }

    #[test]
    fn a_session_has_places_up_to_the_limit_and_each_comes_back() {
        let admission = Admission::default();
        admission.expect(SessionId(1), b"one");
        let first = admission.place(SessionId(1), 2).unwrap();
        let second = admission.place(SessionId(1), 2).unwrap();
        assert!(admission.place(SessionId(1), 2).is_none());
        drop(first);
        assert!(admission.place(SessionId(1), 2).is_some());
        assert!(admission.place(SessionId(2), 2).is_none(), "not expected");
        admission.forget(SessionId(1));
        assert!(admission.place(SessionId(1), 2).is_none() && !admission.expects(SessionId(1)));
        drop(second);
    }

    #[test]
    fn an_empty_token_opens_nothing() {
        let admission = Admission::default();
        admission.expect(SessionId(1), b"");
        assert_eq!(admission.session_of(b""), None);
    }
}
