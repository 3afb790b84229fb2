//! Removes a folder with everything in it, in slices of work. The folder may be huge, deep, and changing.
//!
//! Each level of folders takes a descriptor. A folder below the deepest allowed level is first moved up, into the folder
//! that is removed, so a tree of any depth takes few descriptors.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, chmodat, renameat, unlinkat};
use rustix::io::Errno;

use super::entry::existing;
use super::open::{Root, beneath, refuse_pseudo};
use super::{Step, errors, write};
use crate::protocol::WireError;

/// The maximum number of folders that are open at once.
const MAX_LEVELS: usize = 32;

/// The number of entries in one slice of work.
const SLICE_ENTRIES: usize = 512;

/// The maximum number of times that a folder is read again although nothing in it could be removed.
const MAX_IDLE_READS: u32 = 16;

/// A removal in progress.
pub(in crate::server) struct Remove {
    /// The folder with the entry to remove, and the entry's name.
    parent: OwnedFd,
    name: Vec<u8>,
    /// The open folders, outermost first. Empty before the first slice and at the end.
    levels: Vec<Level>,
    begun: bool,
    /// True to give the owner the rights that modes of folders deny.
    forced: bool,
}

struct Level {
    entries: Dir,
    /// Its name in the folder above.
    name: Vec<u8>,
    /// The number of entries that were removed since it was last read from its start.
    removed: u64,
    idle_reads: u32,
}

impl Level {
    fn open(folder: impl AsFd, name: &[u8], forced: bool) -> Result<Self, WireError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
        if forced {
            let _opening_fails = chmodat(&folder, name, Mode::RWXU, AtFlags::empty());
        }
        let opened = beneath(folder, name, flags).map_err(errors::of_file)?;
        refuse_pseudo(&opened)?;
        Ok(Self {
            entries: Dir::new(opened).map_err(errors::of_file)?,
            name: name.to_vec(),
            removed: 0,
            idle_reads: 0,
        })
    }

    /// Reads the folder again from its start, if that can help.
    fn read_again(&mut self) -> bool {
        self.idle_reads = if self.removed == 0 { self.idle_reads + 1 } else { 0 };
        self.removed = 0;
        self.entries.rewind();
        self.idle_reads <= MAX_IDLE_READS
    }
}

impl Remove {
    pub(super) fn new(root: &Root, path: &str) -> Result<Self, WireError> {
        let (parent, name) = existing(root, path)?;
        Ok(Self {
            parent,
            name,
            levels: Vec::new(),
            begun: false,
            forced: false,
        })
    }

    /// Removes the entry with this name in a folder, whatever the modes of folders in it.
    pub(super) fn forced(parent: OwnedFd, name: Vec<u8>) -> Self {
        Self {
            parent,
            name,
            levels: Vec::new(),
            begun: false,
            forced: true,
        }
    }

    pub(super) fn slice(&mut self) -> Step {
        for _ in 0..SLICE_ENTRIES {
            match self.advance() {
                Ok(true) => {}
                Ok(false) => return Step::Removed,
                Err(error) => return Step::Failed(error),
            }
        }
        Step::Again
    }

    /// Removes one entry. Returns false when everything is removed.
    fn advance(&mut self) -> Result<bool, WireError> {
        if !self.begun {
            self.begun = true;
            let name = self.name.clone();
            if remove_if_no_folder(&self.parent, &name).map_err(errors::of_file)? {
                return Ok(false);
            }
            self.levels.push(Level::open(&self.parent, &name, self.forced)?);
        }
        let Some(level) = self.levels.last_mut() else {
            return Ok(false);
        };
        let entry = match level.entries.read() {
            None => return self.leave(),
            Some(Err(Errno::INTR)) => return Ok(true),
            Some(Err(error)) => return Err(errors::of_file(error)),
            Some(Ok(entry)) => entry,
        };
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            return Ok(true);
        }
        let folder = level.entries.fd().map_err(errors::of_file)?;
        match remove_if_no_folder(folder, name) {
            Ok(true) => level.removed += 1,
            Ok(false) if self.levels.len() < MAX_LEVELS => self.enter(name)?,
            Ok(false) => self.move_up(name)?,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(errors::of_file(error)),
        }
        Ok(true)
    }

    /// Opens a folder inside the innermost one.
    fn enter(&mut self, name: &[u8]) -> Result<(), WireError> {
        if let Some(level) = self.levels.last() {
            let inner = Level::open(level.entries.fd().map_err(errors::of_file)?, name, self.forced)?;
            self.levels.push(inner);
        }
        Ok(())
    }

    /// Moves a folder out of the innermost one into the outermost one, which is read again at its end.
    fn move_up(&mut self, name: &[u8]) -> Result<(), WireError> {
        if let (Some(outermost), Some(level)) = (self.levels.first(), self.levels.last()) {
            let temporary = write::temporary_name(write::TEMPORARY_PREFIX).map_err(errors::of_file)?;
            let from = level.entries.fd().map_err(errors::of_file)?;
            let to = outermost.entries.fd().map_err(errors::of_file)?;
            renameat(from, name, to, temporary.as_str()).map_err(errors::of_file)?;
        }
        if let Some(level) = self.levels.last_mut() {
            level.removed += 1;
        }
        Ok(())
    }

    /// Removes the innermost folder, which seems empty.
    fn leave(&mut self) -> Result<bool, WireError> {
        let Some(mut level) = self.levels.pop() else {
            return Ok(false);
        };
        let above = self.levels.last_mut();
        let folder = match &above {
            Some(above) => above.entries.fd().map_err(errors::of_file)?,
            None => self.parent.as_fd(),
        };
        match unlinkat(folder, level.name.as_slice(), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {
                if let Some(above) = above {
                    above.removed += 1;
                }
                Ok(!self.levels.is_empty())
            }
            Err(Errno::NOTEMPTY | Errno::EXIST) if level.read_again() => {
                self.levels.push(level);
                Ok(true)
            }
            Err(error) => Err(errors::of_file(error)),
        }
    }
}

/// Removes an entry. Returns false, and removes nothing, if the entry is a folder.
fn remove_if_no_folder(folder: impl AsFd, name: &[u8]) -> Result<bool, Errno> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::ISDIR) => Ok(false),
        Err(error) => Err(error),
    }
}
