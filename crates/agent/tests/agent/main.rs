//! The agent and its client together: a real server in a thread, real programs, real files.
#![cfg(all(target_os = "linux", feature = "client"))]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "tests may panic, and say what they skip"
)]

mod common;
mod files;
mod first_process;
mod flow;
mod forward;
mod hostile_agent;
mod hostile_host;
mod mount_layers;
mod ports;
mod programs;
mod saved_files;
