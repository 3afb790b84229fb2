//! Notices about sandboxes that end soon, while the caller can still act. Subscribers get one notice for each end.
//!
//! A subscriber gets notices about the sandboxes of one caller only. A notice that is outdated when it is read is
//! skipped, for example because a call extended the sandbox's life.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use tokio::sync::broadcast::{Receiver, Sender, channel, error::RecvError};
use tokio::time::Instant;

use crate::sandbox::state::{Deadlines, Kind, Record};
use crate::{Expiry, ExpiryNotice, ExpiryReason, Principal};

/// The maximum time before a sandbox's end at which results mention it.
const WARN_WITHIN: Duration = Duration::from_secs(5 * 60);
/// Every result mentions an idle limit up to this length.
const SHORT_IDLE: Duration = Duration::from_secs(2 * 60);

impl Expiry {
    /// Returns the remaining time until the sandbox ends regardless of calls, if that is near: in the last fifth of its
    /// lifetime, and at most five minutes before its end.
    #[must_use]
    pub fn ends_soon(&self) -> Option<Duration> {
        let left = self.ends?.duration_since(SystemTime::now()).unwrap_or_default();
        let near = self
            .lifetime
            .map_or(WARN_WITHIN, |lifetime| WARN_WITHIN.min(lifetime / 5));
        (left <= near).then_some(left)
    }

    /// Returns the idle limit, if it is so short that a pause ends the sandbox.
    #[must_use]
    pub fn idles_soon(&self) -> Option<Duration> {
        (self.idle <= SHORT_IDLE).then_some(self.idle)
    }
}

/// The capacity of a subscriber's queue. When it is full, the oldest notice is dropped. All callers' notices go through
/// one channel, so the capacity is a multiple of the default number of sandboxes (256): no caller's notices drop
/// another's. A notice is small.
const NOTICE_CAPACITY: usize = 1024;

/// A subscription to the notices about one caller's sandboxes.
#[derive(Debug, Default)]
pub struct ExpiryNotices(Option<(Principal, Receiver<Weak<Record>>)>);

