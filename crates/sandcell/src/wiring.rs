//! Puts the parts together: back ends and languages, as the settings say, into an engine.
//!
//! The only place that knows which of them this build has. What cannot be had is never left out silently: a back end
//! that does not work here is replaced by one that says why, and the reason is handed up as a problem.

mod absent;
#[cfg(all(target_os = "linux", feature = "docker"))]
mod docker;
pub(crate) mod lasting;
#[cfg(all(target_os = "linux", feature = "native"))]
mod native;
#[cfg(all(target_os = "linux", feature = "native"))]
pub(crate) mod packages;

use std::sync::Arc;

use sandcell_engine::{AbsentLanguage, Engine, EventKind, SecurityEvent, Witnesses};
use sandcell_languages::Detected;
use sandcell_sandbox::{Backend, ByteSize, Code, Failure, Language as _, Level, Limits, SandboxSpec};

use crate::config::Settings;
use absent::AbsentBackend;

/// Runs a launcher if this process was started as one, and then does not return. Must be the first thing in `main`.
pub(crate) fn become_launcher_if_asked() {
    #[cfg(all(target_os = "linux", feature = "native"))]
    native::become_launcher_if_asked();
}

/// The process that makes jails, where there are any. Started before settings are read and before any thread.
#[derive(Debug)]
pub(crate) struct Launcher {
    #[cfg(all(target_os = "linux", feature = "native"))]
    started: native::Started,
}

impl Launcher {
    /// Starts it. That it could not be started is told when a back end needs it.
    pub(crate) fn start() -> Self {
        Self {
            #[cfg(all(target_os = "linux", feature = "native"))]
            started: native::start(),
        }
    }
}

/// An async runtime for one command.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    // One thread: what the server does itself is little, requests are taken up in the order in which they come, and
    // no call pays for waking another thread. Pictures and host files are read on threads of their own.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| {
            Failure::new(
                Code::Internal,
                format!("threads could not be started: {error}"),
                "raise the limits of processes and open files, and try again",
            )
        })
}

/// Finds the languages of this machine. Runs each interpreter once, for some milliseconds, unless it is remembered.
pub(crate) fn languages(settings: &Settings) -> Detected {
    sandcell_languages::detect(&wanted(settings))
}

fn wanted(settings: &Settings) -> sandcell_languages::Settings {
    sandcell_languages::Settings {
        python: settings.python.clone(),
        memory: settings.data_dir.clone(),
        forgetful: !settings.restore,
        tables: settings.language_tables.clone(),
    }
}

/// A back end of the settings, and whether it works here.
#[derive(Debug)]
pub(crate) struct BackendState {
    /// Its name.
    pub(crate) name: String,
    /// What it gives; none if it does not work.
    pub(crate) level: Option<Level>,
    /// Why it does not work.
    pub(crate) failure: Option<Failure>,
}

/// An engine, and what could not be had.
#[derive(Debug)]
pub(crate) struct Wired {
    /// The engine.
    pub(crate) engine: Arc<Engine>,
    /// Each back end of the settings, in order.
    pub(crate) backends: Vec<BackendState>,
    /// Why code cannot be run; empty when it can.
    pub(crate) problems: Vec<Failure>,
    /// The languages that are here.
    pub(crate) found: Detected,
}

impl Wired {
    /// The level of the sandboxes that are made; `none` when none can be.
    pub(crate) fn level(&self) -> Level {
        self.backends
            .iter()
            .find_map(|backend| backend.level)
            .unwrap_or(Level::None)
    }
}

/// Makes an engine for a command that makes few sandboxes and ends: none wait.
pub(crate) async fn wire_briefly(mut settings: Settings, launcher: Launcher, found: Detected, ask: Ask) -> Wired {
    settings.engine.pool = sandcell_engine::PoolConfig::default();
    wire_with(settings, launcher, found, ask, Witnesses::default()).await
}

/// The same for a command whose executions are the operator's own: they are kept.
pub(crate) async fn wire_once(mut settings: Settings, launcher: Launcher, found: Detected) -> Wired {
    settings.engine.pool = sandcell_engine::PoolConfig::default();
    let witnesses = lasting::witnesses(&settings);
    wire_with(settings, launcher, found, Ask::Nobody, witnesses).await
}

/// Makes the engine.
pub(crate) async fn wire(settings: Settings, launcher: Launcher) -> Wired {
    let found = languages(&settings);
    let witnesses = lasting::witnesses_of_a_server(&settings);
    let wired = wire_with(settings, launcher, found, Ask::Nobody, witnesses).await;
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

/// Whether languages are asked for their versions, in a sandbox made for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    Nobody,
    Unknown,
}

