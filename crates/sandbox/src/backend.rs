//! Makers of sandboxes, and the sandboxes they make.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{
    Code, Command, Files, Forward, Isolation, LayerReport, LeftOut, Limits, Process, SandboxError, Session,
    SessionError,
};

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SandboxSpec {
    /// How much it may use.
    pub limits: Limits,
    /// What it may reach.
    pub network: NetworkRule,
    /// Variables that every program in it gets, beside the back end's own.
    pub env: BTreeMap<String, String>,
    /// A container image, where the back end knows images.
    pub image: Option<String>,
    /// For whom it is made, as [`Sandbox::belongs_to`] has it.
    pub caller: Option<u64>,
    /// Nobody waits for it yet: where the back end can, all others come first until [`Sandbox::awaited`].
    pub ahead: bool,
    /// Which of the back end's warmed interpreters it is entered from as soon as it is made ([`Sandbox::adopt`]): where the back
    /// end can, a child of it is made meanwhile.
    pub entered_by: Option<u64>,
}

/// What a sandbox may reach over the network.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkRule {
    /// Nothing outside the sandbox.
    #[default]
    None,
    /// These hosts, through a port of the sandbox's own that leads to the server (see [`Network`](crate::Network)). The
    /// back end gives no route for it.
    Hosts(Vec<String>),
}

/// An operator's folder that sandboxes see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The folder on the host.
    pub host: PathBuf,
    /// Where it appears inside; absolute.
    pub sandbox: String,
    /// How.
    pub mode: MountMode,
}

/// How an operator's folder appears inside. The host's folder is never written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountMode {
    /// Read-only.
    Ro,
    /// A private copy-on-write view.
    Cow,
}

/// How far something is that the making of a sandbox waits for: an image that is pulled, a runtime that is installed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Preparing {
    /// What is being done, in a few words; empty in the first moment.
    pub text: String,
    /// How much of it is done, in a unit of its own.
    pub done: u64,
    /// Of how much; 0 where that is not known.
    pub total: u64,
}

/// Makes sandboxes of one kind.
#[async_trait]
pub trait Backend: Send + Sync + std::fmt::Debug {
    /// Its name in settings and results.
    fn name(&self) -> &'static str;

    /// What its sandboxes are isolated by on this machine. Cheap: probed once, when the back end was made.
    fn isolation(&self) -> &Isolation;

    /// The same, layer by layer, with reasons and remedies.
    fn layers(&self) -> &[LayerReport];

    /// Returns the mounts of the host that lie in what sandboxes see and are not shown.
    fn left_out(&self) -> &[LeftOut] {
        &[]
    }

    /// How many sandboxes fit within the limits of this machine. None where the machine does not bound them. Reads some
    /// files of the system.
    fn capacity(&self) -> Option<crate::Capacity> {
        None
    }

    /// Whether a specification may name an image.
    fn knows_images(&self) -> bool {
        false
    }

    /// Whether a sandbox without an image shows the programs of this machine.
    fn shows_host(&self) -> bool {
        false
    }

    /// How far the image is made ready that sandboxes with this image (none: the usual one) wait for. None: nothing is under
    /// way for it. Cheap: it is asked again and again while a call waits.
    fn preparing(&self, image: Option<&str>) -> Option<Preparing> {
        let _ = image;
        None
    }

    /// Brings the image here that sandboxes with this image (none: the usual one) are made of, for as long as it takes;
    /// [`Backend::preparing`] tells meanwhile how far it is. For an operator's own command: calls are told to come again instead.
    ///
    /// # Errors
    /// [`SandboxError::Image`] says why it cannot be had.
    async fn bring(&self, image: Option<&str>) -> Result<(), SandboxError> {
        let _ = image;
        Ok(())
    }

    /// Nobody who asked for a sandbox of this image wants it any more: what is under way for it ends, unless somebody waits
    /// for it at this moment.
    fn abandon(&self, image: &str) {
        let _ = image;
    }

    /// Starts an interpreter that belongs to no sandbox, and whose children enter sandboxes of this back end
    /// ([`Sandbox::adopt`]). It sees what a fresh sandbox sees with these folders attached ([`Sandbox::attach`]), and nobody's
    /// code may come into it. `argv` is the program with its arguments; it has a control channel, and neither environment
    /// nor output.
    ///
    /// # Errors
    /// [`SandboxError::Unsupported`] where there is no such thing.
    async fn warm(&self, argv: &[String], attached: &[PathBuf]) -> Result<Parent, SandboxError> {
        let _ = (argv, attached);
        Err(SandboxError::Unsupported("warmed interpreters".to_owned()))
    }

    /// Makes a sandbox. When it fails, or the future is dropped, nothing of it is left.
    async fn create(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError>;

    /// Begins to end every sandbox, where all together end faster than one by one. No more are made. The engine calls this
    /// before it closes the sandboxes, and `shutdown` afterwards.
    fn begin_shutdown(&self) {}

    /// Ends every sandbox and waits until nothing is left (bounded: 5 s).
    async fn shutdown(&self);
}

/// A warmed parent: an interpreter whose children enter sandboxes.
#[derive(Debug)]
pub struct Parent {
    /// Its number, by which [`Sandbox::adopt`] knows it.
    pub number: u64,
    /// Its control channel. Dropping the handle ends it; its children live on.
    pub process: Process,
}

/// One isolated place. Dropping the last reference ends it.
#[async_trait]
pub trait Sandbox: Send + Sync + std::fmt::Debug {
    /// What is in force around it.
    fn isolation(&self) -> &Isolation;

    /// The environment its programs start with.
    fn base_env(&self) -> &BTreeMap<String, String>;

