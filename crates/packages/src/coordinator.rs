//! The coordinator: the shared parts of all installers. It orders equal requests, stores the results, and builds the
//! caller's answer.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use sandcell_sandbox::{Code, Failure, Installed, PackageRequest, PackageVersion};
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::lock::Locked;
use crate::store::{Answer, Draft, Layer, Store, StoreLimits};

/// The time for which a stored answer replaces a query to the index.
pub(crate) const MAX_ANSWER_AGE: Duration = Duration::from_secs(24 * 3600);
/// The maximum number of concurrent installers. Each may use all cores of the machine.
const MAX_INSTALLERS: usize = 2;

/// The result of a request.
#[derive(Debug)]
pub(crate) struct InstallResult {
    pub(crate) answer: Answer,
    /// The folder with the layer's files.
    pub(crate) site: PathBuf,
    /// True if the layer existed already.
    pub(crate) reused: bool,
}

/// The store, the locks of equal requests, and the installer permits.
#[derive(Debug)]
pub(crate) struct Coordinator {
    store: Option<Store>,
    request_locks: Arc<RequestLocks>,
    installers: Arc<Semaphore>,
}

impl Coordinator {
    /// Creates a coordinator that stores layers in this data folder, up to the given limits.
    pub(crate) fn new(data: Option<PathBuf>, kept_max: StoreLimits) -> Self {
        let store = data.map(|data| Store::new(&data, kept_max));
        if let Some(store) = &store {
            store.sweep();
        }
        Self {
            store,
            request_locks: Arc::default(),
            installers: Arc::new(Semaphore::new(MAX_INSTALLERS)),
        }
    }

    /// Returns the same coordinator with other storage limits.
    pub(crate) fn with_limits(&self, kept_max: StoreLimits) -> Self {
        Self {
            store: self.store.as_ref().map(|store| store.with_limits(kept_max)),
            request_locks: Arc::clone(&self.request_locks),
            installers: Arc::clone(&self.installers),
        }
    }

    pub(crate) fn store(&self) -> Result<&Store, Failure> {
        self.store.as_ref().ok_or_else(|| {
            Failure::new(
                Code::PackageFailed,
                "there is no folder to store packages in",
                "tell the operator: set data_dir (or HOME) for the server",
            )
        })
    }

    /// Returns the lock of one request.
    pub(crate) fn request_lock(&self, question: &str) -> Arc<tokio::sync::Mutex<()>> {
        self.request_locks.of(question)
    }

    /// Waits until one more installer may run, and makes room in the store for its result.
    pub(crate) async fn installer_permit(
        &self,
        progress: &watch::Sender<String>,
    ) -> Result<SemaphorePermit<'_>, Failure> {
        progress.send_replace("waiting for an installer".to_owned());
        let permit = self.installers.acquire().await.map_err(|_| broken())?;
        let store = self.store()?;
        store.make_room();
        if store.full() {
            return Err(Failure::new(
                Code::DiskFull,
                "stored packages already use all the disk space that the operator allows",
                "use packages that are installed already, or ask the operator to raise packages.kept_mb",
            ));
        }
        store.prepare()?;
        progress.send_replace("finding versions".to_owned());
        Ok(permit)
    }

    /// Turns a draft into a layer, and returns the folder of its files.
    pub(crate) async fn keep(&self, draft: Draft, owner: &str, key: &str, layer: Layer) -> Result<PathBuf, Failure> {
        let (store, owner, key) = (self.store()?.clone(), owner.to_owned(), key.to_owned());
        // Publishing waits for the disk.
        let published = tokio::task::spawn_blocking(move || store.publish(draft, &owner, &key, &layer)).await;
        Ok(published.map_err(|_| broken())??)
    }
}

