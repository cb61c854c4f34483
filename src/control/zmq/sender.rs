//! Outgoing connections: at most one link for each peer at any time, all non-blocking, watched by one epoll set.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token, Waker};

use super::ZmqConfig;
use super::contexts::Contexts;
use super::link::{Backlog, Link, LinkEvent, LinkOptions, full_queue};
use crate::control::resolve::{Answer, Resolver, Ticket};
use crate::control::{ControlEvent, ControlSender};
use crate::protocol::error::{Error, ErrorKind, Result};
use crate::protocol::ids::{PeerId, SessionId};
use crate::protocol::timer::Timestamp;

/// How long past its linger a closing link may keep its peer from being dialled again.
const CLOSE_SLACK: Duration = Duration::from_secs(1);

/// Between the end of a link and the next to the same peer: a peer without handover must have noticed the end, else it
/// never reads the new one. vLLM looks at its socket each millisecond when it is not busy.
const SETTLE: Duration = Duration::from_millis(100);

/// The token that is no link: resolved names and events made outside `poll`.
const WAKE: Token = Token(usize::MAX);

/// Links that are looked at in one `poll`: some 10 µs each.
const READY_BATCH: usize = 64;

/// Slots that are freed in one: each may be a link to be made, some 100 µs.
const DUE_BATCH: usize = 16;

/// ```text
///   dial ──▶ Resolving ──▶ Waiting ──▶ Linked ──▶ Lost
///               └────────────┴──────────────────────▲
///   Waiting: the peer's earlier link is not closed yet. Lost: its event was given; a last word and close are left.
///   A session closed while Waiting is Parting until its link can be made, carries what was queued, and ends; or until
///   another session wants the link. So is one that was Linked and got a last word when it was Lost: the peer may be well
///   and not know.
/// ```
enum Stage {
    Resolving {
        ticket: Ticket,
        queued: Backlog,
    },
    Waiting {
        address: SocketAddr,
        queued: Backlog,
    },
    Parting {
        address: SocketAddr,
        queued: Backlog,
        linger: Duration,
    },
    Linked {
        link: usize,
    },
    /// `address`: where the peer was reached, if it was. `queued`: the one thing that it is still to be told.
    Lost {
        address: Option<SocketAddr>,
        queued: Backlog,
    },
}

impl Stage {
    fn lost(address: Option<SocketAddr>) -> Stage {
        Stage::Lost { address, queued: Backlog::default() }
    }
}

struct Session {
    peer: PeerId,
    stage: Stage,
}

/// Who holds the one link to a peer, and who wants it next.
struct Slot {
    holder: usize,
    waiting: VecDeque<SessionId>,
}

/// The sending half; see [`super::open`].
pub struct ZmqSender {
    contexts: Contexts,
    options: LinkOptions,
    max_links: usize,
    linger: Duration,
    sessions: HashMap<SessionId, Session>,
    links: HashMap<usize, Link>,
    next_link: usize,
    slots: HashMap<PeerId, Slot>,
    /// When a slot is freed: [`SETTLE`] after its holder ended, or when a holder that does not end is given up.
    due: BTreeMap<(Timestamp, usize), PeerId>,
    /// Links of sessions that are over, and their linger, to be closed by the next `poll`, which knows the time.
    ended_links: Vec<(usize, Duration)>,
    resolver: Resolver,
    resolving: HashMap<Ticket, SessionId>,
    /// Told by the next `poll`.
    events: Vec<ControlEvent>,
    epoll: Poll,
    ready: Events,
    waker: Arc<Waker>,
}

