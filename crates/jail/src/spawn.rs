//! Starts programs from the first process of a sandbox: all work between fork and exec.
//!
//! The child's data is prepared before the fork (a [`Program`]), so that the child allocates nothing. The parent never
//! waits: it polls a pipe for the result of exec, like every other descriptor.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

use crate::sys::signalfd;
use crate::sys::spawn::{self as syscalls, Fork, Texts};

/// The search path for names without a slash if the environment has no PATH.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The maximum number of descriptors that a program gets.
const MAX_DESCRIPTORS: usize = 5;

/// The highest signal number of the kernel.
const LAST_SIGNAL: i32 = 64;

/// Source descriptors are first copied above this number, so that none is overwritten before its use.
const MIN_TEMPORARY_FD: RawFd = 16;

/// The Landlock rules that each program gets in addition to its starter's, if no PID namespace protects the starter.
static PROGRAM_RULES: OnceLock<OwnedFd> = OnceLock::new();

/// Sets the Landlock rules of all programs that are started later.
pub(crate) fn restrict_programs(ruleset: OwnedFd) -> io::Result<()> {
    PROGRAM_RULES
        .set(ruleset)
        .map_err(|_| io::ErrorKind::AlreadyExists.into())
}

/// A program prepared for the fork.
pub struct Program {
    /// The paths to try, in order.
    candidates: Vec<CString>,
    argv: Texts,
    env: Texts,
    /// The working folders to try, in order.
    folders: Vec<CString>,
}

/// A forked child that has become the program, will become it soon, or has failed.
#[derive(Debug)]
pub struct Started {
    /// Its process id. It leads a session and a group of the same number.
    pub pid: Pid,
    /// A non-blocking pipe, to be read with [`outcome`].
    pub status: OwnedFd,
}

/// The result of a start.
#[derive(Debug)]
pub enum Outcome {
    /// Not known yet.
    Pending,
    /// It runs, or was ended before it could run.
    Running,
    /// A step failed and the child has exited.
    Failed(SpawnError),
}

/// The steps of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum Step {
    Arguments,
    Pipe,
    Fork,
    Session,
    Descriptors,
    Signals,
    Folder,
    Exec,
    Landlock,
    Terminal,
}

impl Step {
    const ALL: [Self; 10] = [
        Self::Arguments,
        Self::Pipe,
        Self::Fork,
        Self::Session,
        Self::Descriptors,
        Self::Signals,
        Self::Folder,
        Self::Exec,
        Self::Landlock,
        Self::Terminal,
    ];

    /// Returns the name in messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Arguments => "arguments",
            Self::Pipe => "pipe",
            Self::Fork => "fork",
            Self::Session => "setsid",
            Self::Descriptors => "descriptors",
            Self::Signals => "signals",
            Self::Folder => "cwd",
            Self::Exec => "exec",
            Self::Landlock => "landlock",
            Self::Terminal => "terminal",
        }
    }

    fn number(self) -> u8 {
        Self::ALL
            .iter()
            .zip(0..)
            .find(|(step, _)| **step == self)
            .map_or(u8::MAX, |(_, number)| number)
    }
}

/// An error of starting a program.
#[derive(Debug, thiserror::Error)]
#[error("step {} failed", step.as_str())]
pub struct SpawnError {
    /// The step.
    pub step: Step,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

impl Program {
    /// Prepares a program. `folders` are tried in order until one can be entered.
    ///
    /// # Errors
    /// No argument at all, a NUL in a text, or a variable without a name.
    pub fn new(argv: &[String], env: &BTreeMap<String, String>, folders: &[&str]) -> Result<Self, SpawnError> {
        let name = argv.first().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| invalid("there is no program to start"))?;
        let search = env.get("PATH").map_or(DEFAULT_PATH, String::as_str);
        let candidates = if name.contains('/') {
            vec![text(name)?]
        } else {
            search
                .split(':')
                .map(|folder| text(&format!("{}/{name}", if folder.is_empty() { "." } else { folder })))
                .collect::<Result<_, _>>()?
        };
        let mut variables = Vec::with_capacity(env.len());
        for (key, value) in env {
            if key.is_empty() || key.contains('=') {
                return Err(invalid("a variable's name is empty or contains '='"));
            }
            variables.push(text(&format!("{key}={value}"))?);
        }
        Ok(Self {
            candidates,
            argv: Texts::new(argv.iter().map(|argument| text(argument)).collect::<Result<_, _>>()?),
            env: Texts::new(variables),
            folders: folders.iter().map(|folder| text(folder)).collect::<Result<_, _>>()?,
        })
    }

