//! Who may run what, and where: sandboxes and their owners, sessions, executions and their history.
//!
//! This is the library for Rust programs that want sandboxes without MCP: make an [`Engine`] from back ends and
//! languages, then call its methods with a [`Principal`]. It knows nothing of MCP, the command line, or how a
//! back end works.
//!
//! Executions, and the making and ending of sandboxes, run in tasks of their own: a caller that leaves stops
//! what it asked for, but never leaves anything half done.
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
    Backend, Capacity, ConsentRequired, Failure, FileChunk, Language, LanguageInfo, Listing, Network, Packages,
    SandboxPath, SessionEvent, WriteMode,
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

/// The language of calls that name none.
const PYTHON: &str = "python";
/// The bytes that one part of a stream has at most.
const MOST_SLICE: u64 = 1 << 20;
/// The longest text that a stream is searched for.
const MOST_FIND: usize = 1000;
/// Rows of the history that memory has where a keeper has them all: enough to answer with while its disk is slow.
const KEPT_TWICE: usize = 2048;

/// Runs code in sandboxes for many callers.
#[derive(Debug)]
pub struct Engine {
    core: Arc<Core>,
}

impl Engine {
    /// An engine that makes sandboxes with these back ends, in this order, and runs these languages.
    ///
    /// Which back ends are strong enough is decided before: all of these may be used. Call it inside a tokio
    /// runtime with time enabled.
    #[must_use]
    pub fn new(config: EngineConfig, backends: Vec<Arc<dyn Backend>>, languages: Vec<Arc<dyn Language>>) -> Arc<Self> {
        Self::with_packages(config, backends, languages, None)
    }

    /// The same, with somebody who installs packages.
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

    /// The same, with those who install packages, one for each kind, somebody who takes sandboxes to hosts that they may
    /// reach, and those who keep what it does for longer than it lives.
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

    /// The settings in force.
    #[must_use]
    pub fn config(&self) -> Arc<EngineConfig> {
        self.core.config()
    }

    /// Puts other settings in force for what is asked for from now on: limits, quotas, how much waits, what may be reached and
    /// installed. Sandboxes that are there keep what they were made with, and how long history is kept stays.
    pub fn change(&self, config: EngineConfig, network: Option<Arc<dyn Network>>, packages: Vec<Arc<dyn Packages>>) {
        self.core.change(config, network, packages);
    }

    /// Sandboxes that reach hosts, whoever's they are, oldest first: they were made with these and keep them.
    #[must_use]
    pub fn reaching(&self) -> Vec<Reaching> {
        self.core.reaching()
    }

    /// The languages that code can be in.
    #[must_use]
    pub fn languages(&self) -> Vec<LanguageInfo> {
        self.core.languages.iter().map(|l| l.info().clone()).collect()
    }

    /// The language of calls that name none: Python, or the first where that is not here.
    #[must_use]
    pub fn default_language(&self) -> &str {
        let mut names = self.core.languages.iter().map(|l| l.info().name.as_str());
        let first = names.clone().next();
        names.find(|name| *name == PYTHON).or(first).unwrap_or(PYTHON)
    }

    /// The back ends, in the order in which they are tried.
    #[must_use]
    pub fn backends(&self) -> Vec<BackendView> {
        let view = |backend: &Arc<dyn Backend>| BackendView {
            name: backend.name(),
            isolation: backend.isolation().clone(),
            layers: backend.layers().to_vec(),
            left_out: backend.left_out().to_vec(),
            supports_images: backend.supports_images(),
            uses_host_programs: backend.uses_host_programs(),
        };
        self.core.backends.iter().map(view).collect()
    }

    /// Returns how many sandboxes of the preferred back end fit within the machine's limits. None if nothing bounds them.
    #[must_use]
    pub fn capacity(&self) -> Option<Capacity> {
        self.core.backends.first()?.capacity()
    }

    /// What the engine did since it started, and what it holds now.
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
    /// When `cancel` fires or this future is dropped, the code is ended at once, unless the answer `running` was
    /// given before.
    ///
    /// # Errors
    /// When the call cannot be done as asked. Code that fails is a result, not an error.
    pub async fn execute(
        self: &Arc<Self>,
        who: &Principal,
        req: ExecuteRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.core.execute(who, req, Stay::Variables, cancel).await
    }

    /// Runs code in an interpreter of its own that ends with it; files of the sandbox stay. `cancel` works as with
    /// [`Engine::execute`].
    ///
    /// # Errors
    /// When the call cannot be done as asked.
    pub async fn execute_alone(
        self: &Arc<Self>,
        who: &Principal,
        req: ExecuteRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.core.execute(who, req, Stay::Files, cancel).await
    }

    /// Runs code in a fresh sandbox that is closed afterwards. `cancel` works as with [`Engine::execute`].
    ///
    /// # Errors
    /// When the call cannot be done as asked.
    pub async fn run_once(
        self: &Arc<Self>,
        who: &Principal,
        req: RunRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.core.run_once(who, req, cancel).await
    }

    /// Runs a whole program in a fresh sandbox. Its output goes to `output` as it comes, and is kept like any
    /// other; `stdin` feeds it until the channel is closed. Not reading `output` stops the program. The words of a
    /// compiler come first, and [`SessionEvent::Begun`] after them where the program begins to run.
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

    /// Runs a program in a sandbox (without one: the default one) next to its sessions, without waiting for any of them. Its
    /// output goes to `output` as it comes, and is kept like any other; `stdin` feeds it until the channel is closed. Not
    /// reading `output` stops the program. `cancel` works as with [`Engine::execute`].
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

