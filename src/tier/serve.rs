//! Peers' lookups put to the engine, without any lock held.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crate::protocol::error::{Error, ErrorKind, Result};
use crate::protocol::ids::BlockIndex;
use crate::protocol::job::LookupState;
use crate::protocol::keys::{KeyBatch, KeysView};
use crate::protocol::manager::ServeWork;
use crate::protocol::server::{PinnedHits, ServeAnswer};

use super::sync::{MutexGuard, thread_local};
use super::{ServeOps, ServeThread, Shared};

/// The engine's callbacks, and where they are called.
pub struct Serving {
    pub ops: Arc<dyn ServeOps>,
    pub thread: ServeThread,
}

thread_local! {
    /// This thread is inside one of the engine's callbacks.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside one of the engine's callbacks.
pub fn is_in_callback() -> bool {
    IN_CALLBACK.with(Cell::get)
}

/// An error on a thread that is inside one of the engine's callbacks, where `what` would wait for that very callback.
pub fn refuse_in_callback(what: &str) -> Result<()> {
    if is_in_callback() {
        return Err(Error::new(ErrorKind::Unsupported, format!("{what} from a serve op is not possible")));
    }
    Ok(())
}

/// Calls into the engine; also when that unwinds, the mark is taken off again.
fn calling_engine<T>(call: impl FnOnce() -> T) -> T {
    struct Mark;
    impl Drop for Mark {
        fn drop(&mut self) {
            IN_CALLBACK.with(|inside| inside.set(false));
        }
    }
    IN_CALLBACK.with(|inside| inside.set(true));
    let _mark = Mark;
    call()
}

impl Shared {
    pub(super) fn serving(&self) -> MutexGuard<'_, Option<Serving>> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn serves_on(&self, thread: ServeThread) -> bool {
        self.serving().as_ref().is_some_and(|serving| serving.thread == thread)
    }

    /// Asks the engine about everything that waits, and tells it of contexts that are over. Does nothing while another
    /// thread, or a callback further up on this one, is at it.
    pub(super) fn serve(&self) {
        let Some(_turn) = self.serve_turn.try_lock_even_if_poisoned() else { return };
        let Some(ops) = self.serving().as_ref().map(|serving| Arc::clone(&serving.ops)) else { return };
        let work = match self.core.lock() {
            Ok(mut core) if core.manager.has_serve_work() => core.manager.serve_work(self.clock.now()),
            _ => return self.serves_again.store(false, Ordering::Release),
        };
        for work in work {
            let answer = calling_engine(|| ask(&*ops, &work));
            let Ok(mut core) = self.core.lock() else { return };
            let now = self.clock.now();
            core.manager.serve_answered(now, work.question.serve, answer);
            core.execute(now);
            self.leave(core);
        }
        self.tell_closed(&*ops);
    }

    /// The ops will not be called again: they are told of the end of every context they have open.
    pub(super) fn close_contexts(&self, serving: Option<&Serving>) {
        let Some(serving) = serving else { return };
        let _turn = self.serve_turn.lock_even_if_poisoned();
        self.tell_closed(&*serving.ops);
    }

    /// For whoever has the turn.
    pub(super) fn tell_closed(&self, ops: &dyn ServeOps) {
        let Ok(mut core) = self.core.lock() else { return };
        let closed = core.manager.serve_closed();
        self.serves_again.store(core.manager.has_serve_work(), Ordering::Release);
        self.leave(core);
        for serve in closed {
            calling_engine(|| ops.request_finished(serve));
        }
    }
}

fn ask(ops: &dyn ServeOps, work: &ServeWork) -> ServeAnswer {
    let question = &work.question;
    if question.opens {
        ops.new_request(question.serve, question.kv_request_id.as_str(), work.peer.as_str());
    }
    let mut answer = ServeAnswer { states: Vec::with_capacity(question.keys.len()), pinned: Vec::new() };
    for run in question.keys.runs() {
        // A key without bytes comes from nowhere: no message may have one.
        let Some(keys) = run.view() else { continue };
        let mut states = vec![LookupState::Miss; keys.len()];
        ops.lookup(question.serve, keys, &mut states);
        let hits: KeyBatch = keys
            .iter()
            .zip(&states)
            .filter(|(_, state)| **state == LookupState::Hit)
            .map(|(key, _)| key)
            .collect();
        for hits in hits.runs() {
            answer.pinned.extend(hits.view().map(|hits| pin(ops, work, hits)));
        }
        answer.states.append(&mut states);
    }
    answer
}

fn pin(ops: &dyn ServeOps, work: &ServeWork, hits: KeysView<'_>) -> PinnedHits {
    let mut blocks: Vec<Option<BlockIndex>> = vec![None; hits.len()];
    let job = ops.create_store_job(work.question.serve, hits, &mut blocks);
    if job.is_none() {
        blocks.fill(None);
    }
    PinnedHits { job, blocks }
}
