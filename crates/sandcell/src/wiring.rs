//! Combines the parts: makes an engine from back ends and languages, according to the settings.
//!
//! Only this module knows the back ends and languages of the build. Nothing unavailable is left out silently: a back
//! end that does not work here is replaced by one that returns the reason, and the caller of this module gets the
//! reason as a problem.

mod absent;
#[cfg(feature = "docker")]
pub(crate) mod docker;
#[cfg(feature = "e2b")]
mod e2b;
#[cfg(all(target_os = "linux", feature = "native"))]
pub(crate) mod images;
mod list;
#[cfg(all(target_os = "linux", feature = "native"))]
mod native;
#[cfg(any(feature = "docker", all(target_os = "linux", feature = "native")))]
pub(crate) mod network;
#[cfg(all(target_os = "linux", feature = "native"))]
pub(crate) mod packages;
mod select;
pub(crate) mod sinks;
#[cfg(feature = "tools")]
pub(crate) mod tools;

use std::sync::Arc;
use std::time::Duration;

use sandcell_engine::{AbsentLanguage, Engine, EngineConfig, EventKind, Observers, Outside, SecurityEvent};
use sandcell_languages::Detected;
use sandcell_mcp::{HttpControl, HttpLimits};
use sandcell_sandbox::{Backend, ByteSize, Code, Failure, Language, Level, Limits, SandboxSpec};

use crate::config::Settings;
#[cfg(all(target_os = "linux", feature = "native"))]
use absent::AbsentBackend;
use list::BACKEND_MAKERS;
#[cfg(all(target_os = "linux", feature = "native"))]
use select::BackendContext;
use select::SelectedBackends;

/// Runs a launcher if this process was started as one, and then does not return. Must be the first thing in `main`.
pub(crate) fn become_launcher_if_asked() {
    #[cfg(all(target_os = "linux", feature = "native"))]
    native::become_launcher_if_asked();
}

/// Adapts to external limits on this process, as far as possible.
pub(crate) fn withstand_limits() {
    #[cfg(all(target_os = "linux", feature = "native"))]
    sandcell_jail::withstand_limits();
}

/// As the first process of a PID namespace, starts this program as a child and reaps orphans. Must run before the first
/// thread.
pub(crate) fn become_init_if_first() {
    #[cfg(all(target_os = "linux", feature = "native"))]
    sandcell_jail::become_init_if_first();
}

/// Makes the allocator return freed memory. Call it before the first thread starts, and not in the launcher, which
/// frees little.
pub(crate) fn configure_heap() {
    #[cfg(all(target_os = "linux", feature = "native"))]
    sandcell_jail::configure_heap();
}

/// Returns freed memory that the allocator could not return by itself. Call it while no caller waits for an answer.
pub(crate) fn trim_heap() {
    #[cfg(all(target_os = "linux", feature = "native"))]
    sandcell_jail::trim_heap();
}

/// The launcher, in builds that have one. Started before any thread.
#[derive(Debug)]
pub(crate) struct Launcher {
    #[cfg(all(target_os = "linux", feature = "native"))]
    started: native::LauncherResult,
    /// True when only a few sandboxes are expected: nothing is prepared in advance.
    #[cfg(all(target_os = "linux", feature = "native"))]
    for_few: bool,
}

impl Launcher {
    /// Starts the launcher. A failed start is reported when a back end needs the launcher.
    pub(crate) fn start() -> Self {
        Self {
            #[cfg(all(target_os = "linux", feature = "native"))]
            started: native::start(),
            #[cfg(all(target_os = "linux", feature = "native"))]
            for_few: false,
        }
    }

    /// Configures the launcher for a command that makes few sandboxes and ends.
    #[cfg(all(target_os = "linux", feature = "native"))]
    fn for_few(self) -> Self {
        Self { for_few: true, ..self }
    }

    /// Does nothing: without jails nothing is prepared in advance.
    #[cfg(not(all(target_os = "linux", feature = "native")))]
    fn for_few(self) -> Self {
        self
    }

    /// Returns no launcher, for tests that need no jail.
    #[cfg(test)]
    fn none() -> Self {
        Self {
            #[cfg(all(target_os = "linux", feature = "native"))]
            started: Err(std::io::ErrorKind::Unsupported.into()),
            #[cfg(all(target_os = "linux", feature = "native"))]
            for_few: false,
        }
    }
}

/// The maximum number of threads for blocking work.
const MAX_BLOCKING_THREADS: usize = 64;
/// The lifetime of an idle blocking thread: effectively forever.
const BLOCKING_THREAD_LIFETIME: Duration = Duration::from_secs(1 << 31);

