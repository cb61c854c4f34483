//! What the tier's lock guards: the protocol core and the transports that carry out what it asks for.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashMap;

use crate::control::{ControlEvent, ControlSender};
use crate::data::{DataEvent, DataTransport, Disarm, PeerOffer};
use crate::protocol::codec;
use crate::protocol::config::TransportKind;
use crate::protocol::ids::SessionId;
use crate::protocol::job::JobResult;
use crate::protocol::manager::Manager;
use crate::protocol::message::{Dialect, Message};
use crate::protocol::output::{Output, Registration};
use crate::protocol::timer::Timestamp;

/// Events that are taken in before the lock is let go: engine calls wait for it. Few, since one may be the end of a session
/// with much work.
const EVENT_BATCH: usize = 8;

/// What queued messages of a closing session get to leave.
const LINGER: Duration = Duration::from_millis(500);

/// Kept only to be dropped.
pub struct Transports {
    _control: Option<Box<dyn ControlSender>>,
    _data: Vec<Box<dyn DataTransport>>,
}

pub struct Core {
    pub manager: Manager,
    /// `None` once the tier has ended.
    sender: Option<Box<dyn ControlSender>>,
    transports: Vec<Box<dyn DataTransport>>,
    /// Which of `transports` a session uses, once it is registered there.
    routes: HashMap<SessionId, usize>,
    /// Whether the transports were told to expect writes.
    expects_writes: bool,
    /// Every message is encoded here.
    buffer: Vec<u8>,
    /// Ended jobs, to be queued for the engine when the lock is free.
    pub finished: Vec<JobResult>,
    /// What the transports have told and was not taken in yet.
    control_events: VecDeque<ControlEvent>,
    data_events: VecDeque<DataEvent>,
}

impl Core {
    pub fn new(
        manager: Manager,
        sender: Box<dyn ControlSender>,
        transports: Vec<Box<dyn DataTransport>>,
    ) -> Self {
        Core {
            manager,
            sender: Some(sender),
            transports,
            routes: HashMap::new(),
            expects_writes: false,
            buffer: Vec::new(),
            finished: Vec::new(),
            control_events: VecDeque::new(),
            data_events: VecDeque::new(),
        }
    }

    /// Takes in what the transports have to say, some of it at a time, and does what follows from it. True if that was all
    /// that they had when they were asked: only then may deadlines be judged.
    pub fn take_events(&mut self, now: Timestamp) -> bool {
        if self.control_events.is_empty() && self.data_events.is_empty() {
            self.ask_transports(now);
        }
        for _ in 0..EVENT_BATCH {
            if let Some(event) = self.control_events.pop_front() {
                self.on_control_event(now, event);
            } else if let Some(event) = self.data_events.pop_front() {
                self.on_data_event(now, event);
            } else {
                break;
            }
            self.execute(now);
        }
        self.control_events.is_empty() && self.data_events.is_empty()
    }

    fn ask_transports(&mut self, now: Timestamp) {
        let mut control_events = Vec::new();
        if let Some(sender) = &mut self.sender {
            sender.poll(now, &mut control_events);
        }
        self.control_events.extend(control_events);

        let mut data_events = Vec::new();
        for transport in &mut self.transports {
            transport.poll(&mut data_events);
        }
        // A success anywhere in a batch counts before its failures: it shows that the peer is well.
        data_events.sort_by_key(|event| matches!(event, DataEvent::TransferFailed { .. }));
        self.data_events.extend(data_events);
    }

    fn on_control_event(&mut self, now: Timestamp, event: ControlEvent) {
        match event {
            ControlEvent::ConnectionLost { session, reason } => {
                self.manager.handle_connection_lost(now, session, &reason);
            }
            ControlEvent::Resolved { session, addresses } => {
                self.manager.handle_resolved(now, session, addresses)
            }
            ControlEvent::Unresolvable { session, reason } => {
                self.manager.handle_unresolvable(now, session, &reason);
            }
        }
    }

    fn on_data_event(&mut self, now: Timestamp, event: DataEvent) {
        match event {
            DataEvent::Disarmed { load } => self.manager.handle_disarmed(now, load),
            DataEvent::Landed { load } => self.manager.handle_landed(now, load),
            DataEvent::PeerFault { session, reason } => self.manager.handle_peer_fault(now, session, &reason),
            DataEvent::PeerRegistered { session, reach } => {
                self.manager.note_reach(session, reach);
                self.manager.handle_peer_registered(now, session);
            }
            DataEvent::PeerRefused { session, reason } => {
                self.manager.handle_peer_refused(now, session, &reason)
            }
            DataEvent::TransferDone { transfer } => self.manager.handle_transfer_done(now, transfer),
            DataEvent::TransferUnwanted { transfer, reason } => {
                self.manager.handle_transfer_unwanted(now, transfer, &reason);
            }
            DataEvent::TransferFailed { transfer, reason, decisive } => {
                self.manager.handle_transfer_failed(now, transfer, &reason, decisive);
            }
        }
    }

