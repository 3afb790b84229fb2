//! Programs started inside a sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::{SandboxError, SandboxPath};

/// What standard input is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StdinMode {
    /// `/dev/null`.
    Null,
    /// A pipe that [`ProcessHandle::write`] feeds.
    Piped,
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
    /// Standard input.
    pub stdin: StdinMode,
    /// Whether the program gets a private two-way channel: it reads from descriptor 3 and writes to
    /// descriptor 4. Sessions use it for their driver.
    pub control: bool,
}

/// A piece of code as a program of its own: what has to be there, and the steps that run it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// What is written first: the source, and whatever its folders need to exist.
    pub files: Vec<(SandboxPath, Bytes)>,
    /// What makes a program of the source.
    pub compile: Option<Compile>,
    /// What runs.
    pub run: Command,
    /// The place of the pictures that the program shows, or none if the language has no pictures.
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

/// The step that makes a program of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compile {
    /// The compiler. Ends with another status than 0 when the source is wrong.
    pub command: Command,
    /// How long it may take; the time for running is counted apart.
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

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It ended by itself with this status (0 to 255).
    Code(u8),
    /// This signal ended it.
    Signal(u8),
}

/// What a process does, in order for each channel. Bytes that stood in stdout or stderr when the process wrote to
/// control come before those control bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    /// Bytes on stdout, stderr or control.
    Output {
        /// Which.
        channel: Channel,
        /// The bytes, never empty.
        bytes: Bytes,
    },
    /// No more bytes will come on this channel (every holder of its other end has closed it).
    Closed {
        /// Which.
        channel: Channel,
    },
    /// The process itself has ended; its descendants may live on and still write. Sent once, and once for each heir.
    Exited {
        /// How.
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
    /// SIGURG: nobody minds it, and whoever handles it stops waiting.
    Nudge,
}

/// Who gets a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalScope {
    /// The process and its process group.
    Group,
    /// Every process of the sandbox that descends from it or was orphaned by it, however it detached itself:
    /// in effect all processes of the sandbox but the agent and other started programs' own groups.
    Tree,
}

/// A started program: what it says, and the means to talk back.
///
/// `events` is bounded; not reading it stops the program when its pipes are full (that is the flow control).
#[derive(Debug)]
pub struct Process {
    /// What it does.
    pub events: mpsc::Receiver<ProcessEvent>,
    /// How to talk to it. Dropping the last clone kills the program and its group.
    pub handle: Arc<dyn ProcessHandle>,
}

/// The means to talk to a started program.
#[async_trait]
pub trait ProcessHandle: Send + Sync + std::fmt::Debug {
    /// Writes to stdin or control; waits while the other side does not read.
    async fn write(&self, channel: Channel, bytes: Bytes) -> Result<(), SandboxError>;

    /// Closes stdin or control for writing.
    async fn close(&self, channel: Channel) -> Result<(), SandboxError>;

    /// Sends a signal. A process that has ended already is not an error.
    async fn signal(&self, signal: Signal, scope: SignalScope) -> Result<(), SandboxError>;

    /// Whether another process can take the program's place ([`ProcessHandle::succeed`]).
    fn has_heirs(&self) -> bool {
        false
    }

    /// Kills the program and its tree, but for this process of it (an id inside).
    async fn kill_but(&self, _heir: i32) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported("heirs of a program".to_owned()))
    }

    /// Makes an orphan that a program has left its heir, once the program's end was told: what else the program left is
    /// killed, the heir is sent SIGCONT, and from then on it is the program, with the same channels. Its end is told by
    /// another [`ProcessEvent::Exited`].
    async fn succeed(&self, _heir: i32) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported("heirs of a program".to_owned()))
    }
}

/// How a program ended whose output was gathered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gathered {
    /// How it ended; none if that never became known.
    pub exit: Option<Exit>,
    /// The beginning of what it wrote to stdout.
    pub stdout: Vec<u8>,
    /// The beginning of what it wrote to stderr.
    pub stderr: Vec<u8>,
    /// How many bytes were left out of either.
    pub omitted: u64,
}

/// Waits for a program's end and keeps at most `most` bytes of each of its streams. It has no deadline of its own;
/// dropping the future ends the program.
pub async fn gather(process: Process, most: usize) -> Gathered {
    let Process { mut events, handle } = process;
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
