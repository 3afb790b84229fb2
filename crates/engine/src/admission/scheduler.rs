//! The scheduler: limits the number of concurrent executions, and selects the next one in the queue, so that one
//! caller's flood does not starve others.
//!
//! The decision taken here: a caller with nothing running starts at once, regardless of others. All further permits go
//! to the caller with the fewest running executions. So long runs of some callers never block others, and the shared
//! part is shared evenly.

use std::collections::{HashMap, VecDeque};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::Principal;
use crate::api::sync::lock;

/// The number of executions for each processor beyond which the engine is crowded.
const CROWD_PER_PROCESSOR: usize = 2;
/// The time for which a crowd has priority over work that only speeds up later calls.
pub(crate) const CROWD_PRIORITY_DURATION: Duration = Duration::from_secs(5);

/// Returns the number of processors that this program may use, at least 1. Asks the system once, because the answer
/// takes a dozen file reads.
#[must_use]
pub fn processors() -> usize {
    static PROCESSOR_COUNT: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, NonZero::get));
    *PROCESSOR_COUNT
}

/// The scheduler.
#[derive(Debug)]
pub(crate) struct Scheduler {
    state: Mutex<State>,
    max_executions: AtomicUsize,
    max_per_caller: AtomicUsize,
    /// The number of executions beyond which the engine is crowded.
    crowd: usize,
}

#[derive(Debug, Default)]
struct State {
    total: usize,
    running: HashMap<Principal, usize>,
    /// Waiting callers, in the order of their calls. Bounded by the sandboxes and their queues.
    waiting: VecDeque<(Principal, oneshot::Sender<Permit>)>,
}

/// The permission to run one execution. Dropping it returns it.
#[derive(Debug)]
pub(crate) struct Permit {
    /// None after it was returned.
    scheduler: Option<Arc<Scheduler>>,
    principal: Principal,
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(scheduler) = self.scheduler.take() {
            scheduler.leave(&self.principal);
        }
    }
}

