//! Runs whole programs, as `sandcell run` starts them: in a separate sandbox, with streamed input and output.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sandcell_sandbox::{
    CellError, CellStatus, Channel, Code, Compile, Exit, Failure, Interrupter, Language, OutputStream, Process,
    ProcessEvent, ProcessHandle, Program, Sandbox, SandboxError, SessionEvent, Signal, SignalScope, StdinMode, gather,
};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::admission::policy;
use crate::execution::job::{
    OneShotIo, RunReport, outcome_without_run, put_files, sandbox_end, until_stopped, wait_for_sandbox,
};
use crate::execution::outcome::{Ending, Evidence, Outcome, outcome_of};
use crate::execution::outputs::{read_outputs, read_pictures};
use crate::execution::service::Executions;
use crate::execution::service::Finisher;
use crate::execution::state::Execution;
use crate::execution::termination::{Step, Stop, Termination};
use crate::sandbox::network::NetworkEvidence;
use crate::sandbox::packages::INSTALL_TIMEOUT;
use crate::sandbox::pause::PauseClock;
use crate::sandbox::registry::Target;
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::state::{Record, UseGuard};
use crate::sandbox::usage::{Cost, Meter};
use crate::{ExecutionView, Hints, Principal, ProgramRequest};

/// The maximum time to start a program.
pub(crate) const SPAWN_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum silence of a program's output after its own end. After that the output counts as complete. Its
/// descendants are killed by then, so the rest was already written.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// The time for processes that a program left behind to write their output, such as `tee` in Bash's `> >(tee log)`. If
/// nothing is left behind, there is no wait.
const LEFTOVER_GRACE: Duration = Duration::from_millis(250);
/// The maximum stored size of each stream of a compiler, in bytes.
const MAX_COMPILER_BYTES: usize = 64 << 10;

/// Standard input of a program, and the receiver of its output.
pub(crate) type Streams = (mpsc::Receiver<Bytes>, mpsc::Sender<SessionEvent>);

impl Executions {
    pub(crate) async fn run_program(
        self: &Arc<Self>,
        principal: &Principal,
        req: ProgramRequest,
        stdin: mpsc::Receiver<Bytes>,
        output: mpsc::Sender<SessionEvent>,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        let (language, code, watch) = (req.language.clone(), req.code.clone(), req.watch.clone());
        match self.admit_program(principal, req, stdin, output).await {
            Ok(job) => {
                let execution = job.execution.clone();
                watch.follow(&execution);
                tokio::spawn(job.run().instrument(execution.span()));
                self.answer(&execution, None, cancel).await
            }
            Err(failure) => {
                self.refuse(principal, &language, &code, &failure);
                Err(failure)
            }
        }
    }

    async fn admit_program(
        self: &Arc<Self>,
        principal: &Principal,
        req: ProgramRequest,
        stdin: mpsc::Receiver<Bytes>,
        output: mpsc::Sender<SessionEvent>,
    ) -> Result<ProgramJob, Failure> {
        let language = self.sandboxes.language(&req.language)?;
        policy::code(&self.sandboxes.config(), &req.code)?;
        policy::args(&req.args)?;
        policy::image(req.image.as_deref())?;
        let network = self.sandboxes.network_rule(&req.network, &req.consent)?;
        let findings = policy::findings(
            &self.sandboxes.config(),
            language.as_ref(),
            &req.code,
            policy::Stdin::Given,
            &network,
        )?;
        policy::transfers(&self.sandboxes.config(), &req.files, &req.outputs)?;
        self.sandboxes
            .check_packages(&language.info().name, &req.packages, &req.consent)?;
        let timeout = policy::timeout(&self.sandboxes.config(), req.timeout)?;
        let compile_timeout = match req.compile_timeout {
            Some(_) => Some(policy::timeout(&self.sandboxes.config(), req.compile_timeout)?),
            None => None,
        };
        let limits = policy::limits(
            &self.sandboxes.config(),
            policy::memory(&self.sandboxes.config(), req.memory, language.as_ref()),
            None,
            None,
        )?;
        let program = language.program(&req.code, &req.args, &BTreeMap::new())?;
        for (path, _) in &program.files {
            if req.files.iter().any(|(file, _)| file == path) {
                return Err(Failure::invalid(
                    format!("{path} is reserved for the program itself"),
                    "give the file another name inside the sandbox",
                ));
            }
        }
        let Target { record, guard, .. } = self
            .sandboxes
            .throwaway(principal, "run", limits, network, req.image, None)
            .await?;
        let execution = Execution::new(&self.sandboxes.config(), &record, &language.info().name, req.code, true)
            .inspect_err(|_| self.sandboxes.discard(&record))?;
        self.store.add(&execution);
        execution.set_findings(findings);
        Ok(ProgramJob {
            executions: self.clone(),
            execution,
            record,
            guard,
            language,
            args: req.args,
            once: OneShotIo {
                packages: req.packages,
                consent: req.consent,
                files: req.files,
                outputs: req.outputs,
            },
            timeout,
            compile_timeout,
            progress: req.progress,
            streams: Some((stdin, output)),
        })
    }
}

