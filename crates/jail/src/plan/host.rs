//! What sandboxes see of the host, as the launcher has prepared it.

use serde::{Deserialize, Serialize};

/// What the launcher found on the host, once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Host {
    /// The host's files that sandboxes see, each tree before those that lie within it.
    pub trees: Vec<Tree>,
    /// What is so small that each sandbox's root has a copy of it instead of a tree of its own.
    pub copied: Vec<String>,
    /// Top-level links such as `/bin -> usr/bin`.
    pub links: Vec<(String, String)>,
    /// Folders of the host's /usr that are covered, since nothing inside needs them.
    pub covered: Vec<String>,
    /// The operator's folders, each before those that lie within it.
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
    /// What the root shows.
    pub shows: Shows,
}

/// A read-only tree of the host's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// How it is shown.
    pub view: View,
    /// Its path inside.
    pub path: String,
}

/// How a sandbox sees a tree of the host's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// Through an overlay of the sandbox's own, so that locks, leases and watches stay inside.
    Overlay(Lowers),
    /// By a bind mount. File locks and watches on it cross between sandboxes: only for what an ordinary user cannot show
    /// through an overlay.
    Bind(String),
    /// An empty folder or file in place of a mount that is not shown, so that what the mount hides stays hidden.
    Nothing,
}

impl View {
    /// The files of the host that it shows, in the launcher's root.
    #[must_use]
    pub fn source(&self) -> Option<&str> {
        match self {
            Self::Overlay(lowers) => Some(&lowers.source),
            Self::Bind(source) => Some(source),
            Self::Nothing => None,
        }
    }
}

/// The lower directories of an overlay, in the launcher's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lowers {
    /// The files of the host (such as `/l/0`).
    pub source: String,
    /// Files over those: copies of what is mounted on single files.
    pub files: Option<String>,
}

impl Lowers {
    /// Of the files of the host alone.
    #[must_use]
    pub fn of(source: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            files: None,
        }
    }

    /// As the option `lowerdir` takes them, the uppermost first.
    pub(crate) fn option(&self) -> String {
        match &self.files {
            Some(files) => format!("{files}:{}", self.source),
            None => self.source.clone(),
        }
    }
}

/// An operator's folder, or one that is mounted below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    /// How it is shown where it is read-only; what is copy-on-write is always an overlay.
    pub view: View,
    /// Its path inside.
    pub path: String,
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
