//! Makes checkpoints, on request and automatically.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use sandcell_sandbox::{Code, Failure, HOME, SandboxPath, SavedSize};
use tokio::time::sleep;

use super::taken::{TakenSession, take_all};
use super::{Checkpoint, Checkpoints, forget, not_kept, paused, unsupported};
use crate::admission::scheduler::CROWD_PRIORITY_DURATION;
use crate::api::sync::lock;
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::session::SNAPSHOT_PAUSE;
use crate::sandbox::state::Record;
use crate::sandbox::usage::read_usage;

/// The time between a session's snapshot and the automatic checkpoint, which uses it.
const AFTER_SNAPSHOT: Duration = Duration::from_millis(50);
/// The longest time between two attempts at an automatic checkpoint of a sandbox that is in use.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(10);
/// The part of a sandbox's memory limit for the files of one named checkpoint, and for all checkpoints together.
const FILES_DIVISOR: u64 = 4;
const MEMORY_DIVISOR: u64 = 2;
/// The maximum size of the files of an automatic checkpoint, in bytes.
const MAX_AUTOMATIC_BYTES: u64 = 16 << 20;
/// The private folders of every sandbox.
const PRIVATE_FOLDERS: [&str; 3] = [HOME, "/tmp", "/var/tmp"];

/// The bounds of a sandbox's checkpoints.
pub(super) struct Bounds {
    pub(super) named: usize,
    pub(super) automatic: usize,
    pub(super) memory: u64,
}

impl Sandboxes {
    /// Makes an automatic checkpoint in the next pause of the sandbox.
    pub(crate) fn schedule_checkpoint(self: &Arc<Self>, record: &Arc<Record>) {
        if self.config().automatic_checkpoints == 0
            || record.is_for_one_run()
            || record.checkpoints.scheduled.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let (sandboxes, record) = (Arc::downgrade(self), Arc::downgrade(record));
        tokio::spawn(async move {
            let mut seen = None;
            let mut pause = Duration::ZERO;
            loop {
                sleep(pause).await;
                let (Some(sandboxes), Some(record)) = (sandboxes.upgrade(), record.upgrade()) else {
                    return;
                };
                let now = record.checkpoints.executions();
                if seen == Some(now) || !record.open() {
                    record.checkpoints.scheduled.store(false, Ordering::Relaxed);
                    let is_done = sandboxes.make_automatic(&record).await;
                    // An execution that has ended in the meantime scheduled another task.
                    if is_done || record.checkpoints.scheduled.swap(true, Ordering::Relaxed) {
                        return;
                    }
                    pause = (pause * 2).min(MAX_RETRY_PAUSE);
                } else {
                    pause = AFTER_SNAPSHOT
                        + if sandboxes.scheduler.is_crowded() {
                            CROWD_PRIORITY_DURATION
                        } else {
                            SNAPSHOT_PAUSE
                        };
                }
                seen = Some(now);
            }
        });
    }

    /// Returns false if the sandbox was in use, so that it is worthwhile to try again.
    async fn make_automatic(&self, record: &Arc<Record>) -> bool {
        let _changing = record.checkpoints.changing.lock().await;
        if record.live().is_none() || record.is_paused() || record.checkpoints.has_current() {
            return true;
        }
        let Err(failure) = self.make_checkpoint(record, None, true).await else {
            return true;
        };
        tracing::debug!(sandbox = %record.id, "no automatic checkpoint: {}", failure.message);
        failure.code != Code::Busy
    }

    /// Makes a checkpoint. `changing` must be held. Returns it, and those that were dropped to make room.
    pub(super) async fn make_checkpoint(
        &self,
        record: &Arc<Record>,
        name: Option<String>,
        automatic: bool,
    ) -> Result<(Checkpoint, Vec<Checkpoint>), Failure> {
        let sandbox = record.live().ok_or_else(paused)?;
        let _running = record.running().ok_or_else(paused)?;
        let saved = sandbox.saved_files().ok_or_else(unsupported)?;
        let mut taken = take_all(record).await?;
        check_sessions(&taken)?;
        // Without a session there is something to undo only before the first execution: files that calls wrote.
        if automatic && taken.iter().all(|taken| taken.live.is_none()) && record.checkpoints.executions() > 0 {
            return Err(unsupported());
        }
        let config = self.config();
        let limit = record.params.limits.memory.as_bytes();
        let number = record.checkpoints.next_number();
        let failure = match keep_sessions(&mut taken, number, automatic).await {
            Ok(()) => {
                let max_bytes = if automatic {
                    MAX_AUTOMATIC_BYTES
                } else {
                    files_bound(limit)
                };
                let folders = private_folders()?;
                match saved.save(number, &folders, max_bytes).await {
                    Ok(files) => {
                        let bounds = Bounds {
                            named: config.checkpoints,
                            automatic: config.automatic_checkpoints,
                            memory: limit / MEMORY_DIVISOR,
                        };
                        let checkpoint = record.checkpoints.describe(number, name, automatic, &taken, files);
                        let replaced = record.checkpoints.add(checkpoint.clone());
                        // All processes together use less than the bound of checkpoints: there is nothing to measure.
                        let used = read_usage(sandbox.as_ref())
                            .await
                            .map_or(u64::MAX, |usage| usage.memory);
                        if !automatic && used > bounds.memory {
                            measure(record, &mut taken).await;
                        }
                        forget(record, saved, &mut taken, &replaced).await;
                        let dropped = record.checkpoints.prune(number, &bounds);
                        forget(record, saved, &mut taken, &dropped).await;
                        return Ok((record.checkpoints.with_number(checkpoint), dropped));
                    }
                    Err(error) => Failure::from(error),
                }
            }
            Err(failure) => failure,
        };
        for taken in &mut taken {
            taken.drop_checkpoint(number).await;
        }
        if automatic {
            lock(&record.checkpoints.state).obstacle = Some(failure.message.clone());
        }
        Err(failure)
    }
}

