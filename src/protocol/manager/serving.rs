//! Peers' lookups that the engine has to answer.

use std::ops::Bound;

use crate::protocol::context::Cause;
use crate::protocol::ids::{PeerId, RoundSeq, ServeId, SessionId};
use crate::protocol::job::{JobFlags, JobKind, Outcome};
use crate::protocol::server::{ServeAnswer, ServeQuestion};
use crate::protocol::steps::{ITEM, Slice};
use crate::protocol::timer::Timestamp;

use super::Manager;

/// Whether the engine answers lookups that the block directory cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeMode {
    DirectoryOnly,
    Engine,
}

/// Keys to ask the engine about, without any lock held; [`Manager::serve_answered`] takes the answer, once.
#[derive(Clone, Debug)]
pub struct ServeWork {
    pub question: ServeQuestion,
    pub peer: PeerId,
}

/// Which lookups are to become misses.
#[derive(Clone, Copy, Debug)]
pub struct Settling {
    after: ServeId,
    last: ServeId,
}

impl Manager {
    /// Without an engine that answers, what waits for it becomes a miss: a slice of it at a time, see
    /// [`Manager::is_settling`].
    pub fn set_serve_mode(&mut self, now: Timestamp, mode: ServeMode) {
        self.cx.now = now;
        self.cx.serve.engine_serves = mode == ServeMode::Engine;
        if mode == ServeMode::DirectoryOnly
            && let Some(last) = self.cx.serve.unsettled.keys().next_back().copied()
        {
            self.settling = Some(Settling { after: ServeId(0), last });
        }
        self.after_input();
    }

    /// Lookups that waited for an engine which serves no more have not all become misses yet.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.settling.is_some()
    }

    pub(super) fn settle_slice(&mut self, slice: &mut Slice) {
        while !slice.is_spent()
            && let Some(Settling { after, last }) = self.settling
        {
            let waiting = (Bound::Excluded(after), Bound::Included(last));
            let Some(serve) = self.cx.serve.unsettled.range(waiting).next().map(|(serve, _)| *serve) else {
                self.settling = None;
                return;
            };
            slice.spend(ITEM);
            self.settling = (serve < last).then_some(Settling { after: serve, last });
            self.on_serve_deadline(serve);
        }
    }

    #[must_use]
    pub fn has_serve_work(&self) -> bool {
        !self.cx.serve.unsettled.is_empty() || !self.cx.serve.to_close.is_empty()
    }

    /// A lookup came in, or a context ended, since the engine was last asked.
    #[must_use]
    pub fn has_serve_news(&self) -> bool {
        self.cx.serve.has_news || !self.cx.serve.to_close.is_empty()
    }

    /// Everything to ask the engine now. Keys that it leaves open are asked about again the next time.
    pub fn serve_work(&mut self, now: Timestamp) -> Vec<ServeWork> {
        self.cx.now = now;
        self.cx.serve.has_news = false;
        let mut work = Vec::new();
        for (serve, (session, id, round)) in &self.cx.serve.unsettled {
            let Some(session) = self.sessions.get_mut(session) else { continue };
            if let Some(question) = session.server.question(id, *round, *serve) {
                work.push(ServeWork { question, peer: session.peer.clone() });
            }
        }
        work
    }

    /// Contexts that the engine has seen and that are over.
    pub fn serve_closed(&mut self) -> Vec<ServeId> {
        std::mem::take(&mut self.cx.serve.to_close)
    }

    /// The engine's answer to one question.
    pub fn serve_answered(&mut self, now: Timestamp, serve: ServeId, mut answer: ServeAnswer) {
        self.cx.now = now;
        for pinned in &mut answer.pinned {
            if let Some(job) = pinned.job.take_if(|job| self.cx.jobs.contains_key(job)) {
                log::error!(
                    "create_store_job gave job {job}, which is still open; its hits are taken as misses"
                );
                pinned.blocks.fill(None);
            }
        }
        let named = self.cx.serve.unsettled.get(&serve).cloned();
        let mut taken = false;
        if let Some((session, id, round)) = named {
            self.with_session(session, |session, cx| {
                taken = session.server.answer(cx, &id, round, serve, &answer)
            });
        }
        if !taken {
            self.let_go(serve, &answer);
        }
        self.after_input();
    }

    /// The lookup ended while the engine was being asked.
    fn let_go(&mut self, serve: ServeId, answer: &ServeAnswer) {
        for job in answer.pinned.iter().filter_map(|pinned| pinned.job) {
            self.cx.open_job(job, JobKind::Store);
            let cause = Cause::new(Outcome::PeerLost, "the lookup was over before its hits were pinned");
            self.cx.finish_job(job, &cause, 0, JobFlags::default());
        }
        self.cx.serve.close(serve);
    }

    pub(super) fn on_serve_deadline(&mut self, serve: ServeId) {
        let named: Option<(SessionId, _, RoundSeq)> = self.cx.serve.unsettled.get(&serve).cloned();
        if let Some((session, id, round)) = named {
            self.with_session(session, |session, cx| session.server.on_serve_deadline(cx, &id, round, serve));
        }
    }
}
