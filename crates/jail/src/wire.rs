//! Messages between the server and the launcher: JSON in packets of a local socket, with descriptors attached.

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

/// The maximum size of a message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 128 * 1024;
/// The maximum number of descriptors with one message.
const MAX_DESCRIPTORS: usize = 10;

/// A message from the server to the launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToLauncher {
    /// The specification that all sandboxes share. Sent once, first.
    Configure(Template),
    /// Make a sandbox. Carries the agent's input (read end) and output (write end).
    Make {
        /// The server's number for it, never used before.
        id: u64,
        /// The specification of this sandbox.
        request: Request,
        /// The folder with the tree of its image, with no symbolic link in its path. Null: the sandbox shows the
        /// system's files.
        image: Option<PathBuf>,
        /// The zygote whose worker enters the sandbox during its creation, as with [`ToLauncher::Enter`]. Null: none.
        entered_by: Option<u64>,
    },
    /// Kill a sandbox.
    Kill {
        /// The sandbox.
        id: u64,
    },
    /// Report a sandbox's usage.
    Usage {
        /// The sandbox.
        id: u64,
    },
    /// Start a zygote: an interpreter whose forks enter sandboxes. Carries its descriptors 3 (to read) and 4 (to
    /// write).
    StartZygote {
        /// The server's number for it, never used before.
        zygote: u64,
        /// The interpreter and its arguments.
        argv: Vec<String>,
        /// Read-only host folders that it sees in the same way as attached folders in sandboxes.
        folders: Vec<PathBuf>,
    },
    /// Kill a zygote. Its forks live on.
    StopZygote {
        /// The zygote.
        zygote: u64,
    },
    /// Let a worker of a zygote enter a sandbox. Each sandbox can be entered once. Carries the files that the worker keeps
    /// as descriptors 5 and higher, if any.
    Enter {
        /// The sandbox.
        id: u64,
        /// The zygote.
        zygote: u64,
    },
    /// Send a copy of a descriptor of a process in the sandbox.
    TakeDescriptor {
        /// The sandbox.
        id: u64,
        /// The process: a child of the first process, by its id inside.
        process: i32,
        /// The descriptor's number in the process.
        number: i32,
    },
    /// Assign the sandbox to this caller. Callers share the processors equally.
    AssignOwner {
        /// The sandbox.
        id: u64,
        /// The caller's number. Sandboxes without this message belong to number 0.
        caller: u64,
    },
    /// Set or end the sandbox's low processor priority, for creation before any call waits for it. It ends one second
    /// after this message at the latest.
    SetPriority {
        /// The sandbox.
        id: u64,
        /// True for low priority.
        low: bool,
    },
    /// Attach a host folder to a running sandbox, read-only.
    Attach {
        /// The sandbox.
        id: u64,
        /// The number of the prepared mount point. Each can be used once.
        number: usize,
        /// The folder, with no symbolic link in its path.
        folder: PathBuf,
    },
    /// Answer at once. The server tests if the launcher hangs.
    Ping {},
    /// Remove the remains of dead launchers, as at the start.
    Sweep {},
}

