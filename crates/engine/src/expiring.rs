//! Word of sandboxes that end soon, while something can still be done: told once for each end, to whoever listens.
//!
//! Whoever listens gets the sandboxes of one caller only, and only those of which it is still true when it is read: one
//! that was called meanwhile is not spoken of.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use tokio::sync::broadcast::{Receiver, Sender, channel, error::RecvError};
use tokio::time::Instant;

use crate::record::{Deadlines, Kind, Record};
use crate::{Principal, SandboxId};

/// When a sandbox ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiry {
    /// It ends when nothing was called for so long.
    pub idle: Duration,
    /// It ends at this time in any case, if at all.
    pub ends: Option<SystemTime>,
    /// The whole lifetime that it has then had.
    pub lifetime: Option<Duration>,
}

/// The longest time before a sandbox's end in which results speak of it.
const WARN_WITHIN: Duration = Duration::from_secs(5 * 60);
/// A sandbox that ends after so little time without a call says so with every result.
const SHORT_IDLE: Duration = Duration::from_secs(2 * 60);

impl Expiry {
    /// How long the sandbox has until it ends whatever is called, if that is near: in the last fifth of its lifetime, and
    /// not more than five minutes before.
    #[must_use]
    pub fn ends_soon(&self) -> Option<Duration> {
        let left = self.ends?.duration_since(SystemTime::now()).unwrap_or_default();
        let near = self
            .lifetime
            .map_or(WARN_WITHIN, |lifetime| WARN_WITHIN.min(lifetime / 5));
        (left <= near).then_some(left)
    }

    /// How long it has without a call, if that is so short that a pause ends it.
    #[must_use]
    pub fn idles_soon(&self) -> Option<Duration> {
        (self.idle <= SHORT_IDLE).then_some(self.idle)
    }
}

/// Words that wait for one listener; of more, the oldest are dropped. All callers' words go through one channel, so these
/// are many times the sandboxes that a server has by default (256): nobody's words push out another's. A word is small.
const WAITING: usize = 1024;

/// A sandbox that ends soon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expiring {
    /// Which one.
    pub sandbox_id: SandboxId,
    /// Its name for people.
    pub label: Option<String>,
    /// How long it still has.
    pub left: Duration,
    /// When it ends.
    pub at: SystemTime,
    /// Why, and with it whether a call prolongs its life.
    pub why: Expires,
}

/// Why a sandbox ends soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expires {
    /// Nothing was called; a call prolongs that.
    Idle,
    /// The lifetime that was asked for is over, whatever is called.
    Lifetime,
}

/// The sandboxes of one caller that end soon, as they come to that.
#[derive(Debug, Default)]
pub struct ExpiringSoon(Option<(Principal, Receiver<Weak<Record>>)>);

impl ExpiringSoon {
    /// The next one. Never comes when the engine is gone. May be dropped at any time and called again.
    pub async fn next(&mut self) -> Expiring {
        if let Some((who, words)) = &mut self.0 {
            loop {
                match words.recv().await {
                    Ok(record) => {
                        let record = record.upgrade().filter(|record| record.owner == *who);
                        if let Some(expiring) = record.and_then(|record| expiring(&record)) {
                            return expiring;
                        }
                    }
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => break,
                }
            }
        }
        std::future::pending().await
    }
}

/// Where the word goes out from.
#[derive(Debug)]
pub(crate) struct Crier(Sender<Weak<Record>>);

impl Default for Crier {
    fn default() -> Self {
        Self(channel(WAITING).0)
    }
}

impl Crier {
    pub(crate) fn listen(&self, who: &Principal) -> ExpiringSoon {
        ExpiringSoon(Some((who.clone(), self.0.subscribe())))
    }
}

/// What was told of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Told {
    lifetime: bool,
    /// The end without a call that was spoken of; a call moves it, and the next one is spoken of again.
    idle: Option<Instant>,
}

impl Told {
    /// Gives word if it is time for it, and says when it may be the next time.
    pub(crate) fn tell(&mut self, crier: &Crier, record: &Arc<Record>, ends: &Deadlines) -> Option<Instant> {
        if record.birth.kind == Kind::Throwaway {
            return None;
        }
        let now = Instant::now();
        let lifetime = due_of_lifetime(record, ends).filter(|_| !self.lifetime);
        let idle = due_of_idle(record, ends).filter(|_| self.idle != Some(ends.idle));
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        let (of_lifetime, of_idle) = (is_due(lifetime), is_due(idle));
        self.lifetime |= of_lifetime;
        if of_idle {
            self.idle = Some(ends.idle);
        }
        if of_lifetime || of_idle {
            // That nobody listens is no fault.
            let _nobody = crier.0.send(Arc::downgrade(record));
        }
        let later = |due: Option<Instant>| due.filter(|due| *due > now);
        later(lifetime).into_iter().chain(later(idle)).min()
    }
}

fn due_of_lifetime(record: &Record, ends: &Deadlines) -> Option<Instant> {
    let (end, whole) = (ends.lifetime?, record.birth.lifetime?);
    end.checked_sub(WARN_WITHIN.min(whole / 5))
}