    /// Carries out everything that the core asks for.
    pub fn execute(&mut self, now: Timestamp) {
        while let Some(output) = self.manager.poll_output() {
            match output {
                Output::Arm { session, load, blocks } => {
                    if let Some(transport) = self.route(session) {
                        transport.arm(session, load, &blocks);
                    }
                }
                Output::CancelTransfers { session, transfers } => {
                    if let Some(transport) = self.route(session) {
                        transport.cancel(&transfers);
                    }
                }
                Output::ClosePeer { session, flush } => self.close_peer(now, session, flush),
                Output::Disarm { session, load } => {
                    let closed =
                        self.route(session).is_none_or(|transport| transport.disarm(load) == Disarm::Done);
                    if closed {
                        self.manager.handle_disarmed(now, load);
                    }
                }
                Output::Finished(result) => self.finished.push(result),
                Output::OpenPeer { session, peer, token } => {
                    for transport in &mut self.transports {
                        transport.expect_peer(session, &token);
                    }
                    if let Some(sender) = &mut self.sender {
                        sender.dial(now, session, &peer);
                    }
                }
                Output::Redial { session } => {
                    if let Some(sender) = &mut self.sender {
                        sender.redial(now, session);
                    }
                }
                Output::RegisterPeer { session, registration } => self.register(now, session, registration),
                Output::Send { session, message, dialect } => {
                    self.send(session, &message, dialect);
                    self.manager.was_sent(message);
                }
                Output::Write { session, transfer, load, blocks } => match self.route(session) {
                    Some(transport) => transport.write(session, transfer, load, &blocks),
                    None => self.manager.handle_transfer_failed(
                        now,
                        transfer,
                        "no data transport is registered",
                        true,
                    ),
                },
            }
        }
        self.tell_of_expected_writes();
    }

    /// Only transports that cannot fence are interested.
    fn tell_of_expected_writes(&mut self) {
        let expected = self.manager.has_exposed_loads();
        if std::mem::replace(&mut self.expects_writes, expected) != expected {
            for transport in &mut self.transports {
                transport.expect_writes(expected);
            }
        }
    }

    fn route(&mut self, session: SessionId) -> Option<&mut Box<dyn DataTransport>> {
        let index = *self.routes.get(&session)?;
        self.transports.get_mut(index)
    }

    fn send(&mut self, session: SessionId, message: &Message, dialect: Dialect) {
        self.buffer.clear();
        codec::encode(message, dialect, &mut self.buffer);
        log::trace!("session {session}: send {}, {} bytes", message.name(), self.buffer.len());
        if let Some(sender) = &mut self.sender {
            sender.send(session, &self.buffer);
        }
    }

    fn register(&mut self, now: Timestamp, session: SessionId, registration: Registration) {
        let kind = registration.kind();
        let Some(index) = self.transports.iter().position(|transport| transport.kind() == kind) else {
            return self.manager.handle_peer_refused(now, session, &missing(kind));
        };
        self.routes.insert(session, index);
        let offer = match registration {
            Registration::Nixl { metadata, base_addr, num_blocks, block_len } => {
                PeerOffer::Nixl { metadata, base_addr, num_blocks, block_len }
            }
            Registration::Tcp { addresses, token, num_blocks, same_host } => {
                PeerOffer::Tcp { addresses, token, num_blocks, same_host }
            }
        };
        if let Some(transport) = self.transports.get_mut(index) {
            transport.register_peer(session, offer);
        }
    }

    fn close_peer(&mut self, now: Timestamp, session: SessionId, flush: bool) {
        if let Some(sender) = &mut self.sender {
            sender.close(now, session, if flush { LINGER } else { Duration::ZERO });
        }
        for transport in &mut self.transports {
            transport.drop_peer(session);
        }
    }

    /// Forgets the routes of sessions that are gone.
    pub fn forget_routes(&mut self) {
        if self.routes.len() > 2 * self.manager.sessions_open() + 16 {
            let manager = &self.manager;
            self.routes.retain(|session, _| manager.has_session(*session));
        }
    }

    pub fn open_connections(&self) -> usize {
        self.sender.as_ref().map_or(0, |sender| sender.open_connections())
    }

    /// The transports, to be dropped without the lock: that may take a moment. Nothing is sent or moved any more.
    pub fn take_transports(&mut self) -> Transports {
        Transports { _control: self.sender.take(), _data: std::mem::take(&mut self.transports) }
    }

    /// Gives every job that is still open its result, now that the transports are gone and touch nothing any more.
    pub fn end_all(&mut self, now: Timestamp) {
        while !self.take_events(now) {}
        self.manager.finish_work(now);
        self.execute(now);
        for transfer in self.manager.open_transfers() {
            self.manager.handle_transfer_failed(now, transfer, "this tier was freed", false);
        }
        self.execute(now);
        for load in self.manager.open_loads() {
            self.manager.handle_disarmed(now, load);
        }
        self.manager.finish_work(now);
        self.execute(now);
    }

    /// When something is due although nothing came in. Work that is left is due at once.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.manager.has_unfinished_work() {
            return Some(Timestamp::ZERO);
        }
        let sender = self.sender.as_ref().and_then(|sender| sender.next_deadline());
        [self.manager.next_deadline(), sender].into_iter().flatten().min()
    }
}

fn missing(kind: TransportKind) -> String {
    format!("the {} transport is not running here", kind.name())
}
