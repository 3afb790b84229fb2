//! The agent as a program of its own, over standard input and output: for sandboxes that are made by somebody else, who can only start a
//! program (a container's first process), and for tests that need it as process 1.
//!
//! `sandcell-agent contained MEMORY DISK` is the one in a container: it locks itself, and holds the container's processes
//! and private files to so many bytes. What keeps it from serving is told on standard error, as one line.

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
            ["contained", memory, disk] => {
                let bytes = |text: &str| text.parse().map_err(|_| format!("{text} is no number of bytes"));
                let held = Held {
                    memory: bytes(memory)?,
                    disk: bytes(disk)?,
                };
                sandcell_jail::contained::lock(held.memory, held.disk).map_err(|error| error.to_string())?;
                config.held = Some(held);
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
