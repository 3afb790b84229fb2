//! Limits around this program that bound how many processes there may be. When one is reached no sandbox can be made, and
//! the system's error (`EAGAIN`) does not say which one it was.

use crate::cgroup::own_process_groups;

/// A limit of processes and threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessLimit {
    /// What it belongs to, in words.
    pub of: String,
    /// How many it allows.
    pub max: u64,
    /// How many count towards it now.
    pub used: u64,
    /// What raises it.
    pub remedy: String,
}

/// The limit that is nearest; none where nothing limits processes.
#[must_use]
pub fn nearest_process_limit() -> Option<ProcessLimit> {
    let found = groups().into_iter().chain(user()).chain(machine());
    found.min_by_key(|limit| limit.max.saturating_sub(limit.used))
}

fn number(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn groups() -> Vec<ProcessLimit> {
    let limit = |folder: String| {
        Some(ProcessLimit {
            max: number(&format!("{folder}/pids.max"))?,
            used: number(&format!("{folder}/pids.current"))?,
            remedy: format!("raise {folder}/pids.max (with systemd TasksMax=, with Docker --pids-limit)"),
            of: format!("the server's control group {folder}"),
        })
    };
    own_process_groups().into_iter().filter_map(limit).collect()
}

/// Root is exempt.
fn user() -> Option<ProcessLimit> {
    let user = rustix::process::geteuid().as_raw();
    let max = rustix::process::getrlimit(rustix::process::Resource::Nproc).current?;
    (user != 0).then(|| ProcessLimit {
        of: format!("the server's user {user} (RLIMIT_NPROC)"),
        max,
        used: tasks(user),
        remedy: "raise `ulimit -u` for the server (with systemd LimitNPROC=)".to_owned(),
    })
}

fn machine() -> Option<ProcessLimit> {
    let used = std::fs::read_to_string("/proc/loadavg").ok()?;
    let used = used.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()?;
    ["pid_max", "threads-max"]
        .into_iter()
        .filter_map(|name| {
            Some(ProcessLimit {
                of: format!("the machine (kernel.{name})"),
                max: number(&format!("/proc/sys/kernel/{name}"))?,
                used,
                remedy: format!("raise it with `sysctl -w kernel.{name}=…`"),
            })
        })
        .min_by_key(|limit| limit.max)
}

/// Processes and threads that a user has on the whole machine. Those that hide their memory seem to be root's by their folders.
fn tasks(user: u32) -> u64 {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let processes = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_process));
    let statuses = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("status")).ok());
    statuses.filter_map(|status| tasks_in(&status, user)).sum()
}

/// The threads of a process, if it is this user's.
fn tasks_in(status: &str, user: u32) -> Option<u64> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next().map(str::to_owned)
    };
    (field("Uid:")?.parse() == Ok(user)).then(|| field("Threads:").and_then(|text| text.parse().ok()).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_counts_for_its_user_with_all_its_threads() {
        let status = "Name:\tx\nUid:\t1000\t0\t0\t0\nThreads:\t7\n";
        assert_eq!(tasks_in(status, 1000), Some(7));
        assert_eq!(tasks_in(status, 0), None);
        assert!(tasks(rustix::process::getuid().as_raw()) >= 1);
    }

    #[test]
    fn the_machine_always_has_a_limit_that_is_not_reached() {
        let limit = nearest_process_limit().unwrap();
        assert!(limit.used > 0 && limit.used < limit.max, "{limit:?}");
        assert!(machine().unwrap().of.contains("kernel."));
    }
}
