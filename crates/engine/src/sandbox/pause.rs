//! Pauses: the processes of a paused sandbox are stopped, and it does not expire. The next call that needs the sandbox
//! resumes it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandcell_sandbox::{Code, Failure, Sandbox, SandboxError};
use tokio::sync::{Notify, OwnedRwLockReadGuard, RwLock};
use tokio::time::{Instant, timeout};

use crate::Principal;
use crate::api::sync::lock;
use crate::sandbox::files::{FILE_CALL_TIMEOUT, too_slow};
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::state::Record;
use crate::sandbox::tools::{ApprovalClock, ToolUse};

/// The minimum time to live of a sandbox that a call resumes.
const MIN_LIFETIME: Duration = Duration::from_secs(300);
/// The interval in which the processor time of a paused sandbox is read, and the most that it may grow meanwhile.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
const MAX_CPU_PAUSED_US: u64 = 100_000;
/// The number of readings in a row that may fail.
const MAX_FAILED_CHECKS: u32 = 3;
/// The minimum time by which the deadline of code is postponed while its sandbox is paused.
const MIN_POSTPONEMENT: Duration = Duration::from_secs(1);

/// The pauses of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    state: Mutex<State>,
    /// Locked for writing while the sandbox is paused or resumed. Locked for reading while an interpreter is asked for its
    /// variables, since a stopped interpreter does not answer.
    changing: Arc<RwLock<()>>,
    /// Tells the sandbox's task that a pause has begun.
    begun: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The beginning of the pause.
    since: Option<Instant>,
    /// The duration of earlier pauses.
    earlier: Duration,
    /// The rest of the lifetime at the beginning of the pause.
    left: Option<Duration>,
    /// The time to live after the pause, if a caller has set it.
    wanted: Option<Duration>,
}

impl Sandboxes {
    /// Pauses a sandbox. Returns false if it is paused already.
    pub(crate) async fn pause(&self, principal: &Principal, id: &str) -> Result<bool, Failure> {
        let target = self.registry.find(principal, id)?;
        if target.record.is_paused() {
            return Ok(false);
        }
        target.record.ready().await?;
        target.record.pause().await
    }

    /// Resumes a sandbox, which then ends after `left`. Returns false if it is not paused.
    pub(crate) async fn resume(
        &self,
        principal: &Principal,
        id: &str,
        left: Option<Duration>,
    ) -> Result<bool, Failure> {
        crate::admission::policy::lifetime(left)?;
        self.registry.find(principal, id)?.record.resume(left).await
    }

    pub(crate) fn is_paused(&self, principal: &Principal, id: &str) -> bool {
        let record = self.registry.record(principal, id);
        record.is_some_and(|record| record.is_paused())
    }
}

impl Record {
    pub(crate) fn is_paused(&self) -> bool {
        lock(&self.pauses.state).since.is_some()
    }

    /// Returns a guard that delays pauses. None if the sandbox is paused, or is about to be paused or resumed.
    pub(crate) fn running(&self) -> Option<OwnedRwLockReadGuard<()>> {
        let guard = Arc::clone(&self.pauses.changing).try_read_owned().ok()?;
        (!self.is_paused()).then_some(guard)
    }

    /// Sets the time to live after the pause, if the sandbox is paused.
    pub(crate) fn set_time_left_after_pause(&self, left: Duration) {
        let mut state = lock(&self.pauses.state);
        if state.since.is_some() {
            state.wanted = Some(left);
        }
    }

    /// Pauses the sandbox. Returns false if it is paused already, or not ready.
    pub(crate) async fn pause(self: &Arc<Self>) -> Result<bool, Failure> {
        // A client that goes away must not interrupt the change halfway.
        let record = Arc::clone(self);
        finished(tokio::spawn(async move { record.pause_now().await })).await
    }

    /// Resumes the sandbox if it is paused. It then ends after `left` (none: the rest of its lifetime, and five minutes at
    /// least). Returns false if it is not paused. Waits for a pause that has begun.
    pub(crate) async fn resume(self: &Arc<Self>, left: Option<Duration>) -> Result<bool, Failure> {
        {
            let _changing = self.pauses.changing.read().await;
            if !self.is_paused() {
                return Ok(false);
            }
        }
        let record = Arc::clone(self);
        finished(tokio::spawn(async move { record.resume_now(left).await })).await
    }

