//! Packages of npm, for JavaScript: the same way as Python's, with npm as the tool.
//!
//! npm runs in a sandbox of its own; its registry is a port there that leads to the broker. No script of a package is run at
//! any time. The result is a layer like any other; in the sandbox that it is for, the names of its packages are linked
//! into `node_modules` of the home folder, where `require` and `import` look.

mod installer;
mod lock;
mod policy;
mod spec;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use sandcell_broker::{Client, Machine, NpmIndex, NpmMachine, Rules, Trouble};
use sandcell_sandbox::{Backend, Code, Failure, Held, Installed, Limits, Packages, Wanted};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

pub use policy::{NpmEntry, NpmPolicy};

use crate::lock::Locked;
use crate::service::{FRESH, INSTALLERS, Turns, broken, rfc3339, too_long};
use crate::store::{Answer, KeptMax, Layer, Store, key};
use installer::{Installer, Setup};
use spec::Spec;

/// What makes the packages of a layer known in the sandbox.
const LINK: &str = include_str!("../inside/link.js");

/// What the operator and the machine say about packages of npm.
#[derive(Clone)]
pub struct NpmConfig {
    /// Where layers are kept; none: packages cannot be installed.
    pub data: Option<PathBuf>,
    /// What may be installed.
    pub policy: NpmPolicy,
    /// Node, the same path on the host and inside.
    pub node: String,
    /// Its version.
    pub node_version: String,
    /// npm's own program, where it was found.
    pub npm: Option<PathBuf>,
    /// What one installation may use.
    pub limits: Limits,
    /// Bytes of one downloaded file.
    pub file_max: u64,
    /// Bytes of all downloaded files of one installation.
    pub total_max: u64,
    /// How much is kept.
    pub kept_max: KeptMax,
    /// Looks a variable of the environment up, for the machine's settings.
    pub variable: fn(&str) -> Option<String>,
}

impl std::fmt::Debug for NpmConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NpmConfig")
            .field("node", &self.node)
            .field("npm", &self.npm)
            .finish_non_exhaustive()
    }
}

/// Looks for npm in the folders of `path` (as the variable PATH has them): its own program, not a stand-in for it.
#[must_use]
pub fn find_npm(path: Option<&str>) -> Option<PathBuf> {
    let folders = path.unwrap_or_default().split(':').map(Path::new);
    folders
        .filter(|folder| folder.is_absolute())
        .filter_map(|folder| folder.join("npm").canonicalize().ok())
        .find(|file| file.ends_with("npm/bin/npm-cli.js"))
}

/// Installs packages of npm.
#[derive(Debug)]
pub struct NpmPackages {
    config: NpmConfig,
    backend: Arc<dyn Backend>,
    store: Option<Store>,
    turns: Turns,
    installers: Semaphore,
}

impl NpmPackages {
    /// With a back end that makes the installers' sandboxes.
    #[must_use]
    pub fn new(config: NpmConfig, backend: Arc<dyn Backend>) -> Arc<Self> {
        let store = config.data.as_deref().map(|data| Store::new(data, config.kept_max));
        Arc::new(Self {
            config,
            backend,
            store,
            turns: Turns::default(),
            installers: Semaphore::new(INSTALLERS),
        })
    }

    /// What packages that hold machine code depend on.
    fn platform(&self) -> String {
        let major = self.config.node_version.trim_start_matches('v').split('.').next();
        format!("node {} {}", major.unwrap_or_default(), std::env::consts::ARCH)
    }

    fn machine(&self) -> Result<NpmMachine, Failure> {
        NpmMachine::read(&self.config.variable).map_err(|error| unusable(&error))
    }

