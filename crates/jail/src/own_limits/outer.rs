//! Limits around this program on the number of processes. When one is reached, no sandbox can be made, and the system's
//! error (`EAGAIN`) does not say which limit it was.

use crate::cgroup::own_process_groups;

/// The set of processes and threads that a limit counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// The processes in this cgroup and below it.
    Group(String),
    /// The processes of this user.
    User(u32),
    /// All processes of the machine. The name of the kernel's setting.
    Machine(&'static str),
}

/// A limit of processes and threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessLimit {
    /// The holder of the limit.
    pub scope: Scope,
    /// The number that it allows.
    pub max: u64,
}

impl ProcessLimit {
    /// Names the holder of the limit.
    #[must_use]
    pub fn holder(&self) -> String {
        match &self.scope {
            Scope::Group(folder) => format!("the server's control group {folder} (pids.max)"),
            Scope::User(user) => format!("the server's user {user} (RLIMIT_NPROC)"),
            Scope::Machine(setting) => format!("the machine (kernel.{setting})"),
        }
    }

    /// Returns the way to raise it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match &self.scope {
            Scope::Group(folder) => {
                format!("raise {folder}/pids.max (with systemd TasksMax=, with Docker --pids-limit)")
            }
            Scope::User(_) => "raise `ulimit -u` for the server (with systemd LimitNPROC=)".to_owned(),
            Scope::Machine(setting) => format!("raise it with `sysctl -w kernel.{setting}=…`"),
        }
    }

    /// Returns the number of processes and threads that count towards it now. For a user this reads all of `/proc`.
    #[must_use]
    pub fn used(&self) -> Option<u64> {
        match &self.scope {
            Scope::Group(folder) => number(&format!("{folder}/pids.current")),
            Scope::User(user) => Some(tasks(*user)),
            Scope::Machine(_) => {
                let load = std::fs::read_to_string("/proc/loadavg").ok()?;
                load.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
            }
        }
    }
}

/// Returns every process limit that applies to this process and its descendants.
#[must_use]
pub fn process_limits() -> Vec<ProcessLimit> {
    groups().into_iter().chain(user()).chain(machine()).collect()
}

/// Returns the limit that allows the fewest processes. None if there is no limit.
#[must_use]
pub fn lowest_process_limit() -> Option<ProcessLimit> {
    process_limits().into_iter().min_by_key(|limit| limit.max)
}

/// Returns the limit with the fewest processes left, and its current count.
#[must_use]
pub fn nearest_process_limit() -> Option<(ProcessLimit, u64)> {
    let limits = process_limits().into_iter();
    let used = limits.filter_map(|limit| limit.used().map(|used| (limit, used)));
    used.min_by_key(|(limit, used)| limit.max.saturating_sub(*used))
}

fn number(path: &str) -> Option<u64> {
    std::fs::read_to_string(path)
        .ok()?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

fn groups() -> Vec<ProcessLimit> {
    let limit = |folder: String| {
        Some(ProcessLimit {
            max: number(&format!("{folder}/pids.max"))?,
            scope: Scope::Group(folder),
        })
    };
    own_process_groups().into_iter().filter_map(limit).collect()
}

/// Root is exempt.
fn user() -> Option<ProcessLimit> {
    let user = rustix::process::geteuid().as_raw();
    let max = rustix::process::getrlimit(rustix::process::Resource::Nproc).current?;
    (user != 0).then_some(ProcessLimit {
        scope: Scope::User(user),
        max,
    })
}

fn machine() -> Vec<ProcessLimit> {
    let limit = |setting| {
        Some(ProcessLimit {
            scope: Scope::Machine(setting),
            max: number(&format!("/proc/sys/kernel/{setting}"))?,
        })
    };
    ["pid_max", "threads-max"].into_iter().filter_map(limit).collect()
}

/// Counts the processes and threads of a user on the whole machine. Reads `status`, since the folder of an undumpable
/// process belongs to root.
fn tasks(user: u32) -> u64 {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let processes = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_process));
    let statuses = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("status")).ok());
    statuses.filter_map(|status| tasks_in(&status, user)).sum()
}

/// Returns the number of threads of a process, if it belongs to this user.
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
    fn all_threads_of_a_process_count_for_its_user() {
        let status = "Name:\tx\nUid:\t1000\t0\t0\t0\nThreads:\t7\n";
        assert_eq!(tasks_in(status, 1000), Some(7));
        assert_eq!(tasks_in(status, 0), None);
        assert!(tasks(rustix::process::getuid().as_raw()) >= 1);
    }

    #[test]
    fn the_machine_wide_limit_exists_and_is_not_reached() {
        let (limit, used) = nearest_process_limit().unwrap();
        assert!(used > 0 && used < limit.max, "{limit:?}");
        assert!(limit.max >= lowest_process_limit().unwrap().max);
        assert_eq!(machine().len(), 2);
    }
}
