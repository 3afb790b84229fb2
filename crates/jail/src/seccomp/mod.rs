//! The system calls that code in a sandbox may make: the table of `policy/seccomp.policy`, compiled to a filter.
//!
//! The filter is a balanced search tree over the numbers, so that a call costs few instructions. The kernel caches
//! calls that are always allowed, so these cost nothing. A call of a foreign architecture kills the process.

mod assemble;

use std::sync::OnceLock;

pub use assemble::{Filter, Instruction};

/// One line of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The call's name.
    pub name: &'static str,
    /// Its number on this architecture.
    pub number: i64,
    /// The action.
    pub action: Action,
}

/// The action for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The call is allowed.
    Allow,
    /// The call fails with this error number.
    Errno(i32),
    /// The call is allowed if all tests of any alternative hold; otherwise it fails with the error number.
    AllowIf {
        /// Alternatives, each a conjunction.
        any: &'static [&'static [Test]],
        /// The error otherwise.
        errno: i32,
    },
    /// The call pretends success and does nothing if all tests of any alternative hold; otherwise the other action
    /// applies.
    DoneIf {
        /// Alternatives, each a conjunction.
        any: &'static [&'static [Test]],
        /// The action otherwise.
        otherwise: &'static Action,
    },
}

impl Action {
    /// Returns the error number for these arguments, 0 for a pretended success, and none for an allowed call.
    #[must_use]
    pub fn answer(&self, arguments: [u64; 6]) -> Option<i32> {
        let holds = |tests: &&[Test]| {
            tests.iter().all(|test| {
                let argument = arguments.get(usize::from(test.argument)).copied().unwrap_or(0);
                (argument & test.mask == test.value) == test.equal
            })
        };
        match self {
            Self::Allow => None,
            Self::Errno(number) => Some(*number),
            Self::AllowIf { any, errno } => (!any.iter().any(holds)).then_some(*errno),
            Self::DoneIf { any, .. } if any.iter().any(holds) => Some(0),
            Self::DoneIf { otherwise, .. } => otherwise.answer(arguments),
        }
    }
}

/// A test on one argument: `argument & mask` equals (or does not equal) `value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    /// The number of the argument, from 0 to 5.
    pub argument: u8,
    /// The bits to compare.
    pub mask: u64,
    /// True if they must equal the value; false if they must differ.
    pub equal: bool,
    /// The value.
    pub value: u64,
}

/// The policy as data, for tests and documentation.
pub const SYSCALL_POLICY: &[Entry] = include!(concat!(env!("OUT_DIR"), "/seccomp_table.rs"));

/// Calls that are blocked without a cgroup. Memory that belongs to no process would be charged to nobody, and the
/// affinity that limits processor time must not change.
const BLOCKED_WITHOUT_CGROUP: [(i64, Action); 8] = [
    (libc::SYS_mmap, NO_SHARED_ANONYMOUS),
    (libc::SYS_memfd_create, Action::Errno(libc::ENOSYS)),
    (libc::SYS_shmget, Action::Errno(libc::ENOSYS)),
    (libc::SYS_msgget, Action::Errno(libc::ENOSYS)),
    (libc::SYS_semget, Action::Errno(libc::ENOSYS)),
    (libc::SYS_landlock_create_ruleset, Action::Errno(libc::ENOSYS)),
    (libc::SYS_sched_setaffinity, Action::Errno(libc::EPERM)),
    (libc::SYS_fcntl, NO_LARGE_PIPES),
];

/// Memory shared without a file lives as long as one page of it is mapped anywhere. The other pages need not be mapped,
/// so its size is not visible from outside.
const NO_SHARED_ANONYMOUS: Action = Action::AllowIf {
    any: &[
        &[is(3, MAP_ANONYMOUS | MAP_HUGETLB, 0)],
        &[is(3, MAP_TYPE | MAP_HUGETLB, MAP_PRIVATE)],
    ],
    errno: libc::EPERM,
};

