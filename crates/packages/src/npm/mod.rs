//! npm packages for JavaScript. The path of a request is the same as for Python, with npm as the tool.
//!
//! npm runs in a separate sandbox. Its registry is a port there that leads to the broker. No script of a package ever
//! runs. The result is a layer like any other. In the caller's sandbox, links to its packages are created in
//! `node_modules` of the home folder, where `require` and `import` find them.

mod inside;
mod installer;
mod lock;
mod policy;
mod spec;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use sandcell_broker::{Client, FetchProblems, Machine, NpmIndex, NpmMachine, Rules};
use sandcell_sandbox::{Backend, Code, Consent, Failure, Installed, PackageRequest, PackageVersion, Packages, rfc3339};
use tokio::sync::watch;
use tokio::time::timeout;

pub use policy::{NpmEntry, NpmPolicy};

use crate::base_part::{self, OPERATOR_OWNER};
use crate::coordinator::{Coordinator, InstallResult, MAX_ANSWER_AGE, all_present_answer, caller_answer, too_long};
use crate::service::{Bounds, refused_link};
use crate::store::{Answer, Layer, Part, Store, key};
use installer::{Installer, Setup};
use spec::Spec;

/// The script that links the packages of a layer into the sandbox's `node_modules`.
const LINK_SCRIPT: &str = include_str!("../inside/link.js");

/// The settings of the operator and the machine for npm packages.
#[derive(Clone)]
pub struct NpmConfig {
    /// The data folder for layers. None: packages cannot be installed.
    pub data: Option<PathBuf>,
    /// The operator's policy.
    pub policy: NpmPolicy,
    /// The installing programs of this machine. Without them, only sandboxes with their own npm can install packages.
    pub tools: Option<NpmTools>,
    /// The limits of an installation.
    pub bounds: Bounds,
    /// The base of every new sandbox.
    pub base: Option<String>,
    /// Returns the value of an environment variable, for the machine's settings.
    pub variable: fn(&str) -> Option<String>,
}

/// Node and npm of this machine.
#[derive(Debug, Clone)]
pub struct NpmTools {
    /// The path of Node, equal on the host and inside.
    pub node: String,
    /// The version of Node.
    pub node_version: String,
    /// The path of npm's own program.
    pub npm: PathBuf,
}

impl std::fmt::Debug for NpmConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NpmConfig")
            .field("tools", &self.tools)
            .finish_non_exhaustive()
    }
}

/// Searches npm in the folders of `path` (in the form of the variable PATH). Returns npm's own program, not a version
/// manager's script.
#[must_use]
pub fn find_npm(path: Option<&str>) -> Option<PathBuf> {
    let folders = path.unwrap_or_default().split(':').map(Path::new);
    folders
        .filter(|folder| folder.is_absolute())
        .filter_map(|folder| folder.join("npm").canonicalize().ok())
        .find(|file| file.ends_with("npm/bin/npm-cli.js"))
}

/// Installs npm packages.
#[derive(Debug)]
pub struct NpmPackages {
    config: NpmConfig,
    backend: Arc<dyn Backend>,
    coordinator: Coordinator,
}

