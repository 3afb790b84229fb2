//! Packages: the policy for them, and their way into a sandbox.
//!
//! An implementation of [`Packages`] turns a caller's requirements into host folders that never change afterwards. A
//! back end shows such a folder in a sandbox with [`Attachments::attach`](crate::Attachments::attach).

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::{Consent, Failure, HOME};

/// The folder inside a sandbox below which packages appear. Each set has a numbered subfolder: `0`, `1`, …
pub const LAYERS: &str = "/opt/sandcell";
/// The folders of the system's programs inside.
pub const SYSTEM_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// The maximum number of package sets in one sandbox.
pub const LAYERS_MAX: usize = 16;

/// Returns the possible package folders inside a sandbox, the newest first: a later installation takes precedence.
#[must_use]
pub fn layer_places() -> Vec<String> {
    (0..LAYERS_MAX)
        .rev()
        .map(|number| format!("{LAYERS}/{number}"))
        .collect()
}

/// Returns the folders that are searched before all others for programs, as a part of a `PATH`. First the programs of
/// each package set, the newest set first. Then scripts that replace programs of the host, then programs of npm
/// packages.
#[must_use]
pub fn program_places() -> String {
    let sets = layer_places().into_iter().map(|place| format!("{place}/bin"));
    let all: Vec<String> = sets
        .chain([format!("{LAYERS}/bin"), format!("{HOME}/node_modules/.bin")])
        .collect();
    all.join(":")
}

/// Returns the requirement without its registry prefix: `zod@^3` for npm's `npm:zod@^3`. None if the text does not
/// begin with the registry's name and a colon.
#[must_use]
pub fn of_registry<'a>(text: &'a str, registry: &str) -> Option<&'a str> {
    text.trim_start().strip_prefix(registry)?.strip_prefix(':')
}

/// A package that a sandbox has or gets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PackageVersion {
    /// Its normalised name.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// A request to install packages.
#[derive(Debug, Clone)]
pub struct PackageRequest {
    /// The owner of the sandbox. Packages are shared between sandboxes of the same owner only.
    pub owner: String,
    /// The requirements, as the caller wrote them.
    pub packages: Vec<String>,
    /// The packages that the sandbox already has.
    pub held: Vec<PackageVersion>,
    /// The time limit.
    pub timeout: Duration,
    /// The user's answer for packages that need consent.
    pub consent: Consent,
}

/// The result of an installation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Installed {
    /// The folder to attach to the sandbox. None if the sandbox already has everything.
    pub folder: Option<PathBuf>,
    /// The new packages, by name. A package that the sandbox has in another version is listed with the new version.
    pub added: Vec<PackageVersion>,
    /// The requested packages that were already present.
    pub present: Vec<PackageVersion>,
    /// True if an earlier installation of the same set was reused.
    pub reused: bool,
    /// Sentences that the caller should read.
    pub notes: Vec<String>,
}

/// Installs packages of one language.
#[async_trait]
pub trait Packages: Send + Sync + std::fmt::Debug {
    /// Returns the language of the packages.
    fn language(&self) -> &str;

    /// Returns the registry's name, which may prefix a requirement: `npm` for `npm:zod`. See [`of_registry`].
    fn registry(&self) -> &str;

    /// Returns true if code in this language can use the packages, too.
    fn serves(&self, language: &str) -> bool {
        self.language() == language
    }

    /// Checks the requirements against the grammar and the operator's policy. Installs nothing.
    ///
    /// # Errors
    /// `invalid_argument` or `package_not_allowed`.
    fn check(&self, packages: &[String], consent: &Consent) -> Result<(), Failure>;

    /// Returns the requirements that need the user's consent. Skips unreadable ones: [`check`](Self::check) reports
    /// them.
    fn consent_required(&self, packages: &[String]) -> Vec<String>;

    /// Installs packages. `progress` receives a short description of the current step. Dropping the future aborts the
    /// installation and leaves nothing half done.
    ///
    /// # Errors
    /// The cause, for the caller to read.
    async fn install(&self, wanted: PackageRequest, progress: &watch::Sender<String>) -> Result<Installed, Failure>;

    /// Returns the program that resolves packages in a sandbox that installs them itself. The allow and deny lists
    /// apply there too.
    ///
    /// # Errors
    /// A package is refused.
    fn resolve_inside(&self, packages: &[String], consent: &Consent) -> Result<Vec<String>, Failure>;

    /// Reads the output of that program. Returns the packages, and the program that installs them if any is new. The
    /// second program prints the names that it skipped, one a line. Code in the sandbox can forge both outputs. It can
    /// also install packages without this method.
    ///
    /// # Errors
    /// A package in the output is not allowed, or the output is unreadable.
    fn install_inside(
        &self,
        packages: &[String],
        consent: &Consent,
        printed: &[u8],
    ) -> Result<(Option<Vec<String>>, Installed), Failure>;

    /// Returns a program that registers the packages at this path inside with the language. It runs in the same
    /// sandbox, with the rights of its code. It prints the names that it skipped, one a line. None if nothing is
    /// needed.
    fn arrange(&self, place: &str) -> Option<Vec<String>> {
        let _ = place;
        None
    }

    /// Returns the folder and the packages that every sandbox starts with, if the operator has named any.
    ///
    /// # Errors
    /// The base in the settings is not usable.
    fn base(&self) -> Result<Option<Installed>, Failure>;
}
