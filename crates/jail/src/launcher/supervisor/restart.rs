//! The pauses before fork servers that replace lost ones.

use std::time::{Duration, Instant};

/// The pause after a fork server that ended early. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// A fork server that lived this long did not end early.
const STABLE_RUN_TIME: Duration = Duration::from_secs(5);

/// Decides when the next fork server is started.
#[derive(Debug, Default)]
pub(super) struct Restart {
    /// None if one runs, or if none is needed.
    due: Option<Instant>,
    started: Option<Instant>,
    pause: Duration,
}

impl Restart {
    /// Records a start.
    pub(super) fn record_start(&mut self, now: Instant) {
        self.due = None;
        self.started = Some(now);
    }

    /// Records an end, or a failed start.
    pub(super) fn record_end(&mut self, now: Instant) {
        let lived = self.started.take().map_or(Duration::ZERO, |started| now - started);
        if lived >= STABLE_RUN_TIME {
            self.pause = Duration::ZERO;
        }
        self.due = Some(now + self.pause);
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, MAX_PAUSE);
    }

    /// Returns the time until the next start. None if none is planned.
    pub(super) fn time_left(&self, now: Instant) -> Option<Duration> {
        self.due.map(|due| due.saturating_duration_since(now))
    }

    /// Returns true if the next start is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_process_is_replaced_at_once_and_early_exits_back_off() {
        let mut restart = Restart::default();
        let mut now = Instant::now();
        assert!(!restart.is_due(now));
        restart.record_start(now);
        now += STABLE_RUN_TIME;
        restart.record_end(now);
        assert!(restart.is_due(now));
        let mut pauses = Vec::new();
        for _ in 0..10 {
            restart.record_start(now);
            assert_eq!(restart.time_left(now), None);
            restart.record_end(now);
            let time_left = restart.time_left(now).unwrap();
            pauses.push(time_left.as_millis());
            now += time_left;
            assert!(restart.is_due(now));
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        restart.record_start(now);
        now += STABLE_RUN_TIME;
        restart.record_end(now);
        assert!(restart.is_due(now));
    }
}
