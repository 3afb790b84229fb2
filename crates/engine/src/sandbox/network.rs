//! The network of sandboxes: permissions, and the route to allowed hosts.
//!
//! [`sandcell_sandbox::Network`] decides about hosts and connects to them. This module opens the route before anything
//! runs in the sandbox, sets the proxy variables for its programs, and adds denied connections to the results.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandcell_sandbox::{Code, Consent, Denied, EgressRoute, Failure, Network, NetworkRule, PROXY_PORT, Sandbox};

use crate::api::sync::lock;
use crate::records::sinks::{EventKind, SecurityEvent};
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::state::Record;
use crate::{NetworkedSandbox, Principal};

/// The maximum number of denied connections in one result.
const MAX_REPORTED_DENIALS: usize = 3;

impl Sandboxes {
    /// Returns the network rule for a request with these hosts. An empty list is no network. So is `none`.
    pub(crate) fn network_rule(&self, hosts: &[String], consent: &Consent) -> Result<NetworkRule, Failure> {
        match (hosts, self.network.get().as_ref()) {
            ([], _) => Ok(NetworkRule::None),
            ([one], _) if one == "none" => Ok(NetworkRule::None),
            (hosts, Some(network)) => network.check(hosts, consent),
            (_, None) => Err(Failure::new(
                Code::NetworkDenied,
                "the operator allows no network here",
                "leave network out; the operator can allow hosts with network.allow in the settings",
            )),
        }
    }

    /// Opens the route of a new sandbox whose rule names hosts. Without the route, the sandbox is not handed out.
    pub(crate) async fn open_route(&self, record: &Record, sandbox: &dyn Sandbox) -> Result<(), Failure> {
        let rule = &record.params.network;
        if *rule == NetworkRule::None {
            return Ok(());
        }
        let network = self.network.get();
        let network = network.as_ref().as_ref().ok_or_else(|| {
            Failure::new(
                Code::NetworkDenied,
                "the operator removed network access while the sandbox was being made",
                "leave network out; the operator can allow hosts with network.allow in the settings",
            )
        })?;
        let forward = sandbox.forward(PROXY_PORT).await?;
        let route = network.open(rule, forward, record.id.as_str())?;
        record.set_route(route, Arc::clone(network));
        Ok(())
    }

    /// Replaces the hosts that a sandbox can reach. Its connections to other hosts end.
    pub(crate) async fn set_network(&self, principal: &Principal, id: &str, hosts: &[String]) -> Result<(), Failure> {
        let target = self.registry.find(principal, id)?;
        let record = &target.record;
        // A paused sandbox stays paused.
        record.made().await?;
        // The user's consent at its creation still holds.
        let granted = Consent::Given(record.params.network.clone().into_hosts());
        let rule = self.network_rule(hosts, &granted)?;
        let Some((route, made_by)) = record.route.get() else {
            return match rule {
                NetworkRule::None => Ok(()),
                NetworkRule::Hosts(_) => Err(Failure::new(
                    Code::NetworkDenied,
                    "the sandbox was made without a network, so its programs do not know the proxy",
                    "make a sandbox with all hosts that it may need, and restrict it afterwards",
                )),
            };
        };
        let mut network = lock(&record.network);
        let current = self.network.get();
        let is_current = current
            .as_ref()
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, made_by));
        if !is_current && !is_part(&rule, &network) {
            return Err(Failure::new(
                Code::NetworkDenied,
                "the operator has changed the network settings since the sandbox was made, so it gets no further hosts",
                "make a new sandbox with these hosts",
            ));
        }
        route.set_rule(&rule)?;
        let change = match &rule {
            NetworkRule::None => "the caller took the network of the sandbox away".to_owned(),
            NetworkRule::Hosts(hosts) => format!("the caller lets the sandbox reach {}", hosts.join(", ")),
        };
        *network = rule;
        // Under the lock, so that the log has the changes in their order.
        self.records.observers.note(|| SecurityEvent {
            principal: Some(record.owner.clone()),
            sandbox: Some(record.id.clone()),
            ..SecurityEvent::new(EventKind::NetworkChanged, change)
        });
        Ok(())
    }

    /// Lists the sandboxes that can reach hosts, and checks their hosts against the current policy.
    pub(crate) fn networked_sandboxes(&self) -> Vec<NetworkedSandbox> {
        let networked = |record: Arc<Record>| match record.network() {
            NetworkRule::None => None,
            NetworkRule::Hosts(hosts) => Some(NetworkedSandbox {
                sandbox_id: record.id.clone(),
                // The user's consent, if any, still holds for it.
                still_allowed: self.network_rule(&hosts, &Consent::Given(hosts.clone())).is_ok(),
                hosts,
            }),
        };
        self.registry.all().into_iter().filter_map(networked).collect()
    }

    /// Returns the network rule of the sandbox of a call, if the sandbox exists.
    pub(crate) fn network_of(&self, principal: &Principal, sandbox: Option<&str>) -> NetworkRule {
        let found = sandbox.and_then(|id| self.registry.find(principal, id).ok());
        found.map_or(NetworkRule::None, |target| target.record.network())
    }
}

