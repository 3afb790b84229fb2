//! Copies bytes from a program to the host: stdout, stderr, and the outward direction of control.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, ioctl_fionread};

use crate::protocol::{MAX_DATA, OutBuffer, ProtocolError, SendWindow};

/// The reading end of a program's pipe.
pub(super) struct OutputPump {
    stream: u32,
    channel: u8,
    /// None after end of file, and for direct pipes.
    pipe: Option<OwnedFd>,
    window: SendWindow,
    /// The number of bytes forwarded so far.
    forwarded: u64,
}

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadResult {
    Bytes,
    /// The pipe is empty now.
    Empty,
    /// The pipe is closed.
    End,
    /// The window has no room.
    NoRoom,
}

impl OutputPump {
    pub(super) fn new(stream: u32, channel: u8, pipe: Option<OwnedFd>) -> Self {
        Self {
            stream,
            channel,
            pipe,
            window: SendWindow::default(),
            forwarded: 0,
        }
    }

    /// Returns the pipe, while the window has room for its bytes.
    pub(super) fn polled(&self) -> Option<BorrowedFd<'_>> {
        if self.window.room() == 0 {
            None
        } else {
            self.pipe.as_ref().map(AsFd::as_fd)
        }
    }

    /// Returns the pipe, until end of file.
    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn refund(&mut self, amount: u32) -> Result<(), ProtocolError> {
        self.window.refund(amount)
    }

    /// Forwards at most one frame and at most `limit` bytes.
    pub(super) fn take(&mut self, limit: u64, out: &mut OutBuffer) -> ReadResult {
        let Some(pipe) = &self.pipe else { return ReadResult::End };
        let room = self.window.room().min(usize::try_from(limit).unwrap_or(usize::MAX));
        if room == 0 {
            return ReadResult::NoRoom;
        }
        let mut buffer = [const { MaybeUninit::<u8>::uninit() }; MAX_DATA];
        let Some(offered) = buffer.get_mut(..room) else {
            return ReadResult::NoRoom;
        };
        match rustix::io::read(pipe, offered) {
            Ok(([], _)) => self.end(out),
            Ok((bytes, _)) => {
                out.data(self.stream, self.channel, bytes);
                self.window.spend(bytes.len());
                self.forwarded += u64::try_from(bytes.len()).unwrap_or(0);
                ReadResult::Bytes
            }
            Err(Errno::AGAIN | Errno::INTR) => ReadResult::Empty,
            Err(_) => self.end(out),
        }
    }

    fn end(&mut self, out: &mut OutBuffer) -> ReadResult {
        self.pipe = None;
        out.close(self.stream, self.channel);
        ReadResult::End
    }

    /// Returns the number of bytes in the pipe. If the system cannot count them, returns more than any pipe holds, so
    /// the pipe is read until it is empty.
    pub(super) fn available(&self) -> u64 {
        self.pipe
            .as_ref()
            .map_or(0, |pipe| ioctl_fionread(pipe).unwrap_or(u64::from(u32::MAX)))
    }

    /// Returns the mark that is reached when all bytes that are in the pipe now were forwarded.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.forwarded.saturating_add(self.available()))
    }
}

/// The number of bytes that a channel must have forwarded before the next message may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark(u64);

impl Mark {
    /// The mark that is reached when the pipe is empty.
    pub(super) const PIPE_EMPTY: Self = Self(u64::MAX);

    /// Forwards the missing bytes, as far as the window and the output permit. Returns true when the mark is reached.
    /// An empty pipe has reached its mark: a process inside has read the output itself.
    pub(super) fn reach(&mut self, pump: &mut OutputPump, out: &mut OutBuffer, crowded: usize) -> bool {
        loop {
            let missing = self.0.saturating_sub(pump.forwarded);
            if missing == 0 {
                return true;
            }
            if out.len() >= crowded {
                return false;
            }
            match pump.take(missing, out) {
                ReadResult::Bytes => {}
                ReadResult::NoRoom => return false,
                ReadResult::Empty | ReadResult::End => {
                    self.0 = 0;
                    return true;
                }
            }
        }
    }
}
