//! Direct pipes: they connect a program inside with the host, past the agent.
//!
//! The first process makes them before any caller's code runs. So they belong to the sandbox's user, and a program can
//! reopen `/dev/stdout`. The near ends reach the host through the launcher.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::pipe::{PipeFlags, pipe_with};

/// One end of each pipe: either all near ends, or all far ends.
#[derive(Debug)]
pub struct DirectPipes {
    /// From the host to the program.
    pub control_in: OwnedFd,
    /// From the program to the host, like the other two.
    pub control_out: OwnedFd,
    /// The program's standard output.
    pub stdout: OwnedFd,
    /// The program's standard error.
    pub stderr: OwnedFd,
}

impl DirectPipes {
    /// Makes the pipes. Returns the near ends and the far ends.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn make() -> io::Result<(Self, Self)> {
        let pipe = || pipe_with(PipeFlags::CLOEXEC);
        let (far_in, near_in) = pipe()?;
        let (near_out, far_out) = pipe()?;
        let (near_stdout, far_stdout) = pipe()?;
        let (near_stderr, far_stderr) = pipe()?;
        let near = Self {
            control_in: near_in,
            control_out: near_out,
            stdout: near_stdout,
            stderr: near_stderr,
        };
        let far = Self {
            control_in: far_in,
            control_out: far_out,
            stdout: far_stdout,
            stderr: far_stderr,
        };
        Ok((near, far))
    }

    /// Returns the descriptors in the order of transfer.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 4] {
        [&self.control_in, &self.control_out, &self.stdout, &self.stderr].map(AsFd::as_fd)
    }

    /// Builds the pipes from received descriptors. None if there are not four.
    #[must_use]
    pub fn of(descriptors: Vec<OwnedFd>) -> Option<Self> {
        let [control_in, control_out, stdout, stderr] = <[OwnedFd; 4]>::try_from(descriptors).ok()?;
        Some(Self {
            control_in,
            control_out,
            stdout,
            stderr,
        })
    }
}
