//! Messages between the server and the launcher: JSON in packets of a local socket, with descriptors beside them.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::spec::{Request, Template};

/// The largest message, in bytes.
pub const MAX_MESSAGE: usize = 128 * 1024;
/// The most descriptors beside one message.
const MAX_DESCRIPTORS: usize = 10;

/// From the server to the launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToLauncher {
    /// What all sandboxes have in common. Sent once, first.
    Configure(Template),
    /// Make a sandbox. Beside it: the agent's input (read end) and output (write end).
    Make {
        /// The server's number for it, never used before.
        id: u64,
        /// What is its own.
        request: Request,
        /// The folder with the tree of its image, with no symbolic link in its path; null: it shows the system's files.
        image: Option<PathBuf>,
        /// The warmed parent of which a child enters it, as by [`ToLauncher::Enter`], while it is still made; null: none.
        entered_by: Option<u64>,
    },
    /// End a sandbox.
    Kill {
        /// Which.
        id: u64,
    },
    /// Say what a sandbox uses.
    Usage {
        /// Which.
        id: u64,
    },
    /// Start a warmed parent: an interpreter whose children enter sandboxes. Beside it: what it reads as descriptor 3, and
    /// writes as descriptor 4.
    Warm {
        /// The server's number for it, never used before.
        parent: u64,
        /// The interpreter and its arguments.
        argv: Vec<String>,
        /// Read-only folders of the host that it sees, as attached ones are seen in sandboxes.
        folders: Vec<PathBuf>,
    },
    /// End a warmed parent. Its children live on.
    Cool {
        /// Which.
        parent: u64,
    },
    /// Let a child of a warmed parent enter a sandbox. Each sandbox can be entered once.
    Enter {
        /// The sandbox.
        id: u64,
        /// The parent.
        parent: u64,
    },
    /// The sandbox works for this caller from now on: callers get alike of the processors.
    Belongs {
        /// The sandbox.
        id: u64,
        /// The caller's number; sandboxes that nobody speaks of belong to number 0.
        caller: u64,
    },
    /// Whether all others come first where processors are wanted: so it is while it is made and nobody waits for it. At the
    /// latest a second after it was made it gets its part.
    ComesLast {
        /// The sandbox.
        id: u64,
        /// Whether they do.
        last: bool,
    },
    /// Show a folder of the host in a running sandbox, read-only.
    Attach {
        /// Which sandbox.
        id: u64,
        /// Which of the prepared mount points; each can be used once.
        number: usize,
        /// The folder, with no symbolic link in its path.
        folder: PathBuf,
    },
    /// Answer at once: the server wonders whether the launcher hangs.
    Ping {},
    /// Remove what dead launchers have left, as at the start.
    Sweep {},
}

/// From the launcher to the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromLauncher {
    /// Sandboxes can be made now.
    Configured(Report),
    /// No sandbox can be made on this machine as configured.
    Refused(StepError),
    /// The answer to a ping.
    Pong {},
    /// A process of the launcher's own was killed. Others do its work.
    HelperKilled {
        /// What it was, in words.
        what: String,
        /// The signal.
        signal: i32,
    },
    /// The sandbox is locked and its agent runs. Beside it: the near ends of its lane, if it has one.
    Made {
        /// Which.
        id: u64,
        /// Its private folder on the host, where it has no root of its own.
        folder: Option<String>,
    },
    /// The sandbox could not be made; nothing of it is left.
    Failed {
        /// Which.
        id: u64,
        /// Why.
        error: StepError,
    },
    /// What it uses.
    Usage {
        /// Which.
        id: u64,
        /// How much; null if it is not there any more.
        usage: Option<Usage>,
    },
    /// A child of a warmed parent was let into the sandbox, or why not.
    Entered {
        /// Which sandbox.
        id: u64,
        /// Why not; null if it is there.
        error: Option<StepError>,
    },
    /// A warmed parent has ended, or was never there.
    Cooled {
        /// Which.
        parent: u64,
        /// Why it could not be started; null if it was.
        error: Option<StepError>,
    },
    /// The folder is there, or why not.
    Attached {
        /// Which sandbox.
        id: u64,
        /// Which mount point.
        number: usize,
        /// Why not; null if it is there.
        error: Option<StepError>,
    },
    /// The sandbox has too many private files and is being ended.
    Full {
        /// Which.
        id: u64,
    },
    /// The sandbox has ended and nothing of it is left.
    Gone {
        /// Which.
        id: u64,
        /// Whether memory was the reason.
        out_of_memory: bool,
        /// Whether too many private files were.
        disk_full: bool,
        /// Whether the server had asked for it.
        asked: bool,
        /// Who outside killed it, if somebody did.
        killed: Option<Killer>,
    },
}

