//! The calls between fork and exec. They allocate nothing and take no lock, so a fork of a multi-threaded process may
//! make them.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::RawFd;

/// The side of a fork that this process is on.
pub(crate) enum Fork {
    Child,
    Parent(libc::pid_t),
}

/// Forks this process.
///
/// The child may only call the functions of this module until it executes a program or exits.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: callers keep to the rule above, so that no lock held by another thread of the parent is ever waited for.
    match unsafe { libc::fork() } {
        0 => Ok(Fork::Child),
        pid if pid > 0 => Ok(Fork::Parent(pid)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Strings in the format of exec: an array of pointers that ends with a null pointer.
pub(crate) struct Texts {
    /// Pointers into `_owned`, whose heap blocks do not move.
    pointers: Vec<*const libc::c_char>,
    _owned: Vec<CString>,
}

impl Texts {
    pub(crate) fn new(owned: Vec<CString>) -> Self {
        let mut pointers: Vec<_> = owned.iter().map(|text| text.as_ptr()).collect();
        pointers.push(std::ptr::null());
        Self {
            pointers,
            _owned: owned,
        }
    }
}

/// Executes another program. Returns only on failure.
pub(crate) fn execve(path: &CStr, argv: &Texts, env: &Texts) -> io::Error {
    // SAFETY: the path ends with NUL; both arrays end with a null pointer and point at texts that end with NUL, which
    // `Texts` keeps alive.
    unsafe { libc::execve(path.as_ptr(), argv.pointers.as_ptr(), env.pointers.as_ptr()) };
    io::Error::last_os_error()
}

/// Starts a session and a process group.
pub(crate) fn setsid() -> io::Result<()> {
    // SAFETY: setsid reads no memory.
    super::check(libc::c_long::from(unsafe { libc::setsid() })).map(drop)
}

/// Makes a terminal the controlling terminal of this process, which leads a session.
pub(crate) fn take_terminal(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: this request reads no memory.
    super::check(libc::c_long::from(unsafe {
        libc::ioctl(descriptor, libc::TIOCSCTTY, 0)
    }))
    .map(drop)
}

/// Applies a Landlock ruleset to this process, in addition to earlier ones.
pub(crate) fn restrict_self(ruleset: RawFd) -> io::Result<()> {
    // SAFETY: landlock_restrict_self reads no memory; a number that is no ruleset gives an error.
    super::check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) }).map(drop)
}

/// Copies a descriptor to a number of at least `floor`. The copy is closed at exec.
pub(crate) fn copy_above(descriptor: RawFd, floor: RawFd) -> io::Result<RawFd> {
    // SAFETY: fcntl reads no memory; the caller is a fork that will exec or exit, so ownership does not matter.
    let number = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, floor) };
    super::check(libc::c_long::from(number)).map(|_| number)
}

/// Makes `target` a copy of a descriptor that stays open at exec.
pub(crate) fn copy_to(descriptor: RawFd, target: RawFd) -> io::Result<()> {
    // SAFETY: dup3 reads no memory; the caller is a fork whose other descriptors are its own.
    super::check(libc::c_long::from(unsafe { libc::dup3(descriptor, target, 0) })).map(drop)
}

/// Makes `target` a copy of a descriptor that is closed at exec.
pub(crate) fn copy_to_cloexec(descriptor: RawFd, target: RawFd) -> io::Result<()> {
    // SAFETY: dup3 reads no memory; the caller is a fork whose other descriptors are its own.
    super::check(libc::c_long::from(unsafe {
        libc::dup3(descriptor, target, libc::O_CLOEXEC)
    }))
    .map(drop)
}

/// Closes the descriptors from `first` to `last`.
pub(crate) fn close_between(first: libc::c_uint, last: libc::c_uint) -> io::Result<()> {
    // SAFETY: close_range reads no memory; the caller is a fork that uses none of the descriptors that it closes.
    super::check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Restores a signal's default action. Bypasses the C library, which reserves two signals and would leave them ignored.
pub(crate) fn default_action(signal: libc::c_int) -> io::Result<()> {
    // The kernel's structure has handler, flags, restorer and mask in some order: all zero is the default action.
    let action = [0_u64; 8];
    // SAFETY: the action is at least as large as the kernel's structure on every architecture and outlives the call;
    // the last argument is the size of the kernel's signal set.
    super::check(unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            action.as_ptr(),
            std::ptr::null_mut::<u64>(),
            8_usize,
        )
    })
    .map(drop)
}

/// Unblocks every signal.
pub(crate) fn unblock_signals() -> io::Result<()> {
    // SAFETY: sigemptyset initialises the set, which outlives both calls.
    let result = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut())
    };
    super::check(libc::c_long::from(result)).map(drop)
}

/// Changes the working folder.
pub(crate) fn chdir(path: &CStr) -> io::Result<()> {
    // SAFETY: the path ends with NUL and outlives the call.
    super::check(libc::c_long::from(unsafe { libc::chdir(path.as_ptr()) })).map(drop)
}

/// Writes bytes; at most a pipe's atomic size, so the write is all or nothing.
pub(crate) fn write(descriptor: RawFd, bytes: &[u8]) {
    // SAFETY: pointer and length are those of the slice. Nothing can be done about a failure here.
    unsafe { libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()) };
}

/// Exits at once, without any clean-up of the forked program.
pub(crate) fn exit_now(status: libc::c_int) -> ! {
    // SAFETY: _exit does not return and runs no handlers.
    unsafe { libc::_exit(status) }
}
