//! The `sandcell` program: settings, wiring and commands. Each command has its own file in `cli/`.
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
    // This process may be the launcher, which must know nothing. So this check comes first.
    wiring::become_launcher_if_asked();
    wiring::become_init_if_first();
    wiring::give_back_early();
    wiring::withstand_limits();
    with_room(cli::main)
}

/// Runs `work` on a separate stack when this stack's limit is too low and cannot be raised.
fn with_room(work: fn() -> ExitCode) -> ExitCode {
    #[cfg(unix)]
    {
        const ENOUGH: u64 = 1 << 20;
        const ROOM: usize = 8 << 20;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
        if limit.is_some_and(|limit| limit < ENOUGH)
            && let Ok(thread) = std::thread::Builder::new().stack_size(ROOM).spawn(work)
        {
            return thread.join().unwrap_or(ExitCode::FAILURE);
        }
    }
    work()
}
