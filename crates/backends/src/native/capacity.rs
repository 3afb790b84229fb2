//! Computes how many sandboxes fit on this machine, and names the limit that a failed creation has reached.

use std::io;

use sandcell_jail::cgroup;
use sandcell_jail::open_files::{self, OpenFiles};
use sandcell_jail::outer;
use sandcell_jail::wire::{Report, StepError};
use sandcell_sandbox::{Bound, Capacity, Code, Failure, SandboxError};

/// The server's descriptors per idle sandbox: the agent's socket and the interpreter's direct pipes.
const FILES_IN_SERVER: u64 = 5;
/// The launcher's descriptors per sandbox as root: the adopt socket and the interpreter's process. It opens others on
/// demand.
const FILES_IN_LAUNCHER: u64 = 2;
/// The launcher's descriptors per sandbox as an ordinary user: it also holds the namespaces and the private files.
const FILES_HELD: u64 = 11;
/// The launcher's other open files and its reserve.
const LAUNCHER_OWN: u64 = 56;
/// The first process, an interpreter and its snapshot.
const PROCESSES_PER_SANDBOX: u64 = 3;
/// The measured memory of an idle sandbox with an interpreter, in bytes.
const IDLE_SANDBOX_BYTES: u64 = 6 << 20;
/// The memory of the server and its helper processes, in bytes.
const MEMORY_OWN: u64 = 128 << 20;
/// Namespaces of one kind that belong to no sandbox.
const NAMESPACES_OWN: u64 = 8;
/// The number of host user ids that a root launcher hands out, one per sandbox.
const HOST_USER_IDS: u64 = 1 << 14;
/// The number of sandboxes for which room must remain when the pool creates one.
const RESERVED_SANDBOXES: u64 = 4;
const SERVER_FILES: &str = "/proc/self/fd";

/// The machine's properties that every decision needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Machine {
    root: bool,
    /// The maximum number of open files of the launcher.
    launcher_files: u64,
}

impl Machine {
    pub(super) const fn new(found: &Report) -> Self {
        Self {
            root: found.root,
            launcher_files: found.open_files,
        }
    }

    /// Returns all limits that bound the number of sandboxes.
    pub(super) fn capacity(self, sandboxes_now: u64) -> Capacity {
        let files = OpenFiles::now();
        let open = open_files::count(SERVER_FILES).unwrap_or(0);
        let mut bounds = vec![self.open_files(files, open, sandboxes_now)];
        bounds.extend(processes());
        bounds.extend(memory());
        bounds.extend(self.namespaces());
        Capacity::of(bounds, open, files.soft)
    }

    fn open_files(self, files: OpenFiles, open: u64, sandboxes_now: u64) -> Bound {
        let most = files.most();
        let own = open.saturating_sub(sandboxes_now.saturating_mul(FILES_IN_SERVER));
        let server = most.saturating_sub(own + reserve(most)) / FILES_IN_SERVER;
        let each = if self.root { FILES_IN_LAUNCHER } else { FILES_HELD };
        let launcher = self.launcher_files.saturating_sub(LAUNCHER_OWN) / each;
        let number = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
        Bound {
            name: "open_files".to_owned(),
            sandboxes: server.min(launcher),
            limit: format!(
                "open files of one process: soft limit {}, hard limit {} (RLIMIT_NOFILE)",
                number(files.soft),
                number(files.hard)
            ),
            remedy: files_remedy().to_owned(),
        }
    }

    fn namespaces(self) -> Option<Bound> {
        let kinds = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"];
        let found = kinds.iter().filter_map(|kind| {
            let name = format!("user.max_{kind}_namespaces");
            Some((number(&format!("/proc/sys/{}", name.replace('.', "/")))?, name))
        });
        let (limit, name) = found.min()?;
        let remedy = format!("`sudo sysctl -w {name}=100000`");
        let fit = limit.saturating_sub(NAMESPACES_OWN);
        Some(Bound {
            name: "namespaces".to_owned(),
            sandboxes: if self.root { fit.min(HOST_USER_IDS) } else { fit },
            limit: format!("namespaces of one kind ({name}): {limit}"),
            remedy,
        })
    }

