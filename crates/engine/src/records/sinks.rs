//! Permanent records of the engine's work: the permanent history and the audit log. The engine only reports events. The
//! sinks decide where to store them, and handle failures.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sandcell_sandbox::{ByteSize, Code};

use crate::{
    Artifact, Cause, ExecutionId, ExecutionView, HistoryPage, HistoryQuery, HistoryRecord, Principal, SandboxId,
    StoredExecution, StoredPicture, ToolCallCount,
};

/// A finished execution or refused code, for the permanent history. It does not contain the code's standard input and
/// environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedExecution {
    /// The owner.
    pub owner: Principal,
    /// The row as its owner sees it.
    pub record: HistoryRecord,
    /// True if its owner's view shows and counts it. The row is stored in any case.
    pub shown: bool,
    /// The start time.
    pub started: SystemTime,
    /// The whole code.
    pub code: String,
    /// Standard output as in the answer: head and tail.
    pub stdout: String,
    /// Standard error as in the answer: head and tail.
    pub stderr: String,
    /// The last expression's value.
    pub result: Option<String>,
    /// The error that the code raised.
    pub traceback: Option<String>,
    /// The reason, if it failed.
    pub cause: Option<Cause>,
    /// The program's exit code.
    pub exit_code: Option<i32>,
    /// Processor time.
    pub cpu: Duration,
    /// The peak memory of its sandbox so far.
    pub peak_memory: ByteSize,
    /// Bytes written to standard output.
    pub stdout_bytes: u64,
    /// Bytes written to standard error.
    pub stderr_bytes: u64,
    /// The pictures that it displayed.
    pub pictures: Vec<StoredPicture>,
    /// The number of calls of each tool of the host.
    pub tool_calls: Vec<ToolCallCount>,
}

impl StoredPicture {
    /// Returns the artifact as a picture, if its code displayed it as one.
    fn of(artifact: &Artifact) -> Option<Self> {
        let is_picture = artifact.shown && artifact.mime.starts_with("image/");
        is_picture.then(|| Self {
            number: artifact.number,
            name: artifact.name.clone(),
            mime: artifact.mime.clone(),
            size: u64::try_from(artifact.bytes.len()).unwrap_or(u64::MAX),
            bytes: artifact.bytes.clone(),
        })
    }
}

/// A caller's view of the permanent history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredView {
    /// The number of executions since the view began.
    pub total: u64,
    /// The start of the view.
    pub began: SystemTime,
    /// The newest rows, newest first.
    pub records: Vec<HistoryRecord>,
}

/// Stores the history permanently. None of these methods may fail or delay an execution. The sink itself reports rows
/// that it cannot store.
#[async_trait]
pub trait HistorySink: Debug + Send + Sync {
    /// Stores a row, soon. Must return at once.
    fn record(&self, row: FinishedExecution);

    /// Starts the caller's next view after the rows already received. Must return at once.
    fn reset(&self, principal: &Principal, at: SystemTime);

    /// Returns the caller's newest rows, including those just handed over. None on failure: the engine then answers
    /// from memory. Must be bounded in time.
    async fn view(&self, principal: &Principal, last_n: usize, sandbox: Option<&str>) -> Option<StoredView>;

    /// Returns a page of the caller's view. None on failure: the engine then answers from memory. Must be bounded in
    /// time.
    async fn search(&self, principal: &Principal, query: &HistoryQuery) -> Option<HistoryPage>;

    /// Returns one of the caller's rows with all of its stored content. None if the caller has no such row, or on
    /// failure. Must be bounded in time.
    async fn find(&self, principal: &Principal, id: &str) -> Option<StoredExecution>;

    /// Returns one picture of one of the caller's rows. None if the caller has no such picture, or on failure. Must be
    /// bounded in time.
    async fn picture(&self, principal: &Principal, id: &str, number: u32) -> Option<StoredPicture>;

    /// Stores all received rows. Must be bounded in time.
    async fn close(&self);
}

