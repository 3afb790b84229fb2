//! The languages that have sessions: how they are found on this machine, and how their interpreters are driven.
//!
//! [`control`] is the host's end of a driver's control channel, the same for every language. Each language has a
//! folder of its own with its driver, the program that runs inside the sandbox; the list of them is [`detect`].
//! Nothing here isolates anything: sessions run in whatever [`Sandbox`](sandcell_sandbox::Sandbox) they are given.
#![forbid(unsafe_code)]

pub mod control;
pub mod python;

use std::path::PathBuf;
use std::sync::Arc;

use sandcell_sandbox::{Failure, Language};

/// What the operator says about languages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// The Python to use instead of the machine's own; also of a virtual environment.
    pub python: Option<PathBuf>,
    /// A folder of the operator's in which what interpreters say of themselves is remembered between starts.
    pub memory: Option<PathBuf>,
}

/// The languages of this machine.
#[derive(Debug, Default)]
pub struct Detected {
    /// Those that can run.
    pub languages: Vec<Arc<dyn Language>>,
    /// Those that cannot, by name, with the reason and its remedy.
    pub missing: Vec<(String, Failure)>,
    /// Folders of the host, outside `/usr`, that must be visible inside, read-only and at the same path.
    pub trees: Vec<PathBuf>,
}

/// Finds every language that has a session. Runs each interpreter once, for some milliseconds, on the host, unless it is remembered.
#[must_use]
pub fn detect(settings: &Settings) -> Detected {
    let mut detected = Detected::default();
    match python::locate_remembered(settings.python.as_deref(), settings.memory.as_deref()) {
        Ok(runtime) => {
            detected.trees.extend(runtime.trees.iter().cloned());
            detected.languages.push(Arc::new(python::PythonLanguage::new(runtime)));
        }
        Err(error) => detected.missing.push(("python".to_owned(), error.into())),
    }
    detected
}
