//! Saved states of the sandbox's private files: the file part of checkpoints.
//!
//! The contents are in files without a name that only the agent has open, so code inside can neither read nor change a
//! saved state. They are in memory, which the kernel charges to the sandbox, or else on the private file system. A file
//! that has not changed since the last saved state shares its content with that state. Folders on other file systems
//! (mounts) are left out.
//!
//! The sandbox's processes may change files during an operation. The result then has some of the changes. The host
//! starts an operation while no code runs.

mod changes;
mod image;
mod restore;
mod save;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FileType, MemfdFlags, Stat, fallocate, memfd_create};
use rustix::io::{Errno, pread, pwrite};
use sandcell_sandbox::SavedSize;

pub(in crate::server) use changes::Changes;
pub(in crate::server) use image::Image;
pub(in crate::server) use restore::Restore;
pub(in crate::server) use save::Save;

use self::walk::TopFolders;
use super::open::retry;
use super::{Step, names};
use crate::protocol::{ErrorCode, ForgetFilesReply, WireError};

/// The maximum number of saved states.
const MAX_SAVED: usize = 32;

/// The maximum number of files and folders in a saved state.
const MAX_ENTRIES: usize = 20_000;

/// The number of entries or pieces of files in one slice of work.
const SLICE_STEPS: usize = 128;

/// The size of a piece of a file, in bytes.
const PIECE_BYTES: usize = 64 << 10;

/// The maximum length of a path in an error.
const SHOWN_PATH_BYTES: usize = 160;

/// Contents begin at multiples of this, so each can be freed alone.
const PAGE_BYTES: u64 = 4096;

/// The memory of an entry, in addition to its path and the target of a link, in bytes.
const ENTRY_BYTES: u64 = 160;

/// The permission bits of a mode.
const PERMISSION_BITS: u32 = 0o7777;

/// A file or folder: the number of its top folder, and its path below that folder.
type Key = (usize, Vec<u8>);

/// All saved states of the sandbox.
#[derive(Default)]
pub(in crate::server) struct SavedStates(BTreeMap<u32, Arc<SavedState>>);

/// One saved state.
pub(in crate::server) struct SavedState {
    /// The top folders, as the host names them.
    folders: Vec<String>,
    entries: BTreeMap<Key, Node>,
    /// The memory of the entries themselves.
    index_bytes: u64,
    size: SavedSize,
}

/// A saved file or folder.
struct Node {
    mode: u32,
    modified: Modified,
    kind: NodeKind,
}

enum NodeKind {
    Folder,
    Link(Vec<u8>),
    File(Content),
    Fifo,
    /// A socket. It is left as it is.
    Socket,
}

/// The time of the last modification: seconds and nanoseconds.
type Modified = (i64, i64);

/// The content of a saved file: a part of a file without a name.
#[derive(Clone)]
struct Content {
    store: Arc<OwnedFd>,
    /// A multiple of the page size.
    offset: u64,
    size: u64,
    /// The bytes that are stored. Pieces of zeros are not.
    stored: u64,
}

impl SavedStates {
    pub(in crate::server) fn get(&self, number: u32) -> Result<Arc<SavedState>, WireError> {
        let message = "there is no such saved state of the files";
        self.0
            .get(&number)
            .cloned()
            .ok_or_else(|| WireError::new(ErrorCode::NotFound, message))
    }

    /// Returns the newest saved state.
    pub(in crate::server) fn newest(&self) -> Option<Arc<SavedState>> {
        self.0.last_key_value().map(|(_, state)| Arc::clone(state))
    }

    pub(in crate::server) fn is_full(&self) -> bool {
        self.0.len() >= MAX_SAVED
    }

    /// Adds a saved state. Returns its size.
    pub(in crate::server) fn add(&mut self, number: u32, state: SavedState) -> SavedSize {
        let size = state.size;
        self.0.insert(number, Arc::new(state));
        size
    }

    /// Drops a saved state, and frees the contents that no other one has. Returns what each of the others holds.
    pub(in crate::server) fn forget(&mut self, number: u32) -> ForgetFilesReply {
        if let Some(dropped) = self.0.remove(&number) {
            let kept: BTreeSet<_> = self
                .0
                .values()
                .flat_map(|state| state.contents())
                .map(Content::place)
                .collect();
            for content in dropped.contents().filter(|content| !kept.contains(&content.place())) {
                content.free();
            }
        }
        let mut counted = BTreeSet::new();
        let held = self.0.iter().map(|(number, state)| {
            let new = state.contents().filter(|content| counted.insert(content.place()));
            (
                *number,
                new.fold(state.index_bytes, |sum, content| sum.saturating_add(content.stored)),
            )
        });
        ForgetFilesReply { held: held.collect() }
    }
}

impl SavedState {
    fn contents(&self) -> impl Iterator<Item = &Content> {
        self.entries.values().filter_map(|node| match &node.kind {
            NodeKind::File(content) => Some(content),
            NodeKind::Folder | NodeKind::Link(_) | NodeKind::Fifo | NodeKind::Socket => None,
        })
    }

