//! The first process of a PID namespace, for a container without an init: it reaps orphans and forwards signals.
//!
//! One decision: the init is a separate process, and the program continues as its child. If the program reaped orphans
//! itself, every place that starts a child would have to distinguish children from orphans.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};

use crate::sys::signalfd::take_all_signals;
use crate::sys::spawn::{Fork, copy_to, exit_now, fork, unblock_signals};

/// The size of `struct signalfd_siginfo`.
const SIGNAL_BYTES: usize = 128;
/// The code of a signal that the kernel sent for a terminal. The terminal sends it to the child as well.
const BY_THE_KERNEL: i32 = 0x80;

/// Becomes an init if this is the first process of a namespace. The caller continues as its child, and the init exits
/// with the child's status. Call this before the first thread starts.
pub fn become_init_if_first() {
    if std::process::id() != 1 {
        return;
    }
    let Ok(signals) = take_all_signals() else { return };
    // There is no other thread, so the child may call anything.
    match fork() {
        Ok(Fork::Parent(pid)) => exit_now(Pid::from_raw(pid).map_or(1, |child| run(child, &signals))),
        Ok(Fork::Child) | Err(_) => {
            let _ = unblock_signals();
        }
    }
}

/// Runs the init. Returns the exit status.
fn run(child: Pid, signals: &OwnedFd) -> i32 {
    // A reader of the child's output must see its end, so the init keeps no copy of the descriptors.
    if let Ok(nothing) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        let _ = (0..3).try_for_each(|standard| copy_to(nothing.as_raw_fd(), standard));
    }
    loop {
        if let Some(status) = reap(child) {
            return status;
        }
        let mut bytes = [0_u8; SIGNAL_BYTES];
        if !matches!(rustix::io::read(signals, &mut bytes), Ok(SIGNAL_BYTES)) {
            continue;
        }
        let word = |at: usize| {
            let bytes = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            i32::from_ne_bytes(bytes.unwrap_or_default())
        };
        let (signal, code) = (Signal::from_named_raw(word(0)), word(8));
        if let Some(signal) = signal
            && signal != Signal::CHILD
            && code != BY_THE_KERNEL
        {
            let _ = kill_process(child, signal);
        }
    }
}

/// Reaps all ended processes. Returns the child's exit status if it was among them.
fn reap(child: Pid) -> Option<i32> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == child => return Some(exit_status(status)),
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return None,
            Err(_) => return Some(1),
        }
    }
}

fn exit_status(status: WaitStatus) -> i32 {
    let signalled = || status.terminating_signal().map(|signal| 128 + signal);
    status.exit_status().or_else(signalled).unwrap_or(1)
}
