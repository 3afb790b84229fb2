//! Sandboxes in Pods of a Kubernetes cluster.
//!
//! The cluster chooses the node, starts the container and enforces its limits. This back end chooses the limits and restrictions. The
//! first process of each Pod is the agent. It comes from a ConfigMap, so any image will do. The server talks to the agent over a
//! [link](sandcell_link), which survives broken connections. Both ends of a link prove that they know its key.

mod cluster;
mod config;
mod connect;
mod failure;
mod labels;
mod network_check;
mod objects;
mod pod;
mod report;
mod sandbox;
mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::Api;
use sandcell_link::{KEY_BYTES, Key};
use sandcell_sandbox::{
    Backend, BackendImages, BaseEnv, Degree, Isolation, LayerReport, Level, Preparing, Sandbox, SandboxError,
    SandboxSpec,
};
use tokio::sync::{Mutex, OnceCell, oneshot};
use tokio::time::timeout;

use crate::container::agent_program::Agent;
use crate::container::sandbox::ContainerSandbox;
use crate::container::{env, ids, level};
use cluster::Cluster;
pub use config::{Connect, KubernetesSettings, NetworkGuard, Pull};
use connect::{ApiServer, Way};
use failure::{failed, is_missing, unavailable};
use pod::Common;
use sandbox::PodHost;

/// The back end's name in settings and results.
pub const NAME: &str = "kubernetes";
/// The deadline of the shutdown of all Pods.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The settings of this back end, and the parts of the server that it uses.
#[derive(Debug, Clone)]
pub struct KubernetesConfig {
    /// The back end's own settings.
    pub settings: KubernetesSettings,
    /// The isolation floor.
    pub isolation_min: Level,
    /// The weakest acceptable enforcement of limits.
    pub limits_min: Degree,
}

/// Creates sandboxes in Pods.
#[derive(Debug)]
pub struct KubernetesBackend {
    cluster: Arc<Cluster>,
    common: Common,
    /// The key of all links of this server.
    key: Key,
    way: Way,
    isolation: Isolation,
    layers: Vec<LayerReport>,
    api_server: ApiServer,
    /// Set when the network was found closed to code.
    network_checked: OnceCell<()>,
    next_user: AtomicU32,
}

impl KubernetesBackend {
    /// Connects to the cluster and makes this server's objects in it. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`SandboxError::Unavailable`]: the cluster cannot be used. [`SandboxError::Isolation`]: it lacks a layer.
    pub async fn start(config: KubernetesConfig) -> Result<Arc<Self>, SandboxError> {
        let settings = config.settings;
        let (objects, api_server) = connect::objects(&settings).await?;
        let level = level_of(&objects.client, settings.runtime_class.as_deref()).await?;
        report::check_floor(level, config.isolation_min)?;
        let agent = Agent::of(&settings.architecture).map_err(|lacking| unavailable(lacking.reason, lacking.remedy))?;
        let layers = report::layers(level, settings.network);
        let mut random = [0; KEY_BYTES];
        getrandom::fill(&mut random).map_err(|error| {
            unavailable(
                format!("the system gives no random numbers: {error}"),
                "start the server again",
            )
        })?;
        let key = Key::new(random);
        let server = format!("sandcell-{}", ids::token());
        let owner = objects.take_lease(&server).await?;
        let provided = objects.provide(&server, &owner, agent, &key, settings.network).await;
        if let Err(error) = provided {
            objects.drop_lease(&server).await;
            return Err(error);
        }
        let cluster = Cluster::new(objects.clone(), &server);
        tokio::spawn(objects::keep_lease(objects, server.clone(), Arc::downgrade(&cluster)));
        let way = Way::of(settings.connect);
        Ok(Arc::new(Self {
            cluster,
            common: Common {
                server,
                owner,
                settings,
            },
            key,
            way,
            isolation: Isolation::of_layers(NAME, level, &layers),
            layers,
            api_server,
            network_checked: OnceCell::new(),
            next_user: AtomicU32::new(ids::first_number()),
        }))
    }

