//! The watchdog: measures memory from outside. It kills processes below a cgroup's hard limit, and is the only limit
//! without cgroups.
//!
//! A session may keep a frozen snapshot process, which shares its memory until the session writes to it. The cost of a
//! snapshot alone must not get another process killed. So an expensive snapshot is killed first, once the sandbox uses
//! much of its limit. The cost of a cheap one is not counted. At most one process counts as a snapshot. Memory that it
//! shares is counted for the other process. So a program that takes a snapshot's name gains no more than the cost of a
//! cheap one.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::cgroup::Group;
use crate::plan::place;
use crate::wire::Usage;
use files::descriptors;

mod diag;
mod files;
mod held;
pub(crate) mod in_flight;
mod kernel;
mod locks;
mod lost;
mod mappings;
mod own_sockets;
mod sockets;

pub(crate) use lost::{ALARM_INTERVAL, Alarm};
pub use own_sockets::{Charged, OwnSockets};
pub use sockets::holds_sockets;
use sockets::{Scope, in_open_sockets, in_unaccepted, net};

/// The maximum number of processes per check.
const MOST: usize = 4096;

/// The maximum memory of a socket's buffer, in bytes: the kernel's default, which code inside cannot change.
pub(crate) const SOCKET_BUFFER: u64 = 212_992;

/// The maximum kernel memory of half a pipe or another open file. A user's pipes together may have up to 64 MiB in
/// larger buffers; beyond that the kernel gives each pipe two pages.
const DESCRIPTOR: u64 = 4096;

/// The process name of a session's snapshot.
const COPY: &str = "sandcell-copy";
/// A snapshot's cost is measured from this many tenths of the limit on.
const COPY_FROM: u64 = 7;
/// The divisor of the limit for the allowed cost of a snapshot from there on.
const COPY_PART: u64 = 20;

/// The number of sockets and descriptors of a sandbox that are not counted.
const FREE: u64 = 64;

/// The maximum wait for a killed process to free its memory before another one is killed.
const GIVING_BACK: Duration = Duration::from_millis(100);

/// The maximum allocation rate per core, in bytes a second: the best rate at which the kernel clears pages.
const RATE: u64 = 3 << 30;
/// The expected maximum at the next check, in hundredths of the limit. A quarter above the limit leaves room for the
/// time of the check, so that memory stays within half above it.
const REACH: u64 = 125;
/// The longest and the shortest interval between two checks.
pub(crate) const EVERY: Duration = Duration::from_millis(50);
/// The interval for an idle sandbox with a cgroup, whose hard limit holds without checks, and the number of idle checks
/// before it.
const SELDOM: Duration = Duration::from_millis(200);
const CALM_LOOKS: u32 = 20;
const SHORTEST: Duration = Duration::from_millis(4);
/// The size of most files of /proc and cgroups, in bytes.
const USUAL_FILE: usize = 4096;
/// The maximum number of walks through the tree while new processes appear, before the known ones are killed.
const ROUNDS: usize = 6;

/// The limits of a sandbox without a cgroup.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Memory, in bytes.
    pub(crate) memory: u64,
    /// The number of whole cores.
    pub(crate) cores: u64,
    /// The limit of processes and threads, if the kernel cannot count those of one sandbox.
    pub(crate) tasks: Option<u64>,
    /// True if the sandbox's sockets are those of its network namespace.
    pub(crate) own_network: bool,
    /// The number of the socket between the launcher and the worker's zygote. A worker holds it until it is locked.
    /// Descriptors in flight there are for other workers.
    pub(crate) channel: Option<u64>,
}

/// The roots of the process trees of a sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Roots {
    /// The first process, which becomes the parent of orphans.
    pub(crate) first: Pid,
    /// A worker, which came from outside.
    pub(crate) visitor: Option<Pid>,
}

impl Roots {
    fn descendants(self) -> Vec<Pid> {
        let mut found = descendants(self.first);
        found.extend(self.visitor.into_iter().flat_map(descendants));
        found
    }
}

