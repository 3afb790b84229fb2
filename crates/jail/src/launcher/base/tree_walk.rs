//! Counts and removes a folder that hostile code has filled.
//!
//! Folders are opened one below another, without following links. The depth is bounded: deeper folders are first moved
//! up.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, chmod, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::paths;

/// The maximum number of nested folders that are open at a time.
const MAX_OPEN_DEPTH: usize = 256;
/// The maximum number of entries that one removal handles.
const MAX_REMOVED_ENTRIES: u64 = 10_000_000;

/// The usage of private files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::launcher) struct TreeUsage {
    pub(in crate::launcher) bytes: u64,
    pub(in crate::launcher) inodes: u64,
}

fn open_folder(parent: BorrowedFd<'_>, name: &CString) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(parent, name, flags, Mode::empty()) {
        // The folder was made without permissions. This process is its owner or root.
        Err(Errno::ACCESS) => {
            make_accessible(parent, name)?;
            openat(parent, name, flags, Mode::empty())
        }
        other => other,
    }
}

/// Restores a folder's permissions. Uses a descriptor, since its name may meanwhile refer to another file.
fn make_accessible(parent: BorrowedFd<'_>, name: &CString) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(parent, name, flags, Mode::empty())?;
    let path = format!("{}/proc/self/fd/{}", paths::host(), folder.as_raw_fd());
    chmod(path, Mode::from_raw_mode(0o700))
}

fn names(folder: BorrowedFd<'_>) -> Vec<(CString, FileType)> {
    let Ok(entries) = Dir::read_from(folder) else {
        return Vec::new();
    };
    entries
        .flatten()
        .map(|entry| (entry.file_name().to_owned(), entry.file_type()))
        .filter(|(name, _)| !matches!(name.to_bytes(), b"." | b".."))
        .collect()
}

/// Counts the files below a folder, until there are more than `max_inodes`. Nesting deeper than [`MAX_OPEN_DEPTH`]
/// counts as too much: ordinary programs do not do that, and the count would take too long.
pub(in crate::launcher) fn count(path: &str, max_inodes: u64) -> TreeUsage {
    let mut used = TreeUsage::default();
    let mut seen = BTreeSet::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(top) = openat(CWD, path, flags, Mode::empty()) else {
        return used;
    };
    let mut stack = vec![top];
    let mut pending: Vec<(usize, CString)> = Vec::new();
    while let Some(folder) = stack.last() {
        let level = stack.len();
        for (name, kind) in names(folder.as_fd()) {
            let Ok(status) = statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            used.inodes += 1;
            // A file with several names counts once.
            if status.st_nlink < 2 || kind == FileType::Directory || seen.insert(status.st_ino) {
                used.bytes += u64::try_from(status.st_blocks).unwrap_or(0) * 512;
            }
            if FileType::from_raw_mode(status.st_mode) == FileType::Directory {
                pending.push((level, name));
            }
        }
        if used.inodes > max_inodes || level > MAX_OPEN_DEPTH {
            used.inodes = used.inodes.max(max_inodes.saturating_add(1));
            return used;
        }
        loop {
            let Some((level, name)) = pending.pop() else {
                return used;
            };
            stack.truncate(level);
            let Some(parent) = stack.last() else { return used };
            if let Ok(folder) = open_folder(parent.as_fd(), &name) {
                stack.push(folder);
                break;
            }
        }
    }
    used
}

/// The deleted files that processes still hold.
#[derive(Debug, Default)]
pub(in crate::launcher) struct DeletedFiles {
    used: TreeUsage,
    /// Processes whose descriptors are unreadable.
    pub(in crate::launcher) hidden: BTreeSet<i32>,
}

impl TreeUsage {
    pub(in crate::launcher) fn plus(self, deleted: &DeletedFiles) -> Self {
        Self {
            bytes: self.bytes.saturating_add(deleted.used.bytes),
            inodes: self.inodes.saturating_add(deleted.used.inodes),
        }
    }
}

/// Counts deleted files of a folder that are still open or mapped in one of these processes. A file that is only mapped
/// may have any size and cannot be read, so it counts as too much. Ordinary programs keep a mapped file open as well.
pub(in crate::launcher) fn deleted(folder: &str, processes: &[Pid]) -> DeletedFiles {
    let mut found = DeletedFiles::default();
    let mut seen = BTreeSet::new();
    for pid in processes {
        let proc = format!("{}/proc/{}", paths::host(), pid.as_raw_nonzero());
        let entries = match std::fs::read_dir(format!("{proc}/fd")) {
            Ok(entries) => entries,
            Err(error) => {
                if error.kind() == std::io::ErrorKind::PermissionDenied {
                    found.hidden.insert(pid.as_raw_nonzero().get());
                }
                continue;
            }
        };
        for entry in entries.flatten() {
            let Ok(status) = rustix::fs::stat(entry.path()) else {
                continue;
            };
            let regular = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
            if regular && status.st_nlink == 0 && seen.insert(status.st_ino) {
                found.used.bytes += u64::try_from(status.st_blocks).unwrap_or(0) * 512;
                found.used.inodes += 1;
            }
        }
    }
    for pid in processes {
        let maps = format!("{}/proc/{}/maps", paths::host(), pid.as_raw_nonzero());
        let maps = std::fs::read_to_string(maps).unwrap_or_default();
        if mapped_deleted(&maps, folder).any(|inode| !seen.contains(&inode)) {
            found.used.bytes = u64::MAX;
        }
    }
    found
}

