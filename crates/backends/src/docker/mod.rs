//! Sandboxes in containers of a Docker daemon, or of Podman through its compatible socket.
//!
//! The daemon isolates; this back end decides how strictly. It adds the agent to each container as the first process
//! and communicates over the agent's attached stdin and stdout. So any image will do, even one without a C library or a
//! shell, and a call costs a message instead of a `docker exec`. The agent restricts itself and the programs it starts
//! beyond the daemon's restrictions (see `jail::container::lockdown`). When this server ends, the streams close and the
//! containers end.

mod agent;
mod attach_stream;
mod config;
mod connect;
mod container_request;
mod credentials;
mod daemon;
mod discovery;
mod image;
mod jobs;
mod labels;
mod mount_seed;
mod report;
mod runtimes;
mod sandbox;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sandcell_sandbox::{
    Backend, BackendImages, BaseEnv, Degree, Isolation, LayerReport, Level, Mount, Network, Preparing, Sandbox,
    SandboxError, SandboxSpec,
};
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;

use crate::container::env::environment;
use crate::container::ids;
use crate::container::sandbox::ContainerSandbox;
pub use config::{DockerSettings, Pull};
use container_request::{Common, Image};
pub use credentials::CredentialSource;
use daemon::Daemon;
use image::Images;
use runtimes::Runtimes;
pub use runtimes::{Prepared, Runtime};
use sandbox::DockerHost;

/// The back end's name in settings and results.
pub const NAME: &str = "docker";
/// The deadline of the shutdown of all containers.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The settings of this back end, and the parts of the server that it uses.
#[derive(Debug, Clone)]
pub struct DockerConfig {
    /// The back end's own settings.
    pub settings: DockerSettings,
    /// The place of registry logins.
    pub credentials: CredentialSource,
    /// The languages to install into images that lack them.
    pub runtimes: Vec<Runtime>,
    /// The network of installations, which allows the mirrors only; none: nothing is installed.
    pub mirrors: Option<Arc<dyn Network>>,
    /// The operator's folders, on the daemon's machine.
    pub mounts: Vec<Mount>,
    /// The isolation floor.
    pub isolation_min: Level,
    /// The weakest acceptable enforcement of limits.
    pub limits_min: Degree,
}

/// Creates sandboxes in containers.
#[derive(Debug)]
pub struct DockerBackend {
    daemon: Arc<Daemon>,
    images: Arc<Images>,
    runtimes: Arc<Runtimes>,
    /// True once the daemon has the agent.
    agent: Mutex<bool>,
    image: String,
    common: Common,
    isolation: Isolation,
    layers: Vec<LayerReport>,
    next_user: AtomicU32,
}

impl DockerBackend {
    /// Finds the daemon and reads its capabilities. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`SandboxError::Unavailable`]: there is no usable daemon. [`SandboxError::Isolation`]: it lacks a layer.
    pub async fn start(config: DockerConfig) -> Result<Arc<Self>, SandboxError> {
        let settings = config.settings;
        let (docker, address) = connect::connect(settings.host.as_deref(), settings.certificates.as_deref()).await?;
        let info = docker.info().await.map_err(|error| connect::failed(&address, &error))?;
        let found = report::DaemonInfo::from_daemon(info, settings.runtime.as_deref())?;
        report::check_floor(&found, config.isolation_min, config.limits_min)?;
        let layers = report::layers(&found);
        let seed = ids::first_number();
        Ok(Arc::new(Self {
            images: Arc::new(Images::new(
                docker.clone(),
                address.clone(),
                settings.pull,
                config.credentials,
            )),
            runtimes: Arc::new(Runtimes::new(config.runtimes, config.mirrors)),
            daemon: Daemon::new(docker, address),
            agent: Mutex::new(false),
            image: settings.image,
            common: Common {
                runtime: settings.runtime,
                mounts: config.mounts,
                agent: found.agent,
                cores_milli: found.cores_milli,
            },
            isolation: report::isolation(&found, &layers),
            layers,
            next_user: AtomicU32::new(seed),
        }))
    }

    /// Ensures that the daemon has the agent.
    async fn provide(&self, image: &str) -> Result<(), SandboxError> {
        let mut there = self.agent.lock().await;
        if !*there {
            agent::provide(&self.daemon.docker, self.common.agent, image)
                .await
                .map_err(|error| connect::failed(&self.daemon.address, &error))?;
            *there = true;
        }
        Ok(())
    }

