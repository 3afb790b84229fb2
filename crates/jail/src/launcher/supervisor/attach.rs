//! Attaches a read-only host folder to a running sandbox.
//!
//! The launcher makes the view outside, as a separate overlay, so that locks, leases and watches stay within the
//! sandbox. It uses a short name, so that the mount table inside shows no host path. A fork then enters the sandbox's
//! user and mount namespaces, moves the view to a prepared mount point, and exits. The mount point is on the sandbox's
//! read-only root, so no process inside can have replaced it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{Jail, State, Supervisor};
use crate::launcher::base::folder_view::FolderView;
use crate::launcher::base::fork::SIGCHLD;
use crate::launcher::base::mount_table::MountTable;
use crate::launcher::base::namespaces::ForFolders;
use crate::paths;
use crate::plan;
use crate::steps::{attach as put, overlay, single_copy_of};
use crate::sys::clone::{Forked, exit_now, fork};
use crate::wire::{MOUNTED_BELOW_STEP, StepError};

/// The exit status of a fork whose error has no system number.
const UNKNOWN_ERROR_STATUS: i32 = 255;

impl Supervisor {
    /// Attaches a folder to a sandbox that is running.
    pub(super) fn attach(&self, id: u64, number: usize, folder: &Path) -> Result<(), StepError> {
        let running = |jail: &&Jail| matches!(jail.state, State::Running { .. });
        match self
            .jails
            .get(&id)
            .filter(running)
            .and_then(|jail| jail.namespaces.as_ref())
        {
            Some(namespaces) => {
                let opened = namespaces.for_folders();
                let opened = opened.map_err(|error| StepError::new("open the sandbox's namespaces", None, &error))?;
                attach(&self.prepared.mounts, &opened, folder, number)
            }
            None => Err(StepError {
                step: "find the sandbox".into(),
                layer: None,
                errno: libc::ESRCH,
            }),
        }
    }
}

/// Attaches `folder` as number `number` to the sandbox with these namespaces.
fn attach(mounts: &MountTable, namespaces: &ForFolders, folder: &Path, number: usize) -> Result<(), StepError> {
    let view = view(mounts, folder, number)?;
    move_in(&view, namespaces).map_err(|error| named("attach the folder", &error))
}

fn named(name: &str, error: &io::Error) -> StepError {
    StepError {
        step: name.to_owned(),
        layer: None,
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    }
}

/// Makes a view of `folder` as attached folder `number`. Refuses a folder with a mount below it. An overlay shows one
/// file system: root's overlay would show the files that the mount hides, and the kernel refuses an ordinary user's.
pub(super) fn view(mounts: &MountTable, folder: &Path, number: usize) -> Result<FolderView, StepError> {
    if let Some(mount) = mounts.below(folder).next() {
        let (folder, path) = (folder.display(), mount.path.display());
        let refused = io::Error::from_raw_os_error(libc::EINVAL);
        return Err(named(&format!("{MOUNTED_BELOW_STEP} {folder} ({path})"), &refused));
    }
    let plain = folder.is_absolute() && !folder.components().any(|part| part == Component::ParentDir);
    let source = plain
        .then(|| format!("{}{}", paths::host(), folder.display()))
        .ok_or_else(|| named("name the folder to attach", &io::Error::from_raw_os_error(libc::EINVAL)))?;
    let attachment = plan::attach(&source, number)
        .ok_or_else(|| named("find a free mount point", &io::Error::from_raw_os_error(libc::ENOSPC)))?;
    let mount = view_of(&attachment.source).map_err(|error| named("make a view of the folder", &error))?;
    Ok(FolderView {
        mount,
        path: attachment.path,
    })
}

/// Makes a detached read-only overlay of a folder.
fn view_of(source: &str) -> io::Result<OwnedFd> {
    put(&single_copy_of(source)?, paths::ATTACHED_FOLDER)?;
    let view = overlay(paths::ATTACHED_FOLDER, None);
    unmount(paths::ATTACHED_FOLDER, UnmountFlags::DETACH)?;
    view
}

fn move_in(view: &FolderView, namespaces: &ForFolders) -> io::Result<()> {
    match fork(0, SIGCHLD, None)? {
        Forked::Child => {
            let moved = move_into_link_name_space(namespaces.user.as_fd(), Some(LinkNameSpaceType::User))
                .and_then(|()| move_into_link_name_space(namespaces.mount.as_fd(), Some(LinkNameSpaceType::Mount)))
                .map_err(io::Error::from)
                .and_then(|()| put(&view.mount, &view.path));
            exit_now(moved.map_or_else(|error| error.raw_os_error().unwrap_or(UNKNOWN_ERROR_STATUS), |()| 0))
        }
        Forked::Parent { pidfd, .. } => {
            let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?;
            match status.and_then(|status| status.exit_status()) {
                Some(0) => Ok(()),
                Some(number) if number != UNKNOWN_ERROR_STATUS => Err(io::Error::from_raw_os_error(number)),
                Some(_) | None => Err(io::Error::from_raw_os_error(libc::ECHILD)),
            }
        }
    }
}
