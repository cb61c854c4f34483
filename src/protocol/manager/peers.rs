//! Peers: who a message is from, when a session is opened, what kills it, when it may be tried again.

use core::net::SocketAddr;
use std::time::Duration;

use crate::protocol::codec::{CodecError, Decoded};
use crate::protocol::config::Reach;
use crate::protocol::context::Cause;
use crate::protocol::ids::{KvRequestId, PeerId, SessionId};
use crate::protocol::job::Outcome;
use crate::protocol::message::{Connect, Dialect, Extension, Fetch, Message};
use crate::protocol::mutation::{self, Mutation};
use crate::protocol::session::{Origin, Session};
use crate::protocol::timer::Timestamp;

use super::Manager;

/// So near to the cap idle sessions are evicted.
const NEAR_CAP: usize = 8;

/// How long after a session's death its messages may still arrive.
const AFTERLIFE: Duration = Duration::from_secs(1);

/// When a peer whose data plane failed may be tried again.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    wait: Duration,
    pub until: Timestamp,
}

impl Manager {
    // ---- opening ----

    /// The session that a consumer request uses: the living one, or a new one if that is allowed.
    pub(super) fn session_for(&mut self, peer: &PeerId) -> Result<SessionId, Cause> {
        if let Some(session) = self.living(peer) {
            return Ok(session);
        }
        if let Some(backoff) = self.backoffs.get(peer)
            && backoff.until > self.cx.now
        {
            let left = backoff.until.since(self.cx.now);
            let text =
                format!("peer {peer}: its data plane failed before, the next attempt is allowed in {left:?}");
            return Err(Cause::new(Outcome::NoPeer, text));
        }
        self.open(peer, Origin::Dialed).ok_or_else(|| {
            let cap = self.cx.config.max_peers;
            Cause::new(Outcome::NoPeer, format!("peer {peer}: {cap} peers are connected already (max_peers)"))
        })
    }

    fn living(&self, peer: &PeerId) -> Option<SessionId> {
        self.by_peer.get(peer).or_else(|| self.aliases.get(peer)).copied()
    }

    fn open(&mut self, peer: &PeerId, origin: Origin) -> Option<SessionId> {
        self.evict_idle();
        if self.by_peer.len() >= self.cx.config.max_peers {
            return None;
        }
        self.last_session += 1;
        let id = SessionId(self.last_session);
        let now = self.cx.now;
        self.recent_deaths.retain(|_, died| *died + AFTERLIFE > now);
        let succeeds = self.recent_deaths.contains_key(peer);
        let session = Session::open(&mut self.cx, id, peer.clone(), origin, succeeds);
        self.by_peer.insert(peer.clone(), id);
        self.sessions.insert(id, session);
        Some(id)
    }

    /// Makes room near the cap: sessions without work for long enough go, the longest idle first.
    fn evict_idle(&mut self) {
        let cap = self.cx.config.max_peers;
        if self.by_peer.len() + NEAR_CAP < cap.max(NEAR_CAP + 1) {
            return;
        }
        let is_idle = |session: &&Session| {
            let idle = self.cx.now.since(session.last_active);
            !session.is_dying() && session.has_no_work() && idle >= self.cx.config.timeouts.idle
        };
        let mut idle: Vec<(Timestamp, SessionId)> =
            self.sessions.values().filter(is_idle).map(|session| (session.last_active, session.id)).collect();
        idle.sort_unstable();
        let excess = self.by_peer.len() + NEAR_CAP + 1 - cap.min(self.by_peer.len() + NEAR_CAP);
        for (_, session) in idle.into_iter().take(excess) {
            self.kill(
                session,
                Cause::new(Outcome::PeerLost, "idle, and room was needed for another peer"),
                true,
            );
        }
    }

    // ---- what the control plane reports ----

