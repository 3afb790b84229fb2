//! Open files. The whole machine has a limit for them (`fs.file-max`), beyond which only root can open one.

use std::cmp::Reverse;
use std::sync::OnceLock;
use std::time::Instant;

use rustix::process::Pid;

use super::{DESCRIPTOR, FREE, MOST, Record, SHORTEST, Seen, place, small_file};

/// The divisor of the machine's limit for one sandbox: sixteen sandboxes have half.
const PART: u64 = 32;
/// The limit on the smallest machine. A file that several processes share counts once for each.
const LEAST: u64 = 8192;
/// The minimum charge of a cgroup for an open file, in bytes.
const CHARGED: u64 = 128;

/// The maximum number of descriptors of one sandbox.
fn most() -> u64 {
    static OF_MACHINE: OnceLock<u64> = OnceLock::new();
    *OF_MACHINE.get_or_init(|| {
        let text = small_file(&format!("{}/proc/sys/fs/file-max", place::host()));
        (text.trim().parse().unwrap_or(u64::MAX) / PART).max(LEAST)
    })
}

/// Returns the kernel memory of descriptors without a cgroup that charges it, in bytes.
pub(super) fn in_descriptors(processes: &[Seen]) -> u64 {
    let open: u64 = processes.iter().map(|seen| descriptors(seen.living)).sum();
    open.saturating_sub(FREE) * DESCRIPTOR
}

/// Returns the number of open descriptors of a process: since Linux 6.2 the size of `/proc/PID/fd`.
pub(super) fn descriptors(pid: Pid) -> u64 {
    let path = format!("{}/proc/{}/fd", place::host(), pid.as_raw_nonzero());
    let told = std::fs::metadata(&path).map_or(0, |folder| folder.len());
    if told > 0 {
        return told;
    }
    let listed = std::fs::read_dir(path).map_or(0, |entries| entries.take(MOST).count());
    u64::try_from(listed).unwrap_or(u64::MAX)
}

impl Record {
    /// Runs [`Self::end_for_files`] for a sandbox without a cgroup. If there were too many, the full check is
    /// postponed, since it takes long with many descriptors.
    pub(super) fn end_for_files_of(&mut self, first: Pid, processes: &[Seen]) -> bool {
        let others = processes.iter().filter(|seen| seen.pid != first);
        let many = self.end_for_files(u64::MAX, || others.map(|seen| seen.living).collect());
        if many {
            self.events = self.kills;
            self.due = Some(Instant::now() + SHORTEST);
        }
        many
    }

    /// Kills the processes with the most descriptors until the sandbox is within its limit. Skips the count if the
    /// cgroup's charge is too low for so many. Returns true if there were too many.
    pub(super) fn end_for_files(&mut self, charged: u64, pids: impl FnOnce() -> Vec<Pid>) -> bool {
        if charged < most().saturating_mul(CHARGED) {
            return false;
        }
        let mut open: Vec<(u64, Pid)> = pids().into_iter().map(|pid| (descriptors(pid), pid)).collect();
        let mut left: u64 = open.iter().map(|(count, _)| count).sum();
        let many = left > most();
        open.sort_by_key(|(count, _)| Reverse(*count));
        for (count, pid) in open {
            if left <= most() {
                break;
            }
            self.end(pid);
            left -= count;
        }
        many
    }
}
