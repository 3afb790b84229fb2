//! The history that lasts: executions in a SQLite database, written behind the calls and read by their owners.
//!
//! What it is not: needed. A database that cannot be opened, is broken or has no room costs a warning and nothing else;
//! the engine's history in memory then answers. One decision here: all access of a server is one thread with one queue
//! ([`Writer`]), so rows are in the order in which they ended, and reading sees everything that was handed over before.
//! Only searches, which can take long, read beside it.
//! Several servers may share a database.
#![forbid(unsafe_code)]
#![cfg(unix)]

mod clock;
mod database;
mod retention;
mod row;
mod search;
#[cfg(test)]
mod tests;
mod writer;

pub use database::{Database, Filter, HistoryError};
pub use retention::Retention;
pub use row::Row;
pub use writer::{Whose, Writer};
