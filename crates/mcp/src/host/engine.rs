//! The real engine behind the trait.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sandcell_engine::{
    BackendView, CommandInput, CommandRequest, Counts, CreateRequest, Engine, EngineConfig, ExecuteRequest,
    ExecutionId, ExecutionView, ExpiryNotices, FileAnswer, HistoryPage, HistoryQuery, HistoryView, InstallRequest,
    KeptExecution, KeptPicture, Principal, ResetView, RunRequest, RunningView, SandboxId, SandboxView, SecurityEvent,
    StdinPart, StreamSlice, Watch,
};
use sandcell_sandbox::{Capacity, ConsentRequired, Failure, FileChunk, LanguageInfo, Listing, SandboxPath, WriteMode};
use tokio_util::sync::CancellationToken;

use super::{Host, StreamPart};

/// The engine of this process.
pub(crate) struct EngineHost(pub(crate) Arc<Engine>);

#[async_trait]
impl Host for EngineHost {
    fn config(&self) -> Arc<EngineConfig> {
        self.0.config()
    }

    fn languages(&self) -> Vec<LanguageInfo> {
        self.0.languages()
    }

    fn default_language(&self) -> &str {
        self.0.default_language()
    }

    fn backends(&self) -> Vec<BackendView> {
        self.0.backends()
    }

    fn counts(&self) -> Counts {
        self.0.counts()
    }

    fn capacity(&self) -> Option<Capacity> {
        self.0.capacity()
    }

    async fn execute(
        &self,
        who: &Principal,
        request: ExecuteRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.0.execute(who, request, cancel).await
    }

    async fn execute_alone(
        &self,
        who: &Principal,
        request: ExecuteRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.0.execute_alone(who, request, cancel).await
    }

    async fn run_once(
        &self,
        who: &Principal,
        request: RunRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.0.run_once(who, request, cancel).await
    }

    async fn start_command(
        &self,
        who: &Principal,
        request: CommandRequest,
        input: CommandInput,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.0.start_command(who, request, input, cancel).await
    }

    async fn write_stdin(
        &self,
        who: &Principal,
        id: &str,
        part: StdinPart,
        wait: Duration,
        cancel: CancellationToken,
    ) -> Result<ExecutionId, Failure> {
        self.0.write_stdin(who, id, part, wait, cancel).await
    }

    fn package_languages(&self) -> Vec<String> {
        self.0.package_languages()
    }

    fn consent_required(&self, language: Option<&str>, packages: &[String], hosts: &[String]) -> ConsentRequired {
        self.0.consent_required(language, packages, hosts)
    }

    fn network_allowed(&self) -> Vec<String> {
        self.0.network_allowed()
    }

    async fn install(
        &self,
        who: &Principal,
        request: InstallRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.0.install(who, request, cancel).await
    }

    async fn create(&self, who: &Principal, request: CreateRequest) -> Result<Vec<SandboxView>, Failure> {
        self.0.create(who, request).await
    }

    fn expiring(&self, who: &Principal) -> ExpiryNotices {
        self.0.expiry_notices(who)
    }

    async fn close(&self, who: &Principal, id: &str) -> Result<SandboxId, Failure> {
        self.0.close(who, id).await
    }

    async fn status(&self, who: &Principal, id: Option<&str>) -> Result<Vec<SandboxView>, Failure> {
        self.0.status(who, id).await
    }

    async fn execution(&self, who: &Principal, id: &str, wait: Duration) -> Result<ExecutionView, Failure> {
        self.0.execution(who, id, wait).await
    }

    fn running(&self, who: &Principal) -> Vec<RunningView> {
        self.0.running(who)
    }

    async fn kept(&self, who: &Principal, id: &str) -> Result<KeptExecution, Failure> {
        self.0.stored_execution(who, id).await
    }

    async fn picture(&self, who: &Principal, id: &str, number: u32) -> Option<KeptPicture> {
        self.0.picture(who, id, number).await
    }

    fn watch(&self, who: &Principal, id: &str, watch: &Watch) -> Result<(), Failure> {
        self.0.watch(who, id, watch)
    }

    async fn stream(&self, who: &Principal, id: &str, part: StreamPart) -> Result<StreamSlice, Failure> {
        self.0
            .stream(who, id, part.stream, part.offset, part.limit, part.find.as_deref())
            .await
    }

    async fn cancel(&self, who: &Principal, id: Option<&str>) -> Result<ExecutionView, Failure> {
        self.0.cancel(who, id).await
    }

    async fn list_files(
        &self,
        who: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
        recursive: bool,
        max: usize,
    ) -> Result<FileAnswer<Listing>, Failure> {
        self.0.list_files(who, sandbox, path, recursive, max).await
    }

    async fn read_file(
        &self,
        who: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
        offset: u64,
        len: u64,
    ) -> Result<FileAnswer<FileChunk>, Failure> {
        self.0.read_file(who, sandbox, path, offset, len).await
    }

    async fn write_file(
        &self,
        who: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
        bytes: Bytes,
        mode: WriteMode,
    ) -> Result<FileAnswer<u64>, Failure> {
        self.0.write_file(who, sandbox, path, bytes, mode).await
    }

    fn note(&self, event: SecurityEvent) {
        self.0.note(event);
    }

    async fn history(&self, who: &Principal, last_n: usize, sandbox: Option<&str>) -> Result<HistoryView, Failure> {
        self.0.history(who, last_n, sandbox).await
    }

    async fn search(&self, who: &Principal, query: &HistoryQuery) -> Result<HistoryPage, Failure> {
        self.0.search(who, query).await
    }

    async fn reset(
        &self,
        who: &Principal,
        sandbox: Option<&str>,
        language: Option<&str>,
    ) -> Result<ResetView, Failure> {
        self.0.reset(who, sandbox, language).await
    }
}
