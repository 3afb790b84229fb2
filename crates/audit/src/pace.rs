//! How many events of a kind one caller may cause in a minute: enough to see what happens, too few to fill the log and
//! push out what was in it. What is left out is counted, and the number is written.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::line::Entry;

/// Events of one kind and caller in a window.
const EVENTS: u64 = 200;
/// How long a window is.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);
/// Kinds and callers that are told apart; those beyond share one count for each kind.
const KEYS: usize = 2048;

type Key = (String, Option<String>);

/// Counts events.
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
    /// Whether this one is written.
    pub(crate) fn admits(&mut self, entry: &Entry) -> bool {
        let mut key = (entry.event.clone(), entry.principal.clone());
        if self.counts.len() >= KEYS && !self.counts.contains_key(&key) {
            key.1 = None;
        }
        let count = self.counts.entry(key).or_default();
        *count += 1;
        *count <= EVENTS
    }

    /// At the end of a window: what was left out in it.
    pub(crate) fn told(&mut self, now: Instant) -> Vec<Entry> {
        if now.duration_since(self.began) < WINDOW {
            return Vec::new();
        }
        self.rest(now)
    }

    /// What was left out so far.
    pub(crate) fn rest(&mut self, now: Instant) -> Vec<Entry> {
        self.began = now;
        let counts = std::mem::take(&mut self.counts);
        let left_out = counts.into_iter().filter(|(_, count)| *count > EVENTS);
        left_out
            .map(|((event, principal), count)| Entry {
                principal,
                ..Entry::own("events_left_out", format!("{} more of {event}", count - EVENTS))
            })
            .collect()
    }
}
