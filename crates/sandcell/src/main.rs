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
    wiring::configure_heap();
    wiring::withstand_limits();
    with_large_stack(cli::main)
}

/// Runs `work` on a separate stack when this stack's limit is too low and cannot be raised.
fn with_large_stack(work: fn() -> ExitCode) -> ExitCode {
    #[cfg(unix)]
    {
        const MIN_STACK_BYTES: u64 = 1 << 20;
        const STACK_BYTES: usize = 8 << 20;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
        if limit.is_some_and(|limit| limit < MIN_STACK_BYTES)
            && let Ok(thread) = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(work)
        {
            return thread.join().unwrap_or(ExitCode::FAILURE);
        }
    }
    work()
}
