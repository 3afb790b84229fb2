//! This server's own objects in the cluster: a lease, and what its Pods need.
//!
//! The lease owns everything else. A server renews it while it lives and deletes it when it ends. If a server is killed,
//! another one deletes its lease when it has expired. The cluster's garbage collector then removes the Pods and the rest.

use std::collections::HashMap;
use std::sync::Weak;
use std::time::{Duration, Instant, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use sandcell_link::Key;
use sandcell_sandbox::{SandboxError, parse_rfc3339, rfc3339_millis};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::config::NetworkGuard;
use super::failure::{failed, is_missing};
use super::labels;
use super::pod::{AGENT_PORT, KEY_ENTRY};
use crate::container::agent_program::{AGENT_FILE, Agent, PACKED_FILE};

/// The time between two renewals of a lease.
const RENEW_INTERVAL: Duration = Duration::from_secs(15);
/// The duration that a lease states, in seconds.
const LEASE_SECONDS: u64 = 60;
/// A lease that this server has not seen change for this long may belong to a server that is gone.
const UNCHANGED_FOR: Duration = Duration::from_secs(40);
/// It belongs to one if its last renewal is older than this. The clocks of the two machines may differ.
const EXPIRED_FOR: Duration = Duration::from_secs(180);
/// Without a usable clock it belongs to one if it has not changed for this long.
const UNCHANGED_FOR_LONG: Duration = Duration::from_secs(600);

/// The access to the objects of one namespace.
#[derive(Clone)]
pub(super) struct Objects {
    pub(super) client: Client,
    pub(super) namespace: String,
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objects")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Objects {
    pub(super) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn create<K>(&self, action: &str, object: Value) -> Result<K, SandboxError>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned
            + serde::Serialize,
        K::DynamicType: Default,
    {
        let object: K =
            serde_json::from_value(object).map_err(|error| failed(action, &kube::Error::SerdeError(error)))?;
        let made = self.api::<K>().create(&PostParams::default(), &object).await;
        made.map_err(|error| failed(action, &error))
    }

    /// Makes the lease of a server, and returns the reference to it as an owner.
    pub(super) async fn take_lease(&self, server: &str) -> Result<OwnerReference, SandboxError> {
        let lease: Lease = self
            .create(
                "create a Lease",
                json!({
                    "metadata": {"name": server, "labels": {
                        labels::KIND_LABEL: labels::SERVER_KIND,
                        labels::SERVER_LABEL: server,
                    }},
                    "spec": lease_spec(server),
                }),
            )
            .await?;
        Ok(OwnerReference {
            api_version: "coordination.k8s.io/v1".to_owned(),
            kind: "Lease".to_owned(),
            name: server.to_owned(),
            uid: lease.metadata.uid.unwrap_or_default(),
            ..OwnerReference::default()
        })
    }

    /// Makes the objects that Pods refer to: the agent, the key of its link, and the rule that closes the network.
    pub(super) async fn provide(
        &self,
        server: &str,
        owner: &OwnerReference,
        agent: &Agent,
        key: &Key,
        network: NetworkGuard,
    ) -> Result<(), SandboxError> {
        let metadata = json!({"name": server, "labels": {labels::SERVER_LABEL: server}, "ownerReferences": [owner]});
        let agent = json!({"metadata": metadata, "immutable": true, "binaryData": {
            AGENT_FILE: ByteString(agent.loader().to_vec()),
            PACKED_FILE: ByteString(agent.packed().to_vec()),
        }});
        self.create::<ConfigMap>("create a ConfigMap with the agent", agent)
            .await?;
        let key = json!({"metadata": metadata, "immutable": true, "data": {KEY_ENTRY: ByteString(key.to_hex().into_bytes())}});
        self.create::<Secret>("create a Secret with the key of the agents", key)
            .await?;
        if network == NetworkGuard::Policy {
            let policy = json!({"metadata": metadata, "spec": {
                "podSelector": {"matchLabels": {labels::SERVER_LABEL: server}},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"ports": [{"protocol": "TCP", "port": AGENT_PORT}]}],
                "egress": [],
            }});
            self.create::<NetworkPolicy>("create a NetworkPolicy", policy).await?;
        }
        Ok(())
    }

    /// Deletes a lease, and with it all that it owns.
    pub(super) async fn drop_lease(&self, server: &str) {
        let deleted = self.api::<Lease>().delete(server, &DeleteParams::background()).await;
        if let Err(error) = deleted
            && !is_missing(&error)
        {
            tracing::warn!(
                server,
                "the lease of a server could not be deleted: {}",
                failed("delete a Lease", &error)
            );
        }
    }

    /// Deletes the leases of servers that are gone.
    async fn sweep(&self, seen: &mut SeenLeases) {
        let servers = ListParams::default().labels(&format!("{}={}", labels::KIND_LABEL, labels::SERVER_KIND));
        let Ok(leases) = self.api::<Lease>().list(&servers).await else {
            return;
        };
        for name in seen.abandoned(&leases.items, Instant::now(), SystemTime::now()) {
            tracing::info!(server = name, "removing what a server left that is gone");
            self.drop_lease(&name).await;
        }
    }
}