/// A security event. It contains no code, output or secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecurityEvent {
    /// The kind of event.
    pub kind: EventKind,
    /// The caller that caused it, if known.
    pub principal: Option<Principal>,
    /// The sandbox concerned.
    pub sandbox: Option<SandboxId>,
    /// The execution concerned.
    pub execution: Option<ExecutionId>,
    /// The code of the refusal or of the limit.
    pub code: Option<Code>,
    /// A sentence for the reader of the log.
    pub detail: String,
}

/// Kinds of security events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum EventKind {
    ServerStarted,
    ServerStopped,
    SandboxCreated,
    SandboxClosed,
    /// A call that was refused before anything ran.
    CallRefused,
    /// An execution that a limit ended.
    LimitHit,
    /// A caller that was not authenticated.
    AuthFailed,
    /// The user was asked for consent.
    UserAsked,
    /// A connection out of a sandbox that policy forbids.
    NetworkDenied,
    /// A caller has replaced the hosts that its sandbox can reach.
    NetworkChanged,
    /// Code in a sandbox called a tool of the host.
    ToolCalled,
    /// A call of a tool of the host was refused.
    ToolRefused,
    /// Changes of a sandbox were applied to folders of the host.
    ChangesCommitted,
    TokenCreated,
    TokenRevoked,
    /// The operator deleted rows of the history.
    HistoryForgotten,
}

impl EventKind {
    /// Returns its name in the log.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ServerStarted => "server_started",
            Self::ServerStopped => "server_stopped",
            Self::SandboxCreated => "sandbox_created",
            Self::SandboxClosed => "sandbox_closed",
            Self::CallRefused => "call_refused",
            Self::LimitHit => "limit_hit",
            Self::AuthFailed => "auth_failed",
            Self::UserAsked => "user_asked",
            Self::NetworkDenied => "network_denied",
            Self::NetworkChanged => "network_changed",
            Self::ToolCalled => "tool_called",
            Self::ToolRefused => "tool_refused",
            Self::ChangesCommitted => "changes_committed",
            Self::TokenCreated => "token_created",
            Self::TokenRevoked => "token_revoked",
            Self::HistoryForgotten => "history_forgotten",
        }
    }
}

/// Records security events.
#[async_trait]
pub trait Auditor: Debug + Send + Sync {
    /// Records an event, soon. Must return at once.
    fn note(&self, event: SecurityEvent);

    /// Stores all received events. Must be bounded in time.
    async fn close(&self);
}

/// The sinks for the engine's records. None by default.
#[derive(Debug, Clone, Default)]
pub struct Observers {
    /// Stores the history.
    pub history_sink: Option<Arc<dyn HistorySink>>,
    /// Stores security events.
    pub auditor: Option<Arc<dyn Auditor>>,
}

impl SecurityEvent {
    /// Creates an event with a kind and a sentence only.
    #[must_use]
    pub const fn new(kind: EventKind, detail: String) -> Self {
        Self {
            kind,
            principal: None,
            sandbox: None,
            execution: None,
            code: None,
            detail,
        }
    }
}

impl Observers {
    /// Waits until the sink has stored all received rows. Bounded.
    pub(crate) async fn close_history(&self) {
        if let Some(history_sink) = &self.history_sink {
            history_sink.close().await;
        }
    }

    /// Waits until the auditor has stored all received events. Bounded.
    pub(crate) async fn close_audit(&self) {
        if let Some(auditor) = &self.auditor {
            auditor.close().await;
        }
    }

    /// Sends an event to the auditor, if there is one.
    pub(crate) fn note(&self, event: impl FnOnce() -> SecurityEvent) {
        if let Some(auditor) = &self.auditor {
            auditor.note(event());
        }
    }

    /// Records that a sandbox was created or closed.
    pub(crate) fn sandbox(
        &self,
        kind: EventKind,
        owner: &Principal,
        sandbox: &SandboxId,
        detail: impl FnOnce() -> String,
    ) {
        self.note(|| SecurityEvent {
            principal: Some(owner.clone()),
            sandbox: Some(sandbox.clone()),
            ..SecurityEvent::new(kind, detail())
        });
    }