    /// Forks, and the child becomes the program. It has exactly the given descriptors, numbered from 0. It leads a new
    /// session. No signal is blocked or ignored. With `in_terminal`, the first descriptor becomes its controlling
    /// terminal.
    ///
    /// # Errors
    /// No pipe or no process could be made. Later steps fail through [`outcome`].
    pub fn start(&self, descriptors: &[BorrowedFd<'_>], in_terminal: bool) -> Result<Started, SpawnError> {
        if descriptors.len() < 3 || descriptors.len() > MAX_DESCRIPTORS {
            return Err(invalid("a program gets three to five descriptors"));
        }
        let (status, report) =
            pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(|error| failed(Step::Pipe, error.into()))?;
        match syscalls::fork().map_err(|error| failed(Step::Fork, error))? {
            Fork::Child => self.become_program(descriptors, in_terminal, report.as_raw_fd()),
            Fork::Parent(pid) => {
                let pid =
                    Pid::from_raw(pid).ok_or_else(|| failed(Step::Fork, io::Error::from_raw_os_error(libc::ESRCH)))?;
                Ok(Started { pid, status })
            }
        }
    }

    /// The child's side. Allocates nothing.
    fn become_program(&self, descriptors: &[BorrowedFd<'_>], in_terminal: bool, report: RawFd) -> ! {
        let mut report = report;
        let (step, error) = self.steps(descriptors, in_terminal, &mut report);
        let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
        let [a, b, c, d] = errno.to_le_bytes();
        syscalls::write(report, &[step.number(), a, b, c, d]);
        syscalls::exit_now(127)
    }

    fn steps(&self, descriptors: &[BorrowedFd<'_>], in_terminal: bool, report: &mut RawFd) -> (Step, io::Error) {
        if let Err(error) = syscalls::setsid() {
            return (Step::Session, error);
        }
        // Before the descriptors are arranged, which closes the ruleset's.
        if let Some(ruleset) = PROGRAM_RULES.get()
            && let Err(error) = syscalls::restrict_self(ruleset.as_raw_fd())
        {
            return (Step::Landlock, error);
        }
        if let Err(error) = arrange(descriptors, report) {
            return (Step::Descriptors, error);
        }
        if in_terminal && let Err(error) = syscalls::take_terminal(0) {
            return (Step::Terminal, error);
        }
        for signal in 1..=LAST_SIGNAL {
            // KILL and STOP cannot be changed and need not be.
            drop(syscalls::default_action(signal));
        }
        if let Err(error) = syscalls::unblock_signals() {
            return (Step::Signals, error);
        }
        let mut entered = Err(io::Error::from_raw_os_error(libc::ENOENT));
        for folder in &self.folders {
            entered = syscalls::chdir(folder);
            if entered.is_ok() {
                break;
            }
        }
        if let Err(error) = entered {
            return (Step::Folder, error);
        }
        (Step::Exec, self.execute())
    }

    /// Tries each candidate. Returns the error of a file that may not be executed in preference to that of a missing
    /// file.
    pub(crate) fn execute(&self) -> io::Error {
        let mut reason = io::Error::from_raw_os_error(libc::ENOENT);
        for path in &self.candidates {
            let error = syscalls::execve(path, &self.argv, &self.env);
            match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                Some(libc::EACCES) => reason = error,
                _ => return error,
            }
        }
        reason
    }
}

/// Places the descriptors at 0, 1, 2, …, and the report pipe after them. Closes all others.
fn arrange(descriptors: &[BorrowedFd<'_>], report: &mut RawFd) -> io::Result<()> {
    let mut copies = [-1; MAX_DESCRIPTORS];
    for (copy, descriptor) in copies.iter_mut().zip(descriptors) {
        *copy = syscalls::copy_above(descriptor.as_raw_fd(), MIN_TEMPORARY_FD)?;
    }
    *report = syscalls::copy_above(*report, MIN_TEMPORARY_FD)?;
    let mut next = 0;
    for copy in copies.into_iter().take(descriptors.len()) {
        syscalls::copy_to(copy, next)?;
        next += 1;
    }
    syscalls::copy_to_cloexec(*report, next)?;
    *report = next;
    let first_other = u32::try_from(next).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    syscalls::close_between(first_other + 1, u32::MAX)
}

/// Checks if the program runs. Never waits.
#[must_use]
pub fn outcome(status: BorrowedFd<'_>) -> Outcome {
    let mut record = [0_u8; 5];
    match rustix::io::read(status, &mut record) {
        Ok(0) => Outcome::Running,
        Ok(_) => {
            let [step, a, b, c, d] = record;
            let step = Step::ALL.get(usize::from(step)).copied().unwrap_or(Step::Exec);
            Outcome::Failed(failed(
                step,
                io::Error::from_raw_os_error(i32::from_le_bytes([a, b, c, d])),
            ))
        }
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Outcome::Pending,
        // An unreadable pipe gives no result. The parent learns of the child's end by waiting for it.
        Err(_) => Outcome::Running,
    }
}

/// Prepares a process to be a sandbox's first process. Broken pipes and too large files become errors instead of
/// signals, and the end of children can be polled.
///
/// # Errors
/// The system refuses one of the calls.
pub fn watch_children() -> io::Result<OwnedFd> {
    signalfd::ignore(libc::SIGPIPE)?;
    signalfd::ignore(libc::SIGXFSZ)?;
    signalfd::block_child_signal()?;
    signalfd::child_signal_descriptor()
}

fn text(text: &str) -> Result<CString, SpawnError> {
    CString::new(text).map_err(|_| invalid("an argument, variable or folder contains a NUL character"))
}

fn invalid(reason: &'static str) -> SpawnError {
    failed(Step::Arguments, io::Error::new(io::ErrorKind::InvalidInput, reason))
}

fn failed(step: Step, source: io::Error) -> SpawnError {
    SpawnError { step, source }
}
