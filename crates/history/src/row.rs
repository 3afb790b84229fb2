//! A row of the history.

use sandcell_engine::{
    ExecutionId, FinishedExecution, HistoryRecord, SandboxId, Status, StoredExecution, StoredPicture, ToolCallCount,
};
use sandcell_sandbox::unix_millis;
use serde::Serialize;

/// The maximum size of stored code in bytes. No execution has more.
const MAX_CODE_BYTES: usize = 1 << 20;
/// The maximum size of each other stored text in bytes.
const MAX_TEXT_BYTES: usize = 256 << 10;
/// The maximum number of stored pictures of one execution, and their maximum total size in bytes.
const MAX_PICTURES: usize = 16;
const MAX_PICTURE_BYTES: usize = 4 << 20;
/// The prefix of HTTP tokens. The token's id and secret follow.
const TOKEN_PREFIX: &str = "sandcell_tk";
/// The approximate size of a row without its texts, in bytes.
const ROW_OVERHEAD_BYTES: usize = 600;

/// An execution of the history, with all stored data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The id of the execution.
    pub execution_id: String,
    /// The caller.
    pub owner: String,
    /// The sandbox. None if the code was refused before it needed one.
    pub sandbox_id: Option<String>,
    /// The language.
    pub language: String,
    /// The final status.
    pub status: Status,
    /// The start time: RFC 3339 with milliseconds.
    pub timestamp: String,
    /// The run time.
    pub duration_ms: u64,
    /// The processor time.
    pub cpu_ms: u64,
    /// The peak memory of the sandbox until the end of this execution.
    pub peak_memory_bytes: u64,
    /// The number of bytes written to stdout.
    pub stdout_bytes: u64,
    /// The number of bytes written to stderr.
    pub stderr_bytes: u64,
    /// The program's exit code.
    pub exit_code: Option<i32>,
    /// The error's last line, or the cause's message.
    pub error: Option<String>,
    /// The code of the cause, if the status is not ok.
    pub cause: Option<String>,
    /// The whole code.
    pub code: String,
    /// The stdout that the caller received: head and tail.
    pub stdout: String,
    /// The stderr that the caller received: head and tail.
    pub stderr: String,
    /// The value of the last expression.
    pub result: Option<String>,
    /// The error that the code raised.
    pub traceback: Option<String>,
    /// The pictures of the execution. Empty if the query asked only for short texts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pictures: Vec<StoredPicture>,
    /// The number of calls of each tool of the host. Empty if the query asked only for short texts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallCount>,
    #[serde(skip)]
    pub(crate) code_preview: String,
    #[serde(skip)]
    pub(crate) stdout_preview: String,
    #[serde(skip)]
    pub(crate) started_ms: i64,
    #[serde(skip)]
    pub(crate) shown: bool,
}

impl Row {
    /// Returns the row of a finished execution, cut to the limits.
    pub(crate) fn of(done: FinishedExecution) -> Self {
        let whole = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        Self {
            execution_id: done.record.execution_id.to_string(),
            owner: done.owner.0.to_string(),
            sandbox_id: done.record.sandbox_id.map(|id| id.to_string()),
            language: done.record.language,
            status: done.record.status,
            timestamp: done.record.timestamp,
            duration_ms: done.record.duration_ms,
            cpu_ms: whole(done.cpu.as_millis()),
            peak_memory_bytes: done.peak_memory.as_bytes(),
            stdout_bytes: done.stdout_bytes,
            stderr_bytes: done.stderr_bytes,
            exit_code: done.exit_code,
            error: done.record.error.map(masked),
            cause: done.cause.map(|cause| cause.code.as_str().to_owned()),
            code: masked(cut(done.code, MAX_CODE_BYTES)),
            stdout: masked(cut(done.stdout, MAX_TEXT_BYTES)),
            stderr: masked(cut(done.stderr, MAX_TEXT_BYTES)),
            result: done.result.map(|text| masked(cut(text, MAX_TEXT_BYTES))),
            traceback: done.traceback.map(|text| masked(cut(text, MAX_TEXT_BYTES))),
            code_preview: masked(done.record.code_preview),
            stdout_preview: masked(done.record.stdout_preview),
            pictures: bounded(done.pictures),
            tool_calls: done.tool_calls,
            started_ms: unix_millis(done.started),
            shown: done.shown,
        }
    }

