//! Sandboxes in containers of a Docker daemon, or of Podman by its compatible socket.
//!
//! The daemon isolates; this side says how strictly, and puts its own agent into each container as the first process,
//! over whose attached stdin and stdout everything goes. So any image will do, also one without a C library or a shell,
//! and a call costs a message and not a `docker exec`. The agent locks itself and all it starts further than the daemon
//! does (see `jail::contained`). When this server goes away, the streams do, and the containers with them.

mod agent;
mod connect;
mod container;
mod daemon;
mod image;
mod labels;
mod line;
mod report;
mod sandbox;
mod tar;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sandcell_sandbox::{
    Backend, Degree, Isolation, LayerReport, Level, Mount, MountMode, Sandbox, SandboxError, SandboxSpec,
};
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;

use container::Common;
use daemon::Daemon;
use image::Images;
pub use image::Pull;
use sandbox::DockerSandbox;

/// The name in settings and results.
pub const NAME: &str = "docker";
/// How long everything may take to end.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// What the operator decided about containers.
#[derive(Debug, Clone)]
pub struct DockerConfig {
    /// Where the daemon listens, as in `DOCKER_HOST`; none: where daemons usually do.
    pub host: Option<String>,
    /// The folder with `ca.pem`, `cert.pem` and `key.pem`, with which a daemon is talked to over TCP.
    pub certificates: Option<PathBuf>,
    /// The image of sandboxes that name none.
    pub image: String,
    /// The runtime, if not the daemon's own choice.
    pub runtime: Option<String>,
    /// Whether missing images are pulled.
    pub pull: Pull,
    /// The operator's folders, on the daemon's machine.
    pub mounts: Vec<Mount>,
    /// Isolation weaker than this is refused.
    pub isolation_min: Level,
    /// Limits held more weakly than this are refused.
    pub limits_min: Degree,
}

/// Makes sandboxes in containers.
#[derive(Debug)]
pub struct DockerBackend {
    daemon: Arc<Daemon>,
    images: Arc<Images>,
    /// Whether the daemon has the agent.
    agent: Mutex<bool>,
    image: String,
    common: Common,
    isolation: Isolation,
    layers: Vec<LayerReport>,
    next_user: AtomicU32,
}

impl DockerBackend {
    /// Finds the daemon and learns what it gives. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`SandboxError::Unavailable`] says why there is no daemon, [`SandboxError::Isolation`] what it lacks.
    pub async fn start(config: DockerConfig) -> Result<Arc<Self>, SandboxError> {
        if agent::PROGRAM.is_empty() {
            return Err(connect::unavailable(
                "this build has no agent to put into containers",
                "build sandcell where the agent's target is installed (`rustup target add` and the name that the build's warning says)",
            ));
        }
        if let Some(mount) = config.mounts.iter().find(|mount| mount.mode == MountMode::Cow) {
            return Err(connect::unavailable(
                format!(
                    "{} is mounted copy-on-write, which containers cannot",
                    mount.host.display()
                ),
                "mount it with mode \"ro\", or use the native back end",
            ));
        }
        let (docker, address) = connect::connect(config.host.as_deref(), config.certificates.as_deref()).await?;
        let info = docker.info().await.map_err(|error| connect::failed(&address, &error))?;
        let found = report::Found::from_daemon(info, config.runtime.as_deref())?;
        report::check_floor(&found, config.isolation_min, config.limits_min)?;
        let layers = report::layers(&found);
        let seed = token_number();
        Ok(Arc::new(Self {
            images: Arc::new(Images::new(docker.clone(), address.clone(), config.pull)),
            daemon: Daemon::new(docker, address),
            agent: Mutex::new(false),
            image: config.image,
            common: Common {
                runtime: config.runtime,
                mounts: config.mounts,
                cores_milli: found.cores_milli,
            },
            isolation: report::isolation(&found, &layers),
            layers,
            next_user: AtomicU32::new(seed),
        }))
    }

    /// Makes sure that the daemon has the agent.
    async fn provide(&self, image: &str) -> Result<(), SandboxError> {
        let mut there = self.agent.lock().await;
        if !*there {
            agent::provide(&self.daemon.docker, image)
                .await
                .map_err(|error| connect::failed(&self.daemon.address, &error))?;
            *there = true;
        }
        Ok(())
    }

    async fn make(&self, spec: &SandboxSpec) -> Result<DockerSandbox, SandboxError> {
        let name = spec.image.as_deref().unwrap_or(&self.image);
        let image = self.images.find(name).await?;
        self.provide(&image.id).await?;
        let user = container::user(self.next_user.fetch_add(1, Ordering::Relaxed));
        let body = container::body(spec, &image, &self.common, user);
        let daemon = Arc::clone(&self.daemon);
        let (isolation, memory, name) = (self.isolation.clone(), spec.limits.memory, name.to_owned());
        let env = container::environment(spec, &image);
        let usual = name == self.image;
        let (sender, made) = oneshot::channel();
        // In a task of its own: a caller that leaves does not leave half a container. What nobody takes is dropped, and
        // with that removed.
        tokio::spawn(async move {
            let made = sandbox::make(&daemon, body).await;
            let made = made.map(|(container, client)| DockerSandbox {
                daemon,
                container,
                client,
                isolation,
                env,
                memory,
                image: name,
                usual,
                attached: Mutex::new(0),
            });
            let _ = sender.send(made);
        });
        made.await
            .unwrap_or_else(|_| Err(connect::unavailable("the making of a container broke off", "try again")))
    }
}

#[async_trait]
impl Backend for DockerBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    fn layers(&self) -> &[LayerReport] {
        &self.layers
    }

    fn knows_images(&self) -> bool {
        true
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let made = match self.make(spec).await {
            // Somebody has removed the volume, and the daemon made an empty one in its place.
            Err(SandboxError::Unavailable { reason, .. }) if reason.contains(agent::PATH) => {
                *self.agent.lock().await = false;
                self.make(spec).await
            }
            made => made,
        };
        Ok(Arc::new(made?))
    }

    async fn shutdown(&self) {
        let ending = self.daemon.close();
        let all = futures::future::join_all(ending.iter().map(|container| container.removed()));
        if timeout(SHUTDOWN, all).await.is_err() {
            tracing::warn!("containers did not end within {SHUTDOWN:?}");
        }
    }
}

impl Drop for DockerBackend {
    fn drop(&mut self) {
        drop(self.daemon.close());
    }
}

fn token_number() -> u32 {
    let mut bytes = [0; 4];
    // Without randomness the numbers begin alike, which only makes two servers share some users.
    let _ = getrandom::fill(&mut bytes);
    u32::from_le_bytes(bytes)
}

/// Something that no other name has.
fn token() -> String {
    let mut bytes = [0; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        // A name that is taken is refused by the daemon, nothing worse.
        Err(_) => format!("{}", std::process::id()),
    }
}
