//! The words of the engine's public face: what is asked and what comes back. Plain data, already parsed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use sandcell_sandbox::{
    ByteSize, Code, Consent, Cpus, Finding, Isolation, LayerReport, LeftOut, Limits, SandboxPath, Usage, Variable,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::{AbsentBackend, Expiry, KeptPicture, MemoryGrowth, MemoryUse, PassedOver, Quota, Watch};

/// Who calls. Everything belongs to a principal, and another's id answers like one that never existed.
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

    /// Its text.
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

    /// Its text.
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

/// The operator's settings that the engine works with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// What a sandbox gets when the call does not say.
    pub limits: Limits,
    /// The most that a call may ask for. `limits` are within it.
    pub max_limits: Limits,
    /// Execution time when the call does not say.
    pub timeout: Duration,
    /// Bytes of stdout, stderr and result that are handed back inline.
    pub output_inline: ByteSize,
    /// Bytes that are kept of each stream for later reading.
    pub output_kept: ByteSize,
    /// Bytes that one file call moves.
    pub file_bytes: ByteSize,
    /// Bytes that the source of one execution may have.
    pub code_bytes: ByteSize,
    /// Sandboxes that one principal may have at once.
    pub sandboxes_per_caller: usize,
    /// Sandboxes of all principals together.
    pub sandboxes: usize,
    /// Executions of one principal that run at once; more wait.
    pub executions_per_caller: usize,
    /// Executions of all principals that run at once; who has none running does not wait.
    pub executions: usize,
    /// What one principal may have over all of its sandboxes.
    pub quota: Quota,
    /// A sandbox with nothing running ends after this time without a call.
    pub idle: Duration,
    /// Finished executions that the history keeps.
    pub history_rows: usize,
    /// How long it keeps them.
    pub history_age: Duration,
    /// Executions of one session that may wait for their turn.
    pub queue: usize,
    /// Host folders that `upload_file` may read from.
    pub upload_from: Vec<std::path::PathBuf>,
    /// What results tell the caller to do, in the words of the interface in front.
    pub hints: Hints,
    /// Sandboxes that wait.
    pub pool: PoolConfig,
    /// Languages that are known and not here.
    pub absent: Vec<AbsentLanguage>,
    /// Back ends that the operator wants and that do not work here.
    pub absent_backends: Vec<AbsentBackend>,
    /// What becomes of what is noticed about code before it runs.
    pub analysis: Analysis,
}

/// What becomes of what is noticed about code before it runs. Advice, never protection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Analysis {
    /// Nothing is looked at.
    Off,
    /// Findings stand beside the result.
    #[default]
    Advisory,
    /// Code with a finding that denies is not run.
    Strict,
}

/// A language that this machine could have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsentLanguage {
    /// Its name.
    pub name: String,
    /// Its other names.
    pub aliases: Vec<String>,
    /// Why it is not here, and how to get it.
    pub failure: sandcell_sandbox::Failure,
}

/// Sandboxes with the default limits that are made ahead, an interpreter ready in each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolConfig {
    /// How many wait; none means that demand decides, within `memory`.
    pub parked: Option<usize>,
    /// Memory that waiting sandboxes may use together, when demand decides.
    pub memory: ByteSize,
    /// Modules that the interpreter of a waiting sandbox has loaded.
    pub preload: Vec<String>,
    /// Whether sessions begin as copies of one interpreter, which has loaded them, where the first back end and language can
    /// do that.
    pub warm: bool,
}

impl Default for PoolConfig {
    /// None wait: right for a program that makes one sandbox and ends.
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

/// Sentences that name calls of the interface in front of the engine, which the engine itself does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hints {
    /// How to get more memory.
    pub more_memory: String,
    /// How to get more time.
    pub more_time: String,
    /// How to get more disk.
    pub more_disk: String,
    /// How to bring in data without a network.
    pub bring_data: String,
    /// Advice on getting packages in.
    pub bring_packages: String,
    /// How to give standard input.
    pub give_stdin: String,
    /// The call that reads the part of a stream that a result leaves out, with `{execution_id}`, `{stream}` and
    /// `{offset}` as placeholders, such as `get_execution(execution_id="{execution_id}", offset={offset})`.
    /// None: the marker advises to print less instead.
    pub read_rest: Option<String>,
}

