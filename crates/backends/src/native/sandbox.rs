//! A native sandbox: a jail, and an agent client on its socket.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use rustix::fs::{Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate};
use rustix::io::Errno;
use sandcell_agent::client::{AgentClient, AgentEnd};
use sandcell_jail::plan::{self, MAX_ATTACHMENTS};
use sandcell_sandbox::{
    Attachments, BaseEnv, Branching, ByteSize, Command, Connection, EndReason, Ended, Files, Forward, Image, ImageFile,
    ImageMade, Isolation, Level, MountLayers, Ports, Priority, Process, Sandbox, SandboxError, SavedFiles, StateImage,
    Usage, ZygoteEntry,
};
use tokio::time::timeout;

use super::conversation::Jail;

/// The deadline of closing.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

/// The time the launcher has to report the end of a sandbox after its agent hung up.
const END_KNOWN_DEADLINE: Duration = Duration::from_millis(500);

/// The deadline of a zygote child's arrival.
const ADOPT_DEADLINE: Duration = Duration::from_secs(10);

/// One native sandbox.
#[derive(Debug)]
pub(super) struct NativeSandbox {
    jail: Jail,
    client: AgentClient,
    isolation: Isolation,
    env: BaseEnv,
    memory: ByteSize,
    /// Its image; the image's files exist as long as this is held.
    image: Option<Image>,
    /// True if its end was requested.
    closing: AtomicBool,
    /// True if an entry was attempted; a sandbox can be entered only once.
    entered: AtomicBool,
    /// The attached folders, failed attempts included: each mount point is used once.
    attached: tokio::sync::Mutex<Vec<PathBuf>>,
}

/// Returns a folder's path without symbolic links.
pub(super) fn whole_path(folder: &Path) -> Result<PathBuf, SandboxError> {
    folder.canonicalize().map_err(|source| SandboxError::Setup {
        step: format!("find the folder {}", folder.display()),
        source,
    })
}

impl NativeSandbox {
    pub(super) fn new(
        jail: Jail,
        client: AgentClient,
        isolation: Isolation,
        env: BTreeMap<String, String>,
        memory: ByteSize,
        image: Option<Image>,
    ) -> Self {
        Self {
            jail,
            client,
            isolation,
            env: BaseEnv::new(env),
            memory,
            image,
            closing: AtomicBool::new(false),
            entered: AtomicBool::new(false),
            attached: tokio::sync::Mutex::default(),
        }
    }

    fn check_alive(&self) -> Result<(), SandboxError> {
        self.jail
            .has_ended()
            .map_or(Ok(()), |ended| Err(SandboxError::Gone(ended.reason)))
    }
}

#[async_trait]
impl Sandbox for NativeSandbox {
    fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    fn base_env(&self) -> &BTreeMap<String, String> {
        self.env.get()
    }

    fn add_env(&self, env: &BTreeMap<String, String>) -> Result<(), SandboxError> {
        self.env.add(env)
    }

    async fn spawn(&self, command: Command) -> Result<Process, SandboxError> {
        self.check_alive()?;
        self.client.spawn(command).await
    }

    fn image(&self) -> Option<&str> {
        self.image.as_ref().map(|image| image.name.as_str())
    }

    fn memory_limit(&self) -> Option<u64> {
        Some(self.memory.as_bytes())
    }

    fn files(&self) -> &dyn Files {
        self.client.files()
    }

    fn saved_files(&self) -> Option<&dyn SavedFiles> {
        self.client.saved_files()
    }

    fn mount_layers(&self) -> Option<&dyn MountLayers> {
        self.client.mount_layers()
    }

    fn priority(&self) -> Option<&dyn Priority> {
        Some(self)
    }

    fn zygote_entry(&self) -> Option<&dyn ZygoteEntry> {
        self.image.is_none().then_some(self)
    }

    fn branching(&self) -> Option<&dyn Branching> {
        self.image.is_none().then_some(self)
    }

    fn attachments(&self) -> Option<&dyn Attachments> {
        self.image.is_none().then_some(self)
    }

    /// Below the namespace level a sandbox shares the host's loopback interface.
    fn ports(&self) -> Option<&dyn Ports> {
        self.isolation.level.satisfies(Level::Namespace).then_some(self)
    }

    async fn pause(&self) -> Result<(), SandboxError> {
        self.check_alive()?;
        self.client.pause().await
    }

    async fn resume(&self) -> Result<(), SandboxError> {
        self.check_alive()?;
        self.client.resume().await
    }

    async fn usage(&self) -> Result<Usage, SandboxError> {
        self.check_alive()?;
        let (outside, inside) = tokio::join!(self.jail.usage(), self.client.usage());
        let mut usage = outside?;
        // The agent counts files. A dying sandbox still has the numbers from outside.
        if let Ok(inside) = inside {
            usage.disk = inside.disk;
            usage.inodes = inside.inodes;
        }
        Ok(usage)
    }

    async fn close(&self) -> Result<(), SandboxError> {
        if self.jail.has_ended().is_some() {
            return Ok(());
        }
        self.closing.store(true, Ordering::Release);
        let _ = self.jail.kill().await;
        match timeout(CLOSE_DEADLINE, self.jail.ended()).await {
            Ok(_) => Ok(()),
            Err(_) => Err(SandboxError::Unavailable {
                backend: super::NAME.to_owned(),
                reason: format!("the sandbox did not end within {CLOSE_DEADLINE:?}"),
                remedy: "its processes were killed and are in uninterruptible sleep; the server keeps trying"
                    .to_owned(),
            }),
        }
    }