impl ZmqSender {
    pub(super) fn new(context: ::zmq::Context, config: &ZmqConfig, local_id: &PeerId) -> Result<Self> {
        let refused = |error: std::io::Error| {
            Error::new(
                ErrorKind::OutOfResources,
                format!("no epoll set for the control connections: {error}"),
            )
        };
        let epoll = Poll::new().map_err(refused)?;
        let waker = Arc::new(Waker::new(epoll.registry(), WAKE).map_err(refused)?);
        let for_resolver = Arc::clone(&waker);
        // All may leave at once, and as many others come while the last words to the first still linger.
        let max_links = (config.max_peers * 2).max(1);
        Ok(ZmqSender {
            contexts: Contexts::start(context, max_links)?,
            options: LinkOptions::new(config, local_id),
            max_links,
            linger: config.linger,
            sessions: HashMap::new(),
            links: HashMap::new(),
            next_link: 0,
            slots: HashMap::new(),
            due: BTreeMap::new(),
            ended_links: Vec::new(),
            resolver: Resolver::new(Arc::new(move || wake(&for_resolver))),
            resolving: HashMap::new(),
            events: Vec::new(),
            epoll,
            ready: Events::with_capacity(READY_BATCH),
            waker,
        })
    }

    fn start(&mut self, session: SessionId, peer: PeerId) {
        if let Some(address) = peer.numeric_address() {
            let stage = Stage::Waiting { address, queued: Backlog::default() };
            self.sessions.insert(session, Session { peer: peer.clone(), stage });
            self.want_link(session, peer);
            return;
        }
        match self.resolver.ask(peer.host(), peer.port()) {
            Ok(ticket) => {
                self.resolving.insert(ticket, session);
                let stage = Stage::Resolving { ticket, queued: Backlog::default() };
                self.sessions.insert(session, Session { peer, stage });
            }
            Err(reason) => {
                self.sessions.insert(session, Session { peer, stage: Stage::lost(None) });
                self.events.push(ControlEvent::Unresolvable { session, reason });
            }
        }
    }

    fn resolved(&mut self, Answer { ticket, outcome }: Answer) {
        // A session that was closed meanwhile has taken its ticket along.
        let Some(session) = self.resolving.remove(&ticket) else { return };
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        let Stage::Resolving { queued, .. } = &mut entry.stage else { return };
        let peer = entry.peer.clone();
        let first = outcome.and_then(|addresses| {
            let first = addresses.first().copied().ok_or_else(|| format!("{peer} has no address"))?;
            Ok((first, addresses))
        });
        match first {
            Ok((address, addresses)) => {
                entry.stage = Stage::Waiting { address, queued: std::mem::take(queued) };
                self.events.push(ControlEvent::Resolved { session, addresses });
                self.want_link(session, peer);
            }
            Err(reason) => {
                entry.stage = Stage::lost(None);
                self.events.push(ControlEvent::Unresolvable { session, reason });
            }
        }
    }

    /// Links the waiting session now, or when the peer's earlier link is gone.
    fn want_link(&mut self, session: SessionId, peer: PeerId) {
        match self.slots.get_mut(&peer) {
            Some(slot) => {
                slot.waiting.push_back(session);
                self.give_up_parting(&peer);
            }
            None => self.fill_slot(peer, VecDeque::from([session])),
        }
    }

    /// What the parting session still had to say is out of date.
    fn give_up_parting(&mut self, peer: &PeerId) {
        let Some(slot) = self.slots.get_mut(peer) else { return };
        let sessions = &mut self.sessions;
        slot.waiting.retain(|waiting| {
            let parting = matches!(sessions.get(waiting), Some(Session { stage: Stage::Parting { .. }, .. }));
            if parting {
                sessions.remove(waiting);
            }
            !parting
        });
    }

    /// Queues for a link of its own. A session that waits for one tells the peer more than the parting one could.
    fn part_anew(&mut self, session: SessionId, peer: PeerId, parting: Stage) {
        self.give_up_parting(&peer);
        let is_wanted = self.slots.get(&peer).is_some_and(|slot| !slot.waiting.is_empty());
        if is_wanted {
            return;
        }
        self.sessions.insert(session, Session { peer: peer.clone(), stage: parting });
        match self.slots.get_mut(&peer) {
            Some(slot) => slot.waiting.push_back(session),
            None => self.fill_slot(peer, VecDeque::from([session])),
        }
    }

