//! The path of a request: parsing, policy, packages that are present, a stored answer, and otherwise an installer.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use sandcell_broker::{Client, FetchProblems, Index, Machine, Rules};
use sandcell_sandbox::{
    Backend, Code, Consent, Failure, Installed, Limits, PackageRequest, PackageVersion, Packages, rfc3339,
};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::base_part::{self, OPERATOR_OWNER};
use crate::coordinator::{Coordinator, InstallResult, MAX_ANSWER_AGE, all_present_answer, caller_answer, too_long};
use crate::inside;
use crate::installer::{Installer, Setup};
use crate::lock::{self, Locked};
use crate::names;
use crate::policy::Policy;
use crate::spec::{self, Spec};
use crate::store::{Answer, Layer, Part, Store, StoreLimits, key};
use crate::tool::{self, Tool};

/// The settings of the operator and the machine for packages.
#[derive(Clone)]
pub struct Config {
    /// The data folder for layers. None: packages cannot be installed.
    pub data: Option<PathBuf>,
    /// The operator's policy.
    pub policy: Policy,
    /// The path of the interpreter, equal on the host and inside.
    pub python: String,
    /// The version of the interpreter.
    pub python_version: String,
    /// The container image of the interpreter. None: the interpreter of this machine.
    pub image: Option<String>,
    /// The limits and origins of an installation.
    pub bounds: Bounds,
    /// The path of uv, if it was found.
    pub uv: Option<PathBuf>,
    /// The base of every new sandbox.
    pub base: Option<String>,
    /// Returns the value of an environment variable, for the machine's index settings.
    pub variable: fn(&str) -> Option<String>,
}

/// The limits and origins of an installation.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// The limits of the installer's sandbox.
    pub limits: Limits,
    /// The maximum size of one downloaded file in bytes.
    pub file_max: u64,
    /// The maximum size of all downloaded files of one installation in bytes.
    pub total_max: u64,
    /// The limits of the store.
    pub kept_max: StoreLimits,
    /// Origins (`https://files.example`) to which indexes may lead at any address.
    pub origins: Vec<String>,
}

/// Returns the failure for a link or redirect of an index that was not followed.
pub(crate) fn refused_link(what: &str, reason: &str) -> Failure {
    Failure::new(
        Code::NetworkDenied,
        format!("the {what} links to a forbidden address: {reason}"),
        "choose another package; if the link is intended, ask the operator to name that origin in packages.origins of the settings",
    )
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("python", &self.python)
            .field("uv", &self.uv)
            .finish_non_exhaustive()
    }
}

/// Installs Python packages.
#[derive(Debug)]
pub struct PythonPackages {
    config: Config,
    backend: Arc<dyn Backend>,
    pub(crate) coordinator: Coordinator,
}

