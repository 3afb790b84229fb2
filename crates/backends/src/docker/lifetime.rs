//! The state of one container, shared by its task and its sandbox.

use std::sync::atomic::AtomicBool;

use sandcell_sandbox::{EndReason, Ended};
use tokio::sync::watch;

/// The shared state of a container.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) name: String,
    /// Turns true when a caller asks it to end.
    pub(super) asked: watch::Sender<bool>,
    pub(super) ended: watch::Sender<Option<Ended>>,
    /// Turns true when nothing of it is left, or its removal was given up.
    pub(super) removed: watch::Sender<bool>,
    /// The daemon reported that it ran out of memory.
    pub(super) out_of_memory: AtomicBool,
    /// The exit status that the daemon reported.
    pub(super) died: watch::Sender<Option<u8>>,
}

impl Container {
    pub(super) fn ask(&self) {
        self.asked.send_replace(true);
    }

    pub(super) fn has_ended(&self) -> Option<Ended> {
        self.ended.borrow().clone()
    }

    /// Waits until nothing of it is left.
    pub(super) async fn removed(&self) {
        let mut removed = self.removed.subscribe();
        // The sender lives as long as this borrow.
        let _ = removed.wait_for(|removed| *removed).await;
    }

    pub(super) async fn ended(&self) -> Ended {
        let mut ended = self.ended.subscribe();
        // The sender lives as long as this borrow, so the wait can only end with a value.
        let seen = ended
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|ended| ended.clone());
        seen.unwrap_or(Ended {
            reason: EndReason::LauncherLost,
        })
    }
}
