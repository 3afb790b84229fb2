//! Whether the launcher has descriptors for another sandbox.
//!
//! A descriptor that cannot be had costs the sandbox that needed it, and nobody else: some are kept back for what the launcher
//! does for those that are there, such as reading what they use. Sandboxes that fit only when those in the making are made stand
//! in line; what waits to become a sandbox gives way before anybody is refused.

use super::{Keeper, State, StepError};
use crate::open_files;
use crate::plan::place;

/// The maximum number of descriptors that the launcher itself needs at one time.
const RESERVE: u64 = 24;
/// The descriptors that a sandbox in creation may still take.
const MAKING: u64 = 16;
/// The descriptors that the launcher holds for a spare.
const CRADLE: u64 = 2;

impl Keeper {
    /// Descriptors that this process may still open. Where that cannot be learnt, as many as there may be: what fails then fails by itself.
    fn free_descriptors(&self) -> u64 {
        let open = open_files::count(&format!("{}/proc/self/fd", place::host())).unwrap_or(0);
        self.files_most.saturating_sub(open)
    }

    /// Sandboxes in the making.
    fn making(&self) -> u64 {
        let starting = |state: &State| matches!(state, State::Starting { .. });
        let making = self.jails.values().filter(|jail| starting(&jail.state)).count();
        u64::try_from(making).unwrap_or(u64::MAX)
    }

    /// Returns how many more spares can be made now, in addition to the sandboxes in creation.
    pub(super) fn room(&self) -> u64 {
        self.room_with(0)
    }

    /// Returns true if a sandbox that has a spare can be started now. The spare's descriptors count towards its own.
    pub(super) fn may_begin(&self) -> bool {
        self.room_with(CRADLE) > 0
    }

    fn room_with(&self, held: u64) -> u64 {
        let fit = (self.free_descriptors() + held).saturating_sub(RESERVE) / MAKING;
        fit.saturating_sub(self.making())
    }

    /// Returns true if descriptors may become free without the end of a sandbox.
    pub(super) fn room_may_come(&self) -> bool {
        self.making() > 0
    }

    /// Returns true if a request may be queued.
    pub(super) fn may_stand_in_line(&self) -> bool {
        self.free_descriptors() >= RESERVE
    }

    /// The answer to who finds none.
    pub(super) fn no_room(&self) -> StepError {
        let free = self.free_descriptors();
        let most = self.files_most;
        StepError {
            step: format!("find open files for it in the launcher ({free} of {most} are free)"),
            layer: None,
            errno: libc::EMFILE,
        }
    }
}