impl ExpiryNotices {
    /// Returns the next notice. Waits forever after the engine has ended. Cancel safe.
    pub async fn next(&mut self) -> ExpiryNotice {
        if let Some((principal, notices)) = &mut self.0 {
            loop {
                match notices.recv().await {
                    Ok(record) => {
                        let record = record.upgrade().filter(|record| record.owner == *principal);
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

/// The sender of all notices.
#[derive(Debug)]
pub(crate) struct ExpiryNotifier(Sender<Weak<Record>>);

impl Default for ExpiryNotifier {
    fn default() -> Self {
        Self(channel(NOTICE_CAPACITY).0)
    }
}

impl ExpiryNotifier {
    pub(crate) fn subscribe(&self, principal: &Principal) -> ExpiryNotices {
        ExpiryNotices(Some((principal.clone(), self.0.subscribe())))
    }
}

/// The notices already sent about one sandbox.
#[derive(Debug, Default)]
pub(crate) struct NotifiedState {
    /// The end of the lifetime that was reported. A caller can move it.
    lifetime: Option<Instant>,
    /// The idle deadline that was reported. A call moves the deadline, and the next one is reported again.
    idle: Option<Instant>,
}

impl NotifiedState {
    /// Sends a notice if one is due, and returns the time of the next one.
    pub(crate) fn notify_if_due(
        &mut self,
        expiry_notifier: &ExpiryNotifier,
        record: &Arc<Record>,
        ends: &Deadlines,
    ) -> Option<Instant> {
        if record.params.kind == Kind::Throwaway {
            return None;
        }
        let now = Instant::now();
        let lifetime = due_of_lifetime(record, ends).filter(|_| self.lifetime != ends.lifetime);
        let idle = due_of_idle(record, ends).filter(|_| self.idle != Some(ends.idle));
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        let (of_lifetime, of_idle) = (is_due(lifetime), is_due(idle));
        if of_lifetime {
            self.lifetime = ends.lifetime;
        }
        if of_idle {
            self.idle = Some(ends.idle);
        }
        if of_lifetime || of_idle {
            // Having no subscribers is not an error.
            let _no_subscriber = expiry_notifier.0.send(Arc::downgrade(record));
        }
        let later = |due: Option<Instant>| due.filter(|due| *due > now);
        later(lifetime).into_iter().chain(later(idle)).min()
    }
}

fn due_of_lifetime(record: &Record, ends: &Deadlines) -> Option<Instant> {
    let (end, whole) = (ends.lifetime?, record.lifetime()?);
    end.checked_sub(WARN_WITHIN.min(whole / 5))
}

/// None if the lifetime ends earlier.
fn due_of_idle(record: &Record, ends: &Deadlines) -> Option<Instant> {
    let end = Some(ends.idle).filter(|idle| ends.lifetime.is_none_or(|end| *idle < end))?;
    end.checked_sub(WARN_WITHIN.min(record.params.idle / 5))
}

/// Returns the current notice about a sandbox. None if it does not end soon.
fn expiring(record: &Record) -> Option<ExpiryNotice> {
    if !record.open() {
        return None;
    }
    let (ends, now) = (record.deadlines(), Instant::now());
    let near = |due: Option<Instant>| due.is_some_and(|due| due <= now);
    let (end, why) = match ends.lifetime {
        Some(end) if near(due_of_lifetime(record, &ends)) => (end, ExpiryReason::Lifetime),
        _ if near(due_of_idle(record, &ends)) => (ends.idle, ExpiryReason::Idle),
        _ => return None,
    };
    let left = end.saturating_duration_since(now);
    Some(ExpiryNotice {
        sandbox_id: record.id.clone(),
        label: record.params.label.clone(),
        left,
        at: SystemTime::now() + left,
        why,
    })
}

#[cfg(test)]
mod tests {
    use sandcell_sandbox::{Isolation, Level, Limits, NetworkRule};

    use super::*;
    use crate::SandboxId;
    use crate::sandbox::state::CreateParams;

    fn record(principal: &str, lifetime: Option<Duration>) -> Arc<Record> {
        let params = CreateParams {
            kind: Kind::Requested,
            label: None,
            asked: None,
            limits: Limits::default(),
            lifetime,
            idle: Duration::from_secs(1800),
            network: NetworkRule::None,
            env: Arc::default(),
            pauses_at_end: false,
            planned: Arc::new(Isolation {
                backend: "none".to_owned(),
                level: Level::None,
                memory: None,
                layers: Vec::new(),
                degraded: Vec::new(),
            }),
            replaces: None,
        };
        Record::new(SandboxId::random().unwrap(), Principal::new(principal), params)
    }

    /// Returns the pending notice.
    async fn heard(soon: &mut ExpiryNotices) -> Option<ExpiryNotice> {
        tokio::time::timeout(Duration::from_millis(1), soon.next()).await.ok()
    }

    fn tell(notified: &mut NotifiedState, expiry_notifier: &ExpiryNotifier, record: &Arc<Record>) -> Option<Duration> {
        let next = notified.notify_if_due(expiry_notifier, record, &record.deadlines());
        next.map(|next| next.saturating_duration_since(Instant::now()))
    }

    #[tokio::test(start_paused = true)]
    async fn each_end_is_reported_once_and_only_to_its_owner() {
        let (expiry_notifier, mut notified) = (ExpiryNotifier::default(), NotifiedState::default());
        let (mut mine, mut theirs) = (
            expiry_notifier.subscribe(&Principal::new("me")),
            expiry_notifier.subscribe(&Principal::new("you")),
        );
        let record = record("me", None);
        assert_eq!(
            tell(&mut notified, &expiry_notifier, &record),
            Some(Duration::from_secs(1500))
        );
        assert_eq!(heard(&mut mine).await, None);
        tokio::time::advance(Duration::from_secs(1500)).await;
        assert_eq!(tell(&mut notified, &expiry_notifier, &record), None);
        assert_eq!(tell(&mut notified, &expiry_notifier, &record), None, "once is enough");
        let word = heard(&mut mine).await.unwrap();
        assert_eq!((word.why, &word.sandbox_id), (ExpiryReason::Idle, &record.id));
        assert!(word.left <= Duration::from_secs(300), "{word:?}");
        assert_eq!(heard(&mut mine).await, None);
        assert_eq!(heard(&mut theirs).await, None);
        // A call moves the end, so there is another notice.
        drop(record.start_use().unwrap());
        assert!(tell(&mut notified, &expiry_notifier, &record).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_outdated_notice_is_skipped() {
        let (expiry_notifier, mut notified) = (ExpiryNotifier::default(), NotifiedState::default());
        let mut soon = expiry_notifier.subscribe(&Principal::new("me"));
        let record = record("me", None);
        tokio::time::advance(Duration::from_secs(1600)).await;
        tell(&mut notified, &expiry_notifier, &record);
        drop(record.start_use().unwrap());
        assert_eq!(heard(&mut soon).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_lifetime_is_reported_for_a_busy_sandbox_too() {
        let (expiry_notifier, mut notified) = (ExpiryNotifier::default(), NotifiedState::default());
        let mut soon = expiry_notifier.subscribe(&Principal::new("me"));
        let record = record("me", Some(Duration::from_secs(100)));
        let _guard = record.start_use().unwrap();
        assert_eq!(
            tell(&mut notified, &expiry_notifier, &record),
            Some(Duration::from_secs(80))
        );
        tokio::time::advance(Duration::from_secs(80)).await;
        tell(&mut notified, &expiry_notifier, &record);
        assert_eq!(heard(&mut soon).await.unwrap().why, ExpiryReason::Lifetime);
    }

    #[tokio::test(start_paused = true)]
    async fn a_subscriber_that_does_not_read_has_a_bounded_queue() {
        let expiry_notifier = ExpiryNotifier::default();
        let mut soon = expiry_notifier.subscribe(&Principal::new("me"));
        let records: Vec<_> = (0..NOTICE_CAPACITY + 20).map(|_| record("me", None)).collect();
        tokio::time::advance(Duration::from_secs(1600)).await;
        for record in &records {
            tell(&mut NotifiedState::default(), &expiry_notifier, record);
        }
        let mut count = 0;
        while heard(&mut soon).await.is_some() {
            count += 1;
        }
        assert_eq!(count, NOTICE_CAPACITY);
    }
}
