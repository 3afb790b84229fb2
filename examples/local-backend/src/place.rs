//! One "sandbox": a folder, and an agent in a process of its own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandcell_agent::client::AgentClient;
use sandcell_sandbox::{
    Command, EndReason, Ended, Files, Isolation, Process, Sandbox, SandboxError, SandboxSpec, Usage,
};
use tempfile::TempDir;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::time::timeout;

use super::AGENT;

/// How long an agent whose stream was closed has for killing its programs.
const GRACE: Duration = Duration::from_secs(2);

/// What is to be ended, whoever still holds the sandbox.
#[derive(Debug)]
pub(super) struct Place {
    folder: PathBuf,
    /// Turns true when its end is asked for.
    asked: watch::Sender<bool>,
    ended: watch::Sender<Option<Ended>>,
}

impl Place {
    /// Makes the folder and starts the agent. When that fails nothing is left: the folder and the child end when they are
    /// dropped.
    pub(super) async fn make() -> Result<(Arc<Self>, AgentClient), SandboxError> {
        let failed = |step: &str| {
            let step = step.to_owned();
            move |source| SandboxError::Setup { step, source }
        };
        let folder = tempfile::Builder::new()
            .prefix("sandcell-local-")
            .tempdir()
            .map_err(failed("make a folder"))?;
        for name in ["home", "tmp"] {
            std::fs::create_dir(folder.path().join(name)).map_err(failed("make a folder"))?;
        }
        let program = std::env::current_exe().map_err(failed("find this program"))?;
        let mut child = tokio::process::Command::new(program)
            .arg(AGENT)
            .arg(folder.path())
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed("start the agent"))?;
        let streams = child.stdout.take().zip(child.stdin.take());
        let (output, input) =
            streams.ok_or_else(|| failed("start the agent")(std::io::ErrorKind::BrokenPipe.into()))?;
        let client = AgentClient::connect(output, input).await?;
        let place = Arc::new(Self {
            folder: folder.path().to_owned(),
            asked: watch::Sender::new(false),
            ended: watch::Sender::new(None),
        });
        tokio::spawn(keep(Arc::clone(&place), client.clone(), child, folder));
        Ok((place, client))
    }

    /// Asks for its end and waits for it. Bounded by what [`keep`] does.
    pub(super) async fn end(&self) {
        self.asked.send_replace(true);
        self.wait().await;
    }

    fn has_ended(&self) -> Option<Ended> {
        self.ended.borrow().clone()
    }

    async fn wait(&self) -> Ended {
        let mut ended = self.ended.subscribe();
        // The sender lives as long as this borrow, so the wait can only end with a value.
        let seen = ended
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|ended| ended.clone());
        seen.unwrap_or(Ended {
            reason: EndReason::AgentLost,
        })
    }
}

/// Waits until a place has a reason to end, and leaves nothing of it.
async fn keep(place: Arc<Place>, client: AgentClient, mut child: Child, folder: TempDir) {
    let mut asked = place.asked.subscribe();
    let reason = tokio::select! {
        biased;
        () = async { drop(asked.wait_for(|asked| *asked).await) } => EndReason::Closed,
        _ = child.wait() => EndReason::AgentLost,
        _ = client.closed() => EndReason::AgentLost,
    };
    // Its programs are the agent's children, so it is the agent that ends them; only then is it killed itself.
    client.close();
    if timeout(GRACE, child.wait()).await.is_err()
        && let Err(error) = child.kill().await
    {
        tracing::warn!(%error, "an agent could not be killed");
    }
    drop(folder);
    place.ended.send_replace(Some(Ended { reason }));
}

/// A place as a sandbox. It has no ports: its code uses the machine's own network, so rules for hosts could not be
/// enforced.
#[derive(Debug)]
pub(super) struct LocalSandbox {
    place: Arc<Place>,
    client: AgentClient,
    isolation: Isolation,
    env: BTreeMap<String, String>,
}

impl LocalSandbox {
    pub(super) fn new(place: Arc<Place>, client: AgentClient, isolation: Isolation, spec: &SandboxSpec) -> Self {
        let at = |name: &str| place.folder.join(name).to_string_lossy().into_owned();
        let mut env = BTreeMap::from([
            ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned()),
            ("LANG".to_owned(), "C.UTF-8".to_owned()),
            ("HOME".to_owned(), at("home")),
            ("TMPDIR".to_owned(), at("tmp")),
        ]);
        env.extend(spec.env.clone());
        Self {
            env,
            place,
            client,
            isolation,
        }
    }

    fn check_alive(&self) -> Result<(), SandboxError> {
        self.place
            .has_ended()
            .map_or(Ok(()), |ended| Err(SandboxError::Gone(ended.reason)))
    }
}

impl Drop for LocalSandbox {
    fn drop(&mut self) {
        self.place.asked.send_replace(true);
    }
}

#[async_trait]
impl Sandbox for LocalSandbox {
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
        let inside = self.client.usage().await?;
        // Nobody counts memory and processor here, so nobody is told numbers of them.
        Ok(Usage {
            processes: inside.processes,
            disk: inside.disk,
            inodes: inside.inodes,
            ..Usage::default()
        })
    }

    async fn close(&self) -> Result<(), SandboxError> {
        self.place.end().await;
        Ok(())
    }

    async fn ended(&self) -> Ended {
        self.place.wait().await
    }
}
