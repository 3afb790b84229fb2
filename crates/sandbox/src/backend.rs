//! The traits of back ends and of the sandboxes that they create.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{
    Code, Command, Files, Forward, Isolation, LayerReport, LeftOut, Limits, Process, SandboxError, Session,
    SessionError,
};

/// The parameters of a new sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SandboxSpec {
    /// Its resource limits.
    pub limits: Limits,
    /// Its network access.
    pub network: NetworkRule,
    /// Variables that every program in it gets, in addition to the back end's.
    pub env: BTreeMap<String, String>,
    /// A container image, if the back end supports images.
    pub image: Option<String>,
    /// The number of the caller that it is made for, as in [`Sandbox::assign_owner`].
    pub caller: Option<u64>,
    /// True if no call waits for this sandbox yet. Back ends that can give it low priority until
    /// [`Sandbox::raise_priority`].
    pub ahead: bool,
    /// The number of the zygote whose worker will enter the sandbox ([`Sandbox::adopt`]). Back ends that can fork the
    /// worker while they make the sandbox.
    pub entered_by: Option<u64>,
}

/// The network access of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkRule {
    /// Nothing outside the sandbox.
    #[default]
    None,
    /// These hosts only, through a loopback port of the sandbox that leads to the server (see
    /// [`Network`](crate::Network)). The back end adds no route for it.
    Hosts(Vec<String>),
}

/// A host folder that the operator shows in sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The folder on the host.
    pub host: PathBuf,
    /// The absolute path inside the sandbox.
    pub sandbox: String,
    /// The access mode.
    pub mode: MountMode,
}

/// The access mode of a mounted host folder. The host's folder is never written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountMode {
    /// Read-only.
    Ro,
    /// A private copy-on-write view.
    Cow,
}

/// The progress of a preparation that delays a new sandbox: an image pull or the installation of a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Preparing {
    /// A short description of the current step. Empty at first.
    pub text: String,
    /// The amount done, in a unit that the back end chooses.
    pub done: u64,
    /// The total amount in the same unit. 0 if unknown.
    pub total: u64,
}

/// Makes sandboxes of one kind.
#[async_trait]
pub trait Backend: Send + Sync + std::fmt::Debug {
    /// Its name in settings and results.
    fn name(&self) -> &'static str;

    /// Returns the isolation that its sandboxes have on this machine. Cheap: the back end probes it once, when it is
    /// created.
    fn isolation(&self) -> &Isolation;

    /// Returns the state of each isolation layer, with reasons and remedies.
    fn layers(&self) -> &[LayerReport];

    /// Returns the host mounts that lie below the folders that sandboxes see, and that are not shown.
    fn left_out(&self) -> &[LeftOut] {
        &[]
    }

    /// Returns the number of sandboxes that fit within the limits of this machine. None if the machine has no such
    /// limits. Reads several system files.
    fn capacity(&self) -> Option<crate::Capacity> {
        None
    }

    /// Returns true if a specification may name an image.
    fn supports_images(&self) -> bool {
        false
    }

    /// Returns true if a sandbox without an image uses the programs of this machine.
    fn uses_host_programs(&self) -> bool {
        false
    }

    /// Returns the progress of the image pull that sandboxes of this image wait for. `None` as argument means the
    /// default image. Returns none if no pull is in progress. Cheap: callers poll it while a call waits.
    fn preparing(&self, image: Option<&str>) -> Option<Preparing> {
        let _ = image;
        None
    }

    /// Pulls the image that sandboxes use, and waits until it is available. None means the default image.
    /// [`Backend::preparing`] reports the progress meanwhile. This is for an operator's command; a tool call is asked
    /// to retry instead.
    ///
    /// # Errors
    /// [`SandboxError::Image`] with the reason.
    async fn pull_image(&self, image: Option<&str>) -> Result<(), SandboxError> {
        let _ = image;
        Ok(())
    }

    /// Aborts the pull of this image, unless a call waits for it at this moment. Called when the last interested caller
    /// has given up.
    fn abandon(&self, image: &str) {
        let _ = image;
    }

