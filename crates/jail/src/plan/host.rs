//! The host's files that sandboxes see, as prepared by the launcher.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::plan::Machine;

/// The launcher's description of the host, made once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Host {
    /// The host's trees that sandboxes see, each before the trees within it.
    pub trees: Vec<Tree>,
    /// A folder in the launcher's root with copies of files that are mounted on single files. None if there are none.
    pub files: Option<String>,
    /// Trees so small that each sandbox's root has a copy instead of a mount.
    pub copied: Vec<String>,
    /// Top-level links such as `/bin -> usr/bin`.
    pub links: Vec<(String, String)>,
    /// Covered folders of the host's /usr, since no program inside needs them.
    pub covered: Vec<String>,
    /// The operator's folders.
    pub mounts: Vec<Folder>,
    /// True if the launcher is the machine's root.
    pub root: bool,
    /// True if a cgroup charges memory.
    pub memory_is_charged: bool,
    /// True if the server has root's id and cannot give sandboxes different ids. Files of undumpable processes in /proc
    /// belong to root, so the first process's would be open to the code.
    pub first_is_reached: bool,
    /// True if first processes inherit a filter from the fork server.
    pub first_is_filtered: bool,
    /// Without namespaces: the host's readable files, by host path.
    pub readable: Vec<String>,
    /// The machine. Each sandbox sees its share of it.
    pub machine: Machine,
    /// The source of the root's files.
    pub shows: Shows,
}

/// A tree of the host's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The way in which it is shown.
    pub view: View,
    /// Its path inside.
    pub path: String,
    /// The mounts within it, each before those within itself.
    pub inner: Vec<Inner>,
}

/// The way in which a sandbox sees a host tree. Sources are folders in the launcher's root (such as `/l/0`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// Through a separate overlay for each sandbox, so that locks, leases and watches stay inside.
    Overlay(String),
    /// As `Overlay`, with one of the launcher's folders as an additional lower layer. Its files are visible where the
    /// host has none of that name.
    OverlayWith {
        /// The host's files.
        source: String,
        /// The launcher's folder.
        below: String,
    },
    /// By a bind mount. File locks and watches on it cross between sandboxes. Only used for system files that an
    /// ordinary user cannot show through an overlay.
    Bind(String),
}

/// A mount within a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inner {
    /// Its content.
    pub view: InnerView,
    /// Its mount point, relative to the tree.
    pub path: PathBuf,
}

/// The content of a mount within a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InnerView {
    /// A folder, as a separate tree.
    Tree(View),
    /// The file of this name in [`Host::files`].
    File(String),
    /// An empty folder or file instead of a mount that sandboxes may not see. The files below that mount stay hidden.
    Covered,
}

impl View {
    /// Returns the source folder with the host's files.
    #[must_use]
    pub fn source(&self) -> &str {
        match self {
            Self::Overlay(source) | Self::OverlayWith { source, .. } | Self::Bind(source) => source,
        }
    }
}

impl Tree {
    /// Returns the source folders of the tree and of the mounts within it, the tree's first.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &str> {
        let inner = self.inner.iter().filter_map(|inner| match &inner.view {
            InnerView::Tree(view) => Some(view.source()),
            InnerView::File(_) | InnerView::Covered => None,
        });
        std::iter::once(self.view.source()).chain(inner)
    }
}

/// An operator's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    /// Its files.
    pub tree: Tree,
    /// True if the sandbox sees a private copy that it can change.
    pub copy_on_write: bool,
}

/// The source of a sandbox's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Shows {
    /// The host's system files.
    #[default]
    System,
    /// The tree of an image, at [`super::paths::IMAGE_TREE`], and nothing of the host's.
    Image,
}
