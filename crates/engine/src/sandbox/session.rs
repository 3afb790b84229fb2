//! Live interpreters: at most one for each sandbox and language. They run one cell at a time, in the order of the
//! calls.

use std::collections::VecDeque;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use sandcell_sandbox::{Code, Failure, Language, Sandbox, SandboxError, Session, SessionError, Variable};
use tokio::sync::{AcquireError, OwnedRwLockReadGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::admission::scheduler::CROWD_PRIORITY_DURATION;
use crate::api::sync::lock;
use crate::sandbox::state::Record;
use crate::{ExecutionId, Restored, SessionView};

/// The language and the name of a session in its sandbox. The first session of a language has no name.
pub(crate) type SessionKey = (String, Option<String>);

/// The maximum number of named sessions of one sandbox.
const MAX_NAMED_SESSIONS: usize = 64;

/// The slot for one interpreter of a language in one sandbox.
#[derive(Debug)]
pub(crate) struct SessionSlot {
    language: String,
    name: Option<String>,
    turns: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    session: Option<LiveSession>,
    /// The number of running and queued calls.
    pending: usize,
    running: Option<(ExecutionId, u32)>,
    /// The end of the last interpreter, and whether the caller has read it in a result.
    lost: Option<(Arc<AtomicBool>, String)>,
    /// Ended interpreters with checkpoints.
    retired: Vec<LiveSession>,
}

/// An interpreter between two cells.
#[derive(Debug)]
pub(crate) struct LiveSession {
    pub(crate) session: Box<dyn Session>,
    /// The number of its last cell.
    pub(crate) cells: u32,
    /// The executions of its last cells, newest last.
    recent: VecDeque<ExecutionId>,
}

/// The pause after a cell that ends in a snapshot. It is longer than the gaps between a script's calls, so a script
/// does not pay for snapshots that its next call would replace.
pub(crate) const SNAPSHOT_PAUSE: Duration = Duration::from_millis(250);

/// The number of recent executions that a restored session can name.
const MAX_RECENT_EXECUTIONS: usize = 256;

/// The maximum wait for a session that no execution uses.
const TURN_TIMEOUT: Duration = Duration::from_secs(2);

/// The source of output that was written before an execution began.
#[derive(Debug)]
pub(crate) enum Background {
    /// The only execution of the session so far.
    Of(ExecutionId),
    /// This execution, or one before it.
    After(ExecutionId),
}

impl LiveSession {
    pub(crate) fn new(session: Box<dyn Session>) -> Self {
        Self {
            session,
            cells: 0,
            recent: VecDeque::new(),
        }
    }

    /// Sets the pause after the next cell in which the session takes a snapshot of itself.
    pub(crate) fn set_snapshot_pause(&mut self, crowded: bool) {
        if self.session.takes_snapshots() {
            self.session.set_snapshot_delay(if crowded {
                CROWD_PRIORITY_DURATION
            } else {
                SNAPSHOT_PAUSE
            });
        }
    }

    /// Counts a finished cell.
    pub(crate) fn ran(&mut self, execution: ExecutionId) {
        self.cells = self.cells.saturating_add(1);
        self.recent.push_back(execution);
        if self.recent.len() > MAX_RECENT_EXECUTIONS {
            self.recent.pop_front();
        }
    }

    pub(crate) const fn recent(&self) -> &VecDeque<ExecutionId> {
        &self.recent
    }

    /// Records that it has returned to its state after this cell.
    pub(crate) fn returned_to(&mut self, cells: u32, recent: VecDeque<ExecutionId>) {
        (self.cells, self.recent) = (cells, recent);
    }

    /// Returns the source of output that was written since the last cell. None before the first cell.
    pub(crate) fn background(&self) -> Option<Background> {
        let last = self.recent.back()?.clone();
        Some(match self.cells {
            1 => Background::Of(last),
            _ => Background::After(last),
        })
    }

    /// Describes a session that was restored to its state after `cell`, and the reason why it was not restored to a
    /// later one.
    pub(crate) fn restored(&self, cell: u32, why: Option<String>) -> Restored {
        // The driver reports this number, so it is not trusted.
        let cell = cell.min(self.cells);
        let missed = self.cells - cell;
        let back = usize::try_from(missed).unwrap_or(usize::MAX);
        Restored {
            cell,
            execution_id: self.recent.iter().rev().nth(back).cloned(),
            missed,
            why: why.filter(|_| missed > 0),
        }
    }
}

/// Opens a session: with the sandbox's method if it has one, else with the language's.
pub(crate) async fn open_session(
    language: &dyn Language,
    sandbox: &Arc<dyn Sandbox>,
) -> Result<Box<dyn Session>, SessionError> {
    if let Some(sessions) = sandbox.own_sessions() {
        return sessions.open_session(&language.info().name).await;
    }
    match language.inside(sandbox.as_ref()).await {
        Ok(Some(inside)) => inside.open(sandbox.clone()).await,
        Ok(None) => language.open(sandbox.clone()).await,
        Err(failure) => Err(SandboxError::Refused(Box::new(failure)).into()),
    }
}

type Waiting = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// A place in the queue of a slot. Dropping it leaves the queue.
pub(crate) struct QueueTicket {
    slot: Arc<SessionSlot>,
    /// Never locked: the mutex only makes the ticket `Sync`, which the future is not.
    wait: Mutex<Waiting>,
    permit: Option<OwnedSemaphorePermit>,
}

impl SessionSlot {
    /// Returns the slot of this language's first session in a sandbox.
    pub(crate) fn of(record: &Record, language: &dyn Language) -> Arc<Self> {
        let key = (language.info().name.clone(), None);
        let mut slots = lock(&record.slots);
        slots.entry(key).or_insert_with_key(Self::empty).clone()
    }

    /// Returns the slot of a session with a name.
    pub(crate) fn named(record: &Record, language: &dyn Language, name: String) -> Result<Arc<Self>, Failure> {
        let key = (language.info().name.clone(), Some(name));
        let mut slots = lock(&record.slots);
        let named = slots.keys().filter(|(_, name)| name.is_some()).count();
        if named >= MAX_NAMED_SESSIONS && !slots.contains_key(&key) {
            return Err(Failure::new(
                Code::LimitReached,
                format!("the sandbox has {MAX_NAMED_SESSIONS} named sessions, which is the maximum"),
                "end sessions that are no longer needed, or use another sandbox",
            ));
        }
        Ok(slots.entry(key).or_insert_with_key(Self::empty).clone())
    }

    fn empty((language, name): &SessionKey) -> Arc<Self> {
        Arc::new(Self {
            language: language.clone(),
            name: name.clone(),
            turns: Arc::new(Semaphore::new(1)),
            state: Mutex::default(),
        })
    }

    /// Enters the queue. At most `queue` calls wait while one runs.
    pub(crate) async fn enqueue(self: &Arc<Self>, queue: usize) -> Result<QueueTicket, Failure> {
        {
            let mut state = lock(&self.state);
            if state.pending > queue {
                return Err(Failure::new(
                    Code::Busy,
                    format!(
                        "{} executions already wait for the {} session of this sandbox",
                        state.pending - 1,
                        self.language
                    ),
                    "wait for their results, cancel some, or use another sandbox (create_sandbox)",
                ));
            }
            state.pending += 1;
        }
        let mut ticket = QueueTicket {
            slot: self.clone(),
            wait: Mutex::new(Box::pin(self.turns.clone().acquire_owned())),
            permit: None,
        };
        // Poll once here, so that the queue has the order of the calls. The semaphore is fair.
        if let Poll::Ready(Ok(permit)) = futures::poll!(ticket.waiting()) {
            ticket.permit = Some(permit);
        }
        Ok(ticket)
    }

    /// Takes the idle interpreter, if there is one.
    pub(crate) fn take(&self) -> Option<LiveSession> {
        lock(&self.state).session.take()
    }

    /// Ends an idle interpreter that has run nothing yet and has preloaded modules which this package folder also has.
    /// The next interpreter loads them from the folder.
    pub(crate) fn drop_stale(&self, folder: &Path) {
        let mut state = lock(&self.state);
        let stale = |live: &mut LiveSession| live.cells == 0 && live.session.has_loaded_from(folder);
        let ended = state.session.take_if(stale);
        drop(state);
        drop(ended);
    }

    /// Returns an interpreter to the slot for the next cell.
    pub(crate) fn put(&self, live: LiveSession) {
        lock(&self.state).session = Some(live);
    }

    /// Takes the turn unless an execution has it. Waits a moment for other users, such as a listing of variables.
    pub(crate) async fn turn_between_executions(&self) -> Option<OwnedSemaphorePermit> {
        if self.running().is_some() {
            return None;
        }
        let turn = timeout(TURN_TIMEOUT, Arc::clone(&self.turns).acquire_owned()).await;
        turn.ok()?.ok()
    }

    /// Keeps an ended interpreter for as long as it has checkpoints.
    pub(crate) fn retire(&self, live: LiveSession) {
        if !live.session.checkpoints().is_empty() {
            lock(&self.state).retired.push(live);
        }
    }

    /// Takes the ended interpreter with this checkpoint.
    pub(crate) fn take_retired(&self, number: u32) -> Option<LiveSession> {
        let retired = &mut lock(&self.state).retired;
        let has_it = |live: &LiveSession| live.session.checkpoints().contains(&number);
        let index = retired.iter().position(has_it)?;
        Some(retired.swap_remove(index))
    }

    /// Drops a checkpoint of an ended interpreter, and the interpreter with its last one.
    pub(crate) async fn drop_retired(&self, number: u32) {
        if let Some(mut live) = self.take_retired(number) {
            live.session.drop_checkpoint(number).await;
            self.retire(live);
        }
    }

    /// Drops all ended interpreters.
    pub(crate) fn drop_all_retired(&self) {
        drop(std::mem::take(&mut lock(&self.state).retired));
    }

    /// Records that the interpreter ended in this execution.
    ///
    /// `delivered` becomes true when the caller has read the execution's result.
    pub(crate) fn record_loss(&self, delivered: Arc<AtomicBool>, description: String) {
        lock(&self.state).lost = Some((delivered, description));
    }

    /// Returns the end of the last interpreter, if no result has reported it yet.
    pub(crate) fn take_unreported_loss(&self) -> Option<String> {
        let (delivered, description) = lock(&self.state).lost.take()?;
        (!delivered.load(Ordering::Relaxed)).then_some(description)
    }

    /// Returns the running execution.
    pub(crate) fn running(&self) -> Option<ExecutionId> {
        lock(&self.state).running.as_ref().map(|(id, _)| id.clone())
    }

    /// Returns the session for status answers. None if there is no interpreter.
    pub(crate) fn view(&self) -> Option<SessionView> {
        let state = lock(&self.state);
        let cells = match (&state.running, &state.session) {
            (Some((_, cells)), _) => *cells,
            (None, Some(live)) if live.cells > 0 => live.cells,
            // A preloaded interpreter that has run nothing is not listed.
            (None, Some(_) | None) => return None,
        };
        Some(SessionView {
            language: self.language.clone(),
            name: self.name.clone(),
            cells,
            busy: state.running.is_some(),
            variables: None,
        })
    }

    /// Returns the variables of an idle interpreter. None while it runs, or if there is none.
    pub(crate) async fn variables(self: &Arc<Self>, running: OwnedRwLockReadGuard<()>) -> Option<Vec<Variable>> {
        let slot = self.clone();
        // A separate task: the interpreter must return to the slot even if the caller disconnects.
        let listing = tokio::spawn(async move {
            let _running = running;
            let _turn = slot.turns.clone().try_acquire_owned().ok()?;
            let mut live = slot.take()?;
            match live.session.variables().await {
                Ok(variables) => {
                    slot.put(live);
                    Some(variables)
                }
                Err(error) => {
                    let description =
                        format!("new session: the previous one ended while its variables were listed ({error})");
                    lock(&slot.state).lost = Some((Arc::default(), description));
                    None
                }
            }
        });
        listing.await.ok().flatten()
    }
}

impl QueueTicket {
    /// Waits for this call's turn. The turn lasts until the ticket is dropped.
    pub(crate) async fn turn(&mut self) -> Result<(), Failure> {
        if self.permit.is_none() {
            let permit = self.waiting().await;
            self.permit = Some(
                permit.map_err(|_| Failure::new(Code::Internal, "the queue of the session is closed", "try again"))?,
            );
        }
        Ok(())
    }

    fn waiting(&mut self) -> Pin<&mut (dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send)> {
        self.wait.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut()
    }

    /// Records the execution that has the turn, and the number of its cell.
    pub(crate) fn set_running(&self, execution: ExecutionId, cells: u32) {
        lock(&self.slot.state).running = Some((execution, cells));
    }

    pub(crate) const fn slot(&self) -> &Arc<SessionSlot> {
        &self.slot
    }
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        let mut state = lock(&self.slot.state);
        state.pending = state.pending.saturating_sub(1);
        if self.permit.is_some() {
            state.running = None;
        }
    }
}
