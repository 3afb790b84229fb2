//! Sandboxes that wait, made ahead with the default limits and an interpreter ready in each, so that a call does not
//! wait for one. Nobody's code has run in them; each is handed out once.
//!
//! How many wait follows demand: a call that found none doubles the number, a quiet minute halves it, and a memory
//! budget bounds it. A burst beyond the pool is made on demand, as if there were none.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use sandcell_sandbox::{Language, Sandbox, SandboxSpec, Session, Usage};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::PoolConfig;
use crate::cells::open;
use crate::core::Core;
use crate::meter::read_usage;
use crate::passed::PassedOver;
use crate::sync::lock;
use crate::warden::{CLOSE, Plan, create};

/// Nothing is made ahead in the first moment, which belongs to the client's handshake.
const SETTLE: Duration = Duration::from_millis(50);
/// How long an interpreter may take to be ready before the sandbox is given up.
const OPEN: Duration = Duration::from_secs(30);
/// How long to wait after a sandbox could not be made.
const PAUSE: Duration = Duration::from_secs(5);
/// With so long a time without a miss fewer sandboxes wait.
const QUIET: Duration = Duration::from_secs(60);
/// What one waiting sandbox with an interpreter is taken to cost.
const EACH: u64 = 12 << 20;

/// A sandbox that waits.
#[derive(Debug)]
pub(crate) struct Parked {
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
    /// How many are made however little is asked for, and at the most.
    least: usize,
    most: usize,
}

#[derive(Debug)]
struct State {
    parked: VecDeque<Parked>,
    want: usize,
    missed: Instant,
    closed: bool,
}

impl Pool {
    pub(crate) fn new(config: &PoolConfig) -> Self {
        let fits = usize::try_from(config.memory.as_bytes() / EACH).unwrap_or(usize::MAX);
        let (least, most) = match config.parked {
            Some(fixed) => (fixed, fixed),
            None => (1.min(fits), fits),
        };
        Self {
            state: Mutex::new(State {
                parked: VecDeque::new(),
                want: least,
                missed: Instant::now(),
                closed: false,
            }),
            wake: Notify::new(),
            least,
            most,
        }
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.state).parked.len()
    }

    /// A waiting sandbox for this plan, if the plan asks for nothing special and one is there.
    pub(crate) fn take(&self, plan: &Plan, ordinary: &SandboxSpec, first: Option<&str>) -> Option<Parked> {
        let named = plan.backends.first().map(|backend| backend.name());
        if self.most == 0 || plan.spec != *ordinary || named != first {
            return None;
        }
        loop {
            let parked = {
                let mut state = lock(&self.state);
                let parked = state.parked.pop_front();
                if parked.is_none() {
                    state.want = (state.want * 2).clamp(self.least, self.most);
                    state.missed = Instant::now();
                }
                parked
            };
            self.wake.notify_one();
            let parked = parked?;
            // One that has ended while it waited is nothing to hand out.
            if parked.sandbox.ended().now_or_never().is_none() {
                return Some(parked);
            }
        }
    }

    /// Whether another one should be made now.
    fn lacks(&self) -> bool {
        let mut state = lock(&self.state);
        if state.missed.elapsed() > QUIET {
            state.missed = Instant::now();
            state.want = (state.want / 2).max(self.least);
        }
        !state.closed && state.parked.len() < state.want
    }

    /// Those that are more than wanted.
    fn surplus(&self) -> Vec<Parked> {
        let mut state = lock(&self.state);
        let keep = state.want.min(state.parked.len());
        state.parked.split_off(keep).into()
    }

    /// Puts one in line; gives it back if the pool has closed meanwhile.
    fn park(&self, parked: Parked) -> Option<Parked> {
        let mut state = lock(&self.state);
        if state.closed {
            return Some(parked);
        }
        state.parked.push_back(parked);
        None
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

/// Makes sandboxes ahead until the engine goes down.
pub(crate) async fn fill(core: Arc<Core>) {
    let filling = async {
        sleep(SETTLE).await;
        loop {
            while core.pool.lacks() {
                match make(&core).await {
                    Ok(parked) => {
                        if let Some(late) = core.pool.park(parked) {
                            end(late).await;
                        }
                    }
                    Err(reason) => {
                        tracing::warn!("no sandbox could be made ahead: {reason}");
                        sleep(PAUSE).await;
                    }
                }
            }
            join_all(core.pool.surplus().into_iter().map(end)).await;
            let _ = timeout(QUIET, core.pool.wake.notified()).await;
        }
    };
    tokio::select! {
        () = core.down.cancelled() => {}
        () = filling => {}
    }
    core.pool.close().await;
}

async fn make(core: &Arc<Core>) -> Result<Parked, String> {
    let plan = core.plain_plan(core.config.limits.clone());
    let (sandbox, passed) = create(core, &plan).await.map_err(|failure| failure.message)?;
    let mut session = None;
    if let Some(language) = core.languages.first() {
        match timeout(OPEN, open(language.as_ref(), &sandbox)).await {
            Ok(Ok(opened)) => session = Some((language.clone(), opened)),
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err(format!("no interpreter was ready within {} s", OPEN.as_secs())),
        }
    }
    let usage = read_usage(sandbox.as_ref()).await;
    Ok(Parked {
        sandbox,
        session,
        passed,
        usage,
    })
}

async fn end(parked: Parked) {
    drop(parked.session);
    if !matches!(timeout(CLOSE, parked.sandbox.close()).await, Ok(Ok(()))) {
        tracing::warn!("a waiting sandbox did not close in order and is dropped");
    }
}
