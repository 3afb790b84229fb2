//! The sandbox's usage, as visible from inside.

use std::path::PathBuf;

use rustix::fs::{stat, statvfs};

use super::process_table;
use crate::protocol::{GroupUsage, UsageReply};

/// Counts processes and threads, and the usage of each private file system. Unreadable parts count as zero.
pub(super) fn read(private: &[PathBuf], counts_processes: bool, group: Option<GroupUsage>) -> UsageReply {
    let mut usage = UsageReply {
        group,
        ..UsageReply::default()
    };
    if counts_processes {
        let entries = process_table::read().map(|table| table.entries).unwrap_or_default();
        usage.processes = entries
            .iter()
            .fold(0, |sum, entry| entry.threads.max(1).saturating_add(sum));
    }
    let files = files(private);
    usage.disk = files.disk;
    usage.inodes = files.inodes;
    usage
}

/// The usage of the private file systems.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FileUse {
    pub(super) disk: u64,
    pub(super) inodes: u64,
}

/// Counts each file system once. Unreadable file systems count as zero.
pub(super) fn files(private: &[PathBuf]) -> FileUse {
    let mut usage = FileUse::default();
    let mut seen = Vec::new();
    for folder in private {
        let (Ok(status), Ok(system)) = (stat(folder), statvfs(folder)) else {
            continue;
        };
        if seen.contains(&status.st_dev) {
            continue;
        }
        seen.push(status.st_dev);
        let blocks = system.f_blocks.saturating_sub(system.f_bfree);
        usage.disk = usage.disk.saturating_add(blocks.saturating_mul(system.f_frsize));
        usage.inodes = usage
            .inodes
            .saturating_add(system.f_files.saturating_sub(system.f_ffree));
    }
    usage
}
