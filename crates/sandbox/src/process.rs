//! Programs started inside a sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::{SandboxError, SandboxPath};

/// The source of standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StdinMode {
    /// `/dev/null`.
    Null,
    /// A pipe; [`ProcessHandle::write`] writes to it.
    Piped,
}

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

/// A program to start: an argument list, never a shell string.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The program (a path, or a name looked up in the sandbox's PATH) and its arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
    /// The working folder inside the sandbox.
    pub cwd: String,
    /// True for a command next to other programs. It does not start where its working folder cannot be entered (for other programs
    /// the home folder replaces it), and dropping its handle ends its process group only, not what it has detached.
    pub stands_alone: bool,
    /// The source of standard input.
    pub stdin: StdinMode,
    /// True if the program gets a private two-way channel: it reads from descriptor 3 and writes to descriptor 4.
    /// Sessions use it for their driver.
    pub control: bool,
    /// The size of the terminal that the program is started in. Its input and its output are that terminal; it has no
    /// separate stderr. None: it has pipes.
    pub terminal: Option<TerminalSize>,
}

/// A piece of code as a separate program: its files, and the steps that run it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The files to write first: the source, and others that create needed folders.
    pub files: Vec<(SandboxPath, Bytes)>,
    /// The step that compiles the source, if any.
    pub compile: Option<Compile>,
    /// The step that runs the program.
    pub run: Command,
    /// The place of the program's pictures. None if the language has no pictures.
    pub pictures: Option<Pictures>,
}

/// A place for picture files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pictures {
    /// The folder.
    pub folder: SandboxPath,
    /// The prefix of the file names.
    pub prefix: String,
}

/// The step that compiles a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compile {
    /// The compiler. It exits with a nonzero status if the source is wrong.
    pub command: Command,
    /// The time limit. The run time is counted separately.
    pub timeout: Duration,
}

/// A byte stream of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum Channel {
    Stdin,
    Stdout,
    Stderr,
    Control,
}

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It exited with this status (0 to 255).
    Code(u8),
    /// This signal killed it.
    Signal(u8),
}

/// The output and end of a process, in order for each channel. Bytes that were in stdout or stderr when the process
/// wrote to control come before those control bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    /// Bytes on stdout, stderr or control.
    Output {
        /// The channel.
        channel: Channel,
        /// The bytes, never empty.
        bytes: Bytes,
    },
    /// No more bytes will arrive on this channel: every holder of its other end has closed it.
    Closed {
        /// The channel.
        channel: Channel,
    },
    /// The process itself has ended. Its descendants may live on and still write. Sent once, and once for each heir.
    Exited {
        /// The end.
        exit: Exit,
    },
}

/// A signal that may be sent into a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum Signal {
    Interrupt,
    Terminate,
    Kill,
    /// SIGURG: ignored by default, but it interrupts the wait of a process that handles it.
    Nudge,
}

/// The receivers of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalScope {
    /// The process and its process group.
    Group,
    /// Every process of the sandbox that descends from it or was orphaned by it, even if it has detached itself. In
    /// effect these are all processes of the sandbox except the agent and the groups of other started programs.
    Tree,
}

/// A started program: its events, and the handle that controls it.
///
/// `events` is bounded. If it is not read, the program blocks once its pipes are full; this is the flow control.
#[derive(Debug)]
pub struct Process {
    /// Its process id inside the sandbox, if the back end knows it.
    pub pid: Option<u32>,
    /// The program's output and end.
    pub events: mpsc::Receiver<ProcessEvent>,
    /// The handle that controls it. Dropping the last clone kills the program and its group.
    pub handle: Arc<dyn ProcessHandle>,
}

/// Controls a started program.
#[async_trait]
pub trait ProcessHandle: Send + Sync + std::fmt::Debug {
    /// Writes to stdin or control. Waits while the program does not read.
    async fn write(&self, channel: Channel, bytes: Bytes) -> Result<(), SandboxError>;

    /// Closes stdin or control for writing.
    async fn close(&self, channel: Channel) -> Result<(), SandboxError>;

    /// Sends a signal. A signal to an ended process is not an error.
    async fn signal(&self, signal: Signal, scope: SignalScope) -> Result<(), SandboxError>;

    /// Gives the program's terminal another size.
    async fn resize(&self, _size: TerminalSize) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported("changing the size of a terminal".to_owned()))
    }

    /// Returns true if another process can replace the program ([`ProcessHandle::succeed`]).
    fn has_heirs(&self) -> bool {
        false
    }

    /// Kills the program and its tree, except for the process with this id inside.
    async fn kill_but(&self, _heir: i32) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported("heirs of a program".to_owned()))
    }

    /// Makes an orphan of the program its heir, after the program's end was reported. Kills all else that the program
    /// left, and wakes the heir. From then on the heir is the program, with the same channels. Another
    /// [`ProcessEvent::Exited`] reports its end.
    async fn succeed(&self, _heir: i32) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported("heirs of a program".to_owned()))
    }

    /// Returns true if orphans of the program can be kept ([`ProcessHandle::keep`]).
    fn keeps_heirs(&self) -> bool {
        false
    }

    /// Keeps an orphan of the program, so that it can become the heir at any later time: no signal to the program's tree
    /// reaches it. It ends with the handle. An expendable one may be ended before when memory runs short.
    async fn keep(&self, _heir: i32, _expendable: bool) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported("keeping heirs of a program".to_owned()))
    }

    /// Returns the kept orphans that still live.
    async fn kept(&self) -> Result<Vec<i32>, SandboxError> {
        Ok(Vec::new())
    }

    /// Orders a kept orphan to begin an image of its memory, and the next time to write it; or to drop its image. The orphan
    /// answers on its control channel.
    async fn order_image(&self, _heir: i32, _drop: bool) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported("images of a session".to_owned()))
    }

    /// Ends a kept orphan. One that has ended is not an error.
    async fn release(&self, _heir: i32) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported("keeping heirs of a program".to_owned()))
    }
}

/// The gathered output of a program, and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gathered {
    /// The end. None if it never became known.
    pub exit: Option<Exit>,
    /// The beginning of its stdout.
    pub stdout: Vec<u8>,
    /// The beginning of its stderr.
    pub stderr: Vec<u8>,
    /// The number of bytes left out of both streams.
    pub omitted: u64,
}

/// Waits for a program's end and keeps at most `most` bytes of each stream. It has no deadline. Dropping the future
/// kills the program.
pub async fn gather(process: Process, most: usize) -> Gathered {
    let Process { mut events, handle, .. } = process;
    let mut gathered = Gathered {
        exit: None,
        stdout: Vec::new(),
        stderr: Vec::new(),
        omitted: 0,
    };
    let mut closed = 0_u8;
    while gathered.exit.is_none() || closed < 2 {
        match events.recv().await {
            Some(ProcessEvent::Output { channel, bytes }) => {
                let kept = match channel {
                    Channel::Stdout => &mut gathered.stdout,
                    Channel::Stderr => &mut gathered.stderr,
                    Channel::Stdin | Channel::Control => continue,
                };
                let taken = bytes.len().min(most.saturating_sub(kept.len()));
                kept.extend(bytes.iter().take(taken));
                let left = u64::try_from(bytes.len() - taken).unwrap_or(u64::MAX);
                gathered.omitted = gathered.omitted.saturating_add(left);
            }
            Some(ProcessEvent::Closed { channel }) => {
                closed += u8::from(matches!(channel, Channel::Stdout | Channel::Stderr));
            }
            Some(ProcessEvent::Exited { exit }) => gathered.exit = Some(exit),
            None => break,
        }
    }
    drop(handle);
    gathered
}