    /// Starts a zygote: an interpreter outside every sandbox, whose forks enter sandboxes of this back end
    /// ([`Sandbox::adopt`]). It sees the files of a fresh sandbox that has these folders attached
    /// ([`Sandbox::attach`]). It must never run a caller's code. `argv` is the program with its arguments. It has a
    /// control channel, an empty environment and no output.
    ///
    /// # Errors
    /// [`SandboxError::Unsupported`] if the back end has no zygotes.
    async fn start_zygote(&self, argv: &[String], attached: &[PathBuf]) -> Result<Zygote, SandboxError> {
        let _ = (argv, attached);
        Err(SandboxError::Unsupported("warmed interpreters".to_owned()))
    }

    /// Makes a sandbox. On failure, or if the future is dropped, nothing of it remains.
    async fn create(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError>;

    /// Starts to end all sandboxes at once, for back ends that do this faster than one by one. No sandbox can be made
    /// afterwards. The engine calls this before it closes the sandboxes, and `shutdown` afterwards.
    fn begin_shutdown(&self) {}

    /// Ends every sandbox and waits until nothing is left (at most 5 s).
    async fn shutdown(&self);
}

/// A zygote: an interpreter whose forks enter sandboxes.
#[derive(Debug)]
pub struct Zygote {
    /// The number that [`Sandbox::adopt`] takes.
    pub number: u64,
    /// Its control channel. Dropping the handle kills the zygote; its forks live on.
    pub process: Process,
}

/// A sandbox. Dropping the last reference ends it.
#[async_trait]
pub trait Sandbox: Send + Sync + std::fmt::Debug {
    /// Returns the isolation that is in force.
    fn isolation(&self) -> &Isolation;

    /// Returns the environment that its programs start with.
    fn base_env(&self) -> &BTreeMap<String, String>;

    /// Assigns the sandbox to the caller of this number. Back ends that can share the processors equally between
    /// callers, regardless of the number of busy sandboxes of each. Sandboxes without this call belong to caller 0.
    /// Cheap.
    fn assign_owner(&self, caller: u64) {
        let _ = caller;
    }

    /// Ends the low priority of a sandbox that was made [`ahead`](SandboxSpec::ahead), since a call may wait for it
    /// from now on. Cheap.
    fn raise_priority(&self) {}

    /// Starts a program inside.
    async fn spawn(&self, command: Command) -> Result<Process, SandboxError>;

    /// Lets a worker of this zygote enter. Returns it as if it were a program with a control channel that was started
    /// here. At most one worker can enter; later programs are started in the usual way.
    ///
    /// # Errors
    /// The sandbox cannot be entered, the zygote is gone or unknown, or a step failed. The sandbox is unchanged.
    async fn adopt(&self, parent: u64) -> Result<Process, SandboxError> {
        let _ = parent;
        Err(SandboxError::Unsupported("warmed interpreters".to_owned()))
    }

    /// Returns the zygote whose worker waits in this sandbox to be adopted ([`SandboxSpec::entered_by`]).
    fn pending_worker(&self) -> Option<u64> {
        None
    }

    /// Returns the container image that its programs come from. None if they are the host's.
    fn image(&self) -> Option<&str> {
        None
    }

    /// Returns the memory limit of all its processes together, in bytes, if known.
    fn memory_limit(&self) -> Option<u64> {
        None
    }

    /// Returns its files.
    fn files(&self) -> &dyn Files;

    /// Shows a host folder in the running sandbox, read-only. Returns its path inside. The paths are
    /// [`LAYERS`](crate::LAYERS)`/0`, `/1` and so on in call order, at most [`LAYERS_MAX`](crate::LAYERS_MAX). The
    /// caller must have made the folder for this purpose: code inside can read everything in it.
    async fn attach(&self, folder: &Path) -> Result<String, SandboxError> {
        let _ = folder;
        Err(SandboxError::Unsupported("installing packages".to_owned()))
    }

