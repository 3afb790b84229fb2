//! Where images are kept, and what of it may go.
//!
//! `layers/DIGEST` is a layer unpacked, by the digest of what came; `trees/KEY` the tree of an image, hard links to its layers;
//! `names/HASH` what a name meant when it was pulled. Everything appears by one rename and never changes again. A tree in use is
//! locked by whoever uses it, also across processes; what a killed server left in `drafts` goes at the next start.

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

/// The most that a record is read of.
const RECORD_MAX: u64 = 64 << 20;
/// Part of every tree's key: trees that were made otherwise are not used.
const MAKE: &str = "1";

#[derive(Debug, Clone)]
pub(crate) struct Store {
    root: PathBuf,
}

/// A layer that is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layer {
    pub(crate) diff_id: Option<Digest>,
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    /// Paths, in hexadecimal digits.
    pub(crate) whiteouts: Vec<String>,
    pub(crate) opaques: Vec<String>,
    pub(crate) implied: Vec<String>,
    pub(crate) left_out: u64,
    pub(crate) setuid: u64,
}

/// What a name means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meaning {
    pub(crate) name: String,
    /// Of its manifest.
    pub(crate) digest: Digest,
    /// Of a local one: what tells that it is still the same.
    pub(crate) stamp: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) layers: Vec<Digest>,
    pub(crate) bytes: u64,
    pub(crate) left_out: u64,
    pub(crate) setuid: u64,
}

/// An image that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Its full name.
    pub name: String,
    /// The digest of its manifest.
    pub digest: String,
    /// Bytes of its layers; images share them.
    pub bytes: u64,
    /// When it was used last.
    pub used: SystemTime,
    /// Whether a sandbox uses it now.
    pub in_use: bool,
}

/// What was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pruned {
    /// Images.
    pub images: usize,
    /// Bytes of their layers that nobody else has.
    pub bytes: u64,
}

/// Something that is being written; what is left of it goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Draft {
    path: PathBuf,
    /// Tells other servers that this one still works on it; none where the file system has no locks.
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

/// Locks a folder for as long as the result is held, unless somebody has.
fn lock(folder: &Path) -> io::Result<File> {
    let opened = File::open(folder)?;
    rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive)?;
    Ok(opened)
}

fn step<T>(what: &str, path: &Path, result: io::Result<T>) -> Result<T, ImageError> {
    result.map_err(|error| ImageError::store(format!("{what} {}", path.display()), &error))
}

