//! The sandboxes, their owners, and the reasons of ended ones.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandcell_sandbox::{Code, Failure};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::record::{Birth, Gone, GoneWhy, Kind, Record, Visit, no_sandbox};
use crate::sync::lock;
use crate::{EngineConfig, Principal, Quota, SandboxId, policy};

/// Ended sandboxes of each caller that the registry remembers, so that their ids are answered with the reason.
const REMEMBERED: usize = 64;
/// The maximum number of callers without a sandbox in memory.
const CALLERS: usize = 4096;
/// The maximum time that a call waits for closing sandboxes to leave room.
const LEAVING: Duration = Duration::from_secs(2);

/// All sandboxes of the engine.
#[derive(Debug)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
    /// Signals that a sandbox has been removed.
    freed: Notify,
}

#[derive(Debug)]
struct Inner {
    open: bool,
    bounds: Bounds,
    live: HashMap<SandboxId, Arc<Record>>,
    callers: HashMap<Principal, Caller>,
}

/// The maximum numbers of sandboxes.
#[derive(Debug)]
struct Bounds {
    per_caller: usize,
    in_all: usize,
    quota: Quota,
}

impl Bounds {
    fn of(config: &EngineConfig) -> Self {
        Self {
            per_caller: config.sandboxes_per_caller,
            in_all: config.sandboxes,
            quota: config.quota,
        }
    }
}

#[derive(Debug, Default)]
struct Caller {
    default: Option<SandboxId>,
    /// The end of the last default sandbox, until a result has reported it.
    lost: Option<Gone>,
    ended: VecDeque<(SandboxId, Gone)>,
}

/// The result of a request for sandboxes.
#[derive(Debug)]
pub(crate) enum Place {
    /// Reserved records. The call must make their sandboxes.
    Reserved(Vec<Arc<Record>>),
    /// An existing sandbox, or one that another call makes.
    Joined(Arc<Record>),
}

/// A sandbox that a call can use.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) record: Arc<Record>,
    pub(crate) visit: Visit,
    /// True if this call reserved it. The call must then make it.
    pub(crate) new: bool,
}

impl Registry {
    pub(crate) fn new(config: &EngineConfig) -> Self {
        Self {
            inner: Mutex::new(Inner {
                open: true,
                bounds: Bounds::of(config),
                live: HashMap::new(),
                callers: HashMap::new(),
            }),
            freed: Notify::new(),
        }
    }

