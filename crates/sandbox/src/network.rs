//! Network: which hosts a sandbox may reach, and the one way there.
//!
//! A sandbox has no route. One that may reach hosts has a port on its own loopback address instead, which leads out as
//! streams of bytes ([`Sandbox::forward`](crate::Sandbox::forward)); whoever implements [`Network`] speaks HTTP and SOCKS on
//! them, decides, and connects itself.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::{Consent, Failure, NetworkRule};

/// The port inside that leads to the proxy.
pub const PROXY_PORT: u16 = 3128;

/// A connection that somebody inside has made to a forwarded port.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin + std::fmt::Debug {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + std::fmt::Debug> Connection for T {}

/// A port inside that leads here. Dropping it closes the port and breaks its connections off.
pub struct Forward {
    /// The port inside.
    pub port: u16,
    connections: mpsc::Receiver<Box<dyn Connection>>,
    _held: Box<dyn Send + Sync>,
}

impl Forward {
    /// A port; `held` closes it when it is dropped.
    #[must_use]
    pub fn new(port: u16, connections: mpsc::Receiver<Box<dyn Connection>>, held: Box<dyn Send + Sync>) -> Self {
        Self {
            port,
            connections,
            _held: held,
        }
    }

    /// The next connection; none when there will be no more.
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

/// Something that a sandbox wanted to reach and may not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// What it was, as far as it could be read: a host, with the port where that is not the usual one.
    pub what: String,
    /// Why not, as the end of a sentence.
    pub reason: String,
    /// What would allow it.
    pub remedy: String,
}

/// The way of one sandbox to the hosts that it may reach. Dropping it closes the way.
pub trait Way: Send + Sync + std::fmt::Debug {
    /// How often something was denied so far.
    fn count(&self) -> u64;

    /// What was denied after that many denials, without repetitions and at most a handful.
    fn denied_since(&self, count: u64) -> Vec<Denied>;

    /// Bytes that were carried so far, both ways together.
    fn bytes(&self) -> u64;
}

/// Takes sandboxes to hosts, as far as the operator allows.
pub trait Network: Send + Sync + std::fmt::Debug {
    /// The most that a call may ask for, as the operator wrote it.
    fn allowed(&self) -> &[String];

    /// Checks what a call asks for against the grammar and the operator's rules. Nothing asked for is no network.
    ///
    /// # Errors
    /// `invalid_argument`, or `network_denied` for what the operator does not allow.
    fn check(&self, hosts: &[String], consent: &Consent) -> Result<NetworkRule, Failure>;

    /// Those of the hosts that the operator leaves to the user.
    fn left_to_user(&self, hosts: &[String]) -> Vec<String>;

    /// Serves the connections of one sandbox, called by this name in the log. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// The rule is none that [`check`](Self::check) has made.
    fn open(&self, rule: &NetworkRule, forward: Forward, sandbox: &str) -> Result<Arc<dyn Way>, Failure>;
}