    async fn make(&self, spec: &SandboxSpec) -> Result<ContainerSandbox<DockerHost>, SandboxError> {
        let name = spec.image.as_deref().unwrap_or(&self.image);
        let image = self.images.find(name).await?;
        self.provide(&image.id).await?;
        let (chosen, known) = self.runtimes.in_place_of(&image, &self.daemon).await;
        let made = self.container(spec, name, &chosen).await?;
        if known {
            return Ok(made);
        }
        // The first sandbox of an image shows what the image lacks. Mostly that is nothing, and the sandbox is the
        // result.
        let path = made.env.get().get("PATH").cloned().unwrap_or_default();
        let Some(lack) = self.runtimes.look(&image, name, made.client.files(), &path).await else {
            return Ok(made);
        };
        drop(made);
        let adding = self.runtimes.add(name, &image, &lack, &self.daemon, &self.common);
        let prepared = adding.await?;
        self.container(spec, name, &prepared).await
    }

    /// Creates a container of `image`, whose name is `name`.
    async fn container(
        &self,
        spec: &SandboxSpec,
        name: &str,
        image: &Image,
    ) -> Result<ContainerSandbox<DockerHost>, SandboxError> {
        let user = ids::user(self.next_user.fetch_add(1, Ordering::Relaxed));
        let body = container_request::body(spec, image, &self.common, user);
        let daemon = Arc::clone(&self.daemon);
        let (isolation, memory, name) = (self.isolation.clone(), spec.limits.memory, name.to_owned());
        let env = environment(spec, &image.env);
        let usual = name == self.image;
        let mounts = self.common.mounts.clone();
        let (sender, made) = oneshot::channel();
        // A separate task: a caller that leaves must not leave half a container. An unclaimed result is dropped, which
        // removes the container.
        tokio::spawn(async move {
            let made = sandbox::make(&daemon, body).await;
            let made = made.map(|(container, client)| ContainerSandbox {
                host: DockerHost { daemon, container },
                client,
                isolation,
                env: BaseEnv::new(env),
                memory,
                image: name,
                usual,
                attached: Mutex::default(),
            });
            let made = match made {
                Ok(made) => mount_seed::seed(&made.client, &mounts).await.map(|()| made),
                failed => failed,
            };
            let _ = sender.send(made);
        });
        made.await.unwrap_or_else(|_| {
            Err(connect::unavailable(
                "the creation of a container ended unexpectedly",
                "try again",
            ))
        })
    }
}

/// Returns the images with added languages, the newest first.
///
/// # Errors
/// [`SandboxError::Unavailable`] if the daemon cannot be asked.
pub async fn prepared(host: Option<&str>, certificates: Option<&Path>) -> Result<Vec<Prepared>, SandboxError> {
    let (docker, address) = connect::connect(host, certificates).await?;
    runtimes::list(&docker)
        .await
        .map_err(|error| connect::failed(&address, &error))
}

/// Removes the images with added languages that no container uses, and returns the removed ones.
///
/// # Errors
/// As [`prepared`].
pub async fn prune(host: Option<&str>, certificates: Option<&Path>) -> Result<Vec<Prepared>, SandboxError> {
    let (docker, address) = connect::connect(host, certificates).await?;
    runtimes::prune(&docker, 0)
        .await
        .map_err(|error| connect::failed(&address, &error))
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

    fn images(&self) -> Option<&dyn BackendImages> {
        Some(self)
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let made = match self.make(spec).await {
            // The volume was removed, and the daemon created an empty one in its place.
            Err(SandboxError::Unavailable { reason, .. })
                if reason.contains(crate::container::agent_program::AGENT_PATH) =>
            {
                *self.agent.lock().await = false;
                self.make(spec).await
            }
            made => made,
        };
        Ok(Arc::new(made?))
    }

    async fn shutdown(&self) {
        let ending = self.daemon.containers.close();
        let all = futures::future::join_all(ending.iter().map(|container| container.life.removed()));
        if timeout(SHUTDOWN_TIMEOUT, all).await.is_err() {
            tracing::warn!("containers did not end within {SHUTDOWN_TIMEOUT:?}");
        }
    }
}

#[async_trait]
impl BackendImages for DockerBackend {
    fn default_image(&self) -> Option<&str> {
        Some(&self.image)
    }

    fn preparing(&self, image: Option<&str>) -> Option<Preparing> {
        let name = image.unwrap_or(&self.image);
        self.images.progress(name).or_else(|| self.runtimes.progress(name))
    }

    async fn pull(&self, image: Option<&str>) -> Result<(), SandboxError> {
        self.images.pull_image(image.unwrap_or(&self.image)).await
    }

    fn abandon(&self, image: &str) {
        // All callers that name no image share the default image.
        if image != self.image {
            self.images.abandon(image);
        }
    }
}

impl Drop for DockerBackend {
    fn drop(&mut self) {
        drop(self.daemon.containers.close());
    }
}
