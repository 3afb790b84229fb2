//! The launcher: a small single-threaded process that makes jails and owns them, and the processes that it starts.
//!
//! It is this program executed again with an empty environment, before the configuration is read, so its memory holds
//! no secret. Its sandboxes' first processes are its children. When the server ends, the launcher kills them all,
//! cleans up and exits. When the launcher ends, the kernel kills them. (Without namespaces they are the children of a
//! subreaper, which kills them.)
//!
//! Each folder except `base` holds the code of one process, or of one phase of it (`root_setup`). Every process here
//! except the server is the launcher or a fork of it. Of the forks, only a zygote executes another program.
//!
//! | folder | process | starts it | rights | ends |
//! |---|---|---|---|---|
//! | `server/` | the server | | the server's | |
//! | `supervisor/` | the launcher | the server | the server's user's, in its own mount namespace | when the server is gone |
//! | `root_setup/` | the launcher, before its event loop | | the same | when the launcher is prepared |
//! | `fork_server/` | fork server | the supervisor | the launcher's without the host's files, or only the shared user namespace's | with the launcher |
//! | `spare/` | spare | the fork server, else the supervisor | the launcher's until it has a request | when it has cloned the first process |
//! | `subreaper/` | subreaper, without namespaces only | none: a spare turns into it | the launcher's | when its sandbox is removed |
//! | `first_process/` | a sandbox's first process | a spare, the fork server or a subreaper | given up step by step | when the agent ends |
//! | `zygote/` | zygote | the supervisor | `CAP_SYS_ADMIN` in the shared user namespace | when the server no longer wants it |
//! | `base/` | several of these | | | |
//!
//! A folder uses only those after it in this list: `server`, `supervisor`, `fork_server`, `spare`, `subreaper`, `first_process`, `zygote`,
//! `root_setup`, `base`. `cargo xtask check` tests it.

mod base;
mod first_process;
mod fork_server;
mod root_setup;
mod server;
mod spare;
mod subreaper;
mod supervisor;
mod zygote;

pub use base::activity::Activity;
pub use first_process::Entry;
pub use server::{Exit, Launcher, Process, start};

use crate::sys::spawn::exit_now;

/// Runs the launcher if this process was started as one, and then does not return. Call it before everything else.
/// `entry` is the function that a jail's first process runs once it is locked. It returns the exit status.
pub fn become_launcher_if_asked(entry: Entry) {
    let mut arguments = std::env::args_os();
    if arguments.next().is_none_or(|name| name != server::LAUNCHER_NAME) {
        return;
    }
    let number = arguments
        .next()
        .and_then(|text| text.to_str().and_then(|text| text.parse().ok()));
    let status = match number.map(crate::sys::fd::adopt) {
        Some(Ok(socket)) => supervisor::run(socket, entry),
        _ => 2,
    };
    exit_now(status)
}
