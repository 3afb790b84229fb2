//! Reads the container's control group from inside, and enforces a memory limit below the container's.
//!
//! A container's limit covers processes and files in memory together, because the kernel counts them together. The
//! limit for processes alone is lower. This module checks their memory, at intervals that follow from the fastest
//! possible growth, and kills the largest process when they exceed it. The kernel's own limit applies after it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use sandcell_jail::{Charged, OwnSockets, holds_sockets};

use super::locks::Locks;
use super::usage::files;
use super::{Held, process_table};
use crate::protocol::GroupUsage;

/// The control group of a container, as it appears inside.
const ROOT: &str = "/sys/fs/cgroup";

/// The highest rate at which processes allocate memory, in bytes per second.
const RATE: u64 = 4 << 30;
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(250);
/// The maximum time between two full checks.
const FULL: Duration = Duration::from_secs(1);
/// The minimum time between two checks while the processes are idle.
const RESTING: Duration = Duration::from_millis(50);
/// The processor time since the last full check, in microseconds, that is too short to allocate much memory.
const IDLE_US: u64 = 500;

/// The process name of a session's frozen snapshot. Snapshots are killed first, since their end loses nothing.
const COPY: &str = "sandcell-copy";

/// The maximum size of a control group's file, in bytes.
const MOST: usize = 64 << 10;

/// A container's control group.
#[derive(Debug)]
pub(super) struct Group {
    files: Files,
    held: Held,
    /// A folder on each private file system.
    private: Vec<PathBuf>,
    peak: u64,
    ended: u64,
    locks: Locks,
    sockets: Option<OwnSockets>,
    /// The processor time of all checks, in microseconds.
    looked: u64,
    /// The last full check, if it found everything within its limits.
    full: Option<Full>,
    /// The time between two checks.
    pause: Duration,
    next: Instant,
}

/// A full check.
#[derive(Debug)]
struct Full {
    at: Instant,
    /// The container's processor time at that moment, without that of checks, in microseconds.
    worked: u64,
}

/// The divisor of the memory limit for locks. Locks count only if they exceed that part of the limit.
const LOCKS_PART: u64 = 8;

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
    pub(super) fn find(held: Held, private: &[PathBuf], sockets: Option<OwnSockets>) -> Option<Self> {
        Some(Self {
            files: Files::find(Path::new(ROOT))?,
            held,
            private: private.to_vec(),
            peak: 0,
            ended: 0,
            locks: Locks::default(),
            sockets,
            looked: 0,
            full: None,
            pause: SHORTEST,
            next: Instant::now(),
        })
    }

    /// Returns the current usage.
    pub(super) fn usage(&mut self) -> GroupUsage {
        let memory = self.files.memory(files(&self.private).disk);
        let memory = memory.saturating_add(self.in_sockets(memory));
        self.peak = self.peak.max(memory);
        GroupUsage {
            memory,
            memory_peak: self.peak,
            cpu_us: self.files.cpu_us(),
            memory_events: self.files.memory_events().saturating_add(self.ended),
            process_events: self.files.process_events(),
        }
    }

    /// Returns the memory behind sockets that is not part of `processes`, in bytes.
    fn in_sockets(&mut self, processes: u64) -> u64 {
        let kernel = self.files.kernel();
        let charged = Charged { processes, kernel };
        self.sockets.as_mut().map_or(0, |sockets| sockets.bytes(charged))
    }

    /// Returns the time until the next check.
    pub(super) fn due(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Checks the limits if the time has come, and kills a process if they are exceeded.
    pub(super) fn look(&mut self) -> Look {
        let now = Instant::now();
        if now < self.next {
            return Look::Fine;
        }
        let began = own_us();
        let found = self.look_at(now);
        self.looked += own_us().saturating_sub(began);
        found
    }

    fn look_at(&mut self, now: Instant) -> Look {
        // The agent's work for programs, such as copying their output, counts as theirs.
        let worked = self.files.cpu_us().saturating_sub(self.looked);
        let is_idle = |full: &Full| worked > 0 && worked < full.worked + IDLE_US && full.at.elapsed() < FULL;
        if self.full.as_ref().is_some_and(is_idle) {
            self.next = now + self.pause.max(RESTING);
            return Look::Fine;
        }
        let disk = files(&self.private).disk;
        let memory = self.files.memory(disk);
        let pinned = self.in_sockets(memory);
        self.peak = self.peak.max(memory.saturating_add(pinned));
        let (locks, holder) = self.locks.count(|| self.files.cpu_us());
        if memory > self.held.memory {
            if end_largest() {
                self.ended = self.ended.saturating_add(1);
            }
        } else if memory.saturating_add(pinned) > self.held.memory {
            self.ended = self.ended.saturating_add(end_holders_of_sockets());
            if let Some(sockets) = &mut self.sockets {
                sockets.forget();
            }
        } else if locks > self.held.memory / LOCKS_PART && locks.saturating_add(memory) > self.held.memory {
            self.locks.forget();
            if holder.is_some_and(|pid| pid != rustix::process::getpid() && kill_process(pid, Signal::KILL).is_ok()) {
                self.ended = self.ended.saturating_add(1);
            }
        }
        let most = most_files(self.held.disk);
        let used = memory.saturating_add(pinned);
        let room = self.held.memory.saturating_sub(used).min(most.saturating_sub(disk));
        let holds = self.sockets.as_ref().map_or(LONGEST, OwnSockets::holds);
        self.pause = interval(room).min(holds);
        self.full = (room > 0).then_some(Full { at: now, worked });
        self.next = now + self.pause;
        if disk > most { Look::DiskFull } else { Look::Fine }
    }
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Fine,
    /// The private file systems together exceed their limit. Each alone has a limit of its file system.
    DiskFull,
}

