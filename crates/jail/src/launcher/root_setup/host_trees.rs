//! Makes the host's files visible in sandboxes if other file systems are mounted below them.
//!
//! Sandboxes see the host's trees through overlays, and an overlay shows only one file system. As root, the launcher
//! clones each mounted file system separately and shows it through an overlay at its mount point. An ordinary user's
//! launcher has a mount namespace with inherited mounts, and the kernel refuses an overlay of a folder with inherited
//! mounts below it. The launcher splits such a folder: it makes a folder in memory with copies of the links and files,
//! and shows each subfolder without mounts through an overlay. If that needs too many overlays or copies, it binds the
//! folder as it is, provided that it is a system folder. The report names such folders.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, statx};

use crate::launcher::base::mount_table::{Mount, MountTable, on_host};
use crate::paths;
use crate::plan::{Inner, InnerView, Tree, View};
use crate::steps::{attach, copy_of, overlay, single_copy_of};
use crate::wire::{DescribedError, SkippedPath};

/// The maximum number of overlays for one folder that is split. Each costs every sandbox some 60 microseconds.
const MAX_OVERLAYS: usize = 96;
/// The maximum number of entries of one folder that is split.
const MAX_ENTRIES: usize = 512;
/// The maximum number of bytes of files copied to memory, for all trees together.
const MAX_COPIED_BYTES: u64 = 24 << 20;
/// The maximum number of mounts within one tree that root shows.
const MAX_INNER_MOUNTS: usize = 256;
/// The maximum number of paths in a report, and of characters in each.
const MAX_REPORTED: usize = 64;
const MAX_REPORTED_PATH_BYTES: usize = 200;

/// The owner of a tree's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// The system, or an interpreter's installation.
    System,
    /// The operator. Root shows the files with other ids, which not every file system supports.
    Operator,
}

/// Prepares trees, one after the other.
pub(super) struct Survey<'a> {
    mounts: &'a MountTable,
    /// True if the launcher is the machine's root, which inherits no mounts.
    root: bool,
    /// Covered folders: sandboxes do not see their content.
    covered: &'a [&'a str],
    /// Tests if files can be shown with other ids.
    maps_ids: fn(&str) -> io::Result<()>,
    /// The number of folders made for sources.
    sources: usize,
    /// The remaining bytes for copies of files.
    bytes_left: u64,
    /// The folder of [`crate::plan::Host::files`], and the number of files in it.
    files: Option<(String, usize)>,
    report: Report,
}

/// Host paths to report to the operator.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Mounts that sandboxes do not see.
    pub(super) left_out: Vec<SkippedPath>,
    /// Folders that are bound.
    pub(super) bound: Vec<String>,
}

/// The result of an attempt to split a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Done,
    TooMuch,
}

/// A tree during its preparation.
struct SeparateParts {
    inner: Vec<Inner>,
    overlays_left: usize,
    owner: Owner,
}

/// An entry of a folder that is split.
struct Entry {
    name: OsString,
    found: Metadata,
}

