//! The permanent history: executions in a SQLite database. A background thread writes them, and each caller reads its
//! own.
//!
//! No execution depends on the history. If the database cannot be opened, is corrupt or is full, the only effect is a
//! warning, and the engine's in-memory history answers instead. The one decision here: one thread with one queue
//! ([`Writer`]) makes all accesses of a server. Rows are therefore in the order in which the executions ended, and a
//! read sees every row that was queued before it. Only searches read outside that thread, because they can take long.
//! Several servers may share a database.
#![forbid(unsafe_code)]
#![cfg(unix)]

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
pub use writer::{Writer, WriterRole};
