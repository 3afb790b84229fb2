//! The state of one sandbox: its stage from creation to end, its users, and its deadlines.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use sandcell_sandbox::{
    Code, EgressRoute, EndReason, Failure, Isolation, Limits, Network, NetworkRule, PackageVersion, Sandbox, Usage,
    rfc3339,
};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::SkippedBackend;
use crate::api::sync::lock;
use crate::output::Budget;
use crate::sandbox::checkpoints::Checkpoints;
use crate::sandbox::mounts::Committed;
use crate::sandbox::pause::Pauses;
use crate::sandbox::session::{SessionKey, SessionSlot};
use crate::sandbox::tools::SandboxTools;
use crate::{CreateRequest, MemoryGrowth, Principal, SandboxId};

/// The number of executions whose effect on memory the record remembers.
const MAX_GROWTH_ENTRIES: usize = 10;
/// The remedy when a sandbox has ended.
const NEW_SANDBOX_REMEDY: &str = "call again without sandbox_id for a new default sandbox, or use create_sandbox";

/// The end of a sandbox: its reason and time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Terminated {
    pub(crate) why: TerminationReason,
    pub(crate) at: SystemTime,
}

/// The reason for a sandbox's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TerminationReason {
    /// Its owner closed it, or it was for one run only.
    Closed,
    /// No caller used it for this long.
    Idle(Duration),
    /// The requested lifetime is over.
    Lifetime,
    /// It ended by itself.
    Lost(EndReason),
    /// Code in it could not be killed, so the whole sandbox was closed.
    Unresponsive,
    /// Code in it ran while it was paused.
    RanWhilePaused,
    /// The server ends.
    Shutdown,
}

impl Terminated {
    /// Returns the notice in the first result of a replacement sandbox.
    pub(crate) fn replacement_notice(&self) -> String {
        format!(
            "new sandbox: the previous one {}; its variables and files are gone",
            self.description()
        )
    }

    pub(crate) fn now(why: TerminationReason) -> Self {
        Self {
            why,
            at: SystemTime::now(),
        }
    }

    /// True if the owner did not ask for the end and must learn of it.
    pub(crate) const fn unexpected(&self) -> bool {
        !matches!(self.why, TerminationReason::Closed)
    }

    /// Describes the end, as the second half of a sentence about the sandbox.
    pub(crate) fn description(&self) -> String {
        let at = rfc3339(self.at);
        match self.why {
            TerminationReason::Closed => format!("was closed at {at}"),
            TerminationReason::Idle(idle) => format!("expired at {at} after {} without a call", span(idle)),
            TerminationReason::Lifetime => format!("expired at {at}, at the end of its lifetime"),
            TerminationReason::Lost(reason) => format!("was lost at {at}: {reason}"),
            TerminationReason::Unresponsive => format!("was closed at {at} because code in it could not be killed"),
            TerminationReason::RanWhilePaused => {
                format!("was closed at {at} because code in it continued although it was paused")
            }
            TerminationReason::Shutdown => format!("was closed at {at} because the server ends"),
        }
    }

    pub(crate) const fn code(&self) -> Code {
        match self.why {
            TerminationReason::Closed => Code::NotFound,
            TerminationReason::Idle(_) | TerminationReason::Lifetime => Code::Expired,
            TerminationReason::Lost(reason) => reason.code(),
            TerminationReason::Unresponsive | TerminationReason::RanWhilePaused | TerminationReason::Shutdown => {
                Code::SessionLost
            }
        }
    }

    /// Returns the answer to a call that names the sandbox.
    pub(crate) fn failure(&self, id: &SandboxId) -> Failure {
        if matches!(self.why, TerminationReason::Closed) {
            return no_sandbox(id.as_str());
        }
        Failure::new(
            self.code(),
            format!("sandbox {id} {}; its variables and files are gone", self.description()),
            NEW_SANDBOX_REMEDY,
        )
    }
}

/// The answer for unknown, closed and foreign ids: the same for all three.
pub(crate) fn no_sandbox(id: &str) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("there is no sandbox '{}'", crate::api::ids::quote_for_error(id)),
        "get_sandbox_status without an id lists yours; without sandbox_id the default one is used",
    )
}

