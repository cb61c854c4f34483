//! Who may connect: the access tokens of the live sessions.

use std::sync::{Mutex, MutexGuard, PoisonError};

use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::protocol::ids::SessionId;

/// Shared with the callers, so that a token counts from the moment that `expect_peer` returns and is void from the
/// moment that `drop_peer` does.
#[derive(Default)]
pub(super) struct Admission {
    tokens: Mutex<Vec<(SessionId, Vec<u8>)>>,
}

impl Admission {
    /// An empty token would open the door to everyone; it opens it to nobody.
    pub fn expect(&self, session: SessionId, token: &[u8]) {
        let mut tokens = self.tokens();
        tokens.retain(|(known, _)| *known != session);
        if token.is_empty() {
            log::error!("session {session} has an empty access token: its peer cannot connect");
        } else {
            tokens.push((session, token.to_vec()));
        }
    }

    pub fn forget(&self, session: SessionId) {
        self.tokens().retain(|(known, _)| *known != session);
    }

    /// The session whose token this is. Takes as long whichever it is, or none.
    pub fn session_of(&self, shown: &[u8]) -> Option<SessionId> {
        let mut found = Choice::from(0);
        let mut session = 0;
        for (candidate, token) in self.tokens().iter() {
            let equal = token.as_slice().ct_eq(shown);
            session.conditional_assign(&candidate.0, equal);
            found |= equal;
        }
        bool::from(found).then_some(SessionId(session))
    }

    fn tokens(&self) -> MutexGuard<'_, Vec<(SessionId, Vec<u8>)>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn an_empty_token_opens_nothing() {
        let admission = Admission::default();
        admission.expect(SessionId(1), b"");
        assert_eq!(admission.session_of(b""), None);
    }
}
