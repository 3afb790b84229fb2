//! Saved states: the state of a sandbox on the disk, under a name of its owner. New sandboxes go on from it, also in a
//! later life of the server.
//!
//! The state is the image that a branch goes on from ([`super::branch`]). Only the interpreter that made the memory can
//! load it, so each state names what it needs; with anything else its files still can be opened.

mod store;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use sandcell_sandbox::{ByteSize, Code, Cpus, Failure};
use tokio::time::sleep;

use self::store::{Description, Lock, SavedSession, Store, StoreBounds, WriteError};
use super::branch::{BranchSource, Parts, check_options, plan_of};
use super::{shown, unsupported};
use crate::admission::policy;
use crate::sandbox::lifecycle::Plan;
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::state::{CreateParams, Kind};
use crate::{CreateRequest, Principal, SaveRequest, SavedFrom, SavedView};

/// The hint for a state whose memory cannot be loaded.
const ONLY_FILES: &str = "open it with only_files for its files without variables, or save it again";
/// The maximum wait for another writer of the same caller.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
const LOCK_INTERVAL: Duration = Duration::from_millis(50);

impl Sandboxes {
    /// Saves the state of a sandbox. One of the same name is replaced.
    pub(crate) async fn save(self: &Arc<Self>, principal: &Principal, req: &SaveRequest) -> Result<SavedView, Failure> {
        let name = policy::saved_name(&req.name)?;
        let store = self.store()?;
        let saved = &self.config().saved;
        let bounds = StoreBounds {
            states: saved.states,
            bytes: saved.size.as_bytes(),
        };
        if bounds.states == 0 {
            return Err(no_store());
        }
        let record = self.existing(principal, req.from.sandbox_id.as_deref())?;
        let parts = if req.only_files { Parts::Files } else { Parts::All };
        let (source, sandbox) = self.branch_source(&record, req.from.checkpoint.clone(), parts).await?;
        drop(sandbox);
        let limits = &record.params.limits;
        let description = Description {
            created_ms: since_1970(SystemTime::now()),
            sandbox_id: record.id.to_string(),
            executions: source.executions,
            image_format: source.language.image_format(),
            memory_bytes: limits.memory.as_bytes(),
            cpus_milli: limits.cpus.as_milli(),
            disk_bytes: limits.disk.as_bytes(),
            env: record.params.env.as_ref().clone(),
            network: record.network().into_hosts(),
            session: source.session.as_ref().map(|((language, name), cells)| SavedSession {
                language: language.clone(),
                name: name.clone(),
                cells: *cells,
            }),
            attached: source.attached.clone(),
            packages: source.packages.clone(),
            ..Description::of(&source.image)
        };
        let view = view(&name, &description);
        let lock = lock(&store, principal, "written").await?;
        let written = move || Store::write(&lock, &name, description, &source.image, bounds);
        match in_thread(written).await? {
            Ok(()) => Ok(view),
            Err(WriteError::TooMany(states)) => Err(Failure::new(
                Code::LimitReached,
                format!("{states} states are saved, which is the maximum"),
                "drop one that is not needed, or save under its name; the operator can raise sessions.saved",
            )),
            Err(WriteError::TooLarge { bytes, free }) => Err(Failure::new(
                Code::LimitReached,
                format!(
                    "the state has {} MB, and {} MB are free for saved states",
                    bytes.div_ceil(1 << 20),
                    free >> 20
                ),
                "drop states that are not needed, or delete variables and files; the operator can raise sessions.saved_mb",
            )),
            Err(WriteError::Io(error)) => Err(not_stored("written", &error)),
        }
    }

    /// Returns the saved states of a caller, by name.
    pub(crate) async fn saved(&self, principal: &Principal) -> Result<Vec<SavedView>, Failure> {
        let Ok(store) = self.store() else {
            return Ok(Vec::new());
        };
        let owner = principal.clone();
        let listed = in_thread(move || store.list(&owner)).await?;
        let listed = listed.map_err(|error| not_stored("listed", &error))?;
        Ok({ listed.iter() }
            .map(|(name, found)| match found {
                Ok(description) => view(name, description),
                Err(saved) => unreadable(name, *saved),
            })
            .collect())
    }

