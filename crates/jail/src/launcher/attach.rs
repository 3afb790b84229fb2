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

use super::mount_table::MountTable;
use super::namespaces::ForFolders;
use super::root_setup::single_copy_of;
use crate::paths;
use crate::plan;
use crate::steps::{attach as put, overlay};
use crate::sys::clone::{Forked, exit_now, fork};
use crate::wire::{MOUNTED_BELOW_STEP, StepError};

const SIGCHLD: u64 = 17;
/// The exit status of a fork whose error has no system number.
const UNKNOWN_ERROR_STATUS: i32 = 255;

/// A folder that is not mounted yet.
pub(super) struct View {
    /// The detached overlay.
    pub(super) mount: OwnedFd,
    /// Its path inside.
    pub(super) path: String,
}

/// Attaches `folder` as number `number` to the sandbox with these namespaces.
pub(super) fn attach(
    mounts: &MountTable,
    namespaces: &ForFolders,
    folder: &Path,
    number: usize,
) -> Result<(), StepError> {
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
pub(super) fn view(mounts: &MountTable, folder: &Path, number: usize) -> Result<View, StepError> {
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
    Ok(View {
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

fn move_in(view: &View, namespaces: &ForFolders) -> io::Result<()> {
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
