//! The namespaces of a sandbox. Two of them serve to attach folders; a worker enters all of them.
//!
//! They are opened while the sandbox is made. Later its first process becomes undumpable. Then an ordinary user's
//! launcher may not open them again, so it keeps them open. A launcher with the right to open them does so when needed,
//! and keeps none open. It checks that they are the original ones, so nothing inside can replace them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fstat};

use crate::paths;

/// The order in which a first process sends them. Some kernels have no time namespace.
pub(in crate::launcher) const NAMESPACE_NAMES: [&str; 8] =
    ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"];
/// The number of leading namespaces that serve to attach folders.
const FOLDER_NAMESPACES: usize = 2;

/// The namespaces of one sandbox.
pub(in crate::launcher) struct Namespaces {
    /// Its first process. No other code reaps it while this lives.
    pid: u32,
    /// Their numbers, in the order of [`NAMESPACE_NAMES`].
    numbers: Vec<u64>,
    /// The open ones, from the first on.
    held: Vec<OwnedFd>,
    /// True if a worker has entered or is on its way. There is only one.
    used: bool,
}

/// The two namespaces that serve to attach folders.
pub(in crate::launcher) struct ForFolders {
    pub(in crate::launcher) user: OwnedFd,
    pub(in crate::launcher) mount: OwnedFd,
}

/// The namespaces that a worker enters first. It gets the mount namespace when the sandbox is complete.
pub(in crate::launcher) struct Entrances {
    /// In the order of [`NAMESPACE_NAMES`], except for the first two: pid, user, then the others.
    pub(in crate::launcher) all: Vec<OwnedFd>,
    /// The number of the process namespace.
    pub(in crate::launcher) pid_number: u64,
}

fn number(namespace: &OwnedFd) -> io::Result<u64> {
    Ok(fstat(namespace)?.st_ino)
}

/// Opens one namespace of a process. `process` is a process id or `self`.
fn open(process: impl std::fmt::Display, name: &str) -> io::Result<OwnedFd> {
    // The time namespace of its children: a process made without clone3 is itself in the launcher's.
    let file = if name == "time" { "time_for_children" } else { name };
    let path = format!("{}/proc/{process}/ns/{file}", paths::host());
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens all namespaces of a process that this kernel has.
pub(in crate::launcher) fn open_all(process: impl std::fmt::Display) -> io::Result<Vec<OwnedFd>> {
    let mut found = Vec::with_capacity(NAMESPACE_NAMES.len());
    for name in NAMESPACE_NAMES {
        match open(&process, name) {
            Ok(namespace) => found.push(namespace),
            Err(error) if name == "time" && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

impl Namespaces {
    /// Opens the namespaces of a new process: all of them if it can be entered, otherwise those for folders.
    pub(in crate::launcher) fn of(pid: u32, enterable: bool) -> io::Result<Self> {
        let held = if enterable {
            open_all(pid)?
        } else {
            vec![open(pid, "user")?, open(pid, "mnt")?]
        };
        Self::received(pid, held)
    }

    /// Takes the namespaces that a first process has sent.
    pub(in crate::launcher) fn received(pid: u32, held: Vec<OwnedFd>) -> io::Result<Self> {
        if held.len() < FOLDER_NAMESPACES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self {
            pid,
            numbers: held.iter().map(number).collect::<Result<_, _>>()?,
            held,
            used: false,
        })
    }

    /// Closes all of them if this process can open them again. The kernel decides that for all alike.
    pub(in crate::launcher) fn release(&mut self) {
        let again = open(self.pid, NAMESPACE_NAMES[0]).and_then(|again| number(&again));
        if again.is_ok_and(|found| self.numbers.first() == Some(&found)) {
            self.held.clear();
        }
    }

    /// Returns true if a worker may still enter.
    pub(in crate::launcher) const fn are_open(&self) -> bool {
        self.numbers.len() > FOLDER_NAMESPACES && !self.used
    }

    /// Returns one that is open, or opens it.
    fn get(&self, index: usize) -> io::Result<OwnedFd> {
        if let Some(held) = self.held.get(index) {
            return held.try_clone();
        }
        let lacks = || io::Error::from(io::ErrorKind::NotFound);
        let name = NAMESPACE_NAMES.get(index).ok_or_else(lacks)?;
        let found = open(self.pid, name)?;
        if self.numbers.get(index) != Some(&number(&found)?) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(found)
    }

    pub(in crate::launcher) fn mount(&self) -> io::Result<OwnedFd> {
        self.get(1)
    }

    pub(in crate::launcher) fn for_folders(&self) -> io::Result<ForFolders> {
        Ok(ForFolders {
            user: self.get(0)?,
            mount: self.mount()?,
        })
    }

    /// Returns the namespaces for a worker. Works once, even if the worker never enters.
    pub(in crate::launcher) fn entrances(&mut self) -> io::Result<Entrances> {
        if !self.are_open() {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.used = true;
        let order = [2, 0].into_iter().chain(3..self.numbers.len());
        let all = order.map(|index| self.get(index)).collect::<Result<Vec<_>, _>>();
        self.held.truncate(FOLDER_NAMESPACES);
        let pid_number = self.numbers.get(2).copied().unwrap_or_default();
        Ok(Entrances { all: all?, pid_number })
    }
}

impl Entrances {
    pub(in crate::launcher) fn descriptors(&self) -> impl Iterator<Item = std::os::fd::BorrowedFd<'_>> {
        self.all.iter().map(AsFd::as_fd)
    }
}
