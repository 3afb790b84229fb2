//! The sandboxes, their owners, and the reasons of ended ones.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandcell_sandbox::{Code, Failure};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::admission::policy;
use crate::api::sync::lock;
use crate::sandbox::state::{CreateParams, Kind, Record, Terminated, TerminationReason, UseGuard, no_sandbox};
use crate::{CreateRequest, EngineConfig, Principal, Quota, SandboxId};

/// Ended sandboxes of each caller that the registry remembers, so that their ids are answered with the reason.
const MAX_ENDED_SANDBOXES: usize = 64;
/// The maximum number of callers without a sandbox in memory.
const MAX_CALLERS: usize = 4096;
/// The maximum time that a call waits for closing sandboxes to leave room.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(2);

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
    callers: HashMap<Principal, CallerState>,
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
struct CallerState {
    default: Option<SandboxId>,
    /// The end of the last default sandbox, until a result has reported it.
    lost: Option<Terminated>,
    ended: VecDeque<(SandboxId, Terminated)>,
}

/// The result of a request for sandboxes.
#[derive(Debug)]
pub(crate) enum Reservation {
    /// Reserved records. The call must make their sandboxes.
    Reserved(Vec<Arc<Record>>),
    /// An existing sandbox, or one that another call makes.
    Joined(Arc<Record>),
}

