//! The task that each sandbox has: it makes the sandbox, notices its end, lets it expire, and closes it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use sandcell_sandbox::{Backend, Code, Failure, LAYERS, Language, Sandbox, SandboxError, SandboxSpec};
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{Instrument as _, Span};

use crate::core::Core;
use crate::expiring::Told;
use crate::lasting::EventKind;
use crate::packages::{Ground, folders, show};
use crate::passed::{PassedOver, absent_before, lacks, together};
use crate::record::{Gone, GoneWhy, Record};
use crate::sessions::{Held, Slot};

/// How long a back end may take to make a sandbox.
const CREATE: Duration = Duration::from_secs(30);
/// A back end that answers sooner than this that an image is being made ready is asked a second time: both together are
/// still less than clients wait.
const PATIENCE: Duration = Duration::from_secs(25);
/// How long a sandbox may take to close, before it is dropped instead.
pub(crate) const CLOSE: Duration = Duration::from_secs(5);

/// How long a sandbox for one run is left alone after its run, whose answer is on its way.
const AFTER_ANSWER: Duration = Duration::from_millis(2);
/// Tasks that an answer passes through.
const TURNS: usize = 4;

/// What to make, and who may make it, in this order.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) spec: SandboxSpec,
    pub(crate) backends: Vec<Arc<dyn Backend>>,
    /// Turns of sandboxes that are made together. Closed when one of them could not be made.
    pub(crate) turns: Option<Arc<Semaphore>>,
    /// The language whose session begins as soon as the sandbox is there.
    pub(crate) opens: Option<Arc<dyn Language>>,
}

/// Makes the sandbox of a record and keeps it to its end. Runs in a task of its own: a caller that leaves breaks nothing off.
/// Where making it is given up all the same (nobody wants its image any more), the back end leaves nothing of it.
pub(crate) async fn keep(core: Arc<Core>, record: Arc<Record>, mut plan: Plan, span: Span) {
    // Should a back end panic, nobody waits for ever and the place is free again.
    let mut guard = Guard {
        core: &core,
        record: &record,
        over: false,
    };
    let caller = core.callers.number(&record.owner);
    let made = match parked(&core, &record, &plan) {
        Some((sandbox, passed)) => {
            if let Some(caller) = caller {
                sandbox.assign_owner(caller);
            }
            Ok((sandbox, passed))
        }
        None => {
            plan.spec.caller = caller;
            in_turn(&core, &record, &plan).instrument(span.clone()).await
        }
    };
    // It ends when the sandbox is there, not with it.
    drop(span);
    let sandbox = match made {
        Ok((sandbox, passed)) => {
            record.passed_over(passed);
            sandbox
        }
        Err(failure) => {
            if matches!(failure.code, Code::InvalidArgument | Code::LimitReached) {
                // What was asked for is not possible here, or not now; the caller is told.
                tracing::debug!(sandbox = %record.id, "a sandbox could not be made: {}", failure.message);
            } else if failure.code != Code::Cancelled {
                tracing::warn!(sandbox = %record.id, code = %failure.code, "a sandbox could not be made: {}", failure.message);
            }
            guard.over = true;
            core.registry.remove(&record);
            record.failed(failure);
            return;
        }
    };
    if let Err(failure) = core.open_way(&record, sandbox.as_ref()).await {
        if !matches!(timeout(CLOSE, sandbox.close()).await, Ok(Ok(()))) {
            tracing::warn!(sandbox = %record.id, "a sandbox without its network did not close in order and is dropped");
        }
        guard.over = true;
        core.registry.remove(&record);
        record.failed(failure);
        return;
    }
    for (installer, base) in bases_for(&core, &plan).unwrap_or_default() {
        record.hold(installer.language(), &base.added);
    }
    core.witnesses.sandbox(EventKind::SandboxCreated, &record, || {
        let isolation = sandbox.isolation();
        format!(
            "made by {}, isolated as {}",
            isolation.backend,
            isolation.level.as_str()
        )
    });
    // When it was closed while it was made, it is closed now.
    record.born(sandbox.clone());
    let gone = watch(&core, &record, sandbox.as_ref()).await;
    if record.is_for_one_run() {
        // Ending many processes takes the processors that the answer still needs. It is written by tasks that wait for
        // their turns now; even setting a timer comes after them.
        for _ in 0..TURNS {
            yield_now().await;
        }
        // Nobody's answer is in the way of who ends the server.
        tokio::select! {
            () = sleep(AFTER_ANSWER) => {}
            () = core.ending.cancelled() => {}
        }
    }
    core.witnesses
        .sandbox(EventKind::SandboxClosed, &record, || gone.story());
    tracing::debug!(sandbox = %record.id, "the sandbox {}", gone.story());
    record.drop_sessions();
    if !matches!(timeout(CLOSE, sandbox.close()).await, Ok(Ok(()))) {
        tracing::warn!(sandbox = %record.id, "the sandbox did not close in order and is dropped");
    }
    drop(sandbox);
    guard.over = true;
    core.registry.remove(&record);
    record.ended();
}

