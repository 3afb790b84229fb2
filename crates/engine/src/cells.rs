//! Runs code in sessions: `execute` in a session that stays, `run_once` in a separate sandbox.
//!
//! The work runs in a separate task. The caller only waits for its end, and may disconnect.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandcell_sandbox::{
    Aftermath, Cell, CellOutcome, CellStatus, Consent, Exit, Failure, Interrupter, Language, Sandbox, SandboxError,
    SandboxPath, SessionError, SessionEvent, Usage, WriteMode,
};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::core::{Core, Finisher};
use crate::executions::Execution;
use crate::files::{FILES, read_wanted};
use crate::ladder::{Ladder, Step, Stop};
use crate::meter::{Cost, Meter};
use crate::network::Reached;
use crate::packages::{INSTALL, told};
use crate::policy;
use crate::record::{Gone, GoneWhy, Record, Visit};
use crate::registry::Target;
use crate::sessions::{Held, Slot, Ticket};
use crate::spans;
use crate::verdict::{Ending, Facts, Verdict, judge};
use crate::{ExecuteRequest, ExecutionView, Principal, RunRequest};

/// The maximum time to start an interpreter.
const OPEN: Duration = Duration::from_secs(30);
/// The capacity of the channel for a session's events.
const EVENTS: usize = 64;
/// The maximum time to notice the end of a sandbox after its program or session has broken off.
const NOTICE: Duration = Duration::from_millis(500);

impl Core {
    pub(crate) async fn execute(
        self: &Arc<Self>,
        who: &Principal,
        req: ExecuteRequest,
        stay: Stay,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        let (wait, watch) = (req.wait, req.watch.clone());
        watch.prepares(self.backends.clone(), None);
        let (language, code) = (req.language.clone(), req.code.clone());
        match self.admit(who, req, stay).await {
            Ok(job) => {
                let execution = job.execution.clone();
                watch.follow(&execution);
                tokio::spawn(job.run().instrument(spans::execution(&execution)));
                self.answer(&execution, wait, cancel).await
            }
            Err(failure) => {
                self.refuse(who, &language, &code, &failure);
                Err(failure)
            }
        }
    }

    async fn admit(self: &Arc<Self>, who: &Principal, req: ExecuteRequest, stay: Stay) -> Result<Job, Failure> {
        let language = self.language(&req.language)?;
        policy::code(&self.config(), &req.code)?;
        policy::stdin(&self.config(), req.stdin.as_deref())?;
        let timeout = policy::timeout(&self.config(), req.timeout)?;
        let stdin = policy::Stdin::of(req.stdin.as_deref());
        let network = self.network_of(who, req.sandbox_id.as_deref());
        let findings = policy::findings(&self.config(), language.as_ref(), &req.code, stdin, &network)?;
        let target = self.target(who, req.sandbox_id.as_deref()).await?;
        let mut job = self.job(target, language, req.code, req.stdin, timeout, None).await?;
        job.stay = stay;
        job.execution.noticed(findings);
        Ok(job)
    }

    pub(crate) async fn run_once(
        self: &Arc<Self>,
        who: &Principal,
        req: RunRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        let (wait, watch) = (req.wait, req.watch.clone());
        let (language, code) = (req.language.clone(), req.code.clone());
        match self.admit_once(who, req).await {
            Ok(job) => {
                let execution = job.execution.clone();
                watch.follow(&execution);
                tokio::spawn(job.run().instrument(spans::execution(&execution)));
                self.answer(&execution, wait, cancel).await
            }
            Err(failure) => {
                self.refuse(who, &language, &code, &failure);
                Err(failure)
            }
        }
    }

