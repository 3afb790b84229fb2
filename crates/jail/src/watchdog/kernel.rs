//! Enforces the memory limit for processes and their kernel memory in a sandbox with a cgroup.
//!
//! The group's hard limit is the sum of memory and disk, since private files are in memory, too. The disk's share is
//! for files. The watchdog kills programs for memory of processes and for identifiable kernel memory: page tables,
//! descriptors, mappings, and on version 2 all unreclaimable memory. On version 1 the kernel does not report how much
//! of its memory is reclaimable, such as names of visited files, and a trial is expensive (half a second measured for
//! 150 MiB). So the watchdog lowers the hard limit to the present charge. Programs of the sandbox that allocate then
//! make the kernel reclaim, or are killed. For programs that allocate nothing, the watchdog also has the kernel reclaim
//! a little, twenty times a second. If the kernel can reclaim nothing, its memory counts as used.

use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::{
    ALLOCATION_BYTES_PER_SECOND, DESCRIPTOR_BYTES, MAX_CHECK_INTERVAL, MIN_CHECK_INTERVAL, ProcessSample,
    SNAPSHOT_CHECK_TENTHS, SNAPSHOT_COST_DIVISOR, WatchRecord, descriptors, kill_outdated, programs, single_snapshot,
    tables_of,
};
use crate::cgroup::Group;
use crate::plan::SOCKET_BUFFER_BYTES;

/// The expected maximum at the next check, in hundredths of the limit. With the growth during the check it stays within
/// a quarter above the limit.
const REACH_PERCENT: u64 = 110;
/// The number of failed attempts to reclaim after which the kernel's memory counts as unreclaimable.
const MAX_FAILED_ATTEMPTS: u32 = 3;
/// The divisor of the time that checks may use near the limit.
const CHECK_TIME_DIVISOR: u32 = 4;

/// Attempts to reclaim the kernel's memory of one sandbox.
#[derive(Debug, Default)]
pub(super) struct Reclaim {
    /// The time of the last attempt.
    at: Option<Instant>,
    /// The number of failed attempts in a row.
    failed: u32,
}

impl Reclaim {
    /// Attempts to reclaim, unless the last attempt was very recent.
    fn attempt(&mut self, reclaim: impl FnOnce() -> bool) {
        if self.at.is_some_and(|at| at.elapsed() < MAX_CHECK_INTERVAL) {
            return;
        }
        self.failed = if reclaim() { 0 } else { self.failed.saturating_add(1) };
        self.at = Some(Instant::now());
    }
}

impl WatchRecord {
    /// Checks a sandbox with a cgroup that may use much memory. Kills the largest program if it exceeds the limit.
    /// Returns the usage, and further kernel memory that may be in use. `unaccepted` is the memory of unaccepted
    /// connections.
    pub(super) fn separate_memory(
        &mut self,
        group: &Group,
        unaccepted: u64,
        cpu_us: u64,
        pids: Vec<Pid>,
    ) -> (u64, u64) {
        let limit = group.memory_limit();
        let memory_by_kind = group.memory_by_kind();
        let mut used = group.process_memory_of(&memory_by_kind) + unaccepted;
        let doubtful = group.doubtful_kernel_memory_of(&memory_by_kind);
        if used + doubtful > limit {
            group.lower_hard_limit(&memory_by_kind);
            self.reclaim.attempt(|| group.reclaim_some(&memory_by_kind));
        } else {
            group.restore_hard_limit();
            self.reclaim = Reclaim::default();
        }
        let kernel = group.kernel_memory_of(&memory_by_kind);
        let by_kernel = used <= limit && used + kernel > limit;
        if by_kernel && self.reclaim.failed >= MAX_FAILED_ATTEMPTS {
            used += kernel;
        } else if by_kernel {
            // Kernel memory caused by programs, without memory that the kernel would reclaim.
            let tables: u64 = pids.iter().map(|pid| tables_of(*pid)).sum();
            let open: u64 = pids.iter().map(|pid| descriptors(*pid)).sum::<u64>() * DESCRIPTOR_BYTES;
            let mapped = self.mappings.bytes(cpu_us, limit, || pids.clone());
            used += kernel.min(tables + open + mapped);
        }
        if used <= limit / 10 * SNAPSHOT_CHECK_TENTHS {
            return (used, doubtful);
        }
        let mut processes = single_snapshot(pids.into_iter().map(ProcessSample::of).collect());
        let _freed_soon = kill_outdated(&mut processes);
        let uncounted = self
            .snapshot_cost(&processes, used, limit)
            .min(limit / SNAPSHOT_COST_DIVISOR);
        if used.saturating_sub(uncounted) > limit && !self.is_freeing_memory(&processes) {
            self.peak = self.peak.max(used);
            let weight = |sample: &ProcessSample| {
                let each = match (unaccepted > 0, by_kernel) {
                    (true, _) => SOCKET_BUFFER_BYTES,
                    (false, true) => DESCRIPTOR_BYTES,
                    (false, false) => 0,
                };
                sample.bytes
                    + self.mappings.of(sample.living)
                    + each * if each > 0 { descriptors(sample.living) } else { 0 }
            };
            processes.retain(|sample| !sample.dying);
            if let Some(sample) = programs(&processes).into_iter().max_by_key(weight) {
                self.kill(sample.pid);
            }
        }
        (used, doubtful)
    }

    /// Returns the time until the next check: before a sandbox with this usage can have grown to [`REACH_PERCENT`].
    /// `took` is the duration of this check.
    pub(super) fn group_interval(&mut self, group: &Group, used: u64, cpu_us: u64, took: Duration) -> Duration {
        let ran = cpu_us == 0 || std::mem::replace(&mut self.cpu_us, cpu_us) != cpu_us;
        let room = (group.memory_limit() / 100 * REACH_PERCENT).saturating_sub(used);
        let time = Duration::from_micros(
            room / (ALLOCATION_BYTES_PER_SECOND / 1_000_000)
                .saturating_mul(group.cores())
                .max(1),
        );
        if ran {
            time.clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL)
                .max((took * CHECK_TIME_DIVISOR).min(MAX_CHECK_INTERVAL))
        } else {
            MAX_CHECK_INTERVAL
        }
    }
}
