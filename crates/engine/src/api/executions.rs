//! The answers about executions. Plain data.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use sandcell_sandbox::{ByteSize, Code, Finding, Isolation, MimeBundle};
use serde::{Deserialize, Serialize};

use crate::{ExecutionId, Expiry, SandboxId, SkippedBackend, ToolCallCount};

/// A text of an execution that can be read in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum StreamName {
    Stdout,
    Stderr,
    Result,
    Code,
}

impl StreamName {
    /// The name in the protocol.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Result => "result",
            Self::Code => "code",
        }
    }
}

/// A requested part of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamPart {
    /// The stream.
    pub stream: StreamName,
    /// The start in bytes. A negative number counts from the end.
    pub offset: i64,
    /// The length in bytes, at least 1.
    pub limit: u64,
    /// Start at the first occurrence of this text from `offset` on.
    pub find: Option<String>,
}

/// A part of a stream. Offsets count bytes as the code wrote them. A part never splits a character.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StreamSlice {
    /// The text, with escape sequences removed and other control characters escaped.
    pub text: String,
    /// The start of the part. Later than the requested offset after a search, or where bytes were not stored.
    pub offset: u64,
    /// The start of the next part.
    pub next_offset: u64,
    /// All bytes written so far.
    pub total_bytes: u64,
    /// True if nothing follows this part, now or later.
    pub eof: bool,
}

/// The state of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the six words of the results")]
pub enum Status {
    Ok,
    Error,
    Timeout,
    Cancelled,
    Killed,
    Running,
}

impl Status {
    /// All values.
    pub const ALL: [Self; 6] = [
        Self::Ok,
        Self::Error,
        Self::Timeout,
        Self::Cancelled,
        Self::Killed,
        Self::Running,
    ];

    /// The word in the protocol.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Killed => "killed",
            Self::Running => "running",
        }
    }
}

/// The step of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The compiler makes a program of the source.
    Compile,
    /// The code runs.
    Run,
}

/// An error that code raised. The code provides all texts and can forge them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CodeError {
    /// The class, such as `ValueError`. "an error" where the code's text is not a valid class name.
    pub name: String,
    /// The message, at most 2,000 bytes and "...".
    pub value: String,
    /// A short traceback that points at the caller's own lines.
    pub traceback: String,
}

/// The reason for an execution's failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// The code.
    pub code: Code,
    /// A description of the failure, with the limit and the amount used.
    pub message: String,
    /// The next step for the caller.
    pub remedy: String,
}

/// A stored text stream of an execution, cut for an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shown {
    /// Head and tail, with a line between them that gives the number of left-out bytes and the call that reads them.
    pub text: String,
    /// The number of bytes that the code wrote.
    pub total_bytes: u64,
    /// True if `text` leaves something out.
    pub truncated: bool,
    /// True if `text` has all lines but not all bytes: escape sequences are removed, or equal lines are folded.
    pub edited: bool,
}

/// A picture, a rich value or a file of an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// Its number within the execution, from 0. Together with the execution's id it names the resource.
    pub number: u32,
    /// A short name, such as `plot-1.png` or the file's name.
    pub name: String,
    /// Its MIME type.
    pub mime: String,
    /// Its bytes.
    pub bytes: Bytes,
    /// True if the code displayed it (a plot), false if the request named it in `outputs`.
    pub shown: bool,
    /// A plain-text replacement, if the code gave one.
    pub text: Option<String>,
}

/// The text of the cause when the whole sandbox was lost, not only its session.
pub const SANDBOX_LOST: &str = "its variables and files are gone";

