//! A spare: a process that is already in its cgroup, has private device nodes, and waits to become a sandbox.
//!
//! On request it clones the sandbox's first process into new namespaces, as a child of the launcher, and exits. Joining
//! a cgroup is slow after a pause, so the spare joins in advance, outside the launcher.
//!
//! - **Process:** one for each sandbox, unless the fork server clones first processes itself ([`spare_init`]).
//! - **Started by:** the fork server, else the supervisor. It is a child of the launcher in both cases.
//! - **Rights:** the launcher's, until it has its request. With a shared user namespace it then enters that one with
//!   its sandbox's id. Without one, as root, it takes its sandbox's id.
//! - **May:** mount an image, and as root the operator's folders, in its own mount namespace; clone the first process
//!   and map its ids. It has the launcher's socket and, if there is one, the shared user namespace.
//! - **Ends:** when it has reported the first process or an error, when the launcher closes its socket or kills it, and
//!   when the launcher dies (`PR_SET_PDEATHSIG`). Without namespaces it stays, as the [`super::subreaper`].

pub(super) mod spare_init;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::base::devices;
use super::base::faults;
use super::base::fork::{CLONE_PARENT, keep_descriptors};
use super::base::messages::FromSpare;
use super::base::namespace_layers::{NAMESPACE_LAYERS, TIME_NAMESPACE, no_namespaces};
use super::base::prepared::Prepared;
use super::base::shared_userns;
use super::first_process::{Entry, Resources, Steps, agent_descriptors, first_process, wait_for_ids, wait_for_request};
use super::subreaper;
use crate::cgroup::Ways;
use crate::paths;
use crate::plan::{self, Host, Shows, Tree};
use crate::spec::{Request, Site};
use crate::steps::{attach, single_copy_of};
use crate::sys;
use crate::sys::clone::{Forked, exit_now, fork};
use crate::wire::{StepError, hung_up, send, send_through_floods};

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
            devices::own_devices(prepared)
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
        Some(private_folders) => ready.and_then(|_| {
            subreaper::guard(
                private_folders,
                prepared,
                &socket,
                &request,
                descriptors,
                host_id,
                entry,
            )
        }),
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
    tree.sources().try_for_each(|source| mount_with_ids(source, &namespace))
}

/// Shows an operator's folder, in this process's mount namespace, with its owner as the sandbox's user.
fn mount_with_ids(source: &str, user_namespace: &OwnedFd) -> io::Result<()> {
    let mount = single_copy_of(source)?;
    sys::mount::map_ids(mount.as_fd(), user_namespace.as_fd())?;
    attach(&mount, source)
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
