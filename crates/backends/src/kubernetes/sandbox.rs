//! One Pod: its creation, its end, and its sandbox.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams, Preconditions};
use sandcell_agent::client::AgentClient;
use sandcell_link::Key;
use sandcell_link::host::{self, DialError, End};
use sandcell_sandbox::{
    Attachments, BaseEnv, ByteSize, Command, Connection, EndReason, Ended, Files, Forward, Isolation, LAYERS,
    LAYERS_MAX, Ports, Process, Sandbox, SandboxError, SavedFiles, Usage,
};
use tokio::time::{sleep, timeout};

use super::NAME;
use super::cluster::{Cluster, PodState};
use super::connect::{self, Way};
use super::failure::{failed, is_missing, shortened, unavailable};
use super::view::View;
use crate::container_files::{self, CopyError};
use crate::tar::FolderContent;

/// The time that a Pod has to start. Pulling an image is part of it.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// The time that a node has to make a container after a failure that may pass.
const STUCK_TIMEOUT: Duration = Duration::from_secs(30);
/// The deadline of closing.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that the cluster has to report how a Pod ended.
const END_REPORT_TIMEOUT: Duration = Duration::from_secs(3);
/// The number of removal attempts, and the pause between them.
const REMOVE_ATTEMPTS: u32 = 5;
const REMOVE_INTERVAL: Duration = Duration::from_secs(1);
/// The time that a deleted Pod has to disappear before its removal is given up.
const DISAPPEAR_TIMEOUT: Duration = Duration::from_secs(8);

/// Creates a Pod, connects to its agent, and supervises it in a separate task until its end.
pub(super) async fn make(
    cluster: &Arc<Cluster>,
    body: Pod,
    key: &Key,
    way: Way,
    image: &str,
) -> Result<(Arc<PodState>, AgentClient), SandboxError> {
    let name = body.metadata.name.clone().unwrap_or_default();
    let pod = Arc::new(PodState::new(name));
    if !cluster.add(&pod) {
        return Err(unavailable("the server is ending", "start it again"));
    }
    let (started, link) = match start(cluster, &pod, body, key, way, image).await {
        Ok((client, link)) => (Ok(client), Some(link)),
        Err(error) => (Err(error), None),
    };
    // The task also covers a Pod that failed to start: it removes what exists of it.
    let keeping = tokio::spawn(keep(Arc::clone(cluster), Arc::clone(&pod), link));
    match started {
        Ok(client) => Ok((pod, client)),
        Err(error) => {
            pod.ask();
            // The number of removal attempts bounds this wait.
            let _ = keeping.await;
            Err(error)
        }
    }
}

async fn start(
    cluster: &Cluster,
    pod: &Arc<PodState>,
    body: Pod,
    key: &Key,
    way: Way,
    image: &str,
) -> Result<(AgentClient, host::Handle), SandboxError> {
    let pods = cluster.objects.api::<Pod>();
    let made = pods.create(&PostParams::default(), &body).await;
    let made = made.map_err(|error| failed("create a Pod", &error))?;
    let uid = made.metadata.uid.unwrap_or_default();
    match timeout(START_TIMEOUT, runs(pod, image)).await {
        Ok(runs) => runs?,
        Err(_) => {
            let why = match &*pod.view.borrow() {
                View::Waiting { why: Some(why) } => format!(": {why}"),
                _ => String::new(),
            };
            return Err(unavailable(
                format!("the Pod did not start within {} s{why}", START_TIMEOUT.as_secs()),
                "give the cluster room for another Pod, or ask for smaller limits; `kubectl get events` says more",
            ));
        }
    }
    let (dialled, pods) = (Arc::clone(pod), pods.clone());
    let dial = move || {
        let (pod, pods) = (Arc::clone(&dialled), pods.clone());
        async move {
            if matches!(&*pod.view.borrow(), View::Ended { .. }) {
                return Err(DialError::Gone("the Pod has ended".to_owned()));
            }
            connect::dial(pods, pod, way).await.map_err(DialError::Again)
        }
    };
    let linked = host::connect(dial, key.clone(), &uid, host::Options::default()).await;
    let ((reader, writer), link) = linked.map_err(|error| {
        unavailable(
            format!(
                "the agent in the Pod cannot be reached: {}",
                shortened(&error.to_string())
            ),
            match way {
                Way::PodIp => {
                    "check that this server's network leads to Pods, or set `kubernetes.connect` to \"port_forward\""
                }
                Way::PortForward => {
                    "give the server's account the right to create pods/portforward, and check `kubectl port-forward`"
                }
            },
        )
    })?;
    let client = AgentClient::connect(reader, writer).await?;
    Ok((client, link))
}

