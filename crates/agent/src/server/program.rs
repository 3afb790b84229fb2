//! One started program: its pipes, its end, and the order in which the host learns of them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal};
use sandcell_jail::direct_pipes::DirectPipes;
use sandcell_jail::spawn::{self, Outcome, SpawnError, Started, Step};
use sandcell_sandbox::{Exit, StdinMode, TerminalSize};

use super::stdin::{Flow, InputPump, credit_sender};
use super::stdout::{Mark, OutputPump, ReadResult};
use super::{terminal, tree};
use crate::protocol::{Event, Kind, OutBuffer, ProtocolError};

/// The descriptors of a program or a forwarded port that are polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Reports the result of exec.
    Start,
    /// Reports the program's end, where signals do not.
    End,
    Stdin,
    Stdout,
    Stderr,
    ControlIn,
    ControlOut,
    /// A process inside connects to a forwarded port, or a connection to a port inside has been made.
    Connecting,
    /// A connection to a forwarded port can take bytes.
    SocketIn,
    /// A connection to a forwarded port has bytes.
    SocketOut,
    /// Files in watched folders have changed.
    Changes,
}

const STDIN_CHANNEL: u8 = 0;
const STDOUT_CHANNEL: u8 = 1;
const STDERR_CHANNEL: u8 = 2;
const CONTROL_CHANNEL: u8 = 3;

pub(super) struct Program {
    pub(super) stream: u32,
    pub(super) pid: Pid,
    /// True if the end of its stream kills only its process group, and no detached process.
    pub(super) stands_alone: bool,
    /// Orphans of the program that can replace it later. They live as long as its stream.
    pub(super) kept: Vec<Pid>,
    /// Some until exec has succeeded.
    start: Option<OwnedFd>,
    /// Reports its end, where signals do not.
    pub(super) pidfd: Option<OwnedFd>,
    stdin: Option<InputPump>,
    control_in: Option<InputPump>,
    stdout: OutputPump,
    stderr: OutputPump,
    control_out: Option<OutputPump>,
    /// The host's end of its terminal.
    terminal: Option<OwnedFd>,
    /// Control bytes that wait for earlier bytes of stdout and stderr.
    held_control: Option<HeldControl>,
    /// Its end, once it has been reaped.
    exit: Option<Exit>,
    /// The bytes to forward before the `exited` event.
    pending_exit: Option<PendingExit>,
}

struct HeldControl {
    stdout: Mark,
    stderr: Mark,
    control: Mark,
}

struct PendingExit {
    exit: Exit,
    marks: [Mark; 3],
}

/// The near ends of a program's pipes, and the far ends for the program.
pub(super) struct Pipes {
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    control: Option<(OwnedFd, OwnedFd)>,
    terminal: Option<OwnedFd>,
    far_ends: Vec<OwnedFd>,
}

impl Pipes {
    /// Makes the pipes, except those that direct pipes replace. `null` is the standard input of a program without
    /// input.
    pub(super) fn new(
        stdin: StdinMode,
        control: bool,
        direct_pipes: Option<DirectPipes>,
        null: &OwnedFd,
    ) -> Result<Self, SpawnError> {
        let to_program = || -> rustix::io::Result<(OwnedFd, OwnedFd)> {
            let (far, near) = pipe_with(PipeFlags::CLOEXEC)?;
            fcntl_setfl(&near, OFlags::NONBLOCK)?;
            Ok((near, far))
        };
        let from_program = || -> rustix::io::Result<(OwnedFd, OwnedFd)> {
            let (near, far) = pipe_with(PipeFlags::CLOEXEC)?;
            fcntl_setfl(&near, OFlags::NONBLOCK)?;
            Ok((near, far))
        };
        let make = move || -> rustix::io::Result<Self> {
            let mut far_ends = Vec::with_capacity(5);
            let stdin = match stdin {
                StdinMode::Null => {
                    far_ends.push(rustix::io::fcntl_dupfd_cloexec(null, 0)?);
                    None
                }
                StdinMode::Piped => {
                    let (near, theirs) = to_program()?;
                    far_ends.push(theirs);
                    Some(near)
                }
            };
            if let Some(direct_pipes) = direct_pipes {
                far_ends.extend([
                    direct_pipes.stdout,
                    direct_pipes.stderr,
                    direct_pipes.control_in,
                    direct_pipes.control_out,
                ]);
                return Ok(Self {
                    stdin,
                    far_ends,
                    ..Self::direct()
                });
            }
            let (stdout, theirs) = from_program()?;
            far_ends.push(theirs);
            let (stderr, theirs) = from_program()?;
            far_ends.push(theirs);
            let control = if control {
                let (near_in, theirs) = to_program()?;
                far_ends.push(theirs);
                let (near_out, theirs) = from_program()?;
                far_ends.push(theirs);
                Some((near_in, near_out))
            } else {
                None
            };
            Ok(Self {
                stdin,
                stdout: Some(stdout),
                stderr: Some(stderr),
                control,
                terminal: None,
                far_ends,
            })
        };
        make().map_err(|error| SpawnError {
            step: Step::Pipe,
            source: error.into(),
        })
    }

