//! The engine's calls: requests, lookups, loads, stores, the directory.

use std::time::Duration;

use crate::protocol::client::NewLoad;
use crate::protocol::context::Cause;
use crate::protocol::error::{Error, ErrorKind, Result};
use crate::protocol::ids::{BlockIndex, JobId, KvRequestId, RequestId, SessionId};
use crate::protocol::job::{JobFlags, JobKind, LookupState, OffloadPolicy, Outcome, UnpublishState};
use crate::protocol::key_table::KeyHash;
use crate::protocol::keys::{Key, KeyBatch, KeysView};
use crate::protocol::params::{ConsumerRole, ProducerRole, Roles, Source};
use crate::protocol::timer::Timestamp;

use super::work::Published;
use super::{Manager, Request};

/// A request's own deadlines; `None` = the tier's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTimeouts {
    pub load: Option<Duration>,
    pub lookup: Option<Duration>,
    pub store: Option<Duration>,
}

impl Manager {
    /// Opens a request. A consumer's session is opened or reused; if it cannot be, the request exists all the same and its
    /// lookups are misses. An id in live use is refused.
    pub fn request_new(
        &mut self,
        now: Timestamp,
        roles: Roles,
        timeouts: RequestTimeouts,
    ) -> Result<RequestId> {
        self.cx.now = now;
        self.check_running()?;
        self.check_free(&roles)?;
        self.last_request += 1;
        let request = RequestId(self.last_request);
        let session = match &roles.consumer {
            None => None,
            Some(ConsumerRole::PrefillDecode(source) | ConsumerRole::Symmetric(source)) => {
                self.consumer_ids.insert(source.kv_request_id.clone(), request);
                Some(self.session_for(&source.peer))
            }
        };
        if let Some(Ok(session)) = session {
            self.with_session(session, |session, _| {
                session.requests.insert(request);
            });
        }
        if let Some(ProducerRole::Serves(id)) = &roles.producer {
            self.producer_ids.insert(id.clone(), request);
            self.stores.begin_request(&mut self.cx, id);
        }
        self.requests.insert(request, Request { roles, session, timeouts });
        self.after_input();
        Ok(request)
    }

