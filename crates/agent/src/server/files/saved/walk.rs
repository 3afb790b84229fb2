//! A walk through the private folders, one entry at a time. Follows no link and enters no other file system.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, chmodat, fstat, openat};
use rustix::io::Errno;

use super::super::errors;
use super::super::open::{Root, beneath, refuse_pseudo, retry};
use super::{Key, attributes, failed, path_of};
use crate::protocol::WireError;

pub(super) struct Walk {
    folders: TopFolders,
    reading: Option<(Dir, Key)>,
    /// Folders to read.
    pending: Vec<Key>,
    /// Folders whose modes forbade reading, with these modes. They get them back at the end.
    opened: Vec<(Key, u32)>,
}

/// The top folders of a saved state, opened.
#[derive(Default)]
pub(super) struct TopFolders {
    names: Vec<String>,
    /// None: the sandbox does not have this folder.
    opened: Vec<Option<(OwnedFd, u64)>>,
}

pub(super) struct Found {
    pub(super) key: Key,
    pub(super) kind: FileType,
    pub(super) status: Stat,
    /// Opened for inspection only.
    pub(super) entry: OwnedFd,
}

pub(super) enum Next {
    Found(Box<Found>),
    /// The walk continues.
    Nothing,
    End,
}

impl TopFolders {
    /// Opens the folders. `real` are their paths in this system.
    pub(super) fn open(root: &Root, names: &[String], real: &[String]) -> Result<Self, WireError> {
        let open = |path: &String| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
            let folder = match resolve_top(root, path, flags) {
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
                result => result.map_err(|error| failed(path, error))?,
            };
            refuse_pseudo(&folder)?;
            let status = fstat(&folder).map_err(errors::of_file)?;
            Ok(Some((folder, status.st_dev)))
        };
        Ok(Self {
            names: names.to_vec(),
            opened: real.iter().map(open).collect::<Result<_, WireError>>()?,
        })
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    fn top(&self, folder: usize) -> Result<&(OwnedFd, u64), Errno> {
        self.opened.get(folder).and_then(Option::as_ref).ok_or(Errno::NOENT)
    }

    /// Opens an entry. Follows no link.
    pub(super) fn entry(&self, (folder, path): &Key, flags: OFlags) -> Result<OwnedFd, Errno> {
        let (top, _) = self.top(*folder)?;
        beneath(top, if path.is_empty() { b"." } else { path }, flags)
    }

    /// Opens the folder of an entry. Returns the entry's name in it.
    pub(super) fn parent<'k>(&self, (folder, path): &'k Key) -> Result<(OwnedFd, &'k [u8]), Errno> {
        let at = path.iter().rposition(|byte| *byte == b'/');
        let (above, name) = match at {
            Some(at) => path.split_at(at),
            None => (&b""[..], path.as_slice()),
        };
        let name = name.strip_prefix(b"/").unwrap_or(name);
        let above = (*folder, above.to_vec());
        Ok((
            self.entry(&above, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK)?,
            name,
        ))
    }

    pub(super) fn change_mode(&self, key: &Key, mode: u32) -> Result<(), Errno> {
        let (folder, name) = self.parent(key)?;
        retry(|| chmodat(&folder, name, Mode::from_raw_mode(mode), AtFlags::empty()))
    }

    /// Makes a file without a name in the first folder that can have one.
    pub(super) fn unnamed_file(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let mut error = Errno::NOENT;
        for (folder, _) in self.opened.iter().flatten() {
            match openat(folder, c".", flags, mode) {
                Ok(file) => return Ok(file),
                Err(other) => error = other,
            }
        }
        Err(error)
    }

    pub(super) fn path_of(&self, key: &Key) -> String {
        path_of(&self.names, key)
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        // Innermost first: a folder that cannot be searched hides the ones in it.
        for (key, mode) in self.opened.iter().rev() {
            let _gone = self.folders.change_mode(key, *mode);
        }
    }
}

impl Walk {
    pub(super) fn new(folders: TopFolders) -> Self {
        let pending = (0..folders.opened.len()).rev().map(|folder| (folder, Vec::new()));
        Self {
            pending: pending.filter(|(folder, _)| folders.top(*folder).is_ok()).collect(),
            folders,
            reading: None,
            opened: Vec::new(),
        }
    }

