//! The agent's way into containers: a volume that holds nothing else, mounted read-only into each.
//!
//! A volume and not a folder of the host, because the daemon may be on another machine; not a copy into each container,
//! because that is refused where the root is read-only and would cost each start. Volumes are named after the agent's
//! digest; what is in one is compared before it is used, since whoever may use the daemon could have written to it.

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType, MountVolumeOptions, VolumeCreateRequest};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, DownloadFromContainerOptionsBuilder, RemoveContainerOptionsBuilder,
    UploadToContainerOptionsBuilder,
};
use bytes::Bytes;
use futures::StreamExt;
use sha2::{Digest, Sha256};

use super::labels;
use super::tar::{self, BLOCK};

/// The agent of this build, linked statically; empty if it could not be built.
pub(super) const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent"));
/// Where the volume is mounted.
pub(super) const FOLDER: &str = "/.sandcell";
/// The program in it.
pub(super) const PATH: &str = "/.sandcell/agent";
const FILE: &str = "agent";

/// The volume's name.
pub(super) fn volume() -> String {
    let digest = Sha256::digest(PROGRAM);
    let hex: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    format!("sandcell-agent-{hex}")
}

/// The volume as a mount.
pub(super) fn mount(read_only: bool) -> Mount {
    Mount {
        target: Some(FOLDER.to_owned()),
        source: Some(volume()),
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

/// Makes sure that the volume holds the agent. The container that this takes is never started; any image will do.
pub(super) async fn provide(docker: &Docker, image: &str) -> Result<(), Error> {
    let create = VolumeCreateRequest {
        name: Some(volume()),
        labels: Some(labels::of_agent()),
        ..VolumeCreateRequest::default()
    };
    docker.create_volume(create).await?;
    let name = format!("sandcell-carrier-{}", super::token());
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec![PATH.to_owned()]),
        network_disabled: Some(true),
        labels: Some(labels::of_container()),
        host_config: Some(HostConfig {
            network_mode: Some("none".to_owned()),
            mounts: Some(vec![mount(false)]),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let options = CreateContainerOptionsBuilder::default().name(&name).build();
    docker.create_container(Some(options), body).await?;
    let put = put(docker, &name).await;
    // `v` would only take anonymous volumes along, those that the image itself asks for.
    let remove = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
    let removed = docker.remove_container(&name, Some(remove)).await;
    put.and(removed)
}

async fn put(docker: &Docker, container: &str) -> Result<(), Error> {
    if holds(docker, container).await {
        return Ok(());
    }
    let options = UploadToContainerOptionsBuilder::default().path(FOLDER).build();
    let archive = bollard::body_full(Bytes::from(tar::of_program(FILE, PROGRAM)));
    docker.upload_to_container(container, Some(options), archive).await?;
    if holds(docker, container).await {
        Ok(())
    } else {
        Err(Error::DockerResponseServerError {
            status_code: 500,
            message: format!(
                "the agent that was put into the volume {} is not what is in it",
                volume()
            ),
        })
    }
}

/// Whether the volume holds this very program.
async fn holds(docker: &Docker, container: &str) -> bool {
    let options = DownloadFromContainerOptionsBuilder::default().path(PATH).build();
    let mut stream = docker.download_from_container(container, Some(options));
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await {
        match piece {
            // Its own block, the padding and what ends an archive.
            Ok(piece) if bytes.len() + piece.len() <= PROGRAM.len() + 64 * BLOCK => bytes.extend_from_slice(&piece),
            Ok(_) | Err(_) => return false,
        }
    }
    let Some((head, rest)) = bytes.split_at_checked(BLOCK) else {
        return false;
    };
    let executable = head.get(100..107).is_some_and(|mode| mode.ends_with(b"755"));
    executable && rest.get(..PROGRAM.len()) == Some(PROGRAM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_of_this_build_is_a_static_program() {
        assert!(PROGRAM.starts_with(b"\x7fELF"), "no agent was built");
        assert!(PROGRAM.len() < 1_500_000, "{} bytes", PROGRAM.len());
        let needle = b"ld-linux";
        assert!(!PROGRAM.windows(needle.len()).any(|part| part == needle) || !has_interpreter(PROGRAM));
    }

    /// Whether one of the program headers asks for a dynamic linker.
    fn has_interpreter(program: &[u8]) -> bool {
        let word = |at: usize, len: usize| {
            let mut bytes = [0; 8];
            bytes[..len].copy_from_slice(&program[at..at + len]);
            usize::try_from(u64::from_le_bytes(bytes)).unwrap()
        };
        let (first, size, count) = (word(32, 8), word(54, 2), word(56, 2));
        (0..count).any(|number| word(first + number * size, 4) == 3)
    }
}
