//! A host folder's view, on its way from the supervisor into a sandbox or a zygote.

use std::os::fd::OwnedFd;

/// A folder that is not mounted yet.
pub(in crate::launcher) struct FolderView {
    /// The detached overlay.
    pub(in crate::launcher) mount: OwnedFd,
    /// Its path inside.
    pub(in crate::launcher) path: String,
}