    async fn pause_now(&self) -> Result<bool, Failure> {
        let _changing = self.pauses.changing.write().await;
        let Some(sandbox) = self.live().filter(|_| !self.is_paused()) else {
            return Ok(false);
        };
        if let Err(failure) = in_time(sandbox.pause()).await {
            // The request may have arrived although its answer did not.
            let _best_effort = in_time(sandbox.resume()).await;
            return Err(failure);
        }
        let left = self.time_left();
        {
            let mut state = lock(&self.pauses.state);
            state.since = Some(Instant::now());
            (state.left, state.wanted) = (left, None);
        }
        self.pauses.begun.notify_one();
        self.expiry_has_changed();
        Ok(true)
    }

    async fn resume_now(&self, wanted: Option<Duration>) -> Result<bool, Failure> {
        let _changing = self.pauses.changing.write().await;
        let Some(sandbox) = self.live().filter(|_| self.is_paused()) else {
            return Ok(false);
        };
        in_time(sandbox.resume()).await?;
        let left = {
            let mut state = lock(&self.pauses.state);
            let since = state.since.take();
            state.earlier += since.map_or(Duration::ZERO, |since| since.elapsed());
            let left = state.left.take().map(|left| left.max(MIN_LIFETIME));
            wanted.or(state.wanted.take()).or(left)
        };
        if let Some(left) = left {
            self.set_time_left(left);
        }
        self.expiry_has_changed();
        Ok(true)
    }

    /// Returns the time for which the sandbox has been paused.
    fn time_paused(&self) -> Duration {
        let state = lock(&self.pauses.state);
        state.earlier + state.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Waits until code has run in the sandbox while it was paused, or until that cannot be checked any more. A process can
    /// let itself continue, by a timer that sends SIGCONT.
    pub(crate) async fn ran_while_paused(&self, sandbox: &dyn Sandbox) {
        loop {
            let since = lock(&self.pauses.state).since;
            match since {
                Some(since) if self.ran_since(since, sandbox).await => return,
                Some(_) => {}
                None => self.pauses.begun.notified().await,
            }
        }
    }

    /// Watches one pause. Returns false when it is over.
    async fn ran_since(&self, since: Instant, sandbox: &dyn Sandbox) -> bool {
        let (mut before, mut failed) = (None, 0);
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let usage = timeout(CHECK_INTERVAL, sandbox.usage()).await;
            if lock(&self.pauses.state).since != Some(since) {
                return false;
            }
            let Ok(Ok(usage)) = usage else {
                failed += 1;
                if failed == MAX_FAILED_CHECKS {
                    return true;
                }
                continue;
            };
            let used = usage.cpu_us.saturating_sub(before.unwrap_or(usage.cpu_us));
            if used > MAX_CPU_PAUSED_US {
                return true;
            }
            (before, failed) = (Some(usage.cpu_us), 0);
        }
    }
}

async fn finished(change: tokio::task::JoinHandle<Result<bool, Failure>>) -> Result<bool, Failure> {
    change.await.unwrap_or_else(|_| {
        Err(Failure::new(
            Code::Internal,
            "the sandbox could not be paused or resumed",
            "try again; the log of the server has the reason",
        ))
    })
}

async fn in_time(change: impl Future<Output = Result<(), SandboxError>>) -> Result<(), Failure> {
    match timeout(FILE_CALL_TIMEOUT, change).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(too_slow("the back end did not pause or resume the sandbox")),
    }
}

/// Measures the time that running code loses because its sandbox is paused, or because a person is asked about a call of
/// a tool.
pub(crate) struct PauseClock<'a> {
    record: &'a Record,
    seen: Duration,
    approvals: ApprovalClock,
}

impl<'a> PauseClock<'a> {
    pub(crate) fn new(record: &'a Record, tools: Option<Arc<ToolUse>>) -> Self {
        Self {
            seen: record.time_paused(),
            record,
            approvals: ApprovalClock::new(tools),
        }
    }

    /// Returns the time by which a deadline that has passed is to be postponed. None: the code has lost no time since the
    /// last call.
    pub(crate) fn postponement(&mut self) -> Option<Duration> {
        match (self.pause(), self.approvals.postponement()) {
            (None, None) => None,
            (paused, asked) => Some(paused.unwrap_or_default().max(asked.unwrap_or_default())),
        }
    }

    fn pause(&mut self) -> Option<Duration> {
        let now = self.record.time_paused();
        let lost = now.saturating_sub(std::mem::replace(&mut self.seen, now));
        if self.record.is_paused() {
            return Some(lost.max(MIN_POSTPONEMENT));
        }
        (!lost.is_zero()).then_some(lost)
    }
}
