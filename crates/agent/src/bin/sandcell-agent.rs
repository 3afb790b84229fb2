//! The agent as a program of its own, over standard input and output: for sandboxes that are made by somebody else, who can only start a
//! program (a container's first process), and for tests that need it as process 1.
//!
//! `sandcell-agent contained MEMORY DISK` is the one in a container: it locks itself, and holds the container's processes
//! and private files to so many bytes; further words are more folders with such files. `sandcell-agent unpack FOLDER`
//! writes an archive there. `sandcell-agent installing` is the one in a container that system packages are
//! installed in. What keeps it from serving is told on standard error, as one line.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    use std::io::Write as _;

    match inside::run() {
        Ok(status) => ExitCode::from(status),
        Err(reason) => {
            // Whoever started it may have closed this; there is nobody else to tell.
            drop(writeln!(std::io::stderr(), "sandcell-agent: {reason}"));
            ExitCode::FAILURE
        }
    }
}

#[cfg(target_os = "linux")]
mod inside {
    use std::os::fd::AsFd as _;

    use sandcell_agent::protocol::DISK_FULL_STATUS;
    use sandcell_agent::server::{Held, ServeEnd, ServerConfig, serve};

    /// Serves until the host has closed its stream; returns the status to end with.
    pub(crate) fn run() -> Result<u8, String> {
        let mut config = ServerConfig::default();
        let words: Vec<String> = std::env::args().skip(1).collect();
        match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            [] => {}
            ["contained", memory, disk, copies @ ..] => {
                let bytes = |text: &str| text.parse().map_err(|_| format!("{text} is no number of bytes"));
                let held = Held {
                    memory: bytes(memory)?,
                    disk: bytes(disk)?,
                };
                // The lock forbids the socket that this opens.
                config.sockets = Some(sandcell_jail::OwnSockets::new(held.memory));
                sandcell_jail::contained::lock(held.memory, held.disk).map_err(|error| error.to_string())?;
                config.held = Some(held);
                config.private.extend(copies.iter().map(std::path::PathBuf::from));
            }
            ["installing"] => {
                sandcell_jail::contained::lock_installer().map_err(|error| error.to_string())?;
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
            _ => return Err("it is started by sandcell only".to_owned()),
        }
        let input = std::io::stdin().as_fd().try_clone_to_owned();
        let output = std::io::stdout().as_fd().try_clone_to_owned();
        let streams = input.and_then(|input| Ok((input, output?)));
        let (input, output) = streams.map_err(|error| error.to_string())?;
        match serve(input, output, config) {
            ServeEnd::HostClosed => Ok(0),
            ServeEnd::Breach(breach) => Err(breach.to_string()),
            ServeEnd::DiskFull => Ok(DISK_FULL_STATUS),
            ServeEnd::Failed(error) => Err(error.to_string()),
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}