/// A message from the launcher to the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromLauncher {
    /// Sandboxes can be made now.
    Configured(Report),
    /// No sandbox can be made on this machine as configured.
    Refused(StepError),
    /// The answer to a ping. Comes unasked while the launcher does long work, so that the server knows that it goes on.
    Pong {},
    /// Another process killed a helper process of the launcher. Other processes take over its work.
    HelperKilled {
        /// The helper process, in words.
        what: String,
        /// The signal.
        signal: i32,
    },
    /// The sandbox is locked and its agent runs. Carries the near ends of its direct pipes, if any.
    Made {
        /// The sandbox.
        id: u64,
        /// Its private folder on the host, if it has no private root.
        folder: Option<String>,
    },
    /// The sandbox could not be made. Nothing of it remains.
    Failed {
        /// The sandbox.
        id: u64,
        /// The cause.
        error: StepError,
    },
    /// The answer with a sandbox's usage.
    Usage {
        /// The sandbox.
        id: u64,
        /// The usage. Null if the sandbox is gone.
        usage: Option<Usage>,
    },
    /// The result of an entry into a sandbox.
    Entered {
        /// The sandbox.
        id: u64,
        /// The cause of a failure. Null if the worker has entered.
        error: Option<StepError>,
    },
    /// The copy of a descriptor of a process in a sandbox. Carries it, unless there is an error.
    Descriptor {
        /// The sandbox.
        id: u64,
        /// The cause of a failure.
        error: Option<StepError>,
    },
    /// A zygote has ended, or could not be started.
    ZygoteEnded {
        /// The zygote.
        zygote: u64,
        /// The cause if it could not start or gave a reason. Null otherwise.
        error: Option<StepError>,
    },
    /// The result of attaching a folder.
    Attached {
        /// The sandbox.
        id: u64,
        /// The number of the mount point.
        number: usize,
        /// The cause of a failure. Null if the folder is attached.
        error: Option<StepError>,
    },
    /// The sandbox exceeds its private files and is being killed.
    Full {
        /// The sandbox.
        id: u64,
    },
    /// The sandbox has ended and nothing of it remains.
    Gone {
        /// The sandbox.
        id: u64,
        /// True if it ended for memory.
        out_of_memory: bool,
        /// True if it ended for too many private files.
        disk_full: bool,
        /// True if the server requested it.
        asked: bool,
        /// The killer, if a process outside killed it.
        killed: Option<Killer>,
    },
}

/// The killer of a sandbox's first process, if it was not this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Killer {
    /// The kernel, because the machine or a cgroup above the sandbox's ran out of memory.
    OuterMemory,
    /// An unknown process outside.
    Unknown,
}

/// The launcher's report after its configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// True if it runs as the machine's root. Each sandbox then has a separate host id.
    pub root: bool,
    /// The cgroup version in use: `v1`, `v2`, or null if a watchdog enforces the limits.
    pub cgroups: Option<String>,
    /// The reason why there are no cgroups. Null if there are.
    pub cgroups_missing: Option<String>,
    /// The kernel's Landlock version.
    pub landlock_abi: i32,
    /// True if workers of zygotes can enter the sandboxes.
    pub enterable: bool,
    /// The reason why there are no namespaces, so that sandboxes have the `process` level. Null if there are.
    pub namespaces_missing: Option<StepError>,
    /// The host mounts below visible folders that are not shown, at most 64.
    pub left_out: Vec<SkippedPath>,
    /// Host folders that sandboxes see through bind mounts, since an ordinary user cannot show them through overlays.
    /// File locks and watches on them cross between sandboxes.
    pub bound: Vec<String>,
    /// The launcher's limit of open files.
    pub open_files: u64,
}

/// A host mount that is not shown in sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedPath {
    /// Its mount point on the host.
    pub path: String,
    /// The reason.
    pub reason: String,
}

/// A message on the entry socket of a sandbox that can be entered. The first process receives the near ends of pipes
/// from the worker, and all other messages from the launcher. It sends the direct pipes to the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryMessage {
    /// A worker has entered.
    Entered {
        /// Its id inside.
        pid: i32,
    },
    /// Sent to the worker. Carries the far ends of its stdout, its stderr, its control input and its control output.
    /// Without them the worker makes pipes.
    Lane {},
    /// Sent by the worker. Carries the near ends of its stdout, its stderr, its control input and its control output.
    Pipes {},
    /// The worker has ended.
    Ended {
        /// Its exit status, or the number of the signal that ended it.
        status: u8,
        /// True for a signal.
        signal: bool,
    },
}

/// A step that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{step}: {}", io::Error::from_raw_os_error(*errno))]
pub struct StepError {
    /// The step's name in the plan.
    pub step: String,
    /// The isolation layer of the step. Null if it belongs to none.
    pub layer: Option<String>,
    /// The system's error number.
    pub errno: i32,
}

impl StepError {
    /// Builds the error from a system error, with details that the step has added (such as a file's name).
    pub(crate) fn new(step: &str, layer: Option<&str>, error: &io::Error) -> Self {
        let about = error.get_ref().and_then(|inner| inner.downcast_ref::<DescribedError>());
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

    /// The error of a sandbox whose process ended during its creation.
    pub(crate) fn process_ended() -> Self {
        let error = io::Error::from_raw_os_error(libc::ECHILD);
        Self::new("set the sandbox up (its process ended)", None, &error)
    }
}

/// The step that refuses to attach a folder with another file system mounted below it.
pub const MOUNTED_BELOW_STEP: &str = "attach a folder in which a file system is mounted:";

/// An error number with its subject: a path, or an operation of a library that hides the number.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub(crate) struct DescribedError {
    pub(crate) what: String,
    pub(crate) errno: i32,
}

