//! The daemon as this server sees it: this server's containers, the daemon's events about them, and the leftovers of
//! earlier servers.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bollard::Docker;
use bollard::query_parameters::{
    EventsOptionsBuilder, ListContainersOptionsBuilder, ListVolumesOptionsBuilder, RemoveContainerOptionsBuilder,
    RemoveVolumeOptions, StatsOptionsBuilder, UploadToContainerOptionsBuilder,
};
use futures::StreamExt;
use sandcell_sandbox::{LAYERS, SandboxError, Usage};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::connect::{Address, failed};
use super::{agent, labels};
use crate::container::lifetime::{Lifetime, Living, Registry};
use crate::container::tar;

/// The pause before the event stream is opened again after it broke off.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);

/// Archive pieces in the queue.
const PIECE_QUEUE_CAPACITY: usize = 8;

/// A container, shared by its task, its sandbox and the daemon's events.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) life: Lifetime,
    /// The daemon reported that it ran out of memory.
    pub(super) out_of_memory: AtomicBool,
    /// The exit status that the daemon reported.
    pub(super) died: watch::Sender<Option<u8>>,
}

impl Container {
    pub(super) fn new(name: String) -> Self {
        Self {
            life: Lifetime::new(name),
            out_of_memory: AtomicBool::new(false),
            died: watch::Sender::new(None),
        }
    }
}

impl Living for Container {
    fn life(&self) -> &Lifetime {
        &self.life
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) docker: Docker,
    pub(super) address: Address,
    pub(super) containers: Registry<Container>,
}

impl Daemon {
    /// Listens to the daemon's events in a separate task.
    pub(super) fn new(docker: Docker, address: Address) -> Arc<Self> {
        let daemon = Arc::new(Self {
            docker,
            address,
            containers: Registry::new(),
        });
        tokio::spawn(listen(Arc::downgrade(&daemon)));
        daemon
    }

    /// Handles an event; `status` is the exit status of a container that died.
    fn heard(&self, name: &str, action: &str, status: Option<u8>) {
        let container = self.containers.get(name);
        match (container, action) {
            (Some(container), "oom") => container.out_of_memory.store(true, Ordering::Release),
            (Some(container), "die") => {
                // An unknown status counts as that of a kill.
                container.died.send_replace(Some(status.unwrap_or(137)));
            }
            _ => {}
        }
    }

    /// Copies a folder of this machine into a container's package volume.
    pub(super) async fn upload(&self, name: &str, folder: &Path, number: usize) -> Result<(), SandboxError> {
        let (sender, receiver) = mpsc::channel(PIECE_QUEUE_CAPACITY);
        let (from, to) = (folder.to_owned(), number.to_string());
        let writing =
            tokio::task::spawn_blocking(move || tar::of_folder(&from, &to, tar::FolderContent::Files, &sender));
        let pieces = futures::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|piece| (piece, receiver))
        });
        let options = UploadToContainerOptionsBuilder::default().path(LAYERS).build();
        let uploaded = self
            .docker
            .upload_to_container(name, Some(options), bollard::body_stream(pieces))
            .await;
        let written = writing.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        // The daemon's error comes first, since it may be why the writing broke off.
        uploaded.map_err(|error| failed(&self.address, &error))?;
        written.map_err(|source| SandboxError::Setup {
            step: format!("read the folder {}", folder.display()),
            source,
        })
    }

    /// Returns the daemon's usage numbers. This is slower than the agent, and serves where the agent cannot read them.
    pub(super) async fn usage(&self, name: &str) -> Result<Usage, SandboxError> {
        let options = StatsOptionsBuilder::default().stream(false).one_shot(true).build();
        let mut stats = self.docker.stats(name, Some(options));
        let answer = stats.next().await.transpose();
        let stats = answer
            .map_err(|error| failed(&self.address, &error))?
            .unwrap_or_default();
        let memory = stats.memory_stats.unwrap_or_default();
        let cpu = stats.cpu_stats.and_then(|cpu| cpu.cpu_usage).unwrap_or_default();
        Ok(Usage {
            memory: memory.usage.unwrap_or(0),
            memory_peak: memory.max_usage.or(memory.usage).unwrap_or(0),
            cpu_us: cpu.total_usage.unwrap_or(0) / 1000,
            memory_events: memory.failcnt.unwrap_or(0),
            ..Usage::default()
        })
    }
}

/// Follows the events of this server's containers, and sweeps what earlier servers left.
async fn listen(daemon: Weak<Daemon>) {
    let label = format!("{}={}", labels::SERVER_LABEL, labels::this_server());
    let filters = HashMap::from([
        ("label", vec![label.as_str()]),
        ("type", vec!["container"]),
        ("event", vec!["oom", "die"]),
    ]);
    while let Some(docker) = daemon.upgrade().map(|daemon| daemon.docker.clone()) {
        // A restarted daemon may have left containers, too.
        tokio::spawn(sweep(docker.clone()));
        let options = EventsOptionsBuilder::default().filters(&filters).build();
        let mut events = docker.events(Some(options));
        while let Some(Ok(event)) = events.next().await {
            let Some(daemon) = daemon.upgrade() else { return };
            let mut about = event.actor.and_then(|actor| actor.attributes).unwrap_or_default();
            let status = about.remove("exitCode").and_then(|status| status.parse().ok());
            if let (Some(name), Some(action)) = (about.remove("name"), event.action) {
                daemon.heard(&name, &action, status);
            }
        }
        sleep(RECONNECT_INTERVAL).await;
    }
}

/// Removes the containers of dead servers, and our volumes that no container uses.
async fn sweep(docker: Docker) {
    let filters = HashMap::from([("label", vec![labels::KIND_LABEL])]);
    let options = ListContainersOptionsBuilder::default()
        .all(true)
        .filters(&filters)
        .build();
    let found = docker.list_containers(Some(options)).await.unwrap_or_default();
    for container in found {
        let server = container
            .labels
            .and_then(|mut labels| labels.remove(labels::SERVER_LABEL));
        if let (Some(id), Some(server)) = (container.id, server)
            && labels::is_gone(&server)
        {
            tracing::info!(container = id, "removing a container of an earlier server");
            let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
            if let Err(error) = docker.remove_container(&id, Some(options)).await {
                tracing::debug!(container = id, %error, "it could not be removed");
            }
        }
    }
    let options = ListVolumesOptionsBuilder::default().filters(&filters).build();
    let volumes = docker
        .list_volumes(Some(options))
        .await
        .ok()
        .and_then(|list| list.volumes);
    for volume in volumes.unwrap_or_default() {
        // The daemon refuses to remove volumes that a container uses.
        if !agent::is_volume(&volume.name)
            && docker
                .remove_volume(&volume.name, None::<RemoveVolumeOptions>)
                .await
                .is_ok()
        {
            tracing::info!(volume = volume.name, "removed a volume that an earlier server left");
        }
    }
}
