//! Mappings: kernel memory for each part of a process's address space, which is charged to no group.

use std::collections::BTreeMap;
use std::io::Read;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{is_stopped, paths};

/// The charge for one mapping, in bytes. It uses an eighth of that, but counting very many would be expensive.
const MAPPING_BYTES: u64 = 2048;
/// The number of mappings that any program may have.
const FREE_MAPPINGS: u64 = 2000;
/// With more processes than this, they are stopped during a count.
const MAX_UNSTOPPED_PROCESSES: usize = 8;
/// The minimum interval between counts. They are expensive with many mappings.
const MIN_COUNT_INTERVAL: Duration = Duration::from_millis(200);
/// With less processor time since the last count, in microseconds, there cannot be many more mappings.
const MIN_CPU_US: u64 = 50_000;

/// The state of a sandbox's mappings.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    /// The charge in bytes for each process above the usual number.
    by_process: BTreeMap<i32, u64>,
    counted: Option<Instant>,
    /// The processor time of the sandbox at the last count, in microseconds.
    at: u64,
}

impl Mappings {
    /// Returns the charge for all mappings. Stops counting above `limit`. `used` is the sandbox's processor time.
    pub(super) fn bytes(&mut self, used: u64, limit: u64, processes: impl FnOnce() -> Vec<Pid>) -> u64 {
        let due = self
            .counted
            .is_none_or(|counted| counted.elapsed() > MIN_COUNT_INTERVAL);
        if due && used.abs_diff(self.at) >= MIN_CPU_US {
            let mut sum = 0;
            let processes = processes();
            // Many processes add mappings faster than the count, and leave it no processor time. Ordinary programs are
            // not stopped.
            let many = processes.len() > MAX_UNSTOPPED_PROCESSES && !self.by_process.is_empty();
            self.by_process.clear();
            let held: Vec<Pid> = if many {
                let going = processes.iter().filter(|pid| !is_stopped(**pid));
                going
                    .filter(|pid| kill_process(**pid, Signal::STOP).is_ok())
                    .copied()
                    .collect()
            } else {
                Vec::new()
            };
            for pid in processes {
                let bytes = count(pid, (limit / MAPPING_BYTES).saturating_sub(sum / MAPPING_BYTES))
                    .saturating_sub(FREE_MAPPINGS)
                    * MAPPING_BYTES;
                if bytes > 0 {
                    self.by_process.insert(pid.as_raw_nonzero().get(), bytes);
                }
                sum += bytes;
                if sum > limit {
                    break;
                }
            }
            for pid in held {
                let _ = kill_process(pid, Signal::CONT);
            }
            self.at = used;
            self.counted = Some(Instant::now());
        }
        self.by_process.values().sum()
    }

    /// Returns all processes above the usual number, which the caller will kill. The next check counts the others.
    pub(super) fn take(&mut self) -> Vec<Pid> {
        self.counted = None;
        self.at = 0;
        let pids = std::mem::take(&mut self.by_process);
        pids.into_keys().filter_map(Pid::from_raw).collect()
    }

    /// Removes a killed process.
    pub(super) fn discard(&mut self, pid: Pid) {
        self.by_process.remove(&pid.as_raw_nonzero().get());
    }

    /// Returns the charge for one process's mappings, in bytes.
    pub(super) fn of(&self, pid: Pid) -> u64 {
        self.by_process.get(&pid.as_raw_nonzero().get()).copied().unwrap_or(0)
    }
}

/// Counts the mappings of a process, until there are more than `max_mappings` above the usual number.
fn count(pid: Pid, max_mappings: u64) -> u64 {
    let path = format!("{}/proc/{}/maps", paths::host(), pid.as_raw_nonzero());
    let Ok(mut file) = std::fs::File::open(path) else {
        return 0;
    };
    let mut buffer = [0; 16 << 10];
    let mut lines = 0;
    while let Ok(read) = file.read(&mut buffer) {
        let text = buffer.get(..read).unwrap_or_default();
        lines += u64::try_from(text.iter().filter(|byte| **byte == b'\n').count()).unwrap_or(u64::MAX);
        if read == 0 || lines > max_mappings.saturating_add(FREE_MAPPINGS) {
            break;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_beyond_the_allowance_are_counted() {
        paths::host_is_as_it_is();
        let own = rustix::process::getpid();
        let lines = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let counted = count(own, 1 << 20);
        assert!(
            counted > 0 && counted.abs_diff(u64::try_from(lines).unwrap()) < 50,
            "{counted} {lines}"
        );
        let mut mappings = Mappings::default();
        assert_eq!(mappings.bytes(1_000_000, 1 << 30, || vec![own]), 0);
        let more = format!(
            "import mmap\nall = [mmap.mmap(-1, 4096) for _ in range({FREE_MAPPINGS} + 500)]\nprint(1, flush=True)\ninput()"
        );
        let mut program = std::process::Command::new("python3")
            .args(["-I", "-S", "-c", &more])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(program.stdout.as_mut().unwrap(), &mut [0; 2]).unwrap();
        let other = Pid::from_child(&program);
        mappings.counted = None;
        let counted = mappings.bytes(2_000_000, 1 << 30, || vec![own, other]);
        assert!(
            (500 * MAPPING_BYTES..FREE_MAPPINGS * MAPPING_BYTES).contains(&counted),
            "{counted}"
        );
        assert_eq!(mappings.of(other), counted);
        drop(program.stdin.take());
        program.wait().unwrap();
    }
}