    /// Returns at most 100 characters of the code.
    #[must_use]
    pub fn code_preview(&self) -> &str {
        &self.code_preview
    }

    /// Returns at most 200 characters of stdout.
    #[must_use]
    pub fn stdout_preview(&self) -> &str {
        &self.stdout_preview
    }

    /// Returns the size of a queued execution in bytes, before it is cut to the limits.
    pub(crate) fn weight_of(done: &FinishedExecution) -> u64 {
        let optional = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let texts = done.code.len() + done.stdout.len() + done.stderr.len();
        let bytes = ROW_OVERHEAD_BYTES
            + texts
            + optional(&done.result)
            + optional(&done.traceback)
            + picture_bytes(&done.pictures);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Returns the approximate size of the row in bytes.
    pub(crate) fn weight(&self) -> usize {
        let optional = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        ROW_OVERHEAD_BYTES
            + self.code.len()
            + self.stdout.len()
            + self.stderr.len()
            + optional(&self.result)
            + optional(&self.traceback)
            + picture_bytes(&self.pictures)
    }

    /// Returns the record that the caller sees. None if an id is not valid, because another program wrote the row.
    pub(crate) fn record(&self) -> Option<HistoryRecord> {
        Some(HistoryRecord {
            execution_id: ExecutionId::parse(&self.execution_id)?,
            sandbox_id: match &self.sandbox_id {
                None => None,
                Some(id) => Some(SandboxId::parse(id)?),
            },
            language: self.language.clone(),
            status: self.status,
            timestamp: self.timestamp.clone(),
            success: self.status == Status::Ok,
            duration_ms: self.duration_ms,
            code_preview: self.code_preview.clone(),
            stdout_preview: self.stdout_preview.clone(),
            error: self.error.clone(),
        })
    }
}

impl Row {
    /// Returns everything that the caller sees. None if an id is not one that the engine creates.
    #[must_use]
    pub fn into_stored(self) -> Option<StoredExecution> {
        Some(StoredExecution {
            record: self.record()?,
            code: self.code,
            stdout: self.stdout,
            stderr: self.stderr,
            result: self.result,
            traceback: self.traceback,
            cause: self.cause,
            exit_code: self.exit_code,
            cpu_ms: self.cpu_ms,
            peak_memory_bytes: self.peak_memory_bytes,
            stdout_bytes: self.stdout_bytes,
            stderr_bytes: self.stderr_bytes,
            pictures: self.pictures,
            tool_calls: self.tool_calls,
        })
    }
}

/// Drops pictures that exceed the limits.
fn bounded(pictures: Vec<StoredPicture>) -> Vec<StoredPicture> {
    let mut left = MAX_PICTURE_BYTES;
    let fits = |picture: &StoredPicture| {
        let rest = left.checked_sub(picture.bytes.len());
        left = rest.unwrap_or(left);
        rest.is_some()
    };
    pictures.into_iter().filter(fits).take(MAX_PICTURES).collect()
}

fn picture_bytes(pictures: &[StoredPicture]) -> usize {
    let one = |picture: &StoredPicture| ROW_OVERHEAD_BYTES / 4 + picture.name.len() + picture.bytes.len();
    pictures.iter().map(one).sum()
}

fn cut(mut text: String, max_bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(max_bytes));
    text
}

/// Masks the secrets of sandcell's own tokens, in case code or output contains one.
fn masked(text: String) -> String {
    let mut parts = text.split(TOKEN_PREFIX);
    let mut safe = parts.next().unwrap_or_default().to_owned();
    let mut found = false;
    for part in parts {
        found = true;
        let is_own = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let id = part.find(|c| !is_own(c)).unwrap_or(part.len());
        let (id, rest) = part.split_at(id);
        safe.push_str(TOKEN_PREFIX);
        safe.push_str(id);
        match rest.strip_prefix('_') {
            Some(secret) if !id.is_empty() => {
                safe.push_str("_***");
                safe.push_str(secret.trim_start_matches(is_own));
            }
            _ => safe.push_str(rest),
        }
    }
    if found { safe } else { text }
}

pub(crate) fn status(word: &str) -> Option<Status> {
    Status::ALL.into_iter().find(|status| status.as_str() == word)
}
