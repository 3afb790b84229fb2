//! One sandbox's life as the engine sees it: being made, live, closing, gone; who is busy in it; when it ends.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use sandcell_sandbox::{Code, EndReason, Failure, Held, Isolation, Limits, NetworkRule, Sandbox, Usage, Way};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::rfc3339;
use crate::output::Budget;
use crate::passed::PassedOver;
use crate::sessions::Slot;
use crate::sync::lock;
use crate::{CreateRequest, MemoryGrowth, Principal, SandboxId};

/// Of so many executions it is known what they did to the memory.
const GROWTH_KEPT: usize = 10;
/// What a caller can do when a sandbox is not there any more.
const START_AGAIN: &str = "call again without sandbox_id for a new default sandbox, or use create_sandbox";

/// Why and when a sandbox ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) why: GoneWhy,
    pub(crate) at: SystemTime,
}

/// Why a sandbox ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GoneWhy {
    /// Its owner closed it, or it was for one run only.
    Closed,
    /// Nobody used it for so long.
    Idle(Duration),
    /// The lifetime that was asked for is over.
    Lifetime,
    /// It ended by itself.
    Lost(EndReason),
    /// Code in it could not be killed, so all of it was.
    Unresponsive,
    /// The server ends.
    Shutdown,
}

impl Gone {
    pub(crate) fn now(why: GoneWhy) -> Self {
        Self {
            why,
            at: SystemTime::now(),
        }
    }

    /// Whether the owner did not ask for it and has to be told.
    pub(crate) const fn unexpected(&self) -> bool {
        !matches!(self.why, GoneWhy::Closed)
    }

    /// What happened, as the end of a sentence about the sandbox.
    pub(crate) fn story(&self) -> String {
        let at = rfc3339(self.at);
        match self.why {
            GoneWhy::Closed => format!("was closed at {at}"),
            GoneWhy::Idle(idle) => format!("expired at {at} after {} without a call", span(idle)),
            GoneWhy::Lifetime => format!("expired at {at}, at the end of its lifetime"),
            GoneWhy::Lost(reason) => format!("was lost at {at}: {reason}"),
            GoneWhy::Unresponsive => format!("was closed at {at} because code in it could not be killed"),
            GoneWhy::Shutdown => format!("was closed at {at} because the server ends"),
        }
    }

    pub(crate) const fn code(&self) -> Code {
        match self.why {
            GoneWhy::Closed => Code::NotFound,
            GoneWhy::Idle(_) | GoneWhy::Lifetime => Code::Expired,
            GoneWhy::Lost(reason) => reason.code(),
            GoneWhy::Unresponsive | GoneWhy::Shutdown => Code::SessionLost,
        }
    }

    /// The answer to a call that names the sandbox.
    pub(crate) fn failure(&self, id: &SandboxId) -> Failure {
        if matches!(self.why, GoneWhy::Closed) {
            return no_sandbox(id.as_str());
        }
        Failure::new(
            self.code(),
            format!("sandbox {id} {}; its variables and files are gone", self.story()),
            START_AGAIN,
        )
    }
}

/// The answer for unknown, closed and foreign ids: the same for all three.
pub(crate) fn no_sandbox(id: &str) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("there is no sandbox '{}'", crate::ids::echo(id)),
        "get_sandbox_status without an id lists yours; without sandbox_id the default one is used",
    )
}

/// A duration for people: whole minutes where it is some, else seconds.
pub(crate) fn span(duration: Duration) -> String {
    match duration.as_secs() {
        seconds if seconds >= 120 && seconds % 60 == 0 => format!("{} min", seconds / 60),
        _ => format!("{} s", duration.as_secs_f64()),
    }
}

/// What a sandbox was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Calls without an id.
    Default,
    /// Its owner asked for it.
    Asked,
    /// One run.
    Throwaway,
}

#[derive(Debug, Clone)]
enum Stage {
    Making,
    Live(Arc<dyn Sandbox>),
    Failed(Failure),
    Closing(Gone),
    Gone(Gone),
}

#[derive(Debug)]
struct State {
    stage: Stage,
    busy: usize,
    last: Instant,
    usage: Option<Usage>,
}