impl Default for Hints {
    /// Words that are right whatever is in front.
    fn default() -> Self {
        Self {
            more_memory: "work on the data in parts, or give the sandbox more memory".to_owned(),
            more_time: "make the work smaller, or give it more time".to_owned(),
            more_disk: "delete files that are not needed, or give the sandbox a larger disk".to_owned(),
            bring_data: "bring the data in as a file, or make it in the code".to_owned(),
            bring_packages: "have the packages installed, or use what the language has itself".to_owned(),
            give_stdin: "give the code standard input, one line for each input(): nobody is there to type".to_owned(),
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
    /// The name on the wire.
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

/// A part of a stream. Offsets are bytes of what the code wrote; a character is never split.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StreamSlice {
    /// The text, with escape sequences removed and other control characters escaped.
    pub text: String,
    /// Where it starts. Later than asked for where a match was looked for or bytes were not kept.
    pub offset: u64,
    /// Where the next part starts.
    pub next_offset: u64,
    /// All bytes written so far.
    pub total_bytes: u64,
    /// Whether nothing comes after this part, now or later.
    pub eof: bool,
}

/// Run code in a session that keeps its variables.
#[derive(Debug, Clone)]
pub struct ExecuteRequest {
    /// The source.
    pub code: String,
    /// The language's name or alias.
    pub language: String,
    /// The sandbox; none means the caller's default one, made when needed.
    pub sandbox_id: Option<String>,
    /// What standard input holds.
    pub stdin: Option<String>,
    /// How long the code may run.
    pub timeout: Option<Duration>,
    /// The time until the call answers `running`. None waits until the end.
    pub wait: Option<Duration>,
    /// Filled once the execution is admitted.
    pub watch: Watch,
}

/// Run code once in a fresh sandbox that is removed afterwards.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// The source.
    pub code: String,
    /// The language's name or alias.
    pub language: String,
    /// What standard input holds.
    pub stdin: Option<String>,
    /// Packages that are there before the code starts.
    pub packages: Vec<String>,
    /// Files that are there before the code starts.
    pub files: Vec<(SandboxPath, Bytes)>,
    /// Files that are wanted back.
    pub outputs: Vec<SandboxPath>,
    /// How long the code may run.
    pub timeout: Option<Duration>,
    /// The time until the call answers `running`. None waits until the end.
    pub wait: Option<Duration>,
    /// Filled once the execution is admitted.
    pub watch: Watch,
    /// Memory for this run.
    pub memory: Option<ByteSize>,
    /// Hosts that it may reach, such as `api.example.com` or `*.example.org`; empty is no network.
    pub network: Vec<String>,
    /// What the user said to what of it the operator leaves to the user.
    pub consent: Consent,
}

/// Run a whole program in a fresh sandbox, its output streamed as it comes.
#[derive(Debug, Clone)]
pub struct ProgramRequest {
    /// The source.
    pub code: String,
    /// The language's name or alias.
    pub language: String,
    /// The program's arguments.
    pub args: Vec<String>,
    /// Packages that are there before it starts.
    pub packages: Vec<String>,
    /// Files that are there before it starts.
    pub files: Vec<(SandboxPath, Bytes)>,
    /// Files that are wanted back.
    pub outputs: Vec<SandboxPath>,
    /// The time limit.
    pub timeout: Option<Duration>,
    /// The time limit of the compiler; none means the language's own.
    pub compile_timeout: Option<Duration>,
    /// Memory for this run.
    pub memory: Option<ByteSize>,
    /// Hosts that it may reach; empty is no network.
    pub network: Vec<String>,
    /// A container image, whose programs it is run with.
    pub image: Option<String>,
    /// What the user said to what of it the operator leaves to the user.
    pub consent: Consent,
    /// Receives each step of the installation of its packages, and an empty text when they are there.
    pub progress: watch::Sender<String>,
    /// Filled once the execution is admitted.
    pub watch: Watch,
}

/// Whether something stands in its caller's view of the history. The operator's rows have it in any case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum InHistory {
    #[default]
    Shown,
    Unshown,
}

