//! The types of the engine's public interface, and the basic types of all its parts: ids, times, locks.

mod alternatives;
mod checkpoints;
mod config;
mod executions;
mod history;
pub(crate) mod ids;
mod mounts;
mod requests;
mod sandboxes;
pub(crate) mod sync;
mod tools;

pub use alternatives::*;
pub use checkpoints::*;
pub use config::*;
pub use executions::*;
pub use history::*;
pub use ids::{ExecutionId, Principal, SandboxId};
pub use mounts::*;
pub use requests::*;
pub use sandboxes::*;
pub use tools::*;
