//! Who has ended. As process 1 that is everybody who was orphaned; elsewhere only the agent's own children, so that other
//! threads of the same process keep theirs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, WaitOptions, WaitStatus, getpid, pidfd_open, wait, waitpid};
use sandcell_sandbox::Exit;

/// At most this many are reaped before everybody else has a turn.
const BATCH: usize = 256;

pub(super) struct Children {
    /// Readable when a child has ended; only process 1 has it.
    signal: Option<OwnedFd>,
    /// Children of a process that is not the first one, which nobody waits for any more.
    strays: Vec<Pid>,
    unfinished: bool,
}

impl Children {
    pub(super) fn new() -> io::Result<Self> {
        let signal = if getpid() == Pid::INIT {
            Some(sandcell_jail::spawn::watch_children()?)
        } else {
            None
        };
        // Whoever ended before the signal was blocked left none behind.
        Ok(Self {
            unfinished: signal.is_some(),
            signal,
            strays: Vec::new(),
        })
    }

    /// Whether this is the first process of a process namespace.
    pub(super) fn first_process(&self) -> bool {
        self.signal.is_some()
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.signal.as_ref().map(AsFd::as_fd)
    }

    /// Whether there may be more to reap without a new signal.
    pub(super) fn unfinished(&self) -> bool {
        self.unfinished
    }

    /// What is polled for the end of one child where signals cannot be used.
    pub(super) fn watch(&self, pid: Pid) -> Option<OwnedFd> {
        if self.first_process() {
            None
        } else {
            pidfd_open(pid, PidfdFlags::empty()).ok()
        }
    }

    /// Whether a watched child has ended, and how.
    pub(super) fn look(&self, pid: Pid) -> Option<Exit> {
        exit_of(waitpid(Some(pid), WaitOptions::NOHANG).ok()??.1)
    }

    /// A child that is killed and that no stream waits for any more.
    pub(super) fn abandon(&mut self, pid: Pid) {
        if !self.first_process() {
            self.strays.push(pid);
        }
    }

    /// Reaps who has ended.
    pub(super) fn reap(&mut self) -> Vec<(Pid, Exit)> {
        let mut ended = Vec::new();
        self.unfinished = false;
        let Some(signal) = &self.signal else { return ended };
        // Signals of one kind do not queue, so one record empties the descriptor; what it says does not matter.
        let mut records = [0_u8; 512];
        let _nothing = rustix::io::read(signal, &mut records);
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            ended.extend(exit_of(status).map(|exit| (pid, exit)));
            if ended.len() >= BATCH {
                self.unfinished = true;
                break;
            }
        }
        ended
    }

    /// Reaps the strays that have ended.
    pub(super) fn reap_strays(&mut self) {
        self.strays
            .retain(|pid| matches!(waitpid(Some(*pid), WaitOptions::NOHANG), Ok(None)));
    }
}

fn exit_of(status: WaitStatus) -> Option<Exit> {
    if let Some(code) = status.exit_status() {
        return Some(Exit::Code(u8::try_from(code & 0xff).unwrap_or(u8::MAX)));
    }
    let signal = status.terminating_signal()?;
    Some(Exit::Signal(u8::try_from(signal).unwrap_or(u8::MAX)))
}