    async fn admit_once(self: &Arc<Self>, who: &Principal, req: RunRequest) -> Result<Job, Failure> {
        let language = self.language(&req.language)?;
        policy::code(&self.config(), &req.code)?;
        policy::stdin(&self.config(), req.stdin.as_deref())?;
        policy::transfers(&self.config(), &req.files, &req.outputs)?;
        self.check_packages(&language.info().name, &req.packages, &req.consent)?;
        let timeout = policy::timeout(&self.config(), req.timeout)?;
        let stdin = policy::Stdin::of(req.stdin.as_deref());
        let network = self.network_rule(&req.network, &req.consent)?;
        let findings = policy::findings(&self.config(), language.as_ref(), &req.code, stdin, &network)?;
        let memory = policy::memory(&self.config(), req.memory, language.as_ref());
        let limits = policy::limits(&self.config(), memory, None, None)?;
        // The installation may replace modules that a session would have loaded.
        let opens = req.packages.is_empty().then(|| Arc::clone(&language));
        let target = self
            .throwaway(who, "create_run_close", limits, network, None, opens)
            .await?;
        let record = target.record.clone();
        let once = Once {
            packages: req.packages,
            consent: req.consent,
            files: req.files,
            outputs: req.outputs,
        };
        let job = self.job(target, language, req.code, req.stdin, timeout, Some(once));
        let job = job.await.inspect_err(|_| self.discard(&record))?;
        job.execution.noticed(findings);
        Ok(job)
    }

    async fn job(
        self: &Arc<Self>,
        target: Target,
        language: Arc<dyn Language>,
        code: String,
        stdin: Option<String>,
        timeout: Duration,
        once: Option<Once>,
    ) -> Result<Job, Failure> {
        let ticket = Slot::of(&target.record, language.as_ref())
            .line_up(self.config().queue)
            .await?;
        let execution = Execution::new(&self.config(), &target.record, &language.info().name, code, target.new)?;
        self.executions.add(&execution);
        Ok(Job {
            core: self.clone(),
            execution,
            record: target.record,
            visit: target.visit,
            ticket,
            language,
            stdin,
            timeout,
            stay: Stay::Variables,
            once,
        })
    }
}

/// The state that an execution leaves for the next one of its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stay {
    /// Variables and files: the interpreter stays.
    Variables,
    /// Files only: each execution has a separate interpreter.
    Files,
}

/// The transfers of a run whose sandbox is discarded.
pub(crate) struct Once {
    pub(crate) packages: Vec<String>,
    pub(crate) consent: Consent,
    pub(crate) files: Vec<(SandboxPath, Bytes)>,
    pub(crate) outputs: Vec<SandboxPath>,
}

/// One cell in progress.
struct Job {
    core: Arc<Core>,
    execution: Arc<Execution>,
    record: Arc<Record>,
    visit: Visit,
    ticket: Ticket,
    language: Arc<dyn Language>,
    stdin: Option<String>,
    timeout: Duration,
    stay: Stay,
    once: Option<Once>,
}

/// An early end of a job: a failure for the caller, or an outcome without the code having run.
type Interrupted = Result<Verdict, Failure>;

/// The raw end of a cell.
pub(crate) struct Ran {
    pub(crate) ending: Ending,
    pub(crate) stop: Option<Stop>,
    pub(crate) step: Step,
    pub(crate) duration: Duration,
    /// True if it broke off because the sandbox did.
    pub(crate) sandbox_failed: bool,
}

impl Job {
    async fn run(mut self) {
        let finisher = Finisher {
            core: self.core.clone(),
            execution: self.execution.clone(),
            throwaway: self.once.is_some().then(|| self.record.clone()),
        };
        let end = match self.work().await {
            Ok(done) => Ok(done),
            Err(Ok(verdict)) => Ok((verdict, Cost::default())),
            Err(Err(failure)) => Err(failure),
        };
        let Self { ticket, visit, .. } = self;
        // Before the answer, so that a caller who has the answer finds the session and the sandbox free.
        drop((ticket, visit));
        finisher.finish(end);
    }

