//! The agent as a separate program, over standard input and output. Container back ends can only start a program (a
//! container's first process). The tests need the agent as process 1.
//!
//! `sandcell-agent contained MEMORY DISK` serves in a container. It locks itself down and limits the container's
//! processes and private files to these numbers of bytes. Further arguments are more folders with private files.
//! `sandcell-agent unpack FOLDER` extracts an archive there. `sandcell-agent installing` serves in a container in which
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
    use std::os::fd::AsFd as _;

    use sandcell_agent::protocol::DISK_FULL_STATUS;
    use sandcell_agent::server::{ContainerLimits, ServeEnd, ServerConfig, serve};

    /// Serves until the host closes its stream. Returns the exit status.
    pub(crate) fn run() -> Result<u8, String> {
        let mut config = ServerConfig::default();
        let words: Vec<String> = std::env::args().skip(1).collect();
        match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            [] => {}
            ["contained", memory, disk, copies @ ..] => {
                let bytes = |text: &str| text.parse().map_err(|_| format!("{text} is not a number of bytes"));
                let limits = ContainerLimits {
                    memory: bytes(memory)?,
                    disk: bytes(disk)?,
                };
                // `lock` forbids the socket that this call opens.
                config.sockets = Some(sandcell_jail::OwnSockets::new(limits.memory));
                sandcell_jail::container::lockdown::lock(limits.memory, limits.disk)
                    .map_err(|error| error.to_string())?;
                config.limits = Some(limits);
                config.private.extend(copies.iter().map(std::path::PathBuf::from));
            }
            ["installing"] => {
                sandcell_jail::container::lockdown::lock_installer().map_err(|error| error.to_string())?;
            }
            // A program of the sandbox, not its first one.
            ["unpack", folder] => {
                let archive = std::io::stdin().lock();
                let unpacked = sandcell_agent::unpack::unpack(archive, std::path::Path::new(folder));
                return match unpacked {
                    Ok(()) => Ok(0),
                    Err(error) if error.kind() == std::io::ErrorKind::StorageFull => Ok(DISK_FULL_STATUS),
                    Err(error) => Err(error.to_string()),
                };
            }
            _ => return Err("only sandcell starts this program".to_owned()),
        }
        let input = std::io::stdin().as_fd().try_clone_to_owned();
        let output = std::io::stdout().as_fd().try_clone_to_owned();
        let streams = input.and_then(|input| Ok((input, output?)));
        let (input, output) = streams.map_err(|error| error.to_string())?;
        match serve(input, output, config) {
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
