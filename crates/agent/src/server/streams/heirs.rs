//! Heirs: orphans of a program that replace it after its end, at once or at any later time.

use rustix::process::{Pid, Signal};

use super::super::program::Program;
use super::super::tree;
use super::{Streams, no_program, not_listed};
use crate::protocol::{EmptyReply, ErrorCode, KeptReply, WireError};

/// The maximum number of kept processes of one program.
const MAX_KEPT: usize = 32;

/// The signals to an orphan: it becomes the program; it is kept; it makes an image; it drops its image. Snapshots of
/// sessions ignore signals of other processes.
const HEIR_WAKES: Signal = Signal::USR1;
const HEIR_IS_KEPT: Signal = Signal::USR2;
const HEIR_MAKES_IMAGE: Signal = Signal::HUP;
const HEIR_DROPS_IMAGE: Signal = Signal::QUIT;

impl Streams {
    /// Replaces a program that has ended by an orphan. The only checks are that the orphan exists and belongs to no
    /// other program. With a false claim, code in the sandbox can only make another of its processes its session.
    pub(super) fn succeed(&mut self, stream: u32, heir: i32) -> Result<EmptyReply, WireError> {
        if !self.first_process {
            return Err(only_first());
        }
        let has_ended = self.programs.get(&stream).is_some_and(Program::has_reported_exit);
        if !has_ended {
            return Err(WireError::new(
                ErrorCode::Invalid,
                format!("stream {stream} belongs to no ended program"),
            ));
        }
        let mut others = self.others(stream);
        let heir = self.orphan(heir)?;
        let own = |program: &Program| program.kept.contains(&heir);
        if others.contains(&heir) && !self.programs.get(&stream).is_some_and(own) {
            return Err(WireError::new(ErrorCode::Invalid, "another program cannot be an heir"));
        }
        others.push(heir);
        self.signal_tree(heir, &others, Signal::KILL)?;
        if let Some(program) = self.programs.get_mut(&stream) {
            program.replace_with(heir);
            tree::signal_process(heir, Signal::CONT);
            tree::signal_process(heir, HEIR_WAKES);
        }
        Ok(EmptyReply {})
    }

    /// Keeps an orphan of a program, so that it can replace the program later. No signal to a tree reaches it. An
    /// expendable one keeps the name by which the watchdog may end it when memory runs short.
    pub(super) fn keep(&mut self, stream: u32, pid: i32, expendable: bool) -> Result<EmptyReply, WireError> {
        if !self.first_process {
            return Err(only_first());
        }
        let orphan = self.orphan(pid)?;
        if self.others(stream).contains(&orphan) {
            let message = "the process belongs to another program, or is kept already";
            return Err(WireError::new(ErrorCode::Invalid, message));
        }
        let program = self.programs.get_mut(&stream).ok_or_else(|| no_program(stream))?;
        if program.pid == orphan {
            return Err(WireError::new(ErrorCode::Invalid, "the process is the program itself"));
        }
        if program.kept.len() >= MAX_KEPT {
            let message = format!("the program has {MAX_KEPT} kept processes, which is the maximum");
            return Err(WireError::new(ErrorCode::Limit, message));
        }
        program.kept.push(orphan);
        if !expendable {
            tree::signal_process(orphan, HEIR_IS_KEPT);
        }
        Ok(EmptyReply {})
    }

    /// Makes a kept process begin an image of its memory, write the one that it has begun, or drop its image.
    pub(super) fn order_image(&self, stream: u32, pid: i32, drop: bool) -> Result<EmptyReply, WireError> {
        let program = self.programs.get(&stream).ok_or_else(|| no_program(stream))?;
        let kept = program.kept.iter().find(|kept| kept.as_raw_pid() == pid);
        let not_kept = || WireError::new(ErrorCode::NotFound, format!("process {pid} is not kept"));
        let signal = if drop { HEIR_DROPS_IMAGE } else { HEIR_MAKES_IMAGE };
        tree::signal_process(*kept.ok_or_else(not_kept)?, signal);
        Ok(EmptyReply {})
    }

    /// Returns the kept processes of a program that still live.
    pub(super) fn kept(&self, stream: u32) -> Result<KeptReply, WireError> {
        let program = self.programs.get(&stream).ok_or_else(|| no_program(stream))?;
        // One that was just killed may still run for a moment, and is reaped later.
        let table = super::super::process_table::read().map_err(not_listed)?;
        let lives = |pid: &i32| table.entries.iter().any(|entry| entry.pid == *pid && entry.lives_on());
        let pids = program.kept.iter().map(|pid| pid.as_raw_pid()).filter(lives);
        Ok(KeptReply { pids: pids.collect() })
    }

    /// Ends a kept process. One that has ended is no error.
    pub(super) fn release(&mut self, stream: u32, pid: i32) -> Result<EmptyReply, WireError> {
        let program = self.programs.get_mut(&stream).ok_or_else(|| no_program(stream))?;
        let is_asked = |kept: &Pid| kept.as_raw_pid() == pid;
        if let Some(index) = program.kept.iter().position(is_asked) {
            tree::signal_process(program.kept.swap_remove(index), Signal::KILL);
        }
        Ok(EmptyReply {})
    }

    /// Returns a living child of the agent that the agent did not start. Only the agent reaps it, so its id stays its
    /// own.
    fn orphan(&self, pid: i32) -> Result<Pid, WireError> {
        let table = super::super::process_table::read().map_err(not_listed)?;
        let me = rustix::process::getpid().as_raw_pid();
        let found = table
            .entries
            .iter()
            .find(|entry| entry.pid == pid && entry.parent == me && entry.lives_on());
        found
            .and_then(|entry| entry.id())
            .ok_or_else(|| WireError::new(ErrorCode::NotFound, format!("process {pid} is not an orphan")))
    }
}

fn only_first() -> WireError {
    let message = "only the first process can report the end of an heir";
    WireError::new(ErrorCode::Unsupported, message)
}
