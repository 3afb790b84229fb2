//! The engine: permissions, sandboxes and their owners, sessions, executions and their history.
//!
//! This is the library for Rust programs that want sandboxes without MCP: make an [`Engine`] from back ends and
//! languages, then call its methods with a [`Principal`]. It knows nothing of MCP, the command line, or the internals
//! of a back end.
//!
//! Each execution runs in a separate task, and so does the creation and the closing of each sandbox. A caller that
//! disconnects stops its request, but leaves nothing half done.
#![forbid(unsafe_code)]

mod advice;
pub mod api;

mod artifacts;
mod callers;
mod cells;
mod clock;
mod command;
mod core;
mod executions;
mod expiring;
mod files;
mod floor;
mod history;
mod ids;
mod kept;
mod ladder;
mod lasting;
mod meter;
mod network;
mod output;
mod packages;
mod passed;
mod policy;
mod pool;
mod program;
mod quota;
mod record;
mod registry;
mod said;
mod sandboxes;
mod sessions;
mod spans;
mod sync;
mod tally;
mod verdict;
mod wanted;
mod warden;
mod watching;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use sandcell_sandbox::{
    Backend, Capacity, Failure, FileChunk, Language, LanguageInfo, LeftToUser, Listing, Network, Packages, SandboxPath,
    SessionEvent, WriteMode,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use api::*;
pub use clock::rfc3339_millis as timestamp;
pub use command::{CommandInput, CommandLine, CommandRequest, StdinPart};
pub use expiring::{Expires, Expiring, ExpiringSoon, Expiry};
pub use floor::processors;
pub use history::{HistoryPage, HistoryQuery};
pub use lasting::{Auditor, EventKind, Finished, Keeper, KeptPicture, LastingView, SecurityEvent, Witnesses};
pub use meter::{MemoryGrowth, MemoryUse};
pub use network::Reaching;
pub use output::Progress;
pub use passed::{AbsentBackend, PassedOver};
pub use policy::{MAX_LIFETIME, MIN_MEMORY};
pub use quota::Quota;
pub use spans::TRACE_TARGET;
pub use tally::Counts;
pub use watching::{OutputPart, Watch};

use crate::callers::Callers;
use crate::cells::Stay;
use crate::core::Core;
use crate::expiring::Crier;
use crate::floor::Floor;
use crate::history::History;
use crate::kept::Executions;
use crate::ladder::Stop;
use crate::pool::Pool;
use crate::quota::Processor;
use crate::registry::Registry;
use crate::sync::Live;
use crate::tally::Tally;

/// The default language.
const PYTHON: &str = "python";
/// The maximum size of one part of a stream, in bytes.
const MOST_SLICE: u64 = 1 << 20;
/// The maximum length of a search text, in bytes.
const MOST_FIND: usize = 1000;
/// History rows in memory when a sink stores all rows: enough to answer from while the sink's disk is slow.
const KEPT_TWICE: usize = 2048;

/// Runs code in sandboxes for many callers.
#[derive(Debug)]
pub struct Engine {
    core: Arc<Core>,
}

impl Engine {
    /// Creates an engine that makes sandboxes with these back ends, in this order, and runs these languages.
    ///
    /// The caller has already selected the back ends that are strong enough: the engine uses all of these. Call it
    /// inside a tokio runtime with time enabled.
    #[must_use]
    pub fn new(config: EngineConfig, backends: Vec<Arc<dyn Backend>>, languages: Vec<Arc<dyn Language>>) -> Arc<Self> {
        Self::with_packages(config, backends, languages, None)
    }

    /// Creates an engine like [`Engine::new`], with an installer of packages.
    #[must_use]
    pub fn with_packages(
        config: EngineConfig,
        backends: Vec<Arc<dyn Backend>>,
        languages: Vec<Arc<dyn Language>>,
        packages: Option<Arc<dyn Packages>>,
    ) -> Arc<Self> {
        let packages = packages.into_iter().collect();
        Self::witnessed(config, backends, languages, packages, None, Witnesses::default())
    }

