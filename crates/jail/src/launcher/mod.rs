//! The launcher: a small single-threaded process that makes jails and owns them.
//!
//! It is this program executed again with an empty environment, before the configuration is read, so its memory holds
//! no secret. Its sandboxes' first processes are its children. When the server ends, the launcher kills them all,
//! cleans up and exits. When the launcher ends, the kernel kills them.

mod attach;
mod etc_stub;
mod faults;
mod fork_server;
mod host_trees;
mod mount_table;
mod namespaces;
mod process;
mod root_setup;
mod shared_counts;
mod shared_userns;
mod spare;
mod spare_init;
mod subreaper;
mod supervisor;
mod tree_walk;
mod zygote;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

pub use process::{Activity, Exit, Process};
pub use spare::Entry;

use crate::sys::spawn::{Fork, Texts, copy_to, execve, exit_now, fork, unblock_signals};

/// The launcher's `argv[0]`.
const LAUNCHER_NAME: &str = "sandcell-launcher";

/// A started launcher.
#[derive(Debug)]
pub struct Launcher {
    /// The socket for messages. Closing it ends the launcher and every sandbox.
    pub socket: OwnedFd,
    /// The process.
    pub process: Process,
}

/// Starts a launcher. Call it before the first thread.
///
/// Does not wait for the launcher to run. If it cannot be executed, its socket hangs up.
///
/// # Errors
/// The process could not be started.
pub fn start() -> io::Result<Launcher> {
    let (ours, theirs) = crate::wire::pair()?;
    let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let argv = [LAUNCHER_NAME.to_owned(), theirs.as_raw_fd().to_string()];
    let argv = argv.map(CString::new).into_iter().collect::<Result<_, _>>()?;
    let argv = Texts::new(argv);
    let env = Texts::new(environment());
    match fork()? {
        Fork::Child => {
            let ready = (0..3)
                .try_for_each(|standard| copy_to(nothing.as_raw_fd(), standard))
                .and_then(|()| Ok(rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?))
                .and_then(|()| unblock_signals());
            if ready.is_ok() {
                execve(c"/proc/self/exe", &argv, &env);
            }
            exit_now(127)
        }
        Fork::Parent(pid) => {
            let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
            Ok(Launcher {
                socket: ours,
                process: Process::of_child(pid)?,
            })
        }
    }
}

/// Returns an empty environment, unless a test keeps it.
fn environment() -> Vec<CString> {
    if !faults::environment_is_kept() {
        return Vec::new();
    }
    std::env::vars_os()
        .filter_map(|(name, value)| CString::new([name.into_vec(), value.into_vec()].join(&b'=')).ok())
        .collect()
}

/// Runs the launcher if this process was started as one, and then does not return. Call it before everything else.
/// `entry` is the function that a jail's first process runs once it is locked. It returns the exit status.
pub fn become_launcher_if_asked(entry: Entry) {
    let mut arguments = std::env::args_os();
    if arguments.next().is_none_or(|name| name != LAUNCHER_NAME) {
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