    /// Retries `ask` while only closing sandboxes exceed the bounds: a caller that has closed a sandbox can use its
    /// room.
    pub(crate) async fn when_free<T>(
        &self,
        who: &Principal,
        ask: impl Fn(&Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let until = Instant::now() + LEAVING;
        loop {
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            let answer = ask(self);
            let full = matches!(&answer, Err(failure) if failure.code == Code::LimitReached);
            if !full || !self.leaving(who) || timeout_at(until, freed).await.is_err() {
                return answer;
            }
        }
    }

    /// True if closing sandboxes will soon leave room for this caller.
    fn leaving(&self, who: &Principal) -> bool {
        let inner = lock(&self.inner);
        let full = inner.live.len() >= inner.bounds.in_all;
        let mut missed = inner.live.values().filter(|record| full || record.owner == *who);
        missed.any(|record| record.departed().is_some())
    }

    /// Replaces the bounds for later requests.
    pub(crate) fn change(&self, config: &EngineConfig) {
        lock(&self.inner).bounds = Bounds::of(config);
    }

    /// Returns the caller's sandbox with this id.
    pub(crate) fn find(&self, who: &Principal, id: &str) -> Result<Target, Failure> {
        let inner = lock(&self.inner);
        let key = SandboxId(Arc::from(id));
        if let Some(record) = inner.live.get(&key).filter(|record| record.owner == *who) {
            return Ok(Target {
                visit: record.enter()?,
                record: record.clone(),
                new: false,
            });
        }
        let ended = inner.callers.get(who).map(|caller| &caller.ended);
        match ended.and_then(|ended| ended.iter().find(|(id, _)| *id == key)) {
            Some((id, gone)) => Err(gone.failure(id)),
            None => Err(no_sandbox(id)),
        }
    }

    /// Returns the caller's default sandbox. Reserves it if there is none.
    pub(crate) fn default(&self, who: &Principal, birth: Birth) -> Result<Target, Failure> {
        let mut inner = lock(&self.inner);
        let current = inner.callers.get(who).and_then(|caller| caller.default.clone());
        if let Some(record) = current.and_then(|id| inner.live.get(&id).cloned())
            && let Ok(visit) = record.enter()
        {
            return Ok(Target {
                record,
                visit,
                new: false,
            });
        }
        Self::room(&inner, who, 1, &birth)?;
        let id = SandboxId::random()?;
        let caller = inner.caller(who);
        let replaces = caller.lost.take();
        caller.default = Some(id.clone());
        let record = Record::new(id.clone(), who.clone(), Birth { replaces, ..birth });
        inner.live.insert(id, record.clone());
        Ok(Target {
            visit: record.enter()?,
            record,
            new: true,
        })
    }

    /// Returns the caller's default sandbox, if there is one.
    pub(crate) fn existing_default(&self, who: &Principal) -> Option<Arc<Record>> {
        let inner = lock(&self.inner);
        let id = inner.callers.get(who)?.default.as_ref()?;
        inner.live.get(id).filter(|record| record.open()).cloned()
    }

    /// Returns the live sandbox of the same key, or reserved records for new ones. Concurrent calls get the same
    /// sandbox.
    pub(crate) fn join_or_reserve(&self, who: &Principal, count: usize, birth: &Birth) -> Result<Place, Failure> {
        let mut inner = lock(&self.inner);
        if let Some(asked) = &birth.asked {
            let mut own = inner
                .live
                .values()
                .filter(|record| record.owner == *who && record.open());
            if let Some(record) = own.find(|record| record.key() == asked.key.as_deref()) {
                let before = record.birth.asked.as_ref();
                policy::same_request(asked, before.unwrap_or(asked), &record.id)?;
                // This is a call about the sandbox like any other: its idle time restarts.
                drop(record.enter()?);
                record.claims.fetch_add(1, Ordering::Relaxed);
                return Ok(Place::Joined(record.clone()));
            }
        }
        Self::reserve_in(&mut inner, who, count, birth).map(Place::Reserved)
    }

    /// Marks a sandbox as delivered to a caller: it stays.
    pub(crate) fn claim(&self, record: &Record) {
        let _inner = lock(&self.inner);
        record.claimed.store(true, Ordering::Relaxed);
    }

    /// Withdraws a caller's claim on a sandbox. Closes the sandbox if no other caller claims it.
    pub(crate) fn disclaim(&self, record: &Record) {
        let mut inner = lock(&self.inner);
        let others = record.claims.fetch_sub(1, Ordering::Relaxed) > 1;
        if !others && !record.claimed.load(Ordering::Relaxed) {
            inner.depart(record, &Gone::now(GoneWhy::Closed));
        }
    }

    /// Reserves `count` records for new sandboxes, or none.
    pub(crate) fn reserve(&self, who: &Principal, count: usize, birth: &Birth) -> Result<Vec<Arc<Record>>, Failure> {
        Self::reserve_in(&mut lock(&self.inner), who, count, birth)
    }

    fn reserve_in(
        inner: &mut Inner,
        who: &Principal,
        count: usize,
        birth: &Birth,
    ) -> Result<Vec<Arc<Record>>, Failure> {
        Self::room(inner, who, count, birth)?;
        let ids = (0..count).map(|_| SandboxId::random()).collect::<Result<Vec<_>, _>>()?;
        let mut records = Vec::with_capacity(count);
        for id in ids {
            let record = Record::new(id.clone(), who.clone(), birth.clone());
            inner.live.insert(id, record.clone());
            records.push(record);
        }
        Ok(records)
    }

    fn room(inner: &Inner, who: &Principal, count: usize, birth: &Birth) -> Result<(), Failure> {
        if !inner.open {
            return Err(ending());
        }
        let own = inner.live.values().filter(|record| record.owner == *who);
        let used = own.clone().count();
        let limit = |used: usize, most: usize, whose: &str, remedy: &str| {
            let asked = if count > 1 {
                format!("; {count} more do not fit")
            } else {
                String::new()
            };
            Failure::new(
                Code::LimitReached,
                format!("{used} of {most} sandboxes{whose} in use{asked}"),
                remedy,
            )
        };
        if count > inner.bounds.per_caller.saturating_sub(used) {
            return Err(limit(
                used,
                inner.bounds.per_caller,
                "",
                "close one with close_sandbox, or use one that you have",
            ));
        }
        if count > inner.bounds.in_all.saturating_sub(inner.live.len()) {
            return Err(limit(
                inner.live.len(),
                inner.bounds.in_all,
                " of this server",
                "close one of yours with close_sandbox, or try again later",
            ));
        }
        inner
            .bounds
            .quota
            .room(own.map(|record| &record.birth.limits), count, &birth.limits)
    }

    /// Lists the caller's sandboxes, oldest first.
    pub(crate) fn of(&self, who: &Principal) -> Vec<Arc<Record>> {
        let mut own: Vec<Arc<Record>> = lock(&self.inner)
            .live
            .values()
            .filter(|record| record.owner == *who)
            .cloned()
            .collect();
        own.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        own
    }

    /// Lists all sandboxes that accept calls, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Record>> {
        let mut all: Vec<Arc<Record>> = lock(&self.inner)
            .live
            .values()
            .filter(|record| record.open())
            .cloned()
            .collect();
        all.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        all
    }

