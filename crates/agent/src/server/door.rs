//! Where a process enters the sandbox from outside: the child of a warmed interpreter, which the launcher lets in.
//!
//! It is no child of the agent, so the launcher tells of it here, by its id inside, and in the end how it ended. The process
//! gets the far ends of the lane here before it locks itself; where there is none it makes pipes and sends their near ends.
//! What it could tell wrongly is only about itself.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal};
use sandcell_jail::lane::Lane;
use sandcell_jail::wire::{AtDoor, receive_one, send};
use sandcell_sandbox::Exit;

use super::program::Pipes;
use super::tree;
use crate::protocol::{ErrorCode, WireError};

/// The door of one sandbox; one process enters by it.
pub(super) struct Door {
    socket: OwnedFd,
    pid: Option<Pid>,
    pipes: Option<Pipes>,
    visited: Visited,
}

/// How far the one visit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Visited {
    NotYet,
    /// The host waits on this stream.
    Expected(u32),
    Inside,
    /// The host has given it up.
    Unwanted,
}

/// What came through the door.
pub(super) enum News {
    Nothing,
    /// More of the visitor is known than before.
    Entered,
    /// The visitor has ended.
    Ended(Pid, Exit),
    /// Nothing will come any more.
    Closed,
}

impl Door {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        fcntl_setfl(&socket, fcntl_getfl(&socket)? | OFlags::NONBLOCK)?;
        Ok(Self {
            socket,
            pid: None,
            pipes: None,
            visited: Visited::NotYet,
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// From now on this stream waits for whoever enters, and who gets this lane.
    pub(super) fn expect(&mut self, stream: u32, lane: Option<Lane>) -> Result<(), WireError> {
        if self.visited != Visited::NotYet {
            return Err(WireError::new(ErrorCode::Invalid, "somebody has entered already"));
        }
        let far = lane.map(|lane| [lane.stdout, lane.stderr, lane.control_in, lane.control_out]);
        let far: Vec<BorrowedFd<'_>> = far.iter().flatten().map(AsFd::as_fd).collect();
        send(self.socket.as_fd(), &AtDoor::Lane {}, &far)
            .map_err(|_| WireError::new(ErrorCode::Failed, "nobody is at the door"))?;
        if !far.is_empty() {
            self.pipes = Some(Pipes::past());
        }
        self.visited = Visited::Expected(stream);
        Ok(())
    }

    /// Who has entered, if all of him is there and somebody waits for him.
    pub(super) fn complete(&mut self) -> Option<(u32, Pid, Pipes)> {
        let (Visited::Expected(stream), Some(pid)) = (self.visited, self.pid) else {
            return None;
        };
        let pipes = self.pipes.take()?;
        self.visited = Visited::Inside;
        Some((stream, pid, pipes))
    }

    /// Takes one message.
    pub(super) fn listen(&mut self) -> News {
        match receive_one(self.socket.as_fd()) {
            Ok(Some((AtDoor::Entered { pid }, _))) if self.pid.is_none() => {
                self.pid = Pid::from_raw(pid.max(0)).filter(|pid| *pid != Pid::INIT);
                self.end_unwanted();
                News::Entered
            }
            Ok(Some((AtDoor::Pipes {}, descriptors))) if self.pipes.is_none() => {
                let four = <[OwnedFd; 4]>::try_from(descriptors).ok();
                self.pipes = four.and_then(Pipes::brought);
                News::Entered
            }
            Ok(Some((AtDoor::Ended { status, signal }, _))) => {
                let exit = if signal {
                    Exit::Signal(status)
                } else {
                    Exit::Code(status)
                };
                self.pid.map_or(News::Closed, |pid| News::Ended(pid, exit))
            }
            Ok(Some(_)) => News::Nothing,
            // A reset is told once, before what was said last: the visitor has ended without looking at what waited for him.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionReset
                ) =>
            {
                News::Nothing
            }
            Ok(None) | Err(_) => News::Closed,
        }
    }

    /// The host does not wait on this stream any more: whoever enters is ended.
    pub(super) fn forget(&mut self, stream: u32) {
        if self.visited == Visited::Expected(stream) {
            self.visited = Visited::Unwanted;
            self.end_unwanted();
        }
    }

    fn end_unwanted(&self) {
        if let (Visited::Unwanted, Some(pid)) = (self.visited, self.pid) {
            tree::one(pid, Signal::KILL);
        }
    }

    /// Nobody enters any more. The stream that still waits.
    pub(super) fn close(self) -> Option<u32> {
        match self.visited {
            Visited::Expected(stream) => Some(stream),
            Visited::NotYet | Visited::Inside | Visited::Unwanted => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use sandcell_jail::wire::pair;

    use super::*;

    #[test]
    fn the_end_of_a_visitor_who_never_looked_at_his_lane_is_heard() {
        let (ours, launchers) = pair().unwrap();
        let mut door = Door::new(ours).unwrap();
        let (_near, far) = Lane::make().unwrap();
        door.expect(3, Some(far)).unwrap();
        send(launchers.as_fd(), &AtDoor::Entered { pid: 2 }, &[]).unwrap();
        let ended = AtDoor::Ended {
            status: 9,
            signal: true,
        };
        send(launchers.as_fd(), &ended, &[]).unwrap();
        // The lane stands unread in it.
        drop(launchers);
        let mut heard = Vec::new();
        loop {
            match door.listen() {
                News::Nothing => {}
                News::Entered => heard.push("entered"),
                News::Ended(_, exit) => {
                    assert_eq!(exit, Exit::Signal(9));
                    heard.push("ended");
                }
                News::Closed => break,
            }
        }
        assert_eq!(heard, ["entered", "ended"]);
    }
}
