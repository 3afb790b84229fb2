//! Live interpreters that keep variables between executions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::{
    Advice, Backend, ByteSize, Exit, Failure, Finding, ImageMade, Program, Sandbox, SandboxError, SessionError,
    StateImage,
};

/// A language that this machine can run. Opens its sessions.
#[async_trait]
pub trait Language: Send + Sync + std::fmt::Debug {
    /// Returns its name and version.
    fn info(&self) -> &LanguageInfo;

    /// Returns the files and steps that run this code as a program, without a session. `env` is the sandbox's
    /// [`base_env`](Sandbox::base_env); a step takes from it the variables that it does not set.
    ///
    /// # Errors
    /// The code cannot be a program of this language.
    fn program(&self, code: &str, args: &[String], env: &BTreeMap<String, String>) -> Result<Program, Failure>;

    /// Returns the memory that programs of this language need to start. A sandbox for a single run has at least this
    /// much, unless its caller sets a limit.
    fn memory(&self) -> ByteSize {
        ByteSize::bytes(0)
    }

    /// Returns findings about code before it runs. Time and memory are bounded for any code. Languages without an
    /// analysis return nothing.
    fn analyse(&self, _code: &str, _advice: &Advice) -> Vec<Finding> {
        Vec::new()
    }

    /// Returns the language as installed in a sandbox whose programs come from its image. None: the host's language
    /// applies.
    ///
    /// # Errors
    /// The image does not have the language.
    async fn inside(&self, _sandbox: &dyn Sandbox) -> Result<Option<Arc<dyn Language>>, Failure> {
        Ok(None)
    }

    /// Starts a zygote that has loaded these modules, in place of an earlier one. Later sessions start as its forks, in
    /// sandboxes of this back end to which these folders are attached, unless a sandbox has other versions of loaded
    /// modules. Returns the modules that could not be loaded. Other sessions start in the usual way.
    ///
    /// # Errors
    /// There is no zygote. The reason is for the operator.
    async fn start_zygote(
        &self,
        backend: &Arc<dyn Backend>,
        modules: &[String],
        attached: &[PathBuf],
    ) -> Result<Vec<NotLoaded>, SessionError> {
        let _ = (backend, modules, attached);
        Err(SandboxError::Unsupported("zygotes".to_owned()).into())
    }

    /// Returns the back end's number of the zygote that a session in a sandbox with these folders would fork from.
    fn matching_zygote(&self, attached: &[PathBuf]) -> Option<u64> {
        let _ = attached;
        None
    }

    /// Starts an interpreter in the sandbox and waits until it is ready (at most 30 s). If [`LanguageInfo::session`] is
    /// false, each cell is a separate program, and this starts nothing.
    async fn open(&self, sandbox: Arc<dyn Sandbox>) -> Result<Box<dyn Session>, SessionError>;

    /// Returns a text that is the same for all programs that can load each other's images: of this language's driver.
    fn image_format(&self) -> String {
        String::new()
    }

    /// Opens a session that goes on from an image, in a new sandbox with the same folders attached. The private files
    /// become those of the image. Without the memory of a session in it, the new session is empty.
    ///
    /// # Errors
    /// The state cannot go on there. The sandbox is of no further use.
    async fn open_image(&self, sandbox: &dyn Sandbox, image: &StateImage) -> Result<Box<dyn Session>, SessionError> {
        let _ = (sandbox, image);
        Err(SandboxError::Unsupported("branches of a sandbox".to_owned()).into())
    }
}

/// A language's name, other names and version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LanguageInfo {
    /// Its canonical name, in lower case.
    pub name: String,
    /// Other names that callers may use.
    pub aliases: Vec<String>,
    /// The version of the interpreter, such as `3.11.2`. Empty if not yet known.
    pub version: String,
    /// True if variables persist from cell to cell. If not, each cell is a separate program that shares the files.
    pub session: bool,
    /// The file name extensions, without the dot.
    pub extensions: Vec<String>,
    /// Data libraries that can be imported without installation, with versions (`numpy 2.1`).
    pub libraries: Vec<String>,
}

/// One piece of code to execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// The source.
    pub code: String,
    /// The content of standard input. None: reading it raises an error with that reason.
    pub stdin: Option<String>,
    /// The number of the cell in its session, from 1; used in tracebacks (`<cell 3>`).
    pub number: u32,
    /// True if [`SessionEvent::Install`] is answered.
    pub packages: bool,
    /// True if values shall also have their complete data as JSON, in a language that supports it.
    pub exact: bool,
    /// The execution of the cell, where the code can call tools of the host. It names the execution in its calls.
    pub execution: Option<String>,
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
    /// Returns the representation of this type.
    #[must_use]
    pub fn get(&self, mime: &str) -> Option<&Bytes> {
        self.0.get(mime)
    }

    /// Returns the plain text, lossily decoded. Empty if there is none.
    #[must_use]
    pub fn text(&self) -> String {
        self.get("text/plain")
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            .unwrap_or_default()
    }
}

