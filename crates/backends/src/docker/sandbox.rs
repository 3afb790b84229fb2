//! One container: its creation, its end, and its sandbox.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder, StartContainerOptions,
};
use sandcell_agent::client::AgentClient;
use sandcell_agent::protocol::DISK_FULL_STATUS;
use sandcell_sandbox::{
    Attachments, BaseEnv, ByteSize, Command, Connection, EndReason, Ended, Files, Forward, Isolation, LAYERS,
    LAYERS_MAX, Ports, Process, Sandbox, SandboxError, SavedFiles, Usage,
};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::attach_stream::{AttachState, StdoutReader};
use super::connect::failed;
use super::daemon::Daemon;
use super::lifetime::Container;
use super::{NAME, connect};

/// The deadline of closing.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
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
    let container = Arc::new(Container {
        name: format!("sandcell-{}", super::token()),
        asked: watch::Sender::new(false),
        ended: watch::Sender::new(None),
        removed: watch::Sender::new(false),
        out_of_memory: AtomicBool::new(false),
        died: watch::Sender::new(None),
    });
    if !daemon.add(&container) {
        return Err(connect::unavailable("the server is ending", "start it again"));
    }
    let attach_state = AttachState::new();
    let started = start(daemon, &container, body, &attach_state).await;
    // The task also covers a container that failed to start: it removes what exists of it.
    let keeping = tokio::spawn(keep(Arc::clone(daemon), Arc::clone(&container), attach_state));
    match started {
        Ok(client) => Ok((container, client)),
        Err(error) => {
            container.ask();
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
    let (docker, name) = (&daemon.docker, container.name.as_str());
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
    let mut asked = container.asked.subscribe();
    let reason = tokio::select! {
        biased;
        () = async { drop(asked.wait_for(|asked| *asked).await) } => EndReason::Closed,
        () = attach_state.ended() => why(&daemon, &container).await,
    };
    // Reported before the removal: a daemon that is gone or busy answers late.
    container.ended.send_replace(Some(Ended { reason }));
    remove(&daemon, &container.name).await;
    daemon.forget(&container.name);
    container.removed.send_replace(true);
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

/// A container as a sandbox.
#[derive(Debug)]
pub(super) struct DockerSandbox {
    pub(super) daemon: Arc<Daemon>,
    pub(super) container: Arc<Container>,
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

impl DockerSandbox {
    fn check_alive(&self) -> Result<(), SandboxError> {
        self.container
            .has_ended()
            .map_or(Ok(()), |ended| Err(SandboxError::Gone(ended.reason)))
    }
}

impl Drop for DockerSandbox {
    fn drop(&mut self) {
        self.container.ask();
    }
}

#[async_trait]
impl Sandbox for DockerSandbox {
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
        let outside = match inside.group {
            Some(group) => Usage {
                memory: group.memory,
                memory_peak: group.memory_peak,
                cpu_us: group.cpu_us,
                memory_events: group.memory_events,
                process_events: group.process_events,
                ..Usage::default()
            },
            None => self.daemon.usage(&self.container.name).await?,
        };
        Ok(Usage {
            processes: inside.processes,
            disk: inside.disk,
            inodes: inside.inodes,
            ..outside
        })
    }

    async fn close(&self) -> Result<(), SandboxError> {
        self.container.ask();
        match timeout(CLOSE_TIMEOUT, self.container.removed()).await {
            Ok(()) => Ok(()),
            Err(_) => Err(SandboxError::Unavailable {
                backend: NAME.to_owned(),
                reason: format!(
                    "the container {} was not removed within {CLOSE_TIMEOUT:?}",
                    self.container.name
                ),
                remedy: format!("`docker rm -f {}` on the daemon's machine", self.container.name),
            }),
        }
    }

    async fn ended(&self) -> Ended {
        // When the stream ends, because the agent ended or broke the protocol, the container ends.
        self.container.ended().await
    }
}

#[async_trait]
impl Attachments for DockerSandbox {
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
        self.daemon.upload(&self.container.name, folder, number).await?;
        Ok(format!("{LAYERS}/{number}"))
    }

    async fn attached(&self) -> Vec<PathBuf> {
        self.attached.lock().await.clone()
    }
}

#[async_trait]
impl Ports for DockerSandbox {
    async fn forward(&self, port: u16) -> Result<Forward, SandboxError> {
        self.check_alive()?;
        self.client.forward(port, "network").await
    }

    async fn open(&self, port: u16) -> Result<Box<dyn Connection>, SandboxError> {
        self.check_alive()?;
        self.client.open(port).await
    }
}