    /// Gives the peer's free slot to the first of `waiting` that still wants it and can be linked.
    fn fill_slot(&mut self, peer: PeerId, mut waiting: VecDeque<SessionId>) {
        while let Some(session) = waiting.pop_front() {
            if let Some(holder) = self.link(session, &peer) {
                self.slots.insert(peer, Slot { holder, waiting });
                return;
            }
        }
    }

    /// Opens the link of a waiting session. `None`: it does not want one any more, or was lost over it.
    fn link(&mut self, session: SessionId, peer: &PeerId) -> Option<usize> {
        let entry = self.sessions.get_mut(&session).filter(|entry| entry.peer == *peer)?;
        let (address, queued, linger) = match &mut entry.stage {
            Stage::Waiting { address, queued } => (*address, std::mem::take(queued), None),
            Stage::Parting { address, queued, linger } => (*address, std::mem::take(queued), Some(*linger)),
            Stage::Resolving { .. } | Stage::Linked { .. } | Stage::Lost { .. } => return None,
        };
        match self.open_link(session, peer, address) {
            Ok(id) => {
                match linger {
                    None => self.set_stage(session, Stage::Linked { link: id }),
                    Some(linger) => {
                        self.sessions.remove(&session);
                        self.ended_links.push((id, linger));
                    }
                }
                let (link, registry) = (self.links.get_mut(&id)?, self.epoll.registry());
                let started = link
                    .connect()
                    .and_then(|()| queued.iter().try_for_each(|message| link.send(registry, message)));
                if let Err(reason) = started {
                    self.lose(session, reason);
                }
                Some(id)
            }
            Err(reason) => {
                self.lose(session, format!("{peer} cannot be dialled: {reason}"));
                None
            }
        }
    }

    fn open_link(
        &mut self,
        session: SessionId,
        peer: &PeerId,
        address: SocketAddr,
    ) -> std::result::Result<usize, String> {
        if self.links.len() >= self.max_links {
            return Err(format!("{} connections are open or closing already", self.links.len()));
        }
        let id = self.next_link;
        self.next_link += 1;
        let dialled = (session, peer.clone(), address);
        let taken = self.contexts.take();
        let (number, context) = taken.ok_or_else(|| "libzmq has no socket left for it".to_owned())?;
        let link = Link::new((number, &context), self.epoll.registry(), &self.options, dialled, id);
        match link {
            Ok(link) => drop(self.links.insert(id, link)),
            Err(reason) => {
                self.contexts.give_back(number);
                return Err(reason);
            }
        }
        Ok(id)
    }

    fn set_stage(&mut self, session: SessionId, stage: Stage) {
        if let Some(entry) = self.sessions.get_mut(&session) {
            entry.stage = stage;
        }
    }

