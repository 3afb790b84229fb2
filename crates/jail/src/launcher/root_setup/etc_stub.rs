//! Copies an interpreter's configuration (`/etc/php`, `/etc/java-17-openjdk`) and other small trees to the stub of
//! /etc.
//!
//! The files are copied because they are small: a mount for each would cost every sandbox as much as the copy costs
//! once. Only world-readable files are copied.

use std::fs::{DirBuilder, FileTimes, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Component, Path};
use std::time::{Duration, Instant};

use super::Prepared;
use crate::paths;

/// The limits of all copies: files and folders together, bytes together, and nesting depth.
const MAX_ENTRIES: usize = 4000;
const MAX_BYTES: u64 = 16 << 20;
const MAX_DEPTH: usize = 12;

/// The interval between two reports that the copy goes on. Shorter than the server's doubts.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(300);

/// The limits of a tree below `/var/lib` that is copied (a compiler's list of its packages).
const SMALL_TREES_PARENT: &str = "/var/lib";
const SMALL_TREE_BUDGET: Budget = Budget {
    entries: 100,
    bytes: 1 << 20,
};

/// The folder of links by which Debian chooses libraries (such as BLAS) and programs.
const ALTERNATIVES_FOLDER: &str = "/etc/alternatives";

/// The remaining budget for copies.
#[derive(Clone, Copy)]
struct Budget {
    entries: usize,
    bytes: u64,
}

/// A copy that goes on.
struct Copying<'a> {
    left: Budget,
    /// The time of the last report that it goes on.
    told: Instant,
    tell: &'a mut dyn FnMut() -> io::Result<()>,
}

impl Copying<'_> {
    /// Begins with an entry. False if no further one fits.
    fn takes_entry(&mut self) -> io::Result<bool> {
        if self.told.elapsed() >= PROGRESS_INTERVAL {
            self.told = Instant::now();
            (self.tell)()?;
        }
        let entries = self.left.entries.checked_sub(1);
        self.left.entries = entries.unwrap_or(0);
        Ok(entries.is_some())
    }
}

/// Copies the wanted files and folders of the host's /etc to the stub, with the links that every program may need. Copies
/// the small trees to their places. The umask of the process is 022.
///
/// On a slow file system this takes many seconds. It calls `tell` from time to time: the server must not take the launcher
/// for one that hangs, and start another one that does the same. It stops when `tell` fails: the server is gone.
pub(in crate::launcher) fn copy(prepared: &Prepared, tell: &mut dyn FnMut() -> io::Result<()>) -> io::Result<()> {
    let told = Instant::now();
    for path in &prepared.host.copied {
        let (from, to) = (format!("{}{path}", paths::host()), format!("{}{path}", paths::NEW_ROOT));
        entry(
            Path::new(&from),
            Path::new(&to),
            MAX_DEPTH,
            &mut Copying {
                left: SMALL_TREE_BUDGET,
                told,
                tell,
            },
        )?;
    }
    let mut copying = Copying {
        left: Budget {
            entries: MAX_ENTRIES,
            bytes: MAX_BYTES,
        },
        told,
        tell,
    };
    let wanted = &prepared.template.config;
    for path in std::iter::once(Path::new(ALTERNATIVES_FOLDER)).chain(wanted.iter().map(AsRef::as_ref)) {
        let Ok(name) = path.strip_prefix("/etc") else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let plain = name.components().all(|part| matches!(part, Component::Normal(_)));
        let to = Path::new(paths::ETC_STUB).join(name);
        // Existing entries of the stub are not replaced.
        if !plain || name.as_os_str().is_empty() || to.symlink_metadata().is_ok() {
            continue;
        }
        entry(
            &Path::new(paths::host()).join("etc").join(name),
            &to,
            MAX_DEPTH,
            &mut copying,
        )?;
    }
    Ok(())
}

/// Returns true if a host tree is small enough to copy, and world-readable.
pub(in crate::launcher) fn is_small(path: &Path) -> bool {
    let plain = path.starts_with(SMALL_TREES_PARENT) && !path.components().any(|part| part == Component::ParentDir);
    let from = format!("{}{}", paths::host(), path.display());
    plain
        && Path::new(&from).symlink_metadata().is_ok_and(|found| found.is_dir())
        && fits(Path::new(&from), MAX_DEPTH, &mut SMALL_TREE_BUDGET.clone()) == Some(())
}

