//! The launcher's free descriptors for further sandboxes.
//!
//! A lack of descriptors must affect only the sandbox that needs one. So the launcher reserves some for its work on
//! existing sandboxes, such as reading their usage. Requests that fit only after those in creation are complete wait in
//! a queue. Spares are killed before a request is refused.

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
    /// Returns the number of descriptors that this process may still open. If it is unknown, returns the limit: opening
    /// then fails by itself.
    fn free_descriptors(&self) -> u64 {
        let open = open_files::count(&format!("{}/proc/self/fd", place::host())).unwrap_or(0);
        self.files_most.saturating_sub(open)
    }

    /// Returns the number of sandboxes in creation.
    fn making(&self) -> u64 {
        let starting = |state: &State| matches!(state, State::Starting { .. });
        let making = self.jails.values().filter(|jail| starting(&jail.state)).count();
        u64::try_from(making).unwrap_or(u64::MAX)
    }

    /// Returns the number of spares that can be made now, in addition to the sandboxes in creation.
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

    /// Returns the error for a request without free descriptors.
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
