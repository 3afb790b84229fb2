//! The strength of a sandbox's isolation, and its layers.

use serde::{Deserialize, Serialize};

/// The strength of the isolation. `Container` and `Namespace` satisfy each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the threat model defines each level")]
pub enum Level {
    Microvm,
    Gvisor,
    Container,
    Namespace,
    Process,
    None,
}

impl Level {
    /// Returns true if this level is at or above the floor.
    #[must_use]
    pub const fn satisfies(self, floor: Self) -> bool {
        self.rank() >= floor.rank()
    }

    const fn rank(self) -> u8 {
        match self {
            Self::Microvm => 4,
            Self::Gvisor => 3,
            Self::Container | Self::Namespace => 2,
            Self::Process => 1,
            Self::None => 0,
        }
    }

    /// Returns the name used in settings and results.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Microvm => "microvm",
            Self::Gvisor => "gvisor",
            Self::Container => "container",
            Self::Namespace => "namespace",
            Self::Process => "process",
            Self::None => "none",
        }
    }
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The mechanism that enforces resource limits: cgroups of the kernel, or a watchdog that polls every 50 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Degree {
    /// Resource limits per process, and a watchdog outside that kills processes above a limit.
    Watched,
    /// Cgroups.
    Enforced,
}

/// The state of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the three words of the doctor's report")]
pub enum LayerState {
    Active,
    Degraded,
    Missing,
}

/// One isolation layer on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerReport {
    /// Its name, the same in every interface.
    pub name: String,
    /// Its state.
    pub state: LayerState,
    /// The reason why it is degraded or missing; null when active.
    pub reason: Option<String>,
    /// The command or setting that fixes it; null when active.
    pub remedy: Option<String>,
}

impl LayerReport {
    /// Returns the report of a layer that is active.
    #[must_use]
    pub fn active(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            state: LayerState::Active,
            reason: None,
            remedy: None,
        }
    }

    /// Returns the report of a layer that is missing.
    #[must_use]
    pub fn missing(name: &str, reason: &str, remedy: &str) -> Self {
        Self {
            name: name.to_owned(),
            state: LayerState::Missing,
            reason: Some(reason.to_owned()),
            remedy: Some(remedy.to_owned()),
        }
    }
}

/// A host mount that lies below the folders that sandboxes see, and that is not shown in them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its mount point on the host.
    pub path: String,
    /// The reason why it is not shown.
    pub reason: String,
}

impl Degree {
    /// Returns the mechanism of the memory limit, as the layer `memory_limit` describes it. None without that layer.
    #[must_use]
    pub fn of_memory(layers: &[LayerReport]) -> Option<Self> {
        let limit = layers.iter().find(|layer| layer.name == "memory_limit")?;
        Some(match limit.state {
            LayerState::Active => Self::Enforced,
            LayerState::Degraded | LayerState::Missing => Self::Watched,
        })
    }
}

/// The isolation in force around one sandbox, as every result reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Isolation {
    /// The back end's name.
    pub backend: String,
    /// Its level.
    pub level: Level,
    /// The mechanism of the memory limit. None if this machine enforces none. Results show it among the layers.
    #[serde(skip)]
    pub memory: Option<Degree>,
    /// The names of the layers in force.
    pub layers: Vec<String>,
    /// The layers that are weaker than they could be, each as `name: reason`.
    pub degraded: Vec<String>,
}

impl Isolation {
    /// Returns the isolation of a back end with these layers.
    #[must_use]
    pub fn of_layers(backend: &str, level: Level, layers: &[LayerReport]) -> Self {
        let in_force = layers.iter().filter(|layer| layer.state != LayerState::Missing);
        let weaker = layers
            .iter()
            .filter_map(|layer| layer.reason.as_ref().map(|reason| format!("{}: {reason}", layer.name)));
        Self {
            backend: backend.to_owned(),
            level,
            memory: Degree::of_memory(layers),
            layers: in_force.map(|layer| layer.name.clone()).collect(),
            degraded: weaker.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_and_namespace_satisfy_each_other_and_nothing_above() {
        assert!(Level::Container.satisfies(Level::Namespace));
        assert!(Level::Namespace.satisfies(Level::Container));
        assert!(!Level::Namespace.satisfies(Level::Gvisor));
        assert!(!Level::Process.satisfies(Level::Namespace));
        assert!(Level::Microvm.satisfies(Level::None));
    }
}
