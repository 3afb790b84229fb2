//! The task of each sandbox: it makes the sandbox, notices its end, lets it expire, and closes it.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use sandcell_sandbox::{
    Backend, Code, Failure, LAYERS, Language, Preparing, Sandbox, SandboxError, SandboxSpec, SessionError,
};
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{Instrument as _, Span};

use crate::SkippedBackend;
use crate::records::sinks::EventKind;
use crate::sandbox::checkpoints::BranchSource;
use crate::sandbox::expiry::NotifiedState;
use crate::sandbox::fallback::{absent_before, combine_failures, is_unsupported};
use crate::sandbox::packages::{BasePackages, attach_packages, folders};
use crate::sandbox::pool::{self, IdleSandbox};
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::session::{LiveSession, SessionSlot};
use crate::sandbox::state::{Record, Terminated, TerminationReason};

/// The maximum time for a back end to make a sandbox.
const CREATE_TIMEOUT: Duration = Duration::from_secs(30);
/// If a back end reports sooner than this that it is preparing an image, the task asks it a second time. Both attempts
/// together take less time than clients wait.
const IMAGE_RETRY_WINDOW: Duration = Duration::from_secs(25);
/// The maximum time to close a sandbox. After that it is dropped instead.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause between the end of a one-run sandbox's execution and its closing. The answer is being written meanwhile.
const ANSWER_PAUSE: Duration = Duration::from_millis(2);
/// The number of tasks that an answer passes through.
const ANSWER_TASKS: usize = 4;

/// The specification of a sandbox, and the back ends that can make it, in order.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) spec: SandboxSpec,
    pub(crate) backends: Vec<Arc<dyn Backend>>,
    /// Limits the number of sandboxes of one call that are made at once. Closed when one of them fails.
    pub(crate) turns: Option<Arc<Semaphore>>,
    /// The language whose session starts as soon as the sandbox is ready.
    pub(crate) opens: Option<Arc<dyn Language>>,
    /// The state that it goes on from.
    pub(crate) from: Option<Arc<BranchSource>>,
}

/// Makes the sandbox of a record and watches it to its end. Runs in a separate task, so a caller that disconnects
/// interrupts nothing. If creation is abandoned anyway (no caller is interested in its image any more), the back end
/// cleans up.
pub(crate) async fn run_lifecycle(sandboxes: Arc<Sandboxes>, record: Arc<Record>, mut plan: Plan, span: Span) {
    // If a back end panics, no caller waits forever, and the sandbox's room is free again.
    let mut guard = Guard {
        sandboxes: &sandboxes,
        record: &record,
        over: false,
    };
    let caller = sandboxes.caller_numbers.number(&record.owner);
    let made = match take_idle(&sandboxes, &record, &plan).await {
        Some((sandbox, skipped)) => {
            if let (Some(caller), Some(priority)) = (caller, sandbox.priority()) {
                priority.assign_owner(caller);
            }
            Ok((sandbox, skipped))
        }
        None => {
            plan.spec.caller = caller;
            create_in_turn(&sandboxes, &record, &plan)
                .instrument(span.clone())
                .await
        }
    };
    // The span ends when the sandbox is ready, not at the sandbox's end.
    drop(span);
    let sandbox = match made {
        Ok((sandbox, skipped)) => {
            record.set_skipped_backends(skipped);
            sandbox
        }
        Err(failure) => {
            if matches!(failure.code, Code::InvalidArgument | Code::LimitReached) {
                // The request is not possible here, or not now. The caller gets this failure.
                tracing::debug!(sandbox = %record.id, "a sandbox could not be made: {}", failure.message);
            } else if failure.code != Code::Cancelled {
                tracing::warn!(sandbox = %record.id, code = %failure.code, "a sandbox could not be made: {}", failure.message);
            }
            guard.over = true;
            sandboxes.registry.remove(&record);
            record.set_failed(failure);
            return;
        }
    };
    if let Err(failure) = prepare(&sandboxes, &record, &plan, sandbox.as_ref()).await {
        if !matches!(timeout(CLOSE_TIMEOUT, sandbox.close()).await, Ok(Ok(()))) {
            tracing::warn!(sandbox = %record.id, "an incomplete sandbox did not close in order and is dropped");
        }
        guard.over = true;
        sandboxes.registry.remove(&record);
        record.set_failed(failure);
        return;
    }
    // Its image can be large, and is not needed any more.
    match plan.from.take() {
        Some(from) => { from.packages.iter() }
            .for_each(|(language, package)| record.add_packages(language, std::slice::from_ref(package))),
        None => {
            for (installer, base) in bases_for(&sandboxes, &plan).unwrap_or_default() {
                record.add_packages(installer.language(), &base.added);
            }
        }
    }
    sandboxes
        .records
        .observers
        .sandbox(EventKind::SandboxCreated, &record.owner, &record.id, || {
            let isolation = sandbox.isolation();
            format!(
                "made by {}, isolated as {}",
                isolation.backend,
                isolation.level.as_str()
            )
        });
    // If the sandbox was closed during its creation, it is closed now.
    record.set_live(sandbox.clone());
    let terminated = wait_for_end(&sandboxes, &record, sandbox.as_ref()).await;
    if record.is_for_one_run() {
        // Ending many processes takes the processors that the answer still needs. Tasks that are already queued write
        // the answer. Yield to them; even setting a timer runs after them.
        for _ in 0..ANSWER_TASKS {
            yield_now().await;
        }
        // During the shutdown no answer needs this pause.
        tokio::select! {
            () = sleep(ANSWER_PAUSE) => {}
            () = sandboxes.ending.cancelled() => {}
        }
    }
    sandboxes
        .records
        .observers
        .sandbox(EventKind::SandboxClosed, &record.owner, &record.id, || {
            terminated.description()
        });
    tracing::debug!(sandbox = %record.id, "the sandbox {}", terminated.description());
    record.drop_sessions();
    record.tools.close();
    if !matches!(timeout(CLOSE_TIMEOUT, sandbox.close()).await, Ok(Ok(()))) {
        let message = "the sandbox did not close in order and is dropped";
        // During the shutdown the back end reports this once for all.
        if sandboxes.ending.is_cancelled() {
            tracing::debug!(sandbox = %record.id, "{message}");
        } else {
            tracing::warn!(sandbox = %record.id, "{message}");
        }
    }
    drop(sandbox);
    guard.over = true;
    sandboxes.registry.remove(&record);
    record.set_ended();
}

