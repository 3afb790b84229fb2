//! The namespaces of a sandbox: folders are attached by two of them, and a process enters by all of them.
//!
//! They are opened while the sandbox is made. Once its first process has hidden itself, an ordinary user's launcher may not
//! look at it any more, and holds them; one that may look opens them again when they are needed, and holds none until then.
//! What it opens must be what it saw at first: nothing inside can put other namespaces in their place.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fstat};

use crate::plan::place;

/// In the order in which a first process hands them over; some kernels have none for time.
pub(super) const NAMES: [&str; 8] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"];
/// The first of them, by which folders are attached.
const FOR_FOLDERS: usize = 2;

/// Those of one sandbox.
pub(super) struct Namespaces {
    /// Its first process, which nobody else reaps while this lives.
    pid: u32,
    /// Their numbers, in the order of [`NAMES`].
    numbers: Vec<u64>,
    /// Those that are held open, from the first on.
    held: Vec<OwnedFd>,
    /// A process was let in, or is on its way; there is only one.
    used: bool,
}

/// The two by which folders are attached.
pub(super) struct ForFolders {
    pub(super) user: OwnedFd,
    pub(super) mount: OwnedFd,
}

/// The namespaces through which a process enters, except the mount namespace, which it gets when the sandbox is made.
pub(super) struct Entrances {
    /// In the order of [`NAMES`], but for the first two: pid, user, then the others.
    pub(super) all: Vec<OwnedFd>,
    /// The number of the process namespace.
    pub(super) pid_number: u64,
}

fn number(namespace: &OwnedFd) -> io::Result<u64> {
    Ok(fstat(namespace)?.st_ino)
}

/// Opens one of a process, as `pid` or `self`.
fn open(process: impl std::fmt::Display, name: &str) -> io::Result<OwnedFd> {
    // That of its children: where a process is made without clone3 its own is the launcher's.
    let file = if name == "time" { "time_for_children" } else { name };
    let path = format!("{}/proc/{process}/ns/{file}", place::host());
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens all of a process, but for those that this kernel lacks.
pub(super) fn open_all(process: impl std::fmt::Display) -> io::Result<Vec<OwnedFd>> {
    let mut found = Vec::with_capacity(NAMES.len());
    for name in NAMES {
        match open(&process, name) {
            Ok(namespace) => found.push(namespace),
            Err(error) if name == "time" && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

impl Namespaces {
    /// Those of a process that was just made: all of them if it can be entered, else those for folders.
    pub(super) fn of(pid: u32, enterable: bool) -> io::Result<Self> {
        let held = if enterable {
            open_all(pid)?
        } else {
            vec![open(pid, "user")?, open(pid, "mnt")?]
        };
        Self::handed(pid, held)
    }

    /// Those that a first process has handed over.
    pub(super) fn handed(pid: u32, held: Vec<OwnedFd>) -> io::Result<Self> {
        if held.len() < FOR_FOLDERS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self {
            pid,
            numbers: held.iter().map(number).collect::<Result<_, _>>()?,
            held,
            used: false,
        })
    }

    /// Holds none any more if this process may open them again.
    pub(super) fn let_go(&mut self) {
        let found = NAMES.iter().zip(&self.numbers).all(|(name, expected)| {
            let again = open(self.pid, name).and_then(|again| number(&again));
            again.is_ok_and(|found| found == *expected)
        });
        if found {
            self.held.clear();
        }
    }

    /// Returns true if a process may still enter.
    pub(super) const fn are_open(&self) -> bool {
        self.numbers.len() > FOR_FOLDERS && !self.used
    }

    /// One that is held, or is opened now.
    fn get(&self, place: usize) -> io::Result<OwnedFd> {
        if let Some(held) = self.held.get(place) {
            return held.try_clone();
        }
        let lacks = || io::Error::from(io::ErrorKind::NotFound);
        let name = NAMES.get(place).ok_or_else(lacks)?;
        let found = open(self.pid, name)?;
        if self.numbers.get(place) != Some(&number(&found)?) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(found)
    }

    pub(super) fn mount(&self) -> io::Result<OwnedFd> {
        self.get(1)
    }

    pub(super) fn for_folders(&self) -> io::Result<ForFolders> {
        Ok(ForFolders {
            user: self.get(0)?,
            mount: self.mount()?,
        })
    }

    /// What a process enters by. Given once, whether or not somebody enters by it.
    pub(super) fn entrances(&mut self) -> io::Result<Entrances> {
        if !self.are_open() {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.used = true;
        let order = [2, 0].into_iter().chain(3..self.numbers.len());
        let all = order.map(|place| self.get(place)).collect::<Result<Vec<_>, _>>();
        self.held.truncate(FOR_FOLDERS);
        let pid_number = self.numbers.get(2).copied().unwrap_or_default();
        Ok(Entrances { all: all?, pid_number })
    }
}

impl Entrances {
    pub(super) fn descriptors(&self) -> impl Iterator<Item = std::os::fd::BorrowedFd<'_>> {
        self.all.iter().map(AsFd::as_fd)
    }
}