/// Install packages in a sandbox.
#[derive(Debug, Clone)]
pub struct InstallRequest {
    /// What to install, each a requirement with a name and, if needed, versions.
    pub packages: Vec<String>,
    /// The language's name or alias.
    pub language: String,
    /// The sandbox; none means the caller's default one, made when needed.
    pub sandbox_id: Option<String>,
    /// How long it may take; none means 120 s.
    pub timeout: Option<Duration>,
    /// The time until the call answers `running`. None waits until the end.
    pub wait: Option<Duration>,
    /// Whether the installation counts among the caller's executions.
    pub in_history: InHistory,
    /// What the user said to what of it the operator leaves to the user.
    pub consent: Consent,
}

/// The answer of a file call, with the sandbox it was about.
#[derive(Debug, Clone)]
pub struct FileAnswer<T> {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Whether it was made for this call.
    pub new_sandbox: bool,
    /// Sentences that the result must begin with.
    pub notices: Vec<String>,
    /// The answer itself.
    pub value: T,
}

/// Make sandboxes.
#[derive(Debug, Clone, Default)]
pub struct CreateRequest {
    /// How many; at least 1. All are made, or none.
    pub count: u32,
    /// A name of the caller's own for one sandbox: while one that was asked for with it lives, it is the answer, and
    /// nothing is made. At most 100 characters.
    pub key: Option<String>,
    /// Packages (of the language that packages can be installed for) that are there from the start.
    pub packages: Vec<String>,
    /// Variables for programs in it.
    pub env: BTreeMap<String, String>,
    /// Memory.
    pub memory: Option<ByteSize>,
    /// Processor time.
    pub cpus: Option<Cpus>,
    /// Disk.
    pub disk: Option<ByteSize>,
    /// It ends after this time even when in use; none means only the idle rule ends it.
    pub lifetime: Option<Duration>,
    /// A name for people; at most 100 characters.
    pub label: Option<String>,
    /// A certain back end by name.
    pub backend: Option<String>,
    /// A container image.
    pub image: Option<String>,
    /// Hosts that it may reach; empty is no network.
    pub network: Vec<String>,
    /// Told what the sandboxes wait for.
    pub watch: Watch,
    /// What the user said to what of it the operator leaves to the user.
    pub consent: Consent,
}

/// A live sandbox, as its owner sees it.
#[derive(Debug, Clone)]
pub struct SandboxView {
    /// Its id.
    pub id: SandboxId,
    /// Whether it is the caller's default one.
    pub is_default: bool,
    /// `starting`, `idle`, `busy` or `closing`.
    pub state: &'static str,
    /// The name for people.
    pub label: Option<String>,
    /// The key that it was asked for with.
    pub key: Option<String>,
    /// Whether the call that this answers made it.
    pub made_now: bool,
    /// When it was made.
    pub created: SystemTime,
    /// When it ends if nothing is called until then.
    pub idle_expires: SystemTime,
    /// When it ends in any case.
    pub ends: Option<SystemTime>,
    /// What it may use.
    pub limits: Limits,
    /// What it uses; none when it could not be asked just now.
    pub usage: Option<Usage>,
    /// The packages that were installed in it, the base's included, as `name version`.
    pub packages: Vec<String>,
    /// Its live sessions.
    pub sessions: Vec<SessionView>,
    /// What its last executions did to its memory, oldest first; at most ten.
    pub growth: Vec<MemoryGrowth>,
    /// What isolates it.
    pub isolation: Isolation,
    /// Hosts that it may reach.
    pub network: Vec<String>,
    /// Bytes that were carried to and from them.
    pub network_bytes: u64,
    /// Back ends that were preferred and could not make it.
    pub passed_over: Vec<PassedOver>,
}

