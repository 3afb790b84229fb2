//! The pool: idle sandboxes with the default limits and a started interpreter in each, so that a call does not wait for
//! a new one. No caller's code has run in them. Each one is handed out once.
//!
//! The number of idle sandboxes follows demand. A call that finds the pool empty doubles it, and so does a call that
//! takes the last sandbox right after another call. A minute without such a call halves it. A memory budget bounds it;
//! each sandbox counts with its measured usage. A burst beyond the pool makes sandboxes on demand, as if there were no
//! pool.
//!
//! Their interpreters are forks of a zygote outside all sandboxes, where the back end supports that. The operator can
//! name modules for it to load (`preload`). Without a zygote, each sandbox loads them itself.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use sandcell_sandbox::{
    Code, Failure, Language, Limits, Sandbox, SandboxError, SandboxSpec, Session, SessionError, TOOLS_VARIABLE, Usage,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::PoolConfig;
use crate::SkippedBackend;
use crate::admission::scheduler::{CROWD_PRIORITY_DURATION, processors};
use crate::api::sync::lock;
use crate::sandbox::lifecycle::{CLOSE_TIMEOUT, Plan, create};
use crate::sandbox::packages::folders;
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::session::open_session;
use crate::sandbox::usage::read_usage;

/// The pause before a failed creation is reported. During a shutdown creations fail before the server's end is known.
const SHUTDOWN_NOTICE_PAUSE: Duration = Duration::from_millis(500);
/// The pool makes nothing in this first moment, which belongs to the client's handshake and its first call.
const STARTUP_PAUSE: Duration = Duration::from_millis(100);
/// The maximum time to start an interpreter. After that the pool gives up the sandbox.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause after a sandbox could not be made.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The maximum wait for the call that took a sandbox, before the next one is made: making takes a processor, and a call
/// needs two.
const CALL_WAIT_TIMEOUT: Duration = Duration::from_millis(10);
/// Most calls are answered within this time, so the pool waits for it without notifications, which would slow the
/// calls.
const USUAL_CALL_DURATION: Duration = Duration::from_millis(3);
/// The time until an answer is on its way to the client.
const ANSWER_DURATION: Duration = Duration::from_millis(1);
/// Shrink the pool after this long without a miss.
const SHRINK_INTERVAL: Duration = Duration::from_secs(60);
/// Calls with gaps shorter than this may soon outnumber the idle sandboxes.
const BURST_INTERVAL: Duration = Duration::from_millis(100);
/// For this long after a miss, new sandboxes skip work that only makes their first cells faster. Waiting calls would
/// pay for all of this work and save only a part.
const MISS_HURRY_DURATION: Duration = Duration::from_millis(20);
/// The minimum cost of an idle sandbox with an interpreter, in bytes, and its assumed cost until one was measured.
const MIN_SANDBOX_BYTES: u64 = 12 << 20;
/// The same for an interpreter that is a fork of the zygote.
const MIN_FORK_BYTES: u64 = 2 << 20;
/// The maximum time for the zygote to load its modules.
const ZYGOTE_TIMEOUT: Duration = Duration::from_secs(150);
/// The number of consecutive failures to load the modules after which the pool stops trying.
const MAX_PRELOAD_FAILURES: u32 = 3;

/// An idle sandbox.
#[derive(Debug)]
pub(crate) struct IdleSandbox {
    /// The limits that it was made with.
    pub(crate) limits: Limits,
    pub(crate) sandbox: Arc<dyn Sandbox>,
    /// The started interpreter and its language.
    pub(crate) session: Option<(Arc<dyn Language>, Box<dyn Session>)>,
    /// Back ends that could not make it.
    pub(crate) skipped: Vec<SkippedBackend>,
    /// Its usage when it entered the pool.
    pub(crate) usage: Option<Usage>,
}

/// The idle sandboxes.
#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<State>,
    wake: Notify,
    /// Signals that a call has ended.
    answered: Notify,
    /// The number of calls that have ended.
    answers: AtomicU64,
}

#[derive(Debug)]
struct State {
    idle: VecDeque<IdleSandbox>,
    /// The number of idle sandboxes, where the operator fixed it.
    fixed: Option<usize>,
    /// The memory for idle sandboxes, where demand decides.
    memory: u64,
    target: usize,
    /// The time of the last call that found the pool empty, or took the last sandbox of a quick series.
    last_miss: Instant,
    /// The time when the last sandbox was taken.
    last_taken: Option<Instant>,
    /// The time of the last call that found the pool empty.
    last_empty: Option<Instant>,
    closed: bool,
    /// The cost of one sandbox, in bytes.
    sandbox_bytes: u64,
    /// The minimum assumed cost of one sandbox, in bytes.
    min_sandbox_bytes: u64,
    modules: Modules,
    /// The package folders that sandboxes currently start with.
    attached: Vec<PathBuf>,
    /// The contents of the current zygote, or of one that failed to start.
    zygote_contents: Option<ZygoteContents>,
}

