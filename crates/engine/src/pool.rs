//! Sandboxes that wait, made ahead with the default limits and an interpreter ready in each, so that a call does not
//! wait for one. Nobody's code has run in them; each is handed out once.
//!
//! How many wait follows demand: a call that found none doubles the number, and so does one that took the last right
//! after another call; a quiet minute halves it, and a memory budget bounds it, in which each counts for what it really
//! uses. A burst beyond the pool is made on demand, as if there were none.
//!
//! Their interpreters are children of one that stands in no sandbox, where that can be had. The operator may name modules
//! that it has loaded (`preload`); where it cannot be had, each sandbox loads them for itself.

use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use sandcell_sandbox::{
    Code, Failure, Language, Limits, Sandbox, SandboxError, SandboxSpec, Session, SessionError, Usage,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::PoolConfig;
use crate::cells::open;
use crate::core::Core;
use crate::floor::{GIVE_WAY, processors};
use crate::meter::read_usage;
use crate::packages::folders;
use crate::passed::PassedOver;
use crate::sync::lock;
use crate::warden::{CLOSE, Plan, create};

/// How soon after sandboxes can no longer be made it is known that the server is ending.
const ENDING: Duration = Duration::from_millis(500);
/// Nothing is made ahead in the first moment, which belongs to the client's handshake.
const SETTLE: Duration = Duration::from_millis(50);
/// How long an interpreter may take to be ready before the sandbox is given up.
const OPEN: Duration = Duration::from_secs(30);
/// How long to wait after a sandbox could not be made.
const PAUSE: Duration = Duration::from_secs(5);
/// How long making the next one waits for the call that took one: making takes a processor, and a call needs two.
const AFTER_CALL: Duration = Duration::from_millis(10);
/// Most calls are answered in this time. So nobody is told of their ends, which would take time from them.
const MOST_CALLS: Duration = Duration::from_millis(3);
/// How long it takes until an answer is on its way to the client.
const TELLING: Duration = Duration::from_millis(1);
/// With so long a time without a miss fewer sandboxes wait.
const QUIET: Duration = Duration::from_secs(60);
/// Calls that come so soon after each other may soon be more than those that wait.
const CLOSE_TOGETHER: Duration = Duration::from_millis(100);
/// So soon after a call found none the next ones are made without what only makes their first cells faster: calls that wait would
/// pay for all of it, and save a part.
const HURRY: Duration = Duration::from_millis(20);
/// What one waiting sandbox with an interpreter costs at least, and what it is taken to cost until one was measured.
const EACH: u64 = 12 << 20;
/// The same where the interpreter is a copy of a warmed one.
const EACH_COPY: u64 = 2 << 20;
/// How long a warmed interpreter may take to load its modules.
const WARM: Duration = Duration::from_secs(150);
/// After so many sandboxes in a row that could not load the modules, none tries any more.
const TRIES: u32 = 3;

/// A sandbox that waits.
#[derive(Debug)]
pub(crate) struct Parked {
    /// What it was made with.
    pub(crate) limits: Limits,
    pub(crate) sandbox: Arc<dyn Sandbox>,
    /// An interpreter in it, and its language.
    pub(crate) session: Option<(Arc<dyn Language>, Box<dyn Session>)>,
    /// Back ends that could not make it.
    pub(crate) passed: Vec<PassedOver>,
    /// What it used when it was parked.
    pub(crate) usage: Option<Usage>,
}

/// The sandboxes that wait.
#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<State>,
    wake: Notify,
    /// A call has ended.
    answered: Notify,
    /// How many have.
    answers: AtomicU64,
}

#[derive(Debug)]
struct State {
    parked: VecDeque<Parked>,
    /// How many wait, where the operator says it.
    fixed: Option<usize>,
    /// Memory for those that wait, where demand decides.
    memory: u64,
    want: usize,
    /// When a call found none, or as good as none.
    missed: Instant,
    /// When the last one was taken.
    taken: Option<Instant>,
    /// When a call found none.
    found_none: Option<Instant>,
    closed: bool,
    /// What one costs.
    each: u64,
    /// What one is taken to cost at least.
    each_least: u64,
    modules: Modules,
    /// The folders of packages that sandboxes start with by now.
    attached: Vec<PathBuf>,
    /// What there is, or could not be had, an interpreter for whose copies sessions begin as.
    warmed: Option<Warmth>,
}

/// What such an interpreter has loaded, and the folders of packages that it sees.
type Warmth = (Vec<String>, Vec<PathBuf>);

/// The modules that are loaded ahead.
#[derive(Debug)]
struct Modules {
    wanted: Vec<String>,
    /// Attempts in a row that cost the interpreter.
    failures: u32,
    /// Those that the operator was told of.
    told: HashSet<String>,
}