/// Returns the failure for a thread that could not be started, which names the limits.
pub(crate) fn no_thread(error: &std::io::Error) -> Failure {
    Failure::new(
        Code::Internal,
        format!("threads could not be started: {error}"),
        "raise the limits of processes (`ulimit -u`, systemd TasksMax=, Docker --pids-limit) and of open files, and see that no \
         filter of system calls forbids clone3 otherwise than by ENOSYS",
    )
}

/// Makes an async runtime for one command.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    try_threads().map_err(|error| no_thread(&error))?;
    // One thread: the server itself does little work, it handles requests in order of arrival, and no call pays for
    // waking another thread. Pictures and host files are read on separate threads.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .thread_keep_alive(BLOCKING_THREAD_LIFETIME)
        .enable_all()
        .build()
        .map_err(|error| no_thread(&error))?;
    // The runtime panics if it cannot start a thread for blocking work. With one thread that stays, the work is queued
    // instead. The limit of processes may be reached later.
    drop(runtime.spawn_blocking(|| ()));
    Ok(runtime)
}

/// Starts two threads at once and ends them. The runtime starts its own thread right after, when the kernel may still
/// count one of these.
fn try_threads() -> std::io::Result<()> {
    let start = || {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let wait = move || {
            let _ = held.recv();
        };
        Ok::<_, std::io::Error>((hold, std::thread::Builder::new().spawn(wait)?))
    };
    for (hold, thread) in [start()?, start()?] {
        drop(hold);
        let _ended = thread.join();
    }
    Ok(())
}

/// Finds the languages of this machine. Runs each interpreter once, for some milliseconds, unless its properties are
/// stored.
#[cfg(any(not(feature = "docker"), all(target_os = "linux", feature = "native")))]
pub(crate) fn languages(settings: &Settings) -> Detected {
    sandcell_languages::detect(&wanted(settings))
}

/// Finds the languages without probing this machine's programs, since no sandbox runs them here. On macOS `python3`
/// may be a stand-in that opens a window. The back end detects the languages of the default image.
#[cfg(all(feature = "docker", not(all(target_os = "linux", feature = "native"))))]
pub(crate) fn languages(settings: &Settings) -> Detected {
    let image = docker::own_settings(settings).map_or_else(|_| String::new(), |own| own.image);
    sandcell_languages::suppose(&image, &wanted(settings))
}

fn wanted(settings: &Settings) -> sandcell_languages::Settings {
    sandcell_languages::Settings {
        python: settings.python.clone(),
        memory: settings.data_dir.clone(),
        forgetful: !settings.restore,
        tables: settings.language_tables.clone(),
    }
}

/// A back end of the settings, and its state here.
#[derive(Debug)]
pub(crate) struct BackendState {
    /// Its name.
    pub(crate) name: String,
    /// The isolation level; none if the back end does not work.
    pub(crate) level: Option<Level>,
    /// The reason for a back end that does not work.
    pub(crate) failure: Option<Failure>,
}

/// An engine, and the parts that are unavailable.
#[derive(Debug)]
pub(crate) struct WiredEngine {
    /// The engine.
    pub(crate) engine: Arc<Engine>,
    /// Each back end of the settings, in order.
    pub(crate) backends: Vec<BackendState>,
    /// The reasons that code cannot run; empty when it can.
    pub(crate) problems: Vec<Failure>,
    /// The reason that the default image cannot be used at this moment, if the preferred back end has images. A server
    /// starts nevertheless: the image may be pulled later.
    pub(crate) unready: Option<Failure>,
    /// The available languages.
    pub(crate) found: Detected,
    /// The package installers.
    #[cfg(all(target_os = "linux", feature = "native"))]
    pub(crate) installers: packages::Installers,
    tools_factory: ToolsFactory,
    /// The preferred back end, if it makes sandboxes from local images.
    #[cfg(all(target_os = "linux", feature = "native"))]
    pub(crate) images: Option<Arc<dyn Backend>>,
    /// The first working back end.
    pub(crate) preferred: Option<Arc<dyn Backend>>,
}

impl WiredEngine {
    /// Returns the parts that accept changed settings.
    pub(crate) fn running(&self) -> ReloadTargets {
        ReloadTargets {
            engine: Arc::clone(&self.engine),
            #[cfg(all(target_os = "linux", feature = "native"))]
            installers: self.installers.clone(),
            tools_factory: self.tools_factory.clone(),
            http: None,
        }
    }

