//! The agent itself: one thread, one poll(2) loop, nothing that waits.
//!
//! Code that the agent starts has the agent's user id, so the agent trusts nothing in the file system or in /proc. It
//! opens nothing that could block. If the system refuses a descriptor, memory or a process, it answers with an error
//! and continues. It obeys the host, but checks the host's frames all the same.

mod adopt;
mod children;
mod errors;
mod files;
mod forward;
mod group;
mod locks;
mod pause;
mod process_table;
mod program;
mod stdin;
mod stdout;
mod streams;
mod terminal;
mod tree;
mod usage;
mod watch;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use sandcell_jail::OwnSockets;
use sandcell_jail::direct_pipes::DirectPipes;

use crate::protocol::{ADOPT_FEATURE, DIRECT_PIPES_FEATURE, Decoder, Goodbye, Hello, Kind, OutBuffer, ProtocolError};
use adopt::EntrySocket;
use children::Children;
use group::CheckResult;
use streams::Streams;

/// With this many bytes of output waiting, programs' pipes and files are not read.
const PROGRAMS_PAUSE_BYTES: usize = 512 << 10;

/// With this many bytes of output waiting, the host's requests are not read either.
const HOST_PAUSE_BYTES: usize = 4 << 20;

/// The maximum number of bytes that are read from the host before the rest of the loop has a turn.
const INPUT_BATCH_BYTES: usize = 256 << 10;

/// The agent's settings for its sandbox.
#[derive(Debug)]
pub struct ServerConfig {
    /// The folder below which files are opened. `/` in a sandbox.
    pub root: PathBuf,
    /// The working folder of a program whose own does not exist.
    pub home: String,
    /// A folder on each private writable file system; together they are the disk that `usage` reports.
    pub private: Vec<PathBuf>,
    /// The limits that the agent itself enforces, if it runs in the control group of a container.
    pub limits: Option<ContainerLimits>,
    /// Counts the memory behind the container's sockets. None outside containers.
    pub sockets: Option<OwnSockets>,
    /// True if the agent must count the sandbox's processes because no other process does. Reading all of /proc takes
    /// longer than the rest of an answer.
    pub counts_processes: bool,
    /// Folders with another path on this system than in the host's requests, where the sandbox has no separate root:
    /// (the host's path, the real path).
    pub moved_folders: Vec<(String, String)>,
    /// The environment variables of the agent's image, which its HELLO announces. Empty if the host knows the image.
    pub announced_env: BTreeMap<String, String>,
}

/// The limits that an agent enforces on a container's processes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerLimits {
    /// Memory other than files.
    pub memory: u64,
    /// Private files, on all private file systems together.
    pub disk: u64,
}

impl ServerConfig {
    /// Returns the real path for a path of the host. Returns other text unchanged.
    pub(crate) fn real_path<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let moved = self.moved_folders.iter().find_map(|(usual, real_path)| {
            let rest = text.strip_prefix(usual.as_str())?;
            (rest.is_empty() || rest.starts_with('/')).then(|| format!("{real_path}{rest}"))
        });
        moved.map_or(Cow::Borrowed(text), Cow::Owned)
    }
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            root: PathBuf::from("/"),
            home: sandcell_sandbox::HOME.to_owned(),
            private: [sandcell_sandbox::HOME, "/tmp", "/dev/shm"].map(PathBuf::from).to_vec(),
            limits: None,
            sockets: None,
            counts_processes: true,
            moved_folders: Vec::new(),
            announced_env: BTreeMap::new(),
        }
    }
}

/// The reason why [`serve`] returned. The caller exits now.
#[derive(Debug)]
pub enum ServeEnd {
    /// The host has closed its stream.
    HostClosed,
    /// The host broke the protocol.
    ProtocolError(ProtocolError),
    /// The private files exceeded their limit.
    DiskFull,
    /// The agent could not start, or one of its two streams failed.
    Failed(io::Error),
}

/// Serves the host until its stream ends, then kills every program and returns.
///
/// As process 1 it reaps every orphan of its process namespace and owns every process in it. Elsewhere it manages only
/// its own children (tests, and isolation without a process namespace).
#[must_use]
pub fn serve(input: OwnedFd, output: OwnedFd, config: ServerConfig) -> ServeEnd {
    serve_extended(input, output, None, None, config)
}

