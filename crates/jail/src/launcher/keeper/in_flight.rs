//! Descriptors in flight, where all sandboxes have the host user's id: the kernel counts them for the user, and refuses a message to
//! whoever has a lower limit of open files than there are.
//!
//! So the kernel is asked whether there are many, by a message under a low limit. Only then sandboxes are looked at, and the one
//! that has the most is ended.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use crate::watch::in_flight;
use crate::wire::receive_one;

/// The limit of open files that most programs have.
const USUAL_LIMIT: u64 = 1024;
/// The part of it that may be in flight.
const PART: u64 = 4;
/// The part of those that one sandbox has at least if it is ended for them: fewer are not what there is too much of, and
/// sixteen sandboxes with fewer have less than half of the usual limit.
const PART_OF_ONE: u64 = 8;
/// The time between two questions.
const FLOOD_INTERVAL: Duration = Duration::from_millis(40);

/// Asks the kernel.
#[derive(Default)]
pub(super) struct Floods {
    pair: Option<(OwnedFd, OwnedFd)>,
    due: Option<Instant>,
}

impl Floods {
    /// Returns true if this process' user has more than `most` descriptors in flight.
    fn exceed(&mut self, most: u64) -> bool {
        if self.pair.is_none() {
            self.pair = pair().ok();
        }
        let Some((ours, theirs)) = &self.pair else { return false };
        let limit = getrlimit(Resource::Nofile);
        let low = Rlimit {
            current: Some(most),
            ..limit
        };
        if setrlimit(Resource::Nofile, low).is_err() {
            return false;
        }
        let sent = send(ours.as_fd(), &(), &[ours.as_fd()]);
        // What was in force may be again.
        let _ = setrlimit(Resource::Nofile, limit);
        if sent.is_ok() {
            let _ = receive_one::<()>(theirs.as_fd());
        }
        sent.is_err_and(|error| too_many_in_flight(&error))
    }
}

impl Keeper {
    /// Looks for a flood when it is due.
    pub(super) fn look_for_floods(&mut self, now: Instant) {
        if self.floods.due.is_none_or(|due| due <= now) {
            self.floods.due = Some(now + FLOOD_INTERVAL);
            self.end_floods();
        }
    }

    /// Ends the sandbox that has the most descriptors in flight, if there are many. As root each sandbox has a count of its own, and
    /// without namespaces none can be passed.
    pub(super) fn end_floods(&mut self) {
        if self.prepared.host.root || self.prepared.bare.is_some() || self.jails.is_empty() {
            return;
        }
        let most = self.files_most.min(USUAL_LIMIT) / PART;
        if !self.floods.exceed(most) {
            return;
        }
        let found = self.jails.iter().filter_map(|(id, jail)| {
            let roots = jail.roots()?;
            let count = in_flight::of(roots, jail.visitor.as_ref().and_then(Visitor::channel));
            (count >= most / PART_OF_ONE).then_some((count, *id, roots))
        });
        let Some((_, id, roots)) = found.max_by_key(|(count, ..)| *count) else {
            return;
        };
        if let Some(jail) = self.jails.get_mut(&id) {
            jail.watched.end_all(roots);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::host::in_a_fork;

    #[test]
    fn the_kernel_tells_whether_many_are_in_flight() {
        // In a process of its own, whose limit nobody else has; root is never refused.
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
