//! The agent's volume: it contains nothing but the agent and is mounted read-only into each container.
//!
//! A host folder would not do, because the daemon may be on another machine. A copy into each container would not do
//! either: the daemon refuses it where the root is read-only, and each start would pay for it. The volume's name
//! contains the agent's digest. Its content is compared before use, since every user of the daemon could have written
//! to it.

use std::sync::{LazyLock, OnceLock};
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
use sandcell_sandbox::SandboxError;
use sha2::{Digest, Sha256};

use super::connect::unavailable;
use super::labels;
use super::tar;

/// The maximum number of times that the agent is written to its volume, and the pause between two times.
const MAX_PUTS: usize = 5;
const PUT_PAUSE: Duration = Duration::from_millis(200);

/// The agent for one kind of machine.
#[derive(Debug)]
pub(super) struct Agent {
    /// Rust's name for it.
    architecture: &'static str,
    /// The daemons' names for it.
    aliases: [&'static str; 2],
    /// A static program, unpacked at first use; empty if it could not be built.
    program: LazyLock<Vec<u8>>,
    /// The name of its volume, computed at first use.
    volume: OnceLock<String>,
}

/// There is one agent for each architecture.
impl PartialEq for Agent {
    fn eq(&self, other: &Self) -> bool {
        self.architecture == other.architecture
    }
}

impl Eq for Agent {}

/// Unpacks the agent; returns no bytes if the build has none.
fn unpacked(packed: &[u8]) -> Vec<u8> {
    miniz_oxide::inflate::decompress_to_vec_with_limit(packed, MAX_PROGRAM_BYTES).unwrap_or_default()
}

/// The agents of this build.
static EMBEDDED_AGENTS: [Agent; 2] = [
    Agent {
        architecture: "x86_64",
        aliases: ["x86_64", "amd64"],
        program: LazyLock::new(|| unpacked(include_bytes!(concat!(env!("OUT_DIR"), "/agent-x86_64")))),
        volume: OnceLock::new(),
    },
    Agent {
        architecture: "aarch64",
        aliases: ["aarch64", "arm64"],
        program: LazyLock::new(|| unpacked(include_bytes!(concat!(env!("OUT_DIR"), "/agent-aarch64")))),
        volume: OnceLock::new(),
    },
];

/// An upper bound for the agent's size in bytes.
const MAX_PROGRAM_BYTES: usize = 1_500_000;
/// The volume's mount point.
pub(super) const AGENT_FOLDER: &str = "/.sandcell";
/// The agent's path inside.
pub(super) const AGENT_PATH: &str = "/.sandcell/agent";
const AGENT_FILE: &str = "agent";

impl Agent {
    /// Returns the agent for a daemon whose machine has this architecture.
    pub(super) fn of(architecture: &str) -> Result<&'static Self, SandboxError> {
        let Some(agent) = EMBEDDED_AGENTS
            .iter()
            .find(|agent| agent.aliases.contains(&architecture))
        else {
            let known: Vec<&str> = EMBEDDED_AGENTS.iter().map(|agent| agent.architecture).collect();
            return Err(unavailable(
                format!(
                    "the daemon's machine is {architecture}, and there are agents for {}",
                    known.join(" and ")
                ),
                "use a daemon on a machine of one of these",
            ));
        };
        if agent.program.is_empty() {
            let name = agent.architecture;
            return Err(unavailable(
                format!("this build has no agent for containers on {name}"),
                &format!("`rustup target add {name}-unknown-linux-musl`, and build sandcell again"),
            ));
        }
        Ok(agent)
    }

    /// Returns the volume's name.
    fn volume(&self) -> &str {
        self.volume.get_or_init(|| {
            let digest = Sha256::digest(self.program.as_slice());
            let hex: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
            format!("sandcell-agent-{hex}")
        })
    }

    /// Returns the volume as a mount.
    pub(super) fn mount(&self, read_only: bool) -> Mount {
        Mount {
            target: Some(AGENT_FOLDER.to_owned()),
            source: Some(self.volume().to_owned()),
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
}

/// Returns true if the volume holds an agent of this build.
pub(super) fn is_volume(name: &str) -> bool {
    EMBEDDED_AGENTS.iter().any(|agent| agent.volume() == name)
}

/// Ensures that the volume holds the agent. This takes a container, which is never started, so any image will do.
pub(super) async fn provide(docker: &Docker, agent: &Agent, image: &str) -> Result<(), Error> {
    let create = VolumeCreateRequest {
        name: Some(agent.volume().to_owned()),
        labels: Some(labels::of_agent()),
        ..VolumeCreateRequest::default()
    };
    docker.create_volume(create).await?;
    let name = format!("sandcell-carrier-{}", super::token());
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec![AGENT_PATH.to_owned()]),
        network_disabled: Some(true),
        labels: Some(labels::of_container()),
        host_config: Some(HostConfig {
            network_mode: Some("none".to_owned()),
            mounts: Some(vec![agent.mount(false)]),
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
    let archive = Bytes::from(tar::of_program(AGENT_FILE, &agent.program)?);
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
            agent.volume()
        ),
    })
}

/// Returns true if the volume holds exactly this program.
async fn holds(docker: &Docker, agent: &Agent, container: &str) -> bool {
    let program = agent.program.as_slice();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_of_this_build_are_static_programs_for_their_architecture() {
        // `e_machine` in the ELF header.
        for (architecture, machine) in [("x86_64", 62), ("aarch64", 183)] {
            let program = match Agent::of(architecture) {
                Ok(agent) => agent.program.as_slice(),
                Err(error) if architecture != std::env::consts::ARCH => {
                    println!("skipped: {error}");
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            assert!(program.starts_with(b"\x7fELF"));
            assert_eq!(program[18], machine);
            assert!(program.len() < MAX_PROGRAM_BYTES, "{} bytes", program.len());
            assert!(!has_interpreter(program), "{architecture}");
        }
    }

    #[test]
    fn an_agent_is_found_by_the_names_that_daemons_give_machines() {
        for (says, wanted) in [("amd64", "x86_64"), ("arm64", "aarch64"), ("aarch64", "aarch64")] {
            match Agent::of(says) {
                Ok(agent) => assert_eq!(agent.architecture, wanted),
                Err(error) => assert!(error.to_string().contains(wanted), "{error}"),
            }
        }
        let error = Agent::of("riscv64").unwrap_err().to_string();
        assert!(
            error.contains("riscv64") && error.contains("x86_64 and aarch64"),
            "{error}"
        );
    }

    /// Returns true if a program header requests a dynamic linker.
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
