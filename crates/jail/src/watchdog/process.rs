//! One process, as the kernel describes it in /proc: its memory, its state and its children.

use rustix::process::Pid;

use super::MAX_PROCESSES;
use crate::kernel_files::small_file;
use crate::paths;

/// The process name of a session's snapshot. The driver of the session sets it.
pub const SNAPSHOT_PROCESS_NAME: &str = "sandcell-copy";

/// The process name of a session's checkpoint. The driver sets it when the agent keeps the process.
pub(super) const CHECKPOINT_PROCESS_NAME: &str = "sandcell-kept";

/// One process in one check.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProcessSample {
    pub(super) pid: Pid,
    /// The thread whose folder in /proc describes it.
    pub(super) living: Pid,
    pub(super) bytes: u64,
    pub(super) tasks: u64,
    /// True if it was stopped before the watchdog stopped it.
    pub(super) stopped: bool,
    /// True if it is the newest snapshot of a session.
    pub(super) snapshot: bool,
    /// True if it is a frozen copy of a session: a checkpoint, or a snapshot that is not the newest.
    pub(super) copy: bool,
    /// True if it is a snapshot that is not the newest.
    pub(super) outdated: bool,
    /// True if it was killed and the kernel has not freed its memory yet.
    pub(super) dying: bool,
}

impl ProcessSample {
    pub(super) fn of(pid: Pid) -> Self {
        let (living, status) = status_of(pid);
        let snapshot = is_snapshot(pid, &status);
        let names = [SNAPSHOT_PROCESS_NAME, CHECKPOINT_PROCESS_NAME];
        Self {
            pid,
            living,
            bytes: private_memory_in(&status),
            tasks: number_of(&status, "Threads:"),
            stopped: false,
            dying: !status.is_empty() && !has_ended(&status) && (!status.contains("\nVmRSS:") || is_killed(&status)),
            snapshot,
            copy: !snapshot && name_in(&status).is_some_and(|name| names.contains(&name)),
            outdated: false,
        }
    }
}

/// Returns true for a process with a snapshot's name whose kernel session has a living leader. The leader is the process of
/// the session. When the leader ends, the snapshot replaces it and becomes the leader of a new kernel session.
pub(super) fn is_snapshot(pid: Pid, status: &str) -> bool {
    if name_in(status) != Some(SNAPSHOT_PROCESS_NAME) {
        return false;
    }
    leader(pid)
        .filter(|leader| *leader != pid)
        .map(|leader| status_of(leader).1)
        .is_some_and(|status| !status.is_empty() && !has_ended(&status))
}

fn name_in(status: &str) -> Option<&str> {
    status.lines().next()?.strip_prefix("Name:").map(str::trim)
}

/// Returns the leader of a process's kernel session.
fn leader(pid: Pid) -> Option<Pid> {
    let stat = small_file(&format!("{}/proc/{}/stat", paths::host(), pid.as_raw_nonzero()));
    let session = stat.rsplit_once(") ")?.1.split_whitespace().nth(3)?;
    Pid::from_raw(session.parse().ok()?)
}

/// Returns a process and all its descendants. In a PID namespace orphans descend from the first process.
pub(crate) fn descendants(first: Pid) -> Vec<Pid> {
    let mut found = vec![first];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        next += 1;
        found.extend(children(pid));
        if found.len() > MAX_PROCESSES {
            break;
        }
    }
    found
}

/// Returns the children of all threads of a process.
pub(crate) fn children(pid: Pid) -> Vec<Pid> {
    let number = pid.as_raw_nonzero();
    let tasks = format!("{}/proc/{number}/task", paths::host());
    let of = |text: String| {
        let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
        pids.filter_map(Pid::from_raw).collect::<Vec<_>>()
    };
    // The link count is two more than the number of threads. Most processes have one thread.
    if rustix::fs::stat(tasks.as_str()).is_ok_and(|found| found.st_nlink == 3) {
        return of(small_file(&format!("{tasks}/{number}/children")));
    }
    let mut found = Vec::new();
    for task in std::fs::read_dir(tasks).into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(of(children));
    }
    found
}

/// Returns the kernel's status of a process, and the thread it is from: another thread if the first has ended and
/// others live.
pub(super) fn status_of(pid: Pid) -> (Pid, String) {
    let of = |pid: Pid| small_file(&format!("{}/proc/{}/status", paths::host(), pid.as_raw_nonzero()));
    let status = of(pid);
    if !has_ended(&status) || number_of(&status, "Threads:") < 2 {
        return (pid, status);
    }
    let tasks = std::fs::read_dir(format!("{}/proc/{}/task", paths::host(), pid.as_raw_nonzero()));
    let others = tasks.into_iter().flatten().flatten().filter_map(|task| {
        let other = Pid::from_raw(task.file_name().to_str()?.parse().ok()?)?;
        Some((other, of(other)))
    });
    let mut living = others.filter(|(_, status)| !has_ended(status));
    living.next().unwrap_or((pid, status))
}

pub(super) fn is_stopped(pid: Pid) -> bool {
    let stat = small_file(&format!("{}/proc/{}/stat", paths::host(), pid.as_raw_nonzero()));
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|rest| rest.starts_with(['T', 't']))
}

