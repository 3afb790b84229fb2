//! The storage of finished packages: folders that appear by one rename and never change afterwards.
//!
//! ```text
//! packages/owners/OWNER/layers/KEY/site   the files; KEY is a hash of interpreter, platform, versions and their hashes
//!                              KEY/layer  the record (JSON); its modification time is the time of the last use
//!          owners/OWNER/answers/HASH      the stored result of a request, so that the same request costs nothing
//!          bases/NAME                     the layers of a base
//!          drafts/PID-RANDOM              unfinished files
//! ```
//! OWNER is a hash of the principal's name, so no caller finds another's layers. The folder must belong to the
//! server's user, and no other user may write to it. Otherwise the store is not used, because other users' files are
//! not trusted.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use sandcell_sandbox::{Code, Failure, PackageVersion};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::lock::Locked;

/// The time after its last use in which a layer is never removed. A sandbox may still use it.
const MIN_REMOVAL_AGE: Duration = Duration::from_secs(24 * 3600);
/// The maximum number of stored answers of one owner.
const ANSWERS_MAX: usize = 2000;
/// The maximum size that is read of a record.
const RECORD_MAX: u64 = 4 << 20;

/// The owner of bases. No quota applies to it.
pub(crate) const OPERATOR_OWNER: &str = "operator's bases";

/// The limits of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// The maximum size of all layers together in bytes.
    pub all: u64,
    /// The maximum size of one caller's layers in bytes.
    pub caller_bytes: u64,
    /// The maximum number of packages in one caller's layers. Two versions of one package count as two.
    pub caller_packages: usize,
}

impl StoreLimits {
    /// Returns a limit for all layers together, without limits for each caller.
    #[must_use]
    pub const fn total_only(all: u64) -> Self {
        Self {
            all,
            caller_bytes: u64::MAX,
            caller_packages: usize::MAX,
        }
    }
}

/// The store, below the data folder.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    root: PathBuf,
    limits: StoreLimits,
    /// Locked from the count of a layer to its publication, so that two concurrent layers cannot exceed a quota
    /// together.
    publishing: Arc<Mutex<()>>,
}

/// A stored layer, for counting.
struct StoredLayer {
    layer: Layer,
    folder: PathBuf,
    /// The time since the last use.
    age: Duration,
    is_base: bool,
}

impl StoredLayer {
    fn may_go(&self) -> bool {
        self.age > MIN_REMOVAL_AGE && !self.is_base
    }

    /// Removes the layer. Returns true if this succeeded.
    fn remove(&self) -> bool {
        // The record is removed first: a folder without it is not a layer.
        std::fs::remove_file(self.folder.join("layer")).is_ok() && std::fs::remove_dir_all(&self.folder).is_ok()
    }
}

/// The record of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layer {
    pub(crate) python: String,
    pub(crate) locked: Vec<Locked>,
    pub(crate) bytes: u64,
    pub(crate) files: u32,
    /// SHA-256 of the files.
    pub(crate) tree: String,
}

/// The stored result of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// The layer. None if no package was missing.
    pub(crate) key: Option<String>,
    /// All packages of the request, including those in other layers.
    pub(crate) locked: Vec<Locked>,
}

/// A named base: one part for each language with packages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Base {
    #[serde(flatten)]
    pub(crate) python: Option<Part>,
    #[serde(default)]
    pub(crate) npm: Option<Part>,
}

/// The packages of a base for one language.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) key: String,
    /// The interpreter that can use them.
    #[serde(rename = "python")]
    pub(crate) platform: String,
    pub(crate) packages: Vec<PackageVersion>,
    pub(crate) bytes: u64,
}

impl Base {
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part> {
        self.python.iter().chain(&self.npm)
    }
}

