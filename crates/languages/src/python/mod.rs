//! Python: the machine's interpreter (or the operator's), and its sessions.
//!
//! The driver is the folder `driver/`. The interpreter receives it as the first frame of the control channel, because a
//! sandbox contains none of our files and an argument holds at most 128 KiB. Once the host's interpreter has compiled
//! it, it is sent as code objects, which halves the start.

mod analysis;
mod driver;
mod layers;
mod locate;
mod probe;
mod probe_cache;
mod shown;
mod zygotes;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use sandcell_sandbox::{
    Advice, Backend, Command, Failure, Finding, HOME, Language, LanguageInfo, NotLoaded, Pictures, Program, Sandbox,
    SandboxError, Session, SessionError, SessionFeatures, Signal, SignalScope, StateImage, StdinMode,
};

use crate::control::{CodeIn, DriverSession, Snapshots, Start};
use crate::own_path;

pub use analysis::{analyse, distribution};
pub use driver::{DriverFile, driver_sources};
pub(crate) use layers::layers_file;
pub use locate::{LocateError, locate, locate_remembered};
pub use probe::PythonRuntime;
pub(crate) use probe::runtime_inside;

/// Python sessions and programs with one interpreter.
#[derive(Debug)]
pub struct PythonLanguage {
    runtime: PythonRuntime,
    info: LanguageInfo,
    driver: driver::Boot,
    /// The driver for sandboxes of an image, which contains a different interpreter.
    abroad: driver::Boot,
    zygotes: Arc<zygotes::Zygotes>,
    snapshots: bool,
}

impl PythonLanguage {
    /// Uses an interpreter that [`locate()`] found.
    #[must_use]
    pub fn new(runtime: PythonRuntime) -> Self {
        Self {
            info: LanguageInfo {
                name: "python".to_owned(),
                aliases: vec!["python3".to_owned(), "py".to_owned()],
                version: runtime.version.clone(),
                session: true,
                extensions: vec!["py".to_owned()],
                libraries: runtime.libraries.clone(),
            },
            driver: driver::Boot::new(&runtime),
            abroad: driver::Boot::abroad(match runtime.executable.is_absolute() {
                true => std::path::Path::new("python3"),
                false => &runtime.executable,
            }),
            zygotes: Arc::default(),
            runtime,
            snapshots: true,
        }
    }

    /// Sets whether sessions keep snapshots, from which they are restored when their interpreter dies. By default they
    /// do, in sandboxes that support snapshots.
    #[must_use]
    pub fn with_snapshots(self, snapshots: bool) -> Self {
        Self { snapshots, ..self }
    }

    /// The interpreter.
    #[must_use]
    pub fn runtime(&self) -> &PythonRuntime {
        &self.runtime
    }

    /// Begins to compile the driver in a separate thread with the host's interpreter (about 50 ms of one core), so that
    /// later sessions start faster. Otherwise the first session does so, with a delay if sessions are children of a
    /// zygote. Sessions never wait for it.
    pub fn prepare(&self) {
        self.driver.compile_in_background(true);
    }

    /// Opens a session like [`Language::open`], with the concrete type.
    ///
    /// # Errors
    /// [`SessionError`] when the interpreter does not become ready.
    pub async fn open_session(&self, sandbox: &dyn Sandbox) -> Result<DriverSession, SessionError> {
        let driver = match sandbox.image() {
            None => &self.driver,
            Some(_) => &self.abroad,
        };
        let command = driver_command(driver, sandbox.base_env());
        let Some(entry) = sandbox.zygote_entry() else {
            return self.open_cold(sandbox, command, driver).await;
        };
        let expected = entry.pending_worker();
        let attached = attached_to(sandbox).await;
        let chosen = self.zygotes.choose(&attached, expected);
        if let (Some(number), None) = (expected, &chosen) {
            // A child waits there, but no session will use it.
            if let Ok(unwanted) = entry.adopt(number).await {
                let _ = unwanted.handle.signal(Signal::Kill, SignalScope::Tree).await;
            }
        }
        if let Some(chosen) = chosen {
            let boot = driver::begin_frame(&command.env, &command.cwd);
            let start = self.start(command.clone(), boot);
            let worker = entry.adopt(chosen.number).await.map_err(SessionError::from);
            let adopted = match worker {
                Ok(worker) => DriverSession::adopted(sandbox, worker, Arc::clone(&chosen.preloaded), start).await,
                Err(error) => Err(error),
            };
            let error = match adopted {
                Ok(session) => {
                    self.driver.compile_in_background(false);
                    zygotes::Zygotes::worked(&chosen);
                    return Ok(session);
                }
                Err(error) => error,
            };
            let session = self.open_cold(sandbox, command, driver).await?;
            // A sandbox that supports no entry, or no second one, is not the zygote's fault.
            if !matches!(error, SessionError::Sandbox(SandboxError::Unsupported(_))) {
                self.zygotes.failed(&chosen, &error);
            }
            return Ok(session);
        }
        self.open_cold(sandbox, command, driver).await
    }

