//! Checkpoints of a sandbox: the variables of its sessions and its private files. They can be brought back any number of
//! times.
//!
//! A named checkpoint is made on request. Automatic ones are made while the sandbox is idle, so a caller can undo its
//! last executions without having planned it. The sessions keep copies of their processes, and the back end keeps the
//! files; this module pairs them. The sandbox's limits pay for both.
//!
//! A session of a checkpoint may have ended since: by a crash, a reset or a return to a checkpoint without it. Its slot
//! keeps it as *retired* for as long as a checkpoint needs it.

mod branch;
mod changes;
mod make;
mod rewind;
mod saved;
mod taken;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use sandcell_sandbox::{Code, Failure, SandboxError, SavedFiles, SavedSize};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

pub(crate) use self::branch::BranchSource;
use self::make::Bounds;
use self::taken::{TakenSession, take_all};
use crate::admission::policy;
use crate::api::sync::lock;
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::session::{SessionKey, SessionSlot};
use crate::sandbox::state::Record;
use crate::{CheckpointMade, CheckpointView, ExecutionId, Principal, RewindTo, RewindView};

/// The checkpoints of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    state: Mutex<State>,
    /// Held while a checkpoint is made, dropped or brought back.
    changing: Arc<tokio::sync::Mutex<()>>,
    /// Locked for writing by a call that tries alternatives, and for reading by other calls that change the sandbox: the
    /// return to the common state would undo their changes.
    trying: Arc<RwLock<()>>,
    /// True while a task waits to make an automatic checkpoint.
    scheduled: AtomicBool,
    /// The number of executions that have ended in the sandbox and were not undone.
    executions: AtomicU64,
}

/// The number of executions that can be undone by their number.
const MAX_LINE: usize = 64;

#[derive(Debug, Default)]
struct State {
    /// Oldest first.
    kept: Vec<Checkpoint>,
    last_number: u32,
    /// The number in the last name that was not a caller's.
    last_name: u32,
    /// The last executions that led to the current state, newest last.
    line: VecDeque<ExecutionId>,
    /// A checkpoint that is not dropped to make room.
    pinned: Option<u32>,
    /// Files were written from outside since the automatic checkpoint of this number of executions.
    outdated: Option<u64>,
    /// The reason why the last automatic checkpoint could not be made.
    obstacle: Option<String>,
}

#[derive(Debug, Clone)]
struct Checkpoint {
    number: u32,
    name: String,
    automatic: bool,
    created: SystemTime,
    executions: u64,
    line: VecDeque<ExecutionId>,
    sessions: Vec<KeptSession>,
    files: SavedSize,
    /// The memory of the sessions' copies, in bytes, when it was last measured.
    memory: u64,
}

/// A session of a checkpoint.
#[derive(Debug, Clone)]
struct KeptSession {
    key: SessionKey,
    cells: u32,
    recent: VecDeque<ExecutionId>,
}

impl Checkpoint {
    fn view(&self) -> CheckpointView {
        CheckpointView {
            name: self.name.clone(),
            automatic: self.automatic,
            created: self.created,
            executions: self.executions,
            execution_id: self.line.back().cloned(),
            sessions: self.sessions.iter().map(|session| shown(&session.key)).collect(),
            files: self.files.files,
            file_bytes: self.files.bytes,
            memory_bytes: self.held(),
        }
    }

    fn held(&self) -> u64 {
        self.memory.saturating_add(self.files.held)
    }
}

fn shown((language, name): &SessionKey) -> String {
    match name {
        Some(name) => format!("{language} ({name})"),
        None => language.clone(),
    }
}

impl Checkpoints {
    /// Counts an execution that has ended. One that callers do not see counts as a call that wrote files.
    pub(crate) fn executed(&self, execution: &ExecutionId, is_shown: bool) {
        if !is_shown {
            self.files_written();
            return;
        }
        self.executions.fetch_add(1, Ordering::Relaxed);
        let line = &mut lock(&self.state).line;
        line.push_back(execution.clone());
        if line.len() > MAX_LINE {
            line.pop_front();
        }
    }

    /// Records that files were written from outside: an automatic checkpoint of now lacks them.
    pub(crate) fn files_written(&self) {
        lock(&self.state).outdated = Some(self.executions());
    }

    fn executions(&self) -> u64 {
        self.executions.load(Ordering::Relaxed)
    }

    /// Returns all checkpoints, oldest first.
    pub(crate) fn views(&self) -> Vec<CheckpointView> {
        lock(&self.state).kept.iter().map(Checkpoint::view).collect()
    }