    /// What a peer is known to speak; `None` before its `connect`.
    #[must_use]
    pub fn dialect_of(&self, identity: &[u8]) -> Option<Dialect> {
        let peer = parse_identity(identity)?;
        let session = self.sessions.get(&self.living(&peer)?)?;
        session.peer_connect().map(|_| session.dialect())
    }

    /// One message from the ROUTER: the sender's routing id, and what its payload was.
    pub fn handle_message(&mut self, now: Timestamp, identity: &[u8], decoded: Result<Decoded, CodecError>) {
        self.cx.now = now;
        self.cx.stats.messages_in += 1;
        match parse_identity(identity) {
            Some(peer) if peer != self.cx.config.local_id => self.on_message_from(&peer, decoded),
            Some(_) => self.on_message_from_self(decoded),
            None => self.cx.stats.messages_dropped += 1,
        }
        self.after_input();
    }

    fn on_message_from(&mut self, peer: &PeerId, decoded: Result<Decoded, CodecError>) {
        let living = self.living(peer);
        let message = match decoded {
            Ok(Decoded::Message(message)) => message,
            Ok(Decoded::Unknown { kind }) => return self.on_unknown(peer, &kind),
            Err(error) => {
                self.cx.stats.protocol_errors += 1;
                match living {
                    Some(session) => self.kill(session, violation(error), true),
                    None => log::warn!("peer {peer}: dropped its first message: {error}"),
                }
                return;
            }
        };
        match (living, message) {
            (Some(session), Message::Connect(connect)) => self.on_connect_from(peer, Some(session), connect),
            (Some(session), message) => self.dispatch(session, message),
            (None, Message::Connect(connect)) if !self.shut_down => self.on_connect_from(peer, None, connect),
            (None, message) => self.on_late(peer, &message),
        }
    }

    /// Not heard by any session: meant for one that is gone. Our `connect` tells the peer so, if it does not know.
    fn on_late(&mut self, peer: &PeerId, message: &Message) {
        self.cx.stats.messages_late += 1;
        if !self.shut_down && !matches!(message, Message::Disconnect(_)) {
            self.answer(peer, Origin::Answered { dialed_as: None, token: None });
        }
    }

    /// A `connect` that answers one of ours is for the session that sent that, whatever the peer calls itself. If that
    /// session is gone, it is for none: the peer will begin anew with what our present session has sent, or sends now.
    fn on_connect_from(&mut self, peer: &PeerId, living: Option<SessionId>, connect: Box<Connect>) {
        let answered = answered_token(&connect).map(|token| self.living_with_token(token));
        match (answered, living) {
            (None, Some(session)) => self.on_connect(session, connect),
            (None, None) => self.on_first_connect(peer, connect),
            (Some(Some(session)), _) => {
                self.take_name(peer, living, session);
                self.on_connect(session, connect);
            }
            (Some(None), Some(_)) => self.cx.stats.messages_late += 1,
            (Some(None), None) => self.on_late(peer, &Message::Connect(connect)),
        }
    }

    fn living_with_token(&self, token: &[u8]) -> Option<SessionId> {
        let is_it = |id: &SessionId| self.sessions.get(id).is_some_and(|session| session.token() == token);
        self.by_peer.values().copied().find(is_it)
    }

    /// `peer` turned out to be the one that `session` dialled, perhaps under another name.
    fn take_name(&mut self, peer: &PeerId, living: Option<SessionId>, session: SessionId) {
        if living == Some(session) {
            return;
        }
        let Some(name) = self.sessions.get(&session).map(|found| found.peer.clone()) else { return };
        if let Some(other) = living {
            let text = format!("the peer was dialled anew, as {name}");
            self.kill(other, Cause::new(Outcome::PeerLost, text), false);
        }
        if *peer != name {
            log::info!("peer {peer} is the one dialled as {name}");
            self.aliases.insert(peer.clone(), session);
        }
    }

