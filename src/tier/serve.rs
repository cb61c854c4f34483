//! Peers' lookups put to the engine, without any lock held.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::protocol::ids::BlockIndex;
use crate::protocol::job::LookupState;
use crate::protocol::keys::{KeyBatch, KeysView};
use crate::protocol::manager::ServeWork;
use crate::protocol::server::{PinnedHits, ServeAnswer};

use super::{ServeOps, ServeThread, Shared};

/// The engine's callbacks, and where they are called.
pub struct Serving {
    pub ops: Arc<dyn ServeOps>,
    pub thread: ServeThread,
}

impl Shared {
    pub(super) fn serves_on(&self, thread: ServeThread) -> bool {
        self.serving
            .lock()
            .is_ok_and(|serving| serving.as_ref().is_some_and(|serving| serving.thread == thread))
    }

    fn serve_ops(&self) -> Option<Arc<dyn ServeOps>> {
        self.serving.lock().ok()?.as_ref().map(|serving| Arc::clone(&serving.ops))
    }

    /// Asks the engine about everything that waits, and tells it of contexts that are over.
    pub(super) fn serve(&self) {
        let Some(ops) = self.serve_ops() else { return };
        let work = match self.core.lock() {
            Ok(mut core) if core.manager.has_serve_work() => core.manager.serve_work(self.clock.now()),
            _ => return self.serves_again.store(false, Ordering::Release),
        };
        for work in work {
            let answer = ask(&*ops, &work);
            let Ok(mut core) = self.core.lock() else { return };
            let now = self.clock.now();
            core.manager.serve_answered(now, work.question.serve, answer);
            core.execute(now);
            self.leave(core);
        }
        let Ok(mut core) = self.core.lock() else { return };
        let closed = core.manager.serve_closed();
        self.serves_again.store(core.manager.has_serve_work(), Ordering::Release);
        self.leave(core);
        for serve in closed {
            ops.request_finished(serve);
        }
    }
}

fn ask(ops: &dyn ServeOps, work: &ServeWork) -> ServeAnswer {
    let question = &work.question;
    if question.opens {
        ops.new_request(question.serve, question.kv_request_id.as_str(), work.peer.as_str());
    }
    let mut answer = ServeAnswer { states: Vec::with_capacity(question.keys.len()), pinned: Vec::new() };
    for keys in question.keys.runs() {
        let mut states = vec![LookupState::Miss; keys.len()];
        ops.lookup(question.serve, keys, &mut states);
        let hits: KeyBatch = keys
            .iter()
            .zip(&states)
            .filter(|(_, state)| **state == LookupState::Hit)
            .map(|(key, _)| key)
            .collect();
        for hits in hits.runs() {
            answer.pinned.push(pin(ops, work, hits));
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
