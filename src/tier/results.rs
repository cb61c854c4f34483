//! Finished jobs on their way to the engine, and the fd that tells of them.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::PoisonError;

use rustix::event::EventfdFlags;

use crate::protocol::error::Result;
use crate::protocol::job::JobResult;
use crate::protocol::timer::Timestamp;

use super::clock::Clock;
use super::os_error::os_error;
use super::sync::{self, Condvar, Mutex, MutexGuard};

/// Results in the order in which the jobs ended. Its eventfd is readable while there is one, or while peers' lookups
/// wait for the engine.
#[derive(Debug)]
pub struct ResultQueue {
    queue: Mutex<Queue>,
    arrived: Condvar,
    event: OwnedFd,
}

#[derive(Debug, Default)]
struct Queue {
    results: VecDeque<JobResult>,
    serve_news: bool,
    closed: bool,
    signalled: bool,
}

impl ResultQueue {
    pub fn new() -> Result<Self> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| os_error("cannot make the result eventfd", error))?;
        Ok(ResultQueue { queue: Mutex::default(), arrived: Condvar::new(), event })
    }

    pub fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    pub fn push(&self, results: impl IntoIterator<Item = JobResult>) {
        let mut queue = self.lock();
        let before = queue.results.len();
        queue.results.extend(results);
        if queue.results.len() == before {
            return;
        }
        // Also when it is readable already: an edge-triggered set wants to hear of each arrival.
        queue.signalled = false;
        self.signal(&mut queue);
        drop(queue);
        self.arrived.notify_all();
    }

    /// Appends up to `capacity` results to `out`. False if there was none.
    pub fn take(&self, out: &mut Vec<JobResult>, capacity: usize) -> bool {
        let mut queue = self.lock();
        self.take_from(&mut queue, out, capacity)
    }

    fn take_from(&self, queue: &mut Queue, out: &mut Vec<JobResult>, capacity: usize) -> bool {
        let any = !queue.results.is_empty();
        let count = capacity.min(queue.results.len());
        out.extend(queue.results.drain(..count));
        self.signal(queue);
        any
    }

    /// As [`Self::take`], but waits for the first result, at most until `deadline`.
    pub fn wait(
        &self,
        clock: &Clock,
        deadline: Option<Timestamp>,
        out: &mut Vec<JobResult>,
        capacity: usize,
    ) -> bool {
        let mut queue = self.lock();
        while queue.results.is_empty() && !queue.closed {
            queue = match deadline {
                None => self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let Some(left) = clock.left(deadline) else { return false };
                    sync::let_go(queue, &self.arrived, left);
                    self.lock()
                }
            };
        }
        self.take_from(&mut queue, out, capacity)
    }

    /// Whether peers' lookups wait for the engine to serve.
    pub fn set_serve_news(&self, news: bool) {
        let mut queue = self.lock();
        if queue.serve_news != news {
            queue.serve_news = news;
            self.signal(&mut queue);
        }
    }

    /// Nobody waits any more: the tier is going.
    pub fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    pub fn len(&self) -> usize {
        self.lock().results.len()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the eventfd say what the queue holds.
    fn signal(&self, queue: &mut Queue) {
        let wanted = !queue.results.is_empty() || queue.serve_news;
        if wanted == queue.signalled {
            return;
        }
        queue.signalled = wanted;
        // Neither can fail: the count is small, and the fd is ours.
        if wanted {
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        } else {
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
    }
}