    fn index(&self) -> Result<Arc<NpmIndex>, Failure> {
        // Certificates and proxies are those that pip and uv know.
        let machine = Machine::read(&self.config.variable).map_err(|error| unusable(&error.to_string()))?;
        let client = Client::new(machine).map_err(|error| unusable(&error))?;
        let policy = self.config.policy.clone();
        let rules = Rules {
            sources: false,
            newest: policy.min_age.map(|age| rfc3339(SystemTime::now() - age)),
            allows: Box::new(move |name, version| version.is_some_and(|version| policy.offers(name, version))),
            file_max: self.config.file_max,
            total_max: self.config.total_max,
        };
        Ok(NpmIndex::new(Arc::new(client), self.machine()?, rules))
    }

    fn question(&self, specs: &[Spec]) -> Result<String, Failure> {
        let specs: Vec<String> = specs
            .iter()
            .map(|spec| format!("{}@{}", spec.name, spec.range))
            .collect();
        let policy = format!("{:?}", self.config.policy);
        let shown = self.machine()?.shown().join(" ");
        Ok(key(&["npm", &self.platform(), &specs.join("\n"), &policy, &shown]))
    }

    async fn get(
        &self,
        owner: &str,
        specs: &[Spec],
        progress: &watch::Sender<String>,
    ) -> Result<(Answer, PathBuf, bool), Failure> {
        let store = self.store.as_ref().ok_or_else(|| {
            Failure::new(
                Code::PackageFailed,
                "there is no folder to keep packages in",
                "tell the operator: set data_dir (or HOME) for the server",
            )
        })?;
        let question = self.question(specs)?;
        let turn = self.turns.of(&question);
        let _turn = turn.lock().await;
        if let Some((answer, age)) = store.answer(owner, &question)
            && age <= FRESH
            && let Some((layer, site)) = answer.key.as_deref().and_then(|key| store.layer(owner, key))
            && self.config.policy.check_lock(&layer.locked).is_ok()
        {
            return Ok((answer, site, true));
        }
        let npm = self.config.npm.clone().ok_or_else(|| {
            Failure::new(
                Code::PackageFailed,
                "npm is not on this machine",
                "tell the operator: install npm so that it is on PATH (apt-get install npm)",
            )
        })?;
        progress.send_replace("waiting for an installer".to_owned());
        let _place = self.installers.acquire().await.map_err(|_| broken())?;
        store.make_room();
        if store.full() {
            return Err(Failure::new(
                Code::DiskFull,
                "the packages that are kept already take all the room that the operator gives them",
                "use packages that are installed already, or ask the operator to raise packages.kept_mb",
            ));
        }
        store.prepare()?;
        let index = self.index()?;
        let setup = Setup {
            backend: self.backend.clone(),
            node: self.config.node.clone(),
            npm,
            limits: self.config.limits.clone(),
        };
        progress.send_replace("finding versions".to_owned());
        let installer = Installer::start(setup, index.clone()).await?;
        let result = self.with_installer(&installer, store, owner, specs, progress).await;
        installer.close().await;
        let (answer, site, reused) = result.map_err(|failure| self.explain(failure, &index.trouble()))?;
        store.remember(owner, &question, &answer)?;
        Ok((answer, site, reused))
    }

    async fn with_installer(
        &self,
        installer: &Installer,
        store: &Store,
        owner: &str,
        specs: &[Spec],
        progress: &watch::Sender<String>,
    ) -> Result<(Answer, PathBuf, bool), Failure> {
        let lock = installer.resolve(specs).await?;
        self.config.policy.check_lock(&lock.all)?;
        let name = key(&["npm layer", &self.platform(), &lock.text]);
        let answer = Answer {
            key: Some(name.clone()),
            locked: lock.top,
        };
        if let Some((_, site)) = store.layer(owner, &name) {
            return Ok((answer, site, true));
        }
        let draft = store.draft()?;
        let unpacked = installer
            .build(&draft, self.config.limits.disk.as_bytes(), lock.all.len(), progress)
            .await?;
        let layer = Layer {
            python: self.platform(),
            locked: lock.all,
            bytes: unpacked.bytes,
            files: unpacked.files,
            tree: unpacked.hash,
        };
        let (store, owner) = (store.clone(), owner.to_owned());
        // Waits for the disk.
        let site = tokio::task::spawn_blocking(move || store.publish(draft, &owner, &name, &layer))
            .await
            .map_err(|_| broken())??;
        Ok((answer, site, false))
    }