    async fn make(&self, spec: &SandboxSpec) -> Result<ContainerSandbox<PodHost>, SandboxError> {
        let image = spec.image.clone().unwrap_or_else(|| self.common.settings.image.clone());
        let user = ids::user(self.next_user.fetch_add(1, Ordering::Relaxed));
        let name = format!("{}-{}", self.common.server, ids::token());
        let body = pod::body(spec, &name, &image, user, &self.common)
            .map_err(|error| failed("describe a Pod", &kube::Error::SerdeError(error)))?;
        let (cluster, key, way) = (Arc::clone(&self.cluster), self.key.clone(), self.way);
        let (isolation, memory) = (self.isolation.clone(), spec.limits.memory);
        let usual = image == self.common.settings.image;
        let spec = spec.clone();
        let (sender, made) = oneshot::channel();
        // A separate task: a caller that leaves must not leave half a Pod. An unclaimed result is dropped, which removes the Pod.
        tokio::spawn(async move {
            let made = sandbox::make(&cluster, body, &key, way, &image).await;
            let made = made.map(|(pod, client)| ContainerSandbox {
                host: PodHost(pod),
                isolation,
                env: BaseEnv::new(env::environment(&spec, client.announced_env())),
                client,
                memory,
                image,
                usual,
                attached: Mutex::default(),
            });
            let _ = sender.send(made);
        });
        made.await
            .unwrap_or_else(|_| Err(unavailable("the creation of a Pod ended unexpectedly", "try again")))
    }
}

impl KubernetesBackend {
    /// Checks that a program in this Pod cannot reach another one, which is made for the check, and the API server.
    async fn check_network(&self, made: &ContainerSandbox<PodHost>) -> Result<(), SandboxError> {
        let other = self.make(&SandboxSpec::default()).await?;
        let address = other.host.address().ok_or_else(|| {
            unavailable(
                "the cluster reports no address for a Pod",
                "`kubectl get pods -o wide` shows addresses",
            )
        })?;
        let checked = network_check::check(&made.client, address, &self.api_server).await;
        other.close().await?;
        checked
    }
}

/// Returns the level of isolation that a runtime class gives, by its handler if the account may read it, else by its name.
async fn level_of(client: &kube::Client, class: Option<&str>) -> Result<Level, SandboxError> {
    let Some(class) = class else {
        return Ok(Level::Container);
    };
    match Api::<RuntimeClass>::all(client.clone()).get(class).await {
        Ok(found) => Ok(level::of(&found.handler)),
        Err(error) if is_missing(&error) => Err(unavailable(
            format!("the cluster has no RuntimeClass {class}"),
            "set `kubernetes.runtime_class` to one that `kubectl get runtimeclass` lists, or leave it empty",
        )),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(level::of(class)),
        Err(error) => Err(failed("read a RuntimeClass", &error)),
    }
}

#[async_trait]
impl Backend for KubernetesBackend {
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
        let made = self.make(spec).await?;
        if self.common.settings.network == NetworkGuard::Policy {
            self.network_checked
                .get_or_try_init(|| self.check_network(&made))
                .await?;
        }
        Ok(Arc::new(made))
    }

    async fn shutdown(&self) {
        let ending = self.cluster.pods.close();
        let all = futures::future::join_all(ending.iter().map(|pod| pod.life.removed()));
        if timeout(SHUTDOWN_TIMEOUT, all).await.is_err() {
            tracing::warn!("Pods did not end within {SHUTDOWN_TIMEOUT:?}; they go with the lease of this server");
        }
        self.cluster.objects.drop_lease(&self.common.server).await;
    }
}

#[async_trait]
impl BackendImages for KubernetesBackend {
    fn default_image(&self) -> Option<&str> {
        Some(&self.common.settings.image)
    }

    fn preparing(&self, _image: Option<&str>) -> Option<Preparing> {
        None
    }

    /// Nodes pull images themselves when a Pod needs them.
    async fn pull(&self, _image: Option<&str>) -> Result<(), SandboxError> {
        Ok(())
    }

    fn abandon(&self, _image: &str) {}
}

impl Drop for KubernetesBackend {
    fn drop(&mut self) {
        drop(self.cluster.pods.close());
    }
}
