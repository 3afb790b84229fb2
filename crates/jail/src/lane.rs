//! Pipes that lead from a program inside straight to the host, past the agent.
//!
//! The first process makes them, so that they belong to the sandbox's user (what stands behind `/dev/stdout` can be
//! opened again) and are made before any code from outside has run. The near ends go to the host by way of the launcher.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::pipe::{PipeFlags, pipe_with};

/// One end of each pipe: all near ones, or all far ones.
#[derive(Debug)]
pub struct Lane {
    /// From the host to the program.
    pub control_in: OwnedFd,
    /// From the program to the host, as are the others.
    pub control_out: OwnedFd,
    /// Its standard output.
    pub stdout: OwnedFd,
    /// Its standard error.
    pub stderr: OwnedFd,
}

impl Lane {
    /// Makes the pipes: the near ends, and the far ones.
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

    /// In the order in which they travel.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 4] {
        [&self.control_in, &self.control_out, &self.stdout, &self.stderr].map(AsFd::as_fd)
    }

    /// What has travelled; none if these are not the four.
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
