//! Errors of the operating system in the library's words.

use rustix::io::Errno;

use crate::protocol::error::{Error, ErrorKind};

/// An error of the operating system, with what was being done.
pub fn os_error(doing: &str, error: Errno) -> Error {
    io_error(doing, &error.into())
}

pub fn io_error(doing: &str, error: &std::io::Error) -> Error {
    let kind = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOSPC) => ErrorKind::OutOfResources,
        Some(Errno::PERM | Errno::ACCESS) => ErrorKind::PermissionDenied,
        _ => ErrorKind::Os,
    };
    Error::new(kind, format!("{doing}: {error}"))
}
