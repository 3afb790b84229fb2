//! The network of sandboxes: the broker's rules, made from the settings, behind the contract that the engine knows.

use std::sync::Arc;

use sandcell_broker::{Denial, DenialReason, Egress, EgressLimits, EgressRules};
use sandcell_sandbox::{Code, Consent, Denied, EgressRoute, Failure, Forward, Network, NetworkRule};
use tokio::task::{AbortHandle, JoinSet};

use crate::config::NetworkSettings;

/// Returns the network for an engine; none if the operator allows nothing.
pub(super) fn network(settings: &NetworkSettings) -> Result<Option<Arc<dyn Network>>, Failure> {
    let Some(mut network) = to(&settings.allow, &settings.ask, settings)? else {
        return Ok(None);
    };
    if !settings.ask.is_empty() {
        network.unasked = Some(rules(&settings.allow, settings)?);
    }
    Ok(Some(Arc::new(network)))
}

/// Checks hosts of the command line before they are added to those of the settings.
pub(crate) fn check(named: &[String], settings: &NetworkSettings) -> Result<(), Failure> {
    let hosts: Vec<String> = named.iter().filter(|host| *host != "none").cloned().collect();
    let checked = EgressRules::read(&hosts, &[], &[], egress_limits(settings));
    checked.map(drop).map_err(|error| {
        Failure::invalid(
            format!("--network: {error}"),
            "name hosts, such as api.example.com, *.example.org or api.example.com:8443, without a scheme and a path",
        )
    })
}

/// Returns the network for these hosts, with the other network settings; none where there are no hosts.
#[cfg(feature = "docker")]
pub(super) fn reaching(hosts: &[String], settings: &NetworkSettings) -> Result<Option<Arc<dyn Network>>, Failure> {
    let network = to(hosts, &[], settings)?;
    Ok(network.map(|network| -> Arc<dyn Network> { Arc::new(network) }))
}

/// Returns the network with all allowed hosts: `hosts` without the user's consent, and `more` with it.
fn to(hosts: &[String], more: &[String], settings: &NetworkSettings) -> Result<Option<BrokerNetwork>, Failure> {
    let allowed: Vec<String> = hosts.iter().chain(more).cloned().collect();
    let rules = Arc::new(rules(&allowed, settings)?);
    Ok((!allowed.is_empty()).then_some(BrokerNetwork {
        rules,
        allowed,
        unasked: None,
    }))
}

const fn egress_limits(settings: &NetworkSettings) -> EgressLimits {
    EgressLimits {
        connections: settings.connections,
        bytes: settings.total.as_bytes(),
    }
}

fn rules(hosts: &[String], settings: &NetworkSettings) -> Result<EgressRules, Failure> {
    EgressRules::read(hosts, &settings.deny, &settings.private, egress_limits(settings)).map_err(|error| {
        Failure::invalid(
            format!("the settings of [network]: {error}"),
            "correct network.allow, network.ask, network.deny and network.private",
        )
    })
}

#[derive(Debug)]
struct BrokerNetwork {
    rules: Arc<EgressRules>,
    allowed: Vec<String>,
    /// Hosts reached without the user's consent; none: all allowed hosts.
    unasked: Option<EgressRules>,
}

impl Network for BrokerNetwork {
    fn allowed(&self) -> &[String] {
        &self.allowed
    }

    fn consent_required(&self, hosts: &[String]) -> Vec<String> {
        // Hosts that are refused in any case need no consent.
        let (Some(unasked), Ok(_)) = (&self.unasked, self.rules.asked(hosts)) else {
            return Vec::new();
        };
        let asks = |host: &&String| unasked.asked(std::slice::from_ref(*host)).is_err();
        hosts.iter().filter(asks).cloned().collect()
    }

    fn check(&self, hosts: &[String], consent: &Consent) -> Result<NetworkRule, Failure> {
        let asked = self.rules.asked(hosts).map_err(|denial| {
            let message = format!("network: {:?} {}", denial.target, denial.reason);
            match denial.reason {
                DenialReason::Unreadable(_) | DenialReason::Limit(_) => Failure::invalid(message, denial.remedy()),
                _ => Failure::new(
                    Code::NetworkDenied,
                    message,
                    format!("{}; allowed now: {}", denial.remedy(), self.allowed.join(", ")),
                ),
            }
        })?;
        if let Some(host) = self.consent_required(hosts).iter().find(|host| !consent.covers(host)) {
            let how = "create_sandbox or create_run_close with network";
            return Err(consent.refusal(Code::NetworkDenied, host, how, "network.allow"));
        }
        if asked.is_empty() {
            return Ok(NetworkRule::None);
        }
        Ok(NetworkRule::Hosts(asked.iter().map(ToString::to_string).collect()))
    }

    fn open(&self, rule: &NetworkRule, mut forward: Forward, sandbox: &str) -> Result<Arc<dyn EgressRoute>, Failure> {
        let NetworkRule::Hosts(hosts) = rule else {
            return Err(Failure::invalid("there is no network to open", "name hosts"));
        };
        let asked = self.rules.asked(hosts).map_err(|denial| denied(&denial))?;
        let egress = Egress::new(Arc::clone(&self.rules), asked, sandbox);
        let served = Arc::clone(&egress);
        // Dropping the accepting task ends its connections.
        let task = tokio::spawn(async move {
            let mut serving = JoinSet::new();
            loop {
                tokio::select! {
                    connection = forward.accept() => match connection {
                        Some(connection) => drop(serving.spawn(Arc::clone(&served).serve(connection))),
                        None => return,
                    },
                    Some(_) = serving.join_next() => {}
                }
            }
        });
        Ok(Arc::new(BrokerRoute {
            egress,
            task: task.abort_handle(),
        }))
    }
}

fn denied(denial: &Denial) -> Failure {
    Failure::new(
        Code::NetworkDenied,
        format!("network: {} {}", denial.target, denial.reason),
        denial.remedy(),
    )
}

/// The network access of one sandbox.
#[derive(Debug)]
struct BrokerRoute {
    egress: Arc<Egress>,
    task: AbortHandle,
}

impl Drop for BrokerRoute {
    fn drop(&mut self) {
        self.task.abort();
        self.egress.close();
    }
}

impl EgressRoute for BrokerRoute {
    fn count(&self) -> u64 {
        self.egress.denied()
    }

    fn denied_since(&self, count: u64) -> Vec<Denied> {
        let told = |denial: Denial| Denied {
            reason: denial.reason.to_string(),
            remedy: denial.remedy(),
            what: denial.target,
        };
        self.egress.denied_since(count).into_iter().map(told).collect()
    }

    fn bytes(&self) -> u64 {
        self.egress.bytes()
    }

    fn set_rule(&self, rule: &NetworkRule) -> Result<(), Failure> {
        let hosts: &[String] = match rule {
            NetworkRule::None => &[],
            NetworkRule::Hosts(hosts) => hosts,
        };
        self.egress.ask(hosts).map_err(|denial| denied(&denial))
    }
}
