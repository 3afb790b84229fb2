//! Keeps one usable launcher: replaces it when it is lost or may hang.
//!
//! The end of a launcher ends its sandboxes. A doubted launcher keeps its sandboxes and only gets no new requests. In
//! both cases a replacement starts at once, not at the next call. Callers wait for it, and get an error if it cannot be
//! started.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use sandcell_jail::launcher;
use sandcell_jail::spec::Template;
use sandcell_jail::wire::Report;
use sandcell_sandbox::{Degree, Failure, Isolation, Level, SandboxError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::conversation::{Conversation, Health};
use super::facts::HostFacts;
use super::{NativeBackend, report};

/// The time a caller waits for a replacement launcher: longer than a start takes on a machine that is slow or overloaded,
/// and shorter than the creation of a sandbox may take in all.
const REPLACE_DEADLINE: Duration = Duration::from_secs(15);
/// After this many failed starts callers get an error instead of waiting.
const FAILED_ATTEMPTS: u32 = 5;
/// The pause before a second start in a row; it doubles with each further start.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// A launcher that lived this long ends a row of failed ones.
const STABLE_LIFETIME: Duration = Duration::from_secs(5);
/// The maximum number of doubted launchers next to the one in use. Beyond that the one in use stays, even if doubted.
const MAX_DOUBTED: usize = 2;
/// The time all launchers have to end.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);
/// The time for removing the control groups of killed launchers.
const CLEAN_UP_DEADLINE: Duration = Duration::from_secs(2);

/// The requirements that every launcher must meet.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) template: Template,
    pub(super) isolation_min: Level,
    pub(super) limits_min: Degree,
}

impl Terms {
    /// Checks the report of a launcher against the requirements.
    pub(super) fn check(&self, found: &Report, facts: &HostFacts) -> Result<(), SandboxError> {
        report::check_floor(found, facts, self.isolation_min, self.limits_min)
    }
}

#[derive(Debug, Clone)]
enum Current {
    Ready(Arc<Conversation>),
    /// A replacement is starting. `failed` attempts have failed, the last one because of `why`.
    Replacing {
        failed: u32,
        why: String,
    },
    /// No more sandboxes are made.
    Closed,
}

/// The pauses between launcher starts in a row.
#[derive(Debug, Default)]
struct Pauses {
    next: Duration,
}

impl Pauses {
    /// Returns the pause before the next start, given the lifetime of the last launcher.
    fn next(&mut self, lived: Duration) -> Duration {
        if lived >= STABLE_LIFETIME {
            self.next = Duration::ZERO;
        }
        let pause = self.next;
        self.next = (pause * 2).clamp(FIRST_PAUSE, MAX_PAUSE);
        pause
    }
}

/// All launchers of this server.
#[derive(Debug)]
pub(super) struct Launchers {
    current: watch::Sender<Current>,
    /// Launchers that are doubted and live.
    doubted: Mutex<Vec<Weak<Conversation>>>,
    /// Launchers that were asked to end.
    closed: Mutex<Vec<Arc<Conversation>>>,
    /// Held while one is started.
    starting: tokio::sync::Mutex<()>,
    terms: Terms,
    isolation: Isolation,
}

impl Launchers {
    /// Starts with the first launcher, which provides this isolation.
    pub(super) fn new(first: Arc<Conversation>, terms: Terms, isolation: Isolation) -> Arc<Self> {
        let launchers = Arc::new(Self {
            current: watch::Sender::new(Current::Ready(first)),
            doubted: Mutex::default(),
            closed: Mutex::default(),
            starting: tokio::sync::Mutex::default(),
            terms,
            isolation,
        });
        tokio::spawn(replace(Arc::downgrade(&launchers)));
        launchers
    }