    fn on_unknown(&mut self, peer: &PeerId, kind: &str) {
        if self.known_unknowns.len() < 64 && self.known_unknowns.insert(kind.to_owned()) {
            log::info!("peer {peer}: ignored a message of unknown type {kind:?}; said once for each type");
        }
        self.cx.stats.messages_dropped += 1;
    }

    /// We dialled ourselves under another name, if it is really we who say so: anyone can call himself by our name.
    fn on_message_from_self(&mut self, decoded: Result<Decoded, CodecError>) {
        self.cx.stats.messages_dropped += 1;
        let Ok(Decoded::Message(Message::Connect(connect))) = decoded else { return };
        let ours = connect.extension.as_ref().filter(|theirs| theirs.instance == self.cx.config.instance);
        let Some(dialed) = ours.and_then(|extension| extension.dialed_as.as_deref()) else { return };
        if let Ok(peer) = PeerId::parse(dialed)
            && let Some(session) = self.by_peer.get(&peer).copied()
            && self.sessions.get(&session).is_some_and(Session::is_unheard)
        {
            let text = format!("it is this tier itself, which calls itself {}", self.cx.config.local_id);
            self.kill(session, Cause::new(Outcome::Incompatible, text), false);
        }
    }

    /// A peer without a session says `connect`: a new peer, or one that we dialled under another name.
    fn on_first_connect(&mut self, peer: &PeerId, connect: Box<Connect>) {
        if let Some(session) = self.dialed_under_another_name(peer, &connect) {
            self.take_name(peer, None, session);
            return self.on_connect(session, connect);
        }
        if let Some(session) = self.answer(peer, answer_to(&connect)) {
            self.on_connect(session, connect);
        }
    }

    fn answer(&mut self, peer: &PeerId, origin: Origin) -> Option<SessionId> {
        let session = self.open(peer, origin);
        if session.is_none() {
            self.cx.stats.messages_dropped += 1;
            log::warn!(
                "peer {peer}: not answered, {} peers are connected already (max_peers)",
                self.cx.config.max_peers
            );
        }
        session
    }

    /// The waiting session that this peer answers: it says so itself, or its name is the address that was dialled.
    fn dialed_under_another_name(&self, peer: &PeerId, connect: &Connect) -> Option<SessionId> {
        let echo = connect.extension.as_ref().and_then(|extension| extension.dialed_as_echo.as_deref());
        if let Some(echo) = echo {
            let named = PeerId::parse(echo).ok().and_then(|name| self.by_peer.get(&name).copied());
            return named.filter(|session| self.sessions.get(session).is_some_and(Session::is_unheard));
        }
        let address = peer.numeric_address()?;
        self.unheard_at(&[address], None)
    }

    fn unheard_at(&self, addresses: &[SocketAddr], other_than: Option<SessionId>) -> Option<SessionId> {
        let fits = |session: &&Session| {
            Some(session.id) != other_than
                && session.is_unheard()
                && session.addresses().iter().any(|known| addresses.contains(known))
        };
        self.sessions.values().find(fits).map(|session| session.id)
    }

    fn on_connect(&mut self, session: SessionId, connect: Box<Connect>) {
        let Some(found) = self.sessions.get_mut(&session) else { return };
        if found.peer_connect().is_some_and(|known| is_another_life(known, &connect)) {
            return self.restart(session, connect);
        }
        if let Err(cause) = found.on_connect(&mut self.cx, connect) {
            self.count_violation(&cause);
            self.kill(session, cause, true);
        }
    }

    /// The peer is a new process, or began a new session: the old one's work fails, the message begins the next.
    fn restart(&mut self, session: SessionId, connect: Box<Connect>) {
        let Some(peer) = self.sessions.get(&session).map(|session| session.peer.clone()) else { return };
        let alias = self.aliases.iter().find(|(_, other)| **other == session).map(|(name, _)| name.clone());
        self.kill(session, Cause::new(Outcome::PeerLost, "the peer restarted"), false);
        // An answer to the session that just ended is none to the next.
        let taken = answered_token(&connect).is_none();
        let origin =
            if taken { answer_to(&connect) } else { Origin::Answered { dialed_as: None, token: None } };
        let Some(next) = self.answer(&peer, origin) else { return };
        if let Some(alias) = alias {
            self.aliases.insert(alias, next);
        }
        if taken {
            self.on_connect(next, connect);
        }
    }

