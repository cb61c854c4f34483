//! How an I/O thread is reached: a queue, and a signal that ends its sleep.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use super::line::Line;
use super::listener::Admitted;
use super::sys::EventFd;
use crate::protocol::ids::{SessionId, TransferId};

/// What is asked of a thread, by callers and by its neighbours.
pub(super) enum Command {
    /// The thread reads a connection that its neighbour has accepted.
    Adopt(Box<Admitted>),
    Cancel(Arc<[TransferId]>),
    DropPeer(SessionId),
    /// Something has changed in the peer's line.
    Look(SessionId),
    /// The thread opens its part of the streams.
    RegisterPeer(Arc<Line>),
}

#[derive(Clone)]
pub(super) struct Mailbox {
    queue: Sender<Command>,
    wake: Arc<EventFd>,
}

impl Mailbox {
    pub fn post(&self, command: Command) {
        // The receiving end lives as long as the thread, and that until the transport is dropped.
        let _ = self.queue.send(command);
        self.wake();
    }

    /// The thread looks whether it is to stop.
    pub fn wake(&self) {
        self.wake.signal();
    }
}

/// The thread's end of its mailbox.
pub(super) struct Inbox {
    pub commands: Receiver<Command>,
    wake: Arc<EventFd>,
}

impl Inbox {
    /// Before the last look at the commands: one that comes after it comes with a signal of its own.
    pub fn reset(&self) {
        self.wake.reset();
    }

    pub fn wake_fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }
}

pub(super) fn open() -> std::io::Result<(Mailbox, Inbox)> {
    let (queue, commands) = crossbeam_channel::unbounded();
    let wake = Arc::new(EventFd::new()?);
    Ok((Mailbox { queue, wake: Arc::clone(&wake) }, Inbox { commands, wake }))
}