/// Makes it when it is its turn, unless nobody wants it any more by then.
async fn in_turn(core: &Core, record: &Record, plan: &Plan) -> Result<Made, Failure> {
    let Some(turns) = &plan.turns else {
        return create_while_wanted(core, record, plan).await;
    };
    let turn = turns.acquire().await;
    if turn.is_err() || record.departed().is_some() {
        return Err(Failure::new(
            Code::Cancelled,
            "not all sandboxes of the call could be made, so this one was not",
            "the first failure of the call says why",
        ));
    }
    let made = create_while_wanted(core, record, plan).await;
    if made.is_err() {
        turns.close();
    }
    made
}

/// One that waits, its interpreter put where the first call finds it.
fn parked(core: &Core, record: &Record, plan: &Plan) -> Option<Made> {
    let ordinary = core.plain_plan(core.config().limits.clone());
    let first = ordinary.backends.first().map(|backend| backend.name());
    let parked = core.pool.take(plan, &ordinary.spec, first)?;
    if let Some(usage) = parked.usage {
        record.remember_usage(usage);
    }
    if let Some((language, session)) = parked.session {
        Slot::of(record, language.as_ref()).put(Held::new(session));
    }
    Some((parked.sandbox, parked.passed))
}

struct Guard<'a> {
    core: &'a Core,
    record: &'a Record,
    over: bool,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.core.registry.remove(self.record);
            self.record.failed(Failure::new(
                Code::Internal,
                "the task that kept the sandbox broke off",
                "call again for a new sandbox; the server's log says more",
            ));
        }
    }
}

/// Makes it; where it may wait for an image that is brought here, only until nobody wants it any more. Without anybody who
/// wants the image that ends, too.
async fn create_while_wanted(core: &Core, record: &Record, plan: &Plan) -> Result<Made, Failure> {
    let Some(image) = plan.spec.image.as_deref() else {
        return create(core, plan).await;
    };
    core.wanted.wish(image, &record.owner);
    let made = tokio::select! {
        biased;
        made = create(core, plan) => made,
        _gone = record.closing() => {
            if core.wanted.unwish(image, &record.owner) {
                for backend in &plan.backends {
                    backend.abandon(image);
                }
            }
            return Err(Failure::new(
                Code::Cancelled,
                "the sandbox was given up before its image was there",
                "call again; the image is brought anew unless others wait for it",
            ));
        }
    };
    // Whoever is told to come again goes on wanting it.
    if plan
        .backends
        .iter()
        .all(|backend| backend.preparing(Some(image)).is_none())
    {
        core.wanted.unwish(image, &record.owner);
    }
    made
}

/// Waits until the sandbox has a reason to end.
async fn watch(core: &Core, record: &Arc<Record>, sandbox: &dyn Sandbox) -> Gone {
    let mut ended = pin!(sandbox.ended());
    let mut told = Told::default();
    loop {
        let expiry = record.deadlines();
        let word = told.tell(&core.crier, record, &expiry);
        let next = expiry
            .lifetime
            .map_or(expiry.idle, |lifetime| lifetime.min(expiry.idle));
        let why = tokio::select! {
            biased;
            gone = record.closing() => return gone,
            ended = &mut ended => GoneWhy::Lost(ended.reason),
            () = core.down.cancelled() => GoneWhy::Shutdown,
            () = at(word) => continue,
            () = sleep_until(next) => match expiry.lifetime {
                Some(lifetime) if lifetime <= Instant::now() => GoneWhy::Lifetime,
                Some(_) | None if expiry.busy => continue,
                Some(_) | None => GoneWhy::Idle(record.birth.idle),
            },
        };
        // A sandbox that somebody entered in this moment stays; the next round looks again.
        core.registry.depart(record, &Gone::now(why));
    }
}