/// The watchdog's state of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// The number of processes that the watchdog killed for memory.
    pub(crate) kills: u64,
    /// The number of times that all processes were killed because there were too many.
    pub(crate) crowds: u64,
    /// The number of kills for memory by the watchdog and by the kernel.
    pub(crate) events: u64,
    /// The most memory seen, in bytes.
    pub(crate) peak: u64,
    /// The time of the next check. None means at once.
    pub(crate) due: Option<Instant>,
    held: held::Held,
    locks: locks::Locks,
    mappings: mappings::Mappings,
    sockets: sockets::Sockets,
    /// The start of the wait for killed processes that free their memory.
    waited: Option<Instant>,
    /// The sandbox's processor time when its memory was last low, in microseconds.
    calm: Option<u64>,
    reclaim: kernel::Reclaim,
    /// The number of consecutive checks without activity.
    calm_looks: u32,
    /// The processor time of a sandbox with a cgroup at the last check, in microseconds.
    worked: u64,
    /// The cost of the snapshot at the last check, with a mark that changes when the cost may have changed.
    copy: Option<(Mark, u64)>,
}

/// Values that change when a program writes to memory that a snapshot shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    copy: Pid,
    used: u64,
    faults: u64,
}

/// One process in one check.
#[derive(Debug, Clone, Copy)]
struct Seen {
    pid: Pid,
    /// The thread whose folder in /proc describes it.
    living: Pid,
    bytes: u64,
    tasks: u64,
    /// True if it was stopped before the watchdog stopped it.
    stopped: bool,
    /// True if it is a session's snapshot.
    copy: bool,
    /// True if it was killed and is freeing its memory, which takes the kernel some time.
    dying: bool,
}

impl Record {
    /// Starts the account: the sandbox is not charged for memory that the machine lost before.
    pub(crate) fn begin(&mut self) {
        self.sockets.begin();
    }

    /// Checks a sandbox with a cgroup. The cgroup charges files and processes together, so this separates them. A
    /// subreaper is in the group, but does not belong to the sandbox.
    pub(crate) fn look_at_group(&mut self, group: &Group, first: Pid, guardian: Option<Pid>) {
        let worked = group.cpu_us();
        // A running sandbox has used some time. It is 0 if it cannot be read.
        if worked > 0 && self.calm == Some(worked) {
            // Nothing has run since its memory was low.
            self.calm_looks = self.calm_looks.saturating_add(1);
            group.rest();
            self.sockets.rest();
            let wait = if self.calm_looks > CALM_LOOKS { SELDOM } else { EVERY };
            self.due = Some(Instant::now() + wait);
            return;
        }
        self.calm_looks = 0;
        let began = Instant::now();
        let limit = group.memory_limit();
        let from = limit / 10 * COPY_FROM;
        let processes = || {
            let candidates = group.pids().into_iter();
            candidates.filter(|pid| *pid != first && Some(*pid) != guardian)
        };
        // With a subreaper there is no namespace, and no socket can be connected.
        let scope = match guardian {
            Some(_) => Scope::without_sockets(first, limit),
            None => Scope::of(first, limit),
        };
        let buffers = scope.counts.buffers();
        let charged = group.charged();
        let (used, doubtful) = if charged + buffers > from {
            let unaccepted = if buffers > 0 { in_unaccepted(first) } else { 0 };
            self.look_closer(group, first, unaccepted, worked, processes().collect())
        } else {
            group.widen();
            (0, charged)
        };
        let crowded = self.end_for_files(charged, || processes().collect());
        let pinned = self.look_at_sockets(group, scope, processes);
        let locks = if crowded {
            0
        } else {
            self.locks.bytes(worked, limit, || group.pids())
        };
        if locks > limit / COPY_PART && locks + group.process_memory() > limit {
            self.peak = self.peak.max(locks + group.process_memory());
            if let Some(pid) = processes().max_by_key(|pid| self.locks.of(*pid)) {
                self.end(pid);
            }
        }
        let little = used <= from && used + doubtful <= limit && locks == 0 && pinned == 0;
        self.calm = (little && !crowded).then_some(worked);
        let wait = self.pause_of_group(group, used + doubtful + pinned, worked, began.elapsed());
        self.due = Some(Instant::now() + wait.min(self.sockets.holds()));
    }