/// A failed step of the store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("{step}: {path}")]
    File {
        step: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{0} can be written by others than the server's user")]
    Shared(PathBuf),
    #[error("your packages take {used} MiB, and {more} MiB more would exceed your limit of {limit} MiB")]
    TooLarge { used: u64, more: u64, limit: u64 },
    #[error("you have {used} packages, and {more} more would exceed your limit of {limit}")]
    TooMany { used: usize, more: usize, limit: usize },
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::File { source, .. } if source.kind() == io::ErrorKind::StorageFull => Self::new(
                Code::DiskFull,
                format!("{error}: the disk of the server's data folder is full"),
                "tell the operator: free space there, or set data_dir to another disk",
            ),
            StoreError::File { source, .. } => Self::new(
                Code::PackageFailed,
                format!("{error}: {source}"),
                "tell the operator: the server must be able to write its data folder (data_dir)",
            ),
            StoreError::Shared(path) => Self::new(
                Code::PackageFailed,
                error.to_string(),
                format!("tell the operator: chmod go-w {} and own it", path.display()),
            ),
            StoreError::TooLarge { .. } => Self::new(
                Code::LimitReached,
                error.to_string(),
                "use packages that are installed already (what was not used for a day makes room), or ask the operator to \
                 raise quota.packages_mb",
            ),
            StoreError::TooMany { .. } => Self::new(
                Code::LimitReached,
                error.to_string(),
                "use packages that are installed already (what was not used for a day makes room), or ask the operator to \
                 raise quota.packages",
            ),
        }
    }
}

fn step<T>(step: &'static str, path: &Path, result: io::Result<T>) -> Result<T, StoreError> {
    result.map_err(|source| StoreError::File {
        step,
        path: path.to_owned(),
        source,
    })
}

/// Returns a hash of these parts, for a file name.
pub(crate) fn key(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(u64::try_from(part.len()).unwrap_or(0).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A folder for an unfinished layer. Dropping it deletes the remaining files.
#[derive(Debug)]
pub(crate) struct Draft {
    path: PathBuf,
    /// Shows other servers that this server still uses the draft. None if the file system has no locks.
    _lock: Option<File>,
}

impl Draft {
    /// Returns the path for its files, which does not exist yet.
    pub(crate) fn site(&self) -> PathBuf {
        self.path.join("site")
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.path.exists()
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "a draft of packages could not be removed");
        }
    }
}