impl Pool {
    pub(crate) fn new(config: &PoolConfig) -> Self {
        let mut state = State {
            parked: VecDeque::new(),
            fixed: config.parked,
            memory: config.memory.as_bytes(),
            want: 0,
            missed: Instant::now(),
            taken: None,
            found_none: None,
            closed: false,
            each: EACH,
            each_least: EACH,
            modules: Modules {
                wanted: config.preload.clone(),
                failures: 0,
                told: HashSet::new(),
            },
            attached: Vec::new(),
            warmed: None,
        };
        state.want = Self::bounds(&state).0;
        Self {
            state: Mutex::new(state),
            wake: Notify::new(),
            answered: Notify::new(),
            answers: AtomicU64::new(0),
        }
    }

    /// Takes other settings; what waits by the old ones is ended.
    pub(crate) fn change(&self, config: &PoolConfig) {
        let old: Vec<Parked> = {
            let mut state = lock(&self.state);
            state.fixed = config.parked;
            state.memory = config.memory.as_bytes();
            state.each = EACH;
            state.modules = Modules {
                wanted: config.preload.clone(),
                failures: 0,
                told: HashSet::new(),
            };
            let (least, most) = Self::bounds(&state);
            state.want = state.want.clamp(least, most);
            state.parked.drain(..).collect()
        };
        tokio::spawn(join_all(old.into_iter().map(end)));
        self.wake.notify_one();
    }

