//! Adoption of a worker: a fork of the zygote that enters the sandbox from outside, through the launcher.
//!
//! The worker is not a child of the agent. So the launcher reports its id inside, and later its end, on a socket. The
//! worker receives the far ends of the direct pipes on this socket before it locks itself. Without direct pipes it
//! makes pipes and sends their near ends. False messages from the worker affect only the worker.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal};
use sandcell_jail::direct_pipes::DirectPipes;
use sandcell_jail::wire::{EntryMessage, receive_one, send};
use sandcell_sandbox::Exit;

use super::program::Pipes;
use super::tree;
use crate::protocol::{ErrorCode, WireError};

/// The entry socket of one sandbox. One worker enters by it.
pub(super) struct EntrySocket {
    socket: OwnedFd,
    pid: Option<Pid>,
    pipes: Option<Pipes>,
    progress: Progress,
}

/// The progress of the adoption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    NotYet,
    /// This stream of the host waits for the worker.
    Expected(u32),
    Inside,
    /// The host has given the worker up.
    Unwanted,
}

/// The result of reading the entry socket.
pub(super) enum AdoptEvent {
    NoEvent,
    /// A part of the worker has arrived: its id or its pipes.
    Entered,
    /// The worker has ended.
    Ended(Pid, Exit),
    /// The socket is closed.
    Closed,
}

impl EntrySocket {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        fcntl_setfl(&socket, fcntl_getfl(&socket)? | OFlags::NONBLOCK)?;
        Ok(Self {
            socket,
            pid: None,
            pipes: None,
            progress: Progress::NotYet,
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Makes this stream wait for the worker, and sends these direct pipes to the worker.
    pub(super) fn expect(&mut self, stream: u32, direct_pipes: Option<DirectPipes>) -> Result<(), WireError> {
        if self.progress != Progress::NotYet {
            return Err(WireError::new(
                ErrorCode::Invalid,
                "a process has already entered the sandbox",
            ));
        }
        let far_ends = direct_pipes.map(|ends| [ends.stdout, ends.stderr, ends.control_in, ends.control_out]);
        let far_ends: Vec<BorrowedFd<'_>> = far_ends.iter().flatten().map(AsFd::as_fd).collect();
        send(self.socket.as_fd(), &EntryMessage::Lane {}, &far_ends)
            .map_err(|_| WireError::new(ErrorCode::Failed, "the launcher has closed the entry socket"))?;
        if !far_ends.is_empty() {
            self.pipes = Some(Pipes::direct());
        }
        self.progress = Progress::Expected(stream);
        Ok(())
    }

    /// Returns the adopted worker, once its id and its pipes are known and a stream waits for it.
    pub(super) fn complete(&mut self) -> Option<(u32, Pid, Pipes)> {
        let (Progress::Expected(stream), Some(pid)) = (self.progress, self.pid) else {
            return None;
        };
        let pipes = self.pipes.take()?;
        self.progress = Progress::Inside;
        Some((stream, pid, pipes))
    }

    /// Receives one message.
    pub(super) fn receive(&mut self) -> AdoptEvent {
        match receive_one(self.socket.as_fd()) {
            Ok(Some((EntryMessage::Entered { pid }, _))) if self.pid.is_none() => {
                self.pid = Pid::from_raw(pid.max(0)).filter(|pid| *pid != Pid::INIT);
                self.kill_unwanted();
                AdoptEvent::Entered
            }
            Ok(Some((EntryMessage::Pipes {}, descriptors))) if self.pipes.is_none() => {
                let four = <[OwnedFd; 4]>::try_from(descriptors).ok();
                self.pipes = four.and_then(Pipes::received);
                AdoptEvent::Entered
            }
            Ok(Some((EntryMessage::Ended { status, signal }, _))) => {
                let exit = if signal {
                    Exit::Signal(status)
                } else {
                    Exit::Code(status)
                };
                self.pid.map_or(AdoptEvent::Closed, |pid| AdoptEvent::Ended(pid, exit))
            }
            Ok(Some(_)) => AdoptEvent::NoEvent,
            // The socket reports a reset once, before the last messages: the worker has ended without reading its own
            // messages.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionReset
                ) =>
            {
                AdoptEvent::NoEvent
            }
            Ok(None) | Err(_) => AdoptEvent::Closed,
        }
    }

    /// Gives up the stream that waits for the worker. If the worker enters later, it is killed.
    pub(super) fn give_up(&mut self, stream: u32) {
        if self.progress == Progress::Expected(stream) {
            self.progress = Progress::Unwanted;
            self.kill_unwanted();
        }
    }

    fn kill_unwanted(&self) {
        if let (Progress::Unwanted, Some(pid)) = (self.progress, self.pid) {
            tree::signal_process(pid, Signal::KILL);
        }
    }

    /// Closes the entry socket. Returns the stream that still waits.
    pub(super) fn close(self) -> Option<u32> {
        match self.progress {
            Progress::Expected(stream) => Some(stream),
            Progress::NotYet | Progress::Inside | Progress::Unwanted => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use sandcell_jail::wire::pair;

    use super::*;

    #[test]
    fn the_end_of_a_worker_that_never_read_its_direct_pipe_is_noticed() {
        let (ours, launchers) = pair().unwrap();
        let mut entry = EntrySocket::new(ours).unwrap();
        let (_near, far) = DirectPipes::make().unwrap();
        entry.expect(3, Some(far)).unwrap();
        send(launchers.as_fd(), &EntryMessage::Entered { pid: 2 }, &[]).unwrap();
        let ended = EntryMessage::Ended {
            status: 9,
            signal: true,
        };
        send(launchers.as_fd(), &ended, &[]).unwrap();
        // The message with the direct pipes is unread in the socket.
        drop(launchers);
        let mut events = Vec::new();
        loop {
            match entry.receive() {
                AdoptEvent::NoEvent => {}
                AdoptEvent::Entered => events.push("entered"),
                AdoptEvent::Ended(_, exit) => {
                    assert_eq!(exit, Exit::Signal(9));
                    events.push("ended");
                }
                AdoptEvent::Closed => break,
            }
        }
        assert_eq!(events, ["entered", "ended"]);
    }
}
