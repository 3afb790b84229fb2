//! Open files. The whole machine has a limit for them (`fs.file-max`), beyond which only root can open one.

use std::cmp::Reverse;
use std::sync::OnceLock;
use std::time::Instant;

use rustix::process::Pid;

use super::{DESCRIPTOR_BYTES, FREE_DESCRIPTORS, MAX_PROCESSES, MIN_CHECK_INTERVAL, ProcessSample, WatchRecord, paths};
use crate::kernel_files::small_file;

/// The divisor of the machine's limit for one sandbox: sixteen sandboxes have half.
const MACHINE_LIMIT_DIVISOR: u64 = 32;
/// The limit on the smallest machine. A file that several processes share counts once for each.
const MIN_FILES_LIMIT: u64 = 8192;
/// The minimum charge of a cgroup for an open file, in bytes.
const MIN_FILE_BYTES: u64 = 128;

/// The maximum number of descriptors of one sandbox.
fn max_files() -> u64 {
    static OF_MACHINE: OnceLock<u64> = OnceLock::new();
    *OF_MACHINE.get_or_init(|| {
        let text = small_file(&format!("{}/proc/sys/fs/file-max", paths::host()));
        (text.trim().parse().unwrap_or(u64::MAX) / MACHINE_LIMIT_DIVISOR).max(MIN_FILES_LIMIT)
    })
}

/// Returns the kernel memory of descriptors without a cgroup that charges it, in bytes.
pub(super) fn descriptor_bytes(processes: &[ProcessSample]) -> u64 {
    let open: u64 = processes.iter().map(|sample| descriptors(sample.living)).sum();
    open.saturating_sub(FREE_DESCRIPTORS) * DESCRIPTOR_BYTES
}

/// Returns the number of open descriptors of a process: since Linux 6.2 the size of `/proc/PID/fd`.
pub(super) fn descriptors(pid: Pid) -> u64 {
    let path = format!("{}/proc/{}/fd", paths::host(), pid.as_raw_nonzero());
    let count = std::fs::metadata(&path).map_or(0, |folder| folder.len());
    if count > 0 {
        return count;
    }
    let listed = std::fs::read_dir(path).map_or(0, |entries| entries.take(MAX_PROCESSES).count());
    u64::try_from(listed).unwrap_or(u64::MAX)
}

impl WatchRecord {
    /// Runs [`Self::kill_for_files`] for a sandbox without a cgroup. If there were too many, the full check is
    /// postponed, since it takes long with many descriptors.
    pub(super) fn kill_for_files_of(&mut self, first: Pid, processes: &[ProcessSample]) -> bool {
        let others = processes.iter().filter(|sample| sample.pid != first);
        let many = self.kill_for_files(u64::MAX, || others.map(|sample| sample.living).collect());
        if many {
            self.events = self.kills;
            self.due = Some(Instant::now() + MIN_CHECK_INTERVAL);
        }
        many
    }

    /// Kills the processes with the most descriptors until the sandbox is within its limit. Skips the count if the
    /// cgroup's charge is too low for so many. Returns true if there were too many.
    pub(super) fn kill_for_files(&mut self, charged: u64, pids: impl FnOnce() -> Vec<Pid>) -> bool {
        if charged < max_files().saturating_mul(MIN_FILE_BYTES) {
            return false;
        }
        let mut open: Vec<(u64, Pid)> = pids().into_iter().map(|pid| (descriptors(pid), pid)).collect();
        let mut left: u64 = open.iter().map(|(count, _)| count).sum();
        let many = left > max_files();
        open.sort_by_key(|(count, _)| Reverse(*count));
        for (count, pid) in open {
            if left <= max_files() {
                break;
            }
            self.kill(pid);
            left -= count;
        }
        many
    }
}
