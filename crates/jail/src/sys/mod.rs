//! The system calls that have no safe wrapper elsewhere. All of the project's unsafe code is here.
#![expect(unsafe_code, reason = "this is the one place for it")]

pub(crate) mod clone;
pub(crate) mod fd;
pub(crate) mod heap;
pub(crate) mod misc;
pub(crate) mod mount;
pub(crate) mod signalfd;
pub(crate) mod spawn;

use std::io;

/// Converts the result of a raw system call. A negative result means that `errno` has the error.
fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
