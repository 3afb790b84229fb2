//! File locks: kernel memory that is charged to no group.
//!
//! They are counted in the kernel's list of all locks. The report of each descriptor lists them as well, but a program
//! can have a hundred thousand descriptors. Reading all reports took seconds, during which all other memory grew. The
//! list does not show a `flock` whose owner has ended. Each open file has at most one of these, and open files are
//! counted.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::paths;

/// The charge for one lock, in bytes. It uses a twentieth of that, but counting very many would be expensive.
const LOCK_BYTES: u64 = 4096;
/// The minimum interval between counts.
const MIN_COUNT_INTERVAL: Duration = Duration::from_millis(500);
/// With less processor time since the last count, in microseconds, there cannot be many more locks.
const MIN_CPU_US: u64 = 100_000;
/// Longer lines of the list are read in parts.
const MAX_LINE_BYTES: u64 = 256;

/// The state of a sandbox's locks.
#[derive(Debug, Default)]
pub(super) struct Locks {
    /// In bytes.
    by_process: BTreeMap<i32, u64>,
    counted: Option<Instant>,
    /// The processor time of the sandbox at the last count, in microseconds.
    at: u64,
}

impl Locks {
    /// Returns the charge for all locks, at most half a second old. Stops counting above `limit`. `used` is the
    /// sandbox's processor time.
    pub(super) fn bytes(&mut self, used: u64, limit: u64, processes: impl FnOnce() -> Vec<Pid>) -> u64 {
        let due = self
            .counted
            .is_none_or(|counted| counted.elapsed() > MIN_COUNT_INTERVAL);
        if due && used.abs_diff(self.at) >= MIN_CPU_US {
            self.at = used;
            self.by_process = match File::open(format!("{}/proc/locks", paths::host())) {
                Ok(list) => count(list, &processes(), limit),
                Err(_) => BTreeMap::new(),
            };
            self.counted = Some(Instant::now());
        }
        self.by_process.values().sum()
    }

    /// Discards the last count after a kill.
    pub(super) fn discard(&mut self) {
        self.by_process.clear();
        self.at = 0;
    }

    /// Returns the charge for the locks of one process, in bytes.
    pub(super) fn of(&self, pid: Pid) -> u64 {
        self.by_process.get(&pid.as_raw_nonzero().get()).copied().unwrap_or(0)
    }
}

/// Counts the locks of these processes in the kernel's list, in bytes, until they exceed `limit`.
fn count(list: impl Read, processes: &[Pid], limit: u64) -> BTreeMap<i32, u64> {
    let mut found: BTreeMap<i32, u64> = processes.iter().map(|pid| (pid.as_raw_nonzero().get(), 0)).collect();
    let mut lines = BufReader::with_capacity(64 << 10, list);
    let (mut line, mut sum) = (Vec::new(), 0);
    while sum <= limit
        && (&mut lines)
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)
            .is_ok_and(|read| read > 0)
    {
        if let Some(bytes) = owner(&line).and_then(|pid| found.get_mut(&pid)) {
            *bytes += LOCK_BYTES;
            sum += LOCK_BYTES;
        }
        line.clear();
    }
    found.retain(|_, bytes| *bytes > 0);
    found
}

/// Returns the process that has a lock or waits for one. A line is `7: POSIX  ADVISORY  WRITE 4711 fe:00:123 0 EOF` or
/// `7: -> POSIX …`.
fn owner(line: &[u8]) -> Option<i32> {
    let mut words = std::str::from_utf8(line)
        .ok()?
        .split_ascii_whitespace()
        .skip(1)
        .peekable();
    words.next_if_eq(&"->");
    words.nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(number: i32) -> Pid {
        Pid::from_raw(number).unwrap()
    }

    #[test]
    fn locks_are_counted_for_holders_and_waiters() {
        let list = "1: POSIX  ADVISORY  WRITE 7 fe:00:13 0 0\n1: -> POSIX  ADVISORY  WRITE 8 fe:00:13 0 0\n\
                    2: FLOCK  ADVISORY  WRITE 7 00:2a:13 0 EOF\n3: OFDLCK ADVISORY  READ -1 00:06:9 0 EOF\n\
                    4: LEASE  ACTIVE    READ 9 fe:00:14 0 EOF\nnonsense\n";
        let found = count(list.as_bytes(), &[pid(7), pid(8), pid(10)], u64::MAX);
        assert_eq!(found, BTreeMap::from([(7, 2 * LOCK_BYTES), (8, LOCK_BYTES)]));
        assert_eq!(count(&b""[..], &[pid(7)], u64::MAX), BTreeMap::new());
    }

    #[test]
    fn counting_stops_above_the_limit() {
        let list = "1: POSIX  ADVISORY  WRITE 7 fe:00:13 0 0\n".repeat(5000);
        let found = count(list.as_bytes(), &[pid(7)], 100 * LOCK_BYTES);
        assert_eq!(found, BTreeMap::from([(7, 101 * LOCK_BYTES)]));
    }

    #[test]
    fn the_kernel_lists_a_lock_in_the_expected_format() {
        paths::host_is_as_it_is();
        let own = rustix::process::getpid();
        let counted = || {
            let mut locks = Locks::default();
            locks.bytes(MIN_CPU_US, u64::MAX, || vec![own]);
            locks.of(own)
        };
        let before = counted();
        let files: Vec<_> = (0..50)
            .map(|_| {
                let file = rustix::fs::memfd_create("locked", rustix::fs::MemfdFlags::empty()).unwrap();
                rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
                file
            })
            .collect();
        // Other tests of this process may have some locks.
        assert!(counted() >= before + 40 * LOCK_BYTES, "{} {before}", counted());
        drop(files);
    }
}
