//! The `sandcell` program: settings, wiring and commands. What the commands do is in `cli/`, one file each.
#![forbid(unsafe_code)]

mod cli;
mod config;
mod reload;
mod screen;
#[cfg(unix)]
mod service;
mod signals;
mod telemetry;
mod wiring;

use std::process::ExitCode;

fn main() -> ExitCode {
    // This may be the launcher: it must know nothing, so it comes before everything else.
    wiring::become_launcher_if_asked();
    wiring::become_init_if_first();
    wiring::give_back_early();
    cli::main()
}
