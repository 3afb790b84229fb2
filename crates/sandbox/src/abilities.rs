//! Optional features of back ends and sandboxes, one trait for each feature. A [`Backend`](crate::Backend) or a
//! [`Sandbox`](crate::Sandbox) with the feature returns the trait. The others return none.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

use crate::{Capacity, Connection, Forward, LeftOut, Preparing, Process, SandboxError, Session, SessionError};

/// Facts about this machine, from a back end that runs the machine's own programs in its sandboxes.
pub trait ThisMachine: Send + Sync {
    /// Returns the host mounts that lie below the folders that sandboxes see, and that are not shown.
    fn left_out(&self) -> &[LeftOut];

    /// Returns the number of sandboxes that fit within the limits of this machine. Reads several system files.
    fn capacity(&self) -> Capacity;
}

/// The container images of a back end.
#[async_trait]
pub trait BackendImages: Send + Sync {
    /// Returns the image of sandboxes that name none. None if such sandboxes are made without an image.
    fn default_image(&self) -> Option<&str>;

    /// Returns the progress of the image pull that sandboxes of this image wait for. `None` as argument means the
    /// default image. Returns none if no pull is in progress. Cheap: callers poll it while a call waits.
    fn preparing(&self, image: Option<&str>) -> Option<Preparing>;

    /// Pulls the image that sandboxes use, and waits until it is available. None means the default image, if the back
    /// end has one.
    /// [`BackendImages::preparing`] reports the progress meanwhile. This is for an operator's command; a tool call is
    /// asked to retry instead.
    ///
    /// # Errors
    /// [`SandboxError::Image`] with the reason.
    async fn pull(&self, image: Option<&str>) -> Result<(), SandboxError>;

    /// Aborts the pull of this image, unless a call waits for it at this moment. Called when the last interested caller
    /// has given up.
    fn abandon(&self, image: &str);
}

/// The zygotes of a back end.
#[async_trait]
pub trait Zygotes: Send + Sync {
    /// Starts a zygote: an interpreter outside every sandbox, whose forks enter sandboxes of this back end
    /// ([`ZygoteEntry::adopt`]). It sees the files of a fresh sandbox that has these folders attached
    /// ([`Attachments::attach`]). It must never run a caller's code. `argv` is the program with its arguments. It has a
    /// control channel, an empty environment and no output.
    async fn start_zygote(&self, argv: &[String], attached: &[PathBuf]) -> Result<Zygote, SandboxError>;
}

/// A zygote: an interpreter whose forks enter sandboxes.
#[derive(Debug)]
pub struct Zygote {
    /// The number that [`ZygoteEntry::adopt`] takes.
    pub number: u64,
    /// Its control channel. Dropping the handle kills the zygote; its forks live on.
    pub process: Process,
}

/// A sandbox that a zygote's worker can enter.
#[async_trait]
pub trait ZygoteEntry: Send + Sync {
    /// Lets a worker of this zygote enter. Returns it as if it were a program with a control channel that was started
    /// here. At most one worker can enter; later programs are started in the usual way.
    ///
    /// # Errors
    /// A worker has entered already, the zygote is gone or unknown, or a step failed. The sandbox is unchanged.
    async fn adopt(&self, zygote: u64) -> Result<Process, SandboxError>;

    /// Returns the zygote whose worker waits in this sandbox to be adopted
    /// ([`SandboxSpec::entered_by`](crate::SandboxSpec::entered_by)).
    fn pending_worker(&self) -> Option<u64>;
}

/// A sandbox whose state can go on in other sandboxes.
#[async_trait]
pub trait Branching: Send + Sync {
    /// Takes an image of memory. Its maker may drop it then.
    async fn take_image(&self, made: ImageMade) -> Result<ImageFile, SandboxError>;

    /// Lets a worker of this zygote enter, as [`ZygoteEntry::adopt`] does. The worker can read the files of the image: as
    /// descriptor 5 that of the private files, and as descriptor 6 that of the memory.
    async fn adopt_with(&self, zygote: u64, image: &StateImage) -> Result<Process, SandboxError>;
}

/// An image of memory, which a process inside has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageMade {
    /// The process, by its id inside.
    pub process: i32,
    /// The number of its descriptor in that process.
    pub descriptor: i32,
    /// The position of its table of contents.
    pub position: u64,
    /// The size of the table, in bytes.
    pub bytes: u64,
}

/// The state of a sandbox. Its bytes come from inside the sandbox, and only sandboxes of the same caller read them.
#[derive(Debug, Clone)]
pub struct StateImage {
    /// The private files.
    pub files: ImageFile,
    /// The memory of a session, if there was one.
    pub memory: Option<ImageFile>,
}

/// A part of an image.
#[derive(Debug, Clone)]
pub struct ImageFile {
    /// The file, for reading only.
    pub file: Arc<File>,
    /// The position of its table of contents.
    pub position: u64,
    /// The size of the table, in bytes.
    pub bytes: u64,
    /// True if sandboxes may share its memory until they write to it.
    pub shared: bool,
}

/// The processor share of a sandbox. Both calls are cheap.
pub trait Priority: Send + Sync {
    /// Assigns the sandbox to the caller of this number. Callers share the processors equally, regardless of the number
    /// of busy sandboxes of each. Sandboxes without this call belong to caller 0.
    fn assign_owner(&self, caller: u64);

    /// Ends the low priority of a sandbox that was made [`ahead`](crate::SandboxSpec::ahead), since a call may wait for
    /// it from now on.
    fn raise(&self);
}

/// A running sandbox to which host folders can be added.
#[async_trait]
pub trait Attachments: Send + Sync {
    /// Shows a host folder in the running sandbox, read-only. Returns its path inside. The paths are
    /// [`LAYERS`](crate::LAYERS)`/0`, `/1` and so on in call order, at most [`LAYERS_MAX`](crate::LAYERS_MAX). The
    /// caller must have made the folder for this purpose: code inside can read everything in it.
    async fn attach(&self, folder: &Path) -> Result<String, SandboxError>;

    /// Returns the attached folders, in call order.
    async fn attached(&self) -> Vec<PathBuf>;
}

/// Loopback ports of a sandbox: ports that lead to the server, and ports of programs inside.
#[async_trait]
pub trait Ports: Send + Sync {
    /// Opens a loopback port inside; 0 lets the kernel choose. Its connections arrive here. The sandbox has no other
    /// way out.
    async fn forward(&self, port: u16) -> Result<Forward, SandboxError>;

    /// Connects to a port of the loopback address inside, where a program listens. Dropping the connection aborts it.
    ///
    /// # Errors
    /// [`SandboxError::Refused`] if no program listens there.
    async fn open(&self, port: u16) -> Result<Box<dyn Connection>, SandboxError>;
}

/// A sandbox in which the back end opens sessions itself.
#[async_trait]
pub trait OwnSessions: Send + Sync {
    /// Opens a session of this language.
    async fn open_session(&self, language: &str) -> Result<Box<dyn Session>, SessionError>;
}
