//! NIXL's C library, loaded once for the process.
//!
//! The bindings look it up by its soname at the first call and abort the process if it is not there. So it is loaded
//! here first, by a path that was searched for, and every function that will be called is looked up in it.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::search::{self, LIBRARY};
use crate::host::ForkLock;

/// Every function of the library that [`super::agent`] comes to call.
const FUNCTIONS: [&CStr; 30] = [
    c"nixl_capi_check_remote_md",
    c"nixl_capi_create_backend",
    c"nixl_capi_create_configured_agent",
    c"nixl_capi_create_notif_map",
    c"nixl_capi_create_opt_args",
    c"nixl_capi_create_params",
    c"nixl_capi_create_reg_dlist",
    c"nixl_capi_create_xfer_dlist",
    c"nixl_capi_create_xfer_req",
    c"nixl_capi_deregister_mem",
    c"nixl_capi_destroy_agent",
    c"nixl_capi_destroy_backend",
    c"nixl_capi_destroy_notif_map",
    c"nixl_capi_destroy_opt_args",
    c"nixl_capi_destroy_params",
    c"nixl_capi_destroy_reg_dlist",
    c"nixl_capi_destroy_xfer_dlist",
    c"nixl_capi_destroy_xfer_req",
    c"nixl_capi_get_local_md",
    c"nixl_capi_get_notifs",
    c"nixl_capi_get_xfer_status",
    c"nixl_capi_invalidate_remote_md",
    c"nixl_capi_load_remote_md",
    c"nixl_capi_notif_map_size",
    c"nixl_capi_params_add",
    c"nixl_capi_post_xfer_req",
    c"nixl_capi_reg_dlist_add_desc",
    c"nixl_capi_reg_dlist_clear",
    c"nixl_capi_register_mem",
    c"nixl_capi_release_xfer_req",
];

/// And those that describe a transfer.
const DESCRIPTOR_FUNCTIONS: [&CStr; 2] = [c"nixl_capi_xfer_dlist_add_desc", c"nixl_capi_xfer_dlist_clear"];

/// Proof that the library is loaded and complete: without one there is no agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Library {
    _loaded: (),
}

/// Loads the library, once, and says which file it is. Or gives the places that were tried, each with what was wrong.
pub(super) fn load() -> Result<(Library, PathBuf), String> {
    static LOADING: ForkLock<Loading> = ForkLock::new(Loading::NotLoaded);
    let this_process = std::process::id();
    loop {
        let mut loading = LOADING.lock();
        match &*loading {
            Loading::Loaded(path) => return Ok((Library { _loaded: () }, path.clone())),
            Loading::By(process) if *process != this_process => {
                return Err(format!(
                    "NIXL was being loaded when this process was forked from process {process}"
                ));
            }
            Loading::By(_) => {}
            Loading::NotLoaded => {
                *loading = Loading::By(this_process);
                break;
            }
        }
        drop(loading);
        thread::park_timeout(LOOK_AGAIN);
    }
    let program = std::env::args_os().next().map(PathBuf::from);
    let opened = open_first(&search::candidates(&environment, program.as_deref()));
    let mut loading = LOADING.lock();
    match opened {
        Ok(path) => {
            // UCX itself is loaded later, with its plug-in. With the lock held: a fork may not come in the middle of a
            // change of the environment.
            prepare_environment_of_ucx();
            prepare_plugin_directory(&path);
            *loading = Loading::Loaded(path.clone());
            Ok((Library { _loaded: () }, path))
        }
        Err(why) => {
            *loading = Loading::NotLoaded;
            Err(why)
        }
    }
}

/// How far loading has come in this process. The library's constructors run without the lock held.
///
/// ```text
/// NotLoaded ──► By(process) ──► Loaded
///     ▲              │
///     └── not found ─┘
/// ```
enum Loading {
    NotLoaded,
    /// A thread of this process is at it.
    By(u32),
    Loaded(PathBuf),
}

/// While another thread loads.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

