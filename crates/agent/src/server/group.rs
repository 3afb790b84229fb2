//! Reads the container's control group from inside, and enforces a memory limit below the container's.
//!
//! A container's limit covers processes and files in memory together, because the kernel counts them together. The
//! limit for processes alone is lower. This module checks their memory, at intervals that follow from the fastest
//! possible growth, and kills the largest process when they exceed it. The kernel's own limit applies after it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use sandcell_jail::{Charged, OwnSockets, SNAPSHOT_PROCESS_NAME, holds_sockets};

use super::locks::Locks;
use super::process_table::Entry;
use super::usage::files;
use super::{ContainerLimits, process_table};
use crate::protocol::GroupUsage;

/// The control group of a container, as it appears inside.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// The highest rate at which processes allocate memory, in bytes per second.
const MAX_ALLOCATION_BYTES_PER_SECOND: u64 = 4 << 30;
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(10);
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The maximum time between two full checks.
const FULL_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum time between two checks while the processes are idle.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The processor time since the last full check, in microseconds, that is too short to allocate much memory.
const IDLE_CPU_US: u64 = 500;

/// The maximum size of a control group's file, in bytes.
const MAX_FILE_BYTES: usize = 64 << 10;

/// A container's control group.
#[derive(Debug)]
pub(super) struct Group {
    files: Files,
    limits: ContainerLimits,
    /// A folder on each private file system.
    private: Vec<PathBuf>,
    peak: u64,
    killed: u64,
    locks: Locks,
    sockets: Option<OwnSockets>,
    /// The processor time of all checks, in microseconds.
    check_cpu_us: u64,
    /// The last full check, if it found everything within its limits.
    full_check: Option<FullCheck>,
    /// The time between two checks.
    check_interval: Duration,
    next_check: Instant,
}

/// A full check.
#[derive(Debug)]
struct FullCheck {
    at: Instant,
    /// The container's processor time at that moment, without that of checks, in microseconds.
    worked_us: u64,
}

/// The divisor of the memory limit for locks. Locks count only if they exceed that part of the limit.
const LOCKS_LIMIT_DIVISOR: u64 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Files {
    /// One hierarchy for all controllers.
    Unified,
    /// A hierarchy for each controller.
    Split,
}

impl Files {
    fn find(root: &Path) -> Option<Self> {
        if root.join("memory.stat").is_file() && root.join("cgroup.controllers").is_file() {
            Some(Self::Unified)
        } else if root.join("memory/memory.stat").is_file() {
            Some(Self::Split)
        } else {
            None
        }
    }

    /// Returns the memory of the processes, in bytes: their own, and shared memory without a file. The kernel counts
    /// the latter as files, so the private file systems' part is subtracted. The kernel's caches for finding files are
    /// left out, because it reclaims them.
    fn memory(self, private: u64) -> u64 {
        let (stat, own, shared): (_, &[&str], _) = match self {
            Self::Unified => (text("memory.stat"), &["anon", "sock"], "shmem"),
            Self::Split => (text("memory/memory.stat"), &["total_rss"], "total_shmem"),
        };
        let stat = stat.unwrap_or_default();
        let sum = |names: &[&str]| {
            names
                .iter()
                .map(|name| number(&stat, name))
                .fold(0, u64::saturating_add)
        };
        // The sum, since Linux 5.18, also has messages in Unix sockets, which none of the parts has.
        let parts = sum(&["kernel_stack", "pagetables", "slab_unreclaimable"]);
        let kernel = number(&stat, "kernel").saturating_sub(number(&stat, "slab_reclaimable"));
        let own = sum(own).saturating_add(parts.max(kernel));
        let shared = number(&stat, shared).saturating_sub(private);
        own.saturating_add(shared)
    }

    /// Returns all kernel memory of the group, in bytes, reclaimable or not. None on version 2, where `memory` has the
    /// unreclaimable part.
    fn kernel(self) -> Option<u64> {
        match self {
            Self::Unified => None,
            Self::Split => text("memory/memory.kmem.usage_in_bytes")
                .and_then(|text| text.trim().parse().ok())
                .or(Some(0)),
        }
    }

    fn cpu_us(self) -> u64 {
        match self {
            Self::Unified => member("cpu.stat", "usage_usec"),
            Self::Split => ["cpuacct/cpuacct.usage", "cpu,cpuacct/cpuacct.usage"]
                .iter()
                .find_map(|file| text(file)?.trim().parse::<u64>().ok())
                .map_or(0, |ns| ns / 1000),
        }
    }

    fn memory_events(self) -> u64 {
        match self {
            Self::Unified => member("memory.events", "oom_kill"),
            Self::Split => member("memory/memory.oom_control", "oom_kill"),
        }
    }

