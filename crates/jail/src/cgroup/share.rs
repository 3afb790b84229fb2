//! Separates the memory of processes and the kernel from the memory of files, which the kernel charges to a group as
//! one number. Reserves the disk's share of the hard limit for files.

use std::io;

use super::{
    Group, Groups, INODE_BYTES, JAIL_OVERHEAD_BYTES, PrivateFiles, USUAL_KERNEL, USUAL_PART, field_of, number,
};
use crate::kernel_files::small_file;
use crate::kernel_files::write_once;
use crate::spec::Request;

/// The margin of a lowered hard limit, in bytes: the charge changes during the write.
const LIMIT_MARGIN_BYTES: u64 = 1 << 20;
/// The amount that the kernel reclaims at one request, in bytes. It takes about 3 ms.
const RECLAIM_BYTES: u64 = 1 << 20;

/// The memory of a group by kind, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryByKind {
    /// Memory of processes: private memory, and shared memory other than private files.
    processes: u64,
    /// Kernel memory above the usual amount; on version 2 only the part that cannot be reclaimed.
    kernel: u64,
    /// Kernel memory that can be reclaimed (version 2).
    reclaimable: u64,
    /// Contents and inodes of private files.
    files: u64,
}

/// Returns the hard limit of a group: memory, disk, and the memory that the jail itself needs.
pub(super) const fn hard_limit(request: &Request) -> u64 {
    request
        .memory
        .saturating_add(request.disk)
        .saturating_add(JAIL_OVERHEAD_BYTES)
}

/// Returns the hard limit that reserves the disk's share for files. It never rises for memory that is charged beyond
/// that.
fn lowered(request: &Request, files: u64, before: u64, charged: u64) -> u64 {
    let wanted = request.memory.saturating_add(JAIL_OVERHEAD_BYTES).saturating_add(files);
    wanted
        .min(hard_limit(request))
        .max(before.min(charged.saturating_add(LIMIT_MARGIN_BYTES)))
}

impl Group {
    /// Returns the group's memory by kind.
    pub(crate) fn memory_by_kind(&self) -> MemoryByKind {
        let (own, shared, kernel, reclaimable) = match &self.kind {
            Groups::V1 { memory, .. } => {
                let stat = small_file(&format!("{memory}/memory.stat"));
                let kernel = number(&format!("{memory}/memory.kmem.usage_in_bytes"));
                (field_of(&stat, "total_rss"), field_of(&stat, "total_shmem"), kernel, 0)
            }
            Groups::V2 { folder } => {
                let stat = small_file(&format!("{folder}/memory.stat"));
                let reclaimable = field_of(&stat, "slab_reclaimable");
                let kernel = field_of(&stat, "kernel").saturating_sub(reclaimable);
                (field_of(&stat, "anon"), field_of(&stat, "shmem"), kernel, reclaimable)
            }
        };
        let files = self.private_files.as_ref().and_then(PrivateFiles::usage);
        let (stored, inodes) = files.map_or((0, 0), |files| {
            let blocks = files.f_blocks.saturating_sub(files.f_bfree);
            let inodes = files.f_files.saturating_sub(files.f_ffree);
            (
                blocks.saturating_mul(files.f_frsize),
                inodes.saturating_mul(INODE_BYTES),
            )
        });
        let usual = USUAL_KERNEL.min(self.memory_limit / USUAL_PART);
        MemoryByKind {
            processes: own + shared.saturating_sub(stored),
            kernel: kernel.saturating_sub(usual + inodes),
            reclaimable,
            files: stored + inodes,
        }
    }

    /// Returns [`Self::process_memory`] from a reading.
    pub(crate) fn process_memory_of(&self, memory_by_kind: &MemoryByKind) -> u64 {
        match &self.kind {
            Groups::V1 { .. } => memory_by_kind.processes,
            Groups::V2 { .. } => memory_by_kind.processes + memory_by_kind.kernel,
        }
    }

    /// Returns the kernel memory of the group's processes above the usual amount. On version 1 it includes reclaimable
    /// memory, such as names of visited files, since the kernel does not count that separately.
    pub(crate) fn kernel_memory_of(&self, memory_by_kind: &MemoryByKind) -> u64 {
        match &self.kind {
            Groups::V1 { .. } => memory_by_kind.kernel,
            Groups::V2 { .. } => 0,
        }
    }

