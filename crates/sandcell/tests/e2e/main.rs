//! End-to-end tests: the real `sandcell` binary, seen from outside, by way of raw JSON-RPC or the command line.
//!
//! Nothing here depends on the product's internals. A test asserts what a caller or the machine's owner would notice. A
//! test that this machine cannot run prints `skipped: test: reason`, and fails instead where `SANDCELL_TEST_REQUIRE=1`.
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

// Interpreters of the operator, wherever they lie.
mod interpreters;
// Hosts with file systems mounted below what sandboxes see.
mod mounts;
// What a session keeps, hands back and survives.
mod session;
// What comes back after an interpreter has died.
mod restore;
// Modules that sandboxes have loaded before they are handed out.
mod preload;
// Sessions that begin as copies of an interpreter that has loaded those modules.
mod warmed;
// Time-outs, interrupts and cancelled calls.
mod timeouts;
// What code inside can reach of the machine: nothing.
mod isolation_smoke;
// Limits that no control group holds.
mod watched;
// Where the host forbids user namespaces.
mod process_level;
// The file tools and every path that is not a plain file.
mod files;
// Programs next to sessions, as programs ask for them.
mod commands;
// Input that is wrong, huge or hostile; nothing is lost by it.
mod bad_input;
// Many at once.
mod concurrency;
// Limits of the machine that bound how many there can be.
mod capacity;
// Packages: our test index, good and bad.
mod packages;
// Packages that mean harm, and a disk that is full.
mod hostile_packages;
// Packages of npm: our test registry, good and bad.
mod memory;
mod npm;
// Hosts that a sandbox may reach, and all those that it may not.
mod network;
// However it ends, nothing is left.
mod endings;
// What goes wrong around a server.
mod faults;
// Killed at random, again and again.
mod kills;
// Settings that change while a server runs.
mod reload;
// The official MCP Inspector.
mod inspector;
// What the server says and asks while it works.
mod talking;
// Servers in the background, and the bridges to them.
mod service;
// Many one after the other.
mod soak;
// Arguments as models really send them.
mod real_arguments;
// Links, odd names and cut characters.
mod file_edges;
// What a call prints is in its own result.
mod own_output;
// More output than anybody reads.
mod output;
// What a client sees, word for word.
mod transcripts;
// The other commands of the binary.
mod demo;
mod doctor;
mod hosts_told;
mod install;
mod run_command;
// Rich output of a session: charts, tables, variables, progress, memory.
mod shows;
// Failures, word for word as a model reads them.
mod lessons;
// Programs of notebooks, against a real Jupyter kernel.
mod notebooks;
// Languages other than Python.
mod languages;
// The same on every back end.
mod contract;
// Units of systemd, and a container image.
mod packaging;
// In containers.
mod docker;
// Of images, without a daemon.
mod docker_images;
mod images;
mod in_flight;
mod index_links;
// What outlives a server.
mod audit;
mod history;
// Over HTTP: access, ownership, and fairness between callers.
mod http;
// The back end e2b, against our fake service.
mod e2b;
#[allow(dead_code, reason = "the back end's own tests use the rest of it")]
#[path = "../../../backends/tests/e2b/fake.rs"]
mod e2b_service;
// The other two sets of tools.
mod neighbours;
#[cfg(target_os = "linux")]
mod shared_counts;
mod toolsets;
// Clients that we did not write.
mod python_sdk;
mod typescript_sdk;
