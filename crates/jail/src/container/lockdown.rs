//! The part of a jail that a process can apply to itself in a container made by others.
//!
//! A container's runtime isolates. But programs share the agent's user, and it leaves calls open by which they could
//! interfere with the agent's limits, priority and memory. The agent blocks these calls before it starts any program.

use crate::plan;
use crate::steps;
use crate::wire::StepError;

/// Locks the calling process and its descendants, irrevocably. `memory` and `disk` are the limits of the container's
/// processes and files, in bytes. `processes` is the number of processes and threads of the calling process' user, where the
/// container's runtime limits none.
///
/// # Errors
/// The first step that failed. Earlier steps stay in force. The caller must exit.
pub fn lock(memory: u64, disk: u64, processes: Option<u64>) -> Result<(), StepError> {
    // The kernel keeps a whole huge page after a program frees part of it, but counts only the rest. A kernel without
    // huge pages refuses this call.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    take(plan::contained(memory, disk, processes))
}

/// Locks a container that installs system packages and runs no caller's code: root keeps the rights that the container
/// left it.
///
/// # Errors
/// As [`lock`].
pub fn lock_installer() -> Result<(), StepError> {
    take(plan::installing())
}

fn take(all: Vec<plan::Step>) -> Result<(), StepError> {
    for step in all {
        steps::run(&step).map_err(|error| StepError::new(&step.name(), step.layer(), &error))?;
    }
    Ok(())
}
