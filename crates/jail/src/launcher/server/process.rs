//! The launcher's process for the server: detects its end and its activity, and kills it with all its descendants.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};

use crate::launcher::base::activity::{Activity, activity_in};

/// The maximum number of descendants to find.
const MAX_DESCENDANTS: usize = 1 << 16;

/// A process that this one has started.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    pidfd: OwnedFd,
}

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this status.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Process {
    /// Opens a child by its id.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub(super) fn of_child(pid: Pid) -> io::Result<Self> {
        Ok(Self {
            pid,
            pidfd: pidfd_open(pid, PidfdFlags::empty())?,
        })
    }

    /// Returns its process id.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Returns a descriptor that becomes readable at its end.
    #[must_use]
    pub fn end(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Kills it at once.
    ///
    /// # Errors
    /// It has ended and was reaped.
    pub fn kill(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.pidfd, Signal::KILL)?)
    }

    /// Returns true if it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::PidFd(self.pidfd.as_fd()), options), Ok(None))
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// It was reaped before.
    pub fn wait(&self) -> io::Result<Exit> {
        let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED)?;
        let signal = status.as_ref().and_then(|status| status.terminating_signal());
        let code = status.as_ref().and_then(|status| status.exit_status());
        Ok(signal.map_or(Exit::Code(code.unwrap_or(0)), Exit::Signal))
    }

    /// Returns its current activity; none if `/proc` does not show it.
    #[must_use]
    pub fn activity(&self) -> Option<Activity> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).ok()?;
        activity_in(&status)
    }

    /// Kills all its descendants. This is for a launcher that cannot die. When a launcher dies, the kernel and its
    /// sandboxes' subreapers do this.
    pub fn kill_descendants(&self) {
        // Their parents are stuck and cannot reap them, so no process id is reused meanwhile.
        for pid in descendants(self.pid) {
            if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
                let _ = pidfd_send_signal(&process, Signal::KILL);
            }
        }
    }
}

fn descendants(of: Pid) -> Vec<Pid> {
    let mut found = vec![of];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied()
        && found.len() < MAX_DESCENDANTS
    {
        next += 1;
        let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
        for task in std::fs::read_dir(tasks).into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
            found.extend(pids.filter_map(Pid::from_raw));
        }
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopped_sleeping_and_running_processes_are_distinguished() {
        let status = |state: &str| {
            format!("Name:\tx\nState:\t{state}\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t3\n")
        };
        for (state, expected) in [
            ("T (stopped)", Activity::Stopped),
            ("t (tracing stop)", Activity::Stopped),
            ("S (sleeping)", Activity::Waits { runs: 10 }),
            ("D (disk sleep)", Activity::Waits { runs: 10 }),
            ("R (running)", Activity::Runs),
            ("Z (zombie)", Activity::Runs),
        ] {
            assert_eq!(activity_in(&status(state)), Some(expected), "{state}");
        }
        assert_eq!(activity_in(""), None);
    }

    #[test]
    fn a_sleeping_process_gains_no_cpu_time() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let process = Process::of_child(Pid::from_child(&child)).unwrap();
        let mut last = None;
        while last.is_none() || !matches!(last, Some(Activity::Waits { .. })) || process.activity() != last {
            last = process.activity();
            std::thread::yield_now();
        }
        rustix::process::kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
        while process.activity() != Some(Activity::Stopped) {
            std::thread::yield_now();
        }
        process.kill().unwrap();
        assert_eq!(process.wait().unwrap(), Exit::Signal(9));
        let _ = child.wait();
    }

    #[test]
    fn descendants_are_killed_and_the_process_itself_is_not() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 600 & sleep 600; exit 7"])
            .spawn()
            .unwrap();
        let process = Process::of_child(Pid::from_child(&child)).unwrap();
        while descendants(Pid::from_child(&child)).len() < 2 {
            std::thread::yield_now();
        }
        process.kill_descendants();
        assert_eq!(process.wait().unwrap(), Exit::Code(7));
        let _ = child.wait();
    }
}
