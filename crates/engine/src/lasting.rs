//! What others keep of the engine's work for longer than it lives: the history that lasts, and the log of events that
//! matter for security. The engine only says what happened; where it is kept, and whether that works, is theirs.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use sandcell_sandbox::{ByteSize, Code};
use serde::Serialize;

use crate::executions::Execution;
use crate::record::Record;
use crate::{
    Artifact, Cause, ExecutionId, ExecutionView, HistoryPage, HistoryQuery, HistoryRecord, KeptExecution, Principal,
    SandboxId,
};

/// An execution that is over, or code that was refused, as a history that lasts keeps it. What code was given on
/// standard input and in its environment is not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// Whose it is.
    pub owner: Principal,
    /// The row as its owner sees it.
    pub record: HistoryRecord,
    /// Whether its owner's view shows and counts it. The row is kept in any case.
    pub shown: bool,
    /// When it started.
    pub started: SystemTime,
    /// All of its code.
    pub code: String,
    /// Standard output as it was handed back: head and tail.
    pub stdout: String,
    /// Standard error in the same way.
    pub stderr: String,
    /// The last expression's value.
    pub result: Option<String>,
    /// The error that the code raised.
    pub traceback: Option<String>,
    /// Why it was not ok.
    pub cause: Option<Cause>,
    /// The program's exit code.
    pub exit_code: Option<i32>,
    /// Processor time.
    pub cpu: Duration,
    /// The most memory its sandbox used so far.
    pub peak_memory: ByteSize,
    /// Bytes that it wrote to standard output.
    pub stdout_bytes: u64,
    /// Bytes that it wrote to standard error.
    pub stderr_bytes: u64,
    /// The pictures that it showed.
    pub pictures: Vec<KeptPicture>,
}

/// A picture that an execution showed, as a history that lasts keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeptPicture {
    /// Its number within the execution, as [`Artifact::number`].
    pub number: u32,
    /// A short name, such as `plot-1.png`.
    pub name: String,
    /// Its MIME type.
    pub mime: String,
    /// How many bytes it has.
    pub size: u64,
    /// Those.
    #[serde(skip)]
    pub bytes: Bytes,
}

impl KeptPicture {
    /// What of an execution's files is a picture that its code showed.
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

/// A caller's view of a history that lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastingView {
    /// Executions since the view began.
    pub total: u64,
    /// When that was.
    pub began: SystemTime,
    /// The newest ones, newest first.
    pub records: Vec<HistoryRecord>,
}

/// Keeps the history beyond the engine's life. None of these may fail an execution or hold one up: what cannot be kept
/// is the keeper's to tell.
#[async_trait]
pub trait Keeper: Debug + Send + Sync {
    /// Keeps a row, soon. Must return at once.
    fn keep(&self, row: Finished);

    /// The caller's next view begins after the rows that were handed over so far. Must return at once.
    fn reset(&self, who: &Principal, at: SystemTime);

    /// The caller's newest rows, those handed over before included. None if it cannot tell: the engine then answers from
    /// memory. Must be bounded in time.
    async fn view(&self, who: &Principal, last_n: usize, sandbox: Option<&str>) -> Option<LastingView>;

    /// A page of the caller's view. None if it cannot tell: the engine then answers from memory. Must be bounded in time.
    async fn search(&self, who: &Principal, query: &HistoryQuery) -> Option<HistoryPage>;

    /// One of the caller's rows with everything that is kept of it. None if there is none of theirs, or it cannot tell.
    /// Must be bounded in time.
    async fn find(&self, who: &Principal, id: &str) -> Option<KeptExecution>;

    /// One picture of one of the caller's rows, alone. None if there is none of theirs with that number, or it cannot tell.
    /// Must be bounded in time.
    async fn picture(&self, who: &Principal, id: &str, number: u32) -> Option<KeptPicture>;

    /// Finishes what was handed over. Must be bounded in time.
    async fn close(&self);
}

/// Something that matters for security. No code, output or secret is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecurityEvent {
    /// What happened.
    pub kind: EventKind,
    /// Who caused it, where that is known.
    pub who: Option<Principal>,
    /// The sandbox that it is about.
    pub sandbox: Option<SandboxId>,
    /// The execution that it is about.
    pub execution: Option<ExecutionId>,
    /// What a refusal or the limit is called.
    pub code: Option<Code>,
    /// A sentence for its reader.
    pub detail: String,
}

