//! The JSON types of checkpoints.

use sandcell_engine::{ChangesView, CheckpointMade, CheckpointView, RewindView};
use sandcell_sandbox::rfc3339_millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    checkpoint: Checkpoint,
    /// Sorted by path.
    files: Vec<ChangedFile>,
    /// The number of further files.
    omitted: u64,
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
            checkpoint: Checkpoint::from(&view.checkpoint),
            files: view.files.iter().map(file).collect(),
            omitted: view.omitted,
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
