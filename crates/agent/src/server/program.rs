//! One started program: its pipes, its end, and the order in which the host learns of them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal};
use sandcell_jail::lane::Lane;
use sandcell_jail::spawn::{self, Outcome, SpawnError, Started, Step};
use sandcell_sandbox::{Exit, StdinMode};

use super::inward::{Flow, Inward, credit_to};
use super::outward::{Mark, Outward, Took};
use super::tree;
use crate::protocol::{Breach, Event, Kind, OutBuffer};

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
    /// A process inside connects to a forwarded port.
    Connecting,
    /// A connection to a forwarded port can take bytes.
    SocketIn,
    /// A connection to a forwarded port has bytes.
    SocketOut,
}

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const CONTROL: u8 = 3;

pub(super) struct Program {
    pub(super) stream: u32,
    pub(super) pid: Pid,
    /// True if the end of its stream kills only its process group, and no detached process.
    pub(super) stands_alone: bool,
    /// Some until exec has succeeded.
    start: Option<OwnedFd>,
    /// Reports its end, where signals do not.
    pub(super) watch: Option<OwnedFd>,
    stdin: Option<Inward>,
    control_in: Option<Inward>,
    stdout: Outward,
    stderr: Outward,
    control_out: Option<Outward>,
    /// Control bytes that wait for earlier bytes of stdout and stderr.
    held: Option<Held>,
    /// Its end, once it has been reaped.
    exit: Option<Exit>,
    /// The bytes to forward before the `exited` event.
    last: Option<Last>,
}

struct Held {
    stdout: Mark,
    stderr: Mark,
    control: Mark,
}

struct Last {
    exit: Exit,
    marks: [Mark; 3],
}

/// The near ends of a program's pipes, and the far ends for the program.
pub(super) struct Pipes {
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    control: Option<(OwnedFd, OwnedFd)>,
    far: Vec<OwnedFd>,
}

impl Pipes {
    /// Makes the pipes, except those that direct pipes replace. `null` is the standard input of a program without
    /// input.
    pub(super) fn new(stdin: StdinMode, control: bool, lane: Option<Lane>, null: &OwnedFd) -> Result<Self, SpawnError> {
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
            let mut far = Vec::with_capacity(5);
            let stdin = match stdin {
                StdinMode::Null => {
                    far.push(rustix::io::fcntl_dupfd_cloexec(null, 0)?);
                    None
                }
                StdinMode::Piped => {
                    let (near, theirs) = to_program()?;
                    far.push(theirs);
                    Some(near)
                }
            };
            if let Some(lane) = lane {
                far.extend([lane.stdout, lane.stderr, lane.control_in, lane.control_out]);
                return Ok(Self {
                    stdin,
                    far,
                    ..Self::past()
                });
            }
            let (stdout, theirs) = from_program()?;
            far.push(theirs);
            let (stderr, theirs) = from_program()?;
            far.push(theirs);
            let control = if control {
                let (near_in, theirs) = to_program()?;
                far.push(theirs);
                let (near_out, theirs) = from_program()?;
                far.push(theirs);
                Some((near_in, near_out))
            } else {
                None
            };
            Ok(Self {
                stdin,
                stdout: Some(stdout),
                stderr: Some(stderr),
                control,
                far,
            })
        };
        make().map_err(|error| SpawnError {
            step: Step::Pipe,
            source: error.into(),
        })
    }

    /// Returns the pipes of an adopted process with direct pipes, which bypass the agent.
    pub(super) fn past() -> Self {
        Self {
            stdin: None,
            stdout: None,
            stderr: None,
            control: None,
            far: Vec::new(),
        }
    }

    /// Returns the pipes that an adopted process has made: the near ends of its stdout, its stderr, its control input
    /// and its control output. None if one is not a pipe.
    pub(super) fn brought([stdout, stderr, into, out_of]: [OwnedFd; 4]) -> Option<Self> {
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
            far: Vec::new(),
        })
    }

    /// Returns the program's descriptors, in the order of their numbers.
    pub(super) fn far(&self) -> Vec<BorrowedFd<'_>> {
        self.far.iter().map(AsFd::as_fd).collect()
    }
}

