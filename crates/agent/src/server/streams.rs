//! The streams that the host has opened: programs, file operations, and requests with an immediate answer.

mod heirs;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};
use sandcell_jail::direct_pipes::DirectPipes;
use sandcell_jail::spawn::Program as Prepared;
use sandcell_sandbox::{Exit, Signal as AskedSignal, SignalScope, TerminalSize};
use serde::Serialize;

use super::adopt::{AdoptEvent, EntrySocket};
use super::children::Children;
use super::errors;
use super::files::{self, Job, Root, SavedState, SavedStates, Step};
use super::forward::Forwards;
use super::group::{CheckResult, Group};
use super::pause::Pause;
use super::program::{Part, Pipes, Program};
use super::tree::{self, Tree};
use super::watch::Watches;
use super::{ServerConfig, usage};
use crate::protocol::{
    BODY_CHANNEL, EmptyReply, ErrorCode, Frame, Kind, MAX_ENTRIES, OutBuffer, ProtocolError, Reply, Request,
    RequestError, SpawnReply, WireError, parse_request,
};

/// The maximum number of programs with open streams.
const MAX_PROGRAMS: usize = 128;

/// The maximum number of file operations in progress.
const MAX_JOBS: usize = 32;

/// The difference between a program's `oom_score_adj` and the agent's, so the kernel kills programs first.
const OOM_STEP: i32 = 200;

pub(super) struct Streams {
    config: ServerConfig,
    root: Root,
    null: OwnedFd,
    /// The far ends of the direct pipes, until a program has them.
    direct_pipes: Option<DirectPipes>,
    programs: BTreeMap<u32, Program>,
    /// The entry socket, until the worker's end was reported.
    entry: Option<EntrySocket>,
    jobs: BTreeMap<u32, Job>,
    /// Saved states of the private files.
    saved: SavedStates,
    /// The image that was made last, until the host has taken it.
    image: Option<OwnedFd>,
    forwards: Forwards,
    watches: Watches,
    /// The pause, while the processes are stopped.
    pause: Option<Pause>,
    /// The highest stream id that the host has used.
    last_id: u32,
    /// The stream where the next round of work begins, so that all streams get a turn.
    turn: u32,
    first_process: bool,
    /// The value of a program's `oom_score_adj`.
    oom_score: Option<String>,
    /// The container's control group.
    group: Option<Group>,
}

impl Streams {
    pub(super) fn new(
        mut config: ServerConfig,
        direct_pipes: Option<DirectPipes>,
        children: &Children,
        entry: Option<EntrySocket>,
    ) -> io::Result<Self> {
        let own_score = std::fs::read_to_string("/proc/self/oom_score_adj").ok();
        let own_score = own_score.and_then(|text| text.trim().parse::<i32>().ok());
        Ok(Self {
            root: Root::open(&config.root)?,
            group: (config.limits).and_then(|limits| Group::find(limits, &config.private, config.sockets.take())),
            null: rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?,
            config,
            direct_pipes,
            programs: BTreeMap::new(),
            entry,
            jobs: BTreeMap::new(),
            saved: SavedStates::default(),
            image: None,
            forwards: Forwards::default(),
            watches: Watches::default(),
            pause: None,
            last_id: 0,
            turn: 0,
            first_process: children.first_process(),
            oom_score: own_score.map(|score| score.saturating_add(OOM_STEP).min(1000).to_string()),
        })
    }

