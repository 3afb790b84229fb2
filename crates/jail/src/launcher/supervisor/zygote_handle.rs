//! The supervisor's handle of a zygote: starts it, sends it the system calls of its workers, and kills it.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Resource as Kernel, Signal};

use crate::launcher::base::faults;
use crate::launcher::base::folder_view::FolderView;
use crate::launcher::base::fork::SIGCHLD;
use crate::launcher::base::messages::ToZygote;
use crate::launcher::base::prepared::Prepared;
use crate::launcher::zygote;
use crate::paths;
use crate::plan::{self, Resource};
use crate::spawn::Program;
use crate::spec::Request;
use crate::steps::enter_program::{self, DescriptorCounts};
use crate::sys::clone::{Forked, fork};
use crate::wire::{StepError, pair, send};

/// A running zygote.
pub(super) struct Zygote {
    pub(super) pid: u32,
    pub(super) pidfd: OwnedFd,
    pub(super) socket: OwnedFd,
    pub(super) host_id: u32,
    /// The number of its end of the socket. A worker holds that end until it is locked.
    pub(super) channel: u64,
    /// The kind of sandbox whose system calls it has received.
    pub(super) known_kind: Option<(Request, DescriptorCounts)>,
    /// The sandboxes with open requests for a worker, in order. The zygote does not see their numbers: a worker could
    /// infer from them how many others exist.
    pub(super) requested_for: VecDeque<u64>,
    /// The reason for its end, if it sent one.
    pub(super) error: Option<StepError>,
    /// True if the launcher killed it.
    pub(super) killed: Cell<bool>,
}

impl Zygote {
    /// Starts a zygote that sees these folders. `descriptors` are its control channel.
    pub(super) fn start(
        prepared: &Prepared,
        argv: &[String],
        views: Vec<FolderView>,
        descriptors: Vec<OwnedFd>,
        host_id: u32,
    ) -> io::Result<Self> {
        let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
        let shared_userns = prepared.shared_userns.as_ref().ok_or_else(unsupported)?;
        let control = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| unsupported())?;
        let program = Program::new(argv, &BTreeMap::new(), &["/"]).map_err(|error| error.source)?;
        let (ours, theirs) = pair()?;
        let channel = rustix::fs::fstat(&theirs)?.st_ino;
        match fork(0, SIGCHLD, None)? {
            Forked::Child => zygote::run(prepared, shared_userns, theirs, control, views, &program, host_id),
            Forked::Parent { pid, pidfd } => {
                rustix::fs::fcntl_setfl(&ours, rustix::fs::OFlags::NONBLOCK)?;
                Ok(Self {
                    pid,
                    pidfd,
                    socket: ours,
                    host_id,
                    channel,
                    known_kind: None,
                    requested_for: VecDeque::new(),
                    error: None,
                    killed: Cell::new(false),
                })
            }
        }
    }

    pub(super) fn kill(&self) {
        self.killed.set(true);
        self.end();
    }

    /// Kills a zygote that has most likely ended already, perhaps by another process.
    pub(super) fn end(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Returns true if it has one thread. A fork has only the forking thread, but the locks of all.
    pub(super) fn is_single(&self) -> bool {
        let tasks = format!("{}/proc/{}/task", paths::host(), self.pid);
        // The link count is two more than the number of threads.
        rustix::fs::stat(tasks.as_str()).is_ok_and(|found| found.st_nlink == 3)
    }

    /// Sends the system calls for this kind of sandbox, unless the zygote has them.
    pub(super) fn send_enter_program(
        &mut self,
        prepared: &Prepared,
        request: Request,
        counts: DescriptorCounts,
    ) -> Result<(), StepError> {
        if self.known_kind == Some((request, counts)) {
            return Ok(());
        }
        let error = |error: &io::Error| StepError::new("send the zygote its system calls", None, error);
        let mut steps = plan::enter(&prepared.host, &prepared.template, &request);
        steps.retain(|step| {
            step.layer()
                .is_none_or(|layer| !faults::skipped(&prepared.template, layer) || layer == "user_namespace")
        });
        let known = |number: u32| {
            let capability = rustix::thread::CapabilitySet::from_bits_retain(1 << number);
            rustix::thread::capability_is_in_bounding_set(capability).is_ok()
        };
        let program = enter_program::translate(&steps, counts, limit_of, known).map_err(|source| error(&source))?;
        send(self.socket.as_fd(), &ToZygote::EntryProgram(Box::new(program)), &[]).map_err(|source| error(&source))?;
        self.known_kind = Some((request, counts));
        Ok(())
    }
}

/// Returns the hard limit of a resource of this process, and so of a zygote.
fn limit_of(resource: Resource) -> u64 {
    let kernel = match resource {
        Resource::Core => Kernel::Core,
        Resource::Data => Kernel::Data,
        Resource::FileSize => Kernel::Fsize,
        Resource::LockedMemory => Kernel::Memlock,
        Resource::MessageQueues => Kernel::Msgqueue,
        Resource::Nice => Kernel::Nice,
        Resource::OpenFiles => Kernel::Nofile,
        Resource::Processes => Kernel::Nproc,
        Resource::RealTimePriority => Kernel::Rtprio,
        Resource::PendingSignals => Kernel::Sigpending,
        Resource::Stack => Kernel::Stack,
    };
    rustix::process::getrlimit(kernel).maximum.unwrap_or(u64::MAX)
}
