//! What the control group of a container says, read from inside, and the brake inside its memory limit.
//!
//! A container's limit holds processes and files in memory together, because the kernel counts them together. Processes
//! alone may have less: this looks at what is theirs, often enough for how fast they could grow, and ends the largest
//! when they are over. The kernel's own limit stands behind it.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::process_table;
use crate::protocol::GroupUsage;

/// Where containers have their control group.
const ROOT: &str = "/sys/fs/cgroup";

/// How fast processes take memory at the best, in bytes a second.
const RATE: u64 = 4 << 30;
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(250);

/// The name that a session's frozen copy gives itself: it goes first, nothing is lost with it.
const COPY: &str = "sandcell-copy";

/// The largest file of a control group that is read.
const MOST: usize = 64 << 10;

/// A container's control group.
#[derive(Debug)]
pub(super) struct Group {
    files: Files,
    /// What processes may have together, in bytes.
    limit: u64,
    peak: u64,
    ended: u64,
    next: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Files {
    /// One hierarchy for all controllers.
    Unified,
    /// One for each.
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

    /// What is the processes' own: not files, and no memory that is shared like files.
    fn memory(self) -> u64 {
        match self {
            Self::Unified => member("memory.stat", "anon"),
            Self::Split => member("memory/memory.stat", "total_rss"),
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
    /// The one of this container, if it can be read.
    pub(super) fn find(limit: u64) -> Option<Self> {
        Some(Self {
            files: Files::find(Path::new(ROOT))?,
            limit,
            peak: 0,
            ended: 0,
            next: Instant::now(),
        })
    }

    /// What it says now.
    pub(super) fn usage(&mut self) -> GroupUsage {
        let memory = self.files.memory();
        self.peak = self.peak.max(memory);
        GroupUsage {
            memory,
            memory_peak: self.peak,
            cpu_us: self.files.cpu_us(),
            memory_events: self.files.memory_events().saturating_add(self.ended),
            process_events: self.files.process_events(),
        }
    }

    /// How long until the next look.
    pub(super) fn due(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Looks if it is time, and ends a process if they have too much.
    pub(super) fn look(&mut self) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        let memory = self.files.memory();
        self.peak = self.peak.max(memory);
        if memory > self.limit && end_largest() {
            self.ended = self.ended.saturating_add(1);
        }
        self.next = now + interval(self.limit.saturating_sub(memory));
    }
}

/// How long processes need at least to take so much.
fn interval(room: u64) -> Duration {
    let micros = room.saturating_mul(1_000_000) / RATE;
    Duration::from_micros(micros).clamp(SHORTEST, LONGEST)
}

/// Kills a copy if there is one, else whoever has most memory. False when nobody was there.
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

fn is_copy(pid: Pid) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
    name.is_ok_and(|name| name.trim_end() == COPY)
}

fn resident(pid: Pid) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/statm", pid.as_raw_nonzero()));
    let pages = text.ok().and_then(|text| text.split(' ').nth(1)?.parse().ok());
    pages.unwrap_or(0)
}

/// A file of the control group; what cannot be read says nothing.
fn text(file: &str) -> Option<String> {
    let text = std::fs::read_to_string(Path::new(ROOT).join(file)).ok()?;
    (text.len() <= MOST).then_some(text)
}

/// A number in a file of lines `name number`; 0 if it is not there.
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
