//! What sandboxes see of the host, as the launcher has prepared it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;

/// What the launcher found on the host, once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Host {
    /// The host's files that sandboxes see, each tree before those that lie within it.
    pub trees: Vec<Tree>,
    /// A folder in the launcher's root with copies of files that are mounted on single files; none if there are none.
    pub files: Option<String>,
    /// What is so small that each sandbox's root has a copy of it instead of a tree of its own.
    pub copied: Vec<String>,
    /// Top-level links such as `/bin -> usr/bin`.
    pub links: Vec<(String, String)>,
    /// Folders of the host's /usr that are covered, since nothing inside needs them.
    pub covered: Vec<String>,
    /// The operator's folders.
    pub mounts: Vec<Folder>,
    /// Whether the launcher is the machine's root.
    pub root: bool,
    /// Whether a control group counts memory.
    pub memory_is_charged: bool,
    /// Whether sandboxes have root's id without being given one of their own: hidden processes' files are root's, and so
    /// the first process' would be open to the code.
    pub first_is_reached: bool,
    /// Without namespaces: what of the host's files can be read, at the host's paths.
    pub readable: Vec<String>,
    /// The machine, of which each sandbox is told its part.
    pub machine: Machine,
    /// What the root shows.
    pub shows: Shows,
}

/// A tree of the host's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// How it is shown.
    pub view: View,
    /// Its path inside.
    pub path: String,
    /// What is mounted within it, each before those within itself.
    pub inner: Vec<Inner>,
}

/// How a sandbox sees a tree of the host's. Sources are folders in the launcher's root (such as `/l/0`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// Through an overlay of the sandbox's own, so that locks, leases and watches stay inside.
    Overlay(String),
    /// The same, with a folder of the launcher's below it: what is in that folder is seen where the host has nothing of that
    /// name.
    OverlayWith {
        /// The host's files.
        source: String,
        /// The launcher's folder.
        below: String,
    },
    /// By a bind mount. File locks and watches on it cross between sandboxes: only for system files that an ordinary user
    /// cannot show through an overlay.
    Bind(String),
}

/// A mount within a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inner {
    /// What it shows.
    pub view: InnerView,
    /// Its mount point, relative to the tree.
    pub path: PathBuf,
}

/// What a mount within a tree shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InnerView {
    /// A folder, as a tree of its own.
    Tree(View),
    /// The file of this name in [`Host::files`].
    File(String),
    /// An empty folder or file in place of a mount that sandboxes may not see. What that mount hides stays hidden.
    Covered,
}

impl View {
    /// The files of the host that it shows.
    #[must_use]
    pub fn source(&self) -> &str {
        match self {
            Self::Overlay(source) | Self::OverlayWith { source, .. } | Self::Bind(source) => source,
        }
    }
}

impl Tree {
    /// The folders of the host that it shows, its own first.
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
    /// Whether the sandbox sees a private copy that it can change.
    pub copy_on_write: bool,
}

/// Where the programs of a sandbox come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Shows {
    /// The host's system files.
    #[default]
    System,
    /// The tree of an image, at [`super::place::IMAGE`], and nothing of the host's.
    Image,
}
