//! The state of a session's snapshot, as its driver reported it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The snapshot, shared by the task that runs a cell and the one that ends it.
#[derive(Debug, Default)]
pub(super) struct SnapshotState(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pid: Option<i32>,
    /// The reason why the snapshot is missing or outdated.
    why: Option<String>,
}

impl SnapshotState {
    fn state(&self) -> MutexGuard<'_, State> {
        // A holder of the lock only assigns, so a poisoned state is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the state of a session that keeps no snapshots, with the reason.
    pub(super) fn none(why: &str) -> Self {
        Self(Mutex::new(State {
            pid: None,
            why: Some(why.to_owned()),
        }))
    }

    /// Records the driver's report: a snapshot, or the reason for a missing or outdated one.
    pub(super) fn record(&self, pid: Option<i32>, why: &str) {
        *self.state() = State { pid, why: reason(why) };
    }

    /// Returns the snapshot's process id, if there is one.
    pub(super) fn pid(&self) -> Option<i32> {
        self.state().pid
    }

    /// Forgets the snapshot.
    pub(super) fn forget(&self) {
        *self.state() = State::default();
    }

    /// Takes the snapshot, with the reason if it is outdated. The error holds the reason for its absence.
    pub(super) fn take(&self) -> Result<(i32, Option<String>), Option<String>> {
        let state = std::mem::take(&mut *self.state());
        match state.pid {
            Some(pid) => Ok((pid, state.why)),
            None => Err(state.why),
        }
    }
}

/// Explains a word of the protocol, as the end of a sentence. Unknown words are ignored.
pub(super) fn reason(why: &str) -> Option<String> {
    let text = match why {
        "threads" => "it had other threads running, which a snapshot cannot keep",
        "memory" => "it used too much of its memory limit for a snapshot",
        "processes" => "no process could be started for a snapshot",
        _ => return None,
    };
    Some(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_used_once_and_its_absence_is_explained_once() {
        let snapshot = SnapshotState::default();
        assert_eq!(snapshot.take(), Err(None));
        snapshot.record(Some(7), "");
        assert_eq!(
            (snapshot.pid(), snapshot.take(), snapshot.take()),
            (Some(7), Ok((7, None)), Err(None))
        );
        snapshot.record(Some(7), "processes");
        let (pid, why) = snapshot.take().unwrap();
        assert!(pid == 7 && why.unwrap().contains("no process"));
        snapshot.record(None, "threads");
        assert!(snapshot.take().unwrap_err().unwrap().contains("threads"));
        snapshot.record(None, "<b>whatever</b>");
        assert_eq!(snapshot.take(), Err(None));
    }
}