impl PythonPackages {
    /// Creates the service. `backend` makes the installers' sandboxes.
    #[must_use]
    pub fn new(config: Config, backend: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self {
            coordinator: Coordinator::new(config.data.clone(), config.bounds.kept_max),
            config,
            backend,
        })
    }

    /// Returns the same service with other rules and limits, for new requests. Running installations keep their rules.
    #[must_use]
    pub fn with_rules(&self, policy: Policy, bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            coordinator: self.coordinator.with_limits(bounds.kept_max),
            config: Config {
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

    /// Returns the platform of byte code and binary wheels.
    pub(crate) fn platform(&self) -> String {
        let version: Vec<&str> = self.config.python_version.split('.').take(2).collect();
        format!(
            "{} {} {}",
            version.join("."),
            std::env::consts::ARCH,
            self.config.python
        ) + &self
            .config
            .image
            .as_ref()
            .map(|image| format!(" {image}"))
            .unwrap_or_default()
    }

    async fn set_up(&self, store: &Store) -> Result<Setup, Failure> {
        let program = self.config.uv.clone();
        let tools = store.tools();
        let folder = match program.clone() {
            // Copies 40 MB, once.
            Some(program) => Some(
                tokio::task::spawn_blocking(move || tool::staged(&program, &tools))
                    .await
                    .map_err(std::io::Error::other)
                    .and_then(|staged| staged)
                    .map_err(|error| {
                        Failure::new(
                            Code::PackageFailed,
                            format!("uv could not be copied to the data folder: {error}"),
                            "tell the operator: the server must be able to write its data folder (data_dir)",
                        )
                    })?,
            ),
            None => None,
        };
        Ok(Setup {
            backend: self.backend.clone(),
            python: self.config.python.clone(),
            limits: self.config.bounds.limits.clone(),
            tool: program.map_or(Tool::Pip, Tool::Uv),
            tool_folder: folder,
            sources: self.config.policy.sources,
        })
    }

    fn index(&self) -> Result<Arc<Index>, Failure> {
        let unusable = |reason: String| {
            Failure::new(
                Code::PackageFailed,
                format!("the machine's settings for package indexes cannot be used: {reason}"),
                "tell the operator to correct pip's or uv's settings",
            )
        };
        let machine = Machine::read(&self.config.variable).map_err(|error| unusable(error.to_string()))?;
        let client = Client::new(machine, &self.config.bounds.origins).map_err(unusable)?;
        let policy = self.config.policy.clone();
        let newest = policy.min_age.map(|age| rfc3339(SystemTime::now() - age));
        let rules = Rules {
            sources: policy.sources,
            newest,
            allows: Box::new(move |name, version| policy.offers(name, version)),
            file_max: self.config.bounds.file_max,
            total_max: self.config.bounds.total_max,
        };
        Ok(Index::new(Arc::new(client), rules))
    }

    /// Returns the stored answer of a request, if it is still valid.
    fn stored_answer(&self, store: &Store, owner: &str, question: &str) -> Option<(Answer, PathBuf)> {
        let (answer, age) = store.answer(owner, question)?;
        // The policy can change, so a stored answer is checked again.
        if age > MAX_ANSWER_AGE || self.config.policy.check_lock(&answer.locked).is_err() {
            return None;
        }
        let (_, site) = store.layer(owner, answer.key.as_deref()?)?;
        Some((answer, site))
    }

    /// Resolves and installs packages for an owner. Uses the exact versions if they are known.
    async fn get(
        &self,
        request: InstallRequest<'_>,
        progress: &watch::Sender<String>,
    ) -> Result<InstallResult, Failure> {
        let store = self.coordinator.store()?;
        let question = self.question(&request);
        let lock = self.coordinator.request_lock(&question);
        let _guard = lock.lock().await;
        if let Some((answer, site)) = self.stored_answer(store, request.owner, &question) {
            return Ok(InstallResult {
                answer,
                site,
                reused: true,
            });
        }
        let _permit = self.coordinator.installer_permit(progress).await?;
        let index = self.index()?;
        let installer = Installer::start(self.set_up(store).await?, index.clone()).await?;
        let result = self.with_installer(&installer, store, &request, progress).await;
        installer.close().await;
        let got = result.map_err(|failure| self.explain(failure, &index.problems(), request.specs))?;
        store.remember(request.owner, &question, &got.answer)?;
        Ok(got)
    }

    async fn with_installer(
        &self,
        installer: &Installer,
        store: &Store,
        request: &InstallRequest<'_>,
        progress: &watch::Sender<String>,
    ) -> Result<InstallResult, Failure> {
        let locked = match request.exact {
            Some(locked) => locked.to_vec(),
            None => installer.resolve(request.specs, request.held).await?,
        };
        self.config.policy.check_lock(&locked)?;
        let is_held = |one: &&Locked| {
            request
                .held
                .iter()
                .any(|held| held.name == one.name && held.version == one.version)
        };
        let missing: Vec<Locked> = locked.iter().filter(|one| !is_held(one)).cloned().collect();
        let list = lock::render(&missing);
        let key = key(&["layer", &self.platform(), &list]);
        let answer = Answer {
            key: Some(key.clone()),
            locked,
        };
        if let Some((_, site)) = store.layer(request.owner, &key) {
            return Ok(InstallResult {
                answer,
                site,
                reused: true,
            });
        }
        let draft = store.draft()?;
        let max_bytes = self.config.bounds.limits.disk.as_bytes();
        let unpacked = installer.build(&missing, &draft, max_bytes, progress).await?;
        let layer = Layer {
            python: self.platform(),
            locked: missing,
            bytes: unpacked.bytes,
            files: unpacked.files,
            tree: unpacked.hash,
        };
        let site = self.coordinator.keep(draft, request.owner, &key, layer).await?;
        Ok(InstallResult {
            answer,
            site,
            reused: false,
        })
    }

    /// Returns a hash of everything that determines an answer.
    fn question(&self, request: &InstallRequest<'_>) -> String {
        let specs: Vec<&str> = request.specs.iter().map(|spec| spec.text.as_str()).collect();
        let held: Vec<String> = request
            .held
            .iter()
            .map(|one| format!("{}=={}", one.name, one.version))
            .collect();
        let policy = format!("{:?}", self.config.policy);
        let exact = request.exact.map(lock::render).unwrap_or_default();
        let index = Machine::read(&self.config.variable)
            .map(|machine| machine.shown().join(" "))
            .unwrap_or_default();
        key(&[
            &self.platform(),
            &specs.join("\n"),
            &held.join("\n"),
            &policy,
            &exact,
            &index,
        ])
    }

    /// Replaces a tool's failure by the broker's observation, which is more precise.
    fn explain(&self, failure: Failure, problems: &FetchProblems, specs: &[Spec]) -> Failure {
        if failure.code != Code::PackageFailed {
            return failure;
        }
        if let Some(reason) = problems.refused.first() {
            return refused_link("package index", reason);
        }
        if let Some(reason) = problems.failures.first() {
            return Failure::new(
                Code::PackageFailed,
                format!("the package index could not be used: {reason}"),
                "try again later; if it fails again, the operator can check the machine's index settings (pip.conf, uv.toml, PIP_INDEX_URL, proxies), and name in packages.origins the origins that the index links to and that only a proxy reaches",
            );
        }
        let asked = |name: &&String| specs.iter().any(|spec| spec.name == **name);
        if let Some(name) = problems.unknown.iter().find(asked).or(problems.unknown.first()) {
            let like = names::like(name).map_or_else(String::new, |like| format!("; did you mean {like}?"));
            return Failure::new(
                Code::PackageFailed,
                format!("there is no package called {name} on the index{like}"),
                "check the name; a package often has another name than its module",
            );
        }
        if let Some(name) = problems.too_new.iter().find(asked).or(problems.too_new.first()) {
            let days = self.config.policy.min_age.unwrap_or_default().as_secs() / 86_400;
            return Failure::new(
                Code::PackageNotAllowed,
                format!(
                    "releases of {name} that are younger than {days} days are not installed: {}",
                    failure.message
                ),
                "ask for an older version, or without one",
            );
        }
        if let Some(name) = problems.hidden.first() {
            return self
                .config
                .policy
                .refusal(format!("no version of {name} allowed by the operator fits"), name);
        }
        failure
    }

    /// Builds a base's part from these packages, or from exact versions.
    pub(crate) async fn part(
        &self,
        packages: &[String],
        exact: Option<&[Locked]>,
        progress: &watch::Sender<String>,
    ) -> Result<Part, Failure> {
        let specs = match exact {
            Some(_) => Vec::new(),
            None => spec::parse_all(packages)?,
        };
        // The operator runs this command, so the operator's consent is implied.
        let settled = match exact {
            Some(_) => self.with_rules(self.config.policy.with_operator_consent(), self.config.bounds.clone()),
            None => self.settled(&specs, &Consent::Given(self.consent_required(packages)))?,
        };
        let request = InstallRequest {
            owner: OPERATOR_OWNER,
            specs: &specs,
            held: &[],
            exact,
        };
        let got = settled.get(request, progress).await?;
        base_part::part(self.coordinator.store()?, got.answer)
    }
}

/// One installation: the owner and the packages.
#[derive(Debug, Clone, Copy)]
struct InstallRequest<'a> {
    owner: &'a str,
    specs: &'a [Spec],
    held: &'a [PackageVersion],
    exact: Option<&'a [Locked]>,
}

