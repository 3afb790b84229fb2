//! Counts that the kernel keeps for the owner of a user namespace, and with it for all sandboxes together: inotify instances and
//! watches, queued signals, message queues, locked memory. All sandboxes of a launcher have half of what the host allows one user.
//!
//! The kernel charges the user inside, then the owner of the namespace, then the owner of the one above, and so on. A namespace's
//! own table says how many watches each of its users may have. Of the other counts a namespace passes on to its owner as many
//! as the limit of the process that made it. So the namespace right above those of the sandboxes has a table, and whoever
//! makes namespaces has half of its limits. Nothing here is looked at again: the kernel holds it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Mode, OFlags};
use rustix::mount::MountAttrFlags;
use rustix::process::{Resource, getrlimit, setrlimit};

use super::host::in_a_fork;
use crate::plan::place;
use crate::steps;
use crate::sys;

/// The tables of watches: the name in a namespace, and that of the host's limit for each user.
const WATCHES: [(&str, &str); 2] = [
    ("max_inotify_instances", "max_user_instances"),
    ("max_inotify_watches", "max_user_watches"),
];

/// Gives all users of this process' namespace together no more than half of the watches of one user of the host. As they are charged
/// to the namespace's owner, that bounds them from below as well.
pub(super) fn bound_watches() -> io::Result<()> {
    let host = format!("{}/proc/sys/", place::host());
    let mut bounds = Vec::new();
    for (name, of_host) in WATCHES {
        match std::fs::read_to_string(format!("{host}fs/inotify/{of_host}")) {
            Ok(text) => {
                let most: u32 = text.trim().parse().map_err(io::Error::other)?;
                bounds.push((name, (most / 2).to_string()));
            }
            // A kernel without watches.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let found = rustix::fs::open(format!("{host}user"), flags, Mode::empty())?;
    write_bounds(found.as_fd(), &bounds).or_else(|_| {
        // A container's is often read-only. The table is the writer's namespace's, whichever process file system shows it.
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

/// Halves this process' limits of what namespaces pass on to their owner: those that it and its children make pass on no more.
/// The hard limits stay.
pub(super) fn keep_half() -> io::Result<()> {
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
    fn half_of_each_limit_is_kept() {
        // In a process of its own: other tests have the same limits.
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
