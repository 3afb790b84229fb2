//! The machine's used memory that the kernel does not list by purpose: above all page fragments behind sockets, which
//! are charged to no process, file or cgroup.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::kernel_files::small_file;
use crate::paths;

/// Memory that the kernel lists by purpose, in the order of `/proc/meminfo`. No entry may overlap with another one: a
/// sandbox could otherwise hide memory whose pages are subtracted twice.
const LISTED_FIELDS: [&str; 12] = [
    "MemFree:",
    "Buffers:",
    "Cached:",
    "AnonPages:",
    "Slab:",
    "PageTables:",
    "SecPageTables:",
    "VmallocUsed:",
    "Percpu:",
    "Hugetlb:",
    "Balloon:",
    "Zswap:",
];
/// The maximum share of time spent reading the machine's memory: one part in this many.
const READING_TIME_DIVISOR: u32 = 16;
/// The same for readings without a sandbox, which continue while all sandboxes seem idle.
const ALARM_DIVISOR: u32 = 100;
/// The minimum interval between two such readings.
pub(crate) const ALARM_INTERVAL: Duration = Duration::from_millis(20);
/// The amount of lost memory, in bytes, at which every sandbox is checked.
const ALARM_BYTES: u64 = 16 << 20;
/// The minimum processor time since the last reading, in hundredths of a second.
const MIN_BUSY_HUNDREDTHS: u64 = 2;
const PROC_MAGIC: u64 = 0x9fa0;

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    took: Duration,
    bytes: Option<u64>,
}

thread_local! {
    /// One thread checks all sandboxes of a launcher.
    static LAST_SAMPLE: Cell<Option<Sample>> = const { Cell::new(None) };
}

/// Returns the lost memory in bytes, at most `age` old, or older if reading it is expensive. None if this machine does
/// not report it: a container's private `/proc/meminfo` lacks the kernel's memory.
pub(super) fn lost_within(age: Duration) -> Option<u64> {
    if let Some(last) = LAST_SAMPLE.get()
        && last.at.elapsed() < age.max(last.took * READING_TIME_DIVISOR)
    {
        return last.bytes;
    }
    lost_now()
}

/// Returns the last reading, regardless of its age.
pub(super) fn last() -> Option<u64> {
    LAST_SAMPLE.get().and_then(|last| last.bytes)
}

/// Reads the lost memory now, in bytes.
pub(super) fn lost_now() -> Option<u64> {
    let began = Instant::now();
    let path = |name: &str| format!("{}/proc/{name}", paths::host());
    let bytes = is_the_kernels(&path("meminfo"))
        .then(|| {
            let free = small_file(&path("meminfo"));
            lost_in(&free, &small_file(&path("zoneinfo")))
        })
        .flatten();
    let at = Instant::now();
    let took = at - began;
    LAST_SAMPLE.set(Some(Sample { at, took, bytes }));
    bytes
}

/// Checks the machine between the checks of sandboxes, which are rare for an idle sandbox. Sockets can take much memory
/// in that time.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    /// The time of the last check.
    at: Option<Instant>,
    /// The machine's uptime and its processors' idle time at the last memory reading.
    clocks: (u64, u64),
    /// The lost memory when every sandbox was last checked, or a lower later reading.
    base: Option<u64>,
}

impl Alarm {
    /// Returns true if every sandbox must be checked.
    pub(crate) fn is_raised(&mut self) -> bool {
        let took = LAST_SAMPLE.get().map_or(Duration::ZERO, |last| last.took);
        let interval = ALARM_INTERVAL.max(took * ALARM_DIVISOR);
        if self.at.is_some_and(|at| at.elapsed() < interval) {
            return false;
        }
        self.at = Some(Instant::now());
        let clocks = clocks_in(&small_file(&format!("{}/proc/uptime", paths::host())));
        if !is_busy(self.clocks, clocks) {
            return false;
        }
        self.clocks = clocks;
        let Some(lost) = lost_within(ALARM_INTERVAL / 2) else {
            return false;
        };
        self.compare(lost)
    }

    fn compare(&mut self, lost: u64) -> bool {
        let base = self.base.unwrap_or(lost).min(lost);
        let raised = lost - base >= ALARM_BYTES;
        self.base = Some(if raised { lost } else { base });
        raised
    }
}

