//! The data plane: producers push blocks into the consumer's region. What a data transport is.
//!
//! A transport knows peers only by [`SessionId`] and loads only by [`LoadToken`]; it knows nothing of sessions,
//! rounds or keys. All methods return without waiting for the network; what happened comes back as
//! [`DataEvent`]s from [`DataTransport::poll`], and the transport's event fd becomes readable when there are some.

#[cfg(feature = "nixl")]
pub mod nixl;
pub mod same_host;
pub mod tcp;

use std::net::SocketAddr;
use std::os::fd::RawFd;

use crate::protocol::config::{Reach, TransportKind};
use crate::protocol::ids::{BlockIndex, BlockPair, LoadToken, SessionId, TransferId};

/// The engine's memory: `num_blocks` blocks of `block_len` bytes at `base_addr`.
///
/// Whoever makes one promises that the memory stays mapped, readable and writable, until every transport that
/// got it is dropped. Bytes in it are only ever touched through raw pointers, since the engine and peers write
/// them at any time.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    base: *mut u8,
    num_blocks: u32,
    block_len: usize,
}

// SAFETY: a `Region` is an address and two sizes; it gives no reference to the bytes. Who may write which bytes at
// what time is settled by pins and by the fence, not by the type.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// # Safety
    /// `base` must point to `num_blocks * block_len` bytes that stay mapped, readable and writable, for as long
    /// as any transport holds the region. `None` if a size is 0 or the product overflows `isize`.
    #[must_use]
    pub unsafe fn new(base: *mut u8, num_blocks: u32, block_len: usize) -> Option<Region> {
        let bytes = usize::try_from(num_blocks).ok()?.checked_mul(block_len)?;
        let fits =
            bytes > 0 && isize::try_from(bytes).is_ok() && (base as usize).checked_add(bytes).is_some();
        (fits && !base.is_null()).then_some(Region { base, num_blocks, block_len })
    }

    #[must_use]
    pub fn base_addr(&self) -> u64 {
        self.base as u64
    }

    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    #[must_use]
    pub fn block_len(&self) -> usize {
        self.block_len
    }

    /// First byte of a block; `None` past the end.
    #[must_use]
    pub fn block_ptr(&self, block: BlockIndex) -> Option<*mut u8> {
        (block.0 < self.num_blocks).then(|| self.base.wrapping_add(block.0 as usize * self.block_len))
    }
}

/// How a session's peer takes blocks: from its `connect`, for the transport that both sides have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerOffer {
    Tcp {
        /// Tried in order. Never empty.
        addresses: Vec<SocketAddr>,
        /// To be shown on every connection.
        token: Vec<u8>,
        num_blocks: u64,
        /// The peer runs on this host, as far as both can tell.
        same_host: bool,
    },
    Nixl {
        metadata: Vec<u8>,
        base_addr: u64,
        num_blocks: u64,
        block_len: u64,
    },
}

/// Whether a load's blocks are safe from its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disarm {
    /// Nothing can write into them from now on.
    Done,
    /// An I/O thread is at work in them; [`DataEvent::Disarmed`] follows.
    Pending,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataEvent {
    /// The fence that [`Disarm::Pending`] promised is closed.
    Disarmed { load: LoadToken },
    /// Every block that was armed for the load is in, and the fence is closed: nothing writes into them any more. Given by
    /// transports that know; otherwise the producer's word has to do.
    Landed { load: LoadToken },
    /// The peer's data plane is unusable: the session should end.
    PeerFault { session: SessionId, reason: String },
    /// `register_peer` succeeded. `reach`: how the peer gets at the blocks that we write.
    PeerRegistered { session: SessionId, reach: Reach },
    /// `register_peer` failed.
    PeerRefused { session: SessionId, reason: String },
    /// The receiver has all bytes of the transfer.
    TransferDone { transfer: TransferId },
    /// The transfer ended otherwise: from here on it does not read the local blocks. Where the receiver has a fence, bytes that
    /// the blocks held until now may still arrive, until it bars them; where it has none, nothing does.
    /// `decisive`: the peer is known to be gone or to refuse everything, no need to try again.
    TransferFailed { transfer: TransferId, reason: String, decisive: bool },
    /// The transfer ended early since one of both sides had given it up: as `TransferFailed`, but it says nothing
    /// against the peer's data plane.
    TransferUnwanted { transfer: TransferId, reason: String },
}

/// One way to move blocks.
///
/// Every transfer that was posted ends in exactly one `TransferDone`, `TransferFailed` or `TransferUnwanted`, also after
/// `cancel` and `drop_peer`, and until then its local blocks may be read.
pub trait DataTransport: Send {
    fn kind(&self) -> TransportKind;

    /// Readable when [`Self::poll`] has something to give.
    fn event_fd(&self) -> RawFd;

    /// A session begins: connections that show `token` are its peer's.
    fn expect_peer(&mut self, session: SessionId, token: &[u8]);

    /// Makes `write` to this session's peer possible. Ends in `PeerRegistered` or `PeerRefused`.
    fn register_peer(&mut self, session: SessionId, offer: PeerOffer);

    /// The session is over: its connections close, its transfers end, its token is void. Loads that are still
    /// armed for it stay so until disarmed. Unknown sessions are ignored.
    fn drop_peer(&mut self, session: SessionId);

    /// Lets the session's peer write `blocks`, under the name `load`, once each.
    fn arm(&mut self, session: SessionId, load: LoadToken, blocks: &[BlockIndex]);

    /// Closes the fence of `load`. An unknown or already disarmed load is [`Disarm::Done`].
    fn disarm(&mut self, load: LoadToken) -> Disarm;

    /// Peers may be writing into the region on their own (`true`), or none is any more: transports whose receiving side
    /// has to help such writes along do so meanwhile. Those with a fence know from `arm`.
    fn expect_writes(&mut self, _expected: bool) {}

    /// Posts one transfer. `load` is what the consumer's `fetch` called it (`None`: it gave no name).
    /// `blocks` is not empty. The local indexes are inside the region; the remote ones inside the peer's.
    fn write(
        &mut self,
        session: SessionId,
        transfer: TransferId,
        load: Option<LoadToken>,
        blocks: &[BlockPair],
    );

    /// Asks to end transfers early. Each still ends in its one event, once it can no longer touch memory; where the receiver
    /// has a fence, that is at once, whatever the receiver does.
    fn cancel(&mut self, transfers: &[TransferId]);

    /// Appends what has happened.
    fn poll(&mut self, events: &mut Vec<DataEvent>);
}
