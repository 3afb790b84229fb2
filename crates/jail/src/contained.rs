//! The part of a jail that a process can give itself inside a container which somebody else has made.
//!
//! A container's runtime isolates, but leaves calls open by which programs could hinder the agent, whose user they share:
//! its limits, its priority, its memory. The agent closes those itself, before it starts anything.

use crate::plan;
use crate::steps;
use crate::wire::StepError;

/// Locks the calling process and all that it starts. There is no way back. `memory` and `disk` are what the container's
/// processes and files together may have, in bytes.
///
/// # Errors
/// The first step that failed; what was done before it stays. The caller ends.
pub fn lock(memory: u64, disk: u64) -> Result<(), StepError> {
    // The kernel keeps a huge page whole after a program frees part of it, but counts only the rest. A kernel without huge pages refuses
    // this call.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    take(plan::contained(memory, disk))
}

/// The same in a container that installs system packages and runs nobody's code: root keeps what the container left it.
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
