//! A peer that writes to us: one accepted connection.
//!
//! ```text
//!            header complete          table complete, all blocks admitted
//!  ► Header ────────────────► Table ─────────────────────────────────────► Landing ──► ack: landed ──► Header
//!                               │                                             │
//!                               │ not admitted: reason                        │ the fence closed
//!                               └──────────────► Discarding ◄─────────────────┘
//!                                                    └──► ack: refused ──► Header
//!
//!     on a connection that pulls: Table ──► Pulling ──► ack: landed or refused ──► Header
//! ```
//!
//! Anything that is not the protocol ends the connection, and nothing else.

use std::sync::Arc;

use super::admission;
use super::fence::{Access, ArmedLoad, Fence};
use super::frame::{Ack, FrameHeader, FrameRefusal, TAIL_WHOLE, TAIL_WITHDRAWN, Tail};
use super::io_vectors::{Body, Moved, Place, discard};
use super::listener::Guest;
use super::reactor::{Connection, Fill, Outbox, Reactor, fill};
use super::sys::{Interest, Readiness, set_receive_low_water};
use crate::data::DataEvent;
use crate::data::same_host::Source;
use crate::protocol::ids::{BlockPair, SessionId};

/// Bytes that one connection may take in before others get their turn. Also the most that one read writes behind
/// a fence that is being closed.
const BYTES_PER_TURN: usize = 1 << 20;
/// What a frame costs of a turn besides its bytes: many tiny frames are work too.
const FRAME_COST: usize = 4096;
/// A writer that does not read its acks is not read from either.
const MAX_WAITING_ACKS: usize = 256 * Ack::LEN;

enum State {
    Header {
        bytes: [u8; FrameHeader::LEN],
        got: usize,
    },
    Table {
        header: FrameHeader,
        got: usize,
    },
    /// `got`: of the bytes of the blocks and the tail.
    Landing {
        header: FrameHeader,
        load: Arc<ArmedLoad>,
        got: u64,
    },
    Pulling {
        header: FrameHeader,
        load: Arc<ArmedLoad>,
        place: Place,
    },
    Discarding {
        header: FrameHeader,
        refusal: FrameRefusal,
        left: u64,
    },
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
    /// The writer's region, where blocks are pulled from it.
    source: Option<Source>,
    /// Tables of the current frame, as received.
    table: Vec<u8>,
    tail: Tail,
    acks: Outbox,
    /// What the socket was told last.
    low_water: usize,
    /// The frame that ended last was not the end of its load.
    load_goes_on: bool,
    _seat: admission::Place,
}

impl Inbound {
    pub fn new(connection: Connection, guest: Guest) -> Inbound {
        let Guest { session, from, source, place, .. } = guest;
        Inbound {
            connection,
            session,
            from,
            state: AT_FRAME_START,
            source,
            _seat: place,
            table: Vec::new(),
            tail: [0; 4],
            acks: Outbox::default(),
            low_water: 1,
            load_goes_on: false,
        }
    }

