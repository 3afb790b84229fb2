//! The engine's counters since its start, for the operator. They contain no caller, code or output.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use sandcell_sandbox::Code;

use crate::Status;
use crate::api::sync::lock;

/// Upper bounds of the histogram buckets for durations, in milliseconds.
const BUCKET_BOUNDS_MS: [u64; 12] = [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 10_000, 30_000, 120_000];

/// The engine's counters and current numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Live sandboxes, including those that are being made.
    pub sandboxes: u64,
    /// The maximum number of live sandboxes.
    pub sandboxes_most: u64,
    /// Callers with a sandbox.
    pub callers: u64,
    /// Idle sandboxes with a started interpreter.
    pub waiting: u64,
    /// Running executions.
    pub running: u64,
    /// Queued executions.
    pub queued: u64,
    /// Finished executions by status.
    pub executions: BTreeMap<&'static str, u64>,
    /// Reasons of failed executions and refused calls.
    pub causes: BTreeMap<&'static str, u64>,
    /// The histogram of run times: bound in milliseconds, and the number of executions up to it.
    pub durations: Vec<(u64, u64)>,
    /// The number of all executions in `durations`, including those over the last bound.
    pub duration_count: u64,
    /// The sum of their run times.
    pub duration_sum: Duration,
    /// The sum of their processor time.
    pub cpu_sum: Duration,
}

/// The counters.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<Counts>);

impl Metrics {
    /// Counts a finished execution.
    pub(crate) fn ended(&self, status: Status, cause: Option<Code>, duration: Duration, cpu: Duration) {
        let mut counts = lock(&self.0);
        *counts.executions.entry(status.as_str()).or_default() += 1;
        if let Some(cause) = cause {
            *counts.causes.entry(cause.as_str()).or_default() += 1;
        }
        if counts.durations.is_empty() {
            counts.durations = BUCKET_BOUNDS_MS.iter().map(|bound| (*bound, 0)).collect();
        }
        for (bound, count) in &mut counts.durations {
            *count += u64::from(duration.as_millis() <= u128::from(*bound));
        }
        counts.duration_count += 1;
        counts.duration_sum = counts.duration_sum.saturating_add(duration);
        counts.cpu_sum = counts.cpu_sum.saturating_add(cpu);
    }

    /// Counts a call that was refused before anything ran.
    pub(crate) fn refused(&self, cause: Code) {
        *lock(&self.0).causes.entry(cause.as_str()).or_default() += 1;
    }

    /// Returns the counters.
    pub(crate) fn read(&self) -> Counts {
        lock(&self.0).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_in_every_bucket_they_fit() {
        let metrics = Metrics::default();
        metrics.ended(Status::Ok, None, Duration::from_millis(7), Duration::from_millis(1));
        metrics.ended(
            Status::Timeout,
            Some(Code::Timeout),
            Duration::from_secs(1000),
            Duration::ZERO,
        );
        metrics.refused(Code::LimitReached);
        let counts = metrics.read();
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
