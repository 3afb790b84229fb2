//! The fork server: a small process that forks children of the launcher: first processes if possible ([`spare_init`]),
//! otherwise spares.
//!
//! A fork inherits all descriptors of its maker. The launcher has a dozen for each sandbox. With a thousand sandboxes,
//! closing inherited descriptors took each spare longer than all its other work. The fork server has two.
//!
//! - **Process:** one fork of the launcher, only if sandboxes have namespaces.
//! - **Started by:** the supervisor, after the preparation, and again when it is lost.
//! - **Rights:** it leaves the host's mounts, except process file systems. If it clones first processes, it enters the
//!   shared user namespace, and then has capabilities only there. Otherwise it keeps the launcher's rights, since its
//!   spares need them, and it has no filter. Only the launcher's requests reach it, and it runs no foreign code.
//! - **May:** clone, put its children into cgroups that the launcher has opened for it, take sandboxes' ids and map them.
//!   If it clones first processes, a filter allows it and them no other system calls than those of sandboxes and those
//!   that make one ([`seccomp::filter_of_fork_server`]).
//! - **Ends:** when the launcher closes its socket, kills it, or dies (`PR_SET_PDEATHSIG`). Its children are the
//!   launcher's and live on.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::Mode;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;

use super::base::faults;
use super::base::fork::{CLONE_PARENT, keep_descriptors};
use super::base::messages::{FromForkServer, ToForkServer};
use super::base::prepared::Prepared;
use super::base::shared_userns;
use super::first_process::Entry;
use super::spare::{self, spare_init};
use crate::cgroup::Ways;
use crate::own_limits::oom;
use crate::paths;
use crate::seccomp;
use crate::spec::Site;
use crate::steps::{attach, copy_of};
use crate::sys;
use crate::sys::clone::{Forked, exit_now, fork};
use crate::wire::{StepError, hung_up, receive_one, send, send_through_floods};

/// Layers for which a test may show the host's files instead.
const HOST_VISIBLE_LAYERS: [&str; 4] = ["user_namespace", "mount_namespace", "private_root", "private_proc"];

/// Runs the fork server. `socket` is connected to the launcher.
pub(super) fn run(prepared: &mut Prepared, socket: OwnedFd, of_first: bool, entry: Entry) -> ! {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // Its children inherit the score, and cannot lower it.
    oom::prefer_as_victim(paths::host(), oom::FIRST_PROCESS_SCORE);
    let Ok((socket, shared_userns)) = keep_descriptors(socket, prepared.shared_userns.as_ref()) else {
        exit_now(2)
    };
    // The old descriptor number is closed already.
    std::mem::forget(std::mem::replace(&mut prepared.shared_userns, shared_userns));
    if hung_up(&socket) {
        exit_now(0);
    }
    // A test may show the host's files instead of a layer.
    if !faults::any_skipped(&prepared.template, &HOST_VISIBLE_LAYERS)
        && (sys::misc::unshare(libc::CLONE_NEWNS).is_err() || unmount_host().is_err())
    {
        exit_now(2);
    }
    if of_first
        && let Some(namespace) = prepared.shared_userns.take()
        && (shared_userns::enter(prepared, &namespace).is_err() || filter_first_processes(prepared).is_err())
    {
        exit_now(2);
    }
    let cloned_into = prepared.groups.as_ref().is_some_and(|groups| groups.version() == "v2");
    loop {
        let (ToForkServer::Fork { host_id, ahead }, descriptors) = match receive_one(socket.as_fd()) {
            Ok(Some(received)) => received,
            // The machine has no open file left. This request gets an answer, and the next one may succeed.
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                let error = StepError::new("start a process", None, &error);
                if send(socket.as_fd(), &FromForkServer::Failed(error), &[]).is_err() {
                    break;
                }
                continue;
            }
            Ok(None) | Err(_) => break,
        };
        let mut descriptors = descriptors.into_iter();
        let Some(theirs) = descriptors.next() else { exit_now(2) };
        let devices = if of_first && prepared.host.root {
            descriptors.next()
        } else {
            None
        };
        let ways = Ways {
            folder: if cloned_into { descriptors.next() } else { None },
            tasks: descriptors.collect(),
        };
        let forked_process = if of_first {
            let forked_process =
                spare_init::clone_first_process(prepared, theirs, &ways, (devices, ahead), host_id, entry);
            // The kernel clears the death signal of a process that changes its id.
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            forked_process
        } else {
            let forked = faults::at(ahead.as_ref(), Site::Clone)
                .and_then(|()| fork(CLONE_PARENT, 0, ways.folder.as_ref().map(AsFd::as_fd)));
            match forked {
                Ok(Forked::Child) => spare::run(prepared, theirs, &ways, host_id, entry),
                Ok(Forked::Parent { pid, pidfd }) => Ok((pid, pidfd)),
                Err(error) => Err(StepError::new("start a process", None, &error)),
            }
        };
        let sent = match forked_process {
            Ok((pid, pidfd)) => send_through_floods(socket.as_fd(), &FromForkServer::Forked { pid }, &[pidfd.as_fd()]),
            Err(error) => send(socket.as_fd(), &FromForkServer::Failed(error), &[]),
        };
        if sent.is_err() {
            break;
        }
    }
    exit_now(0)
}