    /// Creates an engine like [`Engine::new`], with installers of packages (one for each kind), a network that connects
    /// sandboxes to allowed hosts, and observers that store history and security events permanently.
    #[must_use]
    pub fn witnessed(
        config: EngineConfig,
        backends: Vec<Arc<dyn Backend>>,
        languages: Vec<Arc<dyn Language>>,
        packages: Vec<Arc<dyn Packages>>,
        network: Option<Arc<dyn Network>>,
        witnesses: Witnesses,
    ) -> Arc<Self> {
        let mut config = config;
        core::tell_of_network(&mut config, network.as_ref());
        let core = Arc::new(Core {
            registry: Registry::new(&config),
            executions: Executions::default(),
            history: Mutex::new(History::new(
                match witnesses.keeper {
                    Some(_) => config.history_rows.min(KEPT_TWICE),
                    None => config.history_rows,
                },
                config.history_age,
            )),
            pool: Pool::new(&config.pool),
            tally: Tally::default(),
            crier: Crier::default(),
            floor: Floor::new(config.executions, config.executions_per_caller),
            callers: Callers::default(),
            processor: Processor::new(&config.quota),
            wanted: wanted::Wanted::default(),
            down: CancellationToken::new(),
            ending: CancellationToken::new(),
            config: Live::new(config),
            backends,
            languages,
            packages: Live::new(packages),
            network: Live::new(network),
            witnesses,
        });
        tokio::spawn(pool::fill(core.clone()));
        Arc::new(Self { core })
    }

    /// Returns the current settings.
    #[must_use]
    pub fn config(&self) -> Arc<EngineConfig> {
        self.core.config()
    }

    /// Replaces the settings for later requests: limits, quotas, pool size, allowed hosts and packages. Existing
    /// sandboxes keep the settings that they were made with. The age limit of the history stays.
    pub fn change(&self, config: EngineConfig, network: Option<Arc<dyn Network>>, packages: Vec<Arc<dyn Packages>>) {
        self.core.change(config, network, packages);
    }

    /// Lists the sandboxes of all callers that can reach hosts, oldest first. They keep the hosts that they were made
    /// with.
    #[must_use]
    pub fn reaching(&self) -> Vec<Reaching> {
        self.core.reaching()
    }

    /// Lists the available languages.
    #[must_use]
    pub fn languages(&self) -> Vec<LanguageInfo> {
        self.core.languages.iter().map(|l| l.info().clone()).collect()
    }

    /// The language of calls that name none: Python, or the first language where Python is not available.
    #[must_use]
    pub fn default_language(&self) -> &str {
        let mut names = self.core.languages.iter().map(|l| l.info().name.as_str());
        let first = names.clone().next();
        names.find(|name| *name == PYTHON).or(first).unwrap_or(PYTHON)
    }

    /// Lists the back ends, in the order in which the engine tries them.
    #[must_use]
    pub fn backends(&self) -> Vec<BackendView> {
        let view = |backend: &Arc<dyn Backend>| BackendView {
            name: backend.name(),
            isolation: backend.isolation().clone(),
            layers: backend.layers().to_vec(),
            left_out: backend.left_out().to_vec(),
            knows_images: backend.knows_images(),
            shows_host: backend.shows_host(),
        };
        self.core.backends.iter().map(view).collect()
    }

    /// Returns the number of sandboxes of the preferred back end that fit within the machine's limits. None if nothing
    /// bounds them.
    #[must_use]
    pub fn capacity(&self) -> Option<Capacity> {
        self.core.backends.first()?.capacity()
    }

    /// Returns the engine's counters since its start, and its current numbers.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let (sandboxes, callers) = self.core.registry.count();
        let (running, queued) = self.core.floor.count();
        let whole = |number| u64::try_from(number).unwrap_or(u64::MAX);
        Counts {
            sandboxes: whole(sandboxes),
            sandboxes_most: whole(self.core.config().sandboxes),
            callers: whole(callers),
            waiting: whole(self.core.pool.waiting()),
            running: whole(running),
            queued: whole(queued),
            ..self.core.tally.read()
        }
    }