    /// It works for the caller of this number from now on: where the back end can, callers get alike of the processors, however
    /// many sandboxes each keeps busy. Sandboxes for which this is not called are taken to be of number 0. Cheap.
    fn belongs_to(&self, caller: u64) {
        let _ = caller;
    }

    /// Somebody may wait for it from now on, so it gets its part of the processors. For those that were made
    /// [`ahead`](SandboxSpec::ahead). Cheap.
    fn awaited(&self) {}

    /// Starts a program inside.
    async fn spawn(&self, command: Command) -> Result<Process, SandboxError>;

    /// Lets a child of this parent in, and takes it for a program with a control channel that was started here. At most once:
    /// later programs are started in the usual way.
    ///
    /// # Errors
    /// Nobody can enter, the parent is gone or unknown here, or something failed on the way. The sandbox is as it was.
    async fn adopt(&self, parent: u64) -> Result<Process, SandboxError> {
        let _ = parent;
        Err(SandboxError::Unsupported("warmed interpreters".to_owned()))
    }

    /// The warmed interpreter whose child waits in it to be adopted ([`SandboxSpec::entered_by`]).
    fn expects(&self) -> Option<u64> {
        None
    }

    /// The container image that its programs come from; none where they are the host's own.
    fn image(&self) -> Option<&str> {
        None
    }

    /// How much memory its processes may use together, in bytes, where that is known.
    fn memory_limit(&self) -> Option<u64> {
        None
    }

    /// Its files.
    fn files(&self) -> &dyn Files;

    /// Shows a folder of the host in the running sandbox, read-only; returns where. The places are
    /// [`LAYERS`](crate::LAYERS)`/0`, `/1` and so on in the order of the calls, at most [`LAYERS_MAX`](crate::LAYERS_MAX).
    /// The folder must be one that the caller made for this: everything in it can be read inside.
    async fn attach(&self, folder: &Path) -> Result<String, SandboxError> {
        let _ = folder;
        Err(SandboxError::Unsupported("installing packages".to_owned()))
    }

    /// The folders that were attached, in the order of their places.
    async fn attached(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Whether packages can be shown in it, which are made for the interpreters of this machine.
    fn takes_packages(&self) -> bool {
        true
    }

    /// Whether packages are installed by the programs inside it, over a network of its own. They are not shown as folders
    /// then ([`Packages::resolve_inside`](crate::Packages::resolve_inside)).
    fn installs_inside(&self) -> bool {
        false
    }

    /// Opens a port on the loopback address inside whose connections come out here. The sandbox gets no other way out.
    async fn forward(&self, port: u16) -> Result<Forward, SandboxError> {
        let _ = port;
        Err(SandboxError::Unsupported("network".to_owned()))
    }

    /// Opens a session of this language in the place's own way. None: it has no such way, and the language starts its
    /// driver as a program inside.
    async fn open_session(&self, language: &str) -> Option<Result<Box<dyn Session>, SessionError>> {
        let _ = language;
        None
    }

    /// What it uses now. Counters only grow, so two readings tell what happened between them.
    async fn usage(&self) -> Result<Usage, SandboxError>;

    /// Ends it and waits until nothing of it is left. Ending twice is no error.
    async fn close(&self) -> Result<(), SandboxError>;

    /// Waits until it has ended, for whatever reason.
    async fn ended(&self) -> Ended;
}

/// What a sandbox uses and has run into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Memory of its processes now, in bytes.
    pub memory: u64,
    /// The most memory seen, in bytes.
    pub memory_peak: u64,
    /// Processor time used, in microseconds.
    pub cpu_us: u64,
    /// Processes and threads now (the agent included).
    pub processes: u32,
    /// Bytes in its private files.
    pub disk: u64,
    /// Files and folders in its private part.
    pub inodes: u64,
    /// How often memory was refused or a process was killed for memory.
    pub memory_events: u64,
    /// How often a new process was refused.
    pub process_events: u64,
    /// The memory limit that somebody else has set around the back end, in bytes. Read when a process was ended for memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outer_memory: Option<u64>,
    /// The limit of processes around the back end under which the fewest more fit. Read when a new process was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outer_processes: Option<OuterProcesses>,
}

/// A limit of processes and threads that somebody else has set around the back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OuterProcesses {
    /// The holder of the limit.
    pub scope: OuterScope,
    /// The number of processes and threads that it allows.
    pub max: u64,
    /// The number in use when it was read.
    pub used: u64,
}

/// The set of processes that an outer limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OuterScope {
    /// The control group of the server.
    Group,
    /// The user of the server.
    User,
    /// The machine.
    Machine,
}

/// The end of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Why.
    pub reason: EndReason,
}

/// Why a sandbox ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// It was closed as asked.
    Closed,
    /// All of it was killed for memory.
    OutOfMemory,
    /// All of it was killed for too many private files, where no file system holds them.
    DiskFull,
    /// Its agent broke the protocol or ended by itself.
    AgentLost,
    /// Its first process was killed from outside.
    AgentKilled,
    /// The kernel killed it, since the memory of the machine or of a control group around it ran out.
    OuterMemory,
    /// The launcher that held it is gone.
    LauncherLost,
    /// The launcher that held it was killed.
    LauncherKilled,
    /// The kernel killed the launcher that held it for memory.
    LauncherOutOfMemory,
    /// The launcher that held it hung, and was ended.
    LauncherStuck,
    /// Whoever held it elsewhere ended it: its time there was over, or it was ended there.
    Expired,
}

impl EndReason {
    /// The failure code for a call that finds a sandbox ended like this.
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
