//! The server's side of the launcher: starts it, detects its end, and kills it.
//!
//! - **Process:** the server. Nothing here runs in the launcher.
//! - **Started by:** an operator or a client. The server calls [`start`] after it has read its settings and before it
//!   starts its runtime, and again when a launcher is lost.
//! - **Rights:** those of the server's user. It forks, executes its own program, and sends signals to the launcher and
//!   its descendants.
//! - **Ends:** independently of the launcher. Closing the socket ends the launcher.

mod process;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

pub use process::{Exit, Process};

use super::base::faults;
use crate::sys::spawn::{Fork, Texts, copy_to, execve, exit_now, fork, unblock_signals};

/// The launcher's `argv[0]`.
pub(super) const LAUNCHER_NAME: &str = "sandcell-launcher";

/// A started launcher.
#[derive(Debug)]
pub struct Launcher {
    /// The socket for messages. Closing it ends the launcher and every sandbox.
    pub socket: OwnedFd,
    /// The process.
    pub process: Process,
}

/// Starts a launcher. The fork is cheapest before the first thread, and safe later: the child only makes system calls
/// until it executes the program.
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
