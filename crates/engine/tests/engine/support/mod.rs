//! A scripted world in memory: back end, sandbox, language and session execute the lines of a cell.
//!
//! Each line of a cell is a command and its arguments; see [`Session::execute`] below. Nothing here is a process.

mod backend;
mod session;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandcell_engine::{CreateRequest, Engine, EngineConfig, ExecuteRequest, ExecutionView, Principal, RunRequest};
use sandcell_sandbox::{Backend, Failure, Language, SessionEvent};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(crate) use backend::{FakeBackend, World};
pub(crate) use session::FakeLanguage;

pub(crate) struct Bench {
    pub(crate) engine: Arc<Engine>,
    pub(crate) world: Arc<World>,
    pub(crate) me: Principal,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut EngineConfig)) -> Self {
        let world = Arc::new(World::default());
        let backend = FakeBackend::new("fake", world.clone());
        Self::made(change, world, vec![backend])
    }

    pub(crate) fn made(
        change: impl FnOnce(&mut EngineConfig),
        world: Arc<World>,
        backends: Vec<Arc<FakeBackend>>,
    ) -> Self {
        let mut config = EngineConfig::default();
        change(&mut config);
        let languages: Vec<Arc<dyn Language>> = vec![
            FakeLanguage::new("script", &["s", "Scr"], world.clone()),
            FakeLanguage::new("other", &[], world.clone()),
        ];
        let backends = backends
            .into_iter()
            .map(|backend| -> Arc<dyn Backend> { backend })
            .collect();
        Self {
            engine: Engine::new(config, backends, languages),
            world,
            me: Principal::new("me"),
        }
    }

    pub(crate) async fn try_exec(&self, req: ExecuteRequest) -> Result<ExecutionView, Failure> {
        self.engine.execute(&self.me, req, CancellationToken::new()).await
    }

    pub(crate) async fn exec(&self, code: &str) -> ExecutionView {
        self.try_exec(code_of(code)).await.unwrap()
    }

    pub(crate) async fn exec_in(&self, sandbox: &str, code: &str) -> Result<ExecutionView, Failure> {
        self.try_exec(ExecuteRequest {
            sandbox_id: Some(sandbox.to_owned()),
            ..code_of(code)
        })
        .await
    }

    /// Starts code and returns after it has written `note`.
    pub(crate) async fn start(&self, code: &str, note: &str) -> ExecutionView {
        let view = self
            .try_exec(ExecuteRequest {
                wait: Some(Duration::ZERO),
                watch: sandcell_engine::Watch::default(),
                ..code_of(code)
            })
            .await
            .unwrap();
        self.world.noted(note).await;
        view
    }

    pub(crate) async fn once(&self, req: RunRequest) -> Result<ExecutionView, Failure> {
        self.engine.run_once(&self.me, req, CancellationToken::new()).await
    }

    pub(crate) async fn create(&self, count: u32) -> Result<Vec<String>, Failure> {
        let req = CreateRequest {
            count,
            ..CreateRequest::default()
        };
        let views = self.engine.create(&self.me, req).await?;
        Ok(views.into_iter().map(|view| view.id.to_string()).collect())
    }
}

pub(crate) fn code_of(code: &str) -> ExecuteRequest {
    ExecuteRequest {
        code: code.to_owned(),
        language: "script".to_owned(),
        sandbox_id: None,
        stdin: None,
        timeout: None,
        wait: None,
        watch: sandcell_engine::Watch::default(),
    }
}

pub(crate) fn run_of(code: &str) -> RunRequest {
    RunRequest {
        code: code.to_owned(),
        language: "script".to_owned(),
        stdin: None,
        packages: Vec::new(),
        files: Vec::new(),
        outputs: Vec::new(),
        timeout: None,
        wait: None,
        watch: sandcell_engine::Watch::default(),
        memory: None,
        network: Vec::new(),
        consent: sandcell_sandbox::Consent::NotAsked,
    }
}

/// Feeds `input` to a program or a command and runs it to the end. Returns the view and the streamed text.
pub(crate) async fn streamed<F>(
    input: &[&'static str],
    start: impl FnOnce(mpsc::Receiver<Bytes>, mpsc::Sender<SessionEvent>) -> F,
) -> (Result<ExecutionView, Failure>, String)
where
    F: Future<Output = Result<ExecutionView, Failure>>,
{
    let (feed, stdin) = mpsc::channel(4);
    let (output, mut streamed) = mpsc::channel(2);
    let running = start(stdin, output);
    let feeding = async {
        for text in input {
            // A program that does not read is not an error of the test.
            drop(feed.send(Bytes::from_static(text.as_bytes())).await);
        }
        drop(feed);
    };
    let reading = async {
        let mut text = String::new();
        while let Some(event) = streamed.recv().await {
            if let SessionEvent::Output { bytes, .. } = event {
                text.push_str(std::str::from_utf8(&bytes).unwrap());
            }
        }
        text
    };
    let (view, (), text) = tokio::join!(running, feeding, reading);
    (view, text)
}