/// A pipe keeps its default size or becomes smaller, since the watchdog counts pipes by number. Beyond a user's share
/// the kernel gives the same answer.
const NO_LARGE_PIPES: Action = Action::AllowIf {
    any: &[
        &[is_not(1, F_OFD_SETLK), is_not(1, F_OFD_SETLKW), is_not(1, F_SETPIPE_SZ)],
        &[is(1, LOW_32_BITS, F_SETPIPE_SZ), is(2, !USUAL_PIPE_BITS, 0)],
        &[is(1, LOW_32_BITS, F_SETPIPE_SZ), is(2, u64::MAX, USUAL_PIPE)],
    ],
    errno: libc::EPERM,
};

const F_SETPIPE_SZ: u64 = 1031;
/// The default size of a pipe with pages of 4 KiB, in bytes.
const USUAL_PIPE: u64 = 64 << 10;
const USUAL_PIPE_BITS: u64 = USUAL_PIPE - 1;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_HUGETLB: u64 = 0x4_0000;
const MAP_TYPE: u64 = 0x0f;
const MAP_PRIVATE: u64 = 0x02;
const SOL_SOCKET: u64 = 1;
const SO_SNDBUF: u64 = 7;
const SO_RCVBUF: u64 = 8;
const LOW_32_BITS: u64 = 0xffff_ffff;

/// Sockets keep their default buffers. A request for other sizes pretends success, as the kernel does for sizes above
/// its limits. The watchdog counts sockets and must know the maximum memory of one.
const OWN_BUFFERS: &[&[Test]] = &[
    &[is(1, LOW_32_BITS, SOL_SOCKET), is(2, LOW_32_BITS, SO_SNDBUF)],
    &[is(1, LOW_32_BITS, SOL_SOCKET), is(2, LOW_32_BITS, SO_RCVBUF)],
];

const fn is_not(argument: u8, value: u64) -> Test {
    Test {
        argument,
        mask: LOW_32_BITS,
        equal: false,
        value,
    }
}

/// Returns the filter for this architecture. `memory_is_charged` is true if a cgroup charges memory that belongs to no
/// process. Each filter is assembled once; forks of the launcher inherit it.
pub fn filter(memory_is_charged: bool) -> &'static Filter {
    static BUILT_FILTERS: [OnceLock<Filter>; 2] = [const { OnceLock::new() }; 2];
    let [uncharged, charged] = &BUILT_FILTERS;
    let kept = if memory_is_charged { charged } else { uncharged };
    kept.get_or_init(|| assemble::assemble(&mut policy(memory_is_charged)))
}

