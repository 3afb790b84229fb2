//! Sandboxes that this program makes itself, with Linux namespaces and the other layers of the `namespace` level.
//!
//! The launcher (see the jail crate) makes the jails. This side talks to the launcher and attaches an agent client to
//! each jail's socket.

mod capacity;
mod cause;
mod conversation;
mod environment;
mod facts;
mod faults;
mod launchers;
mod liveness;
mod options;
mod report;
mod sandbox;
mod zygote;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use sandcell_agent::client::AgentClient;
use sandcell_agent::server::{ServeEnd, ServerConfig, serve_extended};
use sandcell_jail::direct_pipes::DirectPipes;
use sandcell_jail::launcher::{self, Launcher};
use sandcell_jail::oom;
use sandcell_jail::open_files::OpenFiles;
use sandcell_jail::spec::{Added, Fault, Request, Site, Template};
use sandcell_sandbox::{
    Backend, BackendImages, Capacity, Degree, Image, Images, Isolation, LayerReport, LeftOut, Level, Limits, Mount,
    MountMode, Preparing, Sandbox, SandboxError, SandboxSpec, ThisMachine, Zygote, Zygotes,
};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::timeout;

use capacity::Machine;
use conversation::{Answer, Conversation};
use environment::{of_image, of_machine, search_path};
use facts::HostFacts;
use launchers::{Launchers, Terms};
use sandbox::NativeSandbox;

/// The back end's name in settings and results.
pub const NAME: &str = "native";
/// The deadline of a jail's creation.
const CREATE_DEADLINE: Duration = Duration::from_secs(20);
/// The number of attempts to create a sandbox when its launcher is lost meanwhile. No caller has seen it yet, so
/// nothing is lost.
const CREATE_ATTEMPTS: u32 = 4;

/// Runs the launcher if this process was started as one, and then does not return. Call it first in `main`.
pub fn become_launcher_if_asked() {
    launcher::become_launcher_if_asked(agent);
}

/// The program of a jail's first process, after all restrictions are in place.
fn agent(
    input: OwnedFd,
    output: OwnedFd,
    lane: Option<DirectPipes>,
    folder: Option<&str>,
    door: Option<OwnedFd>,
) -> i32 {
    let config = match folder {
        // All private folders of a jail share one file system, so one of them shows its fill level.
        None => ServerConfig {
            private: vec![PathBuf::from(sandcell_sandbox::HOME)],
            // The launcher counts them.
            counts_processes: false,
            ..ServerConfig::default()
        },
        // Here the folders lie on the host's file system, so only the sandbox's own files show the fill level.
        Some(folder) => ServerConfig {
            private: Vec::new(),
            home: format!("{folder}/home"),
            moved_folders: [
                (sandcell_sandbox::HOME.to_owned(), format!("{folder}/home")),
                ("/tmp".to_owned(), format!("{folder}/tmp")),
            ]
            .to_vec(),
            ..ServerConfig::default()
        },
    };
    match serve_extended(input, output, lane, door, config) {
        ServeEnd::HostClosed => 0,
        ServeEnd::ProtocolError(_) | ServeEnd::DiskFull | ServeEnd::Failed(_) => 1,
    }
}

/// Starts the launcher. Call it before the runtime starts: its fork is cheapest before the first thread.
///
/// # Errors
/// The process could not be started.
pub fn start_launcher() -> std::io::Result<Launcher> {
    launcher::start()
}

/// The operator's settings for native sandboxes.
#[derive(Debug, Clone)]
pub struct NativeConfig {
    /// Host folders outside /usr that interpreters need.
    pub trees: Vec<PathBuf>,
    /// Files and folders of the host's /etc that interpreters read.
    pub config: Vec<PathBuf>,
    /// Files that exist only in sandboxes, by their paths inside.
    pub added: Vec<(PathBuf, String)>,
    /// Folders of the host, visible inside, that precede the system's folders in the search path.
    pub programs: Vec<PathBuf>,
    /// The operator's folders.
    pub mounts: Vec<Mount>,
    /// The isolation floor.
    pub isolation_min: Level,
    /// The weakest acceptable enforcement of limits.
    pub limits_min: Degree,
    /// The source of images; none: sandboxes of images are unsupported.
    pub images: Option<Arc<dyn Images>>,
    /// True if children of zygotes can enter new sandboxes.
    pub zygotes: bool,
    /// The number of spares: [`SPARE_COUNT`], or zero if only one sandbox is needed.
    pub spares: usize,
    /// A layer whose set-up is made to fail, in test builds.
    pub disabled_layer: Option<String>,
    /// A layer that is left out, in test builds.
    pub skipped_layer: Option<String>,
    /// The file with the error to inject into each sandbox in creation, in test builds.
    pub fault_file: Option<PathBuf>,
}

