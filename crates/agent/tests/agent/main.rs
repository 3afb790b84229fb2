//! The agent and its client against each other: a real server in a thread, real programs, real files.
#![allow(
    clippy::as_conversions,
    clippy::print_stdout,
    reason = "tests make patterns of bytes and say what a machine cannot do"
)]
#![cfg(all(target_os = "linux", feature = "client"))]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests may panic"
)]

mod common;
mod files;
mod first_process;
mod flow;
mod hostile_agent;
mod hostile_host;
mod programs;