/// What is fixed when a sandbox is made.
#[derive(Debug, Clone)]
pub(crate) struct Birth {
    pub(crate) kind: Kind,
    pub(crate) label: Option<String>,
    /// What was asked for, of those that have a key.
    pub(crate) asked: Option<Arc<CreateRequest>>,
    pub(crate) limits: Limits,
    pub(crate) lifetime: Option<Duration>,
    pub(crate) idle: Duration,
    /// What it may reach.
    pub(crate) network: NetworkRule,
    /// What it will be isolated by, as far as is known before it is there.
    pub(crate) planned: Arc<Isolation>,
    /// The default sandbox that it stands in for.
    pub(crate) replaces: Option<Gone>,
}

/// A sandbox and everything the engine knows about it.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) id: SandboxId,
    pub(crate) owner: Principal,
    pub(crate) birth: Birth,
    pub(crate) created: SystemTime,
    born: Instant,
    state: Mutex<State>,
    changed: watch::Sender<()>,
    pub(crate) slots: Mutex<BTreeMap<String, Arc<Slot>>>,
    /// One installation at a time.
    pub(crate) installing: tokio::sync::Mutex<()>,
    /// Packages, each with the language that it is for.
    held: Mutex<Vec<(String, Held)>>,
    /// What the streams of its running executions may keep together.
    pub(crate) output: OnceLock<Arc<Budget>>,
    /// Its way to the hosts that it may reach.
    pub(crate) way: OnceLock<Arc<dyn Way>>,
    /// What it is isolated by, once for all its executions.
    isolation: OnceLock<Arc<Isolation>>,
    passed: Mutex<Vec<PassedOver>>,
    growth: Mutex<VecDeque<MemoryGrowth>>,
    /// Calls that asked for it and have no answer yet. Changed under the registry's lock only.
    pub(crate) claims: AtomicUsize,
    /// Whether one of them got it.
    pub(crate) claimed: AtomicBool,
}

/// When a sandbox ends, as clocks of this process say it.
pub(crate) struct Deadlines {
    pub(crate) idle: Instant,
    pub(crate) lifetime: Option<Instant>,
    pub(crate) busy: bool,
}

impl Record {
    pub(crate) fn new(id: SandboxId, owner: Principal, birth: Birth) -> Arc<Self> {
        Arc::new(Self {
            id,
            owner,
            birth,
            created: SystemTime::now(),
            born: Instant::now(),
            state: Mutex::new(State {
                stage: Stage::Making,
                busy: 0,
                last: Instant::now(),
                usage: None,
            }),
            changed: watch::Sender::new(()),
            slots: Mutex::default(),
            installing: tokio::sync::Mutex::default(),
            held: Mutex::default(),
            output: OnceLock::new(),
            way: OnceLock::new(),
            isolation: OnceLock::new(),
            passed: Mutex::default(),
            growth: Mutex::default(),
            claims: AtomicUsize::new(1),
            claimed: AtomicBool::new(false),
        })
    }

