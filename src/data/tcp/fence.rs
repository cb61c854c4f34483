//! The fence: which blocks a peer may write now, and the moment after which it may not.
//!
//! The table of armed loads is shared with the callers under a short lock, so that `arm` holds before it returns. In
//! the I/O threads the lock is taken once for each frame, never for a block. Each load's state is one atomic, the number
//! of reads that are at work in its blocks, each of them in a thread of its own, and whether the fence is closed:
//!
//! ```text
//!             begin of a read
//!     open, n ───────────────► open, n + 1
//!       │     ◄───────────────   │
//!       │      end of a read     │ disarm: Pending
//!       │                        ▼        end of a read, not the last
//!       │ disarm: Done         closed, n ────────────────────────────► closed, n - 1
//!       │ (n = 0)                │ end of the last read: event Disarmed
//!       └──────────────────►  closed, 0
//! ```
//!
//! A read is one bounded `recvmsg`, and none begins once the fence is closed. So a disarm is usually `Done` at once, and
//! else waits for one call in each I/O thread.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::frame::FrameRefusal;
use crate::data::Disarm;
use crate::protocol::ids::{BlockIndex, LoadToken, SessionId};

/// Beside the number of reads.
const CLOSED: u32 = 1 << 31;

/// The armed loads of one transport.
#[derive(Default)]
pub(super) struct Fence {
    loads: Mutex<HashMap<LoadToken, Arc<ArmedLoad>>>,
}

impl Fence {
    /// From here on frames of `session` may write `blocks` under the name `load`.
    pub fn arm(&self, session: SessionId, load: LoadToken, blocks: &[BlockIndex]) {
        let armed = Arc::new(ArmedLoad {
            load,
            session,
            state: AtomicU32::new(0),
            open: OpenBlocks::new(blocks),
            missing: AtomicUsize::new(blocks.len()),
        });
        match self.table().entry(load) {
            Entry::Vacant(free) => drop(free.insert(armed)),
            Entry::Occupied(_) => log::error!("load {load} is armed already; arming it again is ignored"),
        }
    }

    /// Closes the fence of `load`; see [`Disarm`] for from when on that holds.
    pub fn disarm(&self, load: LoadToken) -> Disarm {
        let mut table = self.table();
        match table.get(&load).map(|armed| armed.disarm()) {
            Some(Disarm::Pending) => Disarm::Pending,
            Some(Disarm::Done) => {
                table.remove(&load);
                Disarm::Done
            }
            None => Disarm::Done,
        }
    }

    /// An I/O thread has told of the load's end: nothing is left to know of it.
    pub fn forget(&self, load: LoadToken) {
        self.table().remove(&load);
    }

    /// Gives all blocks of a frame to that frame, or none of them and the reason.
    pub fn admit(
        &self,
        session: SessionId,
        load: Option<LoadToken>,
        blocks: impl Iterator<Item = BlockIndex> + Clone,
    ) -> Result<Arc<ArmedLoad>, FrameRefusal> {
        let load = load.ok_or(FrameRefusal::NamesNoLoad)?;
        let armed = self.table().get(&load).cloned().ok_or(FrameRefusal::UnknownLoad)?;
        if armed.session != session {
            return Err(FrameRefusal::OtherSession);
        }
        armed.open.take_all(blocks).map_err(|block| FrameRefusal::BlockClosed { block })?;
        Ok(armed)
    }

    #[cfg(test)]
    pub fn armed_loads(&self) -> usize {
        self.table().len()
    }

    fn table(&self) -> MutexGuard<'_, HashMap<LoadToken, Arc<ArmedLoad>>> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One load while a peer may write for it.
pub(super) struct ArmedLoad {
    pub load: LoadToken,
    session: SessionId,
    /// See the module: reads under way, and [`CLOSED`].
    state: AtomicU32,
    open: OpenBlocks,
    /// Blocks whose bytes are not all in.
    missing: AtomicUsize,
}

/// What became of one attempt to write into a load's blocks.
pub(super) enum Access<T> {
    /// The load was disarmed before; nothing was done.
    Barred,
    Wrote(T),
    /// The load was disarmed meanwhile, and others are still writing.
    WroteLate(T),
    /// The load was disarmed meanwhile: this was the last write, and the caller must say so.
    WroteLast(T),
}

impl ArmedLoad {
    /// Runs `write` unless the load is disarmed. For the I/O threads only; `write` must not block.
    pub fn write_while_armed<T>(&self, write: impl FnOnce() -> T) -> Access<T> {
        let enter = |state| (state & CLOSED == 0).then_some(state + 1);
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter).is_err() {
            return Access::Barred;
        }
        let result = write();
        match self.state.fetch_sub(1, Ordering::AcqRel) - 1 {
            CLOSED => Access::WroteLast(result),
            state if state & CLOSED == 0 => Access::Wrote(result),
            _ => Access::WroteLate(result),
        }
    }

