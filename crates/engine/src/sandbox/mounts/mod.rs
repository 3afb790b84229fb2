//! Copy-on-write mounts: the changes of a sandbox in them, and commits of these changes to the host's folders.
//!
//! The sandbox lists its private layer, and the server compares the entries with the host's folder ([`compare`]). A commit
//! is the only way from a sandbox to a file of the host. It takes nothing but bytes, names and types from inside, and
//! checks each against the host ([`conflicts`]).

mod apply;
mod changes;
mod commit;
mod compare;
mod conflicts;
mod select;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sandcell_host_folder::{HostFolder, HostStatus};
use sandcell_sandbox::{Code, CommitRule, Failure, Mount, MountEntry, MountMode, SandboxError, SavedChangeKind};

pub(crate) use changes::Need;

use crate::api::sync::lock;

/// The maximum number of entries of a sandbox whose state after a commit is remembered.
const MAX_COMMITTED: usize = 100_000;

/// The host's folders of copy-on-write mounts.
#[derive(Debug, Default)]
pub(crate) struct MountFolders(Vec<Arc<MountFolder>>);

/// The host's folder of a copy-on-write mount.
#[derive(Debug)]
pub(crate) struct MountFolder {
    /// Its path inside sandboxes.
    inside: String,
    /// Its path on the host, for people.
    host: PathBuf,
    /// Opened when the server starts, so that it is the folder that sandboxes see.
    folder: Result<HostFolder, String>,
    commit: CommitRule,
    /// True if other file systems are mounted below it and the server is an ordinary user's: sandboxes see copies of its
    /// files from the start of the server.
    is_taken_apart: bool,
    /// Held during a commit: one at a time.
    turn: tokio::sync::Mutex<()>,
}

/// A file or folder of a copy-on-write mount that differs from the host's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountChange {
    /// Its absolute path inside the sandbox.
    path: String,
    /// True if the path, or the target of the link, is not UTF-8, so that the text is another notation.
    escaped: bool,
    /// True for a file or folder that was made of one of the host.
    copied: bool,
    /// The path of the topmost folder above that the sandbox has made again, so that it hides the host's entries.
    hidden_by: Option<String>,
    kind: SavedChangeKind,
    /// The entry in the sandbox. None if it was removed.
    now: Option<MountEntry>,
    /// The entry on the host, if code can find it there. None if it is new.
    before: Option<MountEntry>,
}

/// The entries that the commits of one sandbox have left, by their paths inside.
#[derive(Debug, Default)]
pub(crate) struct Committed {
    entries: Mutex<BTreeMap<String, Left>>,
    folders: Mutex<BTreeMap<String, LeftFolder>>,
}

/// An entry after a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Left {
    /// The host's entry. None: it was removed.
    host: Option<HostStatus>,
    /// The sandbox's entry at that time.
    now: Option<MountEntry>,
    /// True if the host had no such entry before.
    created: bool,
}

/// A folder after a commit has changed entries in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LeftFolder {
    /// None for the mounted folder.
    status: Option<HostStatus>,
    modified_ns: i128,
}

impl MountFolder {
    fn takes_commits(&self) -> bool {
        self.commit == CommitRule::Ask && !self.is_taken_apart
    }

    /// Returns the path inside sandboxes of an entry below the folder.
    fn path_inside(&self, path: &str) -> String {
        format!("{}/{path}", self.inside)
    }
}

impl MountFolders {
    /// Opens the folders of all copy-on-write mounts.
    pub(crate) fn open(mounts: &[Mount]) -> Self {
        let folders = mounts.iter().filter(|mount| mount.mode == MountMode::Cow).map(|mount| {
            Arc::new(MountFolder {
                inside: mount.sandbox.clone(),
                host: mount.host.clone(),
                folder: HostFolder::open(&mount.host).map_err(|error| error.to_string()),
                commit: mount.commit,
                is_taken_apart: !am_root() && has_mounts_below(&mount.host),
                turn: tokio::sync::Mutex::default(),
            })
        });
        Self(folders.collect())
    }

    /// Returns the folder of a path inside, and the path below it.
    fn find<'p>(&self, path: &'p str) -> Option<(&Arc<MountFolder>, &'p str)> {
        self.0.iter().find_map(|folder| {
            let rest = path.strip_prefix(folder.inside.as_str())?.strip_prefix('/')?;
            Some((folder, rest))
        })
    }

    /// Returns the folders that take commits.
    fn with_commits(&self) -> Vec<Arc<MountFolder>> {
        let allowed = self.0.iter().filter(|folder| folder.takes_commits());
        allowed.cloned().collect()
    }
}

impl Committed {
    /// Returns true if the host's entry is the one that a commit has left.
    fn has_left(&self, path: &str, entry: Option<&HostStatus>) -> bool {
        let is_entry = lock(&self.entries)
            .get(path)
            .is_some_and(|left| left.host.as_ref() == entry);
        is_entry
            || lock(&self.folders)
                .get(path)
                .is_some_and(|left| left.status.is_some() && left.status.as_ref() == entry)
    }

