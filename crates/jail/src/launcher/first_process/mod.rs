//! A sandbox's first process, from its creation until it calls its entry, the agent.
//!
//! - **Process:** the first one in each sandbox.
//! - **Started by:** a spare, the fork server (`spare_init`), or, without namespaces, a subreaper. It is a child of the
//!   launcher, or of the subreaper.
//! - **Rights:** at first all capabilities in the sandbox's own namespaces, and no caller's code. [`run_steps`] carries
//!   out its plan, and with each step it may do less: identity, mounts, the new root, resource limits, capabilities,
//!   `no_new_privs`, Landlock, and last the system-call filter. Without namespaces it begins with the server's
//!   rights and has the steps of [`plan::without_namespaces`](crate::plan::without_namespaces).
//! - **May:** once locked, what [`plan`](crate::plan) and `policy/seccomp.policy` allow. Before, it uses only the
//!   launcher's socket and the descriptors that came with the request.
//! - **Ends:** at the first step that fails, when the entry returns, when the launcher kills it, and when its parent
//!   dies (`PR_SET_PDEATHSIG`). Its end ends every process of its PID namespace.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use super::base::faults;
use super::base::messages::{FromSpare, ToSpare};
use super::base::prepared::Prepared;
use crate::direct_pipes::DirectPipes;
use crate::plan::{Shows, Step};
use crate::spec::{Request, Site};
use crate::sys;
use crate::sys::clone::exit_now;
use crate::wire::{StepError, hung_up, receive_one, send, send_through_floods};

/// The entry point of a jail's first process once it is locked. It reads requests from the first descriptor and answers
/// on the second. The direct pipes are the far ends for one program; none where descriptors may not be passed. The text
/// is its private folder on the host, if it has no private root. The last descriptor is its entry socket, by which
/// the launcher announces a worker ([`EntryMessage`](crate::wire::EntryMessage)). Returns the process's exit status.
pub type Entry = fn(OwnedFd, OwnedFd, Option<DirectPipes>, Option<&str>, Option<OwnedFd>) -> i32;

/// Waits for the request. Reports to the launcher if it cannot be received.
pub(super) fn wait_for_request(socket: &OwnedFd) -> (Request, Shows, Vec<OwnedFd>) {
    match receive_one(socket.as_fd()) {
        Ok(Some((ToSpare::Make(request, shows), descriptors))) => (request, shows, descriptors),
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
            let error = StepError::new("take the agent's descriptors", None, &error);
            let _ = send(socket.as_fd(), &FromSpare::Failed(error), &[]);
            exit_now(1)
        }
        Ok(_) | Err(_) => exit_now(0),
    }
}

/// Waits until the ids are mapped.
pub(super) fn wait_for_ids(socket: &OwnedFd) {
    let Ok(Some((ToSpare::Mapped, _))) = receive_one(socket.as_fd()) else {
        exit_now(0)
    };
}

/// Checks that these are the agent's two descriptors.
pub(super) fn agent_descriptors(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; 2], StepError> {
    <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| {
        StepError::new(
            "take the agent's descriptors",
            None,
            &io::ErrorKind::InvalidInput.into(),
        )
    })
}

/// Resources prepared for one sandbox.
pub(super) struct Resources<'a> {
    /// Its private folder on the host, if it has no private root.
    pub(super) folder: Option<&'a str>,
    /// Its device folder, as a detached mount.
    pub(super) devices: Option<OwnedFd>,
}

/// The remaining steps of a plan.
#[derive(Clone, Copy)]
pub(super) struct Steps<'a> {
    pub(super) request: &'a Request,
    pub(super) plan: &'a [Step],
    /// The number of steps already done.
    pub(super) from: usize,
}

impl<'a> Steps<'a> {
    pub(super) const fn all(request: &'a Request, plan: &'a [Step]) -> Self {
        Self { request, plan, from: 0 }
    }
}

/// Runs the first process after its ids are mapped: locks it and calls its entry.
pub(super) fn first_process(
    prepared: &Prepared,
    socket: &OwnedFd,
    steps: Steps<'_>,
    [input, output]: [OwnedFd; 2],
    Resources { folder, mut devices }: Resources<'_>,
    entry: Entry,
) -> ! {
    // A sandbox without namespaces may not pass descriptors. Without direct pipes all data passes through the agent.
    let made = || {
        faults::at(Some(steps.request), Site::DirectPipes)
            .and_then(|()| DirectPipes::make())
            .ok()
    };
    let pipes = if folder.is_none() { made() } else { None };
    let (near, far) = pipes.unzip();
    if let Some(near) = near
        && send_through_floods(socket.as_fd(), &FromSpare::DirectPipes, &near.descriptors()).is_err()
    {
        exit_now(1);
    }
    if let Err(error) = run_steps(prepared, steps, socket, &mut devices) {
        let _ = send(socket.as_fd(), &FromSpare::Failed(error), &[]);
        exit_now(1);
    }
    if send(socket.as_fd(), &FromSpare::Ready, &[]).is_err() {
        exit_now(1);
    }
    // Only the launcher's socket and the agent's descriptors are open. The agent keeps its descriptors. If the sandbox
    // can be entered, it also keeps the socket as the entry socket.
    let entry_socket = if prepared.template.enterable {
        rustix::io::fcntl_dupfd_cloexec(socket, 3).ok()
    } else {
        None
    };
    let _ = sys::fd::close_number(socket);
    exit_now(entry(input, output, far, folder, entry_socket))
}

/// A folder of a sandbox's private files, which all share one file system.
pub(super) const PRIVATE_FILES_INSIDE: &str = "/tmp";

fn hand_files_over(socket: &OwnedFd) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(PRIVATE_FILES_INSIDE, flags, Mode::empty())?;
    send_through_floods(socket.as_fd(), &FromSpare::Files, &[folder.as_fd()])
}

/// Carries out steps.
pub(super) fn run_steps(
    prepared: &Prepared,
    Steps { request, plan, from }: Steps<'_>,
    socket: &OwnedFd,
    devices: &mut Option<OwnedFd>,
) -> Result<(), StepError> {
    for (number, step) in plan.iter().enumerate().skip(from) {
        let own = devices.take_if(|_| matches!(step, Step::Devices { own_folder: false, .. }));
        let run = || {
            own.as_ref()
                .map_or_else(|| crate::steps::run(step), crate::steps::own_devices)
        };
        let done = match faults::in_place_of(&prepared.template, step) {
            Some(done) => done,
            None => faults::step(&prepared.template, request, number, step).and_then(|()| run()),
        };
        done.map_err(|error| StepError::new(&step.name(), step.layer(), &error))?;
        // Later the launcher cannot access its root, and the process may not pass descriptors.
        if *step == Step::Pivot && prepared.groups.is_some() {
            faults::at(Some(request), Site::Files)
                .and_then(|()| hand_files_over(socket))
                .map_err(|error| StepError::new("hand the private files over", Some("memory"), &error))?;
        }
        // The launcher may have ended before the death signal was set.
        if *step == Step::DieWithLauncher && hung_up(socket) {
            exit_now(0);
        }
    }
    Ok(())
}
