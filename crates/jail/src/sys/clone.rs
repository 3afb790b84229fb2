//! Making processes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The arguments of clone3 as the kernel has had them since 5.7.
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Which process this is after a fork.
pub(crate) enum Forked {
    /// The new one.
    Child,
    /// The old one, with the new one's id and a descriptor that names it for good.
    Parent {
        /// The child's id as the caller sees it.
        pid: u32,
        /// Its descriptor.
        pidfd: OwnedFd,
    },
}

/// Forks with these clone flags (`CLONE_PIDFD` is added), into `cgroup` if one is given.
/// `exit_signal` is 0 with `CLONE_PARENT`, else `SIGCHLD`.
///
/// Only for single-threaded processes: the child goes on with a copy of the whole memory.
pub(crate) fn fork(flags: u64, exit_signal: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Forked> {
    const CLONE_PIDFD: u64 = 0x1000;
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    let mut pidfd: libc::c_int = -1;
    let mut args = CloneArgs {
        flags: flags | CLONE_PIDFD,
        pidfd: u64::try_from(std::ptr::addr_of_mut!(pidfd).addr()).map_err(io::Error::other)?,
        exit_signal,
        ..CloneArgs::default()
    };
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = u64::try_from(cgroup.as_raw_fd()).map_err(io::Error::other)?;
    }
    // The kernel writes through this address, so it must count as exposed.
    let _ = std::ptr::addr_of_mut!(pidfd).expose_provenance();
    // SAFETY: `args` is a valid clone_args of the size that is passed, it and `pidfd` outlive the call, and without
    // CLONE_VM or a new stack the child runs on its own copy of this one. The process has one thread, so no lock is
    // held by a thread that the child lacks.
    let pid = super::check(unsafe {
        libc::syscall(
            libc::SYS_clone3,
            std::ptr::addr_of_mut!(args),
            std::mem::size_of::<CloneArgs>(),
        )
    })?;
    if pid == 0 {
        return Ok(Forked::Child);
    }
    // SAFETY: the call succeeded in the parent, so the kernel has put a fresh descriptor there that nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Forked::Parent {
        pid: u32::try_from(pid).map_err(io::Error::other)?,
        pidfd,
    })
}

/// Ends this process at once, without running any destructor or exit handler of the copied program.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: _exit reads no memory and does not return.
    unsafe { libc::_exit(status) }
}