/// Opens the ports of a new sandbox that lead to the server, and makes a branch go on from its source's state.
async fn prepare(
    sandboxes: &Arc<Sandboxes>,
    record: &Arc<Record>,
    plan: &Plan,
    sandbox: &dyn Sandbox,
) -> Result<(), Failure> {
    sandboxes.open_route(record, sandbox).await?;
    sandboxes.open_tools(record, sandbox).await?;
    match &plan.from {
        Some(from) => from.arrive(record, sandbox).await,
        None => Ok(()),
    }
}

/// Makes the sandbox when a turn is free, unless it is already closing by then.
async fn create_in_turn(sandboxes: &Sandboxes, record: &Record, plan: &Plan) -> Result<CreatedSandbox, Failure> {
    let Some(turns) = &plan.turns else {
        return create_with_interest(sandboxes, record, plan).await;
    };
    let turn = turns.acquire().await;
    if turn.is_err() || record.terminated().is_some() {
        return Err(Failure::new(
            Code::Cancelled,
            "not all sandboxes of the call could be made, so this one was not",
            "the first failure of the call gives the reason",
        ));
    }
    let made = create_with_interest(sandboxes, record, plan).await;
    if made.is_err() {
        turns.close();
    }
    made
}

/// Takes an idle sandbox from the pool, adds the plan's environment variables and puts its interpreter into the session
/// slot.
async fn take_idle(sandboxes: &Sandboxes, record: &Record, plan: &Plan) -> Option<CreatedSandbox> {
    if plan.from.is_some() {
        return None;
    }
    let ordinary = sandboxes.plain_plan(sandboxes.config().limits.clone());
    let first = ordinary.backends.first().map(|backend| backend.name());
    let (mut idle, env) = sandboxes.pool.take(plan, &ordinary.spec, first)?;
    if !env.is_empty() {
        match add_env(&mut idle, &env).await {
            Ok(true) => {}
            Ok(false) => {
                sandboxes.pool.put_back(idle);
                return None;
            }
            Err(error) => {
                tracing::debug!(sandbox = %record.id, "an idle sandbox could not be used: {error}");
                tokio::spawn(pool::end(idle));
                return None;
            }
        }
    }
    if let Some(usage) = idle.usage {
        record.remember_usage(usage);
    }
    if let Some((language, session)) = idle.session {
        SessionSlot::of(record, language.as_ref()).put(LiveSession::new(session));
    }
    Some((idle.sandbox, idle.skipped))
}