    async fn work(&mut self) -> Result<(Verdict, Cost), Interrupted> {
        let sandbox = arrive(&self.execution, &self.record)
            .await
            .map_err(|why| why.map(|stop| self.never_ran(stop)))?;
        self.execution
            .isolated_by(self.record.isolation(sandbox.as_ref()), self.record.passed());
        if let Some(once) = &self.once {
            let put = put_files(sandbox.as_ref(), &once.files);
            self.reach(None, put).await?.map_err(Err)?;
            let progress = watch::Sender::new(String::new());
            let provide = self.core.provide(
                &self.record,
                sandbox.as_ref(),
                &self.language.info().name,
                (&once.packages, &once.consent),
                INSTALL,
                &progress,
            );
            self.reach(None, provide).await?.map_err(Err)?;
        }
        self.take_turn().await?;
        let _place = self.reach(None, self.core.floor.enter(&self.record.owner)).await?;
        self.core.processor.may_run(&self.record.owner).map_err(Err)?;
        let deadline = Instant::now() + self.timeout;
        let (mut held, fresh) = self.session(&sandbox, deadline).await?;
        // A compiler has a separate time limit. The code's limit begins after it.
        let deadline = deadline + held.session.preparing();
        if let Some(stop) = self.execution.stop_requested() {
            // An interrupt before the code starts would be lost, and cost the session.
            if !matches!(stop, Stop::Reset) {
                self.ticket.slot().put(held);
            }
            return Err(Ok(self.never_ran(stop)));
        }
        self.ticket.runs(&self.execution, held.cells.saturating_add(1));
        if let Some(before) = held.background() {
            self.execution.follows(before);
        }
        if self.once.is_some() || self.stay == Stay::Files {
            held.session.last_cell();
        } else {
            held.set_snapshot_pause(self.core.floor.is_crowded());
        }
        let meter = Meter::start(&self.record, &sandbox, fresh);
        let cell = Cell {
            code: self.execution.code.clone(),
            stdin: self.stdin.take(),
            number: held.cells.saturating_add(1),
            packages: self.core.installer(&self.language.info().name).is_ok(),
        };
        let ran = self.drive(&mut held, cell, sandbox.as_ref(), deadline).await;
        let (verdict, cost) = self.judge(ran, held, meter, &sandbox).await;
        if let Some(once) = &self.once {
            read_wanted(
                &self.core.config(),
                &self.record,
                sandbox.as_ref(),
                &self.execution,
                &once.outputs,
            )
            .await;
        }
        Ok((verdict, cost))
    }

