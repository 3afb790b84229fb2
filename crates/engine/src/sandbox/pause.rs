//! Pauses: the processes of a paused sandbox are stopped, and it does not expire. The next call that needs the sandbox
//! resumes it.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use sandcell_sandbox::{Failure, Sandbox};
use tokio::time::{Instant, timeout};

use crate::Principal;
use crate::api::sync::lock;
use crate::sandbox::files::{FILE_CALL_TIMEOUT, too_slow};
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::state::Record;

/// The minimum time to live of a sandbox that a call resumes.
const MIN_LIFETIME: Duration = Duration::from_secs(300);
/// The minimum time by which the deadline of code is postponed while its sandbox is paused.
const MIN_POSTPONEMENT: Duration = Duration::from_secs(1);

/// The pauses of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    state: Mutex<State>,
    /// Held while the sandbox is paused or resumed.
    changing: tokio::sync::Mutex<()>,
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
        let sandbox = target.record.ready().await?;
        target.record.pause(sandbox.as_ref()).await
    }

    /// Resumes a sandbox, which then ends after `left`. Returns false if it is not paused.
    pub(crate) async fn resume(
        &self,
        principal: &Principal,
        id: &str,
        left: Option<Duration>,
    ) -> Result<bool, Failure> {
        crate::admission::policy::lifetime(left)?;
        let target = self.registry.find(principal, id)?;
        if !target.record.is_paused() {
            return Ok(false);
        }
        if let Some(left) = left {
            lock(&target.record.pauses.state).wanted = Some(left);
        }
        target.record.ready().await.map(|_| true)
    }

    pub(crate) fn is_paused(&self, principal: &Principal, id: &str) -> bool {
        let found = self
            .registry
            .of(principal)
            .into_iter()
            .find(|record| record.id.as_str() == id);
        found.is_some_and(|record| record.is_paused())
    }
}

impl Record {
    pub(crate) fn is_paused(&self) -> bool {
        lock(&self.pauses.state).since.is_some()
    }

    /// Pauses the sandbox. Returns false if it is paused already.
    pub(crate) async fn pause(&self, sandbox: &dyn Sandbox) -> Result<bool, Failure> {
        let _changing = self.pauses.changing.lock().await;
        if self.is_paused() {
            return Ok(false);
        }
        in_time(sandbox.pause()).await?;
        {
            let mut state = lock(&self.pauses.state);
            state.since = Some(Instant::now());
            state.left = self.time_left();
        }
        self.expiry_has_changed();
        Ok(true)
    }

    /// Resumes the sandbox if it is paused.
    pub(crate) async fn resume(&self, sandbox: &Arc<dyn Sandbox>) -> Result<(), Failure> {
        if !self.is_paused() {
            return Ok(());
        }
        let _changing = self.pauses.changing.lock().await;
        if !self.is_paused() {
            return Ok(());
        }
        in_time(sandbox.resume()).await?;
        let left = {
            let mut state = lock(&self.pauses.state);
            let since = state.since.take();
            state.earlier += since.map_or(Duration::ZERO, |since| since.elapsed());
            let left = state.left.take().map(|left| left.max(MIN_LIFETIME));
            state.wanted.take().or(left)
        };
        if let Some(left) = left {
            self.set_time_left(left);
        }
        self.expiry_has_changed();
        Ok(())
    }

    /// Returns the time for which the sandbox has been paused.
    fn time_paused(&self) -> Duration {
        let state = lock(&self.pauses.state);
        state.earlier + state.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

async fn in_time(change: impl Future<Output = Result<(), sandcell_sandbox::SandboxError>>) -> Result<(), Failure> {
    match timeout(FILE_CALL_TIMEOUT, change).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(too_slow("the back end did not pause or resume the sandbox")),
    }
}

/// Measures the time that running code loses because its sandbox is paused.
pub(crate) struct PauseClock<'a> {
    record: &'a Record,
    seen: Duration,
}

impl<'a> PauseClock<'a> {
    pub(crate) fn new(record: &'a Record) -> Self {
        Self {
            seen: record.time_paused(),
            record,
        }
    }

    /// Returns the time by which a deadline that has passed is to be postponed. None: the sandbox was not paused since the
    /// last call.
    pub(crate) fn postponement(&mut self) -> Option<Duration> {
        let now = self.record.time_paused();
        let lost = now.saturating_sub(std::mem::replace(&mut self.seen, now));
        if self.record.is_paused() {
            return Some(lost.max(MIN_POSTPONEMENT));
        }
        (!lost.is_zero()).then_some(lost)
    }
}
