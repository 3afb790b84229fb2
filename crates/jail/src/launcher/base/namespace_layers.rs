//! The kinds of namespaces that each sandbox has, as clone flags.

use std::io;

use super::fork::in_a_fork;
use crate::sys;
use crate::wire::StepError;

/// The clone flag of each namespace, and the name of its layer.
pub(in crate::launcher) const NAMESPACE_LAYERS: [(u64, &str); 7] = [
    (0x1000_0000, "user_namespace"),
    (0x0002_0000, "mount_namespace"),
    (0x2000_0000, "pid_namespace"),
    (0x4000_0000, "network_namespace"),
    (0x0800_0000, "ipc_namespace"),
    (0x0400_0000, "uts_namespace"),
    (0x0200_0000, "cgroup_namespace"),
];

/// The clocks stay the machine's. A private namespace is needed since a namespace is a file that processes can lock and
/// watch.
pub(in crate::launcher) const TIME_NAMESPACE: u64 = 0x80;

/// Returns the flags of all namespaces.
pub(in crate::launcher) fn all_namespaces() -> libc::c_int {
    let all = NAMESPACE_LAYERS.iter().fold(0, |flags, (flag, _)| flags | flag);
    libc::c_int::try_from(all).unwrap_or(0)
}

/// Builds the error of a clone into namespaces. If a kind of namespace is exhausted, the kernel does not name the kind,
/// so each is tried.
pub(in crate::launcher) fn no_namespaces(error: &io::Error) -> StepError {
    let used_up = |error: &io::Error| error.raw_os_error() == Some(libc::ENOSPC);
    let one_of = |flag: u64| {
        let flag = libc::c_int::try_from(flag).unwrap_or(0);
        in_a_fork(|| sys::misc::unshare(libc::CLONE_NEWUSER | flag))
    };
    let mut kinds = NAMESPACE_LAYERS.iter();
    let kind = if used_up(error) {
        kinds.find(|(flag, _)| one_of(*flag).is_err_and(|error| used_up(&error)))
    } else {
        None
    };
    StepError::new(
        "make namespaces",
        Some(kind.map_or("user_namespace", |(_, layer)| layer)),
        error,
    )
}