/// Formats a duration for people: in whole minutes if possible, else in seconds.
pub(crate) fn span(duration: Duration) -> String {
    match duration.as_secs() {
        seconds if seconds >= 120 && seconds % 60 == 0 => format!("{} min", seconds / 60),
        _ => format!("{} s", duration.as_secs_f64()),
    }
}

/// The time to the idle deadline of a paused sandbox.
const FAR_FUTURE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The purpose of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Calls without an id.
    Default,
    /// A request for a sandbox.
    Requested,
    /// One run.
    Throwaway,
}

#[derive(Debug, Clone)]
enum Stage {
    Making,
    Live(Arc<dyn Sandbox>),
    Failed(Failure),
    Closing(Terminated),
    Ended(Terminated),
}

#[derive(Debug)]
struct State {
    stage: Stage,
    busy: usize,
    last: Instant,
    usage: Option<Usage>,
    /// The time from its creation to its end in any case.
    lifetime: Option<Duration>,
}

/// The parameters of a sandbox that are fixed at its creation.
#[derive(Debug, Clone)]
pub(crate) struct CreateParams {
    pub(crate) kind: Kind,
    pub(crate) label: Option<String>,
    /// The request, if it has a key.
    pub(crate) asked: Option<Arc<CreateRequest>>,
    pub(crate) limits: Limits,
    pub(crate) lifetime: Option<Duration>,
    pub(crate) idle: Duration,
    /// True if it is paused at the end of its lifetime, and does not end.
    pub(crate) pauses_at_end: bool,
    /// The hosts that it can reach at first. [`Record::network`] has those of now.
    pub(crate) network: NetworkRule,
    /// The environment variables that the request has set.
    pub(crate) env: Arc<BTreeMap<String, String>>,
    /// The expected isolation, until the sandbox exists.
    pub(crate) planned: Arc<Isolation>,
    /// The end of the default sandbox that this one replaces.
    pub(crate) replaces: Option<Terminated>,
}

/// A sandbox and the engine's state about it.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) id: SandboxId,
    pub(crate) owner: Principal,
    pub(crate) params: CreateParams,
    pub(crate) created: SystemTime,
    born: Instant,
    state: Mutex<State>,
    changed: watch::Sender<()>,
    expiry_changed: Notify,
    pub(crate) pauses: Pauses,
    pub(crate) slots: Mutex<BTreeMap<SessionKey, Arc<SessionSlot>>>,
    /// Held during an installation: one at a time.
    pub(crate) installing: tokio::sync::Mutex<()>,
    /// Installed packages, each with its language.
    held: Mutex<Vec<(String, PackageVersion)>>,
    /// The memory budget for the output of its running executions.
    pub(crate) output: OnceLock<Arc<Budget>>,
    /// The hosts that it can reach now.
    pub(crate) network: Mutex<NetworkRule>,
    /// Its route to the allowed hosts, and the network that made it.
    pub(crate) route: OnceLock<(Arc<dyn EgressRoute>, Arc<dyn Network>)>,
    /// The host's tools that its code may call.
    pub(crate) tools: SandboxTools,
    /// Its earlier states.
    pub(crate) checkpoints: Checkpoints,
    /// The states that its commits left on the host.
    pub(crate) committed: Committed,
    /// Its isolation, shared by all its executions.
    isolation: OnceLock<Arc<Isolation>>,
    skipped: Mutex<Vec<SkippedBackend>>,
    growth: Mutex<VecDeque<MemoryGrowth>>,
    /// The number of callers that asked for it and have no answer yet. Changed under the registry's lock only.
    pub(crate) claims: AtomicUsize,
    /// True if one of them got it.
    pub(crate) claimed: AtomicBool,
}

/// The deadlines of a sandbox in monotonic time.
pub(crate) struct Deadlines {
    pub(crate) idle: Instant,
    pub(crate) lifetime: Option<Instant>,
    pub(crate) busy: bool,
}

