//! The engine's calls about checkpoints, changed files and alternatives.

use sandcell_sandbox::Failure;
use tokio_util::sync::CancellationToken;

use crate::{
    AlternativesRequest, AlternativesView, ChangesView, CheckpointMade, CheckpointView, CommitAuthority,
    CommitQuestion, CommitRequest, CommitView, Engine, Principal, RewindTo, RewindView, SaveRequest, SavedView,
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

    /// Returns the private files of a sandbox that differ from those of a checkpoint, and the files of copy-on-write mounts
    /// that differ from the host's, at most `max` of each. Without a checkpoint: only those of mounts.
    ///
    /// # Errors
    /// When there is no such sandbox or checkpoint, or without a checkpoint if the sandbox has no such mount.
    pub async fn changes(
        &self,
        principal: &Principal,
        sandbox: Option<&str>,
        since: Option<&RewindTo>,
        max: usize,
    ) -> Result<ChangesView, Failure> {
        self.executions.sandboxes.changes(principal, sandbox, since, max).await
    }

    /// Applies the changes of a sandbox in its copy-on-write mounts to the host's folders. Each change is applied or refused
    /// with a reason.
    ///
    /// # Errors
    /// When there is no such sandbox, no mount allows commits, code runs in the sandbox, or the authority does not cover these
    /// changes. Nothing is changed then.
    pub async fn commit(
        &self,
        principal: &Principal,
        sandbox: Option<&str>,
        request: &CommitRequest,
        authority: CommitAuthority,
    ) -> Result<CommitView, Failure> {
        let sandboxes = &self.executions.sandboxes;
        sandboxes.commit(principal, sandbox, request, authority).await
    }

    /// Returns the question about a commit to a person. None: there is nothing to apply.
    ///
    /// # Errors
    /// As [`Engine::commit`].
    pub async fn commit_question(
        &self,
        principal: &Principal,
        sandbox: Option<&str>,
        request: &CommitRequest,
    ) -> Result<Option<CommitQuestion>, Failure> {
        let sandboxes = &self.executions.sandboxes;
        sandboxes.commit_question(principal, sandbox, request).await
    }

    /// Saves the state of a sandbox, or of a checkpoint of it, under a name: the variables of its Python session and its
    /// private files. New sandboxes can go on from it ([`CreateFrom::Saved`](crate::CreateFrom::Saved)), also after the end
    /// of the server. One of the same name is replaced.
    ///
    /// # Errors
    /// When there is no such sandbox, code runs in it, or its state cannot be saved. Nothing is changed then.
    pub async fn save(&self, principal: &Principal, req: &SaveRequest) -> Result<SavedView, Failure> {
        self.executions.sandboxes.save(principal, req).await
    }

    /// Returns the saved states of a principal, by name.
    ///
    /// # Errors
    /// When the data folder cannot be read.
    pub async fn saved(&self, principal: &Principal) -> Result<Vec<SavedView>, Failure> {
        self.executions.sandboxes.saved(principal).await
    }

    /// Removes a saved state. Sandboxes that went on from it stay.
    ///
    /// # Errors
    /// When there is no such state.
    pub async fn drop_saved(&self, principal: &Principal, name: &str) -> Result<(), Failure> {
        self.executions.sandboxes.drop_saved(principal, name).await
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
