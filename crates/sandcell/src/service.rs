//! Servers in the background: the location of their sockets, the status query and the request to end.
//!
//! A socket lies in a folder that only its user can enter, and both ends check the other's identity. The settings of
//! the client alone (its flags and its environment) determine the socket. Clients with the same settings share a
//! server. A client that asks for stronger isolation never gets a server that was started with less.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use sandcell_sandbox::{Code, Failure};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

/// The time limit for a server's status answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum size of that answer, in bytes.
const MAX_ANSWER_BYTES: u64 = 16 << 10;
/// The time limit for a server to end after the request. The server waits a few seconds for its calls.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// The interval between checks that a server has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The prefix and suffix of a socket's name, around the settings' digest.
const SOCKET_NAME: (&str, &str) = ("service-", ".sock");

/// A server's status, as the server reports it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ServerStatus {
    /// Its version.
    pub(crate) version: String,
    /// The number of live sandboxes.
    pub(crate) sandboxes: u64,
    /// The number of running executions.
    pub(crate) running: u64,
    /// The number of calls in progress.
    pub(crate) calls: u64,
    /// The time since the server started.
    pub(crate) uptime_s: u64,
}

/// The answer at a socket.
#[derive(Debug)]
pub(crate) enum SocketState {
    /// No server: there is no socket, or one that an ended server left behind.
    NoServer,
    /// A server, and its process if the system reports it.
    Server(ServerStatus, Option<Pid>),
}

/// Returns the folder of the sockets, and makes it if it is absent. Another user who can write to the folder could
/// impersonate a server. So a folder that others can enter is refused.
pub(crate) fn folder() -> Result<PathBuf, Failure> {
    let own = geteuid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let folder = match runtime.filter(|path| path.is_absolute()) {
        Some(path) => path.join("sandcell"),
        // macOS has no /run.
        None if own.is_root() && cfg!(not(target_os = "linux")) => PathBuf::from("/var/run/sandcell"),
        None if own.is_root() => PathBuf::from("/run/sandcell"),
        None => PathBuf::from(format!("/tmp/sandcell-{}", own.as_raw())),
    };
    let made = std::fs::DirBuilder::new().mode(0o700).create(&folder);
    match made {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(unusable(&folder, &error.to_string())),
    }
    let meta = std::fs::symlink_metadata(&folder).map_err(|error| unusable(&folder, &error.to_string()))?;
    if !meta.is_dir() || meta.uid() != own.as_raw() {
        return Err(unusable(&folder, "it is not a folder of this user's"));
    }
    if meta.permissions().mode() & 0o077 != 0 {
        return Err(unusable(&folder, "others can enter it (chmod 700 ends that)"));
    }
    Ok(folder)
}

fn unusable(folder: &Path, reason: &str) -> Failure {
    Failure::new(
        Code::BackendUnavailable,
        format!("{} cannot hold the socket of a server: {reason}", folder.display()),
        "set XDG_RUNTIME_DIR to a folder of your own, or service.on_demand = false",
    )
}

/// Returns the socket of the server for clients with these settings.
#[cfg(feature = "bridge")]
pub(crate) fn socket(mark: &str) -> Result<PathBuf, Failure> {
    Ok(folder()?.join(format!("{}{mark}{}", SOCKET_NAME.0, SOCKET_NAME.1)))
}

/// Returns all existing sockets.
pub(crate) fn sockets() -> Result<Vec<PathBuf>, Failure> {
    let folder = folder()?;
    let entries = std::fs::read_dir(&folder).map_err(|error| unusable(&folder, &error.to_string()))?;
    let is_one = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(SOCKET_NAME.0) && name.ends_with(SOCKET_NAME.1)
    };
    let mut sockets: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_one).collect();
    sockets.sort();
    Ok(sockets)
}

/// Asks the listener at the socket for its status.
pub(crate) async fn ask(socket: &Path) -> Result<SocketState, Failure> {
    let strange = |reason: String| {
        Failure::new(
            Code::BackendUnavailable,
            format!("the listener at {} cannot be used: {reason}", socket.display()),
            "end that process, or remove the socket",
        )
    };
    let mut stream = match timeout(ANSWER_TIMEOUT, UnixStream::connect(socket)).await {
        Ok(Ok(stream)) => stream,
        // A server that closes its socket during the query causes a reset.
        Ok(Err(error))
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset
            ) =>
        {
            return Ok(SocketState::NoServer);
        }
        Ok(Err(error)) => return Err(strange(error.to_string())),
        Err(_) => return Err(strange("it takes no connection".to_owned())),
    };
    let peer = stream.peer_cred().map_err(|error| strange(error.to_string()))?;
    if peer.uid() != geteuid().as_raw() {
        return Err(strange(format!("it is of user {}", peer.uid())));
    }
    let asking = async {
        let request = b"GET /service HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await?;
        let mut answer = Vec::new();
        (&mut stream).take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    let answer = match timeout(ANSWER_TIMEOUT, asking).await {
        Ok(Ok(answer)) => answer,
        // The server ended during the query.
        Ok(Err(_)) => return Ok(SocketState::NoServer),
        Err(_) => return Err(strange(format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()))),
    };
    if answer.is_empty() {
        return Ok(SocketState::NoServer);
    }
    let text = String::from_utf8_lossy(&answer);
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let status = serde_json::from_str(body).map_err(|_| strange("it is no server of sandcell's".to_owned()))?;
    Ok(SocketState::Server(status, peer.pid().and_then(Pid::from_raw)))
}

/// Asks a server to end, and waits until it no longer listens.
pub(crate) async fn stop(socket: &Path, pid: Option<Pid>) -> Result<(), Failure> {
    let cannot = |reason: &str| {
        Failure::new(
            Code::Internal,
            format!("the server at {} did not end: {reason}", socket.display()),
            "end its process yourself",
        )
    };
    let pid = pid.ok_or_else(|| cannot("the system does not report its process id"))?;
    match kill_process(pid, Signal::TERM) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => return Err(cannot(&error.to_string())),
    }
    let ended = async {
        while matches!(ask(socket).await, Ok(SocketState::Server(_, Some(now))) if now == pid) {
            sleep(POLL_INTERVAL).await;
        }
    };
    timeout(END_TIMEOUT, ended)
        .await
        .map_err(|_| cannot("it still listens"))
}