/// Returns the inodes of a folder's deleted files that a process maps.
fn mapped_deleted<'a>(maps: &'a str, folder: &'a str) -> impl Iterator<Item = u64> + 'a {
    maps.lines().filter_map(move |line| {
        // address, permissions, offset, device, inode, path
        let mut fields = line.split_whitespace();
        let inode = fields.nth(4)?.parse().ok()?;
        (fields.next()?.starts_with(folder) && line.ends_with(" (deleted)")).then_some(inode)
    })
}

/// Removes a folder and its content. No process runs in it any more.
pub(in crate::launcher) fn remove(path: &str) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(top) = openat(CWD, path, flags, Mode::empty()) else {
        return;
    };
    let mut taken = 0;
    // Folders that are nested too deep are moved to the top and removed in the next round.
    for _ in 0..1024 {
        let mut moved = 0;
        empty(top.as_fd(), top.as_fd(), 0, &mut taken, &mut moved);
        if moved == 0 {
            break;
        }
    }
    let _ = rustix::fs::rmdir(path);
}

fn empty(top: BorrowedFd<'_>, folder: BorrowedFd<'_>, depth: usize, taken: &mut u64, moved: &mut u64) {
    for (name, _) in names(folder) {
        *taken += 1;
        if *taken > MAX_REMOVED_ENTRIES {
            return;
        }
        match unlinkat(folder, &name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => {}
            _ => continue,
        }
        if unlinkat(folder, &name, AtFlags::REMOVEDIR).is_ok() {
            continue;
        }
        if depth >= MAX_OPEN_DEPTH {
            *moved += 1;
            let _ = make_accessible(folder, &name);
            let _ = renameat(folder, &name, top, format!("deep-{taken}"));
            continue;
        }
        if let Ok(inner) = open_folder(folder, &name) {
            // A folder without write permission cannot be emptied.
            let _ = rustix::fs::fchmod(&inner, Mode::from_raw_mode(0o700));
            empty(top, inner.as_fd(), depth + 1, taken, moved);
            let _ = unlinkat(folder, &name, AtFlags::REMOVEDIR);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestFolder(std::path::PathBuf);

    impl TestFolder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("jail-folder-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn text(&self) -> &str {
            self.0.to_str().unwrap()
        }
    }

    impl Drop for TestFolder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn too_deep_nesting_counts_as_over_the_limit_and_is_still_removed() {
        let place = TestFolder::new("deep");
        let mut at = openat(CWD, place.text(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..1000 {
            rustix::fs::mkdirat(&at, "d", Mode::from_raw_mode(0o700)).unwrap();
            at = openat(&at, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        drop(at);
        assert!(count(place.text(), 50_000).inodes > 50_000);
        remove(place.text());
        assert!(!place.0.exists());
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let (place, other) = (TestFolder::new("links"), TestFolder::new("other"));
        std::fs::write(other.0.join("kept"), "x").unwrap();
        std::os::unix::fs::symlink(&other.0, place.0.join("link")).unwrap();
        remove(place.text());
        assert!(!place.0.exists() && other.0.join("kept").exists());
    }

    #[test]
    fn folders_without_permissions_are_removed() {
        use std::os::unix::fs::PermissionsExt;
        let place = TestFolder::new("closed");
        let inner = place.0.join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o000)).unwrap();
        std::fs::set_permissions(place.0.join("a"), std::fs::Permissions::from_mode(0o000)).unwrap();
        remove(place.text());
        assert!(!place.0.exists());
    }

    #[test]
    fn bytes_and_files_are_counted_once() {
        let place = TestFolder::new("count");
        std::fs::write(place.0.join("a"), vec![1; 100_000]).unwrap();
        std::fs::hard_link(place.0.join("a"), place.0.join("b")).unwrap();
        let used = count(place.text(), 100);
        assert_eq!(used.inodes, 2);
        assert!((100_000..200_000).contains(&used.bytes), "{used:?}");
    }

    #[test]
    fn deleted_files_count_while_a_process_has_them_open() {
        let place = TestFolder::new("deleted");
        let path = place.0.join("a");
        std::fs::write(&path, vec![1; 100_000]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let me = [rustix::process::getpid()];
        let here = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert_eq!(std::fs::metadata(here).unwrap().len(), 100_000);
        // In a test there is no launcher root, so processes are at the host's paths.
        paths::host_is_as_it_is();
        assert!(deleted(place.text(), &me).used.bytes >= 100_000);
        drop(file);
        assert!(deleted(place.text(), &me).used.bytes < 100_000);
    }

    #[test]
    fn deleted_files_are_found_by_their_mappings() {
        let maps = "7f00-8f00 rw-s 00000000 08:01 5 /tmp/x/home/a (deleted)\n\
                    1000-2000 r--p 00000000 08:01 6 /tmp/x/home/b (deleted)\n\
                    3000-4000 rw-s 00000000 00:01 7 /dev/zero (deleted)\n\
                    5000-6000 r--p 00000000 08:01 8 /tmp/x/home/c\n";
        assert_eq!(mapped_deleted(maps, "/tmp/x/").collect::<Vec<_>>(), [5, 6]);
    }
}
