//! Whole programs, as `sandcell run` starts them: in a sandbox of their own, streamed both ways.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sandcell_sandbox::{
    Channel, Code, Command, Exit, Failure, HOME, Interrupter, Language, OutputStream, Process, ProcessEvent,
    ProcessHandle, Sandbox, SandboxError, SandboxPath, SessionEvent, Signal, SignalScope, StdinMode,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::cells::{Once, Ran, arrive, end_of_sandbox, never_ran, put_files, until_stopped};
use crate::core::{Core, Finisher};
use crate::executions::Execution;
use crate::files::read_wanted;
use crate::ladder::{Ladder, Step, Stop};
use crate::meter::{Cost, Meter};
use crate::policy;
use crate::record::{Record, Visit};
use crate::registry::Target;
use crate::verdict::{Ending, Facts, Verdict, judge};
use crate::{ExecutionView, Principal, ProgramRequest};

/// How long a program may take to be started.
const SPAWN: Duration = Duration::from_secs(30);
/// How long a program's output may be silent after its own end before it counts as over. Its descendants are
/// killed then, so what comes is only what was already written.
const LINGER: Duration = Duration::from_secs(1);

impl Core {
    pub(crate) async fn run_program(
        self: &Arc<Self>,
        who: &Principal,
        req: ProgramRequest,
        stdin: mpsc::Receiver<Bytes>,
        output: mpsc::Sender<SessionEvent>,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        let (language, code) = (req.language.clone(), req.code.clone());
        match self.admit_program(who, req, stdin, output) {
            Ok(job) => {
                let execution = job.execution.clone();
                tokio::spawn(job.run());
                self.answer(&execution, None, cancel).await
            }
            Err(failure) => {
                self.refuse(who, &language, &code, &failure);
                Err(failure)
            }
        }
    }

    fn admit_program(
        self: &Arc<Self>,
        who: &Principal,
        req: ProgramRequest,
        stdin: mpsc::Receiver<Bytes>,
        output: mpsc::Sender<SessionEvent>,
    ) -> Result<ProgramJob, Failure> {
        let language = self.language(&req.language)?;
        policy::code(&self.config, &req.code)?;
        policy::args(&req.args)?;
        policy::transfers(&self.config, &req.files, &req.outputs)?;
        let timeout = policy::timeout(&self.config, req.timeout)?;
        let limits = policy::limits(&self.config, req.memory, None, None)?;
        let path = program_path(language.as_ref())?;
        if req.files.iter().any(|(file, _)| *file == path) {
            return Err(Failure::invalid(
                format!("{path} is where the program itself is stored"),
                "give the file another name inside the sandbox",
            ));
        }
        let Target { record, visit, .. } = self.throwaway(who, "run", limits)?;
        let execution = Execution::new(&self.config, &record, &language.info().name, req.code, true)
            .inspect_err(|_| self.discard(&record))?;
        self.executions.add(&execution);
        let mut files = req.files;
        files.push((path.clone(), Bytes::copy_from_slice(execution.code.as_bytes())));
        Ok(ProgramJob {
            core: self.clone(),
            execution,
            record,
            visit,
            command: language.program(&path, &req.args),
            once: Once {
                files,
                outputs: req.outputs,
            },
            timeout,
            streams: Some((stdin, output)),
        })
    }
}

/// Where the program is stored: in the folder that it is started in, so that it finds its files beside it.
fn program_path(language: &dyn Language) -> Result<SandboxPath, Failure> {
    SandboxPath::parse(language.file_name()).map_err(|error| {
        Failure::new(
            Code::Internal,
            format!("the language's file name cannot be used: {error}"),
            "report this",
        )
    })
}

/// One program on its way.
struct ProgramJob {
    core: Arc<Core>,
    execution: Arc<Execution>,
    record: Arc<Record>,
    visit: Visit,
    command: Command,
    once: Once,
    timeout: Duration,
    streams: Option<(mpsc::Receiver<Bytes>, mpsc::Sender<SessionEvent>)>,
}

