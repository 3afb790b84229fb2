//! Cgroups, version 1 or 2, whichever this machine has.
//!
//! A sandbox's cgroup is created (or reused) and joined before a call needs it. Joining a cgroup after a pause waits
//! for the kernel (5 to 10 ms measured on version 1). Creating one and writing limits does not.

mod find;
mod instance;
mod outer;
mod share;

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{Mode, OFlags, StatVfs, fstat, fstatvfs, stat, statvfs};

use crate::kernel_files::small_file;
use crate::kernel_files::write_once;
use crate::spec::Request;
use crate::wire::Usage;

pub(crate) use find::{own_memory_kills, own_process_groups};
pub use instance::Instance;
pub use outer::outer_memory_limit;

/// The divisor of the memory limit for the memory of sockets.
const IN_SOCKETS: u64 = 8;

/// Memory that the jail itself may use, in addition to its programs.
const JAIL_OVERHEAD_BYTES: u64 = 16 << 20;
/// The kernel memory of an ordinary sandbox: at most this many bytes, at most this part of the memory limit, and some
/// bytes for each file.
const USUAL_KERNEL: u64 = 24 << 20;
const USUAL_PART: u64 = 8;
const INODE_BYTES: u64 = 2 << 10;
/// The prefix of cgroup folders.
const FOLDER_PREFIX: &str = "sandcell-";

/// The folders in which cgroups can be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Groups {
    /// One folder for each needed controller.
    V1 {
        /// For memory.
        memory: String,
        /// For the number of processes.
        pids: String,
        /// For processor time.
        cpu: String,
        /// For the count of processor time.
        cpuacct: String,
    },
    /// One folder for all controllers.
    V2 {
        /// The folder.
        folder: String,
    },
}

/// The cgroup of one sandbox.
#[derive(Debug)]
pub struct Group {
    kind: Groups,
    memory_limit: u64,
    /// The sandbox's private files. Their memory counts as disk.
    private_files: Option<PrivateFiles>,
    /// The open counter of processor time. It is read often while the sandbox works, and opening it is most of the
    /// cost. An idle sandbox holds no descriptor for it if the launcher has few.
    processor: RefCell<Option<File>>,
    /// The limits that are set.
    limited: Option<Request>,
    /// The hard limit, if lower than memory and disk together.
    narrowed: Cell<Option<u64>>,
}

/// The folder whose file system shows the memory of a sandbox's private files.
#[derive(Debug)]
enum PrivateFiles {
    /// An open folder.
    Held(OwnedFd),
    /// A folder that is opened when needed: its path, and the device that it must be on.
    Named { path: String, device: u64 },
}

impl PrivateFiles {
    fn usage(&self) -> Option<StatVfs> {
        match self {
            Self::Held(folder) => fstatvfs(folder).ok(),
            Self::Named { path, device } => (stat(path.as_str()).ok()?.st_dev == *device)
                .then(|| statvfs(path.as_str()).ok())
                .flatten(),
        }
    }
}

/// The means by which a new process joins a cgroup.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    /// The folder to clone the process into (version 2).
    pub(crate) folder: Option<OwnedFd>,
    /// The files that the process writes to (version 1).
    pub(crate) tasks: Vec<OwnedFd>,
}

impl Ways {
    /// Moves this process, which has one thread, into the cgroup (version 1). When a process moves itself, the kernel
    /// need not block all forks and exits. After a pause that block takes 5 to 10 ms.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn join(&self) -> io::Result<()> {
        for tasks in &self.tasks {
            rustix::io::write(tasks, b"0")?;
        }
        Ok(())
    }
}