/// The locks of requests. Equal requests wait for the first one, and then find its answer in the store.
#[derive(Debug, Default)]
struct RequestLocks(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl RequestLocks {
    fn of(&self, question: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut request_locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        request_locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = request_locks.get(question).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        request_locks.insert(question.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

/// Returns the answer for a sandbox that has all requested packages.
pub(crate) fn all_present_answer(present: Vec<PackageVersion>) -> Installed {
    Installed {
        present,
        reused: true,
        ..Installed::default()
    }
}

/// Returns the answer for the caller: the new packages, the requested packages that were present, those excluded by
/// their own environment marker, and the changed versions. `loaded` is the language's word for using a package in a
/// session.
pub(crate) fn caller_answer(got: InstallResult, wanted: &PackageRequest, asked: &[&str], loaded: &str) -> Installed {
    let locked: Vec<PackageVersion> = got.answer.locked.iter().map(Locked::held).collect();
    let mut installed = compare(locked, &wanted.held, asked, loaded);
    let left_out = |name: &&str| {
        let known = got.answer.locked.iter().any(|one| one.name == **name);
        (!known).then(|| format!("{name} was not installed: its marker (after `;`) does not match this sandbox"))
    };
    installed.notes.extend(asked.iter().filter_map(left_out));
    // A sandbox has a small number of slots for layers.
    installed.folder = (!installed.added.is_empty()).then_some(got.site);
    installed.reused = got.reused;
    installed
}

/// Splits packages into new ones and those that the sandbox has. A note names each package whose version changes.
pub(crate) fn compare(locked: Vec<PackageVersion>, held: &[PackageVersion], asked: &[&str], loaded: &str) -> Installed {
    let (there, added): (Vec<PackageVersion>, Vec<PackageVersion>) =
        locked.into_iter().partition(|one| held.contains(one));
    let changed = |one: &PackageVersion| {
        let before = held.iter().find(|held| held.name == one.name)?;
        Some(format!(
            "{} changed from {} to {}: if it was {loaded} already, restart the session (reset_session_state)",
            one.name, before.version, one.version
        ))
    };
    Installed {
        notes: added.iter().filter_map(changed).collect(),
        present: there
            .into_iter()
            .filter(|one| asked.contains(&one.name.as_str()))
            .collect(),
        added,
        ..Installed::default()
    }
}

pub(crate) fn too_long(limit: Duration) -> Failure {
    Failure::new(
        Code::Timeout,
        format!(
            "the installation did not finish within {} s, and was undone",
            limit.as_secs_f64()
        ),
        "call again with a larger timeout_s, or with fewer packages",
    )
}

pub(crate) fn broken() -> Failure {
    Failure::new(
        Code::Internal,
        "the installation ended unexpectedly",
        "try again; the server's log has details",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_made_for_new_packages_only_and_an_unmet_marker_is_reported() {
        let held = vec![Locked::new("six", "1.0").held(), Locked::new("old", "1.0").held()];
        let wanted = |held: &[PackageVersion]| PackageRequest {
            owner: "me".into(),
            packages: Vec::new(),
            held: held.to_vec(),
            timeout: Duration::ZERO,
            consent: sandcell_sandbox::Consent::NotAsked,
        };
        let got = || InstallResult {
            answer: Answer {
                key: None,
                locked: vec![Locked::new("six", "1.0"), Locked::new("old", "2.0")],
            },
            site: "/layer".into(),
            reused: false,
        };
        let some = caller_answer(got(), &wanted(&held), &["six", "old"], "imported");
        assert_eq!(
            (some.folder, some.added.len(), some.present.len()),
            (Some("/layer".into()), 1, 1)
        );
        assert!(
            some.notes
                .iter()
                .any(|note| note.contains("old changed from 1.0 to 2.0"))
        );
        let all = [held.as_slice(), &[Locked::new("old", "2.0").held()]].concat();
        let none = caller_answer(got(), &wanted(&all), &["six", "windows-only"], "imported");
        assert_eq!((none.folder, none.added.len()), (None, 0));
        assert!(
            none.notes
                .iter()
                .any(|note| note.starts_with("windows-only was not installed"))
        );
    }
}
