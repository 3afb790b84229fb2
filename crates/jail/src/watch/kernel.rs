//! Processes and the kernel's memory for them, held to the memory limit where there is a control group.
//!
//! The group's hard limit is memory and disk in one number, since private files are in memory, too. The disk's share is for
//! files. The watcher ends programs for memory of processes, and for memory of the kernel's that it can tell: page tables,
//! descriptors, mappings, and on version 2 all that the kernel cannot take back. The kernel does not say on version 1 which of
//! its memory it could take back, such as names of files that were looked at, and trying is dear (half a second for 150 MiB
//! was measured). So the watcher lowers the hard limit to what there is, and the sandbox's own programs make the kernel take
//! back what it can, or are ended by it. Programs that allocate nothing more do neither, so the watcher also has the kernel reclaim
//! a little, twenty times a second. Where the kernel cannot, its memory counts as used.

use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::{
    COPY_FROM, COPY_PART, DESCRIPTOR, EVERY, RATE, Record, SHORTEST, SOCKET_BUFFER, Seen, descriptors, one_copy,
    programs, tables_of,
};
use crate::cgroup::Group;

/// What processes and the kernel may have when the next look comes, in hundredths of the limit. What grows on until then, and while
/// the look takes its time, is to stay within a quarter above it.
const REACH: u64 = 110;
/// The number of failed attempts to reclaim after which the kernel's memory counts as unreclaimable.
const STUCK: u32 = 3;
/// A look may take this part of the time near the limit.
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
    /// Attempts it unless the last attempt was a moment ago.
    fn attempt(&mut self, reclaim: impl FnOnce() -> bool) {
        if self.at.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.failed = if reclaim() { 0 } else { self.failed.saturating_add(1) };
        self.at = Some(Instant::now());
    }
}

impl Record {
    /// A sandbox with a control group that may use much: ends the largest program if it is too much. Returns how much it is, and
    /// how much more the kernel may hold. `unaccepted` is what connections hold.
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
            // What programs made the kernel hold, rather than what it would give back.
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

    /// When to look again: before a sandbox that uses so much can have grown to [`REACH`]. `took` is the time of this look.
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