    fn process_events(self) -> u64 {
        match self {
            Self::Unified => member("pids.events", "max"),
            Self::Split => member("pids/pids.events", "max"),
        }
    }
}

impl Group {
    /// Returns the group of this container, if it can be read.
    pub(super) fn find(limits: ContainerLimits, private: &[PathBuf], sockets: Option<OwnSockets>) -> Option<Self> {
        Some(Self {
            files: Files::find(Path::new(CGROUP_ROOT))?,
            limits,
            private: private.to_vec(),
            peak: 0,
            killed: 0,
            locks: Locks::default(),
            sockets,
            check_cpu_us: 0,
            full_check: None,
            check_interval: MIN_CHECK_INTERVAL,
            next_check: Instant::now(),
        })
    }

    /// Returns the current usage.
    pub(super) fn usage(&mut self) -> GroupUsage {
        let memory = self.files.memory(files(&self.private).disk);
        let memory = memory.saturating_add(self.socket_bytes(memory));
        self.peak = self.peak.max(memory);
        GroupUsage {
            memory,
            memory_peak: self.peak,
            cpu_us: self.files.cpu_us(),
            memory_events: self.files.memory_events().saturating_add(self.killed),
            process_events: self.files.process_events(),
        }
    }

    /// Returns the memory behind sockets that is not part of `processes`, in bytes.
    fn socket_bytes(&mut self, processes: u64) -> u64 {
        let kernel = self.files.kernel();
        let charged = Charged { processes, kernel };
        self.sockets.as_mut().map_or(0, |sockets| sockets.bytes(charged))
    }

    /// Returns the time until the next check.
    pub(super) fn check_due(&self) -> Duration {
        self.next_check.saturating_duration_since(Instant::now())
    }

    /// Checks the limits if the time has come, and kills a process if they are exceeded.
    pub(super) fn check(&mut self) -> CheckResult {
        let now = Instant::now();
        if now < self.next_check {
            return CheckResult::Fine;
        }
        let began = own_cpu_us();
        let found = self.check_at(now);
        self.check_cpu_us += own_cpu_us().saturating_sub(began);
        found
    }

    fn check_at(&mut self, now: Instant) -> CheckResult {
        // The agent's work for programs, such as copying their output, counts as theirs.
        let worked_us = self.files.cpu_us().saturating_sub(self.check_cpu_us);
        let is_idle = |full_check: &FullCheck| {
            worked_us > 0
                && worked_us < full_check.worked_us + IDLE_CPU_US
                && full_check.at.elapsed() < FULL_CHECK_INTERVAL
        };
        if self.full_check.as_ref().is_some_and(is_idle) {
            self.next_check = now + self.check_interval.max(IDLE_CHECK_INTERVAL);
            return CheckResult::Fine;
        }
        let disk = files(&self.private).disk;
        let memory = self.files.memory(disk);
        let in_sockets = self.socket_bytes(memory);
        self.peak = self.peak.max(memory.saturating_add(in_sockets));
        let (locks, holder) = self.locks.count(|| self.files.cpu_us());
        if memory > self.limits.memory {
            if kill_largest() {
                self.killed = self.killed.saturating_add(1);
            }
        } else if memory.saturating_add(in_sockets) > self.limits.memory {
            self.killed = self.killed.saturating_add(kill_socket_holders());
            if let Some(sockets) = &mut self.sockets {
                sockets.discard();
            }
        } else if locks > self.limits.memory / LOCKS_LIMIT_DIVISOR && locks.saturating_add(memory) > self.limits.memory
        {
            self.locks.forget();
            if holder.is_some_and(|pid| pid != rustix::process::getpid() && kill_process(pid, Signal::KILL).is_ok()) {
                self.killed = self.killed.saturating_add(1);
            }
        }
        let max_private = max_private_bytes(self.limits.disk);
        let used = memory.saturating_add(in_sockets);
        let room = self
            .limits
            .memory
            .saturating_sub(used)
            .min(max_private.saturating_sub(disk));
        let holds = self.sockets.as_ref().map_or(MAX_CHECK_INTERVAL, OwnSockets::valid_for);
        self.check_interval = interval(room).min(holds);
        self.full_check = (room > 0).then_some(FullCheck { at: now, worked_us });
        self.next_check = now + self.check_interval;
        if disk > max_private {
            CheckResult::DiskFull
        } else {
            CheckResult::Fine
        }
    }
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckResult {
    Fine,
    /// The private file systems together exceed their limit. Each alone has a limit of its file system.
    DiskFull,
}

/// Returns the limit for all private file systems together. One may be full to the last byte while the others hold a
/// little.
const fn max_private_bytes(disk: u64) -> u64 {
    disk.saturating_add(disk / 8).saturating_add(1 << 20)
}

/// Returns the processor time of this process, in microseconds.
fn own_cpu_us() -> u64 {
    let own = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(own.tv_sec * 1_000_000 + own.tv_nsec / 1000).unwrap_or(0)
}

/// Returns the time that processes need at least to allocate `room` bytes.
fn interval(room: u64) -> Duration {
    let micros = room.saturating_mul(1_000_000) / MAX_ALLOCATION_BYTES_PER_SECOND;
    Duration::from_micros(micros).clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL)
}