    fn dispatch(&mut self, session: SessionId, message: Message) {
        let Some(found) = self.sessions.get_mut(&session) else { return };
        match message {
            Message::ConnectAck(_) => found.on_connect_ack(&mut self.cx),
            Message::Disconnect(disconnect) => match found.on_disconnect(&self.cx, &disconnect) {
                Some(cause) => self.kill(session, cause, false),
                None => self.cx.stats.messages_late += 1,
            },
            message if found.is_registered() => {
                found.last_active = self.cx.now;
                let waits = found.server.is_at_work() && is_for_producer(&message);
                let outcome = if waits {
                    found.server.wait(&self.cx, message).map_err(violation)
                } else {
                    self.dispatch_work(session, message)
                };
                if let Err(cause) = outcome {
                    self.count_violation(&cause);
                    self.kill(session, cause, true);
                }
            }
            _ => self.cx.stats.messages_late += 1,
        }
        self.cx.touched.push(session);
    }

    pub(super) fn dispatch_work(&mut self, session: SessionId, message: Message) -> Result<(), Cause> {
        if let Message::Fetch(fetch) = message {
            return self.on_fetch(session, fetch);
        }
        let cx = &mut self.cx;
        let Some(found) = self.sessions.get_mut(&session) else { return Ok(()) };
        let fenced = found.is_fenced();
        match message {
            Message::AbortAck(ack) => {
                let round = found.round_of_answer(&ack.kv_request_id, ack.round_seq);
                found.client.on_abort_ack(cx, &ack.kv_request_id, round, fenced);
            }
            Message::AbortFetch(abort) => {
                found.server.on_abort_fetch(cx, &abort.kv_request_id, abort.round_seq)
            }
            Message::Lookup(lookup) => return found.server.on_lookup(cx, lookup).map_err(violation),
            Message::LookupResp(resp) => found.client.on_lookup_resp(cx, &resp),
            Message::TransferDone(done) => {
                let round = found.round_of_answer(&done.kv_request_id, done.round_seq);
                found.client.on_transfer_done(cx, &done.kv_request_id, round, done.success, fenced);
            }
            Message::Connect(_) | Message::ConnectAck(_) | Message::Disconnect(_) | Message::Fetch(_) => {}
        }
        Ok(())
    }

    fn on_fetch(&mut self, session: SessionId, fetch: Fetch) -> Result<(), Cause> {
        let Some(found) = self.sessions.get_mut(&session) else { return Ok(()) };
        if fetch.keys.is_empty() {
            found.server.on_end_of_id(&mut self.cx, fetch.kv_request_id.clone());
            self.consumer_ended(session, &fetch.kv_request_id);
            return Ok(());
        }
        let blocks = found.check_blocks(&fetch)?;
        if found.server.is_looked_up(&fetch.kv_request_id, fetch.round_seq) {
            return found.server.on_fetch(&mut self.cx, fetch, blocks, None).map_err(violation);
        }
        self.on_pd_fetch(session, fetch, blocks)
    }

    pub(super) fn count_violation(&mut self, cause: &Cause) {
        if cause.outcome == Outcome::PeerLost {
            self.cx.stats.protocol_errors += 1;
        }
    }