    /// Makes a terminal in place of the pipes.
    pub(super) fn terminal(size: TerminalSize) -> Result<Self, SpawnError> {
        let make = || -> rustix::io::Result<Self> {
            let (ours, theirs) = terminal::open(size)?;
            let copy = |end: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(end, 0);
            Ok(Self {
                stdin: Some(copy(&ours)?),
                stdout: Some(copy(&ours)?),
                stderr: None,
                control: None,
                terminal: Some(ours),
                far_ends: vec![copy(&theirs)?, copy(&theirs)?, theirs],
            })
        };
        make().map_err(|error| SpawnError {
            step: Step::Terminal,
            source: error.into(),
        })
    }

    /// Returns the pipes of an adopted process with direct pipes, which bypass the agent.
    pub(super) fn direct() -> Self {
        Self {
            stdin: None,
            stdout: None,
            stderr: None,
            control: None,
            terminal: None,
            far_ends: Vec::new(),
        }
    }

    /// Returns the pipes that an adopted process has made: the near ends of its stdout, its stderr, its control input
    /// and its control output. None if one is not a pipe.
    pub(super) fn received([stdout, stderr, into, out_of]: [OwnedFd; 4]) -> Option<Self> {
        for end in [&stdout, &stderr, &into, &out_of] {
            let found = rustix::fs::fstat(end).ok()?;
            if !rustix::fs::FileType::from_raw_mode(found.st_mode).is_fifo() {
                return None;
            }
            fcntl_setfl(end, OFlags::NONBLOCK).ok()?;
        }
        Some(Self {
            stdin: None,
            stdout: Some(stdout),
            stderr: Some(stderr),
            control: Some((into, out_of)),
            terminal: None,
            far_ends: Vec::new(),
        })
    }

    /// Returns the program's descriptors, in the order of their numbers.
    pub(super) fn far_ends(&self) -> Vec<BorrowedFd<'_>> {
        self.far_ends.iter().map(AsFd::as_fd).collect()
    }
}

impl Program {
    pub(super) fn new(stream: u32, started: Started, pipes: Pipes, pidfd: Option<OwnedFd>) -> Self {
        Self {
            start: Some(started.status),
            pidfd,
            ..Self::adopted(stream, started.pid, pipes)
        }
    }

    /// Returns a program that runs already and whose end the launcher reports.
    pub(super) fn adopted(stream: u32, pid: Pid, pipes: Pipes) -> Self {
        let (control_in, control_out) = pipes.control.unzip();
        Self {
            stream,
            pid,
            stands_alone: false,
            kept: Vec::new(),
            start: None,
            pidfd: None,
            stdin: pipes.stdin.map(InputPump::new),
            control_in: control_in.map(InputPump::new),
            stdout: OutputPump::new(stream, STDOUT_CHANNEL, pipes.stdout),
            stderr: OutputPump::new(stream, STDERR_CHANNEL, pipes.stderr),
            control_out: control_out.map(|pipe| OutputPump::new(stream, CONTROL_CHANNEL, Some(pipe))),
            terminal: pipes.terminal,
            held_control: None,
            exit: None,
            pending_exit: None,
        }
    }