/// Who killed a sandbox's first process, where it was nobody of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Killer {
    /// The kernel, since the memory of the machine or of a control group above the sandbox's ran out.
    OuterMemory,
    /// Somebody outside.
    Unknown,
}

/// What the launcher found when it was configured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Whether it runs as the machine's root (each sandbox then has a host user id of its own).
    pub root: bool,
    /// The control groups in use: `v1`, `v2` or null, which means that a watcher holds the limits.
    pub cgroups: Option<String>,
    /// Why there are no control groups; null if there are.
    pub cgroups_missing: Option<String>,
    /// The kernel's Landlock version.
    pub landlock_abi: i32,
    /// Whether children of warmed parents can enter the sandboxes.
    pub enterable: bool,
    /// Why there are no namespaces, so that sandboxes are of the `process` level; null if there are.
    pub namespaces_missing: Option<StepError>,
    /// Mounts of the host that lie in what sandboxes see and are not shown, 64 at the most.
    pub left_out: Vec<LeftOut>,
    /// Folders of the host that sandboxes see by bind mounts, since an ordinary user cannot show them through overlays: file
    /// locks and watches on them cross between sandboxes.
    pub bound: Vec<String>,
    /// How many files it may have open.
    pub open_files: u64,
}

/// A mount of the host that is not shown in sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Where it is mounted on the host.
    pub path: String,
    /// Why it is left out.
    pub reason: String,
}

/// To the first process of a sandbox that can be entered, through its door. The near ends of pipes come from the process
/// that has entered, all else from the launcher; the lane goes the other way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AtDoor {
    /// A process has entered.
    Entered {
        /// Its id inside.
        pid: i32,
    },
    /// To the process that enters: beside this the far ends of its stdout, its stderr, and of the channel that it reads and
    /// the one that it writes; without them it makes pipes.
    Lane {},
    /// What it reads from and writes to: beside this the near ends of its stdout, its stderr, and of the channel that it
    /// reads and the one that it writes.
    Pipes {},
    /// It has ended.
    Ended {
        /// Its exit status, or the number of the signal that ended it.
        status: u8,
        /// Whether it was a signal.
        signal: bool,
    },
}

/// A step that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{step}: {}", io::Error::from_raw_os_error(*errno))]
pub struct StepError {
    /// The step's name, as the plan gives it.
    pub step: String,
    /// The isolation layer it belongs to; null for steps that are no layer.
    pub layer: Option<String>,
    /// The system's error number.
    pub errno: i32,
}

impl StepError {
    /// From what the system said, with what the step knows beyond that (such as a file's name).
    pub(crate) fn new(step: &str, layer: Option<&str>, error: &io::Error) -> Self {
        let about = error.get_ref().and_then(|inner| inner.downcast_ref::<About>());
        let errno = about
            .map(|about| about.errno)
            .or_else(|| error.raw_os_error())
            .unwrap_or(match error.kind() {
                io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
                _ => libc::EIO,
            });
        Self {
            step: about.map_or_else(|| step.to_owned(), |about| format!("{step} ({})", about.what)),
            layer: layer.map(str::to_owned),
            errno,
        }
    }
}

/// The step that refuses to attach a folder with another file system mounted below it.
pub const MOUNTED_BELOW: &str = "attach a folder in which a file system is mounted:";

/// An error number, and what it is about: a path, or the operation of a library that hides the number.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub(crate) struct About {
    pub(crate) what: String,
    pub(crate) errno: i32,
}

impl From<About> for io::Error {
    fn from(about: About) -> Self {
        Self::other(about)
    }
}