    fn check_free(&self, roles: &Roles) -> Result<()> {
        let taken = |id: &KvRequestId, what: &str| {
            Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("kv_request_id {id} is in use by another request that {what}; finish that one first"),
            ))
        };
        if let Some(ConsumerRole::PrefillDecode(source) | ConsumerRole::Symmetric(source)) = &roles.consumer {
            if source.peer == self.cx.config.local_id {
                let text = format!("remote_host and remote_port name this tier itself ({})", source.peer);
                return Err(Error::new(ErrorKind::InvalidParams, text));
            }
            if self.consumer_ids.contains_key(&source.kv_request_id) {
                return taken(&source.kv_request_id, "pulls it");
            }
            if self.sessions.values().any(|session| session.uses(&source.kv_request_id)) {
                return taken(
                    &source.kv_request_id,
                    "was finished and whose aborted load the peer has not acknowledged",
                );
            }
        }
        match &roles.producer {
            Some(ProducerRole::Serves(id)) if self.producer_ids.contains_key(id) => taken(id, "serves it"),
            _ => Ok(()),
        }
    }

    fn check_running(&self) -> Result<()> {
        if self.shut_down {
            Err(Error::new(ErrorKind::ShutDown, "the tier is shutting down"))
        } else {
            Ok(())
        }
    }

    fn request(&self, request: RequestId) -> Result<&Request> {
        self.requests.get(&request).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("request {request} does not exist or was finished"))
        })
    }

    pub fn offload_policy(&self, request: RequestId) -> Result<OffloadPolicy> {
        Ok(Self::policy(&self.request(request)?.roles))
    }

    /// Deadlines of the jobs that are submitted from now on; `None` = the tier's.
    pub fn set_job_timeouts(
        &mut self,
        request: RequestId,
        load: Option<Duration>,
        store: Option<Duration>,
    ) -> Result<()> {
        self.request(request)?;
        if let Some(found) = self.requests.get_mut(&request) {
            found.timeouts = RequestTimeouts { load, store, ..found.timeouts };
        }
        Ok(())
    }

    /// Ends a request: its live loads are aborted, the producer learns that nothing more is looked up, and what a consumer
    /// still wants of it is refused.
    pub fn request_finish(&mut self, now: Timestamp, request: RequestId) -> Result<()> {
        self.cx.now = now;
        self.request(request)?;
        let Some(ended) = self.requests.remove(&request) else { return Ok(()) };
        if let Some(ConsumerRole::PrefillDecode(source) | ConsumerRole::Symmetric(source)) =
            &ended.roles.consumer
        {
            self.consumer_ids.remove(&source.kv_request_id);
            if let Some(Ok(session)) = self.session_of(&ended) {
                self.with_session(session, |session, cx| {
                    session.requests.remove(&request);
                    let fenced = session.is_fenced();
                    session.client.finish(cx, &source.kv_request_id, fenced);
                });
            }
        }
        if let Some(ProducerRole::Serves(id)) = &ended.roles.producer {
            self.producer_ids.remove(id);
            self.end_producer(id);
        }
        self.after_input();
        Ok(())
    }

    /// What is known of each key at the peer. `states` is as long as `keys`. Without a usable peer all are misses; a PD
    /// consumer takes every block for granted.
    pub fn lookup(
        &mut self,
        now: Timestamp,
        request: RequestId,
        keys: KeysView<'_>,
        states: &mut [LookupState],
    ) -> Result<()> {
        self.cx.now = now;
        self.check_running()?;
        self.check_keys(keys)?;
        let found = self.requests.get(&request);
        let Some(found) = found else { return self.request(request).map(|_| ()) };
        states.fill(LookupState::Miss);
        let Some(Ok(session)) = self.session_of(found) else { return Ok(()) };
        match &found.roles.consumer {
            None => {}
            Some(ConsumerRole::PrefillDecode(_)) => states.fill(LookupState::Hit),
            Some(ConsumerRole::Symmetric(source)) => {
                let timeout = found.timeouts.lookup;
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.client.lookup(&self.cx, &source.kv_request_id, timeout, keys, states);
                    self.unflushed.insert(session.id);
                }
            }
        }
        Ok(())
    }

    fn check_keys(&self, keys: KeysView<'_>) -> Result<()> {
        let limit = self.cx.config.limits.key_len;
        if keys.is_empty() || keys.key_len() <= limit {
            return Ok(());
        }
        let text = format!("keys of {} bytes: at most {limit} are allowed (max_key_len)", keys.key_len());
        Err(Error::new(ErrorKind::LimitExceeded, text))
    }

    /// Sends what lookups have registered since the last flush.
    pub fn flush_lookups(&mut self, now: Timestamp) -> Result<()> {
        self.cx.now = now;
        self.check_running()?;
        for session in std::mem::take(&mut self.unflushed) {
            self.with_session(session, |session, cx| {
                let acknowledged = session.is_acknowledged();
                session.client.flush_lookups(cx, acknowledged);
            });
        }
        self.after_input();
        Ok(())
    }

    pub fn submit_load(
        &mut self,
        now: Timestamp,
        request: RequestId,
        job: JobId,
        keys: KeysView<'_>,
        blocks: &[BlockIndex],
    ) -> Result<()> {
        self.cx.now = now;
        self.check_running()?;
        self.check_job(job, keys, blocks)?;
        let found = self.request(request)?;
        let (source, symmetric) = match &found.roles.consumer {
            Some(ConsumerRole::PrefillDecode(source)) => (source.clone(), false),
            Some(ConsumerRole::Symmetric(source)) => (source.clone(), true),
            None => {
                let text = "the request has no remote_prefiller and no remote_kv_source to load from";
                return Err(Error::new(ErrorKind::WrongRole, text));
            }
        };
        let timeout = found.timeouts.load.unwrap_or(self.cx.config.timeouts.load);
        let session = self.session_of(found).map(|session| session.map_err(Cause::clone));
        self.check_destinations(blocks)?;
        let session = match session {
            Some(Ok(session)) => session,
            Some(Err(cause)) => {
                self.end_at_once(job, JobKind::Load, &cause);
                return Ok(());
            }
            None => return Err(Error::new(ErrorKind::WrongRole, "the request pulls from no peer")),
        };
        if keys.is_empty() {
            self.end_at_once(job, JobKind::Load, &Cause::new(Outcome::Done, ""));
            return Ok(());
        }
        self.check_round(session, &source, symmetric, keys)?;
        self.cx.open_job(job, JobKind::Load);
        self.cx.loading.insert_all(blocks);
        self.with_session(session, |session, cx| {
            let new =
                NewLoad { kv_request_id: &source.kv_request_id, job, keys, blocks: blocks.to_vec(), timeout };
            session.client.load(cx, new);
        });
        self.after_input();
        Ok(())
    }

    /// Whether the current round of the id may be fetched with these keys.
    fn check_round(
        &self,
        session: SessionId,
        source: &Source,
        symmetric: bool,
        keys: KeysView<'_>,
    ) -> Result<()> {
        let Some(session) = self.sessions.get(&session) else { return Ok(()) };
        let id = &source.kv_request_id;
        if symmetric {
            return match session.client.first_unconfirmed(id, keys) {
                None => Ok(()),
                Some(position) => Err(Error::new(
                    ErrorKind::NotAHit,
                    format!(
                        "key {position} of the load is not a hit of kv_request_id {id}'s present round; look it up first"
                    ),
                )),
            };
        }
        if session.client.has_live_load(id) {
            let text = format!("kv_request_id {id} has a load in flight; a PD request loads once");
            return Err(Error::new(ErrorKind::AlreadyExists, text));
        }
        if session.client.has_loaded(id) && !session.is_legacy() {
            let text = format!(
                "kv_request_id {id} was loaded already; a PD request loads once, use remote_kv_source for more"
            );
            return Err(Error::new(ErrorKind::AlreadyExists, text));
        }
        Ok(())
    }

    fn check_job(&self, job: JobId, keys: KeysView<'_>, blocks: &[BlockIndex]) -> Result<()> {
        self.check_keys(keys)?;
        self.check_blocks(keys, blocks)?;
        let limit = self.cx.config.limits.keys_per_message;
        if keys.len() > limit {
            let text =
                format!("{} keys in one job: at most {limit} are allowed (max_keys_per_message)", keys.len());
            return Err(Error::new(ErrorKind::LimitExceeded, text));
        }
        if self.cx.jobs.contains_key(&job) {
            return Err(Error::new(ErrorKind::DuplicateJob, format!("job {job} is still open")));
        }
        Ok(())
    }

    /// One block of the region for each key.
    fn check_blocks(&self, keys: KeysView<'_>, blocks: &[BlockIndex]) -> Result<()> {
        let invalid = |text: String| Err(Error::new(ErrorKind::InvalidArgument, text));
        if keys.len() != blocks.len() {
            return invalid(format!("{} keys but {} block indexes", keys.len(), blocks.len()));
        }
        let num_blocks = self.cx.config.num_blocks;
        match blocks.iter().enumerate().find(|(_, block)| block.0 >= num_blocks) {
            Some((position, block)) => {
                invalid(format!("block_indexes[{position}] is {block}, the region has {num_blocks} blocks"))
            }
            None => Ok(()),
        }
    }

    fn check_destinations(&mut self, blocks: &[BlockIndex]) -> Result<()> {
        let Some(block) = self.cx.loading.first_conflict(blocks) else { return Ok(()) };
        let text =
            format!("block {block} is a destination twice, here or of another load that is still open");
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }

    /// A job that needs no peer, or can have none.
    fn end_at_once(&mut self, job: JobId, kind: JobKind, cause: &Cause) {
        self.cx.open_job(job, kind);
        self.cx.finish_job(job, cause, 0, JobFlags::default());
    }

    /// Offers blocks to whoever fetches the request's id. Done at once where nobody can.
    pub fn submit_store(
        &mut self,
        now: Timestamp,
        request: RequestId,
        job: JobId,
        keys: KeysView<'_>,
        blocks: &[BlockIndex],
    ) -> Result<()> {
        self.cx.now = now;
        self.check_running()?;
        self.check_job(job, keys, blocks)?;
        let found = self.request(request)?;
        let timeout = found.timeouts.store;
        match found.roles.producer.clone() {
            Some(ProducerRole::Malformed(why)) => {
                let detail = format!("remote_decoder cannot be used: {why}");
                self.end_at_once(job, JobKind::Store, &Cause::new(Outcome::NoPeer, detail));
            }
            Some(ProducerRole::Serves(id)) if !keys.is_empty() => {
                self.cx.open_job(job, JobKind::Store);
                self.store(&id, job, KeyBatch::from(keys), blocks.to_vec(), timeout);
            }
            _ => self.end_at_once(job, JobKind::Store, &Cause::new(Outcome::Done, "")),
        }
        self.after_input();
        Ok(())
    }

    /// Makes blocks findable by peers' lookups and fetches, all or none.
    pub fn publish(&mut self, now: Timestamp, keys: KeysView<'_>, blocks: &[BlockIndex]) -> Result<()> {
        self.cx.now = now;
        self.check_running()?;
        self.check_keys(keys)?;
        self.check_blocks(keys, blocks)?;
        self.cx.directory.publish(keys, blocks)?;
        if self.cx.wanted.has_rounds() {
            self.meet_wanted(keys);
        }
        self.after_input();
        Ok(())
    }

    /// Whoever waits for the keys gets them: as many as one input may serve now, the others after it.
    fn meet_wanted(&mut self, keys: KeysView<'_>) {
        let hasher = self.cx.hasher();
        for key in keys.iter() {
            let waiters = self.cx.wanted.waiters(KeyHash::new(&hasher, key));
            if !waiters.is_empty() {
                self.published.push_back(Published { key: Key::new(key), waiters: waiters.into_iter() });
            }
        }
    }

    /// Takes keys out of the directory: all, or none if a peer's round holds one of them. `states` is as long as
    /// `keys`. True if they are out.
    pub fn unpublish(&mut self, keys: KeysView<'_>, states: &mut [UnpublishState]) -> Result<bool> {
        self.check_running()?;
        self.check_keys(keys)?;
        Ok(self.cx.directory.unpublish(keys, states))
    }

    /// Whether a lookup of the request has no answer yet.
    pub fn has_open_lookups(&self, request: RequestId) -> Result<bool> {
        let found = self.request(request)?;
        let (Some(Ok(session)), Some(ConsumerRole::Symmetric(source))) =
            (self.session_of(found), &found.roles.consumer)
        else {
            return Ok(false);
        };
        Ok(self
            .sessions
            .get(&session)
            .is_some_and(|session| session.client.has_open_lookups(&source.kv_request_id)))
    }

    /// Why the request's lookups are misses and its loads fail; `None` while its peer is usable, or it has none.
    pub fn request_failure(&self, request: RequestId) -> Result<Option<Cause>> {
        let found = self.request(request)?;
        Ok(match (self.session_of(found), &found.roles.consumer) {
            (Some(Err(cause)), _) => Some(cause.clone()),
            (Some(Ok(session)), Some(ConsumerRole::Symmetric(source))) => self
                .sessions
                .get(&session)
                .and_then(|session| session.client.lookups_given_up(&source.kv_request_id)),
            _ => None,
        })
    }

    /// No more calls are taken; every session ends. What still reads or writes blocks is waited for as at any death.
    pub fn shut_down(&mut self, now: Timestamp) {
        self.cx.now = now;
        self.shut_down = true;
        let living: Vec<SessionId> = self.by_peer.values().copied().collect();
        for session in living {
            self.kill(session, Cause::new(Outcome::ShutDown, "this tier was freed"), true);
        }
        self.end_all_parked();
        self.after_input();
    }
}
