//! Whether the launcher has descriptors for another sandbox.
//!
//! A descriptor that cannot be had costs the sandbox that needed it, and nobody else: some are kept back for what the launcher
//! does for those that are there, such as reading what they use. Sandboxes that fit only when those in the making are made stand
//! in line; what waits to become a sandbox gives way before anybody is refused.

use super::{Keeper, State, StepError};
use crate::open_files;
use crate::plan::place;

/// What the launcher itself needs at the most, at one time.
const RESERVE: u64 = 24;
/// What a sandbox in the making may still take.
const MAKING: u64 = 16;
/// What the launcher holds of a cradle.
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

    /// How many more cradles can be made for sandboxes to be begun now, beside those in the making.
    pub(super) fn room(&self) -> u64 {
        self.room_with(0)
    }

    /// Whether one that has a cradle can be begun now. What the cradle holds is a part of what it takes.
    pub(super) fn may_begin(&self) -> bool {
        self.room_with(CRADLE) > 0
    }

    fn room_with(&self, held: u64) -> u64 {
        let fit = (self.free_descriptors() + held).saturating_sub(RESERVE) / MAKING;
        fit.saturating_sub(self.making())
    }

    /// Whether room may come without anybody's end.
    pub(super) fn room_may_come(&self) -> bool {
        self.making() > 0
    }

    /// Whether a request may stand in line.
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
