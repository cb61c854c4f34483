//! Incoming messages of all peers: one ROUTER that only receives.

use std::os::fd::RawFd;

use super::receive_frame;
use crate::control::{ControlReceiver, Received};
use crate::protocol::error::{Error, ErrorKind, Result};

/// The receiving half; see [`super::open`].
pub struct ZmqReceiver {
    router: ::zmq::Socket,
    fd: RawFd,
    dropped: u64,
    /// Identity and payload of the message that was received last.
    last: Option<(::zmq::Message, ::zmq::Message)>,
}

impl ZmqReceiver {
    pub(super) fn new(router: ::zmq::Socket) -> Result<Self> {
        let fd = router.get_fd().map_err(|error| {
            Error::new(ErrorKind::Os, format!("the control socket gives no event fd: {error}"))
        })?;
        Ok(ZmqReceiver { router, fd, dropped: 0, last: None })
    }

    /// Reads the rest of a message and counts it as dropped. Returns how many frames that were.
    fn drop_rest(&mut self, mut more: bool) -> usize {
        let mut frames = 0;
        while more {
            let Some(frame) = receive_frame(&self.router) else { break };
            frames += 1;
            more = frame.get_more();
        }
        self.dropped += 1;
        frames
    }

    fn report(&self, identity: &[u8], frames: usize) {
        let level = if self.dropped == 1 { log::Level::Warn } else { log::Level::Debug };
        log::log!(
            level,
            "dropped a control message of {frames} frames from {:?}: expected the sender's name and one payload \
             ({} dropped so far)",
            String::from_utf8_lossy(identity),
            self.dropped
        );
    }
}

impl ControlReceiver for ZmqReceiver {
    fn receive(&mut self) -> Option<Received<'_>> {
        self.last = None;
        loop {
            let identity = receive_frame(&self.router)?;
            let payload = if identity.get_more() { receive_frame(&self.router) } else { None };
            match payload {
                Some(payload) if !payload.get_more() => {
                    let (identity, payload) = self.last.insert((identity, payload));
                    return Some(Received { identity, payload });
                }
                Some(payload) => {
                    let frames = 2 + self.drop_rest(payload.get_more());
                    self.report(&identity, frames);
                }
                None => {
                    self.drop_rest(false);
                    self.report(&identity, 1);
                }
            }
        }
    }

    fn dropped(&self) -> u64 {
        self.dropped
    }

    fn event_fd(&self) -> RawFd {
        self.fd
    }
}