    /// True for the caller's default sandbox.
    pub(crate) fn is_default(&self, record: &Record) -> bool {
        let inner = lock(&self.inner);
        let caller = inner.callers.get(&record.owner);
        caller.is_some_and(|caller| caller.default.as_ref() == Some(&record.id))
    }

    /// Lets a sandbox accept no more calls, and remembers the reason. The sandbox's task then ends it. Returns false if
    /// it was already closing, or if it would expire but is in use.
    pub(crate) fn depart(&self, record: &Record, gone: &Gone) -> bool {
        lock(&self.inner).depart(record, gone)
    }

    /// Removes an ended sandbox, which leaves room for another one.
    pub(crate) fn remove(&self, record: &Record) {
        let mut inner = lock(&self.inner);
        inner.live.remove(&record.id);
        let caller = inner.caller(&record.owner);
        if caller.default.as_ref() == Some(&record.id) {
            // The sandbox was never made, so the pending notice about its predecessor is still pending.
            caller.default = None;
            caller.lost = caller.lost.take().or_else(|| record.birth.replaces.clone());
        }
        drop(inner);
        self.freed.notify_waiters();
    }

    /// Returns the number of live sandboxes and of callers that have one.
    pub(crate) fn count(&self) -> (usize, usize) {
        let inner = lock(&self.inner);
        let owners: HashSet<&Principal> = inner.live.values().map(|record| &record.owner).collect();
        (inner.live.len(), owners.len())
    }

    /// Refuses new sandboxes and returns the existing ones.
    pub(crate) fn shut(&self) -> Vec<Arc<Record>> {
        let mut inner = lock(&self.inner);
        inner.open = false;
        inner.live.values().cloned().collect()
    }
}

impl Inner {
    fn depart(&mut self, record: &Record, gone: &Gone) -> bool {
        if !record.leave(gone, matches!(gone.why, GoneWhy::Idle(_))) {
            return false;
        }
        let caller = self.caller(&record.owner);
        let was_default = caller.default.as_ref() == Some(&record.id);
        if was_default {
            caller.default = None;
        }
        if gone.unexpected() && record.birth.kind != Kind::Throwaway {
            if was_default {
                caller.lost = Some(gone.clone());
            }
            if caller.ended.len() >= REMEMBERED {
                caller.ended.pop_front();
            }
            caller.ended.push_back((record.id.clone(), gone.clone()));
        }
        true
    }

    fn caller(&mut self, who: &Principal) -> &mut Caller {
        if self.callers.len() >= CALLERS && !self.callers.contains_key(who) {
            let live = &self.live;
            let used = |id: &SandboxId| live.contains_key(id);
            let idle = |caller: &Caller| !caller.default.as_ref().is_some_and(used);
            let forgotten = self.callers.iter().find(|(_, caller)| idle(caller));
            if let Some(key) = forgotten.map(|(key, _)| key.clone()) {
                self.callers.remove(&key);
            }
        }
        self.callers.entry(who.clone()).or_default()
    }
}

/// The answer to calls during the shutdown.
pub(crate) fn ending() -> Failure {
    Failure::new(
        Code::BackendUnavailable,
        "the server is ending",
        "start it again and repeat the call",
    )
}
