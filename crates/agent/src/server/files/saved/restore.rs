//! Brings the private files back to a saved state, in slices of work.
//!
//! Files are written in place where possible, so programs that have them open, and descriptors that are opened again,
//! see the saved content.

use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, chmodat, fstat, ftruncate, mkdirat, mknodat,
    openat, readlinkat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::super::Step;
use super::super::open::{Root, retry};
use super::super::remove::Remove;
use super::walk::{Found, Next, TopFolders, Walk};
use super::{
    Content, Key, Node, NodeKind, PIECE_BYTES, SavedState, attributes, count, failed, fill, size_of, step_of, work,
    write_at,
};
use crate::protocol::{RestoreFilesReply, WireError};

/// A restore in progress.
pub(in crate::server) struct Restore {
    state: Arc<SavedState>,
    phase: Phase,
    changed: u64,
    file: Option<OpenFile>,
    live: Vec<u8>,
    saved: Vec<u8>,
}

enum Phase {
    /// Removes what the saved state does not have.
    Remove {
        walk: Walk,
        removal: Option<Box<Remove>>,
    },
    /// Writes what it has. Holds the last entry.
    Write {
        folders: TopFolders,
        last: Option<Key>,
    },
    /// Sets the attributes of folders, innermost first. Holds the last entry.
    Folders {
        folders: TopFolders,
        last: Option<Key>,
    },
    Done,
}

/// The file in progress.
struct OpenFile {
    key: Key,
    content: Content,
    file: OwnedFd,
    position: u64,
    changed: bool,
}

impl Restore {
    pub(in crate::server) fn new(root: &Root, state: Arc<SavedState>, real: &[String]) -> Result<Self, WireError> {
        let folders = TopFolders::open(root, &state.folders, real)?;
        Ok(Self {
            state,
            phase: Phase::Remove {
                walk: Walk::new(folders),
                removal: None,
            },
            changed: 0,
            file: None,
            live: vec![0; PIECE_BYTES],
            saved: vec![0; PIECE_BYTES],
        })
    }

    pub(in crate::server) fn slice(&mut self) -> Step {
        let worked = work(|| self.advance());
        step_of(worked, || Step::Restored(RestoreFilesReply { changed: self.changed }))
    }

    /// Handles one entry, or a piece of a file. Returns false at the end.
    fn advance(&mut self) -> Result<bool, WireError> {
        match std::mem::replace(&mut self.phase, Phase::Done) {
            Phase::Remove { walk, removal } => self.remove(walk, removal)?,
            Phase::Write { folders, last } => self.write(folders, last)?,
            Phase::Folders { folders, last } => self.set_folder(folders, last)?,
            Phase::Done => return Ok(false),
        }
        Ok(true)
    }

    fn remove(&mut self, mut walk: Walk, removal: Option<Box<Remove>>) -> Result<(), WireError> {
        if let Some(mut removal) = removal {
            let removal = match removal.slice() {
                Step::Again => Some(removal),
                Step::Failed(error) => return Err(error),
                _ => None,
            };
            self.phase = Phase::Remove { walk, removal };
            return Ok(());
        }
        let removal = match walk.next()? {
            Next::End => {
                self.phase = Phase::Write {
                    folders: walk.into_folders(),
                    last: None,
                };
                return Ok(());
            }
            Next::Nothing => None,
            Next::Found(found) => self.remove_entry(&mut walk, *found)?,
        };
        self.phase = Phase::Remove { walk, removal };
        Ok(())
    }

