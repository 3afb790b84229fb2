//! Folders that belong to a process for its lifetime: it holds a lock on each.
//!
//! A process id in a name proves nothing to a reader in another PID namespace, where it is another process. The kernel
//! keeps the lock. It is the same in every process, mount and cgroup namespace, and ends with its holder in every case.
//! A process that gets the lock knows that the owner is dead.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{FlockOperation, Mode, OFlags, fstat, open, stat};
use rustix::io::Errno;

/// The owner of a folder, by its lock.
#[derive(Debug)]
pub(crate) enum Owner {
    /// It is alive, or its state is unknown.
    Alive,
    /// It has ended. No other process can claim this while the lock is held.
    Dead(OwnedFd),
    /// The folder does not exist.
    Absent,
}

fn lock(path: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = open(path, flags, Mode::empty())?;
    rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    Ok(folder)
}

/// Makes a folder and claims it for this process.
///
/// # Errors
/// The system's error. `Interrupted` if another process took the folder for a dead owner's before it was locked: retry
/// with another name.
pub(crate) fn make(path: &str, mode: u32) -> io::Result<OwnedFd> {
    rustix::fs::mkdir(path, Mode::from_raw_mode(mode))?;
    let taken = || io::Error::from(io::ErrorKind::Interrupted);
    let locked = match lock(path) {
        Ok(locked) => locked,
        Err(Errno::NOENT | Errno::WOULDBLOCK) => return Err(taken()),
        Err(error) => {
            let _ = rustix::fs::rmdir(path);
            return Err(error.into());
        }
    };
    // It may have been removed between the two calls. Then the lock is on a deleted folder.
    match (fstat(&locked), stat(path)) {
        (Ok(held), Ok(there)) if (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino) => Ok(locked),
        _ => Err(taken()),
    }
}

/// Checks if the owner of a claimed folder is alive.
pub(crate) fn owner(path: &str) -> Owner {
    match lock(path) {
        Ok(locked) => Owner::Dead(locked),
        Err(Errno::NOENT) => Owner::Absent,
        Err(_) => Owner::Alive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_dead_once_its_lock_is_gone() {
        let tree = tempfile::tempdir().unwrap();
        let path = tree.path().join("owned").to_str().unwrap().to_owned();
        assert!(matches!(owner(&path), Owner::Absent));
        let held = make(&path, 0o755).unwrap();
        assert!(matches!(owner(&path), Owner::Alive));
        drop(held);
        let judged = owner(&path);
        assert!(matches!(judged, Owner::Dead(_)));
        assert!(matches!(owner(&path), Owner::Alive), "two sweep at once");
    }

    #[test]
    fn an_owner_whose_lock_cannot_be_tested_counts_as_alive() {
        let tree = tempfile::tempdir().unwrap();
        let path = tree.path().join("link").to_str().unwrap().to_owned();
        std::os::unix::fs::symlink(tree.path(), &path).unwrap();
        assert!(matches!(owner(&path), Owner::Alive));
        make(&path, 0o755).unwrap_err();
    }
}