/// Calls that are blocked without namespaces. Landlock does not check calls that change a file's attributes by path,
/// sockets with a path, watches and leases. System V IPC objects would be the host's.
const WITHOUT_NAMESPACES: [(&str, Action); 44] = [
    // No socket that has or takes a name: only pairs, of the kinds that cannot be connected again.
    ("socket", Action::Errno(libc::EAFNOSUPPORT)),
    ("socketpair", CONNECTED_PAIRS),
    ("bind", Action::Errno(libc::EPERM)),
    ("connect", Action::Errno(libc::EPERM)),
    ("listen", Action::Errno(libc::EPERM)),
    ("accept", Action::Errno(libc::EPERM)),
    ("accept4", Action::Errno(libc::EPERM)),
    // A descriptor in flight through a socket belongs to no process, so its memory could not be counted.
    ("sendmsg", Action::Errno(libc::EPERM)),
    ("sendmmsg", Action::Errno(libc::EPERM)),
    // These change permissions and times of the operator's files, anywhere on the host. They pretend success, since
    // ordinary programs copy attributes without need and treat a refusal as a failure.
    ("chmod", Action::Errno(0)),
    ("fchmod", Action::Errno(0)),
    ("fchmodat", Action::Errno(0)),
    ("fchmodat2", Action::Errno(0)),
    ("utime", Action::Errno(0)),
    ("utimes", Action::Errno(0)),
    ("futimesat", Action::Errno(0)),
    ("utimensat", Action::Errno(0)),
    ("chown", Action::Errno(libc::EPERM)),
    ("lchown", Action::Errno(libc::EPERM)),
    ("fchown", Action::Errno(libc::EPERM)),
    ("fchownat", Action::Errno(libc::EPERM)),
    ("setxattr", Action::Errno(libc::EOPNOTSUPP)),
    ("lsetxattr", Action::Errno(libc::EOPNOTSUPP)),
    ("fsetxattr", Action::Errno(libc::EOPNOTSUPP)),
    ("removexattr", Action::Errno(libc::EOPNOTSUPP)),
    ("lremovexattr", Action::Errno(libc::EOPNOTSUPP)),
    ("fremovexattr", Action::Errno(libc::EOPNOTSUPP)),
    // Watches reveal the operator's activity in a folder. Leases stop others from opening a file.
    ("inotify_init", Action::Errno(libc::ENOSYS)),
    ("inotify_init1", Action::Errno(libc::ENOSYS)),
    ("fcntl", NO_LEASES),
    // Of the ioctls only those for terminals and pipes; others change a file's flags.
    ("ioctl", TERMINAL_REQUESTS),
    // A process must not hide its descriptors from the subreaper, which counts deleted files by them.
    ("prctl", NOT_HIDDEN),
    ("syncfs", Action::Errno(libc::EPERM)),
    ("shmget", Action::Errno(libc::ENOSYS)),
    ("shmat", Action::Errno(libc::ENOSYS)),
    ("shmctl", Action::Errno(libc::ENOSYS)),
    ("semget", Action::Errno(libc::ENOSYS)),
    ("semop", Action::Errno(libc::ENOSYS)),
    ("semtimedop", Action::Errno(libc::ENOSYS)),
    ("semctl", Action::Errno(libc::ENOSYS)),
    ("msgget", Action::Errno(libc::ENOSYS)),
    ("msgsnd", Action::Errno(libc::ENOSYS)),
    ("msgrcv", Action::Errno(libc::ENOSYS)),
    ("msgctl", Action::Errno(libc::ENOSYS)),
];

const AF_UNIX: u64 = 1;
const SOCK_STREAM: u64 = 1;
const SOCK_SEQPACKET: u64 = 5;
const F_SETLEASE: u64 = 1024;
const F_NOTIFY: u64 = 1026;
const F_OFD_SETLK: u64 = 37;
const F_OFD_SETLKW: u64 = 38;

const fn is(argument: u8, mask: u64, value: u64) -> Test {
    Test {
        argument,
        mask,
        equal: true,
        value,
    }
}

const CONNECTED_PAIRS: Action = Action::AllowIf {
    any: &[
        &[is(0, LOW_32_BITS, AF_UNIX), is(1, 0xf, SOCK_STREAM)],
        &[is(0, LOW_32_BITS, AF_UNIX), is(1, 0xf, SOCK_SEQPACKET)],
    ],
    errno: libc::EAFNOSUPPORT,
};

const NO_LEASES: Action = Action::AllowIf {
    any: &[
        &[
            is_not(1, F_SETLEASE),
            is_not(1, F_NOTIFY),
            is_not(1, F_OFD_SETLK),
            is_not(1, F_OFD_SETLKW),
            is_not(1, F_SETPIPE_SZ),
        ],
        &[is(1, LOW_32_BITS, F_SETPIPE_SZ), is(2, !USUAL_PIPE_BITS, 0)],
        &[is(1, LOW_32_BITS, F_SETPIPE_SZ), is(2, u64::MAX, USUAL_PIPE)],
    ],
    errno: libc::EPERM,
};

const TERMINAL_REQUESTS: Action = Action::AllowIf {
    any: &[&[
        is(1, 0xffff_ff00, 0x5400),
        is_not(1, 0x5412),
        is_not(1, 0x541c),
        is_not(1, 0x5423),
    ]],
    errno: libc::ENOTTY,
};