/// Kinds of events that matter for security.
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
    /// A caller that was not let in.
    AuthFailed,
    /// The user was asked about what the operator leaves to the user.
    UserAsked,
    /// A connection out of a sandbox that policy forbids.
    NetworkDenied,
    TokenCreated,
    TokenRevoked,
    /// Rows of the history were deleted by the operator.
    HistoryForgotten,
}

impl EventKind {
    /// Its name on the wire.
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
            Self::TokenCreated => "token_created",
            Self::TokenRevoked => "token_revoked",
            Self::HistoryForgotten => "history_forgotten",
        }
    }
}

/// Writes down what matters for security.
#[async_trait]
pub trait Auditor: Debug + Send + Sync {
    /// Writes it down, soon. Must return at once.
    fn note(&self, event: SecurityEvent);

    /// Finishes what was noted. Must be bounded in time.
    async fn close(&self);
}

/// Those who keep what the engine does. Nobody, unless somebody is named.
#[derive(Debug, Clone, Default)]
pub struct Witnesses {
    /// Keeps the history.
    pub keeper: Option<Arc<dyn Keeper>>,
    /// Keeps the events that matter for security.
    pub auditor: Option<Arc<dyn Auditor>>,
}

impl SecurityEvent {
    /// An event of which only this is known.
    #[must_use]
    pub const fn new(kind: EventKind, detail: String) -> Self {
        Self {
            kind,
            who: None,
            sandbox: None,
            execution: None,
            code: None,
            detail,
        }
    }
}

impl Witnesses {
    /// Waits until what was handed over is in the history; bounded.
    pub(crate) async fn close_history(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.close().await;
        }
    }

    /// Waits until what was noted is in the audit log; bounded.
    pub(crate) async fn close_audit(&self) {
        if let Some(auditor) = &self.auditor {
            auditor.close().await;
        }
    }

    /// Tells the auditor, if there is one.
    pub(crate) fn note(&self, event: impl FnOnce() -> SecurityEvent) {
        if let Some(auditor) = &self.auditor {
            auditor.note(event());
        }
    }

    /// A sandbox is there, or is not any more.
    pub(crate) fn sandbox(&self, kind: EventKind, record: &Record, detail: impl FnOnce() -> String) {
        self.note(|| SecurityEvent {
            who: Some(record.owner.clone()),
            sandbox: Some(record.id.clone()),
            ..SecurityEvent::new(kind, detail())
        });
    }

    /// An execution is over.
    pub(crate) fn ended(&self, execution: &Execution, view: &ExecutionView, record: HistoryRecord) {
        if let Some((cause, kind)) = view
            .cause
            .as_ref()
            .and_then(|cause| Some((cause, kind_of(cause.code)?)))
        {
            self.note(|| SecurityEvent {
                who: Some(execution.owner.clone()),
                sandbox: Some(execution.sandbox_id.clone()),
                execution: Some(execution.id.clone()),
                code: Some(cause.code),
                ..SecurityEvent::new(kind, cause.message.clone())
            });
        }
        if let Some(keeper) = &self.keeper {
            keeper.keep(Finished {
                owner: execution.owner.clone(),
                record,
                shown: execution.is_shown(),
                started: view.started,
                code: execution.code.clone(),
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
                pictures: view.artifacts.iter().filter_map(KeptPicture::of).collect(),
            });
        }
    }

    /// Code was refused before anything ran.
    pub(crate) fn refused(
        &self,
        who: &Principal,
        code: &str,
        failure: &sandcell_sandbox::Failure,
        record: HistoryRecord,
        shown: bool,
    ) {
        self.note(|| SecurityEvent {
            who: Some(who.clone()),
            execution: Some(record.execution_id.clone()),
            code: Some(failure.code),
            ..SecurityEvent::new(EventKind::CallRefused, failure.message.clone())
        });
        if let Some(keeper) = &self.keeper {
            keeper.keep(Finished {
                owner: who.clone(),
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
            });
        }
    }
}

/// What the end of an execution is for the audit log: something, if an amount ran out or policy was in the way, rather
/// than a mistake of the code.
const fn kind_of(cause: Code) -> Option<EventKind> {
    match cause {
        Code::Timeout
        | Code::OutOfMemory
        | Code::ProcessLimit
        | Code::DiskFull
        | Code::OutputLimit
        | Code::LimitReached => Some(EventKind::LimitHit),
        Code::NetworkDenied => Some(EventKind::NetworkDenied),
        Code::PackageNotAllowed | Code::DeniedByPolicy | Code::CodeRejected | Code::Unauthorized => {
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
        | Code::Busy
        | Code::Internal => None,
    }
}