    fn find(&self, to: &RewindTo) -> Result<Checkpoint, Failure> {
        let state = lock(&self.state);
        let found = match to {
            RewindTo::Named(name) => state.kept.iter().rev().find(|checkpoint| checkpoint.name == *name),
            RewindTo::Back(count) => {
                let is_usable = |one: &&Checkpoint| {
                    let outdated = one.automatic && state.outdated == Some(one.executions);
                    !outdated && state.is_before(one, self.executions(), *count)
                };
                // A named one may have been made before files were written.
                let newest_first = || state.kept.iter().rev().filter(is_usable);
                newest_first()
                    .find(|one| one.automatic)
                    .or_else(|| newest_first().next())
            }
        };
        found.cloned().ok_or_else(|| state.not_found(to))
    }

    /// Adds a checkpoint. Returns those that it replaces: of the same name, or automatic ones of the same state.
    fn add(&self, checkpoint: Checkpoint) -> Vec<Checkpoint> {
        let mut state = lock(&self.state);
        if checkpoint.automatic {
            state.outdated = None;
            state.obstacle = None;
        }
        let is_replaced = |old: &Checkpoint| {
            old.automatic == checkpoint.automatic
                && (old.name == checkpoint.name || old.automatic && old.executions == checkpoint.executions)
        };
        let (dropped, kept): (Vec<_>, Vec<_>) = state.kept.drain(..).partition(is_replaced);
        state.kept = kept;
        state.kept.push(checkpoint);
        dropped
    }

    /// Removes the oldest checkpoints beyond the bounds, but not this one. Automatic ones are removed first.
    fn prune(&self, number: u32, bounds: &Bounds) -> Vec<Checkpoint> {
        let mut state = lock(&self.state);
        let mut dropped = Vec::new();
        loop {
            let count = |automatic: bool| state.kept.iter().filter(|one| one.automatic == automatic).count();
            let (automatic, named) = (count(true) > bounds.automatic, count(false) > bounds.named);
            let memory = state.kept.iter().map(Checkpoint::held).fold(0, u64::saturating_add);
            let others = state.kept.iter().enumerate();
            let others = others.filter(|(_, one)| one.number != number && Some(one.number) != state.pinned);
            let victim = others
                .filter(|(_, one)| match (automatic, named) {
                    (true, _) => one.automatic,
                    (false, true) => !one.automatic,
                    (false, false) => memory > bounds.memory,
                })
                .min_by_key(|(index, one)| (!one.automatic, *index));
            let Some((victim, _)) = victim else { return dropped };
            dropped.push(state.kept.remove(victim));
        }
    }

    /// Waits for other calls in the sandbox, and lets none begin that changes it, until the guard is dropped.
    pub(crate) async fn begin_alternatives(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.trying).write_owned().await
    }

    /// Waits while a call tries alternatives in the sandbox, and lets none begin until the guard is dropped.
    pub(crate) async fn no_alternatives(&self) -> OwnedRwLockReadGuard<()> {
        Arc::clone(&self.trying).read_owned().await
    }

    /// Protects a checkpoint from being dropped to make room; none: no longer.
    pub(crate) fn pin(&self, name: Option<&str>) {
        let mut state = lock(&self.state);
        let pinned = state.kept.iter().rev().find(|one| Some(one.name.as_str()) == name);
        state.pinned = pinned.map(|one| one.number);
    }

    /// Returns true if there is a checkpoint with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        lock(&self.state).kept.iter().any(|one| one.name == name)
    }

    /// Sets the bytes that the files of each checkpoint hold.
    fn set_held(&self, held: &BTreeMap<u32, u64>) {
        for one in &mut lock(&self.state).kept {
            if let Some(held) = held.get(&one.number) {
                one.files.held = *held;
            }
        }
    }

    fn remove(&self, number: u32) {
        lock(&self.state).kept.retain(|checkpoint| checkpoint.number != number);
    }
}

impl State {
    /// Returns true if the current state is that of the checkpoint and this many executions after it.
    fn is_before(&self, one: &Checkpoint, executions: u64, count: u64) -> bool {
        let is_near = usize::try_from(count)
            .ok()
            .and_then(|count| self.line.len().checked_sub(count));
        let Some(length) = is_near.filter(|_| one.executions.checked_add(count) == Some(executions)) else {
            return false;
        };
        // Executions that were undone have the same numbers.
        self.line.iter().take(length).next_back() == one.line.back()
    }

