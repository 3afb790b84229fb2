//! The launcher's free descriptors for further sandboxes.
//!
//! A lack of descriptors must affect only the sandbox that needs one. So the launcher reserves some for its work on
//! existing sandboxes, such as reading their usage. Requests that fit only after those in creation are complete wait in
//! a queue. Spares are killed before a request is refused.

use super::{State, StepError, Supervisor};
use crate::own_limits::open_files;
use crate::paths;

/// The maximum number of descriptors that the launcher itself needs at one time.
const RESERVED_DESCRIPTORS: u64 = 24;
/// The descriptors that a sandbox in creation may still take.
const CREATION_DESCRIPTORS: u64 = 16;
/// The descriptors that the launcher holds for a spare.
const SPARE_DESCRIPTORS: u64 = 2;

impl Supervisor {
    /// Returns the number of descriptors that this process may still open. If it is unknown, returns the limit: opening
    /// then fails by itself.
    fn free_descriptors(&self) -> u64 {
        let open = open_files::count(&format!("{}/proc/self/fd", paths::host())).unwrap_or(0);
        self.max_files.saturating_sub(open)
    }

    /// Returns true if less than half of the descriptors are open. Then idle sandboxes keep a counter open, which is
    /// read five times a second.
    pub(super) fn has_many_descriptors(&self) -> bool {
        self.free_descriptors() > self.max_files / 2
    }

    /// Returns the number of sandboxes in creation.
    fn in_creation(&self) -> u64 {
        let starting = |state: &State| matches!(state, State::Starting { .. });
        let unsettled = self.unsettled.iter().filter_map(|id| self.jails.get(id));
        let in_creation = unsettled.filter(|jail| starting(&jail.state)).count();
        u64::try_from(in_creation).unwrap_or(u64::MAX)
    }

    /// Returns the number of spares that can be made now, in addition to the sandboxes in creation.
    pub(super) fn free_slots(&self) -> u64 {
        self.free_slots_with(0)
    }

    /// Returns true if a sandbox that has a spare can be started now. The spare's descriptors count towards its own.
    pub(super) fn can_begin(&self) -> bool {
        self.free_slots_with(SPARE_DESCRIPTORS) > 0
    }

    fn free_slots_with(&self, held: u64) -> u64 {
        let fit = (self.free_descriptors() + held).saturating_sub(RESERVED_DESCRIPTORS) / CREATION_DESCRIPTORS;
        fit.saturating_sub(self.in_creation())
    }

    /// Returns true if descriptors may become free without the end of a sandbox.
    pub(super) fn slots_may_free(&self) -> bool {
        self.in_creation() > 0
    }

    /// Returns true if a request may be queued.
    pub(super) fn can_queue(&self) -> bool {
        self.free_descriptors() >= RESERVED_DESCRIPTORS
    }

    /// Returns the error for a request without free descriptors.
    pub(super) fn no_descriptors(&self) -> StepError {
        let free = self.free_descriptors();
        let max_files = self.max_files;
        StepError {
            step: format!("find open files for it in the launcher ({free} of {max_files} are free)"),
            layer: None,
            errno: libc::EMFILE,
        }
    }
}