    /// Finds the content of a file by its path, as the host names it.
    pub(super) fn content(&self, path: &str) -> Result<(&OwnedFd, u64, u64), WireError> {
        let found = self.folders.iter().enumerate().find_map(|(index, folder)| {
            let rest = path.strip_prefix(folder.as_str())?.strip_prefix('/')?;
            let find = |name: Vec<u8>| self.entries.get(&(index, name));
            find(rest.as_bytes().to_vec()).or_else(|| find(names::from_text(rest)?))
        });
        match found.map(|node| &node.kind) {
            Some(NodeKind::File(content)) => Ok((content.store.as_ref(), content.offset, content.size)),
            Some(NodeKind::Folder) => Err(WireError::new(ErrorCode::IsDirectory, "it is a folder")),
            Some(NodeKind::Link(_) | NodeKind::Fifo | NodeKind::Socket) => {
                Err(super::errors::not_regular("link, FIFO or socket"))
            }
            None => Err(super::errors::of_file(Errno::NOENT)),
        }
    }

    pub(in crate::server) fn folders(&self) -> &[String] {
        &self.folders
    }

    fn path_of(&self, key: &Key) -> String {
        path_of(&self.folders, key)
    }
}

impl Content {
    /// Returns a value that only the same content has.
    fn place(&self) -> (usize, u64) {
        (Arc::as_ptr(&self.store).addr(), self.offset)
    }

    /// Gives the memory of the content back.
    fn free(&self) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let length = self.size.next_multiple_of(PAGE_BYTES);
        if length > 0 {
            // Otherwise it is freed with the last content of its file.
            let _best_effort = fallocate(&self.store, flags, self.offset, length);
        }
    }

    /// Reads a piece from a position of the file. Returns less only at the end.
    fn read(&self, buffer: &mut [u8], position: u64) -> Result<usize, Errno> {
        let left = usize::try_from(self.size.saturating_sub(position)).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(left);
        let piece = buffer.get_mut(..wanted).unwrap_or_default();
        fill(&self.store, piece, self.offset.saturating_add(position))
    }
}

impl NodeKind {
    /// Returns true if an entry of this type can be changed into the saved one without a replacement.
    fn has_type(&self, other: FileType) -> bool {
        match self {
            Self::Folder => other == FileType::Directory,
            Self::Link(_) => other == FileType::Symlink,
            Self::File(_) => other == FileType::RegularFile,
            Self::Fifo => other == FileType::Fifo,
            Self::Socket => other == FileType::Socket,
        }
    }

    const fn size(&self) -> u64 {
        match self {
            Self::File(content) => content.size,
            Self::Folder | Self::Link(_) | Self::Fifo | Self::Socket => 0,
        }
    }
}

/// Returns the path of an entry, as the host names it.
fn path_of(folders: &[String], (folder, path): &Key) -> String {
    let folder = folders.get(*folder).map_or("", String::as_str);
    format!("{folder}/{}", names::to_text(path))
}

/// Does a slice of work: `advance` does one step, and returns false at the end. Returns true if work is left.
fn work(mut advance: impl FnMut() -> Result<bool, WireError>) -> Result<bool, WireError> {
    for _ in 0..SLICE_STEPS {
        if !advance()? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the result of a slice of work. `finish` makes that of a finished operation.
fn step_of(worked: Result<bool, WireError>, finish: impl FnOnce() -> Step) -> Step {
    match worked {
        Ok(true) => Step::Again,
        Ok(false) => finish(),
        Err(error) => Step::Failed(error),
    }
}

/// Writes all bytes at a position of a file.
fn write_at(file: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = retry(|| pwrite(file, bytes, at))?;
        at = at.saturating_add(count(written));
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &OwnedFd, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match retry(|| pread(file, &mut *rest, offset.saturating_add(count(done))))? {
            0 => break,
            more => done += more,
        }
    }
    Ok(done)
}

fn count(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Returns the mode and the time of modification. The types of these fields differ between architectures.
#[allow(
    clippy::useless_conversion,
    clippy::unnecessary_fallible_conversions,
    reason = "the fields' types differ between architectures"
)]
fn attributes(status: &Stat) -> (u32, Modified) {
    let seconds = i64::try_from(status.st_mtime).unwrap_or(0);
    let nanoseconds = i64::try_from(status.st_mtime_nsec).unwrap_or(0);
    (u32::from(status.st_mode) & PERMISSION_BITS, (seconds, nanoseconds))
}

fn size_of(status: &Stat) -> u64 {
    u64::try_from(status.st_size).unwrap_or(0)
}

/// Returns the error of an entry, with its path.
fn failed(path: &str, errno: Errno) -> WireError {
    let error = super::errors::of_file(errno);
    // The end of a path says more than its beginning.
    let start = path.len().saturating_sub(SHOWN_PATH_BYTES);
    let start = (start..path.len()).find(|at| path.is_char_boundary(*at)).unwrap_or(0);
    let shown = path.get(start..).unwrap_or_default();
    WireError {
        code: if errno == Errno::NAMETOOLONG {
            ErrorCode::TooLarge
        } else {
            error.code
        },
        message: format!("{}{shown}: {}", if start > 0 { "…" } else { "" }, error.message),
        ..error
    }
}

/// Returns a file without a name for contents: in memory, or in a private folder where the sandbox must not have memory
/// files, because nothing would charge them to it.
fn new_store(folders: &TopFolders) -> Result<OwnedFd, Errno> {
    match memfd_create("sandcell-files", MemfdFlags::CLOEXEC) {
        Err(Errno::NOSYS | Errno::PERM) => folders.unnamed_file(),
        result => result,
    }
}