    /// So many more blocks are in; true with the last of them, and then what other threads wrote is there too. For the I/O
    /// threads only.
    pub fn has_landed(&self, blocks: usize) -> bool {
        self.missing.fetch_sub(blocks, Ordering::AcqRel) == blocks
    }

    fn disarm(&self) -> Disarm {
        match self.state.fetch_or(CLOSED, Ordering::AcqRel) & !CLOSED {
            0 => Disarm::Done,
            _ => Disarm::Pending,
        }
    }
}

const WORDS: usize = 64;
const BLOCKS_PER_CHUNK: usize = WORDS * 64;

type Chunk = [AtomicU64; WORDS];

/// A set of block indexes from which each can be taken once: a bitmap in chunks, so that a small load of a large
/// region stays small and a look-up stays one step.
struct OpenBlocks {
    first_chunk: usize,
    chunks: Vec<Option<Box<Chunk>>>,
}

impl OpenBlocks {
    fn new(blocks: &[BlockIndex]) -> OpenBlocks {
        let chunk_of = |block: BlockIndex| block.0 as usize / BLOCKS_PER_CHUNK;
        let first_chunk = blocks.iter().copied().map(chunk_of).min().unwrap_or(0);
        let last_chunk = blocks.iter().copied().map(chunk_of).max().unwrap_or(0);
        let mut chunks: Vec<Option<Box<Chunk>>> = Vec::new();
        chunks.resize_with(last_chunk - first_chunk + 1, || None);
        for block in blocks {
            let Some(chunk) = chunks.get_mut(chunk_of(*block) - first_chunk) else { continue };
            let chunk = chunk.get_or_insert_with(|| Box::new([const { AtomicU64::new(0) }; WORDS]));
            let (word, bit) = position(*block);
            if let Some(word) = chunk.get_mut(word) {
                *word.get_mut() |= bit;
            }
        }
        OpenBlocks { first_chunk, chunks }
    }

    /// Takes all of `blocks`, or none and names the first that is not there (any more).
    fn take_all(&self, blocks: impl Iterator<Item = BlockIndex> + Clone) -> Result<(), BlockIndex> {
        for (taken, block) in blocks.clone().enumerate() {
            if !self.take(block) {
                blocks.take(taken).for_each(|block| self.put_back(block));
                return Err(block);
            }
        }
        Ok(())
    }

    fn take(&self, block: BlockIndex) -> bool {
        let (_, bit) = position(block);
        self.word(block).is_some_and(|word| word.fetch_and(!bit, Ordering::Relaxed) & bit != 0)
    }

