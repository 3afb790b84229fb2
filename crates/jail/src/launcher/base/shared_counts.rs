//! Counts that the kernel keeps for the owner of a user namespace, and so for all sandboxes together: inotify instances
//! and watches, queued signals, message queues, locked memory. All sandboxes of a launcher get half of a user's limit
//! on the host.
//!
//! The kernel charges the user inside, then the owner of the namespace, then the owner of the namespace above, and so
//! on. A namespace's table limits the watches of each of its users. For the other counts, a namespace charges its owner
//! up to the limit of the process that made it. So the namespace directly above the sandboxes' has a table, and
//! processes that make namespaces have half of the limits. The kernel enforces both without further checks.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Mode, OFlags};
use rustix::mount::MountAttrFlags;
use rustix::process::{Resource, getrlimit, setrlimit};

use super::fork::in_a_fork;
use crate::paths;
use crate::steps;
use crate::sys;

/// The tables of watches: the name in a namespace, and the name of the host's limit per user.
const WATCH_TABLES: [(&str, &str); 2] = [
    ("max_inotify_instances", "max_user_instances"),
    ("max_inotify_watches", "max_user_watches"),
];

/// Limits all users of this process's namespace together to half of the watches of one host user. Their watches are
/// charged to the namespace's owner, so this also limits users in namespaces below.
pub(in crate::launcher) fn bound_watches() -> io::Result<()> {
    let host = format!("{}/proc/sys/", paths::host());
    let mut bounds = Vec::new();
    for (name, of_host) in WATCH_TABLES {
        match std::fs::read_to_string(format!("{host}fs/inotify/{of_host}")) {
            Ok(text) => {
                let most: u32 = text.trim().parse().map_err(io::Error::other)?;
                bounds.push((name, (most / 2).to_string()));
            }
            // This kernel has no watches.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let found = rustix::fs::open(format!("{host}user"), flags, Mode::empty())?;
    write_bounds(found.as_fd(), &bounds).or_else(|_| {
        // A container's /proc is often read-only. The table is that of the writer's namespace, for any mounted /proc.
        in_a_fork(|| {
            sys::misc::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWPID)?;
            in_a_fork(|| {
                let own = steps::fresh("proc", &[], MountAttrFlags::MOUNT_ATTR_NOSUID)?;
                write_bounds(
                    rustix::fs::openat(&own, "sys/user", flags, Mode::empty())?.as_fd(),
                    &bounds,
                )
            })
        })
    })
}

fn write_bounds(folder: BorrowedFd<'_>, bounds: &[(&str, String)]) -> io::Result<()> {
    for (name, most) in bounds {
        let file = rustix::fs::openat(folder, *name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        if rustix::io::write(&file, most.as_bytes())? != most.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
    }
    Ok(())
}

/// Halves this process's soft limits of the counts that namespaces charge to their owner. This applies to namespaces
/// that it and its children make. The hard limits stay.
pub(in crate::launcher) fn keep_half() -> io::Result<()> {
    // The kernel compares pages of locked memory with this limit in bytes.
    let page = u64::try_from(crate::sys::misc::page_size()).unwrap_or(1);
    let parts = [
        (Resource::Sigpending, 2),
        (Resource::Msgqueue, 2),
        (Resource::Memlock, 2 * page),
    ];
    for (resource, part) in parts {
        let mut limit = getrlimit(resource);
        limit.current = limit.current.map(|most| most / part);
        setrlimit(resource, limit)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_each_limit_is_reserved() {
        // In a separate process, since other tests share the limits.
        in_a_fork(|| {
            let before = getrlimit(Resource::Sigpending);
            keep_half()?;
            let after = getrlimit(Resource::Sigpending);
            let halved = after.current == before.current.map(|most| most / 2) && after.maximum == before.maximum;
            if halved {
                Ok(())
            } else {
                Err(io::ErrorKind::Other.into())
            }
        })
        .unwrap();
    }
}
