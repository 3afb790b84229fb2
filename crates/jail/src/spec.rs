//! The specifications that the launcher receives: one for all sandboxes of the server, and one for each sandbox.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The inside user's id, in the sandbox's user namespace. Nothing else is mapped there.
pub const INSIDE_ID: u32 = 1000;

/// The specification that all sandboxes of a server share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// Host folders outside /usr that the interpreter needs, shown read-only at the same path.
    pub trees: Vec<PathBuf>,
    /// Files and folders of the host's /etc that interpreters read. Sandboxes see copies of them.
    pub config: Vec<PathBuf>,
    /// Files that are visible in sandboxes within the host's trees, if the host has none of that name.
    pub added: Vec<Added>,
    /// The operator's folders.
    pub mounts: Vec<Mount>,
    /// True if sandboxes may be made without namespaces on a host that forbids them.
    pub process_level: bool,
    /// The number of spares.
    pub spares: usize,
    /// True if workers of zygotes can enter the sandboxes.
    pub enterable: bool,
    /// The names of layers that fail, separated by commas. Only used in builds with fault injection.
    pub disabled: Option<String>,
    /// The names of layers that are skipped, separated by commas. Only used in builds with fault injection. Tests use
    /// it to show that this layer stops an attack, and not luck.
    pub skipped: Option<String>,
}

/// A file that only sandboxes have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Added {
    /// Its path inside, without links.
    pub path: PathBuf,
    /// Its content.
    pub text: String,
}

/// An operator's folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The path on the host.
    pub host: PathBuf,
    /// The absolute path inside.
    pub sandbox: String,
    /// True for a private copy that the sandbox can change; false for read-only.
    pub copy_on_write: bool,
}

/// The specification of one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The memory limit of its processes, in bytes.
    pub memory: u64,
    /// The limit of processor time, in thousandths of a core.
    pub cpu_milli: u32,
    /// The limit of processes and threads, without the agent.
    pub processes: u32,
    /// The limit of private files, in bytes.
    pub disk: u64,
    /// The limit of private files and folders.
    pub inodes: u64,
    /// An injected fault. Only used in builds with fault injection.
    pub fault: Option<Fault>,
}

/// A fault that a test injects into the creation of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The place of the fault.
    pub at: Site,
    /// The system's error number.
    pub errno: i32,
}

#[cfg(feature = "fault-injection")]
impl Fault {
    /// Reads the fault of the next sandbox from a JSON file. None if there is no file.
    #[must_use]
    pub fn from_file(path: &std::path::Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }
}

/// The places at which the creation of a sandbox can fail by injection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Site {
    /// The launcher takes the request and its descriptors.
    Request,
    /// The launcher makes the socket to the process.
    Socket,
    /// The launcher makes the cgroup.
    Group,
    /// The launcher opens the folder or files by which a process joins the cgroup.
    Ways,
    /// The launcher makes the device folder.
    Devices,
    /// The launcher asks for a process.
    Order,
    /// The process is cloned.
    Clone,
    /// The ids of the process are mapped.
    Ids,
    /// The process joins its cgroup.
    Join,
    /// The namespaces are opened.
    Namespaces,
    /// The launcher sets the limits of the cgroup.
    Limits,
    /// The set-up step of this number, from 0.
    Step(usize),
    /// The direct pipes are made.
    DirectPipes,
    /// The folder of private files is opened.
    Files,
    /// The server makes the socket to the sandbox's agent.
    AgentSocket,
    /// The server asks the launcher for the sandbox.
    Ask,
    /// The server connects to the agent of the sandbox that is made.
    Connect,
}

impl Site {
    /// The sites in the server.
    pub const OF_SERVER: [Self; 3] = [Self::AgentSocket, Self::Ask, Self::Connect];

    /// The sites in the launcher, without the steps.
    pub const ALL: [Self; 13] = [
        Self::Request,
        Self::Socket,
        Self::Group,
        Self::Ways,
        Self::Devices,
        Self::Order,
        Self::Clone,
        Self::Ids,
        Self::Join,
        Self::Namespaces,
        Self::Limits,
        Self::DirectPipes,
        Self::Files,
    ];
}