/// Adds environment variables to an idle sandbox and its interpreter. Returns false if they cannot be added to the
/// sandbox; nothing has changed then. An interpreter to which they cannot be added ends.
async fn add_env(idle: &mut IdleSandbox, env: &BTreeMap<String, String>) -> Result<bool, SessionError> {
    match idle.sandbox.add_env(env) {
        Ok(()) => {}
        Err(SandboxError::Unsupported(_)) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    if let Some((_, session)) = &mut idle.session
        && !session.add_env(env).await?
    {
        idle.session = None;
    }
    Ok(true)
}

struct Guard<'a> {
    sandboxes: &'a Sandboxes,
    record: &'a Record,
    over: bool,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.sandboxes.registry.remove(self.record);
            self.record.set_failed(Failure::new(
                Code::Internal,
                "the task that made the sandbox ended unexpectedly",
                "call again for a new sandbox; the server's log has details",
            ));
        }
    }
}

/// Makes the sandbox. If it may wait for an image, stops when the record closes. Aborts the image pull when the last
/// interested caller gives up.
async fn create_with_interest(sandboxes: &Sandboxes, record: &Record, plan: &Plan) -> Result<CreatedSandbox, Failure> {
    let Some(image) = plan.spec.image.as_deref() else {
        return create(sandboxes, plan).await;
    };
    sandboxes.image_interests.add(image, &record.owner);
    let made = tokio::select! {
        biased;
        made = create(sandboxes, plan) => made,
        _terminated = record.wait_closing() => {
            if sandboxes.image_interests.remove(image, &record.owner) {
                for images in plan.backends.iter().filter_map(|backend| backend.images()) {
                    images.abandon(image);
                }
            }
            return Err(Failure::new(
                Code::Cancelled,
                "the sandbox was cancelled before its image was ready",
                "call again; the image is pulled again unless other callers wait for it",
            ));
        }
    };
    // If the image is still being prepared, the caller retries, so its interest stays.
    if preparing(&plan.backends, Some(image)).is_none() {
        sandboxes.image_interests.remove(image, &record.owner);
    }
    made
}

/// Returns the progress of the first back end that prepares this image (none: its default image).
pub(crate) fn preparing(backends: &[Arc<dyn Backend>], image: Option<&str>) -> Option<Preparing> {
    let mut images = backends.iter().filter_map(|backend| backend.images());
    images.find_map(|images| images.preparing(image))
}

/// Waits until the sandbox has a reason to end.
async fn wait_for_end(sandboxes: &Sandboxes, record: &Arc<Record>, sandbox: &dyn Sandbox) -> Terminated {
    let mut ended = pin!(sandbox.ended());
    let mut ran_while_paused = pin!(record.ran_while_paused(sandbox));
    let mut notified = NotifiedState::default();
    loop {
        let expiry = record.deadlines();
        let next_notice = notified.notify_if_due(&sandboxes.expiry_notifier, record, &expiry);
        let next = expiry
            .lifetime
            .map_or(expiry.idle, |lifetime| lifetime.min(expiry.idle));
        let why = tokio::select! {
            biased;
            terminated = record.wait_closing() => return terminated,
            ended = &mut ended => TerminationReason::Lost(ended.reason),
            () = sandboxes.down.cancelled() => TerminationReason::Shutdown,
            () = record.expiry_changed() => continue,
            () = sleep_until_some(next_notice) => continue,
            () = &mut ran_while_paused => TerminationReason::RanWhilePaused,
            () = sleep_until(next) => match expiry.lifetime {
                Some(lifetime) if lifetime <= Instant::now() && pauses(record).await => continue,
                Some(lifetime) if lifetime <= Instant::now() => TerminationReason::Lifetime,
                Some(_) | None if expiry.busy => continue,
                Some(_) | None => TerminationReason::Idle(record.params.idle),
            },
        };
        // A sandbox that a caller entered just now stays. The next round checks again.
        sandboxes.registry.begin_close(record, &Terminated::now(why));
    }
}

/// Pauses a sandbox that does not end at the end of its lifetime. Returns false if it ends.
async fn pauses(record: &Arc<Record>) -> bool {
    if !record.params.pauses_at_end {
        return false;
    }
    if record.time_left().is_some_and(|left| !left.is_zero()) {
        // It was extended meanwhile.
        return true;
    }
    match record.pause().await {
        Ok(_) => true,
        Err(failure) => {
            tracing::warn!(sandbox = %record.id, "a sandbox could not be paused and ends: {}", failure.message);
            false
        }
    }
}

