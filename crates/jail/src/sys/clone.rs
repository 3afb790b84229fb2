//! Creation of processes.

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

/// The side of a fork that this process is on.
pub(crate) enum Forked {
    /// The new process.
    Child,
    /// The old process, with the id and the pidfd of the new one.
    Parent {
        /// The child's id in the caller's PID namespace.
        pid: u32,
        /// Its pidfd.
        pidfd: OwnedFd,
    },
}

/// Forks with these clone flags (`CLONE_PIDFD` is added), into `cgroup` if given. `exit_signal` is 0 with
/// `CLONE_PARENT`, else `SIGCHLD`.
///
/// Only for single-threaded processes: the child continues with a copy of the whole memory.
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
    let made = super::check(unsafe {
        libc::syscall(
            libc::SYS_clone3,
            std::ptr::addr_of_mut!(args),
            std::mem::size_of::<CloneArgs>(),
        )
    });
    let pid = match made {
        // The seccomp filters of older container managers do not know clone3.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            let pid = clone_with(args.flags, exit_signal, std::ptr::addr_of_mut!(pidfd))?;
            if pid == 0 && complete(flags, cgroup).is_err() {
                exit_now(1);
            }
            pid
        }
        made => made?,
    };
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

/// Makes the older clone call. Its flags have no room for the cgroup and the time namespace.
fn clone_with(flags: u64, exit_signal: u64, pidfd: *mut libc::c_int) -> io::Result<libc::c_long> {
    const LEGACY_CLONE_FLAGS: u64 = 0xFFFF_FF00;
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the kernel writes nothing but `pidfd`, which outlives the call; the last two arguments, whose order
    // depends on the architecture, are both null. Without CLONE_VM or a new stack the child runs on its own copy of
    // this one.
    super::check(unsafe {
        libc::syscall(
            libc::SYS_clone,
            (flags & LEGACY_CLONE_FLAGS) | exit_signal,
            nothing,
            pidfd,
            nothing,
            nothing,
        )
    })
}

/// Does the rest of [`clone_with`] in the child. The new time namespace applies only to the child's children.
fn complete(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<()> {
    const CLONE_NEWTIME: u64 = 0x80;
    if let Some(cgroup) = cgroup {
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
        let members = rustix::fs::openat(cgroup, "cgroup.procs", flags, rustix::fs::Mode::empty())?;
        rustix::io::write(&members, b"0")?;
    }
    if flags & CLONE_NEWTIME != 0 {
        super::misc::unshare(libc::c_int::try_from(CLONE_NEWTIME).map_err(io::Error::other)?)?;
    }
    Ok(())
}

/// Exits at once, without running destructors or exit handlers of the copied program.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: _exit reads no memory and does not return.
    unsafe { libc::_exit(status) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    #[test]
    fn clone_without_clone3_also_returns_a_descriptor() {
        const SIGCHLD: u64 = 17;
        const CLONE_PIDFD: u64 = 0x1000;
        let mut pidfd: libc::c_int = -1;
        let pid = clone_with(CLONE_PIDFD, SIGCHLD, std::ptr::addr_of_mut!(pidfd)).unwrap();
        if pid == 0 {
            exit_now(i32::from(complete(0, None).is_err()));
        }
        let child = super::super::fd::adopt(pidfd).unwrap();
        let status = waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED).unwrap();
        assert_eq!(status.unwrap().exit_status(), Some(0));
    }
}