impl Checkpoints {
    /// True if a checkpoint has the current state, as far as executions and calls have changed it.
    fn has_current(&self) -> bool {
        let now = self.executions();
        let state = lock(&self.state);
        state.outdated != Some(now) && state.kept.iter().any(|one| state.is_before(one, now, 0))
    }

    /// Returns the checkpoint as it is now, after it was measured.
    fn with_number(&self, checkpoint: Checkpoint) -> Checkpoint {
        let state = lock(&self.state);
        let found = state.kept.iter().find(|one| one.number == checkpoint.number);
        found.cloned().unwrap_or(checkpoint)
    }

    /// Returns a name that no checkpoint has.
    fn new_name(&self, automatic: bool) -> String {
        let prefix = if automatic { "auto" } else { "cp" };
        let mut state = lock(&self.state);
        loop {
            state.last_name = state.last_name.saturating_add(1);
            let name = format!("{prefix}{}", state.last_name);
            if state.kept.iter().all(|one| one.name != name) {
                return name;
            }
        }
    }

    pub(super) fn next_number(&self) -> u32 {
        let mut state = lock(&self.state);
        state.last_number = state.last_number.saturating_add(1);
        state.last_number
    }

    fn describe(
        &self,
        number: u32,
        name: Option<String>,
        automatic: bool,
        taken: &[TakenSession],
        files: SavedSize,
    ) -> Checkpoint {
        let executions = self.executions();
        let line = lock(&self.state).line.clone();
        Checkpoint {
            number,
            name: name.unwrap_or_else(|| self.new_name(automatic)),
            automatic,
            created: SystemTime::now(),
            executions,
            line,
            sessions: taken.iter().filter_map(TakenSession::kept).collect(),
            files,
            memory: 0,
        }
    }
}

/// Fails if a session can never be kept.
pub(super) fn check_sessions(taken: &[TakenSession]) -> Result<(), Failure> {
    for taken in taken {
        let obstacle = taken.live.as_ref().and_then(|live| live.session.checkpoint_obstacle());
        if let Some(why) = obstacle {
            return Err(not_kept(&taken.key, &why));
        }
    }
    Ok(())
}

/// Keeps the state of all sessions under a number.
pub(super) async fn keep_sessions(taken: &mut [TakenSession], number: u32, expendable: bool) -> Result<(), Failure> {
    for session in taken {
        session.keep(number, expendable).await?;
    }
    Ok(())
}

/// Measures the memory of all checkpoints whose sessions still live.
pub(super) async fn measure(record: &Record, taken: &mut [TakenSession]) {
    let mut sizes = std::collections::BTreeMap::<u32, u64>::new();
    for session in taken {
        let Some(live) = &mut session.live else { continue };
        match live.session.checkpoint_sizes().await {
            Ok(measured) => {
                for (number, bytes) in measured {
                    // Code can forge the numbers. The bounds limit the effect to its own checkpoints.
                    let sum = sizes.entry(number).or_default();
                    *sum = sum.saturating_add(bytes);
                }
            }
            Err(error) => session.lose(format!("while its checkpoints were measured ({error})")),
        }
    }
    for checkpoint in &mut lock(&record.checkpoints.state).kept {
        if let Some(bytes) = sizes.get(&checkpoint.number) {
            checkpoint.memory = *bytes;
        }
    }
}

/// Returns the maximum size of the files of a named checkpoint or of a branch, for a sandbox with this memory limit.
pub(super) const fn files_bound(limit: u64) -> u64 {
    limit / FILES_DIVISOR
}

pub(super) fn private_folders() -> Result<Vec<SandboxPath>, Failure> {
    let folders = PRIVATE_FOLDERS.iter().map(|folder| SandboxPath::parse(folder));
    folders
        .collect::<Result<_, _>>()
        .map_err(|error| Failure::new(Code::Internal, error.to_string(), "report this"))
}
