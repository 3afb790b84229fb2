//! Python: the machine's interpreter (or the operator's), and sessions of it.
//!
//! The driver is the folder `driver/`. It travels to the interpreter as the first frame of the control channel, because
//! a sandbox has no file of ours and an argument holds no more than 128 KiB; once the host's interpreter has compiled
//! it, as code objects, which halves the start.

mod analysis;
mod driver;
mod layers;
mod locate;
mod parents;
mod probe;
mod remember;
mod shown;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use sandcell_sandbox::{
    Advice, Backend, Command, Failure, Finding, HOME, Language, LanguageInfo, NotLoaded, Pictures, Program, Sandbox,
    SandboxError, Session, SessionError, SessionFeatures, Signal, SignalScope, StdinMode,
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
    /// For sandboxes whose programs come from an image: the interpreter there is another one.
    abroad: driver::Boot,
    parents: Arc<parents::Parents>,
    copies: bool,
}

impl PythonLanguage {
    /// With an interpreter that [`locate()`] found.
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
            parents: Arc::default(),
            runtime,
            copies: true,
        }
    }

    /// Whether sessions keep copies of themselves from which they are restored when their interpreter dies. They do
    /// unless this says otherwise, in sandboxes that can use them.
    #[must_use]
    pub fn with_copies(self, copies: bool) -> Self {
        Self { copies, ..self }
    }

    /// The interpreter.
    #[must_use]
    pub fn runtime(&self) -> &PythonRuntime {
        &self.runtime
    }

    /// Begins, in a thread of its own, to compile the driver with the host's interpreter (about 50 ms of one core), so
    /// that later sessions start faster. The first session begins it otherwise, or some time after it where sessions are copies
    /// of a warmed interpreter. Sessions never wait for it.
    pub fn prepare(&self) {
        self.driver.compile_in_background(true);
    }

    /// The same as [`Language::open`], with the session's own type.
    ///
    /// # Errors
    /// [`SessionError`] when the interpreter does not become ready.
    pub async fn open_session(&self, sandbox: &dyn Sandbox) -> Result<DriverSession, SessionError> {
        let driver = match sandbox.image() {
            None => &self.driver,
            Some(_) => &self.abroad,
        };
        let command = Command {
            argv: driver.argv(),
            env: sandbox.base_env().clone(),
            cwd: HOME.to_owned(),
            stdin: StdinMode::Null,
            control: true,
        };
        let expected = sandbox.expects();
        let chosen = match sandbox.image() {
            None => self.parents.choose(&sandbox.attached().await, expected),
            Some(_) => None,
        };
        if let (Some(number), None) = (expected, &chosen) {
            // Nobody takes who waits there.
            if let Ok(unwanted) = sandbox.adopt(number).await {
                let _ = unwanted.handle.signal(Signal::Kill, SignalScope::Tree).await;
            }
        }
        if let Some(chosen) = chosen {
            let boot = driver::begin_frame(&command.env, &command.cwd);
            let start = self.start(command.clone(), boot);
            let adopted = DriverSession::adopt(sandbox, chosen.number, Arc::clone(&chosen.ahead), start).await;
            let error = match adopted {
                Ok(session) => {
                    self.driver.compile_in_background(false);
                    parents::Parents::worked(&chosen);
                    return Ok(session);
                }
                Err(error) => error,
            };
            let session = self.open_cold(sandbox, command, driver).await?;
            // That this sandbox cannot be entered, or not again, says nothing about the parent.
            if !matches!(error, SessionError::Sandbox(SandboxError::Unsupported(_))) {
                self.parents.failed(&chosen, &error);
            }
            return Ok(session);
        }
        self.open_cold(sandbox, command, driver).await
    }

    /// With an interpreter that is started for it.
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
            copies: match self.copies {
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

#[async_trait]
impl Language for PythonLanguage {
    fn info(&self) -> &LanguageInfo {
        &self.info
    }

    /// Unbuffered, so that what was printed before a time-out is not lost.
    fn program(&self, code: &str, args: &[String], env: &BTreeMap<String, String>) -> Result<Program, Failure> {
        let path = own_path("main.py")?;
        let mut argv = vec![self.runtime.executable.to_string_lossy().into_owned()];
        argv.extend(["-u", "-B", "-X", "utf8", path.as_str()].map(str::to_owned));
        argv.extend_from_slice(args);
        let mut env = env.clone();
        let theirs = env.get("PYTHONPATH").map_or(String::new(), |path| format!(":{path}"));
        env.insert("PYTHONPATH".to_owned(), format!("{}{theirs}", shown::FOLDER));
        Ok(Program {
            files: vec![(path, Bytes::copy_from_slice(code.as_bytes())), shown::module()?],
            compile: None,
            run: Command {
                argv,
                env,
                cwd: HOME.to_owned(),
                stdin: StdinMode::Null,
                control: false,
            },
            pictures: Some(Pictures {
                folder: own_path(shown::PICTURES)?,
                prefix: String::new(),
            }),
        })
    }

    fn analyse(&self, code: &str, advice: &Advice) -> Vec<Finding> {
        analysis::analyse(code, advice)
    }

    async fn warm(
        &self,
        backend: &Arc<dyn Backend>,
        modules: &[String],
        attached: &[PathBuf],
    ) -> Result<Vec<NotLoaded>, SessionError> {
        let command = Command {
            argv: self.driver.argv(),
            env: BTreeMap::new(),
            cwd: HOME.to_owned(),
            stdin: StdinMode::Null,
            control: true,
        };
        let recipe = parents::Recipe {
            backend: Arc::clone(backend),
            argv: self.driver.argv(),
            boot: self.driver.frames_of_parent(),
            start: self.start(command, Bytes::new()),
            modules: modules.to_vec(),
            attached: attached.to_vec(),
        };
        self.parents.start(recipe).await
    }

    fn warmed(&self, attached: &[PathBuf]) -> Option<u64> {
        self.parents.fitting(attached).map(|warm| warm.number)
    }

    async fn open(&self, sandbox: Arc<dyn Sandbox>) -> Result<Box<dyn Session>, SessionError> {
        Ok(Box::new(self.open_session(sandbox.as_ref()).await?))
    }
}