    /// The control connection was up and is gone.
    pub fn handle_connection_lost(&mut self, now: Timestamp, session: SessionId, why: &str) {
        self.cx.now = now;
        let outcome = match self.sessions.get(&session) {
            Some(found) if found.peer_connect().is_some() => Outcome::PeerLost,
            _ => Outcome::NoPeer,
        };
        // The peer may be well, and wait for us on the other connection.
        let tell =
            self.sessions.get(&session).is_some_and(|found| found.is_registered() && found.is_in_use());
        self.kill(session, Cause::new(outcome, format!("connection lost: {why}")), tell);
        self.after_input();
    }

    /// The name of the session's peer cannot be resolved.
    pub fn handle_unresolvable(&mut self, now: Timestamp, session: SessionId, why: &str) {
        self.cx.now = now;
        let heard =
            self.sessions.get(&session).filter(|found| found.is_new_answer() && !found.speaks_p2pkv());
        if let Some(name) = heard.map(|found| found.peer.clone()) {
            self.blame_misnamed(session, &name);
        }
        self.kill(session, Cause::new(Outcome::NoPeer, format!("its name cannot be resolved: {why}")), false);
        self.after_input();
    }

    /// A peer that calls itself by a name nobody can resolve may be the one that a waiting session dialled. If only one
    /// can be meant, its jobs fail now and not at the handshake deadline. A libp2pkv peer is never meant: the one that was
    /// dialled would have said so.
    fn blame_misnamed(&mut self, session: SessionId, name: &PeerId) {
        let mut waiting = self
            .sessions
            .values()
            .filter(|other| other.id != session && other.is_unheard() && other.peer.port() == name.port());
        if let (Some(only), None) = (waiting.next().map(|other| other.id), waiting.next()) {
            let text = format!(
                "it was dialled under this name and calls itself {name}, which cannot be resolved: give both the same name"
            );
            self.kill(only, Cause::new(Outcome::NoPeer, text), false);
        }
    }

    /// The addresses that the session's control connection uses.
    pub fn handle_resolved(&mut self, now: Timestamp, session: SessionId, addresses: Vec<SocketAddr>) {
        self.cx.now = now;
        let Some(found) = self.sessions.get(&session) else { return };
        if found.is_new_answer()
            && let Some(dialed) = self.unheard_at(&addresses, Some(session))
        {
            self.merge(session, dialed);
        } else {
            let heard = if found.is_unheard() { self.new_answer_at(&addresses) } else { None };
            self.with_session(session, |session, cx| session.on_resolved(cx, addresses));
            if let Some(heard) = heard {
                self.merge(heard, session);
            }
        }
        self.after_input();
    }

    fn new_answer_at(&self, addresses: &[SocketAddr]) -> Option<SessionId> {
        let fits = |session: &&Session| {
            session.is_new_answer() && session.addresses().iter().any(|known| addresses.contains(known))
        };
        self.sessions.values().find(fits).map(|session| session.id)
    }

    /// Two names of one address: the session that was dialled takes over what the other one heard. A libp2pkv knows the
    /// one from the other by their tokens, and has to hear the one that stays last.
    fn merge(&mut self, heard: SessionId, dialed: SessionId) {
        let Some(found) = self.sessions.get(&heard) else { return };
        let (name, connect) = (found.peer.clone(), found.peer_connect().cloned());
        self.kill(
            heard,
            Cause::new(Outcome::PeerLost, "the same peer as another session, under another name"),
            false,
        );
        self.aliases.insert(name, dialed);
        match connect {
            Some(connect) if connect.extension.is_none() => self.on_connect(dialed, Box::new(connect)),
            _ => self.with_session(dialed, |session, cx| session.repeat_connect(cx)),
        }
    }

    /// Said before `handle_peer_registered`, by transports that know more ways than one.
    pub fn note_reach(&mut self, session: SessionId, reach: Reach) {
        self.with_session(session, |session, _| session.reach = reach);
    }

    pub fn handle_peer_registered(&mut self, now: Timestamp, session: SessionId) {
        self.cx.now = now;
        self.with_session(session, |session, cx| session.on_registered(cx));
        self.after_input();
    }