impl Scheduler {
    pub(crate) fn new(max_executions: usize, max_per_caller: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            max_executions: AtomicUsize::new(max_executions),
            max_per_caller: AtomicUsize::new(max_per_caller),
            crowd: CROWD_PER_PROCESSOR * processors(),
        })
    }

    /// Replaces the bounds. Running executions continue. Waiting ones are checked when the next execution ends.
    pub(crate) fn change(&self, max_executions: usize, max_per_caller: usize) {
        self.max_executions.store(max_executions, Ordering::Relaxed);
        self.max_per_caller.store(max_per_caller, Ordering::Relaxed);
    }

    /// Waits for a permit. Dropping the future leaves the queue.
    pub(crate) async fn acquire(self: &Arc<Self>, principal: &Principal) -> Permit {
        loop {
            let turn = {
                let mut state = lock(&self.state);
                state.waiting.retain(|(_, turn)| !turn.is_closed());
                // A caller that already waits comes first: a new permit is for its earlier call.
                if self.fits(&state, principal) && !state.waiting.iter().any(|(other, _)| other == principal) {
                    return self.grant(&mut state, principal);
                }
                let (send, turn) = oneshot::channel();
                state.waiting.push_back((principal.clone(), send));
                turn
            };
            if let Ok(permit) = turn.await {
                return permit;
            }
        }
    }

    /// Returns the number of running executions, and of those that wait for a permit.
    pub(crate) fn count(&self) -> (usize, usize) {
        let state = lock(&self.state);
        let waiting = state.waiting.iter().filter(|(_, turn)| !turn.is_closed()).count();
        (state.total, waiting)
    }

    /// True if there are more executions than the processors have time for.
    pub(crate) fn is_crowded(&self) -> bool {
        let (running, waiting) = self.count();
        running + waiting > self.crowd
    }

    fn fits(&self, state: &State, principal: &Principal) -> bool {
        let own = state.running.get(principal).copied().unwrap_or(0);
        own == 0
            || (own < self.max_per_caller.load(Ordering::Relaxed)
                && state.total < self.max_executions.load(Ordering::Relaxed))
    }

    fn grant(self: &Arc<Self>, state: &mut State, principal: &Principal) -> Permit {
        state.total += 1;
        *state.running.entry(principal.clone()).or_default() += 1;
        Permit {
            scheduler: Some(Arc::clone(self)),
            principal: principal.clone(),
        }
    }

    fn leave(self: &Arc<Self>, principal: &Principal) {
        let mut state = lock(&self.state);
        Self::release(&mut state, principal);
        state.waiting.retain(|(_, turn)| !turn.is_closed());
        while let Some(next) = self.next(&state) {
            let Some((principal, turn)) = state.waiting.remove(next) else {
                break;
            };
            let permit = self.grant(&mut state, &principal);
            if let Err(mut permit) = turn.send(permit) {
                // The receiver has just left the queue. Return the permit here, because its drop would take the lock
                // that is held.
                permit.scheduler = None;
                Self::release(&mut state, &principal);
            }
        }
    }

    fn release(state: &mut State, principal: &Principal) {
        state.total = state.total.saturating_sub(1);
        if let Some(own) = state.running.get_mut(principal) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                state.running.remove(principal);
            }
        }
    }

    /// Returns the next execution in the queue: among those that may run, the first one of the caller with the fewest
    /// running.
    fn next(&self, state: &State) -> Option<usize> {
        let own = |principal: &Principal| state.running.get(principal).copied().unwrap_or(0);
        let waiting = state.waiting.iter().enumerate();
        waiting
            .filter(|(_, (principal, _))| self.fits(state, principal))
            .min_by_key(|(position, (principal, _))| (own(principal), *position))
            .map(|(position, _)| position)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures::FutureExt as _;

    use super::*;

    fn principal(name: &str) -> Principal {
        Principal::new(name)
    }

    fn wants(scheduler: &Arc<Scheduler>, name: &'static str) -> Pin<Box<dyn Future<Output = Permit>>> {
        let scheduler = Arc::clone(scheduler);
        Box::pin(async move { scheduler.acquire(&principal(name)).await })
    }

    #[tokio::test]
    async fn a_caller_with_nothing_running_starts_at_once() {
        let scheduler = Scheduler::new(4, 3);
        let mut of_ann = Vec::new();
        for _ in 0..3 {
            of_ann.push(scheduler.acquire(&principal("ann")).await);
        }
        assert!(
            scheduler.acquire(&principal("ann")).now_or_never().is_none(),
            "more than her share"
        );
        let bob = scheduler.acquire(&principal("bob")).await;
        assert!(
            scheduler.acquire(&principal("bob")).now_or_never().is_none(),
            "all places are taken"
        );
        let _eve = scheduler
            .acquire(&principal("eve"))
            .now_or_never()
            .expect("she has nothing running");
        assert_eq!(scheduler.count(), (5, 0), "those who gave up do not wait");
        drop((of_ann, bob));
        assert_eq!(scheduler.count(), (1, 0));
    }

    #[tokio::test]
    async fn a_flooding_and_a_slow_caller_get_equal_shares() {
        let scheduler = Scheduler::new(4, 4);
        let (mut waiting, mut running) = (Vec::new(), VecDeque::new());
        for name in std::iter::repeat_n("ann", 100).chain(std::iter::repeat_n("bob", 20)) {
            waiting.push((name, wants(&scheduler, name)));
        }
        let mut served = HashMap::from([("ann", 0), ("bob", 0)]);
        while served["bob"] < 20 {
            waiting.retain_mut(|(name, turn)| match turn.as_mut().now_or_never() {
                Some(permit) => {
                    running.push_back((*name, permit));
                    false
                }
                None => true,
            });
            let (name, permit) = running.pop_front().unwrap();
            *served.get_mut(name).unwrap() += 1;
            drop(permit);
        }
        let ann = served["ann"];
        assert!((16..=26).contains(&ann), "bob was served 20 times, ann {ann} times");
    }

    #[tokio::test]
    async fn permits_of_cancelled_waiters_go_to_the_next() {
        let scheduler = Scheduler::new(1, 1);
        let first = scheduler.acquire(&principal("ann")).await;
        let mut gave_up = wants(&scheduler, "ann");
        assert!(futures::poll!(gave_up.as_mut()).is_pending());
        let mut second = wants(&scheduler, "ann");
        assert!(futures::poll!(second.as_mut()).is_pending());
        drop(first);
        // It received the permit and is dropped before it reads it.
        drop(gave_up);
        assert!(second.now_or_never().is_some());
    }
}