impl Record {
    pub(crate) fn new(id: SandboxId, owner: Principal, params: CreateParams) -> Arc<Self> {
        let lifetime = params.lifetime;
        let network = Mutex::new(params.network.clone());
        Arc::new(Self {
            id,
            owner,
            params,
            created: SystemTime::now(),
            born: Instant::now(),
            state: Mutex::new(State {
                stage: Stage::Making,
                busy: 0,
                last: Instant::now(),
                usage: None,
                lifetime,
            }),
            changed: watch::Sender::new(()),
            expiry_changed: Notify::new(),
            pauses: Pauses::default(),
            slots: Mutex::default(),
            installing: tokio::sync::Mutex::default(),
            held: Mutex::default(),
            output: OnceLock::new(),
            network,
            route: OnceLock::new(),
            tools: SandboxTools::default(),
            checkpoints: Checkpoints::default(),
            committed: Committed::default(),
            isolation: OnceLock::new(),
            skipped: Mutex::default(),
            growth: Mutex::default(),
            claims: AtomicUsize::new(1),
            claimed: AtomicBool::new(false),
        })
    }

    /// Marks the sandbox as busy, so that it does not expire meanwhile.
    pub(crate) fn start_use(self: &Arc<Self>) -> Result<UseGuard, Failure> {
        let mut state = lock(&self.state);
        match &state.stage {
            Stage::Making | Stage::Live(_) => {
                state.busy += 1;
                Ok(UseGuard { record: self.clone() })
            }
            Stage::Failed(failure) => Err(failure.clone()),
            Stage::Closing(terminated) | Stage::Ended(terminated) => Err(terminated.failure(&self.id)),
        }
    }

    /// Waits until the sandbox is ready, and resumes it if it is paused. Bounded: its task makes it within a deadline.
    pub(crate) async fn ready(self: &Arc<Self>) -> Result<Arc<dyn Sandbox>, Failure> {
        let sandbox = self.made().await?;
        self.resume(None).await?;
        Ok(sandbox)
    }

    pub(crate) async fn made(&self) -> Result<Arc<dyn Sandbox>, Failure> {
        self.until(|stage| match stage {
            Stage::Making => None,
            Stage::Live(sandbox) => Some(Ok(sandbox.clone())),
            Stage::Failed(failure) => Some(Err(failure.clone())),
            Stage::Closing(terminated) | Stage::Ended(terminated) => Some(Err(terminated.failure(&self.id))),
        })
        .await
    }

    /// Waits until the sandbox begins to close.
    pub(crate) async fn wait_closing(&self) -> Terminated {
        self.until(|stage| match stage {
            Stage::Making | Stage::Live(_) => None,
            Stage::Failed(_) => Some(Terminated::now(TerminationReason::Closed)),
            Stage::Closing(terminated) | Stage::Ended(terminated) => Some(terminated.clone()),
        })
        .await
    }

    /// Waits until the sandbox has ended.
    pub(crate) async fn wait_ended(&self) {
        self.until(|stage| matches!(stage, Stage::Failed(_) | Stage::Ended(_)).then_some(()))
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
                // The sender lives in `self`, so this cannot happen. Waiting forever has the same effect.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns the sandbox, if it is live.
    pub(crate) fn live(&self) -> Option<Arc<dyn Sandbox>> {
        match &lock(&self.state).stage {
            Stage::Live(sandbox) => Some(sandbox.clone()),
            Stage::Making | Stage::Failed(_) | Stage::Closing(_) | Stage::Ended(_) => None,
        }
    }

    /// True if the sandbox accepts calls.
    pub(crate) fn open(&self) -> bool {
        matches!(&lock(&self.state).stage, Stage::Making | Stage::Live(_))
    }

    /// Returns the reason of its end, if it is closing or has ended.
    pub(crate) fn terminated(&self) -> Option<Terminated> {
        match &lock(&self.state).stage {
            Stage::Closing(terminated) | Stage::Ended(terminated) => Some(terminated.clone()),
            Stage::Making | Stage::Live(_) | Stage::Failed(_) => None,
        }
    }

    /// Stores the back ends that could not make it, in order.
    pub(crate) fn set_skipped_backends(&self, skipped: Vec<SkippedBackend>) {
        *lock(&self.skipped) = skipped;
    }

    /// Returns the back ends that could not make it.
    pub(crate) fn skipped_backends(&self) -> Vec<SkippedBackend> {
        lock(&self.skipped).clone()
    }

    /// Returns the isolation that the sandbox reports.
    pub(crate) fn isolation(&self, sandbox: &dyn Sandbox) -> Arc<Isolation> {
        let isolation = || Arc::new(sandbox.isolation().clone());
        self.isolation.get_or_init(isolation).clone()
    }

    /// Returns the state's name in status answers.
    pub(crate) fn state_word(&self) -> &'static str {
        let state = lock(&self.state);
        match &state.stage {
            Stage::Making => "starting",
            Stage::Live(_) if self.is_paused() => "paused",
            Stage::Live(_) if state.busy > 0 => "busy",
            Stage::Live(_) => "idle",
            Stage::Failed(_) | Stage::Closing(_) | Stage::Ended(_) => "closing",
        }
    }