/// The leases as this server saw them: the last renewal of each, and since when it is the last one. A server with a wrong clock must
/// not count others as gone.
#[derive(Debug, Default)]
struct SeenLeases(HashMap<String, (Option<MicroTime>, Instant)>);

impl SeenLeases {
    /// Returns the names of the leases that no server renews any more.
    fn abandoned(&mut self, leases: &[Lease], now: Instant, clock: SystemTime) -> Vec<String> {
        let mut current = HashMap::new();
        let mut abandoned = Vec::new();
        for lease in leases {
            let Some(name) = lease.metadata.name.clone() else {
                continue;
            };
            let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
            let since = match self.0.get(&name) {
                Some((seen, since)) if *seen == renewed => *since,
                _ => now,
            };
            let unchanged = now.saturating_duration_since(since);
            let renewal = renewed.as_ref().and_then(|time| parse_rfc3339(&time.0.to_string()));
            let expired =
                renewal.is_some_and(|renewal| clock.duration_since(renewal).is_ok_and(|age| age > EXPIRED_FOR));
            if unchanged >= UNCHANGED_FOR_LONG || (expired && unchanged >= UNCHANGED_FOR) {
                abandoned.push(name.clone());
            }
            current.insert(name, (renewed, since));
        }
        self.0 = current;
        abandoned
    }
}

fn lease_spec(server: &str) -> Value {
    // The API server wants six digits after the seconds.
    let now = rfc3339_millis(SystemTime::now()).replace('Z', "000Z");
    json!({"holderIdentity": server, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now})
}

/// Renews this server's lease until `user` is dropped. Also deletes the leases of servers that are gone.
pub(super) async fn keep_lease<T>(objects: Objects, server: String, user: Weak<T>) {
    let mut seen = SeenLeases::default();
    while user.strong_count() > 0 {
        objects.sweep(&mut seen).await;
        let renewal = json!({"spec": lease_spec(&server)});
        let renewed = objects
            .api::<Lease>()
            .patch(&server, &PatchParams::default(), &Patch::Merge(&renewal))
            .await;
        if let Err(error) = renewed {
            tracing::warn!(
                "the lease of this server could not be renewed: {}",
                failed("update a Lease", &error)
            );
        }
        sleep(RENEW_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_and_its_loader_fit_into_a_config_map() {
        let agent = Agent::of(std::env::consts::ARCH).unwrap();
        let bytes = agent.loader().len() + agent.packed().len();
        assert!(agent.loader().starts_with(b"\x7fELF"));
        assert!(bytes < 1 << 20, "{bytes} bytes");
    }

    fn lease(name: &str, renewed: &str) -> Lease {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"renewTime": renewed}})).unwrap()
    }

    #[test]
    fn a_lease_counts_as_abandoned_when_it_is_old_and_does_not_change() {
        let (begin, clock) = (Instant::now(), SystemTime::now());
        let old = lease("old", "2026-01-01T00:00:00.000000Z");
        let mut seen = SeenLeases::default();
        assert!(seen.abandoned(std::slice::from_ref(&old), begin, clock).is_empty());
        assert!(
            seen.abandoned(std::slice::from_ref(&old), begin + UNCHANGED_FOR / 2, clock)
                .is_empty()
        );
        assert_eq!(seen.abandoned(&[old], begin + UNCHANGED_FOR, clock), ["old"]);
        assert!(parse_rfc3339(lease_spec("me")["renewTime"].as_str().unwrap()).is_some());
    }

    #[test]
    fn a_server_whose_clock_is_wrong_removes_nothing_of_others() {
        let begin = Instant::now();
        let mut seen = SeenLeases::default();
        for turn in 0..20_u32 {
            let renewed = format!("2020-01-01T00:{turn:02}:00.000000Z");
            let found = seen.abandoned(
                &[lease("live", &renewed)],
                begin + RENEW_INTERVAL * turn,
                SystemTime::now(),
            );
            assert!(found.is_empty(), "turn {turn}");
        }
        // Nothing is known of the other machine's clock, and the lease stays the same.
        let ahead = lease("ahead", "2999-01-01T00:00:00.000000Z");
        assert!(
            seen.abandoned(std::slice::from_ref(&ahead), begin, SystemTime::now())
                .is_empty()
        );
        let later = begin + UNCHANGED_FOR_LONG;
        assert_eq!(seen.abandoned(&[ahead], later, SystemTime::now()), ["ahead"]);
    }
}
