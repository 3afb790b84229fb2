//! The JSON types of checkpoints.

use std::collections::BTreeMap;

use sandcell_engine::{ChangesView, CheckpointMade, CheckpointView, RewindView, SavedView};
use sandcell_sandbox::rfc3339_millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MountChanges;

/// A request for a checkpoint.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateCheckpoint {
    /// Its name: letters, digits, `-`, `_` and `.`. A checkpoint of the same name is replaced. The server chooses a name
    /// if left out.
    #[serde(default)]
    pub(crate) name: Option<String>,
}

/// A request for branches: new sandboxes with the variables and files of a sandbox.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateBranches {
    /// The number of branches; 1 if left out. The server makes all of them or none.
    #[serde(default)]
    pub(crate) count: Option<u32>,
    /// The name of a checkpoint of the sandbox, not of an automatic one. If left out, they go on from its current state.
    #[serde(default)]
    pub(crate) checkpoint: Option<String>,
    /// They end after this many seconds even when they are in use.
    #[serde(default)]
    pub(crate) lifetime_s: Option<f64>,
    /// A name for people.
    #[serde(default)]
    pub(crate) label: Option<String>,
}

/// A state of a sandbox that can be brought back: the variables of its sessions, and its files.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Checkpoint {
    name: String,
    /// True if the server made it without a request.
    automatic: bool,
    created_at: String,
    /// The number of executions of the sandbox that it includes.
    executions: u64,
    /// The last of them.
    execution_id: Option<String>,
    /// The languages of its sessions, with the name of a named session.
    sessions: Vec<String>,
    /// The number of files and folders.
    files: u64,
    file_bytes: u64,
    /// The memory that its end would free, when a checkpoint was last made.
    memory_bytes: u64,
}

/// A new checkpoint.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CreatedCheckpoint {
    checkpoint: Checkpoint,
    /// The names of older checkpoints that were dropped to make room.
    dropped: Vec<String>,
}

impl From<CheckpointMade> for CreatedCheckpoint {
    fn from(made: CheckpointMade) -> Self {
        Self {
            checkpoint: Checkpoint::from(&made.checkpoint),
            dropped: made.dropped,
        }
    }
}

/// The checkpoints of a sandbox.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Checkpoints {
    /// Oldest first.
    pub(crate) checkpoints: Vec<Checkpoint>,
}

/// A request to save the state of a sandbox.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SaveSandbox {
    /// The name: letters, digits, `-`, `_` and `.`. A saved state of the same name is replaced.
    pub(crate) name: String,
    /// The name of a checkpoint of the sandbox. If left out, its current state is saved.
    #[serde(default)]
    pub(crate) checkpoint: Option<String>,
    /// True to leave the variables out.
    #[serde(default)]
    pub(crate) only_files: bool,
}

/// A request for sandboxes that go on from a saved state.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpenSaved {
    /// The number of sandboxes; 1 if left out. The server makes all of them or none.
    #[serde(default)]
    pub(crate) count: Option<u32>,
    /// True for the files without the variables.
    #[serde(default)]
    pub(crate) only_files: bool,
    /// Environment variables of new programs and sessions, next to those of the saved sandbox. The saved session keeps its
    /// `os.environ`.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// Hosts that they may reach. If left out, those of the saved sandbox; `["none"]` means no network.
    #[serde(default)]
    pub(crate) network: Vec<String>,
    /// They end after this many seconds even when they are in use.
    #[serde(default)]
    pub(crate) lifetime_s: Option<f64>,
    /// A name for people.
    #[serde(default)]
    pub(crate) label: Option<String>,
}

/// A state on the server's disk, which new sandboxes can go on from.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Saved {
    name: String,
    created_at: String,
    /// The sandbox that was saved.
    sandbox_id: String,
    /// The number of executions of the sandbox that it includes.
    executions: u64,
    /// The language of the session whose variables it has, with the name of a named session.
    sessions: Vec<String>,
    /// The packages of the sandbox, such as `numpy 2.4.0`.
    packages: Vec<String>,
    /// The size on the disk.
    bytes: u64,
    /// False if the files on the disk are damaged, or of another version of sandcell: only `name` and `created_at` are
    /// known.
    readable: bool,
}