/// The policy for prctl without `PR_SET_DUMPABLE`.
const NOT_HIDDEN: Action = Action::AllowIf {
    any: &[
        &[is(0, LOW_32_BITS, 1)],
        &[is(0, LOW_32_BITS, 2)],
        &[is(0, LOW_32_BITS, 3)],
        &[is(0, LOW_32_BITS, 15)],
        &[is(0, LOW_32_BITS, 16)],
        &[is(0, LOW_32_BITS, 21)],
        &[is(0, LOW_32_BITS, 22), is(1, u64::MAX, 1)],
        &[is(0, LOW_32_BITS, 23)],
        &[is(0, LOW_32_BITS, 27)],
        &[is(0, LOW_32_BITS, 29)],
        &[is(0, LOW_32_BITS, 30)],
        &[is(0, LOW_32_BITS, 36)],
        &[is(0, LOW_32_BITS, 37)],
        &[is(0, LOW_32_BITS, 38)],
        &[is(0, LOW_32_BITS, 39)],
        &[is(0, LOW_32_BITS, 40)],
        &[is(0, LOW_32_BITS, 41), is(1, u64::MAX, 1), is(2, u64::MAX, 0)],
        &[is(0, LOW_32_BITS, 42)],
        &[is(0, LOW_32_BITS, 47)],
        &[is(0, LOW_32_BITS, 0x5356_4d41)],
    ],
    errno: libc::EINVAL,
};

/// Returns the filter for sandboxes without namespaces.
#[must_use]
pub fn filter_without_namespaces(memory_is_charged: bool) -> Filter {
    assemble::assemble(&mut policy_without_namespaces(memory_is_charged))
}

/// Calls of a zygote in addition to the policy: its workers enter namespaces by descriptor, take the inside identity
/// and lock themselves. Of the clone flags it has those of code in a sandbox, and `CLONE_PARENT`, so that the launcher
/// reaps its workers.
const OF_PARENT: [(i64, Action); 5] = [
    (libc::SYS_setns, BY_DESCRIPTOR),
    (libc::SYS_setgroups, Action::Allow),
    (libc::SYS_prctl, Action::Allow),
    (libc::SYS_seccomp, OWN_FILTER),
    (libc::SYS_clone, NO_NAMESPACES),
];

/// Enters a namespace by its descriptor. Without a kind argument the kernel accepts no pidfd: a zygote could otherwise
/// name the first process of an incomplete sandbox, whose mount namespace shows the host.
const BY_DESCRIPTOR: Action = Action::AllowIf {
    any: &[&[is(1, LOW_32_BITS, 0)]],
    errno: libc::EPERM,
};

/// As in the policy. In addition a worker installs its filter, without flags.
const OWN_FILTER: Action = Action::AllowIf {
    any: &[
        &[is(0, LOW_32_BITS, 0)],
        &[is(0, LOW_32_BITS, 2)],
        &[is(0, LOW_32_BITS, 1), is(1, u64::MAX, 0)],
    ],
    errno: libc::EINVAL,
};

/// As in the policy, with `CLONE_PARENT`.
const NO_NAMESPACES: Action = Action::AllowIf {
    any: &[&[is(0, 0x7e03_2000, 0)], &[is(0, 0x7e03_a400, 0x1_0400)]],
    errno: libc::EPERM,
};

/// Calls of the fork server and of the first processes that it clones, in addition to the policy: with them a first
/// process makes its sandbox and locks itself.
const OF_FORK_SERVER: [(i64, Action); 17] = [
    (libc::SYS_clone, Action::Allow),
    (libc::SYS_clone3, Action::Allow),
    (libc::SYS_unshare, Action::Allow),
    (libc::SYS_setgroups, Action::Allow),
    (libc::SYS_mount, Action::Allow),
    (libc::SYS_umount2, Action::Allow),
    (libc::SYS_pivot_root, Action::Allow),
    (libc::SYS_fsopen, Action::Allow),
    (libc::SYS_fsconfig, Action::Allow),
    (libc::SYS_fsmount, Action::Allow),
    (libc::SYS_move_mount, Action::Allow),
    (libc::SYS_open_tree, Action::Allow),
    (libc::SYS_mount_setattr, Action::Allow),
    (libc::SYS_sethostname, Action::Allow),
    (libc::SYS_prctl, Action::Allow),
    (libc::SYS_seccomp, Action::Allow),
    (libc::SYS_close_range, Action::Allow),
];

