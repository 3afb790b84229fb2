//! The host's end of the line to an agent.
//!
//! What comes from inside is hostile: every frame is checked against what was asked for, and the first one that does not fit ends the connection
//! (and with it the sandbox). Nothing that the agent sends can make this side hold more than the windows of the protocol, and
//! nobody who does not take his events holds up anybody else.

mod files;
mod forward;
mod inbound;
#[cfg_attr(not(target_os = "linux"), path = "no_lane.rs")]
mod lane;
mod link;
mod outbound;
mod process;
mod table;

use std::sync::Arc;
use std::time::Duration;

use sandcell_sandbox::{Command, Files, Forward, Process, SandboxError};
use tokio::io::{AsyncRead, AsyncWrite};

pub use crate::protocol::UsageReply as InsideUsage;
use crate::protocol::{Nothing, Request};
use link::Link;

/// How long the agent has for its HELLO.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long it has for an answer.
const ANSWER: Duration = Duration::from_secs(30);

/// Why a connection is over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AgentEnd {
    /// The agent's stream ended: its process is gone.
    #[error("the agent's stream has ended")]
    StreamEnded,
    /// The agent broke the protocol, or says that we did.
    #[error("{0}")]
    Breach(String),
    /// One of the streams failed.
    #[error("the line to the agent failed: {0}")]
    Failed(String),
}

impl AgentEnd {
    fn error(&self) -> SandboxError {
        match self {
            Self::Breach(text) => SandboxError::Protocol(text.clone()),
            Self::StreamEnded | Self::Failed(_) => SandboxError::Gone(sandcell_sandbox::EndReason::AgentLost),
        }
    }
}

/// A connection to an agent. Clones share it; when the last one and the last program's handle are dropped the streams are closed,
/// and the agent ends its sandbox.
#[derive(Debug, Clone)]
pub struct AgentClient {
    link: Arc<Link>,
    files: files::AgentFiles,
}

impl AgentClient {
    /// Shakes hands over the two byte streams. Has to be called in a tokio runtime.
    ///
    /// # Errors
    /// [`SandboxError::Protocol`] when the agent speaks another version or something else entirely, [`SandboxError::Gone`] when
    /// its stream ends, [`SandboxError::Setup`] when it says nothing for 10 s.
    pub async fn connect(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Self, SandboxError> {
        let greeting = Link::connect(reader, writer);
        let link = tokio::time::timeout(HANDSHAKE, greeting)
            .await
            .map_err(|_| timed_out("handshake"))??;
        Ok(Self {
            files: files::AgentFiles::new(Arc::clone(&link)),
            link,
        })
    }

    /// Gives the next program that has a control channel pipes of its own past the agent, which has the far ends.
    #[cfg(target_os = "linux")]
    pub fn use_lane(&self, lane: sandcell_jail::lane::Lane) {
        // Otherwise its far ends lead nowhere, and everything goes through the agent.
        if let Ok(near) = lane::Near::new(lane) {
            self.link.put_lane(near);
        }
    }

    /// Starts a program.
    ///
    /// # Errors
    /// [`SandboxError::Spawn`] with what the system said; else the connection is at its end, or the agent does not answer.
    pub async fn spawn(&self, command: Command) -> Result<Process, SandboxError> {
        process::spawn(&self.link, command).await
    }

    /// Takes in a process that enters the sandbox from outside, as a program with a control channel and no standard input.
    /// The answer comes when it has entered.
    ///
    /// # Errors
    /// Nobody can enter, or who was to enter has ended; else as for [`AgentClient::spawn`].
    pub async fn adopt(&self) -> Result<Process, SandboxError> {
        process::adopt(&self.link).await
    }

    /// Opens a port on the loopback address inside (0: any free one) whose connections come out here.
    ///
    /// # Errors
    /// The agent cannot, or the port is taken.
    pub async fn forward(&self, port: u16, target: &str) -> Result<Forward, SandboxError> {
        forward::open(&self.link, port, target).await
    }

    /// The sandbox's files.
    #[must_use]
    pub fn files(&self) -> &dyn Files {
        &self.files
    }

    /// What the sandbox uses, as far as it can be seen from inside.
    ///
    /// # Errors
    /// The connection is at its end, or the agent does not answer.
    pub async fn usage(&self) -> Result<InsideUsage, SandboxError> {
        self.link
            .ask(&Request::Usage)
            .await
            .map_err(link::AskError::into_sandbox)
    }

    /// Asks for a sign of life.
    ///
    /// # Errors
    /// The connection is at its end, or the agent does not answer.
    pub async fn ping(&self) -> Result<(), SandboxError> {
        let _answer: Nothing = self
            .link
            .ask(&Request::Ping)
            .await
            .map_err(link::AskError::into_sandbox)?;
        Ok(())
    }

    /// Waits until the connection is over.
    pub async fn closed(&self) -> AgentEnd {
        self.link.closed().await
    }

    /// Closes the streams. The agent then kills every program and ends.
    pub fn close(&self) {
        self.link.end(AgentEnd::StreamEnded);
    }
}

fn timed_out(what: &str) -> SandboxError {
    SandboxError::Setup {
        step: format!("agent {what}"),
        source: std::io::Error::new(std::io::ErrorKind::TimedOut, "the agent does not answer"),
    }
}