impl From<DescribedError> for io::Error {
    fn from(about: DescribedError) -> Self {
        Self::other(about)
    }
}

/// The usage of a sandbox, as counted by cgroups or the watchdog.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The current memory of its processes, in bytes.
    pub memory: u64,
    /// The maximum memory seen, in bytes (including files in memory if a cgroup counts).
    pub memory_peak: u64,
    /// Processor time, in microseconds.
    pub cpu_us: u64,
    /// The number of processes and threads now.
    pub processes: u32,
    /// The number of kills and refusals for memory.
    pub memory_events: u64,
    /// The number of refused processes.
    pub process_events: u64,
}

/// Sends one message with descriptors.
///
/// # Errors
/// The error of the socket; `WouldBlock` if it is non-blocking and full.
pub fn send<T: Serialize>(socket: BorrowedFd<'_>, message: &T, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(message).map_err(io::Error::other)?;
    if bytes.len() > MAX_MESSAGE_BYTES || descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    if descriptors.is_empty() {
        // Sandboxes without namespaces may not pass descriptors, so their filter refuses sendmsg.
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

/// Sends on a blocking socket, and retries while the system lacks memory.
///
/// # Errors
/// As [`send`].
pub(crate) fn send_patiently<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    const MAX_TRIES: u32 = 100;
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
        if tries >= MAX_TRIES || !sent.as_ref().is_err_and(passes) {
            return sent;
        }
        pause();
    }
}

/// Sends descriptors on a blocking socket. Retries while the kernel refuses to have more of this user's descriptors in
/// flight: the launcher kills the sandbox with the most.
///
/// # Errors
/// As [`send`].
pub(crate) fn send_through_floods<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    const MAX_TRIES: u32 = 1000;
    for _ in 1..MAX_TRIES {
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

/// Waits a moment, in which the system may free memory.
pub(crate) fn pause() {
    let _ = rustix::thread::nanosleep(&rustix::thread::Timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    });
}

/// Returns true for a socket error that means a closed other end.
#[must_use]
pub fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected
    )
}

/// Receives one message and its descriptors. `None` is the end of the stream.
///
/// # Errors
/// The error of the socket; `InvalidData` for a message that is too long or unreadable; `EMFILE` if this process cannot
/// hold its descriptors. Both kinds of message are removed from the socket, which stays usable.
pub fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    buffer.resize(MAX_MESSAGE_BYTES, 0);
    take(socket, buffer, ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
}

/// Receives one message, for a process that receives few. Allocates only the size of this message: in a new fork, fresh
/// memory costs more than asking for the size.
///
/// # Errors
/// As [`receive`].
pub fn receive_one<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let (_, length) = rustix::net::recv(socket, &mut [0_u8; 1][..], RecvFlags::PEEK | RecvFlags::TRUNC)?;
    let mut buffer = vec![0; length.clamp(1, MAX_MESSAGE_BYTES)];
    take(socket, &mut buffer, ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
}

/// Receives one message, for a process that can do without the descriptors. Drops descriptors that it cannot hold.
///
/// # Errors
/// As [`receive`].
pub fn receive_what_fits<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    buffer.resize(MAX_MESSAGE_BYTES, 0);
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
        // The message is removed; the descriptors that were received are closed.
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    if received.flags.intersects(broken) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message was cut"));
    }
    let bytes = buffer.get(..received.bytes).unwrap_or_default();
    let message = serde_json::from_slice(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some((message, descriptors)))
}

/// Makes a pair of connected sockets that keep message boundaries. Both are close-on-exec.
///
/// # Errors
/// There are no more descriptors.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Returns true if there is something to read, if the other end is closed, or if the process of a pidfd has ended. Does
/// not wait.
pub(crate) fn readable(fd: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

/// Returns true if the other side has hung up. Does not wait.
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