/// Returns the filter of a zygote. Its workers add [`filter_of_worker`].
#[must_use]
pub fn filter_of_zygote() -> Filter {
    assemble::assemble(&mut policy_with(&OF_PARENT))
}

/// Returns the filter of the fork server. Its first processes add [`filter_of_first_process`].
#[must_use]
pub fn filter_of_fork_server() -> Filter {
    assemble::assemble(&mut policy_with(&OF_FORK_SERVER))
}

/// Returns the filter that a worker installs on top of its zygote's: only the calls whose answer differs in a sandbox.
/// The kernel applies the strictest answer of all filters of a process, so both together equal [`filter`]. The kernel
/// checks and compiles a tenth as much for each worker.
#[must_use]
pub fn filter_of_worker(memory_is_charged: bool) -> Filter {
    rest_of_policy(&OF_PARENT, memory_is_charged)
}

/// Returns the filter that a first process installs on top of its fork server's, in the same way. It is assembled once;
/// forks of the fork server inherit it.
pub fn filter_of_first_process(memory_is_charged: bool) -> &'static Filter {
    static BUILT_FILTERS: [OnceLock<Filter>; 2] = [const { OnceLock::new() }; 2];
    let [uncharged, charged] = &BUILT_FILTERS;
    let kept = if memory_is_charged { charged } else { uncharged };
    kept.get_or_init(|| rest_of_policy(&OF_FORK_SERVER, memory_is_charged))
}

/// Returns a filter of the calls whose answer in a sandbox differs from that of [`policy_with`] these calls.
fn rest_of_policy(added: &[(i64, Action)], memory_is_charged: bool) -> Filter {
    let before = policy_with(added);
    let mut other: Vec<Entry> = Vec::new();
    for entry in policy(memory_is_charged) {
        if !before
            .iter()
            .any(|found| found.number == entry.number && found.action == entry.action)
        {
            other.push(entry);
        }
    }
    // Calls that the policy does not name.
    for &(number, _) in added {
        if !SYSCALL_POLICY.iter().any(|entry| entry.number == number) {
            let action = Action::Errno(libc::EPERM);
            other.push(Entry {
                name: "",
                number,
                action,
            });
        }
    }
    assemble::assemble_on_top(&mut other)
}

/// Returns the policy with other actions for some calls.
fn policy_with(added: &[(i64, Action)]) -> Vec<Entry> {
    let mut entries = policy(true);
    for &(number, action) in added {
        entries.retain(|entry| entry.number != number);
        entries.push(Entry {
            name: "",
            number,
            action,
        });
    }
    entries
}

/// Returns the policy for sandboxes without namespaces.
#[must_use]
pub fn policy_without_namespaces(memory_is_charged: bool) -> Vec<Entry> {
    let mut entries = policy(memory_is_charged);
    for entry in &mut entries {
        if let Some((_, action)) = WITHOUT_NAMESPACES.iter().find(|(name, _)| *name == entry.name) {
            entry.action = *action;
        }
    }
    entries
}

