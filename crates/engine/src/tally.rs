//! What the engine did since it started, as numbers for its operator. No caller, no code and no output is in them.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use sandcell_sandbox::Code;

use crate::Status;
use crate::sync::lock;

/// Upper bounds of the classes that durations are counted in, in milliseconds.
const BOUNDS_MS: [u64; 12] = [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 10_000, 30_000, 120_000];

/// The engine's numbers at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Live sandboxes, those that are being made included.
    pub sandboxes: u64,
    /// Sandboxes that may be live at once.
    pub sandboxes_most: u64,
    /// Callers that have a sandbox.
    pub callers: u64,
    /// Sandboxes that wait, an interpreter ready in each.
    pub waiting: u64,
    /// Executions that run now.
    pub running: u64,
    /// Executions that wait for others to end.
    pub queued: u64,
    /// Executions that have ended, by how they stood.
    pub executions: BTreeMap<&'static str, u64>,
    /// Why executions were not ok, and why calls were refused.
    pub causes: BTreeMap<&'static str, u64>,
    /// How long executions ran: bound in milliseconds, and how many were at most that long.
    pub durations: Vec<(u64, u64)>,
    /// All executions in `durations`, those over the last bound included.
    pub duration_count: u64,
    /// How long they ran together.
    pub duration_sum: Duration,
    /// Processor time that they used together.
    pub cpu_sum: Duration,
}

/// Keeps count.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<Counts>);

impl Tally {
    /// An execution has ended.
    pub(crate) fn ended(&self, status: Status, cause: Option<Code>, duration: Duration, cpu: Duration) {
        let mut counts = lock(&self.0);
        *counts.executions.entry(status.as_str()).or_default() += 1;
        if let Some(cause) = cause {
            *counts.causes.entry(cause.as_str()).or_default() += 1;
        }
        if counts.durations.is_empty() {
            counts.durations = BOUNDS_MS.iter().map(|bound| (*bound, 0)).collect();
        }
        for (bound, count) in &mut counts.durations {
            *count += u64::from(duration.as_millis() <= u128::from(*bound));
        }
        counts.duration_count += 1;
        counts.duration_sum = counts.duration_sum.saturating_add(duration);
        counts.cpu_sum = counts.cpu_sum.saturating_add(cpu);
    }

    /// A call was refused before anything ran.
    pub(crate) fn refused(&self, cause: Code) {
        *lock(&self.0).causes.entry(cause.as_str()).or_default() += 1;
    }

    /// What was counted so far.
    pub(crate) fn read(&self) -> Counts {
        lock(&self.0).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_in_every_class_that_they_fit_in() {
        let tally = Tally::default();
        tally.ended(Status::Ok, None, Duration::from_millis(7), Duration::from_millis(1));
        tally.ended(
            Status::Timeout,
            Some(Code::Timeout),
            Duration::from_secs(1000),
            Duration::ZERO,
        );
        tally.refused(Code::LimitReached);
        let counts = tally.read();
        assert_eq!(counts.executions, BTreeMap::from([("ok", 1), ("timeout", 1)]));
        assert_eq!(counts.causes, BTreeMap::from([("timeout", 1), ("limit_reached", 1)]));
        assert_eq!(counts.durations[0], (5, 0));
        assert!(counts.durations[1..].iter().all(|(_, count)| *count == 1));
        assert_eq!(
            (counts.duration_count, counts.duration_sum),
            (2, Duration::from_millis(1_000_007))
        );
    }
}
