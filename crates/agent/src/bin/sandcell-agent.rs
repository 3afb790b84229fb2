//! The agent as a separate program. It serves over standard input and output, or over a link. Container back ends can only start a
//! program (a container's first process). The tests need the agent as process 1.
//!
//! `sandcell-agent contained MEMORY DISK` serves in a container. It locks itself down and limits the container's
//! processes and private files to these numbers of bytes. Further arguments are more folders with private files.
//! `sandcell-agent linked PORT MEMORY DISK PROCESSES` does the same in a Pod. It serves the host that connects to the port and proves
//! that it knows the key. The variable `SANDCELL_LINK_KEY` holds the key, and `SANDCELL_LINK_NAME` the name of the sandbox.
//! `sandcell-agent unpack FOLDER` extracts an archive there. `sandcell-agent reach ADDRESS` tries to connect
//! to an address, and exits with 0 if a machine answers there and with 3 if none does. `sandcell-agent installing` serves in a container in which
//! system packages are installed. An error that prevents serving is one line on standard error.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    use std::io::Write as _;

    match inside::run() {
        Ok(status) => ExitCode::from(status),
        Err(reason) => {
            // The parent may have closed standard error. There is no other place for a report.
            drop(writeln!(std::io::stderr(), "sandcell-agent: {reason}"));
            ExitCode::FAILURE
        }
    }
}

#[cfg(target_os = "linux")]
mod inside {
    use std::io::ErrorKind;
    use std::net::{SocketAddr, TcpStream};
    use std::os::fd::{AsFd as _, OwnedFd};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use sandcell_agent::protocol::DISK_FULL_STATUS;
    use sandcell_agent::server::{ContainerLimits, ServeEnd, ServerConfig, serve};
    use sandcell_jail::container::lockdown;
    use sandcell_link::{Key, agent as link};

    /// The variables with the key of the link and the name of the sandbox.
    const KEY_VARIABLE: &str = "SANDCELL_LINK_KEY";
    const NAME_VARIABLE: &str = "SANDCELL_LINK_NAME";
    /// The beginnings of the names of variables that do not come from the image.
    const FOREIGN_VARIABLES: [&str; 3] = ["SANDCELL_", "KUBERNETES_", "HOSTNAME"];
    /// Threads and processes of the agent itself: its loop and its link.
    const OWN_THREADS: u64 = 2;
    /// The time for a connection of `reach`.
    const REACH_TIMEOUT: Duration = Duration::from_secs(2);
    /// The exit status of `reach` when no machine answers.
    const CLOSED_STATUS: u8 = 3;

    /// Serves until the host closes its stream. Returns the exit status.
    pub(crate) fn run() -> Result<u8, String> {
        let words: Vec<String> = std::env::args().skip(1).collect();
        match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            [] => over_standard_streams(ServerConfig::default()),
            ["contained", memory, disk, copies @ ..] => {
                let mut config = limited(memory, disk, None)?;
                config.private.extend(copies.iter().map(std::path::PathBuf::from));
                over_standard_streams(config)
            }
            ["linked", port, memory, disk, processes] => {
                let host = linked(port)?;
                let input = host.try_clone().map_err(|error| error.to_string())?;
                let processes = number(processes)?.saturating_add(OWN_THREADS);
                let mut config = limited(memory, disk, Some(processes))?;
                config.announced_env = std::env::vars()
                    .filter(|(name, _)| !FOREIGN_VARIABLES.iter().any(|begin| name.starts_with(begin)))
                    .collect();
                status(serve(OwnedFd::from(input), OwnedFd::from(host), config))
            }
            ["installing"] => {
                lockdown::lock_installer().map_err(|error| error.to_string())?;
                over_standard_streams(ServerConfig::default())
            }
            // Programs of the sandbox, not its first one.
            ["unpack", folder] => {
                let archive = std::io::stdin().lock();
                let unpacked = sandcell_agent::unpack::unpack(archive, std::path::Path::new(folder));
                match unpacked {
                    Ok(()) => Ok(0),
                    Err(error) if error.kind() == ErrorKind::StorageFull => Ok(DISK_FULL_STATUS),
                    Err(error) => Err(error.to_string()),
                }
            }
            ["reach", address] => {
                let address: SocketAddr = address.parse().map_err(|_| format!("{address} is no address"))?;
                match TcpStream::connect_timeout(&address, REACH_TIMEOUT).map_err(|error| (error.kind(), error)) {
                    // The machine at the address has answered.
                    Ok(_) | Err((ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset, _)) => Ok(0),
                    Err((ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable, _)) => {
                        Ok(CLOSED_STATUS)
                    }
                    // Without an attempt nothing is known.
                    Err((_, error)) => Err(error.to_string()),
                }
            }
            _ => Err("only sandcell starts this program".to_owned()),
        }
    }

    fn number(text: &str) -> Result<u64, String> {
        text.parse().map_err(|_| format!("{text} is not a number"))
    }

    /// Locks this process, and returns the settings of an agent that limits its container.
    fn limited(memory: &str, disk: &str, processes: Option<u64>) -> Result<ServerConfig, String> {
        let limits = ContainerLimits {
            memory: number(memory)?,
            disk: number(disk)?,
        };
        let config = ServerConfig {
            limits: Some(limits),
            // `lock` forbids the socket that this call opens.
            sockets: Some(sandcell_jail::OwnSockets::new(limits.memory)),
            ..ServerConfig::default()
        };
        lockdown::lock(limits.memory, limits.disk, processes).map_err(|error| error.to_string())?;
        Ok(config)
    }

    /// Waits in a separate thread for the host that has the key, and returns the agent's end of its stream.
    fn linked(port: &str) -> Result<UnixStream, String> {
        let variable = |name: &str| std::env::var(name).map_err(|_| format!("the variable {name} is missing"));
        let key = variable(KEY_VARIABLE)?;
        let name = variable(NAME_VARIABLE)?;
        let key = Key::parse(&key).ok_or("the key of the link is unreadable")?;
        let port = u16::try_from(number(port)?).map_err(|_| format!("{port} is no port"))?;
        let listener = link::listen(port).map_err(|error| format!("port {port} cannot be used: {error}"))?;
        let (local, remote) = UnixStream::pair().map_err(|error| error.to_string())?;
        // The agent's loop learns from a signal that a child has ended. A thread that does not block the signal could take it.
        drop(sandcell_jail::spawn::watch_children().map_err(|error| error.to_string())?);
        std::thread::Builder::new()
            .spawn(move || link::run(listener, key, name, remote, link::Limits::default()))
            .map_err(|error| error.to_string())?;
        Ok(local)
    }

    fn over_standard_streams(config: ServerConfig) -> Result<u8, String> {
        let input = std::io::stdin().as_fd().try_clone_to_owned();
        let output = std::io::stdout().as_fd().try_clone_to_owned();
        let streams = input.and_then(|input| Ok((input, output?)));
        let (input, output) = streams.map_err(|error| error.to_string())?;
        status(serve(input, output, config))
    }

    fn status(end: ServeEnd) -> Result<u8, String> {
        match end {
            ServeEnd::HostClosed => Ok(0),
            ServeEnd::ProtocolError(error) => Err(error.to_string()),
            ServeEnd::DiskFull => Ok(DISK_FULL_STATUS),
            ServeEnd::Failed(error) => Err(error.to_string()),
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}
