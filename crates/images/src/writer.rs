//! Writes the unpacker's records below one folder, and never anywhere else.
//!
//! The stream is hostile. The kernel opens every path as if the folder were the root of the file system, so no link
//! leads out of it. Only folders, regular files and links are created. All entries and bytes are counted before they
//! are written. No other process writes below the folder at the same time, because it is a draft with a random name.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::ImageError;
use crate::inside::Summary;
use crate::record::{END_MAX, Path, Record, RecordKind};

/// The minimum size that is counted for a file, folder or link, in bytes.
const MIN_ENTRY_BYTES: u64 = 512;
const BUFFER_BYTES: usize = 256 << 10;
const FOLDER_FLAGS: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::CLOEXEC);

/// The limits of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnpackLimits {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

/// The result of writing one layer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    pub(crate) whiteouts: Vec<Path>,
    pub(crate) opaques: Vec<Path>,
    /// Folders without a record in the layer that contain entries of the layer.
    pub(crate) implied: BTreeSet<Path>,
    pub(crate) summary: Summary,
}

struct Writer {
    root: OwnedFd,
    limits: UnpackLimits,
    written: Written,
    /// The folder of the last write, kept open.
    last: Option<(Path, OwnedFd)>,
}

/// Writes all records into this new folder.
pub(crate) fn write(
    from: &mut dyn Read,
    folder: &std::path::Path,
    limits: UnpackLimits,
) -> Result<Written, ImageError> {
    let at = |error: &io::Error| ImageError::store(format!("make the folder {}", folder.display()), error);
    std::fs::create_dir(folder).map_err(|error| at(&error))?;
    let root =
        rustix::fs::open(folder, FOLDER_FLAGS | OFlags::NOFOLLOW, Mode::empty()).map_err(|error| at(&error.into()))?;
    rustix::fs::fchmod(&root, Mode::from_raw_mode(0o755)).map_err(|error| at(&error.into()))?;
    let mut writer = Writer {
        root,
        limits,
        written: Written::default(),
        last: None,
    };
    loop {
        let record = Record::read(from)?;
        if record.kind == RecordKind::End {
            writer.written.summary = summary(from, record.size)?;
            // The stream must end after the last record.
            if from.read(&mut [0]).is_ok_and(|more| more > 0) {
                return Err(ImageError::Unpack("the unpacker wrote output after its end".to_owned()));
            }
            return Ok(writer.written);
        }
        writer.count(record.size)?;
        let path = record.path.clone();
        writer.take(record, from).map_err(|error| match error {
            Step::Image(error) => error,
            Step::System(error) => {
                let name = String::from_utf8_lossy(path.as_bytes()).into_owned();
                ImageError::store(
                    format!("write {:?}", name.chars().take(200).collect::<String>()),
                    &error,
                )
            }
        })?;
    }
}

fn summary(from: &mut dyn Read, size: u64) -> Result<Summary, ImageError> {
    let broken = || ImageError::Unpack("the unpacker wrote no summary".to_owned());
    if size > END_MAX {
        return Err(broken());
    }
    let mut text = Vec::new();
    from.take(size).read_to_end(&mut text).map_err(|_| broken())?;
    serde_json::from_slice(&text).map_err(|_| broken())
}

enum Step {
    Image(ImageError),
    System(io::Error),
}

impl From<io::Error> for Step {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<Errno> for Step {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

fn unpack_error(text: &str) -> Step {
    Step::Image(ImageError::Unpack(text.to_owned()))
}

impl Writer {
    fn count(&mut self, size: u64) -> Result<(), ImageError> {
        let written = &mut self.written;
        written.entries += 1;
        written.bytes = written.bytes.saturating_add(size).saturating_add(MIN_ENTRY_BYTES);
        let too_large = |limit, unit| ImageError::TooLarge {
            what: "the image, unpacked,",
            limit,
            unit,
        };
        if written.entries > self.limits.entries {
            return Err(too_large(self.limits.entries, "files"));
        }
        if written.bytes > self.limits.bytes {
            return Err(too_large(self.limits.bytes >> 20, "MiB"));
        }
        Ok(())
    }

    fn take(&mut self, record: Record, from: &mut dyn Read) -> Result<(), Step> {
        match record.kind {
            RecordKind::Whiteout => {
                self.written.whiteouts.push(record.path);
                return Ok(());
            }
            RecordKind::Opaque => {
                self.written.opaques.push(record.path);
                return Ok(());
            }
            RecordKind::Folder | RecordKind::File | RecordKind::Symlink | RecordKind::HardLink | RecordKind::End => {}
        }
        let Some((folder, name)) = record.path.split() else {
            return Ok(());
        };
        let parent = self.folder(&folder)?;
        let changed = match record.kind {
            RecordKind::Folder => {
                self.written.implied.remove(&record.path);
                put(&parent, name, || {
                    match rustix::fs::mkdirat(&parent, os(name), Mode::from_raw_mode(0o755)) {
                        Err(Errno::EXIST) if is_folder(&parent, name) => Ok(()),
                        other => other,
                    }
                })?
            }
            RecordKind::File => self.file(&parent, name, &record, from)?,
            RecordKind::Symlink => put(&parent, name, || {
                rustix::fs::symlinkat(os(&record.target), &parent, os(name))
            })?,
            RecordKind::HardLink => self.hard_link(&parent, name, &record)?,
            RecordKind::Whiteout | RecordKind::Opaque | RecordKind::End => false,
        };
        if record.kind == RecordKind::Folder {
            rustix::fs::chmodat(&parent, os(name), Mode::from_raw_mode(0o755), AtFlags::empty())?;
        }
        if !changed {
            self.last = Some((folder, parent));
        }
        Ok(())
    }

