//! The watchdog: measures memory from outside. It kills processes below a cgroup's hard limit, and is the only limit
//! without cgroups.
//!
//! A session may keep a frozen snapshot process, which shares its memory until the session writes to it. The cost of a
//! snapshot alone must not get another process killed. So an expensive snapshot is killed first, once the sandbox uses
//! much of its limit. The cost of a cheap one is not counted. Only the newest process counts as a snapshot. Memory that
//! it shares is counted for the other process. So a program that takes a snapshot's name gains no more than the cost of a
//! cheap one. After its session has ended, a snapshot counts as an ordinary process, because it replaces the session.
//!
//! Older snapshots are automatic checkpoints. They are killed first, as soon as the sandbox uses much of its limit.
//! Checkpoints that a caller named count as programs: with their share of shared memory, so that the session is not
//! counted again for each of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::cgroup::Group;
use crate::paths;
use crate::plan::SOCKET_BUFFER_BYTES;
use crate::wire::Usage;
use files::descriptors;

mod descriptors;
mod diag;
mod files;
pub(crate) mod in_flight;
mod kernel;
mod locks;
mod lost;
mod mappings;
mod own_sockets;
mod process;
mod sockets;

pub(crate) use lost::{ALARM_INTERVAL, Alarm};
pub use own_sockets::{Charged, OwnSockets};
pub use process::SNAPSHOT_PROCESS_NAME;
use process::{
    ProcessSample, exact_memory, is_snapshot, is_stopped, number_of, own_memory, status_of, tables_of, times,
};
pub(crate) use process::{children, descendants};
pub use sockets::holds_sockets;
use sockets::{Scope, net_file, open_socket_bytes, unaccepted_bytes};

/// The maximum number of processes per check.
const MAX_PROCESSES: usize = 4096;

/// The maximum kernel memory of half a pipe or another open file. A user's pipes together may have up to 64 MiB in
/// larger buffers; beyond that the kernel gives each pipe two pages.
const DESCRIPTOR_BYTES: u64 = 4096;

/// A snapshot's cost is measured from this many tenths of the limit on.
const SNAPSHOT_CHECK_TENTHS: u64 = 7;
/// The divisor of the limit for the allowed cost of a snapshot from there on.
const SNAPSHOT_COST_DIVISOR: u64 = 20;

/// The number of sockets and descriptors of a sandbox that are not counted.
const FREE_DESCRIPTORS: u64 = 64;

/// The maximum wait for a killed process to free its memory before another one is killed.
const MEMORY_RELEASE_TIMEOUT: Duration = Duration::from_millis(100);

/// The maximum allocation rate per core, in bytes a second: the best rate at which the kernel clears pages.
const ALLOCATION_BYTES_PER_SECOND: u64 = 3 << 30;
/// The expected maximum at the next check, in hundredths of the limit. A quarter above the limit leaves room for the
/// time of the check, so that memory stays within half above it.
const REACH_PERCENT: u64 = 125;
/// The longest and the shortest interval between two checks.
pub(crate) const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The interval for an idle sandbox with a cgroup, whose hard limit holds without checks, and the number of idle checks
/// before it.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(200);
const IDLE_CHECKS: u32 = 20;
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(4);
/// The maximum number of walks through the tree while new processes appear, before the known ones are killed.
const MAX_FREEZE_ROUNDS: usize = 6;

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
pub(crate) struct ProcessRoots {
    /// The first process, which becomes the parent of orphans.
    pub(crate) first: Pid,
    /// A worker, which came from outside.
    pub(crate) worker: Option<Pid>,
}

impl ProcessRoots {
    fn descendants(self) -> Vec<Pid> {
        let mut found = descendants(self.first);
        found.extend(self.worker.into_iter().flat_map(descendants));
        found
    }
}