    /// Returns the socket memory that no cgroup charges. Kills all processes with sockets if it exceeds the limit.
    fn look_at_sockets<T: Iterator<Item = Pid>>(
        &mut self,
        group: &Group,
        scope: Scope,
        programs: impl Fn() -> T,
    ) -> u64 {
        let pinned = self
            .sockets
            .uncharged(scope, || group.process_memory(), || group.pids());
        if pinned == 0 {
            return 0;
        }
        let used = group.process_memory();
        self.peak = self.peak.max(used + pinned);
        if used + pinned > scope.limit {
            let _ended = self.end_holders(programs());
        }
        pinned
    }

    /// Kills all processes with sockets. The process that filled them is unknown, and killing one at a time would let
    /// the others continue.
    fn end_holders(&mut self, programs: impl Iterator<Item = Pid>) -> Vec<Pid> {
        let holders: Vec<Pid> = programs.filter(|pid| holds_sockets(*pid)).collect();
        for pid in &holders {
            self.end(*pid);
        }
        holders
    }

    /// Returns true if a killed process is still freeing memory. No other process is killed meanwhile. The wait is
    /// limited, and restarts after the next kill or once nobody is freeing memory.
    fn is_giving_back(&mut self, processes: &[Seen]) -> bool {
        if !processes.iter().any(|seen| seen.dying) {
            self.waited = None;
            return false;
        }
        self.waited.get_or_insert_with(Instant::now).elapsed() < GIVING_BACK
    }

    /// Does the last check of a sandbox with a cgroup, after its end and before the group is removed.
    pub(crate) fn last_look_at_group(&mut self, group: &Group) {
        self.events = self.kills + group.memory_events();
    }

    /// Checks a sandbox without a cgroup: its processes are the descendants of the first one, including orphans.
    pub(crate) fn look_at_tree(&mut self, roots: Roots, bounds: Bounds) {
        let began = Instant::now();
        let first = roots.first;
        let processes = one_copy(roots.descendants().into_iter().map(Seen::of).collect());
        if self.end_for_files_of(first, &processes) {
            return;
        }
        let outside = self.outside(first, &processes, bounds);
        let all = processes.iter().map(|seen| seen.bytes).sum::<u64>() + outside;
        let copies: u64 = processes.iter().filter(|seen| seen.copy).map(|seen| seen.bytes).sum();
        let mut total = all - copies;
        if all > bounds.memory / 10 * COPY_FROM {
            let cost = self.cost_of_copy(first, &processes, all, bounds.memory);
            // Only a snapshot whose memory is no longer shared costs this much and stays.
            if cost > bounds.memory / COPY_PART {
                total += cost;
            }
        }
        if total > bounds.memory {
            total = self.hold(roots, bounds);
        }
        self.peak = self.peak.max(total);
        self.count_tasks(roots, &processes, bounds);
        self.events = self.kills;
        let now = Instant::now();
        let wait = pause(total, bounds, now - began);
        self.due = Some(now + wait.min(self.held.holds()).min(self.sockets.holds()));
    }

    /// Returns memory that belongs to no process.
    fn outside(&mut self, first: Pid, processes: &[Seen], bounds: Bounds) -> u64 {
        let ticks: u64 = processes.iter().map(|seen| times(seen.pid).ticks).sum();
        // A clock tick is 10 ms.
        let used = ticks * 10_000;
        let living = || processes.iter().map(|seen| seen.living).collect::<Vec<_>>();
        let sockets = if bounds.own_network {
            let scope = Scope::of(first, bounds.memory);
            scope.counts.buffers() + self.sockets.bytes(scope, living)
        } else {
            processes.iter().map(|seen| in_open_sockets(seen.living)).sum()
        };
        let outside = sockets + files::in_descriptors(processes) + self.held.bytes(used, processes, bounds);
        if outside > bounds.memory {
            // This is enough to act, and growth must be stopped before more is counted.
            return outside;
        }
        let pids = || processes.iter().map(|seen| seen.pid).collect::<Vec<_>>();
        let mapped = self.mappings.bytes(used, bounds.memory, living);
        if mapped > bounds.memory {
            // A closer look at these would take longer than creating them.
            for pid in self.mappings.take() {
                self.end(pid);
            }
            self.peak = self.peak.max(mapped);
            return outside;
        }
        outside + mapped + self.locks.bytes(used, bounds.memory, pids)
    }

