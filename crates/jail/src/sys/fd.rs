//! Descriptors that a process was started with.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Takes ownership of a descriptor that this process was started with, by its number.
///
/// # Errors
/// The number is not an open descriptor.
pub fn adopt(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl reads no memory; a number that is not open gives EBADF.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and each caller takes a number that its parent handed over to it alone.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes every descriptor from `first` on.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: close_range reads no memory. Callers are fresh forks that own every descriptor and use none of the closed
    // ones.
    super::check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) }).map(drop)
}

/// Makes `number` refer to the same open file, and closes its old one. The copy stays open across exec.
pub(crate) fn duplicate_to(descriptor: std::os::fd::BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: dup2 reads no memory; the caller is a fresh fork in which nothing else owns `number`.
    super::check(libc::c_long::from(unsafe {
        libc::dup2(descriptor.as_raw_fd(), number)
    }))
    .map(drop)
}

/// Closes a descriptor that the copied stack still owns, in a process that never unwinds to the owner.
pub(crate) fn close_number(descriptor: &OwnedFd) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: close reads no memory; the process ends by _exit, so the owner's destructor never runs.
    super::check(libc::c_long::from(unsafe { libc::close(descriptor.as_raw_fd()) })).map(drop)
}