    /// Marks the caller as busy in it, so that it does not expire meanwhile.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Visit, Failure> {
        let mut state = lock(&self.state);
        match &state.stage {
            Stage::Making | Stage::Live(_) => {
                state.busy += 1;
                Ok(Visit { record: self.clone() })
            }
            Stage::Failed(failure) => Err(failure.clone()),
            Stage::Closing(gone) | Stage::Gone(gone) => Err(gone.failure(&self.id)),
        }
    }

    /// Waits until the sandbox is there (bounded: whoever makes it keeps a deadline).
    pub(crate) async fn ready(&self) -> Result<Arc<dyn Sandbox>, Failure> {
        self.until(|stage| match stage {
            Stage::Making => None,
            Stage::Live(sandbox) => Some(Ok(sandbox.clone())),
            Stage::Failed(failure) => Some(Err(failure.clone())),
            Stage::Closing(gone) | Stage::Gone(gone) => Some(Err(gone.failure(&self.id))),
        })
        .await
    }

    /// Waits until the sandbox is on its way out.
    pub(crate) async fn closing(&self) -> Gone {
        self.until(|stage| match stage {
            Stage::Making | Stage::Live(_) => None,
            Stage::Failed(_) => Some(Gone::now(GoneWhy::Closed)),
            Stage::Closing(gone) | Stage::Gone(gone) => Some(gone.clone()),
        })
        .await
    }

    /// Waits until nothing is left of it.
    pub(crate) async fn gone(&self) {
        self.until(|stage| matches!(stage, Stage::Failed(_) | Stage::Gone(_)).then_some(()))
            .await;
    }

    async fn until<T>(&self, pick: impl Fn(&Stage) -> Option<T>) -> T {
        let mut changes = self.changed.subscribe();
        loop {
            changes.mark_unchanged();
            if let Some(found) = pick(&lock(&self.state).stage) {
                return found;
            }
            if changes.changed().await.is_err() {
                // The sender lives in `self`, so this cannot happen; waiting for ever would be the same.
                std::future::pending::<()>().await;
            }
        }
    }

    /// The sandbox, if it is there now.
    pub(crate) fn live(&self) -> Option<Arc<dyn Sandbox>> {
        match &lock(&self.state).stage {
            Stage::Live(sandbox) => Some(sandbox.clone()),
            Stage::Making | Stage::Failed(_) | Stage::Closing(_) | Stage::Gone(_) => None,
        }
    }

    /// Whether it takes new calls.
    pub(crate) fn open(&self) -> bool {
        matches!(&lock(&self.state).stage, Stage::Making | Stage::Live(_))
    }

    /// Why it is on its way out, if it is.
    pub(crate) fn departed(&self) -> Option<Gone> {
        match &lock(&self.state).stage {
            Stage::Closing(gone) | Stage::Gone(gone) => Some(gone.clone()),
            Stage::Making | Stage::Live(_) | Stage::Failed(_) => None,
        }
    }

    /// Back ends that could not make it, in order.
    pub(crate) fn passed_over(&self, passed: Vec<PassedOver>) {
        *lock(&self.passed) = passed;
    }

    /// Those.
    pub(crate) fn passed(&self) -> Vec<PassedOver> {
        lock(&self.passed).clone()
    }

    /// What its sandbox says that it is isolated by.
    pub(crate) fn isolation(&self, sandbox: &dyn Sandbox) -> Arc<Isolation> {
        let isolation = || Arc::new(sandbox.isolation().clone());
        self.isolation.get_or_init(isolation).clone()
    }

    /// What it is called in status answers.
    pub(crate) fn state_word(&self) -> &'static str {
        let state = lock(&self.state);
        match &state.stage {
            Stage::Making => "starting",
            Stage::Live(_) if state.busy > 0 => "busy",
            Stage::Live(_) => "idle",
            Stage::Failed(_) | Stage::Closing(_) | Stage::Gone(_) => "closing",
        }
    }

    /// The sandbox is there. False if it is not wanted any more.
    pub(crate) fn born(&self, sandbox: Arc<dyn Sandbox>) -> bool {
        let wanted = {
            let mut state = lock(&self.state);
            let wanted = matches!(state.stage, Stage::Making);
            if wanted {
                state.stage = Stage::Live(sandbox);
                state.last = Instant::now();
            }
            wanted
        };
        self.changed.send_replace(());
        wanted
    }

    /// It could not be made.
    pub(crate) fn failed(&self, failure: Failure) {
        lock(&self.state).stage = Stage::Failed(failure);
        self.changed.send_replace(());
    }

    /// Takes no more calls from now on. False if that was so already, or `unless_busy` and somebody is.
    pub(crate) fn leave(&self, gone: &Gone, unless_busy: bool) -> bool {
        let left = {
            let mut state = lock(&self.state);
            let open = matches!(state.stage, Stage::Making | Stage::Live(_));
            let left = open && !(unless_busy && (state.busy > 0 || Instant::now() < state.last + self.birth.idle));
            if left {
                state.stage = Stage::Closing(gone.clone());
            }
            left
        };
        self.changed.send_replace(());
        left
    }

    /// Nothing is left of it.
    pub(crate) fn ended(&self) {
        {
            let mut state = lock(&self.state);
            if let Stage::Closing(gone) = &state.stage {
                state.stage = Stage::Gone(gone.clone());
            }
        }
        self.changed.send_replace(());
    }

    pub(crate) fn is_for_one_run(&self) -> bool {
        self.birth.kind == Kind::Throwaway
    }

    /// When it ends, as callers are told; none if it is for one run.
    pub(crate) fn expiry(&self) -> Option<crate::Expiry> {
        let lifetime = self.birth.lifetime;
        (!self.is_for_one_run()).then(|| crate::Expiry {
            idle: self.birth.idle,
            ends: lifetime.map(|lifetime| self.created + lifetime),
            lifetime,
        })
    }

    /// The key that it was asked for with.
    pub(crate) fn key(&self) -> Option<&str> {
        self.birth.asked.as_ref()?.key.as_deref()
    }

    /// When it ends, as things stand.
    pub(crate) fn deadlines(&self) -> Deadlines {
        let state = lock(&self.state);
        let busy = state.busy > 0;
        let since = if busy { Instant::now() } else { state.last };
        Deadlines {
            idle: since + self.birth.idle,
            lifetime: self.birth.lifetime.map(|lifetime| self.born + lifetime),
            busy,
        }
    }

    /// The last known reading of what it uses.
    pub(crate) fn usage(&self) -> Option<Usage> {
        lock(&self.state).usage
    }

    pub(crate) fn remember_usage(&self, usage: Usage) {
        lock(&self.state).usage = Some(usage);
    }

    /// Notes what an execution did to the memory; the oldest is forgotten.
    pub(crate) fn grew(&self, growth: MemoryGrowth) {
        let mut kept = lock(&self.growth);
        kept.truncate(GROWTH_KEPT - 1);
        kept.push_front(growth);
    }

    /// What the last executions did to it, oldest first.
    pub(crate) fn growth(&self) -> Vec<MemoryGrowth> {
        lock(&self.growth).iter().rev().cloned().collect()
    }

    /// The packages of a language that were installed in it.
    pub(crate) fn packages(&self, language: &str) -> Vec<Held> {
        let held = lock(&self.held);
        let own = held.iter().filter(|(of, _)| of == language);
        own.map(|(_, one)| one.clone()).collect()
    }

    /// All of them, each with its language.
    pub(crate) fn all_packages(&self) -> Vec<(String, Held)> {
        lock(&self.held).clone()
    }

    /// Notes packages that it has now; another version takes the place of the one before.
    pub(crate) fn hold(&self, language: &str, added: &[Held]) {
        let mut held = lock(&self.held);
        held.retain(|(of, one)| of != language || added.iter().all(|new| new.name != one.name));
        held.extend(added.iter().map(|one| (language.to_owned(), one.clone())));
        held.sort();
    }

    /// Ends its interpreters.
    pub(crate) fn drop_sessions(&self) {
        let slots: Vec<Arc<Slot>> = lock(&self.slots).values().cloned().collect();
        for slot in slots {
            drop(slot.take());
        }
    }
}