    /// Returns the result of the start. None if it is not known yet, or was returned before.
    pub(super) fn outcome(&mut self) -> Option<Result<(), SpawnError>> {
        match spawn::outcome(self.start.as_ref()?.as_fd()) {
            Outcome::Pending => None,
            Outcome::Running => {
                self.start = None;
                Some(Ok(()))
            }
            Outcome::Failed(error) => Some(Err(error)),
        }
    }

    /// Tells the host that a program in a terminal has no stderr.
    pub(super) fn report_channels(&self, out: &mut OutBuffer) {
        if self.terminal.is_some() {
            out.close(self.stream, STDERR_CHANNEL);
        }
    }

    /// Gives its terminal another size. None: it has no terminal.
    pub(super) fn resize(&self, size: TerminalSize) -> Option<rustix::io::Result<()>> {
        self.terminal.as_ref().map(|terminal| terminal::resize(terminal, size))
    }

    /// Returns true until exec has succeeded.
    pub(super) fn is_starting(&self) -> bool {
        self.start.is_some()
    }

    /// Marks the program as started: it has ended, so it must have been started.
    pub(super) fn assume_started(&mut self) {
        self.start = None;
    }

    pub(super) fn polled<'a>(&'a self, mut add: impl FnMut(Part, BorrowedFd<'a>, PollFlags)) {
        if let Some(start) = &self.start {
            add(Part::Start, start.as_fd(), PollFlags::IN);
            return;
        }
        if let Some(pidfd) = &self.pidfd {
            add(Part::End, pidfd.as_fd(), PollFlags::IN);
        }
        for (part, input) in [(Part::Stdin, &self.stdin), (Part::ControlIn, &self.control_in)] {
            if let Some(fd) = input.as_ref().and_then(InputPump::polled) {
                add(part, fd, PollFlags::OUT);
            }
        }
        for (part, output) in [(Part::Stdout, Some(&self.stdout)), (Part::Stderr, Some(&self.stderr))] {
            if let Some(fd) = output.and_then(OutputPump::polled) {
                add(part, fd, PollFlags::IN);
            }
        }
        if let Some(fd) = self
            .control_out
            .as_ref()
            .filter(|_| self.held_control.is_none())
            .and_then(OutputPump::polled)
        {
            add(Part::ControlOut, fd, PollFlags::IN);
        }
    }

    /// Copies the bytes of a pipe that is ready.
    pub(super) fn pipe_ready(&mut self, part: Part, flags: PollFlags, out: &mut OutBuffer) {
        match part {
            Part::Start | Part::End | Part::Connecting | Part::SocketIn | Part::SocketOut | Part::Changes => {}
            Part::Stdin => self.feed(STDIN_CHANNEL, out),
            Part::ControlIn => self.feed(CONTROL_CHANNEL, out),
            Part::Stdout => drop(self.stdout.take(u64::MAX, out)),
            Part::Stderr => drop(self.stderr.take(u64::MAX, out)),
            Part::ControlOut => self.control_ready(flags, out),
        }
    }

    /// Records the fill of the pipes at the moment when control became readable. Control is read first: its bytes were
    /// written after the bytes that the other pipes have now.
    fn control_ready(&mut self, flags: PollFlags, out: &mut OutBuffer) {
        let Some(control) = &mut self.control_out else { return };
        if self.held_control.is_some() {
            return;
        }
        if control.available() == 0 {
            // Without a writer, only end of file can have made it ready.
            if flags.contains(PollFlags::HUP) {
                let _end: ReadResult = control.take(u64::MAX, out);
            }
            return;
        }
        let control = control.mark();
        self.held_control = Some(HeldControl {
            stdout: self.stdout.mark(),
            stderr: self.stderr.mark(),
            control,
        });
    }