    /// Returns the connection to a live launcher.
    pub(super) async fn get(&self) -> Result<Arc<Conversation>, SandboxError> {
        let decided = |current: &Current| match current {
            Current::Ready(conversation) => !matches!(conversation.health(), Health::Over(_)),
            Current::Replacing { failed, .. } => *failed >= FAILED_ATTEMPTS,
            Current::Closed => true,
        };
        let mut current = self.current.subscribe();
        let found = timeout(REPLACE_DEADLINE, current.wait_for(decided)).await;
        match found.as_ref().map(|found| found.as_deref()) {
            Ok(Ok(Current::Ready(conversation))) => Ok(Arc::clone(conversation)),
            Ok(Ok(Current::Replacing { why, .. })) => Err(NativeBackend::unavailable(format!(
                "its launcher ended or does not answer, and another one could not be started: {why}"
            ))),
            Ok(Ok(Current::Closed) | Err(_)) => Err(NativeBackend::unavailable("it was shut down")),
            Err(_) => Err(NativeBackend::unavailable(format!(
                "its launcher ended or does not answer, and another one was not ready within {REPLACE_DEADLINE:?}"
            ))),
        }
    }

    /// Drops the launcher in use. Returns false after the shutdown.
    fn begin_to_replace(&self) -> bool {
        self.current.send_if_modified(|current| {
            let open = !matches!(current, Current::Closed);
            if open {
                *current = Current::Replacing {
                    failed: 0,
                    why: String::new(),
                };
            }
            open
        })
    }

    /// Returns the launchers that are doubted and live.
    fn doubted(&self) -> Vec<Arc<Conversation>> {
        let mut doubted = self.doubted.lock().unwrap_or_else(PoisonError::into_inner);
        doubted.retain(|conversation| {
            let found = conversation.upgrade();
            found.is_some_and(|found| !matches!(found.health(), Health::Over(_)))
        });
        doubted.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the number of sandboxes, including those in creation.
    pub(super) fn count(&self) -> u64 {
        let doubted = self
            .doubted()
            .iter()
            .map(|conversation| conversation.count())
            .sum::<u64>();
        match &*self.current.borrow() {
            Current::Ready(conversation) => doubted + conversation.count(),
            Current::Replacing { .. } | Current::Closed => doubted,
        }
    }

    /// Starts one more launcher.
    async fn start(&self) -> Result<(), SandboxError> {
        let _one = self.starting.lock().await;
        if matches!(*self.current.borrow(), Current::Closed) {
            return Ok(());
        }
        let launcher = launcher::start().map_err(|source| report::failed("start another launcher", source))?;
        let (conversation, found) = Conversation::open(launcher, self.terms.template.clone()).await?;
        let facts = HostFacts::read();
        let as_before = self.terms.check(&found, &facts).and_then(|()| {
            if report::isolation(&found, &report::layers(&found, &facts)) == self.isolation {
                Ok(())
            } else {
                Err(NativeBackend::unavailable(
                    "another launcher would isolate otherwise than this server says",
                ))
            }
        });
        if let Err(error) = as_before {
            conversation.hang_up();
            return Err(error);
        }
        let taken = self.current.send_if_modified(|current| {
            let open = !matches!(current, Current::Closed);
            if open {
                *current = Current::Ready(Arc::clone(&conversation));
            }
            open
        });
        if !taken {
            conversation.end().await;
        }
        Ok(())
    }

    /// Stops the creation of sandboxes, tells all launchers to end, and returns them. Later calls return the same ones.
    pub(super) fn close(&self) -> Vec<Arc<Conversation>> {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        closed.extend(self.doubted());
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner).clear();
        if let Current::Ready(conversation) = self.current.send_replace(Current::Closed) {
            closed.push(conversation);
        }
        closed.iter().for_each(|conversation| conversation.hang_up());
        closed.clone()
    }

