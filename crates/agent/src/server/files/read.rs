//! Reads a part of a file.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::{Errno, pread};

use super::open::Root;
use super::saved::SavedState;
use super::{Step, errors};
use crate::protocol::{
    BODY_CHANNEL, ErrorCode, MAX_DATA, MAX_TRANSFER, OutBuffer, ProtocolError, ReadReply, SendWindow, WireError,
};

pub(in crate::server) struct Read {
    file: OwnedFd,
    /// The place of the content in the file.
    start: u64,
    total: u64,
    offset: u64,
    left: u64,
    window: SendWindow,
}

impl Read {
    pub(super) fn new(root: &Root, path: &str, offset: u64, len: u64) -> Result<Self, WireError> {
        check_length(len)?;
        let (file, status) = root.regular(path, OFlags::RDONLY)?;
        let total = u64::try_from(status.st_size).unwrap_or(0);
        Ok(Self {
            file,
            start: 0,
            total,
            offset,
            left: len,
            window: SendWindow::default(),
        })
    }

    /// Reads a part of a file as a saved state has it.
    pub(super) fn of_saved(state: &SavedState, path: &str, offset: u64, len: u64) -> Result<Self, WireError> {
        check_length(len)?;
        let (store, start, total) = state.content(path)?;
        Ok(Self {
            file: rustix::io::fcntl_dupfd_cloexec(store, 0).map_err(errors::of_file)?,
            start,
            total,
            offset,
            left: len.min(total.saturating_sub(offset)),
            window: SendWindow::default(),
        })
    }

    /// Reads a part of an image of saved files.
    pub(super) fn of_image(image: &OwnedFd, offset: u64, len: u64) -> Result<Self, WireError> {
        check_length(len)?;
        let status = rustix::fs::fstat(image).map_err(errors::of_file)?;
        Ok(Self {
            file: rustix::io::fcntl_dupfd_cloexec(image, 0).map_err(errors::of_file)?,
            start: 0,
            total: u64::try_from(status.st_size).unwrap_or(0),
            offset,
            left: len,
            window: SendWindow::default(),
        })
    }

    pub(super) fn can_go_on(&self) -> bool {
        self.window.room() > 0
    }

    pub(super) fn refund(&mut self, amount: u32) -> Result<(), ProtocolError> {
        self.window.refund(amount)
    }

    /// Sends at most one frame.
    pub(super) fn slice(&mut self, stream: u32, out: &mut OutBuffer) -> Step {
        let room = self.window.room().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let mut buffer = [const { MaybeUninit::<u8>::uninit() }; MAX_DATA];
        let offered = buffer.get_mut(..room).unwrap_or_default();
        if self.left == 0 || i64::try_from(self.offset).is_err() {
            return Step::Read(ReadReply { total: self.total });
        }
        match pread(&self.file, offered, self.start.saturating_add(self.offset)) {
            Ok(([], _)) => Step::Read(ReadReply { total: self.total }),
            Ok((bytes, _)) => {
                out.data(stream, BODY_CHANNEL, bytes);
                self.window.spend(bytes.len());
                let count = u64::try_from(bytes.len()).unwrap_or(self.left);
                self.offset = self.offset.saturating_add(count);
                self.left = self.left.saturating_sub(count);
                Step::Again
            }
            Err(Errno::INTR) => Step::Again,
            Err(error) => Step::Failed(errors::of_file(error)),
        }
    }
}

fn check_length(len: u64) -> Result<(), WireError> {
    if len > MAX_TRANSFER {
        let message = format!("at most {MAX_TRANSFER} bytes can be read at once");
        return Err(WireError::new(ErrorCode::Invalid, message));
    }
    Ok(())
}
