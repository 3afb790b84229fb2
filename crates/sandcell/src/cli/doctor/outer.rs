//! External limits on the server, compared with those of its sandboxes. The lower of the two holds, and a stop by an
//! external limit does not look like a stop by the sandbox's limit. Reading is apart from judging, so that judging is
//! pure.

use sandcell_sandbox::Limits;

use super::host::Advice;

/// The limit found; none: unlimited, or not available on this system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct OuterLimits {
    memory: Option<u64>,
    processes: Option<u64>,
    user_processes: Option<u64>,
    files: Option<u64>,
    file_size: Option<u64>,
    data: Option<u64>,
    address_space: Option<u64>,
    stack: Option<u64>,
}

/// Processes in addition to a sandbox's: the server's threads, the launcher, its helpers.
const SERVER_PROCESSES: u64 = 64;
/// Open files that a server with a few sandboxes needs.
const MIN_OPEN_FILES: u64 = 1024;
/// The stack size that programs expect, in bytes.
const STACK_BYTES: u64 = 8 << 20;

/// Returns advice for outer limits that are lower than those of one sandbox.
pub(super) fn advice(limits: &Limits) -> Vec<Advice> {
    judge(read(), limits)
}

fn judge(outer: OuterLimits, limits: &Limits) -> Vec<Advice> {
    let memory = limits.memory.as_bytes();
    let processes = u64::from(limits.processes);
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let below = |outer: Option<u64>, own: u64| outer.filter(|outer| *outer < own);
    let mut found = Vec::new();
    let mut add = |name, now: String, reason: String, remedy: &str| {
        found.push(Advice {
            name,
            now,
            reason,
            remedy: remedy.to_owned(),
        });
    };
    if let Some(most) = below(outer.memory, memory) {
        let reason = format!(
            "less than limits.memory_mb ({}), so that the system ends programs, or the server itself, before a sandbox's own limit does",
            limits.memory.as_mib()
        );
        let remedy = "give the group more (systemd MemoryMax=, Docker --memory, Kubernetes limits.memory), or lower limits.memory_mb";
        add("memory of the server's control group", mib(most), reason, remedy);
    }
    for (name, most, remedy) in [
        (
            "pids.max of the server's control group",
            outer.processes,
            "give the group more (systemd TasksMax=, Docker --pids-limit), or lower limits.processes",
        ),
        (
            "processes of the server's user (ulimit -u)",
            outer.user_processes,
            "raise it where the server is started (`ulimit -u`, systemd LimitNPROC=), or lower limits.processes",
        ),
    ] {
        if let Some(most) = below(most, processes + SERVER_PROCESSES) {
            let reason = format!("one sandbox may have {processes} (limits.processes), and the server has its own");
            add(name, most.to_string(), reason, remedy);
        }
    }
    if let Some(most) = below(outer.files, MIN_OPEN_FILES) {
        let reason = "each sandbox takes some of them, in the server and in its launcher".to_owned();
        let remedy = "raise it where the server is started (`ulimit -Hn 65536`, systemd LimitNOFILE=65536)";
        add("open files (ulimit -Hn)", most.to_string(), reason, remedy);
    }
    if let Some(most) = below(outer.file_size, limits.disk.as_bytes()) {
        let reason = "no file inside can be larger, even with a higher limits.disk_mb".to_owned();
        let remedy = "raise it where the server is started (`ulimit -f unlimited`, systemd LimitFSIZE=infinity)";
        add("a file's size (ulimit -f)", mib(most), reason, remedy);
    }
    for (name, most, remedy) in [
        (
            "data of a process (ulimit -d)",
            outer.data,
            "raise it where the server is started (`ulimit -d unlimited`, systemd LimitDATA=infinity)",
        ),
        (
            "address space of a process (ulimit -v)",
            outer.address_space,
            "raise it where the server is started (`ulimit -v unlimited`, systemd LimitAS=infinity)",
        ),
    ] {
        if let Some(most) = below(most, memory) {
            let reason = "less than limits.memory_mb: programs inside run out of memory there".to_owned();
            add(name, mib(most), reason, remedy);
        }
    }
    if let Some(most) = below(outer.stack, STACK_BYTES) {
        let reason = "programs inside get no more, and may end with a fault".to_owned();
        let remedy = "raise it where the server is started (`ulimit -s 8192`, systemd LimitSTACK=8M)";
        add(
            "stack of a program (ulimit -Hs)",
            format!("{} KiB", most >> 10),
            reason,
            remedy,
        );
    }
    found
}

#[cfg(all(target_os = "linux", feature = "native"))]
fn read() -> OuterLimits {
    use rustix::process::{Resource, getrlimit};
    use sandcell_jail::outer::{Scope, process_limits};

    let hard = |resource| getrlimit(resource).maximum;
    let limits = process_limits();
    let lowest = |counts: fn(&Scope) -> bool| {
        let of_scope = limits.iter().filter(|limit| counts(&limit.scope));
        of_scope.map(|limit| limit.max).min()
    };
    OuterLimits {
        memory: sandcell_jail::cgroup::outer_memory_limit(),
        processes: lowest(|scope| matches!(scope, Scope::Group(_))),
        user_processes: lowest(|scope| matches!(scope, Scope::User(_))),
        files: hard(Resource::Nofile),
        file_size: getrlimit(Resource::Fsize).current,
        data: getrlimit(Resource::Data).current,
        address_space: getrlimit(Resource::As).current,
        stack: hard(Resource::Stack),
    }
}

#[cfg(not(all(target_os = "linux", feature = "native")))]
fn read() -> OuterLimits {
    OuterLimits::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn high_enough_limits_are_not_mentioned() {
        assert_eq!(judge(OuterLimits::default(), &Limits::default()), []);
        let roomy = Some(1 << 40);
        let outer = OuterLimits {
            memory: roomy,
            processes: roomy,
            user_processes: roomy,
            files: roomy,
            file_size: roomy,
            data: roomy,
            address_space: roomy,
            stack: roomy,
        };
        assert_eq!(judge(outer, &Limits::default()), []);
    }

    #[test]
    fn each_limit_below_that_of_a_sandbox_is_named() {
        let outer = OuterLimits {
            memory: Some(100 << 20),
            processes: Some(50),
            user_processes: Some(5),
            files: Some(20),
            file_size: Some(1 << 20),
            data: Some(20 << 20),
            address_space: Some(20 << 20),
            stack: Some(64 << 10),
        };
        let found = judge(outer, &Limits::default());
        let told: Vec<String> = found.iter().map(|one| format!("{} {}", one.name, one.now)).collect();
        assert_eq!(
            told,
            [
                "memory of the server's control group 100 MiB",
                "pids.max of the server's control group 50",
                "processes of the server's user (ulimit -u) 5",
                "open files (ulimit -Hn) 20",
                "a file's size (ulimit -f) 1 MiB",
                "data of a process (ulimit -d) 20 MiB",
                "address space of a process (ulimit -v) 20 MiB",
                "stack of a program (ulimit -Hs) 64 KiB",
            ]
        );
        assert!(found[0].reason.contains("limits.memory_mb"), "{found:?}");
    }
}
