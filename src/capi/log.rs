//! Where log messages go: nowhere, to stderr, or to a callback of the host.
//!
//! ```text
//!              p2p_log_init              p2p_log_set_callback(callback)
//! nowhere ───► stderr ◄────────────────────────────► callback
//!    ▲                                                  │
//!    └───────────── p2p_log_set_callback(NULL) ─────────┘
//! ```
//!
//! The sink is behind an `Arc`: a message takes a hold on it, lets go of the lock, then writes. What is said with a lock
//! of a tier held is written once that is released ([`once_unlocked`]). So a callback may call anything, and the last
//! message to let go of a replaced callback drops it, after its last call.

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use log::{Level, LevelFilter, Log, Metadata, Record};

use super::config::{Environment, env_text};
use super::enums::p2p_log_level;
use super::guard::{self, Failure};
use super::last_error::c_text;
use super::status::p2p_status;
use crate::host::{ForkLock, returning, write_stderr};
use crate::tier::{holds_lock, once_unlocked};

type LogCallback = unsafe extern "C-unwind" fn(
    user_data: *mut c_void,
    level: u32,
    target: *const c_char,
    message: *const c_char,
);
type DropCallback = unsafe extern "C-unwind" fn(user_data: *mut c_void);

/// Sends log messages to stderr, a line each.
///
/// Nothing is logged before this or `p2p_log_set_callback` is called; the later of them wins. The environment variable
/// P2PKV_LOG decides how much: off, error, warn, info, debug, trace, or targets with levels as in
/// "warn,p2pkv::tier=debug". `level` is used where it is not set.
///
/// Parameters:
/// - `level`: a `p2p_log_level`.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: `level` or P2PKV_LOG is malformed; the message names it.
/// - P2P_STATUS_UNSUPPORTED: linked into a Rust program that has its own logger, which gets the messages then.
/// - P2P_STATUS_PANIC: a bug in the library.
///
/// Threads: any, at any time. Reads the environment, so not while another thread changes it.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub extern "C" fn p2p_log_init(level: u32) -> p2p_status {
    guard::run("p2p_log_init", || {
        let level = p2p_log_level::try_from(level)?;
        let filter = filter_text(level.into(), &|variable| std::env::var_os(variable))?;
        install()?;
        Dispatcher::replace(Some(Arc::new(Sink::stderr(&filter))));
        Ok(p2p_status::OK)
    })
}

/// Sends log messages to a callback.
///
/// The callback is made on whichever thread has something to say, with no lock of the library held, maybe on several
/// at a time. It may call the library, this function included, but not `p2p_tier_free`; what is logged meanwhile on
/// its own thread is not reported. It must return, see the top, and should be quick.
///
/// Parameters:
/// - `level`: a `p2p_log_level`: messages beyond it are not reported.
/// - `callback`: gets `user_data`, the message's `p2p_log_level`, the part of the library that speaks, and the message;
///   both texts are NUL-terminated UTF-8, borrowed for the callback. NULL: messages go nowhere from now on, and the other
///   two parameters are not used.
/// - `user_data`: handed to `callback`; borrowed until `drop` is called, usable from any thread. On error it stays
///   yours.
/// - `drop`: called exactly once, after the last call of `callback` has returned, when it has been replaced or cleared.
///   NULL is fine. Never called on error.
///
/// Returns:
/// - P2P_STATUS_OK
/// - P2P_STATUS_INVALID_ARGUMENT: `level` is not one.
/// - P2P_STATUS_UNSUPPORTED: linked into a Rust program that has its own logger, which gets the messages then.
/// - P2P_STATUS_PANIC: a bug in the library.
///
/// Threads: any, at any time.
/// Since: 0.1.0
#[unsafe(no_mangle)]
pub unsafe extern "C" fn p2p_log_set_callback(
    level: u32,
    callback: Option<
        unsafe extern "C-unwind" fn(
            user_data: *mut c_void,
            level: u32,
            target: *const c_char,
            message: *const c_char,
        ),
    >,
    user_data: *mut c_void,
    drop: Option<unsafe extern "C-unwind" fn(user_data: *mut c_void)>,
) -> p2p_status {
    guard::run("p2p_log_set_callback", || {
        let level = p2p_log_level::try_from(level)?;
        install()?;
        let sink = callback.map(|callback| {
            Arc::new(Sink::Callback(Callback { level: level.into(), callback, user_data, drop }))
        });
        Dispatcher::replace(sink);
        Ok(p2p_status::OK)
    })
}

