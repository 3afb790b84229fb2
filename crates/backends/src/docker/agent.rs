//! The agent's volume: it contains nothing but the agent and is mounted read-only into each container.
//!
//! A host folder would not do, because the daemon may be on another machine. A copy into each container would not do
//! either: the daemon refuses it where the root is read-only, and each start would pay for it. The volume's name
//! contains the agent's digest. Its content is compared before use, since every user of the daemon could have written
//! to it.

use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType, MountVolumeOptions, VolumeCreateRequest};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, DownloadFromContainerOptionsBuilder, RemoveContainerOptionsBuilder,
    UploadToContainerOptionsBuilder,
};
use bytes::Bytes;
use futures::StreamExt;

use super::labels;
use crate::container::agent_program::{AGENT_FILE, AGENT_FOLDER, AGENT_PATH, Agent, EMBEDDED_AGENTS};
use crate::container::ids::token;
use crate::container::tar;

/// The maximum number of times that the agent is written to its volume, and the pause between two times.
const MAX_PUTS: usize = 5;
const PUT_PAUSE: Duration = Duration::from_millis(200);

/// Returns the name of the volume with this agent.
fn volume(agent: &Agent) -> String {
    format!("sandcell-agent-{}", agent.digest())
}

/// Returns the volume as a mount.
pub(super) fn mount(agent: &Agent, read_only: bool) -> Mount {
    Mount {
        target: Some(AGENT_FOLDER.to_owned()),
        source: Some(volume(agent)),
        typ: Some(MountType::VOLUME),
        read_only: Some(read_only),
        volume_options: Some(MountVolumeOptions {
            no_copy: Some(true),
            labels: Some(labels::of_agent()),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    }
}

/// Returns true if the volume holds an agent of this build.
pub(super) fn is_volume(name: &str) -> bool {
    EMBEDDED_AGENTS.iter().any(|agent| volume(agent) == name)
}

/// Ensures that the volume holds the agent. This takes a container, which is never started, so any image will do.
pub(super) async fn provide(docker: &Docker, agent: &Agent, image: &str) -> Result<(), Error> {
    let create = VolumeCreateRequest {
        name: Some(volume(agent)),
        labels: Some(labels::of_agent()),
        ..VolumeCreateRequest::default()
    };
    docker.create_volume(create).await?;
    let name = format!("sandcell-carrier-{}", token());
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec![AGENT_PATH.to_owned()]),
        network_disabled: Some(true),
        labels: Some(labels::of_container()),
        host_config: Some(HostConfig {
            network_mode: Some("none".to_owned()),
            mounts: Some(vec![mount(agent, false)]),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let options = CreateContainerOptionsBuilder::default().name(&name).build();
    docker.create_container(Some(options), body).await?;
    let put = put(docker, agent, &name).await;
    // `v` only removes anonymous volumes, which the image itself requests.
    let remove = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
    let removed = docker.remove_container(&name, Some(remove)).await;
    put.and(removed)
}

/// Writes the agent to the volume unless the volume holds it. Another server may write the same at the same time, and what
/// one has written is incomplete until the other has finished.
async fn put(docker: &Docker, agent: &Agent, container: &str) -> Result<(), Error> {
    if holds(docker, agent, container).await {
        return Ok(());
    }
    let archive = Bytes::from(tar::of_program(AGENT_FILE, agent.program())?);
    for _ in 0..MAX_PUTS {
        let options = UploadToContainerOptionsBuilder::default().path(AGENT_FOLDER).build();
        let body = bollard::body_full(archive.clone());
        docker.upload_to_container(container, Some(options), body).await?;
        if holds(docker, agent, container).await {
            return Ok(());
        }
        tokio::time::sleep(PUT_PAUSE).await;
        if holds(docker, agent, container).await {
            return Ok(());
        }
    }
    Err(Error::DockerResponseServerError {
        status_code: 500,
        message: format!(
            "the volume {} does not contain the agent that was written to it",
            volume(agent)
        ),
    })
}

/// Returns true if the volume holds exactly this program.
async fn holds(docker: &Docker, agent: &Agent, container: &str) -> bool {
    let program = agent.program();
    let options = DownloadFromContainerOptionsBuilder::default().path(AGENT_PATH).build();
    let mut stream = docker.download_from_container(container, Some(options));
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await {
        match piece {
            Ok(piece) if bytes.len() + piece.len() <= program.len() + tar::MAX_OVERHEAD_BYTES => {
                bytes.extend_from_slice(&piece)
            }
            Ok(_) | Err(_) => return false,
        }
    }
    tar::starts_with_program(&bytes, program)
}
