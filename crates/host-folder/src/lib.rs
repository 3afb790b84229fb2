//! Changes below one folder of the host, for commits.
//!
//! The decision taken here: every path is opened below the folder with `openat2`, never through a link and never into
//! another file system. A file is replaced by a finished one with the same name, so a reader sees the old content or the
//! new one. A change names the state that it replaces, and fails if the host's state differs.
//!
//! It knows no sandboxes and decides nothing about changes. Operating systems other than Linux have none of these calls:
//! there a folder cannot be opened.
#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod new_file;
#[cfg(target_os = "linux")]
mod place;
#[cfg(not(target_os = "linux"))]
mod unsupported;

#[cfg(target_os = "linux")]
pub use linux::HostFolder;
#[cfg(target_os = "linux")]
pub use new_file::NewFile;
#[cfg(not(target_os = "linux"))]
pub use unsupported::{HostFolder, NewFile};

/// The permission bits that give a program the rights of its file's owner or group.
pub const SET_ID_BITS: u32 = 0o6000;

/// The type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum HostKind {
    File,
    Folder,
    Link,
    Other,
}

/// The state of an entry of the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostStatus {
    /// Its type.
    pub kind: HostKind,
    /// Its size in bytes.
    pub bytes: u64,
    /// The permission bits, such as `0o644`.
    pub mode: u32,
    /// The target of a link.
    pub target: Option<Vec<u8>>,
    /// The time of the last change of its content, in nanoseconds since 1970.
    pub modified_ns: i128,
    /// The time of the last change of its content or attributes, in nanoseconds since 1970.
    pub changed_ns: i128,
    /// The file system, the number in it, and the owner: two states with different values are different entries.
    pub identity: (u64, u64, u32, u32),
}

/// The reasons why the folder cannot be read or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// A part of the path is a link, or the path leads out of the folder.
    #[error("its path leads through a link on the host")]
    Link,
    /// The parent is no folder, or there is none.
    #[error("the folder that it is in does not exist on the host")]
    NoParent,
    /// Another file system is mounted there.
    #[error("another file system is mounted there on the host")]
    OtherFileSystem,
    /// The host's entry is not the expected one.
    #[error("the host's entry has changed in the meantime")]
    Changed,
    /// A folder that is to be removed has entries.
    #[error("the host's folder has other entries")]
    NotEmpty,
    /// The server's user has no right to do this.
    #[error("the server's user may not change it")]
    Denied,
    /// The owner of a file cannot be kept.
    #[error("its owner on the host could not be kept")]
    Owner,
    /// The file system is read-only.
    #[error("the host's file system is read-only")]
    ReadOnly,
    /// The file system is full.
    #[error("the host's disk is full")]
    DiskFull,
    /// The file is too large for the file system or the server's limit.
    #[error("it is too large for the host's file system")]
    TooLarge,
    /// A name is too long for the file system.
    #[error("its name is too long for the host's file system")]
    NameTooLong,
    /// The operating system has none of the necessary calls.
    #[error("changes can be applied on Linux only")]
    Unsupported,
    /// Anything else, as the system describes it.
    #[error("the host's file system reports: {0}")]
    Other(String),
}