/// The watchdog's state of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct WatchRecord {
    /// The number of processes that the watchdog killed for memory.
    pub(crate) kills: u64,
    /// The number of times that all processes were killed because there were too many.
    pub(crate) task_kills: u64,
    /// The number of kills for memory by the watchdog and by the kernel.
    pub(crate) events: u64,
    /// The most memory seen, in bytes.
    pub(crate) peak: u64,
    /// The time of the next check. None means at once.
    pub(crate) due: Option<Instant>,
    descriptors: descriptors::DescriptorState,
    locks: locks::Locks,
    mappings: mappings::Mappings,
    sockets: sockets::Sockets,
    /// The start of the wait for killed processes that free their memory.
    release_since: Option<Instant>,
    /// The sandbox's processor time when its memory was last low, in microseconds.
    idle_cpu_us: Option<u64>,
    reclaim: kernel::Reclaim,
    /// The number of consecutive checks without activity.
    idle_checks: u32,
    /// The processor time of a sandbox with a cgroup at the last check, in microseconds.
    cpu_us: u64,
    /// The cost of the snapshot at the last check, with a mark that changes when the cost may have changed.
    snapshot: Option<(SnapshotMark, u64)>,
    /// The shares of the frozen copies at the last check, in bytes, with the same kind of mark.
    copies: Option<(CopiesMark, Vec<u64>)>,
}

/// Values that change when the shares of frozen copies may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CopiesMark {
    all: Vec<Pid>,
    faults: u64,
}

/// Values that change when a program writes to memory that a snapshot shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SnapshotMark {
    snapshot: Pid,
    used: u64,
    faults: u64,
}

impl WatchRecord {
    /// Starts the account: the sandbox is not charged for memory that the machine lost before.
    pub(crate) fn begin(&mut self) {
        self.sockets.begin();
    }