    /// Records a finished execution. `shown`: its owner's view contains the row.
    pub(crate) fn ended(
        &self,
        owner: &Principal,
        code: &str,
        view: &ExecutionView,
        record: HistoryRecord,
        shown: bool,
    ) {
        if let Some((cause, kind)) = view
            .cause
            .as_ref()
            .and_then(|cause| Some((cause, kind_of(cause.code)?)))
        {
            self.note(|| SecurityEvent {
                principal: Some(owner.clone()),
                sandbox: Some(view.sandbox_id.clone()),
                execution: Some(view.id.clone()),
                code: Some(cause.code),
                ..SecurityEvent::new(kind, cause.message.clone())
            });
        }
        if let Some(history_sink) = &self.history_sink {
            history_sink.record(FinishedExecution {
                owner: owner.clone(),
                record,
                shown,
                started: view.started,
                code: code.to_owned(),
                stdout: view.stdout.text.clone(),
                stderr: view.stderr.text.clone(),
                result: view.result.clone(),
                traceback: view.error.as_ref().map(|error| error.traceback.clone()),
                cause: view.cause.clone(),
                exit_code: view.exit_code,
                cpu: view.cpu,
                peak_memory: view.peak_memory,
                stdout_bytes: view.stdout.total_bytes,
                stderr_bytes: view.stderr.total_bytes,
                pictures: view.artifacts.iter().filter_map(StoredPicture::of).collect(),
                tool_calls: view.tool_calls.clone(),
            });
        }
    }

    /// Records code that was refused before anything ran.
    pub(crate) fn refused(
        &self,
        principal: &Principal,
        code: &str,
        failure: &sandcell_sandbox::Failure,
        record: HistoryRecord,
        shown: bool,
    ) {
        self.note(|| SecurityEvent {
            principal: Some(principal.clone()),
            execution: Some(record.execution_id.clone()),
            code: Some(failure.code),
            ..SecurityEvent::new(EventKind::CallRefused, failure.message.clone())
        });
        if let Some(history_sink) = &self.history_sink {
            history_sink.record(FinishedExecution {
                owner: principal.clone(),
                record,
                shown,
                started: SystemTime::now(),
                code: code.to_owned(),
                stdout: String::new(),
                stderr: String::new(),
                result: None,
                traceback: None,
                cause: Some(Cause {
                    code: failure.code,
                    message: failure.message.clone(),
                    remedy: failure.remedy.clone(),
                }),
                exit_code: None,
                cpu: Duration::ZERO,
                peak_memory: ByteSize::bytes(0),
                stdout_bytes: 0,
                stderr_bytes: 0,
                pictures: Vec::new(),
                tool_calls: Vec::new(),
            });
        }
    }
}

/// Returns the security event for the end of an execution: one for an exhausted limit or a policy decision, none for a
/// mistake of the code.
const fn kind_of(cause: Code) -> Option<EventKind> {
    match cause {
        Code::Timeout
        | Code::OutOfMemory
        | Code::ProcessLimit
        | Code::DiskFull
        | Code::OutputLimit
        | Code::LimitReached => Some(EventKind::LimitHit),
        Code::NetworkDenied => Some(EventKind::NetworkDenied),
        Code::PackageNotAllowed | Code::DeniedByPolicy | Code::CodeRejected | Code::ToolDenied | Code::Unauthorized => {
            Some(EventKind::CallRefused)
        }
        Code::InvalidArgument
        | Code::NotFound
        | Code::Expired
        | Code::BackendUnavailable
        | Code::IsolationUnavailable
        | Code::LanguageUnavailable
        | Code::ImageUnavailable
        | Code::CodeFailed
        | Code::Crashed
        | Code::Cancelled
        | Code::SessionLost
        | Code::PackageFailed
        | Code::ToolFailed
        | Code::ToolUnavailable
        | Code::Busy
        | Code::CheckpointUnavailable
        | Code::Internal => None,
    }
}
