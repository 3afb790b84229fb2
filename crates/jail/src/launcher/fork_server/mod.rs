//! The fork server: a small process that forks children of the launcher: first processes if possible ([`spare_init`]),
//! otherwise spares.
//!
//! A fork inherits all descriptors of its maker. The launcher has a dozen for each sandbox. With a thousand sandboxes,
//! closing inherited descriptors took each spare longer than all its other work. The fork server has two.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
use serde::{Deserialize, Serialize};

use super::faults;
use super::process::{Activity, activity_in};
use super::root_setup::{self, Prepared};
use super::shared_userns;
use super::spare::{self, CLONE_PARENT, Entry};
use super::spare_init;
use crate::cgroup::Ways;
use crate::kernel_files::small_file;
use crate::own_limits::oom;
use crate::paths;
use crate::spec::{Request, Site};
use crate::sys;
use crate::sys::clone::{Forked, exit_now, fork};
use crate::wire::{StepError, hung_up, pair, receive_one, send, send_through_floods};

const SIGCHLD: u64 = 17;
/// The time for which the launcher waits for the exit status of its fork server.
const EXIT_STATUS_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};
/// Layers for which a test may show the host's files instead.
const HOST_VISIBLE_LAYERS: [&str; 4] = ["user_namespace", "mount_namespace", "private_root", "private_proc"];

/// A message from the launcher to the fork server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToForkServer {
    /// Make one process. Carries the process's end of its socket, a first process's device folder if it is private, and
    /// the means to join its cgroup: the folder to clone it into, or the files that it writes to.
    Fork {
        /// The host id of its sandbox's user.
        host_id: u32,
        /// The request that a first process prepares for while it waits. Null: none.
        ahead: Option<Request>,
    },
}

/// A message from the fork server to the launcher, in the order of requests.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromForkServer {
    /// The process runs. Carries its pidfd.
    Forked {
        /// Its id on the host.
        pid: u32,
    },
    /// The process could not be made.
    Failed(StepError),
}

/// The launcher's handle of the fork server.
pub(super) struct ForkServer {
    pub(super) pid: u32,
    pub(super) socket: OwnedFd,
    /// True if it makes first processes instead of spares.
    pub(super) of_first: bool,
    pidfd: OwnedFd,
}

impl ForkServer {
    pub(super) fn start(prepared: &mut Prepared, entry: Entry) -> io::Result<Self> {
        let (ours, theirs) = pair()?;
        let of_first = spare_init::clones_first_processes(prepared);
        match fork(0, SIGCHLD, None)? {
            Forked::Child => run(prepared, theirs, of_first, entry),
            Forked::Parent { pid, pidfd } => Ok(Self {
                pid,
                socket: ours,
                of_first,
                pidfd,
            }),
        }
    }

    /// Asks for one process. A first process gets this device folder and prepares for this request.
    pub(super) fn request_process(
        &self,
        socket: &OwnedFd,
        host_id: u32,
        ahead: Option<Request>,
        devices: Option<&OwnedFd>,
        ways: &Ways,
    ) -> io::Result<()> {
        let descriptors_to_send = [socket]
            .into_iter()
            .chain(devices)
            .chain(&ways.folder)
            .chain(&ways.tasks);
        let descriptors_to_send: Vec<_> = descriptors_to_send.map(AsFd::as_fd).collect();
        send(
            self.socket.as_fd(),
            &ToForkServer::Fork { host_id, ahead },
            &descriptors_to_send,
        )
    }

    /// Returns the signal that ended a fork server that has hung up, if it has ended.
    pub(super) fn killed_by(&self) -> Option<i32> {
        // A process closes its files a moment before its end is reported.
        let _ = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&EXIT_STATUS_WAIT));
        // Leaves it to be reaped as a stray.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), options).ok().flatten();
        status.and_then(|status| status.terminating_signal())
    }

    /// Returns true if it is stopped by a signal.
    pub(super) fn is_stopped(&self) -> bool {
        let status = small_file(&format!("{}/proc/{}/status", paths::host(), self.pid));
        activity_in(&status) == Some(Activity::Stopped)
    }

    /// Kills it. Its children live on. It is reaped later as a stray, so that a process stuck in the kernel does not
    /// block the launcher.
    pub(super) fn end(self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// Runs the fork server. `socket` is connected to the launcher.
fn run(prepared: &mut Prepared, socket: OwnedFd, of_first: bool, entry: Entry) -> ! {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // Its children inherit the score, and cannot lower it.
    oom::prefer_as_victim(paths::host(), oom::FIRST_PROCESS_SCORE);
    let Ok((socket, shared_userns)) = spare::keep_descriptors(socket, prepared.shared_userns.as_ref()) else {
        exit_now(2)
    };
    // The old descriptor number is closed already.
    std::mem::forget(std::mem::replace(&mut prepared.shared_userns, shared_userns));
    if hung_up(&socket) {
        exit_now(0);
    }
    // A test may show the host's files instead of a layer.
    if !faults::any_skipped(&prepared.template, &HOST_VISIBLE_LAYERS)
        && (sys::misc::unshare(libc::CLONE_NEWNS).is_err() || root_setup::unmount_host().is_err())
    {
        exit_now(2);
    }
    if of_first
        && let Some(namespace) = prepared.shared_userns.take()
        && shared_userns::enter(prepared, &namespace).is_err()
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