    /// Handles a sandbox above its limit by the quick count. Stops all processes, so that nothing grows. Counts
    /// exactly, kills the largest processes until the rest fits, and continues the others. Returns the exact count.
    fn hold(&mut self, roots: Roots, bounds: Bounds) -> u64 {
        let first = roots.first;
        let processes = one_copy(freeze(roots));
        let outside = self.outside(first, &processes, bounds);
        let (outside, pinned) = self.with_sockets(first, &processes, outside, bounds);
        // The quick count includes shared memory of forked processes for each of them. The exact count is expensive, so
        // it happens only now.
        let share = |seen: &Seen| proportional_memory(seen.living).unwrap_or(seen.bytes);
        let uncounted = self
            .cost_of_copy(first, &processes, outside, bounds.memory)
            .min(bounds.memory / COPY_PART);
        let total = (processes.iter().map(share).sum::<u64>() + outside).saturating_sub(uncounted);
        let mut ended = Vec::new();
        if total > bounds.memory && pinned > 0 {
            let others = processes
                .iter()
                .filter(|seen| seen.pid != first)
                .copied()
                .collect::<Vec<_>>();
            ended = self.end_holders(programs(&others).iter().map(|seen| seen.living));
        }
        let left = if ended.is_empty() {
            total
        } else {
            total.saturating_sub(pinned)
        };
        ended.extend(self.end_largest(first, &processes, left, bounds));
        for seen in processes
            .iter()
            .filter(|seen| !seen.stopped && !ended.contains(&seen.pid))
        {
            let _ = kill_process(seen.pid, Signal::CONT);
        }
        total
    }

    /// Returns memory outside processes with an exact count of socket memory, and the socket memory alone.
    fn with_sockets(&mut self, first: Pid, processes: &[Seen], outside: u64, bounds: Bounds) -> (u64, u64) {
        let before = self.sockets.kept();
        if before == 0 {
            return (outside, 0);
        }
        let living = || processes.iter().map(|seen| seen.living).collect();
        let pinned = self.sockets.bytes_now(Scope::of(first, bounds.memory), living);
        (outside.saturating_sub(before) + pinned, pinned)
    }

    /// Kills the largest processes until the rest fits. Spares the first process and, while there are other processes,
    /// a snapshot.
    fn end_largest(&mut self, first: Pid, processes: &[Seen], total: u64, bounds: Bounds) -> Vec<Pid> {
        // Memory of sockets and pipes is attributed to the process with the most descriptors.
        let weight = |seen: &Seen| {
            let own = proportional_memory(seen.living).unwrap_or(seen.bytes);
            let locks = self.locks.of(seen.pid);
            let mapped = self.mappings.of(seen.living);
            own + locks + mapped + descriptors(seen.living) * (DESCRIPTOR + SOCKET_BUFFER)
        };
        let others: Vec<Seen> = processes.iter().filter(|seen| seen.pid != first).copied().collect();
        let mut candidates: Vec<(u64, Pid)> = programs(&others).iter().map(|seen| (weight(seen), seen.pid)).collect();
        candidates.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
        let (mut left, mut ended) = (total, Vec::new());
        for (weight, pid) in candidates {
            if left <= bounds.memory {
                break;
            }
            self.end(pid);
            ended.push(pid);
            left = left.saturating_sub(weight);
        }
        ended
    }

    /// Kills an expensive snapshot, which does not count as a kill for memory. Otherwise returns its cost.
    fn cost_of_copy(&mut self, first: Pid, processes: &[Seen], used: u64, limit: u64) -> u64 {
        let Some(copy) = processes.iter().find(|seen| seen.copy).map(|seen| seen.pid) else {
            return 0;
        };
        let programs = processes.iter().filter(|seen| !seen.copy);
        let mark = Mark {
            copy,
            used,
            faults: programs.map(|seen| times(seen.pid).faults).sum(),
        };
        if let Some((at, cost)) = self.copy
            && at == mark
        {
            return cost;
        }
        let mut cost = own_memory(copy);
        // A session that just died leaves all shared memory to its snapshot, which is about to replace it.
        let needed = || {
            let mut others = processes.iter().filter(|seen| !seen.copy && seen.pid != first);
            !others.any(|seen| Seen::of(seen.pid).bytes > 0)
        };
        if cost > limit / COPY_PART && !needed() {
            let _gone = kill_process(copy, Signal::KILL);
            cost = 0;
        }
        self.copy = Some((mark, cost));
        cost
    }

