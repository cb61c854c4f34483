//! Ids and the sessions whose fetches asked for them, found both ways: what ends with a session costs what it had.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::ids::{KvRequestId, SessionId};
use crate::protocol::steps::{ITEM, Slice};

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

    /// Removes a slice of the session's. True if there are more.
    pub fn remove_slice(&mut self, session: SessionId, slice: &mut Slice) -> bool {
        let Entry::Occupied(mut ids) = self.by_session.entry(session) else { return false };
        while !slice.is_spent()
            && let Some(id) = ids.get_mut().pop_first()
        {
            slice.spend(ITEM);
            self.by_id.remove(&id);
        }
        let is_empty = ids.get().is_empty();
        if is_empty {
            ids.remove();
        }
        !is_empty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bindings_of_a_session_end_with_it_and_only_those() {
        let [a, b, c, d] = ["a", "b", "c", "d"].map(KvRequestId::new);
        let (first, second) = (SessionId(1), SessionId(2));
        let mut bindings = Bindings::default();
        bindings.insert(&a, first);
        bindings.insert(&b, first);
        bindings.insert(&d, first);
        bindings.insert(&c, second);
        // It goes to another one now.
        bindings.insert(&b, second);
        assert!(bindings.remove_slice(first, &mut Slice::new(1)), "one of two");
        assert!(!bindings.remove_slice(first, &mut Slice::new(usize::MAX)));
        assert!(bindings.get(&a).is_none() && bindings.get(&d).is_none());
        assert_eq!(bindings.get(&b).map(Binding::session), Some(second));
        assert_eq!(bindings.remove(&c).map(|binding| binding.session()), Some(second));
        assert!(!bindings.remove_slice(second, &mut Slice::new(usize::MAX)));
        assert!(bindings.is_empty() && bindings.by_session.is_empty());
    }
}