/// Returns true if a rule allows no host that the other one does not name.
fn is_part(rule: &NetworkRule, of: &NetworkRule) -> bool {
    match (rule, of) {
        (NetworkRule::None, _) => true,
        (NetworkRule::Hosts(_), NetworkRule::None) => false,
        (NetworkRule::Hosts(hosts), NetworkRule::Hosts(all)) => hosts.iter().all(|host| all.contains(host)),
    }
}

/// Adds the variables in which clients look for a proxy. The caller's variables win. No SOCKS variables, because some
/// clients need an additional module for them.
pub(crate) fn with_proxy(rule: &NetworkRule, env: BTreeMap<String, String>) -> BTreeMap<String, String> {
    if *rule == NetworkRule::None {
        return env;
    }
    let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
    let mut all = BTreeMap::from([
        ("NO_PROXY".to_owned(), "localhost,127.0.0.1,::1".to_owned()),
        ("no_proxy".to_owned(), "localhost,127.0.0.1,::1".to_owned()),
        // For the `fetch` of Node, from version 24 on.
        ("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned()),
    ]);
    for name in [
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
    ] {
        all.insert(name.to_owned(), proxy.clone());
    }
    all.extend(env);
    all
}

/// The network evidence for an outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NetworkEvidence {
    /// The hosts that the sandbox can reach.
    pub(crate) hosts: Vec<String>,
    /// The connections that were denied while the code ran.
    pub(crate) denied: Vec<Denied>,
}

impl NetworkEvidence {
    /// Returns the denied connections after the first `since` ones.
    pub(crate) fn of(record: &Record, since: u64) -> Self {
        Self {
            hosts: record.network().into_hosts(),
            denied: record.route().map_or_else(Vec::new, |route| route.denied_since(since)),
        }
    }

    /// Returns a description of the denied connections, and the remedy. None if nothing was denied.
    pub(crate) fn describe_denials(&self) -> Option<(String, String)> {
        let last = self.denied.last()?;
        let shown: Vec<String> = self
            .denied
            .iter()
            .rev()
            .take(MAX_REPORTED_DENIALS)
            .map(|denied| format!("{} {}", denied.what, denied.reason))
            .collect();
        let more = match self.denied.len().saturating_sub(MAX_REPORTED_DENIALS) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        Some((
            format!("the network denied a host: {}{more}", shown.join("; ")),
            last.remedy.clone(),
        ))
    }
}

/// Returns the number of denied connections of a sandbox so far.
pub(crate) fn denied_so_far(record: &Record) -> u64 {
    record.route().map_or(0, |route| route.count())
}

impl Record {
    /// Returns the hosts that it can reach now.
    pub(crate) fn network(&self) -> NetworkRule {
        lock(&self.network).clone()
    }

    /// Stores its route.
    fn set_route(&self, route: Arc<dyn EgressRoute>, network: Arc<dyn Network>) {
        // A record has one sandbox, which is made once.
        drop(self.route.set((route, network)));
    }

    /// Returns its route.
    pub(crate) fn route(&self) -> Option<&Arc<dyn EgressRoute>> {
        self.route.get().map(|(route, _)| route)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_get_the_proxy_variables_and_the_callers_variables_win() {
        let rule = NetworkRule::Hosts(vec!["a.example".to_owned()]);
        let env = with_proxy(&rule, BTreeMap::from([("HTTP_PROXY".to_owned(), "mine".to_owned())]));
        assert_eq!(env["HTTP_PROXY"], "mine");
        assert_eq!(env["https_proxy"], "http://127.0.0.1:3128");
        assert!(with_proxy(&NetworkRule::None, BTreeMap::new()).is_empty());
    }

    #[test]
    fn the_last_denial_says_what_would_allow_it() {
        let denied = |what: &str| Denied {
            what: what.to_owned(),
            reason: "is not allowed".to_owned(),
            remedy: format!("allow {what}"),
        };
        let evidence = NetworkEvidence {
            hosts: Vec::new(),
            denied: ["a", "b", "c", "d"].map(denied).to_vec(),
        };
        let (message, remedy) = evidence.describe_denials().unwrap();
        assert!(
            message.contains("d is not allowed; c is not allowed") && message.ends_with("and 1 more"),
            "{message}"
        );
        assert_eq!(remedy, "allow d");
        assert_eq!(NetworkEvidence::default().describe_denials(), None);
    }
}
