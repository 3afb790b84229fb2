//! Limits the events that one caller can cause per minute and kind: enough to see the activity, too few to fill the
//! log and push out older events. Events above the limit are counted, and their number is written to the log.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::line::Entry;

/// The maximum number of events of one kind and caller in a window.
const MAX_EVENTS: u64 = 200;
/// The length of a window.
pub(crate) const COUNT_WINDOW: Duration = Duration::from_secs(60);
/// The maximum number of separate counts, one per kind and caller. Further callers share one count for each kind.
const MAX_KEYS: usize = 2048;

type Key = (String, Option<String>);

/// Counts events per kind and caller in the current window.
#[derive(Debug)]
pub(crate) struct Pace {
    began: Instant,
    counts: BTreeMap<Key, u64>,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            counts: BTreeMap::new(),
        }
    }
}

impl Pace {
    /// Counts this event, and returns true if it is below the limit.
    pub(crate) fn admits(&mut self, entry: &Entry) -> bool {
        let mut key = (entry.event.clone(), entry.principal.clone());
        if self.counts.len() >= MAX_KEYS && !self.counts.contains_key(&key) {
            key.1 = None;
        }
        let count = self.counts.entry(key).or_default();
        *count += 1;
        *count <= MAX_EVENTS
    }

    /// At the end of a window, returns an entry for each kind and caller with omitted events, and starts a new window.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Vec<Entry> {
        if now.duration_since(self.began) < COUNT_WINDOW {
            return Vec::new();
        }
        self.take_omitted(now)
    }

    /// Returns an entry for each kind and caller with omitted events until now, and starts a new window.
    pub(crate) fn take_omitted(&mut self, now: Instant) -> Vec<Entry> {
        self.began = now;
        let counts = std::mem::take(&mut self.counts);
        let omitted = counts.into_iter().filter(|(_, count)| *count > MAX_EVENTS);
        omitted
            .map(|((event, principal), count)| Entry {
                principal,
                ..Entry::about_log("events_left_out", format!("{} more of {event}", count - MAX_EVENTS))
            })
            .collect()
    }
}