    /// Limits the number of processes if only the watchdog counts them. A small excess may come from ended processes
    /// and is tolerated; otherwise all are killed.
    fn count_tasks(&mut self, roots: Roots, processes: &[Seen], bounds: Bounds) {
        let tasks: u64 = processes.iter().map(|seen| seen.tasks).sum();
        if bounds.tasks.is_some_and(|most| tasks > most + most / 4 + 1) {
            for seen in freeze(roots) {
                if seen.pid == roots.first {
                    let _ = kill_process(seen.pid, Signal::CONT);
                } else {
                    let _ = kill_process(seen.pid, Signal::KILL);
                }
            }
            self.crowds += 1;
        }
    }

    fn end(&mut self, pid: Pid) {
        self.locks.forget();
        self.mappings.forget(pid);
        self.held.forget();
        self.sockets.forget();
        self.waited = None;
        if kill_process(pid, Signal::KILL).is_ok() {
            self.kills += 1;
        }
    }
}

/// Returns the time until the next check: before the memory can have grown to [`REACH`], but not continuously if a
/// check is expensive.
fn pause(total: u64, bounds: Bounds, took: Duration) -> Duration {
    let room = (bounds.memory / 100 * REACH).saturating_sub(total);
    let time = Duration::from_micros(room / (RATE / 1_000_000).saturating_mul(bounds.cores.max(1)).max(1));
    // Near the limit, checks may use half of a core.
    let rest = if room < bounds.memory / 2 { took } else { took * 3 };
    time.clamp(SHORTEST, EVERY).max(rest.min(EVERY))
}

/// Only the first process with a snapshot's name counts as one.
fn one_copy(mut processes: Vec<Seen>) -> Vec<Seen> {
    processes
        .iter_mut()
        .filter(|seen| seen.copy)
        .skip(1)
        .for_each(|seen| seen.copy = false);
    processes
}

/// Returns the processes that may be killed for memory: not a snapshot, unless there is no other process.
fn programs(processes: &[Seen]) -> Vec<Seen> {
    let only_copies = processes.iter().all(|seen| seen.copy);
    let mut programs = processes.to_vec();
    programs.retain(|seen| only_copies || !seen.copy);
    programs
}

/// Stops a sandbox's processes, including the first one, until a walk finds no new one.
fn freeze(roots: Roots) -> Vec<Seen> {
    let mut known: BTreeMap<i32, bool> = BTreeMap::new();
    for _ in 0..ROUNDS {
        let mut news = false;
        for pid in roots.descendants() {
            known.entry(pid.as_raw_nonzero().get()).or_insert_with(|| {
                let stopped = is_stopped(pid);
                let _ = kill_process(pid, Signal::STOP);
                news = true;
                stopped
            });
        }
        if !news {
            break;
        }
    }
    let pids = known.into_iter();
    pids.filter_map(|(pid, stopped)| Some((Pid::from_raw(pid)?, stopped)))
        .map(|(pid, stopped)| Seen {
            stopped,
            ..Seen::of(pid)
        })
        .collect()
}

fn is_stopped(pid: Pid) -> bool {
    let stat = small_file(&format!("{}/proc/{}/stat", place::host(), pid.as_raw_nonzero()));
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|rest| rest.starts_with(['T', 't']))
}

impl Seen {
    fn of(pid: Pid) -> Self {
        let (living, status) = status_of(pid);
        Self {
            pid,
            living,
            bytes: private_memory_in(&status),
            tasks: number_of(&status, "Threads:"),
            stopped: false,
            dying: !status.is_empty() && !status.contains("\nVmRSS:") && !has_ended(&status),
            copy: status
                .lines()
                .next()
                .and_then(|line| line.strip_prefix("Name:"))
                .is_some_and(|name| name.trim() == COPY),
        }
    }
}

