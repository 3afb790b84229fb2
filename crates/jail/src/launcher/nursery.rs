//! A small process that forks in the launcher's place, as the launcher's children: first processes where it may
//! ([`waiting`]), else cradles.
//!
//! A fork begins with everything that its maker holds. The launcher has a dozen descriptors for each sandbox, so with a
//! thousand of them each cradle took longer to close what it had inherited than to do anything else. The nursery has two.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
use serde::{Deserialize, Serialize};

use super::common;
use super::cradle::{self, CLONE_PARENT, Entry};
use super::faults;
use super::host::{self, Prepared};
use super::process::{Activity, activity_in};
use super::waiting;
use crate::cgroup::Ways;
use crate::oom;
use crate::plan::place;
use crate::spec::{Request, Site};
use crate::sys;
use crate::sys::clone::{Forked, exit_now, fork};
use crate::watch::small_file;
use crate::wire::{StepError, hung_up, pair, receive_one, send, send_through_floods};

const SIGCHLD: u64 = 17;
/// The time the launcher waits for the exit status of its fork server.
const MOMENT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};
/// Layers in whose place a test shows the host's files.
const SHOWS_HOST: [&str; 4] = ["user_namespace", "mount_namespace", "private_root", "private_proc"];

/// From the launcher to its nursery.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToNursery {
    /// Make one. Beside this: its end of the socket that leads to it, a first process' device folder where that is its own, and the
    /// ways into its control group: the folder that it is cloned into, or what it joins it by.
    Bear {
        /// The id on the host that its sandbox's user has.
        host_id: u32,
        /// What a first process gets ready for while it waits; null: for nothing.
        ahead: Option<Request>,
    },
}

/// From the nursery to the launcher, in the order in which it was asked.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromNursery {
    /// It lives; its descriptor comes beside this.
    Born {
        /// Its id on the host.
        pid: u32,
    },
    /// It does not.
    Failed(StepError),
}

/// As the launcher sees it.
pub(super) struct Nursery {
    pub(super) pid: u32,
    pub(super) socket: OwnedFd,
    /// Makes first processes, not cradles.
    pub(super) of_first: bool,
    pidfd: OwnedFd,
}

impl Nursery {
    pub(super) fn start(prepared: &mut Prepared, entry: Entry) -> io::Result<Self> {
        let (ours, theirs) = pair()?;
        let of_first = waiting::by_the_nursery(prepared);
        match fork(0, SIGCHLD, None)? {
            Forked::Child => live(prepared, theirs, of_first, entry),
            Forked::Parent { pid, pidfd } => Ok(Self {
                pid,
                socket: ours,
                of_first,
                pidfd,
            }),
        }
    }

    /// Asks for one, a first process with this device folder that gets ready for this.
    pub(super) fn ask(
        &self,
        socket: &OwnedFd,
        host_id: u32,
        ahead: Option<Request>,
        devices: Option<&OwnedFd>,
        ways: &Ways,
    ) -> io::Result<()> {
        let beside = [socket]
            .into_iter()
            .chain(devices)
            .chain(&ways.folder)
            .chain(&ways.tasks);
        let beside: Vec<_> = beside.map(AsFd::as_fd).collect();
        send(self.socket.as_fd(), &ToNursery::Bear { host_id, ahead }, &beside)
    }

    /// The signal by which one has ended that has hung up, if it has.
    pub(super) fn killed_by(&self) -> Option<i32> {
        // A process closes its files a moment before it is known to have ended.
        let _ = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&MOMENT));
        // It is reaped as a stray.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), options).ok().flatten();
        status.and_then(|status| status.terminating_signal())
    }

    /// Returns true if it is stopped by a signal.
    pub(super) fn is_stopped(&self) -> bool {
        let status = small_file(&format!("{}/proc/{}/status", place::host(), self.pid));
        activity_in(&status) == Some(Activity::Stopped)
    }

    /// Ends it. What it has made lives on. It is a stray until it is reaped: one that is stuck in the kernel holds nobody up.
    pub(super) fn end(self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// The life of the nursery. `socket` leads to the launcher.
fn live(prepared: &mut Prepared, socket: OwnedFd, of_first: bool, entry: Entry) -> ! {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // Its children have it from here, and cannot go below it.
    oom::go_first(place::host(), oom::FIRST_PROCESS);
    let Ok((socket, common)) = cradle::keep_only(socket, prepared.common.as_ref()) else {
        exit_now(2)
    };
    // The number that it had is nobody's by now.
    std::mem::forget(std::mem::replace(&mut prepared.common, common));
    if hung_up(&socket) {
        exit_now(0);
    }
    // A test may show the host's files in place of a layer.
    if !faults::any_skipped(&prepared.template, &SHOWS_HOST)
        && (sys::misc::unshare(libc::CLONE_NEWNS).is_err() || host::leave_the_host().is_err())
    {
        exit_now(2);
    }
    if of_first
        && let Some(namespace) = prepared.common.take()
        && common::enter(prepared, &namespace).is_err()
    {
        exit_now(2);
    }
    let cloned_into = prepared.groups.as_ref().is_some_and(|groups| groups.version() == "v2");
    loop {
        let (ToNursery::Bear { host_id, ahead }, descriptors) = match receive_one(socket.as_fd()) {
            Ok(Some(received)) => received,
            // The machine has no open file left. The order is answered, and the next one may do better.
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                let error = StepError::new("start a process", None, &error);
                if send(socket.as_fd(), &FromNursery::Failed(error), &[]).is_err() {
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
        let born = if of_first {
            let born = waiting::bear(prepared, theirs, &ways, (devices, ahead), host_id, entry);
            // Who takes an id is told of nobody's death any more.
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            born
        } else {
            let forked = faults::at(ahead.as_ref(), Site::Clone)
                .and_then(|()| fork(CLONE_PARENT, 0, ways.folder.as_ref().map(AsFd::as_fd)));
            match forked {
                Ok(Forked::Child) => cradle::live(prepared, theirs, &ways, host_id, entry),
                Ok(Forked::Parent { pid, pidfd }) => Ok((pid, pidfd)),
                Err(error) => Err(StepError::new("start a process", None, &error)),
            }
        };
        let told = match born {
            Ok((pid, pidfd)) => send_through_floods(socket.as_fd(), &FromNursery::Born { pid }, &[pidfd.as_fd()]),
            Err(error) => send(socket.as_fd(), &FromNursery::Failed(error), &[]),
        };
        if told.is_err() {
            break;
        }
    }
    exit_now(0)
}