impl Groups {
    /// `v1` or `v2`.
    #[must_use]
    pub const fn version(&self) -> &'static str {
        match self {
            Self::V1 { .. } => "v1",
            Self::V2 { .. } => "v2",
        }
    }

    fn folders(&self) -> Vec<&String> {
        match self {
            Self::V1 {
                memory,
                pids,
                cpu,
                cpuacct,
            } => {
                let mut folders = vec![memory, pids, cpu, cpuacct];
                folders.dedup();
                folders
            }
            Self::V2 { folder } => vec![folder],
        }
    }

    fn child(&self, name: &str) -> Self {
        let below = |folder: &String| format!("{folder}/{name}");
        match self {
            Self::V1 {
                memory,
                pids,
                cpu,
                cpuacct,
            } => Self::V1 {
                memory: below(memory),
                pids: below(pids),
                cpu: below(cpu),
                cpuacct: below(cpuacct),
            },
            Self::V2 { folder } => Self::V2 { folder: below(folder) },
        }
    }

    /// Claims an identity, and tests if limits can be set.
    fn usable(self) -> Result<(Self, Instance), String> {
        let instance = Instance::claim(&self).map_err(|error| format!("cannot make a control group: {error}"))?;
        match self.try_limits(&instance) {
            Ok(()) => Ok((self, instance)),
            Err(error) => {
                instance.remove();
                Err(error)
            }
        }
    }

    fn try_limits(&self, instance: &Instance) -> Result<(), String> {
        let mut group = self
            .make(&instance.group("probe"))
            .map_err(|error| format!("cannot make a control group: {error}"))?;
        let limited = group.limit(&Request {
            memory: 64 << 20,
            cpu_milli: 1000,
            processes: 16,
            disk: 0,
            inodes: 0,
            fault: None,
        });
        group
            .remove()
            .map_err(|error| format!("cannot remove a control group: {error}"))?;
        limited.map_err(|error| format!("cannot set limits on a control group: {error}"))
    }

    /// Returns a group that exists.
    pub(crate) fn named(&self, name: &str) -> Group {
        Group {
            kind: self.child(name),
            memory_limit: u64::MAX,
            private_files: None,
            processor: RefCell::new(None),
            limited: None,
            narrowed: Cell::new(None),
        }
    }

    /// Makes an empty group.
    ///
    /// # Errors
    /// The system's error. Nothing remains.
    pub fn make(&self, name: &str) -> io::Result<Group> {
        let group = self.named(name);
        for folder in group.kind.folders() {
            if let Err(error) = rustix::fs::mkdir(folder.as_str(), Mode::from_raw_mode(0o755)) {
                let _ = group.remove();
                return Err(error.into());
            }
        }
        Ok(group)
    }
}

fn pids_in(folder: &str) -> Vec<rustix::process::Pid> {
    let text = read(&format!("{folder}/cgroup.procs")).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.parse().ok())
        .filter_map(rustix::process::Pid::from_raw)
        .collect()
}

impl Group {
    /// Sets the limits.
    ///
    /// # Errors
    /// A limit could not be set. The group must not be used.
    pub fn limit(&mut self, request: &Request) -> io::Result<()> {
        if self.narrowed.take().is_none() && self.limited.as_ref() == Some(request) {
            return Ok(());
        }
        self.memory_limit = request.memory;
        let before = self.limited.take();
        let total = share::hard_limit(request).to_string();
        let processes = (u64::from(request.processes) + 2).to_string();
        let quota = quota_of(request);
        match &self.kind {
            Groups::V1 { memory, pids, cpu, .. } => {
                if before.is_some() {
                    // Neither of the two limits may exceed the other.
                    write_if_there(&format!("{memory}/memory.memsw.limit_in_bytes"), "-1")?;
                }
                write_once(&format!("{memory}/memory.limit_in_bytes"), &total)?;
                write_if_there(&format!("{memory}/memory.memsw.limit_in_bytes"), &total)?;
                write_if_there(&format!("{memory}/memory.swappiness"), "0")?;
                // Version 1 charges memory of sockets only if it is limited, and separately from other memory.
                write_if_there(
                    &format!("{memory}/memory.kmem.tcp.limit_in_bytes"),
                    &(request.memory / IN_SOCKETS).to_string(),
                )?;
                write_once(&format!("{pids}/pids.max"), &processes)?;
                write_once(&format!("{cpu}/cpu.cfs_period_us"), "100000")?;
                write_once(&format!("{cpu}/cpu.cfs_quota_us"), &quota.to_string())?;
            }
            Groups::V2 { folder } => {
                write_once(&format!("{folder}/memory.max"), &total)?;
                write_if_there(&format!("{folder}/memory.swap.max"), "0")?;
                write_if_there(&format!("{folder}/memory.oom.group"), "0")?;
                write_once(&format!("{folder}/pids.max"), &processes)?;
                write_once(&format!("{folder}/cpu.max"), &format!("{quota} 100000"))?;
            }
        }
        self.limited = Some(*request);
        Ok(())
    }

