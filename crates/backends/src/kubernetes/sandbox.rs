//! One Pod: its creation, its end, and its sandbox.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use sandcell_agent::client::AgentClient;
use sandcell_link::Key;
use sandcell_link::host::{self, DialError, End};
use sandcell_sandbox::{EndReason, LAYERS, SandboxError, Usage};
use tokio::time::{sleep, timeout};

use super::cluster::{Cluster, PodState};
use super::connect::{self, Way};
use super::failure::{failed, is_missing, shortened, unavailable};
use super::view::View;
use crate::container::files::{self, CopyError};
use crate::container::lifetime::{Lifetime, Living};
use crate::container::sandbox::{CLOSE_TIMEOUT, Host};
use crate::container::tar::FolderContent;

/// The time that a Pod has to start. Pulling an image is part of it.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// The time that a node has to make a container after a failure that may pass.
const STUCK_TIMEOUT: Duration = Duration::from_secs(30);
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
    if !cluster.pods.add(&pod) {
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
            pod.life.ask();
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
        () = pod.life.asked() => EndReason::Closed,
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
    pod.life.end(reason);
    drop(link);
    remove(&cluster, &pod).await;
    cluster.pods.forget(&pod.life.name);
    pod.life.is_removed();
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
        ..DeleteParams::background()
    };
    for attempt in 0..REMOVE_ATTEMPTS {
        match pods.delete(&pod.life.name, &parameters).await {
            Ok(_) => {
                let _ = timeout(DISAPPEAR_TIMEOUT, pod.deleted()).await;
                return;
            }
            Err(error) if is_missing(&error) => return,
            Err(error) => {
                tracing::debug!(pod = pod.life.name, %error, "a Pod was not removed at once");
                if attempt + 1 < REMOVE_ATTEMPTS {
                    sleep(REMOVE_INTERVAL).await;
                }
            }
        }
    }
    tracing::warn!(
        pod = pod.life.name,
        "a Pod could not be removed; it goes with the lease of this server"
    );
}

/// A Pod in its cluster.
#[derive(Debug)]
pub(super) struct PodHost(pub(super) Arc<PodState>);

impl PodHost {
    /// Returns the address of the Pod, if the cluster has reported one.
    pub(super) fn address(&self) -> Option<IpAddr> {
        match &*self.0.view.borrow() {
            View::Running { ip: Some(ip) } => ip.parse().ok(),
            _ => None,
        }
    }
}

impl Living for PodHost {
    fn life(&self) -> &Lifetime {
        &self.0.life
    }
}

#[async_trait]
impl Host for PodHost {
    async fn usage(&self) -> Result<Usage, SandboxError> {
        Err(SandboxError::Unsupported(
            "reading the usage of a Pod that does not show its control group".to_owned(),
        ))
    }

    async fn copy_layer(&self, client: &AgentClient, folder: &Path, number: usize) -> Result<(), SandboxError> {
        match files::copy(client, folder, &number.to_string(), FolderContent::Files, LAYERS).await {
            Ok(()) => Ok(()),
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

    fn not_removed(&self) -> SandboxError {
        let name = &self.0.life.name;
        unavailable(
            format!("the Pod {name} was not removed within {CLOSE_TIMEOUT:?}"),
            format!("`kubectl delete pod {name} --grace-period=0 --force`"),
        )
    }
}