/// Takes an entry from the budget. None if it does not fit or is not world-readable.
fn fits(from: &Path, depth: usize, budget: &mut Budget) -> Option<()> {
    let found = from.symlink_metadata().ok()?;
    budget.entries = budget.entries.checked_sub(1)?;
    let mode = found.permissions().mode();
    if found.is_dir() && mode & 0o005 == 0o005 && depth > 0 {
        std::fs::read_dir(from)
            .ok()?
            .try_for_each(|child| fits(&child.ok()?.path(), depth - 1, budget))
    } else if found.is_file() && mode & 0o004 != 0 {
        budget.bytes = budget.bytes.checked_sub(found.len())?;
        Some(())
    } else {
        found.is_symlink().then_some(())
    }
}

/// Returns none if the file has disappeared, changed its type or become unreadable since the last look: an
/// administrator may be at work on the host.
fn existing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    use io::ErrorKind::{InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied};
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) => match error.kind() {
            NotFound | PermissionDenied | InvalidInput | IsADirectory | NotADirectory => Ok(None),
            _ => Err(error),
        },
    }
}

/// Copies one entry. Skips entries that have disappeared, are unreadable or do not fit.
fn entry(from: &Path, to: &Path, depth: usize, copying: &mut Copying<'_>) -> io::Result<()> {
    let Ok(found) = from.symlink_metadata() else {
        return Ok(());
    };
    if !copying.takes_entry()? {
        return Ok(());
    }
    let mode = found.permissions().mode();
    // Existing files are not replaced: they may be mount points, or part of another tree.
    if !found.is_dir() && to.symlink_metadata().is_ok() {
        return Ok(());
    }
    if found.is_symlink() {
        return link(from, to);
    }
    if found.is_dir() && mode & 0o005 == 0o005 && depth > 0 {
        DirBuilder::new().mode(0o755).recursive(true).create(to)?;
        let children = existing(std::fs::read_dir(from))?.into_iter().flatten();
        for child in children.take(MAX_ENTRIES) {
            let Some(child) = existing(child)? else {
                continue;
            };
            let name = child.file_name();
            let (from, to) = (from.join(&name), to.join(&name));
            // There may be hundreds of links. The folder entry has the type, so this needs no further call.
            if child.file_type().is_ok_and(|kind| kind.is_symlink()) {
                if !copying.takes_entry()? {
                    return Ok(());
                }
                link(&from, &to)?;
            } else {
                entry(&from, &to, depth - 1, copying)?;
            }
        }
    } else if found.is_file() && mode & 0o004 != 0 {
        let Some(bytes) = copying.left.bytes.checked_sub(found.len()) else {
            return Ok(());
        };
        copying.left.bytes = bytes;
        let Some(file) = existing(std::fs::File::open(from))? else {
            return Ok(());
        };
        let mut content = Vec::with_capacity(usize::try_from(found.len()).unwrap_or(0));
        if existing(file.take(found.len()).read_to_end(&mut content))?.is_none() {
            return Ok(());
        }
        let mode = if mode & 0o001 == 0 { 0o644 } else { 0o755 };
        let mut copy = OpenOptions::new().write(true).create_new(true).mode(mode).open(to)?;
        copy.write_all(&content)?;
        // Some programs compare files by modification time.
        let times = FileTimes::new().set_modified(found.modified()?);
        copy.set_times(times)?;
    }
    Ok(())
}

