//! The part of a jail that a process can give itself inside a container which somebody else has made.
//!
//! A container's runtime isolates, but leaves calls open by which programs could hinder the agent, whose user they share:
//! its limits, its priority, its memory. The agent closes those itself, before it starts anything.

use crate::plan;
use crate::steps;
use crate::wire::StepError;

/// Locks the calling process and all that it starts. There is no way back.
///
/// # Errors
/// The first step that failed; what was done before it stays. The caller ends.
pub fn lock() -> Result<(), StepError> {
    for step in plan::contained() {
        steps::run(&step).map_err(|error| StepError::new(&step.name(), step.layer(), &error))?;
    }
    Ok(())
}
