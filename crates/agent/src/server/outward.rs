//! Bytes from a program to the host: stdout, stderr, and the program's direction of control.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, ioctl_fionread};

use crate::protocol::{Breach, MAX_DATA, OutBuffer, SendWindow};

/// The reading end of a program's pipe.
pub(super) struct Outward {
    stream: u32,
    channel: u8,
    /// None after end of file, and where the bytes go past us.
    pipe: Option<OwnedFd>,
    window: SendWindow,
    /// How many bytes were ever forwarded.
    forwarded: u64,
}

/// What a read brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Took {
    Bytes,
    /// The pipe is empty now.
    Nothing,
    /// There is no pipe any more.
    End,
    /// The host has to take something first.
    NoRoom,
}

impl Outward {
    pub(super) fn new(stream: u32, channel: u8, pipe: Option<OwnedFd>) -> Self {
        Self {
            stream,
            channel,
            pipe,
            window: SendWindow::default(),
            forwarded: 0,
        }
    }

    /// The pipe, while there is room for what it holds.
    pub(super) fn polled(&self) -> Option<BorrowedFd<'_>> {
        if self.window.room() == 0 {
            None
        } else {
            self.pipe.as_ref().map(AsFd::as_fd)
        }
    }

    /// The pipe, until its end was seen.
    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn refund(&mut self, amount: u32) -> Result<(), Breach> {
        self.window.refund(amount)
    }

    /// Forwards one frame's worth, at most `limit` bytes.
    pub(super) fn take(&mut self, limit: u64, out: &mut OutBuffer) -> Took {
        let Some(pipe) = &self.pipe else { return Took::End };
        let room = self.window.room().min(usize::try_from(limit).unwrap_or(usize::MAX));
        if room == 0 {
            return Took::NoRoom;
        }
        let mut buffer = [const { MaybeUninit::<u8>::uninit() }; MAX_DATA];
        let Some(offered) = buffer.get_mut(..room) else {
            return Took::NoRoom;
        };
        match rustix::io::read(pipe, offered) {
            Ok(([], _)) => self.end(out),
            Ok((bytes, _)) => {
                out.data(self.stream, self.channel, bytes);
                self.window.spend(bytes.len());
                self.forwarded += u64::try_from(bytes.len()).unwrap_or(0);
                Took::Bytes
            }
            Err(Errno::AGAIN | Errno::INTR) => Took::Nothing,
            Err(_) => self.end(out),
        }
    }

    fn end(&mut self, out: &mut OutBuffer) -> Took {
        self.pipe = None;
        out.close(self.stream, self.channel);
        Took::End
    }

    /// How much stands in the pipe now. If the system does not tell, more than any pipe holds: it is then read until it is empty.
    pub(super) fn standing(&self) -> u64 {
        self.pipe
            .as_ref()
            .map_or(0, |pipe| ioctl_fionread(pipe).unwrap_or(u64::from(u32::MAX)))
    }

    /// The mark that is reached when everything that stands in the pipe now was forwarded.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.forwarded.saturating_add(self.standing()))
    }
}

/// A number of bytes that a channel has to forward before something else may be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark(u64);

impl Mark {
    /// Forwards what is missing, as far as the window and the output allow. True when the mark is reached. A pipe that turns out to be empty
    /// has reached it: somebody inside has read his own output.
    pub(super) fn reach(&mut self, outward: &mut Outward, out: &mut OutBuffer, crowded: usize) -> bool {
        loop {
            let missing = self.0.saturating_sub(outward.forwarded);
            if missing == 0 {
                return true;
            }
            if out.len() >= crowded {
                return false;
            }
            match outward.take(missing, out) {
                Took::Bytes => {}
                Took::NoRoom => return false,
                Took::Nothing | Took::End => {
                    self.0 = 0;
                    return true;
                }
            }
        }
    }
}
