//! Calls that lock a process, and the loopback interface.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::seccomp::Filter;

/// Installs the filter for this process, permanently. Needs `no_new_privs`.
pub(crate) fn install_filter(filter: &Filter) -> io::Result<()> {
    const SECCOMP_SET_MODE_FILTER: libc::c_uint = 1;
    let instructions = filter.instructions();
    let program = libc::sock_fprog {
        len: u16::try_from(instructions.len()).map_err(io::Error::other)?,
        filter: instructions.as_ptr().cast_mut().cast(),
    };
    // SAFETY: `Instruction` has the layout of sock_filter, the program's length is that of the slice, and the kernel
    // copies it before the call returns; it does not write to it.
    super::check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            SECCOMP_SET_MODE_FILTER,
            0,
            std::ptr::addr_of!(program),
        )
    })
    .map(drop)
}

/// The request that the kernel's ioctl for interface flags takes.
#[repr(C)]
struct InterfaceRequest {
    name: [libc::c_char; 16],
    flags: libc::c_short,
    padding: [u8; 22],
}

/// Brings the loopback interface of the socket's network namespace up.
pub(crate) fn loopback_up(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut request = InterfaceRequest {
        name: [0; 16],
        flags: 0,
        padding: [0; 22],
    };
    for (to, from) in request.name.iter_mut().zip(c"lo".to_bytes()) {
        *to = libc::c_char::try_from(*from).map_err(io::Error::other)?;
    }
    request.flags = libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).map_err(io::Error::other)?;
    // A raw call, since C libraries differ in the type of its second argument.
    // SAFETY: the request has the size and layout of struct ifreq with its name NUL-terminated, and outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_ioctl,
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS,
            std::ptr::addr_of!(request),
        )
    };
    super::check(result).map(drop)
}

/// Returns the page size in bytes. Uses the C library, which knows it from the program's start. Other sources read
/// `/proc`, which has another path in the launcher.
pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf reads no memory of ours.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Makes new namespaces for this process. `flags` are those of unshare(2).
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: unshare reads no memory; callers are single-threaded and share no descriptor table with anyone.
    super::check(libc::c_long::from(unsafe { libc::unshare(flags) })).map(drop)
}

/// Returns the kernel's Landlock version. Below 1 if there is none.
pub(crate) fn landlock_abi() -> i32 {
    landlock_version().unwrap_or(0)
}

/// Returns the kernel's Landlock version, or the reason why there is none.
pub(crate) fn landlock_version() -> io::Result<i32> {
    const CREATE_RULESET_VERSION: libc::c_uint = 1;
    // SAFETY: with the version flag the call takes a null attribute of size 0 and returns a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            CREATE_RULESET_VERSION,
        )
    };
    super::check(version).map(|version| i32::try_from(version).unwrap_or(0))
}
