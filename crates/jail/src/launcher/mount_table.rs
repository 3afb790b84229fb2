//! What is mounted where on the host, as the launcher sees it.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::plan::place;

/// File systems that keep their files on this machine and are nothing but files. Others (of the network, of a program of
/// some user, of the kernel) are not shown in sandboxes: reading them can hang, have effects or tell about the host.
const ORDINARY: [&str; 24] = [
    "aufs", "bcachefs", "btrfs", "cramfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfsplus", "iso9660",
    "jfs", "nilfs2", "ntfs3", "overlay", "ramfs", "reiserfs", "romfs", "squashfs", "tmpfs", "udf", "vfat", "xfs",
];
const ZFS: &str = "zfs";

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    id: u64,
    /// Its mount point on the host.
    pub(super) path: PathBuf,
    /// The type of its file system.
    pub(super) kind: String,
}

/// The mounts of the host, parents first.
#[derive(Debug)]
pub(super) struct MountTable(Vec<Mount>);

impl MountTable {
    /// Reads this process' own table.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn read() -> io::Result<Self> {
        let table = std::fs::read(format!("{}/proc/self/mountinfo", place::host()))?;
        Ok(Self::parse(&table, place::host()))
    }

    /// `host` is where the host's root is mounted.
    fn parse(table: &[u8], host: &str) -> Self {
        let mut mounts: Vec<Mount> = table
            .split(|byte| *byte == b'\n')
            .filter_map(|line| Mount::parse(line, Path::new(host)))
            .collect();
        mounts.sort_by(|one, other| one.path.cmp(&other.path));
        Self(mounts)
    }

    /// The mounts strictly below a path of the host, parents first.
    pub(super) fn below(&self, path: &Path) -> impl Iterator<Item = &Mount> {
        self.0
            .iter()
            .filter(move |mount| mount.path != path && mount.path.starts_with(path))
    }

    /// The mounts at a path of the host.
    pub(super) fn at(&self, path: &Path) -> impl Iterator<Item = &Mount> {
        self.0.iter().filter(move |mount| mount.path == path)
    }
}

impl Mount {
    fn parse(line: &[u8], host: &Path) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let path = PathBuf::from(unescaped(fields.nth(3)?));
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        Some(Self {
            id,
            path: Path::new("/").join(path.strip_prefix(host).ok()?),
            kind: String::from_utf8_lossy(kind).into_owned(),
        })
    }

    /// Whether it may be shown in sandboxes.
    pub(super) fn is_ordinary(&self) -> bool {
        ORDINARY.contains(&self.kind.as_str()) || self.kind == ZFS
    }

    /// Whether it is what the host sees at this place, and not hidden by a later mount. Only for ordinary file systems: others
    /// may never answer. A kernel that does not number mounts in answers (before 5.8) says yes.
    pub(super) fn is_visible(&self) -> bool {
        let flags = AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
        statx(CWD, on_host(&self.path), flags, StatxFlags::MNT_ID).is_ok_and(|found| {
            let numbered = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID);
            !numbered || found.stx_mnt_id == self.id
        })
    }
}

/// A path of the host, as the launcher sees it.
pub(super) fn on_host(path: &Path) -> PathBuf {
    let mut seen = OsString::from(place::host());
    seen.push(path);
    PathBuf::from(seen)
}

/// The kernel writes blanks, line ends, backslashes and number signs as a backslash with three octal digits.
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

/// A path in words, for reports.
pub(super) fn shown(path: &Path) -> String {
    String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 8:1 / /host rw,relatime shared:1 master:2 - ext4 /dev/sda1 rw\n\
        25 22 0:40 / /host/usr/local/a\\040b rw - tmpfs none rw\n\
        24 22 0:41 / /host/usr/lib/wsl/drivers ro - 9p drivers ro\n\
        23 22 8:1 /usr/bin/true /host/usr/bin/yes rw - ext4 /dev/sda1 rw\n\
        26 1 0:42 / /new rw - tmpfs none rw\n\
        27 25 0:43 / /host/usr/local/a\\040b/c rw - fuse.sshfs me@there rw\n";

    fn paths<'a>(found: impl Iterator<Item = &'a Mount>) -> Vec<String> {
        found.map(|mount| shown(&mount.path)).collect()
    }

    #[test]
    fn mounts_below_a_folder_are_found_parents_first() {
        let table = MountTable::parse(TABLE, "/host");
        assert_eq!(
            paths(table.below(Path::new("/usr"))),
            [
                "/usr/bin/yes",
                "/usr/lib/wsl/drivers",
                "/usr/local/a b",
                "/usr/local/a b/c"
            ]
        );
        assert_eq!(paths(table.below(Path::new("/usr/local/a b"))), ["/usr/local/a b/c"]);
        assert_eq!(paths(table.below(Path::new("/usr/lo"))), [""; 0]);
        assert_eq!(paths(table.at(Path::new("/usr/bin/yes"))), ["/usr/bin/yes"]);
        // What is the launcher's own is not the host's.
        assert_eq!(paths(table.below(Path::new("/"))).len(), 4);
    }

    #[test]
    fn only_local_file_systems_are_ordinary() {
        let table = MountTable::parse(TABLE, "/host");
        let kinds: Vec<_> = table
            .below(Path::new("/usr"))
            .map(|mount| (mount.kind.as_str(), mount.is_ordinary()))
            .collect();
        assert_eq!(
            kinds,
            [("ext4", true), ("9p", false), ("tmpfs", true), ("fuse.sshfs", false)]
        );
    }

    #[test]
    fn escapes_of_the_kernel_are_undone_and_nothing_else() {
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
