//! Progress: messages in, events in, deadlines, outputs out. By a thread of the tier's own or by whoever calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::control::Received;
use crate::protocol::codec;
use crate::protocol::timer::Timestamp;

use super::{ProgressMode, ServeThread, Shared};

/// Messages, and bytes of them, taken in before the other sources get their turn: neither many messages nor large ones
/// can hold off deadlines and the ends of transfers.
const INBOX_BATCH: u64 = 1024;
const INBOX_BYTES: usize = 1 << 20;

/// Messages are taken in for so long where that is an engine's call.
const CALL: Duration = Duration::from_millis(1);

/// Keys that the engine left open are asked about again so soon, where the progress thread serves.
const SERVE_AGAIN: Duration = Duration::from_millis(2);

/// The progress thread looks up so often even if nothing happens. So a deadline that lies further ahead, as that of
/// every load and store does, need not wake it only to be noted.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_secs(1);

impl Shared {
    /// The progress thread's life.
    pub(super) fn run(&self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            while !self.stop.load(Ordering::Acquire) && !self.core.is_poisoned() {
                self.core.give_way();
                self.progress();
                self.spin();
                self.sleep(Some(LONGEST_SLEEP));
            }
        }));
        if outcome.is_err() || self.core.is_poisoned() {
            log::error!("tier {}: a panic was caught; the tier is poisoned", self.local_id);
            self.break_down();
        }
    }

    /// Does all that can be done without waiting.
    pub(super) fn progress(&self) {
        let inbox_is_taken = self.take_inbox();
        {
            let Ok(mut core) = self.core.lock() else { return };
            let now = self.clock.now();
            let events_are_taken = core.take_events(now);
            if !events_are_taken {
                // Nothing would tell of the others again.
                self.poller.wake();
            }
            if inbox_is_taken && events_are_taken {
                core.manager.handle_timeout(now);
                core.execute(now);
            }
            core.forget_routes();
            self.leave(core);
        }
        if self.serves_on(ServeThread::Progress) {
            self.serve();
        }
        self.changed.notify_all();
    }

    /// The inbox comes before deadlines: an answer that has arrived is not late. True if it is empty, or if so much was taken
    /// in that deadlines can wait no longer.
    fn take_inbox(&self) -> bool {
        let Ok(mut receiver) = self.receiver.lock() else { return false };
        let Some(receiver) = receiver.as_mut() else { return false };
        let begin = self.clock.now();
        let mut taken = self.taken.swap(0, Ordering::Relaxed);
        let mut bytes = 0;
        let mut is_empty = false;
        while taken < INBOX_BATCH && bytes < INBOX_BYTES {
            let Some(received) = receiver.receive() else {
                is_empty = true;
                break;
            };
            taken += 1;
            bytes += received.payload.len();
            self.take_message(received);
            if self.mode == ProgressMode::Caller && self.clock.now().since(begin) >= CALL {
                break;
            }
        }
        if !is_empty {
            // More may be there, and nothing would tell of it again.
            self.poller.wake();
        }
        let is_taken = is_empty || taken >= INBOX_BATCH || bytes >= INBOX_BYTES;
        if !is_taken {
            self.taken.store(taken, Ordering::Relaxed);
        }
        self.count_dropped(receiver.dropped());
        is_taken
    }

    fn count_dropped(&self, dropped: u64) {
        let before = self.dropped.swap(dropped, Ordering::Relaxed);
        if dropped > before
            && let Ok(mut core) = self.core.lock()
        {
            core.manager.count_dropped(dropped - before);
        }
    }

    /// Large messages are decoded outside the lock: engine calls do not wait for that.
    fn take_message(&self, received: Received<'_>) {
        self.core.give_way();
        let dialect = match self.core.lock() {
            Ok(core) => core.manager.dialect_of(received.identity),
            Err(_) => return,
        };
        let decoded = codec::decode(received.payload, dialect, &self.limits);
        let Ok(mut core) = self.core.lock() else { return };
        let now = self.clock.now();
        core.manager.handle_message(now, received.identity, decoded);
        core.execute(now);
        self.leave(core);
    }

    /// Looks for news for a moment: waking a thread that sleeps takes longer than much of its work.
    fn spin(&self) {
        if self.spin.is_zero() {
            return;
        }
        // Not beyond what is due, which may be now.
        let deadline = Timestamp::from_nanos(self.sleeps_until.load(Ordering::Acquire));
        let until = (self.clock.now() + self.spin).min(deadline);
        while self.clock.now() < until && !self.poller.has_news() {
            std::hint::spin_loop();
        }
    }

    /// Sleeps until a source is readable, a deadline comes or somebody wakes us; at most `limit`.
    pub(super) fn sleep(&self, limit: Option<Duration>) {
        let deadline = Timestamp::from_nanos(self.sleeps_until.load(Ordering::Acquire));
        let due = self.clock.left(deadline).unwrap_or(Duration::ZERO);
        // Where the engine serves on its own threads, it comes by itself.
        let again = self.serves_again.load(Ordering::Acquire) && self.serves_on(ServeThread::Progress);
        let limit = [Some(due), again.then_some(SERVE_AGAIN), limit].into_iter().flatten().min();
        if !self.poller.wait(limit)
            && let Ok(core) = self.core.lock()
        {
            // Another caller is at it: what it finds, it tells.
            core.wait(&self.changed, limit.unwrap_or(SERVE_AGAIN));
        }
    }
}