/// The saved states of the caller.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SavedStates {
    /// By name.
    pub(crate) saved: Vec<Saved>,
}

impl From<&SavedView> for Saved {
    fn from(view: &SavedView) -> Self {
        Self {
            name: view.name.clone(),
            created_at: rfc3339_millis(view.created),
            sandbox_id: view.sandbox_id.clone(),
            executions: view.executions,
            sessions: view.sessions.clone(),
            packages: view.packages.clone(),
            bytes: view.bytes,
            readable: view.is_readable,
        }
    }
}

/// A dropped checkpoint.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DroppedCheckpoint {
    /// Its name.
    pub(crate) dropped: String,
}

/// A request to bring back a checkpoint.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rewind {
    /// The name of a checkpoint, or `-1`: the state before the last execution (`-2`: before the last two).
    pub(crate) to: String,
}

/// A sandbox that is back at a checkpoint.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Rewound {
    sandbox_id: String,
    checkpoint: Checkpoint,
    /// Sessions that were ended because the checkpoint does not have them.
    ended: Vec<String>,
    /// The number of files and folders that were written or removed.
    files_changed: u64,
    /// The number of executions whose effects are gone.
    undone: u64,
    /// False if the checkpoint cannot be used again: a session could not be copied.
    kept: bool,
}

/// The files of a sandbox that differ from those of a checkpoint.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Changes {
    sandbox_id: String,
    /// The checkpoint of the request; null if it names none.
    checkpoint: Option<Checkpoint>,
    /// The private files that differ from those of the checkpoint, sorted by path.
    files: Vec<ChangedFile>,
    /// The number of further files.
    omitted: u64,
    /// The changes in copy-on-write mounts; null if the sandbox has no such mount, or its back end cannot compare them.
    mounts: Option<MountChanges>,
}

/// A file or folder that differs from a checkpoint.
#[derive(Debug, Serialize, JsonSchema)]
struct ChangedFile {
    path: String,
    /// `created`, `modified` or `removed`.
    kind: &'static str,
    /// The size now; 0 for removed files and for folders.
    bytes: u64,
    bytes_before: u64,
    /// The changed lines of a text file as a unified diff; null for other content and for files of more than 256 KiB.
    diff: Option<String>,
}

impl From<&ChangesView> for Changes {
    fn from(view: &ChangesView) -> Self {
        let file = |file: &sandcell_engine::ChangedFile| ChangedFile {
            path: file.change.path.clone(),
            kind: file.change.kind.as_str(),
            bytes: file.change.bytes,
            bytes_before: file.change.bytes_before,
            diff: file.diff.clone(),
        };
        Self {
            sandbox_id: view.sandbox_id.to_string(),
            checkpoint: view.checkpoint.as_ref().map(Checkpoint::from),
            files: view.files.iter().map(file).collect(),
            omitted: view.omitted,
            mounts: view.mounts.as_ref().map(MountChanges::from),
        }
    }
}

impl From<&CheckpointView> for Checkpoint {
    fn from(view: &CheckpointView) -> Self {
        Self {
            name: view.name.clone(),
            automatic: view.automatic,
            created_at: rfc3339_millis(view.created),
            executions: view.executions,
            execution_id: view.execution_id.as_ref().map(ToString::to_string),
            sessions: view.sessions.clone(),
            files: view.files,
            file_bytes: view.file_bytes,
            memory_bytes: view.memory_bytes,
        }
    }
}

impl From<&RewindView> for Rewound {
    fn from(view: &RewindView) -> Self {
        Self {
            sandbox_id: view.sandbox_id.to_string(),
            checkpoint: Checkpoint::from(&view.checkpoint),
            ended: view.ended.clone(),
            files_changed: view.files_changed,
            undone: view.undone,
            kept: view.kept,
        }
    }
}