    /// Returns the kernel memory including memory that the kernel counts as reclaimable although it may be in use
    /// (version 2), such as inodes of sockets.
    pub(crate) fn doubtful_kernel_memory_of(&self, memory_by_kind: &MemoryByKind) -> u64 {
        self.kernel_memory_of(memory_by_kind) + memory_by_kind.reclaimable
    }

    /// Lowers the hard limit to memory and existing files, or to the charge if that is higher. Does not reclaim memory
    /// here: the next process that allocates makes the kernel reclaim, and is killed if the kernel finds nothing.
    pub(crate) fn lower_hard_limit(&self, memory_by_kind: &MemoryByKind) {
        let Some(request) = &self.limited else {
            return;
        };
        let total = hard_limit(request);
        let before = self.narrowed.get().unwrap_or(total);
        let _ = self.set_hard_limit(lowered(request, memory_by_kind.files, before, self.charged()), total);
    }

    /// Makes the kernel reclaim some memory of a group that is charged more than its memory and files, by a hard limit
    /// below the charge. Returns false if the kernel could reclaim nothing. Version 2 reports unreclaimable memory, and
    /// would kill programs for such a limit, so a version 2 group stays unchanged.
    pub(crate) fn reclaim_some(&self, memory_by_kind: &MemoryByKind) -> bool {
        let (Some(request), Groups::V1 { .. }) = (&self.limited, &self.kind) else {
            return true;
        };
        let wanted = lowered(request, memory_by_kind.files, 0, 0);
        let charged = self.charged();
        if charged <= wanted {
            return true;
        }
        let limit = wanted.max(charged.saturating_sub(RECLAIM_BYTES));
        self.set_hard_limit(limit, hard_limit(request)).is_ok()
    }

    /// Restores the full hard limit, with the disk's share.
    pub(crate) fn restore_hard_limit(&self) {
        if self.narrowed.get().is_some()
            && let Some(request) = &self.limited
        {
            let total = hard_limit(request);
            let _ = self.set_hard_limit(total, total);
        }
    }

    fn set_hard_limit(&self, limit: u64, total: u64) -> io::Result<()> {
        if limit == self.narrowed.get().unwrap_or(total) {
            return Ok(());
        }
        let file = match &self.kind {
            Groups::V1 { memory, .. } => format!("{memory}/memory.limit_in_bytes"),
            Groups::V2 { folder } => format!("{folder}/memory.max"),
        };
        write_once(&file, &limit.to_string())?;
        self.narrowed.set((limit < total).then_some(limit));
        Ok(())
    }

    /// Returns the number of whole cores that it may use.
    pub(crate) fn cores(&self) -> u64 {
        self.limited
            .map_or(1, |request| u64::from(request.cpu_milli.div_ceil(1000)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_PER_MIB: u64 = 1 << 20;

    #[test]
    fn only_file_charges_count_toward_the_disk_share() {
        let request = Request {
            memory: 128 * BYTES_PER_MIB,
            cpu_milli: 1000,
            processes: 16,
            disk: 1024 * BYTES_PER_MIB,
            inodes: 0,
            fault: None,
        };
        let total = hard_limit(&request);
        let at = |files, before, charged| {
            lowered(
                &request,
                files * BYTES_PER_MIB,
                before * BYTES_PER_MIB,
                charged * BYTES_PER_MIB,
            ) / BYTES_PER_MIB
        };
        let total_mib = total / BYTES_PER_MIB;
        assert_eq!(total_mib, 1168);
        // Existing charges are not reclaimed, and may not grow.
        assert_eq!(at(0, total_mib, 140), 144);
        assert_eq!(at(0, total_mib, 300), 301);
        assert_eq!(at(0, 301, 301), 301);
        assert_eq!(at(0, 301, 200), 201);
        // Files get their share as they appear, and no more.
        assert_eq!(at(500, 301, 700), 644);
        assert_eq!(at(5000, 301, 700), total_mib);
        assert_eq!(at(0, total_mib, 5000), total_mib);
    }
}