    async fn ended(&self) -> Ended {
        // An agent that breaks the protocol is no longer trusted: its sandbox ends.
        tokio::select! {
            biased;
            ended = self.jail.ending() => ended,
            end = self.client.closed() => {
                // Most likely its process is gone, and the launcher knows the reason. An agent that only closed its
                // stream is killed.
                if !matches!(end, AgentEnd::ProtocolError(_))
                    && let Ok(ended) = timeout(END_KNOWN_DEADLINE, self.jail.ending()).await
                {
                    return ended;
                }
                let _ = self.jail.kill().await;
                let ended = self.jail.ending().await;
                match ended.reason {
                    EndReason::Closed if !self.closing.load(Ordering::Acquire) => Ended { reason: EndReason::AgentLost },
                    _ => ended,
                }
            }
        }
    }
}

impl Priority for NativeSandbox {
    fn assign_owner(&self, caller: u64) {
        self.jail.assign_owner(caller);
    }

    fn raise(&self) {
        self.jail.set_low_priority(false);
    }
}

impl NativeSandbox {
    /// Lets a worker enter, with these files.
    async fn adopt_worker(&self, zygote: u64, files: &[OwnedFd]) -> Result<Process, SandboxError> {
        self.check_alive()?;
        if self.entered.swap(true, Ordering::Relaxed) {
            return Err(SandboxError::Unsupported("entering a sandbox twice".to_owned()));
        }
        // The agent answers when the child has arrived. Dropping the request ends a child that arrives too late.
        let (_, process) = tokio::try_join!(self.jail.enter(zygote, files), async {
            timeout(ADOPT_DEADLINE, self.client.adopt()).await.unwrap_or_else(|_| {
                Err(SandboxError::Setup {
                    step: "let a zygote's worker in".to_owned(),
                    source: std::io::ErrorKind::TimedOut.into(),
                })
            })
        })?;
        Ok(process)
    }
}

#[async_trait]
impl Branching for NativeSandbox {
    async fn take_image(&self, made: ImageMade) -> Result<ImageFile, SandboxError> {
        self.check_alive()?;
        let taken = self.jail.take_descriptor(made.process, made.descriptor).await?;
        let (file, shared) = state_file(taken).map_err(|source| SandboxError::Setup {
            step: "take the image of a sandbox".to_owned(),
            source,
        })?;
        Ok(ImageFile {
            file: Arc::new(file.into()),
            position: made.position,
            bytes: made.bytes,
            shared,
        })
    }

    async fn adopt_with(&self, zygote: u64, image: &StateImage) -> Result<Process, SandboxError> {
        let parts = [Some(&image.files), image.memory.as_ref()];
        let files = parts
            .into_iter()
            .flatten()
            .map(|part| part.file.try_clone().map(OwnedFd::from));
        let files = files.collect::<std::io::Result<Vec<_>>>();
        let files = files.map_err(|source| SandboxError::Setup {
            step: "pass the image of a sandbox".to_owned(),
            source,
        })?;
        self.adopt_worker(zygote, &files).await
    }
}

/// A mapped part of an image can grow to this size: far more than any memory limit.
const IMAGE_BYTES: u64 = 1 << 46;

/// Makes a memory file from inside one that nobody can change any more. A file of the sandbox's private file system, which
/// it has where memory files are blocked, cannot be protected. Returns it for reading only, and true if parts of it may be
/// mapped.
fn state_file(file: OwnedFd) -> std::io::Result<(OwnedFd, bool)> {
    let status = rustix::fs::fstat(&file)?;
    if !rustix::fs::FileType::from_raw_mode(status.st_mode).is_file() {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let grown = ftruncate(&file, IMAGE_BYTES).is_ok();
    let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::WRITE | SealFlags::SEAL;
    let sealed = match fcntl_add_seals(&file, seals) {
        Ok(()) => true,
        // A file of a file system, or a memory file that code inside has sealed itself.
        Err(Errno::INVAL | Errno::PERM) if !is_memory_file(&file)? => false,
        Err(error) => return Err(error.into()),
    };
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok((rustix::fs::open(path.as_str(), flags, Mode::empty())?, grown && sealed))
}

fn is_memory_file(file: &OwnedFd) -> std::io::Result<bool> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok(path.to_string_lossy().starts_with("/memfd:"))
}

#[async_trait]
impl ZygoteEntry for NativeSandbox {
    async fn adopt(&self, zygote: u64) -> Result<Process, SandboxError> {
        self.adopt_worker(zygote, &[]).await
    }

    fn pending_worker(&self) -> Option<u64> {
        self.jail.pending_worker()
    }
}

#[async_trait]
impl Attachments for NativeSandbox {
    async fn attach(&self, folder: &Path) -> Result<String, SandboxError> {
        self.check_alive()?;
        let mut attached = self.attached.lock().await;
        let number = attached.len();
        let full = || SandboxError::Full {
            what: format!("at most {MAX_ATTACHMENTS} sets of packages fit into one sandbox"),
        };
        let attachment = plan::attach("", number).ok_or_else(full)?;
        let whole = whole_path(folder)?;
        // The folder may be attached even if the answer is lost.
        attached.push(folder.to_owned());
        self.jail.attach(number, whole).await?;
        Ok(attachment.path)
    }

    async fn attached(&self) -> Vec<PathBuf> {
        self.attached.lock().await.clone()
    }
}

#[async_trait]
impl Ports for NativeSandbox {
    async fn forward(&self, port: u16) -> Result<Forward, SandboxError> {
        self.check_alive()?;
        self.client.forward(port, "network").await
    }

    async fn open(&self, port: u16) -> Result<Box<dyn Connection>, SandboxError> {
        self.check_alive()?;
        self.client.open(port).await
    }
}
