//! The place of an entry: its folder, opened, and its name there.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid, chownat, fstat, openat2, readlinkat,
    renameat, renameat_with,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::{HostError, HostKind, HostStatus};

/// The permission bits of a mode.
const PERMISSION_BITS: u32 = 0o7777;
/// The rights to read an entry, and to search a folder.
pub(crate) const READ_RIGHT: u32 = 0o4;
pub(crate) const SEARCH_RIGHT: u32 = 0o1;
/// The maximum number of repetitions of `openat2`, which fails when the tree changes at the same time.
const MAX_OPEN_ATTEMPTS: usize = 16;
/// The rules of every path.
const RESOLVE_FLAGS: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// The beginning of temporary names. A crash can leave such a file behind.
const TEMPORARY_PREFIX: &str = ".sandcell-commit-";

/// The folder of an entry, opened, and the entry's name in it.
pub(crate) struct Place {
    pub(crate) folder: OwnedFd,
    pub(crate) name: String,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Place({})", self.name)
    }
}

/// Returns the state of an entry.
pub(crate) fn status_at(place: &Place) -> Result<Option<HostStatus>, HostError> {
    let entry = match within(&place.folder, &place.name, OFlags::PATH | OFlags::NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(None),
        entry => entry.map_err(failed)?,
    };
    let status = fstat(&entry).map_err(failed)?;
    let target = match FileType::from_raw_mode(status.st_mode) {
        FileType::Symlink => Some(readlinkat(&entry, "", Vec::new()).map_err(failed)?.into_bytes()),
        _ => None,
    };
    Ok(Some(of_stat(&status, target)))
}

pub(crate) fn of_stat(status: &Stat, target: Option<Vec<u8>>) -> HostStatus {
    HostStatus {
        kind: match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => HostKind::File,
            FileType::Directory => HostKind::Folder,
            FileType::Symlink => HostKind::Link,
            _ => HostKind::Other,
        },
        target,
        bytes: u64::try_from(status.st_size).unwrap_or(0),
        mode: status.st_mode & PERMISSION_BITS,
        modified_ns: modified(status),
        changed_ns: nanoseconds(i128::from(status.st_ctime), i128::from(status.st_ctime_nsec)),
        identity: (status.st_dev, status.st_ino, status.st_uid, status.st_gid),
    }
}

/// Returns true if this user with this group, and without privileges, has these rights to an entry.
pub(crate) fn may(status: &HostStatus, rights: u32, code: (u32, u32)) -> bool {
    let (_, _, user, group) = status.identity;
    let shift = if user == code.0 {
        6
    } else if group == code.1 {
        3
    } else {
        0
    };
    (status.mode >> shift) & rights == rights
}

/// Fails if the host's entry is not the expected one. The times of a folder may differ: they change with its entries.
pub(crate) fn check(place: &Place, expected: Option<&HostStatus>) -> Result<(), HostError> {
    let found = status_at(place)?;
    let is_same = match (&found, expected) {
        (Some(found), Some(expected)) if expected.kind == HostKind::Folder => {
            (found.kind, found.identity) == (expected.kind, expected.identity)
        }
        (found, expected) => found.as_ref() == expected,
    };
    match is_same {
        true => Ok(()),
        false => Err(HostError::Changed),
    }
}

/// Gives an entry with a temporary name its own name, if the host's entry of that name is the expected one.
pub(crate) fn put(place: &Place, temporary: &str, replaces: Option<&HostStatus>) -> Result<(), HostError> {
    check(place, replaces)?;
    let (folder, name) = (&place.folder, place.name.as_str());
    match replaces {
        Some(_) => renameat(folder, temporary, folder, name).map_err(failed),
        None => match renameat_with(folder, temporary, folder, name, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => Err(HostError::Changed),
            // Some file systems do not have this flag. The check above is then the only one.
            Err(Errno::INVAL) => renameat(folder, temporary, folder, name).map_err(failed),
            moved => moved.map_err(failed),
        },
    }
}

/// Gives a new entry, opened, the owner of its folder. An ordinary user's entries already are its own.
pub(crate) fn give(entry: &OwnedFd, above: &Stat) -> Result<(), HostError> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(above.st_uid), Gid::from_raw(above.st_gid));
    chownat(entry, "", Some(user), Some(group), AtFlags::EMPTY_PATH).map_err(|_| HostError::Owner)
}

pub(crate) fn within(folder: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    retry(|| openat2(&folder, path, flags | OFlags::CLOEXEC, Mode::empty(), RESOLVE_FLAGS))
}

pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..MAX_OPEN_ATTEMPTS {
        match call() {
            Err(Errno::INTR | Errno::AGAIN) => {}
            result => return result,
        }
    }
    call()
}

pub(crate) fn modified(status: &Stat) -> i128 {
    nanoseconds(i128::from(status.st_mtime), i128::from(status.st_mtime_nsec))
}

const fn nanoseconds(seconds: i128, nanoseconds: i128) -> i128 {
    seconds * 1_000_000_000 + nanoseconds
}

pub(crate) fn failed(error: Errno) -> HostError {
    match error {
        Errno::LOOP => HostError::Link,
        Errno::XDEV => HostError::OtherFileSystem,
        Errno::EXIST | Errno::NOENT | Errno::NOTDIR | Errno::ISDIR => HostError::Changed,
        Errno::NOTEMPTY => HostError::NotEmpty,
        Errno::ACCESS | Errno::PERM => HostError::Denied,
        Errno::ROFS => HostError::ReadOnly,
        Errno::NOSPC | Errno::DQUOT => HostError::DiskFull,
        Errno::FBIG => HostError::TooLarge,
        Errno::NAMETOOLONG => HostError::NameTooLong,
        error => HostError::Other(std::io::Error::from(error).to_string()),
    }
}

/// Returns a name that no other entry has.
pub(crate) fn temporary_name() -> Result<String, HostError> {
    let number = getrandom::u64().map_err(|error| HostError::Other(error.to_string()))?;
    Ok(format!("{TEMPORARY_PREFIX}{number:016x}"))
}
