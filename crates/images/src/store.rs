//! The storage of images, and its cleanup.
//!
//! `layers/DIGEST` is an unpacked layer, by the digest of its blob. `trees/KEY` is the tree of an image, made of hard
//! links to its layers. `names/HASH` records the result of a pull for a name. Every entry appears by one rename and
//! never changes afterwards. The users of a tree lock it, also across processes. Drafts of a killed server are removed
//! at the next start.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::FlockOperation;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::ImageError;
use crate::manifest::Digest;

/// The maximum size of a record in bytes.
const RECORD_MAX: u64 = 64 << 20;
/// The version of the tree builder, which is part of every tree's key. Trees of other versions are not used.
const TREE_VERSION: &str = "1";

#[derive(Debug, Clone)]
pub(crate) struct Store {
    root: PathBuf,
}

/// The record of a stored layer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layer {
    pub(crate) diff_id: Option<Digest>,
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    /// Paths in hexadecimal digits.
    pub(crate) whiteouts: Vec<String>,
    pub(crate) opaques: Vec<String>,
    pub(crate) implied: Vec<String>,
    pub(crate) left_out: u64,
    pub(crate) setuid: u64,
}

/// The record of a pulled name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NameRecord {
    pub(crate) name: String,
    /// The digest of the manifest.
    pub(crate) digest: Digest,
    /// For a local image: a stamp that changes when its files change.
    pub(crate) stamp: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) layers: Vec<Digest>,
    pub(crate) bytes: u64,
    pub(crate) left_out: u64,
    pub(crate) setuid: u64,
}

/// A stored image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredImage {
    /// The full name.
    pub name: String,
    /// The digest of its manifest.
    pub digest: String,
    /// The total size of its layers in bytes. Images can share layers.
    pub bytes: u64,
    /// The time of the last use.
    pub used: SystemTime,
    /// True if a sandbox uses the image now.
    pub in_use: bool,
}

/// The result of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pruned {
    /// The number of removed images.
    pub images: usize,
    /// The total size of removed layers in bytes.
    pub bytes: u64,
}

/// A folder for unfinished content. Dropping it deletes the remaining files.
#[derive(Debug)]
pub(crate) struct Draft {
    path: PathBuf,
    /// Shows other servers that this server still uses the draft. None if the file system has no locks.
    _lock: Option<File>,
}

impl Draft {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.path.exists()
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "a draft of an image could not be removed");
        }
    }
}

/// Locks a folder until the result is dropped. Fails if another process holds the lock.
fn lock(folder: &Path) -> io::Result<File> {
    let opened = File::open(folder)?;
    rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive)?;
    Ok(opened)
}

fn step<T>(what: &str, path: &Path, result: io::Result<T>) -> Result<T, ImageError> {
    result.map_err(|error| ImageError::store(format!("{what} {}", path.display()), &error))
}

/// Returns the key of the tree of these layers.
pub(crate) fn tree_key(layers: &[Digest]) -> String {
    let text = layers
        .iter()
        .fold(TREE_VERSION.to_owned(), |text, layer| format!("{text} {}", layer.hex()));
    Digest::of(text.as_bytes()).hex().to_owned()
}

impl Store {
    pub(crate) fn new(data: &Path) -> Self {
        Self {
            root: data.join("images"),
        }
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Creates the folders, and checks that they belong to this user alone. Other users must not read private images.
    pub(crate) fn prepare(&self) -> Result<(), ImageError> {
        for name in ["drafts", "layers", "trees", "names", "tools"] {
            let folder = self.folder(name);
            step("make the folder", &folder, std::fs::create_dir_all(&folder))?;
        }
        let found = step("look at", &self.root, self.root.symlink_metadata())?;
        if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
            return Err(ImageError::Store {
                step: format!("look at {}", self.root.display()),
                reason: "it has another owner".to_owned(),
            });
        }
        let private = std::fs::Permissions::from_mode(0o700);
        step("close", &self.root, std::fs::set_permissions(&self.root, private))
    }

    /// Removes drafts of ended processes. The lock decides, because a process id can belong to another PID namespace.
    pub(crate) fn sweep(&self) {
        for path in entries(&self.folder("drafts")) {
            if lock(&path).is_ok() {
                let _ = std::fs::remove_dir_all(&path);
            }
        }
    }

    pub(crate) fn draft(&self) -> Result<Draft, ImageError> {
        let drafts = self.folder("drafts");
        let mut random = [0; 8];
        step(
            "find a random name in",
            &drafts,
            getrandom::fill(&mut random).map_err(io::Error::other),
        )?;
        let path = drafts.join(format!("{}-{:016x}", std::process::id(), u64::from_le_bytes(random)));
        step("make the folder", &path, std::fs::create_dir(&path))?;
        let lock = lock(&path).ok();
        Ok(Draft { path, _lock: lock })
    }