    /// Opens a session that goes on from an image.
    async fn open_branch(&self, sandbox: &dyn Sandbox, image: &StateImage) -> Result<DriverSession, SessionError> {
        let unsupported = || SandboxError::Unsupported("branches of a sandbox".to_owned());
        let branching = sandbox.branching().ok_or_else(unsupported)?;
        let attached = attached_to(sandbox).await;
        let chosen = self.zygotes.choose_soon(&attached).await;
        let chosen = chosen.ok_or_else(|| SessionError::Start {
            language: self.info.name.clone(),
            reason: "no zygote runs, whose forks load the state (`sandcell doctor` names the reason)".to_owned(),
        })?;
        let command = driver_command(&self.driver, sandbox.base_env());
        let boot = driver::begin_frame(&command.env, &command.cwd);
        let worker = branching.adopt_with(chosen.number, image).await?;
        let start = self.start(command, boot);
        let mut session = DriverSession::adopted(sandbox, worker, Arc::clone(&chosen.preloaded), start).await?;
        zygotes::Zygotes::worked(&chosen);
        session.load(image).await?;
        Ok(session)
    }

    /// Opens a session with a newly started interpreter.
    async fn open_cold(
        &self,
        sandbox: &dyn Sandbox,
        command: Command,
        driver: &driver::Boot,
    ) -> Result<DriverSession, SessionError> {
        if sandbox.image().is_none() {
            driver.compile_in_background(true);
        }
        DriverSession::open(sandbox, self.start(command, driver.frames())).await
    }

    fn start(&self, command: Command, boot: Bytes) -> Start {
        Start {
            language: self.info.name.clone(),
            command,
            boot,
            snapshots: match self.snapshots {
                true => Snapshots::Kept,
                false => Snapshots::TurnedOff,
            },
            code: CodeIn::Header,
            features: SessionFeatures {
                result_value: true,
                display: true,
                interrupt: true,
                stdin: true,
            },
        }
    }
}

/// Returns the command that starts a driver.
fn driver_command(driver: &driver::Boot, env: &BTreeMap<String, String>) -> Command {
    Command {
        argv: driver.argv(),
        env: env.clone(),
        cwd: HOME.to_owned(),
        stands_alone: false,
        stdin: StdinMode::Null,
        control: true,
        terminal: None,
    }
}

/// Returns the folders that are attached to a sandbox, in call order.
async fn attached_to(sandbox: &dyn Sandbox) -> Vec<PathBuf> {
    match sandbox.attachments() {
        Some(attachments) => attachments.attached().await,
        None => Vec::new(),
    }
}

#[async_trait]
impl Language for PythonLanguage {
    fn info(&self) -> &LanguageInfo {
        &self.info
    }

    /// Unbuffered, so that output before a time-out is not lost.
    fn program(&self, code: &str, args: &[String], env: &BTreeMap<String, String>) -> Result<Program, Failure> {
        let path = own_path("main.py")?;
        let mut argv = vec![self.runtime.executable.to_string_lossy().into_owned()];
        argv.extend(["-u", "-B", "-X", "utf8", path.as_str()].map(str::to_owned));
        argv.extend_from_slice(args);
        let mut env = env.clone();
        let theirs = env.get("PYTHONPATH").map_or(String::new(), |path| format!(":{path}"));
        env.insert("PYTHONPATH".to_owned(), format!("{}{theirs}", shown::MODULE_FOLDER));
        Ok(Program {
            files: vec![(path, Bytes::copy_from_slice(code.as_bytes())), shown::module()?],
            compile: None,
            run: Command {
                argv,
                env,
                cwd: HOME.to_owned(),
                stands_alone: false,
                stdin: StdinMode::Null,
                control: false,
                terminal: None,
            },
            pictures: Some(Pictures {
                folder: own_path(shown::PICTURE_FOLDER)?,
                prefix: String::new(),
            }),
        })
    }

    fn analyse(&self, code: &str, advice: &Advice) -> Vec<Finding> {
        analysis::analyse(code, advice)
    }

    async fn start_zygote(
        &self,
        backend: &Arc<dyn Backend>,
        modules: &[String],
        attached: &[PathBuf],
    ) -> Result<Vec<NotLoaded>, SessionError> {
        let command = driver_command(&self.driver, &BTreeMap::new());
        let recipe = zygotes::Recipe {
            backend: Arc::clone(backend),
            argv: self.driver.argv(),
            boot: self.driver.zygote_frames(),
            start: self.start(command, Bytes::new()),
            modules: modules.to_vec(),
            attached: attached.to_vec(),
        };
        self.zygotes.start(recipe).await
    }

    fn matching_zygote(&self, attached: &[PathBuf]) -> Option<u64> {
        self.zygotes.fitting(attached).map(|warm| warm.number)
    }

    async fn open(&self, sandbox: Arc<dyn Sandbox>) -> Result<Box<dyn Session>, SessionError> {
        Ok(Box::new(self.open_session(sandbox.as_ref()).await?))
    }

    fn image_format(&self) -> String {
        driver::digest()
    }

    async fn open_image(&self, sandbox: &dyn Sandbox, image: &StateImage) -> Result<Box<dyn Session>, SessionError> {
        Ok(Box::new(self.open_branch(sandbox, image).await?))
    }
}