/// None where the lifetime ends it before.
fn due_of_idle(record: &Record, ends: &Deadlines) -> Option<Instant> {
    let end = Some(ends.idle).filter(|idle| ends.lifetime.is_none_or(|end| *idle < end))?;
    end.checked_sub(WARN_WITHIN.min(record.birth.idle / 5))
}

/// What is true of it now; none if it does not end soon.
fn expiring(record: &Record) -> Option<Expiring> {
    if !record.open() {
        return None;
    }
    let (ends, now) = (record.deadlines(), Instant::now());
    let near = |due: Option<Instant>| due.is_some_and(|due| due <= now);
    let (end, why) = match ends.lifetime {
        Some(end) if near(due_of_lifetime(record, &ends)) => (end, Expires::Lifetime),
        _ if near(due_of_idle(record, &ends)) => (ends.idle, Expires::Idle),
        _ => return None,
    };
    let left = end.saturating_duration_since(now);
    Some(Expiring {
        sandbox_id: record.id.clone(),
        label: record.birth.label.clone(),
        left,
        at: SystemTime::now() + left,
        why,
    })
}

#[cfg(test)]
mod tests {
    use sandcell_sandbox::{Isolation, Level, Limits, NetworkRule};

    use super::*;
    use crate::record::Birth;

    fn record(who: &str, lifetime: Option<Duration>) -> Arc<Record> {
        let birth = Birth {
            kind: Kind::Asked,
            label: None,
            asked: None,
            limits: Limits::default(),
            lifetime,
            idle: Duration::from_secs(1800),
            network: NetworkRule::None,
            planned: Arc::new(Isolation {
                backend: "none".to_owned(),
                level: Level::None,
                layers: Vec::new(),
                degraded: Vec::new(),
            }),
            replaces: None,
        };
        Record::new(SandboxId::random().unwrap(), Principal::new(who), birth)
    }

    /// Whatever is there now.
    async fn heard(soon: &mut ExpiringSoon) -> Option<Expiring> {
        tokio::time::timeout(Duration::from_millis(1), soon.next()).await.ok()
    }

    fn tell(told: &mut Told, crier: &Crier, record: &Arc<Record>) -> Option<Duration> {
        let next = told.tell(crier, record, &record.deadlines());
        next.map(|next| next.saturating_duration_since(Instant::now()))
    }

    #[tokio::test(start_paused = true)]
    async fn each_end_is_spoken_of_once_and_only_to_its_owner() {
        let (crier, mut told) = (Crier::default(), Told::default());
        let (mut mine, mut theirs) = (
            crier.listen(&Principal::new("me")),
            crier.listen(&Principal::new("you")),
        );
        let record = record("me", None);
        assert_eq!(tell(&mut told, &crier, &record), Some(Duration::from_secs(1500)));
        assert_eq!(heard(&mut mine).await, None);
        tokio::time::advance(Duration::from_secs(1500)).await;
        assert_eq!(tell(&mut told, &crier, &record), None);
        assert_eq!(tell(&mut told, &crier, &record), None, "once is enough");
        let word = heard(&mut mine).await.unwrap();
        assert_eq!((word.why, &word.sandbox_id), (Expires::Idle, &record.id));
        assert!(word.left <= Duration::from_secs(300), "{word:?}");
        assert_eq!(heard(&mut mine).await, None);
        assert_eq!(heard(&mut theirs).await, None);
        // A call moves the end, so there will be word again.
        drop(record.enter().unwrap());
        assert!(tell(&mut told, &crier, &record).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn word_that_is_not_true_any_more_is_not_given() {
        let (crier, mut told) = (Crier::default(), Told::default());
        let mut soon = crier.listen(&Principal::new("me"));
        let record = record("me", None);
        tokio::time::advance(Duration::from_secs(1600)).await;
        tell(&mut told, &crier, &record);
        drop(record.enter().unwrap());
        assert_eq!(heard(&mut soon).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_lifetime_comes_also_for_one_that_is_busy() {
        let (crier, mut told) = (Crier::default(), Told::default());
        let mut soon = crier.listen(&Principal::new("me"));
        let record = record("me", Some(Duration::from_secs(100)));
        let _visit = record.enter().unwrap();
        assert_eq!(tell(&mut told, &crier, &record), Some(Duration::from_secs(80)));
        tokio::time::advance(Duration::from_secs(80)).await;
        tell(&mut told, &crier, &record);
        assert_eq!(heard(&mut soon).await.unwrap().why, Expires::Lifetime);
    }

    #[tokio::test(start_paused = true)]
    async fn a_listener_that_does_not_listen_costs_a_bounded_number_of_words() {
        let crier = Crier::default();
        let mut soon = crier.listen(&Principal::new("me"));
        let records: Vec<_> = (0..WAITING + 20).map(|_| record("me", None)).collect();
        tokio::time::advance(Duration::from_secs(1600)).await;
        for record in &records {
            tell(&mut Told::default(), &crier, record);
        }
        let mut count = 0;
        while heard(&mut soon).await.is_some() {
            count += 1;
        }
        assert_eq!(count, WAITING);
    }
}