/// Locks a folder until the result is dropped. Fails if another process holds the lock.
fn lock(folder: &Path) -> io::Result<File> {
    let opened = File::open(folder)?;
    rustix::fs::flock(&opened, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
    Ok(opened)
}

impl Store {
    pub(crate) fn new(data: &Path, limits: StoreLimits) -> Self {
        Self {
            root: data.join("packages"),
            limits,
            publishing: Arc::default(),
        }
    }

    /// Returns the same store with other limits.
    pub(crate) fn with_limits(&self, limits: StoreLimits) -> Self {
        Self { limits, ..self.clone() }
    }

    pub(crate) fn tools(&self) -> PathBuf {
        self.root.join("tools")
    }

    /// Creates the folders, and checks that they belong to this user alone.
    pub(crate) fn prepare(&self) -> Result<(), StoreError> {
        let drafts = self.root.join("drafts");
        step("make a folder", &drafts, std::fs::create_dir_all(&drafts))?;
        for folder in [&self.root, &drafts] {
            let found = step("look at a folder", folder, folder.symlink_metadata())?;
            let ours = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
            if !found.is_dir() || !ours {
                return Err(StoreError::Shared(folder.clone()));
            }
        }
        Ok(())
    }

    /// Removes drafts of ended servers. The lock decides, because a process id can belong to another PID namespace.
    pub(crate) fn sweep(&self) {
        let drafts = self.root.join("drafts");
        for entry in std::fs::read_dir(drafts).into_iter().flatten().flatten() {
            if lock(&entry.path()).is_ok() {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    fn owner(&self, owner: &str) -> PathBuf {
        let name: String = key(&["owner", owner]).chars().take(32).collect();
        self.root.join("owners").join(name)
    }

    fn layer_folder(&self, owner: &str, key: &str) -> PathBuf {
        self.owner(owner).join("layers").join(key)
    }

    /// Returns a finished layer and the path of its files, and sets its time of last use.
    pub(crate) fn layer(&self, owner: &str, key: &str) -> Option<(Layer, PathBuf)> {
        let folder = self.layer_folder(owner, key);
        let record = folder.join("layer");
        let layer = read(&record)?;
        let touched = std::fs::File::open(&record).and_then(|file| file.set_modified(SystemTime::now()));
        if let Err(error) = touched {
            tracing::debug!(%error, "the use of a layer could not be noted");
        }
        Some((layer, folder.join("site")))
    }

    /// Creates a draft.
    pub(crate) fn draft(&self) -> Result<Draft, StoreError> {
        self.prepare()?;
        let mut random = [0; 8];
        let drafts = self.root.join("drafts");
        step(
            "find a random name",
            &drafts,
            getrandom::fill(&mut random).map_err(io::Error::other),
        )?;
        let path = drafts.join(format!("{}-{:016x}", std::process::id(), u64::from_le_bytes(random)));
        step("make a folder", &path, std::fs::create_dir(&path))?;
        let lock = lock(&path).ok();
        Ok(Draft { path, _lock: lock })
    }

    /// Turns a draft into a layer by one rename. If another request published the same layer first, that layer stays.
    pub(crate) fn publish(&self, draft: Draft, owner: &str, key: &str, layer: &Layer) -> Result<PathBuf, StoreError> {
        let folder = self.layer_folder(owner, key);
        let site = folder.join("site");
        // A layer may have no files.
        if !draft.site().exists() {
            step("make a folder", &draft.path, std::fs::create_dir(draft.site()))?;
        }
        let open = std::fs::Permissions::from_mode(0o755);
        step(
            "open a folder",
            &draft.path,
            std::fs::set_permissions(draft.site(), open),
        )?;
        write(&draft.path.join("layer"), layer)?;
        let opened = step("open a folder", &draft.path, File::open(&draft.path))?;
        step(
            "write to the disk",
            &draft.path,
            rustix::fs::syncfs(&opened).map_err(io::Error::from),
        )?;
        let _one_at_a_time = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        self.make_room_of(owner, key, layer)?;
        let layers = self.owner(owner).join("layers");
        step("make a folder", &layers, std::fs::create_dir_all(&layers))?;
        match std::fs::rename(&draft.path, &folder) {
            Ok(()) => Ok(site),
            Err(_) if self.layer(owner, key).is_some() => Ok(site),
            Err(source) => Err(StoreError::File {
                step: "put a layer in its place",
                path: folder,
                source,
            }),
        }
    }

    /// Returns the stored answer of a request, and its age.
    pub(crate) fn answer(&self, owner: &str, question: &str) -> Option<(Answer, Duration)> {
        let path = self.owner(owner).join("answers").join(question);
        let age = path.metadata().ok()?.modified().ok()?.elapsed().unwrap_or_default();
        Some((read(&path)?, age))
    }

    pub(crate) fn remember(&self, owner: &str, question: &str, answer: &Answer) -> Result<(), StoreError> {
        let folder = self.owner(owner).join("answers");
        step("make a folder", &folder, std::fs::create_dir_all(&folder))?;
        let count = std::fs::read_dir(&folder).map(Iterator::count).unwrap_or(0);
        if count >= ANSWERS_MAX {
            step("empty a folder", &folder, std::fs::remove_dir_all(&folder))?;
            step("make a folder", &folder, std::fs::create_dir_all(&folder))?;
        }
        write(&folder.join(question), answer)
    }

    /// Returns the layers in an owner's folder.
    fn layers_of(&self, owner: &Path) -> Vec<StoredLayer> {
        let bases = self.bases();
        let bases: Vec<&str> = bases
            .iter()
            .flat_map(|(_, base)| base.parts())
            .map(|part| part.key.as_str())
            .collect();
        let found = |folder: PathBuf| {
            let record = folder.join("layer");
            let layer = read::<Layer>(&record)?;
            let used = record.metadata().and_then(|found| found.modified());
            let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            Some(StoredLayer {
                layer,
                age: used.ok().and_then(|used| used.elapsed().ok()).unwrap_or_default(),
                is_base: bases.contains(&name),
                folder,
            })
        };
        folders(&owner.join("layers")).into_iter().filter_map(found).collect()
    }

    /// Removes the least recently used layers until the others fit into the limit. Bases stay.
    pub(crate) fn make_room(&self) {
        let owners = folders(&self.root.join("owners"));
        let mut found: Vec<StoredLayer> = owners.iter().flat_map(|owner| self.layers_of(owner)).collect();
        let mut total: u64 = found.iter().map(|found| found.layer.bytes).sum();
        found.sort_by_key(|found| std::cmp::Reverse(found.age));
        for old in found.iter().filter(|found| found.may_go()) {
            if total <= self.limits.all {
                return;
            }
            if old.remove() {
                total -= old.layer.bytes;
            }
        }
    }

    /// Makes room for a layer in its owner's quota by removing the least recently used layers. Returns an error if the
    /// layer does not fit.
    fn make_room_of(&self, owner: &str, key: &str, layer: &Layer) -> Result<(), StoreError> {
        let unbounded = self.limits.caller_bytes == u64::MAX && self.limits.caller_packages == usize::MAX;
        if owner == OPERATOR_OWNER || unbounded {
            return Ok(());
        }
        let mut held = self.layers_of(&self.owner(owner));
        // Another request may have published the same layer.
        if held.iter().any(|found| found.folder.ends_with(key)) {
            return Ok(());
        }
        held.sort_by_key(|found| found.age);
        loop {
            let told = self.fits(&held, layer);
            if told.is_ok() || !held.last().is_some_and(StoredLayer::may_go) {
                return told;
            }
            if !held.pop().is_some_and(|old| old.remove()) {
                return told;
            }
        }
    }

    fn fits(&self, held: &[StoredLayer], layer: &Layer) -> Result<(), StoreError> {
        const BYTES_PER_MIB: u64 = 1 << 20;
        let used: u64 = held.iter().map(|found| found.layer.bytes).sum();
        if layer.bytes > self.limits.caller_bytes.saturating_sub(used) {
            return Err(StoreError::TooLarge {
                used: used.div_ceil(BYTES_PER_MIB),
                more: layer.bytes.div_ceil(BYTES_PER_MIB),
                limit: self.limits.caller_bytes / BYTES_PER_MIB,
            });
        }
        let names = |layer: &Layer| -> Vec<(String, String)> {
            let of = |one: &Locked| (one.name.clone(), one.version.clone());
            layer.locked.iter().map(of).collect()
        };
        let own: BTreeSet<(String, String)> = held.iter().flat_map(|found| names(&found.layer)).collect();
        let more = names(layer).into_iter().filter(|one| !own.contains(one)).count();
        if more > self.limits.caller_packages.saturating_sub(own.len()) {
            return Err(StoreError::TooMany {
                used: own.len(),
                more,
                limit: self.limits.caller_packages,
            });
        }
        Ok(())
    }

    /// Returns true if all layers together exceed the limit.
    pub(crate) fn full(&self) -> bool {
        let owners = folders(&self.root.join("owners"));
        let layers = owners.iter().flat_map(|owner| self.layers_of(owner));
        layers.map(|found| found.layer.bytes).sum::<u64>() > self.limits.all
    }

    pub(crate) fn base(&self, name: &str) -> Option<Base> {
        base_name(name)?;
        read(&self.root.join("bases").join(name))
    }

    pub(crate) fn bases(&self) -> Vec<(String, Base)> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.root.join("bases"))
            .into_iter()
            .flatten()
            .flatten()
        {
            if let Some(name) = entry.file_name().to_str()
                && let Some(base) = self.base(name)
            {
                found.push((name.to_owned(), base));
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }

    pub(crate) fn put_base(&self, name: &str, base: &Base) -> Result<(), StoreError> {
        let folder = self.root.join("bases");
        step("make a folder", &folder, std::fs::create_dir_all(&folder))?;
        write(&folder.join(name), base)
    }

    /// Returns the failure for the name of a base that does not exist.
    pub(crate) fn no_base(&self, name: &str) -> Failure {
        let bases = self.bases();
        let names: Vec<&str> = bases.iter().map(|(name, _)| name.as_str()).collect();
        let known = if names.is_empty() {
            "there is none yet".to_owned()
        } else {
            format!("there are: {}", names.join(", "))
        };
        Failure::new(
            Code::NotFound,
            format!("there is no base called {name}; {known}"),
            format!("sandcell base build {name} numpy pandas matplotlib, or sandcell config unset base"),
        )
    }

    pub(crate) fn remove_base(&self, name: &str) -> Result<(), StoreError> {
        let path = self.root.join("bases").join(name);
        step("remove a base", &path, std::fs::remove_file(&path))
    }
}

/// Returns the name if it is valid for a base.
pub(crate) fn base_name(name: &str) -> Option<&str> {
    let sound = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    (!name.is_empty() && name.len() <= 40 && name.chars().all(sound) && !name.starts_with('-')).then_some(name)
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .ok()?
        .take(RECORD_MAX)
        .read_to_end(&mut bytes)
        .ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Writes a temporary file and renames it, so that no reader finds a part of the record.
fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), StoreError> {
    let bytes = step("write", path, serde_json::to_vec(value).map_err(io::Error::other))?;
    let mut random = [0; 8];
    step(
        "find a random name",
        path,
        getrandom::fill(&mut random).map_err(io::Error::other),
    )?;
    let draft = path.with_extension(format!("{:016x}", u64::from_le_bytes(random)));
    let written = std::fs::write(&draft, bytes).and_then(|()| std::fs::rename(&draft, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&draft);
    }
    step("write", path, written)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(bytes: u64) -> Layer {
        Layer {
            python: "3.11".into(),
            locked: vec![Locked::new("demo", "1.0")],
            bytes,
            files: 1,
            tree: "00".into(),
        }
    }

    #[test]
    fn a_layer_is_stored_atomically_and_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path(), StoreLimits::total_only(100));
        let draft = store.draft().unwrap();
        std::fs::create_dir(draft.site()).unwrap();
        std::fs::write(draft.site().join("demo.py"), "x = 1").unwrap();
        assert!(store.layer("me", "k").is_none());
        let site = store.publish(draft, "me", "k", &layer(5)).unwrap();
        assert_eq!(std::fs::read(site.join("demo.py")).unwrap(), b"x = 1");
        assert_eq!(store.layer("me", "k").unwrap().0, layer(5));
        assert!(store.layer("you", "k").is_none());
        // The second of two equal layers is dropped.
        let again = store.draft().unwrap();
        assert_eq!(store.publish(again, "me", "k", &layer(5)).unwrap(), site);
        assert!(site.join("demo.py").exists());
        let drafts = std::fs::read_dir(folder.path().join("packages/drafts"))
            .unwrap()
            .count();
        assert_eq!(drafts, 0);
    }

    #[test]
    fn an_abandoned_draft_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path(), StoreLimits::total_only(100));
        drop(store.draft().unwrap());
        std::fs::create_dir(folder.path().join("packages/drafts/1-x")).unwrap();
        store.sweep();
        assert_eq!(
            std::fs::read_dir(folder.path().join("packages/drafts"))
                .unwrap()
                .count(),
            0
        );
    }

    #[test]
    fn a_folder_that_others_can_write_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path(), StoreLimits::total_only(100));
        store.prepare().unwrap();
        let root = folder.path().join("packages");
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(store.draft(), Err(StoreError::Shared(_))));
    }

    #[test]
    fn the_least_recently_used_layers_are_removed_beyond_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path(), StoreLimits::total_only(100));
        for name in ["old", "new"] {
            store.publish(store.draft().unwrap(), "me", name, &layer(80)).unwrap();
        }
        let record = store.layer_folder("me", "old").join("layer");
        let long_ago = SystemTime::now() - Duration::from_secs(90 * 24 * 3600);
        std::fs::File::open(record).unwrap().set_modified(long_ago).unwrap();
        assert!(store.full());
        store.make_room();
        assert!(store.layer("me", "old").is_none() && store.layer("me", "new").is_some());
        assert!(!store.full());
    }

    #[test]
    fn a_base_has_parts_and_the_old_python_only_format_is_readable() {
        let text = r#"{"key":"k","python":"3.11 x","packages":[{"name":"six","version":"1"}],"bytes":5}"#;
        let base: Base = serde_json::from_str(text).unwrap();
        assert_eq!(base.python.as_ref().map(|part| part.bytes), Some(5));
        assert_eq!(base.npm, None);
        let both = Base {
            npm: base.python.clone(),
            ..base.clone()
        };
        let alone = Base {
            python: None,
            npm: base.python.clone(),
        };
        for base in [base, both, alone] {
            let text = serde_json::to_string(&base).unwrap();
            assert_eq!(serde_json::from_str::<Base>(&text).unwrap(), base, "{text}");
        }
    }

    #[test]
    fn the_layers_of_a_caller_are_bounded_and_its_unused_ones_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let limits = StoreLimits {
            all: 1 << 30,
            caller_bytes: 3 << 20,
            caller_packages: 2,
        };
        let store = Store::new(folder.path(), limits);
        let with = |name: &str, mib: u64| Layer {
            locked: vec![Locked::new(name, "1.0")],
            ..layer(mib << 20)
        };
        let put = |who: &str, key: &str, layer: &Layer| store.publish(store.draft().unwrap(), who, key, layer);
        put("ann", "a", &with("a", 2)).unwrap();
        let failure = Failure::from(put("ann", "b", &with("b", 2)).unwrap_err());
        assert_eq!(failure.code, Code::LimitReached);
        assert!(failure.message.contains("take 2 MiB") && failure.message.contains("of 3 MiB"));
        assert!(store.layer("ann", "b").is_none());
        put("ann", "b", &with("b", 1)).unwrap();
        // Another layer of the same packages adds no package to the count. A third package does.
        let failure = Failure::from(put("ann", "c", &with("c", 0)).unwrap_err());
        assert!(failure.message.contains("2 packages"), "{failure}");
        put("ann", "a again", &with("a", 0)).unwrap();
        // The quota does not apply to other callers' layers, nor to the operator's bases.
        put("bob", "b", &with("b", 3)).unwrap();
        put(OPERATOR_OWNER, "base", &with("base", 900)).unwrap();
        let record = store.layer_folder("ann", "a").join("layer");
        let long_ago = SystemTime::now() - Duration::from_secs(2 * 24 * 3600);
        std::fs::File::open(record).unwrap().set_modified(long_ago).unwrap();
        put("ann", "d", &with("b", 2)).unwrap();
        assert!(store.layer("ann", "a").is_none() && store.layer("ann", "b").is_some());
        let drafts = std::fs::read_dir(folder.path().join("packages/drafts")).unwrap();
        assert_eq!(drafts.count(), 0, "what did not fit is gone");
    }

    #[test]
    fn bases_have_plain_names() {
        for name in ["", "../x", "A", "-x", "a/b", "a b"] {
            assert_eq!(base_name(name), None, "{name}");
        }
        assert_eq!(base_name("data-3_11"), Some("data-3_11"));
    }
}
