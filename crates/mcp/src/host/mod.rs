//! The engine as the tools see it, as a trait, so that tests of transcripts can use a fake.

mod engine;
#[cfg(test)]
pub(crate) mod fake;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sandcell_engine::{
    BackendView, CommandInput, CommandRequest, Counts, CreateRequest, EngineConfig, ExecuteRequest, ExecutionId,
    ExecutionView, ExpiryNotices, FileAnswer, HistoryPage, HistoryQuery, HistoryView, InstallRequest, KeptExecution,
    KeptPicture, Principal, ResetView, RunRequest, RunningView, SandboxId, SandboxView, SecurityEvent, StdinPart,
    StreamName, StreamSlice, Watch,
};
use sandcell_sandbox::{Capacity, ConsentRequired, Failure, FileChunk, LanguageInfo, Listing, SandboxPath, WriteMode};
use tokio_util::sync::CancellationToken;

pub(crate) use engine::EngineHost;

/// A requested part of a kept stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StreamPart {
    pub(crate) stream: StreamName,
    /// Bytes; negative counts from the end.
    pub(crate) offset: i64,
    pub(crate) limit: u64,
    /// Start at the first line from `offset` on that contains this.
    pub(crate) find: Option<String>,
}

/// The engine, as the tools see it. Each method does the same as the engine's method of that name.
#[async_trait]
pub(crate) trait Host: Send + Sync {
    fn config(&self) -> Arc<EngineConfig>;
    fn languages(&self) -> Vec<LanguageInfo>;
    /// The default language of calls.
    fn default_language(&self) -> &str;
    fn backends(&self) -> Vec<BackendView>;
    fn counts(&self) -> Counts;

    fn capacity(&self) -> Option<Capacity>;
    async fn execute(
        &self,
        who: &Principal,
        request: ExecuteRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure>;
    async fn execute_alone(
        &self,
        who: &Principal,
        request: ExecuteRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure>;
    async fn run_once(
        &self,
        who: &Principal,
        request: RunRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure>;
    async fn start_command(
        &self,
        who: &Principal,
        request: CommandRequest,
        input: CommandInput,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure>;
    async fn write_stdin(
        &self,
        who: &Principal,
        id: &str,
        part: StdinPart,
        wait: Duration,
        cancel: CancellationToken,
    ) -> Result<ExecutionId, Failure>;
    /// The languages that packages can be installed for.
    fn package_languages(&self) -> Vec<String>;
    fn consent_required(&self, language: Option<&str>, packages: &[String], hosts: &[String]) -> ConsentRequired;
    /// The hosts that a sandbox may ask to reach, at most.
    fn network_allowed(&self) -> Vec<String>;
    async fn install(
        &self,
        who: &Principal,
        request: InstallRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure>;
    async fn create(&self, who: &Principal, request: CreateRequest) -> Result<Vec<SandboxView>, Failure>;
    fn expiring(&self, who: &Principal) -> ExpiryNotices;
    async fn close(&self, who: &Principal, id: &str) -> Result<SandboxId, Failure>;
    async fn status(&self, who: &Principal, id: Option<&str>) -> Result<Vec<SandboxView>, Failure>;
    async fn execution(&self, who: &Principal, id: &str, wait: Duration) -> Result<ExecutionView, Failure>;
    fn running(&self, who: &Principal) -> Vec<RunningView>;
    async fn kept(&self, who: &Principal, id: &str) -> Result<KeptExecution, Failure>;
    async fn picture(&self, who: &Principal, id: &str, number: u32) -> Option<KeptPicture>;
    fn watch(&self, who: &Principal, id: &str, watch: &Watch) -> Result<(), Failure>;
    async fn stream(&self, who: &Principal, id: &str, part: StreamPart) -> Result<StreamSlice, Failure>;
    async fn cancel(&self, who: &Principal, id: Option<&str>) -> Result<ExecutionView, Failure>;
    async fn list_files(
        &self,
        who: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
        recursive: bool,
        max: usize,
    ) -> Result<FileAnswer<Listing>, Failure>;
    async fn read_file(
        &self,
        who: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
        offset: u64,
        len: u64,
    ) -> Result<FileAnswer<FileChunk>, Failure>;
    async fn write_file(
        &self,
        who: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
        bytes: Bytes,
        mode: WriteMode,
    ) -> Result<FileAnswer<u64>, Failure>;
    /// Records an event that matters for security.
    fn note(&self, event: SecurityEvent);
    async fn history(&self, who: &Principal, last_n: usize, sandbox: Option<&str>) -> Result<HistoryView, Failure>;
    async fn search(&self, who: &Principal, query: &HistoryQuery) -> Result<HistoryPage, Failure>;
    async fn reset(&self, who: &Principal, sandbox: Option<&str>, language: Option<&str>)
    -> Result<ResetView, Failure>;
}

/// Returns a file of an execution, with its type. A recent execution has all its files; the lasting history has only
/// pictures. None if no file has this number.
pub(crate) async fn artifact(
    host: &dyn Host,
    who: &Principal,
    id: &str,
    number: u32,
) -> Result<Option<(String, Bytes)>, Failure> {
    let failure = match host.execution(who, id, Duration::ZERO).await {
        Ok(view) => {
            let found = view.artifacts.into_iter().find(|file| file.number == number);
            return Ok(found.map(|file| (file.mime, file.bytes)));
        }
        Err(failure) => failure,
    };
    if let Some(picture) = host.picture(who, id, number).await {
        return Ok(Some((picture.mime, picture.bytes)));
    }
    // If the lasting history lacks it too, the first failure is reported.
    host.kept(who, id).await.map(|_| None).map_err(|_| failure)
}