/// A sandbox that a call can use.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) record: Arc<Record>,
    pub(crate) guard: UseGuard,
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
    pub(crate) async fn retry_while_closing<T>(
        &self,
        principal: &Principal,
        ask: impl Fn(&Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let until = Instant::now() + CLOSING_TIMEOUT;
        loop {
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            let answer = ask(self);
            let full = matches!(&answer, Err(failure) if failure.code == Code::LimitReached);
            if !full || !self.has_closing(principal) || timeout_at(until, freed).await.is_err() {
                return answer;
            }
        }
    }

    /// True if closing sandboxes will soon leave room for this caller.
    fn has_closing(&self, principal: &Principal) -> bool {
        let inner = lock(&self.inner);
        let full = inner.live.len() >= inner.bounds.in_all;
        let mut missed = inner.live.values().filter(|record| full || record.owner == *principal);
        missed.any(|record| record.terminated().is_some())
    }

    /// Replaces the bounds for later requests.
    pub(crate) fn change(&self, config: &EngineConfig) {
        lock(&self.inner).bounds = Bounds::of(config);
    }

    /// Returns the caller's sandbox with this id.
    pub(crate) fn find(&self, principal: &Principal, id: &str) -> Result<Target, Failure> {
        let inner = lock(&self.inner);
        let key = SandboxId(Arc::from(id));
        if let Some(record) = inner.live.get(&key).filter(|record| record.owner == *principal) {
            return Ok(Target {
                guard: record.start_use()?,
                record: record.clone(),
                new: false,
            });
        }
        let ended = inner.callers.get(principal).map(|caller| &caller.ended);
        match ended.and_then(|ended| ended.iter().find(|(id, _)| *id == key)) {
            Some((id, terminated)) => Err(terminated.failure(id)),
            None => Err(no_sandbox(id)),
        }
    }

    /// True if the caller has a sandbox with this id that accepts calls.
    pub(crate) fn has(&self, principal: &Principal, id: &str) -> bool {
        self.record(principal, id).is_some_and(|record| record.open())
    }

    /// Returns the caller's sandbox with this id. Asking does not count as using it.
    pub(crate) fn record(&self, principal: &Principal, id: &str) -> Option<Arc<Record>> {
        let inner = lock(&self.inner);
        let record = inner.live.get(&SandboxId(Arc::from(id)));
        record.filter(|record| record.owner == *principal).cloned()
    }

    /// Returns the caller's default sandbox. Reserves it if there is none.
    pub(crate) fn default(&self, principal: &Principal, params: CreateParams) -> Result<Target, Failure> {
        let mut inner = lock(&self.inner);
        let current = inner.callers.get(principal).and_then(|caller| caller.default.clone());
        if let Some(record) = current.and_then(|id| inner.live.get(&id).cloned())
            && let Ok(guard) = record.start_use()
        {
            return Ok(Target {
                record,
                guard,
                new: false,
            });
        }
        Self::check_room(&inner, principal, 1, &params)?;
        let id = SandboxId::random()?;
        let caller = inner.caller(principal);
        let replaces = caller.lost.take();
        caller.default = Some(id.clone());
        let record = Record::new(id.clone(), principal.clone(), CreateParams { replaces, ..params });
        inner.live.insert(id, record.clone());
        Ok(Target {
            guard: record.start_use()?,
            record,
            new: true,
        })
    }

    /// Returns the caller's default sandbox, if there is one.
    pub(crate) fn existing_default(&self, principal: &Principal) -> Option<Arc<Record>> {
        let inner = lock(&self.inner);
        let id = inner.callers.get(principal)?.default.as_ref()?;
        inner.live.get(id).filter(|record| record.open()).cloned()
    }

    /// Returns the live sandbox of the same key, or reserved records for new ones. Concurrent calls get the same
    /// sandbox.
    pub(crate) fn join_or_reserve(
        &self,
        principal: &Principal,
        count: usize,
        params: &CreateParams,
    ) -> Result<Reservation, Failure> {
        let mut inner = lock(&self.inner);
        if let Some(asked) = &params.asked
            && let Some(record) = Self::join_in(&inner, principal, asked)?
        {
            return Ok(Reservation::Joined(record));
        }
        Self::reserve_in(&mut inner, principal, count, params).map(Reservation::Reserved)
    }

    /// Returns the sandbox that an earlier request with the same key has made.
    pub(crate) fn join(&self, principal: &Principal, asked: &CreateRequest) -> Result<Option<Arc<Record>>, Failure> {
        Self::join_in(&lock(&self.inner), principal, asked)
    }

    fn join_in(inner: &Inner, principal: &Principal, asked: &CreateRequest) -> Result<Option<Arc<Record>>, Failure> {
        let mut own = inner
            .live
            .values()
            .filter(|record| record.owner == *principal && record.open());
        let Some(record) = own.find(|record| record.key() == asked.key.as_deref()) else {
            return Ok(None);
        };
        if let Some(before) = &record.params.asked {
            policy::same_request(asked, before, &record.id)?;
        }
        // This is a call about the sandbox like any other: its idle time restarts.
        drop(record.start_use()?);
        record.claims.fetch_add(1, Ordering::Relaxed);
        Ok(Some(record.clone()))
    }

    /// Marks a sandbox as delivered to a caller: it stays.
    pub(crate) fn claim(&self, record: &Record) {
        let _inner = lock(&self.inner);
        record.claimed.store(true, Ordering::Relaxed);
    }

    /// Withdraws a caller's claim on a sandbox. Closes the sandbox if no other caller claims it.
    pub(crate) fn release_claim(&self, record: &Record) {
        let mut inner = lock(&self.inner);
        let others = record.claims.fetch_sub(1, Ordering::Relaxed) > 1;
        if !others && !record.claimed.load(Ordering::Relaxed) {
            inner.begin_close(record, &Terminated::now(TerminationReason::Closed));
        }
    }

    /// Fails if there is no room for `count` sandboxes now.
    pub(crate) fn check_free(&self, principal: &Principal, count: usize, params: &CreateParams) -> Result<(), Failure> {
        Self::check_room(&lock(&self.inner), principal, count, params)
    }

    /// Reserves `count` records for new sandboxes, or none.
    pub(crate) fn reserve(
        &self,
        principal: &Principal,
        count: usize,
        params: &CreateParams,
    ) -> Result<Vec<Arc<Record>>, Failure> {
        Self::reserve_in(&mut lock(&self.inner), principal, count, params)
    }

    fn reserve_in(
        inner: &mut Inner,
        principal: &Principal,
        count: usize,
        params: &CreateParams,
    ) -> Result<Vec<Arc<Record>>, Failure> {
        Self::check_room(inner, principal, count, params)?;
        let ids = (0..count).map(|_| SandboxId::random()).collect::<Result<Vec<_>, _>>()?;
        let mut records = Vec::with_capacity(count);
        for id in ids {
            let record = Record::new(id.clone(), principal.clone(), params.clone());
            inner.live.insert(id, record.clone());
            records.push(record);
        }
        Ok(records)
    }

    fn check_room(inner: &Inner, principal: &Principal, count: usize, params: &CreateParams) -> Result<(), Failure> {
        if !inner.open {
            return Err(ending());
        }
        let own = inner.live.values().filter(|record| record.owner == *principal);
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
            .check_room(own.map(|record| &record.params.limits), count, &params.limits)
    }

    /// Lists the caller's sandboxes, oldest first.
    pub(crate) fn of(&self, principal: &Principal) -> Vec<Arc<Record>> {
        let mut own: Vec<Arc<Record>> = lock(&self.inner)
            .live
            .values()
            .filter(|record| record.owner == *principal)
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
    pub(crate) fn begin_close(&self, record: &Record, terminated: &Terminated) -> bool {
        lock(&self.inner).begin_close(record, terminated)
    }

    /// Removes an ended sandbox, which leaves room for another one.
    pub(crate) fn remove(&self, record: &Record) {
        let mut inner = lock(&self.inner);
        inner.live.remove(&record.id);
        let caller = inner.caller(&record.owner);
        if caller.default.as_ref() == Some(&record.id) {
            // The sandbox was never made, so the pending notice about its predecessor is still pending.
            caller.default = None;
            caller.lost = caller.lost.take().or_else(|| record.params.replaces.clone());
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
    pub(crate) fn close(&self) -> Vec<Arc<Record>> {
        let mut inner = lock(&self.inner);
        inner.open = false;
        inner.live.values().cloned().collect()
    }
}

impl Inner {
    fn begin_close(&mut self, record: &Record, terminated: &Terminated) -> bool {
        if !record.begin_close(terminated, matches!(terminated.why, TerminationReason::Idle(_))) {
            return false;
        }
        let caller = self.caller(&record.owner);
        let was_default = caller.default.as_ref() == Some(&record.id);
        if was_default {
            caller.default = None;
        }
        if terminated.unexpected() && record.params.kind != Kind::Throwaway {
            if was_default {
                caller.lost = Some(terminated.clone());
            }
            if caller.ended.len() >= MAX_ENDED_SANDBOXES {
                caller.ended.pop_front();
            }
            caller.ended.push_back((record.id.clone(), terminated.clone()));
        }
        true
    }

    fn caller(&mut self, principal: &Principal) -> &mut CallerState {
        if self.callers.len() >= MAX_CALLERS && !self.callers.contains_key(principal) {
            let live = &self.live;
            let used = |id: &SandboxId| live.contains_key(id);
            let idle = |caller: &CallerState| !caller.default.as_ref().is_some_and(used);
            let forgotten = self.callers.iter().find(|(_, caller)| idle(caller));
            if let Some(key) = forgotten.map(|(key, _)| key.clone()) {
                self.callers.remove(&key);
            }
        }
        self.callers.entry(principal.clone()).or_default()
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