    /// Makes the sandbox live. Returns false if it is already closing.
    pub(crate) fn set_live(&self, sandbox: Arc<dyn Sandbox>) -> bool {
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

    /// Stores the failure to make it.
    pub(crate) fn set_failed(&self, failure: Failure) {
        lock(&self.state).stage = Stage::Failed(failure);
        self.changed.send_replace(());
    }

    /// Refuses further calls. Returns false if it already did, if `unless_busy` is set and the sandbox is in use, or if its
    /// lifetime is the reason and was extended meanwhile.
    pub(crate) fn begin_close(&self, terminated: &Terminated, unless_busy: bool) -> bool {
        let left = {
            let mut state = lock(&self.state);
            let open = matches!(state.stage, Stage::Making | Stage::Live(_));
            let paused = unless_busy && self.is_paused();
            let extended = matches!(terminated.why, TerminationReason::Lifetime)
                && state
                    .lifetime
                    .is_some_and(|lifetime| Instant::now() < self.born + lifetime);
            let left = open
                && !paused
                && !extended
                && !(unless_busy && (state.busy > 0 || Instant::now() < state.last + self.params.idle));
            if left {
                state.stage = Stage::Closing(terminated.clone());
            }
            left
        };
        self.changed.send_replace(());
        left
    }

    /// Marks the sandbox as ended.
    pub(crate) fn set_ended(&self) {
        {
            let mut state = lock(&self.state);
            if let Stage::Closing(terminated) = &state.stage {
                state.stage = Stage::Ended(terminated.clone());
            }
        }
        self.changed.send_replace(());
    }

    pub(crate) fn is_for_one_run(&self) -> bool {
        self.params.kind == Kind::Throwaway
    }

    /// Returns the expiry for callers. None if the sandbox is for one run.
    pub(crate) fn expiry(&self) -> Option<crate::Expiry> {
        let lifetime = self.lifetime();
        (!self.is_for_one_run()).then(|| crate::Expiry {
            idle: self.params.idle,
            ends: lifetime.map(|lifetime| self.created + lifetime),
            lifetime,
        })
    }

    /// Returns the time from its creation to its end in any case.
    pub(crate) fn lifetime(&self) -> Option<Duration> {
        lock(&self.state).lifetime
    }

    /// Sets the time from now to its end. Returns that moment.
    pub(crate) fn set_time_left(&self, left: Duration) -> SystemTime {
        let lifetime = self.born.elapsed() + left;
        lock(&self.state).lifetime = Some(lifetime);
        self.set_time_left_after_pause(left);
        self.expiry_has_changed();
        self.created + lifetime
    }

    /// Returns the time to its end in any case.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        let lifetime = self.lifetime()?;
        Some(lifetime.saturating_sub(self.born.elapsed()))
    }

    /// Tells its task that its deadlines have changed.
    pub(crate) fn expiry_has_changed(&self) {
        self.expiry_changed.notify_one();
    }

    /// Waits until its deadlines were changed. For its task only.
    pub(crate) async fn expiry_changed(&self) {
        self.expiry_changed.notified().await;
    }

