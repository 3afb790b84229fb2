//! Implements the `Sandbox` contract for a sandbox of the service.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use sandcell_sandbox::{
    Command, EndReason, Ended, Files, HOME, Isolation, OwnSessions, Process, Sandbox, SandboxError, Session,
    SessionError, Usage,
};

use super::files::E2bFiles;
use super::inside::Inside;
use super::process;
use super::session::E2bSession;

/// A sandbox. A drop kills it at the service.
#[derive(Debug)]
pub(super) struct E2bSandbox {
    inside: Arc<Inside>,
    files: E2bFiles,
    isolation: Isolation,
    env: BTreeMap<String, String>,
    memory: Option<u64>,
}

impl E2bSandbox {
    pub(super) fn new(
        inside: Arc<Inside>,
        isolation: Isolation,
        own: &BTreeMap<String, String>,
        memory: Option<u64>,
    ) -> Self {
        let mut env = BTreeMap::from([
            ("HOME".to_owned(), HOME.to_owned()),
            ("LANG".to_owned(), "C.UTF-8".to_owned()),
        ]);
        env.extend(own.clone());
        Self {
            files: E2bFiles(inside.clone()),
            inside,
            isolation,
            env,
            memory,
        }
    }
}

#[async_trait]
impl Sandbox for E2bSandbox {
    fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    fn base_env(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    async fn spawn(&self, command: Command) -> Result<Process, SandboxError> {
        process::spawn(&self.inside, command).await
    }

    fn installs_inside(&self) -> bool {
        true
    }

    fn memory_limit(&self) -> Option<u64> {
        self.memory
    }

    fn files(&self) -> &dyn Files {
        &self.files
    }

    fn own_sessions(&self) -> Option<&dyn OwnSessions> {
        Some(self)
    }

    async fn usage(&self) -> Result<Usage, SandboxError> {
        match self.inside.has_ended() {
            Some(reason) => Err(SandboxError::Gone(reason)),
            None => Ok(self.inside.usage()),
        }
    }

    async fn close(&self) -> Result<(), SandboxError> {
        // A sandbox that ended for another reason is killed anyway: it may only be unreachable.
        self.inside.end(EndReason::Closed);
        self.inside
            .kill()
            .await
            .map_err(super::error::ServiceError::into_sandbox_error)
    }

    async fn ended(&self) -> Ended {
        Ended {
            reason: self.inside.ended().await,
        }
    }
}

#[async_trait]
impl OwnSessions for E2bSandbox {
    async fn open_session(&self, language: &str) -> Result<Box<dyn Session>, SessionError> {
        Ok(Box::new(E2bSession::open(&self.inside, language).await?))
    }
}

impl Drop for E2bSandbox {
    fn drop(&mut self) {
        self.inside.dropped();
    }
}