    /// Forwards the bytes that wait, as far as possible.
    pub(super) fn advance(&mut self, out: &mut OutBuffer, crowded: usize) {
        if let (Some(held_control), Some(control)) = (&mut self.held_control, &mut self.control_out) {
            let ready = held_control.stdout.reach(&mut self.stdout, out, crowded)
                && held_control.stderr.reach(&mut self.stderr, out, crowded)
                && held_control.control.reach(control, out, crowded);
            if ready {
                self.held_control = None;
            }
        }
        if self.start.is_some() {
            return;
        }
        if let Some(pending_exit) = &mut self.pending_exit {
            let [stdout, stderr, control] = &mut pending_exit.marks;
            let ready = stdout.reach(&mut self.stdout, out, crowded)
                && stderr.reach(&mut self.stderr, out, crowded)
                && self.held_control.is_none()
                && self
                    .control_out
                    .as_mut()
                    .is_none_or(|output| control.reach(output, out, crowded));
            if ready {
                let _fits = out.message(
                    Kind::Event,
                    self.stream,
                    &Event::Exited {
                        exit: pending_exit.exit,
                    },
                );
                self.pending_exit = None;
            }
        }
    }

    /// Records the program's end after it was reaped. Its output precedes the event.
    pub(super) fn ended(&mut self, exit: Exit) {
        self.exit = Some(exit);
        self.pidfd = None;
        let control = self.control_out.as_ref().unwrap_or(&self.stderr);
        let stdout = match &self.terminal {
            // The kernel may still move bytes inside a terminal, so they cannot be counted.
            Some(_) => Mark::PIPE_EMPTY,
            None => self.stdout.mark(),
        };
        self.pending_exit = Some(PendingExit {
            exit,
            marks: [stdout, self.stderr.mark(), control.mark()],
        });
    }

    /// Replaces the program by this process. The channels do not change.
    pub(super) fn replace_with(&mut self, heir: Pid) {
        self.pid = heir;
        self.kept.retain(|kept| *kept != heir);
        self.exit = None;
        self.pending_exit = None;
    }

    /// Returns true after the `exited` event was sent.
    pub(super) fn has_reported_exit(&self) -> bool {
        self.exit.is_some() && self.pending_exit.is_none()
    }

    /// Returns true until the agent has reaped the program.
    pub(super) fn is_alive(&self) -> bool {
        self.exit.is_none()
    }

    pub(super) fn receive(&mut self, channel: u8, bytes: &[u8], out: &mut OutBuffer) -> Result<(), ProtocolError> {
        let stream = self.stream;
        let input = self.input_pump(channel)?;
        if input.receive(bytes, credit_sender(out, stream, channel))? == Flow::Refused {
            refused(stream, channel, out);
        }
        Ok(())
    }

    pub(super) fn close(&mut self, channel: u8) -> Result<(), ProtocolError> {
        self.input_pump(channel)?.close()
    }

    pub(super) fn refund(&mut self, channel: u8, amount: u32) -> Result<(), ProtocolError> {
        let output = match channel {
            STDOUT_CHANNEL => Some(&mut self.stdout),
            STDERR_CHANNEL => Some(&mut self.stderr),
            CONTROL_CHANNEL => self.control_out.as_mut(),
            _ => None,
        };
        output
            .ok_or_else(|| ProtocolError::new("credit for a channel that does not exist"))?
            .refund(amount)
    }

    fn input_pump(&mut self, channel: u8) -> Result<&mut InputPump, ProtocolError> {
        let input = match channel {
            STDIN_CHANNEL => self.stdin.as_mut(),
            CONTROL_CHANNEL => self.control_in.as_mut(),
            _ => None,
        };
        input.ok_or_else(|| ProtocolError::new("data for a channel that does not exist"))
    }

    fn feed(&mut self, channel: u8, out: &mut OutBuffer) {
        let stream = self.stream;
        if let Ok(input) = self.input_pump(channel)
            && input.write(credit_sender(out, stream, channel)) == Flow::Refused
        {
            refused(stream, channel, out);
        }
    }

    /// Signals the program and its group, each process once. A shell that cannot defer an interrupt hands its state on
    /// after the first one. A second one would hit it while it does so.
    pub(super) fn signal_group(&self, signal: Signal) {
        let reached = tree::signal_process_group(self.pid, signal);
        // A child that does not lead its own group yet is reached by its id. A reaped child is not signalled again.
        if !reached && self.is_alive() {
            tree::signal_process(self.pid, signal);
        }
    }
}

fn refused(stream: u32, channel: u8, out: &mut OutBuffer) {
    let _fits = out.message(Kind::Event, stream, &Event::Refused { channel });
}