/// Parses `/proc/uptime`: the time since the start, and the idle time of all processors, in hundredths of a second.
fn clocks_in(uptime: &str) -> (u64, u64) {
    let mut words = uptime
        .split_whitespace()
        .map(|word| word.replace('.', "").parse().unwrap_or(0));
    (words.next().unwrap_or(0), words.next().unwrap_or(0))
}

/// Returns true if the processors ran anything between two readings.
fn is_busy(before: (u64, u64), now: (u64, u64)) -> bool {
    let processors = std::thread::available_parallelism().map_or(1, |number| u64::try_from(number.get()).unwrap_or(1));
    let passed = now.0.saturating_sub(before.0).saturating_mul(processors);
    passed >= now.1.saturating_sub(before.1) + MIN_BUSY_HUNDREDTHS
}

fn is_the_kernels(path: &str) -> bool {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    file.and_then(rustix::fs::fstatfs)
        .is_ok_and(|found| u64::try_from(found.f_type).is_ok_and(|kind| kind == PROC_MAGIC))
}

fn lost_in(meminfo: &str, zoneinfo: &str) -> Option<u64> {
    let mut total = None;
    let mut named: u64 = 0;
    let mut listed: u64 = 0;
    let mut unlisted: u64 = 0;
    for line in meminfo.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(number)) = (words.next(), words.next().and_then(|number| number.parse::<u64>().ok()))
        else {
            continue;
        };
        if name == "MemTotal:" {
            total = Some(number);
        } else if LISTED_FIELDS.contains(&name) {
            named += number;
        }
        match name {
            "Active(anon):" | "Inactive(anon):" => listed += number,
            "AnonPages:" | "Shmem:" => unlisted += number,
            _ => {}
        }
    }
    // If a program frees part of a huge page, AnonPages includes only the rest. The whole page is only in the Active
    // and Inactive lists.
    named += listed.saturating_sub(unlisted);
    Some((total?.saturating_sub(named) * 1024).saturating_sub(in_processor_lists(zoneinfo)?))
}

/// Returns the free memory in the processors' page lists, in bytes: up to an eighth of all, and not part of `MemFree`.
fn in_processor_lists(zoneinfo: &str) -> Option<u64> {
    let numbers = zoneinfo
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("count:"));
    let pages: Option<u64> = numbers.map(|number| number.trim().parse::<u64>().ok()).sum();
    let page = u64::try_from(crate::sys::misc::page_size()).ok()?;
    (!zoneinfo.is_empty()).then_some(pages? * page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_cpu_free_pages_count_as_free() {
        let page = u64::try_from(crate::sys::misc::page_size()).unwrap();
        let meminfo = "MemTotal:  10000 kB\nMemFree: 1000 kB\nMemAvailable: 9000 kB\nCached:  2000 kB\nShmem: 500 kB\n";
        let zoneinfo = "Node 0, zone  Normal\n  pages free 250\n  pagesets\n    cpu: 0\n              count:    3\n              high:     9\n    cpu: 1\n              count:    4\n";
        assert_eq!(lost_in(meminfo, zoneinfo), Some(7000 * 1024 - 7 * page));
        // The freed parts of huge pages belong to a process, although they do not count as AnonPages.
        let huge = format!("{meminfo}AnonPages: 300 kB\nActive(anon): 900 kB\nInactive(anon): 400 kB\n");
        assert_eq!(lost_in(&huge, zoneinfo), Some((7000 - 300 - 500) * 1024 - 7 * page));
        // Without the data, nothing is assumed.
        assert_eq!(lost_in(meminfo, ""), None);
        assert_eq!(lost_in("", zoneinfo), None);
    }

    #[test]
    fn an_alarm_is_raised_once_for_lost_memory() {
        let mut alarm = Alarm::default();
        assert!(!alarm.compare(100 << 20));
        assert!(!alarm.compare(110 << 20));
        assert!(alarm.compare(117 << 20));
        assert!(!alarm.compare(120 << 20));
        assert!(!alarm.compare(90 << 20));
        assert!(alarm.compare(106 << 20));
    }

    #[test]
    fn idle_and_busy_machines_are_distinguished() {
        assert_eq!(clocks_in("350735.47 234388.90\n"), (35_073_547, 23_438_890));
        assert!(!is_busy((0, 0), (0, 0)));
        assert!(is_busy((0, 0), (100, 0)));
    }

    #[test]
    fn this_machine_reports_its_memory() {
        paths::host_is_as_it_is();
        let own = is_the_kernels("/proc/meminfo");
        assert_eq!(lost_within(Duration::ZERO).is_some(), own);
    }
}