/// What a sandbox uses, as control groups or the watcher count it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Memory of its processes now, in bytes.
    pub memory: u64,
    /// The most memory seen, in bytes (files in memory included where a control group counts).
    pub memory_peak: u64,
    /// Processor time, in microseconds.
    pub cpu_us: u64,
    /// Processes and threads now.
    pub processes: u32,
    /// Kills and refusals for memory.
    pub memory_events: u64,
    /// Refused processes.
    pub process_events: u64,
}

/// Sends one message with descriptors beside it.
///
/// # Errors
/// What the socket says; `WouldBlock` if it is non-blocking and full.
pub fn send<T: Serialize>(socket: BorrowedFd<'_>, message: &T, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(message).map_err(io::Error::other)?;
    if bytes.len() > MAX_MESSAGE || descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    if descriptors.is_empty() {
        // Sandboxes without namespaces may not pass descriptors, and are refused the call that could.
        rustix::net::send(socket, &bytes, SendFlags::NOSIGNAL)?;
        return Ok(());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The same on a blocking socket, tried again while the system lacks memory.
///
/// # Errors
/// As of [`send`].
pub(crate) fn send_patiently<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    const TRIES: u32 = 100;
    let mut tries = 0;
    loop {
        let sent = send(socket, message, descriptors);
        let passes = |error: &io::Error| {
            matches!(
                error.raw_os_error(),
                Some(libc::ENOMEM | libc::ENOBUFS | libc::EAGAIN | libc::EINTR)
            )
        };
        tries += 1;
        if tries >= TRIES || !sent.as_ref().is_err_and(passes) {
            return sent;
        }
        pause();
    }
}

/// Sends descriptors on a blocking socket, again and again while the kernel refuses to have more of this user's in flight: the
/// launcher ends whoever has so many.
///
/// # Errors
/// As of [`send`].
pub(crate) fn send_through_floods<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    const TRIES: u32 = 1000;
    for _ in 1..TRIES {
        match send(socket, message, descriptors) {
            Err(error) if too_many_in_flight(&error) => pause(),
            sent => return sent,
        }
    }
    send(socket, message, descriptors)
}

/// Returns true for the kernel's refusal to have more descriptors of a user in flight.
#[must_use]
pub fn too_many_in_flight(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ETOOMANYREFS)
}

/// Gives the system a moment in which it may find memory.
pub(crate) fn pause() {
    let _ = rustix::thread::nanosleep(&rustix::thread::Timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    });
}

/// Whether an error of a socket says that nobody is at its other end.
#[must_use]
pub fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected
    )
}

/// Receives one message and the descriptors beside it. `None` is the end of the stream.
///
/// # Errors
/// What the socket says; `InvalidData` for a message that is too long or cannot be read, and `EMFILE` where this process has no
/// room for its descriptors. Both messages are gone from the socket, which goes on.
pub fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    buffer.resize(MAX_MESSAGE, 0);
    take(socket, buffer, ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
}

/// The same for a process that hears little: room is made for this message alone, since fresh memory costs a process that was
/// just forked more than asking how much is needed.
///
/// # Errors
/// As of [`receive`].
pub fn receive_one<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let (_, length) = rustix::net::recv(socket, &mut [0_u8; 1][..], RecvFlags::PEEK | RecvFlags::TRUNC)?;
    let mut buffer = vec![0; length.clamp(1, MAX_MESSAGE)];
    take(socket, &mut buffer, ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
}

/// The same for a process that can do without the descriptors: when it has no room for them they are left out.
///
/// # Errors
/// As of [`receive`].
pub fn receive_what_fits<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    buffer.resize(MAX_MESSAGE, 0);
    take(socket, buffer, ReturnFlags::TRUNC)
}

fn take<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    broken: ReturnFlags,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(buffer)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(broken & ReturnFlags::CTRUNC) {
        // The message is taken; those descriptors that had room are closed.
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    if received.flags.intersects(broken) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message was cut"));
    }
    let bytes = buffer.get(..received.bytes).unwrap_or_default();
    let message = serde_json::from_slice(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some((message, descriptors)))
}

/// A pair of connected sockets that keep message borders. Both are close-on-exec.
///
/// # Errors
/// No more descriptors.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Whether the other side has hung up (looked at, not waited for).
pub(crate) fn hung_up(socket: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&socket, PollFlags::empty())];
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut fds, Some(&none)) {
        Ok(_) => fds
            .iter()
            .any(|fd| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR)),
        Err(_) => true,
    }
}