/// Returns the usage of a sandbox without a cgroup.
pub(crate) fn usage(first: u32, visitor: Option<Pid>) -> Usage {
    let Some(first) = i32::try_from(first).ok().and_then(Pid::from_raw) else {
        return Usage::default();
    };
    let mut usage = Usage::default();
    for seen in one_copy(
        Roots { first, visitor }
            .descendants()
            .into_iter()
            .map(Seen::of)
            .collect(),
    ) {
        usage.memory += if seen.copy { own_memory(seen.living) } else { seen.bytes };
        let times = times(seen.pid);
        usage.processes += times.threads;
        // A clock tick is 10 ms on every architecture that is supported.
        usage.cpu_us += times.ticks * 10_000;
    }
    usage.memory_peak = usage.memory;
    usage
}

/// Returns a process and all its descendants. In a PID namespace orphans descend from the first process.
pub(crate) fn descendants(first: Pid) -> Vec<Pid> {
    let mut found = vec![first];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        next += 1;
        found.extend(children(pid));
        if found.len() > MOST {
            break;
        }
    }
    found
}

/// Returns the children of all threads of a process.
pub(crate) fn children(pid: Pid) -> Vec<Pid> {
    let number = pid.as_raw_nonzero();
    let tasks = format!("{}/proc/{number}/task", place::host());
    let of = |text: String| {
        let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
        pids.filter_map(Pid::from_raw).collect::<Vec<_>>()
    };
    // The link count is two more than the number of threads. Most processes have one thread.
    if rustix::fs::stat(tasks.as_str()).is_ok_and(|found| found.st_nlink == 3) {
        return of(small_file(&format!("{tasks}/{number}/children")));
    }
    let mut found = Vec::new();
    for task in std::fs::read_dir(tasks).into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(of(children));
    }
    found
}

/// Returns the kernel's status of a process, and the thread it is from: another thread if the first has ended and
/// others live.
fn status_of(pid: Pid) -> (Pid, String) {
    let of = |pid: Pid| small_file(&format!("{}/proc/{}/status", place::host(), pid.as_raw_nonzero()));
    let status = of(pid);
    if !has_ended(&status) || number_of(&status, "Threads:") < 2 {
        return (pid, status);
    }
    let tasks = std::fs::read_dir(format!("{}/proc/{}/task", place::host(), pid.as_raw_nonzero()));
    let others = tasks.into_iter().flatten().flatten().filter_map(|task| {
        let other = Pid::from_raw(task.file_name().to_str()?.parse().ok()?)?;
        Some((other, of(other)))
    });
    let mut living = others.filter(|(_, status)| !has_ended(status));
    living.next().unwrap_or((pid, status))
}

fn has_ended(status: &str) -> bool {
    status.contains("\nState:\tZ") || status.contains("\nState:\tX")
}