    /// Runs code in the session of its sandbox and language, which keeps variables.
    ///
    /// When `cancel` fires or the caller drops this future, the engine ends the code at once, unless the answer
    /// `running` was given before.
    ///
    /// # Errors
    /// When the call cannot be carried out. Code that fails is a result, not an error.
    pub async fn execute(
        self: &Arc<Self>,
        who: &Principal,
        req: ExecuteRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.core.execute(who, req, Stay::Variables, cancel).await
    }

    /// Runs code in a separate interpreter that ends with it. Files of the sandbox stay. `cancel` works as with
    /// [`Engine::execute`].
    ///
    /// # Errors
    /// When the call cannot be carried out.
    pub async fn execute_alone(
        self: &Arc<Self>,
        who: &Principal,
        req: ExecuteRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.core.execute(who, req, Stay::Files, cancel).await
    }

    /// Runs code in a fresh sandbox and closes the sandbox afterwards. `cancel` works as with [`Engine::execute`].
    ///
    /// # Errors
    /// When the call cannot be carried out.
    pub async fn run_once(
        self: &Arc<Self>,
        who: &Principal,
        req: RunRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.core.run_once(who, req, cancel).await
    }

    /// Runs a whole program in a fresh sandbox. The engine sends its output to `output` at once and stores it like any
    /// other. `stdin` feeds the program until the channel is closed. A reader that does not read `output` stops the
    /// program. A compiler's messages come first. [`SessionEvent::Begun`] follows them where the program begins to run.
    ///
    /// # Errors
    /// When the program could not be run.
    pub async fn run_program(
        self: &Arc<Self>,
        who: &Principal,
        req: ProgramRequest,
        stdin: mpsc::Receiver<Bytes>,
        output: mpsc::Sender<SessionEvent>,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.core.run_program(who, req, stdin, output, cancel).await
    }

    /// Runs a program in a sandbox (the default one if none is named), next to its sessions and without waiting for any
    /// of them. The engine sends its output to `output` at once and stores it like any other. `stdin` feeds the program
    /// until the channel is closed. A reader that does not read `output` stops the program. `cancel` works as with
    /// [`Engine::execute`].
    ///
    /// # Errors
    /// When the program could not be run.
    pub async fn run_command(
        self: &Arc<Self>,
        who: &Principal,
        req: CommandRequest,
        stdin: mpsc::Receiver<Bytes>,
        output: mpsc::Sender<SessionEvent>,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.core.run_command(who, req, stdin, output, cancel).await
    }

    /// Does the same as [`Engine::run_command`] for callers that do not follow the output. The engine stores it like
    /// any other, and [`Engine::write_stdin`] feeds the program where `input` stays open.
    ///
    /// # Errors
    /// When the program could not be run.
    pub async fn start_command(
        self: &Arc<Self>,
        who: &Principal,
        req: CommandRequest,
        input: CommandInput,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.core.start_command(who, req, input, cancel).await
    }

    /// Writes to the standard input of a running command. Either all bytes are queued or none. If the program does not
    /// read, the call waits, for at most `wait`.
    ///
    /// # Errors
    /// The caller has no such execution, it has ended, its input is closed, or the program does not read.
    pub async fn write_stdin(
        &self,
        who: &Principal,
        id: &str,
        part: StdinPart,
        wait: Duration,
        cancel: CancellationToken,
    ) -> Result<ExecutionId, Failure> {
        self.core.write_stdin(who, id, part, wait, cancel).await
    }

    /// Installs packages in a sandbox (the default one if none is named). Running sessions can use them, too. The
    /// answer is an execution whose output lists the installed packages. `cancel` works as with [`Engine::execute`].
    ///
    /// # Errors
    /// When the packages are not allowed or the installation fails.
    pub async fn install(
        self: &Arc<Self>,
        who: &Principal,
        req: InstallRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.core.install(who, req, cancel).await
    }

    /// Lists the languages that have installable packages.
    #[must_use]
    pub fn package_languages(&self) -> Vec<String> {
        let name = |packages: &Arc<dyn Packages>| packages.language().to_owned();
        self.core.packages.get().iter().map(name).collect()
    }

    /// Lists the parts of a call that need the user's consent. Without consent in the request, the engine refuses the
    /// call. Without a language, packages are those of `create_sandbox`.
    #[must_use]
    pub fn left_to_user(&self, language: Option<&str>, packages: &[String], hosts: &[String]) -> LeftToUser {
        self.core.left_to_user(language, packages, hosts)
    }