    /// Does the same as [`Engine::run_command`] for callers that do not follow the output. It is kept like any other, and
    /// [`Engine::write_stdin`] feeds the program where `input` stays open.
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

    /// Writes to the standard input of a command that runs. Either all is queued or nothing: a program that does not read
    /// makes the call wait, for at most `wait`.
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

    /// Installs packages in a sandbox (without one: the default one), for sessions that run already, too. The answer is
    /// an execution whose output says what was installed. `cancel` works as with [`Engine::execute`].
    ///
    /// # Errors
    /// When the packages may not be or could not be installed.
    pub async fn install(
        self: &Arc<Self>,
        who: &Principal,
        req: InstallRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.core.install(who, req, cancel).await
    }

    /// The languages that packages can be installed for.
    #[must_use]
    pub fn package_languages(&self) -> Vec<String> {
        let name = |packages: &Arc<dyn Packages>| packages.language().to_owned();
        self.core.packages.get().iter().map(name).collect()
    }

    /// What of a call the operator leaves to the user: without a yes in the request it is refused. Without a language,
    /// packages are those of `create_sandbox`.
    #[must_use]
    pub fn consent_required(&self, language: Option<&str>, packages: &[String], hosts: &[String]) -> ConsentRequired {
        self.core.consent_required(language, packages, hosts)
    }

    /// The most that a sandbox may ask to reach; nothing where there is no network.
    #[must_use]
    pub fn network_allowed(&self) -> Vec<String> {
        let network = self.core.network.get();
        let network = network.as_ref().as_ref();
        network.map_or_else(Vec::new, |network| network.allowed().to_vec())
    }

    /// Makes sandboxes: all that are asked for, or none.
    ///
    /// # Errors
    /// When a limit is reached, an argument is not possible, or a back end fails.
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

    /// The caller's sandboxes that end soon, from now on: five minutes before, or where they live for less than 25 minutes
    /// a fifth of that.
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

    /// One sandbox of the caller, or all of them. Naming one counts as using it; listing all does not.
    ///
    /// # Errors
    /// When the caller has no such sandbox.
    pub async fn status(&self, who: &Principal, id: Option<&str>) -> Result<Vec<SandboxView>, Failure> {
        self.core.status(who, id).await
    }

    /// An execution; waits for its end for so long at most. Its artifacts live here when its sandbox is gone.
    ///
    /// # Errors
    /// When the caller has no such execution, or it is not kept any more.
    pub async fn execution(&self, who: &Principal, id: &str, wait: Duration) -> Result<ExecutionView, Failure> {
        let execution = self.core.executions.find(who, id)?;
        Ok(self.core.wait(&execution, wait).await)
    }

    /// The caller's executions that are not finished, newest first. As many as `executions_per_caller` run, others wait.
    #[must_use]
    pub fn running(&self, who: &Principal) -> Vec<RunningView> {
        let running = self.core.executions.running(who);
        running.iter().map(|execution| execution.glance()).collect()
    }

    /// A finished execution of the caller's from the history that lasts, which has it longer than [`Engine::execution`];
    /// files are not in it.
    ///
    /// # Errors
    /// When the caller has no such execution there, or nobody keeps such a history.
    pub async fn kept(&self, who: &Principal, id: &str) -> Result<KeptExecution, Failure> {
        let found = match &self.core.witnesses.keeper {
            Some(keeper) => keeper.find(who, id).await,
            None => None,
        };
        found.ok_or_else(|| kept::unknown(id))
    }

    /// One picture of an execution of the caller's from the history that lasts. None if there is none with that number.
    pub async fn picture(&self, who: &Principal, id: &str, number: u32) -> Option<KeptPicture> {
        match &self.core.witnesses.keeper {
            Some(keeper) => keeper.picture(who, id, number).await,
            None => None,
        }
    }

    /// Lets `watch` follow an execution of the caller's.
    ///
    /// # Errors
    /// When the caller has no such execution.
    pub fn watch(&self, who: &Principal, id: &str, watch: &Watch) -> Result<(), Failure> {
        watch.follow(&self.core.executions.find(who, id)?);
        Ok(())
    }

    /// A part of what an execution printed, or of its code. A negative `offset` counts from the end; `find` moves
    /// it to the next place where that text stands.
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

    /// Ends an execution of the caller, or the newest one that runs. One that is over already stays as it is.
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

    /// Reads a piece of a file, at most the configured bytes.
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

    /// Writes a file and says how large it is now.
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

    /// The caller's newest executions since the last reset; `last_n` is brought within 1 and 50.
    ///
    /// # Errors
    /// When a sandbox is named that neither exists nor stands in the history.
    pub async fn history(&self, who: &Principal, last_n: usize, sandbox: Option<&str>) -> Result<HistoryView, Failure> {
        self.core.history(who, last_n, sandbox).await
    }

    /// A page of the caller's history since the last reset, newest first: executions that match a search.
    ///
    /// # Errors
    /// When the search has too many or too long words.
    pub async fn search(&self, who: &Principal, query: &HistoryQuery) -> Result<HistoryPage, Failure> {
        self.core.search(who, query).await
    }

    /// Restarts the interpreters of a sandbox (without one: the default one), of one language or all, and starts
    /// a new view of the history. Files stay.
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

    /// Writes down an event that matters for security, if anybody keeps those.
    pub fn note(&self, event: SecurityEvent) {
        self.core.witnesses.note(|| event);
    }

    /// Ends all sandboxes and takes no more calls. What is kept of their work is written down. Bounded (7 s); calling it again does no harm.
    pub async fn shutdown(&self) {
        self.core.shutdown().await;
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.core.down.cancel();
    }
}
