//! How the host's files are shown in sandboxes where other file systems are mounted below them.
//!
//! Sandboxes see the host's trees through overlays, and an overlay shows one file system alone. Root takes each mounted file
//! system for itself and shows it at its place in the tree. An ordinary user's mount namespace has inherited the mounts, and
//! the kernel refuses an overlay of a folder with inherited mounts below it. So that folder becomes a folder in memory,
//! with copies of its files, and each folder in it without mounts is shown through an overlay of its own. Where
//! that would take too many of them, the folder is bound as it is, and the report says so.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode};

use super::config;
use super::host::single_copy_of;
use super::mount_table::{Mount, MountTable, on_host, shown};
use crate::plan::{Lowers, Tree, View, place};
use crate::steps::{attach, copy_of, overlay};
use crate::wire::LeftOut;

/// The most overlays of one folder that was taken apart: each costs every sandbox some 60 microseconds.
const PIECES_MAX: usize = 48;
/// The most entries that are looked at in one folder.
const ENTRIES_MAX: usize = 512;
/// The most bytes of files that are copied into memory, of all trees together.
const COPIED_BYTES_MAX: u64 = 24 << 20;
/// The most mounts that are reported as left out, and the most characters of a path in that report.
const LEFT_OUT_MAX: usize = 64;
const REPORTED_PATH_MAX: usize = 200;
/// The most mounts below one tree that root shows.
const MOUNTS_MAX: usize = 256;

/// Finds out how trees are shown, one after the other.
pub(super) struct Survey<'a> {
    mounts: &'a MountTable,
    /// Whether this is the machine's root, who inherits no mounts.
    root: bool,
    /// Folders that are covered in sandboxes whatever is in them.
    covered: &'a [&'a str],
    /// How many sources there are.
    sources: usize,
    /// How many bytes of files may still be copied.
    copied: u64,
    found: Found,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Each tree before those within it.
    pub(super) trees: Vec<Tree>,
    /// What sandboxes do not see.
    pub(super) left_out: Vec<LeftOut>,
    /// The folders that are bound as they are.
    pub(super) bound: Vec<String>,
}

/// An entry of a folder that is taken apart.
struct Entry {
    name: OsString,
    /// None for what is left out; only its place is made then.
    found: Option<Metadata>,
}

impl Found {
    fn len(&self) -> [usize; 3] {
        [self.trees.len(), self.left_out.len(), self.bound.len()]
    }

    /// Forgets what was found since then.
    fn truncate(&mut self, [trees, left_out, bound]: [usize; 3]) {
        self.trees.truncate(trees);
        self.left_out.truncate(left_out);
        self.bound.truncate(bound);
    }
}

