//! `sandcell serve` with `service.on_demand`: passes all messages on to a server in the background, and starts one if
//! there is none.
//!
//! A client that finds no server takes a lock, checks once more and only then starts a server. So clients that start
//! at the same time start one server. The kernel releases the lock when its process ends, whatever the reason.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use sandcell_mcp::Wake;
use sandcell_sandbox::{Code, Failure};
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep};

use super::{ServeArgs, connect};
use crate::config::Settings;
use crate::service::{self, SocketState};

/// The time limit for a server's first answer, and for waiting on another client's start.
const START_TIMEOUT: Duration = Duration::from_secs(40);
/// The interval between checks for an answer.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The server log starts over above this size.
const MAX_LOG_BYTES: u64 = 4 << 20;
/// The part of the log that is quoted when a server could not start.
const QUOTED_LOG_BYTES: u64 = 2000;

/// Passes messages on until stdin is closed or a signal arrives.
pub(super) async fn serve(args: &ServeArgs, settings: &Settings) -> Result<ExitCode, Failure> {
    let socket = service::socket(&mark(args, settings))?;
    let log = settings.data_dir.as_deref().map(|folder| folder.join("service.log"));
    let to = format!("unix:{}", socket.display());
    let wake: Wake = Arc::new(move || {
        let (socket, log) = (socket.clone(), log.clone());
        async move { ensure_server(&socket, log.as_deref()).await }.boxed()
    });
    connect::pass_on(&to, None, Some(wake)).await
}

/// Returns the common digest of clients that share a server: their own settings and the tools offered.
fn mark(args: &ServeArgs, settings: &Settings) -> String {
    let mut digest = Sha256::new_with_prefix(&settings.service.mark);
    for tool in &args.tools {
        digest.update(format!("{tool}\n"));
    }
    digest
        .finalize()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Ensures that a server of this version listens there. A server of another version is replaced if it has no
/// sandboxes, executions or calls.
async fn ensure_server(socket: &Path, log: Option<&Path>) -> Result<(), Failure> {
    if is_there(socket).await? {
        return Ok(());
    }
    let _lock = lock(socket).await?;
    if is_there(socket).await? {
        return Ok(());
    }
    if let SocketState::Server(_, pid) = service::ask(socket).await? {
        service::stop(socket, pid).await?;
    }
    start(socket, log).await
}

async fn is_there(socket: &Path) -> Result<bool, Failure> {
    Ok(match service::ask(socket).await? {
        SocketState::NoServer => false,
        SocketState::Server(status, _) if status.version == env!("CARGO_PKG_VERSION") => true,
        SocketState::Server(status, _) if status.sandboxes + status.running + status.calls > 0 => {
            tracing::warn!(
                version = status.version,
                "the server in the background is of another version and has sandboxes: it is used until it ends \
                 (`sandcell service stop` ends it)"
            );
            true
        }
        SocketState::Server(..) => false,
    })
}

/// Takes the lock that permits starting a server at this socket. Dropping the file releases the lock.
async fn lock(socket: &Path) -> Result<File, Failure> {
    let path = PathBuf::from(format!("{}.lock", socket.display()));
    let cannot = |reason: String| {
        Failure::new(
            Code::BackendUnavailable,
            format!("{} cannot be locked: {reason}", path.display()),
            "end other clients that are starting, or remove the file",
        )
    };
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(|error| cannot(error.to_string()))?;
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => sleep(POLL_INTERVAL).await,
            Err(TryLockError::WouldBlock) => {
                return Err(cannot(format!(
                    "another client has it for {} s",
                    START_TIMEOUT.as_secs()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(cannot(error.to_string())),
        }
    }
}

/// Returns the arguments without `--parent-socket`: the parent of this process is not the parent of the server.
fn shared_arguments(mut own: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut shared = Vec::new();
    while let Some(argument) = own.next() {
        match argument.to_str() {
            Some("--parent-socket") => drop(own.next()),
            Some(text) if text.starts_with("--parent-socket=") => {}
            Some(_) | None => shared.push(argument),
        }
    }
    shared
}

/// Starts a server with this process's own arguments and waits until it answers.
async fn start(socket: &Path, log: Option<&Path>) -> Result<(), Failure> {
    let cannot = |reason: String| {
        Failure::new(
            Code::BackendUnavailable,
            format!("the server in the background could not be started: {reason}"),
            "`sandcell doctor` shows what this machine lacks; service.on_demand = false avoids the background server",
        )
    };
    let (file, from) = open_log(log).map_err(|error| cannot(format!("its log: {error}")))?;
    let program = std::env::current_exe().map_err(|error| cannot(error.to_string()))?;
    let mut command = Command::new(program);
    command
        .args(shared_arguments(std::env::args_os().skip(1)))
        .arg("--socket")
        .arg(socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file.map_or_else(Stdio::null, Stdio::from));
    let mut child = command.spawn().map_err(|error| cannot(error.to_string()))?;
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        if let Ok(SocketState::Server(..)) = service::ask(socket).await {
            reap_in_background(child);
            return Ok(());
        }
        if let Ok(Some(status)) = child.try_wait() {
            let said = log.map(|log| end_of(log, from)).unwrap_or_default();
            return Err(cannot(format!("it ended at once ({status}): {said}")));
        }
        if Instant::now() >= deadline {
            let _gone = child.kill();
            reap_in_background(child);
            return Err(cannot(format!(
                "it did not answer within {} s",
                START_TIMEOUT.as_secs()
            )));
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Lets the server outlive this process. Reaps the server while this process exists.
fn reap_in_background(mut child: Child) {
    std::thread::spawn(move || child.wait());
}

/// Opens the server's log. Returns the file and the offset of the new server's first line.
fn open_log(log: Option<&Path>) -> std::io::Result<(Option<File>, u64)> {
    let Some(path) = log else { return Ok((None, 0)) };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let mut length = file.metadata()?.len();
    if length > MAX_LOG_BYTES {
        file.set_len(0)?;
        length = 0;
    }
    Ok((Some(file), length))
}

fn end_of(log: &Path, from: u64) -> String {
    let read = || {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(from.max(length.saturating_sub(QUOTED_LOG_BYTES))))?;
        let mut bytes = Vec::new();
        file.take(QUOTED_LOG_BYTES).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).trim().replace('\n', "; "))
    };
    read().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_of_the_parent_is_not_passed_to_a_shared_server() {
        for (own, shared) in [
            (
                &["serve", "--parent-socket", "7", "--shared"][..],
                &["serve", "--shared"][..],
            ),
            (&["serve", "--parent-socket=7", "--shared"], &["serve", "--shared"]),
            (&["serve", "--parent-socket"], &["serve"]),
            (&["serve", "--mount", "/a:/b"], &["serve", "--mount", "/a:/b"]),
        ] {
            assert_eq!(shared_arguments(own.iter().map(OsString::from)), shared, "{own:?}");
        }
    }
}