fn open_first(candidates: &[PathBuf]) -> Result<PathBuf, String> {
    let mut tried = Vec::new();
    for candidate in candidates {
        match open(candidate) {
            Ok(path) => return Ok(path),
            Err(why) => tried.push(format!("{}: {why}", candidate.display())),
        }
    }
    Err(format!(
        "NIXL's {LIBRARY} cannot be used (install it with pip install nixl-cu12, or name its directory in {}); tried {}",
        search::DIRECTORY_VARIABLE,
        tried.join("; ")
    ))
}

/// Loads one candidate for the rest of the process's life, and says which file it is.
fn open(candidate: &Path) -> Result<PathBuf, String> {
    let name = CString::new(candidate.as_os_str().as_bytes()).map_err(|_| "a NUL in the path".to_owned())?;
    // NODELETE: threads, thread-local destructors and signal-time code of UCX must never lose their text.
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
    // SAFETY: `name` ends with a NUL. Loading runs the constructors of the library that the user has installed.
    let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
    if handle.is_null() {
        return Err(loader_error());
    }
    let mut path = candidate.to_path_buf();
    for function in FUNCTIONS.iter().chain(&DESCRIPTOR_FUNCTIONS) {
        // SAFETY: the handle is that of a loaded library, the name ends with a NUL; nothing is called.
        let address = unsafe { libc::dlsym(handle, function.as_ptr()) };
        if address.is_null() {
            return Err(format!("it has no {}, expected NIXL 1.5 or newer", function.to_string_lossy()));
        }
        if let Some(file) = file_of(address) {
            path = file;
        }
    }
    check_soname(&path)?;
    Ok(path)
}

/// The bindings ask for the soname; they must get this very library.
fn check_soname(path: &Path) -> Result<(), String> {
    let soname = CString::new(LIBRARY).map_err(|error| error.to_string())?;
    // SAFETY: as in `open`. NOLOAD: only finds what is loaded already.
    let handle = unsafe { libc::dlopen(soname.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return Err(format!("{} does not call itself {LIBRARY}", path.display()));
    }
    Ok(())
}

fn loader_error() -> String {
    // SAFETY: takes nothing; the text is this thread's until its next call to the loader, and copied before.
    let text = unsafe {
        let text = libc::dlerror();
        if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy().into_owned()) }
    };
    text.unwrap_or_else(|| "the loader gives no reason".to_owned())
}

/// Which file a loaded function is from.
fn file_of(address: *mut libc::c_void) -> Option<PathBuf> {
    // SAFETY: `info` is plain data, written by the call; the name it points to lives as long as the library, which is
    // never unloaded.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let known = libc::dladdr(address, &raw mut info) != 0 && !info.dli_fname.is_null();
        known.then(|| PathBuf::from(OsStr::from_bytes(CStr::from_ptr(info.dli_fname).to_bytes())))
    }
}

/// UCX takes over the host's signal handlers while it is being loaded, unless its environment says otherwise; there is no
/// other way to tell it. Its registration cache is bounded as vLLM does it.
fn prepare_environment_of_ucx() {
    set_unless_set("UCX_HANDLE_ERRORS", OsStr::new("none"));
    set_unless_set("UCX_DEBUG_SIGNO", OsStr::new("0"));
    set_unless_set("UCX_RCACHE_MAX_UNRELEASED", OsStr::new("1024"));
}

/// A wheel keeps its plug-ins where its Python package says, not where the library would look.
fn prepare_plugin_directory(library: &Path) {
    let Some(plugins) = library.parent().map(|directory| directory.join("plugins")) else { return };
    if plugins.is_dir() {
        set_unless_set("NIXL_PLUGIN_DIR", plugins.as_os_str());
    }
}

/// What the environment gives a variable.
pub(super) fn environment(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn set_unless_set(name: &str, value: &OsStr) {
    if std::env::var_os(name).is_some() {
        return;
    }
    // SAFETY: a change of the environment races with other threads that read it by bare getenv. It is made once in the
    // process's life, inside the engine's first call of p2p_tier_new and before NIXL has threads; an engine that needs
    // none at all sets the variables itself, as the documentation says.
    unsafe { std::env::set_var(name, value) };
}
