//! Looks at memory from outside: the brake inside a control group's hard limit, and the only limit where there is none.

use rustix::process::{Pid, Signal, kill_process};

use crate::cgroup::Group;
use crate::plan::place;
use crate::wire::Usage;

/// Processes that one look takes in at the most.
const MOST: usize = 4096;

/// What a socket's buffer holds at the most, in bytes: the kernel's default, which nothing inside can change.
pub(crate) const SOCKET_BUFFER: u64 = 212_992;

/// What half a pipe, or another open file, holds of the kernel's memory at the most. A user's pipes together have up to
/// 64 MiB in larger buffers; from there on the kernel gives each two pages.
const DESCRIPTOR: u64 = 4096;

/// Sockets and descriptors that every sandbox may have without their being counted.
const FREE: u64 = 64;

/// What was seen of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Processes ended for memory by us.
    pub(crate) kills: u64,
    /// Kills by us and by the kernel.
    pub(crate) events: u64,
    /// The most memory seen, in bytes.
    pub(crate) peak: u64,
}

impl Record {
    /// A sandbox with a control group: files and processes are charged together there, so processes are told apart here.
    pub(crate) fn look_at_group(&mut self, group: &Group, first: Pid) {
        if group.charged() > group.memory_limit() && group.process_memory() > group.memory_limit() {
            let candidates = group.pids().into_iter().filter(|pid| *pid != first);
            self.end_largest(candidates.map(|pid| (pid, private_memory(pid))));
        }
        self.events = self.kills + group.usage().memory_events;
    }

    /// A sandbox without: its processes are the first one's descendants, orphans included.
    pub(crate) fn look_at_tree(&mut self, first: Pid, limit: u64) {
        let processes: Vec<(Pid, u64)> = descendants(first)
            .into_iter()
            .map(|pid| (pid, private_memory(pid)))
            .collect();
        let own: u64 = processes.iter().map(|(_, bytes)| bytes).sum();
        let elsewhere = in_sockets(first) + in_descriptors(&processes);
        let mut total = own + elsewhere;
        if total > limit {
            // What forked processes still share was counted for each of them; looking closer is dear, so only now.
            let shares = processes
                .iter()
                .map(|(pid, bytes)| proportional_memory(*pid).unwrap_or(*bytes));
            total = shares.sum::<u64>() + elsewhere;
        }
        self.peak = self.peak.max(total);
        if total > limit {
            let others = processes.into_iter().filter(|(pid, _)| *pid != first);
            // What lies in sockets and pipes belongs to whoever has most of them.
            self.end_largest(others.map(|(pid, bytes)| (pid, bytes + descriptors(pid) * (DESCRIPTOR + SOCKET_BUFFER))));
        }
        self.events = self.kills;
    }

    fn end_largest(&mut self, processes: impl Iterator<Item = (Pid, u64)>) {
        if let Some((pid, _)) = processes.max_by_key(|(_, bytes)| *bytes)
            && kill_process(pid, Signal::KILL).is_ok()
        {
            self.kills += 1;
        }
    }
}

/// What a sandbox without a control group uses.
pub(crate) fn usage(first: u32) -> Usage {
    let Some(first) = i32::try_from(first).ok().and_then(Pid::from_raw) else {
        return Usage::default();
    };
    let mut usage = Usage::default();
    for pid in descendants(first) {
        usage.memory += private_memory(pid);
        let (threads, ticks) = threads_and_ticks(pid);
        usage.processes += threads;
        // A clock tick is 10 ms on every architecture that is supported.
        usage.cpu_us += ticks * 10_000;
    }
    usage.memory_peak = usage.memory;
    usage
}

/// A process and all that descend from it. In a process namespace orphans descend from the first process.
fn descendants(first: Pid) -> Vec<Pid> {
    let mut found = vec![first];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        next += 1;
        let tasks = format!("{}/proc/{}/task", place::HOST, pid.as_raw_nonzero());
        let Ok(entries) = std::fs::read_dir(tasks) else {
            continue;
        };
        for task in entries.flatten() {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(
                children
                    .split_whitespace()
                    .filter_map(|pid| pid.parse().ok())
                    .filter_map(Pid::from_raw),
            );
        }
        if found.len() > MOST {
            break;
        }
    }
    found
}

