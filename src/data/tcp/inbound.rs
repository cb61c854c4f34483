//! A peer that writes to us: one accepted connection.
//!
//! ```text
//!            header complete          table complete, all blocks admitted
//!  ► Header ────────────────► Table ─────────────────────────────────────► Landing ──► ack: landed ──► Header
//!                               │                                             │
//!                               │ not admitted: reason                        │ the fence closed
//!                               └──────────────► Discarding ◄─────────────────┘
//!                                                    └──► ack: refused ──► Header
//! ```
//!
//! Anything that is not the protocol ends the connection, and nothing else.

use std::sync::Arc;

use super::fence::{Access, ArmedLoad, Fence};
use super::frame::{Ack, FrameHeader, FrameRefusal, destinations};
use super::io_vectors::{Moved, Place, discard};
use super::reactor::{Connection, Fill, Outbox, Reactor, fill};
use super::sys::{Interest, Readiness, set_receive_low_water};
use crate::data::DataEvent;
use crate::protocol::ids::SessionId;

/// Bytes that one connection may take in before others get their turn. Also the most that one read writes behind
/// a fence that is being closed.
const BYTES_PER_TURN: usize = 1 << 20;
/// What a frame costs of a turn besides its bytes: many tiny frames are work too.
const FRAME_COST: usize = 4096;
/// In the middle of a frame, waking up for fewer bytes costs more than it gains.
const LOW_WATER: usize = 256 << 10;
/// A writer that does not read its acks is not read from either.
const MAX_WAITING_ACKS: usize = 256 * Ack::LEN;

enum State {
    Header { bytes: [u8; FrameHeader::LEN], got: usize },
    Table { header: FrameHeader, got: usize },
    Landing { header: FrameHeader, load: Arc<ArmedLoad>, place: Place },
    Discarding { header: FrameHeader, refusal: FrameRefusal, left: u64 },
}

const AT_FRAME_START: State = State::Header { bytes: [0; FrameHeader::LEN], got: 0 };

/// What one step came to.
enum Step {
    /// Bytes moved, or what else counts against the turn.
    Moved(usize),
    /// Bytes moved, and the socket is empty now.
    MovedLast(usize),
    Blocked,
    /// The peer closed between two frames.
    Closed,
}

impl Step {
    fn bytes(&self) -> usize {
        match self {
            Step::Moved(bytes) | Step::MovedLast(bytes) => *bytes,
            Step::Blocked | Step::Closed => 0,
        }
    }
}

/// Why a connection is at its end; `None` is a proper close.
pub(super) type End = Option<String>;

pub(super) struct Inbound {
    pub connection: Connection,
    pub session: SessionId,
    pub from: String,
    state: State,
    /// Destinations of the current frame, as received.
    table: Vec<u8>,
    acks: Outbox,
    /// What the socket was told last.
    low_water: usize,
}

impl Inbound {
    pub fn new(connection: Connection, session: SessionId, from: String) -> Inbound {
        Inbound {
            connection,
            session,
            from,
            state: AT_FRAME_START,
            table: Vec::new(),
            acks: Outbox::default(),
            low_water: 1,
        }
    }

    /// Does one turn's work. `Err` ends the connection.
    pub fn on_ready(&mut self, ready: Readiness, reactor: &mut Reactor, fence: &Fence) -> Result<(), End> {
        if ready.writable {
            self.acks.flush(&self.connection.socket).map_err(broken)?;
        }
        if ready.readable {
            self.read(reactor, fence)?;
            self.set_low_water(reactor.block_len()).map_err(broken)?;
        }
        self.acks.flush(&self.connection.socket).map_err(broken)?;
        let interest =
            Interest { readable: self.acks.waiting() < MAX_WAITING_ACKS, writable: self.acks.waiting() > 0 };
        reactor.want(&mut self.connection, interest).map_err(broken)
    }

    fn read(&mut self, reactor: &mut Reactor, fence: &Fence) -> Result<(), End> {
        let mut budget = BYTES_PER_TURN;
        while budget > 0 && self.acks.waiting() < MAX_WAITING_ACKS {
            match self.step(budget, reactor, fence)? {
                Step::Moved(bytes) => budget = budget.saturating_sub(bytes),
                Step::Blocked | Step::MovedLast(_) => return Ok(()),
                Step::Closed => return Err(None),
            }
        }
        Ok(())
    }

    /// Never more than the current frame still brings, so its end is always noticed.
    fn set_low_water(&mut self, block_len: usize) -> std::io::Result<()> {
        let left = match &self.state {
            State::Header { .. } | State::Table { .. } => 1,
            State::Landing { header, place, .. } => left_after(*place, *header, block_len),
            State::Discarding { left, .. } => *left,
        };
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(LOW_WATER);
        if wanted != self.low_water {
            set_receive_low_water(&self.connection.socket, wanted)?;
            self.low_water = wanted;
        }
        Ok(())
    }

    fn step(&mut self, budget: usize, reactor: &mut Reactor, fence: &Fence) -> Result<Step, End> {
        match &mut self.state {
            State::Header { .. } => self.read_header(reactor.block_len()),
            State::Table { .. } => self.read_table(reactor.block_len(), fence),
            State::Landing { .. } => self.land(budget, reactor, fence),
            State::Discarding { .. } => self.throw_away(budget),
        }
    }

