//! The shared user namespace, above the user namespaces of all sandboxes. No sandbox's code runs in it: only the fork
//! server, while it clones first processes, and zygotes.
//!
//! Power over a user namespace comes from its parent namespace. A zygote has limited power in the shared namespace, and
//! so none over the launcher or the host.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::process::{DumpableBehavior, Gid, Uid, set_dumpable_behavior};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::fork::SIGCHLD;
use super::host_ids::{HOST_IDS, IDS_PER_LAUNCHER};
use super::namespace_layers::NAMESPACE_LAYERS;
use super::prepared::Prepared;
use super::shared_counts;
use crate::kernel_files::write_once;
use crate::paths;
use crate::spec::INSIDE_ID;
use crate::sys::clone::{Forked, exit_now, fork};
use crate::wire::{StepError, pair, readable, receive_one, send};

/// Makes a user namespace with these id maps.
pub(in crate::launcher) fn make_userns(users: &str, groups: &str) -> io::Result<OwnedFd> {
    let (user_flag, _) = NAMESPACE_LAYERS[0];
    let maker = rustix::process::getpid();
    match fork(user_flag, SIGCHLD, None)? {
        Forked::Child => loop {
            // The child holds the namespace for a moment. It dies with its maker.
            let bound = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
            if bound.is_err() || rustix::process::getppid() != Some(maker) {
                exit_now(1);
            }
            let _ = rustix::thread::nanosleep(&rustix::thread::Timespec {
                tv_sec: 3600,
                tv_nsec: 0,
            });
        },
        Forked::Parent { pid, pidfd } => {
            let proc = format!("{}/proc/{pid}", paths::host());
            let result = write_once(&format!("{proc}/uid_map"), users)
                .and_then(|()| write_once(&format!("{proc}/gid_map"), groups))
                .and_then(|()| {
                    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
                    Ok(rustix::fs::open(
                        format!("{proc}/ns/user"),
                        flags,
                        rustix::fs::Mode::empty(),
                    )?)
                });
            rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL)?;
            rustix::process::waitid(
                rustix::process::WaitId::PidFd(pidfd.as_fd()),
                rustix::process::WaitIdOptions::EXITED,
            )?;
            result
        }
    }
}

/// The owner of the shared namespace as root: an id that no process has, so only sandboxes are charged to the owner.
const NAMESPACE_OWNER_ID: u32 = HOST_IDS.0 - 1;

/// Makes the shared namespace. As root it maps the ids of this launcher's block, else the id of the server's user.
pub(in crate::launcher) fn make(prepared: &Prepared, first_id: u32) -> io::Result<OwnedFd> {
    if prepared.host.root {
        return make_below_limit(prepared, &format!("{first_id} {first_id} {IDS_PER_LAUNCHER}"));
    }
    let only = |id: u32| format!("{id} {id} 1");
    make_userns(&only(prepared.ids.0), &only(prepared.ids.1))
}

/// As root the launcher is in the host's user namespace, where usage is charged to root without a bound. So another
/// namespace lies between the two. No process runs in it, and it has a separate table of counts.
fn make_below_limit(prepared: &Prepared, ids: &str) -> io::Result<OwnedFd> {
    let with_owner = format!("{NAMESPACE_OWNER_ID} {NAMESPACE_OWNER_ID} 1\n{ids}");
    let above = make_userns(&with_owner, &with_owner)?;
    let (ours, theirs) = pair()?;
    let Forked::Parent { pidfd, .. } = fork(0, SIGCHLD, None)? else {
        let made = enter(prepared, &above)
            .and_then(|()| shared_counts::bound_watches())
            .and_then(|()| take_id(prepared, NAMESPACE_OWNER_ID))
            .and_then(|()| make_userns(ids, ids))
            .and_then(|shared_userns| send(theirs.as_fd(), &(), &[shared_userns.as_fd()]));
        exit_now(made.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO)))
    };
    drop(theirs);
    let received = receive_one::<()>(ours.as_fd());
    let ended = rustix::process::waitid(
        rustix::process::WaitId::PidFd(pidfd.as_fd()),
        rustix::process::WaitIdOptions::EXITED,
    )?;
    let shared_userns = received?.and_then(|((), mut descriptors)| descriptors.pop());
    shared_userns.ok_or_else(|| {
        let errno = ended.and_then(|status| status.exit_status());
        io::Error::from_raw_os_error(errno.unwrap_or(libc::ECHILD))
    })
}

/// Enters the shared namespace. As root this process then takes the sandbox's id, which is mapped there.
pub(in crate::launcher) fn enter_as(
    prepared: &Prepared,
    shared_userns: &OwnedFd,
    host_id: u32,
) -> Result<(), StepError> {
    enter(prepared, shared_userns)
        .and_then(|()| take_id(prepared, host_id))
        .map_err(|error| StepError::new("enter the common namespace", Some("user_namespace"), &error))
}

/// Enters it and leaves all groups of the host.
pub(in crate::launcher) fn enter(prepared: &Prepared, shared_userns: &OwnedFd) -> io::Result<()> {
    move_into_link_name_space(shared_userns.as_fd(), Some(LinkNameSpaceType::User))?;
    if prepared.host.root {
        rustix::thread::set_thread_groups(&[])?;
    }
    Ok(())
}

/// As root: takes a sandbox's id within the shared namespace. Processes that this one clones have that id.
pub(in crate::launcher) fn take_id(prepared: &Prepared, host_id: u32) -> io::Result<()> {
    if prepared.host.root {
        let (user, group) = (Uid::from_raw(host_id), Gid::from_raw(host_id));
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)?;
        // A process that changes its id becomes undumpable. Files such as a child's id maps would not be writable.
        set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    }
    Ok(())
}

/// Maps the ids of a child in a new user namespace. Only a process in the parent namespace may do this.
pub(in crate::launcher) fn map_child(prepared: &Prepared, pid: u32, host_id: u32) -> io::Result<()> {
    let group = if prepared.host.root { host_id } else { prepared.ids.1 };
    map_ids(pid, host_id, group)
}

/// Maps one user and one group of the host to the inside user of a new user namespace.
pub(in crate::launcher) fn map_ids(pid: u32, user: u32, group: u32) -> io::Result<()> {
    let proc = format!("{}/proc/{pid}", paths::host());
    write_once(&format!("{proc}/uid_map"), &format!("{INSIDE_ID} {user} 1"))?;
    write_once(&format!("{proc}/gid_map"), &format!("{INSIDE_ID} {group} 1"))
}

/// Returns the error of a process whose ids were not mapped. One that ended meanwhile says nothing about the host.
pub(in crate::launcher) fn not_mapped(process: BorrowedFd<'_>, error: &io::Error) -> StepError {
    if readable(process) {
        return StepError::process_ended();
    }
    StepError::new("map ids", Some("user_namespace"), error)
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};

    use super::*;

    #[test]
    fn a_process_that_ended_is_not_reported_as_a_missing_layer() {
        let mut process = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&process), PidfdFlags::empty()).unwrap();
        let refused = io::Error::from_raw_os_error(libc::EACCES);
        let lives = not_mapped(pidfd.as_fd(), &refused);
        assert_eq!(
            (lives.layer.as_deref(), lives.errno),
            (Some("user_namespace"), libc::EACCES)
        );
        process.kill().unwrap();
        waitid(
            WaitId::PidFd(pidfd.as_fd()),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        )
        .unwrap();
        for _ in 0..2 {
            assert_eq!(not_mapped(pidfd.as_fd(), &refused), StepError::process_ended());
            // Once it is reaped as well.
            process.wait().unwrap();
        }
    }
}
