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

// The operator's interpreters at unusual paths.
mod interpreters;
// Hosts with file systems mounted below what sandboxes see.
mod mounts;

mod commit;
// State, output and end of a session.
mod session;
// States of sandboxes that outlive the server.
mod saved;
// Restoring a session after its interpreter has died.
mod restore;
// Returning to earlier variables and files.
mod checkpoints;
// Sandboxes that go on from the state of another one.
mod branches;
// Modules that idle sandboxes have already loaded.
mod preload;
// Sessions that start as forks of a zygote.
mod zygote;
// Time-outs, interrupts and cancelled calls.
mod timeouts;
// Code inside can reach nothing of the machine.
mod isolation_smoke;
// Limits without a control group.
mod watchdog;
// Hosts that forbid user namespaces.
mod process_level;
// The file tools and every path that is not a plain file.
mod files;
// Programs next to sessions, as other programs start them.
mod commands;
// Invalid, huge or hostile input; the server loses nothing.
mod bad_input;
// Concurrent calls.
mod concurrency;
// Limits of the machine that bound the number of sandboxes.
mod capacity;
// Packages: our test index, good and bad.
mod packages;
// Hostile packages, and a full disk.
mod hostile_packages;
// Packages of npm: our test registry, good and bad.
mod memory;
mod npm;
// Tools of the host that code calls.
mod host_tools;
// Hosts that a sandbox may reach, and hosts that it may not.
mod network;
// No resources are left after any end of a server.
mod endings;
// Faults around a server.
mod faults;
// Kills at random moments.
mod kills;
// Settings that change while a server runs.
mod reload;
// The official MCP Inspector.
mod inspector;
// Notifications and questions of the server while it works.
mod notifications;
// Servers in the background, and the proxies to them.
mod service;
// Many sandboxes, one after the other.
mod soak;
// Arguments from real models.
mod real_arguments;
// Links, odd names and cut characters.
mod file_edges;
// A call's output is in its own result.
mod own_output;
// More output than any client reads.
mod output;
// A client's view of a conversation, word for word.
mod transcripts;
// The other commands of the binary.
mod demo;
mod doctor;
mod install;
mod limited_hosts;
mod run_command;
// Rich output of a session: charts, tables, variables, progress, memory.
mod rich_output;
// Failures as a model reads them, word for word.
mod lessons;
// Programs of notebooks, against a real Jupyter kernel.
mod notebooks;
// Languages other than Python.
mod languages;
// The contract suite on every back end.
mod contract;
// Units of systemd, and a container image.
mod packaging;
// Sandboxes in containers.
mod docker;
// Sandboxes from images, without a daemon.
mod docker_images;
mod images;
mod in_flight;
mod index_links;
// Records that outlive a server.
mod audit;
mod history;
// Over HTTP: access, ownership, and fairness between callers.
mod http;
// The back end e2b, against our fake service.
mod e2b;
// The other two sets of tools.
mod other_servers;
#[cfg(target_os = "linux")]
mod shared_counts;
mod toolsets;
// Clients of other projects.
mod python_sdk;
mod typescript_sdk;
