//! The requests to the engine. Plain data, already parsed.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use sandcell_sandbox::{ByteSize, Consent, Cpus, FunctionSpec, SandboxPath, TerminalSize};
use tokio::sync::watch;

use crate::{Status, Watch};

/// A request to run code in a session that keeps its variables.
#[derive(Debug, Clone, Default)]
pub struct ExecuteRequest {
    /// The source.
    pub code: String,
    /// The language's name or alias.
    pub language: String,
    /// The name of the session. None is the language's first session. Every other name is a session with variables of
    /// its own: at most 64 lower-case letters, digits, `-` and `_`.
    pub session: Option<String>,
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
    /// True to keep every representation of displayed values and of the result for [`Watch::values`].
    pub keep_values: bool,
    /// Visibility of the execution in the caller's history.
    pub in_history: InHistory,
    /// The name of a checkpoint to make before the code runs. If that is not possible, the code does not run.
    pub checkpoint: Option<String>,
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
    /// [`Engine::set_lifetime`](crate::Engine::set_lifetime) changes the end.
    pub lifetime: Option<Duration>,
    /// True if the sandbox is paused at the end of its lifetime, and does not end.
    pub pauses_at_end: bool,
    /// The sandbox ends after this time without a call. None: the configured time.
    pub idle: Option<Duration>,
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
    /// The state that the sandboxes go on from. None: they are empty.
    pub from: Option<CreateFrom>,
    /// Functions of the caller's program that code in the sandboxes may call
    /// ([`Engine::exchange_function_calls`](crate::Engine::exchange_function_calls)).
    pub functions: Vec<FunctionSpec>,
}

/// The state that a new sandbox goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateFrom {
    /// That of another sandbox.
    Sandbox(BranchFrom),
    /// A saved one.
    Saved(SavedFrom),
}

/// A request to save the state of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SaveRequest {
    /// The state.
    pub from: BranchFrom,
    /// The name.
    pub name: String,
    /// True to leave the variables out.
    pub only_files: bool,
}

/// A saved state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SavedFrom {
    /// Its name.
    pub name: String,
    /// True for the files without the variables.
    pub only_files: bool,
}

/// The state of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BranchFrom {
    /// The sandbox. None means the caller's default one.
    pub sandbox_id: Option<String>,
    /// A named checkpoint of it. None: its current state.
    pub checkpoint: Option<String>,
}

/// A request to run a program that needs no session in an existing sandbox, next to its other programs.
#[derive(Debug, Clone)]
pub struct CommandRequest {
    /// The program.
    pub command: CommandLine,
    /// The working folder. If the program cannot enter it, the program is not started.
    pub cwd: SandboxPath,
    /// Environment variables that replace those of the sandbox by name.
    pub env: BTreeMap<String, String>,
    /// The sandbox. None means the caller's default one, which the engine makes if needed.
    pub sandbox_id: Option<String>,
    /// The time limit.
    pub timeout: Option<Duration>,
    /// The size of the terminal to run it in. Its output, stderr included, is then stdout. None: it has pipes.
    pub terminal: Option<TerminalSize>,
    /// The time until the call answers `running`. None waits until the end.
    pub wait: Option<Duration>,
    /// Follows the execution after its admission.
    pub watch: Watch,
}

/// A program with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandLine {
    /// The program (a path, or a name that is looked up in the sandbox's PATH) and its arguments.
    Argv(Vec<String>),
    /// A line for the sandbox's Bash, or for its `sh` where it has no Bash.
    Shell(String),
}

/// Standard input of a command, fed by later calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandInput {
    /// The first bytes.
    pub first: Bytes,
    /// True to keep it open for [`Engine::write_stdin`](crate::Engine::write_stdin).
    pub open: bool,
}

/// A part of standard input.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StdinPart {
    /// The bytes.
    pub bytes: Bytes,
    /// True to close standard input after these bytes.
    pub close: bool,
}

/// A search in a caller's history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Words that a row must have, each anywhere in its code, output, value, error, ids, language or status. Upper and
    /// lower case of ASCII letters are the same. At most 8 of at most 200 characters.
    pub words: Vec<String>,
    /// Only executions of this sandbox.
    pub sandbox: Option<String>,
    /// Only executions of this language.
    pub language: Option<String>,
    /// Only executions with this status.
    pub status: Option<Status>,
    /// Only executions that ended before this one. An execution that is not the caller's gives an empty page.
    pub before: Option<String>,
    /// The maximum number of rows of the page: 1 to 100.
    pub limit: usize,
}
