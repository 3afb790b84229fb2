//! One container: its creation, its end, and its sandbox.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder, StartContainerOptions,
};
use sandcell_agent::client::AgentClient;
use sandcell_agent::protocol::DISK_FULL_STATUS;
use sandcell_sandbox::{EndReason, SandboxError, Usage};
use tokio::time::{sleep, timeout};

use super::attach_stream::{AttachState, StdoutReader};
use super::connect::failed;
use super::daemon::{Container, Daemon};
use super::{NAME, connect};
use crate::container::ids::token;
use crate::container::lifetime::{Lifetime, Living};
use crate::container::sandbox::{CLOSE_TIMEOUT, Host};

/// The time the daemon has to report how a container ended.
const END_REPORT_TIMEOUT: Duration = Duration::from_secs(1);
/// The number of removal attempts, and the pause between them.
const REMOVE_ATTEMPTS: u32 = 5;
const REMOVE_INTERVAL: Duration = Duration::from_secs(1);

/// Creates a container, starts the agent in it, and supervises it in a separate task until its end.
pub(super) async fn make(
    daemon: &Arc<Daemon>,
    body: ContainerCreateBody,
) -> Result<(Arc<Container>, AgentClient), SandboxError> {
    let container = Arc::new(Container::new(format!("sandcell-{}", token())));
    if !daemon.containers.add(&container) {
        return Err(connect::unavailable("the server is ending", "start it again"));
    }
    let attach_state = AttachState::new();
    let started = start(daemon, &container, body, &attach_state).await;
    // The task also covers a container that failed to start: it removes what exists of it.
    let keeping = tokio::spawn(keep(Arc::clone(daemon), Arc::clone(&container), attach_state));
    match started {
        Ok(client) => Ok((container, client)),
        Err(error) => {
            container.life.ask();
            // The number of removal attempts bounds this wait.
            let _ = keeping.await;
            Err(error)
        }
    }
}

async fn start(
    daemon: &Daemon,
    container: &Container,
    body: ContainerCreateBody,
    attach_state: &Arc<AttachState>,
) -> Result<AgentClient, SandboxError> {
    let (docker, name) = (&daemon.docker, container.life.name.as_str());
    let told = |error| failed(&daemon.address, &error);
    let options = CreateContainerOptionsBuilder::default().name(name).build();
    docker.create_container(Some(options), body).await.map_err(told)?;
    let options = AttachContainerOptionsBuilder::default()
        .stream(true)
        .stdin(true)
        .stdout(true)
        .stderr(true)
        .build();
    let attached = docker.attach_container(name, Some(options)).await.map_err(told)?;
    let reader = StdoutReader::new(attached.output, Arc::clone(attach_state));
    docker
        .start_container(name, None::<StartContainerOptions>)
        .await
        .map_err(told)?;
    AgentClient::connect(reader, attached.input)
        .await
        .map_err(|error| match attach_state.stderr_tail() {
            stderr_tail if stderr_tail.is_empty() => error,
            stderr_tail => connect::unavailable(
                format!("the agent did not start in the container: {stderr_tail}"),
                "`docker info` shows the daemon's runtime and kernel; the agent needs no-new-privileges and seccomp",
            ),
        })
}

/// Waits for the container's end or a request to end it, reports the reason, and removes the container.
async fn keep(daemon: Arc<Daemon>, container: Arc<Container>, attach_state: Arc<AttachState>) {
    let reason = tokio::select! {
        biased;
        () = container.life.asked() => EndReason::Closed,
        () = attach_state.ended() => why(&daemon, &container).await,
    };
    // Reported before the removal: a daemon that is gone or busy answers late.
    container.life.end(reason);
    remove(&daemon, &container.life.name).await;
    daemon.containers.forget(&container.life.name);
    container.life.is_removed();
}

/// Determines why a container's stream ended without a request.
async fn why(daemon: &Daemon, container: &Container) -> EndReason {
    let mut died = container.died.subscribe();
    let told = timeout(END_REPORT_TIMEOUT, died.wait_for(Option::is_some)).await;
    let status = told.ok().and_then(|status| status.ok().and_then(|status| *status));
    if container.out_of_memory.load(Ordering::Acquire) {
        return EndReason::OutOfMemory;
    }
    match status {
        Some(DISK_FULL_STATUS) => EndReason::DiskFull,
        Some(_) => EndReason::AgentLost,
        None if daemon.docker.ping().await.is_err() => EndReason::LauncherLost,
        None => EndReason::AgentLost,
    }
}

async fn remove(daemon: &Daemon, name: &str) {
    for attempt in 0..REMOVE_ATTEMPTS {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        match daemon.docker.remove_container(name, Some(options)).await {
            Ok(()) => return,
            Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => return,
            // "already in progress": the daemon removes the container by itself when its agent ends.
            Err(error) => {
                tracing::debug!(container = name, %error, "a container was not removed at once");
                if attempt + 1 < REMOVE_ATTEMPTS {
                    sleep(if attempt == 0 {
                        REMOVE_INTERVAL / 20
                    } else {
                        REMOVE_INTERVAL
                    })
                    .await;
                }
            }
        }
    }
    tracing::warn!(
        container = name,
        "a container could not be removed; the next start of a server tries again"
    );
}

/// A container at its daemon.
#[derive(Debug)]
pub(super) struct DockerHost {
    pub(super) daemon: Arc<Daemon>,
    pub(super) container: Arc<Container>,
}

impl Living for DockerHost {
    fn life(&self) -> &Lifetime {
        &self.container.life
    }
}

#[async_trait]
impl Host for DockerHost {
    async fn usage(&self) -> Result<Usage, SandboxError> {
        self.daemon.usage(&self.container.life.name).await
    }

    async fn copy_layer(&self, _client: &AgentClient, folder: &Path, number: usize) -> Result<(), SandboxError> {
        self.daemon.upload(&self.container.life.name, folder, number).await
    }

    fn not_removed(&self) -> SandboxError {
        let name = &self.container.life.name;
        SandboxError::Unavailable {
            backend: NAME.to_owned(),
            reason: format!("the container {name} was not removed within {CLOSE_TIMEOUT:?}"),
            remedy: format!("`docker rm -f {name}` on the daemon's machine"),
        }
    }
}
