//! The agent as a program, for back ends that put it into containers.
//!
//! The build script embeds one for each architecture. It is static, so it runs in an image that contains nothing else.

use std::sync::{LazyLock, OnceLock};

use sha2::{Digest, Sha256};

/// The agent for one kind of machine.
#[derive(Debug)]
pub(crate) struct Agent {
    /// Rust's name for it.
    pub(crate) architecture: &'static str,
    /// The names that container programs give it.
    aliases: [&'static str; 2],
    /// The program, compressed. Empty if it could not be built.
    packed: &'static [u8],
    /// The program. It is static, and decompressed at first use.
    program: LazyLock<Vec<u8>>,
    /// The program that starts a compressed agent. It is decompressed at first use.
    #[cfg(feature = "kubernetes")]
    loader: LazyLock<Vec<u8>>,
    /// Computed at first use.
    digest: OnceLock<String>,
}

/// There is one agent for each architecture.
impl PartialEq for Agent {
    fn eq(&self, other: &Self) -> bool {
        self.architecture == other.architecture
    }
}

impl Eq for Agent {}

/// Decompresses a program; returns no bytes if the build has none.
fn unpacked(packed: &[u8]) -> Vec<u8> {
    miniz_oxide::inflate::decompress_to_vec_with_limit(packed, MAX_PROGRAM_BYTES).unwrap_or_default()
}

/// Embeds the programs for an architecture.
macro_rules! embedded {
    ($architecture:literal, $aliases:expr) => {
        Agent {
            architecture: $architecture,
            aliases: $aliases,
            packed: include_bytes!(concat!(env!("OUT_DIR"), "/sandcell-agent-", $architecture)),
            program: LazyLock::new(|| {
                unpacked(include_bytes!(concat!(
                    env!("OUT_DIR"),
                    "/sandcell-agent-",
                    $architecture
                )))
            }),
            #[cfg(feature = "kubernetes")]
            loader: LazyLock::new(|| {
                unpacked(include_bytes!(concat!(
                    env!("OUT_DIR"),
                    "/sandcell-loader-",
                    $architecture
                )))
            }),
            digest: OnceLock::new(),
        }
    };
}

/// The agents of this build.
pub(crate) static EMBEDDED_AGENTS: [Agent; 2] = [
    embedded!("x86_64", ["x86_64", "amd64"]),
    embedded!("aarch64", ["aarch64", "arm64"]),
];

/// An upper bound for the agent's size in bytes.
const MAX_PROGRAM_BYTES: usize = 1_600_000;
/// The folder inside that holds the agent.
pub(crate) const AGENT_FOLDER: &str = "/.sandcell";
/// The agent's path inside.
pub(crate) const AGENT_PATH: &str = "/.sandcell/agent";
/// The agent's name in its folder.
pub(crate) const AGENT_FILE: &str = "agent";
/// The name of the compressed agent in a Pod. There the file with the agent's name is the loader, which starts the compressed one.
#[cfg(feature = "kubernetes")]
pub(crate) const PACKED_FILE: &str = "agent.packed";

/// The reason why there is no agent for a machine, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NoAgent {
    pub(crate) reason: String,
    pub(crate) remedy: String,
}

impl Agent {
    /// Returns the agent for containers of this architecture, by any of its names.
    pub(crate) fn of(architecture: &str) -> Result<&'static Self, NoAgent> {
        let Some(agent) = EMBEDDED_AGENTS
            .iter()
            .find(|agent| agent.aliases.contains(&architecture))
        else {
            let known: Vec<&str> = EMBEDDED_AGENTS.iter().map(|agent| agent.architecture).collect();
            return Err(NoAgent {
                reason: format!(
                    "the containers' machine is {architecture}, and there are agents for {}",
                    known.join(" and ")
                ),
                remedy: "use a machine of one of these".to_owned(),
            });
        };
        if agent.packed.is_empty() {
            let name = agent.architecture;
            return Err(NoAgent {
                reason: format!("this build has no agent for containers on {name}"),
                remedy: format!("`rustup target add {name}-unknown-linux-musl`, and build sandcell again"),
            });
        }
        Ok(agent)
    }

    /// Returns the program.
    pub(crate) fn program(&self) -> &[u8] {
        self.program.as_slice()
    }

    /// Returns the compressed program.
    #[cfg(feature = "kubernetes")]
    pub(crate) const fn packed(&self) -> &'static [u8] {
        self.packed
    }

    /// Returns the program that starts the compressed one.
    #[cfg(feature = "kubernetes")]
    pub(crate) fn loader(&self) -> &[u8] {
        self.loader.as_slice()
    }

    /// Returns the first 20 hexadecimal digits of the program's digest.
    pub(crate) fn digest(&self) -> &str {
        self.digest.get_or_init(|| {
            let digest = Sha256::digest(self.program());
            digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_of_this_build_are_static_programs_for_their_architecture() {
        // `e_machine` in the ELF header.
        for (architecture, machine) in [("x86_64", 62), ("aarch64", 183)] {
            let program = match Agent::of(architecture) {
                Ok(agent) => agent.program(),
                Err(error) if architecture != std::env::consts::ARCH => {
                    println!("skipped: {error:?}");
                    continue;
                }
                Err(error) => panic!("{error:?}"),
            };
            assert!(program.starts_with(b"\x7fELF"));
            assert_eq!(program[18], machine);
            assert!(program.len() < MAX_PROGRAM_BYTES, "{} bytes", program.len());
            assert!(!has_interpreter(program), "{architecture}");
        }
    }

    #[test]
    fn an_agent_is_found_by_the_names_that_container_programs_give_machines() {
        for (says, wanted) in [("amd64", "x86_64"), ("arm64", "aarch64"), ("aarch64", "aarch64")] {
            match Agent::of(says) {
                Ok(agent) => assert_eq!(agent.architecture, wanted),
                Err(error) => assert!(error.reason.contains(wanted), "{error:?}"),
            }
        }
        let error = Agent::of("riscv64").unwrap_err().reason;
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
