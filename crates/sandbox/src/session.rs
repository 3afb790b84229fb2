//! Live interpreters that keep variables between executions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::{Advice, Backend, ByteSize, Exit, Failure, Finding, Program, Sandbox, SandboxError, SessionError};

/// A language that this machine can run, and how its sessions are opened.
#[async_trait]
pub trait Language: Send + Sync + std::fmt::Debug {
    /// What it is called and which version is here.
    fn info(&self) -> &LanguageInfo;

    /// How this code is run on its own, without a session: the files it needs and the steps that run it. `env` is
    /// the sandbox's [`base_env`](Sandbox::base_env); variables that a step does not set itself come from there.
    ///
    /// # Errors
    /// When the code cannot be a program of this language.
    fn program(&self, code: &str, args: &[String], env: &BTreeMap<String, String>) -> Result<Program, Failure>;

    /// Memory below which programs of this language do not start: a sandbox made for one run has at least this,
    /// unless its caller says otherwise.
    fn memory(&self) -> ByteSize {
        ByteSize::bytes(0)
    }

    /// What is noticed about code before it runs. Bounded in time and memory whatever the code is; languages that have
    /// no such analysis notice nothing.
    fn analyse(&self, _code: &str, _advice: &Advice) -> Vec<Finding> {
        Vec::new()
    }

    /// The same language as a sandbox has it whose programs come from an image of its own; none: as it is here.
    ///
    /// # Errors
    /// The image does not have the language.
    async fn inside(&self, _sandbox: &dyn Sandbox) -> Result<Option<Arc<dyn Language>>, Failure> {
        Ok(None)
    }

    /// Makes an interpreter ready that has loaded these modules once, so that later sessions in sandboxes of this back end
    /// to which these folders are attached, and none with other versions of what it has loaded, begin as copies of it, in place
    /// of an earlier one. Says which modules could not be loaded. Sessions that cannot begin so start as ever.
    ///
    /// # Errors
    /// There is no such interpreter; the reason is for the operator.
    async fn warm(
        &self,
        backend: &Arc<dyn Backend>,
        modules: &[String],
        attached: &[PathBuf],
    ) -> Result<Vec<NotLoaded>, SessionError> {
        let _ = (backend, modules, attached);
        Err(SandboxError::Unsupported("warmed interpreters".to_owned()).into())
    }

    /// The interpreter, by its back end's number, as whose copy a session would begin in a sandbox with these folders.
    fn warmed(&self, attached: &[PathBuf]) -> Option<u64> {
        let _ = attached;
        None
    }

    /// Starts an interpreter in the sandbox and waits until it is ready (bounded: 30 s). Where
    /// [`LanguageInfo::session`] is false, each cell is a program of its own and nothing is started yet.
    async fn open(&self, sandbox: Arc<dyn Sandbox>) -> Result<Box<dyn Session>, SessionError>;
}

/// A language's name, other names and version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LanguageInfo {
    /// Its one name, lower case.
    pub name: String,
    /// Other names callers may use.
    pub aliases: Vec<String>,
    /// The version of the interpreter, such as `3.11.2`; empty where it was not asked yet.
    pub version: String,
    /// Whether variables stay from cell to cell. If not, each one is a program of its own that finds the files.
    pub session: bool,
    /// What its files' names end with, without the dot.
    pub extensions: Vec<String>,
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
    /// Whether [`SessionEvent::Install`] is answered.
    pub packages: bool,
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
        /// The stream.
        stream: OutputStream,
        /// The bytes, never empty.
        bytes: Bytes,
    },
    /// All that threads and processes of earlier cells wrote to a stream since the last cell was over. It comes before everything
    /// else of a cell, at most once for each stream.
    Background {
        /// The stream.
        stream: OutputStream,
        /// The bytes, never empty.
        bytes: Bytes,
    },
    /// Something shown with `display()` or a plot.
    Display(MimeBundle),
    /// The last expression's value.
    Result(MimeBundle),
    /// The code was prepared (compiled) and begins to run: time counts anew from here. At most once a cell.
    Begun,
    /// The cell wants packages to be installed and waits for [`Interrupter::installed`].
    Install {
        /// What it wants, as it was written. Bytes from inside, like all of these.
        packages: Vec<String>,
    },
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
    /// The interpreter ended in the middle; [`Session::aftermath`] says whether the session is over.
    Died(Exit),
    /// The program that the cell was has ended; the session keeps nothing between cells and lives on.
    Ended(Exit),
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
    /// What the driver can add: the package to install, where the file is. Empty if nothing. It is shown with the error, as
    /// the code's own words.
    #[serde(default)]
    pub hint: String,
    /// A coarse class that the server maps to a cause: `memory`, `network`, `disk`, `processes`, `stdin`,
    /// `package`, or empty; only from the host also `no_stdin` (there can be none) and `compile` (it never ran).
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

