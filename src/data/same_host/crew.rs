//! A second pair of hands for large copies: one thread alone cannot fill the memory's bandwidth.
//!
//! The I/O thread puts a job up, takes its own share piece by piece, and returns when nothing of it is unfinished; the
//! helper takes what it gets to. So nothing is lost where the helper comes late or there is none, and when a copy has
//! returned nobody touches its memory any more.

use std::io;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};

use super::{Copier, Piece};
use crate::host::{current_cpu, spawn_without_signals};

/// Less is done sooner than a helper wakes.
const LEAST_SHARED: usize = 1 << 20;
/// How often the helper looks for the next job before it sleeps: the next pull of the same load comes at once.
const LOOKS: usize = 500;

/// The thread is started by the first copy that is worth it.
#[derive(Default)]
pub(in crate::data) struct Crew {
    helper: Helper,
}

#[derive(Default)]
enum Helper {
    #[default]
    NotYet,
    /// There is one CPU only, or no thread to be had.
    Never,
    Ready {
        jobs: Sender<Arc<Job>>,
        thread: JoinHandle<()>,
        place: Place,
    },
}

/// Where the helper may run. The system wakes a thread behind the one that woke it where no CPU is idle at that moment, and
/// may leave it there for as long as that one copies (measured: 150 to 400 µs late, against 15). So the helper is kept off
/// the I/O thread's CPU.
#[derive(Default)]
struct Place {
    /// The helper, once it has said so.
    helper: Arc<OnceLock<Pid>>,
    avoids: Option<usize>,
}

impl Place {
    /// The other CPUs are those that the I/O thread itself may run on. If there are none, the helper stays where it is.
    fn avoid(&mut self, cpu: usize) {
        let is_news = self.avoids != Some(cpu) && cpu < CpuSet::MAX_CPU;
        let Some(helper) = self.helper.get().filter(|_| is_news) else { return };
        self.avoids = Some(cpu);
        let Ok(mut others) = sched_getaffinity(None) else { return };
        others.unset(cpu);
        if others.count() > 0
            && let Err(error) = sched_setaffinity(Some(*helper), &others)
        {
            log::debug!("same host: the copying thread stays where it is: {error}");
        }
    }
}

struct Job {
    copier: Copier,
    pieces: Vec<Piece>,
    /// Pieces that are taken at a time.
    stride: usize,
    next: AtomicUsize,
    unfinished: AtomicUsize,
    /// What the system said to the first copy that failed; 0 = none did.
    errno: AtomicI32,
}

// SAFETY: the addresses in it are used only by copies that the I/O thread waits for, and it has made sure of them.
unsafe impl Send for Job {}
// SAFETY: as above; no two threads take the same piece.
unsafe impl Sync for Job {}

impl Crew {
    /// Copies all pieces. The caller has checked both sides of each.
    pub(super) fn copy(&mut self, copier: Copier, pieces: Vec<Piece>, bytes: usize) -> io::Result<()> {
        let Some(jobs) = self.helper_for(bytes) else { return copier.copy(&pieces) };
        let longest = pieces.first().map_or(1, |piece| piece.len.max(1));
        let job = Arc::new(Job {
            copier,
            stride: (copier.stride() / longest).max(1),
            next: AtomicUsize::new(0),
            unfinished: AtomicUsize::new(pieces.len()),
            errno: AtomicI32::new(0),
            pieces,
        });
        // Not taken where the helper has not come to the last one yet; then all is done here.
        let _ = jobs.try_send(Arc::clone(&job));
        job.work();
        job.wait();
        match job.errno.load(Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    fn helper_for(&mut self, bytes: usize) -> Option<&Sender<Arc<Job>>> {
        if bytes < LEAST_SHARED {
            return None;
        }
        if matches!(self.helper, Helper::NotYet) {
            self.helper = Helper::start();
        }
        match &mut self.helper {
            Helper::Ready { jobs, place, .. } => {
                if let Some(cpu) = current_cpu() {
                    place.avoid(cpu);
                }
                Some(jobs)
            }
            Helper::NotYet | Helper::Never => None,
        }
    }
}

impl Helper {
    fn start() -> Helper {
        if std::thread::available_parallelism().map_or(1, std::num::NonZero::get) < 2 {
            return Helper::Never;
        }
        let (jobs, queue) = crossbeam_channel::bounded(1);
        let place = Place::default();
        let helper = Arc::clone(&place.helper);
        let life = move || {
            let _ = helper.set(gettid());
            help(&queue);
        };
        match spawn_without_signals("p2pkv-copy", life) {
            Ok(thread) => Helper::Ready { jobs, thread, place },
            Err(error) => {
                log::warn!("same host: no second thread to copy with: {error}");
                Helper::Never
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        if let Helper::Ready { jobs, thread, .. } = std::mem::take(&mut self.helper) {
            drop(jobs);
            if thread.join().is_err() {
                log::error!("same host: the copying thread panicked");
            }
        }
    }
}

fn help(queue: &Receiver<Arc<Job>>) {
    while let Some(job) = next_job(queue) {
        job.work();
    }
}

fn next_job(queue: &Receiver<Arc<Job>>) -> Option<Arc<Job>> {
    for _ in 0..LOOKS {
        match queue.try_recv() {
            Ok(job) => return Some(job),
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
            Err(TryRecvError::Disconnected) => return None,
        }
    }
    queue.recv().ok()
}

impl Job {
    /// Copies what nobody has taken yet.
    fn work(&self) {
        loop {
            let first = self.next.fetch_add(self.stride, Ordering::Relaxed);
            let last = first.saturating_add(self.stride).min(self.pieces.len());
            let Some(taken) = self.pieces.get(first..last).filter(|taken| !taken.is_empty()) else { return };
            if let Err(error) = self.copier.copy(taken) {
                self.errno.store(error.raw_os_error().unwrap_or(libc::EIO), Ordering::Relaxed);
            }
            self.unfinished.fetch_sub(taken.len(), Ordering::Release);
        }
    }

    /// Until the helper is done with what it has taken: one stride at most.
    fn wait(&self) {
        let mut looks = 0_u32;
        while self.unfinished.load(Ordering::Acquire) > 0 {
            looks = looks.saturating_add(1);
            if looks < 10_000 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}