    /// Returns the attached folders, in call order.
    async fn attached(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Returns true if packages that were built for this machine's interpreters can be attached.
    fn takes_packages(&self) -> bool {
        true
    }

    /// Returns true if programs inside install the packages, over the sandbox's network. Packages are then not attached
    /// as folders ([`Packages::resolve_inside`](crate::Packages::resolve_inside)).
    fn installs_inside(&self) -> bool {
        false
    }

    /// Opens a loopback port inside. Its connections arrive here. The sandbox has no other way out.
    async fn forward(&self, port: u16) -> Result<Forward, SandboxError> {
        let _ = port;
        Err(SandboxError::Unsupported("network".to_owned()))
    }

    /// Opens a session of this language by a mechanism of the back end. None if there is no such mechanism: the
    /// language then starts its driver as a program inside.
    async fn open_session(&self, language: &str) -> Option<Result<Box<dyn Session>, SessionError>> {
        let _ = language;
        None
    }

    /// Returns the current usage. Counters only grow, so a caller can subtract two readings.
    async fn usage(&self) -> Result<Usage, SandboxError>;

    /// Ends it and waits until nothing of it is left. A second call is not an error.
    async fn close(&self) -> Result<(), SandboxError>;

    /// Waits until it has ended, for any reason.
    async fn ended(&self) -> Ended;
}

/// The resource usage of a sandbox, and the limits that it has hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Memory of its processes now, in bytes.
    pub memory: u64,
    /// The most memory seen, in bytes.
    pub memory_peak: u64,
    /// Processor time used, in microseconds.
    pub cpu_us: u64,
    /// The number of processes and threads now, with the agent.
    pub processes: u32,
    /// Bytes in its private files.
    pub disk: u64,
    /// The number of private files and folders.
    pub inodes: u64,
    /// The number of memory refusals and of kills for memory.
    pub memory_events: u64,
    /// The number of refused new processes.
    pub process_events: u64,
    /// The memory limit set by others around the back end, in bytes. Read when a process was killed for memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outer_memory: Option<u64>,
    /// The process limit around the back end that leaves the least room. Read when a new process was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outer_processes: Option<OuterProcesses>,
}

/// A limit of processes and threads that others have set around the back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OuterProcesses {
    /// The holder of the limit.
    pub scope: OuterScope,
    /// The number of processes and threads that it allows.
    pub max: u64,
    /// The number in use at the time of reading.
    pub used: u64,
}

/// The set of processes that an outer limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OuterScope {
    /// The server's cgroup.
    Group,
    /// The user of the server.
    User,
    /// The machine.
    Machine,
}

/// The end of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The cause.
    pub reason: EndReason,
}

/// The cause of a sandbox's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// A caller closed it.
    Closed,
    /// All of it was killed for memory.
    OutOfMemory,
    /// All of it was killed because its private files exceeded the limit, where no file system enforces one.
    DiskFull,
    /// Its agent violated the protocol or exited.
    AgentLost,
    /// Its first process was killed from outside.
    AgentKilled,
    /// The kernel killed it, because the machine or an enclosing cgroup ran out of memory.
    OuterMemory,
    /// The launcher that held it is gone.
    LauncherLost,
    /// The launcher that held it was killed.
    LauncherKilled,
    /// The kernel killed the launcher that held it for memory.
    LauncherOutOfMemory,
    /// The launcher that held it hung and was killed.
    LauncherStuck,
    /// The remote service that ran it ended it, or its time there expired.
    Expired,
}

impl EndReason {
    /// Returns the failure code for a call to a sandbox that ended for this reason.
    #[must_use]
    pub const fn code(self) -> Code {
        match self {
            Self::Closed => Code::NotFound,
            Self::OutOfMemory => Code::OutOfMemory,
            Self::DiskFull => Code::DiskFull,
            Self::AgentLost
            | Self::AgentKilled
            | Self::OuterMemory
            | Self::LauncherLost
            | Self::LauncherKilled
            | Self::LauncherOutOfMemory
            | Self::LauncherStuck => Code::SessionLost,
            Self::Expired => Code::Expired,
        }
    }
}

impl std::fmt::Display for EndReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Closed => "it was closed",
            Self::OutOfMemory => "it was killed for memory",
            Self::DiskFull => "it was killed for more private files than it may have",
            Self::AgentLost => "its first process ended",
            Self::AgentKilled => "its first process was killed from outside the sandbox",
            Self::OuterMemory => {
                "the kernel killed it because memory ran out around it: on the machine, or in the server's control group"
            }
            Self::LauncherLost => "the process that held it ended",
            Self::LauncherKilled => {
                "the launcher, the process that held every sandbox, was killed from outside; another one takes its place"
            }
            Self::LauncherOutOfMemory => {
                "the kernel killed the launcher, the process that held every sandbox, because memory ran out on the machine or \
                 in the server's control group; another one takes its place"
            }
            Self::LauncherStuck => {
                "the launcher, the process that held every sandbox, did not answer (it was stopped, or hung in the kernel) and \
                 was ended; another one takes its place"
            }
            Self::Expired => "it expired or was ended where it ran",
        })
    }
}