/// Serves like [`serve`], with two additions. `direct_pipes` has the far ends of the direct pipes, which one program
/// may receive. `entry` is the entry socket of a sandbox that a process can enter from outside
/// ([`EntryMessage`](sandcell_jail::wire::EntryMessage)).
#[must_use]
pub fn serve_extended(
    input: OwnedFd,
    output: OwnedFd,
    direct_pipes: Option<DirectPipes>,
    entry: Option<OwnedFd>,
    config: ServerConfig,
) -> ServeEnd {
    match Agent::new(input, output, direct_pipes, entry, config) {
        Ok(mut agent) => {
            let end = agent.run();
            agent.streams.kill_everything();
            if let ServeEnd::ProtocolError(error) = &end {
                let goodbye = Goodbye {
                    reason: error.to_string(),
                };
                if agent.out.message(Kind::Goodbye, 0, &goodbye) {
                    drop(agent.flush());
                }
            }
            end
        }
        Err(error) => ServeEnd::Failed(error),
    }
}

/// The owner of a polled descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Input,
    Output,
    Children,
    EntrySocket,
    /// The program of this stream: its start, its end, or one of its pipes.
    Program(u32, program::Part),
}

struct Agent {
    input: OwnedFd,
    output: OwnedFd,
    decoder: Decoder,
    out: OutBuffer,
    children: Children,
    streams: Streams,
    greeted: bool,
    /// The output pipe took less than it was offered.
    output_full: bool,
}

impl Agent {
    fn new(
        input: OwnedFd,
        output: OwnedFd,
        direct_pipes: Option<DirectPipes>,
        entry: Option<OwnedFd>,
        mut config: ServerConfig,
    ) -> io::Result<Self> {
        for stream in [&input, &output] {
            fcntl_setfl(stream, fcntl_getfl(stream)? | OFlags::NONBLOCK)?;
        }
        let children = Children::new()?;
        let mut out = OutBuffer::default();
        let mut hello = if children.first_process() {
            Hello::of_first_process()
        } else {
            Hello::ours()
        };
        hello.env = std::mem::take(&mut config.announced_env);
        if direct_pipes.is_some() {
            hello.features.push(DIRECT_PIPES_FEATURE.to_owned());
        }
        let entry = entry
            .filter(|_| children.first_process())
            .map(EntrySocket::new)
            .transpose()?;
        if entry.is_some() {
            hello.features.push(ADOPT_FEATURE.to_owned());
        }
        let _fits = out.message(Kind::Hello, 0, &hello);
        Ok(Self {
            input,
            output,
            decoder: Decoder::default(),
            out,
            streams: Streams::new(config, direct_pipes, &children, entry)?,
            children,
            greeted: false,
            output_full: false,
        })
    }

    fn run(&mut self) -> ServeEnd {
        loop {
            match self.turn() {
                Ok(None) => {}
                Ok(Some(end)) => return end,
                Err(error) => return ServeEnd::Failed(error),
            }
        }
    }

    /// Runs one turn of the loop: writes output, waits, handles input.
    fn turn(&mut self) -> io::Result<Option<ServeEnd>> {
        if !self.flush()? {
            return Ok(Some(ServeEnd::HostClosed));
        }
        let mut children = self.children.unfinished();
        let crowded = self.out.len() >= PROGRAMS_PAUSE_BYTES;
        for (token, flags) in self.wait(crowded)? {
            match token {
                Token::Output => self.output_full = false,
                Token::Children => children = true,
                Token::EntrySocket => self.streams.entry_ready(&mut self.out, &mut self.children),
                Token::Program(stream, part) => {
                    if self.out.len() < PROGRAMS_PAUSE_BYTES {
                        self.streams
                            .ready(stream, part, flags, &mut self.out, &mut self.children);
                    }
                }
                Token::Input => match self.take_input() {
                    Ok(true) => {}
                    Ok(false) => return Ok(Some(ServeEnd::HostClosed)),
                    Err(InputError::ProtocolError(error)) => return Ok(Some(ServeEnd::ProtocolError(error))),
                    Err(InputError::System(error)) => return Err(error),
                },
            }
        }
        if children {
            for (pid, exit) in self.children.reap() {
                self.streams.ended(pid, exit, &mut self.out, &mut self.children);
            }
        }
        self.children.reap_strays();
        if self.streams.check_limits() == CheckResult::DiskFull {
            return Ok(Some(ServeEnd::DiskFull));
        }
        self.streams.advance(&mut self.out, PROGRAMS_PAUSE_BYTES);
        Ok(None)
    }

