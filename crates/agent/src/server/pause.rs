//! Pauses: all processes of the sandbox are stopped by SIGSTOP, in one step.

use std::collections::BTreeSet;
use std::io;

use rustix::process::{Signal, getpid};

use super::{process_table, tree};

/// A pause.
pub(super) struct Pause {
    /// Processes that something else had stopped before: their ids and their start times. They stay stopped.
    stopped_before: BTreeSet<(i32, u64)>,
}

impl Pause {
    /// Stops all processes but this one, which is the first one.
    pub(super) fn begin(first_process: bool) -> io::Result<Self> {
        if !first_process {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let table = process_table::read()?;
        let stopped = table.entries.iter().filter(|entry| entry.is_stopped());
        let stopped_before = stopped.map(|entry| (entry.pid, entry.started)).collect();
        tree::signal_all(Signal::STOP)?;
        Ok(Self { stopped_before })
    }

    /// Continues the processes.
    pub(super) fn end(&self) -> io::Result<()> {
        if self.stopped_before.is_empty() {
            return tree::signal_all(Signal::CONT);
        }
        for entry in process_table::read()?.entries {
            let known = self.stopped_before.contains(&(entry.pid, entry.started));
            // Also one that is not stopped yet, since its stop may be pending.
            if let Some(pid) = entry.id().filter(|pid| *pid != getpid() && !known) {
                tree::signal_process(pid, Signal::CONT);
            }
        }
        Ok(())
    }
}