    /// Returns the isolation level of new sandboxes; `none` when none can be made.
    pub(crate) fn level(&self) -> Level {
        self.backends
            .iter()
            .find_map(|backend| backend.level)
            .unwrap_or(Level::None)
    }
}

/// The parts of a running server that accept changed settings.
#[derive(Debug, Clone)]
pub(crate) struct ReloadTargets {
    pub(crate) engine: Arc<Engine>,
    #[cfg(all(target_os = "linux", feature = "native"))]
    installers: packages::Installers,
    tools_factory: ToolsFactory,
    http: Option<HttpControl>,
}

/// Checked settings that can be applied as a whole.
#[derive(Debug)]
pub(crate) struct CheckedSettings {
    config: EngineConfig,
    outside: Outside,
    http: HttpLimits,
}

impl ReloadTargets {
    /// Adds the control of the HTTP server.
    pub(crate) fn with_http_control(self, http: HttpControl) -> Self {
        Self {
            http: Some(http),
            ..self
        }
    }

    /// Makes everything that these settings need, and changes nothing.
    pub(crate) fn prepare(&self, mut settings: Settings) -> Result<CheckedSettings, Failure> {
        settings.engine.tools.answered_elsewhere = self.http.is_some() && settings.answers_tool_questions();
        Ok(CheckedSettings {
            outside: Outside {
                network: network_of(&settings)?,
                #[cfg(all(target_os = "linux", feature = "native"))]
                packages: self.installers.under(&settings)?.list(),
                #[cfg(not(all(target_os = "linux", feature = "native")))]
                packages: Vec::new(),
                tools: self.tools_factory.make(&settings)?,
            },
            http: settings.http.limits,
            config: settings.engine,
        })
    }

    /// Applies the settings. Cannot fail.
    pub(crate) fn apply(&self, ready: CheckedSettings) {
        self.engine.change(ready.config, ready.outside);
        if let Some(http) = &self.http {
            http.change(ready.http);
        }
    }
}

impl CheckedSettings {
    /// Disables idle sandboxes, for back ends whose sandboxes cost money.
    pub(crate) const fn disable_idle_sandboxes(&mut self) {
        self.config.pool.parked = Some(0);
    }

    pub(crate) const fn parked(&self) -> Option<usize> {
        self.config.pool.parked
    }
}

/// Makes an engine for a command that makes few sandboxes and ends: it has no idle sandboxes.
pub(crate) async fn wire_briefly(
    mut settings: Settings,
    launcher: Launcher,
    found: Detected,
    ask: VersionQuery,
) -> WiredEngine {
    settings.engine.pool = sandcell_engine::PoolConfig::default();
    wire_with(settings, launcher.for_few(), found, ask, Observers::default()).await
}

/// Makes an engine for a command that runs the operator's own executions: they are stored in the history.
pub(crate) async fn wire_once(mut settings: Settings, launcher: Launcher, found: Detected) -> WiredEngine {
    settings.engine.pool = sandcell_engine::PoolConfig::default();
    let observers = sinks::command_observers(&settings);
    wire_with(settings, launcher.for_few(), found, VersionQuery::Required, observers).await
}

/// Makes the engine of a server.
pub(crate) async fn wire(settings: Settings, launcher: Launcher) -> WiredEngine {
    let found = languages(&settings);
    let observers = sinks::server_observers(&settings);
    let wired = wire_with(settings, launcher, found, VersionQuery::Required, observers).await;
    log_capacity(&wired.engine);
    wired.engine.note(SecurityEvent::new(
        EventKind::ServerStarted,
        format!(
            "version {}, isolation {}",
            env!("CARGO_PKG_VERSION"),
            wired.level().as_str()
        ),
    ));
    wired
}

/// Reports once the number of sandboxes that fit on this machine, and a settings limit above it. A caller refused
/// later gets the reason.
fn log_capacity(engine: &Engine) {
    let Some(capacity) = engine.capacity() else { return };
    let Some(tightest) = capacity.tightest() else { return };
    let allowed = u64::try_from(engine.config().sandboxes).unwrap_or(u64::MAX);
    if capacity.sandboxes < allowed {
        tracing::warn!(
            "limits.sandboxes = {allowed}, and {} idle sandboxes fit on this machine: {}. To raise it: {}",
            capacity.sandboxes,
            tightest.limit,
            tightest.remedy
        );
    } else {
        tracing::info!(
            "{} idle sandboxes fit on this machine ({}); limits.sandboxes = {allowed}",
            capacity.sandboxes,
            tightest.limit
        );
    }
}

/// Controls the version query for languages, which runs in a sandbox made for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VersionQuery {
    Required,
    Unknown,
}