/// Creates native sandboxes.
#[derive(Debug)]
pub struct NativeBackend {
    launchers: Arc<Launchers>,
    isolation: Isolation,
    layers: Vec<LayerReport>,
    left_out: Vec<LeftOut>,
    images: Option<Arc<dyn Images>>,
    /// A reference to itself, for image unpackers that create sandboxes with it.
    me: Weak<Self>,
    /// True if children of zygotes can enter new sandboxes.
    enterable: bool,
    next: AtomicU64,
    machine: Machine,
    /// The number of sandboxes in creation.
    making: watch::Sender<u64>,
    fault_file: Option<PathBuf>,
    /// The search path in sandboxes that use the host's files.
    path: String,
}

impl NativeBackend {
    /// Configures the launcher and reads the capabilities of this machine. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`SandboxError::Isolation`] names the missing layer and the remedy.
    pub async fn start(launcher: Launcher, config: NativeConfig) -> Result<Arc<Self>, SandboxError> {
        OpenFiles::raise();
        oom::protect_self();
        let template = Template {
            trees: config.trees,
            config: config.config,
            added: config
                .added
                .into_iter()
                .map(|(path, text)| Added { path, text })
                .collect(),
            mounts: config.mounts.into_iter().map(mount).collect(),
            process_level: Level::Process.satisfies(config.isolation_min),
            spares: config.spares,
            enterable: config.zygotes,
            disabled: config.disabled_layer,
            skipped: config.skipped_layer,
        };
        let facts = HostFacts::read();
        report::check_limits(&facts)?;
        let terms = Terms {
            template,
            isolation_min: config.isolation_min,
            limits_min: config.limits_min,
        };
        let (conversation, found) = Conversation::open(launcher, terms.template.clone()).await?;
        terms.check(&found, &facts)?;
        let layers = report::layers(&found, &facts);
        let isolation = report::isolation(&found, &layers);
        Ok(Arc::new_cyclic(|me| Self {
            launchers: Launchers::new(conversation, terms, isolation.clone()),
            isolation,
            layers,
            left_out: report::left_out(&found),
            images: config.images,
            me: me.clone(),
            enterable: found.enterable,
            next: AtomicU64::new(1),
            machine: Machine::new(&found),
            making: watch::Sender::new(0),
            fault_file: config.fault_file,
            path: search_path(&config.programs),
        }))
    }

    /// An image needs a separate root, which the process level does not have.
    fn supports_images(&self) -> bool {
        self.images.is_some() && self.isolation.level.satisfies(Level::Namespace)
    }

    /// Returns the image of this name, if this back end supports images.
    async fn image(&self, name: &str) -> Result<Image, SandboxError> {
        let (Some(images), Some(me)) = (&self.images, self.me.upgrade()) else {
            return Err(SandboxError::Unsupported("image".to_owned()));
        };
        if !self.supports_images() {
            return Err(SandboxError::Isolation {
                layer: "mount_namespace".to_owned(),
                reason: "an image needs a separate root, which the process level does not have".to_owned(),
                remedy: "leave image out; `sandcell doctor` on the host says how to get namespaces".to_owned(),
            });
        }
        Arc::clone(images).find(name, me).await
    }

    /// Waits until this process has room for one more sandbox. The need of concurrent creations is known only when they
    /// end, so a creation is refused only if no other is running or if it is ahead of demand.
    async fn begin_making(&self, ahead: bool) -> Result<CreationGuard<'_>, SandboxError> {
        let mut seen = self.making.subscribe();
        loop {
            let making = *seen.borrow_and_update();
            match self.machine.room(making, ahead) {
                Ok(()) => return Ok(CreationGuard::begin(&self.making)),
                Err(refused) if making == 0 || ahead => return Err(refused),
                // Cannot fail: this back end owns the sender.
                Err(_) => drop(seen.changed().await),
            }
        }
    }

    fn unavailable(reason: impl Into<String>) -> SandboxError {
        SandboxError::Unavailable {
            backend: NAME.to_owned(),
            reason: reason.into(),
            remedy: "call again in a few seconds: the server replaces what it has lost by itself; if this stays, `sandcell doctor` \
                     on the host says what the machine lacks"
                .to_owned(),
        }
    }
}

/// Creates the socket to an agent: our end, and the agent's end twice, for reading and for writing.
fn agent_socket() -> std::io::Result<(UnixStream, [OwnedFd; 2])> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((UnixStream::from_std(ours)?, [theirs.try_clone()?.into(), theirs.into()]))
}

/// Counts a sandbox in creation, until it is dropped.
struct CreationGuard<'a>(&'a watch::Sender<u64>);

impl<'a> CreationGuard<'a> {
    fn begin(all: &'a watch::Sender<u64>) -> Self {
        all.send_modify(|count| *count += 1);
        Self(all)
    }
}

impl Drop for CreationGuard<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// The number of spares for a server that creates many sandboxes.
pub const SPARE_COUNT: usize = 4;

fn mount(mount: Mount) -> sandcell_jail::spec::Mount {
    sandcell_jail::spec::Mount {
        host: mount.host,
        sandbox: mount.sandbox,
        copy_on_write: match mount.mode {
            MountMode::Ro => false,
            MountMode::Cow => true,
        },
    }
}