    /// Does one turn's work. `Err` ends the connection.
    pub fn on_ready(&mut self, ready: Readiness, reactor: &mut Reactor, fence: &Fence) -> Result<(), End> {
        if ready.writable {
            self.acks.flush(&self.connection.socket).map_err(broken)?;
        }
        if ready.readable {
            self.read(reactor, fence)?;
            if self.expects_more() {
                reactor.note_traffic();
            }
            self.set_low_water(reactor.block_len(), reactor.low_water()).map_err(broken)?;
        }
        self.acks.flush(&self.connection.socket).map_err(broken)?;
        if matches!(self.state, State::Pulling { .. }) {
            reactor.call_again(self.connection.id);
        }
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

    /// Bytes are on their way that a load waits for.
    fn expects_more(&self) -> bool {
        match self.state {
            State::Header { .. } => self.load_goes_on,
            State::Table { .. } | State::Landing { .. } => true,
            State::Pulling { .. } | State::Discarding { .. } => false,
        }
    }

    /// Never more than the current frame still brings, so its end is always noticed; and of the next frame no more than
    /// its head and one block, which it has at least. Where blocks are pulled, every byte counts.
    fn set_low_water(&mut self, block_len: usize, low_water: usize) -> std::io::Result<()> {
        if self.source.is_some() {
            return Ok(());
        }
        let left = match &self.state {
            State::Pulling { .. } => 1,
            State::Header { got, .. } => FrameHeader::shortest(block_len).saturating_sub(*got as u64),
            State::Table { header, got } => {
                (header.table_len() as u64 + header.body_len(block_len)).saturating_sub(*got as u64)
            }
            State::Landing { header, got, .. } => header.body_len(block_len).saturating_sub(*got),
            State::Discarding { left, .. } => *left,
        };
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(low_water);
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
            State::Pulling { .. } => self.pull(reactor, fence),
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
        if header.pull != self.source.is_some() {
            return Err(Some(
                "a frame brings bytes where they are to be pulled, or the other way".to_owned(),
            ));
        }
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
        if let Some(source) = &self.source
            && let Some(block) = header.sources(&self.table, 0).find(|block| !source.has_block(*block))
        {
            return Err(Some(format!("a frame names block {block}, which the writer does not have")));
        }
        match fence.admit(self.session, header.load, header.destinations(&self.table, 0)) {
            Ok(load) if header.pull => self.state = State::Pulling { header, load, place: Place::default() },
            Ok(load) => self.state = State::Landing { header, load, got: 0 },
            Err(refusal) if header.pull => self.acknowledge(header, Err(refusal)),
            Err(refusal) => {
                self.state = State::Discarding { header, refusal, left: header.body_len(block_len) };
            }
        }
        Ok(Step::Moved(self.table.len()))
    }

    /// Copies out of the writer's region. What was copied counts only if the writer had not let go of its blocks by then.
    fn pull(&mut self, reactor: &mut Reactor, fence: &Fence) -> Result<Step, End> {
        let (State::Pulling { header, load, place }, Some(source)) = (&mut self.state, &mut self.source)
        else {
            return Ok(Step::Moved(0));
        };
        let (header, region) = (*header, *reactor.region());
        let access = load.write_while_armed(|| {
            let ours = header.destinations(&self.table, place.block);
            let theirs = header.sources(&self.table, place.block);
            let pairs = ours.zip(theirs).map(|(local, remote)| BlockPair { local, remote });
            source.pull(&mut reactor.crew, &region, pairs, place.offset)
        });
        let (pulled, open) = match access {
            Access::Wrote(pulled) => (pulled, true),
            Access::WroteLate(pulled) => (pulled, false),
            Access::WroteLast(pulled) => {
                fence.forget(load.load);
                reactor.events.push(DataEvent::Disarmed { load: load.load });
                (pulled, false)
            }
            Access::Barred => (Ok(0), false),
        };
        let bytes = pulled.map_err(|error| Some(format!("its memory cannot be read: {error}")))?;
        place.advance(bytes, region.block_len());
        if !open {
            self.acknowledge(header, Err(FrameRefusal::Disarmed));
        } else if place.block >= header.blocks as usize {
            if !source.was_alive(&self.connection.socket) {
                return Err(Some("it closed while its blocks were copied".to_owned()));
            }
            let _: bool = note_landed(load, header, reactor, fence);
            self.acknowledge(header, Ok(()));
        }
        Ok(Step::Moved(bytes))
    }

    /// Reads straight into the blocks. Whether the fence is open is asked for each read anew.
    fn land(&mut self, budget: usize, reactor: &mut Reactor, fence: &Fence) -> Result<Step, End> {
        let State::Landing { header, load, got } = &mut self.state else { return Ok(Step::Moved(0)) };
        let (header, block_len) = (*header, reactor.block_len());
        let (payload, body) = (header.payload_len(block_len), header.body_len(block_len));
        let access = load.write_while_armed(|| {
            let done = usize::try_from((*got).min(payload)).unwrap_or(usize::MAX);
            let place = Place::at(done, block_len);
            let blocks = header.destinations(&self.table, place.block);
            let of_tail = usize::try_from(*got - done as u64).unwrap_or(usize::MAX);
            let left = usize::try_from(payload - done as u64).unwrap_or(usize::MAX);
            let tail = self.tail.get_mut(of_tail..).unwrap_or_default();
            reactor.vectors.receive(
                &self.connection.socket,
                blocks,
                place.offset,
                Body { left, tail },
                budget,
            )
        });
        let (received, open) = match access {
            Access::Wrote(received) => (received, true),
            Access::WroteLate(received) => (received, false),
            Access::WroteLast(received) => {
                fence.forget(load.load);
                reactor.events.push(DataEvent::Disarmed { load: load.load });
                (received, false)
            }
            Access::Barred => {
                let left = body - *got;
                self.refuse(header, FrameRefusal::Disarmed, left);
                return Ok(Step::Moved(0));
            }
        };
        let step = moved(received)?;
        *got += step.bytes() as u64;
        let left = body.saturating_sub(*got);
        if !open {
            self.refuse(header, FrameRefusal::Disarmed, left);
        } else if left == 0 {
            let load = Arc::clone(load);
            self.conclude(header, &load, reactor, fence)?;
        }
        Ok(step)
    }

    /// All bytes of a frame are in; its tail says whether they are those of the blocks.
    fn conclude(
        &mut self,
        header: FrameHeader,
        load: &ArmedLoad,
        reactor: &mut Reactor,
        fence: &Fence,
    ) -> Result<(), End> {
        match self.tail {
            TAIL_WHOLE => {
                self.load_goes_on = !note_landed(load, header, reactor, fence);
                self.acknowledge(header, Ok(()));
                Ok(())
            }
            TAIL_WITHDRAWN => {
                self.acknowledge(header, Err(FrameRefusal::Withdrawn));
                Ok(())
            }
            other => Err(Some(format!("a frame ends in {other:?}"))),
        }
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

/// All blocks of a frame are in; true if with them all of the load's are.
fn note_landed(load: &ArmedLoad, header: FrameHeader, reactor: &mut Reactor, fence: &Fence) -> bool {
    let is_whole = load.has_landed(header.blocks as usize);
    if is_whole {
        fence.forget(load.load);
        reactor.events.push(DataEvent::Landed { load: load.load });
    }
    is_whole
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