    fn file(&self, parent: &OwnedFd, name: &[u8], record: &Record, from: &mut dyn Read) -> Result<bool, Step> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut opened = None;
        let changed = put(parent, name, || {
            let file = rustix::fs::openat(parent, os(name), flags, Mode::from_raw_mode(0o600))?;
            opened = Some(file);
            Ok(())
        })?;
        let mut file = std::fs::File::from(opened.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?);
        let (mut left, mut buffer) = (record.size, vec![0; BUFFER_BYTES]);
        while left > 0 {
            let count = usize::try_from(left).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES);
            let part = buffer.get_mut(..count).unwrap_or_default();
            from.read_exact(part)
                .map_err(|_| unpack_error("the unpacker's output is truncated"))?;
            file.write_all(part)?;
            left -= u64::try_from(count).unwrap_or(left);
        }
        let mode = if record.runs { 0o755 } else { 0o644 };
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        Ok(changed)
    }

    fn hard_link(&mut self, parent: &OwnedFd, name: &[u8], record: &Record) -> Result<bool, Step> {
        let missing = || unpack_error("a hard link leads to a file that is not in its layer");
        let target = Path::parse(&record.target).map_err(unpack_error)?;
        if target == record.path {
            return Ok(false);
        }
        let (folder, target_name) = target.split().ok_or_else(missing)?;
        let source = self.open(&folder).map_err(|_| missing())?;
        match rustix::fs::statat(&source, os(target_name), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found)
                if matches!(
                    FileType::from_raw_mode(found.st_mode),
                    FileType::RegularFile | FileType::Symlink
                ) => {}
            _ => return Err(missing()),
        }
        Ok(put(parent, name, || {
            rustix::fs::linkat(&source, os(target_name), parent, os(name), AtFlags::empty())
        })?)
    }

    fn open(&self, folder: &Path) -> Result<OwnedFd, Errno> {
        below(&self.root, folder, FOLDER_FLAGS)
    }

    /// Opens a folder. Creates it and its parents if they do not exist.
    fn folder(&mut self, folder: &Path) -> Result<OwnedFd, Step> {
        if let Some((path, opened)) = self.last.take()
            && path == *folder
        {
            return Ok(opened);
        }
        match self.open(folder) {
            Ok(opened) => return Ok(opened),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let (mut path, mut at) = (Path::default(), self.open(&Path::default())?);
        for part in folder.parts() {
            let next = path.child(part);
            at = match self.open(&next) {
                Ok(opened) => opened,
                Err(Errno::NOENT) => {
                    self.count(0).map_err(Step::Image)?;
                    // A dangling link also exists, so `mkdirat` fails and the link stays unchanged.
                    rustix::fs::mkdirat(&at, os(part), Mode::from_raw_mode(0o755))?;
                    rustix::fs::chmodat(&at, os(part), Mode::from_raw_mode(0o755), AtFlags::empty())?;
                    self.written.implied.insert(next.clone());
                    self.open(&next)?
                }
                Err(error) => return Err(error.into()),
            };
            path = next;
        }
        Ok(at)
    }
}

/// Creates an entry with this name. Removes an existing entry first, and returns true if there was one.
fn put(parent: &OwnedFd, name: &[u8], mut make: impl FnMut() -> Result<(), Errno>) -> Result<bool, Errno> {
    match make() {
        Err(Errno::EXIST) => {
            remove(parent, name)?;
            make().map(|()| true)
        }
        other => other.map(|()| false),
    }
}

fn is_folder(parent: &OwnedFd, name: &[u8]) -> bool {
    rustix::fs::statat(parent, os(name), AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory)
}

/// Converts a name or path to the form of the operating system.
pub(crate) fn os(bytes: &[u8]) -> &std::ffi::OsStr {
    std::ffi::OsStr::from_bytes(bytes)
}

/// Opens a path as if `root` were the root of the file system. Neither links nor names lead out of it.
pub(crate) fn below(root: impl AsFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let text = if path.is_root() { &b"."[..] } else { path.as_bytes() };
    rustix::fs::openat2(
        root,
        os(text),
        flags | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )
}

/// Removes an entry recursively. Links are removed, not followed.
pub(crate) fn remove(parent: impl AsFd, name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::unlinkat(&parent, os(name), AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        other => return other,
    }
    let folder = rustix::fs::openat(&parent, os(name), FOLDER_FLAGS | OFlags::NOFOLLOW, Mode::empty())?;
    empty(&folder)?;
    rustix::fs::unlinkat(&parent, os(name), AtFlags::REMOVEDIR)
}

/// Removes everything in a folder.
pub(crate) fn empty(folder: &OwnedFd) -> Result<(), Errno> {
    for name in names(folder)? {
        remove(folder, &name)?;
    }
    Ok(())
}

/// Returns the names in a folder.
pub(crate) fn names(folder: impl AsFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut found = Vec::new();
    for entry in rustix::fs::Dir::read_from(folder)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            found.push(name);
        }
    }
    Ok(found)
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