impl NpmPackages {
    /// Creates the service. `backend` makes the installers' sandboxes.
    #[must_use]
    pub fn new(config: NpmConfig, backend: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self {
            coordinator: Coordinator::new(config.data.clone(), config.bounds.kept_max),
            config,
            backend,
        })
    }

    /// Returns the same service with other rules and limits, for new requests. Running installations keep their rules.
    #[must_use]
    pub fn with_rules(&self, policy: NpmPolicy, bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            coordinator: self.coordinator.with_limits(bounds.kept_max),
            config: NpmConfig {
                policy,
                bounds,
                ..self.config.clone()
            },
            backend: Arc::clone(&self.backend),
        })
    }

    /// Returns the service for one call, with rules that need no further consent.
    fn settled(&self, specs: &[Spec], consent: &Consent) -> Result<Arc<Self>, Failure> {
        let policy = self.config.policy.settled(specs);
        specs.iter().try_for_each(|spec| policy.check(spec))?;
        self.config.policy.check_consent(specs, consent)?;
        Ok(self.with_rules(policy, self.config.bounds.clone()))
    }

    /// Returns the platform of packages with machine code.
    pub(crate) fn platform(&self) -> String {
        let version = self.config.tools.as_ref().map(|tools| tools.node_version.as_str());
        let major = version.unwrap_or_default().trim_start_matches('v').split('.').next();
        format!("node {} {}", major.unwrap_or_default(), std::env::consts::ARCH)
    }

    fn machine(&self) -> Result<NpmMachine, Failure> {
        NpmMachine::read(&self.config.variable).map_err(|error| unusable(&error))
    }

    fn index(&self) -> Result<Arc<NpmIndex>, Failure> {
        // Certificates and proxies are the same as for pip and uv.
        let machine = Machine::read(&self.config.variable).map_err(|error| unusable(&error.to_string()))?;
        let client = Client::new(machine, &self.config.bounds.origins).map_err(|error| unusable(&error))?;
        let policy = self.config.policy.clone();
        let rules = Rules {
            sources: false,
            newest: policy.min_age.map(|age| rfc3339(SystemTime::now() - age)),
            allows: Box::new(move |name, version| version.is_some_and(|version| policy.offers(name, version))),
            file_max: self.config.bounds.file_max,
            total_max: self.config.bounds.total_max,
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
    ) -> Result<InstallResult, Failure> {
        let store = self.coordinator.store()?;
        let question = self.question(specs)?;
        let lock = self.coordinator.request_lock(&question);
        let _guard = lock.lock().await;
        if let Some((answer, age)) = store.answer(owner, &question)
            && age <= MAX_ANSWER_AGE
            && let Some((layer, site)) = answer.key.as_deref().and_then(|key| store.layer(owner, key))
            && self.config.policy.check_lock(&layer.locked).is_ok()
        {
            return Ok(InstallResult {
                answer,
                site,
                reused: true,
            });
        }
        let tools = self.config.tools.clone().ok_or_else(|| {
            Failure::new(
                Code::PackageFailed,
                "npm is not on this machine",
                "tell the operator: install npm so that it is on PATH (apt-get install npm)",
            )
        })?;
        let _permit = self.coordinator.installer_permit(progress).await?;
        let index = self.index()?;
        let setup = Setup {
            backend: self.backend.clone(),
            node: tools.node,
            npm: tools.npm,
            limits: self.config.bounds.limits.clone(),
        };
        let installer = Installer::start(setup, index.clone()).await?;
        let result = self.with_installer(&installer, store, owner, specs, progress).await;
        installer.close().await;
        let got = result.map_err(|failure| self.explain(failure, &index.problems()))?;
        store.remember(owner, &question, &got.answer)?;
        Ok(got)
    }

    async fn with_installer(
        &self,
        installer: &Installer,
        store: &Store,
        owner: &str,
        specs: &[Spec],
        progress: &watch::Sender<String>,
    ) -> Result<InstallResult, Failure> {
        let lock = installer.resolve(specs).await?;
        self.config.policy.check_lock(&lock.all)?;
        let name = key(&["npm layer", &self.platform(), &lock.text]);
        let answer = Answer {
            key: Some(name.clone()),
            locked: lock.top,
        };
        if let Some((_, site)) = store.layer(owner, &name) {
            return Ok(InstallResult {
                answer,
                site,
                reused: true,
            });
        }
        let draft = store.draft()?;
        let unpacked = installer
            .build(
                &draft,
                self.config.bounds.limits.disk.as_bytes(),
                lock.all.len(),
                progress,
            )
            .await?;
        let layer = Layer {
            python: self.platform(),
            locked: lock.all,
            bytes: unpacked.bytes,
            files: unpacked.files,
            tree: unpacked.hash,
        };
        let site = self.coordinator.keep(draft, owner, &name, layer).await?;
        Ok(InstallResult {
            answer,
            site,
            reused: false,
        })
    }

    /// Builds a base's part from these packages.
    pub(crate) async fn part(&self, packages: &[String], progress: &watch::Sender<String>) -> Result<Part, Failure> {
        let specs = spec::parse_all(packages)?;
        // The operator runs this command, so the operator's consent is implied.
        let settled = self.settled(&specs, &Consent::Given(self.consent_required(packages)))?;
        let got = settled.get(OPERATOR_OWNER, &specs, progress).await?;
        base_part::part(self.coordinator.store()?, got.answer)
    }

    /// Replaces npm's failure by the broker's observation, which is more precise.
    fn explain(&self, failure: Failure, problems: &FetchProblems) -> Failure {
        if failure.code != Code::PackageFailed {
            return failure;
        }
        if let Some(reason) = problems.refused.first() {
            return refused_link("npm registry", reason);
        }
        if let Some(reason) = problems.failures.first() {
            return Failure::new(
                Code::PackageFailed,
                format!("the npm registry could not be used: {reason}"),
                "try again later; if it fails again, the operator can check the machine's settings (.npmrc, npm_config_registry, proxies)",
            );
        }
        if let Some(name) = problems.unknown.first() {
            return Failure::new(
                Code::PackageFailed,
                format!("there is no npm package called {name} on the registry"),
                "check the name",
            );
        }
        if let Some(name) = problems
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
        // Some versions of the package are hidden. npm's output shows if this is the reason.
        let is_about = |name: &&String| failure.message.contains(&format!("for {name}"));
        if let Some(name) = problems.hidden.iter().find(is_about) {
            return self
                .config
                .policy
                .refusal(format!("no version of {name} allowed by the operator fits"));
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

    fn registry(&self) -> &str {
        "npm"
    }

    fn serves(&self, language: &str) -> bool {
        matches!(language, "javascript" | "typescript")
    }

    fn check(&self, packages: &[String], consent: &Consent) -> Result<(), Failure> {
        self.settled(&spec::parse_all(packages)?, consent).map(drop)
    }

    fn consent_required(&self, packages: &[String]) -> Vec<String> {
        let Ok(specs) = spec::parse_all(packages) else {
            return Vec::new();
        };
        let asked = specs.iter().filter(|spec| self.config.policy.needs_consent(spec));
        let asked: Vec<String> = asked.map(Spec::shown).collect();
        // No question for a package that is refused in any case.
        match self.settled(&specs, &Consent::Given(asked.clone())) {
            Ok(_) => asked,
            Err(_) => Vec::new(),
        }
    }

    async fn install(&self, wanted: PackageRequest, progress: &watch::Sender<String>) -> Result<Installed, Failure> {
        let specs = spec::parse_all(&wanted.packages)?;
        let settled = self.settled(&specs, &wanted.consent)?;
        let held = |spec: &Spec| wanted.held.iter().find(|held| spec.is_satisfied_by(held)).cloned();
        let present: Vec<PackageVersion> = specs.iter().filter_map(held).collect();
        if present.len() == specs.len() {
            return Ok(all_present_answer(present));
        }
        let got = timeout(wanted.timeout, settled.get(&wanted.owner, &specs, progress)).await;
        let got = got.map_err(|_| too_long(wanted.timeout))??;
        let asked: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        Ok(caller_answer(got, &wanted, &asked, "loaded"))
    }

    fn resolve_inside(&self, packages: &[String], consent: &Consent) -> Result<Vec<String>, Failure> {
        let specs = spec::parse_all(packages)?;
        Ok(inside::resolve(&self.settled(&specs, consent)?.config.policy, &specs))
    }

    fn install_inside(
        &self,
        packages: &[String],
        consent: &Consent,
        printed: &[u8],
    ) -> Result<(Option<Vec<String>>, Installed), Failure> {
        let specs = spec::parse_all(packages)?;
        inside::install(&self.settled(&specs, consent)?.config.policy, &specs, printed)
    }

    fn arrange(&self, place: &str) -> Option<Vec<String>> {
        let tools = self.config.tools.as_ref()?;
        Some(
            [tools.node.as_str(), "-e", LINK_SCRIPT, place]
                .map(str::to_owned)
                .to_vec(),
        )
    }

    fn base(&self) -> Result<Option<Installed>, Failure> {
        let Some(name) = &self.config.base else { return Ok(None) };
        let store = self.coordinator.store()?;
        // The Python part reports a base that does not exist.
        let part = store.base(name).and_then(|base| base.npm);
        part.map(|part| base_part::start_with(store, name, part, &self.platform()))
            .transpose()
    }
}