fn request(limits: &Limits, fault: Option<Fault>) -> Request {
    Request {
        memory: limits.memory.as_bytes(),
        cpu_milli: limits.cpus.as_milli(),
        processes: limits.processes,
        disk: limits.disk.as_bytes(),
        inodes: limits.inodes,
        fault,
    }
}

impl Drop for NativeBackend {
    fn drop(&mut self) {
        self.launchers.close();
    }
}

#[async_trait]
impl Backend for NativeBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    fn layers(&self) -> &[LayerReport] {
        &self.layers
    }

    fn this_machine(&self) -> Option<&dyn ThisMachine> {
        Some(self)
    }

    fn images(&self) -> Option<&dyn BackendImages> {
        self.supports_images().then_some(self)
    }

    fn zygotes(&self) -> Option<&dyn Zygotes> {
        self.enterable.then_some(self)
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let _making = self.begin_making(spec.ahead).await?;
        let image = match &spec.image {
            Some(name) => Some(self.image(name).await?),
            None => None,
        };
        for _ in 0..CREATE_ATTEMPTS {
            let made = self.attempt(spec, image.as_ref()).await;
            if let Some(made) = made.map_err(|error| self.machine.name_limit(error))? {
                return Ok(Arc::new(made));
            }
        }
        Err(Self::unavailable(format!(
            "each of {CREATE_ATTEMPTS} launchers was lost while it made this sandbox"
        )))
    }

    /// Closing its connection makes a launcher kill all its sandboxes at once.
    fn begin_shutdown(&self) {
        self.launchers.close();
    }

    async fn shutdown(&self) {
        self.launchers.shut_down().await;
    }
}

impl ThisMachine for NativeBackend {
    fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    fn capacity(&self) -> Capacity {
        self.machine.capacity(self.launchers.count())
    }
}

#[async_trait]
impl BackendImages for NativeBackend {
    fn default_image(&self) -> Option<&str> {
        None
    }

    fn preparing(&self, image: Option<&str>) -> Option<Preparing> {
        self.images.as_ref()?.preparing(image?)
    }

    /// There is no default image.
    async fn pull(&self, image: Option<&str>) -> Result<(), SandboxError> {
        match image {
            Some(name) => self.image(name).await.map(drop),
            None => Ok(()),
        }
    }

    fn abandon(&self, image: &str) {
        if let Some(images) = &self.images {
            images.abandon(image);
        }
    }
}

#[async_trait]
impl Zygotes for NativeBackend {
    async fn start_zygote(&self, argv: &[String], attached: &[PathBuf]) -> Result<Zygote, SandboxError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let folders = attached.iter().map(|folder| sandbox::whole_path(folder));
        let folders = folders.collect::<Result<Vec<_>, _>>()?;
        zygote::start(self.launchers.get().await?, number, argv, folders).await
    }
}

impl NativeBackend {
    /// Creates a sandbox; none if the launcher was lost meanwhile.
    async fn attempt(&self, spec: &SandboxSpec, image: Option<&Image>) -> Result<Option<NativeSandbox>, SandboxError> {
        let fault = faults::next(self.fault_file.as_deref());
        let fails = |site, step: &str| {
            faults::at(fault, site).map_err(|source| SandboxError::Setup {
                step: step.to_owned(),
                source,
            })
        };
        let (ours, theirs) = fails(Site::AgentSocket, "make the agent's socket").and_then(|()| {
            agent_socket().map_err(|source| SandboxError::Setup {
                step: "make the agent's socket".to_owned(),
                source,
            })
        })?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let conversation = self.launchers.get().await?;
        fails(Site::Ask, "ask the launcher for a sandbox")?;
        // From here on a drop of the jail's handle ends the jail, also if this future is dropped.
        let asked = conversation
            .make(
                id,
                request(&spec.limits, fault),
                image.map(|image| image.root.clone()),
                spec.entered_by.filter(|_| image.is_none() && self.enterable),
                theirs,
            )
            .await;
        let jail = match asked {
            Err(_) if conversation.is_lost().await => return Ok(None),
            asked => asked?,
        };
        if let Some(caller) = spec.caller {
            jail.assign_owner(caller);
        }
        if spec.ahead {
            jail.set_low_priority(true);
        }
        let folder = match timeout(CREATE_DEADLINE, jail.made()).await {
            Ok(Answer::Made(folder)) => folder,
            Ok(Answer::Failed(error)) => return Err(self.machine.step_failed(error)),
            Ok(Answer::LauncherLost) => return Ok(None),
            Err(_) => return Err(report::overdue(CREATE_DEADLINE)),
        };
        fails(Site::Connect, "connect to the sandbox's agent")?;
        let (reader, writer) = ours.into_split();
        let client = match AgentClient::connect(reader, writer).await {
            Err(_) if conversation.is_lost().await => return Ok(None),
            client => client?,
        };
        if let Some(lane) = jail.take_lane() {
            client.use_direct_pipes(lane);
        }
        Ok(Some(NativeSandbox::new(
            jail,
            client,
            self.isolation.clone(),
            match image {
                Some(image) => of_image(spec, image),
                None => of_machine(spec, folder.as_deref(), &self.path),
            },
            spec.limits.memory,
            image.cloned(),
        )))
    }
}