/// Returns true for a process that has not run since SIGKILL was sent to it.
fn is_killed(status: &str) -> bool {
    let pending = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .unwrap_or(0)
    };
    (pending("SigPnd:") | pending("ShdPnd:")) & (1 << (libc::SIGKILL - 1)) != 0
}

fn has_ended(status: &str) -> bool {
    status.contains("\nState:\tZ") || status.contains("\nState:\tX")
}

/// Returns the size of a process's page tables, in bytes.
pub(super) fn tables_of(pid: Pid) -> u64 {
    number_of(&status_of(pid).1, "VmPTE:") * 1024
}

fn private_memory_in(status: &str) -> u64 {
    ["RssAnon:", "RssShmem:", "VmPTE:", "VmSwap:"]
        .iter()
        .map(|name| number_of(status, name))
        .sum::<u64>()
        * 1024
}

/// Returns the memory that would be freed by the process's end, in bytes. Expensive.
pub(super) fn own_memory(pid: Pid) -> u64 {
    let rollup = std::fs::read_to_string(format!("{}/proc/{}/smaps_rollup", paths::host(), pid.as_raw_nonzero()))
        .unwrap_or_default();
    // Page tables are never shared. A process that only reads can have many.
    (number_of(&rollup, "Private_Clean:") + number_of(&rollup, "Private_Dirty:")) * 1024 + tables_of(pid)
}

/// Returns a process's private memory and its share of shared memory, in bytes. Counts all of its memory if the kernel
/// does not report shares. A process that has ended since the sample counts nothing.
pub(super) fn exact_memory(sample: &ProcessSample) -> u64 {
    proportional_memory(sample.living).unwrap_or_else(|| ProcessSample::of(sample.pid).bytes)
}

/// Returns a process's private memory and its share of shared memory, in bytes. None if the kernel does not report it.
fn proportional_memory(pid: Pid) -> Option<u64> {
    let proc = format!("{}/proc/{}", paths::host(), pid.as_raw_nonzero());
    let rollup = std::fs::read_to_string(format!("{proc}/smaps_rollup")).ok()?;
    let status = std::fs::read_to_string(format!("{proc}/status")).ok()?;
    let tables = number_of(&status, "VmPTE:");
    let shares: u64 = ["Pss_Anon:", "Pss_Shmem:", "SwapPss:"]
        .iter()
        .map(|name| number_of(&rollup, name))
        .sum();
    // A kernel that does not split the shares by type is of no help here.
    (number_of(&rollup, "Pss_Anon:") > 0).then_some((shares + tables) * 1024)
}

/// Returns the number in a line such as `VmPTE:  4 kB`.
pub(super) fn number_of(status: &str, name: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// The usage of a process so far.
pub(super) struct Times {
    pub(super) threads: u32,
    /// Its processor time and that of its reaped children, in clock ticks.
    pub(super) ticks: u64,
    /// The number of page faults on new or shared memory.
    pub(super) faults: u64,
}

pub(super) fn times(pid: Pid) -> Times {
    let stat = small_file(&format!("{}/proc/{}/stat", paths::host(), pid.as_raw_nonzero()));
    let fields: Vec<u64> = stat
        .rsplit_once(')')
        .map(|(_, rest)| {
            rest.split_whitespace()
                .map(|field| field.parse().unwrap_or(0))
                .collect()
        })
        .unwrap_or_default();
    let field = |index: usize| fields.get(index).copied().unwrap_or(0);
    Times {
        threads: u32::try_from(field(17)).unwrap_or(u32::MAX),
        ticks: fields.iter().skip(11).take(4).sum(),
        faults: field(7),
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, kill_process};

    use super::*;

    #[test]
    fn a_snapshot_whose_session_ended_is_an_ordinary_process() {
        use std::io::{BufRead as _, BufReader};
        use std::process::{Command, Stdio};

        paths::host_is_as_it_is();
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(SNAPSHOT_PROCESS_NAME);
        std::fs::copy("/bin/sleep", &program).unwrap();
        let script = format!("{} 60 & echo $!; read line", program.display());
        // The shell leads a kernel session until its input ends.
        let mut session = Command::new("setsid")
            .args(["--wait", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(session.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let snapshot = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        // The shell writes the number before the program has its name.
        while status_of(snapshot).1.starts_with("Name:\tsh\n") {
            std::thread::yield_now();
        }
        assert!(ProcessSample::of(snapshot).snapshot);
        drop(session.stdin.take());
        session.wait().unwrap();
        assert!(!ProcessSample::of(snapshot).snapshot);
        kill_process(snapshot, Signal::KILL).unwrap();
    }

    #[test]
    fn a_process_with_a_pending_kill_is_dying() {
        assert!(is_killed("SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
        assert!(is_killed("SigPnd:\t0000000000000000\nShdPnd:\t0000000000020100\n"));
        assert!(!is_killed("SigPnd:\t0000000000040000\nSigBlk:\t0000000000000100\n"));
    }

    #[test]
    fn kernel_reports_are_parsed_by_field_name() {
        let status = "VmPeak:\t  900 kB\nRssAnon:\t     120 kB\nRssShmem:\t 8 kB\nVmPTE:\t 4 kB\n";
        assert_eq!(number_of(status, "RssAnon:"), 120);
        assert_eq!(number_of(status, "VmSwap:"), 0);
    }
}