/// Memory that a process shares with nobody but its parent at most, and its page tables, in bytes.
fn private_memory(pid: Pid) -> u64 {
    let proc = format!("{}/proc/{}", place::HOST, pid.as_raw_nonzero());
    let status = std::fs::read_to_string(format!("{proc}/status")).unwrap_or_default();
    ["RssAnon:", "RssShmem:", "VmPTE:", "VmSwap:"]
        .iter()
        .map(|name| kib_of(&status, name))
        .sum::<u64>()
        * 1024
}

/// A process' own memory and its share of what it has in common with others, in bytes. None if the kernel does not
/// tell (then the process counts in full).
fn proportional_memory(pid: Pid) -> Option<u64> {
    let proc = format!("{}/proc/{}", place::HOST, pid.as_raw_nonzero());
    let rollup = std::fs::read_to_string(format!("{proc}/smaps_rollup")).ok()?;
    let status = std::fs::read_to_string(format!("{proc}/status")).ok()?;
    let tables = kib_of(&status, "VmPTE:");
    let shares: u64 = ["Pss_Anon:", "Pss_Shmem:", "SwapPss:"]
        .iter()
        .map(|name| kib_of(&rollup, name))
        .sum();
    // A kernel that does not split the shares up says nothing that helps here.
    (kib_of(&rollup, "Pss_Anon:") > 0).then_some((shares + tables) * 1024)
}

/// What the sandbox's sockets may hold. Only their number is known, also of those that no process has open any more
/// because they are on the way to another one.
fn in_sockets(first: Pid) -> u64 {
    let path = format!("{}/proc/{}/net/sockstat", place::HOST, first.as_raw_nonzero());
    let (all, tcp) = sockets(&std::fs::read_to_string(path).unwrap_or_default());
    // One of TCP holds what it received as well as what it sends.
    (all.saturating_sub(FREE) + tcp.saturating_sub(FREE)) * SOCKET_BUFFER
}

fn sockets(text: &str) -> (u64, u64) {
    let number = |line: &str, word: &str| {
        let mut words = text
            .lines()
            .find_map(|found| found.strip_prefix(line))
            .unwrap_or("")
            .split_whitespace();
        words.find(|found| *found == word);
        words.next().and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    (number("sockets:", "used"), number("TCP:", "inuse"))
}

fn in_descriptors(processes: &[(Pid, u64)]) -> u64 {
    let open: u64 = processes.iter().map(|(pid, _)| descriptors(*pid)).sum();
    open.saturating_sub(FREE) * DESCRIPTOR
}

/// How many descriptors a process has open; the size of their folder since Linux 6.2.
fn descriptors(pid: Pid) -> u64 {
    let path = format!("{}/proc/{}/fd", place::HOST, pid.as_raw_nonzero());
    let told = std::fs::metadata(&path).map_or(0, |folder| folder.len());
    if told > 0 {
        return told;
    }
    let listed = std::fs::read_dir(path).map_or(0, |entries| entries.take(MOST).count());
    u64::try_from(listed).unwrap_or(u64::MAX)
}

fn kib_of(status: &str, name: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// The number of threads, and processor time of the process and its reaped children in clock ticks.
fn threads_and_ticks(pid: Pid) -> (u32, u64) {
    let stat =
        std::fs::read_to_string(format!("{}/proc/{}/stat", place::HOST, pid.as_raw_nonzero())).unwrap_or_default();
    let fields: Vec<u64> = stat
        .rsplit_once(')')
        .map(|(_, rest)| {
            rest.split_whitespace()
                .map(|field| field.parse().unwrap_or(0))
                .collect()
        })
        .unwrap_or_default();
    let ticks = fields.iter().skip(11).take(4).sum();
    let threads = fields.get(17).copied().unwrap_or(0);
    (u32::try_from(threads).unwrap_or(u32::MAX), ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_counted_whoever_has_them() {
        let text = "sockets: used 137\nTCP: inuse 12 orphan 0 tw 0 alloc 15 mem 0\nUDP: inuse 1 mem 0\n";
        assert_eq!(sockets(text), (137, 12));
        assert_eq!(sockets(""), (0, 0));
    }

    #[test]
    fn kernel_reports_are_read_by_name() {
        let status = "VmPeak:\t  900 kB\nRssAnon:\t     120 kB\nRssShmem:\t 8 kB\nVmPTE:\t 4 kB\n";
        assert_eq!(kib_of(status, "RssAnon:"), 120);
        assert_eq!(kib_of(status, "VmSwap:"), 0);
    }
}
