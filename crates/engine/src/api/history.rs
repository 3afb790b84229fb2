//! The answers about past executions. Plain data.

use bytes::Bytes;
use serde::Serialize;

use crate::{ExecutionId, SandboxId, Status, ToolCallCount};

/// A row of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HistoryRecord {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Its sandbox. Null for code that was refused before it needed one.
    pub sandbox_id: Option<SandboxId>,
    /// The language.
    pub language: String,
    /// Its final status.
    pub status: Status,
    /// The start time: RFC 3339 with milliseconds, UTC.
    pub timestamp: String,
    /// True if its status is `ok`.
    pub success: bool,
    /// The run time.
    pub duration_ms: u64,
    /// At most 100 characters and "...".
    pub code_preview: String,
    /// At most 200 characters and "...".
    pub stdout_preview: String,
    /// The error's last line, or the cause's message.
    pub error: Option<String>,
}

/// A finished execution in the permanent history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoredExecution {
    /// Its row.
    #[serde(flatten)]
    pub record: HistoryRecord,
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
    /// The code of the cause, if it failed.
    pub cause: Option<String>,
    /// The program's exit code.
    pub exit_code: Option<i32>,
    /// Processor time.
    pub cpu_ms: u64,
    /// The peak memory of its sandbox so far, in bytes.
    pub peak_memory_bytes: u64,
    /// Bytes written to standard output.
    pub stdout_bytes: u64,
    /// Bytes written to standard error.
    pub stderr_bytes: u64,
    /// The pictures that it displayed.
    pub pictures: Vec<StoredPicture>,
    /// The number of calls of each tool of the host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallCount>,
}

/// A picture that an execution displayed, in the permanent history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoredPicture {
    /// Its number within the execution, as [`Artifact::number`](crate::Artifact::number).
    pub number: u32,
    /// A short name, such as `plot-1.png`.
    pub name: String,
    /// Its MIME type.
    pub mime: String,
    /// The size in bytes.
    pub size: u64,
    /// The content.
    #[serde(skip)]
    pub bytes: Bytes,
}

/// The caller's history, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HistoryView {
    /// The number of executions in this view (since the last reset).
    pub total: u64,
    /// The start of this view, RFC 3339.
    pub session_start: String,
    /// Packages installed since then.
    pub installed_packages: Vec<String>,
    /// The newest rows.
    pub records: Vec<HistoryRecord>,
}

/// A page of a caller's history, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HistoryPage {
    /// The rows of this page.
    pub records: Vec<HistoryRecord>,
    /// The number of rows that match, on this page and all others.
    pub total: u64,
    /// True if older rows match: ask again with `before` set to the last row's execution.
    pub more: bool,
    /// False if the search did not reach all rows or texts, because it took too long or only previews were at hand.
    pub complete: bool,
}