/// One program in progress.
struct ProgramJob {
    executions: Arc<Executions>,
    execution: Arc<Execution>,
    record: Arc<Record>,
    guard: UseGuard,
    language: Arc<dyn Language>,
    args: Vec<String>,
    once: OneShotIo,
    timeout: Duration,
    compile_timeout: Option<Duration>,
    progress: watch::Sender<String>,
    streams: Option<Streams>,
}

impl ProgramJob {
    async fn run(mut self) {
        let finisher = Finisher {
            executions: self.executions.clone(),
            execution: self.execution.clone(),
            throwaway: Some(self.record.clone()),
        };
        let end = match self.work().await {
            Ok(done) => Ok(done),
            Err(Ok(stop)) => Ok((
                outcome_without_run(&self.executions.sandboxes, &self.record, stop, self.timeout, false),
                Cost::default(),
            )),
            Err(Err(failure)) => Err(failure),
        };
        drop(self.guard);
        finisher.finish(end);
    }

    async fn work(&mut self) -> Result<(Outcome, Cost), Result<Stop, Failure>> {
        let (execution, record) = (self.execution.clone(), self.record.clone());
        let sandbox = wait_for_sandbox(&execution, &record).await?;
        execution.set_isolation(record.isolation(sandbox.as_ref()), record.skipped_backends());
        if let Some(language) = self.language.inside(sandbox.as_ref()).await.map_err(Err)? {
            self.language = language;
        }
        let program = self.language.program(&execution.code, &self.args, sandbox.base_env());
        let program = program.map_err(Err)?;
        self.once.files.extend(program.files.iter().cloned());
        let put = put_files(sandbox.as_ref(), &self.once.files);
        until_stopped(&execution, &record, None, put)
            .await
            .map_err(Ok)?
            .map_err(Err)?;
        let provide = self.executions.sandboxes.provide(
            &record,
            sandbox.as_ref(),
            &self.language.info().name,
            (&self.once.packages, &self.once.consent),
            INSTALL_TIMEOUT,
            &self.progress,
        );
        let provided = until_stopped(&execution, &record, None, provide).await;
        if !self.once.packages.is_empty() {
            self.progress.send_replace(String::new());
        }
        provided.map_err(Ok)?.map_err(Err)?;
        if let Some(outcome) = self.compile(&program, &sandbox).await? {
            return Ok((outcome, Cost::default()));
        }
        let deadline = Instant::now() + self.timeout;
        let pictures = program.pictures;
        let mut command = program.run;
        command.stdin = StdinMode::Piped;
        let spawned = until_stopped(
            &execution,
            &record,
            Some(deadline),
            timeout(SPAWN_TIMEOUT, sandbox.spawn(command)),
        )
        .await
        .map_err(Ok)?;
        let process = match spawned {
            Ok(process) => process.map_err(|error| Err(error.into()))?,
            Err(_) => return Err(Err(crate::sandbox::files::too_slow("the program could not be started"))),
        };
        execution.begin();
        let meter = Meter::start(&record, &sandbox, true);
        let ran = match self.streams.take() {
            Some(streams) => follow(process, streams, &execution, &record, deadline, SignalScope::Tree).await,
            None => {
                return Err(Err(Failure::new(
                    Code::Internal,
                    "the program ran already",
                    "report this",
                )));
            }
        };
        let (outcome, cost) = self.conclude(ran, meter, &sandbox).await;
        read_outputs(
            &self.executions.sandboxes.config(),
            &record,
            sandbox.as_ref(),
            &execution,
            &self.once.outputs,
        )
        .await;
        if let Some(place) = pictures {
            read_pictures(
                &self.executions.sandboxes.config(),
                &record,
                sandbox.as_ref(),
                &execution,
                &place,
            )
            .await;
        }
        Ok((outcome, cost))
    }

