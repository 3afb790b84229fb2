//! The engine on a scripted world in memory, for tests of the engine and of what is built on it. Only tests depend on
//! this crate.
//!
//! The world has a back end, sandboxes, languages and sessions. Each line of a cell is a verb with its arguments, such
//! as `print TEXT` or `sleep MS` (see `session` and `backend`). Nothing here is a process.
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    clippy::new_without_default,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "parts of tests: names speak for themselves, and a test that cannot go on may panic"
)]

mod backend;
mod services;
mod session;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandcell_engine::{
    CreateRequest, Engine, EngineConfig, ExecuteRequest, ExecutionView, Outside, Principal, RunRequest,
};
use sandcell_sandbox::{Backend, Failure, Language, LanguageInfo, Network, Packages, SessionEvent};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use backend::{FakeBackend, Inside, World};
pub use services::{FakeNetwork, FakePackages};
pub use session::FakeLanguage;

pub struct Bench {
    pub engine: Arc<Engine>,
    pub world: Arc<World>,
    pub me: Principal,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut EngineConfig)) -> Self {
        let world = Arc::new(World::default());
        let backend = FakeBackend::new("fake", world.clone());
        Self::made(change, world, vec![backend])
    }

    pub fn made(change: impl FnOnce(&mut EngineConfig), world: Arc<World>, backends: Vec<Arc<FakeBackend>>) -> Self {
        let languages = vec![
            FakeLanguage::new("script", &["s", "Scr"], world.clone()),
            FakeLanguage::new("other", &[], world.clone()),
        ];
        Self::build(change, world, backends, languages)
    }

    /// An engine with these languages. Their cells are still scripts.
    pub fn with_languages(languages: Vec<LanguageInfo>, change: impl FnOnce(&mut EngineConfig)) -> Self {
        let world = Arc::new(World::default());
        let backends = vec![FakeBackend::new("fake", world.clone())];
        let language = |info| FakeLanguage::named(info, world.clone());
        let languages = languages.into_iter().map(language).collect();
        Self::build(change, world, backends, languages)
    }

    fn build(
        change: impl FnOnce(&mut EngineConfig),
        world: Arc<World>,
        backends: Vec<Arc<FakeBackend>>,
        languages: Vec<Arc<FakeLanguage>>,
    ) -> Self {
        let mut config = EngineConfig::default();
        change(&mut config);
        let languages = languages
            .into_iter()
            .map(|language| -> Arc<dyn Language> { language })
            .collect();
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

    /// Lets sandboxes ask for hosts and packages.
    pub fn offer(&self, network: Option<FakeNetwork>, packages: Option<FakePackages>) {
        let network = network.map(|network| -> Arc<dyn Network> { Arc::new(network) });
        let packages = packages.map(|packages| -> Arc<dyn Packages> { Arc::new(packages) });
        let config = EngineConfig::clone(&self.engine.config());
        let outside = Outside {
            network,
            packages: packages.into_iter().collect(),
            tools: None,
        };
        self.engine.change(config, outside);
    }

    pub async fn try_exec(&self, req: ExecuteRequest) -> Result<ExecutionView, Failure> {
        self.engine.execute(&self.me, req, CancellationToken::new()).await
    }

    pub async fn exec(&self, code: &str) -> ExecutionView {
        self.try_exec(code_of(code)).await.unwrap()
    }

    pub async fn exec_in(&self, sandbox: &str, code: &str) -> Result<ExecutionView, Failure> {
        self.try_exec(ExecuteRequest {
            sandbox_id: Some(sandbox.to_owned()),
            ..code_of(code)
        })
        .await
    }

    /// Starts code and returns after it has written `note`.
    pub async fn start(&self, code: &str, note: &str) -> ExecutionView {
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

    pub async fn once(&self, req: RunRequest) -> Result<ExecutionView, Failure> {
        self.engine.run_once(&self.me, req, CancellationToken::new()).await
    }

    pub async fn create(&self, count: u32) -> Result<Vec<String>, Failure> {
        let req = CreateRequest {
            count,
            ..CreateRequest::default()
        };
        let views = self.engine.create(&self.me, req).await?;
        Ok(views.into_iter().map(|view| view.id.to_string()).collect())
    }
}

pub fn code_of(code: &str) -> ExecuteRequest {
    ExecuteRequest {
        code: code.to_owned(),
        language: "script".to_owned(),
        sandbox_id: None,
        stdin: None,
        timeout: None,
        wait: None,
        watch: sandcell_engine::Watch::default(),
        ..ExecuteRequest::default()
    }
}

pub fn run_of(code: &str) -> RunRequest {
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
pub async fn streamed<F>(
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