/// An execution, running or finished.
#[derive(Debug, Clone)]
pub struct ExecutionView {
    /// Its id.
    pub id: ExecutionId,
    /// Its sandbox. A throwaway run's sandbox has already ended.
    pub sandbox_id: SandboxId,
    /// The language.
    pub language: String,
    /// Its status.
    pub status: Status,
    /// The last step that it reached. Code that does not compile never runs.
    pub phase: Phase,
    /// The program's exit code, if there is one. A program that a signal ended has 128 and the signal's number.
    pub exit_code: Option<i32>,
    /// The signal that ended the program or the interpreter.
    pub signal: Option<u8>,
    /// The start time.
    pub started: SystemTime,
    /// The run time.
    pub duration: Duration,
    /// The processor time. For successful runs of a few milliseconds this is the wall time, because a measurement would
    /// take longer than the run.
    pub cpu: Duration,
    /// The peak memory of its sandbox so far.
    pub peak_memory: ByteSize,
    /// Memory of its sandbox before and after it. None without a measurement (runs of a few milliseconds).
    pub memory: Option<MemoryUse>,
    /// Standard output. It begins with marked output that threads and processes of earlier calls wrote since the last
    /// one.
    pub stdout: Shown,
    /// Standard error.
    pub stderr: Shown,
    /// The last expression's value as text.
    pub result: Option<String>,
    /// The size of that text in bytes, where `result` leaves some out.
    pub result_cut: Option<u64>,
    /// True if `result` is whole, but not as the code gave it: equal lines are folded, for example.
    pub result_edited: bool,
    /// A line about a value that its text leaves out: a table's shape and column types.
    pub result_note: Option<String>,
    /// The error that the code raised.
    pub error: Option<CodeError>,
    /// A line of advice that the code's session adds to the error. The code can forge it like the error.
    pub hint: Option<String>,
    /// The reason for a failure, from the server.
    pub cause: Option<Cause>,
    /// Plots and requested files.
    pub artifacts: Vec<Artifact>,
    /// Requested files that could not be read, each with the reason.
    pub missing_outputs: Vec<String>,
    /// True if variables were lost (in this execution, or because a previous sandbox or session of the caller ended).
    pub state_lost: bool,
    /// The state to which the session was restored after its interpreter died in this execution.
    pub restored: Option<Restored>,
    /// True if the engine made the sandbox for this call.
    pub new_sandbox: bool,
    /// The expiry of its sandbox. None for the sandbox of one run.
    pub expiry: Option<Expiry>,
    /// Sentences for the start of the result ("new sandbox: the previous one expired at …").
    pub notices: Vec<String>,
    /// The isolation of its sandbox.
    pub isolation: Arc<Isolation>,
    /// Preferred back ends that could not make its sandbox.
    pub skipped_backends: Vec<SkippedBackend>,
    /// Static-analysis findings about the code.
    pub findings: Vec<Finding>,
    /// The host's tools that the code called, with the number of calls of each.
    pub tool_calls: Vec<ToolCallCount>,
    /// The host's tools whose calls wait for a person's approval.
    pub waiting_for: Vec<String>,
}

/// The state of a restored session. Variables and imports are those of the snapshot. Files keep their current content.
/// Open files, sockets and event loops are closed, and child processes have ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// The number of the session's last cell whose effects are present.
    pub cell: u32,
    /// The execution of that cell, if known.
    pub execution_id: Option<ExecutionId>,
    /// The number of finished cells between that cell and the one that died.
    pub missed: u32,
    /// The reason, if known, as the end of a sentence that begins with "because".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A value that code displayed, or the value of its last expression, in every representation that the code gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownValue {
    /// Its representations.
    pub bundle: MimeBundle,
    /// True for the value of the last expression.
    pub is_result: bool,
    /// The number of bytes on standard output before it.
    pub stdout: u64,
    /// The number of bytes on standard error before it.
    pub stderr: u64,
}

/// A running or queued execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunningView {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Its sandbox.
    pub sandbox_id: SandboxId,
    /// The language.
    pub language: String,
    /// True if its code has begun. Otherwise it waits.
    pub began: bool,
    /// The run time of its code so far.
    pub duration_ms: u64,
    /// At most 100 characters and "...".
    pub code_preview: String,
}

/// A part of stdout or stderr as the code wrote it. Offsets are bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputPart {
    /// The bytes. A character can be cut at either end.
    pub bytes: Bytes,
    /// The start of the part. Later than the requested offset where bytes were not stored.
    pub offset: u64,
    /// The start of the next part.
    pub next_offset: u64,
    /// All bytes written so far.
    pub total_bytes: u64,
    /// True if nothing follows this part, now or later.
    pub eof: bool,
}

/// The progress that code reports.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// The completed amount, in the bar's unit.
    pub done: f64,
    /// The total, if the bar shows one.
    pub total: Option<f64>,
    /// The bar's line, at most 200 characters.
    pub text: String,
}

/// Memory of a sandbox around one execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Before the execution.
    pub before: ByteSize,
    /// After the execution.
    pub after: ByteSize,
    /// The sandbox's memory limit.
    pub limit: ByteSize,
}

/// The effect of an execution on the memory of its sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryGrowth {
    /// The execution.
    pub execution_id: ExecutionId,
    /// None if it ran for less than 5 ms and was not measured. The next measured execution includes its effect.
    pub memory: Option<MemoryUse>,
    /// The peak memory during the execution. None if the sandbox had reached it before.
    pub peak: Option<ByteSize>,
}