/// A zygote's contents: its loaded modules, and the package folders that it sees.
type ZygoteContents = (Vec<String>, Vec<PathBuf>);

/// The modules to preload.
#[derive(Debug)]
struct Modules {
    wanted: Vec<String>,
    /// Consecutive failures that cost the interpreter.
    failures: u32,
    /// Modules whose failure is already in the log.
    reported: HashSet<String>,
}

impl Pool {
    pub(crate) fn new(config: &PoolConfig) -> Self {
        let mut state = State {
            idle: VecDeque::new(),
            fixed: config.parked,
            memory: config.memory.as_bytes(),
            target: 0,
            last_miss: Instant::now(),
            last_taken: None,
            last_empty: None,
            closed: false,
            sandbox_bytes: MIN_SANDBOX_BYTES,
            min_sandbox_bytes: MIN_SANDBOX_BYTES,
            modules: Modules {
                wanted: config.preload.clone(),
                failures: 0,
                reported: HashSet::new(),
            },
            attached: Vec::new(),
            zygote_contents: None,
        };
        state.target = Self::bounds(&state).0;
        Self {
            state: Mutex::new(state),
            wake: Notify::new(),
            answered: Notify::new(),
            answers: AtomicU64::new(0),
        }
    }

    /// Replaces the settings. Ends idle sandboxes that were made with the old ones.
    pub(crate) fn change(&self, config: &PoolConfig) {
        let old: Vec<IdleSandbox> = {
            let mut state = lock(&self.state);
            state.fixed = config.parked;
            state.memory = config.memory.as_bytes();
            state.sandbox_bytes = MIN_SANDBOX_BYTES;
            state.modules = Modules {
                wanted: config.preload.clone(),
                failures: 0,
                reported: HashSet::new(),
            };
            let (min, max) = Self::bounds(&state);
            state.target = state.target.clamp(min, max);
            state.idle.drain(..).collect()
        };
        tokio::spawn(join_all(old.into_iter().map(end)));
        self.wake.notify_one();
    }

    /// Returns the minimum and maximum number of idle sandboxes.
    fn bounds(state: &State) -> (usize, usize) {
        bounds(state.fixed, state.memory, state.sandbox_bytes)
    }

