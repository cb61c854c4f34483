//! Ids and the sessions whose fetches asked for them, found both ways: what ends with a session costs what it had.

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::ids::{KvRequestId, SessionId};

/// The session whose fetch asked for an id.
#[derive(Debug)]
pub struct Binding {
    session: SessionId,
    /// How its PD round ended, once it has.
    pub served: Option<bool>,
}

impl Binding {
    pub fn session(&self) -> SessionId {
        self.session
    }
}

#[derive(Debug, Default)]
pub struct Bindings {
    by_id: BTreeMap<KvRequestId, Binding>,
    by_session: BTreeMap<SessionId, BTreeSet<KvRequestId>>,
}

impl Bindings {
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub fn get(&self, id: &KvRequestId) -> Option<&Binding> {
        self.by_id.get(id)
    }

    pub fn get_mut(&mut self, id: &KvRequestId) -> Option<&mut Binding> {
        self.by_id.get_mut(id)
    }

    /// Nothing is served yet.
    pub fn insert(&mut self, id: &KvRequestId, session: SessionId) {
        self.remove(id);
        self.by_id.insert(id.clone(), Binding { session, served: None });
        self.by_session.entry(session).or_default().insert(id.clone());
    }

    pub fn remove(&mut self, id: &KvRequestId) -> Option<Binding> {
        let binding = self.by_id.remove(id)?;
        if let Some(ids) = self.by_session.get_mut(&binding.session) {
            ids.remove(id);
            if ids.is_empty() {
                self.by_session.remove(&binding.session);
            }
        }
        Some(binding)
    }

    pub fn remove_session(&mut self, session: SessionId) {
        for id in self.by_session.remove(&session).into_iter().flatten() {
            self.by_id.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bindings_of_a_session_end_with_it_and_only_those() {
        let [a, b, c] = ["a", "b", "c"].map(KvRequestId::new);
        let (first, second) = (SessionId(1), SessionId(2));
        let mut bindings = Bindings::default();
        bindings.insert(&a, first);
        bindings.insert(&b, first);
        bindings.insert(&c, second);
        // It goes to another one now.
        bindings.insert(&b, second);
        bindings.remove_session(first);
        assert!(bindings.get(&a).is_none());
        assert_eq!(bindings.get(&b).map(Binding::session), Some(second));
        assert_eq!(bindings.remove(&c).map(|binding| binding.session()), Some(second));
        bindings.remove_session(second);
        assert!(bindings.is_empty() && bindings.by_session.is_empty());
    }
}
