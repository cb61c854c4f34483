//! Host names to addresses, off the threads that must not wait.
//!
//! `getaddrinfo` can hang for as long as its name servers like and cannot be interrupted. So it runs on a few threads
//! of its own, started when the first name comes. Nobody joins them: a thread that hangs ends by itself when its call
//! returns, and until then holds nothing but the name it asks for.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, unbounded};

use crate::host::spawn_without_signals;

/// Names asked for at the same time. One that hangs holds up the others only when this many hang.
const MAX_WORKERS: usize = 4;

/// Names that wait for a worker. Each dial has at most one, so this is far above what a tier's peers need.
const MAX_WAITING: usize = 1024;

/// For the name to listen at, which nothing can go on without.
const LISTEN_RESOLVE_LIMIT: Duration = Duration::from_secs(5);

/// The call that may hang: host and port to addresses.
pub type Lookup = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// Called on a worker thread after an answer was queued.
pub type Notify = Arc<dyn Fn() + Send + Sync>;

/// One question, so that a late answer is not taken for one of a later question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// What became of one question: addresses in the order to try, never empty, or why there are none.
#[derive(Debug)]
pub struct Answer {
    pub ticket: Ticket,
    pub outcome: Result<Vec<SocketAddr>, String>,
}

struct Question {
    ticket: Ticket,
    host: String,
    port: u16,
}

/// Asks for names without waiting. Dropping it waits for nobody.
pub struct Resolver {
    lookup: Lookup,
    notify: Notify,
    questions: Sender<Question>,
    /// Kept to hand to new workers.
    waiting: Receiver<Question>,
    answers: Receiver<Answer>,
    /// Kept to hand to new workers.
    answer_to: Sender<Answer>,
    workers: usize,
    /// Questions that are waiting or being asked.
    unanswered: Arc<AtomicUsize>,
    next_ticket: u64,
}

impl Resolver {
    /// Starts no thread yet.
    #[must_use]
    pub fn new(notify: Notify) -> Self {
        Self::with_lookup(notify, system_lookup)
    }

    #[must_use]
    pub fn with_lookup(notify: Notify, lookup: Lookup) -> Self {
        let (questions, waiting) = bounded(MAX_WAITING);
        let (answer_to, answers) = unbounded();
        Resolver {
            lookup,
            notify,
            questions,
            waiting,
            answers,
            answer_to,
            workers: 0,
            unanswered: Arc::default(),
            next_ticket: 0,
        }
    }

    /// Asks for `host`. The answer comes by [`Self::next_answer`], after `notify` was called.
    ///
    /// # Errors
    /// When too many names are waiting, or no thread can be started: the text says which.
    pub fn ask(&mut self, host: &str, port: u16) -> Result<Ticket, String> {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        if self.unanswered.load(Ordering::Relaxed) >= self.workers && self.workers < MAX_WORKERS {
            self.start_worker(host)?;
        }
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        let question = Question { ticket, host: host.to_owned(), port };
        self.questions.try_send(question).map_err(|refused| {
            self.unanswered.fetch_sub(1, Ordering::Relaxed);
            match refused {
                TrySendError::Full(_) => format!(
                    "{host:?} cannot be resolved: {MAX_WAITING} names are waiting already; the name service does not answer"
                ),
                TrySendError::Disconnected(_) => format!("{host:?} cannot be resolved: no resolver is left"),
            }
        })?;
        Ok(ticket)
    }

    /// An answer that has come, oldest first.
    pub fn next_answer(&mut self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }

    fn start_worker(&mut self, host: &str) -> Result<(), String> {
        let worker = Worker {
            lookup: self.lookup,
            notify: Arc::clone(&self.notify),
            questions: self.waiting.clone(),
            answers: self.answer_to.clone(),
            unanswered: Arc::clone(&self.unanswered),
        };
        let started = spawn_without_signals("p2pkv-resolve", move || worker.run());
        match started {
            Ok(_) => self.workers += 1,
            // The workers that run will get to it.
            Err(_) if self.workers > 0 => {}
            Err(error) => {
                return Err(format!(
                    "{host:?} cannot be resolved: no thread could be started for it ({error})"
                ));
            }
        }
        Ok(())
    }
}

struct Worker {
    lookup: Lookup,
    notify: Notify,
    questions: Receiver<Question>,
    answers: Sender<Answer>,
    unanswered: Arc<AtomicUsize>,
}

impl Worker {
    /// Until the resolver is dropped.
    fn run(self) {
        for Question { ticket, host, port } in &self.questions {
            let outcome = answer_text((self.lookup)(&host, port), &host);
            self.unanswered.fetch_sub(1, Ordering::Relaxed);
            if self.answers.send(Answer { ticket, outcome }).is_err() {
                return;
            }
            (self.notify)();
        }
    }
}