    /// Checks that this process may open the files of one more sandbox, in addition to those of `making` sandboxes in
    /// creation.
    pub(super) fn room(self, making: u64, ahead: bool) -> Result<(), SandboxError> {
        let most = OpenFiles::now().most();
        let Ok(open) = open_files::count(SERVER_FILES) else {
            return Err(self.lacking("count the open files", libc_errno::EMFILE));
        };
        let others = if ahead { making + RESERVED_SANDBOXES } else { making };
        let needed = reserve(most) + (others + 1).saturating_mul(FILES_IN_SERVER);
        if most.saturating_sub(open) >= needed {
            return Ok(());
        }
        Err(self.lacking(
            &format!("find open files for it in the server ({open} of {most} are open)"),
            libc_errno::EMFILE,
        ))
    }

    /// Returns the error for a failed step. If a resource is exhausted, the error names the limit.
    pub(super) fn step_failed(self, error: StepError) -> SandboxError {
        let forbidden =
            error.errno == libc_errno::ENOSPC && self.namespaces().is_some_and(|bound| bound.sandboxes == 0);
        if is_lack(error.errno) && !forbidden {
            self.lacking(&error.step, error.errno)
        } else {
            super::report::step_failed(error)
        }
    }

    /// Returns the same for a step that failed in the server.
    pub(super) fn name_limit(self, error: SandboxError) -> SandboxError {
        match error {
            SandboxError::Setup { step, source } => match source.raw_os_error() {
                Some(errno) if is_lack(errno) => self.lacking(&step, errno),
                _ => SandboxError::Setup { step, source },
            },
            other => other,
        }
    }

    fn lacking(self, step: &str, errno: i32) -> SandboxError {
        // Several limits count processes; the nearest one is named.
        if let Some(refused) = super::report::no_process(Some(errno)) {
            return refused;
        }
        let said = io::Error::from_raw_os_error(errno);
        let capacity = self.capacity(0);
        let bound = |name: &str| {
            capacity
                .bound(name)
                .map(|bound| (bound.limit.clone(), bound.remedy.clone()))
        };
        let named = match errno {
            libc_errno::EMFILE | libc_errno::ETOOMANYREFS => bound("open_files"),
            libc_errno::ENFILE => Some((
                "open files of this machine (fs.file-max)".to_owned(),
                "`sudo sysctl -w fs.file-max=1000000`".to_owned(),
            )),
            libc_errno::ENOSPC if step.contains("namespace") => bound("namespaces"),
            libc_errno::ENOMEM | libc_errno::ENOBUFS => bound("memory"),
            _ => None,
        };
        let (limit, remedy) = named.unwrap_or_else(|| {
            (
                "a limit of this machine".to_owned(),
                "`sandcell doctor` on the host shows the limits that it knows".to_owned(),
            )
        });
        SandboxError::Refused(Box::new(Failure::new(
            Code::LimitReached,
            format!("no more sandboxes fit: {limit}; failed to {step}: {said}"),
            format!(
                "close a sandbox that is no longer needed and try again; the operator can raise the limit: {remedy}"
            ),
        )))
    }
}

/// Error numbers that mean an exhausted resource.
mod libc_errno {
    use rustix::io::Errno;

    pub(super) const EAGAIN: i32 = Errno::AGAIN.raw_os_error();
    pub(super) const EMFILE: i32 = Errno::MFILE.raw_os_error();
    pub(super) const ENFILE: i32 = Errno::NFILE.raw_os_error();
    pub(super) const ENOBUFS: i32 = Errno::NOBUFS.raw_os_error();
    pub(super) const ENOMEM: i32 = Errno::NOMEM.raw_os_error();
    pub(super) const ENOSPC: i32 = Errno::NOSPC.raw_os_error();
    pub(super) const ETOOMANYREFS: i32 = Errno::TOOMANYREFS.raw_os_error();
}

