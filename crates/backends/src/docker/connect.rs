//! Finds the daemon, connects to it, and explains its refusals.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::errors::Error;
use bollard::{API_DEFAULT_VERSION, Docker};
use sandcell_sandbox::{SandboxError, System, with_sources};
use tokio::time::timeout;

use super::NAME;
use super::discovery::{self, Candidate, Folders};

/// Deadline of the daemon's first answer.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Deadline of any request except a pull, in seconds.
const REQUEST_TIMEOUT_S: u64 = 60;

const START_ADVICE: &str = discovery::start_advice(System::of_this_machine());
const HOST_ADVICE: &str = if cfg!(windows) {
    "set `docker.host` or DOCKER_HOST to where the daemon listens, such as npipe:////./pipe/docker_engine or tcp://127.0.0.1:2375"
} else {
    "set `docker.host` or DOCKER_HOST to where the daemon listens, such as unix:///var/run/docker.sock or tcp://127.0.0.1:2375"
};
const PERMISSION_ADVICE: &str = if cfg!(windows) {
    "add your user to the group docker-users and log in again"
} else if cfg!(target_os = "macos") {
    "check the socket's owner: it must be this user (start Docker Desktop, OrbStack or Colima as this user)"
} else {
    "add your user to the daemon's group (`sudo usermod -aG docker $USER`, then log in again), or use rootless Docker or Podman"
};
/// Windows' error when all instances of a pipe are in use, so a daemon listens.
#[cfg(windows)]
const PIPE_BUSY: i32 = 231;

/// A daemon's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    Unix(PathBuf),
    /// A named pipe of Windows, such as `//./pipe/docker_engine`.
    Pipe(PathBuf),
    /// Host and port, without encryption.
    Tcp(String),
    /// Host and port, and the folder with `ca.pem`, `cert.pem` and `key.pem`.
    Tls(String, PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Pipe(path) => write!(f, "npipe://{}", path.display()),
            Self::Tcp(host) => write!(f, "tcp://{host}"),
            Self::Tls(host, _) => write!(f, "tcp://{host} (TLS)"),
        }
    }
}

impl Address {
    /// Parses the form that `docker.host` and `DOCKER_HOST` use. With certificates, TCP is encrypted.
    pub(super) fn parse(text: &str, certificates: Option<&Path>) -> Result<Self, SandboxError> {
        Self::parse_on(System::of_this_machine(), text, certificates)
    }

    fn parse_on(system: System, text: &str, certificates: Option<&Path>) -> Result<Self, SandboxError> {
        let wrong = |reason: String| unavailable(reason, HOST_ADVICE);
        if let Some(path) = text.strip_prefix("unix://") {
            let path = PathBuf::from(path);
            return if system == System::Windows {
                Err(wrong(format!(
                    "'{text}' is a socket, and on Windows daemons listen at named pipes"
                )))
            } else if path.is_absolute() {
                Ok(Self::Unix(path))
            } else {
                Err(wrong(format!("'{text}' is no absolute path after unix://")))
            };
        }
        if let Some(path) = text.strip_prefix("npipe://") {
            return if system != System::Windows {
                Err(wrong(format!("'{text}' is a named pipe, which only Windows has")))
            } else if path.starts_with("//") {
                Ok(Self::Pipe(PathBuf::from(path)))
            } else {
                Err(wrong(format!(
                    "'{text}' is no pipe like npipe:////./pipe/docker_engine"
                )))
            };
        }
        let encrypted = text.strip_prefix("https://");
        if encrypted.is_some() && certificates.is_none() {
            return Err(wrong(format!(
                "'{text}' needs certificates: set `docker.cert_path` or DOCKER_CERT_PATH"
            )));
        }
        let plain = text.strip_prefix("tcp://").or_else(|| text.strip_prefix("http://"));
        match plain.or(encrypted).map(|host| host.trim_end_matches('/')) {
            Some(host) => match host.rsplit_once(':') {
                Some((name, port)) if !name.is_empty() && port.parse::<u16>().is_ok() => Ok(match certificates {
                    Some(folder) => Self::Tls(host.to_owned(), folder.to_owned()),
                    None => Self::Tcp(host.to_owned()),
                }),
                Some(_) | None => Err(wrong(format!(
                    "'{text}' needs a name and a port, such as tcp://127.0.0.1:2375"
                ))),
            },
            None => Err(wrong(format!(
                "'{text}' is an address of a kind that this build does not have"
            ))),
        }
    }

