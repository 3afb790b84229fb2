//! The way of a request: grammar, policy, what is there already, an earlier answer, else an installer.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sandcell_broker::{Client, Index, Machine, Rules, Trouble};
use sandcell_sandbox::{Backend, Code, Failure, Held, Installed, Limits, Packages, Wanted};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::installer::{Installer, Setup};
use crate::lock::{self, Locked};
use crate::names;
use crate::policy::Policy;
use crate::spec::{self, Spec};
use crate::store::{Answer, Base, KeptMax, Layer, OPERATOR, Store, base_name, key};
use crate::tool::{self, Tool};

/// How long an index is not asked again for the same request.
pub(crate) const FRESH: Duration = Duration::from_secs(24 * 3600);
/// Installers at once; each may use all of the machine's cores.
pub(crate) const INSTALLERS: usize = 2;
/// How long a base may take.
const BASE_TIMEOUT: Duration = Duration::from_secs(3600);

/// What the operator and the machine say about packages.
#[derive(Clone)]
pub struct Config {
    /// Where layers are kept; none: packages cannot be installed.
    pub data: Option<PathBuf>,
    /// What may be installed.
    pub policy: Policy,
    /// The interpreter, the same path on the host and inside.
    pub python: String,
    /// Its version.
    pub python_version: String,
    /// The container image that it is of; none: this machine's own.
    pub image: Option<String>,
    /// What one installation may use.
    pub limits: Limits,
    /// Bytes of one downloaded file.
    pub file_max: u64,
    /// Bytes of all downloaded files of one installation.
    pub total_max: u64,
    /// How much is kept.
    pub kept_max: KeptMax,
    /// uv, where it was found.
    pub uv: Option<PathBuf>,
    /// The base that every sandbox starts with.
    pub base: Option<String>,
    /// Looks a variable of the environment up, for the machine's index settings.
    pub variable: fn(&str) -> Option<String>,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("python", &self.python)
            .field("uv", &self.uv)
            .finish_non_exhaustive()
    }
}