    fn put_back(&self, block: BlockIndex) {
        let (_, bit) = position(block);
        if let Some(word) = self.word(block) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    fn word(&self, block: BlockIndex) -> Option<&AtomicU64> {
        let chunk = (block.0 as usize / BLOCKS_PER_CHUNK).checked_sub(self.first_chunk)?;
        self.chunks.get(chunk)?.as_ref()?.get(position(block).0)
    }
}

/// Word inside the chunk, and the bit in it.
fn position(block: BlockIndex) -> (usize, u64) {
    let in_chunk = block.0 as usize % BLOCKS_PER_CHUNK;
    (in_chunk / 64, 1 << (in_chunk % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId(1);
    const LOAD: LoadToken = LoadToken(7);

    fn blocks(indexes: &[u32]) -> Vec<BlockIndex> {
        indexes.iter().copied().map(BlockIndex).collect()
    }

    fn fence_with(indexes: &[u32]) -> Fence {
        let fence = Fence::default();
        fence.arm(SESSION, LOAD, &blocks(indexes));
        fence
    }

    fn admit(
        fence: &Fence,
        session: SessionId,
        load: LoadToken,
        indexes: &[u32],
    ) -> Result<(), FrameRefusal> {
        fence.admit(session, Some(load), blocks(indexes).into_iter()).map(drop)
    }

    fn closed(block: u32) -> Result<(), FrameRefusal> {
        Err(FrameRefusal::BlockClosed { block: BlockIndex(block) })
    }

    #[test]
    fn each_block_is_admitted_once() {
        let fence = fence_with(&[0, 5, 4095, 4096, u32::MAX]);
        assert_eq!(admit(&fence, SESSION, LOAD, &[5, u32::MAX]), Ok(()));
        assert_eq!(admit(&fence, SESSION, LOAD, &[5]), closed(5));
        assert_eq!(admit(&fence, SESSION, LOAD, &[4095, 4096, 0]), Ok(()));
        assert_eq!(admit(&fence, SESSION, LOAD, &[0]), closed(0));
    }

    #[test]
    fn a_frame_with_one_wrong_block_takes_none() {
        let fence = fence_with(&[1, 2, 9000]);
        assert_eq!(admit(&fence, SESSION, LOAD, &[1, 2, 3]), closed(3));
        assert_eq!(admit(&fence, SESSION, LOAD, &[1, 2, 1]), closed(1), "the same block twice in one frame");
        assert_eq!(admit(&fence, SESSION, LOAD, &[2, 5000]), closed(5000), "a chunk that was never made");
        assert_eq!(admit(&fence, SESSION, LOAD, &[1, 2, 9000]), Ok(()));
    }

    #[test]
    fn only_the_named_load_of_the_same_session_is_open() {
        let fence = fence_with(&[1]);
        assert_eq!(admit(&fence, SessionId(2), LOAD, &[1]), Err(FrameRefusal::OtherSession));
        assert_eq!(admit(&fence, SESSION, LoadToken(8), &[1]), Err(FrameRefusal::UnknownLoad));
        let nameless = fence.admit(SESSION, None, blocks(&[1]).into_iter()).map(drop);
        assert_eq!(nameless, Err(FrameRefusal::NamesNoLoad));
        assert_eq!(admit(&fence, SESSION, LOAD, &[1]), Ok(()));
    }

    #[test]
    fn a_disarm_outside_of_a_read_is_done_at_once_and_bars_what_follows() {
        let fence = fence_with(&[1]);
        let armed = fence.admit(SESSION, Some(LOAD), blocks(&[1]).into_iter()).unwrap();
        assert!(matches!(armed.write_while_armed(|| ()), Access::Wrote(())));
        assert_eq!(fence.disarm(LOAD), Disarm::Done);
        assert!(matches!(armed.write_while_armed(|| panic!("wrote after the fence")), Access::Barred));
        assert_eq!(admit(&fence, SESSION, LOAD, &[1]), Err(FrameRefusal::UnknownLoad));
        assert_eq!(fence.disarm(LOAD), Disarm::Done);
        assert_eq!(fence.armed_loads(), 0);
    }

    #[test]
    fn a_disarm_inside_of_a_read_is_pending_until_the_read_ends() {
        let fence = fence_with(&[1]);
        let armed = fence.admit(SESSION, Some(LOAD), blocks(&[1]).into_iter()).unwrap();
        let access = armed.write_while_armed(|| {
            assert_eq!(fence.disarm(LOAD), Disarm::Pending);
            assert_eq!(fence.disarm(LOAD), Disarm::Pending, "asked again, still not closed");
        });
        assert!(matches!(access, Access::WroteLast(())));
        assert!(matches!(armed.write_while_armed(|| ()), Access::Barred));
        fence.forget(LOAD);
        assert_eq!(fence.disarm(LOAD), Disarm::Done);
        assert_eq!(fence.armed_loads(), 0);
    }

    #[test]
    fn a_disarm_inside_of_two_reads_is_pending_until_the_last_of_them_ends() {
        let fence = fence_with(&[1, 2]);
        let [first, second] =
            [1, 2].map(|block| fence.admit(SESSION, Some(LOAD), blocks(&[block]).into_iter()).unwrap());
        let outer = first.write_while_armed(|| {
            let inner = second.write_while_armed(|| assert_eq!(fence.disarm(LOAD), Disarm::Pending));
            assert!(matches!(inner, Access::WroteLate(())), "the other read goes on");
            assert!(matches!(second.write_while_armed(|| ()), Access::Barred));
            assert_eq!(fence.disarm(LOAD), Disarm::Pending, "asked again, still not closed");
        });
        assert!(matches!(outer, Access::WroteLast(())), "it tells of the end, and it alone");
        assert_eq!(fence.disarm(LOAD), Disarm::Done);
    }

    #[test]
    fn disarms_that_race_with_reads_of_two_threads_never_leave_a_write_behind() {
        for _ in 0..500 {
            let fence = fence_with(&[1]);
            let armed = fence.admit(SESSION, Some(LOAD), blocks(&[1]).into_iter()).unwrap();
            let closed = std::sync::atomic::AtomicBool::new(false);
            let last = AtomicUsize::new(0);
            let read = || {
                loop {
                    let write = || assert!(!closed.load(Ordering::SeqCst), "wrote after the fence");
                    match armed.write_while_armed(write) {
                        Access::Wrote(()) => {}
                        Access::WroteLate(()) | Access::Barred => break,
                        Access::WroteLast(()) => {
                            last.fetch_add(1, Ordering::SeqCst);
                            closed.store(true, Ordering::SeqCst);
                            break;
                        }
                    }
                }
            };
            let disarmed = std::thread::scope(|scope| {
                scope.spawn(read);
                scope.spawn(read);
                let disarmed = fence.disarm(LOAD);
                if disarmed == Disarm::Done {
                    closed.store(true, Ordering::SeqCst);
                }
                disarmed
            });
            let told = usize::from(disarmed == Disarm::Pending);
            assert_eq!(
                last.load(Ordering::SeqCst),
                told,
                "a pending disarm is told of once, a done one never"
            );
        }
    }
}