/// An event of a running cell, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEvent {
    /// Bytes on stdout or stderr, from the cell, its threads or its child processes.
    Output {
        /// The stream.
        stream: OutputStream,
        /// The bytes, never empty.
        bytes: Bytes,
    },
    /// All output of threads and processes of earlier cells to a stream since the last cell ended. It precedes all
    /// other events of a cell, at most once for each stream.
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
    /// The code is compiled and begins to run. The time limit restarts here. At most once a cell.
    Begun,
    /// The cell requests packages and waits for [`Interrupter::installed`].
    Install {
        /// The requirements, as written. Untrusted bytes from inside, like all events.
        packages: Vec<String>,
    },
}

/// The result of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellOutcome {
    /// The end of the cell.
    pub status: CellStatus,
}

/// The ways in which a cell can end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CellStatus {
    /// It ran to completion.
    Ok,
    /// It called `sys.exit` or an equivalent; the session lives on.
    Exit(i32),
    /// It raised an error.
    Error(CellError),
    /// It was interrupted and the session lives on.
    Interrupted(CellError),
    /// The interpreter died during the cell. [`Session::aftermath`] tells if the session is over.
    Died(Exit),
    /// The cell ran as a program that has ended. The session keeps nothing between cells and lives on.
    Ended(Exit),
}

/// An error that code raised.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellError {
    /// The exception's class, such as `ValueError`.
    pub name: String,
    /// Its message.
    pub message: String,
    /// A short traceback that points at the caller's lines; ends without a line feed.
    pub traceback: String,
    /// Advice from the driver, such as the package to install or the location of a file. Empty if none. It is shown
    /// with the error, as text from the code.
    #[serde(default)]
    pub hint: String,
    /// A coarse class that the server maps to a cause: `memory`, `network`, `disk`, `processes`, `stdin`, `package`, or
    /// empty. The host adds two: `no_stdin` (no input is possible) and `compile` (the code never ran).
    #[serde(default)]
    pub class: String,
}

/// The features of a kind of session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionFeatures {
    /// It returns the last expression's value.
    pub result_value: bool,
    /// It returns plots and rich values.
    pub display: bool,
    /// It can interrupt code and keep the variables.
    pub interrupt: bool,
    /// It serves reads from standard input.
    pub stdin: bool,
}

/// A variable of a session, described without running any code of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// The class of its value.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its length, or its dimensions such as `100x3`. Empty if unknown.
    pub shape: String,
    /// Its memory in bytes, without the objects that it refers to. 0 if unknown.
    pub bytes: u64,
    /// The beginning of its text, for plain values only.
    pub preview: String,
}

/// A module that could not be preloaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotLoaded {
    /// Its name.
    pub name: String,
    /// The interpreter's message.
    pub why: String,
}

/// A live interpreter. It runs one cell at a time. Dropping it kills the interpreter.
#[async_trait]
pub trait Session: Send + std::fmt::Debug {
    /// Runs one cell. Sends events to `events` while it runs; the channel is bounded, so a full one slows the code
    /// down. Returns the outcome after the last event. The caller enforces deadlines through the [`Interrupter`].
    async fn execute(&mut self, cell: Cell, events: &mpsc::Sender<SessionEvent>) -> Result<CellOutcome, SessionError>;

    /// Returns the handle by which another task ends the running code.
    fn interrupter(&self) -> Arc<dyn Interrupter>;

    /// Returns the features of this session.
    fn features(&self) -> SessionFeatures;

    /// Returns the maximum time to prepare (compile) a cell before [`SessionEvent::Begun`], in addition to its run
    /// time.
    fn preparing(&self) -> Duration {
        Duration::ZERO
    }

    /// Lists the session's variables between cells, without running any code of them. The number is bounded. A session
    /// that cannot list them returns none.
    ///
    /// # Errors
    /// The session ended because of the request.
    async fn variables(&mut self) -> Result<Vec<Variable>, SessionError> {
        Ok(Vec::new())
    }

    /// Prepares the first cell: loads modules, so that the cell finds them loaded. Has no other visible effect, such as
    /// names or output. Returns the modules that could not be loaded. A session without this feature returns none.
    ///
    /// # Errors
    /// The session ended because of the request.
    async fn preload(&mut self, modules: &[String]) -> Result<Vec<NotLoaded>, SessionError> {
        let _ = modules;
        Ok(Vec::new())
    }

    /// Adds variables to the environment of the interpreter, before its first cell. They replace those of the same name.
    /// Returns false if the session cannot do this; the session is unchanged then.
    ///
    /// # Errors
    /// The session ended because of the request, or has only a part of the variables.
    async fn add_env(&mut self, env: &BTreeMap<String, String>) -> Result<bool, SessionError> {
        let _ = env;
        Ok(false)
    }