impl ProgramJob {
    async fn run(mut self) {
        let finisher = Finisher {
            core: self.core.clone(),
            execution: self.execution.clone(),
            throwaway: Some(self.record.clone()),
        };
        let end = match self.work().await {
            Ok(done) => Ok(done),
            Err(Ok(stop)) => Ok((never_ran(&self.record, stop, self.timeout, false), Cost::default())),
            Err(Err(failure)) => Err(failure),
        };
        drop(self.visit);
        finisher.finish(end);
    }

    async fn work(&mut self) -> Result<(Verdict, Cost), Result<Stop, Failure>> {
        let (execution, record) = (self.execution.clone(), self.record.clone());
        let sandbox = arrive(&execution, &record).await?;
        execution.isolated_by(sandbox.isolation());
        let put = put_files(sandbox.as_ref(), &self.once.files);
        until_stopped(&execution, &record, None, put)
            .await
            .map_err(Ok)?
            .map_err(Err)?;
        let deadline = Instant::now() + self.timeout;
        let spawn = timeout(SPAWN, sandbox.spawn(self.complete_command(sandbox.as_ref())));
        let spawned = until_stopped(&execution, &record, Some(deadline), spawn)
            .await
            .map_err(Ok)?;
        let process = match spawned {
            Ok(process) => process.map_err(|error| Err(error.into()))?,
            Err(_) => return Err(Err(crate::files::too_slow("the program could not be started"))),
        };
        execution.begin();
        let meter = Meter::start(&record, &sandbox, true);
        let ran = match self.streams.take() {
            Some((stdin, output)) => follow(process, stdin, output, &execution, &record, deadline).await,
            None => {
                return Err(Err(Failure::new(
                    Code::Internal,
                    "the program ran already",
                    "report this",
                )));
            }
        };
        let (verdict, cost) = self.judge(ran, meter, &sandbox).await;
        read_wanted(
            &self.core.config,
            &record,
            sandbox.as_ref(),
            &execution,
            &self.once.outputs,
        )
        .await;
        Ok((verdict, cost))
    }

    /// What the language leaves open: the sandbox's environment, and the home folder to start in.
    fn complete_command(&self, sandbox: &dyn Sandbox) -> Command {
        let mut command = self.command.clone();
        for (name, value) in sandbox.base_env() {
            command.env.entry(name.clone()).or_insert_with(|| value.clone());
        }
        if command.cwd.is_empty() {
            HOME.clone_into(&mut command.cwd);
        }
        command.stdin = StdinMode::Piped;
        command
    }

    async fn judge(&self, ran: Ran, meter: Meter, sandbox: &Arc<dyn Sandbox>) -> (Verdict, Cost) {
        let (before, after, cost) = meter.stop(&self.record, sandbox, ran.duration, false).await;
        let gone = end_of_sandbox(&self.core, &self.record, &ran, after.is_some()).await;
        let verdict = judge(Facts {
            ending: ran.ending,
            stop: ran.stop,
            step: ran.step,
            timeout: self.timeout,
            limits: &self.record.birth.limits,
            before,
            after,
            gone,
            keeps: false,
        });
        (verdict, cost)
    }
}

/// Ends a program the way sessions are ended.
struct Signals(Arc<dyn ProcessHandle>);

#[async_trait]
impl Interrupter for Signals {
    async fn interrupt(&self) -> Result<(), SandboxError> {
        self.0.signal(Signal::Interrupt, SignalScope::Group).await
    }

    async fn kill(&self) -> Result<(), SandboxError> {
        self.0.signal(Signal::Kill, SignalScope::Tree).await
    }
}

/// What is known of a running program's end.
#[derive(Default)]
struct Ends {
    exit: Option<Exit>,
    closed: u8,
    /// The events are over: nothing more will be known.
    silent: bool,
}

impl Ends {
    /// Takes an event; gives back what has to be handed on.
    fn take(&mut self, event: Option<ProcessEvent>, execution: &Execution) -> Option<SessionEvent> {
        let stream = |channel| match channel {
            Channel::Stdout => Some(OutputStream::Stdout),
            Channel::Stderr => Some(OutputStream::Stderr),
            Channel::Stdin | Channel::Control => None,
        };
        match event {
            Some(ProcessEvent::Output { channel, bytes }) => {
                let event = SessionEvent::Output {
                    stream: stream(channel)?,
                    bytes,
                };
                execution.take(event.clone());
                return Some(event);
            }
            Some(ProcessEvent::Closed { channel }) => self.closed += u8::from(stream(channel).is_some()),
            Some(ProcessEvent::Exited { exit }) => self.exit = Some(exit),
            None => self.silent = true,
        }
        None
    }

