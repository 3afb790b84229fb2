//! The JSON types of requests and answers. The OpenAPI document has these types and their comments.

mod checkpoints;
mod mounts;

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use sandcell_engine::{
    Artifact, CodeError, ExecutionView, HistoryRecord, PendingToolCall, Phase, RunningView, SandboxView, SessionView,
    Status, ToolCallCount,
};
use sandcell_sandbox::{ByteSize, Code, Cpus, EntryKind, Failure, Isolation, Usage, rfc3339_millis};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

pub(crate) use self::checkpoints::{
    Changes, Checkpoint, Checkpoints, CreateBranches, CreateCheckpoint, CreatedCheckpoint, DroppedCheckpoint,
    OpenSaved, Rewind, Rewound, SaveSandbox, Saved, SavedStates,
};
pub(crate) use self::mounts::{Commit, Committed, MountChanges};
use crate::problem::with_rest_calls;

/// A failure, with a message and a remedy. The schema of the engine's [`Failure`], which has these fields.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Problem {
    /// The kind of failure.
    #[schemars(schema_with = "codes")]
    code: Code,
    /// The description of the failure.
    message: String,
    /// The next step for the caller.
    remedy: String,
}

fn codes(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": Code::ALL.map(Code::as_str)})
}

fn statuses(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "description": "`ok`; `error`: it failed by itself; `timeout`; `cancelled`; `killed`: a limit ended it; `running`.",
        "enum": Status::ALL.map(Status::as_str),
    })
}

fn phases(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": [Phase::Compile, Phase::Run]})
}

fn entry_kinds(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": [EntryKind::File, EntryKind::Folder, EntryKind::Link, EntryKind::Other]})
}

/// The new hosts of a sandbox.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetNetwork {
    /// Hosts that the sandbox may reach from now on, such as `api.example.com`; an empty list means none.
    pub(crate) hosts: Vec<String>,
}

/// The options of a new sandbox. Every field may be left out.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CreateSandbox {
    /// Python packages that are installed from the start, such as `pandas` or `numpy>=2`.
    pub(crate) packages: Vec<String>,
    /// Environment variables of its programs.
    pub(crate) env: BTreeMap<String, String>,
    /// Memory in MiB.
    pub(crate) memory_mb: Option<u64>,
    /// Processor cores, such as 0.5.
    pub(crate) cpus: Option<f64>,
    /// Disk in MiB.
    pub(crate) disk_mb: Option<u64>,
    /// The sandbox ends after this many seconds even when it is in use.
    pub(crate) lifetime_s: Option<f64>,
    /// A name for people.
    pub(crate) label: Option<String>,
    /// An idempotency key: while a sandbox with this key and the same fields lives, the request returns it.
    pub(crate) key: Option<String>,
    /// Hosts that the sandbox may reach, such as `api.example.com`; an empty list means no network.
    pub(crate) network: Vec<String>,
    /// The name of a back end.
    pub(crate) backend: Option<String>,
    /// A container image.
    pub(crate) image: Option<String>,
}

/// Code to run in a sandbox that keeps its variables and files.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCode {
    /// The source.
    pub(crate) code: String,
    /// The language; Python if left out.
    pub(crate) language: Option<String>,
    /// Standard input.
    pub(crate) stdin: Option<String>,
    /// The code is stopped after this many seconds.
    pub(crate) timeout_s: Option<f64>,
    /// The maximum wait for the answer in seconds. If the code still runs then, the status is `running`. If left out,
    /// the answer waits for the end. Ignored for answers as events.
    pub(crate) wait_s: Option<f64>,
    /// The maximum bytes of stdout, and of stderr, in the answer: 1 MiB if left out, up to 4 MiB.
    pub(crate) max_output_bytes: Option<u64>,
}

/// Code to run once in a fresh sandbox, which is removed afterwards.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunOnce {
    /// The source.
    pub(crate) code: String,
    /// The language; Python if left out.
    pub(crate) language: Option<String>,
    /// Standard input.
    pub(crate) stdin: Option<String>,
    /// Packages of the language that are installed before the code starts.
    #[serde(default)]
    pub(crate) packages: Vec<String>,
    /// Files that are written before the code starts: path to content.
    #[serde(default)]
    pub(crate) files: BTreeMap<String, FileContent>,
    /// Paths of files to return.
    #[serde(default)]
    pub(crate) outputs: Vec<String>,
    /// The code is stopped after this many seconds.
    pub(crate) timeout_s: Option<f64>,
    /// The maximum wait for the answer in seconds. If the code still runs then, the status is `running`. If left out,
    /// the answer waits for the end. Ignored for answers as events.
    pub(crate) wait_s: Option<f64>,
    /// Memory in MiB.
    pub(crate) memory_mb: Option<u64>,
    /// Hosts that the code may reach; an empty list means no network.
    #[serde(default)]
    pub(crate) network: Vec<String>,
    /// The maximum bytes of stdout, and of stderr, in the answer: 1 MiB if left out, up to 4 MiB.
    pub(crate) max_output_bytes: Option<u64>,
}

