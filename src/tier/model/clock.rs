//! `tier::clock`, modelled: time stands still until somebody has waited.

use std::cell::Cell;
use std::time::Duration;

use crate::protocol::timer::Timestamp;

// The standard library's, not shuttle's: all threads of an execution share it, since they take turns on one.
thread_local! {
    static NOW: Cell<Timestamp> = const { Cell::new(Timestamp::ZERO) };
}

pub fn advance(span: Duration) {
    NOW.set(NOW.get() + span);
}

#[cfg(test)]
pub fn now() -> Timestamp {
    NOW.get()
}

#[derive(Clone, Copy, Debug)]
pub struct Clock;

impl Clock {
    #[must_use]
    pub fn start() -> Self {
        NOW.set(Timestamp::ZERO);
        Clock
    }

    #[must_use]
    pub fn now(&self) -> Timestamp {
        NOW.get()
    }

    #[must_use]
    pub fn deadline(&self, timeout: Option<Duration>) -> Option<Timestamp> {
        timeout.map(|timeout| self.now() + timeout)
    }

    #[must_use]
    pub fn left(&self, deadline: Timestamp) -> Option<Duration> {
        let left = deadline.since(self.now());
        (!left.is_zero()).then_some(left)
    }
}
