//! A container with an agent as a sandbox.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use sandcell_agent::client::AgentClient;
use sandcell_sandbox::{
    Attachments, BaseEnv, ByteSize, Command, Connection, Ended, Files, Forward, Isolation, LAYERS, LAYERS_MAX, Ports,
    Process, Sandbox, SandboxError, SavedFiles, Usage,
};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::lifetime::Living;

/// The deadline of closing.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a daemon and a cluster do differently for a sandbox.
#[async_trait]
pub(crate) trait Host: Living + std::fmt::Debug + Send + Sync {
    /// Returns the usage of a container whose agent cannot read its control group.
    async fn usage(&self) -> Result<Usage, SandboxError>;

    /// Copies a folder of this machine into the container, as `/opt/sandcell/NUMBER`.
    async fn copy_layer(&self, client: &AgentClient, folder: &Path, number: usize) -> Result<(), SandboxError>;

    /// Returns the error for a container that was not removed in time.
    fn not_removed(&self) -> SandboxError;
}

/// A container as a sandbox.
#[derive(Debug)]
pub(crate) struct ContainerSandbox<H: Host> {
    pub(crate) host: H,
    pub(crate) client: AgentClient,
    pub(crate) isolation: Isolation,
    pub(crate) env: BaseEnv,
    pub(crate) memory: ByteSize,
    pub(crate) image: String,
    /// True for the default image, for which packages are installed.
    pub(crate) usual: bool,
    /// The attached folders, failed attempts included: each path is used once.
    pub(crate) attached: Mutex<Vec<PathBuf>>,
}

impl<H: Host> ContainerSandbox<H> {
    fn check_alive(&self) -> Result<(), SandboxError> {
        self.host
            .life()
            .has_ended()
            .map_or(Ok(()), |ended| Err(SandboxError::Gone(ended.reason)))
    }
}

impl<H: Host> Drop for ContainerSandbox<H> {
    fn drop(&mut self) {
        self.host.life().ask();
    }
}

#[async_trait]
impl<H: Host> Sandbox for ContainerSandbox<H> {
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
            None => self.host.usage().await?,
        };
        Ok(Usage {
            processes: inside.processes,
            disk: inside.disk,
            inodes: inside.inodes,
            ..outside
        })
    }

    async fn close(&self) -> Result<(), SandboxError> {
        let life = self.host.life();
        life.ask();
        timeout(CLOSE_TIMEOUT, life.removed())
            .await
            .map_err(|_| self.host.not_removed())
    }

    async fn ended(&self) -> Ended {
        // When the stream ends, because the agent ended or broke the protocol, the container ends.
        self.host.life().ended().await
    }
}

#[async_trait]
impl<H: Host> Attachments for ContainerSandbox<H> {
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
        self.host.copy_layer(&self.client, folder, number).await?;
        Ok(format!("{LAYERS}/{number}"))
    }

    async fn attached(&self) -> Vec<PathBuf> {
        self.attached.lock().await.clone()
    }
}

#[async_trait]
impl<H: Host> Ports for ContainerSandbox<H> {
    async fn forward(&self, port: u16) -> Result<Forward, SandboxError> {
        self.check_alive()?;
        self.client.forward(port, "network").await
    }

    async fn open(&self, port: u16) -> Result<Box<dyn Connection>, SandboxError> {
        self.check_alive()?;
        self.client.open(port).await
    }
}