    pub(super) const fn folders(&self) -> &TopFolders {
        &self.folders
    }

    /// Ends the walk. Folders that it has opened keep their new modes.
    pub(super) fn into_folders(mut self) -> TopFolders {
        self.opened.clear();
        std::mem::take(&mut self.folders)
    }

    /// Opens a folder, also if its mode forbids that.
    fn open(&mut self, key: &Key) -> Result<Dir, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
        match self.folders.entry(key, flags) {
            Ok(folder) => return Dir::new(folder),
            Err(Errno::ACCESS) if !key.1.is_empty() => {}
            Err(error) => return Err(error),
        }
        let status = fstat(self.folders.entry(key, OFlags::PATH)?)?;
        let mode = attributes(&status).0;
        self.folders.change_mode(key, mode | 0o700)?;
        self.opened.push((key.clone(), mode));
        self.folders.entry(key, flags).and_then(Dir::new)
    }

    /// Returns the next entry. The entries of a folder follow the folder.
    pub(super) fn next(&mut self) -> Result<Next, WireError> {
        let Some((dir, (folder, above))) = &mut self.reading else {
            let Some(key) = self.pending.pop() else {
                return Ok(Next::End);
            };
            match self.open(&key) {
                Ok(dir) => self.reading = Some((dir, key)),
                // It was removed in the meantime.
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(error) => return Err(failed(&self.folders.path_of(&key), error)),
            }
            return Ok(Next::Nothing);
        };
        let entry = match dir.read() {
            Some(Ok(entry)) => entry,
            Some(Err(Errno::INTR)) => return Ok(Next::Nothing),
            None | Some(Err(Errno::NOENT)) => {
                self.reading = None;
                return Ok(Next::Nothing);
            }
            Some(Err(error)) => return Err(errors::of_file(error)),
        };
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            return Ok(Next::Nothing);
        }
        let mut path = above.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let key = (*folder, path);
        let opened = self.folders.entry(&key, OFlags::PATH);
        let found = opened.and_then(|entry| Ok((fstat(&entry)?, entry)));
        let (status, entry) = match found {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(Next::Nothing),
            Err(error) => return Err(failed(&self.folders.path_of(&key), error)),
        };
        let own_system = self
            .folders
            .top(key.0)
            .is_ok_and(|(_, device)| *device == status.st_dev);
        if !own_system {
            return Ok(Next::Nothing);
        }
        let kind = FileType::from_raw_mode(status.st_mode);
        if kind == FileType::Directory {
            self.pending.push(key.clone());
        }
        Ok(Next::Found(Box::new(Found {
            key,
            kind,
            status,
            entry,
        })))
    }

    /// Leaves out the entries of the folder that was just found.
    pub(super) fn skip_folder(&mut self, key: &Key) {
        if self.pending.last() == Some(key) {
            self.pending.pop();
        }
    }
}

/// Opens a top folder. One that its owner cannot read, search and change gets these rights back.
fn resolve_top(root: &Root, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    const OWNER_RIGHTS: u32 = 0o700;
    let found = root.resolve(path, OFlags::PATH | OFlags::DIRECTORY)?;
    let mode = attributes(&fstat(&found)?).0;
    if mode & OWNER_RIGHTS != OWNER_RIGHTS {
        // The last name of the path is no link, because only the sandbox's maker can change the folder above.
        retry(|| chmodat(CWD, path, Mode::from_raw_mode(mode | OWNER_RIGHTS), AtFlags::empty()))?;
    }
    root.resolve(path, flags)
}

/// Opens a regular file through its entry's folder, also if its mode forbids that. The mode is restored.
pub(super) fn open_readable(folders: &TopFolders, key: &Key, mode: u32) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    match folders.entry(key, flags) {
        Err(Errno::ACCESS) => {}
        result => return result,
    }
    folders.change_mode(key, mode | 0o600)?;
    let opened = folders.entry(key, flags);
    folders.change_mode(key, mode)?;
    opened
}