impl<'a> Survey<'a> {
    pub(super) fn new(
        mounts: &'a MountTable,
        root: bool,
        covered: &'a [&'a str],
        maps_ids: fn(&str) -> io::Result<()>,
    ) -> Self {
        Self {
            mounts,
            root,
            covered,
            maps_ids,
            sources: 0,
            bytes_left: MAX_COPIED_BYTES,
            files: None,
            report: Report::default(),
        }
    }

    /// Returns the folder with copies of single files, and the report.
    pub(super) fn finish(self) -> (Option<String>, Report) {
        (self.files.map(|(folder, _)| folder), self.report)
    }

    /// Prepares a host folder. Its path in the tree is the path on the host.
    pub(super) fn tree(&mut self, path: &Path, owner: Owner) -> io::Result<Tree> {
        if !std::fs::metadata(on_host(path))?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let tree = |view, inner| Tree {
            view,
            path: path.to_string_lossy().into_owned(),
            inner,
        };
        if self.mounts.below(path).next().is_none() {
            return Ok(tree(View::Overlay(self.overlay_source(path)?), Vec::new()));
        }
        if self.root {
            let source = self.overlay_source(path)?;
            return Ok(tree(View::Overlay(source), self.mounts_within(path, owner)));
        }
        let folder = self.new_folder()?;
        let mut parts = SeparateParts {
            inner: Vec::new(),
            overlays_left: MAX_OVERLAYS,
            owner,
        };
        match self.list_separately(path, path, Path::new(&folder), &mut parts)? {
            Attempt::Done => Ok(tree(View::Overlay(folder), parts.inner)),
            Attempt::TooMuch if owner == Owner::System => {
                let (source, inner) = self.bind(path, path)?;
                Ok(tree(View::Bind(source), inner))
            }
            Attempt::TooMuch => Err(DescribedError {
                what: "other file systems are mounted below it, which an ordinary user can show only where its folders are few \
                       and its files small; run the server as root, or mount the folders one by one"
                    .to_owned(),
                errno: libc::EINVAL,
            }
            .into()),
        }
    }

    /// Makes a folder in the launcher's root.
    fn new_folder(&mut self) -> io::Result<String> {
        let folder = format!("{}/{}", paths::LOWER_FOLDERS, self.sources);
        self.sources += 1;
        rustix::fs::mkdir(folder.as_str(), Mode::from_raw_mode(0o755))?;
        Ok(folder)
    }

    /// Clones the file system at a path, without mounts below it.
    fn overlay_source(&mut self, path: &Path) -> io::Result<String> {
        let source = self.new_folder()?;
        attach(&single_copy_of(on_host(path))?, &source)?;
        Ok(source)
    }

    fn skip_path(&mut self, path: &Path, reason: impl Into<String>) {
        if self.report.left_out.len() < MAX_REPORTED {
            self.report.left_out.push(SkippedPath {
                path: reported(path),
                reason: reason.into(),
            });
        }
    }

    fn is_covered(&self, path: &Path) -> bool {
        self.covered.iter().any(|folder| path.starts_with(folder))
    }

    /// As root: prepares each mount below a tree's root.
    fn mounts_within(&mut self, root: &Path, owner: Owner) -> Vec<Inner> {
        let mounts = self.mounts;
        let (mut found, mut closed) = (Vec::new(), Vec::<&Path>::new());
        for mount in mounts.below(root) {
            if self.is_covered(&mount.path) || closed.iter().any(|path| mount.path.starts_with(path)) {
                continue;
            }
            let view = if found.len() < MAX_INNER_MOUNTS {
                self.mounted(mount, owner)
            } else {
                Err("too many file systems are mounted here".to_owned())
            };
            let view = view.unwrap_or_else(|reason| {
                self.skip_path(&mount.path, reason);
                closed.push(&mount.path);
                InnerView::Covered
            });
            found.push(Inner {
                view,
                path: relative(&mount.path, root),
            });
        }
        found
    }

    /// As root: prepares one mount. The error is the reason to leave it out.
    fn mounted(&mut self, mount: &Mount, owner: Owner) -> Result<InnerView, String> {
        check_kind(mount)?;
        let prepared = match kind_of(&mount.path) {
            Ok(FileType::Directory) => self.overlay_source(&mount.path).and_then(|source| {
                overlay(&source, None)?;
                if owner == Owner::Operator {
                    (self.maps_ids)(&source)?;
                }
                Ok(InnerView::Tree(View::Overlay(source)))
            }),
            Ok(FileType::RegularFile) => self.copied_file(&mount.path).map(InnerView::File),
            Ok(_) => return Err("it is neither a folder nor a file".to_owned()),
            Err(error) => Err(error),
        };
        prepared.map_err(|error| format!("{} cannot be shown: {error}", mount.kind))
    }

    /// As root: copies a file that is mounted on another one. Returns its name in the folder of such files.
    fn copied_file(&mut self, path: &Path) -> io::Result<String> {
        let (folder, number) = match self.files.take() {
            Some(files) => files,
            None => (self.new_folder()?, 0),
        };
        let name = number.to_string();
        let copied = self.copy_file(path, &Path::new(&folder).join(&name));
        self.files = Some((folder, number + 1));
        copied.map(|()| name)
    }

    /// As an ordinary user: splits a folder with mounts below it. `folder` is its replacement in memory.
    fn list_separately(
        &mut self,
        root: &Path,
        path: &Path,
        folder: &Path,
        parts: &mut SeparateParts,
    ) -> io::Result<Attempt> {
        let Some(entries) = self.list(path, folder, parts)? else {
            return Ok(Attempt::TooMuch);
        };
        let mut has_files = false;
        for Entry { name, found } in entries {
            let (path, copy) = (path.join(&name), folder.join(&name));
            let done = if found.is_symlink() {
                std::fs::read_link(on_host(&path)).and_then(|target| std::os::unix::fs::symlink(target, &copy))
            } else if found.is_file() {
                has_files = true;
                self.copy_file(&path, &copy)
            } else if found.is_dir() {
                match self.subfolder(root, &path, &copy, parts)? {
                    Attempt::Done => Ok(()),
                    Attempt::TooMuch => return Ok(Attempt::TooMuch),
                }
            } else {
                Ok(())
            };
            if let Err(error) = done
                && !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
            {
                self.skip_path(&path, error.to_string());
            }
        }
        if has_files && parts.owner == Owner::Operator {
            self.skip_path(
                path,
                "files directly in this folder are seen as they were when the server started, since other file systems are \
                 mounted below it",
            );
        }
        Ok(Attempt::Done)
    }

    /// Lists a folder. None if it has too many entries, or too many bytes to copy.
    fn list(&mut self, path: &Path, folder: &Path, parts: &SeparateParts) -> io::Result<Option<Vec<Entry>>> {
        let (mut entries, mut folders, mut bytes) = (Vec::new(), 0, 0);
        for entry in std::fs::read_dir(on_host(path))? {
            let name = entry?.file_name();
            let path = path.join(&name);
            // File systems that sandboxes may not see are not accessed, since they may never answer.
            if let Some(reason) = self.mounts.at(&path).and_then(|mount| check_kind(mount).err()) {
                self.skip_path(&path, reason);
                make_stand_in(&path, &folder.join(&name))?;
                continue;
            }
            let Ok(found) = std::fs::symlink_metadata(on_host(&path)) else {
                continue;
            };
            folders += usize::from(found.is_dir());
            bytes += if found.is_file() { found.len() } else { 0 };
            entries.push(Entry { name, found });
            if entries.len() > MAX_ENTRIES || folders > parts.overlays_left || bytes > self.bytes_left {
                return Ok(None);
            }
        }
        Ok(Some(entries))
    }

    /// As an ordinary user: shows a subfolder of a split folder. `copy` is its mount point.
    fn subfolder(&mut self, root: &Path, path: &Path, copy: &Path, parts: &mut SeparateParts) -> io::Result<Attempt> {
        rustix::fs::mkdir(copy, Mode::from_raw_mode(0o755))?;
        if self.is_covered(path) {
            return Ok(Attempt::Done);
        }
        let Some(left) = parts.overlays_left.checked_sub(1) else {
            return Ok(Attempt::TooMuch);
        };
        parts.overlays_left = left;
        if self.mounts.below(path).next().is_some() {
            let count = parts.inner.len();
            match self.list_separately(root, path, copy, parts) {
                Ok(Attempt::Done) => {}
                Ok(Attempt::TooMuch) if parts.owner == Owner::System => {
                    parts.inner.truncate(count);
                    parts.overlays_left = left;
                    let (source, covered) = self.bind(root, path)?;
                    parts.inner.push(Inner {
                        view: InnerView::Tree(View::Bind(source)),
                        path: relative(path, root),
                    });
                    parts.inner.extend(covered);
                }
                Ok(Attempt::TooMuch) => return Ok(Attempt::TooMuch),
                Err(error) => self.skip_path(path, error.to_string()),
            }
            return Ok(Attempt::Done);
        }
        match self
            .overlay_source(path)
            .and_then(|source| overlay(&source, None).map(|_| source))
        {
            Ok(source) => parts.inner.push(Inner {
                view: InnerView::Tree(View::Overlay(source)),
                path: relative(path, root),
            }),
            Err(error) => self.skip_path(path, error.to_string()),
        }
        Ok(Attempt::Done)
    }

    /// As an ordinary user: binds a system folder with all mounts below it. Returns its source, and covers for the
    /// mounts that sandboxes may not see.
    fn bind(&mut self, root: &Path, path: &Path) -> io::Result<(String, Vec<Inner>)> {
        let source = self.new_folder()?;
        attach(&copy_of(on_host(path))?, &source)?;
        self.report.bound.push(reported(path));
        let (mounts, mut covered) = (self.mounts, Vec::<&Path>::new());
        for mount in mounts.below(path) {
            if covered.iter().any(|path| mount.path.starts_with(path)) {
                continue;
            }
            if let Err(reason) = check_kind(mount) {
                self.skip_path(&mount.path, reason);
                covered.push(&mount.path);
            }
        }
        let cover = |path: &&Path| Inner {
            view: InnerView::Covered,
            path: relative(path, root),
        };
        Ok((source, covered.iter().map(cover).collect()))
    }

    /// Copies a file if both this process and sandboxes may read it.
    fn copy_file(&mut self, path: &Path, copy: &Path) -> io::Result<()> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let from = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(i32::try_from(flags.bits()).map_err(io::Error::other)?)
            .open(on_host(path))?;
        let found = from.metadata()?;
        let mode = found.permissions().mode();
        // A sandbox of an ordinary user's server runs with that user's id.
        let own = !self.root && found.uid() == rustix::process::getuid().as_raw();
        if !found.is_file() || !(own || mode & 0o004 != 0) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if found.len() > self.bytes_left {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mode = if own {
            mode & 0o777
        } else if mode & 0o001 != 0 {
            0o755
        } else {
            0o644
        };
        let mut to = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(copy)?;
        let mut content = Vec::new();
        let modified = found.modified()?;
        from.take(found.len()).read_to_end(&mut content)?;
        self.bytes_left = self.bytes_left.saturating_sub(found.len());
        to.write_all(&content)?;
        to.set_permissions(std::fs::Permissions::from_mode(mode))?;
        // Some programs compare files by their times.
        to.set_times(std::fs::FileTimes::new().set_modified(modified))
    }
}

/// Returns an error with the reason if sandboxes may not see a mount.
fn check_kind(mount: &Mount) -> Result<(), String> {
    if mount.is_local() {
        return Ok(());
    }
    Err(format!("{} is not a local file system of plain files", mount.kind))
}

/// Returns the type of a host path, as far as the kernel knows it without asking a server.
fn kind_of(path: &Path) -> io::Result<FileType> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = statx(CWD, on_host(path), flags, StatxFlags::TYPE)?;
    Ok(FileType::from_raw_mode(u32::from(found.stx_mode)))
}

/// Makes an empty folder or file in place of a mount that is left out.
fn make_stand_in(path: &Path, copy: &Path) -> io::Result<()> {
    match kind_of(path) {
        Ok(kind) if kind != FileType::Directory => std::fs::File::create_new(copy).map(drop),
        Ok(_) | Err(_) => Ok(rustix::fs::mkdir(copy, Mode::from_raw_mode(0o755))?),
    }
}

fn relative(path: &Path, root: &Path) -> PathBuf {
    path.strip_prefix(root).unwrap_or(path).to_path_buf()
}

fn reported(path: &Path) -> String {
    path.to_string_lossy().chars().take(MAX_REPORTED_PATH_BYTES).collect()
}