    fn read_header(&mut self, block_len: usize) -> Result<Step, End> {
        let State::Header { bytes, got } = &mut self.state else { return Ok(Step::Moved(0)) };
        match fill(&self.connection.socket, bytes, got).map_err(broken)? {
            Fill::Ended if *got == 0 => return Ok(Step::Closed),
            Fill::Ended => return Err(cut_off()),
            Fill::Blocked => return Ok(Step::Blocked),
            Fill::Complete => {}
        }
        let header = FrameHeader::decode(bytes, block_len).map_err(|error| Some(error.to_string()))?;
        self.table.resize(header.table_len(), 0);
        self.state = State::Table { header, got: 0 };
        Ok(Step::Moved(FRAME_COST))
    }

    fn read_table(&mut self, block_len: usize, fence: &Fence) -> Result<Step, End> {
        let State::Table { header, got } = &mut self.state else { return Ok(Step::Moved(0)) };
        match fill(&self.connection.socket, &mut self.table, got).map_err(broken)? {
            Fill::Ended => return Err(cut_off()),
            Fill::Blocked => return Ok(Step::Blocked),
            Fill::Complete => {}
        }
        let header = *header;
        self.state = match fence.admit(self.session, header.load, destinations(&self.table, 0)) {
            Ok(load) => State::Landing { header, load, place: Place::default() },
            Err(refusal) => State::Discarding { header, refusal, left: header.payload_len(block_len) },
        };
        Ok(Step::Moved(self.table.len()))
    }

    /// Reads straight into the blocks. Whether the fence is open is asked for each read anew.
    fn land(&mut self, budget: usize, reactor: &mut Reactor, fence: &Fence) -> Result<Step, End> {
        let State::Landing { header, load, place } = &mut self.state else { return Ok(Step::Moved(0)) };
        let (header, block_len) = (*header, reactor.block_len());
        let access = load.write_while_armed(|| {
            let blocks = destinations(&self.table, place.block);
            reactor.vectors.receive(&self.connection.socket, blocks, place.offset, budget)
        });
        let (received, open) = match access {
            Access::Wrote(received) => (received, true),
            Access::WroteLast(received) => {
                fence.forget(load.load);
                reactor.events.push(DataEvent::Disarmed { load: load.load });
                (received, false)
            }
            Access::Barred => {
                let left = left_after(*place, header, block_len);
                self.refuse(header, FrameRefusal::Disarmed, left);
                return Ok(Step::Moved(0));
            }
        };
        let step = moved(received)?;
        place.advance(step.bytes(), block_len);
        let left = left_after(*place, header, block_len);
        if !open {
            self.refuse(header, FrameRefusal::Disarmed, left);
        } else if left == 0 {
            if load.has_landed(header.blocks as usize) {
                fence.forget(load.load);
                reactor.events.push(DataEvent::Landed { load: load.load });
            }
            self.acknowledge(header, Ok(()));
        }
        Ok(step)
    }

    fn throw_away(&mut self, budget: usize) -> Result<Step, End> {
        let State::Discarding { header, refusal, left } = &self.state else { return Ok(Step::Moved(0)) };
        let limit = usize::try_from(*left).unwrap_or(usize::MAX).min(budget);
        let step = moved(discard(&self.connection.socket, limit))?;
        self.refuse(*header, *refusal, left.saturating_sub(step.bytes() as u64));
        Ok(step)
    }

    /// The frame is refused, and so once the rest of its bytes has come.
    fn refuse(&mut self, header: FrameHeader, refusal: FrameRefusal, left: u64) {
        if left == 0 {
            self.acknowledge(header, Err(refusal));
        } else {
            self.state = State::Discarding { header, refusal, left };
        }
    }

    fn acknowledge(&mut self, header: FrameHeader, verdict: Result<(), FrameRefusal>) {
        if let Err(refusal) = verdict {
            log::debug!(
                "tcp: a frame of {} blocks from {} was thrown away: {refusal}",
                header.blocks,
                self.from
            );
        }
        self.acks.push(&Ack { transfer: header.transfer, verdict }.encode());
        self.state = AT_FRAME_START;
    }
}

fn left_after(place: Place, header: FrameHeader, block_len: usize) -> u64 {
    let done = place.block as u64 * block_len as u64 + place.offset as u64;
    header.payload_len(block_len).saturating_sub(done)
}

fn moved(received: std::io::Result<Moved>) -> Result<Step, End> {
    match received {
        Ok(Moved { bytes: 0, .. }) => Err(cut_off()),
        Ok(Moved { bytes, short: true }) => Ok(Step::MovedLast(bytes)),
        Ok(Moved { bytes, short: false }) => Ok(Step::Moved(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(Step::Blocked),
        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(Step::Moved(0)),
        Err(error) => Err(broken(error)),
    }
}

#[allow(clippy::needless_pass_by_value)] // as `map_err` wants it
fn broken(error: std::io::Error) -> End {
    Some(error.to_string())
}

fn cut_off() -> End {
    Some("closed in the middle of a frame".to_owned())
}