    /// Sets the weight under processor contention, in thousandths of a group's default weight.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn weigh(&self, thousandths: u32) -> io::Result<()> {
        // The default is 1024 on version 1 (minimum 2) and 100 on version 2 (minimum 1).
        match &self.kind {
            Groups::V1 { cpu, .. } => {
                let shares = (u64::from(thousandths) * 1024 / 1000).max(2);
                write_once(&format!("{cpu}/cpu.shares"), &shares.to_string())
            }
            Groups::V2 { folder } => {
                let weight = (u64::from(thousandths) / 10).max(1);
                write_once(&format!("{folder}/cpu.weight"), &weight.to_string())
            }
        }
    }

    /// Moves a process into the group (version 1). On version 2 a process is cloned into it.
    ///
    /// # Errors
    /// The system's error.
    pub fn join(&self, pid: u32) -> io::Result<()> {
        for folder in self.kind.folders() {
            write_once(&format!("{folder}/cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Opens the files by which another process with one thread joins the group: it writes "0" to each (version 1). Its
    /// writer can move only processes that it can name.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn entrances(&self) -> io::Result<Vec<OwnedFd>> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let open = |folder: &String| rustix::fs::open(format!("{folder}/tasks"), flags, Mode::empty());
        match &self.kind {
            Groups::V1 { .. } => Ok(self.kind.folders().into_iter().map(open).collect::<Result<_, _>>()?),
            Groups::V2 { .. } => Ok(Vec::new()),
        }
    }

    /// Returns the number of [`entrances`](Self::entrances).
    pub(crate) fn count_entrances(&self) -> usize {
        match &self.kind {
            Groups::V1 { .. } => self.kind.folders().len(),
            Groups::V2 { .. } => 0,
        }
    }

    /// Returns true if a process is in the group, by the content of its `/proc/<pid>/cgroup` (version 1).
    pub(crate) fn contains_process(&self, cgroups: &str) -> bool {
        let Groups::V1 {
            memory,
            pids,
            cpu,
            cpuacct,
        } = &self.kind
        else {
            return false;
        };
        let within = |controller: &str, folder: &str| {
            let name = folder.rsplit('/').next().unwrap_or_default();
            cgroups.lines().any(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
                    return false;
                };
                controllers.split(',').any(|found| found == controller) && path.rsplit('/').next() == Some(name)
            })
        };
        within("memory", memory) && within("pids", pids) && within("cpu", cpu) && within("cpuacct", cpuacct)
    }

    /// Opens the means by which a new process joins the group.
    ///
    /// # Errors
    /// A folder or file cannot be opened.
    pub(crate) fn ways(&self) -> io::Result<Ways> {
        let folder = match &self.kind {
            Groups::V1 { .. } => None,
            Groups::V2 { folder } => Some(rustix::fs::open(
                folder.as_str(),
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            )?),
        };
        let tasks = self.entrances()?;
        Ok(Ways { folder, tasks })
    }

    /// Returns the current usage.
    #[must_use]
    pub fn usage(&self) -> Usage {
        match &self.kind {
            Groups::V1 { memory, pids, .. } => Usage {
                memory: self.process_memory(),
                memory_peak: number(&format!("{memory}/memory.max_usage_in_bytes")),
                cpu_us: self.cpu_us(),
                processes: u32::try_from(number(&format!("{pids}/pids.current"))).unwrap_or(u32::MAX),
                memory_events: self.memory_events(),
                process_events: field(&format!("{pids}/pids.events"), "max"),
            },
            Groups::V2 { folder } => Usage {
                memory: self.process_memory(),
                memory_peak: number(&format!("{folder}/memory.peak")),
                cpu_us: self.cpu_us(),
                processes: u32::try_from(number(&format!("{folder}/pids.current"))).unwrap_or(u32::MAX),
                memory_events: self.memory_events(),
                process_events: field(&format!("{folder}/pids.events"), "max"),
            },
        }
    }

    /// Returns the processor time of the group, in microseconds.
    #[must_use]
    pub fn cpu_us(&self) -> u64 {
        let path = || match &self.kind {
            Groups::V1 { cpuacct, .. } => format!("{cpuacct}/cpuacct.usage"),
            Groups::V2 { folder } => format!("{folder}/cpu.stat"),
        };
        let mut held = self.processor.borrow_mut();
        let file = match &mut *held {
            Some(file) => file,
            empty => match File::open(path()) {
                Ok(file) => empty.insert(file),
                Err(_) => return 0,
            },
        };
        let mut bytes = [0; 1024];
        let Ok(length) = file.read_at(&mut bytes, 0) else {
            return 0;
        };
        let text = String::from_utf8_lossy(bytes.get(..length).unwrap_or_default());
        match &self.kind {
            Groups::V1 { .. } => text.trim().parse::<u64>().unwrap_or(0) / 1000,
            Groups::V2 { .. } => field_of(&text, "usage_usec"),
        }
    }

    /// Closes the counter of processor time until the next read.
    pub(crate) fn mark_idle(&self) {
        self.processor.replace(None);
    }

    /// Returns the number of processes that the kernel killed in the group for memory.
    #[must_use]
    pub fn memory_events(&self) -> u64 {
        match &self.kind {
            Groups::V1 { memory, .. } => field(&format!("{memory}/memory.oom_control"), "oom_kill"),
            Groups::V2 { folder } => field(&format!("{folder}/memory.events"), "oom_kill"),
        }
    }

    /// Returns true if the kernel killed a process of the group for memory although the group never reached its limit.
    /// Memory of an enclosing group or of the machine ran out.
    pub(crate) fn was_killed_from_above(&self) -> bool {
        let reached = match &self.kind {
            Groups::V1 { memory, .. } => number(&format!("{memory}/memory.failcnt")),
            Groups::V2 { folder } => field(&format!("{folder}/memory.events"), "max"),
        };
        reached == 0 && self.memory_events() > 0
    }

    /// Returns the memory of the group's processes: their own memory, shared memory other than private files, and
    /// (version 2) unreclaimable kernel memory above the usual amount. If the private files are unknown, those in
    /// memory count as shared.
    #[must_use]
    pub fn process_memory(&self) -> u64 {
        self.process_memory_of(&self.memory_by_kind())
    }

    /// Sets the folder of the private files, which are in memory, to distinguish them from memory that processes share.
    /// Called before any code runs in the sandbox.
    pub(crate) fn keep_private_files(&mut self, folder: OwnedFd) {
        self.private_files = Some(PrivateFiles::Held(folder));
    }

    /// Replaces the open folder by its path, if this process can open that. The path must be valid for the sandbox's
    /// lifetime.
    pub(crate) fn name_private_files(&mut self, path: String) {
        let Some(PrivateFiles::Held(folder)) = &self.private_files else {
            return;
        };
        if let (Ok(held), Ok(named)) = (fstat(folder), stat(path.as_str()))
            && (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)
            && statvfs(path.as_str()).is_ok()
        {
            self.private_files = Some(PrivateFiles::Named {
                path,
                device: held.st_dev,
            });
        }
    }

    /// Returns all memory charged to the group: a cheap upper bound of [`Self::process_memory`].
    #[must_use]
    pub fn charged(&self) -> u64 {
        match &self.kind {
            Groups::V1 { memory, .. } => number(&format!("{memory}/memory.usage_in_bytes")),
            Groups::V2 { folder } => number(&format!("{folder}/memory.current")),
        }
    }

    /// Returns the memory limit of processes.
    #[must_use]
    pub const fn memory_limit(&self) -> u64 {
        self.memory_limit
    }

    /// Returns the processes in the group, as this process sees them.
    #[must_use]
    pub fn pids(&self) -> Vec<rustix::process::Pid> {
        self.kind
            .folders()
            .first()
            .map(|folder| pids_in(folder))
            .unwrap_or_default()
    }

    /// Removes the group. It must be empty. The kernel may need a moment after the last process; retry on `EBUSY`.
    ///
    /// # Errors
    /// The error of the first folder that could not be removed.
    pub fn remove(&self) -> io::Result<()> {
        let mut first_error = None;
        for folder in self.kind.folders() {
            match rustix::fs::rmdir(folder.as_str()) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(error) => first_error = first_error.or(Some(io::Error::from(error))),
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Returns its folders, for a later removal if they are busy.
    pub(crate) fn folders(&self) -> impl Iterator<Item = String> + '_ {
        self.kind.folders().into_iter().cloned()
    }
}

/// Returns the microseconds of processor time per 100 ms.
fn quota_of(request: &Request) -> u64 {
    u64::from(request.cpu_milli).saturating_mul(100)
}

fn write_if_there(path: &str, text: &str) -> io::Result<()> {
    match write_once(path, text) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn read(path: &str) -> io::Result<String> {
    // Names of mounts and groups may not be UTF-8. Such names are never ours.
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}

fn number(path: &str) -> u64 {
    small_file(path).trim().parse().unwrap_or(0)
}

fn field(path: &str, name: &str) -> u64 {
    field_of(&small_file(path), name)
}

fn field_of(text: &str, name: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(key, _)| *key == name)
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_joins_all_folders_of_a_cgroup() {
        let group = Groups::V1 {
            memory: "/m".into(),
            pids: "/p".into(),
            cpu: "/c".into(),
            cpuacct: "/c".into(),
        }
        .named("sandcell-1-2-3");
        let cgroups_of =
            |pids: &str| format!("4:memory:/x/sandcell-1-2-3\n3:pids:{pids}\n2:cpu,cpuacct:/sandcell-1-2-3\n0::/\n");
        assert!(group.contains_process(&cgroups_of("/sandcell-1-2-3")));
        for other in ["/", "/sandcell-1-2-33", "/sandcell-1-2-3/below", ""] {
            assert!(!group.contains_process(&cgroups_of(other)), "{other}");
        }
        assert!(!group.contains_process(""));
    }

    #[test]
    fn counters_are_read_from_flat_files() {
        assert_eq!(field_of("low 0\noom 3\noom_kill 2\n", "oom_kill"), 2);
        assert_eq!(field_of("max 7\n", "max"), 7);
        assert_eq!(field_of("", "max"), 0);
    }
}