    /// Removes an entry that the saved state does not have.
    fn remove_entry(&mut self, walk: &mut Walk, found: Found) -> Result<Option<Box<Remove>>, WireError> {
        let known = self.state.entries.get(&found.key);
        if known.is_some_and(|node| node.kind.has_type(found.kind)) {
            if found.kind == FileType::Directory {
                // Its saved mode is set at the end.
                let named = |error| failed(&self.state.path_of(&found.key), error);
                allow_changes(walk.folders(), &found).map_err(named)?;
            }
            return Ok(None);
        }
        self.changed += 1;
        let named = |error| failed(&self.state.path_of(&found.key), error);
        let (parent, name) = walk.folders().parent(&found.key).map_err(named)?;
        if found.kind == FileType::Directory {
            walk.skip_folder(&found.key);
            return Ok(Some(Box::new(Remove::forced(parent, name.to_vec()))));
        }
        match unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(named(error)),
        }
    }

    fn write(&mut self, folders: TopFolders, last: Option<Key>) -> Result<(), WireError> {
        if let Some(mut file) = self.file.take() {
            match self.piece(&folders, &mut file) {
                Ok(false) => self.file = Some(file),
                Ok(true) => self.changed += u64::from(file.changed),
                Err(error) => return Err(failed(&self.state.path_of(&file.key), error)),
            }
            self.phase = Phase::Write { folders, last };
            return Ok(());
        }
        let state = Arc::clone(&self.state);
        let from = last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let Some((key, node)) = state.entries.range((from, Bound::Unbounded)).next() else {
            self.phase = Phase::Folders { folders, last: None };
            return Ok(());
        };
        let done = self.begin(&folders, key, node);
        done.map_err(|error| failed(&self.state.path_of(key), error))?;
        self.phase = Phase::Write {
            folders,
            last: Some(key.clone()),
        };
        Ok(())
    }

    /// Makes an entry, or opens a file that is there.
    fn begin(&mut self, folders: &TopFolders, key: &Key, node: &Node) -> Result<(), Errno> {
        match &node.kind {
            NodeKind::Socket => Ok(()),
            NodeKind::Fifo => {
                let (parent, name) = folders.parent(key)?;
                if folders
                    .entry(key, OFlags::PATH)
                    .is_err_and(|error| error == Errno::NOENT)
                {
                    mknodat(&parent, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
                }
                self.changed += u64::from(set_attributes(&parent, name, node)?);
                Ok(())
            }
            NodeKind::Folder => match folders.entry(key, OFlags::PATH) {
                Ok(_) => Ok(()),
                Err(Errno::NOENT) => {
                    let (parent, name) = folders.parent(key)?;
                    mkdirat(&parent, name, Mode::from_raw_mode(0o700))?;
                    self.changed += 1;
                    Ok(())
                }
                Err(error) => Err(error),
            },
            NodeKind::Link(target) => {
                let (parent, name) = folders.parent(key)?;
                match readlinkat(&parent, name, Vec::new()) {
                    Ok(now) if now.as_bytes() == target.as_slice() => {
                        let status = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
                        if attributes(&status).1 != node.modified {
                            set_modified(&parent, name, node)?;
                            self.changed += 1;
                        }
                        return Ok(());
                    }
                    Ok(_) => unlinkat(&parent, name, AtFlags::empty())?,
                    Err(Errno::NOENT) => {}
                    Err(error) => return Err(error),
                }
                symlinkat(target.as_slice(), &parent, name)?;
                set_modified(&parent, name, node)?;
                self.changed += 1;
                Ok(())
            }
            NodeKind::File(content) => {
                let (file, changed) = open(folders, key, node)?;
                self.file = Some(OpenFile {
                    key: key.clone(),
                    content: content.clone(),
                    file,
                    position: 0,
                    changed,
                });
                Ok(())
            }
        }
    }

    /// Compares a piece of a file, and writes it if it differs. Returns true at the end of the file.
    fn piece(&mut self, folders: &TopFolders, file: &mut OpenFile) -> Result<bool, Errno> {
        let saved = file.content.read(&mut self.saved, file.position)?;
        let live = fill(&file.file, &mut self.live, file.position)?;
        let wanted = self.saved.get(..saved).unwrap_or_default();
        // More bytes in the live file are cut off at the end.
        let is_hole = live == 0 && wanted.iter().all(|byte| *byte == 0);
        if !is_hole && self.live.get(..live.min(saved)) != Some(wanted) {
            let status = fstat(&file.file)?;
            if status.st_nlink > 1 {
                // Another name of the same file may have another content.
                return self.replace(folders, file);
            }
            file.changed = true;
            write_at(&file.file, wanted, file.position)?;
        }
        file.position += count(saved);
        if saved == PIECE_BYTES {
            return Ok(false);
        }
        self.finish(folders, file)
    }

    /// Gives a file its saved size and attributes.
    fn finish(&self, folders: &TopFolders, file: &mut OpenFile) -> Result<bool, Errno> {
        let status = fstat(&file.file)?;
        if size_of(&status) != file.content.size {
            if status.st_nlink > 1 {
                return self.replace(folders, file);
            }
            ftruncate(&file.file, file.content.size)?;
            file.changed = true;
        }
        if let Some(node) = self.state.entries.get(&file.key) {
            let (parent, name) = folders.parent(&file.key)?;
            file.changed |= set_attributes(&parent, name, node)?;
        }
        Ok(true)
    }

    /// Begins again with a new file of the same name.
    fn replace(&self, folders: &TopFolders, file: &mut OpenFile) -> Result<bool, Errno> {
        let (parent, name) = folders.parent(&file.key)?;
        unlinkat(&parent, name, AtFlags::empty())?;
        (file.file, file.position, file.changed) = (create(&parent, name)?, 0, true);
        Ok(false)
    }

    fn set_folder(&mut self, folders: TopFolders, last: Option<Key>) -> Result<(), WireError> {
        let state = Arc::clone(&self.state);
        let to = last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let Some((key, node)) = state.entries.range((Bound::Unbounded, to)).next_back() else {
            return Ok(());
        };
        if matches!(node.kind, NodeKind::Folder) {
            let set = folders
                .parent(key)
                .and_then(|(parent, name)| set_attributes(&parent, name, node));
            set.map_err(|error| failed(&state.path_of(key), error))?;
        }
        self.phase = Phase::Folders {
            folders,
            last: Some(key.clone()),
        };
        Ok(())
    }
}

