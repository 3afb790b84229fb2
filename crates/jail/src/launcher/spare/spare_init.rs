//! A first process that waits, in its namespaces and its cgroup, for the specification of its sandbox.
//!
//! If the last requests were all alike, it carries out the steps that hardly depend on the request while it waits.
//!
//! No spare is needed if nothing has to be mounted specially, and if the fork server may put processes into groups: the
//! fork server is in the shared user namespace and clones first processes directly.
//!
//! [`clone_first_process`] runs in the fork server. All else runs in the clone: see
//! [`first_process`](crate::launcher::first_process) for its rights and its end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cgroup::Ways;
use crate::launcher::base::faults;
use crate::launcher::base::fork::{CLONE_PARENT, keep_descriptors};
use crate::launcher::base::messages::FromSpare;
use crate::launcher::base::namespace_layers::{NAMESPACE_LAYERS, TIME_NAMESPACE, all_namespaces, no_namespaces};
use crate::launcher::base::namespaces;
use crate::launcher::base::prepared::Prepared;
use crate::launcher::base::shared_userns;
use crate::launcher::first_process::{
    Entry, Resources, Steps, agent_descriptors, first_process, run_steps, wait_for_request,
};
use crate::paths;
use crate::plan::{self, Host, Shows};
use crate::spec::{Request, Site};
use crate::steps::attach;
use crate::sys;
use crate::sys::clone::{Forked, exit_now, fork};
use crate::wire::{StepError, hung_up, send, send_through_floods};

/// Returns true if the fork server clones first processes. Only the machine's root can show an operator's folders with
/// other ids. On version 2 only root may clone into cgroups that root has made.
pub(in crate::launcher) fn clones_first_processes(prepared: &Prepared) -> bool {
    let for_root_alone =
        !prepared.host.mounts.is_empty() || prepared.groups.as_ref().is_some_and(|groups| groups.version() == "v2");
    prepared.shared_userns.is_some() && !(prepared.host.root && for_root_alone)
}

/// Clones a first process, as the launcher's child, and maps its ids. This process is in the shared namespace. The
/// child inherits its descriptors.
pub(in crate::launcher) fn clone_first_process(
    prepared: &Prepared,
    socket: OwnedFd,
    ways: &Ways,
    (devices, ahead): (Option<OwnedFd>, Option<Request>),
    host_id: u32,
    entry: Entry,
) -> Result<(u32, OwnedFd), StepError> {
    shared_userns::take_id(prepared, host_id)
        .map_err(|error| StepError::new("take the namespace's owner's id", Some("user_namespace"), &error))?;
    // A cgroup namespace's root is the cgroup at its creation, so it is made after the process has joined.
    let namespaces = all_namespaces() & !libc::CLONE_NEWCGROUP;
    let mut flags = CLONE_PARENT | u64::from(namespaces.unsigned_abs());
    if prepared.time_namespaces {
        flags |= TIME_NAMESPACE;
    }
    let folder = ways.folder.as_ref().map(AsFd::as_fd);
    let made = faults::at(ahead.as_ref(), Site::Clone)
        .and_then(|()| fork(flags, 0, folder))
        .map_err(|error| no_namespaces(&error))?;
    let Forked::Parent { pid, pidfd } = made else {
        run(prepared, socket, ways, devices, ahead, entry)
    };
    let mapped = faults::at(ahead.as_ref(), Site::Ids).and_then(|()| shared_userns::map_child(prepared, pid, host_id));
    mapped.map_err(|error| {
        let error = shared_userns::not_mapped(pidfd.as_fd(), &error);
        let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
        error
    })?;
    Ok((pid, pidfd))
}

