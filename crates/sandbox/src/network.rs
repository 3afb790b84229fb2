//! Network access: the hosts that a sandbox may reach, and the only way to them.
//!
//! A sandbox has no route. A sandbox with network access has a port on its loopback address, whose connections leave it
//! as byte streams ([`Ports::forward`](crate::Ports::forward)). The implementation of [`Network`] speaks HTTP and
//! SOCKS on these streams, decides about each host, and opens the connection from the server.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::{Consent, Failure, NetworkRule};

/// The proxy port inside.
pub const PROXY_PORT: u16 = 3128;

/// A connection that a program inside has made to a forwarded port.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin + std::fmt::Debug {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + std::fmt::Debug> Connection for T {}

/// A forwarded port inside. Dropping it closes the port and its connections.
pub struct Forward {
    /// The port inside.
    pub port: u16,
    connections: mpsc::Receiver<Box<dyn Connection>>,
    _held: Box<dyn Send + Sync>,
}

impl Forward {
    /// Makes a forward. Dropping `held` closes the port.
    #[must_use]
    pub fn new(port: u16, connections: mpsc::Receiver<Box<dyn Connection>>, held: Box<dyn Send + Sync>) -> Self {
        Self {
            port,
            connections,
            _held: held,
        }
    }

    /// Returns the next connection. None if there will be no more.
    pub async fn accept(&mut self) -> Option<Box<dyn Connection>> {
        self.connections.recv().await
    }
}

impl std::fmt::Debug for Forward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forward")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// A refused attempt to reach a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// The host as far as it could be read, with a port other than the default one.
    pub what: String,
    /// The reason, as the end of a sentence.
    pub reason: String,
    /// The change that would allow it.
    pub remedy: String,
}

/// The connection of one sandbox to its allowed hosts. Dropping it closes the connection.
pub trait EgressRoute: Send + Sync + std::fmt::Debug {
    /// Returns the number of denials so far.
    fn count(&self) -> u64;

    /// Returns the denials after the first `count`, without repetitions; a handful at most.
    fn denied_since(&self, count: u64) -> Vec<Denied>;

    /// Returns the number of bytes carried so far, in both directions.
    fn bytes(&self) -> u64;

    /// Replaces the rule of the sandbox, and ends the connections that the new one does not allow.
    ///
    /// # Errors
    /// [`check`](Network::check) did not make this rule. Nothing changes then.
    fn set_rule(&self, rule: &NetworkRule) -> Result<(), Failure>;
}

/// Gives sandboxes access to hosts, within the operator's rules.
pub trait Network: Send + Sync + std::fmt::Debug {
    /// Returns the hosts that a call may ask for, as the operator wrote them.
    fn allowed(&self) -> &[String];

    /// Checks the hosts of a call against the grammar and the operator's rules. An empty list means no network.
    ///
    /// # Errors
    /// `invalid_argument`, or `network_denied` for a host that the operator does not allow.
    fn check(&self, hosts: &[String], consent: &Consent) -> Result<NetworkRule, Failure>;

    /// Returns the hosts that need the user's consent.
    fn consent_required(&self, hosts: &[String]) -> Vec<String>;

    /// Serves the connections of one sandbox. `sandbox` is its name in the log. Call this inside a tokio runtime.
    ///
    /// # Errors
    /// [`check`](Self::check) did not make this rule.
    fn open(&self, rule: &NetworkRule, forward: Forward, sandbox: &str) -> Result<Arc<dyn EgressRoute>, Failure>;
}
