//! Packages: who gets them, and how they reach a sandbox.
//!
//! Whoever implements [`Packages`] turns what a caller asks for into folders of the host that never change again. A back
//! end shows such a folder in a sandbox with [`Sandbox::attach`](crate::Sandbox::attach).

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::{Consent, Failure, HOME};

/// Below this folder packages appear inside a sandbox, each set in a folder of its own: `0`, `1`, …
pub const LAYERS: &str = "/opt/sandcell";
/// The folders of the system's programs inside.
pub const SYSTEM_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// How many sets one sandbox can have.
pub const LAYERS_MAX: usize = 16;

/// The places of packages inside a sandbox, the newest possible one first: what was installed later wins.
#[must_use]
pub fn layer_places() -> Vec<String> {
    (0..LAYERS_MAX)
        .rev()
        .map(|number| format!("{LAYERS}/{number}"))
        .collect()
}

/// Where programs of packages are looked for inside, before all others, as part of a `PATH`: those of each set, the newest
/// one first, then scripts that stand for programs of the host, then programs that npm's packages bring.
#[must_use]
pub fn program_places() -> String {
    let sets = layer_places().into_iter().map(|place| format!("{place}/bin"));
    let all: Vec<String> = sets
        .chain([format!("{LAYERS}/bin"), format!("{HOME}/node_modules/.bin")])
        .collect();
    all.join(":")
}

/// The requirement behind the name of a registry: of npm's `npm:zod@^3` is `zod@^3`; of a text that does not begin with
/// the registry's name and a colon it is none.
#[must_use]
pub fn of_registry<'a>(text: &'a str, registry: &str) -> Option<&'a str> {
    text.trim_start().strip_prefix(registry)?.strip_prefix(':')
}

/// A package that a sandbox has, or gets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Held {
    /// Its normalised name.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// What somebody wants to be installed.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Whose sandbox it is for; packages are shared between sandboxes of the same owner only.
    pub owner: String,
    /// The requirements, as the caller wrote them.
    pub packages: Vec<String>,
    /// What the sandbox has already.
    pub held: Vec<Held>,
    /// How long it may take.
    pub timeout: Duration,
    /// What the user said to those that are left to the user.
    pub consent: Consent,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Installed {
    /// The folder to show in the sandbox; none when the sandbox has everything already.
    pub folder: Option<PathBuf>,
    /// What is new in it, by name. A name that the sandbox holds in another version is in here with the new one.
    pub added: Vec<Held>,
    /// What was asked for and is there already.
    pub present: Vec<Held>,
    /// Whether an earlier installation of the same set was found.
    pub reused: bool,
    /// Sentences that the caller should read.
    pub notes: Vec<String>,
}

/// Installs packages of one language.
#[async_trait]
pub trait Packages: Send + Sync + std::fmt::Debug {
    /// The language that the packages are for.
    fn language(&self) -> &str;

    /// Where they come from, in a word that a requirement may begin with: `npm` for `npm:zod`. See [`of_registry`].
    fn registry(&self) -> &str;

    /// Whether code in this language can use them, too.
    fn serves(&self, language: &str) -> bool {
        self.language() == language
    }

    /// Checks what is wanted against the grammar and the operator's policy, without doing anything.
    ///
    /// # Errors
    /// `invalid_argument` or `package_not_allowed`.
    fn check(&self, packages: &[String], consent: &Consent) -> Result<(), Failure>;

    /// Those of what is wanted that the operator leaves to the user. What cannot be read is left out: [`check`](Self::check)
    /// says why.
    fn left_to_user(&self, packages: &[String]) -> Vec<String>;

    /// Gets what is wanted. `progress` is told in a few words what is being done. Dropping the future gives up, and
    /// leaves nothing half done.
    ///
    /// # Errors
    /// What stands in the way, in the words of the caller.
    async fn install(&self, wanted: Wanted, progress: &watch::Sender<String>) -> Result<Installed, Failure>;

    /// Returns the program that resolves packages in a sandbox that installs them itself. The allow and deny lists hold there too.
    ///
    /// # Errors
    /// A refused package.
    fn resolve_inside(&self, packages: &[String], consent: &Consent) -> Result<Vec<String>, Failure>;

    /// Reads the output of that program. Returns the packages, and the program that installs them if any is new. The second program
    /// prints the names that it skipped, one a line. Code in the sandbox can forge both outputs; it can also install packages
    /// without this method.
    ///
    /// # Errors
    /// Something in it is not allowed, or cannot be read.
    fn install_inside(
        &self,
        packages: &[String],
        consent: &Consent,
        printed: &[u8],
    ) -> Result<(Option<Vec<String>>, Installed), Failure>;

    /// A program that makes the packages at this place inside known to the language. It runs in the sandbox that they are
    /// for, with the rights of its code; what it prints are names that it left alone, a line each. None: nothing is needed.
    fn arrange(&self, place: &str) -> Option<Vec<String>> {
        let _ = place;
        None
    }

    /// The folder and the packages that every sandbox starts with, if the operator has named some.
    ///
    /// # Errors
    /// The base that the settings name cannot be used.
    fn base(&self) -> Result<Option<Installed>, Failure>;
}
