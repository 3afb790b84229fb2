//! The host's mounts, as the launcher sees them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use crate::paths;

/// Local file systems with plain files. Sandboxes do not see others (network file systems, file systems of user
/// programs or the kernel): reading them can hang, have side effects or reveal facts about the host.
const LOCAL_FILE_SYSTEMS: [&str; 25] = [
    "aufs", "bcachefs", "btrfs", "cramfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfsplus", "iso9660",
    "jfs", "nilfs2", "ntfs3", "overlay", "ramfs", "reiserfs", "romfs", "squashfs", "tmpfs", "udf", "vfat", "xfs",
    "zfs",
];

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::launcher) struct Mount {
    id: u64,
    parent: u64,
    /// Its mount point on the host.
    pub(in crate::launcher) path: PathBuf,
    /// The type of its file system.
    pub(in crate::launcher) kind: String,
}

/// The visible mounts of the host, parents first. Computed from the mount table only: a file system that is accessed
/// may never answer.
#[derive(Debug, Default)]
pub(in crate::launcher) struct MountTable(Vec<Mount>);

impl MountTable {
    /// Reads this process's mount table.
    ///
    /// # Errors
    /// The error of reading `/proc`.
    pub(in crate::launcher) fn read() -> io::Result<Self> {
        let table = std::fs::read(format!("{}/proc/self/mountinfo", paths::host()))?;
        Ok(Self::parse(&table, Path::new(paths::host())))
    }

    /// `host` is the mount point of the host's root.
    fn parse(table: &[u8], host: &Path) -> Self {
        let lines = table.split(|byte| *byte == b'\n');
        let all: Vec<Mount> = lines.filter_map(|line| Mount::parse(line, host)).collect();
        let root = Path::new("/");
        let stands_on_root = |mount: &Mount| all.iter().any(|other| other.id == mount.parent && other.path == root);
        let mut children: HashMap<u64, Vec<&Mount>> = HashMap::new();
        for mount in all.iter().filter(|mount| mount.parent != mount.id) {
            children.entry(mount.parent).or_default().push(mount);
        }
        let mut visible = Vec::new();
        let mut pending: Vec<&Mount> = all
            .iter()
            .filter(|mount| mount.path == root && !stands_on_root(mount))
            .collect();
        while let Some(mount) = pending.pop() {
            let mut mounted = children.remove(&mount.id).unwrap_or_default();
            // A mount on this mount's root hides it and all other mounts on it.
            if let Some(top) = mounted.iter().find(|child| child.path == mount.path) {
                pending.push(top);
                continue;
            }
            // In sorted order, a folder precedes and hides the mounts below it.
            mounted.sort_by(|one, other| one.path.cmp(&other.path));
            mounted.dedup_by(|child, before| child.path.starts_with(&before.path));
            pending.extend(mounted);
            visible.push(mount.clone());
        }
        visible.sort_by(|one, other| one.path.cmp(&other.path));
        Self(visible)
    }

    /// Returns the mounts strictly below a host path, parents first.
    pub(in crate::launcher) fn below(&self, path: &Path) -> impl Iterator<Item = &Mount> {
        let is_below = move |mount: &&Mount| mount.path != path && mount.path.starts_with(path);
        self.0.iter().filter(is_below)
    }

    /// Returns the mount at a host path.
    pub(in crate::launcher) fn at(&self, path: &Path) -> Option<&Mount> {
        self.0.iter().find(|mount| mount.path == path)
    }
}

impl Mount {
    fn parse(line: &[u8], host: &Path) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
        let (id, parent) = (number()?, number()?);
        let path = PathBuf::from(unescaped(fields.nth(2)?));
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        Some(Self {
            id,
            parent,
            path: Path::new("/").join(path.strip_prefix(host).ok()?),
            kind: String::from_utf8_lossy(kind).into_owned(),
        })
    }

    /// Returns true if sandboxes may see its files.
    pub(in crate::launcher) fn is_local(&self) -> bool {
        LOCAL_FILE_SYSTEMS.contains(&self.kind.as_str())
    }
}

/// Returns the launcher's path of a host path.
pub(in crate::launcher) fn on_host(path: &Path) -> PathBuf {
    let mut seen = OsString::from(paths::host());
    seen.push(path);
    PathBuf::from(seen)
}