    /// Handles a frame of the host.
    pub(super) fn frame(
        &mut self,
        frame: &Frame<'_>,
        out: &mut OutBuffer,
        children: &mut Children,
    ) -> Result<(), ProtocolError> {
        let stream = frame.stream;
        if frame.kind == Kind::Request {
            if stream.is_multiple_of(2) || stream <= self.last_id {
                return Err(ProtocolError::new(format!("stream {stream} cannot be opened")));
            }
            self.last_id = stream;
            return match parse_request(frame.payload) {
                Ok(request) => {
                    self.request(stream, request, out, children);
                    Ok(())
                }
                Err(RequestError::Answer(error)) => {
                    answer::<EmptyReply>(stream, Err(error), out);
                    Ok(())
                }
                Err(RequestError::ProtocolError(error)) => Err(error),
            };
        }
        if stream.is_multiple_of(2) {
            return self.forwards.frame(frame, out);
        }
        if stream > self.last_id {
            return Err(ProtocolError::new(format!(
                "a frame on stream {stream}, which was never opened"
            )));
        }
        if self.forwards.has(stream) {
            return self.forwards.frame(frame, out);
        }
        if self.watches.has(stream) {
            return self.watches.frame(frame, out);
        }
        match frame.kind {
            Kind::Data => {
                let (channel, bytes) = frame.data()?;
                self.data(stream, channel, bytes, out)
            }
            Kind::Credit => {
                let (channel, amount) = frame.credit()?;
                self.credit(stream, channel, amount)
            }
            Kind::Close => {
                let channel = frame.close()?;
                self.close(stream, channel, out)
            }
            Kind::Reset => {
                self.reset(stream, children);
                self.forwards.close_port(stream, out);
                out.reset(stream);
                Ok(())
            }
            Kind::Hello | Kind::Request | Kind::Reply | Kind::Event | Kind::Goodbye => {
                Err(ProtocolError::new(format!("the host may not send {:?}", frame.kind)))
            }
        }
    }

    fn request(&mut self, stream: u32, request: Request, out: &mut OutBuffer, children: &Children) {
        match request {
            Request::Spawn { .. } => {
                // The answer follows when exec has succeeded or failed.
                if let Err(error) = self.spawn(stream, request, children) {
                    answer::<EmptyReply>(stream, Err(error), out);
                }
            }
            Request::Signal {
                process,
                signal,
                scope,
                spare,
            } => {
                answer(stream, self.signal(process, signal, scope, spare), out);
            }
            Request::Succeed { process, heir } => answer(stream, self.succeed(process, heir), out),
            Request::Keep {
                process,
                pid,
                expendable,
            } => answer(stream, self.keep(process, pid, expendable), out),
            Request::Kept { process } => answer(stream, self.kept(process), out),
            Request::Release { process, pid } => answer(stream, self.release(process, pid), out),
            Request::Adopt { lane } => {
                // The answer follows when the worker has entered.
                if let Err(error) = self.adopt(stream, lane, out) {
                    answer::<EmptyReply>(stream, Err(error), out);
                }
            }
            Request::List { path, recursive, max } => {
                let path = self.config.real_path(&path).into_owned();
                self.begin(stream, out, |root| Job::list(root, &path, recursive, max))
            }
            Request::Read { path, offset, len } => {
                let path = self.config.real_path(&path).into_owned();
                self.begin(stream, out, |root| Job::read(root, &path, offset, len));
            }
            Request::Write { path, mode } => {
                let path = self.config.real_path(&path).into_owned();
                self.begin(stream, out, |root| Job::write(root, &path, mode));
            }
            Request::Entry { path } => {
                let path = self.config.real_path(&path);
                answer(stream, files::entry(&self.root, &path), out);
            }
            Request::MakeFolder { path } => {
                let path = self.config.real_path(&path);
                answer(stream, files::make_folder(&self.root, &path), out);
            }
            Request::Rename { path, to } => {
                let (path, to) = (self.config.real_path(&path), self.config.real_path(&to));
                answer(stream, files::rename(&self.root, &path, &to), out);
            }
            Request::Remove { path } => {
                let path = self.config.real_path(&path).into_owned();
                self.begin(stream, out, |root| Job::remove(root, &path));
            }
            Request::SaveFiles {
                number,
                folders,
                max_bytes,
            } => {
                let real = self.real_paths(&folders);
                let states = std::mem::take(&mut self.saved);
                self.begin(stream, out, |root| {
                    Job::save(root, &states, number, (&folders, &real), max_bytes)
                });
                self.saved = states;
            }
            Request::RestoreFiles { number } => {
                let saved = self.saved_state(number);
                self.begin(stream, out, |root| {
                    let (state, real) = saved?;
                    Job::restore(root, state, &real)
                });
            }
            Request::FileChanges { number, max } => {
                let saved = self.saved_state(number);
                self.begin(stream, out, |root| {
                    let (state, real) = saved?;
                    Job::compare(root, state, &real, max.min(MAX_ENTRIES))
                });
            }
            Request::ReadSaved {
                number,
                path,
                offset,
                len,
            } => {
                let state = self.saved.get(number);
                self.begin(stream, out, |_| Job::read_saved(&*state?, &path, offset, len));
            }
            Request::MountLayers { max } => {
                self.begin(stream, out, |root| Ok(Job::list_layers(root, max)));
            }
            Request::ForgetFiles { number } => {
                answer(stream, Ok(self.saved.forget(number)), out);
            }
            Request::Image { process, pid, drop } => answer(stream, self.order_image(process, pid, drop), out),
            Request::ImageFiles { number, max_bytes } => {
                let saved = self.saved_state(number);
                self.begin(stream, out, |root| {
                    let (state, real) = saved?;
                    Job::image(root, state, &real, max_bytes)
                });
            }
            Request::ReadImage { offset, len } => {
                let image = self.image.take();
                self.begin(stream, out, |_| {
                    let missing = || WireError::new(ErrorCode::NotFound, "there is no image");
                    Job::read_image(image.as_ref().ok_or_else(missing)?, offset, len)
                });
                self.image = image;
            }
            Request::DropImage => {
                self.image = None;
                answer(stream, Ok(EmptyReply {}), out);
            }
            Request::Watch { path, recursive } => {
                let path = self.config.real_path(&path);
                answer(stream, self.watches.begin(&self.root, stream, &path, recursive), out);
            }
            Request::Pause => answer(stream, self.pause(), out),
            Request::Resume => answer(stream, self.resume(), out),
            Request::Usage => {
                let group = self.group.as_mut().map(Group::usage);
                let counts = self.first_process && self.config.counts_processes;
                let usage = usage::read(&self.config.private, counts, group);
                answer(stream, Ok(usage), out);
            }
            Request::Ping => answer(stream, Ok(EmptyReply {}), out),
            Request::Forward { address, port, target } => {
                answer(stream, self.forwards.listen(stream, address, port, target), out);
            }
            Request::Open { address, port } => {
                // The answer follows when the connection has been made or refused.
                if let Err(error) = self.forwards.open(stream, address, port, out) {
                    answer::<EmptyReply>(stream, Err(error), out);
                }
            }
            Request::Resize { process, size } => answer(stream, self.resize(process, size), out),
        }
    }