    fn local(path: PathBuf) -> Self {
        match System::of_this_machine() {
            System::Linux | System::MacOs => Self::Unix(path),
            System::Windows => Self::Pipe(path),
        }
    }

    /// Returns the first usual address at which a daemon listens.
    fn usual(candidates: Vec<Candidate>) -> Result<Self, SandboxError> {
        let first = candidates.first().map(|place| Self::local(place.path.clone()));
        let mut closed = None;
        for Candidate {
            of,
            path,
            start_command,
        } in candidates
        {
            match touch(&path) {
                Ok(()) => return Ok(Self::local(path)),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    closed.get_or_insert_with(|| {
                        let start = format!(
                            "start {of} ({start_command}), or set `docker.host` or DOCKER_HOST to where another daemon listens"
                        );
                        unreachable(&Self::local(path), &error, &start)
                    });
                }
            }
        }
        Err(closed.unwrap_or_else(|| {
            let place = first.map(|address| format!(" at {address}, nor")).unwrap_or_default();
            unavailable(
                format!("there is no Docker daemon{place} where others usually listen"),
                START_ADVICE,
            )
        }))
    }
}

/// Connects, and agrees on a protocol version with the daemon.
pub(super) async fn connect(
    host: Option<&str>,
    certificates: Option<&Path>,
) -> Result<(Docker, Address), SandboxError> {
    let address = match host {
        Some(host) => {
            let address = Address::parse(host, certificates)?;
            if let Address::Unix(path) | Address::Pipe(path) = &address {
                touch(path).map_err(|error| unreachable(&address, &error, START_ADVICE))?;
            }
            address
        }
        // The candidate was tried, so a daemon listens there.
        None => Address::usual(discovery::candidates(
            System::of_this_machine(),
            &Folders::of_this_process(),
        ))?,
    };
    let client = match &address {
        Address::Unix(path) | Address::Pipe(path) => local(path),
        Address::Tls(host, folder) => {
            let file = |name: &str| readable(folder.join(name));
            Docker::connect_with_ssl(
                &format!("tcp://{host}"),
                &file("key.pem")?,
                &file("cert.pem")?,
                &file("ca.pem")?,
                REQUEST_TIMEOUT_S,
                API_DEFAULT_VERSION,
            )
        }
        Address::Tcp(host) => {
            Docker::connect_with_http(&format!("tcp://{host}"), REQUEST_TIMEOUT_S, API_DEFAULT_VERSION)
        }
    };
    let client = client.map_err(|error| failed(&address, &error))?;
    match timeout(FIRST_ANSWER_TIMEOUT, client.negotiate_version()).await {
        Ok(Ok(client)) => Ok((client, address)),
        Ok(Err(error)) => Err(failed(&address, &error)),
        Err(_) => Err(unavailable(
            format!(
                "nothing at {address} answered within {} s",
                FIRST_ANSWER_TIMEOUT.as_secs()
            ),
            HOST_ADVICE,
        )),
    }
}

/// Returns the path of a certificate file if the file can be read.
fn readable(path: PathBuf) -> Result<PathBuf, SandboxError> {
    match std::fs::File::open(&path) {
        Ok(_) => Ok(path),
        Err(error) => Err(unavailable(
            format!("{} cannot be read: {error}", path.display()),
            "`docker.cert_path` or DOCKER_CERT_PATH names the folder with ca.pem, cert.pem and key.pem",
        )),
    }
}

/// Returns a client for a socket or a named pipe.
#[cfg(unix)]
fn local(path: &Path) -> Result<Docker, Error> {
    Docker::connect_with_unix(&path.to_string_lossy(), REQUEST_TIMEOUT_S, API_DEFAULT_VERSION)
}

/// Returns a client for a named pipe.
#[cfg(windows)]
fn local(path: &Path) -> Result<Docker, Error> {
    Docker::connect_with_named_pipe(&path.to_string_lossy(), REQUEST_TIMEOUT_S, API_DEFAULT_VERSION)
}

