//! Runs code in sessions: `execute` in a session that stays, `run_once` in a separate sandbox.
//!
//! The work runs in a separate task. The caller only waits for its end, and may disconnect.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandcell_sandbox::{
    Aftermath, Cell, CellStatus, Consent, Exit, Failure, Language, Sandbox, SandboxError, SandboxPath, SessionError,
    Usage, WriteMode,
};
use tokio::sync::{OwnedRwLockReadGuard, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::admission::policy;
use crate::execution::outcome::{Ending, Evidence, Outcome, outcome_of};
use crate::execution::outputs::read_outputs;
use crate::execution::service::Executions;
use crate::execution::service::Finisher;
use crate::execution::state::Execution;
use crate::execution::termination::{Step, Stop};
use crate::sandbox::files::FILE_CALL_TIMEOUT;
use crate::sandbox::network::NetworkEvidence;
use crate::sandbox::packages::INSTALL_TIMEOUT;
use crate::sandbox::registry::Target;
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::session::open_session;
use crate::sandbox::session::{LiveSession, QueueTicket, SessionSlot};
use crate::sandbox::state::{Record, Terminated, TerminationReason, UseGuard};
use crate::sandbox::usage::{Cost, Meter};
use crate::{ExecuteRequest, ExecutionView, InHistory, Principal, RunRequest};

/// The maximum time to start an interpreter.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum time to notice the end of a sandbox after its program or session has broken off.
pub(super) const END_NOTICE_TIMEOUT: Duration = Duration::from_millis(500);

impl Executions {
    pub(crate) async fn execute(
        self: &Arc<Self>,
        principal: &Principal,
        req: ExecuteRequest,
        mode: SessionMode,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        let alone = self
            .sandboxes
            .no_alternatives(principal, req.sandbox_id.as_deref())
            .await;
        self.execute_now(principal, req, mode, alone, cancel).await
    }

    /// The same, also while the sandbox is used for alternatives. The guard is held until the execution is in the queue
    /// of its session: a checkpoint waits for it from then on.
    pub(crate) async fn execute_now(
        self: &Arc<Self>,
        principal: &Principal,
        req: ExecuteRequest,
        mode: SessionMode,
        alone: Option<OwnedRwLockReadGuard<()>>,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        let (wait, watch) = (req.wait, req.watch.clone());
        watch.prepares(self.sandboxes.backends.clone(), None);
        let (language, code) = (req.language.clone(), req.code.clone());
        let admitted = self.admit(principal, req, mode).await;
        drop(alone);
        match admitted {
            Ok(job) => {
                let execution = job.execution.clone();
                watch.follow(&execution);
                tokio::spawn(job.run().instrument(execution.span()));
                self.answer(&execution, wait, cancel).await
            }
            Err(failure) => {
                self.refuse(principal, &language, &code, &failure);
                Err(failure)
            }
        }
    }

    async fn admit(
        self: &Arc<Self>,
        principal: &Principal,
        req: ExecuteRequest,
        mode: SessionMode,
    ) -> Result<Job, Failure> {
        let language = self.sandboxes.language(&req.language)?;
        policy::code(&self.sandboxes.config(), &req.code)?;
        policy::stdin(&self.sandboxes.config(), req.stdin.as_deref())?;
        let timeout = policy::timeout(&self.sandboxes.config(), req.timeout)?;
        let stdin = policy::Stdin::of(req.stdin.as_deref());
        let network = self.sandboxes.network_of(principal, req.sandbox_id.as_deref());
        let findings = policy::findings(&self.sandboxes.config(), language.as_ref(), &req.code, stdin, &network)?;
        let session = req.session.as_deref().map(policy::session_name).transpose()?;
        let target = self.sandboxes.target(principal, req.sandbox_id.as_deref()).await?;
        let dropped = match req.checkpoint.as_deref() {
            Some(name) => {
                let name = policy::checkpoint_name(name)?;
                self.sandboxes.checkpoint_of(&target.record, Some(name)).await?.dropped
            }
            None => Vec::new(),
        };
        let slot = match session {
            Some(name) => SessionSlot::named(&target.record, language.as_ref(), name)?,
            None => SessionSlot::of(&target.record, language.as_ref()),
        };
        let mut job = self
            .job(target, (slot, language), req.code, req.stdin, timeout, None)
            .await?;
        job.mode = mode;
        job.execution.set_findings(findings);
        if !dropped.is_empty() {
            let notice = format!("checkpoints dropped to make room: {}", dropped.join(", "));
            job.execution.notice(notice, false);
        }
        if req.keep_values {
            job.execution.keep_values();
        }
        if req.in_history == InHistory::Unshown {
            job.execution.hide_from_history();
        }
        Ok(job)
    }

    pub(crate) async fn run_once(
        self: &Arc<Self>,
        principal: &Principal,
        req: RunRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        let (wait, watch) = (req.wait, req.watch.clone());
        let (language, code) = (req.language.clone(), req.code.clone());
        match self.admit_once(principal, req).await {
            Ok(job) => {
                let execution = job.execution.clone();
                watch.follow(&execution);
                tokio::spawn(job.run().instrument(execution.span()));
                self.answer(&execution, wait, cancel).await
            }
            Err(failure) => {
                self.refuse(principal, &language, &code, &failure);
                Err(failure)
            }
        }
    }

    async fn admit_once(self: &Arc<Self>, principal: &Principal, req: RunRequest) -> Result<Job, Failure> {
        let language = self.sandboxes.language(&req.language)?;
        policy::code(&self.sandboxes.config(), &req.code)?;
        policy::stdin(&self.sandboxes.config(), req.stdin.as_deref())?;
        policy::transfers(&self.sandboxes.config(), &req.files, &req.outputs)?;
        self.sandboxes
            .check_packages(&language.info().name, &req.packages, &req.consent)?;
        let timeout = policy::timeout(&self.sandboxes.config(), req.timeout)?;
        let stdin = policy::Stdin::of(req.stdin.as_deref());
        let network = self.sandboxes.network_rule(&req.network, &req.consent)?;
        let findings = policy::findings(&self.sandboxes.config(), language.as_ref(), &req.code, stdin, &network)?;
        let memory = policy::memory(&self.sandboxes.config(), req.memory, language.as_ref());
        let limits = policy::limits(&self.sandboxes.config(), memory, None, None)?;
        // The installation may replace modules that a session would have loaded.
        let opens = req.packages.is_empty().then(|| Arc::clone(&language));
        let target = self
            .sandboxes
            .throwaway(principal, "create_run_close", limits, network, None, opens)
            .await?;
        let record = target.record.clone();
        let once = OneShotIo {
            packages: req.packages,
            consent: req.consent,
            files: req.files,
            outputs: req.outputs,
        };
        let slot = SessionSlot::of(&target.record, language.as_ref());
        let job = self.job(target, (slot, language), req.code, req.stdin, timeout, Some(once));
        let job = job.await.inspect_err(|_| self.sandboxes.discard(&record))?;
        job.execution.set_findings(findings);
        Ok(job)
    }

    async fn job(
        self: &Arc<Self>,
        target: Target,
        (slot, language): (Arc<SessionSlot>, Arc<dyn Language>),
        code: String,
        stdin: Option<String>,
        timeout: Duration,
        once: Option<OneShotIo>,
    ) -> Result<Job, Failure> {
        let ticket = slot.enqueue(self.sandboxes.config().queue).await?;
        let execution = Execution::new(
            &self.sandboxes.config(),
            &target.record,
            &language.info().name,
            code,
            target.new,
        )?;
        self.store.add(&execution);
        Ok(Job {
            executions: self.clone(),
            execution,
            record: target.record,
            guard: target.guard,
            ticket,
            language,
            stdin,
            timeout,
            mode: SessionMode::Variables,
            once,
        })
    }
}

/// The state that an execution leaves for the next one of its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionMode {
    /// Variables and files: the interpreter stays.
    Variables,
    /// Files only: each execution has a separate interpreter.
    Files,
}

