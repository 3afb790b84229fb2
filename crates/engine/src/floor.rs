//! How many executions run at once, and who is next when more want to: so that one caller's flood does not starve others.
//!
//! The decision taken here: who has nothing running always gets in at once, whatever others do; beyond that, places go to
//! the caller who has the fewest. Long runs of some can therefore never shut others out, and what is shared is shared
//! evenly.

use std::collections::{HashMap, VecDeque};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::Principal;
use crate::sync::lock;

/// More executions than this for each processor are a crowd.
const CROWD: usize = 2;
/// For how long a crowd has the processors to itself: what is only for later waits.
pub(crate) const GIVE_WAY: Duration = Duration::from_secs(5);

/// How many processors this program may use, at least 1. The system is asked once: the answer takes it a dozen files.
#[must_use]
pub fn processors() -> usize {
    static PROCESSORS: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, NonZero::get));
    *PROCESSORS
}

/// The places.
#[derive(Debug)]
pub(crate) struct Floor {
    state: Mutex<State>,
    most: AtomicUsize,
    per_caller: AtomicUsize,
    /// More than so many are a crowd.
    crowd: usize,
}

#[derive(Debug, Default)]
struct State {
    total: usize,
    running: HashMap<Principal, usize>,
    /// In the order in which they came. Bounded by the sandboxes and their queues.
    waiting: VecDeque<(Principal, oneshot::Sender<Place>)>,
}

/// A place for one execution; free again when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    /// None once it was given back.
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

    /// Takes other bounds. What runs goes on; who waits is looked at when the next one leaves.
    pub(crate) fn change(&self, most: usize, per_caller: usize) {
        self.most.store(most, Ordering::Relaxed);
        self.per_caller.store(per_caller, Ordering::Relaxed);
    }

    /// Waits for a place. Giving up is dropping the future.
    pub(crate) async fn enter(self: &Arc<Self>, who: &Principal) -> Place {
        loop {
            let turn = {
                let mut state = lock(&self.state);
                state.waiting.retain(|(_, turn)| !turn.is_closed());
                // Whoever waits already comes first: new places are theirs.
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

    /// Executions that run, and that wait for a place.
    pub(crate) fn count(&self) -> (usize, usize) {
        let state = lock(&self.state);
        let waiting = state.waiting.iter().filter(|(_, turn)| !turn.is_closed()).count();
        (state.total, waiting)
    }

    /// Whether more want to run than the processors have time for.
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
                // Given up in this moment. Given back here, under the lock that its drop would take.
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

    /// Of those who may run, the first one of the caller with the fewest running.
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
        // It was given the place and is dropped before it looks.
        drop(gave_up);
        assert!(second.now_or_never().is_some());
    }
}