/// What decides what goes to stderr.
fn filter_text(level: LevelFilter, environment: Environment<'_>) -> Result<String, Failure> {
    let Some(filter) = env_text(environment, "P2PKV_LOG")? else {
        return Ok(level.as_str().to_owned());
    };
    let is_level = |text: &str| text.parse::<LevelFilter>().is_ok();
    // A lone word that is no level would silence everything but a target of that name: a typing error, unless ours.
    let is_directive = |text: &str| match text.split_once('=') {
        Some((target, level)) => !target.trim().is_empty() && is_level(level.trim()),
        None => is_level(text) || text == "p2pkv" || text.starts_with("p2pkv::"),
    };
    let directives = filter.split('/').next().unwrap_or_default();
    if let Some(wrong) =
        directives.split(',').map(str::trim).find(|text| !text.is_empty() && !is_directive(text))
    {
        return Err(Failure::invalid(format!(
            "the environment variable P2PKV_LOG is {filter:?}: {wrong:?} is not off, error, warn, info, debug or \
             trace, and not target=level"
        )));
    }
    Ok(filter)
}

/// Makes our dispatcher the process's logger (of this copy of the library), once.
fn install() -> Result<(), Failure> {
    static IS_OURS: AtomicBool = AtomicBool::new(false);
    // One at a time, and no fork in the middle of it.
    let _turn = SINK.lock();
    if IS_OURS.load(Ordering::Relaxed) || ::log::set_logger(&Dispatcher).is_ok() {
        IS_OURS.store(true, Ordering::Relaxed);
        return Ok(());
    }
    Err(Failure::new(
        p2p_status::UNSUPPORTED,
        "the program that libp2pkv is linked into has set a Rust logger of its own; configure that one",
    ))
}

static SINK: ForkLock<Option<Arc<Sink>>> = ForkLock::new(None);

struct Dispatcher;

impl Dispatcher {
    fn replace(sink: Option<Arc<Sink>>) {
        let mut current = SINK.lock();
        ::log::set_max_level(sink.as_ref().map_or(LevelFilter::Off, |sink| sink.max_level()));
        let replaced = std::mem::replace(&mut *current, sink);
        drop(current);
        // May call the host's `drop`, so only now that the lock is released.
        drop(replaced);
    }

    fn current() -> Option<Arc<Sink>> {
        SINK.lock().clone()
    }
}

impl Log for Dispatcher {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        Dispatcher::current().is_some_and(|sink| sink.enabled(metadata))
    }

    fn log(&self, record: &Record<'_>) {
        let Some(sink) = Dispatcher::current() else { return };
        if !holds_lock() {
            return sink.log(record);
        }
        if sink.enabled(record.metadata()) {
            let said = Said::new(record);
            once_unlocked(move || said.tell(&sink));
        }
    }

    fn flush(&self) {}
}

/// A message that has to wait for its moment.
struct Said {
    level: Level,
    target: String,
    message: String,
}

impl Said {
    fn new(record: &Record<'_>) -> Said {
        Said { level: record.level(), target: record.target().to_owned(), message: record.args().to_string() }
    }

    fn tell(&self, sink: &Sink) {
        let Said { level, target, message } = self;
        sink.log(&Record::builder().level(*level).target(target).args(format_args!("{message}")).build());
    }
}