/// A variable of a session, described without running any of its code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// The class of its value.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its length, or its sides such as `100x3`; empty if it has none that is known.
    pub shape: String,
    /// What it takes in memory, without what it refers to; 0 if that is not known.
    pub bytes: u64,
    /// The beginning of its text, for plain values only.
    pub preview: String,
}

/// A module that could not be loaded ahead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotLoaded {
    /// Its name.
    pub name: String,
    /// What the interpreter said.
    pub why: String,
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

    /// How long a cell may be prepared (compiled) before [`SessionEvent::Begun`]; on top of the time it may run.
    fn preparing(&self) -> Duration {
        Duration::ZERO
    }

    /// The session's variables, between cells: listed without running any of their code, a bounded number of them.
    /// A session that cannot tell has none.
    ///
    /// # Errors
    /// When the session is over because of it.
    async fn variables(&mut self) -> Result<Vec<Variable>, SessionError> {
        Ok(Vec::new())
    }

    /// Gets ready for the first cell: loads modules, if any, so that it finds them loaded. Nothing else of it is to be seen:
    /// no name, no output. Says which could not be loaded. A session that knows no modules has loaded all of none.
    ///
    /// # Errors
    /// When the session is over because of it.
    async fn preload(&mut self, modules: &[String]) -> Result<Vec<NotLoaded>, SessionError> {
        let _ = modules;
        Ok(Vec::new())
    }

    /// Whether it has loaded ahead ([`preload`](Self::preload)) what this folder of packages has as well, perhaps in another
    /// version.
    fn has_loaded_from(&self, folder: &Path) -> bool {
        let _ = folder;
        false
    }

    /// Whether nothing has come of it since it was made. Asked of one that waits for its first cell: if something has, its
    /// interpreter was killed, most likely, and it is of no use.
    fn is_untouched(&self) -> bool {
        true
    }

    /// Says that the next cell is the last one: nothing has to be kept for another.
    fn last_cell(&mut self) {}

    /// For how long after the next cell others want the processors more than what is kept for later ones.
    fn give_way(&mut self, time: Duration) {
        let _ = time;
    }

    /// Whether it copies itself after cells, to be restored from ([`give_way`](Self::give_way) says when).
    fn keeps_copies(&self) -> bool {
        false
    }

    /// What [`CellStatus::Died`] left, once it was returned.
    fn aftermath(&self) -> Aftermath {
        Aftermath::Over { why: None }
    }
}

/// What became of a session whose interpreter has died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Aftermath {
    /// It lives on, as it was after the cell of this number. Later cells have left nothing but files.
    Restored {
        /// The cell.
        cell: u32,
        /// Why not after a later one, as the end of a sentence that begins with "because". None where nothing is known to have
        /// hindered it.
        why: Option<String>,
    },
    /// It is over.
    Over {
        /// Why it could not be restored, as the end of a sentence that begins with "because". None if there is nothing
        /// to say about it: nothing was tried, or there was nothing to restore.
        why: Option<String>,
    },
}

/// The means to end what a session runs while [`Session::execute`] is under way.
#[async_trait]
pub trait Interrupter: Send + Sync {
    /// Asks the code to stop, as Ctrl-C does. Variables survive if it yields.
    async fn interrupt(&self) -> Result<(), SandboxError>;

    /// Answers [`SessionEvent::Install`]: what was installed, or why nothing was, in words for the caller.
    async fn installed(&self, result: Result<String, String>) -> Result<(), SandboxError> {
        let _ = result;
        Ok(())
    }

    /// Kills the interpreter and every process it started. `execute` then returns [`CellStatus::Died`].
    async fn kill(&self) -> Result<(), SandboxError>;

    /// The same for a session that nobody wants back.
    async fn end(&self) -> Result<(), SandboxError> {
        self.kill().await
    }
}