impl<'a> Survey<'a> {
    pub(super) fn new(mounts: &'a MountTable, root: bool, covered: &'a [&'a str]) -> Self {
        Self {
            mounts,
            root,
            covered,
            sources: 0,
            copied: COPIED_BYTES_MAX,
            found: Found::default(),
        }
    }

    /// The trees that were found since this was asked last.
    pub(super) fn take_trees(&mut self) -> Vec<Tree> {
        std::mem::take(&mut self.found.trees)
    }

    /// Reports a mount as left out whose ids cannot be mapped to a sandbox's, as an operator's folder's are.
    pub(super) fn leave_out_unmapped(&mut self, path: &str, error: &io::Error) {
        self.report_left_out(Path::new(path), format!("it cannot be shown with other ids: {error}"));
    }

    /// What was found beside trees. Each path is reported once.
    pub(super) fn finish(mut self) -> Found {
        self.found.left_out.sort_by(|one, other| one.path.cmp(&other.path));
        self.found.left_out.dedup_by(|one, other| one.path == other.path);
        self.found
    }

    /// Shows a folder of the host.
    pub(super) fn show(&mut self, path: &Path) -> io::Result<()> {
        if !std::fs::metadata(on_host(path))?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        if self.mounts.below(path).next().is_none() {
            return self.whole(path);
        }
        if self.root {
            self.whole(path)?;
            self.mounted_below(path);
            Ok(())
        } else {
            self.apart(path)
        }
    }

    /// A folder of the launcher's for the next source.
    fn place(&mut self) -> io::Result<String> {
        let place = format!("{}/{}", place::LOWER, self.sources);
        self.sources += 1;
        rustix::fs::mkdir(place.as_str(), Mode::from_raw_mode(0o755))?;
        Ok(place)
    }

    fn add(&mut self, path: &Path, view: View) {
        self.found.trees.push(Tree {
            view,
            path: shown(path),
        });
    }

    fn leave_out(&mut self, mount: &Mount, reason: impl Into<String>) {
        self.report_left_out(&mount.path, reason.into());
    }

    fn report_left_out(&mut self, path: &Path, reason: String) {
        if self.found.left_out.len() < LEFT_OUT_MAX {
            self.found.left_out.push(LeftOut {
                path: reported(path),
                reason,
            });
        }
    }

    /// Shows nothing at the place of a mount.
    fn hide(&mut self, mount: &Mount, reason: impl Into<String>) {
        self.leave_out(mount, reason);
        self.add(&mount.path, View::Nothing);
    }

    fn is_covered(&self, path: &Path) -> bool {
        self.covered.iter().any(|folder| path.starts_with(folder))
    }

    /// One file system's part below a path, through an overlay.
    fn whole(&mut self, path: &Path) -> io::Result<()> {
        let source = self.place()?;
        attach(&single_copy_of(&shown(&on_host(path)))?, &source)?;
        self.add(path, View::Overlay(Lowers::of(source)));
        Ok(())
    }

    /// As root: each file system that is mounted below a folder, at its place.
    fn mounted_below(&mut self, path: &Path) {
        let mounts = self.mounts;
        let mut hidden: Vec<&Path> = Vec::new();
        let most = self.found.trees.len() + MOUNTS_MAX;
        for mount in mounts.below(path) {
            if self.is_covered(&mount.path) || hidden.iter().any(|folder| mount.path.starts_with(folder)) {
                continue;
            }
            if self.found.trees.len() >= most {
                self.hide(mount, "too many file systems are mounted here");
                hidden.push(&mount.path);
                continue;
            }
            if !self.mounted(mount) {
                hidden.push(&mount.path);
            }
        }
    }

    /// As root: shows one mounted file system, or reports why not. True if what is below it may be shown, too.
    fn mounted(&mut self, mount: &Mount) -> bool {
        if let Some(reason) = self.why_not(mount) {
            self.hide(mount, reason);
            return false;
        }
        // Another mount hides it, and is in the table as well.
        if !mount.is_visible() {
            return true;
        }
        let shown = std::fs::metadata(on_host(&mount.path)).and_then(|found| {
            if found.is_dir() {
                self.whole(&mount.path)?;
                Ok(self.keep_last_if_it_works(mount))
            } else {
                self.put_over_file(mount)?;
                Ok(true)
            }
        });
        shown.unwrap_or_else(|error| {
            self.hide(mount, error.to_string());
            false
        })
    }

    /// Why this mount, whose path may lie below one that is shown, is not shown.
    fn why_not(&self, mount: &Mount) -> Option<String> {
        if mount.path.to_str().is_none() {
            return Some("its path is not UTF-8".to_owned());
        }
        let other = self.mounts.at(&mount.path).find(|mount| !mount.is_ordinary())?;
        Some(format!(
            "{} is not a local file system that sandboxes may see",
            other.kind
        ))
    }

    /// Some file systems cannot be shown through an overlay (names without case, too many overlays over each other).
    fn keep_last_if_it_works(&mut self, mount: &Mount) -> bool {
        let works = match self.found.trees.last() {
            Some(Tree {
                view: View::Overlay(lowers),
                ..
            }) => overlay(lowers, None),
            _ => return true,
        };
        if let Err(error) = works {
            self.found.trees.pop();
            self.hide(
                mount,
                format!("{} cannot be shown through an overlay: {error}", mount.kind),
            );
            return false;
        }
        true
    }

    /// As root: a copy of what is mounted on a single file, over the tree that the file is in.
    fn put_over_file(&mut self, mount: &Mount) -> io::Result<()> {
        let around = self
            .found
            .trees
            .iter()
            .rposition(|tree| mount.path.starts_with(&tree.path));
        let Some(around) = around else { return Ok(()) };
        let (outer, before) = match self.found.trees.get(around) {
            Some(Tree {
                view: View::Overlay(lowers),
                path,
            }) => (PathBuf::from(path), lowers.clone()),
            _ => return Ok(()),
        };
        let files = match &before.files {
            Some(files) => files.clone(),
            None => self.place()?,
        };
        let inner = mount.path.strip_prefix(&outer).map_err(io::Error::other)?;
        let copy = Path::new(&files).join(inner);
        copy_parents(&outer, &files, inner)?;
        if !config::copy_file(&on_host(&mount.path), &copy, &mut self.copied)? {
            self.hide(mount, NOT_COPIED);
            return Ok(());
        }
        if let Some(tree) = self.found.trees.get_mut(around) {
            tree.view = View::Overlay(Lowers {
                files: Some(files),
                ..before
            });
        }
        Ok(())
    }

    /// As an ordinary user: a folder with mounts below it.
    fn apart(&mut self, path: &Path) -> io::Result<()> {
        let place = self.place()?;
        let before = self.found.len();
        self.add(path, View::Overlay(Lowers::of(place.clone())));
        if self.fill(path, Path::new(&place), &mut PIECES_MAX.clone())? {
            return Ok(());
        }
        self.found.truncate(before);
        self.bind(path)
    }

    /// Shows what is in a folder, each entry for itself, where `place` stands for the folder. False if that would be too much.
    fn fill(&mut self, path: &Path, place: &Path, pieces: &mut usize) -> io::Result<bool> {
        let Some(entries) = self.list(path, *pieces)? else {
            return Ok(false);
        };
        for Entry { name, found } in entries {
            let (path, place) = (path.join(&name), place.join(&name));
            let Some(found) = found else {
                rustix::fs::mkdir(&place, Mode::from_raw_mode(0o755))?;
                continue;
            };
            if found.is_symlink() {
                std::os::unix::fs::symlink(std::fs::read_link(on_host(&path))?, &place)?;
            } else if found.is_file() {
                config::copy_file(&on_host(&path), &place, &mut self.copied)?;
            } else if found.is_dir() && !self.piece(&path, &place, pieces)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The entries of a folder; none if there are too many, or too much would have to be copied.
    fn list(&mut self, path: &Path, pieces: usize) -> io::Result<Option<Vec<Entry>>> {
        let (mut entries, mut folders, mut bytes) = (Vec::new(), 0, 0);
        for entry in std::fs::read_dir(on_host(path))? {
            let entry = entry?;
            let path = path.join(entry.file_name());
            if path.to_str().is_none() {
                continue;
            }
            // Whoever asks a file system that does not answer waits for ever.
            let mounts = self.mounts;
            let left_out = mounts.at(&path).find_map(|mount| Some((mount, self.why_not(mount)?)));
            let found = match left_out {
                Some((mount, reason)) => {
                    self.leave_out(mount, reason);
                    None
                }
                None => Some(std::fs::symlink_metadata(on_host(&path))?),
            };
            folders += usize::from(found.as_ref().is_some_and(Metadata::is_dir));
            bytes += found.as_ref().filter(|found| found.is_file()).map_or(0, Metadata::len);
            if found.is_some() || entry.file_type()?.is_dir() {
                entries.push(Entry {
                    name: entry.file_name(),
                    found,
                });
            }
            if entries.len() > ENTRIES_MAX || folders > pieces || bytes > self.copied {
                return Ok(None);
            }
        }
        Ok(Some(entries))
    }

    /// One folder of a folder that is taken apart. `place` is its mount point.
    fn piece(&mut self, path: &Path, place: &Path, pieces: &mut usize) -> io::Result<bool> {
        rustix::fs::mkdir(place, Mode::from_raw_mode(0o755))?;
        if self.is_covered(path) {
            return Ok(true);
        }
        let Some(rest) = pieces.checked_sub(1) else {
            return Ok(false);
        };
        *pieces = rest;
        if self.mounts.below(path).next().is_some() {
            // A file system that is mounted there is taken apart like any other folder.
            let (before, left) = (self.found.len(), *pieces);
            if self.readable(path) && !self.fill(path, place, pieces)? {
                *pieces = left;
                self.found.truncate(before);
                self.bind(path)?;
            }
            return Ok(true);
        }
        self.whole(path)?;
        let mounts = self.mounts;
        if let Some(mount) = mounts.at(path).next() {
            self.keep_last_if_it_works(mount);
        }
        Ok(true)
    }

    /// Whether this user may list a folder. What an ordinary user may not see nobody in its sandboxes would.
    fn readable(&self, path: &Path) -> bool {
        !std::fs::read_dir(on_host(path)).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    }

    /// A folder as it is, with all that is mounted below it. What may not be seen of that is covered.
    fn bind(&mut self, path: &Path) -> io::Result<()> {
        let source = self.place()?;
        attach(&copy_of(&shown(&on_host(path)))?, &source)?;
        self.add(path, View::Bind(source));
        self.found.bound.push(reported(path));
        let (mounts, mut covered) = (self.mounts, Vec::<&Path>::new());
        for mount in mounts.below(path) {
            if covered.iter().any(|folder| mount.path.starts_with(folder)) {
                continue;
            }
            if let Some(reason) = self.why_not(mount) {
                self.hide(mount, reason);
                covered.push(&mount.path);
            }
        }
        Ok(())
    }
}

/// A path as reports tell it.
fn reported(path: &Path) -> String {
    shown(path).chars().take(REPORTED_PATH_MAX).collect()
}

const NOT_COPIED: &str =
    "what is mounted on a single file is copied, and this file is too large or not readable by everybody";

/// Makes the folders that lead to `inner`, with the modes that they have on the host.
fn copy_parents(outer: &Path, files: &str, inner: &Path) -> io::Result<()> {
    let Some(parent) = inner.parent() else { return Ok(()) };
    let (mut original, mut copy) = (outer.to_path_buf(), PathBuf::from(files));
    for name in parent {
        original.push(name);
        copy.push(name);
        let found = rustix::fs::stat(on_host(&original))?;
        if !FileType::from_raw_mode(found.st_mode).is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        match rustix::fs::mkdir(&copy, Mode::from_raw_mode(0o700)) {
            Ok(()) => rustix::fs::chmod(&copy, Mode::from_raw_mode(found.st_mode & 0o777))?,
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
