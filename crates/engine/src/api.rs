//! The types of the engine's public interface: requests and answers. Plain data, already parsed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use sandcell_sandbox::{
    ByteSize, Code, Consent, Cpus, Finding, Isolation, LayerReport, LeftOut, Limits, SandboxPath, Usage, Variable,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::{AbsentBackend, Expiry, KeptPicture, MemoryGrowth, MemoryUse, Quota, SkippedBackend, Watch};

/// The identity of a caller. Everything belongs to a principal, and another principal's id gets the answer of an
/// unknown one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(pub Arc<str>);

/// A sandbox's id: `sb` and 26 lower-case letters and digits (130 bits of randomness).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct SandboxId(pub(crate) Arc<str>);

/// An execution's id: `ex` and 26 lower-case letters and digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ExecutionId(pub(crate) Arc<str>);

impl SandboxId {
    /// Reads an id from its text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        is_id(text, "sb").then(|| Self(text.into()))
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for SandboxId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl ExecutionId {
    /// Reads an id from its text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        is_id(text, "ex").then(|| Self(text.into()))
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for ExecutionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_id(text: &str, prefix: &str) -> bool {
    text.strip_prefix(prefix).is_some_and(|rest| {
        rest.len() == 26
            && rest
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    })
}

/// The operator's settings for the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// The limits of a sandbox when the call names none.
    pub limits: Limits,
    /// The maximum limits that a call can ask for. `limits` are within them.
    pub max_limits: Limits,
    /// The execution time limit when the call names none.
    pub timeout: Duration,
    /// The maximum number of bytes of stdout, stderr and result that an answer contains inline.
    pub output_inline: ByteSize,
    /// The maximum number of bytes of each stream that the engine stores for later reading.
    pub output_kept: ByteSize,
    /// The maximum number of bytes that one file call moves.
    pub file_bytes: ByteSize,
    /// The maximum number of bytes of one execution's source.
    pub code_bytes: ByteSize,
    /// The maximum number of live sandboxes of one principal.
    pub sandboxes_per_caller: usize,
    /// The maximum number of live sandboxes of all principals together.
    pub sandboxes: usize,
    /// The maximum number of executions of one principal that run at once. Others wait.
    pub executions_per_caller: usize,
    /// The maximum number of executions of all principals that run at once. A principal with none running does not
    /// wait.
    pub executions: usize,
    /// The maximum resources of one principal over all of its sandboxes.
    pub quota: Quota,
    /// A sandbox with nothing running ends after this time without a call.
    pub idle: Duration,
    /// The number of finished executions in the history.
    pub history_rows: usize,
    /// The maximum age of an execution in the history.
    pub history_age: Duration,
    /// The maximum number of executions that wait for one session.
    pub queue: usize,
    /// Host folders that `upload_file` can read from.
    pub upload_from: Vec<std::path::PathBuf>,
    /// Advice to the caller in results, with the names of the front end's calls.
    pub hints: Hints,
    /// The idle sandboxes.
    pub pool: PoolConfig,
    /// Known languages that are not available here.
    pub absent: Vec<AbsentLanguage>,
    /// Back ends that the operator configured and that do not work here.
    pub absent_backends: Vec<AbsentBackend>,
    /// The treatment of static-analysis findings.
    pub analysis: Analysis,
}

/// The treatment of static-analysis findings. Advice, never protection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Analysis {
    /// The engine runs no analysis.
    Off,
    /// The result lists the findings.
    #[default]
    Advisory,
    /// The engine refuses code with a finding that denies.
    Strict,
}

/// A known language that is not available on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsentLanguage {
    /// Its name.
    pub name: String,
    /// Its other names.
    pub aliases: Vec<String>,
    /// The reason, and instructions to install it.
    pub failure: sandcell_sandbox::Failure,
}

/// The settings of the pool: idle sandboxes with the default limits and a started interpreter in each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolConfig {
    /// The number of idle sandboxes. None: demand decides, within `memory`.
    pub parked: Option<usize>,
    /// The maximum memory of all idle sandboxes together, when demand decides.
    pub memory: ByteSize,
    /// Modules that the interpreter of an idle sandbox has loaded.
    pub preload: Vec<String>,
    /// True if sessions begin as forks of one zygote, which has loaded the modules, where the first back end and
    /// language support that.
    pub warm: bool,
}

impl Default for PoolConfig {
    /// No idle sandboxes: right for a program that makes one sandbox and ends.
    fn default() -> Self {
        Self {
            parked: Some(0),
            memory: ByteSize::mib(256),
            preload: Vec::new(),
            warm: false,
        }
    }
}

