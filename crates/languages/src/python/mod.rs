//! Python: the machine's interpreter (or the operator's), and sessions of it.
//!
//! The driver is the folder `driver/`. It travels to the interpreter as the first frame of the control channel, because
//! a sandbox has no file of ours and an argument holds no more than 128 KiB; once the host's interpreter has compiled
//! it, as code objects, which halves the start.

mod driver;
mod locate;
mod probe;
mod remember;

use std::sync::Arc;

use async_trait::async_trait;
use sandcell_sandbox::{Command, HOME, Language, LanguageInfo, Sandbox, SandboxPath, Session, SessionError, StdinMode};

use crate::control::{DriverSession, Start};

pub use driver::{DriverFile, driver_sources};
pub use locate::{LocateError, locate, locate_remembered};
pub use probe::PythonRuntime;

/// Python sessions and programs with one interpreter.
#[derive(Debug)]
pub struct PythonLanguage {
    runtime: PythonRuntime,
    info: LanguageInfo,
    driver: driver::Boot,
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
                libraries: runtime.libraries.clone(),
            },
            driver: driver::Boot::new(&runtime),
            runtime,
        }
    }

    /// The interpreter.
    #[must_use]
    pub fn runtime(&self) -> &PythonRuntime {
        &self.runtime
    }

    /// Begins, in a thread of its own, to compile the driver with the host's interpreter (about 50 ms of one core), so
    /// that later sessions start faster. The first session begins it otherwise. Sessions never wait for it.
    pub fn prepare(&self) {
        self.driver.compile_in_background();
    }

    /// The same as [`Language::open`], with the session's own type.
    ///
    /// # Errors
    /// [`SessionError`] when the interpreter does not become ready.
    pub async fn open_session(&self, sandbox: &dyn Sandbox) -> Result<DriverSession, SessionError> {
        self.driver.compile_in_background();
        let start = Start {
            language: self.info.name.clone(),
            command: Command {
                argv: self.driver.argv(),
                env: sandbox.base_env().clone(),
                cwd: HOME.to_owned(),
                stdin: StdinMode::Null,
                control: true,
            },
            boot: self.driver.frame(),
        };
        DriverSession::open(sandbox, start).await
    }
}

#[async_trait]
impl Language for PythonLanguage {
    fn info(&self) -> &LanguageInfo {
        &self.info
    }

    fn file_name(&self) -> &str {
        "main.py"
    }

    /// Unbuffered, so that what was printed before a time-out is not lost.
    fn program(&self, path: &SandboxPath, args: &[String]) -> Command {
        let mut argv = vec![self.runtime.executable.to_string_lossy().into_owned()];
        argv.extend(["-u", "-B", "-X", "utf8", path.as_str()].map(str::to_owned));
        argv.extend_from_slice(args);
        Command {
            argv,
            env: std::collections::BTreeMap::new(),
            cwd: HOME.to_owned(),
            stdin: StdinMode::Null,
            control: false,
        }
    }

    async fn open(&self, sandbox: Arc<dyn Sandbox>) -> Result<Box<dyn Session>, SessionError> {
        Ok(Box::new(self.open_session(sandbox.as_ref()).await?))
    }
}
