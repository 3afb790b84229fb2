//! The developers' commands: `cargo xtask check | test | cluster | soak | bench | profile | dist | e2b-compat | arch`.
//!
//! They are not for users; the program itself is in `crates/`. The decision taken here: a step that a machine cannot do is
//! reported as skipped. With `SANDCELL_TEST_REQUIRE=1` (CI) it fails instead.
#![forbid(unsafe_code)]

mod alone;
mod arch;
mod audit;
mod check;
mod circles;
mod command;
mod dist;
mod e2b_compat;
mod ordinary_user;
mod panics;
mod profile;
mod rust_paths;
mod tally;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The developers' commands", version)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Format, lints, documentation, dependencies, architecture, foreign targets
    Check,
    /// Every test; as root the end-to-end tests run a second time as an ordinary user
    Test {
        /// Only tests whose name contains one of these
        filters: Vec<String>,
        /// Builds them and runs none
        #[arg(long, conflicts_with = "filters")]
        no_run: bool,
    },
    /// The tests of the Kubernetes back end, on the cluster that `.ci/kubernetes` started
    Cluster,
    /// Create, run and close many sandboxes on one server and compare what the machine holds before and after
    Soak {
        /// The number of sandboxes (1,000 by default, 10,000 with --kill), or with --http the number of seconds
        #[arg(long)]
        count: Option<u32>,
        /// Kills sandboxes, launchers and servers at random moments instead of closing them
        #[arg(long)]
        kill: bool,
        /// Clients that call a server over HTTP once a second, each with different data, for `--count` seconds (300 by
        /// default); then the server is killed
        #[arg(long, value_name = "CLIENTS", num_args = 0..=1, default_missing_value = "200", conflicts_with = "kill")]
        http: Option<u32>,
    },
    /// Measures the cost of calls, against a bare interpreter and other ways to run code in the same run
    Bench {
        /// Rounds; each measures every row once
        #[arg(long, default_value_t = 40)]
        rounds: u32,
        /// Writes the table and the picture into docs/reference
        #[arg(long)]
        write: bool,
        /// The data folder that a base with numpy, pandas and matplotlib was built in, for the rows about them
        #[arg(long)]
        data: Option<std::path::PathBuf>,
        /// The name of that base
        #[arg(long, default_value = "data")]
        base: String,
        /// uv, for the rows about packages; they need a package index once
        #[arg(long)]
        uv: Option<std::path::PathBuf>,
    },
    /// A flame graph of where the time of calls goes, in the server and its sandboxes; needs perf
    Profile {
        /// The calls of the client
        #[arg(value_enum, default_value = "fresh")]
        calls: profile::Calls,
        /// The duration
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// The file for the picture; profile.svg in the target folder by default
        #[arg(long)]
        out: Option<std::path::PathBuf>,
    },
    /// Makes the packages: a static binary, a wheel, an npm package, an MCP bundle, server.json, checksums and a list of
    /// contents. Installs each package offline from its file, and runs the demo from there
    Dist(dist::DistArguments),
    /// Runs E2B's own test suites, from checkouts that are not part of this project, against the E2B server, and writes the
    /// table of results
    E2bCompat(e2b_compat::CompatArguments),
    /// Only the architecture test
    Arch,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().chore {
        Chore::Check => check::run(),
        Chore::Test { no_run: true, .. } => test::build(),
        Chore::Test { filters, .. } => test::run(&filters),
        Chore::Cluster => test::cluster(),
        Chore::Soak {
            count,
            http: Some(clients),
            ..
        } => test::soak_http(clients, count.unwrap_or(300)),
        Chore::Soak { count, kill: false, .. } => test::soak(count.unwrap_or(1000)),
        Chore::Soak { count, kill: true, .. } => test::soak_killing(count.unwrap_or(10_000)),
        Chore::Bench {
            rounds,
            write,
            data,
            base,
            uv,
        } => test::bench(
            rounds,
            write,
            data.as_deref().map(|folder| (folder, base.as_str())),
            uv.as_deref(),
        ),
        Chore::Profile { calls, seconds, out } => profile::run(calls, std::time::Duration::from_secs(seconds), out),
        Chore::Dist(arguments) => dist::run(&arguments),
        Chore::E2bCompat(arguments) => e2b_compat::run(&arguments),
        Chore::Arch => arch::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
