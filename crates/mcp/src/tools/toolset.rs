//! The sets of tools that a server can offer, each with its instructions, prompts, and the hints in results.

use sandcell_engine::{Engine, Hints};
use sandcell_sandbox::Mount;
use std::sync::Arc;

use super::{Tool, ToolFacts, container, sandbox_toolset, script, unlisted_sandbox_tools};
use crate::instructions;
use crate::instructions::SandboxLifetime;
use crate::prompts::{Prompt, SANDBOX_PROMPTS};

/// A set of tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Toolset {
    /// Sandboxes, sessions, files, packages, history.
    #[default]
    Sandbox,
    /// One container-like sandbox at a time: initialize, execute, stop.
    Container,
    /// Python scripts with a history.
    Script(Interpreters),
}

/// The lifetime of interpreters in the toolset `script`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Interpreters {
    /// A separate process for each piece of code; no variable stays.
    #[default]
    Fresh,
    /// One process; variables stay.
    Kept,
}

impl Toolset {
    /// The tools, in the order in which they are listed.
    pub(crate) fn tools(self, facts: &ToolFacts) -> Vec<Tool> {
        match self {
            Self::Sandbox => sandbox_toolset(facts),
            Self::Container => container::tools(facts),
            Self::Script(interpreters) => script::tools(interpreters),
        }
    }

    /// The tools that can be called and are not listed.
    pub(crate) fn unlisted_tools(self, facts: &ToolFacts) -> Vec<Tool> {
        match self {
            Self::Sandbox => unlisted_sandbox_tools(facts),
            Self::Container | Self::Script(_) => Vec::new(),
        }
    }

    /// The instructions for a model.
    pub(crate) fn instructions(self, engine: &Arc<Engine>, mounts: &[Mount], lives: SandboxLifetime) -> String {
        let closing = |sentences| instructions::closing(sentences, mounts, lives);
        match self {
            Self::Sandbox => instructions::sandbox_toolset(engine, mounts, lives),
            Self::Container => closing(container::instructions(engine)),
            Self::Script(interpreters) => closing(script::instructions(engine, interpreters)),
        }
    }

    /// The prompts. They name the tools of the toolset `sandbox`.
    pub(crate) fn prompts(self) -> &'static [Prompt] {
        match self {
            Self::Sandbox => SANDBOX_PROMPTS,
            Self::Container | Self::Script(_) => &[],
        }
    }

    /// The hints in results, in the words of these tools.
    #[must_use]
    pub fn hints(self) -> Hints {
        match self {
            Self::Sandbox => crate::hints(),
            Self::Container => Hints {
                more_memory: "work on the data in parts; the operator's limits.memory_mb gives more".to_owned(),
                more_time: "make the work smaller or split it over calls; the operator's limits.timeout_s gives more"
                    .to_owned(),
                more_disk: "delete files that are not needed; the operator's limits.disk_mb gives more".to_owned(),
                bring_data: "create the data in the code: the sandbox has no network".to_owned(),
                bring_packages: "use the packages of the image, or another image".to_owned(),
                give_stdin: "put the values into the code: there is no interactive input".to_owned(),
                read_rest: None,
            },
            Self::Script(_) => Hints {
                more_memory: "work on the data in parts; the operator's limits.memory_mb gives more".to_owned(),
                more_time: "raise timeout (at most 3600), or make the work smaller".to_owned(),
                more_disk: "delete files that are not needed; the operator's limits.disk_mb gives more".to_owned(),
                bring_data: "create the data in the code: it has no network".to_owned(),
                bring_packages: "pip_install(package) installs Python packages".to_owned(),
                give_stdin: "put the values into the code: there is no interactive input".to_owned(),
                read_rest: None,
            },
        }
    }
}
