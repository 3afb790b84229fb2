//! The system calls code in a sandbox may make: the table from `policy/seccomp.policy`, compiled to a filter.
//!
//! The filter is a balanced search tree over the numbers, so that a call costs few instructions; calls that are
//! always allowed are cached by the kernel and cost nothing. A foreign architecture kills the process.

mod assemble;

pub use assemble::{Filter, Instruction};

/// One line of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The call's name.
    pub name: &'static str,
    /// Its number on this architecture.
    pub number: i64,
    /// What happens.
    pub action: Action,
}

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It goes through.
    Allow,
    /// It always fails with this error number.
    Errno(i32),
    /// It goes through if all tests of any alternative hold, else it fails with the error number.
    AllowIf {
        /// Alternatives, each a conjunction.
        any: &'static [&'static [Test]],
        /// The error otherwise.
        errno: i32,
    },
}

/// A test on one argument: `argument & mask` equals (or does not equal) `value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    /// Which argument, from 0 to 5.
    pub argument: u8,
    /// Bits that count.
    pub mask: u64,
    /// Whether they must equal the value, or must not.
    pub equal: bool,
    /// The value.
    pub value: u64,
}

/// The policy as data, for tests and documentation.
pub const POLICY: &[Entry] = include!(concat!(env!("OUT_DIR"), "/seccomp_table.rs"));

/// What is taken away where there is no control group: memory that belongs to no process would be charged to nobody, and
/// the cores that hold processor time must stay as they were set.
const UNCHARGED: [(i64, Action); 7] = [
    (libc::SYS_memfd_create, Action::Errno(libc::ENOSYS)),
    (libc::SYS_shmget, Action::Errno(libc::ENOSYS)),
    (libc::SYS_msgget, Action::Errno(libc::ENOSYS)),
    (libc::SYS_semget, Action::Errno(libc::ENOSYS)),
    (libc::SYS_landlock_create_ruleset, Action::Errno(libc::ENOSYS)),
    (libc::SYS_sched_setaffinity, Action::Errno(libc::EPERM)),
    (libc::SYS_setsockopt, USUAL_BUFFERS),
];

const SOL_SOCKET: u64 = 1;
const SO_SNDBUF: u64 = 7;
const SO_RCVBUF: u64 = 8;
const LOW: u64 = 0xffff_ffff;

/// Sockets keep the buffers that they have by default: asking for others is answered "done", as the kernel itself does
/// with sizes above its limits. The watcher counts sockets and must know what one can hold.
const USUAL_BUFFERS: Action = Action::AllowIf {
    any: &[&[is_not(1, SOL_SOCKET)], &[is_not(2, SO_SNDBUF), is_not(2, SO_RCVBUF)]],
    errno: 0,
};

const fn is_not(argument: u8, value: u64) -> Test {
    Test {
        argument,
        mask: LOW,
        equal: false,
        value,
    }
}

/// The filter for this architecture. `memory_is_charged` says whether a control group counts memory that belongs to
/// no process.
#[must_use]
pub fn filter(memory_is_charged: bool) -> Filter {
    assemble::assemble(&mut policy(memory_is_charged))
}

/// The policy as it is in force.
#[must_use]
pub fn policy(memory_is_charged: bool) -> Vec<Entry> {
    let mut entries: Vec<Entry> = POLICY.to_vec();
    if !memory_is_charged {
        for entry in &mut entries {
            if let Some((_, action)) = UNCHARGED.iter().find(|(number, _)| *number == entry.number) {
                entry.action = *action;
            }
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action_of(name: &str) -> Option<Action> {
        POLICY.iter().find(|entry| entry.name == name).map(|entry| entry.action)
    }

    #[test]
    fn what_must_never_be_reachable_is_not_in_the_policy() {
        for name in [
            "ptrace",
            "process_vm_readv",
            "process_vm_writev",
            "kcmp",
            "pidfd_getfd",
            "bpf",
            "perf_event_open",
            "userfaultfd",
            "keyctl",
            "add_key",
            "request_key",
            "mount",
            "umount2",
            "pivot_root",
            "open_tree",
            "move_mount",
            "fsopen",
            "fsconfig",
            "fsmount",
            "fspick",
            "mount_setattr",
            "unshare",
            "setns",
            "open_by_handle_at",
            "modify_ldt",
            "syslog",
            "quotactl",
            "swapon",
            "swapoff",
            "settimeofday",
            "clock_settime",
            "clock_adjtime",
            "adjtimex",
            "vmsplice",
            "reboot",
            "kexec_load",
            "init_module",
            "finit_module",
            "delete_module",
            "io_uring_enter",
            "io_uring_register",
            "iopl",
            "ioperm",
            "chroot",
            "acct",
            "sethostname",
            "setdomainname",
            "vhangup",
            "fanotify_init",
            "migrate_pages",
            "move_pages",
        ] {
            assert_eq!(action_of(name), None, "{name}");
        }
    }

    #[test]
    fn what_is_taken_away_without_a_control_group_is_in_the_policy_with_it() {
        for (number, action) in UNCHARGED {
            assert!(POLICY.iter().any(|entry| entry.number == number), "{number}");
            assert!(
                policy(false)
                    .iter()
                    .any(|entry| entry.number == number && entry.action == action),
                "{number}"
            );
        }
    }

    #[test]
    fn each_call_stands_once() {
        let mut names: Vec<&str> = POLICY.iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn the_newest_clone_is_answered_so_that_libc_falls_back() {
        assert_eq!(action_of("clone3"), Some(Action::Errno(libc::ENOSYS)));
    }
}