/// The key of the tree of these layers.
pub(crate) fn tree_key(layers: &[Digest]) -> String {
    let text = layers
        .iter()
        .fold(MAKE.to_owned(), |text, layer| format!("{text} {}", layer.hex()));
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

    /// Makes the folders, and looks that they are nobody else's. Private images are no business of other users.
    pub(crate) fn prepare(&self) -> Result<(), ImageError> {
        for name in ["drafts", "layers", "trees", "names", "tools"] {
            let folder = self.folder(name);
            step("make the folder", &folder, std::fs::create_dir_all(&folder))?;
        }
        let found = step("look at", &self.root, self.root.symlink_metadata())?;
        if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
            return Err(ImageError::Store {
                step: format!("look at {}", self.root.display()),
                reason: "it is somebody else's".to_owned(),
            });
        }
        let private = std::fs::Permissions::from_mode(0o700);
        step("close", &self.root, std::fs::set_permissions(&self.root, private))
    }

    /// Removes drafts of processes that are gone. A process id would not tell: one may be in another PID namespace.
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

    /// Nothing is removed while this is held.
    pub(crate) fn at_work(&self) -> Result<File, ImageError> {
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

    /// A layer that is here, and where its files are.
    pub(crate) fn layer(&self, digest: &Digest) -> Option<(Layer, PathBuf)> {
        let folder = self.folder("layers").join(digest.hex());
        Some((read(&folder.join("layer.json"))?, folder.join("files")))
    }

    /// Makes a draft, with `files` in it, a layer.
    pub(crate) fn publish_layer(&self, draft: &Draft, digest: &Digest, layer: &Layer) -> Result<(), ImageError> {
        write(&draft.path().join("layer.json"), layer)?;
        let folder = self.folder("layers").join(digest.hex());
        publish(draft, &folder, || self.layer(digest).is_some())
    }

    /// The tree of this key, and the lock that keeps it there.
    pub(crate) fn tree(&self, key: &str) -> Option<(PathBuf, File)> {
        let folder = self.folder("trees").join(key);
        let lock = File::open(folder.join("lock")).ok()?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared).ok()?;
        // It may have been taken away before the lock was there.
        let root = folder.join("root");
        let same = folder.join("lock").metadata().ok()?.ino() == lock.metadata().ok()?.ino();
        (same && root.is_dir()).then_some((root, lock))
    }

    /// Makes a draft, with `root` in it, a tree.
    pub(crate) fn publish_tree(&self, draft: &Draft, key: &str) -> Result<(), ImageError> {
        let lock = draft.path().join("lock");
        step("make", &lock, File::create(&lock))?;
        publish(draft, &self.folder("trees").join(key), || self.tree(key).is_some())
    }

    fn name_file(&self, name: &str) -> PathBuf {
        self.folder("names").join(Digest::of(name.as_bytes()).hex())
    }

    /// What a name means. It counts as used now.
    pub(crate) fn meaning(&self, name: &str) -> Option<Meaning> {
        let path = self.name_file(name);
        let found: Meaning = read(&path).filter(|found: &Meaning| found.name == name)?;
        let touched = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        if let Err(error) = touched {
            tracing::debug!(%error, "the use of an image could not be noted");
        }
        Some(found)
    }

    pub(crate) fn remember(&self, meaning: &Meaning) -> Result<(), ImageError> {
        write(&self.name_file(&meaning.name), meaning)
    }

    fn meanings(&self) -> Vec<(Meaning, SystemTime, PathBuf)> {
        let files = entries(&self.folder("names")).into_iter();
        let read_one = |path: PathBuf| {
            let used = path.metadata().and_then(|found| found.modified()).ok()?;
            Some((read::<Meaning>(&path)?, used, path))
        };
        files.filter_map(read_one).collect()
    }

    pub(crate) fn list(&self) -> Vec<Kept> {
        let mut all: Vec<Kept> = self
            .meanings()
            .into_iter()
            .map(|(meaning, used, _)| Kept {
                in_use: self.in_use(&tree_key(&meaning.layers)),
                digest: meaning.digest.to_string(),
                name: meaning.name,
                bytes: meaning.bytes,
                used,
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Whether somebody holds the tree's lock.
    fn in_use(&self, key: &str) -> bool {
        let lock = File::open(self.folder("trees").join(key).join("lock"));
        lock.is_ok_and(|lock| rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err())
    }

    /// Forgets images that `chosen` picks and nobody uses, with what only they have. None while an image is being pulled.
    pub(crate) fn remove(&self, chosen: &dyn Fn(&Meaning) -> bool) -> Result<Option<Pruned>, ImageError> {
        let lock = self.lock_file()?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(None);
        }
        let mut pruned = Pruned::default();
        for (meaning, _, path) in self.meanings() {
            if chosen(&meaning) && !self.in_use(&tree_key(&meaning.layers)) {
                step("remove", &path, std::fs::remove_file(&path))?;
                pruned.images += 1;
            }
        }
        pruned.bytes = self.collect();
        Ok(Some(pruned))
    }

    /// Forgets images that were not used for longest until the layers fit. `keep` stays.
    pub(crate) fn make_room(&self, most: u64, keep: &str) {
        let Ok(lock) = self.lock_file() else { return };
        // While others pull, their layers belong to no name yet. The next pull makes room.
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        let mut all = self.meanings();
        all.sort_by_key(|(_, used, _)| *used);
        for (meaning, _, path) in all {
            if self.bytes() <= most {
                return;
            }
            if meaning.name != keep && !self.in_use(&tree_key(&meaning.layers)) && std::fs::remove_file(&path).is_ok() {
                tracing::info!(image = meaning.name, "an image was removed to make room");
                self.collect();
            }
        }
    }

    /// Bytes of all layers.
    fn bytes(&self) -> u64 {
        let layers = entries(&self.folder("layers")).into_iter();
        let sizes = layers.filter_map(|path| read::<Layer>(&path.join("layer.json")));
        sizes.map(|layer| layer.bytes).sum()
    }

    /// Removes trees and layers that no name leads to. Bytes of the layers that went.
    fn collect(&self) -> u64 {
        let (mut trees, mut layers) = (Vec::new(), Vec::new());
        for (meaning, ..) in self.meanings() {
            trees.push(tree_key(&meaning.layers));
            layers.extend(meaning.layers.iter().map(|digest| digest.hex().to_owned()));
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

    /// Away in one step, so that nobody finds half of it.
    fn discard(&self, path: &Path) {
        if let Ok(draft) = self.draft()
            && let Err(error) = std::fs::rename(path, draft.path().join("old"))
        {
            tracing::warn!(%error, path = %path.display(), "a part of an image could not be removed");
        }
    }

    /// A folder with this program and nothing else, for the sandbox that unpacks.
    pub(crate) fn tool(&self, program: &Path) -> Result<PathBuf, ImageError> {
        let found = step("look at", program, program.metadata())?;
        let (size, inode) = (found.size(), found.ino());
        let name = format!("{size}-{inode}-{}.{}", found.mtime(), found.mtime_nsec());
        let folder = self.folder("tools").join(name);
        if folder.join(TOOL).is_file() {
            return Ok(folder);
        }
        let draft = self.draft()?;
        let made = draft.path().join("tool");
        step("make the folder", &made, std::fs::create_dir(&made))?;
        let open = std::fs::Permissions::from_mode(0o755);
        step("open the folder", &made, std::fs::set_permissions(&made, open.clone()))?;
        let copy = made.join(TOOL);
        // The same file under a second name does, where all may run it and it lies on the same disk.
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
            Err(_) if folder.join(TOOL).is_file() => {}
            other => step("put in its place", &folder, other)?,
        }
        // Those of versions that were replaced.
        for old in entries(&self.folder("tools")) {
            if old != folder {
                self.discard(&old);
            }
        }
        Ok(folder)
    }
}

/// The unpacker's name in its folder.
pub(crate) const TOOL: &str = "sandcell";

fn publish(draft: &Draft, folder: &Path, is_there: impl Fn() -> bool) -> Result<(), ImageError> {
    let opened = step("open", draft.path(), File::open(draft.path()))?;
    step(
        "write to the disk",
        draft.path(),
        rustix::fs::syncfs(&opened).map_err(Into::into),
    )?;
    match std::fs::rename(draft.path(), folder) {
        Ok(()) => Ok(()),
        // Somebody else was quicker with the same.
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

/// Writes beside and renames, so that nobody reads half of it.
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
