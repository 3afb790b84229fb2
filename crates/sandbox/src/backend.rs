//! The traits of back ends and of the sandboxes that they create.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{
    Attachments, BackendImages, Branching, Code, Command, Connection, Files, Forward, Isolation, LayerReport, Limits,
    MountLayers, OwnSessions, Ports, Priority, Process, SandboxError, SavedFiles, ThisMachine, ZygoteEntry, Zygotes,
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
    /// The number of the caller that it is made for, as in [`Priority::assign_owner`].
    pub caller: Option<u64>,
    /// True if no call waits for this sandbox yet. A back end that supports priorities gives it low priority until
    /// [`Priority::raise`].
    pub ahead: bool,
    /// The number of the zygote whose worker will enter the sandbox ([`ZygoteEntry::adopt`]). A back end that
    /// supports it forks the worker while it makes the sandbox.
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

impl NetworkRule {
    /// Returns the hosts that it allows.
    #[must_use]
    pub fn into_hosts(self) -> Vec<String> {
        match self {
            Self::None => Vec::new(),
            Self::Hosts(hosts) => hosts,
        }
    }
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
    /// The permission to apply a sandbox's changes to the folder.
    #[serde(default, skip_serializing_if = "CommitRule::is_never")]
    pub commit: CommitRule,
}

/// The operator's rule for applying the changes of a sandbox to the host folder of a copy-on-write mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommitRule {
    /// Changes are never applied.
    #[default]
    Never,
    /// A person decides about each set of changes.
    Ask,
}

impl CommitRule {
    const fn is_never(&self) -> bool {
        matches!(self, Self::Never)
    }
}

/// The access mode of a mounted host folder. Code never writes to the host's folder.
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

    /// Returns facts about this machine, if sandboxes use its programs. None if the programs come from elsewhere.
    fn this_machine(&self) -> Option<&dyn ThisMachine> {
        None
    }

    /// Returns the container images, if a specification may name one.
    fn images(&self) -> Option<&dyn BackendImages> {
        None
    }

    /// Returns the zygotes, if forks of an interpreter can enter sandboxes.
    fn zygotes(&self) -> Option<&dyn Zygotes> {
        None
    }

    /// Makes a sandbox. On failure, or if the future is dropped, nothing of it remains.
    async fn create(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError>;

    /// Starts to end all sandboxes at once, for back ends that do this faster than one by one. No sandbox can be made
    /// afterwards. The engine calls this before it closes the sandboxes, and `shutdown` afterwards.
    fn begin_shutdown(&self) {}

    /// Ends every sandbox and waits until nothing is left (at most 5 s).
    async fn shutdown(&self);
}

/// A sandbox. Dropping the last reference ends it.
#[async_trait]
pub trait Sandbox: Send + Sync + std::fmt::Debug {
    /// Returns the isolation that is in force.
    fn isolation(&self) -> &Isolation;

    /// Returns the environment that its programs start with.
    fn base_env(&self) -> &BTreeMap<String, String>;

    /// Adds variables to the environment that programs start with. They replace those of the same name. Done at most once,
    /// before any program of a caller has started.
    ///
    /// # Errors
    /// [`SandboxError::Unsupported`] if the environment is fixed when the sandbox is made.
    fn add_env(&self, env: &BTreeMap<String, String>) -> Result<(), SandboxError> {
        let _ = env;
        Err(SandboxError::Unsupported(
            "adding environment variables to a sandbox".to_owned(),
        ))
    }

    /// Starts a program inside.
    async fn spawn(&self, command: Command) -> Result<Process, SandboxError>;

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

    /// Returns the saved states of its private files, if it can keep any.
    fn saved_files(&self) -> Option<&dyn SavedFiles> {
        None
    }

    /// Returns the layers of its copy-on-write mounts, if it has such mounts and can compare them with the host's
    /// folders.
    fn mount_layers(&self) -> Option<&dyn MountLayers> {
        None
    }

    /// Returns true if programs inside install the packages, over the sandbox's network. Packages are then not attached
    /// as folders ([`Packages::resolve_inside`](crate::Packages::resolve_inside)).
    fn installs_inside(&self) -> bool {
        false
    }

    /// Returns its processor share, if the back end can set one.
    fn priority(&self) -> Option<&dyn Priority> {
        None
    }

    /// Returns the entry for a zygote's worker, if the sandbox has one.
    fn zygote_entry(&self) -> Option<&dyn ZygoteEntry> {
        None
    }

    /// Returns the way to other sandboxes with the same state, if there is one.
    fn branching(&self) -> Option<&dyn Branching> {
        None
    }

    /// Returns the attached host folders, if folders can be added to a running sandbox.
    fn attachments(&self) -> Option<&dyn Attachments> {
        None
    }

    /// Returns its loopback ports, if it has a separate loopback address.
    fn ports(&self) -> Option<&dyn Ports> {
        None
    }

