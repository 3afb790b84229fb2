//! The engine against a scripted world: every rule that a caller can notice.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod commands;
mod endings;
mod files;
mod history;
mod keys;
mod once;
mod output;
mod pauses;
mod pool;
mod programs;
mod quota;
mod sandboxes;
mod sessions;
