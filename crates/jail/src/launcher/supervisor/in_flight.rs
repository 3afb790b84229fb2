//! Limits descriptors in flight where all sandboxes have the host user's id. The kernel counts them per user, and
//! refuses a message if the sender's limit of open files is below the count.
//!
//! The launcher tests the count by a message under a low limit. Only if the count is high does it examine the
//! sandboxes, and kill the one with the most descriptors in flight.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use crate::watchdog::in_flight;
use crate::wire::receive_one;

/// The limit of open files of most programs.
const USUAL_LIMIT: u64 = 1024;
/// The divisor of that limit for descriptors in flight.
const USER_LIMIT_DIVISOR: u64 = 4;
/// The divisor of the result for one sandbox: a sandbox with fewer is not killed. Sixteen sandboxes with fewer have
/// less than half of the usual limit.
const SANDBOX_DIVISOR: u64 = 8;
/// The time between two tests.
const TEST_INTERVAL: Duration = Duration::from_millis(40);

/// Tests the kernel's count.
#[derive(Default)]
pub(super) struct Floods {
    pair: Option<(OwnedFd, OwnedFd)>,
    due: Option<Instant>,
}

impl Floods {
    /// Returns true if this process's user has more than `max_in_flight` descriptors in flight.
    fn exceed(&mut self, max_in_flight: u64) -> bool {
        if self.pair.is_none() {
            self.pair = pair().ok();
        }
        let Some((ours, theirs)) = &self.pair else { return false };
        let limit = getrlimit(Resource::Nofile);
        let low = Rlimit {
            current: Some(max_in_flight),
            ..limit
        };
        if setrlimit(Resource::Nofile, low).is_err() {
            return false;
        }
        let sent = send(ours.as_fd(), &(), &[ours.as_fd()]);
        // The old limit was in force before, so restoring it cannot fail.
        let _ = setrlimit(Resource::Nofile, limit);
        if sent.is_ok() {
            let _ = receive_one::<()>(theirs.as_fd());
        }
        sent.is_err_and(|error| too_many_in_flight(&error))
    }
}

impl Supervisor {
    /// Tests for a flood when it is due.
    pub(super) fn check_for_floods(&mut self, now: Instant) {
        if self.floods.due.is_none_or(|due| due <= now) {
            self.floods.due = Some(now + TEST_INTERVAL);
            self.kill_floods();
        }
    }

    /// Kills the sandbox with the most descriptors in flight, if the count is high. As root each sandbox has a separate
    /// count, and without namespaces no descriptor can be passed.
    pub(super) fn kill_floods(&mut self) {
        if self.prepared.host.root || self.prepared.private_folders.is_some() || self.jails.is_empty() {
            return;
        }
        let max_in_flight = self.max_files.min(USUAL_LIMIT) / USER_LIMIT_DIVISOR;
        if !self.floods.exceed(max_in_flight) {
            return;
        }
        let found = self.jails.iter().filter_map(|(id, jail)| {
            let roots = jail.roots()?;
            let count = in_flight::estimate(roots, jail.worker.as_ref().and_then(Worker::channel));
            (count >= max_in_flight / SANDBOX_DIVISOR).then_some((count, *id, roots))
        });
        let Some((_, id, roots)) = found.max_by_key(|(count, ..)| *count) else {
            return;
        };
        if let Some(jail) = self.jails.get_mut(&id) {
            jail.watch_record.kill_all(roots);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::base::fork::in_a_fork;

    #[test]
    fn the_kernel_reports_many_descriptors_in_flight() {
        // In a separate process, whose limit no other test shares. Root is never refused.
        in_a_fork(|| {
            let user = rustix::process::Uid::from_raw(0x6fff_0000);
            if rustix::process::geteuid().is_root() {
                rustix::thread::set_thread_res_uid(user, user, user)?;
            }
            let mut floods = Floods::default();
            let (ours, theirs) = pair()?;
            let before = floods.exceed(100);
            for _ in 0..12 {
                send(ours.as_fd(), &(), &[theirs.as_fd(); 10])?;
            }
            let during = floods.exceed(100);
            drop((ours, theirs));
            if !before && during {
                Ok(())
            } else {
                Err(io::ErrorKind::Other.into())
            }
        })
        .unwrap();
    }
}
