//! Starts the agent from a compressed file. A Kubernetes ConfigMap holds at most 1 MiB, and the agent is larger.
//!
//! `sandcell-loader ARGUMENT...` decompresses the file `agent.packed` of its own folder into memory. Then it executes the result with
//! the same arguments.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    use std::io::Write as _;

    let reason = inside::load();
    // There is no other place for a report.
    drop(writeln!(std::io::stderr(), "sandcell-loader: {reason}"));
    ExitCode::FAILURE
}

#[cfg(target_os = "linux")]
mod inside {
    use std::fs::{File, read};
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::process::CommandExt as _;
    use std::path::Path;
    use std::process::Command;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    /// The compressed agent. It lies in the folder of this program.
    const PACKED_FILE: &str = "agent.packed";
    /// An upper bound for the agent's size in bytes.
    const MAX_PROGRAM_BYTES: usize = 4 << 20;

    /// Becomes the agent. Returns only the reason why that failed.
    pub(crate) fn load() -> String {
        match start() {
            Ok(never) => match never {},
            Err(reason) => reason,
        }
    }

    fn start() -> Result<std::convert::Infallible, String> {
        let own = std::env::args_os().next().unwrap_or_default();
        let packed = Path::new(&own).with_file_name(PACKED_FILE);
        let packed = read(&packed).map_err(|error| format!("{} cannot be read: {error}", packed.display()))?;
        let program = miniz_oxide::inflate::decompress_to_vec_with_limit(&packed, MAX_PROGRAM_BYTES)
            .map_err(|error| format!("the packed agent is damaged: {error}"))?;
        let memory = memfd_create("agent", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|error| format!("there is no memory for the agent: {error}"))?;
        let mut file = File::from(memory);
        file.write_all(&program)
            .map_err(|error| format!("there is no memory for the agent: {error}"))?;
        fcntl_add_seals(
            &file,
            SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
        )
        .map_err(|error| format!("the agent cannot be sealed: {error}"))?;
        let failed = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .arg0(own)
            .args(std::env::args_os().skip(1))
            .exec();
        Err(format!("the agent cannot be started: {failed}"))
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}