    /// Returns the back end's own sessions. If there are none, a language starts its driver as a program inside.
    fn own_sessions(&self) -> Option<&dyn OwnSessions> {
        None
    }

    /// Stops all its processes, until [`Sandbox::resume`].
    async fn pause(&self) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported("pausing a sandbox".to_owned()))
    }

    /// Continues the processes that [`Sandbox::pause`] has stopped.
    async fn resume(&self) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported("pausing a sandbox".to_owned()))
    }

    /// Returns the current usage. Counters only grow, so a caller can subtract two readings.
    async fn usage(&self) -> Result<Usage, SandboxError>;

    /// Ends it and waits until nothing of it is left. A second call is not an error.
    async fn close(&self) -> Result<(), SandboxError>;

    /// Waits until it has ended, for any reason.
    async fn ended(&self) -> Ended;
}

/// The environment that a sandbox's programs start with, to which variables can be added once.
#[derive(Debug, Default)]
pub struct BaseEnv {
    first: BTreeMap<String, String>,
    /// The same with the added variables.
    whole: OnceLock<BTreeMap<String, String>>,
}

impl BaseEnv {
    /// Creates it.
    #[must_use]
    pub const fn new(first: BTreeMap<String, String>) -> Self {
        Self {
            first,
            whole: OnceLock::new(),
        }
    }

    /// Returns all variables.
    pub fn get(&self) -> &BTreeMap<String, String> {
        self.whole.get().unwrap_or(&self.first)
    }

    /// Adds variables, as [`Sandbox::add_env`].
    ///
    /// # Errors
    /// [`SandboxError::Unsupported`] if this is the second time.
    pub fn add(&self, env: &BTreeMap<String, String>) -> Result<(), SandboxError> {
        let mut whole = self.first.clone();
        whole.extend(env.clone());
        let again = |_| SandboxError::Unsupported("adding environment variables twice".to_owned());
        self.whole.set(whole).map_err(again)
    }
}

impl dyn Sandbox + '_ {
    /// Shows a host folder, as [`Attachments::attach`].
    ///
    /// # Errors
    /// [`SandboxError::Unsupported`] if folders cannot be added.
    pub async fn attach(&self, folder: &Path) -> Result<String, SandboxError> {
        match self.attachments() {
            Some(attachments) => attachments.attach(folder).await,
            None => Err(SandboxError::Unsupported("installing packages".to_owned())),
        }
    }

    /// Opens a loopback port, as [`Ports::forward`].
    ///
    /// # Errors
    /// [`SandboxError::Unsupported`] if its ports do not lead to the server.
    pub async fn forward(&self, port: u16) -> Result<Forward, SandboxError> {
        match self.ports() {
            Some(ports) => ports.forward(port).await,
            None => Err(SandboxError::Unsupported("network".to_owned())),
        }
    }

    /// Connects to a port inside, as [`Ports::open`].
    ///
    /// # Errors
    /// [`SandboxError::Unsupported`] if its ports cannot be reached. [`SandboxError::Refused`] if no program listens.
    pub async fn open_port(&self, port: u16) -> Result<Box<dyn Connection>, SandboxError> {
        match self.ports() {
            Some(ports) => ports.open(port).await,
            None => Err(SandboxError::Unsupported(
                "reaching ports of programs inside".to_owned(),
            )),
        }
    }
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
    /// The launcher that held it, or the container daemon, is gone.
    LauncherLost,
    /// The launcher that held it was killed.
    LauncherKilled,
    /// The kernel killed the launcher that held it for memory.
    LauncherOutOfMemory,
    /// The launcher that held it hung and was killed.
    LauncherStuck,
    /// The remote service that ran it ended it, or its time there expired.
    Expired,
    /// The machine of a cluster that ran it ended it: it needed the room, or it shut down.
    Evicted,
    /// The machine of a cluster that ran it is gone, or cannot be reached.
    NodeLost,
    /// A person or a program removed it from the cluster.
    Removed,
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
            | Self::LauncherStuck
            | Self::Evicted
            | Self::NodeLost
            | Self::Removed => Code::SessionLost,
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
                "the launcher, the process that held this sandbox, was killed from outside; another one takes its place"
            }
            Self::LauncherOutOfMemory => {
                "the kernel killed the launcher, the process that held this sandbox, because memory ran out on the machine or \
                 in the server's control group; another one takes its place"
            }
            Self::LauncherStuck => {
                "the launcher, the process that held this sandbox, did not answer (it was stopped, or hung in the kernel) and \
                 was ended; another one takes its place"
            }
            Self::Expired => "it expired or was ended where it ran",
            Self::Evicted => "the node that ran it ended it, because the node needed the room or shut down",
            Self::NodeLost => "the node that ran it is gone or cannot be reached",
            Self::Removed => "it was removed from the cluster, by a person, a program, or because its node was lost",
        })
    }
}