/// The transfers of a run whose sandbox is discarded.
pub(crate) struct OneShotIo {
    pub(crate) packages: Vec<String>,
    pub(crate) consent: Consent,
    pub(crate) files: Vec<(SandboxPath, Bytes)>,
    pub(crate) outputs: Vec<SandboxPath>,
}

/// One cell in progress.
pub(super) struct Job {
    pub(super) executions: Arc<Executions>,
    pub(super) execution: Arc<Execution>,
    pub(super) record: Arc<Record>,
    guard: UseGuard,
    ticket: QueueTicket,
    pub(super) language: Arc<dyn Language>,
    stdin: Option<String>,
    pub(super) timeout: Duration,
    mode: SessionMode,
    once: Option<OneShotIo>,
}

/// An early end of a job: a failure for the caller, or an outcome without the code having run.
type EarlyEnd = Result<Outcome, Failure>;

/// The raw end of a cell.
pub(crate) struct RunReport {
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
            executions: self.executions.clone(),
            execution: self.execution.clone(),
            throwaway: self.once.is_some().then(|| self.record.clone()),
        };
        let end = match self.work().await {
            Ok(done) => Ok(done),
            Err(Ok(outcome)) => Ok((outcome, Cost::default())),
            Err(Err(failure)) => Err(failure),
        };
        let Self { ticket, guard, .. } = self;
        // The session and the sandbox become free before the answer is sent, so the caller can use them at once.
        drop((ticket, guard));
        finisher.finish(end);
    }

    async fn work(&mut self) -> Result<(Outcome, Cost), EarlyEnd> {
        let sandbox = wait_for_sandbox(&self.execution, &self.record)
            .await
            .map_err(|why| why.map(|stop| self.outcome_without_run(stop)))?;
        self.execution
            .set_isolation(self.record.isolation(sandbox.as_ref()), self.record.skipped_backends());
        if let Some(once) = &self.once {
            let put = put_files(sandbox.as_ref(), &once.files);
            self.run_step(None, put).await?.map_err(Err)?;
            let progress = watch::Sender::new(String::new());
            let provide = self.executions.sandboxes.provide(
                &self.record,
                sandbox.as_ref(),
                &self.language.info().name,
                (&once.packages, &once.consent),
                INSTALL_TIMEOUT,
                &progress,
            );
            self.run_step(None, provide).await?.map_err(Err)?;
        }
        self.take_turn().await?;
        let _permit = self
            .run_step(None, self.executions.sandboxes.scheduler.acquire(&self.record.owner))
            .await?;
        self.executions
            .sandboxes
            .cpu_quota
            .may_run(&self.record.owner)
            .map_err(Err)?;
        let deadline = Instant::now() + self.timeout;
        let (mut live, fresh) = self.session(&sandbox, deadline).await?;
        // A compiler has a separate time limit. The code's limit begins after it.
        let deadline = deadline + live.session.preparing();
        if let Some(stop) = self.execution.stop_requested() {
            // An interrupt before the code starts would be lost, and cost the session.
            if !matches!(stop, Stop::Reset) {
                self.ticket.slot().put(live);
            }
            return Err(Ok(self.outcome_without_run(stop)));
        }
        self.ticket
            .set_running(self.execution.id.clone(), live.cells.saturating_add(1));
        if let Some(before) = live.background() {
            self.execution.follows(before);
        }
        if self.once.is_some() || self.mode == SessionMode::Files {
            live.session.last_cell();
        } else {
            live.set_snapshot_pause(self.executions.sandboxes.scheduler.is_crowded());
        }
        let meter = Meter::start(&self.record, &sandbox, fresh);
        let cell = Cell {
            code: self.execution.code.clone(),
            stdin: self.stdin.take(),
            number: live.cells.saturating_add(1),
            packages: self.executions.sandboxes.installer(&self.language.info().name).is_ok(),
            exact: self.execution.keeps_values(),
            execution: (self.record.tools.limits().is_some()).then(|| self.execution.id.to_string()),
        };
        let ran = self.drive(&mut live, cell, sandbox.as_ref(), deadline).await;
        let (outcome, cost) = self.conclude(ran, live, meter, &sandbox).await;
        if let Some(once) = &self.once {
            read_outputs(
                &self.executions.sandboxes.config(),
                &self.record,
                sandbox.as_ref(),
                &self.execution,
                &once.outputs,
            )
            .await;
        }
        Ok((outcome, cost))
    }

    /// Waits for a step before the code runs, unless the execution ends first.
    async fn run_step<T>(&self, deadline: Option<Instant>, step: impl Future<Output = T>) -> Result<T, EarlyEnd> {
        until_stopped(&self.execution, &self.record, deadline, step)
            .await
            .map_err(|stop| Ok(self.outcome_without_run(stop)))
    }

    async fn take_turn(&mut self) -> Result<(), EarlyEnd> {
        let (execution, record) = (self.execution.clone(), self.record.clone());
        match until_stopped(&execution, &record, None, self.ticket.turn()).await {
            Ok(turn) => turn.map_err(Err),
            Err(stop) => Err(Ok(self.outcome_without_run(stop))),
        }
    }

    fn outcome_without_run(&self, stop: Stop) -> Outcome {
        outcome_without_run(
            &self.executions.sandboxes,
            &self.record,
            stop,
            self.timeout,
            self.keeps(),
        )
    }

    /// True if the session's variables stay for the next call.
    fn keeps(&self) -> bool {
        self.once.is_none() && self.mode == SessionMode::Variables && self.language.info().session
    }

    /// Takes the idle interpreter of the slot, or starts a new one.
    async fn session(&self, sandbox: &Arc<dyn Sandbox>, deadline: Instant) -> Result<(LiveSession, bool), EarlyEnd> {
        let slot = self.ticket.slot();
        // Record the turn now, so that a reset finds the execution.
        self.ticket.set_running(self.execution.id.clone(), 0);
        self.execution.begin();
        if let Some(live) = slot.take() {
            // A preloaded interpreter fits. The variables of another call stay untouched.
            if self.mode == SessionMode::Variables || live.cells == 0 {
                return Ok((live, false));
            }
            slot.put(live);
        }
        if let Some(description) = slot.take_unreported_loss() {
            self.execution.notice(description, true);
        }
        let open = timeout(OPEN_TIMEOUT, open_session(self.language.as_ref(), sandbox));
        let session = match self.run_step(Some(deadline), open).await? {
            Ok(Ok(session)) => session,
            Ok(Err(error)) => return Err(self.open_failure(error).await),
            Err(_) => {
                return Err(Err(Failure::from(SessionError::Start {
                    language: self.execution.language.clone(),
                    reason: format!("it was not ready within {} s", OPEN_TIMEOUT.as_secs()),
                })));
            }
        };
        self.execution.begin();
        Ok((LiveSession::new(session), true))
    }

    /// An interpreter does not start in a sandbox that ends meanwhile. The sandbox's end is then the true cause.
    async fn open_failure(&self, error: SessionError) -> EarlyEnd {
        if matches!(
            error,
            SessionError::Start { .. } | SessionError::Sandbox(SandboxError::Gone(_))
        ) && let Some(terminated) = noticed_end(&self.record).await
        {
            return Ok(self.outcome_without_run(Stop::SandboxEnded(terminated)));
        }
        Err(error.into())
    }

    /// Determines the outcome, records it, and keeps or drops the interpreter.
    async fn conclude(
        &self,
        ran: RunReport,
        mut live: LiveSession,
        meter: Meter,
        sandbox: &Arc<dyn Sandbox>,
    ) -> (Outcome, Cost) {
        let alive = match &ran.ending {
            Ending::Cell(status) => !matches!(status, CellStatus::Died(_)),
            // A session without variables outlives its programs.
            Ending::Program(_) => true,
            Ending::Broke(_) | Ending::Abandoned | Ending::NeverRan => false,
        };
        let well = alive && ran.stop.is_none();
        let network = meter.reached(&self.record);
        self.record
            .checkpoints
            .executed(&self.execution.id, self.execution.is_shown());
        let (before, after, cost) = meter
            .stop(&self.execution.id, &self.record, sandbox, ran.duration, well)
            .await;
        let terminated = sandbox_end(&self.executions.sandboxes, &self.record, &ran, after.is_some()).await;
        let reset = matches!(ran.stop, Some(Stop::Reset));
        let (restored, why_lost) = match (&ran.ending, live.session.aftermath()) {
            _ if reset || terminated.is_some() => (None, None),
            (Ending::Cell(CellStatus::Died(_)), Aftermath::Restored { cell, why }) => {
                (Some(live.restored(cell, why)), None)
            }
            (Ending::Cell(CellStatus::Died(_)), Aftermath::Over { why }) => (None, why),
            _ => (None, None),
        };
        let lives = (alive || restored.is_some()) && !reset && terminated.is_none();
        let outcome = outcome_of(Evidence {
            ending: ran.ending,
            stop: ran.stop,
            step: ran.step,
            timeout: self.timeout,
            limits: &self.record.params.limits,
            before,
            after,
            terminated: terminated.clone(),
            keeps: self.keeps(),
            hints: &self.executions.sandboxes.config().hints,
            restored,
            why_lost,
            network,
        });
        let slot = self.ticket.slot();
        if self.mode == SessionMode::Files {
            drop(live);
        } else if lives {
            live.ran(self.execution.id.clone());
            let snapshots = live.session.takes_snapshots();
            slot.put(live);
            if snapshots {
                self.executions.sandboxes.schedule_checkpoint(&self.record);
            }
        } else if terminated.is_some() {
            drop(live);
        } else {
            slot.retire(live);
        }
        if self.mode == SessionMode::Files || lives {
            // Nothing is lost.
        } else if !reset && terminated.is_none() && self.language.info().session {
            let why = outcome
                .cause
                .as_ref()
                .map_or("it ended", |cause| cause.message.as_str());
            let id = &self.execution.id;
            slot.record_loss(
                self.execution.delivery(),
                format!("new session: variables of the previous one are gone since execution {id} ({why})"),
            );
        }
        (outcome, cost)
    }
}

