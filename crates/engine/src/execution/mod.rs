//! Executions: admission of a request, its run in a sandbox, its termination, its outcome, and the store of results.

mod advice;
mod alternatives;
mod artifacts;
mod cell;
mod code_error;
mod command;
mod install;
pub(crate) mod job;
pub(crate) mod outcome;
mod outputs;
mod program;
pub(crate) mod progress;
pub(crate) mod service;
pub(crate) mod state;
pub(crate) mod store;
pub(crate) mod termination;