    /// How many are made however little is asked for, and at the most.
    fn bounds(state: &State) -> (usize, usize) {
        bounds(state.fixed, state.memory, state.each)
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.state).parked.len()
    }

    /// A waiting sandbox for this plan, if the plan asks for nothing special and one is there.
    pub(crate) fn take(&self, plan: &Plan, ordinary: &SandboxSpec, first: Option<&str>) -> Option<Parked> {
        let named = plan.backends.first().map(|backend| backend.name());
        let none_wait = {
            let state = lock(&self.state);
            bounds(state.fixed, state.memory, EACH).1 == 0
        };
        if none_wait || plan.spec != *ordinary || named != first {
            return None;
        }
        loop {
            let parked = {
                let mut state = lock(&self.state);
                // The newest one is still in the processors' caches.
                let parked = state.parked.pop_back();
                let now = Instant::now();
                let soon = state.taken.replace(now).is_some_and(|last| now - last < CLOSE_TOGETHER);
                if parked.is_none() {
                    state.found_none = Some(now);
                }
                if parked.is_none() || (soon && state.parked.is_empty()) {
                    let (least, most) = Self::bounds(&state);
                    state.want = (state.want * 2).max(1).clamp(least, most);
                    state.missed = now;
                }
                parked
            };
            self.wake.notify_one();
            let parked = parked?;
            // One that has ended while it waited is nothing to hand out.
            // Nor is one that was in the making when its limits were changed.
            let lives = parked.sandbox.ended().now_or_never().is_none();
            let waits = parked
                .session
                .as_ref()
                .is_none_or(|(_, session)| session.is_untouched());
            if parked.limits == plan.spec.limits && lives && waits {
                return Some(parked);
            }
            tokio::spawn(end(parked));
        }
    }

    /// A call has ended, so the processors are free for making the next one.
    pub(crate) fn call_ended(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        self.answered.notify_waiters();
    }

    /// Waits until the call that took one is over, or takes long.
    async fn pause(&self) {
        let before = self.answers.load(Ordering::Relaxed);
        sleep(MOST_CALLS).await;
        if self.answers.load(Ordering::Relaxed) == before {
            let over = timeout(AFTER_CALL.saturating_sub(MOST_CALLS), self.answered.notified()).await;
            if over.is_ok() {
                sleep(TELLING).await;
            }
        }
    }

    /// Whether another one should be made now, beside so many that are in the making.
    fn lacks(&self, making: usize) -> bool {
        let mut state = lock(&self.state);
        if state.missed.elapsed() > QUIET {
            state.missed = Instant::now();
            state.want = (state.want / 2).max(Self::bounds(&state).0);
        }
        !state.closed && state.parked.len() + making < state.want
    }

    /// Whether a crowd of calls that have their sandboxes comes first, before what the next ones may want. Where calls find
    /// none, or have come and gone, it does not.
    fn gives_way(&self, crowded: bool) -> bool {
        let state = lock(&self.state);
        let within = |time: Duration, then: Option<Instant>| then.is_some_and(|then| then.elapsed() < time);
        crowded && within(GIVE_WAY, state.taken) && !within(CLOSE_TOGETHER, state.found_none)
    }

    /// Whether calls find none just now.
    fn is_hurried(&self) -> bool {
        lock(&self.state).found_none.is_some_and(|then| then.elapsed() < HURRY)
    }

    /// Those that are more than wanted.
    fn surplus(&self) -> Vec<Parked> {
        let mut state = lock(&self.state);
        let keep = state.want.min(state.parked.len());
        state.parked.split_off(keep).into()
    }

    /// Ends one that waits, since somebody asks for what it holds. False if none waits.
    pub(crate) async fn give_way(&self) -> bool {
        let oldest = lock(&self.state).parked.pop_front();
        match oldest {
            Some(parked) => {
                end(parked).await;
                true
            }
            None => false,
        }
    }

    /// Puts one in line; gives it back if the pool has closed meanwhile.
    fn park(&self, parked: Parked) -> Option<Parked> {
        let mut state = lock(&self.state);
        if state.closed {
            return Some(parked);
        }
        if let Some(usage) = parked.usage {
            Self::weigh(&mut state, usage.memory);
        }
        state.parked.push_back(parked);
        None
    }

    /// Counts those that wait for what one of them uses.
    fn weigh(state: &mut State, memory: u64) {
        state.each = memory.max(state.each_least);
        if state.fixed.is_none() && state.each > state.memory && !state.modules.wanted.is_empty() {
            tracing::warn!(
                "a waiting sandbox with the modules of `preload` uses {} MiB, more than pool.memory_mb = {}: they are \
                 not loaded ahead any more",
                state.each >> 20,
                state.memory >> 20
            );
            state.modules.wanted.clear();
            state.each = state.each_least;
        }
        let (least, most) = Self::bounds(state);
        state.want = state.want.clamp(least, most);
    }

    /// A sandbox starts with these folders of packages.
    pub(crate) fn starts_with(&self, attached: Vec<PathBuf>) {
        let mut state = lock(&self.state);
        if state.attached != attached {
            state.attached = attached;
            drop(state);
            self.wake.notify_one();
        }
    }

    /// What an interpreter should be warmed with that none was yet.
    fn cold(&self) -> Option<Warmth> {
        let mut state = lock(&self.state);
        let wanted = (state.modules.wanted.clone(), state.attached.clone());
        if state.warmed.as_ref() == Some(&wanted) {
            return None;
        }
        state.warmed = Some(wanted.clone());
        Some(wanted)
    }

    /// Another attempt may succeed.
    fn thaw(&self) {
        lock(&self.state).warmed = None;
        self.wake.notify_one();
    }

    /// The modules that the next one loads.
    fn modules(&self) -> Vec<String> {
        lock(&self.state).modules.wanted.clone()
    }

    /// What became of loading them in one interpreter.
    fn loaded(&self, outcome: &Result<Vec<sandcell_sandbox::NotLoaded>, SessionError>) {
        let mut state = lock(&self.state);
        let modules = &mut state.modules;
        match outcome {
            Ok(missing) => {
                modules.failures = 0;
                for module in missing {
                    if modules.wanted.contains(&module.name) && modules.told.insert(module.name.clone()) {
                        tracing::warn!("`preload`: {} could not be loaded: {:?}", module.name, module.why);
                    }
                }
            }
            // The sandbox ended, with the server perhaps: nothing is said about the modules by that.
            Err(SessionError::Sandbox(_)) => {}
            Err(error) => {
                modules.failures += 1;
                tracing::warn!("the modules of `preload` could not be loaded: {error}");
                if modules.failures >= TRIES {
                    tracing::warn!("waiting sandboxes load no modules any more, after {TRIES} failures in a row");
                    modules.wanted.clear();
                }
            }
        }
    }

    /// Ends all that wait; none are made any more.
    pub(crate) async fn close(&self) {
        let parked: Vec<Parked> = {
            let mut state = lock(&self.state);
            state.closed = true;
            state.parked.drain(..).collect()
        };
        self.wake.notify_one();
        join_all(parked.into_iter().map(end)).await;
    }
}

/// How many wait at least and at the most.
fn bounds(fixed: Option<usize>, memory: u64, each: u64) -> (usize, usize) {
    match fixed {
        Some(fixed) => (fixed, fixed),
        None => {
            let fits = usize::try_from(memory / each).unwrap_or(usize::MAX);
            (1.min(fits), fits)
        }
    }
}