/// Returns the outcome of code that was ended before it started.
pub(crate) fn outcome_without_run(
    sandboxes: &Sandboxes,
    record: &Record,
    stop: Stop,
    timeout: Duration,
    keeps: bool,
) -> Outcome {
    outcome_of(Evidence {
        ending: Ending::NeverRan,
        terminated: match &stop {
            Stop::SandboxEnded(terminated) => Some(terminated.clone()),
            Stop::Timeout | Stop::Output(_) | Stop::Cancelled | Stop::Reset => None,
        },
        stop: Some(stop),
        step: Step::Free,
        timeout,
        limits: &record.params.limits,
        before: Usage::default(),
        after: None,
        keeps,
        hints: &sandboxes.config().hints,
        restored: None,
        why_lost: None,
        network: NetworkEvidence::default(),
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
        terminated = record.wait_closing() => Err(Stop::SandboxEnded(terminated)),
        () = end => Err(Stop::Timeout),
    }
}

/// Waits for the sandbox. If the sandbox is closed during its creation, the execution ends in the same way as later.
pub(crate) async fn wait_for_sandbox(
    execution: &Execution,
    record: &Arc<Record>,
) -> Result<Arc<dyn Sandbox>, Result<Stop, Failure>> {
    match until_stopped(execution, record, None, record.ready()).await {
        Ok(Ok(sandbox)) => Ok(sandbox),
        Ok(Err(failure)) => Err(record.terminated().map(Stop::SandboxEnded).ok_or(failure)),
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
    match timeout(FILE_CALL_TIMEOUT, all).await {
        Ok(written) => written.map_err(|error: sandcell_sandbox::FileError| error.into()),
        Err(_) => Err(crate::sandbox::files::too_slow("the files could not be written")),
    }
}

/// Returns the end of the sandbox, if the end of the code suggests one.
pub(crate) async fn sandbox_end(
    sandboxes: &Sandboxes,
    record: &Record,
    ran: &RunReport,
    answers: bool,
) -> Option<Terminated> {
    if matches!(ran.ending, Ending::Abandoned) {
        sandboxes
            .registry
            .begin_close(record, &Terminated::now(TerminationReason::Unresponsive));
        return record.terminated();
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
    record.terminated()
}

/// Waits a moment for the sandbox's task to notice its end.
async fn noticed_end(record: &Record) -> Option<Terminated> {
    timeout(END_NOTICE_TIMEOUT, record.wait_closing()).await.ok()
}
