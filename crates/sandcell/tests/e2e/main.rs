//! End-to-end tests: the real `sandcell` binary, seen from outside, by way of raw JSON-RPC or the command line.
//!
//! Nothing here knows the inside of the product. What a test asserts is what a caller or the machine's owner would
//! notice. A test that this machine cannot run says so (`skipped: test: reason`), and fails instead where
//! `SANDCELL_TEST_REQUIRE=1`.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests may panic and print; that is how they fail"
)]

mod support;

// What a session keeps, hands back and survives.
mod session;
// Time-outs, interrupts and cancelled calls.
mod timeouts;
// What code inside can reach of the machine: nothing.
mod isolation_smoke;
// The file tools and every path that is not a plain file.
mod files;
// Input that is wrong, huge or hostile; nothing is lost by it.
mod bad_input;
// Many at once.
mod concurrency;
// However it ends, nothing is left.
mod endings;
// Many one after the other.
mod soak;
// More output than anybody reads.
mod output;
// What a client sees, word for word.
mod transcripts;
// The other commands of the binary.
mod demo;
mod doctor;
mod run_command;
// A client that we did not write.
mod python_sdk;
