//! Reuses cgroups. On version 1 a group is four folders. Creating, limiting and removing them costs the kernel a
//! twentieth of a whole fresh run.
//!
//! Processes in a sandbox cannot see its cgroups, and its counters are reset before the next sandbox uses it. A group
//! is removed instead if anything unusual happened in it, or if memory is still charged to it. On version 2 a group is
//! one folder, and counters such as the peak memory cannot be reset, so each group is used once.

use super::{Group, Groups, quota_of};
use crate::steps::write_once;
use crate::watch::small_file;

/// The maximum charge of an empty group: memory that the kernel frees a moment later, or keeps until it needs it.
const CHARGED: u64 = 2 << 20;
/// The same for memory of sockets, where the kernel charges that separately.
const CHARGED_SOCKETS: u64 = 64 << 10;
/// The minimum processor limit of a reused group, in thousandths of a core: the next sandbox already prepares itself in
/// it.
const CORE: u32 = 1000;
/// The number of sandboxes that use a group one after another.
const USES: u32 = 64;

/// The state of a group after its sandbox has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cleared {
    /// It still has processes; it may be empty a moment later.
    Busy,
    /// It can be reused.
    Clean,
    /// It cannot be reused.
    Spent,
}

impl Group {
    /// Resets its counters if it is empty.
    pub(crate) fn clear(&mut self) -> Cleared {
        let Groups::V1 {
            memory,
            pids,
            cpu,
            cpuacct,
        } = &self.kind
        else {
            return Cleared::Spent;
        };
        match number(&format!("{pids}/pids.current")) {
            Some(0) => {}
            Some(_) => return Cleared::Busy,
            None => return Cleared::Spent,
        }
        self.private_files = None;
        self.uses += 1;
        let Some(request) = self.limited else {
            return Cleared::Spent;
        };
        let usual = self.uses < USES
            && request.cpu_milli >= CORE
            && std::fs::read_to_string(format!("{memory}/cgroup.procs")).is_ok_and(|pids| pids.is_empty())
            && sockets_hold(memory).is_some_and(|charged| charged <= CHARGED_SOCKETS)
            && number(&format!("{memory}/memory.usage_in_bytes")).is_some_and(|charged| charged <= CHARGED)
            && counted(&format!("{memory}/memory.oom_control"), "oom_kill") == Some(0)
            && counted(&format!("{pids}/pids.events"), "max") == Some(0);
        if !usual {
            return Cleared::Spent;
        }
        let set = |path: String, text: &str| write_once(&path, text);
        // Writing the quota also resets the consumption of this period.
        let quota = quota_of(&request).to_string();
        let cleared = set(format!("{cpu}/cpu.cfs_quota_us"), &quota)
            .and_then(|()| set(format!("{cpuacct}/cpuacct.usage"), "0"))
            .and_then(|()| set(format!("{memory}/memory.max_usage_in_bytes"), "0"))
            .and_then(|()| {
                if self.weighed.replace(false) {
                    set(format!("{cpu}/cpu.shares"), "1024")
                } else {
                    Ok(())
                }
            });
        if cleared.is_ok() {
            Cleared::Clean
        } else {
            Cleared::Spent
        }
    }
}

/// Returns the bytes charged to a group for sockets. 0 if the kernel does not count them separately; none if the count
/// is unreadable.
fn sockets_hold(memory: &str) -> Option<u64> {
    match std::fs::read_to_string(format!("{memory}/memory.kmem.tcp.usage_in_bytes")) {
        Ok(text) => text.trim().parse().ok(),
        Err(error) => (error.kind() == std::io::ErrorKind::NotFound).then_some(0),
    }
}

/// Reads a file with one number. None if it has none.
fn number(path: &str) -> Option<u64> {
    small_file(path).trim().parse().ok()
}

/// Returns the number after this name. None if there is none.
fn counted(path: &str, name: &str) -> Option<u64> {
    let text = small_file(path);
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line?.trim().parse().ok()
}