    /// Checks a sandbox with a cgroup. The cgroup charges files and processes together, so this separates them. A
    /// subreaper is in the group, but does not belong to the sandbox. `keeps_counter` is true if an idle sandbox may keep
    /// its counter of processor time open: to open it takes five times as long as to read it.
    pub(crate) fn check_group(&mut self, group: &Group, first: Pid, guardian: Option<Pid>, keeps_counter: bool) {
        let cpu_us = group.cpu_us();
        // A running sandbox has used some time. It is 0 if it cannot be read.
        if cpu_us > 0 && self.idle_cpu_us == Some(cpu_us) {
            // Nothing has run since its memory was low.
            self.idle_checks = self.idle_checks.saturating_add(1);
            if !keeps_counter {
                group.mark_idle();
            }
            self.sockets.mark_idle();
            let wait = if self.idle_checks > IDLE_CHECKS {
                IDLE_CHECK_INTERVAL
            } else {
                MAX_CHECK_INTERVAL
            };
            self.due = Some(Instant::now() + wait);
            return;
        }
        self.idle_checks = 0;
        let began = Instant::now();
        let limit = group.memory_limit();
        let from = limit / 10 * SNAPSHOT_CHECK_TENTHS;
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
            let unaccepted = if buffers > 0 { unaccepted_bytes(first) } else { 0 };
            self.separate_memory(group, unaccepted, cpu_us, processes().collect())
        } else {
            group.restore_hard_limit();
            (0, charged)
        };
        let crowded = self.kill_for_files(charged, || processes().collect());
        let in_sockets = self.check_sockets(group, scope, processes);
        let locks = if crowded {
            0
        } else {
            self.locks.bytes(cpu_us, limit, || group.pids())
        };
        if locks > limit / SNAPSHOT_COST_DIVISOR && locks + group.process_memory() > limit {
            self.peak = self.peak.max(locks + group.process_memory());
            if let Some(pid) = processes().max_by_key(|pid| self.locks.of(*pid)) {
                self.kill(pid);
            }
        }
        let little = used <= from && used + doubtful <= limit && locks == 0 && in_sockets == 0;
        self.idle_cpu_us = (little && !crowded).then_some(cpu_us);
        let wait = self.group_interval(group, used + doubtful + in_sockets, cpu_us, began.elapsed());
        self.due = Some(Instant::now() + wait.min(self.sockets.valid_for()));
    }

    /// Returns the socket memory that no cgroup charges. Kills all processes with sockets if it exceeds the limit.
    fn check_sockets<T: Iterator<Item = Pid>>(&mut self, group: &Group, scope: Scope, programs: impl Fn() -> T) -> u64 {
        let in_sockets = self
            .sockets
            .uncharged(scope, || group.process_memory(), || group.pids());
        if in_sockets == 0 {
            return 0;
        }
        let used = group.process_memory();
        self.peak = self.peak.max(used + in_sockets);
        if used + in_sockets > scope.limit {
            let _ended = self.kill_socket_holders(programs());
        }
        in_sockets
    }

    /// Kills all processes with sockets. The process that filled them is unknown, and killing one at a time would let
    /// the others continue.
    fn kill_socket_holders(&mut self, programs: impl Iterator<Item = Pid>) -> Vec<Pid> {
        let holders: Vec<Pid> = programs.filter(|pid| holds_sockets(*pid)).collect();
        for pid in &holders {
            self.kill(*pid);
        }
        holders
    }

    /// Returns true if a killed process is still freeing memory. No other process is killed meanwhile. The wait is
    /// limited, and restarts after the next kill or once no process is freeing memory.
    fn is_freeing_memory(&mut self, processes: &[ProcessSample]) -> bool {
        if !processes.iter().any(|sample| sample.dying) {
            self.release_since = None;
            return false;
        }
        self.release_since.get_or_insert_with(Instant::now).elapsed() < MEMORY_RELEASE_TIMEOUT
    }

    /// Does the last check of a sandbox with a cgroup, after its end and before the group is removed.
    pub(crate) fn last_check_of_group(&mut self, group: &Group) {
        self.events = self.kills + group.memory_events();
    }

    /// Checks a sandbox without a cgroup: its processes are the descendants of the first one, including orphans.
    pub(crate) fn check_tree(&mut self, roots: ProcessRoots, bounds: Bounds) {
        let began = Instant::now();
        let first = roots.first;
        let mut processes = single_snapshot(roots.descendants().into_iter().map(ProcessSample::of).collect());
        if self.kill_for_files_of(first, &processes) {
            return;
        }
        self.share_copies(&mut processes);
        let outside = self.outside(first, &processes, bounds);
        let mut all = processes.iter().map(|sample| sample.bytes).sum::<u64>() + outside;
        let much = all > bounds.memory / 10 * SNAPSHOT_CHECK_TENTHS;
        if much {
            all -= kill_outdated(&mut processes);
        }
        let snapshots: u64 = processes
            .iter()
            .filter(|sample| sample.snapshot)
            .map(|sample| sample.bytes)
            .sum();
        let mut total = all - snapshots;
        if much {
            let cost = self.snapshot_cost(&processes, all, bounds.memory);
            // Only a snapshot whose memory is no longer shared costs this much and stays.
            if cost > bounds.memory / SNAPSHOT_COST_DIVISOR {
                total += cost;
            }
        }
        if total > bounds.memory {
            total = self.enforce(roots, bounds);
        } else {
            self.release_since = None;
        }
        self.peak = self.peak.max(total);
        self.count_tasks(roots, &processes, bounds);
        self.events = self.kills;
        let now = Instant::now();
        let wait = check_interval(total, bounds, now - began);
        self.due = Some(now + wait.min(self.descriptors.valid_for()).min(self.sockets.valid_for()));
    }

    /// Returns memory that belongs to no process.
    fn outside(&mut self, first: Pid, processes: &[ProcessSample], bounds: Bounds) -> u64 {
        let ticks: u64 = processes.iter().map(|sample| times(sample.pid).ticks).sum();
        // A clock tick is 10 ms.
        let used = ticks * 10_000;
        let living = || processes.iter().map(|sample| sample.living).collect::<Vec<_>>();
        let sockets = if bounds.own_network {
            let scope = Scope::of(first, bounds.memory);
            scope.counts.buffers() + self.sockets.bytes(scope, living)
        } else {
            processes.iter().map(|sample| open_socket_bytes(sample.living)).sum()
        };
        let outside = sockets + files::descriptor_bytes(processes) + self.descriptors.bytes(used, processes, bounds);
        if outside > bounds.memory {
            // This is enough to act, and growth must be stopped before more is counted.
            return outside;
        }
        let pids = || processes.iter().map(|sample| sample.pid).collect::<Vec<_>>();
        let mapped = self.mappings.bytes(used, bounds.memory, living);
        if mapped > bounds.memory {
            // A closer look at these would take longer than creating them.
            for pid in self.mappings.take() {
                self.kill(pid);
            }
            self.peak = self.peak.max(mapped);
            return outside;
        }
        outside + mapped + self.locks.bytes(used, bounds.memory, pids)
    }

    /// Handles a sandbox above its limit by the quick count. Stops all processes, so that nothing grows. Counts
    /// exactly, kills the largest processes until the rest fits, and continues the others. Returns the exact count.
    fn enforce(&mut self, roots: ProcessRoots, bounds: Bounds) -> u64 {
        let first = roots.first;
        let processes = single_snapshot(freeze(roots));
        let outside = self.outside(first, &processes, bounds);
        let (outside, in_sockets) = self.with_sockets(first, &processes, outside, bounds);
        // The quick count includes shared memory of forked processes for each of them. The exact count is expensive, so
        // it happens only now.
        // The kernel is about to free the memory of killed processes. When a session is killed, its other processes are
        // killed, too. Their memory must not cause the kill of the session that replaces it.
        let freeing = self.is_freeing_memory(&processes);
        let share = |sample: &ProcessSample| {
            if freeing && sample.dying {
                0
            } else {
                exact_memory(sample)
            }
        };
        let uncounted = self
            .snapshot_cost(&processes, outside, bounds.memory)
            .min(bounds.memory / SNAPSHOT_COST_DIVISOR);
        let total = (processes.iter().map(share).sum::<u64>() + outside).saturating_sub(uncounted);
        let mut killed = Vec::new();
        if total > bounds.memory && in_sockets > 0 {
            let others = processes
                .iter()
                .filter(|sample| sample.pid != first)
                .copied()
                .collect::<Vec<_>>();
            killed = self.kill_socket_holders(programs(&others).iter().map(|sample| sample.living));
        }
        let left = if killed.is_empty() {
            total
        } else {
            total.saturating_sub(in_sockets)
        };
        killed.extend(self.kill_largest(first, &processes, left, bounds));
        for sample in processes
            .iter()
            .filter(|sample| !sample.stopped && !killed.contains(&sample.pid))
        {
            let _ = kill_process(sample.pid, Signal::CONT);
        }
        total
    }

    /// Returns memory outside processes with an exact count of socket memory, and the socket memory alone.
    fn with_sockets(&mut self, first: Pid, processes: &[ProcessSample], outside: u64, bounds: Bounds) -> (u64, u64) {
        let before = self.sockets.last_answer();
        if before == 0 {
            return (outside, 0);
        }
        let living = || processes.iter().map(|sample| sample.living).collect();
        let in_sockets = self.sockets.bytes_now(Scope::of(first, bounds.memory), living);
        (outside.saturating_sub(before) + in_sockets, in_sockets)
    }

    /// Kills the largest processes until the rest fits. Spares the first process and, while there are other processes,
    /// a snapshot.
    fn kill_largest(&mut self, first: Pid, processes: &[ProcessSample], total: u64, bounds: Bounds) -> Vec<Pid> {
        // Memory of sockets and pipes is attributed to the process with the most descriptors.
        let weight = |sample: &ProcessSample| {
            let own = exact_memory(sample);
            let locks = self.locks.of(sample.pid);
            let mapped = self.mappings.of(sample.living);
            own + locks + mapped + descriptors(sample.living) * (DESCRIPTOR_BYTES + SOCKET_BUFFER_BYTES)
        };
        let others: Vec<ProcessSample> = processes
            .iter()
            .filter(|sample| sample.pid != first && !sample.dying)
            .copied()
            .collect();
        let mut candidates: Vec<(u64, Pid)> = programs(&others)
            .iter()
            .map(|sample| (weight(sample), sample.pid))
            .collect();
        candidates.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
        let (mut left, mut killed) = (total, Vec::new());
        for (weight, pid) in candidates {
            if left <= bounds.memory {
                break;
            }
            self.kill(pid);
            killed.push(pid);
            left = left.saturating_sub(weight);
        }
        killed
    }

    /// Counts frozen copies with their share of shared memory. The session that they share it with is counted in full.
    fn share_copies(&mut self, processes: &mut [ProcessSample]) {
        if !processes.iter().any(|sample| sample.copy) {
            return;
        }
        let mark = CopiesMark {
            all: processes.iter().map(|sample| sample.pid).collect(),
            faults: processes.iter().map(|sample| times(sample.pid).faults).sum(),
        };
        let copies = processes.iter_mut().filter(|sample| sample.copy);
        match &self.copies {
            Some((at, shares)) if *at == mark => {
                for (sample, share) in copies.zip(shares) {
                    sample.bytes = *share;
                }
            }
            _ => {
                let shares = copies.map(|sample| {
                    sample.bytes = exact_memory(sample);
                    sample.bytes
                });
                self.copies = Some((mark, shares.collect()));
            }
        }
    }

    /// Kills an expensive snapshot, which does not count as a kill for memory. Otherwise returns its cost.
    fn snapshot_cost(&mut self, processes: &[ProcessSample], used: u64, limit: u64) -> u64 {
        let Some(snapshot) = processes.iter().find(|sample| sample.snapshot).map(|sample| sample.pid) else {
            return 0;
        };
        let programs = processes.iter().filter(|sample| !sample.snapshot);
        let mark = SnapshotMark {
            snapshot,
            used,
            faults: programs.map(|sample| times(sample.pid).faults).sum(),
        };
        if let Some((at, cost)) = self.snapshot
            && at == mark
        {
            return cost;
        }
        let mut cost = own_memory(snapshot);
        // The session may have ended since the snapshot was found.
        if cost > limit / SNAPSHOT_COST_DIVISOR && is_snapshot(snapshot, &status_of(snapshot).1) {
            let _gone = kill_process(snapshot, Signal::KILL);
            cost = 0;
        }
        self.snapshot = Some((mark, cost));
        cost
    }

    /// Limits the number of processes if only the watchdog counts them. A small excess may come from ended processes
    /// and is tolerated; otherwise all are killed.
    fn count_tasks(&mut self, roots: ProcessRoots, processes: &[ProcessSample], bounds: Bounds) {
        let tasks: u64 = processes.iter().map(|sample| sample.tasks).sum();
        if bounds.tasks.is_some_and(|most| tasks > most + most / 4 + 1) {
            for sample in freeze(roots) {
                if sample.pid == roots.first {
                    let _ = kill_process(sample.pid, Signal::CONT);
                } else {
                    let _ = kill_process(sample.pid, Signal::KILL);
                }
            }
            self.task_kills += 1;
        }
    }

    fn kill(&mut self, pid: Pid) {
        self.locks.discard();
        self.mappings.discard(pid);
        self.descriptors.discard();
        self.sockets.discard();
        self.release_since = None;
        if kill_process(pid, Signal::KILL).is_ok() {
            self.kills += 1;
        }
    }
}

