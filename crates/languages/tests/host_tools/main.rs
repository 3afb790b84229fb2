//! Tools of the host in Bash and Node: the real interpreters and drivers, in a sandbox that isolates nothing. A stub of the
//! port for tools answers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "a test says what went wrong by failing"
)]

#[allow(dead_code, reason = "the tests of Python use the rest")]
#[path = "../python/support/mod.rs"]
mod support;

mod bash;
mod node;
mod stub;

use std::sync::Arc;

use sandcell_languages::{Detected, Settings, detect};
use sandcell_sandbox::{Cell, CellStatus, Interrupter, Language, OutputStream, Session, SessionEvent};
use tokio::sync::mpsc;

use self::stub::Stub;
use self::support::HostSandbox;

/// The execution of all cells.
const EXECUTION_ID: &str = "exe_1";

/// Finds a language of this machine. If it has none of this name, prints a note and returns None.
fn find(detected: &Detected, name: &str) -> Option<Arc<dyn Language>> {
    let found = detected
        .languages()
        .into_iter()
        .find(|language| language.info().name == name);
    if found.is_none() {
        println!("skipped: no {name}");
    }
    found
}

/// A session on the host.
struct Live {
    session: Box<dyn Session>,
    /// Keeps its home folder.
    _sandbox: Arc<HostSandbox>,
    cells: u32,
}

/// The end of a cell, and its output.
#[derive(Debug)]
struct Ran {
    stdout: String,
    stderr: String,
    result: String,
    status: CellStatus,
}

impl Live {
    /// Starts a session; with the tools of a stub, if there is one.
    async fn start(language: &str, stub: Option<&Stub>) -> Option<Self> {
        let language = find(&detect(&Settings::default()), language)?;
        let sandbox = match stub {
            Some(stub) => HostSandbox::with_variables(&[("SANDCELL_TOOLS_URL", stub.url.as_str())]),
            None => HostSandbox::new(),
        };
        let session = language.open(sandbox.clone()).await.unwrap();
        Some(Self {
            session,
            _sandbox: sandbox,
            cells: 0,
        })
    }

    fn interrupter(&self) -> Arc<dyn Interrupter> {
        self.session.interrupter()
    }

    async fn run(&mut self, code: &str) -> Ran {
        self.run_with(code, None).await
    }

    async fn run_with(&mut self, code: &str, stdin: Option<&str>) -> Ran {
        self.cells += 1;
        let (sender, mut events) = mpsc::channel(16);
        let cell = Cell {
            code: code.to_owned(),
            stdin: stdin.map(str::to_owned),
            number: self.cells,
            packages: false,
            exact: false,
            execution: Some(EXECUTION_ID.to_owned()),
        };
        let collect = async {
            let (mut stdout, mut stderr, mut result) = (Vec::new(), Vec::new(), String::new());
            while let Some(event) = events.recv().await {
                match event {
                    SessionEvent::Output { stream, bytes } | SessionEvent::Background { stream, bytes, .. } => {
                        match stream {
                            OutputStream::Stdout => stdout.extend_from_slice(&bytes),
                            OutputStream::Stderr => stderr.extend_from_slice(&bytes),
                        }
                    }
                    SessionEvent::Result(bundle) => result = bundle.text(),
                    _ => {}
                }
            }
            (stdout, stderr, result)
        };
        let session = &mut self.session;
        let execute = async move {
            let outcome = session.execute(cell, &sender).await;
            drop(sender);
            outcome
        };
        let both = async { tokio::join!(execute, collect) };
        let (outcome, (stdout, stderr, result)) = tokio::time::timeout(std::time::Duration::from_secs(120), both)
            .await
            .unwrap_or_else(|_| panic!("this cell did not end: {code}"));
        Ran {
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            result,
            status: outcome.unwrap().status,
        }
    }
}

/// Starts a session of a language, or returns from the test if this machine does not have it.
macro_rules! session {
    ($language:literal, $stub:expr) => {
        match $crate::Live::start($language, $stub).await {
            Some(live) => live,
            None => return,
        }
    };
}
pub(crate) use session;
