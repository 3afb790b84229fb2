//! The audit log: security events as lines of JSON. Each line contains the hash of the previous line. Changing,
//! removing or inserting a line breaks the chain from that line on, and [`verify()`] reports the line.
//!
//! The chain cannot show that the end was cut off, or that the whole log was rewritten. To detect that, keep the last
//! hash in another place. Several processes can write to one log; each write holds a file lock.
#![forbid(unsafe_code)]
#![cfg(unix)]

mod file;
mod line;
mod pace;
#[cfg(test)]
mod tests;
mod verify;
mod writer;

pub use file::{AuditError, AuditFile};
pub use verify::{Fault, Report, verify};
pub use writer::AuditWriter;
