//! Counts the file locks of a container's processes: kernel memory that no control group counts.
//!
//! The counts are from the kernel's information about open files. A process that other processes of its user may not
//! inspect is not counted. Only the time that locking takes limits such a process.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::process_table;

/// The bytes that one lock counts as. The kernel uses a twentieth of that. The higher charge bounds the number of
/// locks, because counting very many takes long.
const LOCK_BYTES: u64 = 4096;
/// The minimum time between two counts.
const MIN_COUNT_INTERVAL: Duration = Duration::from_millis(500);
const MIN_CPU_US: u64 = 100_000;
/// The maximum number of open files to read per process, which is also the number that a process may have.
const MAX_OPEN_FILES: usize = 4096;

/// The result of the last count.
#[derive(Debug, Default)]
pub(super) struct Locks {
    counted: Option<Instant>,
    /// The container's processor time at the last count, in microseconds.
    counted_cpu_us: u64,
    bytes: u64,
    holder: Option<Pid>,
}

impl Locks {
    /// Returns the bytes that all locks count as, at most half a second old, and the process with the most. `used`
    /// returns the processor time used so far.
    pub(super) fn count(&mut self, used: impl FnOnce() -> u64) -> (u64, Option<Pid>) {
        if self
            .counted
            .is_none_or(|counted| counted.elapsed() > MIN_COUNT_INTERVAL)
        {
            self.counted = Some(Instant::now());
            let used = used();
            if used.abs_diff(self.counted_cpu_us) >= MIN_CPU_US {
                self.counted_cpu_us = used;
                self.read();
            }
        }
        (self.bytes, self.holder)
    }

    /// Discards the result after a process was killed. The next count has the new one.
    pub(super) fn forget(&mut self) {
        *self = Self {
            counted: self.counted,
            ..Self::default()
        };
    }

    fn read(&mut self) {
        (self.bytes, self.holder) = (0, None);
        let Ok(table) = process_table::read() else { return };
        let mut largest = 0;
        let living = table.entries.iter().filter(|entry| !entry.is_dead());
        for pid in living.filter_map(|entry| entry.id()) {
            let own = locked_bytes(pid);
            self.bytes = self.bytes.saturating_add(own);
            if own > largest {
                largest = own;
                self.holder = Some(pid);
            }
        }
    }
}

fn locked_bytes(pid: Pid) -> u64 {
    let folder = std::fs::read_dir(format!("/proc/{}/fdinfo", pid.as_raw_nonzero()));
    let entries = folder.into_iter().flatten().flatten().take(MAX_OPEN_FILES);
    let files = entries.filter_map(|entry| File::open(entry.path()).ok());
    files
        .map(|file| count_lock_lines(file).saturating_mul(LOCK_BYTES))
        .fold(0, u64::saturating_add)
}

/// Returns the number of lines about locks in the kernel's information about an open file.
fn count_lock_lines(mut file: impl Read) -> u64 {
    const LOCK_LINE_PREFIX: &[u8] = b"\nlock:";
    let mut buffer = [0; 16 << 10];
    // The end of the last piece may be the beginning of the word.
    let (mut kept, mut found) = (0, 0_u64);
    while let Ok(read) = file.read(buffer.get_mut(kept..).unwrap_or_default()) {
        if read == 0 {
            break;
        }
        let filled = kept + read;
        let text = buffer.get(..filled).unwrap_or_default();
        let seen = text
            .windows(LOCK_LINE_PREFIX.len())
            .filter(|window| *window == LOCK_LINE_PREFIX)
            .count();
        found = found.saturating_add(u64::try_from(seen).unwrap_or(u64::MAX));
        kept = filled.min(LOCK_LINE_PREFIX.len() - 1);
        buffer.copy_within(filled - kept..filled, 0);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locks_of_a_process_are_counted() {
        let own = rustix::process::getpid();
        let before = locked_bytes(own);
        let file = rustix::fs::memfd_create("locked", rustix::fs::MemfdFlags::empty()).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert_eq!(locked_bytes(own), before + LOCK_BYTES);
        let many = "lock:\t1: POSIX  ADVISORY  WRITE 7 00:2a:13 0 0\n".repeat(5000);
        assert_eq!(count_lock_lines(format!("pos:\t0\n{many}").as_bytes()), 5000);
    }
}