    /// Runs a cell, receives its events, and ends it at its deadline or on request.
    async fn drive(&self, held: &mut Held, cell: Cell, sandbox: &dyn Sandbox, deadline: Instant) -> Ran {
        let mut began = Instant::now();
        let (execution, record) = (&*self.execution, &*self.record);
        let gentle = held.session.features().interrupt;
        let interrupter = held.session.interrupter();
        let mut ladder = Ladder::new(interrupter.clone(), gentle, deadline);
        let (sender, mut events) = mpsc::channel::<SessionEvent>(EVENTS);
        let mut timer = pin!(sleep_until(ladder.next()));
        let mut stopped = pin!(execution.stopped());
        let mut departed = pin!(record.closing());
        let (mut heard, mut closing) = (false, false);
        // An installation that the cell waits for. It has a separate time limit, which does not count against the
        // cell's.
        let mut installing: Option<(Instant, BoxFuture<'_, Result<String, String>>)> = None;
        let ended = {
            let mut run = held.session.execute(cell, &sender);
            loop {
                tokio::select! {
                    biased;
                    stop = &mut stopped, if !heard => { heard = true; ladder.stop(stop); }
                    gone = &mut departed, if !closing => { closing = true; ladder.stop(Stop::Departed(gone)); }
                    () = &mut timer, if installing.is_none() || ladder.step() != Step::Free => ladder.climb(),
                    ended = &mut run => break Some(ended),
                    result = async { match &mut installing {
                        Some((_, work)) => work.await,
                        None => std::future::pending().await,
                    } } => {
                        let since = installing.take().map_or(began, |(since, _)| since);
                        ladder.give_back(since.elapsed());
                        answer_install(&interrupter, result).await;
                    }
                    Some(event) = events.recv() => match event {
                        SessionEvent::Install { packages } if installing.is_none() => {
                            let work = self.install_for_cell(sandbox, packages);
                            installing = Some((Instant::now(), work.boxed()));
                        }
                        SessionEvent::Install { .. } => {
                            let busy = Err("another installation of this session is under way".to_owned());
                            answer_install(&interrupter, busy).await;
                        }
                        SessionEvent::Begun => {
                            began = Instant::now();
                            execution.begin();
                            ladder.begin(began + self.timeout);
                        }
                        event => { execution.take(event); continue; }
                    },
                }
                if ladder.step() == Step::GivenUp {
                    break None;
                }
                if timer.deadline() != ladder.next() {
                    timer.as_mut().reset(ladder.next());
                }
            }
        };
        // The outcome comes after the last event, which may still be in the channel.
        while let Ok(event) = events.try_recv() {
            execution.take(event);
        }
        Ran {
            sandbox_failed: matches!(ended, Some(Err(SessionError::Sandbox(_)))),
            ending: match ended {
                Some(Ok(CellOutcome {
                    status: CellStatus::Ended(exit),
                })) => Ending::Program(exit),
                Some(Ok(CellOutcome { status })) => Ending::Cell(status),
                Some(Err(error)) => Ending::Broke(error.into()),
                None => Ending::Abandoned,
            },
            step: ladder.step(),
            stop: ladder.into_stop(),
            duration: began.elapsed(),
        }
    }

    /// Installs packages for `pip install` in a cell, and returns the cell's answer.
    async fn install_for_cell(&self, sandbox: &dyn Sandbox, packages: Vec<String>) -> Result<String, String> {
        let progress = watch::Sender::new(String::new());
        let work = self
            .core
            .provide(
                &self.record,
                sandbox,
                &self.language.info().name,
                // The user is not asked about requests of code.
                (&packages, &Consent::NotAsked),
                INSTALL,
                &progress,
            )
            .await;
        match work {
            Ok(Some(installed)) => Ok(told(&installed, &packages)),
            Ok(None) => Ok("nothing to install".to_owned()),
            Err(failure) => Err(format!("{}; {}", failure.message, failure.remedy)),
        }
    }

    /// Waits for a step before the code runs, unless the execution ends first.
    async fn reach<T>(&self, deadline: Option<Instant>, step: impl Future<Output = T>) -> Result<T, Interrupted> {
        until_stopped(&self.execution, &self.record, deadline, step)
            .await
            .map_err(|stop| Ok(self.never_ran(stop)))
    }

    async fn take_turn(&mut self) -> Result<(), Interrupted> {
        let (execution, record) = (self.execution.clone(), self.record.clone());
        match until_stopped(&execution, &record, None, self.ticket.turn()).await {
            Ok(turn) => turn.map_err(Err),
            Err(stop) => Err(Ok(self.never_ran(stop))),
        }
    }

    fn never_ran(&self, stop: Stop) -> Verdict {
        never_ran(&self.core, &self.record, stop, self.timeout, self.keeps())
    }

    /// True if the session's variables stay for the next call.
    fn keeps(&self) -> bool {
        self.once.is_none() && self.stay == Stay::Variables && self.language.info().session
    }

    /// Takes the idle interpreter of the slot, or starts a new one.
    async fn session(&self, sandbox: &Arc<dyn Sandbox>, deadline: Instant) -> Result<(Held, bool), Interrupted> {
        let slot = self.ticket.slot();
        // Record the turn now, so that a reset finds the execution.
        self.ticket.runs(&self.execution, 0);
        self.execution.begin();
        if let Some(held) = slot.take() {
            // A preloaded interpreter fits. The variables of another call stay untouched.
            if self.stay == Stay::Variables || held.cells == 0 {
                return Ok((held, false));
            }
            slot.put(held);
        }
        if let Some(story) = slot.untold_loss() {
            self.execution.notice(story, true);
        }
        let open = timeout(OPEN, open(self.language.as_ref(), sandbox));
        let session = match self.reach(Some(deadline), open).await? {
            Ok(Ok(session)) => session,
            Ok(Err(error)) => return Err(self.cannot_open(error).await),
            Err(_) => {
                return Err(Err(Failure::from(SessionError::Start {
                    language: self.execution.language.clone(),
                    reason: format!("it was not ready within {} s", OPEN.as_secs()),
                })));
            }
        };
        self.execution.begin();
        Ok((Held::new(session), true))
    }

    async fn cannot_open(&self, error: SessionError) -> Interrupted {
        if matches!(error, SessionError::Sandbox(SandboxError::Gone(_)))
            && let Some(gone) = noticed_end(&self.record).await
        {
            return Ok(self.never_ran(Stop::Departed(gone)));
        }
        Err(error.into())
    }

    /// Determines the outcome, records it, and keeps or drops the interpreter.
    async fn judge(&self, ran: Ran, mut held: Held, meter: Meter, sandbox: &Arc<dyn Sandbox>) -> (Verdict, Cost) {
        let alive = match &ran.ending {
            Ending::Cell(status) => !matches!(status, CellStatus::Died(_)),
            // A session without variables outlives its programs.
            Ending::Program(_) => true,
            Ending::Broke(_) | Ending::Abandoned | Ending::NeverRan => false,
        };
        let well = alive && ran.stop.is_none();
        let network = meter.reached(&self.record);
        let (before, after, cost) = meter
            .stop(&self.execution.id, &self.record, sandbox, ran.duration, well)
            .await;
        let gone = end_of_sandbox(&self.core, &self.record, &ran, after.is_some()).await;
        let reset = matches!(ran.stop, Some(Stop::Reset));
        let (restored, why_lost) = match (&ran.ending, held.session.aftermath()) {
            _ if reset || gone.is_some() => (None, None),
            (Ending::Cell(CellStatus::Died(_)), Aftermath::Restored { cell, why }) => {
                (Some(held.restored(cell, why)), None)
            }
            (Ending::Cell(CellStatus::Died(_)), Aftermath::Over { why }) => (None, why),
            _ => (None, None),
        };
        let lives = (alive || restored.is_some()) && !reset && gone.is_none();
        let verdict = judge(Facts {
            ending: ran.ending,
            stop: ran.stop,
            step: ran.step,
            timeout: self.timeout,
            limits: &self.record.birth.limits,
            before,
            after,
            gone: gone.clone(),
            keeps: self.keeps(),
            hints: &self.core.config().hints,
            restored,
            why_lost,
            network,
        });
        let slot = self.ticket.slot();
        if self.stay == Stay::Files {
            drop(held);
        } else if lives {
            held.ran(self.execution.id.clone());
            slot.put(held);
        } else if !reset && gone.is_none() && self.language.info().session {
            let why = verdict
                .cause
                .as_ref()
                .map_or("it ended", |cause| cause.message.as_str());
            let id = &self.execution.id;
            slot.lose(
                &self.execution,
                format!("new session: variables of the previous one are gone since execution {id} ({why})"),
            );
        }
        (verdict, cost)
    }
}

/// Opens a session: with the sandbox's method if it has one, else with the language's.
pub(crate) async fn open(
    language: &dyn Language,
    sandbox: &Arc<dyn Sandbox>,
) -> Result<Box<dyn sandcell_sandbox::Session>, SessionError> {
    match sandbox.open_session(&language.info().name).await {
        Some(opened) => opened,
        None => match language.inside(sandbox.as_ref()).await {
            Ok(Some(inside)) => inside.open(sandbox.clone()).await,
            Ok(None) => language.open(sandbox.clone()).await,
            Err(failure) => Err(SandboxError::Refused(Box::new(failure)).into()),
        },
    }
}

/// Returns the outcome of code that was ended before it started.
pub(crate) fn never_ran(core: &Core, record: &Record, stop: Stop, timeout: Duration, keeps: bool) -> Verdict {
    judge(Facts {
        ending: Ending::NeverRan,
        gone: match &stop {
            Stop::Departed(gone) => Some(gone.clone()),
            Stop::Timeout | Stop::Output(_) | Stop::Cancelled | Stop::Reset => None,
        },
        stop: Some(stop),
        step: Step::Free,
        timeout,
        limits: &record.birth.limits,
        before: Usage::default(),
        after: None,
        keeps,
        hints: &core.config().hints,
        restored: None,
        why_lost: None,
        network: Reached::default(),
    })
}

/// Waits for a step that is not the code itself, unless the execution ends first.
pub(crate) async fn until_stopped<T>(
    execution: &Execution,
    record: &Record,
    deadline: Option<Instant>,
    step: impl Future<Output = T>,
) -> Result<T, Stop> {
    let end = async {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        done = step => Ok(done),
        stop = execution.stopped() => Err(stop),
        gone = record.closing() => Err(Stop::Departed(gone)),
        () = end => Err(Stop::Timeout),
    }
}

/// Waits for the sandbox. If the sandbox is closed during its creation, the execution ends in the same way as later.
pub(crate) async fn arrive(execution: &Execution, record: &Record) -> Result<Arc<dyn Sandbox>, Result<Stop, Failure>> {
    match until_stopped(execution, record, None, record.ready()).await {
        Ok(Ok(sandbox)) => Ok(sandbox),
        Ok(Err(failure)) => Err(record.departed().map(Stop::Departed).ok_or(failure)),
        Err(stop) => Err(Ok(stop)),
    }
}

/// Writes files into a fresh sandbox.
pub(crate) async fn put_files(sandbox: &dyn Sandbox, files: &[(SandboxPath, Bytes)]) -> Result<(), Failure> {
    let all = async {
        for (path, bytes) in files {
            sandbox.files().write(path, bytes.clone(), WriteMode::Replace).await?;
        }
        Ok(())
    };
    match timeout(FILES, all).await {
        Ok(written) => written.map_err(|error: sandcell_sandbox::FileError| error.into()),
        Err(_) => Err(crate::files::too_slow("the files could not be written")),
    }
}

/// Answers an installation request of a cell. A cell that no longer reads gets no answer.
async fn answer_install(to: &Arc<dyn Interrupter>, result: Result<String, String>) {
    if !matches!(timeout(NOTICE, to.installed(result)).await, Ok(Ok(()))) {
        tracing::debug!("the answer to an installation could not be handed to its cell");
    }
}

/// Returns the end of the sandbox, if the end of the code suggests one.
pub(crate) async fn end_of_sandbox(core: &Core, record: &Record, ran: &Ran, answers: bool) -> Option<Gone> {
    if matches!(ran.ending, Ending::Abandoned) {
        core.registry.depart(record, &Gone::now(GoneWhy::Unresponsive));
        return record.departed();
    }
    let broke_off = match &ran.ending {
        Ending::Cell(status) => matches!(status, CellStatus::Died(_)),
        Ending::Program(exit) => matches!(exit, Exit::Signal(_)),
        Ending::Broke(_) | Ending::Abandoned => true,
        Ending::NeverRan => false,
    };
    if ran.sandbox_failed || (broke_off && !answers) {
        return noticed_end(record).await;
    }
    record.departed()
}

/// Waits a moment for the sandbox's task to notice its end.
async fn noticed_end(record: &Record) -> Option<Gone> {
    timeout(NOTICE, record.closing()).await.ok()
}
