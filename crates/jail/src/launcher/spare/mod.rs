//! A spare: a process that is already in its cgroup, has private device nodes, and waits to become a sandbox.
//!
//! On request it clones the sandbox's first process into new namespaces, as a child of the launcher, and exits. Joining
//! a cgroup is slow after a pause, so the spare joins in advance, outside the launcher.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::faults;
use super::root_setup::{self, Prepared};
use super::shared_userns;
use crate::cgroup::Ways;
use crate::direct_pipes::DirectPipes;
use crate::paths;
use crate::plan::{Host, Shows, Step, Tree};
use crate::spec::{Request, Site};
use crate::steps::attach;
use crate::sys::clone::{Forked, exit_now, fork};
use crate::wire::{StepError, hung_up, receive_one, send, send_through_floods};
use crate::{plan, sys};

/// The entry point of a jail's first process once it is locked. It reads requests from the first descriptor and answers
/// on the second. The direct pipes are the far ends for one program; none where descriptors may not be passed. The text
/// is its private folder on the host, if it has no private root. The last descriptor is its entry socket, by which
/// the launcher announces a worker ([`EntryMessage`](crate::wire::EntryMessage)). Returns the process's exit status.
pub type Entry = fn(OwnedFd, OwnedFd, Option<DirectPipes>, Option<&str>, Option<OwnedFd>) -> i32;

/// A message from the launcher to a spare, and then to the first process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToSpare {
    /// Become this sandbox. Carries the agent's two descriptors, and the tree of its image if it has one.
    Make(Request, Shows),
    /// The ids are mapped; go on.
    Mapped,
}

/// A message from a spare, and then from the first process, to the launcher.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromSpare {
    /// The first process exists. Carries its pidfd.
    Cloned {
        /// Its id on the host.
        pid: u32,
    },
    /// It already is the first process. Carries its namespaces user, mnt, pid, net, ipc, uts, cgroup and, if available,
    /// time.
    InPlace,
    /// The near ends of the direct pipes. Sent before a resource limit restricts the descriptors in flight.
    DirectPipes,
    /// The folder of the private files, which are counted separately from process memory.
    Files,
    /// It is locked and runs its entry.
    Ready,
    /// It failed.
    Failed(StepError),
    /// Its subreaper found too many private files and ends the sandbox. The removal can take long.
    Full,
}

pub(super) const NAMESPACE_LAYERS: [(u64, &str); 7] = [
    (0x1000_0000, "user_namespace"),
    (0x0002_0000, "mount_namespace"),
    (0x2000_0000, "pid_namespace"),
    (0x4000_0000, "network_namespace"),
    (0x0800_0000, "ipc_namespace"),
    (0x0400_0000, "uts_namespace"),
    (0x0200_0000, "cgroup_namespace"),
];
/// The clocks stay the machine's. A private namespace is needed since a namespace is a file that processes can lock and
/// watch.
pub(super) const TIME_NAMESPACE: u64 = 0x80;
pub(super) const CLONE_PARENT: u64 = 0x8000;

/// Returns the flags of all namespaces.
pub(super) fn all_namespaces() -> libc::c_int {
    let all = NAMESPACE_LAYERS.iter().fold(0, |flags, (flag, _)| flags | flag);
    libc::c_int::try_from(all).unwrap_or(0)
}

/// Runs a spare. `socket` is connected to the launcher.
pub(super) fn run(prepared: &Prepared, socket: OwnedFd, ways: &Ways, host_id: u32, entry: Entry) -> ! {
    // An error here is reported once the sandbox is known.
    let joined = ways.join();
    let Ok((socket, shared_userns)) = keep_descriptors(socket, prepared.shared_userns.as_ref()) else {
        exit_now(2)
    };
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    if hung_up(&socket) {
        exit_now(0);
    }
    let ready = joined
        .map_err(|error| StepError::new("join the control group", Some("memory"), &error))
        .and_then(|()| {
            root_setup::own_devices(prepared)
                .map_err(|error| StepError::new("make device nodes", Some("private_root"), &error))
        });
    let (request, shows, mut descriptors) = wait_for_request(&socket);
    let ready = ready.and_then(|devices| {
        let joined = faults::at(Some(&request), Site::Join);
        joined.map_err(|error| StepError::new("join the control group", Some("memory"), &error))?;
        Ok(devices)
    });
    let image = match shows {
        Shows::System => None,
        Shows::Image => descriptors.pop(),
    };
    let result = match &prepared.private_folders {
        Some(private_folders) => {
            ready.and_then(|_| private_folders.guard(prepared, &socket, &request, descriptors, host_id, entry))
        }
        None => ready.and_then(|devices| {
            mount_folders(prepared, image, host_id)?;
            match &shared_userns {
                Some(shared_userns) => shared_userns::enter_as(prepared, shared_userns, host_id),
                None => take_namespace_owner(prepared, host_id),
            }?;
            let descriptors = (descriptors, devices);
            become_sandbox(prepared, &socket, &request, shows, descriptors, host_id, entry)
        }),
    };
    let Err(error) = result else { exit_now(0) };
    let _ = send(socket.as_fd(), &FromSpare::Failed(error), &[]);
    exit_now(1)
}

