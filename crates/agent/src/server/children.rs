//! Reaps ended processes. As process 1 the agent reaps every orphan of its namespace. Elsewhere it reaps only its own
//! children, so other threads of the same process keep theirs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, WaitOptions, WaitStatus, getpid, pidfd_open, wait, waitpid};
use sandcell_sandbox::Exit;

/// The maximum number of processes that are reaped before the rest of the loop has a turn.
const MAX_REAPED_PER_TURN: usize = 256;

pub(super) struct Children {
    /// Readable when a child has ended; only process 1 has it.
    signal: Option<OwnedFd>,
    /// Killed children that no stream waits for. Unused in process 1.
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
        // A process that ended before the signal was blocked left no signal behind, so the first turn reaps once.
        Ok(Self {
            unfinished: signal.is_some(),
            signal,
            strays: Vec::new(),
        })
    }

    /// Returns true in the first process of a process namespace.
    pub(super) fn first_process(&self) -> bool {
        self.signal.is_some()
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.signal.as_ref().map(AsFd::as_fd)
    }

    /// Returns true if more processes may wait to be reaped without a new signal.
    pub(super) fn unfinished(&self) -> bool {
        self.unfinished
    }

    /// Returns a descriptor that reports the end of one child, where signals cannot report it.
    pub(super) fn open_pidfd(&self, pid: Pid) -> Option<OwnedFd> {
        if self.first_process() {
            None
        } else {
            pidfd_open(pid, PidfdFlags::empty()).ok()
        }
    }

    /// Returns the exit of a watched child, if it has ended.
    pub(super) fn poll_exit(&self, pid: Pid) -> Option<Exit> {
        exit_of(waitpid(Some(pid), WaitOptions::NOHANG).ok()??.1)
    }

    /// Takes over a killed child that no stream waits for any more.
    pub(super) fn abandon(&mut self, pid: Pid) {
        if !self.first_process() {
            self.strays.push(pid);
        }
    }

    /// Reaps ended processes.
    pub(super) fn reap(&mut self) -> Vec<(Pid, Exit)> {
        let mut ended = Vec::new();
        self.unfinished = false;
        let Some(signal) = &self.signal else { return ended };
        // Signals of one kind do not queue, so one record empties the descriptor. Its content does not matter.
        let mut records = [0_u8; 512];
        let _nothing = rustix::io::read(signal, &mut records);
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            ended.extend(exit_of(status).map(|exit| (pid, exit)));
            if ended.len() >= MAX_REAPED_PER_TURN {
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
