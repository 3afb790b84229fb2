//! The engine: permissions, sandboxes and their owners, sessions, executions and their history.
//!
//! This is the library for Rust programs that want sandboxes without MCP: make an [`Engine`] from back ends and
//! languages, then call its methods with a [`Principal`]. It knows nothing of MCP, the command line, or the internals
//! of a back end.
//!
//! Each execution runs in a separate task, and so does the creation and the closing of each sandbox. A caller that
//! disconnects stops its request, but leaves nothing half done.
#![forbid(unsafe_code)]

mod admission;
pub mod api;
mod checkpoint_calls;
mod execution;
mod file_calls;
mod output;
mod records;
mod sandbox;
mod tool_calls;

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use sandcell_sandbox::{
    Backend, Capacity, Code, ConsentRequired, Failure, Language, LanguageInfo, Packages, SessionEvent, Signal,
    TerminalSize,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use admission::policy::{MAX_LIFETIME, MIN_MEMORY};
pub use admission::scheduler::processors;
pub use api::*;
pub use execution::progress::Watch;
pub use output::Utf8;
pub use records::metrics::Counts;
pub use records::sinks::{Auditor, EventKind, FinishedExecution, HistorySink, Observers, SecurityEvent, StoredView};
pub use records::spans::TRACE_TARGET;
pub use sandbox::expiry::ExpiryNotices;
pub use sandbox::files::FolderWatch;
pub use sandbox::ports::PortConnection;

use crate::admission::caller_number::CallerNumbers;
use crate::admission::quota::CpuQuota;
use crate::admission::scheduler::Scheduler;
use crate::api::sync::Replaceable;
use crate::execution::job::SessionMode;
use crate::execution::service::Executions;
use crate::execution::store::{self, ExecutionStore};
use crate::execution::termination::Stop;
use crate::records::Records;
use crate::records::history::History;
use crate::records::metrics::Metrics;
use crate::sandbox::expiry::ExpiryNotifier;
use crate::sandbox::image_interest::ImageInterests;
use crate::sandbox::pool::{self, Pool};
use crate::sandbox::registry::Registry;
use crate::sandbox::sandboxes::{Sandboxes, add_network_hint};

/// The default language.
const DEFAULT_LANGUAGE: &str = "python";
/// The maximum size of one part of a stream, in bytes.
const MAX_SLICE_BYTES: u64 = 1 << 20;
/// The maximum length of a search text, in bytes.
const MAX_FIND_BYTES: usize = 1000;
/// History rows in memory when a sink stores all rows: enough to answer from while the sink's disk is slow.
const MEMORY_ROWS_WITH_SINK: usize = 2048;

/// Runs code in sandboxes for many callers.
#[derive(Debug)]
pub struct Engine {
    executions: Arc<Executions>,
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
        let outside = Outside {
            packages,
            ..Outside::default()
        };
        Self::with_observers(config, backends, languages, outside, Observers::default())
    }

    /// Creates an engine like [`Engine::new`], with ways out of the sandboxes, and observers that store history and security
    /// events permanently.
    #[must_use]
    pub fn with_observers(
        mut config: EngineConfig,
        backends: Vec<Arc<dyn Backend>>,
        languages: Vec<Arc<dyn Language>>,
        outside: Outside,
        observers: Observers,
    ) -> Arc<Self> {
        let Outside {
            network,
            packages,
            tools,
        } = outside;
        add_network_hint(&mut config, network.as_ref());
        let records = Records {
            history: Mutex::new(History::new(
                match observers.history_sink {
                    Some(_) => config.history_rows.min(MEMORY_ROWS_WITH_SINK),
                    None => config.history_rows,
                },
                config.history_age,
            )),
            observers,
            metrics: Metrics::default(),
        };
        let sandboxes = Arc::new(Sandboxes {
            registry: Registry::new(&config),
            records,
            pool: Pool::new(&config.pool),
            expiry_notifier: ExpiryNotifier::default(),
            scheduler: Scheduler::new(config.executions, config.executions_per_caller),
            caller_numbers: CallerNumbers::default(),
            cpu_quota: CpuQuota::new(&config.quota),
            image_interests: ImageInterests::default(),
            mount_folders: sandbox::mounts::MountFolders::open(&config.mounts),
            down: CancellationToken::new(),
            ending: CancellationToken::new(),
            config: Replaceable::new(config),
            backends,
            languages,
            packages: Replaceable::new(packages),
            network: Replaceable::new(network),
            tools: Replaceable::new(tools),
        });
        tokio::spawn(pool::run(sandboxes.clone()));
        tokio::spawn(sandboxes.clone().clean_saved());
        let executions = Executions {
            sandboxes,
            store: ExecutionStore::default(),
        };
        Arc::new(Self {
            executions: Arc::new(executions),
        })
    }

    /// Returns the current settings.
    #[must_use]
    pub fn config(&self) -> Arc<EngineConfig> {
        self.executions.sandboxes.config()
    }

    /// Replaces the settings for later requests: limits, quotas, pool size, allowed hosts, packages and tools. Existing
    /// sandboxes keep the settings that they were made with. The age limit of the history stays.
    pub fn change(&self, config: EngineConfig, outside: Outside) {
        self.executions.sandboxes.change(config, outside);
    }

    /// Lists the sandboxes of all callers that can reach hosts, oldest first. They keep the hosts that they were made
    /// with.
    #[must_use]
    pub fn networked_sandboxes(&self) -> Vec<NetworkedSandbox> {
        self.executions.sandboxes.networked_sandboxes()
    }

    /// Lists the available languages.
    #[must_use]
    pub fn languages(&self) -> Vec<LanguageInfo> {
        self.executions
            .sandboxes
            .languages
            .iter()
            .map(|l| l.info().clone())
            .collect()
    }

    /// The language of calls that name none: Python, or the first language where Python is not available.
    #[must_use]
    pub fn default_language(&self) -> &str {
        let mut names = self
            .executions
            .sandboxes
            .languages
            .iter()
            .map(|l| l.info().name.as_str());
        let first = names.clone().next();
        names
            .find(|name| *name == DEFAULT_LANGUAGE)
            .or(first)
            .unwrap_or(DEFAULT_LANGUAGE)
    }

    /// Lists the back ends, in the order in which the engine tries them.
    #[must_use]
    pub fn backends(&self) -> Vec<BackendView> {
        let view = |backend: &Arc<dyn Backend>| BackendView {
            name: backend.name(),
            isolation: backend.isolation().clone(),
            layers: backend.layers().to_vec(),
            left_out: backend
                .this_machine()
                .map(|machine| machine.left_out().to_vec())
                .unwrap_or_default(),
            supports_images: backend.images().is_some(),
            uses_host_programs: backend.this_machine().is_some(),
        };
        self.executions.sandboxes.backends.iter().map(view).collect()
    }

    /// Returns the number of sandboxes of the preferred back end that fit within the machine's limits. None if nothing
    /// bounds them.
    #[must_use]
    pub fn capacity(&self) -> Option<Capacity> {
        let machine = self.executions.sandboxes.backends.first()?.this_machine()?;
        Some(machine.capacity())
    }

    /// Returns the engine's counters since its start, and its current numbers.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let (sandboxes, callers) = self.executions.sandboxes.registry.count();
        let (running, queued) = self.executions.sandboxes.scheduler.count();
        let whole = |number| u64::try_from(number).unwrap_or(u64::MAX);
        Counts {
            sandboxes: whole(sandboxes),
            sandboxes_most: whole(self.executions.sandboxes.config().sandboxes),
            callers: whole(callers),
            waiting: whole(self.executions.sandboxes.pool.waiting()),
            running: whole(running),
            queued: whole(queued),
            ..self.executions.sandboxes.records.metrics.read()
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
        principal: &Principal,
        req: ExecuteRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.executions
            .execute(principal, req, SessionMode::Variables, cancel)
            .await
    }

    /// Runs code in a separate interpreter that ends with it. Files of the sandbox stay. `cancel` works as with
    /// [`Engine::execute`].
    ///
    /// # Errors
    /// When the call cannot be carried out.
    pub async fn execute_alone(
        self: &Arc<Self>,
        principal: &Principal,
        req: ExecuteRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.executions
            .execute(principal, req, SessionMode::Files, cancel)
            .await
    }

    /// Runs code in a fresh sandbox and closes the sandbox afterwards. `cancel` works as with [`Engine::execute`].
    ///
    /// # Errors
    /// When the call cannot be carried out.
    pub async fn run_once(
        self: &Arc<Self>,
        principal: &Principal,
        req: RunRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.executions.run_once(principal, req, cancel).await
    }

    /// Runs a whole program in a fresh sandbox. The engine sends its output to `output` at once and stores it like any
    /// other. `stdin` feeds the program until the channel is closed. A reader that does not read `output` stops the
    /// program. A compiler's messages come first. [`SessionEvent::Begun`] follows them where the program begins to run.
    ///
    /// # Errors
    /// When the program could not be run.
    pub async fn run_program(
        self: &Arc<Self>,
        principal: &Principal,
        req: ProgramRequest,
        stdin: mpsc::Receiver<Bytes>,
        output: mpsc::Sender<SessionEvent>,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.executions.run_program(principal, req, stdin, output, cancel).await
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
        principal: &Principal,
        req: CommandRequest,
        stdin: mpsc::Receiver<Bytes>,
        output: mpsc::Sender<SessionEvent>,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.executions.run_command(principal, req, stdin, output, cancel).await
    }

    /// Does the same as [`Engine::run_command`] for callers that do not follow the output. The engine stores it like
    /// any other, and [`Engine::write_stdin`] feeds the program where `input` stays open.
    ///
    /// # Errors
    /// When the program could not be run.
    pub async fn start_command(
        self: &Arc<Self>,
        principal: &Principal,
        req: CommandRequest,
        input: CommandInput,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.executions.start_command(principal, req, input, cancel).await
    }

    /// Sends a signal to the program of a running command and to its process group. The execution goes on until the
    /// program ends.
    ///
    /// # Errors
    /// The caller has no such execution, it is not a command, or it has ended.
    pub fn signal_command(&self, principal: &Principal, id: &str, signal: Signal) -> Result<(), Failure> {
        self.executions.signal_command(principal, id, signal)
    }

    /// Gives the terminal of a running command another size.
    ///
    /// # Errors
    /// The caller has no such execution, it is not a command, or it has ended.
    pub fn resize_terminal(&self, principal: &Principal, id: &str, size: TerminalSize) -> Result<(), Failure> {
        self.executions.resize_terminal(principal, id, size)
    }

    /// Writes to the standard input of a running command. Either all bytes are queued or none. If the program does not
    /// read, the call waits, for at most `wait`.
    ///
    /// # Errors
    /// The caller has no such execution, it has ended, its input is closed, or the program does not read.
    pub async fn write_stdin(
        &self,
        principal: &Principal,
        id: &str,
        part: StdinPart,
        wait: Duration,
        cancel: CancellationToken,
    ) -> Result<ExecutionId, Failure> {
        self.executions.write_stdin(principal, id, part, wait, cancel).await
    }

    /// Installs packages in a sandbox (the default one if none is named). Running sessions can use them, too. The
    /// answer is an execution whose output lists the installed packages. `cancel` works as with [`Engine::execute`].
    ///
    /// # Errors
    /// When the packages are not allowed or the installation fails.
    pub async fn install(
        self: &Arc<Self>,
        principal: &Principal,
        req: InstallRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.executions.install(principal, req, cancel).await
    }

    /// Lists the languages that have installable packages.
    #[must_use]
    pub fn package_languages(&self) -> Vec<String> {
        let name = |packages: &Arc<dyn Packages>| packages.language().to_owned();
        self.executions.sandboxes.packages.get().iter().map(name).collect()
    }

    /// Lists the parts of a call that need the user's consent. Without consent in the request, the engine refuses the
    /// call. Without a language, packages are those of `create_sandbox`.
    #[must_use]
    pub fn consent_required(&self, language: Option<&str>, packages: &[String], hosts: &[String]) -> ConsentRequired {
        self.executions.sandboxes.consent_required(language, packages, hosts)
    }

    /// Lists the hosts that a sandbox can ask for. Empty where there is no network.
    #[must_use]
    pub fn network_allowed(&self) -> Vec<String> {
        let network = self.executions.sandboxes.network.get();
        let network = network.as_ref().as_ref();
        network.map_or_else(Vec::new, |network| network.allowed().to_vec())
    }

    /// Makes `req.count` sandboxes, or none.
    ///
    /// # Errors
    /// When a limit is reached, an argument is not valid, or a back end fails.
    pub async fn create(
        self: &Arc<Self>,
        principal: &Principal,
        req: CreateRequest,
    ) -> Result<Vec<SandboxView>, Failure> {
        let made = self.executions.sandboxes.create(principal, req).await;
        if let Err(failure) = &made {
            self.executions.sandboxes.records.observers.note(|| SecurityEvent {
                principal: Some(principal.clone()),
                code: Some(failure.code),
                ..SecurityEvent::new(EventKind::CallRefused, format!("create_sandbox: {}", failure.message))
            });
        }
        made
    }

    /// Subscribes to the expiry of the caller's sandboxes. The notice comes five minutes before the end, or a fifth of
    /// the lifetime before it where a sandbox lives for less than 25 minutes.
    #[must_use]
    pub fn expiry_notices(&self, principal: &Principal) -> ExpiryNotices {
        self.executions.sandboxes.expiry_notifier.subscribe(principal)
    }

    /// Closes a sandbox and everything in it.
    ///
    /// # Errors
    /// When the caller has no such sandbox.
    pub async fn close(&self, principal: &Principal, id: &str) -> Result<SandboxId, Failure> {
        self.executions.sandboxes.close(principal, id).await
    }

    /// Returns true if the caller has a sandbox with this id that accepts calls. Asking does not count as using it.
    #[must_use]
    pub fn has_sandbox(&self, principal: &Principal, id: &str) -> bool {
        self.executions.sandboxes.registry.has(principal, id)
    }

    /// Sets the time from now until a sandbox ends, whether it is in use or not. Returns that moment.
    ///
    /// # Errors
    /// When the caller has no such sandbox, or the time is not possible.
    pub fn set_lifetime(&self, principal: &Principal, id: &str, left: Duration) -> Result<SystemTime, Failure> {
        self.executions.sandboxes.set_lifetime(principal, id, left)
    }

    /// Replaces the hosts that a sandbox can reach. None: no host. Its connections to other hosts end. A paused sandbox stays
    /// paused.
    ///
    /// # Errors
    /// When the caller has no such sandbox, it was made without a network, or the operator does not allow one of the hosts.
    /// Nothing changes then.
    pub async fn set_network(&self, principal: &Principal, id: &str, hosts: &[String]) -> Result<(), Failure> {
        let set = self.executions.sandboxes.set_network(principal, id, hosts).await;
        if let Err(failure) = &set {
            self.executions.sandboxes.records.observers.note(|| SecurityEvent {
                principal: Some(principal.clone()),
                code: Some(failure.code),
                ..SecurityEvent::new(EventKind::CallRefused, format!("set_network: {}", failure.message))
            });
        }
        set
    }

    /// Pauses a sandbox: its processes are stopped, and it does not expire. The next call that needs it resumes it. Returns
    /// false if it is paused already.
    ///
    /// # Errors
    /// When the caller has no such sandbox, or its back end cannot pause it.
    pub async fn pause(&self, principal: &Principal, id: &str) -> Result<bool, Failure> {
        self.executions.sandboxes.pause(principal, id).await
    }

    /// Resumes a sandbox, which then ends after `left` (none: the rest of its lifetime). Returns false if it is not paused.
    ///
    /// # Errors
    /// When the caller has no such sandbox, or it cannot be resumed.
    pub async fn resume(&self, principal: &Principal, id: &str, left: Option<Duration>) -> Result<bool, Failure> {
        self.executions.sandboxes.resume(principal, id, left).await
    }

    /// Returns true if the caller has a sandbox with this id and it is paused. Asking does not resume it.
    #[must_use]
    pub fn is_paused(&self, principal: &Principal, id: &str) -> bool {
        self.executions.sandboxes.is_paused(principal, id)
    }

    /// Returns one sandbox of the caller, or all of them. Naming one counts as using it; listing all does not.
    ///
    /// # Errors
    /// When the caller has no such sandbox.
    pub async fn status(&self, principal: &Principal, id: Option<&str>) -> Result<Vec<SandboxView>, Failure> {
        self.executions.sandboxes.status(principal, id).await
    }

    /// Returns an execution after waiting at most `wait` for its end. Its artifacts stay available after its sandbox
    /// has ended.
    ///
    /// # Errors
    /// When the caller has no such execution, or its output is no longer stored.
    pub async fn execution(&self, principal: &Principal, id: &str, wait: Duration) -> Result<ExecutionView, Failure> {
        let execution = self.executions.store.find(principal, id)?;
        Ok(self.executions.wait(&execution, wait).await)
    }

    /// Lists the caller's unfinished executions, newest first. At most `executions_per_caller` of them run; the others
    /// wait.
    #[must_use]
    pub fn running(&self, principal: &Principal) -> Vec<RunningView> {
        let running = self.executions.store.running(principal);
        running.iter().map(|execution| execution.summary()).collect()
    }

    /// Returns a finished execution of the caller from the permanent history, which has it longer than
    /// [`Engine::execution`]. The permanent history has no files.
    ///
    /// # Errors
    /// When the caller has no such execution there, or there is no permanent history.
    pub async fn stored_execution(&self, principal: &Principal, id: &str) -> Result<StoredExecution, Failure> {
        let found = match &self.executions.sandboxes.records.observers.history_sink {
            Some(history_sink) => history_sink.find(principal, id).await,
            None => None,
        };
        found.ok_or_else(|| store::unknown(id))
    }

    /// Returns a file of the caller's execution. A recent execution has all its files, the permanent history only
    /// pictures. None if the execution has no file with that number.
    ///
    /// # Errors
    /// When the caller has no such execution.
    pub async fn artifact(&self, principal: &Principal, id: &str, number: u32) -> Result<Option<Artifact>, Failure> {
        let unknown = match self.execution(principal, id, Duration::ZERO).await {
            Ok(view) => return Ok(view.artifacts.into_iter().find(|file| file.number == number)),
            Err(unknown) => unknown,
        };
        let Some(history_sink) = &self.executions.sandboxes.records.observers.history_sink else {
            return Err(unknown);
        };
        if let Some(picture) = history_sink.picture(principal, id, number).await {
            return Ok(Some(Artifact {
                number: picture.number,
                name: picture.name,
                mime: picture.mime,
                bytes: picture.bytes,
                shown: true,
                text: None,
            }));
        }
        // If the history lacks the execution too, the first failure is reported.
        history_sink.find(principal, id).await.map(|_| None).ok_or(unknown)
    }

    /// Lets `watch` follow an execution of the caller.
    ///
    /// # Errors
    /// When the caller has no such execution.
    pub fn watch(&self, principal: &Principal, id: &str, watch: &Watch) -> Result<(), Failure> {
        watch.follow(&self.executions.store.find(principal, id)?);
        Ok(())
    }

    /// Returns a part of an execution's output, result or code.
    ///
    /// # Errors
    /// When the caller has no such execution, or the part's limit is 0.
    pub async fn stream(&self, principal: &Principal, id: &str, part: &StreamPart) -> Result<StreamSlice, Failure> {
        let execution = self.executions.store.find(principal, id)?;
        if part.limit == 0 {
            return Err(Failure::invalid("limit is 0", "ask for at least one byte"));
        }
        let find = part.find.as_deref();
        if find.is_some_and(|text| text.is_empty() || text.len() > MAX_FIND_BYTES) {
            return Err(Failure::invalid(
                "the text to find is empty or too long",
                format!("use at most {MAX_FIND_BYTES} bytes, or leave it out"),
            ));
        }
        Ok(execution.slice(part.stream, part.offset, part.limit.min(MAX_SLICE_BYTES), find))
    }

    /// Ends an execution of the caller, or the newest running one. A finished execution stays unchanged.
    ///
    /// # Errors
    /// When the caller has no such execution, or none runs.
    pub async fn cancel(&self, principal: &Principal, id: Option<&str>) -> Result<ExecutionView, Failure> {
        let execution = match id {
            Some(id) => self.executions.store.find(principal, id)?,
            None => self.executions.store.newest_running(principal).ok_or_else(|| {
                Failure::new(
                    Code::NotFound,
                    "nothing is running",
                    "get_execution_history lists what ran",
                )
            })?,
        };
        let sandboxes = &self.executions.sandboxes;
        // Code in a paused sandbox cannot handle an interrupt.
        let _not_paused = sandboxes.resume(principal, execution.sandbox_id.as_str(), None).await;
        Ok(self.executions.end(&execution, Stop::Cancelled).await)
    }

    /// Connects to a port of a sandbox's loopback address, where a program inside listens. The sandbox is in use until
    /// the connection is dropped.
    ///
    /// # Errors
    /// When there is no such sandbox, no program listens, or the sandbox shares its loopback address with the host.
    pub async fn open_port(
        self: &Arc<Self>,
        principal: &Principal,
        sandbox: &str,
        port: u16,
    ) -> Result<PortConnection, Failure> {
        self.executions.sandboxes.open_port(principal, sandbox, port).await
    }

    /// Returns the caller's newest executions since the last reset. `last_n` is clamped to 1..=50.
    ///
    /// # Errors
    /// When `sandbox` neither exists nor occurs in the history.
    pub async fn history(
        &self,
        principal: &Principal,
        last_n: usize,
        sandbox: Option<&str>,
    ) -> Result<HistoryView, Failure> {
        self.executions.sandboxes.history(principal, last_n, sandbox).await
    }

    /// Returns a page of the caller's history since the last reset, newest first: executions that match a search.
    ///
    /// # Errors
    /// When the search has too many or too long words.
    pub async fn search(&self, principal: &Principal, query: &HistoryQuery) -> Result<HistoryPage, Failure> {
        self.executions.sandboxes.search(principal, query).await
    }

    /// Restarts the interpreters of a sandbox (the default one if none is named), of one language or all, and starts a
    /// new view of the history. Files stay.
    ///
    /// # Errors
    /// When there is no such sandbox or language.
    pub async fn reset(
        &self,
        principal: &Principal,
        sandbox: Option<&str>,
        language: Option<&str>,
    ) -> Result<ResetView, Failure> {
        self.executions.reset(principal, sandbox, language).await
    }

    /// Ends one session of a sandbox and the code that runs in it. The next execution gets a new interpreter. Returns
    /// false if there was none. Files and the history stay.
    ///
    /// # Errors
    /// When the caller has no such sandbox, or there is no such language.
    pub async fn end_session(
        &self,
        principal: &Principal,
        sandbox: &str,
        language: &str,
        session: Option<&str>,
    ) -> Result<bool, Failure> {
        let session = session.map(str::to_owned);
        self.executions.end_session(principal, sandbox, language, session).await
    }

    /// Ends all sandboxes and refuses further calls. Waits until the permanent history has the records. Bounded (7 s).
    /// A second call does no harm.
    pub async fn shutdown(&self) {
        self.executions.sandboxes.shutdown().await;
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.executions.sandboxes.down.cancel();
    }
}