const fn is_lack(errno: i32) -> bool {
    matches!(
        errno,
        libc_errno::EAGAIN
            | libc_errno::EMFILE
            | libc_errno::ENFILE
            | libc_errno::ENOBUFS
            | libc_errno::ENOMEM
            | libc_errno::ENOSPC
            | libc_errno::ETOOMANYREFS
    )
}

/// The number of files reserved for connections, the history and the like.
fn reserve(most: u64) -> u64 {
    (most / 8).clamp(16, 64)
}

fn files_remedy() -> &'static str {
    "`ulimit -n 65536` before the server starts, LimitNOFILE=65536 in its systemd unit, or `docker run --ulimit nofile=65536:65536`"
}

fn processes() -> Option<Bound> {
    let limit = outer::lowest_process_limit()?;
    Some(Bound {
        name: "processes".to_owned(),
        sandboxes: limit.max / PROCESSES_PER_SANDBOX,
        limit: format!("processes and threads of {}: {}", limit.holder(), limit.max),
        remedy: limit.remedy(),
    })
}

fn memory() -> Option<Bound> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let machine = line.split_whitespace().next()?.parse::<u64>().ok()? << 10;
    let group = cgroup::outer_memory_limit().filter(|group| *group < machine);
    let (limit, name, remedy) = match group {
        Some(group) => (
            group,
            "memory of the server's control group",
            "a larger MemoryMax= in the server's systemd unit, or `docker run --memory`",
        ),
        None => (machine, "memory of this machine", "a machine with more memory"),
    };
    Some(Bound {
        name: "memory".to_owned(),
        sandboxes: limit.saturating_sub(MEMORY_OWN) / IDLE_SANDBOX_BYTES,
        limit: format!(
            "{name}: {} MiB, {} MiB for an idle sandbox",
            limit >> 20,
            IDLE_SANDBOX_BYTES >> 20
        ),
        remedy: remedy.to_owned(),
    })
}

fn number(path: &str) -> Option<u64> {
    std::fs::read_to_string(path)
        .ok()?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST_MACHINE: Machine = Machine {
        root: true,
        launcher_files: 256,
    };

    fn failure(error: SandboxError) -> Failure {
        error.into()
    }

    #[test]
    fn an_exhausted_resource_is_named_with_its_remedy() {
        for (errno, step, name, remedy) in [
            (libc_errno::EMFILE, "start a process", "RLIMIT_NOFILE", "LimitNOFILE="),
            (libc_errno::ENFILE, "start a process", "fs.file-max", "fs.file-max="),
            (libc_errno::EAGAIN, "make namespaces", "process", ""),
            (
                libc_errno::ENOSPC,
                "make namespaces",
                "_namespaces",
                "sysctl -w user.max_",
            ),
            (libc_errno::ENOMEM, "make namespaces", "memory", ""),
        ] {
            let failed = StepError {
                step: step.to_owned(),
                layer: Some("user_namespace".to_owned()),
                errno,
            };
            let told = failure(TEST_MACHINE.step_failed(failed));
            assert_eq!(told.code, Code::LimitReached, "{told}");
            assert!(told.message.contains(name), "{told}");
            assert!(told.remedy.contains(remedy), "{told}");
        }
        let missing = StepError {
            step: "make namespaces".to_owned(),
            layer: Some("user_namespace".to_owned()),
            errno: 1,
        };
        assert_eq!(
            failure(TEST_MACHINE.step_failed(missing)).code,
            Code::IsolationUnavailable
        );
    }

    #[test]
    fn the_launchers_files_bound_the_capacity_as_the_servers_do() {
        let bound = TEST_MACHINE.capacity(0);
        let files = bound.bound("open_files").unwrap();
        assert!(files.sandboxes <= (256 - LAUNCHER_OWN) / FILES_IN_LAUNCHER, "{files:?}");
        let more = Machine {
            launcher_files: 100_000,
            ..TEST_MACHINE
        };
        assert!(more.capacity(0).bound("open_files").unwrap().sandboxes >= files.sandboxes);
    }
}