/// Decodes a field. The kernel writes blanks, line ends, backslashes and number signs as a backslash with three octal
/// digits.
fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match escaped {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST_TABLE: &[u8] = b"1 1 0:2 / / rw - tmpfs none rw\n\
        22 1 8:1 / /host rw,relatime shared:1 master:2 - ext4 /dev/sda1 rw\n\
        25 22 0:40 / /host/usr/local/a\\040b rw - tmpfs none rw\n\
        24 22 0:41 / /host/usr/lib/wsl/drivers ro - 9p drivers ro\n\
        23 22 8:1 /usr/bin/true /host/usr/bin/yes rw - ext4 /dev/sda1 rw\n\
        26 1 0:42 / /new rw - tmpfs none rw\n\
        27 25 0:43 / /host/usr/local/a\\040b/c rw - fuse.sshfs me@there rw\n";

    fn visible(table: &[u8], below: &str) -> Vec<(String, String)> {
        let table = MountTable::parse(table, Path::new("/host"));
        let told = |mount: &Mount| (mount.path.to_str().unwrap().to_owned(), mount.kind.clone());
        table.below(Path::new(below)).map(told).collect()
    }

    fn paths(table: &[u8], below: &str) -> Vec<String> {
        visible(table, below).into_iter().map(|(path, _)| path).collect()
    }

    #[test]
    fn mounts_below_a_folder_are_found_parents_first() {
        let all = [
            "/usr/bin/yes",
            "/usr/lib/wsl/drivers",
            "/usr/local/a b",
            "/usr/local/a b/c",
        ];
        assert_eq!(paths(TEST_TABLE, "/usr"), all);
        assert_eq!(paths(TEST_TABLE, "/usr/local/a b"), ["/usr/local/a b/c"]);
        assert_eq!(paths(TEST_TABLE, "/usr/lo"), [""; 0]);
        // The launcher's mounts are not the host's.
        assert_eq!(paths(TEST_TABLE, "/"), all);
        let table = MountTable::parse(TEST_TABLE, Path::new("/host"));
        assert!(table.at(Path::new("/usr/bin/yes")).is_some_and(Mount::is_local));
        assert_eq!(table.at(Path::new("/usr/bin")), None);
    }

    #[test]
    fn only_local_file_systems_are_exposed() {
        let table = MountTable::parse(TEST_TABLE, Path::new("/host"));
        let kinds: Vec<_> = table
            .below(Path::new("/usr"))
            .map(|mount| (mount.kind.as_str(), mount.is_local()))
            .collect();
        assert_eq!(
            kinds,
            [("ext4", true), ("9p", false), ("tmpfs", true), ("fuse.sshfs", false)]
        );
    }

    #[test]
    fn hidden_mounts_are_not_listed() {
        // Four cases: below a later mount; below a mount at the same path; two at the same path; all below a new root.
        let hidden = b"22 1 8:1 / /host rw - ext4 a rw\n\
            30 22 0:1 / /host/usr/a/b rw - devpts none rw\n\
            31 22 0:2 / /host/usr/a rw - tmpfs none rw\n\
            32 31 0:3 / /host/usr/a/c rw - tmpfs none rw\n\
            33 22 0:4 / /host/usr/d rw - devpts none rw\n\
            34 33 0:5 / /host/usr/d rw - tmpfs none rw\n\
            35 33 0:6 / /host/usr/d/e rw - devpts none rw\n";
        let told = |path: &str, kind: &str| (path.to_owned(), kind.to_owned());
        assert_eq!(
            visible(hidden, "/usr"),
            [
                told("/usr/a", "tmpfs"),
                told("/usr/a/c", "tmpfs"),
                told("/usr/d", "tmpfs")
            ]
        );
        let mut covered = hidden.to_vec();
        covered.extend(b"40 22 0:9 / /host rw - tmpfs none rw\n41 40 0:10 / /host/usr/x rw - tmpfs none rw\n");
        assert_eq!(paths(&covered, "/"), ["/usr/x"]);
    }

    #[test]
    fn only_the_escapes_of_the_kernel_are_decoded() {
        for (field, path) in [
            (&b"/a\\040b\\011c\\134d"[..], "/a b\tc\\d"),
            (b"/plain", "/plain"),
            (b"/end\\", "/end\\"),
            (b"/end\\04", "/end\\04"),
            (b"/not\\9990", "/not\\9990"),
        ] {
            assert_eq!(unescaped(field), OsString::from(path));
        }
    }
}