    /// Takes the lock that prevents removals.
    pub(crate) fn prevent_removal(&self) -> Result<File, ImageError> {
        let lock = self.lock_file()?;
        step(
            "lock",
            &self.root,
            rustix::fs::flock(&lock, FlockOperation::LockShared).map_err(Into::into),
        )?;
        Ok(lock)
    }

    fn lock_file(&self) -> Result<File, ImageError> {
        let path = self.folder("lock");
        let opened = File::options().create(true).truncate(false).write(true).open(&path);
        step("open", &path, opened)
    }

    /// Returns a stored layer, and the path of its files.
    pub(crate) fn layer(&self, digest: &Digest) -> Option<(Layer, PathBuf)> {
        let folder = self.folder("layers").join(digest.hex());
        Some((read(&folder.join("layer.json"))?, folder.join("files")))
    }

    /// Turns a draft with `files` in it into a layer.
    pub(crate) fn publish_layer(&self, draft: &Draft, digest: &Digest, layer: &Layer) -> Result<(), ImageError> {
        write(&draft.path().join("layer.json"), layer)?;
        let folder = self.folder("layers").join(digest.hex());
        publish(draft, &folder, || self.layer(digest).is_some())
    }

    /// Returns the tree of this key, and the lock that prevents its removal.
    pub(crate) fn tree(&self, key: &str) -> Option<(PathBuf, File)> {
        let folder = self.folder("trees").join(key);
        let lock = File::open(folder.join("lock")).ok()?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared).ok()?;
        // Another process may have removed the tree before this one had the lock.
        let root = folder.join("root");
        let same = folder.join("lock").metadata().ok()?.ino() == lock.metadata().ok()?.ino();
        (same && root.is_dir()).then_some((root, lock))
    }

    /// Turns a draft with `root` in it into a tree.
    pub(crate) fn publish_tree(&self, draft: &Draft, key: &str) -> Result<(), ImageError> {
        let lock = draft.path().join("lock");
        step("make", &lock, File::create(&lock))?;
        publish(draft, &self.folder("trees").join(key), || self.tree(key).is_some())
    }

    fn name_file(&self, name: &str) -> PathBuf {
        self.folder("names").join(Digest::of(name.as_bytes()).hex())
    }

    /// Returns the record of a name, and sets its time of last use.
    pub(crate) fn name_record(&self, name: &str) -> Option<NameRecord> {
        let path = self.name_file(name);
        let found: NameRecord = read(&path).filter(|found: &NameRecord| found.name == name)?;
        let touched = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        if let Err(error) = touched {
            tracing::debug!(%error, "the last use of an image could not be recorded");
        }
        Some(found)
    }

    pub(crate) fn remember(&self, name_record: &NameRecord) -> Result<(), ImageError> {
        write(&self.name_file(&name_record.name), name_record)
    }

    fn name_records(&self) -> Vec<(NameRecord, SystemTime, PathBuf)> {
        let files = entries(&self.folder("names")).into_iter();
        let read_one = |path: PathBuf| {
            let used = path.metadata().and_then(|found| found.modified()).ok()?;
            Some((read::<NameRecord>(&path)?, used, path))
        };
        files.filter_map(read_one).collect()
    }

    pub(crate) fn list(&self) -> Vec<StoredImage> {
        let mut all: Vec<StoredImage> = self
            .name_records()
            .into_iter()
            .map(|(name_record, used, _)| StoredImage {
                in_use: self.in_use(&tree_key(&name_record.layers)),
                digest: name_record.digest.to_string(),
                name: name_record.name,
                bytes: name_record.bytes,
                used,
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Returns true if a process holds the tree's lock.
    fn in_use(&self, key: &str) -> bool {
        let lock = File::open(self.folder("trees").join(key).join("lock"));
        lock.is_ok_and(|lock| rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err())
    }

    /// Removes unused images that `chosen` selects, and the layers that only these images use. Returns None while an
    /// image is being pulled.
    pub(crate) fn remove(&self, chosen: &dyn Fn(&NameRecord) -> bool) -> Result<Option<Pruned>, ImageError> {
        let lock = self.lock_file()?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(None);
        }
        let mut pruned = Pruned::default();
        for (name_record, _, path) in self.name_records() {
            if chosen(&name_record) && !self.in_use(&tree_key(&name_record.layers)) {
                step("remove", &path, std::fs::remove_file(&path))?;
                pruned.images += 1;
            }
        }
        pruned.bytes = self.collect();
        Ok(Some(pruned))
    }

    /// Removes the least recently used images until the layers fit into `max_bytes` bytes. Keeps the image `keep`.
    pub(crate) fn make_room(&self, max_bytes: u64, keep: &str) {
        let Ok(lock) = self.lock_file() else { return };
        // During another pull, its layers belong to no name yet. The next pull makes room.
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        let mut all = self.name_records();
        all.sort_by_key(|(_, used, _)| *used);
        for (name_record, _, path) in all {
            if self.bytes() <= max_bytes {
                return;
            }
            if name_record.name != keep
                && !self.in_use(&tree_key(&name_record.layers))
                && std::fs::remove_file(&path).is_ok()
            {
                tracing::info!(image = name_record.name, "an image was removed to make room");
                self.collect();
            }
        }
    }

    /// Returns the total size of all layers in bytes.
    fn bytes(&self) -> u64 {
        let layers = entries(&self.folder("layers")).into_iter();
        let sizes = layers.filter_map(|path| read::<Layer>(&path.join("layer.json")));
        sizes.map(|layer| layer.bytes).sum()
    }

    /// Removes trees and layers without a name. Returns the total size of the removed layers in bytes.
    fn collect(&self) -> u64 {
        let (mut trees, mut layers) = (Vec::new(), Vec::new());
        for (name_record, ..) in self.name_records() {
            trees.push(tree_key(&name_record.layers));
            layers.extend(name_record.layers.iter().map(|digest| digest.hex().to_owned()));
        }
        let unknown = |folder: &str, known: &[String]| -> Vec<PathBuf> {
            let name = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
            let all = entries(&self.folder(folder)).into_iter();
            all.filter(|path| name(path).is_none_or(|name| !known.contains(&name)))
                .collect()
        };
        for path in unknown("trees", &trees) {
            let Ok(lock) = File::open(path.join("lock")) else {
                let _ = std::fs::remove_dir_all(&path);
                continue;
            };
            if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
                self.discard(&path);
            }
        }
        let mut freed = 0;
        for path in unknown("layers", &layers) {
            freed += read::<Layer>(&path.join("layer.json")).map_or(0, |layer| layer.bytes);
            self.discard(&path);
        }
        freed
    }

    /// Renames a path into a draft before its deletion, so that no reader finds a part of it.
    fn discard(&self, path: &Path) {
        if let Ok(draft) = self.draft()
            && let Err(error) = std::fs::rename(path, draft.path().join("old"))
        {
            tracing::warn!(%error, path = %path.display(), "an image file could not be removed");
        }
    }

    /// Returns a folder that contains only this program, for the sandbox that unpacks.
    pub(crate) fn tool(&self, program: &Path) -> Result<PathBuf, ImageError> {
        let found = step("look at", program, program.metadata())?;
        let (size, inode) = (found.size(), found.ino());
        let name = format!("{size}-{inode}-{}.{}", found.mtime(), found.mtime_nsec());
        let folder = self.folder("tools").join(name);
        if folder.join(UNPACKER_NAME).is_file() {
            return Ok(folder);
        }
        let draft = self.draft()?;
        let made = draft.path().join("tool");
        step("make the folder", &made, std::fs::create_dir(&made))?;
        let open = std::fs::Permissions::from_mode(0o755);
        step("open the folder", &made, std::fs::set_permissions(&made, open.clone()))?;
        let copy = made.join(UNPACKER_NAME);
        // A hard link is enough if every user may run the file and it is on the same disk.
        let linked = found.mode() & 0o005 == 0o005
            && program
                .canonicalize()
                .is_ok_and(|real| std::fs::hard_link(real, &copy).is_ok())
            && copy.metadata().is_ok_and(|linked| linked.ino() == inode);
        if !linked {
            let _ = std::fs::remove_file(&copy);
            step("copy", program, std::fs::copy(program, &copy))?;
            step("open", &copy, std::fs::set_permissions(&copy, open))?;
        }
        match std::fs::rename(&made, &folder) {
            Err(_) if folder.join(UNPACKER_NAME).is_file() => {}
            other => step("put in its place", &folder, other)?,
        }
        // Removes the folders of replaced versions.
        for old in entries(&self.folder("tools")) {
            if old != folder {
                self.discard(&old);
            }
        }
        Ok(folder)
    }
}

/// The unpacker's file name in its folder.
pub(crate) const UNPACKER_NAME: &str = "sandcell";

fn publish(draft: &Draft, folder: &Path, is_there: impl Fn() -> bool) -> Result<(), ImageError> {
    let opened = step("open", draft.path(), File::open(draft.path()))?;
    step(
        "write to the disk",
        draft.path(),
        rustix::fs::syncfs(&opened).map_err(Into::into),
    )?;
    match std::fs::rename(draft.path(), folder) {
        Ok(()) => Ok(()),
        // Another process published the same content first.
        Err(_) if is_there() => Ok(()),
        other => step("put in its place", folder, other),
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(folder).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(RECORD_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Writes a temporary file and renames it, so that no reader finds a part of the record.
fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), ImageError> {
    let bytes = step("write", path, serde_json::to_vec(value).map_err(io::Error::other))?;
    let mut random = [0; 8];
    step(
        "find a random name for",
        path,
        getrandom::fill(&mut random).map_err(io::Error::other),
    )?;
    let beside = path.with_extension(format!("{:016x}", u64::from_le_bytes(random)));
    let written = std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    step("write", path, written)
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