    /// Compiles the program if its language needs that. Returns an outcome if the source is wrong. The compiler's
    /// messages go to stderr, as its user would see them.
    async fn compile(
        &mut self,
        program: &Program,
        sandbox: &Arc<dyn Sandbox>,
    ) -> Result<Option<Outcome>, Result<Stop, Failure>> {
        let Some(Compile { command, timeout }) = &program.compile else {
            return Ok(None);
        };
        let timeout = self.compile_timeout.unwrap_or(*timeout);
        self.execution.begin();
        let deadline = Instant::now() + timeout;
        let meter = Meter::start(&self.record, sandbox, true);
        let work = async {
            let process = sandbox.spawn(command.clone()).await?;
            Ok::<_, SandboxError>(gather(process, MAX_COMPILER_BYTES).await)
        };
        let began = Instant::now();
        let compiled = match until_stopped(&self.execution, &self.record, Some(deadline), work).await {
            Ok(compiled) => compiled.map_err(|error| Err(error.into()))?,
            Err(Stop::Timeout) => {
                return Ok(Some(compile_outcome(
                    CellStatus::Error(CellError {
                        name: "CompileTimeout".to_owned(),
                        message: format!("the compiler was not done after {} s", timeout.as_secs_f64()),
                        class: "compile".to_owned(),
                        ..CellError::default()
                    }),
                    &self.record,
                    &self.executions.sandboxes.config().hints,
                )));
            }
            Err(stop) => return Err(Ok(stop)),
        };
        let mut said = compiled.stdout;
        said.extend_from_slice(&compiled.stderr);
        if let (false, Some((_, output))) = (said.is_empty(), &self.streams) {
            let event = SessionEvent::Output {
                stream: OutputStream::Stderr,
                bytes: said.into(),
            };
            self.execution.take(event.clone());
            self.forward(output, event).await?;
        }
        if compiled.exit == Some(Exit::Code(0)) {
            if let Some((_, output)) = &self.streams {
                self.forward(output, SessionEvent::Begun).await?;
            }
            return Ok(None);
        }
        let ran = RunReport {
            ending: match compiled.exit {
                Some(Exit::Code(_)) => Ending::Cell(CellStatus::Error(CellError {
                    name: "CompileError".to_owned(),
                    class: "compile".to_owned(),
                    ..CellError::default()
                })),
                Some(exit) => Ending::Program(exit),
                None => Ending::Broke(crate::sandbox::files::too_slow(
                    "the end of the compiler was not observed",
                )),
            },
            stop: None,
            step: Step::Free,
            duration: began.elapsed(),
            sandbox_failed: false,
        };
        Ok(Some(self.conclude(ran, meter, sandbox).await.0))
    }

    /// Forwards an event until the execution is stopped. A closed reader does not matter.
    async fn forward(
        &self,
        output: &mpsc::Sender<SessionEvent>,
        event: SessionEvent,
    ) -> Result<(), Result<Stop, Failure>> {
        let sending = output.send(event);
        let sent = until_stopped(&self.execution, &self.record, None, sending).await;
        sent.map(drop).map_err(Ok)
    }

    async fn conclude(&self, ran: RunReport, meter: Meter, sandbox: &Arc<dyn Sandbox>) -> (Outcome, Cost) {
        let of = (&*self.execution, &self.record);
        conclude_program(&self.executions.sandboxes, of, ran, meter, sandbox, self.timeout).await
    }
}

/// Returns the outcome of a program and its cost.
pub(crate) async fn conclude_program(
    sandboxes: &Arc<Sandboxes>,
    (execution, record): (&Execution, &Arc<Record>),
    ran: RunReport,
    meter: Meter,
    sandbox: &Arc<dyn Sandbox>,
    timeout: Duration,
) -> (Outcome, Cost) {
    let network = meter.reached(record);
    record.checkpoints.executed(&execution.id, execution.is_shown());
    sandboxes.schedule_checkpoint(record);
    let (before, after, cost) = meter.stop(&execution.id, record, sandbox, ran.duration, false).await;
    let terminated = sandbox_end(sandboxes, record, &ran, after.is_some()).await;
    let outcome = outcome_of(Evidence {
        ending: ran.ending,
        stop: ran.stop,
        step: ran.step,
        timeout,
        limits: &record.params.limits,
        before,
        after,
        terminated,
        keeps: false,
        hints: &sandboxes.config().hints,
        restored: None,
        why_lost: None,
        network,
    });
    (outcome, cost)
}

fn compile_outcome(status: CellStatus, record: &Record, hints: &Hints) -> Outcome {
    outcome_of(Evidence {
        ending: Ending::Cell(status),
        stop: None,
        step: Step::Free,
        timeout: Duration::ZERO,
        limits: &record.params.limits,
        before: sandcell_sandbox::Usage::default(),
        after: None,
        terminated: None,
        keeps: false,
        hints,
        restored: None,
        why_lost: None,
        network: NetworkEvidence::default(),
    })
}

/// Ends a program in the way in which sessions are ended.
struct ProcessInterrupter {
    handle: Arc<dyn ProcessHandle>,
    /// The processes that are killed with it.
    scope: SignalScope,
}

#[async_trait]
impl Interrupter for ProcessInterrupter {
    async fn interrupt(&self) -> Result<(), SandboxError> {
        self.handle.signal(Signal::Interrupt, SignalScope::Group).await
    }

