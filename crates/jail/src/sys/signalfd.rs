//! Signals as descriptors, and ignored signals.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};

/// Makes a set with one signal.
fn set_of(signal: libc::c_int) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigemptyset initialises the set that the pointer names, sigaddset changes it afterwards; both only fail
    // for a number that is no signal, and callers pass constants of libc.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        set.assume_init()
    }
}

/// Blocks SIGCHLD for this thread.
pub(crate) fn block_child_signal() -> io::Result<()> {
    let set = set_of(libc::SIGCHLD);
    // SAFETY: the set is initialised and outlives the call; the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Returns a descriptor that is readable while SIGCHLD is pending. The signal must be blocked.
pub(crate) fn child_signal_descriptor() -> io::Result<OwnedFd> {
    let set = set_of(libc::SIGCHLD);
    // SAFETY: the set is initialised and outlives the call.
    let number = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    super::check(libc::c_long::from(number))?;
    // SAFETY: the kernel has just made this descriptor and nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Blocks every signal for this thread. Returns a descriptor from which they are read instead.
pub(crate) fn take_all_signals() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigfillset initialises the set that the pointer names.
    let set = unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    };
    // SAFETY: the set is initialised and outlives the call.
    let number = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
    super::check(libc::c_long::from(number))?;
    // SAFETY: the kernel has just made this descriptor and nobody else knows its number.
    let signals = unsafe { OwnedFd::from_raw_fd(number) };
    // SAFETY: the set is initialised and outlives the call; the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(signals),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Ignores a signal.
pub(crate) fn ignore(signal: libc::c_int) -> io::Result<()> {
    // SAFETY: SIG_IGN is no function that could run.
    if unsafe { libc::signal(signal, libc::SIG_IGN) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
