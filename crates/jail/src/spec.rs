//! What the launcher is told: once about this server's sandboxes in general, and for each sandbox what is its own.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The inside user's id, in the sandbox's user namespace. Nothing else is mapped there.
pub const INSIDE_ID: u32 = 1000;

/// What all sandboxes of a server have in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// Host folders outside /usr that the interpreter needs, shown read-only at the same path.
    pub trees: Vec<PathBuf>,
    /// Files and folders of the host's /etc that interpreters read; sandboxes see copies of them.
    pub config: Vec<PathBuf>,
    /// Files that sandboxes find within what they see of the host, where the host has none of that name.
    pub added: Vec<Added>,
    /// The operator's folders.
    pub mounts: Vec<Mount>,
    /// Whether sandboxes may be made without namespaces where the host forbids those.
    pub process_level: bool,
    /// How many processes wait ready to become sandboxes.
    pub spares: usize,
    /// Whether children of warmed parents can enter the sandboxes.
    pub enterable: bool,
    /// The names of layers that are made to fail, with commas between them; only builds with fault injection look at it.
    pub disabled: Option<String>,
    /// The names of layers that are left out, with commas between them; only builds with fault injection look at it.
    /// Tests show with it that an attack is stopped by this layer and not by luck.
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
    /// On the host.
    pub host: PathBuf,
    /// Inside; absolute.
    pub sandbox: String,
    /// Whether the sandbox sees a private copy that it can change; else it is read-only.
    pub copy_on_write: bool,
}

/// What is one sandbox's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Memory of its processes, in bytes.
    pub memory: u64,
    /// Processor time in thousandths of a core.
    pub cpu_milli: u32,
    /// Processes and threads, the agent not counted.
    pub processes: u32,
    /// Private files, in bytes.
    pub disk: u64,
    /// Private files and folders.
    pub inodes: u64,
    /// What is made to fail; only builds with fault injection look at it.
    pub fault: Option<Fault>,
}

/// What a test makes fail while a sandbox is made, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Where.
    pub at: Site,
    /// The system's error number.
    pub errno: i32,
}

#[cfg(feature = "fault-injection")]
impl Fault {
    /// Reads the fault of the next sandbox from a file of JSON. No file: nothing fails.
    #[must_use]
    pub fn from_file(path: &std::path::Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }
}

/// What of making a sandbox can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Site {
    /// The launcher takes the request and its descriptors.
    Request,
    /// The launcher makes the socket to the process.
    Socket,
    /// The launcher makes the control group.
    Group,
    /// The launcher opens the ways into the control group.
    Ways,
    /// The launcher makes the device folder.
    Devices,
    /// The launcher asks for a process.
    Order,
    /// The process is cloned.
    Clone,
    /// The ids of the process are mapped.
    Ids,
    /// The process joins its control group.
    Join,
    /// The namespaces are opened.
    Namespaces,
    /// The launcher sets the limits of the control group.
    Limits,
    /// The set-up step of this number, from 0.
    Step(usize),
    /// The pipes past the agent are made.
    Lane,
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
        Self::Lane,
        Self::Files,
    ];
}