/// Tries to connect; the client would hide the reason behind "connect failed".
#[cfg(unix)]
fn touch(path: &Path) -> io::Result<()> {
    std::os::unix::net::UnixStream::connect(path).map(drop)
}

/// Tries to open the pipe.
#[cfg(windows)]
fn touch(path: &Path) -> io::Result<()> {
    match std::fs::OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.raw_os_error() != Some(PIPE_BUSY) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Explains why a socket or a pipe cannot be used.
fn unreachable(address: &Address, error: &io::Error, start: &str) -> SandboxError {
    match error.kind() {
        ErrorKind::NotFound => unavailable(format!("there is no Docker daemon at {address}"), start),
        ErrorKind::ConnectionRefused => {
            unavailable(format!("the Docker daemon at {address} is no longer running"), start)
        }
        ErrorKind::PermissionDenied => unavailable(
            format!("this user may not access the Docker daemon at {address}"),
            PERMISSION_ADVICE,
        ),
        _ => unavailable(
            format!("the Docker daemon at {address} cannot be reached: {error}"),
            HOST_ADVICE,
        ),
    }
}

pub(super) fn unavailable(reason: impl Into<String>, remedy: &str) -> SandboxError {
    SandboxError::Unavailable {
        backend: NAME.to_owned(),
        reason: reason.into(),
        remedy: remedy.to_owned(),
    }
}

/// Explains a failed request by the state of the daemon, not by the request's content.
pub(super) fn failed(address: &Address, error: &Error) -> SandboxError {
    match error {
        Error::DockerResponseServerError { status_code, message } => refused(*status_code, message),
        Error::RequestTimeoutError => unavailable(
            format!("the daemon at {address} did not answer in time"),
            "look at the daemon's log, and restart it if it hangs",
        ),
        Error::APIVersionParseError {} | Error::JsonDataError { .. } => unavailable(
            format!("the service at {address} does not speak Docker's protocol"),
            HOST_ADVICE,
        ),
        other => match system_error(other) {
            Some(ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                unavailable(format!("there is no Docker daemon at {address} any more"), START_ADVICE)
            }
            Some(ErrorKind::PermissionDenied) => unavailable(
                format!("this user may not access the Docker daemon at {address}"),
                PERMISSION_ADVICE,
            ),
            Some(_) | None => unavailable(format!("{address}: {}", one_line(&with_sources(other))), START_ADVICE),
        },
    }
}

/// Returns the system error below the client's wrappers.
fn system_error(error: &(dyn std::error::Error + 'static)) -> Option<ErrorKind> {
    let mut cause = Some(error);
    while let Some(inner) = cause {
        if let Some(system) = inner.downcast_ref::<std::io::Error>() {
            return Some(system.kind());
        }
        cause = inner.source();
    }
    None
}

/// Adds a remedy to the daemon's message.
fn refused(status: u16, message: &str) -> SandboxError {
    let message = one_line(message);
    let lower = message.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let remedy = if has(&["no space left on device", "disk quota"]) {
        "free disk space in the daemon's data folder (`docker system df`, `docker system prune`)"
    } else if has(&["unknown runtime", "unknown or invalid runtime", "runtime name"]) {
        "set `docker.runtime` to one that `docker info` lists, or leave it empty"
    } else if has(&["apparmor", "seccomp"]) {
        "`docker info` shows the daemon's security options; the kernel and the daemon must agree on them"
    } else if status == 403 {
        PERMISSION_ADVICE
    } else {
        "the daemon's log has details; `sandcell doctor` on the host checks the daemon"
    };
    unavailable(format!("the daemon reported: {message}"), remedy)
}

/// Returns a daemon's message as one line of at most 400 characters.
pub(super) fn one_line(text: &str) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().filter(|c| !c.is_control()).take(400).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandcell_sandbox::{Code, Failure};

    #[test]
    fn addresses_are_read_as_docker_writes_them() {
        assert_eq!(
            Address::parse("unix:///a/b", None).unwrap(),
            Address::Unix("/a/b".into())
        );
        assert_eq!(
            Address::parse("tcp://h:2375", None).unwrap(),
            Address::Tcp("h:2375".into())
        );
        assert_eq!(
            Address::parse("tcp://[::1]:1/", None).unwrap(),
            Address::Tcp("[::1]:1".into())
        );
        let folder = Path::new("/certs");
        let encrypted = Address::Tls("h:2376".into(), folder.into());
        assert_eq!(Address::parse("tcp://h:2376", Some(folder)).unwrap(), encrypted);
        assert_eq!(Address::parse("https://h:2376", Some(folder)).unwrap(), encrypted);
        // Never falls back to plain text where encryption was requested.
        assert!(Address::parse("https://h:2376", None).is_err());
        for wrong in [
            "",
            "h:2375",
            "unix://a",
            "tcp://h",
            "tcp://:1",
            "tcp://h:x",
            "ssh://h:22",
            "fd://",
            "npipe:////./pipe/docker_engine",
        ] {
            let failure = Failure::from(Address::parse(wrong, None).unwrap_err());
            assert_eq!(failure.code, Code::BackendUnavailable, "{wrong}");
            assert!(failure.remedy.contains("DOCKER_HOST"), "{failure}");
        }
    }

    #[test]
    fn windows_has_pipes_and_no_sockets() {
        let on_windows = |text| Address::parse_on(System::Windows, text, None);
        assert_eq!(
            on_windows("npipe:////./pipe/docker_engine").unwrap(),
            Address::Pipe("//./pipe/docker_engine".into())
        );
        assert!(on_windows("npipe://docker_engine").is_err());
        let socket = Failure::from(on_windows("unix:///var/run/docker.sock").unwrap_err());
        assert!(socket.message.contains("named pipes"), "{socket}");
        assert!(on_windows("tcp://127.0.0.1:2375").is_ok());
    }

    #[test]
    fn daemon_errors_map_to_remedies() {
        for (said, remedy) in [
            ("write /x: no space left on device", "docker system df"),
            ("Unknown runtime specified kata", "docker.runtime"),
            ("unknown or invalid runtime name: kata", "docker.runtime"),
            ("something else", "daemon's log"),
        ] {
            let failure = Failure::from(refused(500, said));
            assert!(failure.remedy.contains(remedy), "{failure}");
            assert!(failure.message.contains(said), "{failure}");
        }
    }

    #[test]
    fn the_first_listening_daemon_is_used_and_a_stopped_one_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        let candidates = |names: &[&str]| -> Vec<Candidate> {
            let one = |name: &&str| Candidate {
                of: "Colima",
                path: place(name),
                start_command: "`colima start`",
            };
            names.iter().map(one).collect()
        };
        drop(std::os::unix::net::UnixListener::bind(place("dead")).unwrap());
        let told = |names: &[&str]| Failure::from(Address::usual(candidates(names)).unwrap_err());
        let none = told(&["none", "nothing"]);
        assert!(none.message.contains("none, nor where others usually"), "{none}");
        let dead = told(&["none", "dead"]);
        assert!(dead.message.contains("dead is no longer running"), "{dead}");
        assert!(dead.remedy.contains("`colima start`"), "{dead}");
        let _listener = std::os::unix::net::UnixListener::bind(place("alive")).unwrap();
        assert_eq!(
            Address::usual(candidates(&["none", "dead", "alive"])).unwrap(),
            Address::Unix(place("alive"))
        );
    }

    #[tokio::test]
    async fn a_missing_daemon_a_denied_socket_and_another_service_are_distinguished() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("unix://{}", folder.path().join(name).display());
        let told = async |host: String| Failure::from(connect(Some(&host), None).await.unwrap_err());
        let missing = told(at("none")).await;
        assert!(missing.message.contains("there is no Docker daemon"), "{missing}");
        drop(std::os::unix::net::UnixListener::bind(folder.path().join("dead")).unwrap());
        let dead = told(at("dead")).await;
        assert!(dead.message.contains("is no longer running"), "{dead}");
        // A server that accepts connections but does not speak a daemon's protocol.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"SSH-2.0-x\r\n\r\n").await;
            }
        });
        let other = told(format!("tcp://127.0.0.1:{port}")).await;
        assert_eq!(other.code, Code::BackendUnavailable, "{other}");
    }
}
