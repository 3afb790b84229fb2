//! Requests and answers about checkpoints. Plain data.

use std::collections::BTreeMap;
use std::time::SystemTime;

use sandcell_sandbox::SavedChange;
use serde::Serialize;

use crate::{ExecutionId, MountChangesView, SandboxId};

/// A state of a sandbox that can be brought back: the variables of its sessions, and its private files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointView {
    /// Its name.
    pub name: String,
    /// True if the engine made it without a request.
    pub automatic: bool,
    /// The time when it was made.
    pub created: SystemTime,
    /// The number of executions of the sandbox that it includes.
    pub executions: u64,
    /// The last of them, if there is one.
    pub execution_id: Option<ExecutionId>,
    /// Its sessions: the language, with the name of a named session.
    pub sessions: Vec<String>,
    /// The number of files and folders.
    pub files: u64,
    /// The size of the files in bytes.
    pub file_bytes: u64,
    /// The memory that its end would free, in bytes, when a checkpoint was last made: memory of sessions that they have
    /// changed since, and contents of files that no earlier checkpoint has.
    pub memory_bytes: u64,
}

/// A new checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointMade {
    /// Its sandbox.
    pub sandbox_id: SandboxId,
    /// The checkpoint.
    pub checkpoint: CheckpointView,
    /// The names of older checkpoints that were dropped for it.
    pub dropped: Vec<String>,
}

/// A state on the disk, which new sandboxes can go on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedView {
    /// Its name.
    pub name: String,
    /// The time when it was saved.
    pub created: SystemTime,
    /// The sandbox that was saved. The history has its executions.
    pub sandbox_id: String,
    /// The number of executions of the sandbox that it includes.
    pub executions: u64,
    /// The session whose variables it has, as in [`CheckpointView::sessions`].
    pub sessions: Vec<String>,
    /// The name of that session, if it has one.
    pub session_name: Option<String>,
    /// The packages of the sandbox, as `name version`.
    pub packages: Vec<String>,
    /// The environment variables of the sandbox.
    pub env: BTreeMap<String, String>,
    /// Its size on the disk, in bytes.
    pub bytes: u64,
    /// False if its description is damaged, or of another version of sandcell. Then only its name and time are known.
    pub is_readable: bool,
}

/// The checkpoint to return to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RewindTo {
    /// The one with this name.
    Named(String),
    /// The one before the last executions of the sandbox, this many.
    Back(u64),
}

impl RewindTo {
    /// Reads `-1` as the state before the last execution, and other text as a name.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text.strip_prefix('-').map(str::parse) {
            Some(Ok(count)) if count > 0 => Self::Back(count),
            _ => Self::Named(text.to_owned()),
        }
    }
}

/// The result of a return to a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RewindView {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The checkpoint.
    pub checkpoint: CheckpointView,
    /// Sessions that were ended because the checkpoint does not have them, as in [`CheckpointView::sessions`].
    pub ended: Vec<String>,
    /// The number of files and folders that were written or removed.
    pub files_changed: u64,
    /// The number of executions whose effects are gone.
    pub undone: u64,
    /// False if the checkpoint cannot be used again: a session could not be copied.
    pub kept: bool,
}

/// The files of a sandbox that differ from those of a checkpoint, and those of copy-on-write mounts that differ from the
/// host's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangesView {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The checkpoint, if the request named one.
    pub checkpoint: Option<CheckpointView>,
    /// The private files and folders that differ from the checkpoint's, sorted by path.
    pub files: Vec<ChangedFile>,
    /// The number of further ones.
    pub omitted: u64,
    /// The changes in copy-on-write mounts. None: the sandbox has no such mount, or cannot compare them.
    pub mounts: Option<MountChangesView>,
}

/// A file or folder that differs from a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedFile {
    /// The difference.
    #[serde(flatten)]
    pub change: SavedChange,
    /// The changed lines as a unified diff. None for other content than text, and for files of more than 256 KiB.
    pub diff: Option<String>,
}