/// A live session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionView {
    /// The language.
    pub language: String,
    /// Cells run since it started.
    pub cells: u32,
    /// Whether one is running now.
    pub busy: bool,
    /// Its variables, where they were asked for and it was not busy.
    pub variables: Option<Vec<Variable>>,
}

/// How an execution stands.
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
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Ok,
        Self::Error,
        Self::Timeout,
        Self::Cancelled,
        Self::Killed,
        Self::Running,
    ];

    /// The word on the wire.
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
    /// A program is made of the source.
    Compile,
    /// The code itself runs.
    Run,
}

/// An error that code raised, in the code's own words: it can forge all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CodeError {
    /// The class, such as `ValueError`; "an error" where the code's word is not spelt like a name.
    pub name: String,
    /// Its message; at most 2,000 bytes and "...".
    pub value: String,
    /// A short traceback that points at the caller's own lines.
    pub traceback: String,
}

/// Why an execution was not ok.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// The kind.
    pub code: Code,
    /// What happened, with the limit and how much was used.
    pub message: String,
    /// What to do next.
    pub remedy: String,
}

/// A kept text stream of an execution, cut for showing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shown {
    /// Head and tail, with a line between them that says how many bytes are left out and how to read them.
    pub text: String,
    /// All bytes that the code wrote.
    pub total_bytes: u64,
    /// Whether `text` leaves something out.
    pub truncated: bool,
}

/// A picture, a rich value or a file that came out of an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// Its number within the execution, from 0; with the execution's id it names the resource.
    pub number: u32,
    /// A short name, such as `plot-1.png` or the file's name.
    pub name: String,
    /// Its MIME type.
    pub mime: String,
    /// Its bytes.
    pub bytes: Bytes,
    /// Whether it was shown by the code (a plot) rather than asked for with `outputs`.
    pub shown: bool,
    /// A plain text stand-in for it, if the code gave one.
    pub text: Option<String>,
}

/// The cause reported when the whole sandbox was lost, not only its session.
pub const SANDBOX_LOST: &str = "its variables and files are gone";

/// An execution, running or finished.
#[derive(Debug, Clone)]
pub struct ExecutionView {
    /// Its id.
    pub id: ExecutionId,
    /// The sandbox it ran in (already gone for a throwaway run).
    pub sandbox_id: SandboxId,
    /// The language.
    pub language: String,
    /// How it stands.
    pub status: Status,
    /// The step that it came to: code that does not compile never runs.
    pub phase: Phase,
    /// The program's exit code where there is one.
    pub exit_code: Option<i32>,
    /// When it started.
    pub started: SystemTime,
    /// How long it ran.
    pub duration: Duration,
    /// Processor time it used. For runs of a few milliseconds that went well it is the wall time, because
    /// asking would take longer than the run.
    pub cpu: Duration,
    /// The most memory its sandbox used so far.
    pub peak_memory: ByteSize,
    /// Memory of its sandbox before and after it; none when it was not measured (runs of a few milliseconds).
    pub memory: Option<MemoryUse>,
    /// Standard output. What threads and processes of earlier calls wrote since the last one comes first, and is marked.
    pub stdout: Shown,
    /// Standard error.
    pub stderr: Shown,
    /// The last expression's value as text.
    pub result: Option<String>,
    /// All bytes of that text, where `result` leaves some out.
    pub result_cut: Option<u64>,
    /// A line about the value that its text leaves out: a table's shape and column types.
    pub result_note: Option<String>,
    /// The error that the code raised.
    pub error: Option<CodeError>,
    /// A line that the code's session adds to the error: what to do, as it sees it. The code can forge it like the error.
    pub hint: Option<String>,
    /// Why it was not ok. The server's own words.
    pub cause: Option<Cause>,
    /// Plots and wanted files.
    pub artifacts: Vec<Artifact>,
    /// Wanted files that could not be read, each with the reason.
    pub missing_outputs: Vec<String>,
    /// Whether variables were lost (here, or because a previous sandbox or session of the caller ended).
    pub state_lost: bool,
    /// What the session was restored to after its interpreter died in this execution.
    pub restored: Option<Restored>,
    /// Whether the sandbox was made for this call.
    pub new_sandbox: bool,
    /// When its sandbox ends; none for one that is made for one run.
    pub expiry: Option<Expiry>,
    /// Sentences that the result must begin with ("new sandbox: the previous one expired at …").
    pub notices: Vec<String>,
    /// What isolated it.
    pub isolation: Arc<Isolation>,
    /// Back ends that were preferred and could not make its sandbox.
    pub passed_over: Vec<PassedOver>,
    /// What was noticed about the code before it ran.
    pub findings: Vec<Finding>,
}

