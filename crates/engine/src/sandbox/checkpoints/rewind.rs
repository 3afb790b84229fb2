//! Brings back a checkpoint.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sandcell_sandbox::{Code, Failure, Sandbox, SessionError, with_sources};

use super::taken::{TakenSession, take_all};
use super::{Checkpoint, Checkpoints, KeptSession, forget, shown, unsupported};
use crate::RewindView;
use crate::api::sync::lock;
use crate::sandbox::state::Record;

pub(super) async fn rewind_to(
    record: &Arc<Record>,
    sandbox: &dyn Sandbox,
    checkpoint: &Checkpoint,
) -> Result<RewindView, Failure> {
    let saved = sandbox.saved_files().ok_or_else(unsupported)?;
    let mut taken = take_all(record).await?;
    // Nothing is lost if a copy has been given up meanwhile.
    let mut wanted = Vec::new();
    for kept in &checkpoint.sessions {
        let slot = taken.iter_mut().find(|taken| taken.key == kept.key);
        let source = match slot {
            Some(slot) => slot.source_of(checkpoint.number).await,
            None => None,
        };
        match source {
            Some(source) => wanted.push((kept, source)),
            None => {
                forget(record, saved, &mut taken, std::slice::from_ref(checkpoint)).await;
                return Err(Failure::new(
                    Code::NotFound,
                    format!(
                        "the checkpoint '{}' is gone: the copy of the {} session has ended. It was given up because memory \
                         or processes ran short, or code inside ended it",
                        checkpoint.name,
                        shown(&kept.key)
                    ),
                    "use another checkpoint (get_sandbox_status lists them), or give the sandbox more memory",
                ));
            }
        }
    }
    // All code ends before the files change.
    let mut ended = Vec::new();
    for session in &mut taken {
        let Some(live) = &mut session.live else { continue };
        live.session.halt().await;
        if !wanted.iter().any(|(kept, _)| kept.key == session.key) {
            ended.push(shown(&session.key));
        }
    }
    let restored = saved.restore(checkpoint.number).await;
    let mut lost = None;
    for session in &mut taken {
        let wanted = wanted.iter().find(|(kept, _)| kept.key == session.key);
        if let Err(error) = session
            .return_to(checkpoint.number, wanted.map(|(kept, source)| (*kept, *source)))
            .await
        {
            lost.get_or_insert((shown(&session.key), error));
        }
    }
    let undone = record.checkpoints.returned_to(checkpoint);
    for checkpoint in &undone.1 {
        forget(record, saved, &mut taken, std::slice::from_ref(checkpoint)).await;
    }
    let is_kept = |session: &TakenSession| {
        let live = session.live.as_ref();
        live.is_none_or(|live| live.session.checkpoints().contains(&checkpoint.number))
    };
    let wanted_keys: Vec<_> = checkpoint.sessions.iter().map(|kept| &kept.key).collect();
    let kept = { taken.iter() }.all(|session| !wanted_keys.contains(&&session.key) || is_kept(session));
    if !kept {
        // It could not copy itself again, for example because all processes of the sandbox were in use.
        forget(record, saved, &mut taken, std::slice::from_ref(checkpoint)).await;
    }
    let files_changed = restored.map_err(|error| {
        let mut failure = Failure::from(error);
        if failure.code != Code::DiskFull {
            failure.code = Code::CheckpointUnavailable;
        }
        let message = format!(
            "the variables are those of the checkpoint, but not all files could be restored: {}",
            failure.message
        );
        Failure { message, ..failure }
    })?;
    if let Some((session, error)) = lost {
        return Err(Failure::new(
            Code::SessionLost,
            format!(
                "the files are those of the checkpoint, but the {session} session could not be restored: {}",
                with_sources(&error)
            ),
            "go on with a new session: the next call starts one, without variables",
        ));
    }
    Ok(RewindView {
        sandbox_id: record.id.clone(),
        checkpoint: checkpoint.view(),
        ended,
        files_changed,
        undone: undone.0,
        kept,
    })
}

/// The place of a checkpoint's session: the live one of its slot, or a retired one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Live,
    Retired,
}

impl TakenSession {
    /// Finds the session that has a copy for this checkpoint.
    async fn source_of(&mut self, number: u32) -> Option<Source> {
        if let Some(live) = &mut self.live
            && live.session.existing_checkpoints().await.contains(&number)
        {
            return Some(Source::Live);
        }
        let mut retired = self.slot.take_retired(number)?;
        let exists = retired.session.existing_checkpoints().await.contains(&number);
        self.slot.retire(retired);
        exists.then_some(Source::Retired)
    }

    /// Makes the session that of the checkpoint. A session that the checkpoint does not have ends. All are halted.
    async fn return_to(&mut self, number: u32, wanted: Option<(&KeptSession, Source)>) -> Result<(), SessionError> {
        let Some((kept, source)) = wanted else {
            if let Some(live) = self.live.take() {
                self.slot.retire(live);
            }
            return Ok(());
        };
        if source == Source::Retired {
            if let Some(live) = self.live.take() {
                self.slot.retire(live);
            }
            self.live = self.slot.take_retired(number);
        }
        let gone = || SessionError::Protocol("its copy is gone".to_owned());
        let live = self.live.as_mut().ok_or_else(gone)?;
        if let Err(error) = live.session.rewind(number).await {
            self.lose("when it returned to a checkpoint".to_owned());
            return Err(error);
        }
        live.returned_to(kept.cells, kept.recent.clone());
        // A loss that no result has reported yet is undone.
        drop(self.slot.take_unreported_loss());
        Ok(())
    }
}

impl Checkpoints {
    /// Records the return to a checkpoint. Returns the number of undone executions, and the automatic checkpoints that
    /// are of a later state.
    fn returned_to(&self, checkpoint: &Checkpoint) -> (u64, Vec<Checkpoint>) {
        let before = self.executions.swap(checkpoint.executions, Ordering::Relaxed);
        let mut state = lock(&self.state);
        state.line = checkpoint.line.clone();
        state.outdated = None;
        let later = |one: &&Checkpoint| one.automatic && one.number > checkpoint.number;
        let dropped = state.kept.iter().filter(later).cloned().collect();
        (before.saturating_sub(checkpoint.executions), dropped)
    }
}