impl Default for EngineConfig {
    /// The documented defaults.
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            max_limits: Limits {
                memory: ByteSize::mib(16 * 1024),
                cpus: Cpus::milli(64_000),
                processes: 4096,
                disk: ByteSize::mib(64 * 1024),
                inodes: 5_000_000,
            },
            timeout: Duration::from_secs(30),
            output_inline: ByteSize::kib(20),
            output_kept: ByteSize::mib(16),
            file_bytes: ByteSize::mib(10),
            code_bytes: ByteSize::mib(1),
            sandboxes_per_caller: 16,
            sandboxes: 256,
            executions_per_caller: 128,
            executions: 256,
            quota: Quota::default(),
            idle: Duration::from_secs(30 * 60),
            history_rows: 10_000,
            history_age: Duration::from_secs(30 * 24 * 3600),
            queue: 16,
            upload_from: Vec::new(),
            hints: Hints::default(),
            pool: PoolConfig::default(),
            absent: Vec::new(),
            absent_backends: Vec::new(),
            analysis: Analysis::default(),
        }
    }
}

/// Sentences that name calls of the front end. The engine itself does not know these calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hints {
    /// Instructions to get more memory.
    pub more_memory: String,
    /// Instructions to get more time.
    pub more_time: String,
    /// Instructions to get more disk.
    pub more_disk: String,
    /// Instructions to bring in data without a network.
    pub bring_data: String,
    /// Instructions to install packages.
    pub bring_packages: String,
    /// Instructions to give standard input.
    pub give_stdin: String,
    /// The call that reads the part of a stream that a result leaves out, with `{execution_id}`, `{stream}` and
    /// `{offset}` as placeholders, such as `get_execution(execution_id="{execution_id}", offset={offset})`. None: the
    /// marker advises to print less instead.
    pub read_rest: Option<String>,
}

impl Default for Hints {
    /// Sentences that fit every front end.
    fn default() -> Self {
        Self {
            more_memory: "work on the data in parts, or give the sandbox more memory".to_owned(),
            more_time: "make the work smaller, or give it more time".to_owned(),
            more_disk: "delete files that are not needed, or give the sandbox a larger disk".to_owned(),
            bring_data: "bring the data in as a file, or make it in the code".to_owned(),
            bring_packages: "have the packages installed, or use what the language has itself".to_owned(),
            give_stdin: "give the code standard input, one line for each input(): no user can type".to_owned(),
            read_rest: None,
        }
    }
}

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

/// A request to run code in a session that keeps its variables.
#[derive(Debug, Clone)]
pub struct ExecuteRequest {
    /// The source.
    pub code: String,
    /// The language's name or alias.
    pub language: String,
    /// The sandbox. None means the caller's default one, which the engine makes if needed.
    pub sandbox_id: Option<String>,
    /// The content of standard input.
    pub stdin: Option<String>,
    /// The execution time limit.
    pub timeout: Option<Duration>,
    /// The time until the call answers `running`. None waits until the end.
    pub wait: Option<Duration>,
    /// Follows the execution after its admission.
    pub watch: Watch,
}

/// A request to run code once in a fresh sandbox that the engine removes afterwards.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// The source.
    pub code: String,
    /// The language's name or alias.
    pub language: String,
    /// The content of standard input.
    pub stdin: Option<String>,
    /// Packages to install before the code starts.
    pub packages: Vec<String>,
    /// Files to write before the code starts.
    pub files: Vec<(SandboxPath, Bytes)>,
    /// Files to return after the run.
    pub outputs: Vec<SandboxPath>,
    /// The execution time limit.
    pub timeout: Option<Duration>,
    /// The time until the call answers `running`. None waits until the end.
    pub wait: Option<Duration>,
    /// Follows the execution after its admission.
    pub watch: Watch,
    /// The memory limit of this run.
    pub memory: Option<ByteSize>,
    /// Hosts that the code can reach, such as `api.example.com` or `*.example.org`. Empty means no network.
    pub network: Vec<String>,
    /// The user's consent to the parts of the request that need it.
    pub consent: Consent,
}

/// A request to run a whole program in a fresh sandbox, with streamed output.
#[derive(Debug, Clone)]
pub struct ProgramRequest {
    /// The source.
    pub code: String,
    /// The language's name or alias.
    pub language: String,
    /// The program's arguments.
    pub args: Vec<String>,
    /// Packages to install before the program starts.
    pub packages: Vec<String>,
    /// Files to write before the program starts.
    pub files: Vec<(SandboxPath, Bytes)>,
    /// Files to return after the run.
    pub outputs: Vec<SandboxPath>,
    /// The time limit.
    pub timeout: Option<Duration>,
    /// The time limit of the compiler. None means the language's default.
    pub compile_timeout: Option<Duration>,
    /// The memory limit of this run.
    pub memory: Option<ByteSize>,
    /// Hosts that the program can reach. Empty means no network.
    pub network: Vec<String>,
    /// A container image. The program runs with the image's programs.
    pub image: Option<String>,
    /// The user's consent to the parts of the request that need it.
    pub consent: Consent,
    /// Receives each step of the package installation, and an empty text at its end.
    pub progress: watch::Sender<String>,
    /// Follows the execution after its admission.
    pub watch: Watch,
}

/// Visibility in the caller's view of the history. The operator's rows always contain the execution.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum InHistory {
    #[default]
    Shown,
    Unshown,
}