/// Makes the engine with languages that were found before.
async fn wire_with(
    mut settings: Settings,
    launcher: Launcher,
    mut found: Detected,
    ask: Ask,
    witnesses: Witnesses,
) -> Wired {
    let mut working: Vec<Arc<dyn Backend>> = Vec::new();
    let mut broken: Vec<Arc<dyn Backend>> = Vec::new();
    let mut backends = Vec::new();
    let mut launcher = Some(launcher);
    for name in &settings.backends {
        match make(name, &settings, &found, launcher.take()).await {
            Ok(backend) => {
                backends.push(BackendState {
                    name: name.clone(),
                    level: Some(backend.isolation().level),
                    failure: None,
                });
                working.push(backend);
            }
            Err(failure) => {
                broken.push(Arc::new(AbsentBackend::new(failure.clone())));
                backends.push(BackendState {
                    name: name.clone(),
                    level: None,
                    failure: Some(failure),
                });
            }
        }
    }
    #[cfg(all(target_os = "linux", feature = "docker"))]
    if let Some(first) = working.first().filter(|first| first.name() == docker::NAME) {
        found = docker::languages(first.as_ref(), &settings).await;
    }
    let mut problems = std::mem::take(&mut found.problems);
    // A Python that was chosen and does not work is never passed over for another language.
    let chosen = |name: &str| name == "python" && settings.python.is_some();
    let here = found.python.is_some() || !found.table.is_empty();
    let missing = found.missing.iter().filter(|missing| chosen(&missing.name) || !here);
    problems.extend(missing.take(1).map(|missing| missing.failure.clone()));
    let absent = found.missing.iter().map(|missing| AbsentLanguage {
        name: missing.name.clone(),
        aliases: missing.aliases.clone(),
        failure: missing.failure.clone(),
    });
    settings.engine.absent = absent.collect();
    if working.is_empty() {
        problems.extend(backends.iter().filter_map(|backend| backend.failure.clone()));
        working = broken;
    }
    if let (Ask::Unknown, Some(backend)) = (ask, working.first()) {
        ask_versions(backend.as_ref(), &settings, &mut found).await;
    }
    #[cfg(all(target_os = "linux", feature = "native"))]
    let packages = packages::installer(&settings, &working, &found.languages());
    #[cfg(not(all(target_os = "linux", feature = "native")))]
    let packages = None;
    Wired {
        engine: Engine::witnessed(settings.engine, working, found.languages(), packages, witnesses),
        found,
        backends,
        problems,
    }
}

/// Asks for versions that are not known. One that gives no answer stays without.
async fn ask_versions(backend: &dyn Backend, settings: &Settings, found: &mut Detected) {
    let spec = SandboxSpec {
        limits: Limits {
            memory: ByteSize::mib(1024),
            ..settings.engine.limits.clone()
        },
        ..SandboxSpec::default()
    };
    if found.table.iter().all(|language| !language.info().version.is_empty()) {
        return;
    }
    match backend.create(&spec).await {
        Ok(sandbox) => {
            // What is remembered are the machine's own programs.
            let memory = settings.data_dir.as_deref().filter(|_| sandbox.image().is_none());
            sandcell_languages::table::ask_versions(&mut found.table, sandbox.as_ref(), memory).await;
            if let Err(error) = sandbox.close().await {
                tracing::debug!(%error, "the sandbox that versions were asked in could not be closed");
            }
        }
        Err(error) => tracing::debug!(%error, "versions could not be asked"),
    }
}

/// The installer of packages alone, for the commands about bases, and the back end to shut down afterwards. Without a
/// launcher nothing can be installed, only looked at.
#[cfg(all(target_os = "linux", feature = "native"))]
pub(crate) async fn package_installer(
    settings: &Settings,
    launcher: Option<Launcher>,
) -> Result<(Arc<sandcell_packages::PythonPackages>, Arc<dyn Backend>), Failure> {
    let mut found = languages(settings);
    if let Some(at) = found.missing.iter().position(|missing| missing.name == "python") {
        return Err(found.missing.swap_remove(at).failure);
    }
    let backend: Arc<dyn Backend> = match launcher {
        Some(launcher) => make("native", settings, &found, Some(launcher)).await?,
        None => Arc::new(AbsentBackend::new(unknown("native"))),
    };
    let packages = packages::python_packages(settings, &backend, &found.languages())?;
    Ok((packages, backend))
}

#[cfg(all(target_os = "linux", feature = "native"))]
async fn make(
    name: &str,
    settings: &Settings,
    found: &Detected,
    launcher: Option<Launcher>,
) -> Result<Arc<dyn Backend>, Failure> {
    match (name, launcher) {
        ("native", Some(launcher)) => native::backend(settings, found, launcher.started).await,
        #[cfg(feature = "docker")]
        (docker::NAME, _) => docker::backend(settings).await,
        _ => Err(unknown(name)),
    }
}

#[cfg(not(all(target_os = "linux", feature = "native")))]
async fn make(
    name: &str,
    _settings: &Settings,
    _found: &Detected,
    _launcher: Option<Launcher>,
) -> Result<Arc<dyn Backend>, Failure> {
    #[cfg(all(target_os = "linux", feature = "docker"))]
    if name == docker::NAME {
        return docker::backend(_settings).await;
    }
    Err(unknown(name))
}

fn unknown(name: &str) -> Failure {
    let (message, remedy) = if cfg!(target_os = "linux") {
        (
            format!("back end {name} is not in this build"),
            "build sandcell with the feature `native`",
        )
    } else {
        (
            format!("back end {name} needs Linux, and this is {}", std::env::consts::OS),
            "run sandcell on a Linux machine, in a Linux virtual machine or in WSL 2",
        )
    };
    Failure::new(Code::BackendUnavailable, message, remedy)
}
