//! Live interpreters that keep variables between executions.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::{Command, Exit, Sandbox, SandboxError, SandboxPath, SessionError};

/// A language that this machine can run, and how its sessions are opened.
#[async_trait]
pub trait Language: Send + Sync + std::fmt::Debug {
    /// What it is called and which version is here.
    fn info(&self) -> &LanguageInfo;

    /// The file name a program of this language is stored under, such as `main.py`.
    fn file_name(&self) -> &str;

    /// How a program stored at `path` inside the sandbox is run on its own, without a session. `env` and `cwd` are
    /// filled by the caller afterwards, on top of what this sets.
    fn program(&self, path: &SandboxPath, args: &[String]) -> Command;

    /// Starts an interpreter in the sandbox and waits until it is ready (bounded: 30 s).
    async fn open(&self, sandbox: Arc<dyn Sandbox>) -> Result<Box<dyn Session>, SessionError>;
}

/// A language's name, other names and version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LanguageInfo {
    /// Its one name, lower case.
    pub name: String,
    /// Other names callers may use.
    pub aliases: Vec<String>,
    /// The version of the interpreter, such as `3.11.2`.
    pub version: String,
    /// Data libraries that can be imported without installing anything, with versions (`numpy 2.1`).
    pub libraries: Vec<String>,
}

/// One piece of code to execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// The source.
    pub code: String,
    /// What standard input holds; `None` means that reading it is an error that says so.
    pub stdin: Option<String>,
    /// The number of the cell in its session, from 1; used in tracebacks (`<cell 3>`).
    pub number: u32,
}

/// A standard stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// A value in several representations, by MIME type. Always has `text/plain`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MimeBundle(pub BTreeMap<String, Bytes>);

impl MimeBundle {
    /// The representation of this type.
    #[must_use]
    pub fn get(&self, mime: &str) -> Option<&Bytes> {
        self.0.get(mime)
    }

    /// The plain text, lossily decoded; empty if there is none.
    #[must_use]
    pub fn text(&self) -> String {
        self.get("text/plain")
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            .unwrap_or_default()
    }
}

/// What a session says while a cell runs, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEvent {
    /// Bytes on stdout or stderr, of the cell, its threads or its child processes.
    Output {
        /// Which stream.
        stream: OutputStream,
        /// The bytes, never empty.
        bytes: Bytes,
    },
    /// Something shown with `display()` or a plot.
    Display(MimeBundle),
    /// The last expression's value.
    Result(MimeBundle),
}

/// How a cell ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellOutcome {
    /// The end.
    pub status: CellStatus,
}

/// The ways a cell can end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CellStatus {
    /// It ran to its end.
    Ok,
    /// It called `sys.exit` (or its like); the session lives on.
    Exit(i32),
    /// It raised.
    Error(CellError),
    /// It was interrupted and the session lives on.
    Interrupted(CellError),
    /// The interpreter ended in the middle; this session is over.
    Died(Exit),
}

/// An error that code raised.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellError {
    /// The exception's class, such as `ValueError`.
    pub name: String,
    /// Its message.
    pub message: String,
    /// A short traceback that points at the caller's own lines; ends without a line feed.
    pub traceback: String,
    /// What the driver can add: the package to install, why the network is closed. Empty if nothing.
    #[serde(default)]
    pub hint: String,
    /// A coarse class that the server maps to a cause: `memory`, `network`, `disk`, `processes`, `stdin`, or empty.
    #[serde(default)]
    pub class: String,
}

/// What a kind of session can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionFeatures {
    /// The last expression's value comes back.
    pub result_value: bool,
    /// Plots and rich values come back.
    pub display: bool,
    /// Code can be interrupted with its variables kept.
    pub interrupt: bool,
    /// Reads from standard input are served.
    pub stdin: bool,
}

/// A live interpreter. One cell at a time; dropping it kills the interpreter.
#[async_trait]
pub trait Session: Send + std::fmt::Debug {
    /// Runs one cell. Events go to `events` while it runs (bounded: a full channel slows the code down); the
    /// outcome comes after the last event. Deadlines are the caller's: use the [`Interrupter`].
    async fn execute(&mut self, cell: Cell, events: &mpsc::Sender<SessionEvent>) -> Result<CellOutcome, SessionError>;

    /// Ends what runs, from another task.
    fn interrupter(&self) -> Arc<dyn Interrupter>;

    /// What this session can do.
    fn features(&self) -> SessionFeatures;
}

/// The means to end what a session runs while [`Session::execute`] is under way.
#[async_trait]
pub trait Interrupter: Send + Sync {
    /// Asks the code to stop, as Ctrl-C does. Variables survive if it yields.
    async fn interrupt(&self) -> Result<(), SandboxError>;

    /// Kills the interpreter and every process it started. `execute` then returns [`CellStatus::Died`].
    async fn kill(&self) -> Result<(), SandboxError>;
}