/// Makes the engine with languages that were found before.
async fn wire_with(
    mut settings: Settings,
    launcher: Launcher,
    mut found: Detected,
    ask: VersionQuery,
    observers: Observers,
) -> WiredEngine {
    let SelectedBackends {
        mut working,
        backends,
        absent,
    } = select::choose(BACKEND_MAKERS, &settings, &found, launcher).await;
    settings.engine.absent_backends = absent;
    let own: Vec<_> = working
        .iter()
        .map(|backend| select::own_languages(BACKEND_MAKERS, backend.as_ref()))
        .collect();
    // If all sandboxes are remote, this machine's languages do not matter.
    let elsewhere = !own.is_empty() && own.iter().all(Option::is_some);
    if own.first().is_some_and(Option::is_some) && settings.engine.pool.parked.is_none() {
        // Idle remote sandboxes cost money.
        settings.engine.pool.parked = Some(0);
    }
    #[cfg_attr(
        not(feature = "docker"),
        expect(unused_mut, reason = "only containers have images that can be missing")
    )]
    let mut unready = None;
    #[cfg(feature = "docker")]
    if let Some(first) = working.first().filter(|first| first.name() == docker::NAME) {
        (found, unready) = docker::languages(first.as_ref(), &settings).await;
    }
    let local = |backend: &&Arc<dyn Backend>| select::own_languages(BACKEND_MAKERS, backend.as_ref()).is_none();
    if let Some(backend) = working.iter().find(local) {
        ask_versions(backend.as_ref(), &settings, &mut found, ask).await;
    }
    let mut problems = std::mem::take(&mut found.problems);
    // A chosen Python that does not work is an error; no other language replaces it.
    let chosen = |name: &str| name == "python" && settings.python.is_some();
    let here = found.python.is_some() || !found.table.is_empty() || elsewhere;
    let missing = found.missing.iter().filter(|missing| chosen(&missing.name) || !here);
    problems.extend(missing.take(1).map(|missing| missing.failure.clone()));
    let absent = found.missing.iter().map(|missing| AbsentLanguage {
        name: missing.name.clone(),
        aliases: missing.aliases.clone(),
        failure: missing.failure.clone(),
    });
    settings.engine.absent = absent.collect();
    let preferred = working.first().cloned();
    if working.is_empty() {
        problems.extend(backends.iter().filter_map(|backend| backend.failure.clone()));
        working = select::broken(&backends);
    }
    let languages = all_languages(&found, own.into_iter().flatten().flatten(), elsewhere);
    #[cfg(all(target_os = "linux", feature = "native"))]
    let images = working
        .first()
        .filter(|first| first.name() == "native" && first.images().is_some())
        .cloned();
    #[cfg(all(target_os = "linux", feature = "native"))]
    let languages = match &images {
        Some(_) => sandcell_languages::with_images(languages, &wanted(&settings)),
        None => languages,
    };
    #[cfg(all(target_os = "linux", feature = "native"))]
    let installers = {
        // The server installs packages into local sandboxes. Remote sandboxes install packages themselves.
        let here: Vec<Arc<dyn Backend>> = working.iter().filter(local).cloned().collect();
        match working.first().filter(|_| here.is_empty()) {
            Some(elsewhere) => packages::installers_elsewhere(&settings, elsewhere, &languages, &mut problems),
            None => {
                let elsewhere = here.len() < working.len();
                packages::installers(&settings, &here, elsewhere, &found.languages(), &mut problems)
            }
        }
    };
    #[cfg(all(target_os = "linux", feature = "native"))]
    let packages = installers.list();
    #[cfg(not(all(target_os = "linux", feature = "native")))]
    let packages = Vec::new();
    #[cfg(any(feature = "docker", all(target_os = "linux", feature = "native")))]
    let network = network::network(&settings.network).unwrap_or_else(|failure| {
        problems.push(failure);
        None
    });
    #[cfg(not(any(feature = "docker", all(target_os = "linux", feature = "native"))))]
    let network = None;
    let tools_factory = ToolsFactory::default();
    let tools = tools_factory.make(&settings).unwrap_or_else(|failure| {
        problems.push(failure);
        None
    });
    let outside = Outside {
        network,
        packages,
        tools,
    };
    WiredEngine {
        engine: Engine::with_observers(settings.engine, working, languages, outside, observers),
        found,
        backends,
        problems,
        unready,
        #[cfg(all(target_os = "linux", feature = "native"))]
        installers,
        tools_factory,
        #[cfg(all(target_os = "linux", feature = "native"))]
        images,
        preferred,
    }
}

