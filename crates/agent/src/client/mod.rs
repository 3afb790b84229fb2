//! The host's client for an agent.
//!
//! Bytes from inside are hostile. Every frame is checked against the open requests. The first frame that does not fit
//! ends the connection, and with it the sandbox. No frame of the agent can make this side hold more than the windows of
//! the protocol. A reader that does not take its events delays no other reader.

mod connection;
#[cfg_attr(not(target_os = "linux"), path = "no_direct_pipes.rs")]
mod direct_pipes;
mod files;
mod forward;
mod process;
mod reader;
mod streams;
mod writer;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandcell_sandbox::{Command, Connection, Files, Forward, MountLayers, Process, SandboxError, SavedFiles};
use tokio::io::{AsyncRead, AsyncWrite};

pub use crate::protocol::UsageReply as InsideUsage;
use crate::protocol::{
    ADOPT_FEATURE, DIRECT_PIPES_FEATURE, EmptyReply, MOUNT_LAYERS_FEATURE, PAUSE_FEATURE, Request, SAVED_FILES_FEATURE,
};
use connection::AgentConnection;
use direct_pipes::NearEnds;

/// The time limit for the agent's HELLO.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time limit for an answer of the agent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The reason why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AgentEnd {
    /// The agent's stream ended, so its process has ended.
    #[error("the agent's stream has ended")]
    StreamEnded,
    /// The agent broke the protocol, or accused this side of a violation.
    #[error("{0}")]
    ProtocolError(String),
    /// One of the streams failed.
    #[error("the connection to the agent failed: {0}")]
    Failed(String),
}

impl AgentEnd {
    fn error(&self) -> SandboxError {
        match self {
            Self::ProtocolError(text) => SandboxError::Protocol(text.clone()),
            Self::StreamEnded | Self::Failed(_) => SandboxError::Gone(sandcell_sandbox::EndReason::AgentLost),
        }
    }
}

/// A connection to an agent. Clones share it. When the last clone and the last handle of a program are dropped, the
/// streams are closed, and the agent ends its sandbox.
#[derive(Debug, Clone)]
pub struct AgentClient {
    connection: Arc<AgentConnection>,
    files: files::AgentFiles,
    /// The near ends of direct pipes for the next program with a control channel.
    direct_pipes: Arc<Mutex<Option<NearEnds>>>,
}