/// The content of a file: a text, or bytes in base64.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a text or {\"base64\": \"…\"}")]
pub(crate) enum FileContent {
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Base64),
}

/// Bytes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Base64 {
    /// The bytes in base64.
    pub(crate) base64: String,
}

impl FileContent {
    /// Returns the bytes of the file at this path.
    pub(crate) fn bytes(self, path: &str) -> Result<Bytes, Failure> {
        match self {
            Self::Text(text) => Ok(text.into()),
            Self::Bytes(content) => decode(path, &content.base64),
        }
    }
}

/// Returns the bytes of the file at this path.
pub(crate) fn decode(path: &str, base64: &str) -> Result<Bytes, Failure> {
    let bytes = BASE64_STANDARD.decode(base64);
    bytes.map(Bytes::from).map_err(|error| {
        let message = format!("`files.{path}` is not base64: {error}");
        Failure::invalid(message, "encode the bytes of the file in standard base64 with padding")
    })
}

/// A command to run in a sandbox, in parallel with the code that runs there.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCommand {
    /// A line for the shell, or a program and its arguments.
    pub(crate) command: CommandLine,
    /// The working folder; `/home/user` if left out.
    pub(crate) cwd: Option<String>,
    /// Environment variables in addition to those of the sandbox.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// Standard input.
    pub(crate) stdin: Option<String>,
    /// The command is stopped after this many seconds.
    pub(crate) timeout_s: Option<f64>,
    /// The maximum wait for the answer in seconds. If the command still runs then, the status is `running`. If left
    /// out, the answer waits for the end. Ignored for answers as events.
    pub(crate) wait_s: Option<f64>,
    /// The maximum bytes of stdout, and of stderr, in the answer: 1 MiB if left out, up to 4 MiB.
    pub(crate) max_output_bytes: Option<u64>,
}

/// A line for the shell, or a program and its arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
pub(crate) enum CommandLine {
    /// Run by bash, or by sh where there is none.
    Shell(String),
    /// Run without a shell.
    Program(Vec<String>),
}

/// An execution without its output.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Execution {
    pub(crate) execution_id: String,
    pub(crate) sandbox_id: String,
    /// The language, or `command`.
    language: String,
    #[schemars(schema_with = "statuses")]
    pub(crate) status: Status,
    /// The last step that was reached: code that does not compile never runs.
    #[schemars(schema_with = "phases")]
    phase: Phase,
    exit_code: Option<i32>,
    /// The value of the last expression as text.
    result: Option<String>,
    /// True if `result` is cut.
    result_truncated: bool,
    /// The error that the code raised.
    error: Option<RaisedError>,
    /// The server's reason for a status other than `ok`.
    cause: Option<CauseOfEnd>,
    /// Advice for a failure that is specific to sandboxes.
    hint: Option<String>,
    /// Pictures that the code showed, and requested files.
    files: Vec<OutputFile>,
    /// The number of calls of each tool of the host by the code.
    tool_calls: Vec<ToolCalls>,
    /// The tools whose calls wait for a person; see `/v1/approvals`.
    waiting_for: Vec<String>,
    /// Requested files that could not be read, each with the reason.
    missing_files: Vec<String>,
    /// The number of bytes written to stdout.
    stdout_bytes: u64,
    /// The number of bytes written to stderr.
    stderr_bytes: u64,
    started_at: String,
    duration_ms: u64,
    cpu_ms: u64,
    peak_memory_mb: f64,
    /// True if the sandbox was made for this call.
    new_sandbox: bool,
    /// True if variables were lost.
    state_lost: bool,
    /// Notices about the sandbox, for example that the previous one has ended.
    notices: Vec<String>,
    isolation: ExecutionIsolation,
}

/// An execution with its output.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Run {
    /// The first bytes of standard output as text; invalid UTF-8 is replaced by U+FFFD.
    pub(crate) stdout: String,
    /// The first bytes of standard error in the same way.
    pub(crate) stderr: String,
    #[serde(flatten)]
    pub(crate) execution: Execution,
    /// True if `stdout` or `stderr` is cut; `/v1/executions/{execution_id}/output` has the rest.
    pub(crate) truncated: bool,
}