/// Waits for a moment, if there is one.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// A sandbox, and the preferred back ends that could not make it.
pub(crate) type Made = (Arc<dyn Sandbox>, Vec<PassedOver>);

/// Asks the back ends in order; the first that can makes it.
pub(crate) async fn create(core: &Core, plan: &Plan) -> Result<Made, Failure> {
    // A base that cannot be had is no reason to leave it out silently.
    let bases = bases_for(core, plan)?;
    if plan.spec.image.is_none() {
        core.pool.starts_with(folders(&bases));
    }
    let mut spec = plan.spec.clone();
    // A program that makes packages known comes first, and alone: when it is let go of, everything else in the sandbox ends.
    let arranged = |(installer, base): &Ground| base.folder.is_some() && installer.arrange(LAYERS).is_some();
    let opens = plan.opens.as_ref().filter(|_| !bases.iter().any(arranged));
    spec.entered_by = opens.and_then(|language| language.matching_zygote(&folders(&bases)));
    let (sandbox, mut passed) = create_within_limits(core, plan, &spec).await?;
    if plan.backends.len() == core.backends.len() {
        // Nobody named one, so those that never worked were preferred, too.
        let name = sandbox.isolation().backend.as_str();
        passed.splice(
            0..0,
            absent_before(&core.config().absent_backends, &core.backends, name),
        );
    }
    for (installer, base) in &bases {
        if let Some(folder) = &base.folder {
            show(sandbox.as_ref(), installer.as_ref(), folder).await?;
        }
    }
    Ok((sandbox, passed))
}

/// The packages that it starts with: bases are made for the programs of ordinary sandboxes, which those of an image are not.
fn bases_for(core: &Core, plan: &Plan) -> Result<Vec<Ground>, Failure> {
    if plan.spec.image.is_some() {
        return Ok(Vec::new());
    }
    core.bases()
}

/// Closes idle sandboxes of the pool when the machine has no room for a requested one.
async fn create_within_limits(core: &Core, plan: &Plan, spec: &SandboxSpec) -> Result<Made, Failure> {
    loop {
        let made = create_bare(plan, spec).await;
        let is_full = matches!(&made, Err(failure) if failure.code == Code::LimitReached);
        if !is_full || spec.ahead || !core.pool.give_way().await {
            return made;
        }
    }
}

async fn create_bare(plan: &Plan, spec: &SandboxSpec) -> Result<Made, Failure> {
    let mut failed: Vec<(PassedOver, bool)> = Vec::new();
    for backend in &plan.backends {
        let began = Instant::now();
        let mut made = timeout(CREATE, backend.create(spec)).await;
        if matches!(made, Ok(Err(SandboxError::Image { .. })))
            && began.elapsed() < PATIENCE
            && backend.preparing(spec.image.as_deref()).is_some()
        {
            made = timeout(CREATE, backend.create(spec)).await;
        }
        let error = match made {
            Ok(Ok(sandbox)) => return Ok((sandbox, failed.into_iter().map(|(passed, _)| passed).collect())),
            Ok(Err(error)) => error,
            Err(_) => SandboxError::Unavailable {
                backend: backend.name().to_owned(),
                reason: format!("a sandbox was not ready within {} s", CREATE.as_secs()),
                remedy: "try again; `sandcell doctor` on the host says what is slow or missing".to_owned(),
            },
        };
        let cannot = lacks(&error);
        failed.push((PassedOver::new(backend.name(), error.into()), cannot));
    }
    Err(together(failed).unwrap_or_else(no_backend))
}

/// There is nothing to make sandboxes with.
pub(crate) fn no_backend() -> Failure {
    Failure::new(
        Code::BackendUnavailable,
        "no back end is available on this machine",
        "`sandcell doctor` on the host says why and how to mend it",
    )
}
