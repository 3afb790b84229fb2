//! The network of sandboxes: the broker's rules, made of the settings, behind the contract that the engine knows.

use std::sync::Arc;

use sandcell_broker::{Denial, Egress, EgressLimits, EgressRules, Why};
use sandcell_sandbox::{Code, Denied, Failure, Forward, Network, NetworkRule, Way};
use tokio::task::{AbortHandle, JoinSet};

use crate::config::NetworkSettings;

/// The network for an engine; none where the operator allows nothing.
pub(super) fn network(settings: &NetworkSettings) -> Result<Option<Arc<dyn Network>>, Failure> {
    reaching(&settings.allow, settings)
}

/// The way to these hosts, with what else the settings say of the network; none where there are none.
pub(super) fn reaching(hosts: &[String], settings: &NetworkSettings) -> Result<Option<Arc<dyn Network>>, Failure> {
    let limits = EgressLimits {
        connections: settings.connections,
        bytes: settings.total.as_bytes(),
    };
    let rules = EgressRules::read(hosts, &settings.deny, &settings.private, limits).map_err(|error| {
        Failure::invalid(
            format!("the settings of [network]: {error}"),
            "correct network.allow, network.deny and network.private",
        )
    })?;
    if hosts.is_empty() {
        return Ok(None);
    }
    Ok(Some(Arc::new(BrokerNetwork {
        rules: Arc::new(rules),
        allowed: hosts.to_vec(),
    })))
}

#[derive(Debug)]
struct BrokerNetwork {
    rules: Arc<EgressRules>,
    allowed: Vec<String>,
}

impl Network for BrokerNetwork {
    fn allowed(&self) -> &[String] {
        &self.allowed
    }

    fn check(&self, hosts: &[String]) -> Result<NetworkRule, Failure> {
        let asked = self.rules.asked(hosts).map_err(|denial| {
            let message = format!("network: {:?} {}", denial.what, denial.why);
            match denial.why {
                Why::Unreadable(_) | Why::Limit(_) => Failure::invalid(message, denial.remedy()),
                _ => Failure::new(
                    Code::NetworkDenied,
                    message,
                    format!("{}; allowed now: {}", denial.remedy(), self.allowed.join(", ")),
                ),
            }
        })?;
        if asked.is_empty() {
            return Ok(NetworkRule::None);
        }
        Ok(NetworkRule::Hosts(asked.iter().map(ToString::to_string).collect()))
    }

    fn open(&self, rule: &NetworkRule, mut forward: Forward, sandbox: &str) -> Result<Arc<dyn Way>, Failure> {
        let NetworkRule::Hosts(hosts) = rule else {
            return Err(Failure::invalid("there is no network to open", "name hosts"));
        };
        let asked = self.rules.asked(hosts).map_err(|denial| {
            Failure::new(
                Code::NetworkDenied,
                format!("network: {} {}", denial.what, denial.why),
                denial.remedy(),
            )
        })?;
        let egress = Egress::new(Arc::clone(&self.rules), asked, sandbox);
        let served = Arc::clone(&egress);
        // Connections end with the task that takes them.
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
        Ok(Arc::new(BrokerWay {
            egress,
            task: task.abort_handle(),
        }))
    }
}

/// The way of one sandbox.
#[derive(Debug)]
struct BrokerWay {
    egress: Arc<Egress>,
    task: AbortHandle,
}

impl Drop for BrokerWay {
    fn drop(&mut self) {
        self.task.abort();
        self.egress.close();
    }
}

impl Way for BrokerWay {
    fn count(&self) -> u64 {
        self.egress.denied()
    }

    fn denied_since(&self, count: u64) -> Vec<Denied> {
        let told = |denial: Denial| Denied {
            reason: denial.why.to_string(),
            remedy: denial.remedy(),
            what: denial.what,
        };
        self.egress.denied_since(count).into_iter().map(told).collect()
    }

    fn bytes(&self) -> u64 {
        self.egress.bytes()
    }
}