/// The calls of one tool by one execution.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ToolCalls {
    /// The tool, as `SERVER.TOOL`. `others` after the first 40 tools, and for tools that do not exist.
    tool: String,
    /// The number of calls that returned a result.
    ok: u32,
    /// The number of calls that failed.
    failed: u32,
    /// The number of calls that were not made: the operator's rules, a person or a limit refused them.
    refused: u32,
}

impl From<&ToolCallCount> for ToolCalls {
    fn from(count: &ToolCallCount) -> Self {
        Self {
            tool: count.tool.clone(),
            ok: count.ok,
            failed: count.failed,
            refused: count.refused,
        }
    }
}

/// An error that code raised.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RaisedError {
    /// The class of the error.
    name: String,
    /// The message of the error.
    value: String,
    traceback: String,
}

/// The reason for a status other than `ok`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CauseOfEnd {
    #[schemars(schema_with = "codes")]
    code: Code,
    message: String,
    remedy: String,
}

/// A picture or a file of an execution.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OutputFile {
    /// The number of the file within the execution.
    number: u32,
    name: String,
    media_type: String,
    size: usize,
    /// True if the code showed it, false if the request named it.
    shown: bool,
    /// The address of the file's bytes.
    url: String,
}

/// The isolation of an execution. The sandbox's isolation lists the layers.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ExecutionIsolation {
    backend: String,
    level: String,
    /// Layers that are weaker than possible, each with the reason.
    degraded: Vec<String>,
}

/// The isolation of a sandbox.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SandboxIsolation {
    backend: String,
    level: String,
    layers: Vec<String>,
    /// Layers that are weaker than possible, each with the reason.
    degraded: Vec<String>,
}

impl From<&Isolation> for SandboxIsolation {
    fn from(isolation: &Isolation) -> Self {
        Self {
            backend: isolation.backend.clone(),
            level: isolation.level.to_string(),
            layers: isolation.layers.clone(),
            degraded: isolation.degraded.clone(),
        }
    }
}

impl From<&CodeError> for RaisedError {
    fn from(error: &CodeError) -> Self {
        Self {
            name: error.name.clone(),
            value: error.value.clone(),
            traceback: error.traceback.clone(),
        }
    }
}

impl From<&ExecutionView> for Execution {
    fn from(view: &ExecutionView) -> Self {
        let cause = view.cause.as_ref().map(|cause| CauseOfEnd {
            code: cause.code,
            message: cause.message.clone(),
            remedy: with_rest_calls(&cause.remedy),
        });
        Self {
            execution_id: view.id.to_string(),
            sandbox_id: view.sandbox_id.to_string(),
            language: view.language.clone(),
            status: view.status,
            phase: view.phase,
            exit_code: view.exit_code,
            result: view.result.clone(),
            result_truncated: view.result_cut.is_some(),
            error: view.error.as_ref().map(RaisedError::from),
            cause,
            hint: view.hint.as_deref().map(with_rest_calls),
            files: view.artifacts.iter().map(|file| output_file(view, file)).collect(),
            tool_calls: view.tool_calls.iter().map(ToolCalls::from).collect(),
            waiting_for: view.waiting_for.clone(),
            missing_files: view.missing_outputs.clone(),
            stdout_bytes: view.stdout.total_bytes,
            stderr_bytes: view.stderr.total_bytes,
            started_at: rfc3339_millis(view.started),
            duration_ms: millis(view.duration),
            cpu_ms: millis(view.cpu),
            peak_memory_mb: tenths_of_mib(view.peak_memory),
            new_sandbox: view.new_sandbox,
            state_lost: view.state_lost,
            notices: view.notices.clone(),
            isolation: ExecutionIsolation {
                backend: view.isolation.backend.clone(),
                level: view.isolation.level.to_string(),
                degraded: view.isolation.degraded.clone(),
            },
        }
    }
}