/// Returns the time until the next check: before the memory can have grown to [`REACH_PERCENT`], but not continuously
/// if a check is expensive.
fn check_interval(total: u64, bounds: Bounds, took: Duration) -> Duration {
    let room = (bounds.memory / 100 * REACH_PERCENT).saturating_sub(total);
    let time = Duration::from_micros(
        room / (ALLOCATION_BYTES_PER_SECOND / 1_000_000)
            .saturating_mul(bounds.cores.max(1))
            .max(1),
    );
    // Near the limit, checks may use half of a core.
    let rest = if room < bounds.memory / 2 { took } else { took * 3 };
    time.clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL)
        .max(rest.min(MAX_CHECK_INTERVAL))
}

/// Only the newest process with a snapshot's name counts as one.
fn single_snapshot(mut processes: Vec<ProcessSample>) -> Vec<ProcessSample> {
    let snapshots = processes.iter().filter(|sample| sample.snapshot);
    let newest = snapshots.map(|sample| sample.pid.as_raw_pid()).max();
    for sample in processes.iter_mut().filter(|sample| sample.snapshot) {
        sample.snapshot = Some(sample.pid.as_raw_pid()) == newest;
        sample.outdated = !sample.snapshot;
        sample.copy |= sample.outdated;
    }
    processes
}

