//! Costs of calls, compared with a bare interpreter and other ways to run code on the same machine in the same run:
//! `cargo xtask bench`.
//!
//! Each round measures every row once, so that other activity of the machine affects all rows alike. The table shows
//! medians with confidence intervals. Ratios are ratios of medians, and only they are meaningful on another machine.
//! Measurements with a separate load (throughput, random arrivals, a thousand sandboxes, memory) follow the rounds.
//! Nothing here passes or fails.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a measuring program that people start by hand"
)]

// An MCP server with nothing in it, and one that runs code without any isolation.
#[cfg(target_os = "linux")]
mod bare_server;
// Measurements with a separate load.
#[cfg(target_os = "linux")]
mod loads;
// Installed packages.
#[cfg(target_os = "linux")]
mod packages;
// The table and the picture.
#[cfg(target_os = "linux")]
mod report;
// The measurements of each round.
#[cfg(target_os = "linux")]
mod rounds;
// Medians and their confidence intervals.
#[cfg(target_os = "linux")]
mod statistics;

#[cfg(target_os = "linux")]
fn main() {
    bare_server::serve_if_asked();
    if let Some(reason) = sandcell_e2e::missing() {
        println!("nothing measured: {reason}");
        return;
    }
    let count = std::env::var("SANDCELL_BENCH_ROUNDS").map_or(40, |text| text.parse().unwrap());
    let mut table = rounds::all(count);
    loads::all(&mut table);
    report::show(&table, count);
}

#[cfg(not(target_os = "linux"))]
fn main() {}