/// A request to install packages in a sandbox.
#[derive(Debug, Clone)]
pub struct InstallRequest {
    /// The packages to install: each a requirement with a name and, if needed, versions.
    pub packages: Vec<String>,
    /// The language's name or alias.
    pub language: String,
    /// The sandbox. None means the caller's default one, which the engine makes if needed.
    pub sandbox_id: Option<String>,
    /// The time limit. None means 120 s.
    pub timeout: Option<Duration>,
    /// The time until the call answers `running`. None waits until the end.
    pub wait: Option<Duration>,
    /// Visibility of the installation in the caller's history.
    pub in_history: InHistory,
    /// The user's consent to the parts of the request that need it.
    pub consent: Consent,
}

/// The answer of a file call, with its sandbox.
#[derive(Debug, Clone)]
pub struct FileAnswer<T> {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// True if the engine made the sandbox for this call.
    pub new_sandbox: bool,
    /// Sentences for the start of the result.
    pub notices: Vec<String>,
    /// The answer itself.
    pub value: T,
}

/// A request to make sandboxes.
#[derive(Debug, Clone, Default)]
pub struct CreateRequest {
    /// The number of sandboxes, at least 1. The engine makes all of them, or none.
    pub count: u32,
    /// The caller's name for one sandbox. While a sandbox with this key lives, the engine returns it and makes nothing.
    /// At most 100 characters.
    pub key: Option<String>,
    /// Packages (of the first language with an installer) to install from the start.
    pub packages: Vec<String>,
    /// Environment variables for programs in the sandbox.
    pub env: BTreeMap<String, String>,
    /// The memory limit.
    pub memory: Option<ByteSize>,
    /// The limit of processor time.
    pub cpus: Option<Cpus>,
    /// The disk limit.
    pub disk: Option<ByteSize>,
    /// The sandbox ends after this time even when in use. None: only the idle rule ends it.
    pub lifetime: Option<Duration>,
    /// A label for people, at most 100 characters.
    pub label: Option<String>,
    /// The name of a back end.
    pub backend: Option<String>,
    /// A container image.
    pub image: Option<String>,
    /// Hosts that the sandbox can reach. Empty means no network.
    pub network: Vec<String>,
    /// Follows the preparation of the sandboxes.
    pub watch: Watch,
    /// The user's consent to the parts of the request that need it.
    pub consent: Consent,
}

/// A live sandbox, as its owner sees it.
#[derive(Debug, Clone)]
pub struct SandboxView {
    /// Its id.
    pub id: SandboxId,
    /// True for the caller's default sandbox.
    pub is_default: bool,
    /// `starting`, `idle`, `busy` or `closing`.
    pub state: &'static str,
    /// The label for people.
    pub label: Option<String>,
    /// The key of the request.
    pub key: Option<String>,
    /// True if the answered call made the sandbox.
    pub made_now: bool,
    /// The time of its creation.
    pub created: SystemTime,
    /// The time of its end if no call comes before.
    pub idle_expires: SystemTime,
    /// The time of its end in any case.
    pub ends: Option<SystemTime>,
    /// Its limits.
    pub limits: Limits,
    /// Its current usage. None if the back end did not answer in time.
    pub usage: Option<Usage>,
    /// The installed packages, the base's included, as `name version`.
    pub packages: Vec<String>,
    /// Its live sessions.
    pub sessions: Vec<SessionView>,
    /// The effects of its last executions on its memory, oldest first. At most ten.
    pub growth: Vec<MemoryGrowth>,
    /// Its isolation.
    pub isolation: Isolation,
    /// Hosts that the sandbox can reach.
    pub network: Vec<String>,
    /// Bytes to and from these hosts.
    pub network_bytes: u64,
    /// Preferred back ends that could not make the sandbox.
    pub skipped_backends: Vec<SkippedBackend>,
}

/// A live session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionView {
    /// The language.
    pub language: String,
    /// The number of cells that have run since the session started.
    pub cells: u32,
    /// True if a cell runs now.
    pub busy: bool,
    /// Its variables, if the call asked for them and the session was not busy.
    pub variables: Option<Vec<Variable>>,
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
    /// The program's exit code, if there is one.
    pub exit_code: Option<i32>,
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

/// A finished execution in the permanent history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeptExecution {
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
    pub pictures: Vec<KeptPicture>,
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

/// The result of a reset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResetView {
    /// The sandbox. Null if the caller had none.
    pub sandbox_id: Option<SandboxId>,
    /// Languages whose interpreters ended.
    pub languages: Vec<String>,
}

/// A back end from the server's point of view.
#[derive(Debug, Clone)]
pub struct BackendView {
    /// Its name.
    pub name: &'static str,
    /// Its isolation on this machine.
    pub isolation: Isolation,
    /// The report of each layer.
    pub layers: Vec<LayerReport>,
    /// Host mounts that its sandboxes do not show.
    pub left_out: Vec<LeftOut>,
    /// True if a request can name an image.
    pub knows_images: bool,
    /// True if a sandbox without an image shows the programs of this machine.
    pub shows_host: bool,
}
