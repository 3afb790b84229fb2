//! How running code is ended: it is asked to stop, gets a grace, is killed, and given up when even that fails.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sandcell_sandbox::{Interrupter, SandboxError};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::record::Gone;

/// How long code may take to yield to an interrupt.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
/// How long a killed interpreter may take to be gone, before its whole sandbox is closed.
pub(crate) const KILL_WAIT: Duration = Duration::from_secs(5);

/// Why code is ended from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Its time is over.
    Timeout,
    /// It printed more than this many bytes.
    Output(u64),
    /// The caller does not want it any more.
    Cancelled,
    /// The session is restarted.
    Reset,
    /// The sandbox ends.
    Departed(Gone),
}

/// How far the ladder was climbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// The code runs.
    Free,
    /// It was asked to stop.
    Interrupted,
    /// It was killed.
    Killed,
    /// It did not end even then.
    GivenUp,
}

/// The state of one execution's ending. Whoever owns it waits until [`Ladder::next`] and then climbs.
pub(crate) struct Ladder {
    how: Arc<dyn Interrupter>,
    /// Whether an interrupt can spare the interpreter.
    gentle: bool,
    step: Step,
    next: Instant,
    stop: Option<Stop>,
    sending: Option<AbortOnDropHandle<()>>,
}

impl Ladder {
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

    /// When to climb if nothing happens until then.
    pub(crate) const fn next(&self) -> Instant {
        self.next
    }

    pub(crate) const fn step(&self) -> Step {
        self.step
    }

    pub(crate) fn into_stop(self) -> Option<Stop> {
        self.stop
    }

    /// The code begins only now: what came before was its preparation.
    pub(crate) fn begin(&mut self, deadline: Instant) {
        if self.step == Step::Free {
            self.next = deadline;
        }
    }

    /// Code that waited for something that has a time of its own gets that time back.
    pub(crate) fn give_back(&mut self, waited: Duration) {
        if self.step == Step::Free {
            self.next += waited;
        }
    }

    /// The time for the present step is over.
    pub(crate) fn climb(&mut self) {
        match self.step {
            Step::Free => self.stop(Stop::Timeout),
            Step::Interrupted => self.kill(false),
            Step::Killed | Step::GivenUp => self.step = Step::GivenUp,
        }
    }

    /// Ends the code. The first reason counts; a later one can only make it faster.
    pub(crate) fn stop(&mut self, stop: Stop) {
        let gentle = self.gentle && matches!(stop, Stop::Timeout | Stop::Output(_) | Stop::Cancelled);
        let for_good = matches!(stop, Stop::Reset | Stop::Departed(_));
        match (self.step, gentle) {
            (Step::Free, true) => self.interrupt(),
            (Step::Free, false) | (Step::Interrupted, false) => self.kill(for_good),
            (Step::Interrupted, true) | (Step::Killed | Step::GivenUp, _) => {}
        }
        self.stop.get_or_insert(stop);
    }

    fn interrupt(&mut self) {
        self.step = Step::Interrupted;
        self.next = Instant::now() + GRACE;
        let how = self.how.clone();
        // In a task of its own: a signal that is slow to send must not keep the grace from running out.
        self.send(async move { sent("interrupt", how.interrupt().await) });
    }

    /// `for_good`: nobody wants the session back.
    fn kill(&mut self, for_good: bool) {
        self.step = Step::Killed;
        self.next = Instant::now() + KILL_WAIT;
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
