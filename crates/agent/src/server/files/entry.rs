//! Operations on one entry of a folder: describing, making a folder, renaming.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, OFlags, Stat, fstat, readlinkat, renameat, statat};
use rustix::io::Errno;
use sandcell_sandbox::{Entry, EntryKind};

use super::open::{Root, refuse_pseudo};
use super::{errors, names, write};
use crate::protocol::{EmptyReply, ErrorCode, MakeFolderReply, WireError};

/// The permission bits of a mode.
const PERMISSION_BITS: u32 = 0o7777;

/// Describes the entry at a path.
pub(in crate::server) fn entry(root: &Root, path: &str) -> Result<Entry, WireError> {
    let file = root
        .resolve(path, OFlags::PATH | OFlags::NOFOLLOW)
        .map_err(errors::of_file)?;
    refuse_pseudo(&file)?;
    let status = fstat(&file).map_err(errors::of_file)?;
    let kind = FileType::from_raw_mode(status.st_mode);
    let target = if kind == FileType::Symlink { target(&file) } else { None };
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let name = if name.is_empty() { "/" } else { name };
    Ok(Entry {
        name: name.to_owned(),
        ..describe(b"", kind, target, &status)
    })
}

/// Makes a folder and its missing parents.
pub(in crate::server) fn make_folder(root: &Root, path: &str) -> Result<MakeFolderReply, WireError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let made = match root.resolve(path, flags) {
        Ok(_) => false,
        Err(Errno::NOENT) => write::make_folder(root, path).map(|_| true)?,
        Err(Errno::NOTDIR) if root.resolve(path, OFlags::PATH).is_ok() => {
            return Err(errors::of_file(Errno::EXIST));
        }
        Err(error) => return Err(errors::of_file(error)),
    };
    Ok(MakeFolderReply { made })
}

/// Gives an entry another path.
pub(in crate::server) fn rename(root: &Root, path: &str, to: &str) -> Result<EmptyReply, WireError> {
    let (old_folder, old_name) = existing(root, path)?;
    let (new_folder, new_name) = parent(root, to)?;
    renameat(&old_folder, old_name.as_slice(), &new_folder, new_name).map_err(|error| match error {
        // The target is a folder that has entries.
        Errno::NOTEMPTY => errors::of_file(Errno::EXIST),
        error => errors::of_file(error),
    })?;
    Ok(EmptyReply {})
}

/// Returns the folder of an existing entry, and the entry's name in it. The entry itself is not followed.
pub(super) fn existing(root: &Root, path: &str) -> Result<(OwnedFd, Vec<u8>), WireError> {
    let (folder, name) = parent(root, path)?;
    let find = |name: &[u8]| statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW);
    match find(name.as_bytes()) {
        Ok(_) => Ok((folder, name.as_bytes().to_vec())),
        Err(Errno::NOENT) => match names::from_text(name).filter(|name| find(name).is_ok()) {
            Some(name) => Ok((folder, name)),
            None => Err(errors::of_file(Errno::NOENT)),
        },
        Err(error) => Err(errors::of_file(error)),
    }
}

/// Returns the folder of a path, and the path's last name.
fn parent<'p>(root: &Root, path: &'p str) -> Result<(OwnedFd, &'p str), WireError> {
    let (folder, name) = split(path).ok_or_else(|| WireError::new(ErrorCode::Denied, "it is the root folder"))?;
    let folder = root
        .resolve(folder, OFlags::PATH | OFlags::DIRECTORY)
        .map_err(errors::of_file)?;
    refuse_pseudo(&folder)?;
    Ok((folder, name))
}

/// Splits a path into its folder and its last name. None if it has no last name, such as `/`.
fn split(path: &str) -> Option<(&str, &str)> {
    let path = path.trim_end_matches('/');
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    (!matches!(name, "" | "." | "..")).then_some((folder, name))
}

/// Returns the target of an opened link.
pub(super) fn target(link: impl AsFd) -> Option<String> {
    let target = readlinkat(link, "", Vec::new()).ok()?;
    Some(names::to_text(target.to_bytes()))
}

/// Describes an entry by its status.
pub(super) fn describe(name: &[u8], kind: FileType, target: Option<String>, status: &Stat) -> Entry {
    Entry {
        name: names::to_text(name),
        target,
        kind: match kind {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Folder,
            FileType::Symlink => EntryKind::Link,
            _ => EntryKind::Other,
        },
        size: u64::try_from(status.st_size).unwrap_or(0),
        modified_ms: milliseconds(status),
        mode: status.st_mode & PERMISSION_BITS,
        user: status.st_uid,
        group: status.st_gid,
    }
}

/// Returns the time of modification. The types of these fields differ between architectures.
#[allow(
    clippy::useless_conversion,
    clippy::unnecessary_fallible_conversions,
    reason = "the fields' types differ between architectures"
)]
fn milliseconds(status: &Stat) -> i64 {
    let seconds = i64::try_from(status.st_mtime).unwrap_or(0);
    let nanoseconds = i64::try_from(status.st_mtime_nsec).unwrap_or(0);
    seconds.saturating_mul(1000).saturating_add(nanoseconds / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Never tried with a real removal: a mistake would remove the files of this machine.
    #[test]
    fn the_root_folder_has_no_name_that_could_be_removed() {
        for path in ["/", "", "//", ".", "..", "/.", "/a/..", "/a/../", "///."] {
            assert_eq!(split(path), None, "{path:?}");
        }
        assert_eq!(split("/a"), Some(("", "a")));
        assert_eq!(split("/a/b//"), Some(("/a", "b")));
        assert_eq!(split("a"), Some(("", "a")));
    }
}