enum Sink {
    Stderr(Box<env_logger::Logger>),
    Callback(Callback),
}

impl Sink {
    fn stderr(filter: &str) -> Sink {
        let mut builder = env_logger::Builder::new();
        Sink::Stderr(Box::new(builder.parse_filters(filter).build()))
    }

    fn max_level(&self) -> LevelFilter {
        match self {
            Sink::Stderr(logger) => logger.filter(),
            Sink::Callback(callback) => callback.level,
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        match self {
            Sink::Stderr(logger) => logger.enabled(metadata),
            Sink::Callback(callback) => metadata.level() <= callback.level && !IN_CALLBACK.get(),
        }
    }

    fn log(&self, record: &Record<'_>) {
        match self {
            Sink::Stderr(logger) if logger.matches(record) => write_stderr(line(record).as_bytes()),
            Sink::Stderr(_) => {}
            Sink::Callback(callback) => callback.log(record),
        }
    }
}

fn line(record: &Record<'_>) -> String {
    let pid = std::process::id();
    format!("p2pkv[{pid}] {:<5} {}: {}\n", record.level(), record.target(), record.args())
}

struct Callback {
    level: LevelFilter,
    callback: LogCallback,
    user_data: *mut c_void,
    drop: Option<DropCallback>,
}

// SAFETY: the header asks that `user_data` is usable from any thread.
unsafe impl Send for Callback {}
// SAFETY: as above; we only pass it on.
unsafe impl Sync for Callback {}

thread_local! {
    /// The callback is running on this thread: what it makes the library log must not come back to it, now or later.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

impl Callback {
    fn log(&self, record: &Record<'_>) {
        if record.level() > self.level || IN_CALLBACK.replace(true) {
            return;
        }
        let (target, message) = (c_text(record.target()), c_text(&record.args().to_string()));
        let level = p2p_log_level::from(record.level()) as u32;
        // SAFETY: the host's own function with its own data; the texts live until it returns.
        returning("the log callback", || unsafe {
            (self.callback)(self.user_data, level, target.as_ptr(), message.as_ptr());
        });
        IN_CALLBACK.set(false);
    }
}

impl Drop for Callback {
    fn drop(&mut self) {
        if let Some(drop) = self.drop {
            // SAFETY: the host's own function with its own data, once, and no call is running any more.
            returning("the log callback's `drop`", || unsafe { drop(self.user_data) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, OsString};
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// The logger is one for the process: these tests take turns.
    static TURN: Mutex<()> = Mutex::new(());

    #[derive(Default)]
    struct Host {
        calls: AtomicU32,
        drops: AtomicU32,
        heard: Mutex<Vec<(u32, String)>>,
    }

    fn host(user_data: *mut c_void) -> &'static Host {
        // SAFETY: the tests leak their hosts.
        unsafe { &*user_data.cast::<Host>() }
    }

    fn leak() -> (&'static Host, *mut c_void) {
        let host: &'static Host = Box::leak(Box::default());
        (host, (&raw const *host).cast_mut().cast())
    }

    unsafe extern "C-unwind" fn hear(
        user_data: *mut c_void,
        level: u32,
        target: *const c_char,
        message: *const c_char,
    ) {
        // SAFETY: NUL-terminated, alive during the call.
        let (target, message) = unsafe { (CStr::from_ptr(target), CStr::from_ptr(message)) };
        let host = host(user_data);
        host.calls.fetch_add(1, Ordering::SeqCst);
        assert_eq!(host.drops.load(Ordering::SeqCst), 0, "never called after drop");
        if target == c"capi_log_test" {
            host.heard.lock().unwrap().push((level, message.to_str().unwrap().to_owned()));
        }
    }

    unsafe extern "C-unwind" fn clear_myself(
        user_data: *mut c_void,
        _: u32,
        _: *const c_char,
        _: *const c_char,
    ) {
        let host = host(user_data);
        host.calls.fetch_add(1, Ordering::SeqCst);
        ::log::error!(target: "capi_log_test", "from inside");
        // SAFETY: clearing needs no pointers.
        assert_eq!(unsafe { p2p_log_set_callback(0, None, null_mut(), None) }, p2p_status::OK);
        assert_eq!(host.drops.load(Ordering::SeqCst), 0, "not dropped while it runs");
    }

    unsafe extern "C-unwind" fn count_drop(user_data: *mut c_void) {
        host(user_data).drops.fetch_add(1, Ordering::SeqCst);
        // Would hang if the lock were held.
        ::log::error!(target: "capi_log_test", "while dropping");
    }

    fn set(level: p2p_log_level, callback: LogCallback, user_data: *mut c_void) {
        // SAFETY: leaked user data.
        let status =
            unsafe { p2p_log_set_callback(level as u32, Some(callback), user_data, Some(count_drop)) };
        assert_eq!(status, p2p_status::OK);
    }

    #[test]
    fn a_callback_hears_its_levels_and_is_dropped_once_when_replaced() {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let ((first, first_data), (second, second_data)) = (leak(), leak());
        set(p2p_log_level::WARN, hear, first_data);
        ::log::warn!(target: "capi_log_test", "one {}", 1);
        ::log::info!(target: "capi_log_test", "two");
        set(p2p_log_level::INFO, hear, second_data);
        assert_eq!(first.drops.load(Ordering::SeqCst), 1);
        ::log::info!(target: "capi_log_test", "three");
        // SAFETY: clearing needs no pointers.
        assert_eq!(unsafe { p2p_log_set_callback(5, None, null_mut(), Some(count_drop)) }, p2p_status::OK);
        ::log::error!(target: "capi_log_test", "four");
        assert_eq!(*first.heard.lock().unwrap(), [(2, "one 1".to_owned())]);
        let second_heard = second.heard.lock().unwrap();
        assert!(second_heard.contains(&(3, "three".to_owned())), "{second_heard:?}");
        assert!(!second_heard.iter().any(|(_, message)| message == "four"));
        assert_eq!((first.drops.load(Ordering::SeqCst), second.drops.load(Ordering::SeqCst)), (1, 1));
    }

    #[test]
    fn a_callback_may_log_and_clear_itself() {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let (host, data) = leak();
        set(p2p_log_level::ERROR, clear_myself, data);
        ::log::error!(target: "capi_log_test", "go");
        assert_eq!((host.calls.load(Ordering::SeqCst), host.drops.load(Ordering::SeqCst)), (1, 1));
    }

    #[test]
    fn an_unknown_level_is_refused_and_nothing_is_taken() {
        let (host, data) = leak();
        // SAFETY: leaked user data.
        let status = unsafe { p2p_log_set_callback(6, Some(hear), data, Some(count_drop)) };
        assert_eq!((status, host.drops.load(Ordering::SeqCst)), (p2p_status::INVALID_ARGUMENT, 0));
        assert_eq!(p2p_log_init(6), p2p_status::INVALID_ARGUMENT);
    }

    #[test]
    fn p2pkv_log_takes_levels_and_targets_and_names_what_it_does_not() {
        let filter =
            |value: &'static str| filter_text(LevelFilter::Warn, &move |_| Some(OsString::from(value)));
        for good in ["debug", "OFF", "warn,p2pkv::tier=trace", "p2pkv", "info/peer", "p2pkv=debug , error"] {
            assert_eq!(filter(good).unwrap(), good);
        }
        assert_eq!(filter("").unwrap(), "WARN");
        for bad in ["inof", "warn,loud", "p2pkv=loud", "=warn", "5"] {
            let message = filter(bad).unwrap_err().message;
            assert!(message.contains("P2PKV_LOG") && message.contains(bad), "{message}");
        }
    }
}
