//! The supervisor's handle of the fork server: starts it, asks it for processes, and kills it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};

use crate::cgroup::Ways;
use crate::kernel_files::small_file;
use crate::launcher::base::activity::{Activity, activity_in};
use crate::launcher::base::fork::SIGCHLD;
use crate::launcher::base::messages::ToForkServer;
use crate::launcher::base::prepared::Prepared;
use crate::launcher::first_process::Entry;
use crate::launcher::fork_server;
use crate::launcher::spare::spare_init;
use crate::paths;
use crate::spec::Request;
use crate::sys::clone::{Forked, fork};
use crate::wire::{pair, send};

/// The time for which the launcher waits for the exit status of its fork server.
const EXIT_STATUS_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

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
            Forked::Child => fork_server::run(prepared, theirs, of_first, entry),
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
