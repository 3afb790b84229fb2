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
use crate::sync::lock;

/// The number of executions for each processor beyond which the engine is crowded.
const CROWD: usize = 2;
/// The time for which a crowd has priority over work that only speeds up later calls.
pub(crate) const GIVE_WAY: Duration = Duration::from_secs(5);

/// Returns the number of processors that this program may use, at least 1. Asks the system once, because the answer
/// takes a dozen file reads.
#[must_use]
pub fn processors() -> usize {
    static PROCESSORS: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, NonZero::get));
    *PROCESSORS
}

/// The scheduler.
#[derive(Debug)]
pub(crate) struct Floor {
    state: Mutex<State>,
    most: AtomicUsize,
    per_caller: AtomicUsize,
    /// The number of executions beyond which the engine is crowded.
    crowd: usize,
}

#[derive(Debug, Default)]
struct State {
    total: usize,
    running: HashMap<Principal, usize>,
    /// Waiting callers, in the order of their calls. Bounded by the sandboxes and their queues.
    waiting: VecDeque<(Principal, oneshot::Sender<Place>)>,
}

/// The permission to run one execution. Dropping it returns it.
#[derive(Debug)]
pub(crate) struct Place {
    /// None after it was returned.
    floor: Option<Arc<Floor>>,
    who: Principal,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(floor) = self.floor.take() {
            floor.leave(&self.who);
        }
    }
}

impl Floor {
    pub(crate) fn new(most: usize, per_caller: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            most: AtomicUsize::new(most),
            per_caller: AtomicUsize::new(per_caller),
            crowd: CROWD * processors(),
        })
    }

    /// Replaces the bounds. Running executions continue. Waiting ones are checked when the next execution ends.
    pub(crate) fn change(&self, most: usize, per_caller: usize) {
        self.most.store(most, Ordering::Relaxed);
        self.per_caller.store(per_caller, Ordering::Relaxed);
    }

    /// Waits for a permit. Dropping the future leaves the queue.
    pub(crate) async fn enter(self: &Arc<Self>, who: &Principal) -> Place {
        loop {
            let turn = {
                let mut state = lock(&self.state);
                state.waiting.retain(|(_, turn)| !turn.is_closed());
                // A caller that already waits comes first: a new permit is for its earlier call.
                if self.fits(&state, who) && !state.waiting.iter().any(|(other, _)| other == who) {
                    return self.seat(&mut state, who);
                }
                let (send, turn) = oneshot::channel();
                state.waiting.push_back((who.clone(), send));
                turn
            };
            if let Ok(place) = turn.await {
                return place;
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

    fn fits(&self, state: &State, who: &Principal) -> bool {
        let own = state.running.get(who).copied().unwrap_or(0);
        own == 0 || (own < self.per_caller.load(Ordering::Relaxed) && state.total < self.most.load(Ordering::Relaxed))
    }

    fn seat(self: &Arc<Self>, state: &mut State, who: &Principal) -> Place {
        state.total += 1;
        *state.running.entry(who.clone()).or_default() += 1;
        Place {
            floor: Some(Arc::clone(self)),
            who: who.clone(),
        }
    }

    fn leave(self: &Arc<Self>, who: &Principal) {
        let mut state = lock(&self.state);
        Self::unseat(&mut state, who);
        state.waiting.retain(|(_, turn)| !turn.is_closed());
        while let Some(next) = self.next(&state) {
            let Some((who, turn)) = state.waiting.remove(next) else {
                break;
            };
            let place = self.seat(&mut state, &who);
            if let Err(mut place) = turn.send(place) {
                // The receiver has just left the queue. Return the permit here, because its drop would take the lock
                // that is held.
                place.floor = None;
                Self::unseat(&mut state, &who);
            }
        }
    }

    fn unseat(state: &mut State, who: &Principal) {
        state.total = state.total.saturating_sub(1);
        if let Some(own) = state.running.get_mut(who) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                state.running.remove(who);
            }
        }
    }

    /// Returns the next execution in the queue: among those that may run, the first one of the caller with the fewest
    /// running.
    fn next(&self, state: &State) -> Option<usize> {
        let own = |who: &Principal| state.running.get(who).copied().unwrap_or(0);
        let waiting = state.waiting.iter().enumerate();
        waiting
            .filter(|(_, (who, _))| self.fits(state, who))
            .min_by_key(|(place, (who, _))| (own(who), *place))
            .map(|(place, _)| place)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures::FutureExt as _;

    use super::*;

    fn who(name: &str) -> Principal {
        Principal::new(name)
    }

    fn wants(floor: &Arc<Floor>, name: &'static str) -> Pin<Box<dyn Future<Output = Place>>> {
        let floor = Arc::clone(floor);
        Box::pin(async move { floor.enter(&who(name)).await })
    }

    #[tokio::test]
    async fn who_has_nothing_running_gets_in_whatever_others_do() {
        let floor = Floor::new(4, 3);
        let mut of_ann = Vec::new();
        for _ in 0..3 {
            of_ann.push(floor.enter(&who("ann")).await);
        }
        assert!(floor.enter(&who("ann")).now_or_never().is_none(), "more than her share");
        let bob = floor.enter(&who("bob")).await;
        assert!(
            floor.enter(&who("bob")).now_or_never().is_none(),
            "all places are taken"
        );
        let _eve = floor
            .enter(&who("eve"))
            .now_or_never()
            .expect("she has nothing running");
        assert_eq!(floor.count(), (5, 0), "those who gave up do not wait");
        drop((of_ann, bob));
        assert_eq!(floor.count(), (1, 0));
    }

    #[tokio::test]
    async fn a_flood_and_a_trickle_get_the_same() {
        let floor = Floor::new(4, 4);
        let (mut waiting, mut running) = (Vec::new(), VecDeque::new());
        for name in std::iter::repeat_n("ann", 100).chain(std::iter::repeat_n("bob", 20)) {
            waiting.push((name, wants(&floor, name)));
        }
        let mut served = HashMap::from([("ann", 0), ("bob", 0)]);
        while served["bob"] < 20 {
            waiting.retain_mut(|(name, turn)| match turn.as_mut().now_or_never() {
                Some(place) => {
                    running.push_back((*name, place));
                    false
                }
                None => true,
            });
            let (name, place) = running.pop_front().unwrap();
            *served.get_mut(name).unwrap() += 1;
            drop(place);
        }
        let ann = served["ann"];
        assert!((16..=26).contains(&ann), "bob was served 20 times, ann {ann} times");
    }

    #[tokio::test]
    async fn places_of_those_who_gave_up_go_to_the_next() {
        let floor = Floor::new(1, 1);
        let first = floor.enter(&who("ann")).await;
        let mut gave_up = wants(&floor, "ann");
        assert!(futures::poll!(gave_up.as_mut()).is_pending());
        let mut second = wants(&floor, "ann");
        assert!(futures::poll!(second.as_mut()).is_pending());
        drop(first);
        // It received the permit and is dropped before it reads it.
        drop(gave_up);
        assert!(second.now_or_never().is_some());
    }
}