    /// Tells once that the session's connection is lost, and ends it.
    fn lose(&mut self, session: SessionId, reason: String) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        match std::mem::replace(&mut entry.stage, Stage::lost(None)) {
            lost @ Stage::Lost { .. } => {
                entry.stage = lost;
                return;
            }
            // Its session is closed: nobody is left to tell.
            Stage::Parting { .. } => return drop(self.sessions.remove(&session)),
            Stage::Linked { link } => {
                let address = self.links.get(&link).map(Link::address);
                entry.stage = Stage::lost(address);
                self.ended_links.push((link, Duration::ZERO));
            }
            Stage::Resolving { ticket, .. } => drop(self.resolving.remove(&ticket)),
            Stage::Waiting { .. } => {}
        }
        self.events.push(ControlEvent::ConnectionLost { session, reason });
    }

    /// Ends what the stage holds. What waits for a link is given up.
    fn end_stage(&mut self, now: Timestamp, stage: &Stage, linger: Duration) {
        match stage {
            Stage::Linked { link } => self.close_link(now, *link, linger),
            Stage::Resolving { ticket, .. } => drop(self.resolving.remove(ticket)),
            Stage::Waiting { .. } | Stage::Parting { .. } | Stage::Lost { .. } => {}
        }
    }

    fn close_link(&mut self, now: Timestamp, id: usize, linger: Duration) {
        let Some(link) = self.links.get_mut(&id) else { return };
        if link.give_up().is_some() {
            return;
        }
        let give_up = now + linger + CLOSE_SLACK;
        link.close(self.epoll.registry(), linger, give_up);
        self.due.insert((give_up, id), link.peer.clone());
    }

    /// Looks at what became ready, and at nothing else. Some of it: where much happens at once, the set becomes readable
    /// again for the rest, and whoever waits for the tier's lock gets it in between.
    fn take_ready(&mut self, now: Timestamp, wait: Duration) {
        // Interrupted: the set stays readable and the caller comes again.
        if self.epoll.poll(&mut self.ready, Some(wait)).is_err() {
            return;
        }
        let tokens: Vec<Token> = self.ready.iter().map(mio::event::Event::token).collect();
        for token in &tokens {
            match *token {
                WAKE => {
                    while let Some(answer) = self.resolver.next_answer() {
                        self.resolved(answer);
                    }
                }
                Token(id) => {
                    self.read_monitor(now, id);
                    self.send_backlog(id);
                }
            }
        }
        if tokens.len() == READY_BATCH {
            wake(&self.waker);
        }
    }

    fn read_monitor(&mut self, now: Timestamp, id: usize) {
        while let Some(link) = self.links.get(&id) {
            let session = link.session;
            let closing = link.give_up().is_some();
            match link.next_event() {
                Some(LinkEvent::Lost(reason)) if !closing => self.lose_link(session, id, reason),
                Some(LinkEvent::Lost(_)) => {}
                Some(LinkEvent::Ended) => {
                    self.lose_link(session, id, "the control socket was shut down".to_owned());
                    self.link_ended(now, id);
                }
                None => return,
            }
        }
    }

    fn send_backlog(&mut self, id: usize) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let session = link.session;
        if let Err(reason) = link.send_backlog(self.epoll.registry()) {
            self.lose_link(session, id, reason);
        }
    }

    /// Loses the session if this link is still its own.
    fn lose_link(&mut self, session: SessionId, id: usize, reason: String) {
        let own = |entry: &Session| matches!(entry.stage, Stage::Linked { link } if link == id);
        if self.sessions.get(&session).is_some_and(own) {
            self.lose(session, reason);
        }
    }

    /// Nothing is left of the link's DEALER, so its monitor may go.
    fn link_ended(&mut self, now: Timestamp, id: usize) {
        let Some(link) = self.links.remove(&id) else { return };
        link.unwatch(self.epoll.registry());
        self.contexts.give_back(link.context);
        if let Some(give_up) = link.give_up() {
            self.due.remove(&(give_up, id));
        }
        if self.slots.get(&link.peer).is_some_and(|slot| slot.holder == id) {
            self.due.insert((now + SETTLE, id), link.peer);
        }
    }

    /// The first of those that are due; for the others the deadline has passed, so the next `poll` is now.
    fn free_due_slots(&mut self, now: Timestamp) {
        for _ in 0..DUE_BATCH {
            let Some(entry) = self.due.first_entry().filter(|entry| entry.key().0 <= now) else { return };
            let ((_, id), peer) = entry.remove_entry();
            if self.links.contains_key(&id) {
                log::warn!(
                    "the old connection to {peer} does not end; dialling it again may not be heard there"
                );
            }
            if self.slots.get(&peer).is_some_and(|slot| slot.holder == id)
                && let Some(slot) = self.slots.remove(&peer)
            {
                self.fill_slot(peer, slot.waiting);
            }
        }
    }

    /// Calls outside `poll` leave their events to it.
    fn wake_for_events(&self) {
        if !self.events.is_empty() {
            wake(&self.waker);
        }
    }
}

impl ControlSender for ZmqSender {
    fn dial(&mut self, now: Timestamp, session: SessionId, peer: &PeerId) {
        if let Some(old) = self.sessions.remove(&session) {
            self.end_stage(now, &old.stage, Duration::ZERO);
        }
        self.start(session, peer.clone());
        self.wake_for_events();
    }