    /// Waits until a descriptor is ready or a check is due.
    fn wait(&self, crowded: bool) -> io::Result<Vec<(Token, PollFlags)>> {
        let mut tokens = Vec::with_capacity(16);
        let mut polled = Vec::with_capacity(16);
        let mut add = |token, fd, flags| {
            tokens.push(token);
            polled.push(PollFd::from_borrowed_fd(fd, flags));
        };
        if self.out.len() < HOST_PAUSE_BYTES {
            add(Token::Input, self.input.as_fd(), PollFlags::IN);
        }
        if self.output_full {
            add(Token::Output, self.output.as_fd(), PollFlags::OUT);
        }
        if let Some(fd) = self.children.descriptor() {
            add(Token::Children, fd, PollFlags::IN);
        }
        if let Some(fd) = self.streams.entry() {
            add(Token::EntrySocket, fd, PollFlags::IN);
        }
        if !crowded {
            self.streams
                .polled(|stream, part, fd, flags| add(Token::Program(stream, part), fd, flags));
        }
        let busy = self.children.unfinished() || (!crowded && self.streams.has_work());
        let wait = if busy {
            Some(Duration::ZERO)
        } else {
            self.streams.check_due()
        };
        let wait = wait.map(|wait| Timespec {
            tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        });
        match poll(&mut polled, wait.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            // The kernel may lack memory for a moment. Without the pause this loop would spin.
            Err(Errno::NOMEM | Errno::AGAIN) => {
                std::thread::sleep(Duration::from_millis(1));
                return Ok(Vec::new());
            }
            Err(error) => return Err(error.into()),
        }
        let results = polled.iter().map(PollFd::revents);
        Ok(tokens
            .into_iter()
            .zip(results)
            .filter(|(_, flags)| !flags.is_empty())
            .collect())
    }

    /// Writes as much as the pipe takes. Returns false when the pipe has no reader.
    fn flush(&mut self) -> io::Result<bool> {
        while !self.out.is_empty() && !self.output_full {
            match rustix::io::write(&self.output, self.out.pending()) {
                Ok(count) => self.out.consume(count),
                Err(Errno::AGAIN) => self.output_full = true,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Reads and handles a batch of the host's frames. Returns false at the end of its stream.
    fn take_input(&mut self) -> Result<bool, InputError> {
        let mut taken = 0;
        while taken < INPUT_BATCH_BYTES && self.out.len() < HOST_PAUSE_BYTES {
            let room = self.decoder.room();
            let offered = room.len();
            let count = match rustix::io::read(&self.input, room) {
                Ok(0) => return Ok(false),
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(true),
                Err(error) => return Err(InputError::System(error.into())),
            };
            self.decoder.filled(count);
            taken += count;
            self.handle_frames().map_err(InputError::ProtocolError)?;
            if count < offered {
                // The pipe is empty. Another read would only confirm that.
                break;
            }
        }
        Ok(true)
    }

    fn handle_frames(&mut self) -> Result<(), ProtocolError> {
        while let Some(frame) = self.decoder.next_frame()? {
            match (frame.kind, self.greeted) {
                (Kind::Hello, false) => {
                    Hello::check(frame.payload)?;
                    self.greeted = true;
                }
                (_, false) => return Err(ProtocolError::new("a frame before HELLO")),
                (Kind::Goodbye, true) => return Err(ProtocolError::new("the host ended the connection")),
                (Kind::Hello, true) => return Err(ProtocolError::new("a second HELLO")),
                (_, true) => self.streams.frame(&frame, &mut self.out, &mut self.children)?,
            }
        }
        Ok(())
    }
}

enum InputError {
    ProtocolError(ProtocolError),
    System(io::Error),
}
