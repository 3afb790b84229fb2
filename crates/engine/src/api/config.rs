//! The settings of the engine.

use std::time::Duration;

use sandcell_sandbox::{ByteSize, Cpus, Limits, Mount, ToolLimits};

use crate::SkippedBackend;

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
    /// The maximum number of named checkpoints of a sandbox.
    pub checkpoints: usize,
    /// The number of automatic checkpoints of a sandbox. 0: none are made.
    pub automatic_checkpoints: usize,
    /// The saved states.
    pub saved: SavedConfig,
    /// Host folders that `upload_file` can read from.
    pub upload_from: Vec<std::path::PathBuf>,
    /// Host folders that sandboxes see, as the back ends mount them.
    pub mounts: Vec<Mount>,
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
    /// The bounds of the tool calls of one execution.
    pub tools: ToolLimits,
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
            checkpoints: 8,
            automatic_checkpoints: 2,
            saved: SavedConfig::default(),
            upload_from: Vec::new(),
            mounts: Vec::new(),
            hints: Hints::default(),
            pool: PoolConfig::default(),
            absent: Vec::new(),
            absent_backends: Vec::new(),
            analysis: Analysis::default(),
            tools: ToolLimits::default(),
        }
    }
}

/// The bounds of saved states, and their place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedConfig {
    /// The folder, which only the server's user can read. None: no state can be saved.
    pub folder: Option<std::path::PathBuf>,
    /// The maximum number of states of one principal. 0: no state can be saved.
    pub states: usize,
    /// The maximum size of all states of one principal.
    pub size: ByteSize,
}

impl Default for SavedConfig {
    fn default() -> Self {
        Self {
            folder: None,
            states: 20,
            size: ByteSize::mib(4096),
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
            bring_packages: "have the packages installed, or use the standard library".to_owned(),
            give_stdin: "give the code standard input, one line for each input(): no user can type".to_owned(),
            read_rest: None,
        }
    }
}

/// The maximum resources of one caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// The sum of the memory limits of its sandboxes.
    pub memory: ByteSize,
    /// The sum of the disk limits of its sandboxes.
    pub disk: ByteSize,
    /// The processor time of its executions in an hour.
    pub cpu: Duration,
}

impl Default for Quota {
    /// No bound: each sandbox has its limits only.
    fn default() -> Self {
        Self {
            memory: ByteSize::bytes(u64::MAX),
            disk: ByteSize::bytes(u64::MAX),
            cpu: Duration::MAX,
        }
    }
}

/// A back end that the operator configured and that does not work here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsentBackend {
    /// The number of working back ends that are preferred to it.
    pub after: usize,
    /// Its name and its failure.
    pub skipped: SkippedBackend,
}