/// Where to listen for `host`: a numeric address, bracketed or not, `*` for every IPv4 interface, or a name. Waits at most
/// five seconds for a name.
///
/// # Errors
/// The name has no address, or no answer came in time; the text names the host.
pub fn listen_addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if bare == "*" {
        return Ok(vec![SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)]);
    }
    match bare.parse::<IpAddr>() {
        Ok(ip) => Ok(vec![SocketAddr::new(ip, port)]),
        Err(_) => resolve_within(bare, port, LISTEN_RESOLVE_LIMIT),
    }
}

/// Waits at most `limit` for the addresses of `host`, for callers that may wait.
///
/// # Errors
/// The name has no address, or no answer came in time; the text names the host.
pub fn resolve_within(host: &str, port: u16, limit: Duration) -> Result<Vec<SocketAddr>, String> {
    let (answered, answers) = bounded(1);
    let mut resolver = Resolver::new(Arc::new(move || {
        // Full means that the caller is being woken already.
        let _ = answered.try_send(());
    }));
    resolver.ask(host, port)?;
    if answers.recv_timeout(limit).is_err() {
        return Err(format!("{host:?} was not resolved within {limit:?}; is the name service reachable?"));
    }
    resolver.next_answer().map_or_else(|| Err(format!("{host:?} was not resolved")), |answer| answer.outcome)
}

fn system_lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    (host, port).to_socket_addrs().map(Iterator::collect)
}

fn answer_text(found: io::Result<Vec<SocketAddr>>, host: &str) -> Result<Vec<SocketAddr>, String> {
    let mut addresses = found.map_err(|error| format!("{host:?} cannot be resolved: {error}"))?;
    // vLLM binds and dials names over IPv4 only, so that is what a name means where it has both.
    addresses.sort_by_key(SocketAddr::is_ipv6);
    addresses.dedup();
    if addresses.is_empty() {
        return Err(format!("{host:?} has no address"));
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Condvar, Mutex};

    const PATIENCE: Duration = Duration::from_secs(5);

    /// A gate that hanging look-ups wait at.
    static GATE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

    fn scripted(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        match host {
            "hangs" => {
                let open = GATE.0.lock().unwrap();
                drop(GATE.1.wait_while(open, |open| !*open).unwrap());
                Err(io::Error::other("gave up"))
            }
            "nowhere" => Ok(Vec::new()),
            _ => Ok(vec![SocketAddr::new([0u16; 8].into(), port), SocketAddr::from(([10, 0, 0, 1], port))]),
        }
    }

    fn resolver() -> (Resolver, Receiver<()>) {
        let (answered, answers) = unbounded();
        let notify: Notify = Arc::new(move || answered.send(()).unwrap_or(()));
        (Resolver::with_lookup(notify, scripted), answers)
    }

    #[test]
    fn names_are_answered_while_others_hang_and_nobody_waits_for_those() {
        let (mut resolver, answers) = resolver();
        for _ in 1..MAX_WORKERS {
            resolver.ask("hangs", 1).unwrap();
        }
        let ticket = resolver.ask("fine", 7).unwrap();
        answers.recv_timeout(PATIENCE).unwrap();
        let answer = resolver.next_answer().unwrap();
        assert_eq!(answer.ticket, ticket);
        let addresses = answer.outcome.unwrap();
        assert_eq!(addresses.len(), 2);
        assert!(addresses[0].is_ipv4(), "IPv4 goes first: {addresses:?}");

        assert_eq!(resolver.workers, MAX_WORKERS);
        drop(resolver);
        *GATE.0.lock().unwrap() = true;
        GATE.1.notify_all();
    }

    #[test]
    fn a_name_without_addresses_is_an_error_that_names_it() {
        let (mut resolver, answers) = resolver();
        resolver.ask("nowhere", 7).unwrap();
        answers.recv_timeout(PATIENCE).unwrap();
        let error = resolver.next_answer().unwrap().outcome.unwrap_err();
        assert!(error.contains("nowhere"), "{error}");
    }

    #[test]
    fn one_worker_serves_names_that_come_one_after_another() {
        let (mut resolver, answers) = resolver();
        for _ in 0..10 {
            resolver.ask("fine", 7).unwrap();
            answers.recv_timeout(PATIENCE).unwrap();
            assert!(resolver.next_answer().is_some());
        }
        assert_eq!(resolver.workers, 1);
    }

    #[test]
    fn localhost_is_resolved_within_the_limit() {
        assert!(!resolve_within("localhost", 80, PATIENCE).unwrap().is_empty());
        let error = resolve_within("no-such-host.invalid", 80, PATIENCE).unwrap_err();
        assert!(error.contains("no-such-host.invalid"), "{error}");
    }
}