    /// Returns true if a commit has applied this state of the sandbox's entry. Later changes of the host are its own.
    fn has_applied(&self, change: &MountChange) -> bool {
        lock(&self.entries)
            .get(&change.path)
            .is_some_and(|left| left.now == change.now)
    }

    /// Returns true if a commit has applied this folder or one below it on the way to the path, or entries in them.
    fn has_applied_from(&self, folder: &str, path: &str) -> bool {
        let (entries, folders) = (lock(&self.entries), lock(&self.folders));
        path.match_indices('/').any(|(end, _)| {
            let above = path.get(..end).unwrap_or_default();
            above.len() >= folder.len()
                && (entries.get(above).is_some_and(|left| left.host.is_some()) || folders.contains_key(above))
        })
    }

    /// Returns true if a commit was the last change of a folder.
    fn has_left_folder(&self, path: &str, modified_ns: Option<i128>) -> bool {
        lock(&self.folders)
            .get(path)
            .is_some_and(|left| Some(left.modified_ns) == modified_ns)
    }

    /// Returns the paths of the entries that commits have made where the host had none. If the sandbox removes one of
    /// them, the kernel leaves no mark.
    fn made(&self) -> Vec<String> {
        let entries = lock(&self.entries);
        let made = entries.iter().filter(|(_, left)| left.created && left.now.is_some());
        made.map(|(path, _)| path.clone()).collect()
    }

    fn set(&self, change: &MountChange, host: Option<HostStatus>, creates: bool) {
        let mut entries = lock(&self.entries);
        let was_created = entries
            .get(&change.path)
            .is_some_and(|left| left.created && left.host.is_some());
        let left = Left {
            created: host.is_some() && (creates || was_created),
            host,
            now: change.now.clone(),
        };
        insert(&mut entries, &change.path, left);
    }

    /// Remembers a folder in which entries were changed.
    fn set_folder(&self, path: &str, status: Option<HostStatus>, modified_ns: i128) {
        insert(&mut lock(&self.folders), path, LeftFolder { status, modified_ns });
    }
}

fn insert<T>(all: &mut BTreeMap<String, T>, path: &str, value: T) {
    if all.len() < MAX_COMMITTED || all.contains_key(path) {
        all.insert(path.to_owned(), value);
    }
}

/// Returns true if another file system is mounted below a folder, or if that is not known.
fn has_mounts_below(folder: &Path) -> bool {
    match (folder.canonicalize(), std::fs::read_to_string("/proc/self/mountinfo")) {
        (Ok(folder), Ok(table)) => names_mount_below(&table, &folder.to_string_lossy()),
        _ => true,
    }
}

/// Searches a table of mounts in the form of `/proc/PID/mountinfo`.
fn names_mount_below(table: &str, folder: &str) -> bool {
    // The kernel writes these characters as octal numbers. The backslash comes first.
    let written = [('\\', "\\134"), (' ', "\\040"), ('\t', "\\011"), ('\n', "\\012")];
    let folder = written
        .iter()
        .fold(folder.trim_end_matches('/').to_owned(), |text, (character, number)| {
            text.replace(*character, number)
        });
    let is_below = |point: &str| {
        point
            .strip_prefix(&folder)
            .is_some_and(|rest| rest.starts_with('/') && rest != "/")
    };
    table.lines().filter_map(|line| line.split(' ').nth(4)).any(is_below)
}

#[cfg(target_os = "linux")]
fn am_root() -> bool {
    use std::os::linux::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.st_uid() == 0)
}

#[cfg(not(target_os = "linux"))]
const fn am_root() -> bool {
    false
}

/// Returns true if sandboxes can change one of these mounts.
fn has_copy_on_write(mounts: &[Mount]) -> bool {
    mounts.iter().any(|mount| mount.mode == MountMode::Cow)
}

fn no_mounts() -> Failure {
    Failure::new(
        Code::NotFound,
        "no folder of the host is mounted copy-on-write, so there are no changes to compare",
        "name a checkpoint with `since`, or let the operator mount a folder: --mount HOST:SANDBOX:cow",
    )
}

impl MountChange {
    /// Returns the size of the file in the sandbox.
    fn bytes(&self) -> u64 {
        self.now.as_ref().map_or(0, |entry| entry.bytes)
    }

    /// Returns the size of the host's file.
    fn bytes_before(&self) -> u64 {
        self.before.as_ref().map_or(0, |entry| entry.bytes)
    }
}

fn unsupported() -> Failure {
    SandboxError::Unsupported("comparing copy-on-write mounts with the host's folders".to_owned()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_below_a_folder_are_found_by_their_written_names() {
        let table = "22 1 0:21 / / rw - ext4 x rw\n23 22 0:5 / /p/data rw - tmpfs t rw\n24 22 0:6 / /a\\040b\\134/c rw - tmpfs t rw\n";
        for (folder, below) in [
            ("/p", true),
            ("/p/", true),
            ("/p/data", false),
            ("/p/dat", false),
            ("/a b\\", true),
            ("/a", false),
            ("/", true),
        ] {
            assert_eq!(names_mount_below(table, folder), below, "{folder}");
        }
        assert!(has_mounts_below(Path::new("/no/such/folder")), "unknown");
    }
}
