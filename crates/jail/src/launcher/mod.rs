//! The launcher: a small single-threaded process that makes jails and holds them.
//!
//! It is this program executed again with an empty environment, before any configuration was read, so nothing in its
//! memory is worth stealing. Its sandboxes' first processes are its children; when the server goes, it ends them all,
//! removes what is left and ends; when it goes, the kernel ends them.

mod attach;
mod bare;
mod common;
mod config;
mod cradle;
mod faults;
mod folder;
mod host;
mod keeper;
mod nursery;
mod parent;
mod waiting;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

pub use cradle::Entry;

/// The name that a launcher has in place of the program's.
const NAME: &str = "sandcell-launcher";

/// A started launcher.
#[derive(Debug)]
pub struct Launcher {
    /// Messages go through here; closing it ends the launcher and every sandbox.
    pub socket: OwnedFd,
    /// The process.
    pub process: Child,
}

/// Starts a launcher. Call it first in `main`, before any thread and before configuration is read.
///
/// # Errors
/// The process could not be started.
pub fn start() -> io::Result<Launcher> {
    let (ours, theirs) = crate::wire::pair()?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME).arg(theirs.as_raw_fd().to_string());
    if !faults::environment_is_kept() {
        command.env_clear();
    }
    let process = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok(Launcher { socket: ours, process })
}

/// Runs the launcher if this process was started as one, and then does not return. Call it before everything else.
/// `entry` is what a jail's first process runs once it is locked; its result is the exit status.
pub fn become_launcher_if_asked(entry: Entry) {
    let mut arguments = std::env::args_os();
    if arguments.next().is_none_or(|name| name != NAME) {
        return;
    }
    let number = arguments
        .next()
        .and_then(|text| text.to_str().and_then(|text| text.parse().ok()));
    let status = match number.map(crate::sys::fd::adopt) {
        Some(Ok(socket)) => keeper::run(socket, entry),
        _ => 2,
    };
    crate::sys::clone::exit_now(status)
}