/// Waits until a Pod's container runs.
async fn runs(pod: &PodState, image: &str) -> Result<(), SandboxError> {
    let mut view = pod.view.subscribe();
    loop {
        let seen = view.borrow_and_update().clone();
        let (why, is_image) = match seen {
            View::Running { .. } => return Ok(()),
            View::Ended { reason } => return Err(SandboxError::Gone(reason)),
            View::Waiting { .. } => {
                // The sender lives as long as this borrow.
                let _ = view.changed().await;
                continue;
            }
            View::Stuck {
                why,
                is_final: false,
                is_image,
            } => {
                let passes = view.wait_for(|view| {
                    matches!(
                        view,
                        View::Running { .. } | View::Ended { .. } | View::Stuck { is_final: true, .. }
                    )
                });
                match timeout(STUCK_TIMEOUT, passes).await {
                    Ok(_) => continue,
                    Err(_) => (why, is_image),
                }
            }
            View::Stuck { why, is_image, .. } => (why, is_image),
        };
        return Err(if is_image {
            SandboxError::Image {
                image: image.to_owned(),
                reason: why,
                remedy: "check the image's name, `kubernetes.pull` and `kubernetes.pull_secrets`".to_owned(),
            }
        } else {
            unavailable(
                format!("the Pod cannot start: {why}"),
                "`kubectl describe pod` and the node's log say more; an image whose files cannot be used in a Pod must be replaced",
            )
        });
    }
}

/// Waits for the end of a Pod or a request to end it, reports the reason, and removes the Pod.
async fn keep(cluster: Arc<Cluster>, pod: Arc<PodState>, link: Option<host::Handle>) {
    let reason = tokio::select! {
        biased;
        () = pod.asked() => EndReason::Closed,
        reason = pod.over() => reason,
        end = link_end(link.as_ref()) => match timeout(END_REPORT_TIMEOUT, pod.over()).await {
            Ok(reason) => reason,
            Err(_) => match end {
                End::Unreachable(_) => EndReason::NodeLost,
                _ => EndReason::AgentLost,
            },
        },
    };
    // Reported before the removal: an API server that is busy answers late.
    pod.ended.send_replace(Some(Ended { reason }));
    drop(link);
    remove(&cluster, &pod).await;
    cluster.forget(&pod.name);
    pod.removed.send_replace(true);
}

/// Waits for the end of a link; forever if there is none.
async fn link_end(link: Option<&host::Handle>) -> End {
    match link {
        Some(link) => link.ended().await,
        None => std::future::pending().await,
    }
}

async fn remove(cluster: &Cluster, pod: &PodState) {
    let pods = cluster.objects.api::<Pod>();
    let parameters = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: None::<Preconditions>,
        ..DeleteParams::background()
    };
    for attempt in 0..REMOVE_ATTEMPTS {
        match pods.delete(&pod.name, &parameters).await {
            Ok(_) => {
                let _ = timeout(DISAPPEAR_TIMEOUT, pod.deleted()).await;
                return;
            }
            Err(error) if is_missing(&error) => return,
            Err(error) => {
                tracing::debug!(pod = pod.name, %error, "a Pod was not removed at once");
                if attempt + 1 < REMOVE_ATTEMPTS {
                    sleep(REMOVE_INTERVAL).await;
                }
            }
        }
    }
    tracing::warn!(
        pod = pod.name,
        "a Pod could not be removed; it goes with the lease of this server"
    );
}

/// A Pod as a sandbox.
#[derive(Debug)]
pub(super) struct PodSandbox {
    pub(super) pod: Arc<PodState>,
    pub(super) client: AgentClient,
    pub(super) isolation: Isolation,
    pub(super) env: BaseEnv,
    pub(super) memory: ByteSize,
    pub(super) image: String,
    /// True for the default image, for which packages are installed.
    pub(super) usual: bool,
    /// The attached folders, failed attempts included: each path is used once.
    pub(super) attached: tokio::sync::Mutex<Vec<PathBuf>>,
}