/// Equal requests wait for each other, and then find the answer.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// The lock of one request.
    pub(crate) fn of(&self, question: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(question).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        turns.insert(question.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

/// Installs Python packages.
#[derive(Debug)]
pub struct PythonPackages {
    config: Config,
    backend: Arc<dyn Backend>,
    store: Option<Store>,
    turns: Turns,
    installers: Semaphore,
}

/// A base, for lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseInfo {
    /// Its name.
    pub name: String,
    /// The version of Python that it is for.
    pub python: String,
    /// What is in it.
    pub packages: Vec<Held>,
    /// Its size.
    pub bytes: u64,
    /// Whether it works with the Python of this machine.
    pub usable: bool,
}

impl PythonPackages {
    /// With a back end that makes the installers' sandboxes.
    #[must_use]
    pub fn new(config: Config, backend: Arc<dyn Backend>) -> Arc<Self> {
        let store = config.data.as_deref().map(|data| Store::new(data, config.kept_max));
        if let Some(store) = &store {
            store.sweep();
        }
        Arc::new(Self {
            config,
            backend,
            store,
            turns: Turns::default(),
            installers: Semaphore::new(INSTALLERS),
        })
    }

    fn store(&self) -> Result<&Store, Failure> {
        self.store.as_ref().ok_or_else(|| {
            Failure::new(
                Code::PackageFailed,
                "there is no folder to keep packages in",
                "tell the operator: set data_dir (or HOME) for the server",
            )
        })
    }

    /// What byte code and binary wheels depend on.
    fn python(&self) -> String {
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
        store.prepare()?;
        let program = self.config.uv.clone();
        let tools = store.tools();
        let folder = match program.clone() {
            // 40 MB are copied once.
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
            limits: self.config.limits.clone(),
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
        let client = Client::new(machine).map_err(unusable)?;
        let policy = self.config.policy.clone();
        let newest = policy.min_age.map(|age| rfc3339(SystemTime::now() - age));
        let rules = Rules {
            sources: policy.sources,
            newest,
            allows: Box::new(move |name, version| policy.offers(name, version)),
            file_max: self.config.file_max,
            total_max: self.config.total_max,
        };
        Ok(Index::new(Arc::new(client), rules))
    }

    /// What a request was resolved to before, if that still holds.
    fn earlier(&self, store: &Store, owner: &str, question: &str) -> Option<(Answer, PathBuf)> {
        let (answer, age) = store.answer(owner, question)?;
        // Policies change; an answer is no permission.
        if age > FRESH || self.config.policy.check_lock(&answer.locked).is_err() {
            return None;
        }
        let (_, site) = store.layer(owner, answer.key.as_deref()?)?;
        Some((answer, site))
    }

    /// Gets what is wanted for an owner: exact versions where they are known, else what the specs are resolved to.
    async fn get(&self, ask: Ask<'_>, progress: &watch::Sender<String>) -> Result<(Answer, PathBuf, bool), Failure> {
        let store = self.store()?;
        let question = self.question(&ask);
        let turn = self.turns.of(&question);
        let _turn = turn.lock().await;
        if let Some((answer, site)) = self.earlier(store, ask.owner, &question) {
            return Ok((answer, site, true));
        }
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
        let index = self.index()?;
        progress.send_replace("finding versions".to_owned());
        let installer = Installer::start(self.set_up(store).await?, index.clone()).await?;
        let result = self.with_installer(&installer, store, &ask, progress).await;
        installer.close().await;
        let (answer, site, reused) = result.map_err(|failure| self.explain(failure, &index.trouble(), ask.specs))?;
        store.remember(ask.owner, &question, &answer)?;
        Ok((answer, site, reused))
    }

    async fn with_installer(
        &self,
        installer: &Installer,
        store: &Store,
        ask: &Ask<'_>,
        progress: &watch::Sender<String>,
    ) -> Result<(Answer, PathBuf, bool), Failure> {
        let locked = match ask.exact {
            Some(locked) => locked.to_vec(),
            None => installer.resolve(ask.specs, ask.held).await?,
        };
        self.config.policy.check_lock(&locked)?;
        let is_held = |one: &&Locked| {
            ask.held
                .iter()
                .any(|held| held.name == one.name && held.version == one.version)
        };
        let missing: Vec<Locked> = locked.iter().filter(|one| !is_held(one)).cloned().collect();
        let list = lock::render(&missing);
        let key = key(&["layer", &self.python(), &list]);
        let answer = |key| Answer { key: Some(key), locked };
        if let Some((_, site)) = store.layer(ask.owner, &key) {
            return Ok((answer(key), site, true));
        }
        let draft = store.draft()?;
        let most = self.config.limits.disk.as_bytes();
        let unpacked = installer.build(&missing, &draft, most, progress).await?;
        let layer = Layer {
            python: self.python(),
            locked: missing,
            bytes: unpacked.bytes,
            files: unpacked.files,
            tree: unpacked.hash,
        };
        let (store, owner, name) = (store.clone(), ask.owner.to_owned(), key.clone());
        // Waits for the disk.
        let site = tokio::task::spawn_blocking(move || store.publish(draft, &owner, &name, &layer))
            .await
            .map_err(|_| broken())??;
        Ok((answer(key), site, false))
    }

    /// Everything that an answer depends on.
    fn question(&self, ask: &Ask<'_>) -> String {
        let specs: Vec<&str> = ask.specs.iter().map(|spec| spec.text.as_str()).collect();
        let held: Vec<String> = ask
            .held
            .iter()
            .map(|one| format!("{}=={}", one.name, one.version))
            .collect();
        let policy = format!("{:?}", self.config.policy);
        let exact = ask.exact.map(lock::render).unwrap_or_default();
        let index = Machine::read(&self.config.variable)
            .map(|machine| machine.shown().join(" "))
            .unwrap_or_default();
        key(&[
            &self.python(),
            &specs.join("\n"),
            &held.join("\n"),
            &policy,
            &exact,
            &index,
        ])
    }

    /// A tool's failure in the words of what the broker saw, which knows better.
    fn explain(&self, failure: Failure, trouble: &Trouble, specs: &[Spec]) -> Failure {
        if failure.code != Code::PackageFailed {
            return failure;
        }
        if let Some(reason) = trouble.failures.first() {
            return Failure::new(
                Code::PackageFailed,
                format!("the package index could not be used: {reason}"),
                "try again later; if it stays, the operator can check the machine's index settings (pip.conf, uv.toml, PIP_INDEX_URL, proxies)",
            );
        }
        let asked = |name: &&String| specs.iter().any(|spec| spec.name == **name);
        if let Some(name) = trouble.unknown.iter().find(asked).or(trouble.unknown.first()) {
            let like = names::like(name).map_or_else(String::new, |like| format!("; did you mean {like}?"));
            return Failure::new(
                Code::PackageFailed,
                format!("there is no package called {name} on the index{like}"),
                "check the name; the package of a module is often called otherwise than the module",
            );
        }
        if let Some(name) = trouble.too_new.iter().find(asked).or(trouble.too_new.first()) {
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
        if let Some(name) = trouble.hidden.first() {
            return self
                .config
                .policy
                .refusal(format!("no version of {name} that the operator allows fits"), name);
        }
        failure
    }

    /// Builds a base of these packages, or of a lock file's exact versions.
    ///
    /// # Errors
    /// What stands in the way.
    pub async fn build_base(
        &self,
        name: &str,
        packages: &[String],
        lock_file: Option<&str>,
        progress: &watch::Sender<String>,
    ) -> Result<BaseInfo, Failure> {
        let name = base_name(name).ok_or_else(|| {
            Failure::invalid(
                "that is no name for a base",
                "use lower-case letters, digits, - and _, at most 40 of them",
            )
        })?;
        let exact = lock_file.map(lock::parse).transpose()?;
        let specs = match (&exact, packages) {
            (Some(_), []) => Vec::new(),
            (Some(_), _) => {
                return Err(Failure::invalid(
                    "a lock file and names of packages cannot be used together",
                    "put everything into the lock file, or leave it out",
                ));
            }
            (None, packages) => spec::parse_all(packages)?,
        };
        for spec in &specs {
            self.config.policy.check(spec)?;
        }
        let ask = Ask {
            owner: OPERATOR,
            specs: &specs,
            held: &[],
            exact: exact.as_deref(),
        };
        let work = timeout(BASE_TIMEOUT, self.get(ask, progress)).await;
        let (answer, _, _) = work.map_err(|_| too_long(BASE_TIMEOUT))??;
        let store = self.store()?;
        let key = answer.key.unwrap_or_default();
        let (layer, _) = store.layer(OPERATOR, &key).ok_or_else(broken)?;
        let base = Base {
            key,
            python: layer.python,
            packages: answer.locked.iter().map(Locked::held).collect(),
            bytes: layer.bytes,
        };
        store.put_base(name, &base)?;
        Ok(self.info(name, base))
    }

    fn info(&self, name: &str, base: Base) -> BaseInfo {
        BaseInfo {
            name: name.to_owned(),
            usable: base.python == self.python(),
            python: base.python.split(' ').next().unwrap_or_default().to_owned(),
            packages: base.packages,
            bytes: base.bytes,
        }
    }

    /// All bases.
    ///
    /// # Errors
    /// There is no data folder.
    pub fn bases(&self) -> Result<Vec<BaseInfo>, Failure> {
        let bases = self.store()?.bases();
        Ok(bases.into_iter().map(|(name, base)| self.info(&name, base)).collect())
    }

    /// Forgets a base. Its files go when they are in no other base and room is needed; sandboxes that show it keep it.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn remove_base(&self, name: &str) -> Result<(), Failure> {
        let store = self.store()?;
        if store.base(name).is_none() {
            return Err(no_base(name, &store.bases()));
        }
        store.remove_base(name)?;
        Ok(())
    }
}

/// What is to be got, and for whom.
#[derive(Debug, Clone, Copy)]
struct Ask<'a> {
    owner: &'a str,
    specs: &'a [Spec],
    held: &'a [Held],
    exact: Option<&'a [Locked]>,
}

#[async_trait]
impl Packages for PythonPackages {
    fn language(&self) -> &str {
        "python"
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
        let ask = Ask {
            owner: &wanted.owner,
            specs: &specs,
            held: &wanted.held,
            exact: None,
        };
        let got = timeout(wanted.timeout, self.get(ask, progress)).await;
        let (answer, site, reused) = got.map_err(|_| too_long(wanted.timeout))??;
        let added: Vec<Held> = answer
            .locked
            .iter()
            .map(Locked::held)
            .filter(|one| !wanted.held.contains(one))
            .collect();
        let changed = |one: &&Held| wanted.held.iter().find(|held| held.name == one.name);
        let notes = added.iter().filter_map(|one| {
            let before = changed(&one)?;
            Some(format!(
                "{} changed from {} to {}: if it was imported already, restart the session (reset_session_state)",
                one.name, before.version, one.version
            ))
        });
        Ok(Installed {
            folder: Some(site),
            notes: notes.collect(),
            present,
            reused,
            added,
        })
    }

    fn base(&self) -> Result<Option<Installed>, Failure> {
        let Some(name) = &self.config.base else { return Ok(None) };
        let store = self.store()?;
        let base = store.base(name).ok_or_else(|| no_base(name, &store.bases()))?;
        let unusable = |reason: String| {
            Failure::new(
                Code::PackageFailed,
                format!("the base {name} cannot be used: {reason}"),
                format!("sandcell base build {name} … on the host"),
            )
        };
        if base.python != self.python() {
            let theirs = &base.python;
            return Err(unusable(format!(
                "it is for Python {theirs}, and this is {}",
                self.python()
            )));
        }
        let (_, site) = store
            .layer(OPERATOR, &base.key)
            .ok_or_else(|| unusable("its files are gone".to_owned()))?;
        Ok(Some(Installed {
            folder: Some(site),
            added: base.packages,
            present: Vec::new(),
            reused: true,
            notes: Vec::new(),
        }))
    }
}

fn no_base(name: &str, bases: &[(String, Base)]) -> Failure {
    let names: Vec<&str> = bases.iter().map(|(name, _)| name.as_str()).collect();
    let known = if names.is_empty() {
        "there is none yet".to_owned()
    } else {
        format!("there are: {}", names.join(", "))
    };
    Failure::new(
        Code::NotFound,
        format!("there is no base called {name}; {known}"),
        format!("sandcell base build {name} numpy pandas matplotlib"),
    )
}

pub(crate) fn too_long(limit: Duration) -> Failure {
    Failure::new(
        Code::Timeout,
        format!(
            "the installation was not done within {} s; nothing of it is left",
            limit.as_secs_f64()
        ),
        "call again with a larger timeout_s, or with fewer packages",
    )
}

pub(crate) fn broken() -> Failure {
    Failure::new(
        Code::Internal,
        "the installation broke off",
        "try again; the server's log says more",
    )
}

/// UTC, whole seconds.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let seconds = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days to a date, after Howard Hinnant's `civil_from_days`.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_indexes_write_it() {
        let at = |seconds| rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_795_255_287), "2026-11-21T10:01:27Z");
    }
}