/// Kills the snapshots that are not the newest, which does not count as a kill for memory. Returns the memory that they
/// free. The check goes on: a program that makes such processes all the time must not put it off.
fn kill_outdated(processes: &mut [ProcessSample]) -> u64 {
    let mut freed = 0;
    for sample in processes.iter_mut().filter(|sample| sample.outdated && !sample.dying) {
        if kill_process(sample.pid, Signal::KILL).is_ok() {
            sample.dying = true;
            freed += sample.bytes;
        }
    }
    freed
}

/// Returns the processes that may be killed for memory: not a snapshot, unless there is no other process.
fn programs(processes: &[ProcessSample]) -> Vec<ProcessSample> {
    let only_snapshots = processes.iter().all(|sample| sample.snapshot);
    let mut programs = processes.to_vec();
    programs.retain(|sample| only_snapshots || !sample.snapshot);
    programs
}

/// Stops a sandbox's processes, including the first one, until a walk finds no new one.
fn freeze(roots: ProcessRoots) -> Vec<ProcessSample> {
    let mut known: BTreeMap<i32, bool> = BTreeMap::new();
    for _ in 0..MAX_FREEZE_ROUNDS {
        let mut found_new = false;
        for pid in roots.descendants() {
            known.entry(pid.as_raw_nonzero().get()).or_insert_with(|| {
                let stopped = is_stopped(pid);
                let _ = kill_process(pid, Signal::STOP);
                found_new = true;
                stopped
            });
        }
        if !found_new {
            break;
        }
    }
    let pids = known.into_iter();
    pids.filter_map(|(pid, stopped)| Some((Pid::from_raw(pid)?, stopped)))
        .map(|(pid, stopped)| ProcessSample {
            stopped,
            ..ProcessSample::of(pid)
        })
        .collect()
}

