//! Files of a sandbox. Their paths have a meaning only inside it.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::{FileError, ImageFile, SandboxError};

/// The sandbox user's home folder; relative paths start here.
pub const HOME: &str = "/home/user";

/// An absolute path inside a sandbox: no NUL, no `..`, at most 4,095 bytes, each name at most 255 bytes.
///
/// It is never used as a path on the host. The agent opens it below the sandbox's root.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct SandboxPath(String);

/// The reason why a text is not a path inside a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message says what it is")]
pub enum PathError {
    #[error("the path is empty")]
    Empty,
    #[error("the path contains a NUL character")]
    Nul,
    #[error("the path contains '..'")]
    ParentReference,
    #[error("the path has {0} bytes; at most 4095 are possible")]
    TooLong(usize),
    #[error("a name in the path has {0} bytes; at most 255 are possible")]
    NameTooLong(usize),
}

impl SandboxPath {
    /// Parses a path as a caller gives it. Relative paths start at [`HOME`]. `.` and doubled slashes are dropped.
    ///
    /// # Errors
    /// [`PathError`] names the problem.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if text.is_empty() {
            return Err(PathError::Empty);
        }
        if text.contains('\0') {
            return Err(PathError::Nul);
        }
        let (start, rest) = match text.strip_prefix("~/") {
            Some(rest) => (HOME, rest),
            None if text == "~" => (HOME, ""),
            None if text.starts_with('/') => ("", text),
            None => (HOME, text),
        };
        let mut path = String::from(start);
        for name in rest.split('/') {
            match name {
                "" | "." => {}
                ".." => return Err(PathError::ParentReference),
                _ if name.len() > 255 => return Err(PathError::NameTooLong(name.len())),
                _ => {
                    path.push('/');
                    path.push_str(name);
                }
            }
        }
        if path.is_empty() {
            path.push('/');
        }
        if path.len() > 4095 {
            return Err(PathError::TooLong(path.len()));
        }
        Ok(Self(path))
    }

    /// Returns the home folder.
    #[must_use]
    pub fn home() -> Self {
        Self(HOME.to_owned())
    }

    /// Returns the absolute path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the last name, or `/`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("/")
    }
}

impl std::fmt::Display for SandboxPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The type of a folder entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum EntryKind {
    File,
    Folder,
    Link,
    Other,
}

/// One entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its path relative to the listed folder; its last name where it was asked for alone. Bytes that are not UTF-8
    /// appear as `\xNN`, and the file can be read by that name.
    pub name: String,
    /// Its type; links are not followed.
    pub kind: EntryKind,
    /// The target of a link, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Size in bytes.
    pub size: u64,
    /// Modification time in milliseconds since 1970 (UTC).
    pub modified_ms: i64,
    /// The permission bits, such as `0o644`.
    #[serde(default)]
    pub mode: u32,
    /// The owner's user id inside the sandbox.
    #[serde(default)]
    pub user: u32,
    /// The group id inside the sandbox.
    #[serde(default)]
    pub group: u32,
}

/// The entries of a folder. Their number is bounded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// Sorted by name.
    pub entries: Vec<Entry>,
    /// The number of entries beyond the bound (a lower bound if `recursive`).
    pub omitted: u64,
}

/// A piece of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChunk {
    /// The bytes from the requested offset.
    pub bytes: Bytes,
    /// The size of the whole file at the time of reading.
    pub total: u64,
}

/// The treatment of a file's old content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteMode {
    /// The file has exactly the new bytes afterwards. If the write fails, it is unchanged.
    Replace,
    /// The new bytes follow the old ones.
    Append,
}

/// The kind of a change in a watched folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It was made, or moved here.
    Create,
    /// Its contents changed.
    Write,
    /// It was removed.
    Remove,
    /// It was moved away from this name.
    Rename,
    /// Its permissions or other attributes changed.
    Chmod,
    /// Changes were lost, since they came faster than they were read. The name is empty.
    Overflow,
}

/// A change in a watched folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// The kind.
    pub kind: ChangeKind,
    /// The path of the changed file, relative to the watched folder.
    pub name: String,
}

/// A watched folder. Dropping it ends the watch.
#[derive(Debug)]
pub struct FileWatch {
    changes: mpsc::Receiver<FileChange>,
}

impl FileWatch {
    /// Makes a watch of a source of changes. The source ends the watch when the channel is closed.
    #[must_use]
    pub const fn new(changes: mpsc::Receiver<FileChange>) -> Self {
        Self { changes }
    }

    /// Returns the next change. None: the folder is gone, or the sandbox has ended.
    pub async fn next(&mut self) -> Option<FileChange> {
        self.changes.recv().await
    }
}

/// The files of one sandbox, opened with the sandbox's rights. Links are followed inside the sandbox only. FIFOs,
/// devices, sockets and pseudo file systems are refused.
#[async_trait]
pub trait Files: Send + Sync {
    /// Lists a folder; at most `max` entries. `recursive` descends at most 16 levels and never through links.
    async fn list(&self, path: &SandboxPath, recursive: bool, max: usize) -> Result<Listing, FileError>;