/// What a session is after it was restored. Variables and imports are as they were then; files are as they are now;
/// open files, sockets and event loops are closed, and child processes have ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// The number of the last cell of the session whose effects are there.
    pub cell: u32,
    /// The execution of that cell, while it is known.
    pub execution_id: Option<ExecutionId>,
    /// How many cells that came to their end lie between it and the one that died.
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
    /// Its sandbox; null for code that was rejected before one was needed.
    pub sandbox_id: Option<SandboxId>,
    /// The language.
    pub language: String,
    /// How it ended.
    pub status: Status,
    /// When it started, RFC 3339 with milliseconds, UTC.
    pub timestamp: String,
    /// Whether it was ok.
    pub success: bool,
    /// How long it ran.
    pub duration_ms: u64,
    /// At most 100 characters and "...".
    pub code_preview: String,
    /// At most 200 characters and "...".
    pub stdout_preview: String,
    /// The error's last line, or the cause's message.
    pub error: Option<String>,
}

/// An execution that runs or waits for its turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunningView {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Its sandbox.
    pub sandbox_id: SandboxId,
    /// The language.
    pub language: String,
    /// Whether its code has begun; else it waits.
    pub began: bool,
    /// How long its code has run.
    pub duration_ms: u64,
    /// At most 100 characters and "...".
    pub code_preview: String,
}

/// A finished execution as a history that lasts has it, whoever keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeptExecution {
    /// Its row.
    #[serde(flatten)]
    pub record: HistoryRecord,
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
    /// Why it was not ok: the code of the cause.
    pub cause: Option<String>,
    /// The program's exit code.
    pub exit_code: Option<i32>,
    /// Processor time.
    pub cpu_ms: u64,
    /// The most memory its sandbox used so far, in bytes.
    pub peak_memory_bytes: u64,
    /// Bytes that it wrote to standard output.
    pub stdout_bytes: u64,
    /// Bytes that it wrote to standard error.
    pub stderr_bytes: u64,
    /// The pictures that it showed.
    pub pictures: Vec<KeptPicture>,
}

/// The caller's history, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HistoryView {
    /// Executions in this view (since the last reset).
    pub total: u64,
    /// When this view began, RFC 3339.
    pub session_start: String,
    /// Packages installed since then.
    pub installed_packages: Vec<String>,
    /// The newest ones.
    pub records: Vec<HistoryRecord>,
}

/// What was reset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResetView {
    /// The sandbox; null if the caller had none.
    pub sandbox_id: Option<SandboxId>,
    /// Languages whose interpreters ended.
    pub languages: Vec<String>,
}

/// A back end as the server sees it.
#[derive(Debug, Clone)]
pub struct BackendView {
    /// Its name.
    pub name: &'static str,
    /// What it gives here.
    pub isolation: Isolation,
    /// Layer by layer.
    pub layers: Vec<LayerReport>,
    /// Mounts of the host that its sandboxes do not show.
    pub left_out: Vec<LeftOut>,
    /// Whether a request may name an image.
    pub supports_images: bool,
    /// Whether a sandbox without an image shows the programs of this machine.
    pub uses_host_programs: bool,
}
