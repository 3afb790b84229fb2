//! The result of the preparation. `root_setup` makes it once in the launcher, and all forks inherit it.

use std::os::fd::OwnedFd;

use super::mount_table::MountTable;
use super::private_folders::PrivateFolders;
use crate::cgroup::{Groups, Instance};
use crate::plan::Host;
use crate::spec::Template;
use crate::wire::Report;

/// The result of the preparation.
pub(in crate::launcher) struct Prepared {
    pub(in crate::launcher) host: Host,
    pub(in crate::launcher) mounts: MountTable,
    pub(in crate::launcher) template: Template,
    pub(in crate::launcher) groups: Option<Groups>,
    /// This launcher's identity among those that create groups in the same folder.
    pub(in crate::launcher) instance: Option<Instance>,
    /// Folders of dead launchers that could not be removed yet.
    pub(in crate::launcher) leftovers: Vec<String>,
    pub(in crate::launcher) report: Report,
    /// This process's ids on the host. Sandboxes run with them if the server is not root.
    pub(in crate::launcher) ids: (u32, u32),
    /// The shared user namespace above those of all sandboxes, from which workers enter. None if no worker enters.
    pub(in crate::launcher) shared_userns: Option<OwnedFd>,
    /// The private folders of sandboxes without namespaces. None with namespaces.
    pub(in crate::launcher) private_folders: Option<PrivateFolders>,
    /// True if this kernel has time namespaces.
    pub(in crate::launcher) time_namespaces: bool,
}