    /// Returns true if [`preload`](Self::preload) has loaded a module that this package folder also has, perhaps in
    /// another version.
    fn has_loaded_from(&self, folder: &Path) -> bool {
        let _ = folder;
        false
    }

    /// Returns true if the session has sent nothing since it was made. Used for an idle session that waits for its
    /// first cell: if it has sent something, its interpreter was most likely killed, and it is useless.
    fn is_untouched(&self) -> bool {
        true
    }

    /// Marks the next cell as the last one. The session need not keep anything for a later cell.
    fn last_cell(&mut self) {}

    /// Sets the time after the next cell during which snapshot work yields the processors to others.
    fn set_snapshot_delay(&mut self, time: Duration) {
        let _ = time;
    }

    /// Returns true if the session takes snapshots of itself after cells. See
    /// [`set_snapshot_delay`](Self::set_snapshot_delay) for the time.
    fn takes_snapshots(&self) -> bool {
        false
    }

    /// Returns the reason why the session cannot make checkpoints at all, as the end of a sentence that begins with
    /// "because". None: it can, or it has no state.
    fn checkpoint_obstacle(&self) -> Option<String> {
        Some("only Python sessions can be kept".to_owned())
    }

    /// Keeps the session's state between two cells under a number, which the caller uses once. An expendable checkpoint
    /// may be dropped when memory runs short.
    ///
    /// # Errors
    /// The inner error is the reason why the state cannot be kept now, as the end of a sentence that begins with
    /// "because". The outer one: the session ended because of the request.
    async fn checkpoint(&mut self, number: u32, expendable: bool) -> Result<Result<(), String>, SessionError> {
        let _ = (number, expendable);
        Ok(Err("only Python sessions can be kept".to_owned()))
    }

    /// Returns the numbers of the checkpoints, some of which may have been dropped meanwhile.
    fn checkpoints(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Asks for the checkpoints that still exist.
    async fn existing_checkpoints(&mut self) -> Vec<u32> {
        self.checkpoints()
    }

    /// Returns the memory that would be freed by the end of each checkpoint, in bytes. Takes some milliseconds.
    async fn checkpoint_sizes(&mut self) -> Result<Vec<(u32, u64)>, SessionError> {
        Ok(Vec::new())
    }

    /// Makes an image of a checkpoint, of at most `max_bytes`. It exists until [`drop_image`](Self::drop_image).
    ///
    /// # Errors
    /// The reason, as the end of a sentence that begins with "because". The session is unchanged.
    async fn image(&mut self, number: u32, max_bytes: u64) -> Result<ImageMade, String> {
        let _ = (number, max_bytes);
        Err("only Python sessions can be copied to another sandbox".to_owned())
    }

    /// Drops the image of a checkpoint.
    async fn drop_image(&mut self, number: u32) {
        let _ = number;
    }

    /// Drops a checkpoint.
    async fn drop_checkpoint(&mut self, number: u32) {
        let _ = number;
    }

    /// Ends the interpreter and the processes that it started. The checkpoints stay.
    async fn halt(&mut self) {}

    /// Brings back the state of a checkpoint, any number of times; also after the interpreter has ended. Ends the
    /// interpreter first.
    ///
    /// # Errors
    /// The session is over.
    async fn rewind(&mut self, number: u32) -> Result<(), SessionError> {
        let _ = number;
        Err(SandboxError::Unsupported("checkpoints".to_owned()).into())
    }

    /// Returns the state of the session after [`CellStatus::Died`].
    fn aftermath(&self) -> Aftermath {
        Aftermath::Over { why: None }
    }
}

/// The state of a session after its interpreter died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Aftermath {
    /// It lives on, in its state after the cell of this number. Later cells have left nothing but files.
    Restored {
        /// The number of the cell.
        cell: u32,
        /// The reason why no later state was restored, as the end of a sentence that begins with "because". None if
        /// unknown.
        why: Option<String>,
    },
    /// The session is over.
    Over {
        /// The reason why it could not be restored, as the end of a sentence that begins with "because". None if no
        /// restore was attempted, or if there was no snapshot.
        why: Option<String>,
    },
}

/// Ends the running code while [`Session::execute`] is in progress.
#[async_trait]
pub trait Interrupter: Send + Sync {
    /// Asks the code to stop, as Ctrl-C does. Variables survive if the code obeys.
    async fn interrupt(&self) -> Result<(), SandboxError>;

    /// Answers [`SessionEvent::Install`] with the installed packages, or with the reason for a refusal, for the caller
    /// to read.
    async fn installed(&self, result: Result<String, String>) -> Result<(), SandboxError> {
        let _ = result;
        Ok(())
    }

    /// Kills the interpreter and all processes that it started. `execute` then returns [`CellStatus::Died`].
    async fn kill(&self) -> Result<(), SandboxError>;

    /// Kills the interpreter of a session that will not be restored.
    async fn end(&self) -> Result<(), SandboxError> {
        self.kill().await
    }
}