/// Closes every descriptor except the standard three and the given ones.
pub(super) fn keep_descriptors(socket: OwnedFd, other: Option<&OwnedFd>) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    const SOCKET_FD: i32 = 3;
    const OTHER_FD: i32 = 4;
    const MIN_TEMPORARY_FD: i32 = 16;
    // A number above both targets, so that neither overwrites the other.
    let other = other
        .map(|other| rustix::io::fcntl_dupfd_cloexec(other, MIN_TEMPORARY_FD))
        .transpose()?;
    if std::os::fd::AsRawFd::as_raw_fd(&socket) != SOCKET_FD {
        sys::fd::duplicate_to(socket.as_fd(), SOCKET_FD)?;
    }
    if let Some(other) = &other {
        sys::fd::duplicate_to(other.as_fd(), OTHER_FD)?;
    }
    // This is a fresh fork: it needs no other descriptor of the launcher, and their owners never run again.
    std::mem::forget(socket);
    let kept = other.as_ref().map(|_| OTHER_FD);
    std::mem::forget(other);
    sys::fd::close_from(if kept.is_some() { 5 } else { 4 })?;
    Ok((sys::fd::adopt(SOCKET_FD)?, kept.map(sys::fd::adopt).transpose()?))
}

/// Mounts the folders that are specific to this sandbox, in a private mount namespace.
fn mount_folders(prepared: &Prepared, image: Option<OwnedFd>, host_id: u32) -> Result<(), StepError> {
    let mounts: &[_] = if prepared.host.root { &prepared.host.mounts } else { &[] };
    if mounts.is_empty() && image.is_none() {
        return Ok(());
    }
    sys::misc::unshare(libc::CLONE_NEWNS)
        .map_err(|error| StepError::new("make a mount namespace", Some("mount_namespace"), &error))?;
    for mount in mounts {
        mount_operator_folder(&mount.tree, host_id)
            .map_err(|error| StepError::new(&format!("prepare the mount {}", mount.tree.path), None, &error))?;
    }
    let shown = image.map_or(Ok(()), |image| attach(&image, paths::IMAGE_TREE));
    shown.map_err(|error| StepError::new("show the image", Some("private_root"), &error))
}

/// As root, shows an operator's folder, and the mounts within it, with the folder's owner as the sandbox's user. Files
/// of other owners stay closed to the sandbox.
fn mount_operator_folder(tree: &Tree, host_id: u32) -> io::Result<()> {
    let found = rustix::fs::stat(tree.view.source())?;
    let user = format!("{} {host_id} 1", found.st_uid);
    let namespace = shared_userns::make_userns(&user, &format!("{} {host_id} 1", found.st_gid))?;
    tree.sources()
        .try_for_each(|source| root_setup::mount_with_ids(source, &namespace))
}

/// As root, takes the sandbox's id, so that its user namespace has a separate owner. The kernel counts watches, message
/// queues and queued signals per owner too; otherwise one sandbox could exhaust root's.
fn take_namespace_owner(prepared: &Prepared, host_id: u32) -> Result<(), StepError> {
    if !prepared.host.root || faults::skipped(&prepared.template, "user_namespace") {
        return Ok(());
    }
    let id = rustix::process::Uid::from_raw(host_id);
    rustix::thread::set_thread_res_uid(id, id, id)
        .map_err(|error| StepError::new("take the namespace's owner's id", Some("user_namespace"), &error.into()))
}

/// Clones the first process. Returns in the spare only.
fn become_sandbox(
    prepared: &Prepared,
    socket: &OwnedFd,
    request: &Request,
    shows: Shows,
    (descriptors, devices): (Vec<OwnedFd>, Option<OwnedFd>),
    host_id: u32,
    entry: Entry,
) -> Result<(), StepError> {
    let agents = agent_descriptors(descriptors)?;
    let mut flags = CLONE_PARENT;
    if prepared.time_namespaces && !faults::skipped(&prepared.template, "ipc_namespace") {
        flags |= TIME_NAMESPACE;
    }
    for (flag, layer) in NAMESPACE_LAYERS {
        faults::layer(&prepared.template, layer)
            .map_err(|error| StepError::new("make namespaces", Some(layer), &error))?;
        if !faults::skipped(&prepared.template, layer) {
            flags |= flag;
        }
    }
    match fork(flags, 0, None).map_err(|error| no_namespaces(&error))? {
        Forked::Parent { pid, pidfd } => {
            if prepared.shared_userns.is_some() {
                shared_userns::map_child(prepared, pid, host_id)
                    .map_err(|error| StepError::new("map ids", Some("user_namespace"), &error))?;
            }
            let _ = send_through_floods(socket.as_fd(), &FromSpare::Cloned { pid }, &[pidfd.as_fd()]);
            Ok(())
        }
        Forked::Child => {
            let host = Host {
                shows,
                ..prepared.host.clone()
            };
            let steps = plan::make(&host, &prepared.template, request);
            let own = Resources { folder: None, devices };
            wait_for_ids(socket);
            first_process(prepared, socket, Steps::all(request, &steps), agents, own, entry)
        }
    }
}

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

/// Builds the error of a clone into namespaces. If a kind of namespace is exhausted, the kernel does not name the kind,
/// so each is tried.
pub(super) fn no_namespaces(error: &io::Error) -> StepError {
    let used_up = |error: &io::Error| error.raw_os_error() == Some(libc::ENOSPC);
    let one_of = |flag: u64| {
        let flag = libc::c_int::try_from(flag).unwrap_or(0);
        root_setup::in_a_fork(|| sys::misc::unshare(libc::CLONE_NEWUSER | flag))
    };
    let mut kinds = NAMESPACE_LAYERS.iter();
    let kind = if used_up(error) {
        kinds.find(|(flag, _)| one_of(*flag).is_err_and(|error| used_up(&error)))
    } else {
        None
    };
    StepError::new(
        "make namespaces",
        Some(kind.map_or("user_namespace", |(_, layer)| layer)),
        error,
    )
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
pub(super) const PRIVATE_FILES: &str = "/tmp";

fn hand_files_over(socket: &OwnedFd) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(PRIVATE_FILES, flags, Mode::empty())?;
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