    /// Returns a saved state of the files, with the paths of its folders in this system.
    fn saved_state(&self, number: u32) -> Result<(Arc<SavedState>, Vec<String>), WireError> {
        let state = self.saved.get(number)?;
        let real = self.real_paths(state.folders());
        Ok((state, real))
    }

    fn real_paths(&self, folders: &[String]) -> Vec<String> {
        let real = folders.iter().map(|folder| self.config.real_path(folder).into_owned());
        real.collect()
    }

    fn begin(&mut self, stream: u32, out: &mut OutBuffer, make: impl FnOnce(&Root) -> Result<Job, WireError>) {
        let job = if self.jobs.len() >= MAX_JOBS {
            Err(WireError::new(
                ErrorCode::Limit,
                format!("{MAX_JOBS} file operations are under way already"),
            ))
        } else {
            make(&self.root)
        };
        match job {
            Ok(job) => drop(self.jobs.insert(stream, job)),
            Err(error) => answer::<EmptyReply>(stream, Err(error), out),
        }
    }

    fn spawn(&mut self, stream: u32, request: Request, children: &Children) -> Result<(), WireError> {
        let Request::Spawn {
            argv,
            env,
            cwd,
            stands_alone,
            stdin,
            control,
            lane,
            terminal,
        } = request
        else {
            return Err(WireError::new(ErrorCode::Failed, "not a start"));
        };
        if self.pause.is_some() {
            return Err(WireError::new(ErrorCode::Limit, "the sandbox is paused"));
        }
        if self.programs.len() >= MAX_PROGRAMS {
            return Err(WireError::new(
                ErrorCode::Limit,
                format!("{MAX_PROGRAMS} programs are started already"),
            ));
        }
        let argv: Vec<String> = argv
            .iter()
            .map(|word| self.config.real_path(word).into_owned())
            .collect();
        let cwd = self.config.real_path(&cwd);
        let mut folders = vec![&*cwd];
        if !stands_alone {
            folders.extend([self.config.home.as_str(), "/"]);
        }
        let prepared = Prepared::new(&argv, &env, &folders).map_err(|error| errors::of_spawn(&error))?;
        let direct_pipes = match (lane, self.direct_pipes.take()) {
            (false, kept) => {
                self.direct_pipes = kept;
                None
            }
            (true, Some(direct_pipes)) if control => Some(direct_pipes),
            (true, _) => {
                return Err(WireError::new(
                    ErrorCode::Invalid,
                    "there are no direct pipes for this program",
                ));
            }
        };
        let pipes = match terminal {
            Some(_) if control => return Err(WireError::new(ErrorCode::Invalid, "a terminal has no control channel")),
            Some(size) => Pipes::terminal(size),
            None => Pipes::new(stdin, control, direct_pipes, &self.null),
        };
        let pipes = pipes.map_err(|error| errors::of_spawn(&error))?;
        let started = prepared
            .start(&pipes.far_ends(), terminal.is_some())
            .map_err(|error| errors::of_spawn(&error))?;
        let pidfd = children.open_pidfd(started.pid);
        let mut program = Program::new(stream, started, pipes, pidfd);
        program.stands_alone = stands_alone;
        self.programs.insert(stream, program);
        Ok(())
    }

