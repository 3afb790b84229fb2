//! Kills and reaps what is left of sandboxes without namespaces, in their subreapers and in the launcher. There is no
//! PID namespace with which the kernel would end it.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use rustix::thread::Timespec;

/// The time limit to kill all processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Kills every descendant of this process except the trees that `is_spared` accepts, until a walk finds none. A process
/// with a pending KILL completes no fork, and orphans become children of this process, so each walk finds the processes
/// that the last one missed. Returns true if none is left.
pub(in crate::launcher) fn kill_descendants(is_spared: impl Fn(Pid) -> bool) -> bool {
    let deadline = Instant::now() + KILL_TIMEOUT;
    loop {
        if !kill_walk(&is_spared) {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        let _ = rustix::thread::nanosleep(&Timespec {
            tv_sec: 0,
            tv_nsec: 500_000,
        });
    }
}

/// Walks once. Returns true if it found a live process.
pub(in crate::launcher) fn kill_walk(is_spared: &impl Fn(Pid) -> bool) -> bool {
    let mut found = false;
    for child in crate::watchdog::children(own_pid()) {
        if is_spared(child) {
            continue;
        }
        for pid in crate::watchdog::descendants(child) {
            let _ = kill_process(pid, Signal::KILL);
        }
        found = true;
    }
    reap(is_spared);
    found
}

/// Reaps ended children.
pub(in crate::launcher) fn reap(is_spared: impl Fn(Pid) -> bool) {
    for child in crate::watchdog::children(own_pid()) {
        if !is_spared(child) {
            let _ = waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }
}

fn own_pid() -> Pid {
    rustix::process::getpid()
}
