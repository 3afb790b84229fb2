//! Listing a folder that may be huge, deep, and changing.
//!
//! The list keeps the first names in order, up to the requested number. It only counts the rest. At the end it queries
//! the kept entries.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, FileType, OFlags, fstat};
use rustix::io::Errno;
use sandcell_sandbox::Entry;

use super::entry::{describe, target};
use super::open::{Root, beneath, refuse_no_folder, refuse_pseudo};
use super::{Step, errors};
use crate::protocol::{ListReply, MAX_ENTRIES, WireError};

/// The maximum number of entries that one listing reads.
const MAX_SCANNED: u64 = 200_000;

/// The maximum total length of the kept names, in bytes.
const MAX_NAMES_BYTES: usize = 4 << 20;

/// The maximum total length of link targets in one listing, in bytes.
const MAX_TARGETS_BYTES: usize = 1 << 20;

/// The maximum number of folders that wait to be read.
const MAX_PENDING: usize = 20_000;

/// The maximum depth of a recursive listing.
const MAX_DEPTH: usize = 16;

/// The number of entries in one slice of work.
const SLICE_ENTRIES: usize = 512;

pub(in crate::server) struct List {
    base: OwnedFd,
    recursive: bool,
    max: usize,
    /// The folder in progress, with its path and its depth.
    reading: Option<(Dir, Vec<u8>, usize)>,
    /// Folders to read, by their path below the base, with their depth.
    pending: Vec<(Vec<u8>, usize)>,
    kept: BTreeMap<Vec<u8>, FileType>,
    kept_bytes: usize,
    /// The remaining room for targets of links, in bytes.
    targets_left: usize,
    scanned: u64,
    omitted: u64,
    done: Vec<Entry>,
}

impl List {
    pub(super) fn new(root: &Root, path: &str, recursive: bool, max: usize) -> Result<Self, WireError> {
        refuse_no_folder(&root.inspect(path)?)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
        let base = root.resolve(path, flags).map_err(errors::of_file)?;
        refuse_pseudo(&base)?;
        let reading = Dir::read_from(&base).map_err(errors::of_file)?;
        Ok(Self {
            base,
            recursive,
            max: max.min(MAX_ENTRIES),
            reading: Some((reading, Vec::new(), 1)),
            pending: Vec::new(),
            kept: BTreeMap::new(),
            kept_bytes: 0,
            targets_left: MAX_TARGETS_BYTES,
            scanned: 0,
            omitted: 0,
            done: Vec::new(),
        })
    }

    pub(super) fn slice(&mut self) -> Step {
        for _ in 0..SLICE_ENTRIES {
            let more = if self.reading.is_some() || !self.pending.is_empty() {
                self.scan()
            } else {
                self.describe()
            };
            match more {
                Ok(true) => {}
                Ok(false) => {
                    return Step::Listed(ListReply {
                        entries: std::mem::take(&mut self.done),
                        omitted: self.omitted,
                    });
                }
                Err(error) => return Step::Failed(errors::of_file(error)),
            }
        }
        Step::Again
    }

    /// Reads one entry, or continues with the next folder.
    fn scan(&mut self) -> Result<bool, Errno> {
        let Some((dir, prefix, depth)) = &mut self.reading else {
            if let Some((path, depth)) = self.pending.pop() {
                self.reading = self.enter(&path).map(|dir| (dir, path, depth));
            }
            return Ok(true);
        };
        let entry = match dir.read() {
            Some(Ok(entry)) => entry,
            Some(Err(Errno::INTR)) => return Ok(true),
            // A folder that was removed in the meantime has no more entries.
            None | Some(Err(Errno::NOENT)) => {
                self.reading = None;
                return Ok(true);
            }
            Some(Err(error)) => return Err(error),
        };
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            return Ok(true);
        }
        self.scanned += 1;
        if self.scanned > MAX_SCANNED {
            // At least this entry is left out. Counting the others would take too long.
            self.omitted += 1;
            self.reading = None;
            self.pending.clear();
            return Ok(true);
        }
        let mut path = prefix.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let depth = *depth;
        let mut kind = entry.file_type();
        if kind == FileType::Unknown {
            kind = self
                .status(&path)
                .map_or(kind, |status| FileType::from_raw_mode(status.st_mode));
        }
        if self.recursive && kind == FileType::Directory && depth < MAX_DEPTH {
            if self.pending.len() < MAX_PENDING {
                self.pending.push((path.clone(), depth + 1));
            } else {
                self.omitted += 1;
            }
        }
        self.keep(path, kind);
        Ok(true)
    }

    /// Keeps the first names in order, up to the limits.
    fn keep(&mut self, path: Vec<u8>, kind: FileType) {
        self.kept_bytes += path.len();
        self.kept.insert(path, kind);
        while self.kept.len() > self.max || self.kept_bytes > MAX_NAMES_BYTES {
            let Some((last, _)) = self.kept.pop_last() else { return };
            self.kept_bytes -= last.len();
            self.omitted += 1;
        }
    }

    /// Opens a found folder. A folder that cannot be opened is listed, but its entries are not.
    fn enter(&self, path: &[u8]) -> Option<Dir> {
        let folder = beneath(&self.base, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK).ok()?;
        refuse_pseudo(&folder).ok()?;
        Dir::new(folder).ok()
    }

    /// Returns the target of a link, while the listing has room for it.
    fn target(&mut self, link: &OwnedFd) -> Option<String> {
        let target = target(link)?;
        self.targets_left = self.targets_left.checked_sub(target.len())?;
        Some(target)
    }

    fn status(&self, path: &[u8]) -> Option<rustix::fs::Stat> {
        fstat(beneath(&self.base, path, OFlags::PATH).ok()?).ok()
    }

    /// Queries one of the kept entries. Returns false when none is left. Leaves out an entry that was removed in the
    /// meantime.
    fn describe(&mut self) -> Result<bool, Errno> {
        let Some((path, kind)) = self.kept.pop_first() else {
            return Ok(false);
        };
        let found = beneath(&self.base, &path, OFlags::PATH).and_then(|file| Ok((fstat(&file)?, file)));
        let Ok((status, file)) = found else {
            return Ok(true);
        };
        let kind = match FileType::from_raw_mode(status.st_mode) {
            FileType::Unknown => kind,
            known => known,
        };
        let target = (kind == FileType::Symlink).then(|| self.target(&file)).flatten();
        self.done.push(describe(&path, kind, target, &status));
        Ok(true)
    }
}
