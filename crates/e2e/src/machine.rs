//! The machine's resources, read from outside: processes, mounts, cgroups, descriptors, memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A process, identified by id and start time, so that a later process with the same id is not confused with it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessIdentity {
    pub pid: u32,
    /// The start time in clock ticks since boot.
    pub started: u64,
    pub name: String,
}

impl ProcessIdentity {
    /// Returns true while the process runs. A zombie does not run.
    pub fn lives(&self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.started == self.started && !matches!(stat.state, 'Z' | 'X'))
    }
}

struct Stat {
    name: String,
    state: char,
    parent: u32,
    started: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may itself contain parentheses.
    let (head, tail) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = tail.split(' ').collect();
    Some(Stat {
        name: head.split_once('(')?.1.to_owned(),
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

fn pids() -> impl Iterator<Item = u32> {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Identifies a process by its id.
pub fn process(pid: u32) -> ProcessIdentity {
    let stat = stat(pid).expect("the process is there");
    ProcessIdentity {
        pid,
        started: stat.started,
        name: stat.name,
    }
}

/// Kills a process; an already ended one is no error.
pub fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// Returns all descendants of this process.
pub fn descendants(of: u32) -> BTreeSet<ProcessIdentity> {
    let mut children: BTreeMap<u32, Vec<ProcessIdentity>> = BTreeMap::new();
    for pid in pids() {
        if let Some(stat) = stat(pid)
            && stat.state != 'Z'
        {
            children.entry(stat.parent).or_default().push(ProcessIdentity {
                pid,
                started: stat.started,
                name: stat.name,
            });
        }
    }
    let mut found = BTreeSet::new();
    let mut open = vec![of];
    while let Some(pid) = open.pop() {
        for child in children.remove(&pid).unwrap_or_default() {
            open.push(child.pid);
            found.insert(child);
        }
    }
    found
}

/// Returns the only descendant with this name.
pub fn named(of: u32, name: &str) -> ProcessIdentity {
    // A session's snapshot has the session's name for a moment while it is made.
    super::until(super::DEFAULT_TIMEOUT, &format!("one process is called {name}"), || {
        let found: Vec<ProcessIdentity> = descendants(of).into_iter().filter(|seen| seen.name == name).collect();
        <[ProcessIdentity; 1]>::try_from(found).ok()
    })
    .into_iter()
    .next()
    .unwrap()
}

/// Returns the first process of this process's sandbox.
pub fn first_of_its_sandbox(seen: &ProcessIdentity) -> ProcessIdentity {
    let mut pid = seen.pid;
    while status(pid, "NSpid").is_some_and(|inner| inner.split_whitespace().last() != Some("1")) {
        pid = stat(pid).expect("the process is there").parent;
    }
    process(pid)
}

/// Tells what a process does in the kernel, for messages of failed tests.
pub fn activity(pid: u32) -> String {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let state = status(pid, "State").unwrap_or_default();
    format!("{state}, in {:?}, stack {:?}", read("wchan"), read("stack"))
}

/// Returns a line of `/proc/PID/status`.
pub fn status(pid: u32, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|line| {
        line.strip_prefix(key)?
            .strip_prefix(':')
            .map(|value| value.trim().to_owned())
    })
}

/// Returns the private memory of a process, in bytes.
pub fn private_memory(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    text.lines()
        .filter(|line| line.starts_with("Private_Clean:") || line.starts_with("Private_Dirty:"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum::<u64>()
        * 1024
}

/// Returns the peak resident size, in bytes.
pub fn peak_memory(pid: u32) -> u64 {
    let text = status(pid, "VmHWM").unwrap_or_default();
    text.split_whitespace()
        .next()
        .and_then(|kib| kib.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

/// Returns the number of descriptors that the process holds.
pub fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |entries| entries.count())
}

/// Returns the number of descriptors, without those of files with `name` in their path.
pub fn descriptors_but(pid: u32, name: &str) -> usize {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    let targets = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets
        .filter(|target| !target.to_string_lossy().contains(name))
        .count()
}

/// Returns our own mount table: a sandbox never shows in it. The mounts of a container engine for its containers are
/// left out, since they appear and disappear.
pub fn mounts() -> BTreeSet<String> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let of_an_engine = |line: &&str| {
        let point = line.split(' ').nth(4).unwrap_or_default();
        ["docker", "containerd", "containers"]
            .iter()
            .any(|name| point.contains(name))
    };
    text.lines()
        .filter(|line| !of_an_engine(line))
        .map(str::to_owned)
        .collect()
}

/// Returns folders for private files that a launcher without namespaces has made and that no launcher uses any more.
/// Folders of other servers of this machine are locked, so they do not count.
pub fn abandoned_folders() -> BTreeSet<PathBuf> {
    use std::os::unix::fs::MetadataExt;

    // `1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF`: the last part of the file is its inode.
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    let locked: BTreeSet<u64> = locks
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5)?.rsplit(':').next()?.parse().ok())
        .collect();
    let ours = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        let free = |inode| !locked.contains(&inode);
        // The names end in sixteen digits.
        name.len() == 25
            && name.to_string_lossy().starts_with("sandcell-")
            && entry.metadata().is_ok_and(|found| free(found.ino()))
    };
    let entries = std::fs::read_dir("/tmp").unwrap().flatten();
    entries.filter(ours).map(|entry| entry.path()).collect()
}

/// The control group folders that existed before this test.
static EARLIER_GROUPS: OnceLock<BTreeSet<PathBuf>> = OnceLock::new();

/// Notes the control group folders that exist before this test. A killed launcher's folders stay until the next one
/// starts as root, and a process of this test may get the killed launcher's process id.
pub fn note_earlier_groups() {
    EARLIER_GROUPS.get_or_init(groups);
}

/// Returns the control group folders of these processes: they contain one, or have the process id of the launcher that
/// made them in their name. Other servers of this machine start and end meanwhile, so their folders do not count.
pub fn groups_of(processes: &BTreeSet<ProcessIdentity>) -> BTreeSet<PathBuf> {
    let earlier = EARLIER_GROUPS.get();
    let pids: BTreeSet<u32> = processes.iter().map(|seen| seen.pid).collect();
    let mut all = groups();
    all.retain(|folder| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let maker = name.split('-').nth(1).and_then(|pid| pid.parse().ok());
        let held = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        let mut held = held.lines().filter_map(|pid| pid.parse().ok());
        let is_earlier = earlier.is_some_and(|earlier| earlier.contains(folder));
        maker.is_some_and(|pid| pids.contains(&pid) && !is_earlier) || held.any(|pid| pids.contains(&pid))
    });
    all
}

/// Returns the control group folders with sandcell's names, in every hierarchy.
fn groups() -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for line in std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines() {
        let Some((head, tail)) = line.split_once(" - ") else {
            continue;
        };
        if tail.starts_with("cgroup")
            && let Some(point) = head.split(' ').nth(4)
        {
            collect(Path::new(point), &mut found);
        }
    }
    found
}

fn collect(folder: &Path, found: &mut BTreeSet<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let path = entry.path();
            if path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().contains("sandcell"))
            {
                found.insert(path.clone());
            }
            collect(&path, found);
        }
    }
}

/// Returns the namespaces of a process, by kind.
pub fn namespaces(pid: u32) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        if let Ok(link) = std::fs::read_link(format!("/proc/{pid}/ns/{kind}")) {
            found.insert(kind.to_owned(), link.display().to_string());
        }
    }
    found
}