fn output_file(view: &ExecutionView, file: &Artifact) -> OutputFile {
    OutputFile {
        number: file.number,
        name: file.name.clone(),
        media_type: file.mime.clone(),
        size: file.bytes.len(),
        shown: file.shown,
        url: format!("/v1/executions/{}/files/{}", view.id, file.number),
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn tenths_of_mib(size: ByteSize) -> f64 {
    let tenths = u32::try_from(size.as_bytes().saturating_mul(10) >> 20).unwrap_or(u32::MAX);
    f64::from(tenths) / 10.0
}

fn cores(cpus: Cpus) -> f64 {
    f64::from(cpus.as_milli()) / 1000.0
}

/// A sandbox.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Sandbox {
    sandbox_id: String,
    /// `starting`, `idle`, `busy` or `closing`.
    state: String,
    /// True for the sandbox that MCP calls without an id use.
    is_default: bool,
    label: Option<String>,
    key: Option<String>,
    /// True if this request made the sandbox.
    created: bool,
    created_at: String,
    /// The time when the sandbox ends if it is not used before.
    idle_expires_at: String,
    /// The time when the sandbox ends in any case.
    ends_at: Option<String>,
    limits: SandboxLimits,
    /// The current usage; null if it is not available at the moment.
    usage: Option<SandboxUsage>,
    packages: Vec<String>,
    network: Vec<String>,
    sessions: Vec<Session>,
    /// Oldest first.
    checkpoints: Vec<Checkpoint>,
    isolation: SandboxIsolation,
}

/// The limits of a sandbox.
#[derive(Debug, Serialize, JsonSchema)]
struct SandboxLimits {
    memory_mb: u64,
    cpus: f64,
    processes: u32,
    disk_mb: u64,
}

/// The usage of a sandbox.
#[derive(Debug, Serialize, JsonSchema)]
struct SandboxUsage {
    memory_mb: f64,
    peak_memory_mb: f64,
    cpu_ms: u64,
    processes: u32,
    disk_mb: f64,
}

/// A live interpreter.
#[derive(Debug, Serialize, JsonSchema)]
struct Session {
    language: String,
    /// The number of cells that ran since the interpreter started.
    cells: u32,
    busy: bool,
}

impl From<&SandboxView> for Sandbox {
    fn from(view: &SandboxView) -> Self {
        Self {
            sandbox_id: view.id.to_string(),
            state: view.state.to_owned(),
            is_default: view.is_default,
            label: view.label.clone(),
            key: view.key.clone(),
            created: view.made_now,
            created_at: rfc3339_millis(view.created),
            idle_expires_at: rfc3339_millis(view.idle_expires),
            ends_at: view.ends.map(rfc3339_millis),
            limits: SandboxLimits {
                memory_mb: view.limits.memory.as_mib(),
                cpus: cores(view.limits.cpus),
                processes: view.limits.processes,
                disk_mb: view.limits.disk.as_mib(),
            },
            usage: view.usage.as_ref().map(SandboxUsage::from),
            packages: view.packages.clone(),
            network: view.network.clone(),
            sessions: view.sessions.iter().map(Session::from).collect(),
            checkpoints: view.checkpoints.iter().map(Checkpoint::from).collect(),
            isolation: (&view.isolation).into(),
        }
    }
}

impl From<&Usage> for SandboxUsage {
    fn from(usage: &Usage) -> Self {
        Self {
            memory_mb: tenths_of_mib(ByteSize::bytes(usage.memory)),
            peak_memory_mb: tenths_of_mib(ByteSize::bytes(usage.memory_peak)),
            cpu_ms: usage.cpu_us / 1000,
            processes: usage.processes,
            disk_mb: tenths_of_mib(ByteSize::bytes(usage.disk)),
        }
    }
}

impl From<&SessionView> for Session {
    fn from(view: &SessionView) -> Self {
        Self {
            language: view.language.clone(),
            cells: view.cells,
            busy: view.busy,
        }
    }
}

/// The caller's sandboxes.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Sandboxes {
    pub(crate) sandboxes: Vec<Sandbox>,
}

/// The languages of this server.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Languages {
    /// The language of code in requests without a language.
    pub(crate) default: String,
    pub(crate) languages: Vec<KnownLanguage>,
}

/// A language.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct KnownLanguage {
    pub(crate) name: String,
    /// Other names that requests may use.
    pub(crate) aliases: Vec<String>,
    pub(crate) version: String,
    /// True if variables stay for the next run in the same sandbox.
    pub(crate) session: bool,
}

/// A sandbox that was closed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Closed {
    pub(crate) closed: String,
}

/// A folder.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Folder {
    pub(crate) path: String,
    /// Sorted by name.
    pub(crate) entries: Vec<FolderEntry>,
    /// The number of entries that are left out.
    pub(crate) omitted: u64,
}

/// An entry of a folder.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FolderEntry {
    /// The path relative to the folder.
    pub(crate) name: String,
    #[schemars(schema_with = "entry_kinds")]
    pub(crate) kind: EntryKind,
    /// The target of a link.
    pub(crate) target: Option<String>,
    pub(crate) size: u64,
    /// Milliseconds since 1970 (UTC).
    pub(crate) modified_ms: i64,
}