impl PodSandbox {
    fn check_alive(&self) -> Result<(), SandboxError> {
        self.pod
            .has_ended()
            .map_or(Ok(()), |ended| Err(SandboxError::Gone(ended.reason)))
    }
}

impl Drop for PodSandbox {
    fn drop(&mut self) {
        self.pod.ask();
    }
}

#[async_trait]
impl Sandbox for PodSandbox {
    fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    fn base_env(&self) -> &BTreeMap<String, String> {
        self.env.get()
    }

    fn add_env(&self, env: &BTreeMap<String, String>) -> Result<(), SandboxError> {
        self.env.add(env)
    }

    fn image(&self) -> Option<&str> {
        Some(&self.image)
    }

    async fn spawn(&self, command: Command) -> Result<Process, SandboxError> {
        self.check_alive()?;
        self.client.spawn(command).await
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

    fn attachments(&self) -> Option<&dyn Attachments> {
        Some(self)
    }

    fn ports(&self) -> Option<&dyn Ports> {
        Some(self)
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
        let inside = self.client.usage().await?;
        let Some(group) = inside.group else {
            return Err(SandboxError::Unsupported(
                "reading the usage of a Pod that does not show its control group".to_owned(),
            ));
        };
        Ok(Usage {
            memory: group.memory,
            memory_peak: group.memory_peak,
            cpu_us: group.cpu_us,
            memory_events: group.memory_events,
            process_events: group.process_events,
            processes: inside.processes,
            disk: inside.disk,
            inodes: inside.inodes,
            ..Usage::default()
        })
    }

    async fn close(&self) -> Result<(), SandboxError> {
        self.pod.ask();
        match timeout(CLOSE_TIMEOUT, self.pod.removed()).await {
            Ok(()) => Ok(()),
            Err(_) => Err(SandboxError::Unavailable {
                backend: NAME.to_owned(),
                reason: format!("the Pod {} was not removed within {CLOSE_TIMEOUT:?}", self.pod.name),
                remedy: format!("`kubectl delete pod {} --grace-period=0 --force`", self.pod.name),
            }),
        }
    }

    async fn ended(&self) -> Ended {
        self.pod.ended().await
    }
}

#[async_trait]
impl Attachments for PodSandbox {
    async fn attach(&self, folder: &Path) -> Result<String, SandboxError> {
        self.check_alive()?;
        if !self.usual {
            return Err(SandboxError::Unsupported(format!(
                "installing packages into the image {}, which is not the default one,",
                self.image
            )));
        }
        let mut attached = self.attached.lock().await;
        let number = attached.len();
        if number >= LAYERS_MAX {
            return Err(SandboxError::Full {
                what: format!("at most {LAYERS_MAX} sets of packages fit into one sandbox"),
            });
        }
        attached.push(folder.to_owned());
        let copied =
            container_files::copy(&self.client, folder, &number.to_string(), FolderContent::Files, LAYERS).await;
        match copied {
            Ok(()) => Ok(format!("{LAYERS}/{number}")),
            Err(CopyError::Sandbox(error)) => Err(error),
            Err(CopyError::Full) => Err(SandboxError::Full {
                what: "the packages do not fit on the Pod's disk".to_owned(),
            }),
            Err(CopyError::Unreadable(source)) => Err(SandboxError::Setup {
                step: format!("read the folder {}", folder.display()),
                source,
            }),
            Err(CopyError::Failed(said)) => Err(unavailable(
                format!("packages could not be copied into the Pod: {}", shortened(&said)),
                "try again in a new sandbox",
            )),
        }
    }

    async fn attached(&self) -> Vec<PathBuf> {
        self.attached.lock().await.clone()
    }
}

#[async_trait]
impl Ports for PodSandbox {
    async fn forward(&self, port: u16) -> Result<Forward, SandboxError> {
        self.check_alive()?;
        self.client.forward(port, "network").await
    }

    async fn open(&self, port: u16) -> Result<Box<dyn Connection>, SandboxError> {
        self.check_alive()?;
        self.client.open(port).await
    }
}
