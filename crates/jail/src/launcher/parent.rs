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
use super::common;
use super::faults;
use super::host::{self, Prepared};
use crate::calls::{self, Entrance, Handed};
use crate::oom;
use crate::plan::{self, Resource, Zeros};
use crate::spawn::Program;
use crate::spec::Request;
use crate::sys;
use crate::sys::clone::{Forked, exit_now, fork};
use crate::wire::{StepError, hung_up, pair, send};

const SIGCHLD: u64 = 17;

/// A message to a zygote.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToParent {
    /// The system calls by which the next workers enter.
    Way(Box<Entrance>),
    /// Fork a worker. Carries the namespaces pid, user, net, ipc, uts, cgroup and, if available, time, and the socket
    /// for the permission to go on.
    Enter {},
}

/// A message from a zygote.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FromParent {
    /// A worker was forked, for the oldest open request.
    Forked {
        /// Its id on the host. Negative if the fork failed.
        child: i32,
    },
    /// It could not become a zygote.
    Failed(StepError),
}

/// A running zygote.
pub(super) struct Parent {
    pub(super) pid: u32,
    pub(super) pidfd: OwnedFd,
    pub(super) socket: OwnedFd,
    pub(super) host_id: u32,
    /// The number of its end of the socket. A worker holds that end until it is locked.
    pub(super) channel: u64,
    /// The kind of sandbox whose system calls it has received.
    pub(super) knows: Option<(Request, Handed)>,
    /// The sandboxes with open requests for a worker, in order. The zygote does not see their numbers: a worker could
    /// infer from them how many others exist.
    pub(super) asked: VecDeque<u64>,
    /// The reason for its end, if it sent one.
    pub(super) error: Option<StepError>,
    /// True if the launcher killed it.
    pub(super) killed: Cell<bool>,
}

impl Parent {
    /// Starts a zygote that sees these folders. `descriptors` are its control channel.
    pub(super) fn start(
        prepared: &Prepared,
        argv: &[String],
        views: Vec<View>,
        descriptors: Vec<OwnedFd>,
        host_id: u32,
    ) -> io::Result<Self> {
        let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
        let common = prepared.common.as_ref().ok_or_else(unsupported)?;
        let control = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| unsupported())?;
        let program = Program::new(argv, &BTreeMap::new(), &["/"]).map_err(|error| error.source)?;
        let (ours, theirs) = pair()?;
        let channel = rustix::fs::fstat(&theirs)?.st_ino;
        match fork(0, SIGCHLD, None)? {
            Forked::Child => live(prepared, common, theirs, control, views, &program, host_id),
            Forked::Parent { pid, pidfd } => {
                rustix::fs::fcntl_setfl(&ours, rustix::fs::OFlags::NONBLOCK)?;
                Ok(Self {
                    pid,
                    pidfd,
                    socket: ours,
                    host_id,
                    channel,
                    knows: None,
                    asked: VecDeque::new(),
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
        let tasks = format!("{}/proc/{}/task", plan::place::host(), self.pid);
        // The link count is two more than the number of threads.
        rustix::fs::stat(tasks.as_str()).is_ok_and(|found| found.st_nlink == 3)
    }

    /// Sends the system calls for this kind of sandbox, unless the zygote has them.
    pub(super) fn show_the_way(
        &mut self,
        prepared: &Prepared,
        request: Request,
        handed: Handed,
    ) -> Result<(), StepError> {
        if self.knows == Some((request, handed)) {
            return Ok(());
        }
        let error = |error: &io::Error| StepError::new("show the way in", None, error);
        let mut steps = plan::enter(&prepared.host, &prepared.template, &request);
        steps.retain(|step| {
            step.layer()
                .is_none_or(|layer| !faults::skipped(&prepared.template, layer) || layer == "user_namespace")
        });
        let known = |number: u32| {
            let capability = rustix::thread::CapabilitySet::from_bits_retain(1 << number);
            rustix::thread::capability_is_in_bounding_set(capability).is_ok()
        };
        let way = calls::entrance(&steps, handed, limit_of, known).map_err(|source| error(&source))?;
        send(self.socket.as_fd(), &ToParent::Way(Box::new(way)), &[]).map_err(|source| error(&source))?;
        self.knows = Some((request, handed));
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
fn live(
    prepared: &Prepared,
    common: &OwnedFd,
    socket: OwnedFd,
    control: [OwnedFd; 2],
    views: Vec<View>,
    program: &Program,
    host_id: u32,
) -> ! {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let Ok(([socket, common], views)) = arrange(&control, socket, common, views) else {
        exit_now(2)
    };
    std::mem::forget(control);
    let error = match lock(prepared, &socket, common, views, host_id) {
        Ok(()) => {
            let error = program.execute();
            StepError::new("execute the interpreter", None, &error)
        }
        Err(error) => error,
    };
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    enum Said {
        Failed(StepError),
    }
    let _ = send(socket.as_fd(), &Said::Failed(error), &[]);
    exit_now(1)
}

/// Places the control channel at 3 and 4 and the socket at 5. Closes all else except the shared namespace and the
/// views, and returns the socket, the namespace and the views.
fn arrange(
    control: &[OwnedFd; 2],
    socket: OwnedFd,
    common: &OwnedFd,
    views: Vec<View>,
) -> io::Result<([OwnedFd; 2], Vec<View>)> {
    const ABOVE: i32 = 32;
    const SOCKET: i32 = 5;
    const COMMON: i32 = 6;
    const VIEWS: i32 = 7;
    let [input, output] = control;
    let (mounts, paths): (Vec<_>, Vec<_>) = views.into_iter().map(|view| (view.mount, view.path)).unzip();
    let all = [input, output, &socket, common].into_iter().chain(&mounts);
    let high: Vec<_> = all
        .map(|descriptor| rustix::io::fcntl_dupfd_cloexec(descriptor, ABOVE))
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
    let views = paths.into_iter().zip(VIEWS..).map(|(path, number)| {
        let mount = sys::fd::adopt(number)?;
        Ok(View { mount, path })
    });
    let views = views.collect::<io::Result<_>>()?;
    Ok(([sys::fd::adopt(SOCKET)?, sys::fd::adopt(COMMON)?], views))
}

fn lock(
    prepared: &Prepared,
    socket: &OwnedFd,
    common: OwnedFd,
    views: Vec<View>,
    host_id: u32,
) -> Result<(), StepError> {
    let named = |step: &str, result: io::Result<()>| result.map_err(|error| StepError::new(step, None, &error));
    // Its workers inherit the score: when memory runs out, they are killed before their sandboxes' first processes.
    oom::go_first(plan::place::host(), oom::INTERPRETER);
    if prepared.host.root {
        named("make a mount namespace", sys::misc::unshare(libc::CLONE_NEWNS))?;
        let devices = host::private_devices(Zeros::on(prepared.host.memory_is_charged));
        named(
            "make device nodes",
            devices.and_then(|devices| crate::steps::attach(&devices, plan::place::DEVICES)),
        )?;
    }
    common::live_in(prepared, &common, host_id)?;
    drop(common);
    let own = libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP;
    named("make namespaces", sys::misc::unshare(own))?;
    for step in plan::parent(&prepared.host) {
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
