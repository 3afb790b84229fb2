//! The request and the answer of a call that tries several pieces of code from the same state. Plain data.

use std::time::Duration;

use sandcell_sandbox::{SavedChanges, Variable};
use serde::Serialize;

use crate::{CheckpointView, ExecutionView, SandboxId};

/// A request to run several pieces of code, each from the current state of a sandbox.
#[derive(Debug, Clone, Default)]
pub struct AlternativesRequest {
    /// The sources.
    pub codes: Vec<String>,
    /// The language's name or alias.
    pub language: String,
    /// The sandbox. None means the caller's default one, which the engine makes if needed.
    pub sandbox_id: Option<String>,
    /// The execution time limit of each.
    pub timeout: Option<Duration>,
    /// The time for all of them. Those that do not fit are ended, or not run.
    pub wait: Option<Duration>,
}

/// What several pieces of code did from the same state. The sandbox is in that state again.
#[derive(Debug, Clone)]
pub struct AlternativesView {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The common state.
    pub base: CheckpointView,
    /// The alternatives in the order of the request.
    pub alternatives: Vec<AlternativeView>,
    /// The names of older checkpoints that were dropped to make room.
    pub dropped: Vec<String>,
}

/// What one piece of code did.
#[derive(Debug, Clone, Default)]
pub struct AlternativeView {
    /// Its execution. None: there was no time for it.
    pub execution: Option<ExecutionView>,
    /// The checkpoint of the state that it left, by which its state can be kept.
    pub checkpoint: Option<String>,
    /// The reason why there is no checkpoint.
    pub not_kept: Option<String>,
    /// Its changes to variables.
    pub variables: Vec<VariableChange>,
    /// Its changes to files.
    pub files: SavedChanges,
}

/// A variable that an execution has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VariableChange {
    /// The kind of change.
    pub change: VariableChangeKind,
    /// The variable; a removed one as it was before.
    #[serde(flatten)]
    pub variable: Variable,
}

/// A kind of change to a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum VariableChangeKind {
    Created,
    Modified,
    Removed,
}