    /// Makes the worker that enters the program of this stream.
    fn adopt(&mut self, stream: u32, lane: bool, out: &mut OutBuffer) -> Result<(), WireError> {
        if self.programs.len() >= MAX_PROGRAMS {
            return Err(WireError::new(
                ErrorCode::Limit,
                format!("{MAX_PROGRAMS} programs are started already"),
            ));
        }
        let closed = || WireError::new(ErrorCode::NotFound, "no process can enter the sandbox any more");
        let direct_pipes = if lane { self.direct_pipes.take() } else { None };
        self.entry.as_mut().ok_or_else(closed)?.expect(stream, direct_pipes)?;
        self.finish_adoption(out);
        Ok(())
    }

    /// Turns the worker into a program, once its id and its pipes are known and a stream waits for it.
    fn finish_adoption(&mut self, out: &mut OutBuffer) {
        if let Some((stream, pid, pipes)) = self.entry.as_mut().and_then(EntrySocket::complete) {
            self.programs.insert(stream, Program::adopted(stream, pid, pipes));
            answer(stream, Ok(SpawnReply { pid: pid.as_raw_pid() }), out);
        }
    }

    /// Returns the entry socket, while it is open.
    pub(super) fn entry(&self) -> Option<BorrowedFd<'_>> {
        self.entry.as_ref().map(EntrySocket::descriptor)
    }

    /// Handles a message on the entry socket.
    pub(super) fn entry_ready(&mut self, out: &mut OutBuffer, children: &mut Children) {
        match self.entry.as_mut().map(EntrySocket::receive) {
            None | Some(AdoptEvent::NoEvent) => {}
            Some(AdoptEvent::Entered) => self.finish_adoption(out),
            Some(AdoptEvent::Ended(pid, exit)) => {
                self.close_entry(out);
                self.ended(pid, exit, out, children);
            }
            Some(AdoptEvent::Closed) => self.close_entry(out),
        }
    }

    fn close_entry(&mut self, out: &mut OutBuffer) {
        if let Some(stream) = self.entry.take().and_then(EntrySocket::close) {
            let error = WireError::new(ErrorCode::NotFound, "the process that should enter has ended");
            answer::<EmptyReply>(stream, Err(error), out);
        }
    }

    /// Handles a ready descriptor of a program or of a forwarded port.
    pub(super) fn ready(
        &mut self,
        stream: u32,
        part: Part,
        flags: PollFlags,
        out: &mut OutBuffer,
        children: &mut Children,
    ) {
        if matches!(part, Part::Connecting | Part::SocketIn | Part::SocketOut) {
            self.forwards.ready(stream, part, out);
            return;
        }
        if part == Part::Changes {
            self.watches.ready(&self.root, out);
            return;
        }
        let Some(program) = self.programs.get_mut(&stream) else {
            return;
        };
        match part {
            Part::Start => self.report_start(stream, out, children),
            Part::End => {
                let pid = program.pid;
                if let Some(exit) = children.poll_exit(pid) {
                    self.ended(pid, exit, out, children);
                }
            }
            _ => program.pipe_ready(part, flags, out),
        }
    }

    /// Answers the host once the result of a program's start is known.
    fn report_start(&mut self, stream: u32, out: &mut OutBuffer, children: &mut Children) {
        let Some(program) = self.programs.get_mut(&stream) else {
            return;
        };
        match program.outcome() {
            None => {}
            Some(Ok(())) => {
                let pid = program.pid.as_raw_pid();
                if let Some(score) = &self.oom_score {
                    // The child is not reaped yet, so the id is still its own. Without the permission only a preference
                    // is lost.
                    let _unsupported = std::fs::write(format!("/proc/{pid}/oom_score_adj"), score);
                }
                answer(stream, Ok(SpawnReply { pid }), out);
                program.report_channels(out);
            }
            Some(Err(error)) => {
                answer::<EmptyReply>(stream, Err(errors::of_spawn(&error)), out);
                if let Some(program) = self.programs.remove(&stream) {
                    children.abandon(program.pid);
                }
            }
        }
    }

    /// Handles the end of a process that was reaped.
    pub(super) fn ended(&mut self, pid: Pid, exit: Exit, out: &mut OutBuffer, children: &mut Children) {
        // Its number can belong to another process from now on.
        for program in self.programs.values_mut() {
            program.kept.retain(|kept| *kept != pid);
        }
        let found = self
            .programs
            .iter()
            .find(|(_, program)| program.pid == pid && program.is_alive());
        let Some(stream) = found.map(|(stream, _)| *stream) else {
            return;
        };
        self.report_start(stream, out, children);
        if let Some(program) = self.programs.get_mut(&stream) {
            if program.is_starting() {
                // Another child before its exec still holds a copy of the pipe that reports the start.
                program.assume_started();
                answer(stream, Ok(SpawnReply { pid: pid.as_raw_pid() }), out);
                program.report_channels(out);
            }
            program.ended(exit);
        }
    }

    fn signal(
        &self,
        stream: u32,
        asked: AskedSignal,
        scope: SignalScope,
        spare: Option<i32>,
    ) -> Result<EmptyReply, WireError> {
        let program = self.programs.get(&stream).ok_or_else(|| no_program(stream))?;
        let signal = match asked {
            AskedSignal::Interrupt => Signal::INT,
            AskedSignal::Terminate => Signal::TERM,
            AskedSignal::Kill => Signal::KILL,
            AskedSignal::Nudge => Signal::URG,
        };
        let mut others = self.others(stream);
        match scope {
            SignalScope::Group if others.contains(&program.pid) => {}
            SignalScope::Group => program.signal_group(signal),
            SignalScope::Tree => {
                others.extend(spare.and_then(Pid::from_raw));
                self.signal_tree(program.pid, &others, signal)?;
            }
        }
        Ok(EmptyReply {})
    }

    fn pause(&mut self) -> Result<EmptyReply, WireError> {
        if self.pause.is_none() {
            self.pause = Some(Pause::begin(self.first_process).map_err(not_paused)?);
        }
        Ok(EmptyReply {})
    }

    fn resume(&mut self) -> Result<EmptyReply, WireError> {
        if let Some(pause) = &self.pause {
            pause.end().map_err(not_paused)?;
            self.pause = None;
        }
        Ok(EmptyReply {})
    }

    /// Gives the terminal of a program another size.
    fn resize(&self, stream: u32, size: TerminalSize) -> Result<EmptyReply, WireError> {
        let program = self.programs.get(&stream).ok_or_else(|| no_program(stream))?;
        match program.resize(size) {
            Some(done) => done.map(|()| EmptyReply {}).map_err(errors::of_file),
            None => Err(WireError::new(ErrorCode::Invalid, "the program has no terminal")),
        }
    }

    fn signal_tree(&self, program: Pid, others: &[Pid], signal: Signal) -> Result<(), WireError> {
        let tree = Tree {
            program,
            others,
            first_process: self.first_process,
        };
        tree.signal(signal).map_err(not_listed)
    }

    /// Returns the other programs, and all kept processes.
    fn others(&self, stream: u32) -> Vec<Pid> {
        let others = self.programs.values().filter(|program| program.stream != stream);
        let kept = self.programs.values().flat_map(|program| &program.kept);
        others.map(|program| program.pid).chain(kept.copied()).collect()
    }

    fn reset(&mut self, stream: u32, children: &mut Children) {
        self.jobs.remove(&stream);
        if let Some(entry) = &mut self.entry {
            entry.give_up(stream);
        }
        let Some(program) = self.programs.remove(&stream) else {
            return;
        };
        if !program.stands_alone {
            let others = self.others(stream);
            let tree = Tree {
                program: program.pid,
                others: &others,
                first_process: self.first_process,
            };
            if tree.signal(Signal::KILL).is_err() && self.first_process {
                // Without the process table the agent cannot tell processes apart, and no process may outlive a kill.
                let _nobody = tree::signal_all(Signal::KILL);
            }
        }
        if program.is_alive() {
            program.signal_group(Signal::KILL);
            children.abandon(program.pid);
        }
    }

    /// Kills every program with its processes.
    pub(super) fn kill_everything(&mut self) {
        if self.first_process {
            let _nobody = tree::signal_all(Signal::KILL);
        }
        while let Some((_, program)) = self.programs.pop_first() {
            let tree = Tree {
                program: program.pid,
                others: &[],
                first_process: self.first_process,
            };
            let _best_effort = tree.signal(Signal::KILL);
            program.signal_group(Signal::KILL);
        }
        self.jobs.clear();
    }

    fn data(&mut self, stream: u32, channel: u8, bytes: &[u8], out: &mut OutBuffer) -> Result<(), ProtocolError> {
        if let Some(program) = self.programs.get_mut(&stream) {
            return program.receive(channel, bytes, out);
        }
        match self.jobs.get_mut(&stream) {
            Some(job) if channel == BODY_CHANNEL => {
                let step = job.receive(stream, bytes, out)?;
                self.step_done(stream, step, out);
                Ok(())
            }
            Some(_) => Err(ProtocolError::new("file contents on another channel")),
            // The stream is over. The host did not know that yet.
            None => Ok(()),
        }
    }

    fn credit(&mut self, stream: u32, channel: u8, amount: u32) -> Result<(), ProtocolError> {
        if let Some(program) = self.programs.get_mut(&stream) {
            return program.refund(channel, amount);
        }
        match self.jobs.get_mut(&stream) {
            Some(job) if channel == BODY_CHANNEL => job.refund(amount),
            Some(_) => Err(ProtocolError::new("credit for another channel than the file's")),
            None => Ok(()),
        }
    }

    fn close(&mut self, stream: u32, channel: u8, out: &mut OutBuffer) -> Result<(), ProtocolError> {
        if let Some(program) = self.programs.get_mut(&stream) {
            return program.close(channel);
        }
        match self.jobs.get_mut(&stream) {
            Some(job) if channel == BODY_CHANNEL => {
                let step = job.finish()?;
                self.step_done(stream, step, out);
                Ok(())
            }
            Some(_) => Err(ProtocolError::new("CLOSE of another channel than the file's")),
            None => Ok(()),
        }
    }

    /// Reports all descriptors to poll.
    pub(super) fn polled<'a>(&'a self, mut add: impl FnMut(u32, Part, BorrowedFd<'a>, PollFlags)) {
        // A flood uses up the output's room, so each turn begins with another stream.
        if self.turn == 0 {
            self.forwards.polled(&mut add);
        }
        let (before, after) = (self.programs.range(..self.turn), self.programs.range(self.turn..));
        for (stream, program) in after.chain(before) {
            program.polled(|part, fd, flags| add(*stream, part, fd, flags));
        }
        if self.turn != 0 {
            self.forwards.polled(&mut add);
        }
        if let Some(changes) = self.watches.polled() {
            add(0, Part::Changes, changes, PollFlags::IN);
        }
    }

    /// Returns the time until the next check of memory. None while no program runs.
    pub(super) fn check_due(&self) -> Option<Duration> {
        let group = self.group.as_ref().filter(|_| !self.programs.is_empty())?;
        Some(group.check_due())
    }

    /// Checks memory if the time has come.
    pub(super) fn check_limits(&mut self) -> CheckResult {
        match self.group.as_mut().filter(|_| !self.programs.is_empty()) {
            Some(group) => group.check(),
            None => CheckResult::Fine,
        }
    }

    /// Returns true if a file operation can continue at once.
    pub(super) fn has_work(&self) -> bool {
        self.jobs.values().any(Job::can_go_on)
    }

    /// Continues the work that waits for no descriptor, as far as the output has room.
    pub(super) fn advance(&mut self, out: &mut OutBuffer, crowded: usize) {
        for program in self.programs.values_mut() {
            program.advance(out, crowded);
        }
        let ready: Vec<u32> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.can_go_on())
            .map(|(stream, _)| *stream)
            .collect();
        for stream in ready {
            if out.len() >= crowded {
                break;
            }
            if let Some(job) = self.jobs.get_mut(&stream) {
                let step = job.slice(stream, out);
                self.step_done(stream, step, out);
            }
        }
        let next = self.programs.range(self.turn.saturating_add(1)..).next();
        self.turn = next.map_or(0, |(stream, _)| *stream);
    }

    fn step_done(&mut self, stream: u32, step: Step, out: &mut OutBuffer) {
        match step {
            Step::Again => return,
            Step::Listed(listing) => answer(stream, Ok(listing), out),
            Step::Read(reply) => answer(stream, Ok(reply), out),
            Step::Written(reply) => answer(stream, Ok(reply), out),
            Step::Removed => answer(stream, Ok(EmptyReply {}), out),
            Step::Saved(number, state) => answer(stream, Ok(self.saved.add(number, state)), out),
            Step::Restored(reply) => answer(stream, Ok(reply), out),
            Step::Compared(reply) => answer(stream, Ok(reply), out),
            Step::Imaged(file, reply) => {
                self.image = Some(file);
                answer(stream, Ok(reply), out);
            }
            Step::Failed(error) => answer::<EmptyReply>(stream, Err(error), out),
        }
        self.jobs.remove(&stream);
    }
}

fn no_program(stream: u32) -> WireError {
    WireError::new(ErrorCode::Invalid, format!("stream {stream} belongs to no program"))
}

fn not_listed(error: io::Error) -> WireError {
    WireError {
        errno: error.raw_os_error(),
        ..WireError::new(ErrorCode::Failed, format!("the processes could not be listed: {error}"))
    }
}

fn not_paused(error: io::Error) -> WireError {
    WireError {
        errno: error.raw_os_error(),
        ..WireError::new(
            ErrorCode::Failed,
            format!("the processes could not be stopped or continued: {error}"),
        )
    }
}

/// Sends the answer to a request.
fn answer<T: Serialize>(stream: u32, result: Result<T, WireError>, out: &mut OutBuffer) {
    let reply = match result {
        Ok(value) => Reply::Ok(value),
        Err(error) => Reply::Error(error),
    };
    if !out.message(Kind::Reply, stream, &reply) {
        let error = WireError::new(ErrorCode::Limit, "the answer does not fit into a frame");
        let _fits = out.message(Kind::Reply, stream, &Reply::<EmptyReply>::Error(error));
    }
}
