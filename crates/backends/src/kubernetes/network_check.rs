//! Checks that a program in a Pod cannot reach the cluster's network.
//!
//! Every cluster accepts a NetworkPolicy, but only some network plugins enforce it. So this back end starts a program in its first Pod.
//! The program tries to connect to the agent of a second Pod, which certainly listens, and to the API server. Pods can reach both unless
//! a policy is enforced.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use sandcell_agent::client::AgentClient;
use sandcell_sandbox::{Command, Exit, Gathered, SandboxError, StdinMode, gather};
use tokio::net::lookup_host;

use super::connect::ApiServer;
use super::failure::unavailable;
use super::pod::AGENT_PORT;
use super::report::NETWORK_LAYER;
use crate::container::agent_program::AGENT_PATH;

/// Bytes of the program's output that are kept.
const MAX_OUTPUT_BYTES: usize = 1000;
/// The exit status of the program when no machine answers.
const CLOSED_STATUS: u8 = 3;
/// A policy may take effect some seconds after it was made. The program runs again until then, at most for this time.
const TAKE_EFFECT_TIMEOUT: Duration = Duration::from_secs(10);
const TRY_INTERVAL: Duration = Duration::from_millis(500);

/// Checks that a program in the Pod of `client` reaches neither `other`, the address of another Pod, nor the API server.
pub(super) async fn check(client: &AgentClient, other: IpAddr, server: &ApiServer) -> Result<(), SandboxError> {
    let found = lookup_host((server.host.as_str(), server.port)).await;
    let servers = found.map_err(|error| {
        unavailable(
            format!(
                "the address of the API server {} could not be found: {error}",
                server.host
            ),
            "check this machine's name service",
        )
    })?;
    let addresses: Vec<String> = std::iter::once(SocketAddr::from((other, AGENT_PORT)))
        .chain(servers)
        .map(|address| address.to_string())
        .collect();
    let give_up = tokio::time::Instant::now() + TAKE_EFFECT_TIMEOUT;
    loop {
        let Some(reached) = reached(client, &addresses).await? else {
            return Ok(());
        };
        if tokio::time::Instant::now() >= give_up {
            return Err(SandboxError::Isolation {
                layer: NETWORK_LAYER.to_owned(),
                reason: format!(
                    "the cluster does not enforce NetworkPolicy: a program in a Pod reached {reached}"
                ),
                remedy: "use a network plugin that enforces NetworkPolicy (Calico, Cilium and others), or accept an open network with \
                         kubernetes.network = \"open\""
                    .to_owned(),
            });
        }
        tokio::time::sleep(TRY_INTERVAL).await;
    }
}

/// Returns the first address that a program inside reaches.
async fn reached(client: &AgentClient, addresses: &[String]) -> Result<Option<String>, SandboxError> {
    for address in addresses {
        let command = Command {
            argv: [AGENT_PATH, "reach", address].map(str::to_owned).to_vec(),
            env: BTreeMap::new(),
            cwd: "/".to_owned(),
            stands_alone: false,
            stdin: StdinMode::Null,
            control: false,
            terminal: None,
        };
        let Gathered { exit, stderr, .. } = gather(client.spawn(command).await?, MAX_OUTPUT_BYTES).await;
        match exit {
            Some(Exit::Code(0)) => return Ok(Some(address.clone())),
            Some(Exit::Code(CLOSED_STATUS)) => {}
            _ => {
                return Err(unavailable(
                    format!(
                        "the network of a Pod could not be tried: {}",
                        String::from_utf8_lossy(&stderr)
                    ),
                    "try again",
                ));
            }
        }
    }
    Ok(None)
}
