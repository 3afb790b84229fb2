//! Reports the isolation layers that Pods have, and those that they lack.

use sandcell_sandbox::{LayerReport, Level, SandboxError};

use super::config::NetworkGuard;

/// The layers that every Pod has, because the request asks for them.
const POD_LAYERS: [&str; 11] = [
    "mount_namespace",
    "pid_namespace",
    "network_namespace",
    "ipc_namespace",
    "uts_namespace",
    "private_root",
    "resource_limits",
    "capabilities",
    "no_new_privileges",
    "hidden_agent",
    "seccomp",
];
/// The layers that limit amounts.
const AMOUNT_LAYERS: [&str; 4] = ["memory_limit", "cpu_limit", "process_limit", "disk_limit"];
/// The layer that closes the cluster's network to code.
pub(super) const NETWORK_LAYER: &str = "network_policy";

pub(super) fn layers(level: Level, network: NetworkGuard) -> Vec<LayerReport> {
    let mut layers = Vec::new();
    if level == Level::Container {
        layers.push(LayerReport::missing(
            "user_namespace",
            "Pods share the node's users; each sandbox has a separate user without privileges there",
            "set `kubernetes.runtime_class` to a class of gVisor or Kata",
        ));
    }
    layers.extend(POD_LAYERS.map(LayerReport::active));
    layers.push(match network {
        NetworkGuard::Policy => LayerReport::active(NETWORK_LAYER),
        NetworkGuard::Open => LayerReport::missing(
            NETWORK_LAYER,
            "`kubernetes.network` is \"open\": code can reach what the cluster's network leads to",
            "set `kubernetes.network` to \"policy\" in a cluster whose network plugin enforces NetworkPolicy",
        ),
    });
    layers.extend(AMOUNT_LAYERS.map(LayerReport::active));
    layers
}

/// Refuses isolation below the operator's floor.
pub(super) fn check_floor(level: Level, isolation_min: Level) -> Result<(), SandboxError> {
    if level.satisfies(isolation_min) {
        return Ok(());
    }
    Err(SandboxError::Isolation {
        layer: isolation_min.to_string(),
        reason: format!("isolation_min is {isolation_min}, and the Pods' runtime class gives {level}"),
        remedy: format!(
            "set `kubernetes.runtime_class` to a class that gives {isolation_min} (gVisor: gvisor, Kata: microvm), or isolation_min = \"{level}\""
        ),
    })
}

#[cfg(test)]
mod tests {
    use sandcell_sandbox::{Degree, Isolation};

    use super::*;
    use crate::kubernetes::NAME;

    #[test]
    fn an_open_network_is_reported_as_weaker() {
        for (network, wanted) in [(NetworkGuard::Policy, true), (NetworkGuard::Open, false)] {
            let found = Isolation::of_layers(NAME, Level::Container, &layers(Level::Container, network));
            assert_eq!(found.layers.iter().any(|layer| layer == NETWORK_LAYER), wanted);
            assert_eq!(
                found.degraded.iter().any(|layer| layer.starts_with(NETWORK_LAYER)),
                !wanted
            );
            assert_eq!(found.memory, Some(Degree::Enforced));
        }
    }

    #[test]
    fn a_floor_above_the_runtime_is_refused_by_name() {
        assert!(check_floor(Level::Container, Level::Namespace).is_ok());
        let error = check_floor(Level::Container, Level::Gvisor).unwrap_err().to_string();
        assert!(error.contains("gives container"), "{error}");
    }
}