    /// Removes a saved state.
    pub(crate) async fn drop_saved(&self, principal: &Principal, name: &str) -> Result<(), Failure> {
        let known = policy::saved_name(name)?;
        let store = self.store()?;
        if !store.has(principal, name) {
            return Err(self.no_such_state(principal, name).await);
        }
        let lock = lock(&store, principal, "removed").await?;
        let removed = in_thread(move || Store::remove(&lock, &known)).await?;
        if removed.map_err(|error| not_stored("removed", &error))? {
            Ok(())
        } else {
            Err(self.no_such_state(principal, name).await)
        }
    }

    /// Returns the plan and the parameters of sandboxes that go on from a saved state.
    pub(crate) async fn plan_saved(
        &self,
        principal: &Principal,
        req: &CreateRequest,
        from: &SavedFrom,
    ) -> Result<(Plan, CreateParams), Failure> {
        check_options(&CreateRequest {
            env: BTreeMap::new(),
            key: None,
            network: Vec::new(),
            ..req.clone()
        })?;
        let name = policy::saved_name(&from.name)?;
        let store = self.store()?;
        let (owner, only_files) = (principal.clone(), from.only_files);
        let read = in_thread(move || store.read(&owner, &name, only_files)).await?;
        let read = read.map_err(|error| not_stored("read", &error))?;
        let Some((mut description, image)) = read else {
            return Err(self.no_such_state(principal, &from.name).await);
        };
        let language = self.language("python")?;
        if !from.only_files {
            check_programs(&description, &language.image_format())?;
        }
        if missing_folder(&description).is_some() {
            // Each has its place, so none fits without the others.
            description.attached.clear();
            description.packages.clear();
        }
        // The operator may have lowered the maximum since.
        let most = &self.config().max_limits;
        let limits = policy::limits(
            &self.config(),
            Some(ByteSize::bytes(description.memory_bytes).min(most.memory)),
            Some(Cpus::milli(description.cpus_milli).min(most.cpus)),
            Some(ByteSize::bytes(description.disk_bytes).min(most.disk)),
        )?;
        let hosts = if req.network.is_empty() {
            &description.network
        } else {
            &req.network
        };
        let network = self.network_rule(hosts, &req.consent)?;
        let mut env = description.env;
        env.extend(req.env.clone());
        policy::env(&env)?;
        let source = BranchSource {
            image,
            session: { description.session.filter(|_| !from.only_files) }
                .map(|session| ((session.language, session.name), session.cells)),
            language,
            attached: description.attached,
            packages: description.packages,
            executions: description.executions,
            remedy: ONLY_FILES,
        };
        let params = CreateParams {
            label: req.label.clone(),
            asked: req.key.is_some().then(|| Arc::new(req.clone())),
            lifetime: req.lifetime,
            idle: req.idle.unwrap_or(self.config().idle),
            pauses_at_end: req.pauses_at_end,
            network: network.clone(),
            env: Arc::new(env.clone()),
            ..self.create_params(Kind::Requested, limits)?
        };
        let backends = { self.backends.iter() }
            .filter(|backend| backend.zygotes().is_some())
            .cloned()
            .collect::<Vec<_>>();
        if backends.is_empty() {
            return Err(unsupported());
        }
        let env = self.environment(&network, env, false);
        Ok((plan_of(backends, &params, env, source), params))
    }

    fn store(&self) -> Result<Store, Failure> {
        let folder = self.config().saved.folder.clone();
        folder.map(Store::new).ok_or_else(no_store)
    }

    /// Removes what killed writers of saved states have left.
    pub(crate) async fn clean_saved(self: Arc<Self>) {
        let Ok(store) = self.store() else { return };
        if let Ok(Err(error)) = in_thread(move || store.clean()).await {
            tracing::warn!(%error, "the folder of saved states could not be cleaned");
        }
    }

