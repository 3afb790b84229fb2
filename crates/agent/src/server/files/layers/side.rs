//! A layer: a folder, and the entries below it. No link is followed.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, OFlags, Stat, fgetxattr, fstat, readlinkat};
use rustix::io::Errno;
use sandcell_sandbox::{MountEntry, MountEntryKind};

use super::super::names;
use super::super::open::beneath;
use super::kind_of;

/// The attribute of an opaque folder, and its value.
const OPAQUE_ATTRIBUTE: &str = "user.overlay.opaque";
const IS_OPAQUE: u8 = b'y';

/// The attribute of a file that was copied from the host's one.
const ORIGIN_ATTRIBUTE: &str = "user.overlay.origin";
const MAX_ORIGIN_BYTES: usize = 256;

/// The permission bits of a mode.
const PERMISSION_BITS: u32 = 0o7777;

pub(super) struct Side(OwnedFd);

/// An entry, opened for inspection only.
pub(super) struct Entry {
    status: Stat,
    target: Option<String>,
    /// True if the target of a link is not UTF-8.
    escaped: bool,
}

impl Side {
    pub(super) const fn new(folder: OwnedFd) -> Self {
        Self(folder)
    }

    fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        beneath(&self.0, if path.is_empty() { b"." } else { path }, flags)
    }

    pub(super) fn folder(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK)
    }

    pub(super) fn file(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let file = self.open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        match FileType::from_raw_mode(fstat(&file)?.st_mode) {
            FileType::RegularFile => Ok(file),
            _ => Err(Errno::INVAL),
        }
    }

    /// Describes an entry. None: there is none of this name.
    pub(super) fn entry(&self, path: &[u8]) -> Result<Option<Entry>, Errno> {
        let entry = match self.open(path, OFlags::PATH) {
            Ok(entry) => entry,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(error),
        };
        let status = fstat(&entry)?;
        let (mut target, mut escaped) = (None, false);
        if FileType::from_raw_mode(status.st_mode) == FileType::Symlink {
            let bytes = readlinkat(&entry, "", Vec::new())?;
            let text = names::to_text(bytes.as_bytes());
            escaped = text.as_bytes() != bytes.as_bytes();
            target = Some(text);
        }
        Ok(Some(Entry {
            status,
            target,
            escaped,
        }))
    }

    /// Returns true if a file or folder was copied from the host's one before its first change.
    pub(super) fn is_copied(&self, path: &[u8], kind: MountEntryKind) -> bool {
        let mut value = [0; MAX_ORIGIN_BYTES];
        let entry = match kind {
            MountEntryKind::File => self.file(path),
            MountEntryKind::Folder => self.folder(path),
            MountEntryKind::Link | MountEntryKind::Fifo | MountEntryKind::Socket | MountEntryKind::Device => {
                return false;
            }
        };
        let read = entry.and_then(|entry| fgetxattr(entry, ORIGIN_ATTRIBUTE, &mut value));
        matches!(read, Ok(_) | Err(Errno::RANGE))
    }

    /// Returns true if a folder hides the host's one.
    pub(super) fn is_opaque(&self, path: &[u8]) -> bool {
        let mut value = [0; 8];
        let read = self
            .folder(path)
            .and_then(|folder| fgetxattr(folder, OPAQUE_ATTRIBUTE, &mut value));
        read.is_ok_and(|length| value.get(..length) == Some(&[IS_OPAQUE][..]))
    }
}

impl Entry {
    pub(super) fn kind(&self) -> MountEntryKind {
        kind_of(self.status.st_mode)
    }

    /// Returns true for the sign of a removed entry.
    pub(super) fn is_whiteout(&self) -> bool {
        FileType::from_raw_mode(self.status.st_mode) == FileType::CharacterDevice && self.status.st_rdev == 0
    }

    /// Returns true if the target of a link is not UTF-8.
    pub(super) const fn is_escaped(&self) -> bool {
        self.escaped
    }

    pub(super) fn describe(&self) -> MountEntry {
        let kind = self.kind();
        MountEntry {
            kind,
            bytes: match kind {
                MountEntryKind::File => u64::try_from(self.status.st_size).unwrap_or(0),
                _ => 0,
            },
            mode: self.status.st_mode & PERMISSION_BITS,
            modified_ns: modified(&self.status),
            target: self.target.clone(),
        }
    }
}

/// Returns the time of modification. The types of these fields differ between architectures.
#[allow(
    clippy::useless_conversion,
    clippy::unnecessary_fallible_conversions,
    reason = "the fields' types differ between architectures"
)]
fn modified(status: &Stat) -> i64 {
    let seconds = i64::try_from(status.st_mtime).unwrap_or(0);
    let nanoseconds = i64::try_from(status.st_mtime_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}