    fn not_found(&self, to: &RewindTo) -> Failure {
        let what = match to {
            RewindTo::Named(name) => format!(
                "the sandbox has no checkpoint '{}'",
                crate::api::ids::quote_for_error(name)
            ),
            RewindTo::Back(1) => "the sandbox has no checkpoint from directly before the last execution".to_owned(),
            RewindTo::Back(count) => format!("the sandbox has no checkpoint from before the last {count} executions"),
        };
        let why = match (to, &self.obstacle) {
            (RewindTo::Back(_), Some(why)) => format!("; the last automatic one could not be made because {why}"),
            (RewindTo::Back(_), None) => {
                "; automatic ones are made in pauses of 0.3 s between executions, and only the newest are kept"
                    .to_owned()
            }
            (RewindTo::Named(_), _) => String::new(),
        };
        let names: Vec<&str> = self.kept.iter().map(|checkpoint| checkpoint.name.as_str()).collect();
        let remedy = match names.as_slice() {
            [] => "make a checkpoint before the next risky step; this state cannot be undone".to_owned(),
            names => format!("use one of: {}", names.join(", ")),
        };
        Failure::new(Code::NotFound, format!("{what}{why}"), remedy)
    }
}

impl Sandboxes {
    /// Makes a checkpoint with this name, or with a new one. A checkpoint of the same name is replaced.
    pub(crate) async fn checkpoint(
        self: &Arc<Self>,
        principal: &Principal,
        id: Option<&str>,
        name: Option<&str>,
    ) -> Result<CheckpointMade, Failure> {
        let record = self.existing(principal, id)?;
        let _alone = record.checkpoints.no_alternatives().await;
        self.checkpoint_of(&record, name.map(policy::checkpoint_name).transpose()?)
            .await
    }

    /// The same, for a sandbox of the caller and a valid name.
    pub(crate) async fn checkpoint_of(
        self: &Arc<Self>,
        record: &Arc<Record>,
        name: Option<String>,
    ) -> Result<CheckpointMade, Failure> {
        let guard = record.start_use()?;
        record.ready().await?;
        let (sandboxes, of) = (Arc::clone(self), Arc::clone(record));
        let made = tokio::spawn(async move {
            let _guard = guard;
            let _changing = of.checkpoints.changing.lock().await;
            sandboxes.make_checkpoint(&of, name, false).await
        });
        let (checkpoint, dropped) = made.await.unwrap_or_else(|_| Err(internal()))?;
        Ok(CheckpointMade {
            sandbox_id: record.id.clone(),
            checkpoint: checkpoint.view(),
            dropped: dropped.into_iter().map(|checkpoint| checkpoint.name).collect(),
        })
    }

    /// Returns the checkpoints of a sandbox, oldest first, with their current sizes unless code runs.
    pub(crate) async fn checkpoints(
        &self,
        principal: &Principal,
        id: Option<&str>,
    ) -> Result<Vec<CheckpointView>, Failure> {
        let record = self.existing(principal, id)?;
        self.measure_checkpoints(&record).await;
        Ok(record.checkpoints.views())
    }

    /// Measures the memory of all checkpoints, unless code runs or the sandbox is paused.
    pub(crate) async fn measure_checkpoints(&self, record: &Arc<Record>) {
        if lock(&record.checkpoints.state).kept.is_empty() || record.is_paused() {
            return;
        }
        let record = Arc::clone(record);
        // A client that goes away must not take a session with it.
        let measuring = tokio::spawn(async move {
            let Ok(_changing) = record.checkpoints.changing.try_lock() else {
                return;
            };
            if let (Some(_running), Ok(mut taken)) = (record.running(), take_all(&record).await) {
                make::measure(&record, &mut taken).await;
            }
        });
        if measuring.await.is_err() {
            tracing::debug!("the checkpoints of a sandbox could not be measured");
        }
    }

    /// Drops a checkpoint.
    pub(crate) async fn drop_checkpoint(
        self: &Arc<Self>,
        principal: &Principal,
        id: Option<&str>,
        name: &str,
    ) -> Result<(), Failure> {
        let record = self.existing(principal, id)?;
        let _alone = record.checkpoints.no_alternatives().await;
        let guard = record.start_use()?;
        let sandbox = record.ready().await?;
        let name = RewindTo::Named(name.to_owned());
        let dropped = tokio::spawn(async move {
            let _guard = guard;
            let _changing = record.checkpoints.changing.lock().await;
            let checkpoint = record.checkpoints.find(&name)?;
            let mut taken = take_all(&record).await?;
            let saved = sandbox.saved_files().ok_or_else(unsupported)?;
            forget(&record, saved, &mut taken, std::slice::from_ref(&checkpoint)).await;
            Ok(())
        });
        dropped.await.unwrap_or_else(|_| Err(internal()))
    }