/// Gives its owner all rights in a folder.
fn allow_changes(folders: &TopFolders, found: &Found) -> Result<(), Errno> {
    const OWNER_RIGHTS: u32 = 0o700;
    let (mode, _) = attributes(&found.status);
    if mode & OWNER_RIGHTS == OWNER_RIGHTS {
        return Ok(());
    }
    let (parent, name) = folders.parent(&found.key)?;
    let mode = Mode::from_raw_mode(mode | OWNER_RIGHTS);
    retry(|| chmodat(&parent, name, mode, AtFlags::empty()))
}

/// Opens a file for comparison and writing. Makes it if it is missing, and then returns true.
fn open(folders: &TopFolders, key: &Key, node: &Node) -> Result<(OwnedFd, bool), Errno> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY;
    let (parent, name) = folders.parent(key)?;
    match folders.entry(key, flags) {
        Ok(file) => return Ok((file, false)),
        Err(Errno::ACCESS) => {
            let mode = Mode::from_raw_mode(node.mode | 0o600);
            retry(|| chmodat(&parent, name, mode, AtFlags::empty()))?;
            return Ok((folders.entry(key, flags)?, false));
        }
        // A program that runs cannot be written.
        Err(Errno::TXTBSY) => unlinkat(&parent, name, AtFlags::empty())?,
        Err(Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    Ok((create(&parent, name)?, true))
}

fn create(parent: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::from_raw_mode(0o600))
}

/// Sets the mode and the time of modification, if they differ. Returns true if one did.
fn set_attributes(parent: &OwnedFd, name: &[u8], node: &Node) -> Result<bool, Errno> {
    let status = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let (mode, modified) = attributes(&status);
    if mode != node.mode {
        let wanted = Mode::from_raw_mode(node.mode);
        retry(|| chmodat(parent, name, wanted, AtFlags::empty()))?;
    }
    if modified != node.modified {
        set_modified(parent, name, node)?;
    }
    Ok(mode != node.mode || modified != node.modified)
}

#[allow(
    clippy::useless_conversion,
    reason = "the fields' types differ between architectures"
)]
fn set_modified(parent: &OwnedFd, name: &[u8], node: &Node) -> Result<(), Errno> {
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: node.modified.0,
            tv_nsec: node.modified.1.try_into().unwrap_or(0),
        },
    };
    utimensat(parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)
}