/// Copies a link, unless the target path exists. Links to compressed manual pages are skipped: they are three quarters of
/// Debian's alternatives, and the first sandbox would wait some milliseconds for them.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    if from.extension().is_some_and(|extension| extension == "gz") {
        return Ok(());
    }
    let Some(target) = existing(from.read_link())? else {
        return Ok(());
    };
    match symlink(target, to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    #[test]
    fn only_small_world_readable_files_are_copied() {
        let folder = std::env::temp_dir().join(format!("sandcell-small-{}", std::process::id()));
        let below = folder.join("below");
        std::fs::create_dir_all(&below).unwrap();
        std::fs::write(below.join("file"), [0; 1000]).unwrap();
        symlink("nowhere", below.join("link")).unwrap();
        let small = |bytes, entries| fits(&folder, 3, &mut Budget { entries, bytes }).is_some();
        for entry in [&folder, &below] {
            std::fs::set_permissions(entry, Permissions::from_mode(0o755)).unwrap();
        }
        std::fs::set_permissions(below.join("file"), Permissions::from_mode(0o644)).unwrap();
        assert!(small(1000, 4));
        assert!(!small(999, 4), "too many bytes");
        assert!(!small(1000, 3), "too many entries");
        std::fs::set_permissions(below.join("file"), Permissions::from_mode(0o640)).unwrap();
        assert!(!small(1000, 4), "a file that is not for everybody");
        std::fs::set_permissions(below.join("file"), Permissions::from_mode(0o644)).unwrap();
        std::fs::set_permissions(&below, Permissions::from_mode(0o711)).unwrap();
        assert!(!small(1000, 4), "a folder that is not for everybody");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_nested_tree_is_copied_with_its_parent_and_existing_files_stay() {
        let folder = std::env::temp_dir().join(format!("sandcell-copied-{}", std::process::id()));
        let (from, to) = (folder.join("from"), folder.join("not/there/to"));
        std::fs::create_dir_all(from.join("below")).unwrap();
        symlink("file", from.join("below/link")).unwrap();
        std::fs::write(from.join("below/file"), "new").unwrap();
        std::fs::write(from.join("beside"), "new").unwrap();
        let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        let file = std::fs::File::options().append(true).open(from.join("beside")).unwrap();
        file.set_times(FileTimes::new().set_modified(long_ago)).unwrap();
        for (path, mode) in [(".", 0o755), ("below", 0o755), ("below/file", 0o644), ("beside", 0o644)] {
            std::fs::set_permissions(from.join(path), Permissions::from_mode(mode)).unwrap();
        }
        std::fs::create_dir_all(to.join("below")).unwrap();
        std::fs::write(to.join("below/file"), "mounted").unwrap();
        let mut reports = 0;
        for tree in ["", "below", ""] {
            entry(
                &from.join(tree),
                &to.join(tree),
                MAX_DEPTH,
                &mut Copying {
                    left: SMALL_TREE_BUDGET,
                    told: Instant::now().checked_sub(PROGRESS_INTERVAL).unwrap(),
                    tell: &mut || {
                        reports += 1;
                        Ok(())
                    },
                },
            )
            .unwrap();
        }
        assert_eq!(reports, 3, "one for each copy: a report was due, and no further one");
        let mut abandoned = Copying {
            left: SMALL_TREE_BUDGET,
            told: Instant::now().checked_sub(PROGRESS_INTERVAL).unwrap(),
            tell: &mut || Err(io::ErrorKind::BrokenPipe.into()),
        };
        let error = entry(&from, &folder.join("late"), MAX_DEPTH, &mut abandoned).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        assert!(
            !folder.join("late").exists(),
            "nothing is copied for a server that is gone"
        );
        let read = |name: &str| std::fs::read_to_string(to.join(name)).unwrap();
        assert_eq!(
            (read("beside").as_str(), read("below/file").as_str()),
            ("new", "mounted")
        );
        assert_eq!(to.join("below/link").read_link().unwrap(), Path::new("file"));
        assert_eq!(to.join("beside").metadata().unwrap().modified().unwrap(), long_ago);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn entries_that_stopped_being_links_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let (file, copy) = (folder.path().join("file"), folder.path().join("copy"));
        std::fs::write(&file, "").unwrap();
        link(&file, &copy).unwrap();
        link(&file.join("below"), &copy).unwrap();
        assert!(copy.symlink_metadata().is_err());
    }

    #[test]
    fn links_to_manual_pages_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["vi", "vi.1.gz"] {
            symlink("/usr/share/there", folder.path().join(name)).unwrap();
        }
        let copy = folder.path().join("copy");
        let mut copying = Copying {
            left: SMALL_TREE_BUDGET,
            told: Instant::now(),
            tell: &mut || Ok(()),
        };
        entry(folder.path(), &copy, 1, &mut copying).unwrap();
        let names: Vec<_> = std::fs::read_dir(&copy)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["vi"]);
    }

    #[test]
    fn only_folders_below_var_lib_count_as_small() {
        for elsewhere in ["/home/me/lib", "/var/lib/../spool", "/opt/x"] {
            assert!(!is_small(Path::new(elsewhere)), "{elsewhere}");
        }
    }
}