    /// Brings back the variables and the files of a checkpoint.
    pub(crate) async fn rewind(
        self: &Arc<Self>,
        principal: &Principal,
        id: Option<&str>,
        to: &RewindTo,
    ) -> Result<RewindView, Failure> {
        let record = self.existing(principal, id)?;
        let _alone = record.checkpoints.no_alternatives().await;
        self.rewind_of(&record, to).await
    }

    /// The same, for a sandbox of the caller.
    pub(crate) async fn rewind_of(&self, record: &Arc<Record>, to: &RewindTo) -> Result<RewindView, Failure> {
        let guard = record.start_use()?;
        let sandbox = record.ready().await?;
        let (record, to) = (Arc::clone(record), to.clone());
        let work = tokio::spawn(async move {
            let _guard = guard;
            let _changing = record.checkpoints.changing.lock().await;
            let checkpoint = record.checkpoints.find(&to)?;
            let _running = record.running().ok_or_else(paused)?;
            rewind::rewind_to(&record, sandbox.as_ref(), &checkpoint).await
        });
        work.await.unwrap_or_else(|_| Err(internal()))
    }

    /// Waits while another call tries alternatives in the caller's sandbox, and lets none begin until the guard is
    /// dropped. None: there is no such sandbox yet.
    pub(crate) async fn no_alternatives(
        &self,
        principal: &Principal,
        id: Option<&str>,
    ) -> Option<OwnedRwLockReadGuard<()>> {
        let record = self.existing(principal, id).ok()?;
        Some(record.checkpoints.no_alternatives().await)
    }

    /// Returns the caller's sandbox, or its default sandbox if there is one.
    pub(crate) fn existing(&self, principal: &Principal, id: Option<&str>) -> Result<Arc<Record>, Failure> {
        match id {
            Some(id) => Ok(self.registry.find(principal, id)?.record),
            None => self.registry.existing_default(principal).ok_or_else(|| {
                Failure::new(
                    Code::NotFound,
                    "there is no default sandbox yet, so it has no state",
                    "run code first, or name a sandbox",
                )
            }),
        }
    }
}

/// Drops checkpoints: the copies of the sessions, and the files.
async fn forget(record: &Record, saved: &dyn SavedFiles, taken: &mut [TakenSession], dropped: &[Checkpoint]) {
    for checkpoint in dropped {
        record.checkpoints.remove(checkpoint.number);
        for session in &mut *taken {
            session.drop_checkpoint(checkpoint.number).await;
        }
        match saved.forget(checkpoint.number).await {
            Ok(held) => record.checkpoints.set_held(&held),
            Err(error) => tracing::debug!(%error, "the files of a checkpoint could not be dropped"),
        }
    }
}

fn unsupported() -> Failure {
    SandboxError::Unsupported("checkpoints".to_owned()).into()
}

fn not_kept(key: &SessionKey, why: &str) -> Failure {
    let remedy = match why {
        why if why.contains("threads") => "end the threads (join them, shut down executors), then call again",
        why if why.contains("second copy") => {
            "close branches that are not needed (the state that they went on from counts as memory of their source), make \
             several with one call (count), or delete variables"
        }
        why if why.contains("memory") => "delete variables that are not needed, or use a sandbox with more memory",
        why if why.contains("Python") => {
            "end that session first (reset_session_state with its language), then call again"
        }
        _ => "call again; if it fails again, use another sandbox",
    };
    Failure::new(
        Code::CheckpointUnavailable,
        format!(
            "the {} session cannot be kept because {why}; nothing was changed",
            shown(key)
        ),
        remedy,
    )
}

fn running(key: &SessionKey, slot: &SessionSlot) -> Failure {
    let what = match slot.running() {
        Some(id) => format!("execution {id} runs in the {} session", shown(key)),
        None => format!("the {} session is in use", shown(key)),
    };
    Failure::new(
        Code::Busy,
        format!("{what}; checkpoints are made and brought back between executions"),
        "wait for its end (get_execution), or end it (cancel_execution), and call again",
    )
}

fn paused() -> Failure {
    Failure::new(
        Code::Busy,
        "the sandbox is being paused or closed",
        "call again in a moment",
    )
}

fn internal() -> Failure {
    Failure::new(
        Code::Internal,
        "the checkpoint failed in the server",
        "try again; the log of the server has the reason",
    )
}