    /// Lists the hosts that a sandbox can ask for. Empty where there is no network.
    #[must_use]
    pub fn network_allowed(&self) -> Vec<String> {
        let network = self.core.network.get();
        let network = network.as_ref().as_ref();
        network.map_or_else(Vec::new, |network| network.allowed().to_vec())
    }

    /// Makes `req.count` sandboxes, or none.
    ///
    /// # Errors
    /// When a limit is reached, an argument is not valid, or a back end fails.
    pub async fn create(self: &Arc<Self>, who: &Principal, req: CreateRequest) -> Result<Vec<SandboxView>, Failure> {
        let made = self.core.create(who, req).await;
        if let Err(failure) = &made {
            self.core.witnesses.note(|| SecurityEvent {
                who: Some(who.clone()),
                code: Some(failure.code),
                ..SecurityEvent::new(EventKind::CallRefused, format!("create_sandbox: {}", failure.message))
            });
        }
        made
    }

    /// Subscribes to the expiry of the caller's sandboxes. The notice comes five minutes before the end, or a fifth of
    /// the lifetime before it where a sandbox lives for less than 25 minutes.
    #[must_use]
    pub fn expiring(&self, who: &Principal) -> ExpiringSoon {
        self.core.crier.listen(who)
    }

    /// Closes a sandbox and everything in it.
    ///
    /// # Errors
    /// When the caller has no such sandbox.
    pub async fn close(&self, who: &Principal, id: &str) -> Result<SandboxId, Failure> {
        self.core.close(who, id).await
    }

    /// Returns one sandbox of the caller, or all of them. Naming one counts as using it; listing all does not.
    ///
    /// # Errors
    /// When the caller has no such sandbox.
    pub async fn status(&self, who: &Principal, id: Option<&str>) -> Result<Vec<SandboxView>, Failure> {
        self.core.status(who, id).await
    }

    /// Returns an execution after waiting at most `wait` for its end. Its artifacts stay available after its sandbox
    /// has ended.
    ///
    /// # Errors
    /// When the caller has no such execution, or its output is no longer stored.
    pub async fn execution(&self, who: &Principal, id: &str, wait: Duration) -> Result<ExecutionView, Failure> {
        let execution = self.core.executions.find(who, id)?;
        Ok(self.core.wait(&execution, wait).await)
    }

    /// Lists the caller's unfinished executions, newest first. At most `executions_per_caller` of them run; the others
    /// wait.
    #[must_use]
    pub fn running(&self, who: &Principal) -> Vec<RunningView> {
        let running = self.core.executions.running(who);
        running.iter().map(|execution| execution.glance()).collect()
    }

    /// Returns a finished execution of the caller from the permanent history, which has it longer than
    /// [`Engine::execution`]. The permanent history has no files.
    ///
    /// # Errors
    /// When the caller has no such execution there, or there is no permanent history.
    pub async fn kept(&self, who: &Principal, id: &str) -> Result<KeptExecution, Failure> {
        let found = match &self.core.witnesses.keeper {
            Some(keeper) => keeper.find(who, id).await,
            None => None,
        };
        found.ok_or_else(|| kept::unknown(id))
    }

    /// Returns one picture of the caller's execution from the permanent history. None if there is none with that
    /// number.
    pub async fn picture(&self, who: &Principal, id: &str, number: u32) -> Option<KeptPicture> {
        match &self.core.witnesses.keeper {
            Some(keeper) => keeper.picture(who, id, number).await,
            None => None,
        }
    }

    /// Lets `watch` follow an execution of the caller.
    ///
    /// # Errors
    /// When the caller has no such execution.
    pub fn watch(&self, who: &Principal, id: &str, watch: &Watch) -> Result<(), Failure> {
        watch.follow(&self.core.executions.find(who, id)?);
        Ok(())
    }