/// Makes the tools that code in sandboxes may call, again for each change of the settings.
#[derive(Debug, Clone, Default)]
struct ToolsFactory {
    #[cfg(feature = "tools")]
    connections: sandcell_host_tools::Connections,
}

impl ToolsFactory {
    /// Returns the tools; none if this build has none.
    fn make(&self, settings: &Settings) -> Result<Option<Arc<dyn sandcell_sandbox::HostTools>>, Failure> {
        #[cfg(feature = "tools")]
        return tools::tools(settings, &self.connections).map(Some);
        #[cfg(not(feature = "tools"))]
        {
            // The table is refused when the settings are read.
            let _is_empty = settings;
            Ok(None)
        }
    }
}

/// Returns the network that these settings allow sandboxes; none where the operator allows nothing.
pub(crate) fn network_of(settings: &Settings) -> Result<Option<Arc<dyn sandcell_sandbox::Network>>, Failure> {
    #[cfg(any(feature = "docker", all(target_os = "linux", feature = "native")))]
    return network::network(&settings.network);
    #[cfg(not(any(feature = "docker", all(target_os = "linux", feature = "native"))))]
    {
        let _nothing_is_reached = settings;
        Ok(None)
    }
}

/// Returns the languages of this machine, if there are sandboxes that can use them, and the languages of remote
/// sandboxes.
fn all_languages(
    found: &Detected,
    own: impl Iterator<Item = Arc<dyn Language>>,
    elsewhere: bool,
) -> Vec<Arc<dyn Language>> {
    let mut languages = if elsewhere { Vec::new() } else { found.languages() };
    for language in own {
        if !languages.iter().any(|known| known.info().name == language.info().name) {
            languages.push(language);
        }
    }
    languages
}

/// Queries unknown versions: those that decide whether a language can run, and with [`VersionQuery::Unknown`] all others. A
/// program that does not answer keeps an unknown version.
async fn ask_versions(backend: &dyn Backend, settings: &Settings, found: &mut Detected, ask: VersionQuery) {
    let spec = SandboxSpec {
        limits: Limits {
            memory: ByteSize::mib(1024),
            ..settings.engine.limits.clone()
        },
        ..SandboxSpec::default()
    };
    let all = ask == VersionQuery::Unknown && found.table.iter().any(|language| language.info().version.is_empty());
    if !all && found.undecided.is_empty() {
        return;
    }
    match backend.create(&spec).await {
        Ok(sandbox) => {
            // Only versions of the machine's own programs are stored.
            let memory = settings.data_dir.as_deref().filter(|_| sandbox.image().is_none());
            sandcell_languages::table::decide(found, sandbox.as_ref(), memory).await;
            if all {
                sandcell_languages::table::ask_versions(&mut found.table, sandbox.as_ref(), memory).await;
            }
            if let Err(error) = sandbox.close().await {
                tracing::debug!(%error, "the sandbox that versions were asked in could not be closed");
            }
        }
        Err(error) => tracing::debug!(%error, "versions could not be asked"),
    }
}

/// Returns the builder of bases, for the commands about them, and the back end to shut down afterwards. Without a
/// launcher bases can be listed but not installed.
#[cfg(all(target_os = "linux", feature = "native"))]
pub(crate) async fn bases(
    settings: &Settings,
    launcher: Option<Launcher>,
) -> Result<(sandcell_packages::Bases, Arc<dyn Backend>), Failure> {
    let mut found = languages(settings);
    if let Some(at) = found.missing.iter().position(|missing| missing.name == "python") {
        return Err(found.missing.swap_remove(at).failure);
    }
    let backend: Arc<dyn Backend> = match launcher {
        Some(launcher) => {
            let context = BackendContext {
                settings,
                found: &found,
                launcher: &mut Some(launcher.for_few()),
            };
            select::make(BACKEND_MAKERS, "native", context).await?
        }
        None => Arc::new(AbsentBackend::new(select::unknown("native"))),
    };
    let bases = packages::bases(settings, &backend, &found.languages())?;
    Ok((bases, backend))
}

/// Makes the native back end alone, for the command about images.
#[cfg(all(target_os = "linux", feature = "native"))]
pub(crate) async fn native_alone(settings: &Settings, launcher: Launcher) -> Result<Arc<dyn Backend>, Failure> {
    let context = BackendContext {
        settings,
        found: &Detected::default(),
        launcher: &mut Some(launcher.for_few()),
    };
    select::make(BACKEND_MAKERS, "native", context).await
}