    /// Returns the key of its request.
    pub(crate) fn key(&self) -> Option<&str> {
        self.params.asked.as_ref()?.key.as_deref()
    }

    /// Returns its current deadlines. A paused sandbox does not expire.
    pub(crate) fn deadlines(&self) -> Deadlines {
        if self.is_paused() {
            return Deadlines {
                idle: Instant::now() + FAR_FUTURE,
                lifetime: None,
                busy: false,
            };
        }
        let state = lock(&self.state);
        let busy = state.busy > 0;
        let since = if busy { Instant::now() } else { state.last };
        Deadlines {
            idle: since + self.params.idle,
            lifetime: state.lifetime.map(|lifetime| self.born + lifetime),
            busy,
        }
    }

    /// Returns the last known usage.
    pub(crate) fn usage(&self) -> Option<Usage> {
        lock(&self.state).usage
    }

    pub(crate) fn remember_usage(&self, usage: Usage) {
        lock(&self.state).usage = Some(usage);
    }

    /// Stores the effect of an execution on memory. Drops the oldest entry.
    pub(crate) fn record_growth(&self, growth: MemoryGrowth) {
        let mut kept = lock(&self.growth);
        kept.truncate(MAX_GROWTH_ENTRIES - 1);
        kept.push_front(growth);
    }

    /// Returns the effects of the last executions on memory, oldest first.
    pub(crate) fn growth(&self) -> Vec<MemoryGrowth> {
        lock(&self.growth).iter().rev().cloned().collect()
    }

    /// Returns the installed packages of a language.
    pub(crate) fn packages(&self, language: &str) -> Vec<PackageVersion> {
        let held = lock(&self.held);
        let own = held.iter().filter(|(of, _)| of == language);
        own.map(|(_, one)| one.clone()).collect()
    }

    /// Returns all installed packages, each with its language.
    pub(crate) fn all_packages(&self) -> Vec<(String, PackageVersion)> {
        lock(&self.held).clone()
    }

    /// Adds packages. Another version replaces the previous one.
    pub(crate) fn add_packages(&self, language: &str, added: &[PackageVersion]) {
        let mut held = lock(&self.held);
        held.retain(|(of, one)| of != language || added.iter().all(|new| new.name != one.name));
        held.extend(added.iter().map(|one| (language.to_owned(), one.clone())));
        held.sort();
    }

    /// Ends its interpreters.
    pub(crate) fn drop_sessions(&self) {
        let slots: Vec<Arc<SessionSlot>> = lock(&self.slots).values().cloned().collect();
        for slot in slots {
            drop(slot.take());
            slot.drop_all_retired();
        }
    }
}

/// Marks a sandbox as in use. Its idle time starts when the last guard is dropped.
#[derive(Debug)]
pub(crate) struct UseGuard {
    record: Arc<Record>,
}

impl Drop for UseGuard {
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
        let params = CreateParams {
            kind: Kind::Default,
            label: None,
            asked: None,
            limits: Limits::default(),
            lifetime: None,
            idle,
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
        Record::new(SandboxId::random().unwrap(), Principal::new("me"), params)
    }

    #[tokio::test(start_paused = true)]
    async fn a_sandbox_used_at_the_moment_of_its_expiry_stays() {
        let idle = Duration::from_secs(60);
        let record = record(idle);
        let expired = Terminated::now(TerminationReason::Idle(idle));
        tokio::time::advance(idle).await;
        let visit = record.start_use().unwrap();
        assert!(!record.begin_close(&expired, true), "it is in use");
        drop(visit);
        assert!(!record.begin_close(&expired, true), "it was in use just before");
        tokio::time::advance(idle).await;
        assert!(record.begin_close(&expired, true));
        assert_eq!(record.start_use().unwrap_err().code, Code::Expired);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sandbox_in_use_can_be_closed_by_its_owner() {
        let record = record(Duration::from_secs(60));
        let _guard = record.start_use().unwrap();
        assert!(record.begin_close(&Terminated::now(TerminationReason::Closed), false));
        assert!(
            !record.begin_close(&Terminated::now(TerminationReason::Closed), false),
            "only the first counts"
        );
    }
}
