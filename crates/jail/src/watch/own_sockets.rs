//! The account of a container's sockets, kept inside by its first process.

use std::time::Duration;

use super::sockets::{Scope, Sockets, in_many_datagrams};
use crate::plan::place;

/// Socket memory that no control group is charged for, as the first process of a container counts that of its own network
/// namespace.
#[derive(Debug)]
pub struct OwnSockets {
    sockets: Sockets,
    limit: u64,
}

impl OwnSockets {
    /// Starts the account, for programs that may have `limit` bytes. Called before any of them runs, and before the process gives up
    /// the calls that it needs here.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        place::host_is_as_it_is();
        let sockets = Sockets::here();
        Self { sockets, limit }
    }

    /// Returns what sockets may hold uncharged, in bytes, beside `used` bytes of charged memory. More than the limit together is
    /// counted exactly.
    pub fn bytes(&mut self, used: u64) -> u64 {
        let scope = Scope::of(rustix::process::getpid(), self.limit);
        let datagrams = in_many_datagrams(scope);
        let pinned = self.sockets.bytes(scope, Vec::new).max(datagrams);
        if pinned > 0 && used.saturating_add(pinned) > self.limit {
            return self.sockets.bytes_now(scope, Vec::new).max(datagrams);
        }
        pinned
    }

    /// Returns what the queues of connections and datagrams hold by the kernel's own count, in bytes; none if the kernel does not
    /// tell. `/proc/net/sockstat` tells of all the machine's.
    pub fn queued(&mut self) -> Option<u64> {
        self.sockets.queued(Scope::of(rustix::process::getpid(), self.limit))
    }

    /// Returns the most that messages in Unix sockets hold, in bytes; few such sockets count for nothing.
    #[must_use]
    pub fn messages(&self) -> u64 {
        Scope::of(rustix::process::getpid(), self.limit).counts.in_messages()
    }

    /// Returns how long the answer holds.
    #[must_use]
    pub fn holds(&self) -> Duration {
        self.sockets.holds()
    }

    /// Processes were ended: what is left is counted at the next look.
    pub fn forget(&mut self) {
        self.sockets.forget();
    }
}
