//! Forks of the launcher's processes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::sys;
use crate::sys::clone::{Forked, exit_now, fork};

/// The signal that a process gets when its child ends, as an argument of [`fork`].
pub(in crate::launcher) const SIGCHLD: u64 = 17;
/// The clone flag of a child whose parent is the caller's parent.
pub(in crate::launcher) const CLONE_PARENT: u64 = 0x8000;

/// Runs `work` in a separate process. Its memory and namespaces end with it.
pub(in crate::launcher) fn in_a_fork(work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    match fork(0, SIGCHLD, None)? {
        Forked::Child => exit_now(
            work()
                .err()
                .map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO)),
        ),
        Forked::Parent { pidfd, .. } => {
            let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?;
            match status.and_then(|status| status.exit_status()) {
                Some(0) => Ok(()),
                Some(errno) => Err(io::Error::from_raw_os_error(errno)),
                None => Err(io::Error::from_raw_os_error(libc::ECHILD)),
            }
        }
    }
}

/// Closes every descriptor except the standard three and the given ones.
pub(in crate::launcher) fn keep_descriptors(
    socket: OwnedFd,
    other: Option<&OwnedFd>,
) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    const SOCKET_FD: i32 = 3;
    const OTHER_FD: i32 = 4;
    const MIN_TEMPORARY_FD: i32 = 16;
    // A number above both targets, so that neither overwrites the other.
    let other = other
        .map(|other| rustix::io::fcntl_dupfd_cloexec(other, MIN_TEMPORARY_FD))
        .transpose()?;
    if std::os::fd::AsRawFd::as_raw_fd(&socket) != SOCKET_FD {
        sys::fd::duplicate_to(socket.as_fd(), SOCKET_FD)?;
    }
    if let Some(other) = &other {
        sys::fd::duplicate_to(other.as_fd(), OTHER_FD)?;
    }
    // This is a fresh fork: it needs no other descriptor of the launcher, and their owners never run again.
    std::mem::forget(socket);
    let kept = other.as_ref().map(|_| OTHER_FD);
    std::mem::forget(other);
    sys::fd::close_from(if kept.is_some() { 5 } else { 4 })?;
    Ok((sys::fd::adopt(SOCKET_FD)?, kept.map(sys::fd::adopt).transpose()?))
}