    /// Ends everything, and waits until nothing is left.
    pub(super) async fn shut_down(&self) {
        let all = self.close();
        // Wait for a start in progress, so that its launcher ends as well.
        let _none_starts = self.starting.lock().await;
        let mut ends = JoinSet::new();
        for conversation in all.iter().map(Arc::clone) {
            ends.spawn(async move { conversation.end().await });
        }
        let all_end = async { while ends.join_next().await.is_some() {} };
        if timeout(SHUTDOWN_DEADLINE, all_end).await.is_err() {
            tracing::warn!("sandboxes did not end within {SHUTDOWN_DEADLINE:?}");
        }
        let clean = !all.is_empty() && all.iter().all(|conversation| conversation.ended_by_itself());
        if !clean && timeout(CLEAN_UP_DEADLINE, self.clean_up()).await.is_err() {
            tracing::warn!("control groups of a launcher that was killed could not be removed yet");
        }
    }

    /// Starts another launcher, which removes the control groups that a killed launcher left.
    async fn clean_up(&self) {
        let template = Template {
            spares: 0,
            enterable: false,
            ..self.terms.template.clone()
        };
        if let Ok(launcher) = launcher::start()
            && let Ok((conversation, _)) = Conversation::open(launcher, template).await
        {
            conversation.end().await;
        }
    }

    /// Has the current launcher sweep when a launcher that was given up has ended.
    fn sweep_after(self: &Arc<Self>, conversation: Arc<Conversation>) {
        let launchers = Arc::downgrade(self);
        tokio::spawn(async move {
            conversation.is_reaped().await;
            if let Some(launchers) = launchers.upgrade()
                && let Current::Ready(current) = &*launchers.current.borrow()
            {
                current.sweep();
            }
        });
    }
}

/// Replaces each launcher that is lost or doubted.
async fn replace(launchers: Weak<Launchers>) {
    let mut pauses = Pauses::default();
    loop {
        let current = launchers.upgrade().map(|launchers| launchers.current.borrow().clone());
        let Some(Current::Ready(conversation)) = current else {
            return;
        };
        let began = Instant::now();
        let health = conversation.unfit().await;
        let Some(launchers) = launchers.upgrade() else { return };
        match health {
            Health::Over(_) => {}
            Health::Well | Health::Doubted if launchers.doubted().len() >= MAX_DOUBTED => {
                conversation.over().await;
            }
            Health::Well | Health::Doubted => {
                let mut doubted = launchers.doubted.lock().unwrap_or_else(PoisonError::into_inner);
                doubted.push(Arc::downgrade(&conversation));
            }
        }
        if !launchers.begin_to_replace() {
            return;
        }
        if let Health::Over(reason) = conversation.health() {
            tracing::warn!("sandboxes are lost: {reason}");
        }
        launchers.sweep_after(conversation);
        let mut lived = began.elapsed();
        loop {
            tokio::time::sleep(pauses.next(lived)).await;
            lived = Duration::ZERO;
            let Err(error) = launchers.start().await else { break };
            let text = Failure::from(error).message;
            launchers.current.send_if_modified(|current| match current {
                Current::Replacing { failed, why } => {
                    if *why != text {
                        tracing::warn!("another launcher of sandboxes could not be started: {text}");
                    }
                    *failed = failed.saturating_add(1);
                    *why = text;
                    true
                }
                Current::Ready(_) | Current::Closed => false,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_launcher_is_replaced_at_once_and_repeated_losses_back_off() {
        let mut pauses = Pauses::default();
        let mut all: Vec<u128> = (0..8).map(|_| pauses.next(Duration::ZERO).as_millis()).collect();
        assert_eq!(all, [0, 50, 100, 200, 400, 800, 1000, 1000]);
        all.pop();
        assert_eq!(pauses.next(STABLE_LIFETIME), Duration::ZERO);
        assert_eq!(pauses.next(Duration::ZERO), FIRST_PAUSE);
    }

    #[test]
    fn callers_wait_for_as_many_attempts_as_fit_into_two_seconds() {
        let mut pauses = Pauses::default();
        let waited: Duration = (0..FAILED_ATTEMPTS).map(|_| pauses.next(Duration::ZERO)).sum();
        assert!(waited < Duration::from_secs(2), "{waited:?}");
    }
}