    const fn over(&self) -> bool {
        self.silent || (self.exit.is_some() && self.closed >= 2)
    }
}

/// Follows a program to its end: counts and hands on its output, feeds its input, and ends it when it must end.
async fn follow(
    process: Process,
    stdin: mpsc::Receiver<Bytes>,
    output: mpsc::Sender<SessionEvent>,
    execution: &Execution,
    record: &Record,
    deadline: Instant,
) -> Ran {
    let began = Instant::now();
    let Process { mut events, handle } = process;
    let mut ladder = Ladder::new(Arc::new(Signals(handle.clone())), true, deadline);
    let mut feeding = pin!(feed(handle.clone(), stdin));
    let mut timer = pin!(sleep_until(ladder.next()));
    let mut linger = pin!(sleep_until(deadline));
    let mut stopped = pin!(execution.stopped());
    let mut departed = pin!(record.closing());
    let (mut fed, mut heard, mut closing) = (false, false, false);
    let mut ends = Ends::default();
    // One event at a time is handed on; while it waits, no other is read. That is the flow control.
    let mut pending: Option<SessionEvent> = None;
    while !(ends.over() && pending.is_none()) {
        let exited = ends.exit.is_some();
        tokio::select! {
            biased;
            stop = &mut stopped, if !heard => { heard = true; ladder.stop(stop); }
            gone = &mut departed, if !closing => { closing = true; ladder.stop(Stop::Departed(gone)); }
            // Time is over for a reader that does not take the rest, too.
            () = &mut timer => if exited { break } else { ladder.climb() },
            () = &mut linger, if exited && pending.is_none() => break,
            () = &mut feeding, if !fed => fed = true,
            permit = output.reserve(), if pending.is_some() => {
                // Nobody reads any more: the output is still counted and kept.
                if let (Ok(permit), Some(event)) = (permit, pending.take()) {
                    permit.send(event);
                }
            }
            event = events.recv(), if pending.is_none() => pending = ends.take(event, execution),
        }
        if !exited && ends.exit.is_some() {
            sweep(handle.clone());
        }
        if ends.exit.is_some() {
            linger.as_mut().reset(Instant::now() + LINGER);
        } else if ladder.step() == Step::GivenUp {
            break;
        } else if ladder.step() == Step::Killed {
            // Its end has to be heard even if nobody takes its last words.
            pending = None;
        }
        if timer.deadline() != ladder.next() {
            timer.as_mut().reset(ladder.next());
        }
    }
    Ran {
        ending: match (ends.exit, ladder.step()) {
            (Some(exit), _) => Ending::Program(exit),
            (None, Step::GivenUp) => Ending::Abandoned,
            (None, Step::Free | Step::Interrupted | Step::Killed) => Ending::Broke(Failure::new(
                Code::SessionLost,
                "the program could not be followed to its end",
                "run it again",
            )),
        },
        sandbox_failed: ends.exit.is_none() && ends.silent,
        step: ladder.step(),
        stop: ladder.into_stop(),
        duration: began.elapsed(),
    }
}

/// Ends what a program left behind, which would hold its output open.
fn sweep(handle: Arc<dyn ProcessHandle>) {
    tokio::spawn(async move {
        let swept = timeout(LINGER, handle.signal(Signal::Kill, SignalScope::Tree)).await;
        if !matches!(swept, Ok(Ok(()))) {
            tracing::debug!("what the program left behind could not be ended");
        }
    });
}

/// Hands standard input on until it ends, or until the program does not take it any more.
async fn feed(handle: Arc<dyn ProcessHandle>, mut stdin: mpsc::Receiver<Bytes>) {
    while let Some(bytes) = stdin.recv().await {
        if handle.write(Channel::Stdin, bytes).await.is_err() {
            return;
        }
    }
    if handle.close(Channel::Stdin).await.is_err() {
        tracing::debug!("the program's stdin was closed already");
    }
}