    /// Returns the number of idle sandboxes.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.state).idle.len()
    }

    /// Takes an idle sandbox for this plan, if there is one and the plan has no special requirements except environment
    /// variables. Returns the sandbox, and the variables that it does not have yet.
    pub(crate) fn take(
        &self,
        plan: &Plan,
        ordinary: &SandboxSpec,
        first: Option<&str>,
    ) -> Option<(IdleSandbox, BTreeMap<String, String>)> {
        let named = plan.backends.first().map(|backend| backend.name());
        let none_wait = {
            let state = lock(&self.state);
            bounds(state.fixed, state.memory, MIN_SANDBOX_BYTES).1 == 0
        };
        if none_wait || named != first {
            return None;
        }
        let added = added_env(&plan.spec, ordinary)?;
        loop {
            let idle = {
                let mut state = lock(&self.state);
                // The newest one is still in the processors' caches.
                let idle = state.idle.pop_back();
                let now = Instant::now();
                let soon = state
                    .last_taken
                    .replace(now)
                    .is_some_and(|last| now - last < BURST_INTERVAL);
                if idle.is_none() {
                    state.last_empty = Some(now);
                }
                if idle.is_none() || (soon && state.idle.is_empty()) {
                    let (min, max) = Self::bounds(&state);
                    state.target = (state.target * 2).max(1).clamp(min, max);
                    state.last_miss = now;
                }
                idle
            };
            self.wake.notify_one();
            let idle = idle?;
            // Skip a sandbox that has ended while idle, and one whose limits were changed during its creation.
            let lives = idle.sandbox.ended().now_or_never().is_none();
            let waits = idle.session.as_ref().is_none_or(|(_, session)| session.is_untouched());
            if idle.limits == plan.spec.limits && lives && waits {
                return Some((idle, added));
            }
            tokio::spawn(end(idle));
        }
    }

    /// Puts back a sandbox that was taken and has not changed.
    pub(crate) fn put_back(&self, idle: IdleSandbox) {
        if let Some(late) = self.add(idle) {
            tokio::spawn(end(late));
        }
    }

    /// Signals that a call has ended: the processors are free to make the next sandbox.
    pub(crate) fn call_ended(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        self.answered.notify_waiters();
    }

    /// Waits until the call that took a sandbox has ended, or `CALL_WAIT_TIMEOUT` has passed.
    async fn pause(&self) {
        let before = self.answers.load(Ordering::Relaxed);
        sleep(USUAL_CALL_DURATION).await;
        if self.answers.load(Ordering::Relaxed) == before {
            let over = timeout(
                CALL_WAIT_TIMEOUT.saturating_sub(USUAL_CALL_DURATION),
                self.answered.notified(),
            )
            .await;
            if over.is_ok() {
                sleep(ANSWER_DURATION).await;
            }
        }
    }

    /// True if another sandbox should be made now, in addition to the `making` ones.
    fn needs_more(&self, making: usize) -> bool {
        let mut state = lock(&self.state);
        if state.last_miss.elapsed() > SHRINK_INTERVAL {
            state.last_miss = Instant::now();
            state.target = (state.target / 2).max(Self::bounds(&state).0);
        }
        !state.closed && state.idle.len() + making < state.target
    }

    /// True if a crowd of running calls has priority over new idle sandboxes. It has none while calls find the pool
    /// empty, or when no call has taken a sandbox recently.
    fn yields_to_crowd(&self, crowded: bool) -> bool {
        let state = lock(&self.state);
        let within = |time: Duration, then: Option<Instant>| then.is_some_and(|then| then.elapsed() < time);
        crowded && within(CROWD_PRIORITY_DURATION, state.last_taken) && !within(BURST_INTERVAL, state.last_empty)
    }

    /// True if calls found the pool empty just now.
    fn is_hurried(&self) -> bool {
        lock(&self.state)
            .last_empty
            .is_some_and(|then| then.elapsed() < MISS_HURRY_DURATION)
    }

    /// Takes the sandboxes beyond the wanted number.
    fn surplus(&self) -> Vec<IdleSandbox> {
        let mut state = lock(&self.state);
        let keep = state.target.min(state.idle.len());
        state.idle.split_off(keep).into()
    }

    /// Ends one idle sandbox to free resources for a caller. Returns false if none is idle.
    pub(crate) async fn evict_one(&self) -> bool {
        let oldest = lock(&self.state).idle.pop_front();
        match oldest {
            Some(idle) => {
                end(idle).await;
                true
            }
            None => false,
        }
    }

    /// Adds a sandbox. Returns it if the pool has closed meanwhile.
    fn add(&self, idle: IdleSandbox) -> Option<IdleSandbox> {
        let mut state = lock(&self.state);
        if state.closed {
            return Some(idle);
        }
        if let Some(usage) = idle.usage {
            Self::update_cost(&mut state, usage.memory);
        }
        state.idle.push_back(idle);
        None
    }

    /// Updates the cost of one sandbox from a measurement.
    fn update_cost(state: &mut State, memory: u64) {
        state.sandbox_bytes = memory.max(state.min_sandbox_bytes);
        if state.fixed.is_none() && state.sandbox_bytes > state.memory && !state.modules.wanted.is_empty() {
            tracing::warn!(
                "an idle sandbox with the modules of `preload` uses {} MiB, more than pool.memory_mb = {}: the pool \
                 no longer preloads them",
                state.sandbox_bytes >> 20,
                state.memory >> 20
            );
            state.modules.wanted.clear();
            state.sandbox_bytes = state.min_sandbox_bytes;
        }
        let (min, max) = Self::bounds(state);
        state.target = state.target.clamp(min, max);
    }

    /// Notes the package folders that sandboxes start with.
    pub(crate) fn set_attached(&self, attached: Vec<PathBuf>) {
        let mut state = lock(&self.state);
        if state.attached != attached {
            state.attached = attached;
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Returns the contents for a new zygote, if the current one differs.
    fn next_zygote(&self) -> Option<ZygoteContents> {
        let mut state = lock(&self.state);
        let wanted = (state.modules.wanted.clone(), state.attached.clone());
        if state.zygote_contents.as_ref() == Some(&wanted) {
            return None;
        }
        state.zygote_contents = Some(wanted.clone());
        Some(wanted)
    }

    /// Permits another attempt to start the zygote.
    fn retry_zygote(&self) {
        lock(&self.state).zygote_contents = None;
        self.wake.notify_one();
    }

    /// Returns the modules that the next sandbox loads.
    fn modules(&self) -> Vec<String> {
        lock(&self.state).modules.wanted.clone()
    }

    /// Records the outcome of loading the modules in one interpreter.
    fn loaded(&self, outcome: &Result<Vec<sandcell_sandbox::NotLoaded>, SessionError>) {
        let mut state = lock(&self.state);
        let modules = &mut state.modules;
        match outcome {
            Ok(missing) => {
                modules.failures = 0;
                for module in missing {
                    if modules.wanted.contains(&module.name) && modules.reported.insert(module.name.clone()) {
                        tracing::warn!("`preload`: {} could not be loaded: {:?}", module.name, module.why);
                    }
                }
            }
            // The sandbox ended, perhaps with the server. That is no evidence about the modules.
            Err(SessionError::Sandbox(_)) => {}
            Err(error) => {
                modules.failures += 1;
                tracing::warn!("the modules of `preload` could not be loaded: {error}");
                if modules.failures >= MAX_PRELOAD_FAILURES {
                    tracing::warn!(
                        "idle sandboxes no longer preload modules, after {MAX_PRELOAD_FAILURES} failures in a row"
                    );
                    modules.wanted.clear();
                }
            }
        }
    }

    /// Ends all idle sandboxes. The pool makes no more.
    pub(crate) async fn close(&self) {
        let idle: Vec<IdleSandbox> = {
            let mut state = lock(&self.state);
            state.closed = true;
            state.idle.drain(..).collect()
        };
        self.wake.notify_one();
        join_all(idle.into_iter().map(end)).await;
    }
}

/// Returns the environment variables by which a sandbox differs from an ordinary one. None if it differs by more. The
/// hosts that it reaches are variables and a port, which is opened when it has its caller.
fn added_env(wanted: &SandboxSpec, ordinary: &SandboxSpec) -> Option<BTreeMap<String, String>> {
    let SandboxSpec {
        limits,
        network: _,
        env: _,
        image,
        caller,
        ahead,
        entered_by,
    } = wanted;
    let equal = (limits, image, caller) == (&ordinary.limits, &ordinary.image, &ordinary.caller)
        && (ahead, entered_by) == (&ordinary.ahead, &ordinary.entered_by);
    let keeps_all = ordinary
        .env
        .iter()
        .all(|(name, value)| wanted.env.get(name) == Some(value));
    if !equal || !keeps_all {
        return None;
    }
    let added = wanted.env.iter().filter(|(name, _)| !ordinary.env.contains_key(*name));
    let added: BTreeMap<_, _> = added.map(|(name, value)| (name.clone(), value.clone())).collect();
    // This one decides which programs a sandbox has.
    (!added.contains_key(TOOLS_VARIABLE)).then_some(added)
}

/// Returns the minimum and maximum number of idle sandboxes.
fn bounds(fixed: Option<usize>, memory: u64, sandbox_bytes: u64) -> (usize, usize) {
    match fixed {
        Some(fixed) => (fixed, fixed),
        None => {
            let fits = usize::try_from(memory / sandbox_bytes).unwrap_or(usize::MAX);
            (1.min(fits), fits)
        }
    }
}

/// Starts the zygote with the modules, if the current one differs, so that sessions begin as its forks. A failure only
/// makes sessions slower.
async fn start_zygote(sandboxes: &Arc<Sandboxes>) {
    let (Some(language), Some(backend)) = (sandboxes.languages.first(), sandboxes.backends.first()) else {
        return;
    };
    if !sandboxes.config().pool.warm {
        return;
    }
    let Some((modules, attached)) = sandboxes.pool.next_zygote() else {
        return;
    };
    let why = match timeout(ZYGOTE_TIMEOUT, language.start_zygote(backend, &modules, &attached)).await {
        Ok(Ok(missing)) => {
            // Each sandbox tries the missing ones again: it may have packages that the zygote does not see.
            tracing::debug!(missing = missing.len(), "sessions begin as forks of the zygote");
            lock(&sandboxes.pool.state).min_sandbox_bytes = MIN_FORK_BYTES;
            return;
        }
        Ok(Err(SessionError::Sandbox(error @ SandboxError::Unsupported(_)))) => error.to_string(),
        failed => {
            let sandboxes = Arc::clone(sandboxes);
            tokio::spawn(async move {
                tokio::select! {
                    () = sandboxes.down.cancelled() => {}
                    () = sleep(SHRINK_INTERVAL) => sandboxes.pool.retry_zygote(),
                }
            });
            match failed {
                Ok(Err(error)) => error.to_string(),
                _ => format!("it was not ready in {} s", ZYGOTE_TIMEOUT.as_secs()),
            }
        }
    };
    if modules.is_empty() {
        tracing::debug!("sessions do not begin as forks of a zygote: {why}");
    } else {
        tracing::info!("the modules of `preload` are loaded separately in each sandbox: {why}");
    }
}

/// Makes idle sandboxes until the engine shuts down.
pub(crate) async fn run(sandboxes: Arc<Sandboxes>) {
    let makers = processors();
    let filling = async {
        sleep(STARTUP_PAUSE).await;
        // A base that is missing now may be there when the first sandbox is made.
        if let Ok(bases) = sandboxes.bases() {
            sandboxes.pool.set_attached(folders(&bases));
        }
        let mut making = JoinSet::new();
        loop {
            start_zygote(&sandboxes).await;
            join_all(sandboxes.pool.surplus().into_iter().map(end)).await;
            let yields = sandboxes.pool.yields_to_crowd(sandboxes.scheduler.is_crowded());
            while !yields && making.len() < makers && sandboxes.pool.needs_more(making.len()) {
                making.spawn(make_one(sandboxes.clone()));
            }
            tokio::select! {
                () = sleep(CALL_WAIT_TIMEOUT), if yields => {}
                Some(made) = making.join_next() => {
                    let failure = match made {
                        Ok(Ok(())) => continue,
                        Ok(Err(failure)) => failure,
                        Err(broken) => pool_failure(broken.to_string()),
                    };
                    // A server that shuts down ends unfinished sandboxes, too. That is not worth a warning.
                    sleep(SHUTDOWN_NOTICE_PAUSE).await;
                    // The server reported a full machine at its start. It concerns callers that ask for a sandbox.
                    match failure.code {
                        Code::LimitReached => tracing::debug!("the pool made no idle sandbox: {}", failure.message),
                        _ => tracing::warn!("the pool could not make an idle sandbox: {}", failure.message),
                    }
                    sleep(RETRY_INTERVAL).await;
                }
                woken = timeout(SHRINK_INTERVAL, sandboxes.pool.wake.notified()) => {
                    // Under load there is no pause to wait for.
                    if woken.is_ok() && making.is_empty() {
                        sandboxes.pool.pause().await;
                    }
                }
            }
        }
    };
    tokio::select! {
        () = sandboxes.down.cancelled() => {}
        () = filling => {}
    }
    sandboxes.pool.close().await;
}

/// Makes one sandbox and adds it to the pool.
async fn make_one(sandboxes: Arc<Sandboxes>) -> Result<(), Failure> {
    let idle = make(&sandboxes).await?;
    if let Some(late) = sandboxes.pool.add(idle) {
        end(late).await;
    }
    Ok(())
}

async fn make(sandboxes: &Arc<Sandboxes>) -> Result<IdleSandbox, Failure> {
    let limits = sandboxes.config().limits.clone();
    let mut plan = sandboxes.plain_plan(limits.clone());
    plan.spec.ahead = true;
    plan.opens = sandboxes.languages.first().cloned();
    let (sandbox, skipped) = create(sandboxes, &plan).await?;
    let mut session = None;
    if let Some(language) = sandboxes.languages.first() {
        let mut opened = match timeout(OPEN_TIMEOUT, open_session(language.as_ref(), &sandbox)).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => return Err(pool_failure(error.to_string())),
            Err(_) => {
                return Err(pool_failure(format!(
                    "no interpreter was ready within {} s",
                    OPEN_TIMEOUT.as_secs()
                )));
            }
        };
        let modules = sandboxes.pool.modules();
        // Without modules this runs the warm-up cell.
        if !(modules.is_empty() && sandboxes.pool.is_hurried()) {
            let outcome = opened.preload(&modules).await;
            if !modules.is_empty() {
                sandboxes.pool.loaded(&outcome);
            }
            outcome.map_err(|error| pool_failure(error.to_string()))?;
        }
        session = Some((language.clone(), opened));
    }
    let usage = read_usage(sandbox.as_ref()).await;
    if let Some(priority) = sandbox.priority() {
        priority.raise();
    }
    Ok(IdleSandbox {
        limits,
        sandbox,
        session,
        skipped,
        usage,
    })
}

/// The failure of a sandbox for the pool.
fn pool_failure(message: String) -> Failure {
    Failure::new(Code::Internal, message, "another one is tried")
}

pub(crate) async fn end(idle: IdleSandbox) {
    drop(idle.session);
    if !matches!(timeout(CLOSE_TIMEOUT, idle.sandbox.close()).await, Ok(Ok(()))) {
        tracing::warn!("an idle sandbox did not close in order and is dropped");
    }
}
