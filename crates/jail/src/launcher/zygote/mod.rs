//! A zygote: an interpreter that has loaded the modules that sandboxes need, and whose workers enter them.
//!
//! It runs library code before anything is locked, so it gets only what it needs. It sees only the files that sandboxes
//! see, no /proc, no network and no environment, and has a separate id as root. Its only power is to enter namespaces
//! below the shared one whose descriptors it receives.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Resource as Kernel, Signal};
use serde::{Deserialize, Serialize};

use super::attach::View;
use super::faults;
use super::root_setup::{self, Prepared};
use super::shared_userns;
use crate::own_limits::oom;
use crate::paths;
use crate::plan::{self, Resource, Zeros};
use crate::spawn::Program;
use crate::spec::Request;
use crate::steps::enter_program::{self, DescriptorCounts, EnterProgram};
use crate::sys;
use crate::sys::clone::{Forked, exit_now, fork};
use crate::wire::{StepError, hung_up, pair, send};

const SIGCHLD: u64 = 17;

/// A message to a zygote.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToZygote {
    /// The system calls by which the next workers enter.
    Way(Box<EnterProgram>),
    /// Fork a worker. Carries the namespaces pid, user, net, ipc, uts, cgroup and, if available, time, and the socket
    /// for the permission to go on.
    Enter {},
}

/// A message from a zygote.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FromZygote {
    /// A worker was forked, for the oldest open request.
    Forked {
        /// Its id on the host. Negative if the fork failed.
        child: i32,
    },
    /// It could not become a zygote.
    Failed(StepError),
}

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
        views: Vec<View>,
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
            Forked::Child => run(prepared, shared_userns, theirs, control, views, &program, host_id),
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
        send(self.socket.as_fd(), &ToZygote::Way(Box::new(program)), &[]).map_err(|source| error(&source))?;
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

/// Runs a zygote until it executes the interpreter.
fn run(
    prepared: &Prepared,
    shared_userns: &OwnedFd,
    socket: OwnedFd,
    control: [OwnedFd; 2],
    views: Vec<View>,
    program: &Program,
    host_id: u32,
) -> ! {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let Ok(([socket, shared_userns], views)) = arrange(&control, socket, shared_userns, views) else {
        exit_now(2)
    };
    std::mem::forget(control);
    let error = match lock(prepared, &socket, shared_userns, views, host_id) {
        Ok(()) => {
            let error = program.execute();
            StepError::new("execute the interpreter", None, &error)
        }
        Err(error) => error,
    };
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    enum LastMessage {
        Failed(StepError),
    }
    let _ = send(socket.as_fd(), &LastMessage::Failed(error), &[]);
    exit_now(1)
}

/// Places the control channel at 3 and 4 and the socket at 5. Closes all else except the shared namespace and the
/// views, and returns the socket, the namespace and the views.
fn arrange(
    control: &[OwnedFd; 2],
    socket: OwnedFd,
    shared_userns: &OwnedFd,
    views: Vec<View>,
) -> io::Result<([OwnedFd; 2], Vec<View>)> {
    const MIN_TEMPORARY_FD: i32 = 32;
    const SOCKET_FD: i32 = 5;
    const NAMESPACE_FD: i32 = 6;
    const FIRST_VIEW_FD: i32 = 7;
    let [input, output] = control;
    let (mounts, paths): (Vec<_>, Vec<_>) = views.into_iter().map(|view| (view.mount, view.path)).unzip();
    let all = [input, output, &socket, shared_userns].into_iter().chain(&mounts);
    let high: Vec<_> = all
        .map(|descriptor| rustix::io::fcntl_dupfd_cloexec(descriptor, MIN_TEMPORARY_FD))
        .collect();
    std::mem::forget((socket, mounts));
    let mut end = 3;
    for descriptor in high {
        let descriptor = descriptor?;
        sys::fd::duplicate_to(descriptor.as_fd(), end)?;
        std::mem::forget(descriptor);
        end += 1;
    }
    sys::fd::close_from(end.unsigned_abs())?;
    let views = paths.into_iter().zip(FIRST_VIEW_FD..).map(|(path, number)| {
        let mount = sys::fd::adopt(number)?;
        Ok(View { mount, path })
    });
    let views = views.collect::<io::Result<_>>()?;
    Ok(([sys::fd::adopt(SOCKET_FD)?, sys::fd::adopt(NAMESPACE_FD)?], views))
}

fn lock(
    prepared: &Prepared,
    socket: &OwnedFd,
    shared_userns: OwnedFd,
    views: Vec<View>,
    host_id: u32,
) -> Result<(), StepError> {
    let named = |step: &str, result: io::Result<()>| result.map_err(|error| StepError::new(step, None, &error));
    // Its workers inherit the score: when memory runs out, they are killed before their sandboxes' first processes.
    oom::prefer_as_victim(paths::host(), oom::INTERPRETER_SCORE);
    if prepared.host.root {
        named("make a mount namespace", sys::misc::unshare(libc::CLONE_NEWNS))?;
        let devices = root_setup::private_devices(Zeros::on(prepared.host.memory_is_charged));
        named(
            "make device nodes",
            devices.and_then(|devices| crate::steps::attach(&devices, paths::DEVICE_FOLDER)),
        )?;
    }
    shared_userns::enter_as(prepared, &shared_userns, host_id)?;
    drop(shared_userns);
    let own = libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP;
    named("make namespaces", sys::misc::unshare(own))?;
    for step in plan::zygote(&prepared.host) {
        crate::steps::run(&step).map_err(|error| StepError::new(&step.name(), step.layer(), &error))?;
        if step == plan::Step::DieWithLauncher && hung_up(socket) {
            exit_now(0);
        }
        if step == plan::Step::Pivot {
            for view in &views {
                named("attach the folder", crate::steps::attach(&view.mount, &view.path))?;
            }
        }
    }
    Ok(())
}
