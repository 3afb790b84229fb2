//! The private layers of a sandbox's copy-on-write mounts.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::SandboxError;

/// The maximum number of entries in one answer.
pub const MAX_LAYER_ENTRIES: usize = 50_000;

/// The private layers of a sandbox's copy-on-write mounts: what the sandbox has changed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LayerEntries {
    /// Sorted by path: a folder precedes its entries.
    pub entries: Vec<LayerEntry>,
    /// The number of further entries (a lower bound), and of folders that could not be read.
    pub omitted: u64,
}

/// An entry of a private layer. A folder is in it as well if only something below it has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerEntry {
    /// Its absolute path inside the sandbox, in the notation of [`Entry::name`](crate::Entry::name).
    pub path: String,
    /// True if the path, or the target of the link, is not UTF-8, so that the text is another notation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub escaped: bool,
    /// True for a file or folder that was made of one of the host: by its first change, and for a file perhaps by a new name
    /// after that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub copied: bool,
    /// True for a folder that hides the entries of the host's folder.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hides: bool,
    /// The entry. None: the host's entry of this name is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<MountEntry>,
}

/// An entry of a mount, on one side of the comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountEntry {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: MountEntryKind,
    /// Its size in bytes. 0 for everything but files.
    pub bytes: u64,
    /// The permission bits, such as `0o644`.
    pub mode: u32,
    /// The time of its last modification, in nanoseconds since 1970 (UTC).
    pub modified_ns: i64,
    /// The target of a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// The type of an entry in a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum MountEntryKind {
    File,
    Folder,
    Link,
    Fifo,
    Socket,
    Device,
}

impl MountEntryKind {
    /// Returns its name in results.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Folder => "folder",
            Self::Link => "link",
            Self::Fifo => "FIFO",
            Self::Socket => "socket",
            Self::Device => "device",
        }
    }
}

/// The private layers of a sandbox's copy-on-write mounts.
#[async_trait]
pub trait MountLayers: Send + Sync {
    /// Lists the entries, with the sandbox's own rights. Returns at most `max`.
    async fn entries(&self, max: usize) -> Result<LayerEntries, SandboxError>;
}