    async fn no_such_state(&self, principal: &Principal, name: &str) -> Failure {
        let names: Vec<String> = { self.saved(principal).await.unwrap_or_default().into_iter() }
            .map(|view| view.name)
            .take(20)
            .collect();
        let remedy = match names.as_slice() {
            [] => "save one first".to_owned(),
            names => format!("the saved states are {}", names.join(", ")),
        };
        let name = crate::api::ids::quote_for_error(name);
        Failure::new(Code::NotFound, format!("no state is saved as '{name}'"), remedy)
    }
}

/// Fails if the memory of a state cannot be loaded here.
fn check_programs(description: &Description, image_format: &str) -> Result<(), Failure> {
    let Some(session) = &description.session else {
        return Ok(());
    };
    let why = if description.image_format != image_format {
        "it was saved by another version of sandcell, or with other languages".to_owned()
    } else if missing_folder(description).is_some() {
        "packages that it uses are no longer in the package cache".to_owned()
    } else {
        return Ok(());
    };
    let key = (session.language.clone(), session.name.clone());
    Err(Failure::new(
        Code::CheckpointUnavailable,
        format!("the {} session cannot go on because {why}", shown(&key)),
        ONLY_FILES,
    ))
}

/// Returns a folder of packages that the state needs and that is gone.
fn missing_folder(description: &Description) -> Option<&PathBuf> {
    description.attached.iter().find(|folder| !folder.is_dir())
}

fn view(name: &str, description: &Description) -> SavedView {
    let session = { description.session.iter() }.map(|one| shown(&(one.language.clone(), one.name.clone())));
    let packages = description.packages.iter();
    SavedView {
        name: name.to_owned(),
        created: SystemTime::UNIX_EPOCH + Duration::from_millis(description.created_ms),
        sandbox_id: description.sandbox_id.clone(),
        executions: description.executions,
        sessions: session.collect(),
        session_name: { description.session.as_ref() }.and_then(|one| one.name.clone()),
        packages: packages
            .map(|(_, one)| format!("{} {}", one.name, one.version))
            .collect(),
        env: description.env.clone(),
        bytes: description.bytes(),
        is_readable: true,
    }
}

/// Returns the view of a state whose description is damaged or of another version of sandcell.
fn unreadable(name: &str, created: SystemTime) -> SavedView {
    SavedView {
        name: name.to_owned(),
        created,
        sandbox_id: String::new(),
        executions: 0,
        sessions: Vec::new(),
        session_name: None,
        packages: Vec::new(),
        env: BTreeMap::new(),
        bytes: 0,
        is_readable: false,
    }
}

fn since_1970(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Takes the lock of the folder of a caller's states. No thread waits for it.
async fn lock(store: &Store, owner: &Principal, what: &str) -> Result<Lock, Failure> {
    let since = Instant::now();
    loop {
        let (store, owner) = (store.clone(), owner.clone());
        match in_thread(move || store.lock(&owner)).await? {
            Ok(Some(lock)) => return Ok(lock),
            Ok(None) if since.elapsed() < LOCK_TIMEOUT => sleep(LOCK_INTERVAL).await,
            Ok(None) => {
                return Err(Failure::new(
                    Code::Busy,
                    format!("the saved state could not be {what}: another call writes one"),
                    "call again",
                ));
            }
            Err(error) => return Err(not_stored(what, &error)),
        }
    }
}

fn no_store() -> Failure {
    Failure::new(
        Code::LimitReached,
        "this server saves no states",
        "the operator can allow it with data_dir and sessions.saved; checkpoints keep a state while the sandbox lives",
    )
}

async fn in_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(|_| super::internal())
}

fn not_stored(what: &str, error: &io::Error) -> Failure {
    let (code, remedy) = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => (
            Code::DiskFull,
            "drop saved states that are not needed, or ask the operator for room on the disk of data_dir",
        ),
        io::ErrorKind::InvalidData => (Code::CheckpointUnavailable, "drop the state, and save it again"),
        _ => (
            Code::Internal,
            "the operator can check data_dir, its owner and its disk",
        ),
    };
    Failure::new(code, format!("the saved state could not be {what}: {error}"), remedy)
}