impl Program {
    pub(super) fn new(stream: u32, started: Started, pipes: Pipes, watch: Option<OwnedFd>) -> Self {
        Self {
            start: Some(started.status),
            watch,
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
            start: None,
            watch: None,
            stdin: pipes.stdin.map(Inward::new),
            control_in: control_in.map(Inward::new),
            stdout: Outward::new(stream, STDOUT, pipes.stdout),
            stderr: Outward::new(stream, STDERR, pipes.stderr),
            control_out: control_out.map(|pipe| Outward::new(stream, CONTROL, Some(pipe))),
            held: None,
            exit: None,
            last: None,
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
        if let Some(watch) = &self.watch {
            add(Part::End, watch.as_fd(), PollFlags::IN);
        }
        for (part, inward) in [(Part::Stdin, &self.stdin), (Part::ControlIn, &self.control_in)] {
            if let Some(fd) = inward.as_ref().and_then(Inward::polled) {
                add(part, fd, PollFlags::OUT);
            }
        }
        for (part, outward) in [(Part::Stdout, Some(&self.stdout)), (Part::Stderr, Some(&self.stderr))] {
            if let Some(fd) = outward.and_then(Outward::polled) {
                add(part, fd, PollFlags::IN);
            }
        }
        if let Some(fd) = self
            .control_out
            .as_ref()
            .filter(|_| self.held.is_none())
            .and_then(Outward::polled)
        {
            add(Part::ControlOut, fd, PollFlags::IN);
        }
    }

    /// Copies the bytes of a pipe that is ready.
    pub(super) fn pipe_ready(&mut self, part: Part, flags: PollFlags, out: &mut OutBuffer) {
        match part {
            Part::Start | Part::End | Part::Connecting | Part::SocketIn | Part::SocketOut => {}
            Part::Stdin => self.feed(STDIN, out),
            Part::ControlIn => self.feed(CONTROL, out),
            Part::Stdout => drop(self.stdout.take(u64::MAX, out)),
            Part::Stderr => drop(self.stderr.take(u64::MAX, out)),
            Part::ControlOut => self.control_ready(flags, out),
        }
    }

    /// Records the fill of the pipes at the moment when control became readable. Control is read first: its bytes were
    /// written after the bytes that the other pipes have now.
    fn control_ready(&mut self, flags: PollFlags, out: &mut OutBuffer) {
        let Some(control) = &mut self.control_out else { return };
        if self.held.is_some() {
            return;
        }
        if control.standing() == 0 {
            // Without a writer, only end of file can have made it ready.
            if flags.contains(PollFlags::HUP) {
                let _end: Took = control.take(u64::MAX, out);
            }
            return;
        }
        let control = control.mark();
        self.held = Some(Held {
            stdout: self.stdout.mark(),
            stderr: self.stderr.mark(),
            control,
        });
    }

    /// Forwards the bytes that wait, as far as possible.
    pub(super) fn advance(&mut self, out: &mut OutBuffer, crowded: usize) {
        if let (Some(held), Some(control)) = (&mut self.held, &mut self.control_out) {
            let ready = held.stdout.reach(&mut self.stdout, out, crowded)
                && held.stderr.reach(&mut self.stderr, out, crowded)
                && held.control.reach(control, out, crowded);
            if ready {
                self.held = None;
            }
        }
        if self.start.is_some() {
            return;
        }
        if let Some(last) = &mut self.last {
            let [stdout, stderr, control] = &mut last.marks;
            let ready = stdout.reach(&mut self.stdout, out, crowded)
                && stderr.reach(&mut self.stderr, out, crowded)
                && self.held.is_none()
                && self
                    .control_out
                    .as_mut()
                    .is_none_or(|outward| control.reach(outward, out, crowded));
            if ready {
                let _fits = out.message(Kind::Event, self.stream, &Event::Exited { exit: last.exit });
                self.last = None;
            }
        }
    }

    /// Records the program's end after it was reaped. Its output precedes the event.
    pub(super) fn ended(&mut self, exit: Exit) {
        self.exit = Some(exit);
        self.watch = None;
        let control = self.control_out.as_ref().unwrap_or(&self.stderr);
        self.last = Some(Last {
            exit,
            marks: [self.stdout.mark(), self.stderr.mark(), control.mark()],
        });
    }

    /// Replaces the program by this process. The channels do not change.
    pub(super) fn succeeded_by(&mut self, heir: Pid) {
        self.pid = heir;
        self.exit = None;
        self.last = None;
    }

    /// Returns true after the `exited` event was sent.
    pub(super) fn has_told_its_end(&self) -> bool {
        self.exit.is_some() && self.last.is_none()
    }

    /// Returns true until the agent has reaped the program.
    pub(super) fn is_alive(&self) -> bool {
        self.exit.is_none()
    }

    pub(super) fn receive(&mut self, channel: u8, bytes: &[u8], out: &mut OutBuffer) -> Result<(), Breach> {
        let stream = self.stream;
        let inward = self.inward(channel)?;
        if inward.receive(bytes, credit_to(out, stream, channel))? == Flow::Refused {
            refused(stream, channel, out);
        }
        Ok(())
    }

    pub(super) fn close(&mut self, channel: u8) -> Result<(), Breach> {
        self.inward(channel)?.close()
    }

    pub(super) fn refund(&mut self, channel: u8, amount: u32) -> Result<(), Breach> {
        let outward = match channel {
            STDOUT => Some(&mut self.stdout),
            STDERR => Some(&mut self.stderr),
            CONTROL => self.control_out.as_mut(),
            _ => None,
        };
        outward
            .ok_or_else(|| Breach::new("credit for a channel that does not exist"))?
            .refund(amount)
    }

    fn inward(&mut self, channel: u8) -> Result<&mut Inward, Breach> {
        let inward = match channel {
            STDIN => self.stdin.as_mut(),
            CONTROL => self.control_in.as_mut(),
            _ => None,
        };
        inward.ok_or_else(|| Breach::new("data for a channel that does not exist"))
    }

    fn feed(&mut self, channel: u8, out: &mut OutBuffer) {
        let stream = self.stream;
        if let Ok(inward) = self.inward(channel)
            && inward.write(credit_to(out, stream, channel)) == Flow::Refused
        {
            refused(stream, channel, out);
        }
    }

    /// Signals the program and its group, each process once. A shell that cannot defer an interrupt hands its state on
    /// after the first one. A second one would hit it while it does so.
    pub(super) fn signal_group(&self, signal: Signal) {
        let reached = tree::group(self.pid, signal);
        // A child that does not lead its own group yet is reached by its id. A reaped child is not signalled again.
        if !reached && self.is_alive() {
            tree::one(self.pid, signal);
        }
    }
}

fn refused(stream: u32, channel: u8, out: &mut OutBuffer) {
    let _fits = out.message(Kind::Event, stream, &Event::Refused { channel });
}