/// Runs the first process.
fn run(
    prepared: &Prepared,
    socket: OwnedFd,
    ways: &Ways,
    devices: Option<OwnedFd>,
    ahead: Option<Request>,
    entry: Entry,
) -> ! {
    let joined = faults::at(ahead.as_ref(), Site::Join).and_then(|()| ways.join());
    let Ok((socket, mut devices)) = keep_descriptors(socket, devices.as_ref()) else {
        exit_now(2)
    };
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    if hung_up(&socket) {
        exit_now(0);
    }
    let ready = joined
        .map_err(|error| StepError::new("join the control group", Some("memory"), &error))
        .and_then(|()| {
            let shown = sys::misc::unshare(libc::CLONE_NEWCGROUP);
            shown.map_err(|error| StepError::new("make namespaces", Some("cgroup_namespace"), &error))
        })
        .and_then(|()| {
            let handed = faults::at(ahead.as_ref(), Site::Namespaces).and_then(|()| send_namespaces(&socket));
            handed.map_err(|error| StepError::new("hand namespaces over", None, &error))
        });
    let mut done = 0;
    let ready = ready.and_then(|()| {
        let Some(request) = &ahead else { return Ok(()) };
        wait_until_mapped().map_err(|error| StepError::new("wait for ids", Some("user_namespace"), &error))?;
        let mut plan = plan::make(&prepared.host, &prepared.template, request);
        plan.truncate(plan::ahead(&plan));
        done = plan.len();
        run_steps(prepared, Steps::all(request, &plan), &socket, &mut devices)
    });
    if let (Some(_), Err(error)) = (&ahead, &ready) {
        // Later requests get another process. A request that already has this one gets the error.
        let _ = send(socket.as_fd(), &FromSpare::Failed(error.clone()), &[]);
        // If it exits earlier, the fork server takes it for a process whose ids cannot be mapped.
        let _ = wait_until_mapped();
        let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Read);
    }
    let (request, shows, mut descriptors) = wait_for_request(&socket);
    let image = match shows {
        Shows::System => None,
        Shows::Image => descriptors.pop(),
    };
    let agents = ready
        .and_then(|()| {
            // The steps for another kind of sandbox do not fit this one.
            if ahead.is_some_and(|ahead| ahead != request || shows != Shows::System) {
                return Err(StepError::new(
                    "match the request that it prepared for",
                    None,
                    &io::ErrorKind::InvalidInput.into(),
                ));
            }
            Ok(())
        })
        .and_then(|()| {
            NAMESPACE_LAYERS.iter().try_for_each(|(_, layer)| {
                faults::layer(&prepared.template, layer)
                    .map_err(|error| StepError::new("make namespaces", Some(layer), &error))
            })
        })
        .and_then(|()| {
            let shown = image.map_or(Ok(()), |image| attach(&image, paths::IMAGE_TREE));
            shown.map_err(|error| StepError::new("show the image", Some("private_root"), &error))
        })
        .and_then(|()| agent_descriptors(descriptors));
    let agents = match agents {
        Ok(agents) => agents,
        Err(error) => {
            let _ = send(socket.as_fd(), &FromSpare::Failed(error), &[]);
            exit_now(1)
        }
    };
    let host = Host {
        shows,
        ..prepared.host.clone()
    };
    let plan = plan::make(&host, &prepared.template, &request);
    let steps = Steps {
        request: &request,
        plan: &plan,
        from: done,
    };
    let own = Resources { folder: None, devices };
    first_process(prepared, &socket, steps, agents, own, entry)
}

/// Waits until the fork server has mapped the ids, which it does directly after the clone.
fn wait_until_mapped() -> io::Result<()> {
    const POLL_INTERVAL: Duration = Duration::from_micros(20);
    const MAPPING_TIMEOUT: Duration = Duration::from_secs(5);
    // Of both maps, this one is written last.
    let map = format!("{}/proc/self/gid_map", paths::host());
    let since = Instant::now();
    while std::fs::read(&map)?.is_empty() {
        if since.elapsed() > MAPPING_TIMEOUT {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Sends its namespaces to the launcher, which passes them on to a worker.
fn send_namespaces(socket: &OwnedFd) -> io::Result<()> {
    let found = namespaces::open_all("self")?;
    let found: Vec<_> = found.iter().map(AsFd::as_fd).collect();
    send_through_floods(socket.as_fd(), &FromSpare::InPlace, &found)
}