    pub fn handle_peer_refused(&mut self, now: Timestamp, session: SessionId, why: &str) {
        self.cx.now = now;
        self.fault(
            session,
            Cause::new(Outcome::TransportFailed, format!("its data plane cannot be used: {why}")),
        );
        self.after_input();
    }

    pub(super) fn on_lookup_deadline(&mut self, session: SessionId, id: &KvRequestId) {
        let Some(found) = self.sessions.get_mut(&session) else { return };
        if let Some(cause) = found.client.on_lookup_deadline(&mut self.cx, id) {
            self.kill(session, cause, true);
        }
    }

    // ---- death ----

    /// Ends a session whose data plane failed: as `kill`, and the next attempts wait longer and longer.
    pub(super) fn fault(&mut self, session: SessionId, cause: Cause) {
        if let Some(found) = self.sessions.get(&session)
            && !found.is_dying()
        {
            let max = self.cx.config.timeouts.backoff_max;
            let peer = found.peer.clone();
            let wait = match self.backoffs.get(&peer) {
                Some(last) if self.cx.now <= last.until + max => {
                    (last.wait * 2).clamp(Duration::from_secs(1).min(max), max)
                }
                _ => Duration::ZERO,
            };
            self.backoffs.insert(peer, Backoff { wait, until: self.cx.now + wait });
        }
        self.kill(session, cause, true);
    }

    pub(super) fn kill(&mut self, session: SessionId, cause: Cause, tell: bool) {
        let Some(found) = self.sessions.get_mut(&session) else { return };
        if found.is_dying() {
            return;
        }
        found.die(&mut self.cx, cause, tell);
        let peer = found.peer.clone();
        if self.by_peer.get(&peer) == Some(&session) {
            self.by_peer.remove(&peer);
        }
        self.aliases.retain(|_, other| *other != session);
        self.unflushed.remove(&session);
        let (now, max) = (self.cx.now, self.cx.config.timeouts.backoff_max);
        self.backoffs.retain(|_, backoff| now <= backoff.until + max);
        self.recent_deaths.insert(peer, now);
        if mutation::is(Mutation::DeathSpreads)
            && let Some(next) = self.by_peer.values().next().copied()
        {
            self.kill(next, Cause::new(Outcome::PeerLost, "another session ended"), false);
        }
    }
}

/// Whether `connect` comes from another life of the peer than the one that sent `known`: another instance (or NIXL
/// agent, where it names none), or the same tier beginning a new session with another access token.
fn is_another_life(known: &Connect, connect: &Connect) -> bool {
    match (&known.extension, &connect.extension) {
        (Some(known), Some(new)) => {
            let token = |extension: &Extension| extension.tcp.as_ref().map(|tcp| tcp.token.clone());
            known.instance != new.instance || token(known) != token(new)
        }
        _ => known.agent_metadata != connect.agent_metadata,
    }
}

/// Each role has its own order of messages: what answers our consumer need not wait for what asks our producer.
fn is_for_producer(message: &Message) -> bool {
    matches!(message, Message::AbortFetch(_) | Message::Fetch(_) | Message::Lookup(_))
}

fn answer_to(connect: &Connect) -> Origin {
    let extension = connect.extension.as_ref();
    Origin::Answered {
        dialed_as: extension.and_then(|extension| extension.dialed_as.clone()),
        token: extension.and_then(|extension| extension.tcp.as_ref()).map(|tcp| tcp.token.clone()),
    }
}

/// The token of our session that a `connect` answers.
fn answered_token(connect: &Connect) -> Option<&[u8]> {
    connect.extension.as_ref()?.answers.as_deref()
}

fn parse_identity(identity: &[u8]) -> Option<PeerId> {
    PeerId::parse(std::str::from_utf8(identity).ok()?).ok()
}

fn violation(what: impl std::fmt::Display) -> Cause {
    Cause::new(Outcome::PeerLost, format!("protocol error: {what}"))
}