/// Installs the part of the system-call filter that all first processes inherit, so that the kernel compiles it once.
fn filter_first_processes(prepared: &mut Prepared) -> io::Result<()> {
    if faults::skipped(&prepared.template, "seccomp") {
        return Ok(());
    }
    sys::misc::install_filter(&seccomp::filter_of_fork_server())?;
    let _for_all = seccomp::filter_of_first_process(prepared.host.memory_is_charged);
    prepared.host.first_is_filtered = true;
    Ok(())
}

/// Removes the host's files from this process's mount namespace, except `/proc`. The kernel copies every mount here for
/// each sandbox, and removes the copies afterwards. In a user namespace, the kernel allows a new process file system
/// only if an existing one is fully visible, so every full one stays.
fn unmount_host() -> io::Result<()> {
    let host = paths::host();
    let table = std::fs::read(format!("{host}/proc/self/mountinfo"))?;
    let table = String::from_utf8_lossy(&table);
    let proc = format!("{host}/proc");
    let others = process_file_systems(&table).filter(|path| *path != proc && path.starts_with(host));
    let mut kept = vec![copy_of(&proc)?];
    kept.extend(others.filter_map(|path| copy_of(path).ok()));
    unmount(host, UnmountFlags::DETACH)?;
    for (number, mount) in kept.iter().enumerate() {
        let path = if number == 0 {
            proc.clone()
        } else {
            format!("{proc}{number}")
        };
        rustix::fs::mkdir(path.as_str(), Mode::from_raw_mode(0o555))?;
        attach(mount, &path)?;
    }
    Ok(())
}

/// Returns the paths at which process file systems are mounted as a whole, from a mount table.
fn process_file_systems(table: &str) -> impl Iterator<Item = &str> {
    table.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, path) = (fields.next()?, fields.next()?);
        (kind.starts_with("proc ") && root == "/" && !path.contains('\\')).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_file_systems_are_found_whole() {
        let table = "22 1 0:5 / /host/dev rw - devtmpfs devtmpfs rw\n\
                     23 1 0:21 / /host/proc rw,nosuid shared:12 - proc proc rw\n\
                     24 23 0:21 /sys /host/proc/sys ro - proc proc rw\n\
                     25 1 0:30 / /host/a\\040b rw - proc proc rw\n\
                     26 1 0:31 / /host/mnt/proc rw - proc none rw\n";
        let found: Vec<_> = process_file_systems(table).collect();
        assert_eq!(found, ["/host/proc", "/host/mnt/proc"]);
    }
}
