//! File operations below the sandbox's root, done in slices.
//!
//! The host chooses every path and the sandbox controls every file, so neither is trusted. [`Root`] has the rules for
//! opening.

use super::errors;

mod entry;
mod layers;
mod list;
mod names;
mod open;
mod read;
mod remove;
mod saved;
mod write;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use sandcell_sandbox::WriteMode;

use crate::protocol::{
    FileChangesReply, ImageReply, ListReply, OutBuffer, ProtocolError, ReadReply, RestoreFilesReply, WireError,
    WriteReply,
};
pub(super) use entry::{entry, make_folder, rename};
pub(super) use open::{Root, folder_to_watch};
pub(super) use saved::{SavedState, SavedStates};
pub(super) use write::{REPLACING_PREFIX, TEMPORARY_PREFIX};

/// A file operation in progress.
pub(super) enum Job {
    List(list::List),
    Read(read::Read),
    Write(Box<write::Write>),
    Remove(remove::Remove),
    Save(Box<saved::Save>),
    Restore(Box<saved::Restore>),
    Compare(Box<saved::Changes>),
    Image(Box<saved::Image>),
    ListLayers(Box<layers::Layers>),
}

/// The result of a slice of work.
pub(super) enum Step {
    /// The operation continues later.
    Again,
    Listed(ListReply),
    Read(ReadReply),
    Written(WriteReply),
    Removed,
    Saved(u32, SavedState),
    Restored(RestoreFilesReply),
    Compared(FileChangesReply),
    /// An image, whose file the host takes.
    Imaged(OwnedFd, ImageReply),
    Failed(WireError),
}

impl Job {
    pub(super) fn list(root: &Root, path: &str, recursive: bool, max: usize) -> Result<Self, WireError> {
        list::List::new(root, path, recursive, max).map(Self::List)
    }

    pub(super) fn read(root: &Root, path: &str, offset: u64, len: u64) -> Result<Self, WireError> {
        read::Read::new(root, path, offset, len).map(Self::Read)
    }

    pub(super) fn write(root: &Root, path: &str, mode: WriteMode) -> Result<Self, WireError> {
        write::Write::new(root, path, mode).map(|write| Self::Write(Box::new(write)))
    }

    pub(super) fn remove(root: &Root, path: &str) -> Result<Self, WireError> {
        remove::Remove::new(root, path).map(Self::Remove)
    }

    /// Saves the files below these folders: their paths for the host, and in this system.
    pub(super) fn save(
        root: &Root,
        states: &SavedStates,
        number: u32,
        folders: (&[String], &[String]),
        max_bytes: u64,
    ) -> Result<Self, WireError> {
        saved::Save::new(root, states, number, folders, max_bytes).map(|save| Self::Save(Box::new(save)))
    }

    pub(super) fn restore(root: &Root, state: Arc<SavedState>, real: &[String]) -> Result<Self, WireError> {
        saved::Restore::new(root, state, real).map(|restore| Self::Restore(Box::new(restore)))
    }

    pub(super) fn compare(root: &Root, state: Arc<SavedState>, real: &[String], max: usize) -> Result<Self, WireError> {
        saved::Changes::new(root, state, real, max).map(|changes| Self::Compare(Box::new(changes)))
    }

    /// Makes an image of saved files.
    pub(super) fn image(
        root: &Root,
        saved: Arc<SavedState>,
        real: &[String],
        max_bytes: u64,
    ) -> Result<Self, WireError> {
        saved::Image::new(root, saved, real, max_bytes).map(|image| Self::Image(Box::new(image)))
    }

    /// Reads a part of an image.
    pub(super) fn read_image(image: &OwnedFd, offset: u64, len: u64) -> Result<Self, WireError> {
        read::Read::of_image(image, offset, len).map(Self::Read)
    }

    pub(super) fn read_saved(state: &SavedState, path: &str, offset: u64, len: u64) -> Result<Self, WireError> {
        read::Read::of_saved(state, path, offset, len).map(Self::Read)
    }

    /// Lists the private layers of copy-on-write mounts.
    pub(super) fn list_layers(root: &Root, max: usize) -> Self {
        Self::ListLayers(Box::new(layers::Layers::new(root, max)))
    }

    /// Returns true if a slice can be done without a frame from the host.
    pub(super) fn can_go_on(&self) -> bool {
        match self {
            Self::List(_) | Self::Remove(_) | Self::Save(_) | Self::Restore(_) | Self::Compare(_) | Self::Image(_) => {
                true
            }
            Self::Read(read) => read.can_go_on(),
            Self::ListLayers(layers) => layers.can_go_on(),
            Self::Write(_) => false,
        }
    }

    /// Does a slice.
    pub(super) fn slice(&mut self, stream: u32, out: &mut OutBuffer) -> Step {
        match self {
            Self::List(list) => list.slice(),
            Self::Read(read) => read.slice(stream, out),
            Self::Write(_) => Step::Again,
            Self::Remove(remove) => remove.slice(),
            Self::Save(save) => save.slice(),
            Self::Restore(restore) => restore.slice(),
            Self::Compare(changes) => changes.slice(),
            Self::Image(image) => image.slice(),
            Self::ListLayers(layers) => layers.slice(stream, out),
        }
    }

    /// Receives contents from the host.
    pub(super) fn receive(&mut self, stream: u32, bytes: &[u8], out: &mut OutBuffer) -> Result<Step, ProtocolError> {
        match self {
            Self::Write(write) => write.receive(stream, bytes, out),
            _ => Err(ProtocolError::new("data for an operation that takes none")),
        }
    }

    /// Finishes the operation. The host has sent everything.
    pub(super) fn finish(&mut self) -> Result<Step, ProtocolError> {
        match self {
            Self::Write(write) => Ok(write.finish()),
            _ => Err(ProtocolError::new("CLOSE for an operation that takes no data")),
        }
    }

    /// Adds credit for contents that the host has taken.
    pub(super) fn refund(&mut self, amount: u32) -> Result<(), ProtocolError> {
        match self {
            Self::Read(read) => read.refund(amount),
            Self::ListLayers(layers) => layers.refund(amount),
            _ => Err(ProtocolError::new("credit for an operation that sends no data")),
        }
    }
}