#[async_trait]
impl Packages for PythonPackages {
    fn language(&self) -> &str {
        "python"
    }

    fn registry(&self) -> &str {
        "pypi"
    }

    fn check(&self, packages: &[String], consent: &Consent) -> Result<(), Failure> {
        self.settled(&spec::parse_all(packages)?, consent).map(drop)
    }

    fn consent_required(&self, packages: &[String]) -> Vec<String> {
        let Ok(specs) = spec::parse_all(packages) else {
            return Vec::new();
        };
        let asked = specs.iter().filter(|spec| self.config.policy.needs_consent(spec));
        let asked: Vec<String> = asked.map(|spec| spec.text.clone()).collect();
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
        let request = InstallRequest {
            owner: &wanted.owner,
            specs: &specs,
            held: &wanted.held,
            exact: None,
        };
        let got = timeout(wanted.timeout, settled.get(request, progress)).await;
        let got = got.map_err(|_| too_long(wanted.timeout))??;
        let asked: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        Ok(caller_answer(got, &wanted, &asked, "imported"))
    }

    fn resolve_inside(&self, packages: &[String], consent: &Consent) -> Result<Vec<String>, Failure> {
        let specs = spec::parse_all(packages)?;
        inside::resolve(&self.settled(&specs, consent)?.config.policy, &specs)
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

    fn base(&self) -> Result<Option<Installed>, Failure> {
        let Some(name) = &self.config.base else { return Ok(None) };
        let store = self.coordinator.store()?;
        let base = store.base(name).ok_or_else(|| store.no_base(name))?;
        let part = base
            .python
            .map(|part| base_part::start_with(store, name, part, &self.platform()));
        part.transpose()
    }
}