/// Waits until this moment. Waits forever if there is none.
async fn sleep_until_some(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// A sandbox, and the preferred back ends that could not make it.
pub(crate) type CreatedSandbox = (Arc<dyn Sandbox>, Vec<SkippedBackend>);

/// Tries the back ends in order. The first one that succeeds makes the sandbox.
pub(crate) async fn create(sandboxes: &Sandboxes, plan: &Plan) -> Result<CreatedSandbox, Failure> {
    // A missing base is an error: the sandbox must not start without it silently.
    let bases = match plan.from {
        Some(_) => Vec::new(),
        None => bases_for(sandboxes, plan)?,
    };
    if plan.spec.image.is_none() && plan.from.is_none() {
        sandboxes.pool.set_attached(folders(&bases));
    }
    let mut spec = plan.spec.clone();
    // The program that arranges packages runs first, and alone: when it ends, everything else in the sandbox ends.
    let arranged = |(installer, base): &BasePackages| base.folder.is_some() && installer.arrange(LAYERS).is_some();
    let opens = plan.opens.as_ref().filter(|_| !bases.iter().any(arranged));
    spec.entered_by = opens.and_then(|language| language.matching_zygote(&folders(&bases)));
    let (sandbox, mut skipped) = create_within_limits(sandboxes, plan, &spec).await?;
    if plan.backends.len() == sandboxes.backends.len() {
        // The request named no back end, so the absent ones were preferred, too.
        let name = sandbox.isolation().backend.as_str();
        skipped.splice(
            0..0,
            absent_before(&sandboxes.config().absent_backends, &sandboxes.backends, name),
        );
    }
    for (installer, base) in &bases {
        if let Some(folder) = &base.folder {
            attach_packages(sandbox.as_ref(), installer.as_ref(), folder).await?;
        }
    }
    if let Some(from) = &plan.from {
        for folder in &from.attached {
            sandbox.attach(folder).await?;
        }
    }
    Ok((sandbox, skipped))
}

/// Returns the packages that the sandbox starts with. Bases fit the programs of ordinary sandboxes. An image has its
/// own programs, so it gets no base.
fn bases_for(sandboxes: &Sandboxes, plan: &Plan) -> Result<Vec<BasePackages>, Failure> {
    if plan.spec.image.is_some() {
        return Ok(Vec::new());
    }
    sandboxes.bases()
}

/// Closes idle sandboxes of the pool when the machine has no room for a requested one.
async fn create_within_limits(
    sandboxes: &Sandboxes,
    plan: &Plan,
    spec: &SandboxSpec,
) -> Result<CreatedSandbox, Failure> {
    loop {
        let made = create_with_any(plan, spec).await;
        let is_full = matches!(&made, Err(failure) if failure.code == Code::LimitReached);
        if !is_full || spec.ahead || !sandboxes.pool.evict_one().await {
            return made;
        }
    }
}

async fn create_with_any(plan: &Plan, spec: &SandboxSpec) -> Result<CreatedSandbox, Failure> {
    let mut failed: Vec<(SkippedBackend, bool)> = Vec::new();
    for backend in &plan.backends {
        let began = Instant::now();
        let mut made = timeout(CREATE_TIMEOUT, backend.create(spec)).await;
        if matches!(made, Ok(Err(SandboxError::Image { .. })))
            && began.elapsed() < IMAGE_RETRY_WINDOW
            && preparing(std::slice::from_ref(backend), spec.image.as_deref()).is_some()
        {
            made = timeout(CREATE_TIMEOUT, backend.create(spec)).await;
        }
        let error = match made {
            Ok(Ok(sandbox)) => return Ok((sandbox, failed.into_iter().map(|(skipped, _)| skipped).collect())),
            Ok(Err(error)) => error,
            Err(_) => SandboxError::Unavailable {
                backend: backend.name().to_owned(),
                reason: format!("a sandbox was not ready within {} s", CREATE_TIMEOUT.as_secs()),
                remedy: "try again; `sandcell doctor` on the host shows what is slow or missing".to_owned(),
            },
        };
        let cannot = is_unsupported(&error);
        failed.push((SkippedBackend::new(backend.name(), error.into()), cannot));
    }
    Err(combine_failures(failed).unwrap_or_else(no_backend))
}

/// The failure when there is no back end.
pub(crate) fn no_backend() -> Failure {
    Failure::new(
        Code::BackendUnavailable,
        "no back end is available on this machine",
        "`sandcell doctor` on the host shows the reason and the fix",
    )
}