/// Reads a file of the kernel, which is usually short. Asking for its size first, as the standard library does, would
/// cost as much as reading it, and a check of many processes must be fast. Empty if it cannot be read.
pub(crate) fn small_file(path: &str) -> String {
    let Ok(file) = std::fs::File::open(path) else {
        return String::new();
    };
    let mut text = Vec::with_capacity(USUAL_FILE);
    // Longer content needs further reads, each of which may return less than the buffer's size.
    if file.take(u64::MAX).read_to_end(&mut text).is_err() {
        return String::new();
    }
    String::from_utf8(text).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Returns the size of a process's page tables, in bytes.
fn tables_of(pid: Pid) -> u64 {
    number_of(&status_of(pid).1, "VmPTE:") * 1024
}

fn private_memory_in(status: &str) -> u64 {
    ["RssAnon:", "RssShmem:", "VmPTE:", "VmSwap:"]
        .iter()
        .map(|name| number_of(status, name))
        .sum::<u64>()
        * 1024
}

/// Returns the memory that would be freed by the process's end, in bytes. Expensive.
fn own_memory(pid: Pid) -> u64 {
    let rollup = std::fs::read_to_string(format!("{}/proc/{}/smaps_rollup", place::host(), pid.as_raw_nonzero()))
        .unwrap_or_default();
    (number_of(&rollup, "Private_Clean:") + number_of(&rollup, "Private_Dirty:")) * 1024
}

/// Returns a process's private memory and its share of shared memory, in bytes. None if the kernel does not report it;
/// the process then counts in full.
fn proportional_memory(pid: Pid) -> Option<u64> {
    let proc = format!("{}/proc/{}", place::host(), pid.as_raw_nonzero());
    let rollup = std::fs::read_to_string(format!("{proc}/smaps_rollup")).ok()?;
    let status = std::fs::read_to_string(format!("{proc}/status")).ok()?;
    let tables = number_of(&status, "VmPTE:");
    let shares: u64 = ["Pss_Anon:", "Pss_Shmem:", "SwapPss:"]
        .iter()
        .map(|name| number_of(&rollup, name))
        .sum();
    // A kernel that does not split the shares by type is of no help here.
    (number_of(&rollup, "Pss_Anon:") > 0).then_some((shares + tables) * 1024)
}

/// Returns the number in a line such as `VmPTE:  4 kB`.
fn number_of(status: &str, name: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// The usage of a process so far.
struct Times {
    threads: u32,
    /// Its processor time and that of its reaped children, in clock ticks.
    ticks: u64,
    /// The number of page faults on new or shared memory.
    faults: u64,
}

fn times(pid: Pid) -> Times {
    let stat = small_file(&format!("{}/proc/{}/stat", place::host(), pid.as_raw_nonzero()));
    let fields: Vec<u64> = stat
        .rsplit_once(')')
        .map(|(_, rest)| {
            rest.split_whitespace()
                .map(|field| field.parse().unwrap_or(0))
                .collect()
        })
        .unwrap_or_default();
    let field = |index: usize| fields.get(index).copied().unwrap_or(0);
    Times {
        threads: u32::try_from(field(17)).unwrap_or(u32::MAX),
        ticks: fields.iter().skip(11).take(4).sum(),
        faults: field(7),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_copy_at_most_is_only_ended_for_memory_when_nobody_else_is_there() {
        let seen = |pid, copy| Seen {
            pid: Pid::from_raw(pid).unwrap(),
            living: Pid::from_raw(pid).unwrap(),
            bytes: 100,
            tasks: 1,
            stopped: false,
            copy,
            dying: false,
        };
        let pids = |processes: Vec<Seen>| -> Vec<i32> {
            let processes = one_copy(processes);
            programs(&processes).iter().map(|seen| seen.pid.as_raw_pid()).collect()
        };
        assert_eq!(pids(vec![seen(5, false), seen(6, true), seen(7, false)]), [5, 7]);
        assert_eq!(pids(vec![seen(6, true)]), [6]);
        assert_eq!(pids(vec![seen(6, true), seen(7, true)]), [7]);
    }

    #[test]
    fn the_nearer_the_limit_the_sooner_the_next_look() {
        let bounds = Bounds {
            memory: 128 << 20,
            cores: 1,
            tasks: None,
            own_network: true,
            channel: None,
        };
        let none = Duration::ZERO;
        let pauses: Vec<Duration> = [0, 64 << 20, 128 << 20, 512 << 20]
            .map(|total| pause(total, bounds, none))
            .to_vec();
        assert!(pauses.windows(2).all(|pair| pair[1] <= pair[0]), "{pauses:?}");
        assert!(pauses[2] < Duration::from_millis(15), "{pauses:?}");
        assert_eq!(pauses[3], SHORTEST);
        // An expensive check is not repeated continuously.
        assert!(pause(512 << 20, bounds, Duration::from_millis(10)) >= Duration::from_millis(10));
        assert!(pause(0, bounds, Duration::from_millis(10)) >= Duration::from_millis(30));
    }

    #[test]
    fn kernel_reports_are_read_by_name() {
        let status = "VmPeak:\t  900 kB\nRssAnon:\t     120 kB\nRssShmem:\t 8 kB\nVmPTE:\t 4 kB\n";
        assert_eq!(number_of(status, "RssAnon:"), 120);
        assert_eq!(number_of(status, "VmSwap:"), 0);
    }
}
