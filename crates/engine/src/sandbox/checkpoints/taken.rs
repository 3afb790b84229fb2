//! The sessions of a sandbox while a checkpoint is made or brought back.

use std::sync::Arc;

use sandcell_sandbox::{Branching, Code, Failure, ImageFile, SandboxError, Session, SessionError, with_sources};
use tokio::sync::OwnedSemaphorePermit;

use super::{KeptSession, not_kept, running, shown};
use crate::api::sync::lock;
use crate::sandbox::session::{LiveSession, SessionKey, SessionSlot};
use crate::sandbox::state::Record;

/// A session between two cells, taken from its slot. It returns to the slot when this is dropped.
pub(super) struct TakenSession {
    pub(super) key: SessionKey,
    pub(super) slot: Arc<SessionSlot>,
    pub(super) live: Option<LiveSession>,
    _turn: OwnedSemaphorePermit,
}

impl Drop for TakenSession {
    fn drop(&mut self) {
        if let Some(live) = self.live.take() {
            self.slot.put(live);
        }
    }
}

impl TakenSession {
    /// Keeps the session's state.
    pub(super) async fn keep(&mut self, number: u32, expendable: bool) -> Result<(), Failure> {
        let Some(live) = &mut self.live else { return Ok(()) };
        match live.session.checkpoint(number, expendable).await {
            Ok(kept) => kept.map_err(|why| not_kept(&self.key, &why)),
            Err(error) => {
                self.lose("while its state was saved".to_owned());
                Err(lost(&self.key, &error))
            }
        }
    }

    /// Describes the session as a part of a checkpoint. None if there is none.
    pub(super) fn kept(&self) -> Option<KeptSession> {
        let live = self.live.as_ref()?;
        Some(KeptSession {
            key: self.key.clone(),
            cells: live.cells,
            recent: live.recent().clone(),
        })
    }

    /// Makes an image of the session's checkpoint, of at most `free` bytes, and passes it on.
    pub(super) async fn image(
        &mut self,
        number: u32,
        free: u64,
        branching: &dyn Branching,
    ) -> Result<Result<ImageFile, SandboxError>, String> {
        if let Some(live) = &mut self.live
            && live.session.checkpoints().contains(&number)
        {
            return take_image(live.session.as_mut(), number, free, branching).await;
        }
        let Some(mut retired) = self.slot.take_retired(number) else {
            return Err("its checkpoint is gone".to_owned());
        };
        let taken = take_image(retired.session.as_mut(), number, free, branching).await;
        self.slot.retire(retired);
        taken
    }

    /// Drops a session that has ended.
    pub(super) fn lose(&mut self, when: String) {
        if let Some(live) = self.live.take() {
            let description = format!("new session: the previous one ended {when}");
            self.slot.record_loss(Arc::default(), description);
            self.slot.retire(live);
        }
    }

    pub(super) async fn drop_checkpoint(&mut self, number: u32) {
        if let Some(live) = &mut self.live {
            live.session.drop_checkpoint(number).await;
        }
        self.slot.drop_retired(number).await;
    }
}

async fn take_image(
    session: &mut dyn Session,
    number: u32,
    free: u64,
    branching: &dyn Branching,
) -> Result<Result<ImageFile, SandboxError>, String> {
    let made = session.image(number, free).await?;
    let taken = branching.take_image(made).await;
    session.drop_image(number).await;
    Ok(taken)
}

/// Takes all sessions of a sandbox that have run code, with the turns of all slots.
pub(super) async fn take_all(record: &Record) -> Result<Vec<TakenSession>, Failure> {
    let slots: Vec<_> = {
        let slots = lock(&record.slots);
        slots
            .iter()
            .map(|(key, slot)| (key.clone(), Arc::clone(slot)))
            .collect()
    };
    let mut all = Vec::with_capacity(slots.len());
    for (key, slot) in slots {
        let Some(turn) = slot.turn_between_executions().await else {
            return Err(running(&key, &slot));
        };
        let live = slot.take();
        let mut taken = TakenSession {
            key,
            slot,
            live,
            _turn: turn,
        };
        if taken.live.as_ref().is_some_and(|live| live.cells == 0)
            && let Some(unused) = taken.live.take()
        {
            taken.slot.put(unused);
        }
        all.push(taken);
    }
    Ok(all)
}

fn lost(key: &SessionKey, error: &SessionError) -> Failure {
    Failure::new(
        Code::SessionLost,
        format!(
            "the {} session ended while its state was saved: {}",
            shown(key),
            with_sources(error)
        ),
        "bring back an earlier checkpoint (get_sandbox_status lists them), or go on with a new session",
    )
}