/// Returns the usage of a sandbox without a cgroup. `limit` is its memory limit in bytes.
pub(crate) fn usage(first: u32, worker: Option<Pid>, limit: u64) -> Usage {
    let Some(first) = i32::try_from(first).ok().and_then(Pid::from_raw) else {
        return Usage::default();
    };
    let mut usage = Usage::default();
    let descendants = ProcessRoots { first, worker }.descendants();
    let processes = single_snapshot(descendants.into_iter().map(ProcessSample::of).collect());
    for sample in &processes {
        usage.memory += if sample.snapshot || sample.copy {
            own_memory(sample.living)
        } else {
            sample.bytes
        };
        let times = times(sample.pid);
        usage.processes += times.threads;
        // A clock tick is 10 ms on every architecture that is supported.
        usage.cpu_us += times.ticks * 10_000;
    }
    if usage.memory > limit {
        // This sum counts shared memory once for each process. The exact count is expensive.
        usage.memory = processes.iter().map(exact_memory).sum();
    }
    usage.memory_peak = usage.memory;
    usage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_killed_for_memory_only_if_no_other_process_is_left() {
        let sample = |pid, snapshot| ProcessSample {
            pid: Pid::from_raw(pid).unwrap(),
            living: Pid::from_raw(pid).unwrap(),
            bytes: 100,
            tasks: 1,
            stopped: false,
            snapshot,
            copy: false,
            outdated: false,
            dying: false,
        };
        let pids = |processes: Vec<ProcessSample>| -> Vec<i32> {
            let processes = single_snapshot(processes);
            programs(&processes)
                .iter()
                .map(|sample| sample.pid.as_raw_pid())
                .collect()
        };
        assert_eq!(pids(vec![sample(5, false), sample(6, true), sample(7, false)]), [5, 7]);
        assert_eq!(pids(vec![sample(6, true)]), [6]);
        assert_eq!(
            pids(vec![sample(6, true), sample(7, true)]),
            [6],
            "the newest one is the snapshot"
        );
    }

    #[test]
    fn snapshots_that_are_not_the_newest_end_when_memory_runs_short() {
        let program = || std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (mut one, mut two) = (program(), program());
        let sample = |child: &std::process::Child| {
            let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
            paths::host_is_as_it_is();
            ProcessSample {
                snapshot: true,
                ..ProcessSample::of(pid)
            }
        };
        let mut processes = single_snapshot(vec![sample(&two), sample(&one)]);
        let newest = one.id().max(two.id());
        let is_snapshot = |sample: &ProcessSample| sample.pid.as_raw_pid().unsigned_abs() == newest;
        assert!(processes.iter().all(|sample| sample.snapshot == is_snapshot(sample)));
        assert!(kill_outdated(&mut processes) > 0);
        assert_eq!(kill_outdated(&mut processes), 0, "each is killed and counted once");
        let (older, newer) = if one.id() == newest {
            (&mut two, &mut one)
        } else {
            (&mut one, &mut two)
        };
        assert!(!older.wait().unwrap().success());
        assert!(newer.try_wait().unwrap().is_none());
        newer.kill().unwrap();
        newer.wait().unwrap();
    }

    #[test]
    fn polling_gets_faster_near_the_limit() {
        let bounds = Bounds {
            memory: 128 << 20,
            cores: 1,
            tasks: None,
            own_network: true,
            channel: None,
        };
        let none = Duration::ZERO;
        let pauses: Vec<Duration> = [0, 64 << 20, 128 << 20, 512 << 20]
            .map(|total| check_interval(total, bounds, none))
            .to_vec();
        assert!(pauses.windows(2).all(|pair| pair[1] <= pair[0]), "{pauses:?}");
        assert!(pauses[2] < Duration::from_millis(15), "{pauses:?}");
        assert_eq!(pauses[3], MIN_CHECK_INTERVAL);
        // An expensive check is not repeated continuously.
        assert!(check_interval(512 << 20, bounds, Duration::from_millis(10)) >= Duration::from_millis(10));
        assert!(check_interval(0, bounds, Duration::from_millis(10)) >= Duration::from_millis(30));
    }
}
