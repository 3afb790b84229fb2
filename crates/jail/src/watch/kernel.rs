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
    COPY_FROM, COPY_PART, DESCRIPTOR, EVERY, RATE, Record, SHORTEST, SOCKET_BUFFER, Seen, descriptors, one_copy,
    programs, tables_of,
};
use crate::cgroup::Group;

/// The expected maximum at the next check, in hundredths of the limit. With the growth during the check it stays within
/// a quarter above the limit.
const REACH: u64 = 110;
/// The number of failed attempts to reclaim after which the kernel's memory counts as unreclaimable.
const STUCK: u32 = 3;
/// The divisor of the time that checks may use near the limit.
const PART: u32 = 4;

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
        if self.at.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.failed = if reclaim() { 0 } else { self.failed.saturating_add(1) };
        self.at = Some(Instant::now());
    }
}

impl Record {
    /// Checks a sandbox with a cgroup that may use much memory. Kills the largest program if it exceeds the limit.
    /// Returns the usage, and further kernel memory that may be in use. `unaccepted` is the memory of unaccepted
    /// connections.
    pub(super) fn look_closer(
        &mut self,
        group: &Group,
        first: Pid,
        unaccepted: u64,
        worked: u64,
        pids: Vec<Pid>,
    ) -> (u64, u64) {
        let limit = group.memory_limit();
        let told = group.told();
        let mut used = group.process_memory_of(&told) + unaccepted;
        let doubtful = group.doubtful_kernel_memory_of(&told);
        if used + doubtful > limit {
            group.narrow(&told);
            self.reclaim.attempt(|| group.squeeze(&told));
        } else {
            group.widen();
            self.reclaim = Reclaim::default();
        }
        let kernel = group.kernel_memory_of(&told);
        let by_kernel = used <= limit && used + kernel > limit;
        if by_kernel && self.reclaim.failed >= STUCK {
            used += kernel;
        } else if by_kernel {
            // Kernel memory caused by programs, without memory that the kernel would reclaim.
            let tables: u64 = pids.iter().map(|pid| tables_of(*pid)).sum();
            let open: u64 = pids.iter().map(|pid| descriptors(*pid)).sum::<u64>() * DESCRIPTOR;
            let mapped = self.mappings.bytes(worked, limit, || pids.clone());
            used += kernel.min(tables + open + mapped);
        }
        if used <= limit / 10 * COPY_FROM {
            return (used, doubtful);
        }
        let processes = one_copy(pids.into_iter().map(Seen::of).collect());
        let uncounted = self.cost_of_copy(first, &processes, used, limit).min(limit / COPY_PART);
        if used.saturating_sub(uncounted) > limit && !self.is_giving_back(&processes) {
            self.peak = self.peak.max(used);
            let weight = |seen: &Seen| {
                let each = match (unaccepted > 0, by_kernel) {
                    (true, _) => SOCKET_BUFFER,
                    (false, true) => DESCRIPTOR,
                    (false, false) => 0,
                };
                seen.bytes + self.mappings.of(seen.living) + each * if each > 0 { descriptors(seen.living) } else { 0 }
            };
            if let Some(seen) = programs(&processes).into_iter().max_by_key(weight) {
                self.end(seen.pid);
            }
        }
        (used, doubtful)
    }

    /// Returns the time until the next check: before a sandbox with this usage can have grown to [`REACH`]. `took` is
    /// the duration of this check.
    pub(super) fn pause_of_group(&mut self, group: &Group, used: u64, worked: u64, took: Duration) -> Duration {
        let ran = worked == 0 || std::mem::replace(&mut self.worked, worked) != worked;
        let room = (group.memory_limit() / 100 * REACH).saturating_sub(used);
        let time = Duration::from_micros(room / (RATE / 1_000_000).saturating_mul(group.cores()).max(1));
        if ran {
            time.clamp(SHORTEST, EVERY).max((took * PART).min(EVERY))
        } else {
            EVERY
        }
    }
}