    /// npm's failure in the words of what the broker saw, which knows better.
    fn explain(&self, failure: Failure, trouble: &Trouble) -> Failure {
        if failure.code != Code::PackageFailed {
            return failure;
        }
        if let Some(reason) = trouble.failures.first() {
            return Failure::new(
                Code::PackageFailed,
                format!("the npm registry could not be used: {reason}"),
                "try again later; if it stays, the operator can check the machine's settings (.npmrc, npm_config_registry, proxies)",
            );
        }
        if let Some(name) = trouble.unknown.first() {
            return Failure::new(
                Code::PackageFailed,
                format!("there is no npm package called {name} on the registry"),
                "check the name",
            );
        }
        if let Some(name) = trouble
            .too_new
            .iter()
            .find(|name| failure.message.contains(&format!("for {name}")))
        {
            let days = self.config.policy.min_age.unwrap_or_default().as_secs() / 86_400;
            return Failure::new(
                Code::PackageNotAllowed,
                format!("releases of {name} that are younger than {days} days are not installed"),
                "ask for an older version, or without one",
            );
        }
        // Some of its versions are hidden; whether that is the reason npm's own words tell.
        let is_about = |name: &&String| failure.message.contains(&format!("for {name}"));
        if let Some(name) = trouble.hidden.iter().find(is_about) {
            return self
                .config
                .policy
                .refusal(format!("no version of {name} that the operator allows fits"));
        }
        failure
    }
}

fn unusable(reason: &str) -> Failure {
    Failure::new(
        Code::PackageFailed,
        format!("the machine's settings for npm cannot be used: {reason}"),
        "tell the operator to correct .npmrc or the settings of proxies and certificates",
    )
}

#[async_trait]
impl Packages for NpmPackages {
    fn language(&self) -> &str {
        "javascript"
    }

    fn serves(&self, language: &str) -> bool {
        matches!(language, "javascript" | "typescript")
    }

    fn check(&self, packages: &[String]) -> Result<(), Failure> {
        spec::parse_all(packages)?
            .iter()
            .try_for_each(|spec| self.config.policy.check(spec))
    }

    async fn install(&self, wanted: Wanted, progress: &watch::Sender<String>) -> Result<Installed, Failure> {
        let specs = spec::parse_all(&wanted.packages)?;
        specs.iter().try_for_each(|spec| self.config.policy.check(spec))?;
        let held = |spec: &Spec| wanted.held.iter().find(|held| spec.is_satisfied_by(held)).cloned();
        let present: Vec<Held> = specs.iter().filter_map(held).collect();
        if present.len() == specs.len() {
            return Ok(Installed {
                folder: None,
                added: Vec::new(),
                present,
                reused: true,
                notes: Vec::new(),
            });
        }
        let got = timeout(wanted.timeout, self.get(&wanted.owner, &specs, progress)).await;
        let (answer, site, reused) = got.map_err(|_| too_long(wanted.timeout))??;
        let added: Vec<Held> = answer.locked.iter().map(Locked::held).collect();
        let notes = added.iter().filter_map(|one| {
            let before = wanted.held.iter().find(|held| held.name == one.name)?;
            (before.version != one.version).then(|| {
                format!(
                    "{} changed from {} to {}: if it was loaded already, restart the session (reset_session_state)",
                    one.name, before.version, one.version
                )
            })
        });
        Ok(Installed {
            notes: notes.collect(),
            folder: Some(site),
            present: Vec::new(),
            reused,
            added,
        })
    }

    fn arrange(&self, place: &str) -> Option<Vec<String>> {
        Some(
            [self.config.node.as_str(), "-e", LINK, place]
                .map(str::to_owned)
                .to_vec(),
        )
    }

    fn base(&self) -> Result<Option<Installed>, Failure> {
        Ok(None)
    }
}
