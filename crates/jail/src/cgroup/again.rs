//! Using a group again. On version 1 a group is four folders, and making, limiting and removing them costs the kernel a
//! twentieth of what a whole fresh run does.
//!
//! Nobody in a sandbox sees its control groups, and what one counted is set to nothing before the next sandbox is in it.
//! One in which anything unusual happened, or that still has something charged to it, is removed as ever. On version 2,
//! where a group is one folder, counters such as the most memory used cannot be set back, and so each is used once.

use super::{Group, Groups, quota_of};
use crate::steps::write_once;
use crate::watch::small_file;

/// What may be charged to an empty group: what the kernel frees a moment later, and what it keeps until it needs the memory.
const CHARGED: u64 = 2 << 20;
/// The same of what its sockets held, where that is charged apart.
const CHARGED_SOCKETS: u64 = 64 << 10;
/// Processor time in thousandths of a core that a group must allow: whoever gets ready for the next sandbox is in it already.
const CORE: u32 = 1000;
/// How many sandboxes a group is used for, one after the other.
const USES: u32 = 64;

/// What has become of a group whose sandbox has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cleared {
    /// Processes are still in it; a moment later it may be another.
    Busy,
    /// It is as good as new.
    Clean,
    /// It is of no more use.
    Spent,
}

impl Group {
    /// Sets back what it counted, if nobody is in it.
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
        // What was used of this period, or was used too much, is forgotten when the quota is written.
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

/// What is charged to a group for sockets, in bytes: nothing on a kernel that does not count it apart, none where it cannot be
/// learnt.
fn sockets_hold(memory: &str) -> Option<u64> {
    match std::fs::read_to_string(format!("{memory}/memory.kmem.tcp.usage_in_bytes")) {
        Ok(text) => text.trim().parse().ok(),
        Err(error) => (error.kind() == std::io::ErrorKind::NotFound).then_some(0),
    }
}

/// A file of one number; none if it does not say one.
fn number(path: &str) -> Option<u64> {
    small_file(path).trim().parse().ok()
}

/// The number beside this name; none if there is none.
fn counted(path: &str, name: &str) -> Option<u64> {
    let text = small_file(path);
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line?.trim().parse().ok()
}