/// Has an interpreter load the modules, if any, so that sessions begin as its copies, unless one has. Whatever fails is only
/// slower.
async fn warm(core: &Arc<Core>) {
    let (Some(language), Some(backend)) = (core.languages.first(), core.backends.first()) else {
        return;
    };
    if !core.config().pool.warm {
        return;
    }
    let Some((modules, attached)) = core.pool.cold() else {
        return;
    };
    let why = match timeout(WARM, language.start_zygote(backend, &modules, &attached)).await {
        Ok(Ok(missing)) => {
            // Those are tried again in each sandbox, which may have packages that the interpreter does not see.
            tracing::debug!(missing = missing.len(), "sessions begin as copies of one interpreter");
            lock(&core.pool.state).each_least = EACH_COPY;
            return;
        }
        Ok(Err(SessionError::Sandbox(error @ SandboxError::Unsupported(_)))) => error.to_string(),
        failed => {
            let core = Arc::clone(core);
            tokio::spawn(async move {
                tokio::select! {
                    () = core.down.cancelled() => {}
                    () = sleep(QUIET) => core.pool.thaw(),
                }
            });
            match failed {
                Ok(Err(error)) => error.to_string(),
                _ => format!("it was not ready in {} s", WARM.as_secs()),
            }
        }
    };
    if modules.is_empty() {
        tracing::debug!("sessions do not begin as copies of one interpreter: {why}");
    } else {
        tracing::info!("the modules of `preload` are loaded in each sandbox for itself: {why}");
    }
}

/// Makes sandboxes ahead until the engine goes down.
pub(crate) async fn fill(core: Arc<Core>) {
    let makers = processors();
    let filling = async {
        sleep(SETTLE).await;
        // A base that cannot be had now may be there when the first sandbox is made.
        if let Ok(bases) = core.bases() {
            core.pool.starts_with(folders(&bases));
        }
        let mut making = JoinSet::new();
        loop {
            warm(&core).await;
            join_all(core.pool.surplus().into_iter().map(end)).await;
            let gives_way = core.pool.gives_way(core.floor.is_crowded());
            while !gives_way && making.len() < makers && core.pool.lacks(making.len()) {
                making.spawn(make_one(core.clone()));
            }
            tokio::select! {
                () = sleep(AFTER_CALL), if gives_way => {}
                Some(made) = making.join_next() => {
                    let failure = match made {
                        Ok(Ok(())) => continue,
                        Ok(Err(failure)) => failure,
                        Err(broken) => broken_off(broken.to_string()),
                    };
                    // A server that is ending ends those that it makes, too, and has no need to say so.
                    sleep(ENDING).await;
                    // That the machine is full was said at the start, and concerns those who ask for a sandbox.
                    match failure.code {
                        Code::LimitReached => tracing::debug!("no sandbox was made ahead: {}", failure.message),
                        _ => tracing::warn!("no sandbox could be made ahead: {}", failure.message),
                    }
                    sleep(PAUSE).await;
                }
                woken = timeout(QUIET, core.pool.wake.notified()) => {
                    // Under load there is no pause to wait for.
                    if woken.is_ok() && making.is_empty() {
                        core.pool.pause().await;
                    }
                }
            }
        }
    };
    tokio::select! {
        () = core.down.cancelled() => {}
        () = filling => {}
    }
    core.pool.close().await;
}

/// Makes one and puts it in line.
async fn make_one(core: Arc<Core>) -> Result<(), Failure> {
    let parked = make(&core).await?;
    if let Some(late) = core.pool.park(parked) {
        end(late).await;
    }
    Ok(())
}

async fn make(core: &Arc<Core>) -> Result<Parked, Failure> {
    let limits = core.config().limits.clone();
    let mut plan = core.plain_plan(limits.clone());
    plan.spec.ahead = true;
    plan.opens = core.languages.first().cloned();
    let (sandbox, passed) = create(core, &plan).await?;
    let mut session = None;
    if let Some(language) = core.languages.first() {
        let mut opened = match timeout(OPEN, open(language.as_ref(), &sandbox)).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => return Err(broken_off(error.to_string())),
            Err(_) => {
                return Err(broken_off(format!(
                    "no interpreter was ready within {} s",
                    OPEN.as_secs()
                )));
            }
        };
        let modules = core.pool.modules();
        // With none this is a rehearsal.
        if !(modules.is_empty() && core.pool.is_hurried()) {
            let outcome = opened.preload(&modules).await;
            if !modules.is_empty() {
                core.pool.loaded(&outcome);
            }
            outcome.map_err(|error| broken_off(error.to_string()))?;
        }
        session = Some((language.clone(), opened));
    }
    let usage = read_usage(sandbox.as_ref()).await;
    sandbox.raise_priority();
    Ok(Parked {
        limits,
        sandbox,
        session,
        passed,
        usage,
    })
}

/// A sandbox that was made ahead and is not of use.
fn broken_off(message: String) -> Failure {
    Failure::new(Code::Internal, message, "another one is tried")
}

async fn end(parked: Parked) {
    drop(parked.session);
    if !matches!(timeout(CLOSE, parked.sandbox.close()).await, Ok(Ok(()))) {
        tracing::warn!("a waiting sandbox did not close in order and is dropped");
    }
}
