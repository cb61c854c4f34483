//! The one place that reads the clock.

use std::time::{Duration, Instant};

use crate::protocol::timer::Timestamp;

/// Monotonic time since the tier began. Steps of the wall clock do not touch it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    #[allow(clippy::disallowed_methods, reason = "this is where time enters the library")]
    #[must_use]
    pub fn start() -> Self {
        Clock { start: Instant::now() }
    }

    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.start.elapsed()
    }

    /// The end of a wait that begins now; `None` = without end.
    #[must_use]
    pub fn deadline(&self, timeout: Option<Duration>) -> Option<Timestamp> {
        timeout.map(|timeout| self.now() + timeout)
    }

    /// What is left until `deadline`; `None` = no time is left.
    #[must_use]
    pub fn left(&self, deadline: Timestamp) -> Option<Duration> {
        let left = deadline.since(self.now());
        (!left.is_zero()).then_some(left)
    }
}
