//! Files below the sandbox's root, worked on in slices.
//!
//! Every path is the host's wish and every file is the sandbox's, so neither is trusted: see [`Root`] for how something is opened.

use super::errors;

mod list;
mod names;
mod open;
mod read;
mod write;

use sandcell_sandbox::WriteMode;

use crate::protocol::{Breach, ListReply, OutBuffer, ReadReply, WireError, WriteReply};
pub(super) use open::Root;

/// A file operation under way.
pub(super) enum Job {
    List(list::List),
    Read(read::Read),
    Write(Box<write::Write>),
}

/// What a slice of work has led to.
pub(super) enum Step {
    /// It goes on later.
    Again,
    Listed(ListReply),
    Read(ReadReply),
    Written(WriteReply),
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

    /// Whether a slice can be done without hearing from the host.
    pub(super) fn can_go_on(&self) -> bool {
        match self {
            Self::List(_) => true,
            Self::Read(read) => read.can_go_on(),
            Self::Write(_) => false,
        }
    }

    /// Does a slice.
    pub(super) fn slice(&mut self, stream: u32, out: &mut OutBuffer) -> Step {
        match self {
            Self::List(list) => list.slice(),
            Self::Read(read) => read.slice(stream, out),
            Self::Write(_) => Step::Again,
        }
    }

    /// Takes contents from the host.
    pub(super) fn receive(&mut self, stream: u32, bytes: &[u8], out: &mut OutBuffer) -> Result<Step, Breach> {
        match self {
            Self::Write(write) => write.receive(stream, bytes, out),
            Self::List(_) | Self::Read(_) => Err(Breach::new("data for an operation that takes none")),
        }
    }

    /// The host has sent everything.
    pub(super) fn finish(&mut self) -> Result<Step, Breach> {
        match self {
            Self::Write(write) => Ok(write.finish()),
            Self::List(_) | Self::Read(_) => Err(Breach::new("CLOSE for an operation that takes no data")),
        }
    }

    /// The host has taken contents.
    pub(super) fn refund(&mut self, amount: u32) -> Result<(), Breach> {
        match self {
            Self::Read(read) => read.refund(amount),
            Self::List(_) | Self::Write(_) => Err(Breach::new("credit for an operation that sends no data")),
        }
    }
}