/// Kills a snapshot if there is one, otherwise the process with the most memory. Returns false if it killed no process,
/// or a snapshot.
fn kill_largest() -> bool {
    let Ok(table) = process_table::read() else {
        return false;
    };
    let own = rustix::process::getpid();
    let others = table.entries.iter().filter(|entry| !entry.is_dead());
    let largest = others
        .filter_map(|entry| {
            let pid = entry.id().filter(|pid| *pid != own)?;
            let snapshot = is_snapshot(&table.entries, entry);
            Some((snapshot, resident(pid), pid))
        })
        .max_by_key(|(snapshot, pages, _)| (*snapshot, *pages));
    largest.is_some_and(|(snapshot, _, pid)| kill_process(pid, Signal::KILL).is_ok() && !snapshot)
}

/// Kills every process with an open socket, since the one that filled them is unknown. Returns the number of killed
/// processes.
fn kill_socket_holders() -> u64 {
    let Ok(table) = process_table::read() else { return 0 };
    let own = rustix::process::getpid();
    let living = table.entries.iter().filter(|entry| !entry.is_dead());
    let others = living.filter_map(|entry| entry.id().filter(|pid| *pid != own));
    let killed = others.filter(|pid| holds_sockets(*pid) && kill_process(*pid, Signal::KILL).is_ok());
    u64::try_from(killed.count()).unwrap_or(u64::MAX)
}

/// Returns true for a process with a snapshot's name whose kernel session has a living leader. After the leader's end, the
/// snapshot replaces it.
fn is_snapshot(table: &[Entry], entry: &Entry) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{}/comm", entry.pid));
    let named = name.is_ok_and(|name| name.trim_end() == SNAPSHOT_PROCESS_NAME);
    let leads = |other: &&Entry| other.pid == entry.session && other.pid != entry.pid && !other.is_dead();
    named && table.iter().any(|other| leads(&other))
}

fn resident(pid: Pid) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/statm", pid.as_raw_nonzero()));
    let pages = text.ok().and_then(|text| text.split(' ').nth(1)?.parse().ok());
    pages.unwrap_or(0)
}

/// Returns the content of a file of the control group. None if it cannot be read.
fn text(file: &str) -> Option<String> {
    let text = std::fs::read_to_string(Path::new(CGROUP_ROOT).join(file)).ok()?;
    (text.len() <= MAX_FILE_BYTES).then_some(text)
}

/// Returns a number from a file of lines `name number`. 0 if it is missing.
fn member(file: &str, name: &str) -> u64 {
    text(file).map_or(0, |text| number(&text, name))
}

fn number(text: &str, name: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find_map(|(found, number)| (found == name).then(|| number.trim().parse().ok())?)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_matched_by_their_whole_name() {
        let text = "rss 1\ntotal_rss_huge 2\ntotal_rss 3\n";
        assert_eq!((number(text, "total_rss"), number(text, "total")), (3, 0));
        assert_eq!(number("", "anon"), 0);
    }

    #[test]
    fn the_private_memory_limit_is_a_little_above_the_file_size_limit() {
        assert!(max_private_bytes(16 << 20) > (16 << 20) + 4096 && max_private_bytes(16 << 20) < 24 << 20);
    }

    #[test]
    fn polling_gets_faster_near_the_limit() {
        assert_eq!(interval(0), MIN_CHECK_INTERVAL);
        assert_eq!(interval(u64::MAX), MAX_CHECK_INTERVAL);
        assert!(interval(256 << 20) < interval(512 << 20));
    }

    #[test]
    fn a_folder_without_control_files_is_not_a_cgroup() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Files::find(folder.path()), None);
        std::fs::create_dir(folder.path().join("memory")).unwrap();
        std::fs::write(folder.path().join("memory/memory.stat"), "").unwrap();
        assert_eq!(Files::find(folder.path()), Some(Files::Split));
        std::fs::write(folder.path().join("memory.stat"), "").unwrap();
        std::fs::write(folder.path().join("cgroup.controllers"), "").unwrap();
        assert_eq!(Files::find(folder.path()), Some(Files::Unified));
    }
}
