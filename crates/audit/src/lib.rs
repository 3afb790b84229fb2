//! The audit log: what matters for security, as lines of JSON of which each holds the hash of the one before. Whoever
//! changes, removes or inserts a line breaks the chain from there on; [`verify()`] says where.
//!
//! What it cannot show is that the end was cut off, or that all of it was written anew: for that, the last hash has to be
//! known from somewhere else. Several processes write one log, each under a lock.
#![forbid(unsafe_code)]
#![cfg(unix)]

mod desk;
mod file;
mod line;
mod pace;
#[cfg(test)]
mod tests;
mod verify;

pub use desk::AuditDesk;
pub use file::{AuditError, AuditFile};
pub use verify::{Fault, Report, verify};
