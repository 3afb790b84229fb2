//! The engine's calls about checkpoints and alternatives.

use sandcell_sandbox::Failure;
use tokio_util::sync::CancellationToken;

use crate::{
    AlternativesRequest, AlternativesView, ChangesView, CheckpointMade, CheckpointView, Engine, Principal, RewindTo,
    RewindView,
};

impl Engine {
    /// Keeps the state of a sandbox (the default one if none is named): the variables of its sessions and its private
    /// files. A checkpoint of the same name is replaced. Without a name the engine chooses one.
    ///
    /// # Errors
    /// When there is no such sandbox, code runs in it, or its state cannot be kept. Nothing is changed then.
    pub async fn checkpoint(
        &self,
        principal: &Principal,
        sandbox: Option<&str>,
        name: Option<&str>,
    ) -> Result<CheckpointMade, Failure> {
        self.executions.sandboxes.checkpoint(principal, sandbox, name).await
    }

    /// Returns the checkpoints of a sandbox, oldest first.
    ///
    /// # Errors
    /// When there is no such sandbox.
    pub async fn checkpoints(
        &self,
        principal: &Principal,
        sandbox: Option<&str>,
    ) -> Result<Vec<CheckpointView>, Failure> {
        self.executions.sandboxes.checkpoints(principal, sandbox).await
    }

    /// Drops a checkpoint.
    ///
    /// # Errors
    /// When there is no such sandbox or checkpoint, or code runs in the sandbox.
    pub async fn drop_checkpoint(
        &self,
        principal: &Principal,
        sandbox: Option<&str>,
        name: &str,
    ) -> Result<(), Failure> {
        self.executions
            .sandboxes
            .drop_checkpoint(principal, sandbox, name)
            .await
    }

    /// Brings back the variables and files of a checkpoint. The checkpoint stays.
    ///
    /// # Errors
    /// When there is no such sandbox or checkpoint, or code runs in the sandbox. Nothing is changed then. Other failures
    /// name what could not be restored.
    pub async fn rewind(
        &self,
        principal: &Principal,
        sandbox: Option<&str>,
        to: &RewindTo,
    ) -> Result<RewindView, Failure> {
        self.executions.sandboxes.rewind(principal, sandbox, to).await
    }

    /// Returns the private files of a sandbox that differ from those of a checkpoint, at most `max`.
    ///
    /// # Errors
    /// When there is no such sandbox or checkpoint.
    pub async fn changes(
        &self,
        principal: &Principal,
        sandbox: Option<&str>,
        since: &RewindTo,
        max: usize,
    ) -> Result<ChangesView, Failure> {
        self.executions.sandboxes.changes(principal, sandbox, since, max).await
    }

    /// Runs several pieces of code, each from the current state of a sandbox. Afterwards the sandbox has that state again.
    /// The state after each piece is a checkpoint.
    ///
    /// # Errors
    /// When the state cannot be kept; then nothing has run. When the sandbox ends meanwhile.
    pub async fn try_alternatives(
        &self,
        principal: &Principal,
        req: AlternativesRequest,
        cancel: CancellationToken,
    ) -> Result<AlternativesView, Failure> {
        self.executions.try_alternatives(principal, req, cancel).await
    }
}