/// Somebody is busy in a sandbox; its idle time starts when the last one is dropped.
#[derive(Debug)]
pub(crate) struct Visit {
    record: Arc<Record>,
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut state = lock(&self.record.state);
        state.busy = state.busy.saturating_sub(1);
        state.last = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use sandcell_sandbox::Level;

    use super::*;

    fn record(idle: Duration) -> Arc<Record> {
        let birth = Birth {
            kind: Kind::Default,
            label: None,
            asked: None,
            limits: Limits::default(),
            lifetime: None,
            idle,
            network: NetworkRule::None,
            planned: Arc::new(Isolation {
                backend: "none".to_owned(),
                level: Level::None,
                layers: Vec::new(),
                degraded: Vec::new(),
            }),
            replaces: None,
        };
        Record::new(SandboxId::random().unwrap(), Principal::new("me"), birth)
    }

    #[tokio::test(start_paused = true)]
    async fn a_sandbox_that_is_entered_in_the_moment_of_its_expiry_stays() {
        let idle = Duration::from_secs(60);
        let record = record(idle);
        let expired = Gone::now(GoneWhy::Idle(idle));
        tokio::time::advance(idle).await;
        let visit = record.enter().unwrap();
        assert!(!record.leave(&expired, true), "somebody is in it");
        drop(visit);
        assert!(!record.leave(&expired, true), "somebody just left it");
        tokio::time::advance(idle).await;
        assert!(record.leave(&expired, true));
        assert_eq!(record.enter().unwrap_err().code, Code::Expired);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_in_it_does_not_keep_its_owner_from_closing_it() {
        let record = record(Duration::from_secs(60));
        let _visit = record.enter().unwrap();
        assert!(record.leave(&Gone::now(GoneWhy::Closed), false));
        assert!(
            !record.leave(&Gone::now(GoneWhy::Closed), false),
            "only the first counts"
        );
    }
}