/// A file that was written.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WrittenFile {
    pub(crate) path: String,
    pub(crate) bytes_written: u64,
    /// The size of the file after the write.
    pub(crate) size: u64,
}

/// Running and finished executions.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Executions {
    /// Executions that run or are queued, newest first.
    pub(crate) running: Vec<RunningExecution>,
    /// The newest finished executions.
    pub(crate) finished: Vec<FinishedExecution>,
    /// The number of finished executions.
    pub(crate) total: u64,
}

/// An execution that runs or is queued.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RunningExecution {
    execution_id: String,
    sandbox_id: String,
    language: String,
    /// False while the execution is queued.
    began: bool,
    duration_ms: u64,
    code_preview: String,
}

/// A finished execution.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FinishedExecution {
    execution_id: String,
    /// Null for code that was rejected before it needed a sandbox.
    sandbox_id: Option<String>,
    language: String,
    #[schemars(schema_with = "statuses")]
    status: Status,
    started_at: String,
    duration_ms: u64,
    code_preview: String,
    stdout_preview: String,
    error: Option<String>,
}

impl From<&RunningView> for RunningExecution {
    fn from(view: &RunningView) -> Self {
        Self {
            execution_id: view.execution_id.to_string(),
            sandbox_id: view.sandbox_id.to_string(),
            language: view.language.clone(),
            began: view.began,
            duration_ms: view.duration_ms,
            code_preview: view.code_preview.clone(),
        }
    }
}

impl From<&HistoryRecord> for FinishedExecution {
    fn from(record: &HistoryRecord) -> Self {
        Self {
            execution_id: record.execution_id.to_string(),
            sandbox_id: record.sandbox_id.as_ref().map(ToString::to_string),
            language: record.language.clone(),
            status: record.status,
            started_at: record.timestamp.clone(),
            duration_ms: record.duration_ms,
            code_preview: record.code_preview.clone(),
            stdout_preview: record.stdout_preview.clone(),
            error: record.error.clone(),
        }
    }
}

/// A part of an execution's output.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OutputText {
    /// The text; invalid UTF-8 is replaced by U+FFFD.
    pub(crate) text: String,
    /// The offset of the first byte. It is higher than requested if bytes were dropped.
    pub(crate) offset: u64,
    /// The offset of the next part.
    pub(crate) next_offset: u64,
    /// The number of bytes written.
    pub(crate) total_bytes: u64,
    /// True if this is the last part.
    pub(crate) eof: bool,
}

/// The data of the event `start`, with the id of the execution.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Started {
    pub(crate) execution_id: String,
}

/// The data of the events `stdout` and `stderr`, with printed text.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Printed {
    pub(crate) text: String,
    /// The offset of the part in the stream.
    pub(crate) offset: u64,
    /// The number of bytes before the part that were dropped because the client read too slowly.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(default)]
    pub(crate) skipped_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over so")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The questions about tool calls that wait for a person.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Approvals {
    pub(crate) approvals: Vec<Approval>,
}

/// A call of a tool that waits for a person. The execution stands still meanwhile, and so does its clock.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Approval {
    execution_id: String,
    /// The number of the question within its execution.
    number: u32,
    /// The tool, as `SERVER.TOOL`.
    tool: String,
    /// The arguments as JSON text. Control and invisible characters are escaped, and a long text is cut in its middle.
    arguments: String,
    /// True if the server of the tool says that it changes nothing.
    read_only: bool,
}

impl From<&PendingToolCall> for Approval {
    fn from(pending: &PendingToolCall) -> Self {
        Self {
            execution_id: pending.execution_id.to_string(),
            number: pending.number,
            tool: format!("{}.{}", pending.question.server, pending.question.tool),
            arguments: pending.question.arguments.clone(),
            read_only: pending.question.read_only,
        }
    }
}

/// The answer to a question about a tool call.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApprovalAnswer {
    pub(crate) decision: ApprovalDecision,
    /// With `once`: the number of calls of this tool that may be made, this one included. 1 if left out.
    #[serde(default)]
    pub(crate) calls: Option<u32>,
}

/// A decision about a tool call.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ApprovalDecision {
    /// The call is made.
    Once,
    /// All calls of this tool by this execution are made.
    Run,
    /// The call is refused.
    Deny,
}

impl ApprovalDecision {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Run => "run",
            Self::Deny => "deny",
        }
    }
}
