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

/// The result of a call with alternatives: several pieces of code ran one after another, each from the same state of
/// the sandbox. After the call the sandbox has that state again.
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

/// The result of one alternative: its execution, and its changes to variables and files.
#[derive(Debug, Clone, Default)]
pub struct AlternativeView {
    /// The execution. None if the alternative did not run, because no time was left or the call was cancelled.
    pub execution: Option<ExecutionView>,
    /// The name of the checkpoint of the state after the execution. A rewind to the checkpoint keeps this alternative.
    pub checkpoint: Option<String>,
    /// The reason why there is no checkpoint.
    pub not_kept: Option<String>,
    /// The variables that the execution has changed.
    pub variables: Vec<VariableChange>,
    /// The files that the execution has changed.
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