    async fn kill(&self) -> Result<(), SandboxError> {
        self.handle.signal(Signal::Kill, self.scope).await
    }
}

/// The parts of a running program's end that are known so far.
#[derive(Default)]
struct ProgramEnd {
    exit: Option<Exit>,
    closed: u8,
    /// True if the event stream has ended: no more information will come.
    silent: bool,
}

impl ProgramEnd {
    /// Processes an event. Returns the event to forward.
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

/// Follows a program to its end: counts and forwards its output, feeds its input, and terminates it when required, with
/// all of `scope`.
pub(crate) async fn follow(
    process: Process,
    (stdin, output): Streams,
    execution: &Execution,
    record: &Record,
    deadline: Instant,
    scope: SignalScope,
) -> RunReport {
    let began = Instant::now();
    let Process { mut events, handle, .. } = process;
    let signals = ProcessInterrupter {
        handle: handle.clone(),
        scope,
    };
    let mut termination = Termination::new(Arc::new(signals), true, deadline);
    let mut feeding = pin!(feed(handle.clone(), stdin));
    let mut timer = pin!(sleep_until(termination.next()));
    let mut linger = pin!(sleep_until(deadline));
    let mut grace = pin!(sleep_until(deadline));
    let _tools = execution.offer_tools(record);
    let mut pauses = PauseClock::new(record, execution.tools());
    let mut stopped = pin!(execution.stopped());
    let mut sandbox_ended = pin!(record.wait_closing());
    let (mut fed, mut heard, mut closing, mut swept) = (false, false, false, false);
    let mut ends = ProgramEnd::default();
    // One event at a time is forwarded. While it waits, no other is read. That is the flow control.
    let mut pending: Option<SessionEvent> = None;
    while !(ends.over() && pending.is_none()) {
        let exited = ends.exit.is_some();
        tokio::select! {
            biased;
            stop = &mut stopped, if !heard => { heard = true; termination.stop(stop); }
            end = &mut sandbox_ended, if !closing => { closing = true; termination.stop(Stop::SandboxEnded(end)); }
            // The deadline also holds for a reader that does not take the rest of the output.
            () = &mut timer => match pauses.postponement() {
                Some(paused) if termination.step() == Step::Free => termination.extend(paused),
                _ if exited => break,
                _ => termination.advance(),
            },
            () = &mut linger, if exited && pending.is_none() => break,
            () = &mut grace, if exited && !swept => { swept = true; sweep(handle.clone(), scope); }
            () = &mut feeding, if !fed => fed = true,
            permit = output.reserve(), if pending.is_some() => {
                // The reader has closed. The output is still counted and stored.
                if let (Ok(permit), Some(event)) = (permit, pending.take()) {
                    permit.send(event);
                }
            }
            event = events.recv(), if pending.is_none() => pending = ends.take(event, execution),
        }
        if !exited && ends.exit.is_some() {
            let wait = if termination.step() == Step::Free {
                LEFTOVER_GRACE
            } else {
                Duration::ZERO
            };
            grace.as_mut().reset(Instant::now() + wait);
        }
        if ends.exit.is_some() {
            linger.as_mut().reset(Instant::now() + LINGER_TIMEOUT);
        } else if termination.step() == Step::GivenUp {
            break;
        } else if termination.step() == Step::Killed {
            // The program's end must be processed even if no reader takes its last output.
            pending = None;
        }
        if timer.deadline() != termination.next() {
            timer.as_mut().reset(termination.next());
        }
    }
    // A command that ends by itself may leave background processes, as a shell does, unless they hold its output open.
    let stays = matches!(scope, SignalScope::Group) && ends.closed >= 2 && termination.step() == Step::Free;
    if !swept && !stays {
        sweep(handle, scope);
    }
    RunReport {
        ending: match (ends.exit, termination.step()) {
            (Some(exit), _) => Ending::Program(exit),
            (None, Step::GivenUp) => Ending::Abandoned,
            (None, Step::Free | Step::Interrupted | Step::Killed) => Ending::Broke(Failure::new(
                Code::SessionLost,
                "the end of the program was not observed",
                "run it again",
            )),
        },
        sandbox_failed: ends.exit.is_none() && ends.silent,
        step: termination.step(),
        stop: termination.into_stop(),
        duration: began.elapsed(),
    }
}

/// Ends the processes that a program left behind, which would hold its output open.
fn sweep(handle: Arc<dyn ProcessHandle>, scope: SignalScope) {
    tokio::spawn(async move {
        let swept = timeout(LINGER_TIMEOUT, handle.signal(Signal::Kill, scope)).await;
        if !matches!(swept, Ok(Ok(()))) {
            tracing::debug!("what the program left behind could not be ended");
        }
    });
}

/// Forwards standard input until it ends, or until the program no longer reads.
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
