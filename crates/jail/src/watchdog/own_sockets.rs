//! The socket account of a container, kept by the container's first process.

use std::time::Duration;

use super::sockets::{Scope, Sockets};
use crate::paths;

/// Counts the memory behind the sockets of this process's network namespace that the container's cgroup does not
/// charge.
#[derive(Debug)]
pub struct OwnSockets {
    sockets: Sockets,
    limit: u64,
}

/// The memory that the container's cgroup charges, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Charged {
    /// Memory of processes.
    pub processes: u64,
    /// All kernel memory, on version 1. There the group does not count it as memory of processes, since the kernel does
    /// not report how much of it is reclaimable. It does not charge socket queues either.
    pub kernel: Option<u64>,
}

impl OwnSockets {
    /// Starts the account for programs with a memory limit of `limit` bytes. Call this before any of them runs, and
    /// before the process installs its system-call filter.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        paths::host_is_as_it_is();
        let sockets = Sockets::open_own();
        Self { sockets, limit }
    }

    /// Returns the memory behind sockets to add to the memory of processes, in bytes.
    pub fn bytes(&mut self, charged: Charged) -> u64 {
        let scope = Scope::of(rustix::process::getpid(), self.limit);
        let mut messages = 0;
        let mut queued = 0;
        if let Some(kernel) = charged.kernel {
            // Most of a large amount above that is names of files, which the kernel reclaims by itself.
            if kernel > self.limit / 2 {
                messages = kernel.min(scope.counts.message_bytes());
            }
            // Without socket diagnosis the uncharged memory below includes the queues.
            queued = self.sockets.queued(scope).unwrap_or(0);
        }
        let used = charged.processes.saturating_add(messages);
        messages.saturating_add(self.sockets.uncharged(scope, || used, Vec::new).max(queued))
    }

    /// Returns the validity of the last answer.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        self.sockets.valid_for()
    }

    /// Discards the last reading. Call this after ending processes.
    pub fn discard(&mut self) {
        self.sockets.discard();
    }
}
