//! What the machine's memory has been given out for beyond what the kernel names: page fragments behind sockets above all,
//! which no process, file or control group is charged for.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use super::small_file;
use crate::plan::place;

/// What the kernel names, in the order of `/proc/meminfo`. Nothing is here whose pages count under another name as well: a
/// sandbox could hide memory by having the same page taken off twice.
const NAMED: [&str; 12] = [
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
/// A look at the machine may take this part of the time at the most.
const PART: u32 = 16;
const PROC_MAGIC: u64 = 0x9fa0;

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    took: Duration,
    bytes: Option<u64>,
}

thread_local! {
    /// All sandboxes of a launcher are looked at by one thread.
    static LAST: Cell<Option<Sample>> = const { Cell::new(None) };
}

/// The memory in bytes, as it was at most `age` ago, or longer where it is dear to ask for. None where this machine does not
/// tell: a container's own `/proc/meminfo` knows nothing of the kernel's memory.
pub(super) fn lost(age: Duration) -> Option<u64> {
    if let Some(last) = LAST.get()
        && last.at.elapsed() < age.max(last.took * PART)
    {
        return last.bytes;
    }
    lost_now()
}

/// What was known last, however long ago.
pub(super) fn last() -> Option<u64> {
    LAST.get().and_then(|last| last.bytes)
}

/// The memory in bytes now.
pub(super) fn lost_now() -> Option<u64> {
    let began = Instant::now();
    let path = |name: &str| format!("{}/proc/{name}", place::host());
    let bytes = is_the_kernels(&path("meminfo"))
        .then(|| {
            let free = small_file(&path("meminfo"));
            lost_in(&free, &small_file(&path("zoneinfo")))
        })
        .flatten();
    let at = Instant::now();
    let took = at - began;
    LAST.set(Some(Sample { at, took, bytes }));
    bytes
}

fn is_the_kernels(path: &str) -> bool {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    file.and_then(rustix::fs::fstatfs)
        .is_ok_and(|found| u64::try_from(found.f_type).is_ok_and(|kind| kind == PROC_MAGIC))
}

fn lost_in(meminfo: &str, zoneinfo: &str) -> Option<u64> {
    let mut total = None;
    let mut named: u64 = 0;
    for line in meminfo.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(number)) = (words.next(), words.next().and_then(|number| number.parse::<u64>().ok()))
        else {
            continue;
        };
        if name == "MemTotal:" {
            total = Some(number);
        } else if NAMED.contains(&name) {
            named += number;
        }
    }
    Some((total?.saturating_sub(named) * 1024).saturating_sub(at_hand(zoneinfo)?))
}

/// What each processor keeps at hand of the free memory, in bytes: up to an eighth of all, and not counted as free.
fn at_hand(zoneinfo: &str) -> Option<u64> {
    let numbers = zoneinfo
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("count:"));
    let pages: Option<u64> = numbers.map(|number| number.trim().parse::<u64>().ok()).sum();
    let page = u64::try_from(rustix::param::page_size()).ok()?;
    (!zoneinfo.is_empty()).then_some(pages? * page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_processors_keep_at_hand_is_free() {
        let page = u64::try_from(rustix::param::page_size()).unwrap();
        let meminfo = "MemTotal:  10000 kB\nMemFree: 1000 kB\nMemAvailable: 9000 kB\nCached:  2000 kB\nShmem: 500 kB\n";
        let zoneinfo = "Node 0, zone  Normal\n  pages free 250\n  pagesets\n    cpu: 0\n              count:    3\n              high:     9\n    cpu: 1\n              count:    4\n";
        assert_eq!(lost_in(meminfo, zoneinfo), Some(7000 * 1024 - 7 * page));
        // Where it cannot be told, nothing is taken for granted.
        assert_eq!(lost_in(meminfo, ""), None);
        assert_eq!(lost_in("", zoneinfo), None);
    }

    #[test]
    fn this_machine_tells() {
        place::host_is_as_it_is();
        assert!(lost(Duration::ZERO).is_some());
    }
}
