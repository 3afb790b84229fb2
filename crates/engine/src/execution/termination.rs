//! The termination of running code: it is interrupted, has a grace period, and is killed. If even that fails, its
//! sandbox is closed.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sandcell_sandbox::{Interrupter, SandboxError};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::sandbox::state::Terminated;

/// The grace period after an interrupt.
pub(crate) const INTERRUPT_GRACE: Duration = Duration::from_secs(2);
/// The maximum time for a killed interpreter to end. After that its whole sandbox is closed.
pub(crate) const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason for ending code from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The time limit.
    Timeout,
    /// It printed more than this many bytes.
    Output(u64),
    /// The caller cancelled it.
    Cancelled,
    /// The session restarts.
    Reset,
    /// The sandbox ends.
    SandboxEnded(Terminated),
}

/// The last step of the termination so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// The code runs.
    Free,
    /// It was interrupted.
    Interrupted,
    /// It was killed.
    Killed,
    /// It did not end even after the kill.
    GivenUp,
}

/// The termination of one execution. Its owner waits until [`Termination::next`] and then calls
/// [`Termination::advance`].
pub(crate) struct Termination {
    how: Arc<dyn Interrupter>,
    /// True if an interrupt can preserve the interpreter.
    gentle: bool,
    step: Step,
    next: Instant,
    stop: Option<Stop>,
    sending: Option<AbortOnDropHandle<()>>,
}

impl Termination {
    pub(crate) fn new(how: Arc<dyn Interrupter>, gentle: bool, deadline: Instant) -> Self {
        Self {
            how,
            gentle,
            step: Step::Free,
            next: deadline,
            stop: None,
            sending: None,
        }
    }

    /// Returns the time for the next step, unless the code ends before.
    pub(crate) const fn next(&self) -> Instant {
        self.next
    }

    pub(crate) const fn step(&self) -> Step {
        self.step
    }

    pub(crate) fn into_stop(self) -> Option<Stop> {
        self.stop
    }

    /// Restarts the time limit: the code begins now, after its preparation.
    pub(crate) fn begin(&mut self, deadline: Instant) {
        if self.step == Step::Free {
            self.next = deadline;
        }
    }

    /// Extends the time limit by a wait that has a separate limit.
    pub(crate) fn extend(&mut self, waited: Duration) {
        if self.step == Step::Free {
            self.next += waited;
        }
    }

    /// Takes the next step: the time for the present one is over.
    pub(crate) fn advance(&mut self) {
        match self.step {
            Step::Free => self.stop(Stop::Timeout),
            Step::Interrupted => self.kill(false),
            Step::Killed | Step::GivenUp => self.step = Step::GivenUp,
        }
    }

    /// Ends the code. The first reason counts. A later one can only make it faster.
    pub(crate) fn stop(&mut self, stop: Stop) {
        let gentle = self.gentle && matches!(stop, Stop::Timeout | Stop::Output(_) | Stop::Cancelled);
        let for_good = matches!(stop, Stop::Reset | Stop::SandboxEnded(_));
        match (self.step, gentle) {
            (Step::Free, true) => self.interrupt(),
            (Step::Free, false) | (Step::Interrupted, false) => self.kill(for_good),
            (Step::Interrupted, true) | (Step::Killed | Step::GivenUp, _) => {}
        }
        self.stop.get_or_insert(stop);
    }

    fn interrupt(&mut self) {
        self.step = Step::Interrupted;
        self.next = Instant::now() + INTERRUPT_GRACE;
        let how = self.how.clone();
        // A separate task: a signal that is slow to send must not extend the grace period.
        self.send(async move { sent("interrupt", how.interrupt().await) });
    }

    /// Kills the code. `for_good`: the session is not restored.
    fn kill(&mut self, for_good: bool) {
        self.step = Step::Killed;
        self.next = Instant::now() + KILL_TIMEOUT;
        let how = self.how.clone();
        if for_good {
            self.send(async move { sent("kill", how.end().await) });
        } else {
            self.send(async move { sent("kill", how.kill().await) });
        }
    }

    fn send(&mut self, signal: impl Future<Output = ()> + Send + 'static) {
        self.sending = Some(AbortOnDropHandle::new(tokio::spawn(signal)));
    }
}

fn sent(what: &str, result: Result<(), SandboxError>) {
    if let Err(error) = result {
        tracing::debug!(%error, "the {what} could not be sent");
    }
}