/// Returns the limit for all private file systems together. One may be full to the last byte while the others hold a
/// little.
const fn most_files(disk: u64) -> u64 {
    disk.saturating_add(disk / 8).saturating_add(1 << 20)
}

/// Returns the processor time of this process, in microseconds.
fn own_us() -> u64 {
    let own = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(own.tv_sec * 1_000_000 + own.tv_nsec / 1000).unwrap_or(0)
}

/// Returns the time that processes need at least to allocate `room` bytes.
fn interval(room: u64) -> Duration {
    let micros = room.saturating_mul(1_000_000) / RATE;
    Duration::from_micros(micros).clamp(SHORTEST, LONGEST)
}

/// Kills a snapshot if there is one, otherwise the process with the most memory. Returns false if it killed no process,
/// or a snapshot.
fn end_largest() -> bool {
    let Ok(table) = process_table::read() else {
        return false;
    };
    let own = rustix::process::getpid();
    let others = table.entries.iter().filter(|entry| !entry.is_dead());
    let largest = others
        .filter_map(|entry| {
            let pid = entry.id().filter(|pid| *pid != own)?;
            let copy = is_copy(pid);
            Some((copy, resident(pid), pid))
        })
        .max_by_key(|(copy, pages, _)| (*copy, *pages));
    largest.is_some_and(|(copy, _, pid)| kill_process(pid, Signal::KILL).is_ok() && !copy)
}

/// Kills every process with an open socket, since the one that filled them is unknown. Returns the number of killed
/// processes.
fn end_holders_of_sockets() -> u64 {
    let Ok(table) = process_table::read() else { return 0 };
    let own = rustix::process::getpid();
    let living = table.entries.iter().filter(|entry| !entry.is_dead());
    let others = living.filter_map(|entry| entry.id().filter(|pid| *pid != own));
    let ended = others.filter(|pid| holds_sockets(*pid) && kill_process(*pid, Signal::KILL).is_ok());
    u64::try_from(ended.count()).unwrap_or(u64::MAX)
}

fn is_copy(pid: Pid) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
    name.is_ok_and(|name| name.trim_end() == COPY)
}

fn resident(pid: Pid) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/statm", pid.as_raw_nonzero()));
    let pages = text.ok().and_then(|text| text.split(' ').nth(1)?.parse().ok());
    pages.unwrap_or(0)
}

/// Returns the content of a file of the control group. None if it cannot be read.
fn text(file: &str) -> Option<String> {
    let text = std::fs::read_to_string(Path::new(ROOT).join(file)).ok()?;
    (text.len() <= MOST).then_some(text)
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
    fn numbers_are_found_by_their_whole_name() {
        let text = "rss 1\ntotal_rss_huge 2\ntotal_rss 3\n";
        assert_eq!((number(text, "total_rss"), number(text, "total")), (3, 0));
        assert_eq!(number("", "anon"), 0);
    }

    #[test]
    fn one_full_place_is_not_too_much_and_three_are() {
        assert!(most_files(16 << 20) > (16 << 20) + 4096 && most_files(16 << 20) < 24 << 20);
    }

    #[test]
    fn looks_are_closer_the_nearer_the_limit_is() {
        assert_eq!(interval(0), SHORTEST);
        assert_eq!(interval(u64::MAX), LONGEST);
        assert!(interval(256 << 20) < interval(512 << 20));
    }

    #[test]
    fn a_folder_without_control_files_is_no_group() {
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