/// Returns the policy for sandboxes with namespaces.
#[must_use]
pub fn policy(memory_is_charged: bool) -> Vec<Entry> {
    let in_force = |entry: &'static Entry| {
        let action = match BLOCKED_WITHOUT_CGROUP
            .iter()
            .find(|(number, _)| *number == entry.number)
        {
            Some((_, action)) if !memory_is_charged => *action,
            None if entry.number == libc::SYS_setsockopt => Action::DoneIf {
                any: OWN_BUFFERS,
                otherwise: &entry.action,
            },
            _ => entry.action,
        };
        Entry { action, ..*entry }
    };
    SYSCALL_POLICY.iter().map(in_force).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action_of(name: &str) -> Option<Action> {
        SYSCALL_POLICY
            .iter()
            .find(|entry| entry.name == name)
            .map(|entry| entry.action)
    }

    #[test]
    fn forbidden_calls_are_not_in_the_policy() {
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
    fn calls_denied_without_a_cgroup_are_in_the_policy_with_one() {
        for (number, action) in BLOCKED_WITHOUT_CGROUP {
            assert!(SYSCALL_POLICY.iter().any(|entry| entry.number == number), "{number}");
            assert!(
                policy(false)
                    .iter()
                    .any(|entry| entry.number == number && entry.action == action),
                "{number}"
            );
        }
    }

    #[test]
    fn pipes_cannot_grow_where_they_are_counted_by_number() {
        for policy in [
            policy(false),
            policy_without_namespaces(true),
            policy_without_namespaces(false),
        ] {
            let fcntl = policy.iter().find(|entry| entry.number == libc::SYS_fcntl).unwrap();
            let ask = |size: u64| fcntl.action.answer([3, F_SETPIPE_SZ, size, 0, 0, 0]);
            for size in [4096, 32 << 10, USUAL_PIPE - 1, USUAL_PIPE] {
                assert_eq!(ask(size), None, "{size}");
            }
            for size in [USUAL_PIPE + 1, 128 << 10, 1 << 20, 1 << 31, 1 << 32, u64::MAX] {
                assert_eq!(ask(size), Some(libc::EPERM), "{size}");
            }
            assert_eq!(fcntl.action.answer([3, 3, 0, 0, 0, 0]), None);
        }
    }

    /// Every replacement of a policy line refuses at least what that line refuses.
    #[test]
    fn stricter_filters_allow_nothing_that_the_policy_refuses() {
        let narrower = [
            policy(false),
            policy_without_namespaces(true),
            policy_without_namespaces(false),
        ];
        for entry in SYSCALL_POLICY {
            let mut values = vec![0, 1, 2, 3, u64::MAX];
            let tests = |action: &Action| match action {
                Action::AllowIf { any, .. } | Action::DoneIf { any, .. } => any.concat(),
                Action::Allow | Action::Errno(_) => Vec::new(),
            };
            values.extend(
                tests(&entry.action)
                    .iter()
                    .flat_map(|test| [test.value, test.value ^ 1]),
            );
            values.sort_unstable();
            values.dedup();
            for other in &narrower {
                let found = other.iter().find(|found| found.number == entry.number).unwrap();
                for first in &values {
                    for second in &values {
                        for third in &values {
                            let arguments = [*first, *second, *third, 0, 0, 0];
                            assert!(
                                entry.action.answer(arguments).is_none() || found.action.answer(arguments).is_some(),
                                "{} {arguments:x?}",
                                entry.name
                            );
                        }
                    }
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn calls_denied_without_namespaces_are_calls_of_the_policy() {
        let entries = policy_without_namespaces(true);
        for (name, action) in WITHOUT_NAMESPACES {
            assert!(
                entries.iter().any(|entry| entry.name == name && entry.action == action),
                "{name}"
            );
        }
    }

    #[test]
    fn without_namespaces_prctl_differs_from_the_policy_only_in_dumpable() {
        let (Some(Action::AllowIf { any, .. }), Action::AllowIf { any: left, .. }) = (action_of("prctl"), NOT_HIDDEN)
        else {
            panic!("prctl has conditions");
        };
        let hiding: &[Test] = &[is(0, LOW_32_BITS, 4)];
        let expected: Vec<_> = any.iter().copied().filter(|tests| *tests != hiding).collect();
        assert_eq!(left.to_vec(), expected);
        assert_eq!(any.len(), left.len() + 1);
    }

    #[test]
    fn each_call_is_listed_once() {
        let mut names: Vec<&str> = SYSCALL_POLICY.iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn clone3_is_refused_so_that_libc_falls_back() {
        assert_eq!(action_of("clone3"), Some(Action::Errno(libc::ENOSYS)));
    }
}
