//! Paths in the launcher's private root: the host below one folder, the parts of sandboxes below another.

use std::sync::atomic::{AtomicBool, Ordering};

/// Returns the path of the host's root in the launcher: a folder of its private root, or an empty prefix if it
/// could not make a private root. The launcher chooses one of the two during its preparation.
#[must_use]
pub fn host() -> &'static str {
    if AS_IT_IS.load(Ordering::Relaxed) { "" } else { "/host" }
}

/// Declares that the launcher has no private root.
pub(crate) fn host_is_as_it_is() {
    AS_IT_IS.store(true, Ordering::Relaxed);
}

static AS_IT_IS: AtomicBool = AtomicBool::new(false);
/// The parent of the numbered folders with read-only sources. A mount table shows only these short names.
pub const LOWER_FOLDERS: &str = "/l";
/// An empty folder: the second lower layer that an overlay needs.
pub const EMPTY_FOLDER: &str = "/l/none";
/// The parent of the numbered folders with files that only sandboxes have, one for each tree.
pub const ADDED_FILES: &str = "/l/added";
/// The temporary place of a folder while its view for a running sandbox is made.
pub const ATTACHED_FOLDER: &str = "/l/layer";
/// The temporary place of an image's tree while a sandbox is made of it.
pub const IMAGE_TREE: &str = "/l/image";
/// The device nodes.
pub const DEVICE_FOLDER: &str = "/l/dev";
/// The place where a sandbox's root is assembled, over the mount points and the stub of /etc that all sandboxes
/// share.
pub const NEW_ROOT: &str = "/new";
/// The stub of /etc.
pub const ETC_STUB: &str = "/new/etc";
/// The mount point of a sandbox's private files during assembly.
pub const PRIVATE_FILES: &str = "/own";
/// The top layer of a sandbox's root, which only that sandbox has: the files of /sys, and those that cover files of
/// /proc. They are in the root's folder `proc`, which the mount of /proc hides.
pub const TOP_LAYER: &str = "/own/root";
/// The folder with the files that cover others. It is read-only, and locks and watches on these files stay inside.
pub const COVERS: &str = "/new/proc";
/// The empty folder in [`COVERS`].
pub const NO_FOLDER: &str = "none";
/// The empty file in [`COVERS`].
pub const NO_FILE: &str = "nofile";
/// Copies of files that are mounted on single files of the host.
pub const OWN_FILES: &str = "/own/files";
/// The parent of package layers inside a sandbox.
pub const PACKAGE_LAYERS: &str = "/opt/sandcell";
/// The parent of the private layers of copy-on-write mounts inside a sandbox. Each mount has a folder with the read-only
/// folder [`UPPER_LAYER`] and the link [`LAYER_OF`].
pub const MOUNT_LAYERS: &str = "/opt/sandcell/mounts";
/// The private layer of a copy-on-write mount, with everything that the sandbox has changed.
pub const UPPER_LAYER: &str = "upper";
/// A link to the mount whose layer this is.
pub const LAYER_OF: &str = "mount";
