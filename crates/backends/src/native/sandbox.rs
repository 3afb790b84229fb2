//! A native sandbox: a jail, and an agent client on its pipes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sandcell_agent::client::AgentClient;
use sandcell_sandbox::{Command, EndReason, Ended, Files, Isolation, Process, Sandbox, SandboxError, Usage};
use tokio::time::timeout;

use super::conversation::Jail;

/// How long an end may take.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

/// One native sandbox.
#[derive(Debug)]
pub(super) struct NativeSandbox {
    jail: Jail,
    client: AgentClient,
    isolation: Isolation,
    env: BTreeMap<String, String>,
    /// Whether its end was asked for.
    closing: AtomicBool,
}

impl NativeSandbox {
    pub(super) fn new(jail: Jail, client: AgentClient, isolation: Isolation, env: BTreeMap<String, String>) -> Self {
        Self {
            jail,
            client,
            isolation,
            env,
            closing: AtomicBool::new(false),
        }
    }

    fn check_alive(&self) -> Result<(), SandboxError> {
        self.jail
            .has_ended()
            .map_or(Ok(()), |ended| Err(SandboxError::Gone(ended.reason)))
    }
}

#[async_trait]
impl Sandbox for NativeSandbox {
    fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    fn base_env(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    async fn spawn(&self, command: Command) -> Result<Process, SandboxError> {
        self.check_alive()?;
        self.client.spawn(command).await
    }

    fn files(&self) -> &dyn Files {
        self.client.files()
    }

    async fn usage(&self) -> Result<Usage, SandboxError> {
        self.check_alive()?;
        let (outside, inside) = tokio::join!(self.jail.usage(), self.client.usage());
        let mut usage = outside?;
        // The agent counts files; a sandbox that is busy dying still has the outside's numbers.
        if let Ok(inside) = inside {
            usage.disk = inside.disk;
            usage.inodes = inside.inodes;
        }
        Ok(usage)
    }

    async fn close(&self) -> Result<(), SandboxError> {
        if self.jail.has_ended().is_some() {
            return Ok(());
        }
        self.closing.store(true, Ordering::Release);
        let _ = self.jail.kill().await;
        match timeout(CLOSE_DEADLINE, self.jail.ended()).await {
            Ok(_) => Ok(()),
            Err(_) => Err(SandboxError::Unavailable {
                backend: super::NAME.to_owned(),
                reason: format!("the sandbox did not end within {CLOSE_DEADLINE:?}"),
                remedy: "its processes were killed and are in uninterruptible sleep; the server keeps trying"
                    .to_owned(),
            }),
        }
    }

    async fn ended(&self) -> Ended {
        // An agent that breaks the protocol is not trusted any more: its sandbox ends.
        tokio::select! {
            biased;
            ended = self.jail.ended() => ended,
            _ = self.client.closed() => {
                let _ = self.jail.kill().await;
                let ended = self.jail.ended().await;
                match ended.reason {
                    EndReason::Closed if !self.closing.load(Ordering::Acquire) => Ended { reason: EndReason::AgentLost },
                    _ => ended,
                }
            }
        }
    }
}