    /// A lost session stays lost: its event was given.
    fn redial(&mut self, now: Timestamp, session: SessionId) {
        match self.sessions.get(&session) {
            Some(Session {
                peer,
                stage: Stage::Linked { .. } | Stage::Waiting { .. } | Stage::Resolving { .. },
            }) => {
                let peer = peer.clone();
                self.dial(now, session, &peer);
            }
            Some(Session { stage: Stage::Parting { .. } | Stage::Lost { .. }, .. }) | None => {
                log::debug!("session {session} has no connection to redial");
            }
        }
    }

    fn send(&mut self, session: SessionId, payload: &[u8]) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        let sent = match &mut entry.stage {
            Stage::Linked { link } => match self.links.get_mut(link) {
                Some(link) => link.send(self.epoll.registry(), payload),
                None => Ok(()),
            },
            Stage::Resolving { queued, .. } | Stage::Waiting { queued, .. } => {
                let most = self.options.send_queue + self.options.send_backlog;
                queued.push(payload, most).map_err(|waiting| full_queue(&waiting))
            }
            Stage::Lost { address: Some(_), queued } => {
                // Whatever comes after the first word is out of place.
                let _ = queued.push(payload, 1);
                Ok(())
            }
            Stage::Parting { .. } | Stage::Lost { .. } => Ok(()),
        };
        if let Err(reason) = sent {
            self.lose(session, reason);
            self.wake_for_events();
        }
    }

    /// `linger` counts up to the configured one, so that dropping the sender has a bound.
    fn close(&mut self, now: Timestamp, session: SessionId, linger: Duration) {
        let Some(Session { peer, stage }) = self.sessions.remove(&session) else { return };
        let linger = linger.min(self.linger);
        match stage {
            Stage::Waiting { address, queued } if !linger.is_zero() && !queued.is_empty() => {
                self.give_up_parting(&peer);
                let stage = Stage::Parting { address, queued, linger };
                self.sessions.insert(session, Session { peer, stage });
            }
            Stage::Lost { address: Some(address), queued } if !linger.is_zero() && !queued.is_empty() => {
                self.part_anew(session, peer, Stage::Parting { address, queued, linger });
            }
            stage => self.end_stage(now, &stage, linger),
        }
    }

    fn poll(&mut self, now: Timestamp, events: &mut Vec<ControlEvent>) {
        self.take_ready(now, Duration::ZERO);
        self.free_due_slots(now);
        for (id, linger) in std::mem::take(&mut self.ended_links) {
            self.close_link(now, id, linger);
        }
        events.append(&mut self.events);
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    fn event_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    fn open_connections(&self) -> usize {
        let opening = |entry: &&Session| {
            matches!(entry.stage, Stage::Resolving { .. } | Stage::Waiting { .. } | Stage::Parting { .. })
        };
        self.links.len() + self.sessions.values().filter(opening).count()
    }
}

impl Drop for ZmqSender {
    /// Open connections end at once, closing ones get the rest of their linger.
    #[allow(clippy::disallowed_methods)] // a destructor is given no time, and must have a bound
    fn drop(&mut self) {
        self.sessions.clear();
        self.slots.clear();
        for link in self.links.values_mut() {
            link.close(self.epoll.registry(), Duration::ZERO, Timestamp::ZERO);
        }
        let limit = Instant::now() + self.linger + CLOSE_SLACK;
        while !self.links.is_empty() {
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.take_ready(Timestamp::ZERO, left);
        }
        if self.links.is_empty() {
            return;
        }
        log::error!("{} control connections do not end; their sockets are abandoned", self.links.len());
        // A monitor that is closed before its DEALER has ended can block libzmq for good, and ending the context would
        // wait for that. Abandoned, they keep the context alive instead.
        self.links.drain().for_each(|(_, link)| std::mem::forget(link));
    }
}

/// The set becomes readable.
fn wake(waker: &Waker) {
    // Fails only when the counter is full, and then it is readable already.
    let _ = waker.wake();
}