impl AgentClient {
    /// Exchanges HELLO over the two byte streams. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// [`SandboxError::Protocol`] if the agent speaks another version or another protocol. [`SandboxError::Gone`] if
    /// its stream ends. [`SandboxError::Setup`] if it sends nothing for 10 s.
    pub async fn connect(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Self, SandboxError> {
        let greeting = AgentConnection::connect(reader, writer);
        let connection = tokio::time::timeout(HANDSHAKE_TIMEOUT, greeting)
            .await
            .map_err(|_| timed_out("handshake"))??;
        Ok(Self {
            files: files::AgentFiles::new(Arc::clone(&connection)),
            connection,
            direct_pipes: Arc::default(),
        })
    }

    /// Sets the near ends of direct pipes for the next program with a control channel. The agent has the far ends.
    #[cfg(target_os = "linux")]
    pub fn use_direct_pipes(&self, direct_pipes: sandcell_jail::direct_pipes::DirectPipes) {
        // Without them the far ends are closed, and all bytes pass through the agent.
        if let Ok(near_ends) = NearEnds::new(direct_pipes) {
            *self.direct_pipes.lock().unwrap_or_else(PoisonError::into_inner) = Some(near_ends);
        }
    }

    fn take_direct_pipes(&self) -> Option<NearEnds> {
        if !self.connection.has(DIRECT_PIPES_FEATURE) {
            return None;
        }
        self.direct_pipes.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the variables of the agent's image, if the agent announced any.
    #[must_use]
    pub fn announced_env(&self) -> &BTreeMap<String, String> {
        &self.connection.announced_env
    }

    /// Starts a program.
    ///
    /// # Errors
    /// [`SandboxError::Spawn`] with the system's error. Otherwise the connection has ended, or the agent does not
    /// answer.
    pub async fn spawn(&self, command: Command) -> Result<Process, SandboxError> {
        let direct_pipes = if command.control {
            self.take_direct_pipes()
        } else {
            None
        };
        process::spawn(&self.connection, command, direct_pipes).await
    }

    /// Adopts a process that enters the sandbox from outside, as a program with a control channel and without standard
    /// input. Returns when it has entered.
    ///
    /// # Errors
    /// No process can enter, or the expected process has ended. Otherwise the errors of [`AgentClient::spawn`].
    pub async fn adopt(&self) -> Result<Process, SandboxError> {
        if !self.connection.has(ADOPT_FEATURE) {
            return Err(SandboxError::Unsupported("entering the sandbox".to_owned()));
        }
        process::adopt(&self.connection, self.take_direct_pipes()).await
    }

    /// Opens a port on the loopback address inside (0: any free one) and forwards its connections to the host.
    ///
    /// # Errors
    /// The agent cannot forward, or the port is in use.
    pub async fn forward(&self, port: u16, target: &str) -> Result<Forward, SandboxError> {
        forward::open(&self.connection, port, target).await
    }

    /// Connects to a port of the loopback address inside.
    ///
    /// # Errors
    /// The agent cannot do that, or no program listens on the port.
    pub async fn open(&self, port: u16) -> Result<Box<dyn Connection>, SandboxError> {
        forward::connect(&self.connection, port).await
    }

    /// The sandbox's files.
    #[must_use]
    pub fn files(&self) -> &dyn Files {
        &self.files
    }

    /// Returns the saved states of the sandbox's private files, if the agent keeps any.
    #[must_use]
    pub fn saved_files(&self) -> Option<&dyn SavedFiles> {
        self.connection.has(SAVED_FILES_FEATURE).then_some(&self.files)
    }

    /// Returns the layers of the sandbox's copy-on-write mounts, if the agent can compare them.
    #[must_use]
    pub fn mount_layers(&self) -> Option<&dyn MountLayers> {
        self.connection.has(MOUNT_LAYERS_FEATURE).then_some(&self.files)
    }

    /// Returns the sandbox's usage, as far as it is visible from inside.
    ///
    /// # Errors
    /// The connection is at its end, or the agent does not answer.
    pub async fn usage(&self) -> Result<InsideUsage, SandboxError> {
        self.connection
            .ask(&Request::Usage)
            .await
            .map_err(connection::AskError::into_sandbox)
    }

    /// Stops all processes of the sandbox.
    ///
    /// # Errors
    /// The agent is not the first process of its sandbox, the connection is at its end, or the agent does not answer.
    pub async fn pause(&self) -> Result<(), SandboxError> {
        self.change(&Request::Pause).await
    }

    /// Continues the processes that [`AgentClient::pause`] has stopped.
    ///
    /// # Errors
    /// As [`AgentClient::pause`].
    pub async fn resume(&self) -> Result<(), SandboxError> {
        self.change(&Request::Resume).await
    }

    async fn change(&self, request: &Request) -> Result<(), SandboxError> {
        if !self.connection.has(PAUSE_FEATURE) {
            return Err(SandboxError::Unsupported("pausing a sandbox".to_owned()));
        }
        let asked = self.connection.ask(request).await;
        let _answer: EmptyReply = asked.map_err(connection::AskError::into_sandbox)?;
        Ok(())
    }

    /// Checks that the agent answers.
    ///
    /// # Errors
    /// The connection is at its end, or the agent does not answer.
    pub async fn ping(&self) -> Result<(), SandboxError> {
        let _answer: EmptyReply = self
            .connection
            .ask(&Request::Ping)
            .await
            .map_err(connection::AskError::into_sandbox)?;
        Ok(())
    }

    /// Waits until the connection is over.
    pub async fn closed(&self) -> AgentEnd {
        self.connection.closed().await
    }

    /// Closes the streams. The agent then kills every program and ends.
    pub fn close(&self) {
        self.connection.end(AgentEnd::StreamEnded);
    }
}

fn timed_out(what: &str) -> SandboxError {
    SandboxError::Setup {
        step: format!("agent {what}"),
        source: std::io::Error::new(std::io::ErrorKind::TimedOut, "the agent does not answer"),
    }
}