    /// Reads at most `len` bytes from `offset`.
    async fn read(&self, path: &SandboxPath, offset: u64, len: u64) -> Result<FileChunk, FileError>;

    /// Writes a file and creates missing parent folders. Returns the file's new size.
    async fn write(&self, path: &SandboxPath, bytes: Bytes, mode: WriteMode) -> Result<u64, FileError>;

    /// Describes a file or folder. A link is described itself, not its target.
    async fn entry(&self, path: &SandboxPath) -> Result<Entry, FileError>;

    /// Makes a folder and its missing parents. Returns false if the folder was there already.
    async fn make_folder(&self, path: &SandboxPath) -> Result<bool, FileError>;

    /// Gives a file, folder or link another path, as rename(2) does: it replaces a file at that path. Missing parent
    /// folders are not made.
    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), FileError>;

    /// Removes a file, a link itself, or a folder with everything in it.
    async fn remove(&self, path: &SandboxPath) -> Result<(), FileError>;

    /// Watches a folder; `recursive` with the folders in it.
    async fn watch(&self, _path: &SandboxPath, _recursive: bool) -> Result<FileWatch, FileError> {
        Err(SandboxError::Unsupported("watching folders".to_owned()).into())
    }
}

/// The size of a saved state of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SavedSize {
    /// The number of files and folders.
    pub files: u64,
    /// The size of the files in bytes.
    pub bytes: u64,
    /// The bytes that no earlier saved state has.
    pub held: u64,
}

/// The differences between the private files and a saved state.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SavedChanges {
    /// Sorted by path.
    pub changes: Vec<SavedChange>,
    /// The number of differences beyond the bound.
    pub omitted: u64,
}

/// A file or folder that differs from a saved state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedChange {
    /// Its absolute path inside the sandbox, in the notation of [`Entry::name`].
    pub path: String,
    /// The difference.
    pub kind: SavedChangeKind,
    /// Its size now, in bytes. 0 for removed ones, folders and links.
    pub bytes: u64,
    /// Its size in the saved state, in bytes.
    pub bytes_before: u64,
}

/// A kind of difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum SavedChangeKind {
    Created,
    Modified,
    Removed,
}

impl SavedChangeKind {
    /// Returns its name in results.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Modified => "modified",
            Self::Removed => "removed",
        }
    }
}

/// Saved states of a sandbox's private files. Each has a number, which the caller chooses and uses once.
#[async_trait]
pub trait SavedFiles: Send + Sync {
    /// Saves the files below these folders: at most `max_bytes`, and 20,000 files and folders.
    ///
    /// # Errors
    /// There are more.
    async fn save(&self, number: u32, folders: &[SandboxPath], max_bytes: u64) -> Result<SavedSize, SandboxError>;

    /// Makes the files those of a saved state. Returns the number of entries that were written or removed.
    ///
    /// # Errors
    /// A file could not be written. The files before it are restored.
    async fn restore(&self, number: u32) -> Result<u64, SandboxError>;

    /// Drops a saved state. Returns the bytes that each of the others holds now, by its number.
    async fn forget(&self, number: u32) -> Result<BTreeMap<u32, u64>, SandboxError>;

    /// Compares the files with a saved state.
    async fn changes(&self, number: u32, max: usize) -> Result<SavedChanges, SandboxError>;

    /// Copies a saved state out of the sandbox, at most `max_bytes`.
    async fn image(&self, _number: u32, _max_bytes: u64) -> Result<ImageFile, SandboxError> {
        Err(SandboxError::Unsupported("images of a sandbox's files".to_owned()))
    }

    /// Reads at most `len` bytes from `offset` of a file, as a saved state has it.
    async fn read(&self, number: u32, path: &SandboxPath, offset: u64, len: u64) -> Result<FileChunk, FileError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_start_at_home_and_dots_vanish() {
        for (given, expected) in [
            ("a.txt", "/home/user/a.txt"),
            ("./a//b/", "/home/user/a/b"),
            ("/tmp/x", "/tmp/x"),
            ("~/x", "/home/user/x"),
            ("/", "/"),
            (".", "/home/user"),
        ] {
            assert_eq!(
                SandboxPath::parse(given).map(|p| p.as_str().to_owned()),
                Ok(expected.to_owned())
            );
        }
    }

    #[test]
    fn an_invalid_path_is_refused_with_the_reason() {
        assert_eq!(SandboxPath::parse(""), Err(PathError::Empty));
        assert_eq!(SandboxPath::parse("a\0b"), Err(PathError::Nul));
        assert_eq!(SandboxPath::parse("a/../b"), Err(PathError::ParentReference));
        assert_eq!(SandboxPath::parse(&"n".repeat(300)), Err(PathError::NameTooLong(300)));
        assert_eq!(SandboxPath::parse(&"n/".repeat(3000)), Err(PathError::TooLong(6010)));
    }
}