    /// Returns a part of an execution's output, result or code. A negative `offset` counts from the end. `find` moves
    /// the start to the next occurrence of that text.
    ///
    /// # Errors
    /// When the caller has no such execution, or `limit` is 0.
    pub async fn stream(
        &self,
        who: &Principal,
        id: &str,
        what: StreamName,
        offset: i64,
        limit: u64,
        find: Option<&str>,
    ) -> Result<StreamSlice, Failure> {
        let execution = self.core.executions.find(who, id)?;
        if limit == 0 {
            return Err(Failure::invalid("limit is 0", "ask for at least one byte"));
        }
        if find.is_some_and(|text| text.is_empty() || text.len() > MOST_FIND) {
            return Err(Failure::invalid(
                "the text to find is empty or too long",
                format!("use at most {MOST_FIND} bytes, or leave it out"),
            ));
        }
        Ok(execution.slice(what, offset, limit.min(MOST_SLICE), find))
    }

    /// Ends an execution of the caller, or the newest running one. A finished execution stays unchanged.
    ///
    /// # Errors
    /// When the caller has no such execution, or none runs.
    pub async fn cancel(&self, who: &Principal, id: Option<&str>) -> Result<ExecutionView, Failure> {
        let execution = match id {
            Some(id) => self.core.executions.find(who, id)?,
            None => self.core.executions.newest_running(who).ok_or_else(|| {
                Failure::new(
                    sandcell_sandbox::Code::NotFound,
                    "nothing is running",
                    "get_execution_history lists what ran",
                )
            })?,
        };
        Ok(self.core.end(&execution, Stop::Cancelled).await)
    }

    /// Lists a folder of a sandbox.
    ///
    /// # Errors
    /// When there is no such sandbox or folder.
    pub async fn list_files(
        self: &Arc<Self>,
        who: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
        recursive: bool,
        max: usize,
    ) -> Result<FileAnswer<Listing>, Failure> {
        self.core.list_files(who, sandbox, path, recursive, max).await
    }

    /// Reads a piece of a file, at most the configured number of bytes.
    ///
    /// # Errors
    /// When there is no such sandbox, or the file cannot be read.
    pub async fn read_file(
        self: &Arc<Self>,
        who: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
        offset: u64,
        len: u64,
    ) -> Result<FileAnswer<FileChunk>, Failure> {
        self.core.read_file(who, sandbox, path, offset, len).await
    }

    /// Writes a file and returns its new size.
    ///
    /// # Errors
    /// When there is no such sandbox, or the file cannot be written.
    pub async fn write_file(
        self: &Arc<Self>,
        who: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
        bytes: Bytes,
        mode: WriteMode,
    ) -> Result<FileAnswer<u64>, Failure> {
        self.core.write_file(who, sandbox, path, bytes, mode).await
    }

    /// Returns the caller's newest executions since the last reset. `last_n` is clamped to 1..=50.
    ///
    /// # Errors
    /// When `sandbox` neither exists nor occurs in the history.
    pub async fn history(&self, who: &Principal, last_n: usize, sandbox: Option<&str>) -> Result<HistoryView, Failure> {
        self.core.history(who, last_n, sandbox).await
    }

    /// Returns a page of the caller's history since the last reset, newest first: executions that match a search.
    ///
    /// # Errors
    /// When the search has too many or too long words.
    pub async fn search(&self, who: &Principal, query: &HistoryQuery) -> Result<HistoryPage, Failure> {
        self.core.search(who, query).await
    }

    /// Restarts the interpreters of a sandbox (the default one if none is named), of one language or all, and starts a
    /// new view of the history. Files stay.
    ///
    /// # Errors
    /// When there is no such sandbox or language.
    pub async fn reset(
        &self,
        who: &Principal,
        sandbox: Option<&str>,
        language: Option<&str>,
    ) -> Result<ResetView, Failure> {
        self.core.reset(who, sandbox, language).await
    }

    /// Records a security event, if there is an auditor.
    pub fn note(&self, event: SecurityEvent) {
        self.core.witnesses.note(|| event);
    }

    /// Ends all sandboxes and refuses further calls. Waits until the permanent history has the records. Bounded (7 s).
    /// A second call does no harm.
    pub async fn shutdown(&self) {
        self.core.shutdown().await;
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.core.down.cancel();
    }
}
